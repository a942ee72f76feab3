//! Timers of a server: functions that are called again and again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use throng_engine::Core;
use throng_io::Instant;

use crate::hub::Hub;

/// A function that is called once each period.
pub(crate) struct Tick {
    period: Duration,
    /// `None` before the server runs.
    next: Option<Instant>,
    call: Box<dyn FnMut(&Hub) + Send>,
}

impl Tick {
    pub(crate) fn new(period: Duration, call: Box<dyn FnMut(&Hub) + Send>) -> Self {
        Self { period, next: None, call }
    }

    /// Returns when it is due; at once before its first period has begun.
    fn due(&self) -> Instant {
        self.next.unwrap_or(Instant(0))
    }

    /// Calls the function if it is due. Periods that have passed without a call are left out.
    /// Returns false if it panicked.
    fn run(&mut self, hub: &Hub, now: Instant) -> bool {
        let Some(due) = self.next else {
            self.next = Some(now.after(self.period));
            return true;
        };
        if now < due {
            return true;
        }
        let period = self.period.as_nanos().max(1);
        let passed = u128::from(now.0 - due.0) / period + 1;
        let ahead = u64::try_from(passed * period).unwrap_or(u64::MAX);
        self.next = Some(Instant(due.0.saturating_add(ahead)));
        catch_unwind(AssertUnwindSafe(|| (self.call)(hub))).is_ok()
    }
}

/// The timers of a server, which its first shard takes.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<Vec<Tick>>);

impl Waiting {
    pub(crate) fn new(ticks: Vec<Tick>) -> Self {
        Self(Mutex::new(ticks))
    }

    pub(crate) fn take(&self) -> Ticks {
        Ticks(std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// The timers of a shard.
#[derive(Default)]
pub(crate) struct Ticks(Vec<Tick>);

impl Ticks {
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.iter().map(Tick::due).min()
    }

    /// Calls the functions that are due. One that panics is not called again: the panic hook has
    /// reported it, and the state behind it may be half changed.
    pub(crate) fn run(&mut self, core: &Core, now: Instant) {
        if self.next().is_some_and(|next| next <= now) {
            let hub = Hub::of(core.remote().clone());
            self.0.retain_mut(|tick| tick.run(&hub, now));
        }
    }
}
