//! Pairs of runs of a candidate and its rival, and which of them count.

use super::model::Reading;
use crate::verdict::Limit;

/// Pairs of one candidate that are repeated because something else limited them; more if more than
/// a third of the pairs count.
const MAX_DISTURBED: usize = 6;

/// The pairs of a comparison.
#[derive(Default)]
pub(super) struct Pairs {
    /// The pairs that count: the figures of the candidate and of its rival.
    pub(super) figures: Vec<(f64, f64)>,
    /// Runs among them that missed thresholds, of the candidate and of its rival.
    pub(super) missed: (usize, usize),
    /// The 99th percentiles of their latencies.
    p99s: (Vec<f64>, Vec<f64>),
    /// Pairs that did not count when they were made.
    disturbed: usize,
    /// Pairs among them in which the rival was limited.
    of_rival: usize,
    /// Pairs among them in which the machine limited the candidate alone.
    of_candidate: Vec<(Reading, Reading)>,
    /// The machine limits this candidate in most runs, and its rival in few: these runs count.
    counts_limited: bool,
    /// The verdict on the last run that did not count.
    verdict: String,
}

/// The effect of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// It counts.
    Counts,
    /// It does not, and another one may.
    Disturbed,
    /// It does not, and neither did most others.
    Hopeless,
}

impl Pairs {
    /// Returns the number of all pairs.
    pub(super) fn number(&self) -> usize {
        self.figures.len() + self.disturbed
    }

    /// Adds a pair.
    ///
    /// Only a rival that something else slows down would flatter the candidate. A candidate that is
    /// too fast for the generator has at least the gain that is seen. So has a candidate that needs
    /// more of the machine than there is, which limits it in most of its runs: other work on the
    /// machine limits single runs of either side.
    pub(super) fn add(&mut self, new: Reading, old: Reading) -> Added {
        match (new.disturbance(), old.disturbance()) {
            (None | Some(Limit::Generator), None) => self.push(&new, &old),
            (Some(Limit::Machine), None) if self.counts_limited => self.push(&new, &old),
            (of_new, of_old) => {
                let line = if of_old.is_some() { &old.verdict } else { &new.verdict };
                self.verdict.clone_from(line);
                self.disturbed += 1;
                self.of_rival += usize::from(of_old.is_some());
                if of_new == Some(Limit::Machine) && of_old.is_none() {
                    self.of_candidate.push((new, old));
                }
                if self.disturbed < MAX_DISTURBED.max(2 * self.figures.len()) {
                    return Added::Disturbed;
                }
                if self.of_candidate.len() * 4 < self.disturbed * 3 {
                    return Added::Hopeless;
                }
                self.counts_limited = true;
                let limited = std::mem::take(&mut self.of_candidate);
                self.disturbed -= limited.len();
                limited.iter().for_each(|(new, old)| self.push(new, old));
            }
        }
        Added::Counts
    }

    /// Returns whether something other than the server limited the rival in every pair.
    pub(super) fn is_rival_limited(&self) -> bool {
        self.figures.is_empty() && self.of_rival == self.disturbed
    }

    /// Returns the verdict on the last run that did not count.
    pub(super) fn verdict(&self) -> &str {
        &self.verdict
    }

    /// Returns the mean 99th percentiles of the latency, of the candidate and of its rival.
    pub(super) fn p99s_us(&self) -> (Option<f64>, Option<f64>) {
        (mean(&self.p99s.0), mean(&self.p99s.1))
    }

    fn push(&mut self, new: &Reading, old: &Reading) {
        self.figures.push((new.figure, old.figure));
        self.missed.0 += usize::from(!new.keeps_slos);
        self.missed.1 += usize::from(!old.keeps_slos);
        self.p99s.0.extend(new.p99_us);
        self.p99s.1.extend(old.p99_us);
    }
}

/// Returns the mean of figures, if there are any.
pub(super) fn mean(figures: &[f64]) -> Option<f64> {
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(limit: Limit) -> Reading {
        let verdict = format!("limited by {}", limit.name());
        Reading { figure: 1.0, p99_us: Some(5.0), limit, verdict, keeps_slos: true }
    }

    fn added(pairs: &[(Limit, Limit)]) -> (Added, Pairs) {
        let mut all = Pairs::default();
        let added = pairs.iter().map(|&(new, old)| all.add(run(new), run(old))).last();
        (added.unwrap(), all)
    }

    use Limit::{Both, Generator, Machine, Server};

    #[test]
    fn a_candidate_may_be_too_fast_for_the_generator() {
        let (last, pairs) = added(&[(Generator, Server), (Server, Both)]);
        assert_eq!((last, pairs.figures.len()), (Added::Counts, 2));
        assert_eq!(pairs.p99s_us(), (Some(5.0), Some(5.0)));
    }

    #[test]
    fn a_rival_that_is_limited_does_not_count() {
        let (last, pairs) = added(&[(Server, Generator); 5]);
        assert_eq!((last, pairs.number(), pairs.figures.len()), (Added::Disturbed, 5, 0));
        let (last, pairs) = added(&[(Server, Generator); 6]);
        assert!(last == Added::Hopeless && pairs.is_rival_limited());
        assert_eq!(pairs.verdict(), "limited by generator");
    }

    #[test]
    fn a_candidate_that_the_machine_limits_counts_if_that_is_usual() {
        let (last, pairs) = added(&[(Machine, Server); 5]);
        assert_eq!((last, pairs.figures.len()), (Added::Disturbed, 0));
        let (last, mut pairs) = added(&[(Machine, Server); 6]);
        assert_eq!((last, pairs.figures.len(), pairs.number()), (Added::Counts, 6, 6));
        assert_eq!(pairs.add(run(Machine), run(Server)), Added::Counts);
        let few = [[(Server, Server); 4], [(Machine, Server); 4]].concat();
        let (last, pairs) = added(&few);
        assert_eq!((last, pairs.figures.len()), (Added::Disturbed, 4));
        let mixed = [[(Machine, Machine), (Machine, Server), (Server, Machine)]; 2].concat();
        let (last, pairs) = added(&mixed);
        assert!(last == Added::Hopeless && !pairs.is_rival_limited());
    }
}
