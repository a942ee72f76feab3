//! The runs, the rules and the result of a search.

use serde::Serialize;

use super::assignment::Assignment;
use super::ratio::Ratio;
use crate::verdict::Limit;

/// Runs of a server with settings.
pub trait Measure {
    /// Starts the server with these settings instead of its own, and runs the load once.
    ///
    /// # Errors
    /// The run did not come to an end, see [`Interruption`].
    fn measure(&mut self, settings: &Assignment) -> Result<Reading, Interruption>;

    /// Returns whether no further candidate should be tried. What was kept is still confirmed.
    fn is_time_up(&self) -> bool {
        false
    }
}

/// The figures of one run.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The figure to maximise: larger is better.
    pub figure: f64,
    /// The 99th percentile of the latency, in microseconds.
    pub p99_us: Option<f64>,
    /// The party that limited the run.
    pub limit: Limit,
    /// The line of the verdict.
    pub verdict: String,
    /// Whether all thresholds were kept.
    pub keeps_slos: bool,
}

impl Reading {
    /// Returns the limit that makes a run worthless, if there is one.
    ///
    /// If server and generator are both at their limit, as they often are on two CPUs, a faster
    /// server meets the generator's: its gain is at least what is seen.
    pub(super) fn disturbance(&self) -> Option<Limit> {
        let is_figure = self.figure.is_finite() && self.figure > 0.0;
        match self.limit {
            _ if !is_figure => Some(Limit::Invalid),
            limit @ (Limit::Invalid | Limit::Generator | Limit::Machine) => Some(limit),
            Limit::Server | Limit::Both | Limit::Neither | Limit::Unknown => None,
        }
    }
}

/// Why a run has no figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// The user stopped it.
    Stopped,
    /// The server does not work with these settings.
    Refused(String),
    /// The run failed for a reason that concerns every run.
    Failed(String),
}

/// Rules of a search.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Runs with equal settings at the beginning. Default 6.
    pub noise_runs: usize,
    /// The numbers of pairs of runs after which a candidate is judged; after the last one it is
    /// not kept. Default 3, 5, 8 and 12.
    pub looks: &'static [usize],
    /// Such numbers for the confirmation. Default 4, 8 and 12.
    pub confirming_looks: &'static [usize],
    /// Smallest gain that counts. Default 0.02.
    pub min_gain: f64,
    /// Probability that any candidate of the search seems to differ although it does not. All
    /// looks at all candidates share it. Default 0.1; the confirmation follows.
    pub error: f64,
    /// Such a probability for the confirmation. Default 0.05.
    pub confirming_error: f64,
    /// Largest noise with which a search makes sense. Default 0.3.
    pub max_noise: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            noise_runs: 6,
            looks: &[3, 5, 8, 12],
            confirming_looks: &[4, 8, 12],
            min_gain: 0.02,
            error: 0.1,
            confirming_error: 0.05,
            max_noise: 0.3,
        }
    }
}

/// Runs with equal settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Noise {
    /// The figures, in their order.
    pub figures: Vec<f64>,
    /// The standard deviation of the logarithm of the ratio of two runs: 0.02 is 2 %.
    pub deviation: f64,
    /// The 99th percentile of the latency in microseconds, the mean of the runs.
    pub p99_us: Option<f64>,
}

impl Noise {
    /// Returns the mean figure.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.figures.iter().sum::<f64>() / self.figures.len().max(1) as f64
    }
}

/// The result of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// Better: it replaced the values before it.
    Kept,
    /// Worse.
    Worse,
    /// No difference that counts.
    Same,
    /// It seems better, and the runs differ too much to be certain.
    Uncertain,
    /// It is faster, but misses thresholds that the values before it keep.
    MissesSlo,
    /// The server does not work with it, or its answers are wrong.
    Refused,
    /// Something other than the server limited its runs.
    Limited,
}

impl Judgement {
    /// Its words in tables.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Worse => "worse",
            Self::Same => "no difference",
            Self::Uncertain => "not certain",
            Self::MissesSlo => "misses a threshold",
            Self::Refused => "refused",
            Self::Limited => "not measurable",
        }
    }
}

/// A candidate and what became of it.
#[derive(Clone, Debug, Serialize)]
pub struct Trial {
    /// The knob.
    pub knob: String,
    /// The values that were tried.
    pub settings: Assignment,
    /// The best values so far, with which it was compared.
    pub against: Assignment,
    /// The ratio to them; `None` if there were too few runs.
    pub ratio: Option<Ratio>,
    /// The result.
    pub judgement: Judgement,
    /// Why the candidate was tried, or why it was refused.
    pub reason: String,
}

/// The comparison of the kept values with the start in new runs.
#[derive(Clone, Debug, Serialize)]
pub struct Confirmation {
    /// The ratio to the start.
    pub ratio: Option<Ratio>,
    /// Whether the gain is certain.
    pub holds: bool,
    /// The 99th percentile of the latency in microseconds, the mean of the new runs.
    pub p99_us: Option<f64>,
    /// Such a mean of the start's runs.
    pub start_p99_us: Option<f64>,
}

/// The result of a search.
#[derive(Clone, Debug, Serialize)]
pub struct Tuning {
    /// The runs at the beginning.
    pub noise: Noise,
    /// The candidates, in their order.
    pub trials: Vec<Trial>,
    /// The values that are recommended; empty if no change is worth it.
    pub kept: Assignment,
    /// The comparison at the end; `None` if nothing was kept, or if it was stopped before.
    pub confirmation: Option<Confirmation>,
    /// Why it ended before all candidates were tried and confirmed; `None` if all were.
    pub early_end: Option<EarlyEnd>,
}

/// Why a search ended early. What was kept until then stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EarlyEnd {
    /// The user stopped it.
    Stopped,
    /// The time was over. What was kept is confirmed.
    OutOfTime,
    /// The best values so far are too fast for the generator or the machine, so that nothing can
    /// be compared with them: the verdict. What was kept is confirmed.
    Limited(String),
    /// A run with the best values so far failed.
    Failed(String),
}

impl EarlyEnd {
    /// Its sentence in reports.
    #[must_use]
    pub fn words(&self) -> String {
        const EARLY: &str = "before all candidates were tried";
        match self {
            Self::Stopped => format!("It was stopped {EARLY}."),
            Self::OutOfTime => format!("The time was over {EARLY}."),
            Self::Limited(verdict) => format!(
                "It ended {EARLY}: the server is not the limit with the values so far ({verdict})."
            ),
            Self::Failed(why) => format!("It ended {EARLY}: a run failed ({why})."),
        }
    }
}

/// Why there is no search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The user stopped it before there was anything to keep.
    Stopped,
    /// The generator or something else on the machine is the limit: the verdict.
    Limited(String),
    /// Equal runs differ too much.
    Noisy(String),
    /// The server does not work with its own settings, or a run failed.
    Failed(String),
}

/// The progress of a search.
#[derive(Debug)]
pub enum TuneEvent<'a> {
    /// The runs with equal settings are over.
    Noise(&'a Noise),
    /// A candidate is tried.
    Begins {
        /// Its number, from 1.
        number: usize,
        /// Candidates in all, at most.
        of: usize,
        /// Its values.
        settings: &'a Assignment,
    },
    /// A pair of runs is over; the ratio so far, with its 95 % interval.
    Compared(Option<Ratio>),
    /// A candidate was judged.
    Tried(&'a Trial),
    /// The kept values are compared with the start.
    Confirming(&'a Assignment),
}
