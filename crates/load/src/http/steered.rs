//! Observations of a run by its steering thread.

use std::time::Duration;

use throng_io::Instant;

use super::plan::Plan;
use super::tally::Tally;
use crate::run::Measured;
use crate::sampler::Processes;

/// Observations of the steering thread.
pub(super) struct Steered {
    /// Time of the set-up; `None` without one.
    pub(super) took: Option<Duration>,
    /// The begin of a run with a number of requests; the run ends with the last answer.
    pub(super) start: Option<Instant>,
    pub(super) measured: Measured,
}

impl Steered {
    /// The measured time: up to the last answer, if there is a number of requests.
    pub(super) fn seconds(&self, plan: &Plan, tally: &Tally) -> f64 {
        match self.start {
            None => self.measured.seconds(plan.duration),
            Some(start) => tally.last.since(start).as_secs_f64().max(1e-9),
        }
    }
}

/// Processes, as named in the report.
pub(super) type Server<'a> = Option<&'a Processes>;
