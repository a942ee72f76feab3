//! The end of a server's threads: who has ended, and for how long the others are waited for.
//!
//! A shard resets what is still open at a drain's deadline by itself, unless a handler does not return: then it takes no
//! turns any more, and only others can tell.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use throng_engine::{DrainPlan, ShardProgress};

/// How long after the deadline a shard must have been in the same turn to be called stuck.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// A longer drain is as good as one without a deadline, but is a moment that clocks can show.
const LONGEST_DRAIN: Duration = Duration::from_secs(365 * 24 * 3600);

/// What the threads of a server and whoever waits for them have in common.
pub(crate) struct Ending {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// By shard.
    has_ended: Vec<bool>,
    /// The first drain that was asked for.
    drain: Option<(DrainPlan, Instant)>,
}

impl Ending {
    pub(crate) fn of(shards: usize) -> Self {
        let state = State { has_ended: vec![false; shards], drain: None };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A drain begins; none of the shards has more than so many connections. When it is to be over.
    pub(crate) fn begin_drain(&self, plan: DrainPlan, connections: usize) -> Instant {
        let deadline = Instant::now() + plan.length_for(connections).min(LONGEST_DRAIN);
        let (_, deadline) = *self.lock().drain.get_or_insert((plan, deadline));
        self.changed.notify_all();
        deadline
    }

    /// When the drain that was asked for is to be over, for shards and workers alike.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.lock().drain.map(|(_, deadline)| deadline)
    }

    /// The thread of a shard is about to end.
    pub(crate) fn note_end(&self, shard: usize) {
        if let Some(has_ended) = self.lock().has_ended.get_mut(shard) {
            *has_ended = true;
        }
        self.changed.notify_all();
    }

    /// Waits until all have ended, or a drain's deadline is past and those that are left stay where they are: in a
    /// handler that does not return. Gives those, and the route. `whereabouts` of a shard; `remind` them of the drain,
    /// since a mailbox may have been full.
    pub(crate) fn wait(
        &self,
        whereabouts: impl Fn(usize) -> ShardProgress,
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
            let mut patience = deadline.saturating_duration_since(Instant::now());
            if patience.is_zero() {
                let now: Vec<_> = left.iter().map(|&shard| (shard, whereabouts(shard))).collect();
                let stuck: Vec<(usize, u32)> =
                    now.iter().filter_map(|&(shard, at)| Some((shard, at.route?))).collect();
                // Whoever takes turns ends by itself. So does whoever sleeps, whose drain began late.
                if now == seen && stuck.len() == left.len() {
                    return stuck;
                }
                seen = now;
                remind(plan);
                patience = LAST_WAIT;
            }
            let waited = self.changed.wait_timeout(state, patience);
            let (next, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = next;
            if !timeout.timed_out() {
                // Somebody ended: the others are looked at for the whole time.
                seen.clear();
            }
        }
    }
}
