//! Time of a shard: the seconds that it has swept, and the connections that are due.

pub(crate) mod token_bucket;

use std::time::Duration;

use throng_io::Instant;

use crate::conn::timers::{MAX_SECS, Tick};
use crate::connections::Connections;

/// When a shard looks at its connections' deadlines.
pub(crate) struct Clockwork {
    started: Instant,
    /// Seconds since the start for which deadlines were looked at.
    swept: u64,
    /// Slots whose deadline has passed; kept for its memory.
    due: Vec<u32>,
}

impl Clockwork {
    pub(crate) fn new(started: Instant) -> Self {
        Self { started, swept: 0, due: Vec::new() }
    }

    /// Returns the seconds since the start if deadlines must be looked at.
    pub(crate) fn due_sweep(&self, now: Instant) -> Option<u64> {
        let secs = now.since(self.started).as_secs();
        (secs > self.swept).then_some(secs)
    }

    /// Begins the sweep of this second. Returns its tick, and the slots of connections that are
    /// due, to be [returned](Self::end_sweep).
    pub(crate) fn begin_sweep(&mut self, secs: u64, conns: &mut Connections) -> (Tick, Vec<u32>) {
        let strides = (secs - self.swept).min(u64::from(MAX_SECS - 1));
        let now = conns.tick().after(strides as u16);
        self.swept = secs;
        let mut due = std::mem::take(&mut self.due);
        conns.take_due(now, &mut due);
        (now, due)
    }

    pub(crate) fn end_sweep(&mut self, mut due: Vec<u32>) {
        due.clear();
        self.due = due;
    }

    /// Returns the time of a sweep in so many seconds.
    pub(crate) fn sweep_in(&self, secs: u64) -> Instant {
        self.started.after(Duration::from_secs(self.swept + secs))
    }
}
