//! Progress of a run, for a line on the terminal.

use std::time::Duration;

/// Progress, which is reported about ten times a second during a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Current stage.
    pub stage: RunStage,
    /// Connections open now.
    pub connections: u64,
    /// Answers, connections or deliveries so far, warm-up included.
    pub done: u64,
    /// Increase a second since the last report.
    pub per_s: f64,
}

/// Stage of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RunStage {
    /// Connections are being made.
    Connecting {
        /// Ready.
        ready: u64,
        /// Asked for.
        wanted: u64,
    },
    /// Not counted yet.
    WarmingUp {
        /// Time so far.
        elapsed: Duration,
        /// Time in all.
        total: Duration,
    },
    /// The measured time.
    Measuring {
        /// Time so far.
        elapsed: Duration,
        /// Time in all.
        total: Duration,
    },
    /// A fixed number of messages or requests is being sent, and all of them are measured.
    Counting {
        /// Answered.
        done: u64,
        /// Asked for.
        total: u64,
    },
    /// Publishes follow one another.
    Publishing {
        /// Made.
        done: u64,
        /// Asked for.
        total: u64,
    },
    /// All messages were sent, and the run waits for the last answers.
    Draining {
        /// Answers awaited.
        waiting: u64,
    },
    /// The run waits until the server closes every connection.
    AwaitingClose {
        /// Connections that are open.
        open: u64,
    },
}

impl RunStage {
    /// Returns the completed share (0 to 1) of this stage.
    #[must_use]
    pub fn share(&self) -> f64 {
        let share = match *self {
            Self::Connecting { ready: done, wanted: total }
            | Self::Counting { done, total }
            | Self::Publishing { done, total } => done as f64 / total.max(1) as f64,
            Self::WarmingUp { elapsed, total } | Self::Measuring { elapsed, total } => {
                elapsed.as_secs_f64() / total.as_secs_f64().max(1e-9)
            }
            Self::Draining { .. } | Self::AwaitingClose { .. } => 1.0,
        };
        share.clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        assert_eq!(RunStage::Connecting { ready: 5, wanted: 10 }.share(), 0.5);
        assert_eq!(RunStage::Publishing { done: 0, total: 0 }.share(), 0.0);
        let (elapsed, total) = (Duration::from_secs(3), Duration::from_secs(2));
        assert_eq!(RunStage::Measuring { elapsed, total }.share(), 1.0);
        assert_eq!(RunStage::Draining { waiting: 7 }.share(), 1.0);
    }
}
