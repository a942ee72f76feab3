//! A shard's clock: the time of its turn, and its sweeps over deadlines.

use throng_http::LiveDate;
use throng_io::Instant;

use super::records::{BalanceRecords, EighthTick};

/// The time of a turn, read once at its beginning, and the time of the last sweep.
pub(super) struct Time {
    now: Instant,
    tick: EighthTick,
    swept: EighthTick,
    /// The date for answers that have no date.
    date: LiveDate,
    /// The slots whose deadlines have come, during a sweep.
    due: Vec<u32>,
    /// Total deadlines examined by sweeps.
    looked_at: u64,
}

impl Time {
    pub(super) fn new(now: Instant, date: LiveDate) -> Self {
        let tick = EighthTick::of(now);
        Self { now, tick, swept: tick, date, due: Vec::new(), looked_at: 0 }
    }

    /// Begins a turn.
    #[inline]
    pub(super) fn advance(&mut self, now: Instant) {
        self.now = now;
        self.tick = EighthTick::of(now);
    }

    #[inline]
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    #[inline]
    pub(super) fn tick(&self) -> EighthTick {
        self.tick
    }

    /// Returns the first tick at which `timeout` from now has certainly passed.
    pub(super) fn after(&self, timeout: std::time::Duration) -> EighthTick {
        self.tick.after(timeout)
    }

    /// Returns the date of an answer without one.
    pub(super) fn date(&mut self) -> &str {
        self.date.at(self.now.0)
    }

    /// Returns whether the last sweep was at least `period` ticks ago.
    pub(super) fn is_sweep_due(&self, period: u32) -> bool {
        self.tick.0 >= self.swept.0.saturating_add(period)
    }

    /// Begins a sweep.
    pub(super) fn begin_sweep(&mut self) {
        self.swept = self.tick;
    }

    /// Returns the slots whose deadlines have come, and clears their deadlines.
    pub(super) fn take_due(&mut self, records: &mut BalanceRecords) -> Vec<u32> {
        let mut due = std::mem::take(&mut self.due);
        self.looked_at += records.expire(self.tick, &mut due) as u64;
        due
    }

    /// Keeps the memory of a list of slots for the next sweep.
    pub(super) fn reuse(&mut self, mut due: Vec<u32>) {
        due.clear();
        self.due = due;
    }

    /// Returns the total of deadlines that sweeps examined.
    pub(super) fn looked_at(&self) -> u64 {
        self.looked_at
    }
}
