//! The search: noise, candidates one at a time, confirmation.

use super::assignment::Assignment;
use super::knobs::Knob;
use super::model::{
    Confirmation, EarlyEnd, Interruption, Judgement, Measure, Noise, Reading, Refusal, Rules,
    Trial, TuneEvent, Tuning,
};
use super::pairs::{Added, Pairs, mean};
use super::ratio::{Ratio, noise};
use crate::verdict::Limit;

/// The level at which a candidate without a gain is given up. It cannot cause a false gain.
const GIVE_UP_ERROR: f64 = 0.05;

/// Searches better values for the knobs, one knob after the other in their order. Blocks.
///
/// # Errors
/// See [`Refusal`]. After the runs for the noise there are no errors: a search that ends early has
/// what was kept until then.
pub fn tune(
    knobs: &[Knob],
    rules: &Rules,
    measure: &mut dyn Measure,
    watch: &mut dyn FnMut(TuneEvent<'_>),
) -> Result<Tuning, Refusal> {
    let start = noise_of(rules, measure)?;
    watch(TuneEvent::Noise(&start));
    let of = knobs.iter().map(|knob| knob.choices.len()).sum::<usize>();
    let mut search = Search { rules, measure, watch, floor: start.deviation };
    let mut tuning = Tuning {
        noise: start,
        trials: Vec::new(),
        kept: Assignment::default(),
        confirmation: None,
        early_end: None,
    };
    let error = rules.error / of.max(1) as f64;
    let searched = search.all_knobs(knobs, of, error, &mut tuning);
    let outcome = searched.and_then(|()| search.confirm(&mut tuning));
    if let Err(why) = outcome {
        tuning.early_end = Some(match why {
            Interruption::Stopped => EarlyEnd::Stopped,
            Interruption::Refused(why) | Interruption::Failed(why) => EarlyEnd::Failed(why),
        });
    }
    Ok(tuning)
}

/// Measures the noise, and refuses a search that could not find anything.
fn noise_of(rules: &Rules, measure: &mut dyn Measure) -> Result<Noise, Refusal> {
    let mut readings = Vec::new();
    for _ in 0..rules.noise_runs {
        readings.push(measure.measure(&Assignment::default()).map_err(|why| match why {
            Interruption::Stopped => Refusal::Stopped,
            Interruption::Refused(why) | Interruption::Failed(why) => Refusal::Failed(why),
        })?);
    }
    let (limited, sound): (Vec<Reading>, Vec<Reading>) =
        readings.into_iter().partition(|reading| reading.disturbance().is_some());
    if let Some(last) = limited.last()
        && limited.len() > sound.len()
    {
        return Err(Refusal::Limited(last.verdict.clone()));
    }
    let figures: Vec<f64> = sound.iter().map(|reading| reading.figure).collect();
    let deviation = noise(&figures);
    if deviation > rules.max_noise {
        return Err(Refusal::Noisy(format!(
            "runs with equal settings differ by {:.0} %: measure longer (--each), or on a quiet \
             machine",
            deviation * 100.0
        )));
    }
    let p99s: Vec<f64> = sound.iter().filter_map(|reading| reading.p99_us).collect();
    Ok(Noise { figures, deviation, p99_us: mean(&p99s) })
}

struct Search<'s> {
    rules: &'s Rules,
    measure: &'s mut dyn Measure,
    watch: &'s mut dyn FnMut(TuneEvent<'_>),
    /// The noise.
    floor: f64,
}

/// The result of a comparison.
struct Compared {
    judgement: Judgement,
    ratio: Option<Ratio>,
    reason: Option<String>,
    pairs: Pairs,
}

impl Compared {
    fn without_figures(judgement: Judgement, reason: String) -> Self {
        Self { judgement, ratio: None, reason: Some(reason), pairs: Pairs::default() }
    }

    fn into_trial(self, knob: &Knob, choice: &Assignment, best: &Assignment) -> Trial {
        Trial {
            knob: knob.name.clone(),
            settings: choice.clone(),
            against: best.clone(),
            ratio: self.ratio,
            judgement: self.judgement,
            reason: self.reason.unwrap_or_else(|| knob.reason.clone()),
        }
    }
}

impl Search<'_> {
    fn all_knobs(
        &mut self,
        knobs: &[Knob],
        of: usize,
        error: f64,
        tuning: &mut Tuning,
    ) -> Result<(), Interruption> {
        let mut number = 0;
        for knob in knobs {
            let mut has_gained = false;
            for choice in &knob.choices {
                number += 1;
                if choice.is_part_of(&tuning.kept) {
                    continue;
                }
                if self.measure.is_time_up() {
                    tuning.early_end = Some(EarlyEnd::OutOfTime);
                    return Ok(());
                }
                (self.watch)(TuneEvent::Begins { number, of, settings: choice });
                let best = &tuning.kept;
                let compared = self.compare(&best.with(choice), best, self.rules.looks, error)?;
                let is_best_limited =
                    compared.judgement == Judgement::Limited && compared.pairs.is_rival_limited();
                let trial = compared.into_trial(knob, choice, best);
                (self.watch)(TuneEvent::Tried(&trial));
                let is_kept = trial.judgement == Judgement::Kept;
                if is_kept {
                    tuning.kept = tuning.kept.with(choice);
                }
                let verdict = is_best_limited.then(|| trial.reason.clone());
                tuning.trials.push(trial);
                // Other candidates would meet the same limit.
                if verdict.is_some() && !tuning.kept.is_empty() {
                    tuning.early_end = verdict.map(EarlyEnd::Limited);
                    return Ok(());
                }
                // Past its best value a figure falls further.
                if has_gained && !is_kept && knob.is_ascending {
                    break;
                }
                has_gained |= is_kept;
            }
        }
        Ok(())
    }

    /// Compares what was kept with the start, and drops it if that shows no gain.
    fn confirm(&mut self, tuning: &mut Tuning) -> Result<(), Interruption> {
        if tuning.kept.is_empty() {
            return Ok(());
        }
        (self.watch)(TuneEvent::Confirming(&tuning.kept));
        let Rules { confirming_looks, confirming_error, .. } = *self.rules;
        let start = Assignment::default();
        let compared = self.compare(&tuning.kept, &start, confirming_looks, confirming_error)?;
        let holds = compared.judgement == Judgement::Kept;
        let (p99_us, start_p99_us) = compared.pairs.p99s_us();
        let ratio = compared.ratio;
        tuning.confirmation = Some(Confirmation { ratio, holds, p99_us, start_p99_us });
        if !holds {
            tuning.kept = Assignment::default();
        }
        Ok(())
    }

    /// Makes pairs of runs until the candidate is judged. `error` is for all looks together.
    fn compare(
        &mut self,
        candidate: &Assignment,
        rival: &Assignment,
        looks: &[usize],
        error: f64,
    ) -> Result<Compared, Interruption> {
        let mut pairs = Pairs::default();
        let mut next_looks = looks.iter().copied().peekable();
        while let Some(&next_look) = next_looks.peek() {
            // Every second pair is in the other order, so that a drift favours neither.
            let is_reversed = pairs.number() % 2 == 1;
            let (new, old) = match self.pair(candidate, rival, is_reversed) {
                Ok((new, _)) if new.limit == Limit::Invalid => {
                    return Ok(Compared::without_figures(Judgement::Refused, new.verdict));
                }
                Ok(pair) => pair,
                Err(Interruption::Refused(why)) => {
                    return Ok(Compared::without_figures(Judgement::Refused, why));
                }
                Err(why) => return Err(why),
            };
            match pairs.add(new, old) {
                Added::Counts => {}
                Added::Disturbed => continue,
                Added::Hopeless => {
                    let verdict = pairs.verdict().to_owned();
                    let none = Compared::without_figures(Judgement::Limited, verdict);
                    return Ok(Compared { pairs, ..none });
                }
            }
            let so_far = Ratio::of(&pairs.figures, self.floor, GIVE_UP_ERROR);
            (self.watch)(TuneEvent::Compared(so_far));
            if pairs.figures.len() < next_look {
                continue;
            }
            next_looks.next();
            let is_last = next_looks.peek().is_none();
            let certain = Ratio::of(&pairs.figures, self.floor, error / looks.len() as f64);
            if let (Some(loose), Some(certain)) = (so_far, certain)
                && let Some(judgement) = self.judge(&pairs, &loose, &certain, is_last)
            {
                let ratio = Some(if judgement == Judgement::Kept { certain } else { loose });
                return Ok(Compared { judgement, ratio, reason: None, pairs });
            }
        }
        // Rules without looks.
        Ok(Compared::without_figures(Judgement::Uncertain, "not compared".to_owned()))
    }

    fn pair(
        &mut self,
        candidate: &Assignment,
        rival: &Assignment,
        is_reversed: bool,
    ) -> Result<(Reading, Reading), Interruption> {
        // The rival worked before: its refusal is a failure.
        let failed = |why| match why {
            Interruption::Refused(why) => Interruption::Failed(why),
            why => why,
        };
        if is_reversed {
            let old = self.measure.measure(rival).map_err(failed)?;
            return Ok((self.measure.measure(candidate)?, old));
        }
        let new = self.measure.measure(candidate)?;
        Ok((new, self.measure.measure(rival).map_err(failed)?))
    }

    /// Judges a candidate by its interval: `certain` for a gain, `loose` to give it up. `None` if
    /// more pairs are needed.
    fn judge(
        &self,
        pairs: &Pairs,
        loose: &Ratio,
        certain: &Ratio,
        is_last: bool,
    ) -> Option<Judgement> {
        let least = 1.0 + self.rules.min_gain;
        let is_gain = certain.low > 1.0 && certain.mean >= least;
        match () {
            () if is_gain && pairs.missed.0 > pairs.missed.1 => Some(Judgement::MissesSlo),
            () if is_gain => Some(Judgement::Kept),
            () if loose.high < 1.0 => Some(Judgement::Worse),
            () if loose.high < least || loose.mean <= 1.0 => Some(Judgement::Same),
            () if is_last && loose.mean >= least => Some(Judgement::Uncertain),
            () if is_last => Some(Judgement::Same),
            () => None,
        }
    }
}
