//! Graceful shutdown of a shard: every connection is notified, spread over a window, and all have
//! ended by the deadline.

use std::time::Duration;

use throng_io::{ConnId, Instant};
use throng_proto::ws::CloseCode;

use crate::drain::DrainPlan;
use crate::random::Random;
use crate::shard::time::token_bucket::TokenBucket;

/// Longest time before the deadline in which sessions with work are closed, for their peers to
/// answer.
const MAX_TO_ANSWER: Duration = Duration::from_secs(1);

/// Interval of closes while draining.
const STEP: Duration = Duration::from_millis(20);

/// Phase of a shard.
#[derive(Debug)]
enum Phase {
    /// Serving.
    Running,
    /// Serving, until the plan's delay is over and it begins.
    Announced {
        /// The rest of the plan, without the delay.
        plan: DrainPlan,
        at: Instant,
    },
    /// Closing connections on a schedule.
    Draining(Drain),
    /// No connection is left; `forced` connections had to be reset.
    Stopped {
        /// Number of connections that missed the deadline.
        forced: usize,
    },
}

/// Whether a shard serves, and how it ends.
#[derive(Debug)]
pub(crate) struct Life {
    phase: Phase,
    seed: u64,
}

/// A drain under way.
#[derive(Debug)]
pub(crate) struct Drain {
    /// Connections still to be closed, in random order; closed from the end.
    waiting: Vec<ConnId>,
    bucket: TokenBucket,
    begun: Instant,
    /// The end of the window.
    end: Instant,
    deadline: Instant,
    /// Connections that are closed later than their turn.
    working: Vec<Working>,
    /// When connections with work are asked for it again.
    next_check: Instant,
    /// When sessions are closed in spite of their work, so that their peers can still answer.
    last_close: Instant,
    notified_all: bool,
    /// Whether another process accepts the connections that come.
    hand_over: bool,
    /// Connections accepted until the last turn.
    accepted: Option<u64>,
    is_listening: bool,
    code: CloseCode,
    forced: usize,
}

/// A connection that is closed when its work is done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Working {
    /// A session that knows of the shutdown.
    Session(ConnId),
    /// A connection whose request is awaited.
    Request(ConnId),
}

impl Life {
    /// `seed`: of the order in which connections are closed.
    pub(crate) fn new(seed: u64) -> Self {
        Self { phase: Phase::Running, seed }
    }

    /// Returns whether no drain was announced.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    /// Returns whether connections enter that another shard has accepted.
    pub(crate) fn admits(&self) -> bool {
        match &self.phase {
            Phase::Running | Phase::Announced { .. } => true,
            Phase::Draining(drain) => drain.hand_over,
            Phase::Stopped { .. } => false,
        }
    }

    /// Serves until the plan's delay is over.
    pub(crate) fn announce(&mut self, plan: DrainPlan, now: Instant) {
        let at = now.after(plan.delay);
        self.phase = Phase::Announced { plan: plan.delay(Duration::ZERO), at };
    }

    /// Returns the plan of a drain that begins now.
    pub(crate) fn due_plan(&self, now: Instant) -> Option<DrainPlan> {
        match self.phase {
            Phase::Announced { plan, at } if now >= at => Some(plan),
            _ => None,
        }
    }

    /// Begins to close these connections.
    pub(crate) fn begin(&mut self, plan: DrainPlan, ids: Vec<ConnId>, now: Instant) {
        self.phase = Phase::Draining(Drain::new(plan, ids, now, self.seed));
    }

    /// Returns the drain under way.
    pub(crate) fn drain(&mut self) -> Option<&mut Drain> {
        match &mut self.phase {
            Phase::Draining(drain) => Some(drain),
            _ => None,
        }
    }

    /// Adds connections to the drain under way.
    pub(crate) fn add(&mut self, ids: Vec<ConnId>) {
        let seed = self.seed;
        if let Some(drain) = self.drain() {
            drain.add(ids, seed);
        }
    }

    /// Keeps a connection until its work is done. Does nothing without a drain.
    pub(crate) fn await_work(&mut self, connection: Working) {
        if let Some(drain) = self.drain() {
            drain.working.push(connection);
        }
    }

    /// Returns whether another process takes over.
    pub(crate) fn is_handing_over(&self) -> bool {
        matches!(&self.phase, Phase::Draining(drain) if drain.hand_over)
    }

    /// Returns when the drain continues, or begins.
    pub(crate) fn next_step(&self, now: Instant) -> Option<Instant> {
        match &self.phase {
            Phase::Announced { at, .. } => Some(*at),
            Phase::Draining(drain) => Some(drain.next_step(now)),
            Phase::Running | Phase::Stopped { .. } => None,
        }
    }

    /// Returns the deadline of a drain that has notified all connections.
    pub(crate) fn last_deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Draining(drain) if drain.notified_all => Some(drain.deadline),
            _ => None,
        }
    }

    /// Ends with `more` connections that missed the deadline elsewhere.
    pub(crate) fn stop(&mut self, more: usize) {
        self.phase = Phase::Stopped { forced: self.forced() + more };
    }

    /// Returns whether the shard has stopped.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Stopped { .. })
    }

    /// Returns the connections that missed the deadline so far.
    pub(crate) fn forced(&self) -> usize {
        match &self.phase {
            Phase::Running | Phase::Announced { .. } => 0,
            Phase::Draining(drain) => drain.forced,
            Phase::Stopped { forced } => *forced,
        }
    }

    /// Counts connections that missed their deadline while draining.
    pub(crate) fn count_forced(&mut self, count: usize) {
        if let Some(drain) = self.drain() {
            drain.forced += count;
        }
    }
}

impl Drain {
    fn new(plan: DrainPlan, mut ids: Vec<ConnId>, now: Instant, seed: u64) -> Self {
        Random::new(seed).shuffle(&mut ids);
        let total = ids.len();
        let (begun, window) = (now.after(plan.delay), plan.window_for(total));
        let end = begun.after(window);
        let to_answer = MAX_TO_ANSWER.min(plan.grace / 4);
        Self {
            bucket: TokenBucket::over(total, window),
            waiting: ids,
            begun,
            end,
            working: Vec::new(),
            next_check: begun,
            last_close: end.after(plan.grace.saturating_sub(to_answer)),
            deadline: now.after(plan.length_for(total)),
            notified_all: false,
            hand_over: plan.hand_over,
            accepted: None,
            is_listening: true,
            code: plan.code,
            forced: 0,
        }
    }

    /// Adds connections. Connections that are already listed, or were already notified, are ignored
    /// later.
    fn add(&mut self, ids: Vec<ConnId>, seed: u64) {
        self.waiting.extend(ids);
        self.waiting.sort_unstable();
        self.waiting.dedup();
        Random::new(seed).shuffle(&mut self.waiting);
    }

    /// Returns connections to close now.
    pub(crate) fn next_batch(&mut self, now: Instant) -> Vec<ConnId> {
        if now < self.begun {
            return Vec::new();
        }
        let due = if now >= self.end { usize::MAX } else { self.bucket.due(now) as usize };
        let batch = self.waiting.split_off(self.waiting.len().saturating_sub(due));
        self.notified_all = self.waiting.is_empty();
        batch
    }

    /// Returns the connections to be asked for their work now, and whether it is too late to wait.
    /// Connections that still have work are [awaited](Life::await_work) again.
    pub(crate) fn take_working(&mut self, now: Instant) -> (Vec<Working>, bool) {
        if now < self.next_check {
            return (Vec::new(), false);
        }
        self.next_check = now.after(STEP);
        (std::mem::take(&mut self.working), now >= self.last_close)
    }

    /// Returns true once, when the listeners must be closed: either the last close was due, or
    /// another process takes over and no connection was accepted in a turn after the drain began.
    /// `accepted`: connections accepted so far.
    pub(crate) fn ends_listening(&mut self, accepted: u64) -> bool {
        let before = self.accepted.replace(accepted);
        let ends = self.notified_all || self.hand_over && before == Some(accepted);
        ends && std::mem::replace(&mut self.is_listening, false)
    }

    /// Returns true when connections that are still open must be reset.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// Returns the code of the Close frames.
    pub(crate) fn code(&self) -> CloseCode {
        self.code
    }

    /// Returns the rest of the plan at `now` for a connection whose time has come.
    pub(crate) fn rest(&self, now: Instant) -> DrainPlan {
        let grace = self.deadline.since(now);
        let hand_over = self.hand_over;
        DrainPlan {
            window: Duration::ZERO,
            grace,
            delay: Duration::ZERO,
            code: self.code,
            hand_over,
        }
    }

    /// Returns when to check again. Checks continue after the deadline, but not at once, since a
    /// driver may take its time to close.
    fn next_step(&self, now: Instant) -> Instant {
        match self.deadline {
            _ if self.hand_over && self.is_listening => now.after(STEP),
            _ if now < self.begun => self.begun,
            deadline if deadline <= now => now.after(STEP),
            deadline if self.waiting.is_empty() && self.working.is_empty() => deadline,
            deadline => now.after(STEP).min(deadline),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(n: u32, window: Duration) -> Drain {
        let ids = (0..n).map(|slot| ConnId::new(0, slot, 0)).collect();
        Drain::new(DrainPlan { window, ..DrainPlan::default() }, ids, Instant(0), 7)
    }

    /// Clients that are closed in one instant come back in one instant.
    #[test]
    fn ten_thousand_closes_are_spread_evenly_and_each_comes_once() {
        let mut drain = drain(10_000, Duration::from_secs(10));
        let (mut seen, mut largest) = (Vec::new(), 0);
        for step in 0..=500 {
            let batch = drain.next_batch(Instant(step * 20_000_000));
            largest = largest.max(batch.len());
            seen.extend(batch);
        }
        assert!(largest <= 25, "{largest} of 10,000 in one step of 20 ms");
        let order: Vec<_> = seen.iter().map(|id| id.slot()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 10_000);
        assert!(!order.is_sorted(), "closed in the order of arrival");
    }

    #[test]
    fn a_plan_without_end_is_no_overflow() {
        let plan = DrainPlan {
            window: Duration::MAX,
            grace: Duration::MAX,
            delay: Duration::MAX,
            ..DrainPlan::DEFAULT
        };
        assert_eq!(plan.length_for(1), Duration::MAX);
        let ids = (0..2).map(|slot| ConnId::new(0, slot, 0)).collect();
        let mut endless =
            Drain::new(DrainPlan { delay: Duration::ZERO, ..plan }, ids, Instant(5), 7);
        assert!(endless.next_batch(Instant(6)).len() == 1 && !endless.is_overdue(Instant(6)));
        assert!(endless.next_batch(Instant(5_000_000)).is_empty());
        assert_eq!(endless.next_batch(Instant(5_000_006)).len(), 1);
    }

    #[test]
    fn few_connections_do_not_wait_for_the_window() {
        let mut few = drain(2, Duration::from_secs(10));
        assert_eq!(few.next_batch(Instant(10_000_000)).len(), 2);
        assert!(few.is_overdue(Instant(5_010_000_000)));
        let mut none = drain(2, Duration::ZERO);
        assert_eq!(none.next_batch(Instant(0)).len(), 2);
    }
}
