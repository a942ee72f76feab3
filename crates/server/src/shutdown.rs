//! The shutdown of a server: the ended shards, and the wait for the others.
//!
//! At a drain's deadline a shard resets the connections that are still open. A shard in a handler
//! that does not return cannot do that, and is detected here.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use throng_engine::{DrainPlan, ShardProgress};

/// The time after the deadline for which a shard must be in the same turn to count as stuck.
const STUCK_AFTER: Duration = Duration::from_millis(500);

/// The longest drain; it keeps deadlines within the range of [`Instant`].
const MAX_DRAIN: Duration = Duration::from_secs(365 * 24 * 3600);

/// The shutdown state that a server's threads share with waiting threads.
pub(crate) struct ServerDrain {
    state: Mutex<DrainState>,
    changed: Condvar,
}

struct DrainState {
    /// By shard.
    has_ended: Vec<bool>,
    /// The first drain that was begun, and its deadline.
    drain: Option<(DrainPlan, Instant)>,
}

impl ServerDrain {
    pub(crate) fn new(shards: usize) -> Self {
        let state = DrainState { has_ended: vec![false; shards], drain: None };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, DrainState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a drain, where no shard has more than `connections`, and returns its deadline. After
    /// the first call this only returns the deadline.
    pub(crate) fn begin_drain(&self, plan: DrainPlan, connections: usize) -> Instant {
        let deadline = Instant::now() + plan.length_for(connections).min(MAX_DRAIN);
        let (_, deadline) = *self.lock().drain.get_or_insert((plan, deadline));
        self.changed.notify_all();
        deadline
    }

    /// Returns the deadline of the drain, for shards and workers alike; `None` before it began.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.lock().drain.map(|(_, deadline)| deadline)
    }

    /// Records that the thread of a shard is about to end.
    pub(crate) fn record_end(&self, shard: usize) {
        if let Some(has_ended) = self.lock().has_ended.get_mut(shard) {
            *has_ended = true;
        }
        self.changed.notify_all();
    }

    /// Waits until all shards have ended, or until those left after a drain's deadline are all
    /// stuck in a handler. Returns the stuck shards, each with its route.
    ///
    /// `progress` returns the progress of a shard. `remind` sends the drain command again, since a
    /// command queue may have been full.
    pub(crate) fn wait(
        &self,
        progress: impl Fn(usize) -> ShardProgress,
        remind: impl Fn(DrainPlan),
    ) -> Vec<(usize, u32)> {
        let mut seen = Vec::new();
        let mut state = self.lock();
        loop {
            let left: Vec<usize> =
                (0..state.has_ended.len()).filter(|&shard| !state.has_ended[shard]).collect();
            if left.is_empty() {
                return Vec::new();
            }
            let Some((plan, deadline)) = state.drain else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let mut timeout = deadline.saturating_duration_since(Instant::now());
            if timeout.is_zero() {
                let now: Vec<_> = left.iter().map(|&shard| (shard, progress(shard))).collect();
                let stuck: Vec<(usize, u32)> =
                    now.iter().filter_map(|&(shard, at)| Some((shard, at.route?))).collect();
                // A shard that still takes turns ends by itself, and so does a sleeping shard.
                if now == seen && stuck.len() == left.len() {
                    return stuck;
                }
                seen = now;
                remind(plan);
                timeout = STUCK_AFTER;
            }
            let waited = self.changed.wait_timeout(state, timeout);
            let (next, result) = waited.unwrap_or_else(PoisonError::into_inner);
            state = next;
            if !result.timed_out() {
                // A shard has ended: watch the others for the whole time again.
                seen.clear();
            }
        }
    }
}
