//! The search on servers that are simulated with noise.

use throng_testkit::Random;

use super::knobs::tests::situation;
use super::*;
use crate::verdict::Limit;

/// A server whose figure is a function of its settings, times noise.
struct Simulated<F> {
    figure: F,
    random: Random,
    /// The standard deviation of the logarithm of a figure.
    noise: f64,
    /// Growth of all figures with each run, such as of a machine that heats up.
    drift: f64,
    runs: u32,
    /// The user stops it after so many runs.
    stop_after: u32,
    limit: fn(f64) -> Limit,
    /// Per cent of the runs that other work on the machine slows down to a half.
    paused: usize,
}

impl<F: Fn(&Assignment) -> f64> Simulated<F> {
    fn new(seed: u64, noise: f64, figure: F) -> Self {
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        random.bits();
        let limit = |_: f64| Limit::Server;
        Self { figure, random, noise, drift: 0.0, runs: 0, stop_after: u32::MAX, limit, paused: 0 }
    }

    /// Returns a number of the standard normal distribution (Box and Muller). Every twentieth is
    /// three times as far out: machines pause.
    fn normal(&mut self) -> f64 {
        let mut unit = || (self.random.below(1 << 30) as f64 + 0.5) / f64::from(1 << 30);
        let (radius, angle, outlier) = (unit(), unit(), unit());
        let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
        if outlier < 0.05 { 3.0 * normal } else { normal }
    }
}

impl<F: Fn(&Assignment) -> f64> Measure for Simulated<F> {
    fn measure(&mut self, settings: &Assignment) -> Result<Reading, Interruption> {
        if self.runs == self.stop_after {
            return Err(Interruption::Stopped);
        }
        self.runs += 1;
        let true_figure = (self.figure)(settings);
        if true_figure == 0.0 {
            return Err(Interruption::Refused("it does not start".to_owned()));
        }
        let error = self.noise * self.normal() + self.drift * f64::from(self.runs);
        let is_paused = self.random.below(100) < self.paused;
        Ok(Reading {
            figure: true_figure * error.exp() * if is_paused { 0.5 } else { 1.0 },
            p99_us: Some(1e6 / true_figure),
            limit: if is_paused { Limit::Machine } else { (self.limit)(true_figure) },
            verdict: "the verdict".to_owned(),
            keeps_slos: true,
        })
    }
}

fn all_knobs() -> Vec<Knob> {
    let it = Situation { offers_deflate: true, size: 4096, cpus: 4, ..situation(Program::Library) };
    knobs(&it, &[], &[]).unwrap()
}

fn run(server: &mut dyn Measure) -> Result<Tuning, Refusal> {
    tune(&all_knobs(), &Rules::default(), server, &mut |_| {})
}

fn number(settings: &Assignment, key: &str, default: f64) -> f64 {
    settings.get(key).map_or(default, |value| value.parse().unwrap())
}

/// The bar is at most one false recommendation in 20 searches: here in 200, with three amounts of
/// noise, and with a drift.
#[test]
fn the_defaults_cause_no_false_recommendation() {
    let mut recommended = 0;
    for seed in 0..200_u64 {
        let noise = [0.005, 0.02, 0.08][seed as usize % 3];
        let mut server = Simulated::new(seed, noise, |_| 1000.0);
        server.drift = if seed % 2 == 0 { 0.001 } else { 0.0 };
        recommended += usize::from(!run(&mut server).unwrap().kept.is_empty());
    }
    assert!(recommended <= 1, "{recommended} of 200 searches recommend a change");
}

/// Without the confirmation, the candidates alone must keep the error that they share.
#[test]
fn the_candidates_share_the_error() {
    let mut kept = 0;
    for seed in 1000..1200 {
        let tuning = run(&mut Simulated::new(seed, 0.02, |_| 1000.0)).unwrap();
        let is_kept = |trial: &Trial| trial.judgement == Judgement::Kept;
        kept += usize::from(tuning.trials.iter().any(is_kept));
    }
    // Half of an error of 0.1 is on the side of a gain; a gain must also be 2 %.
    assert!(kept <= 20, "{kept} of 200 searches keep a candidate");
}

#[test]
fn planted_settings_are_found_within_fifteen_minutes() {
    type Figure = fn(&Assignment) -> f64;
    // A pool of 2 for handlers that wait 50 ms; deflate on random bytes; a shard too few;
    // fragments of 1 KiB.
    let planted: [(&str, Figure); 4] = [
        ("workers.pool_size", |it| 20.0 * number(it, "workers.pool_size", 2.0).min(100.0)),
        (
            "deflate.enabled",
            |it| if it.get("deflate.enabled") == Some("false") { 9e4 } else { 3e4 },
        ),
        ("shards", |it| 5e4 * number(it, "shards", 1.0).min(2.0).powf(0.7)),
        ("fragment_size", |it| if it.get("fragment_size").is_some() { 1300.0 } else { 1000.0 }),
    ];
    for (at, (key, figure)) in planted.into_iter().enumerate() {
        let mut server = Simulated::new(at as u64 + 1, 0.02, figure);
        let tuning = run(&mut server).unwrap();
        assert!(tuning.kept.get(key).is_some(), "{key}: {tuning:?}");
        assert!(tuning.confirmation.as_ref().is_some_and(|it| it.holds), "{key}");
        // A run takes some five seconds, and a search ends with its time at the latest.
        let finding = tuning.trials.iter().position(|trial| trial.judgement == Judgement::Kept);
        let pairs = |trial: &Trial| trial.ratio.map_or(0, |ratio| ratio.pairs);
        let until: usize = tuning.trials[..=finding.unwrap()].iter().map(pairs).sum();
        assert!((until * 2 + 6) * 5 < 15 * 60, "{key}: {until} pairs");
    }
}

#[test]
fn a_pool_grows_while_that_helps() {
    let figure = |it: &Assignment| 20.0 * number(it, "workers.pool_size", 2.0).min(60.0);
    let tuning = run(&mut Simulated::new(3, 0.02, figure)).unwrap();
    assert_eq!(tuning.kept.get("workers.pool_size"), Some("64"), "{tuning:?}");
}

#[test]
fn a_gain_below_two_percent_does_not_count() {
    let figure = |it: &Assignment| if it.get("pin") == Some("cores") { 1010.0 } else { 1000.0 };
    let tuning = run(&mut Simulated::new(1, 0.0001, figure)).unwrap();
    assert!(tuning.kept.is_empty(), "{tuning:?}");
    let pin = tuning.trials.iter().find(|it| it.settings.get("pin") == Some("cores")).unwrap();
    assert_eq!(pin.judgement, Judgement::Same);
}

#[test]
fn a_candidate_that_does_not_start_is_refused() {
    let figure = |it: &Assignment| match (it.get("pin"), it.get("shards")) {
        (Some("cores"), _) => 0.0,
        (_, Some("1")) => 100.0,
        _ => 1000.0,
    };
    let tuning = run(&mut Simulated::new(1, 0.01, figure)).unwrap();
    let of = |text: &str| {
        let found = tuning.trials.iter().find(|trial| trial.settings.to_string() == text);
        found.unwrap_or_else(|| panic!("{text}: {tuning:?}"))
    };
    assert_eq!(of("pin=cores").judgement, Judgement::Refused);
    assert_eq!(of("pin=cores").reason, "it does not start");
    assert_eq!(of("shards=1").judgement, Judgement::Worse);
}

#[test]
fn a_search_is_refused_while_the_server_is_not_the_limit() {
    let limits: [fn(f64) -> Limit; 3] =
        [|_| Limit::Generator, |_| Limit::Machine, |_| Limit::Invalid];
    for limit in limits {
        let mut server = Simulated::new(1, 0.01, |_: &Assignment| 1000.0);
        server.limit = limit;
        assert_eq!(run(&mut server).unwrap_err(), Refusal::Limited("the verdict".to_owned()));
        assert_eq!(server.runs, 6);
    }
    let mut server = Simulated::new(1, 0.6, |_: &Assignment| 1000.0);
    assert!(matches!(run(&mut server), Err(Refusal::Noisy(_))));
}

/// A candidate that the generator cannot keep up with has at least the gain that is seen.
#[test]
fn a_candidate_too_fast_for_the_generator_is_kept() {
    let figure = |it: &Assignment| if it.get("shards") == Some("4") { 2000.0 } else { 1000.0 };
    let mut server = Simulated::new(1, 0.01, figure);
    server.limit = |figure| if figure > 1500.0 { Limit::Generator } else { Limit::Server };
    let tuning = run(&mut server).unwrap();
    assert_eq!(tuning.kept.get("shards"), Some("4"));
    assert!(tuning.confirmation.as_ref().is_some_and(|it| it.holds), "{tuning:?}");
    // After that nothing can be compared.
    let [.., kept, last] = tuning.trials.as_slice() else { panic!("{tuning:?}") };
    assert_eq!((kept.judgement, last.judgement), (Judgement::Kept, Judgement::Limited));
    assert_eq!(tuning.early_end, Some(EarlyEnd::Limited("the verdict".to_owned())));
}

/// Other work on the machine limits a quarter of the runs, of either side: a search may give up,
/// and recommends nothing false.
#[test]
fn runs_that_something_else_limits_do_not_decide() {
    let (mut found, mut recommended) = (0, 0);
    for seed in 0..60 {
        let better = |it: &Assignment| if it.get("shards") == Some("4") { 1300.0 } else { 1000.0 };
        let of = |figure| {
            let mut server = Simulated::new(seed, 0.02, figure);
            server.paused = 25;
            run(&mut server)
        };
        found += usize::from(
            of(better as fn(&Assignment) -> f64).is_ok_and(|it| it.kept.to_string() == "shards=4"),
        );
        recommended += usize::from(of(|_| 1000.0).is_ok_and(|it| !it.kept.is_empty()));
    }
    assert!(found >= 36 && recommended == 0, "{found} found, {recommended} false ones");
}

#[test]
fn a_stop_keeps_the_best_so_far() {
    let figure = |it: &Assignment| 20.0 * number(it, "workers.pool_size", 2.0).min(100.0);
    let mut server = Simulated::new(1, 0.02, figure);
    server.stop_after = 30;
    let tuning = run(&mut server).unwrap();
    assert_eq!((tuning.early_end, tuning.confirmation.is_none()), (Some(EarlyEnd::Stopped), true));
    assert!(tuning.kept.get("workers.pool_size").is_some(), "{:?}", tuning.trials);
    let mut server = Simulated::new(1, 0.02, |_: &Assignment| 1.0);
    server.stop_after = 3;
    assert_eq!(run(&mut server).unwrap_err(), Refusal::Stopped);
}
