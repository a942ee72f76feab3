//! Handshakes that wait for their turn, and the limits of those under way.
//!
//! A handshake costs as much time as hundreds of messages. So handshakes begin when the events of a
//! turn are handled, the newest first and for a bounded time. In a storm, clients that have waited
//! long have often given up; whatever exceeds a limit, the oldest is given up first.

use std::collections::VecDeque;
use std::time::Duration;

use throng_io::{ConnId, Instant};

/// Handshakes of one turn take at most this long, but at least one is done.
const TIME_PER_TURN: Duration = Duration::from_millis(1);
/// Maximum handshakes of one turn, for clocks that stand still within it.
const MOST_PER_TURN: usize = 16;

/// The limits of handshakes of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeLimits {
    /// Handshakes under way, and likewise clients that wait for theirs to begin. Above it the
    /// oldest are ended. One under way needs 4.4 KB. Default 10,000.
    pub pending: usize,
    /// Handshakes that begin in a second. 0, the default: no limit.
    pub per_second: u32,
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        Self { pending: 10_000, per_second: 0 }
    }
}

/// The handshakes of a shard that wait, or are under way.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) limits: HandshakeLimits,
    /// Clients whose ClientHello is complete, the newest last.
    waiting: VecDeque<ConnId>,
    /// Clients whose handshakes have begun, the oldest first; some have completed theirs.
    begun: VecDeque<ConnId>,
    /// Handshakes that may still begin in this turn, and until when.
    left: usize,
    until: Option<Instant>,
    /// When the next handshake may begin by the rate. A rate not used is kept for a second.
    next: Instant,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Begins a turn. Returns when handshakes that wait can go on, if any waits.
    pub(super) fn begin_turn(&mut self, now: Instant) -> Option<Instant> {
        (self.left, self.until) = (MOST_PER_TURN, None);
        if self.waiting.is_empty() {
            // The memory of a storm is not kept.
            if self.waiting.capacity() > 1024 {
                self.waiting = VecDeque::new();
            }
            return None;
        }
        Some(now.max(self.next))
    }

    /// Adds a client. Returns the one to be ended for it, if there are too many.
    pub(super) fn push(&mut self, id: ConnId) -> Option<ConnId> {
        let too_many = self.waiting.len() >= self.limits.pending.max(1);
        let oldest = if too_many { self.waiting.pop_front() } else { None };
        self.waiting.push_back(id);
        oldest
    }

    /// Returns the newest client if its handshake may begin now.
    pub(super) fn pop(&mut self, read_clock: impl FnOnce() -> Instant) -> Option<ConnId> {
        if self.waiting.is_empty() || self.left == 0 {
            return None;
        }
        let now = read_clock();
        let until = *self.until.get_or_insert(now.after(TIME_PER_TURN));
        if now >= until || !self.may_begin(now) {
            return None;
        }
        self.left -= 1;
        self.waiting.pop_back()
    }

    /// Counts a handshake against the rate; returns false if it has to wait.
    fn may_begin(&mut self, now: Instant) -> bool {
        let Some(each) = 1_000_000_000_u64.checked_div(u64::from(self.limits.per_second)) else {
            return true;
        };
        if self.next > now {
            return false;
        }
        let earliest = Instant(now.0.saturating_sub(1_000_000_000));
        self.next = self.next.max(earliest).after(Duration::from_nanos(each));
        true
    }

    /// Records that the handshake of a client has begun; `under_way` are, this one included.
    /// Returns those to be ended for it, of which some may have ended by themselves.
    pub(super) fn begin(
        &mut self,
        id: ConnId,
        under_way: usize,
        is_under_way: impl Fn(ConnId) -> bool,
    ) -> Option<ConnId> {
        // Each is looked at once for each that has begun: that costs nothing beside a handshake.
        if self.begun.len() > 64 + 2 * under_way {
            self.begun.retain(|id| is_under_way(*id));
            self.begun.shrink_to(4 * self.begun.len() + 64);
        }
        self.begun.push_back(id);
        if under_way <= self.limits.pending.max(1) {
            return None;
        }
        while let Some(oldest) = self.begun.pop_front() {
            if is_under_way(oldest) {
                return Some(oldest);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(slot: u32) -> ConnId {
        ConnId::new(0, slot, 1)
    }

    fn queue(pending: usize, per_second: u32) -> Queue {
        let limits = HandshakeLimits { pending, per_second };
        Queue { limits, ..Queue::default() }
    }

    #[test]
    fn the_newest_is_served_and_the_oldest_given_up() {
        let mut queue = queue(3, 0);
        queue.begin_turn(Instant(0));
        let ended: Vec<_> = (0..5).filter_map(|slot| queue.push(id(slot))).collect();
        assert_eq!(ended, [id(0), id(1)]);
        let served: Vec<_> = std::iter::from_fn(|| queue.pop(|| Instant(0))).collect();
        assert_eq!(served, [id(4), id(3), id(2)]);
    }

    #[test]
    fn a_turn_is_bounded_by_time_and_by_number() {
        let mut queue = queue(1000, 0);
        (0..100).for_each(|slot| assert_eq!(queue.push(id(slot)), None));
        assert_eq!(queue.begin_turn(Instant(7)), Some(Instant(7)));
        assert!(queue.pop(|| Instant(7)).is_some(), "at least one");
        assert_eq!(queue.pop(|| Instant(1_000_007)), None);
        queue.begin_turn(Instant(2_000_000));
        let served = std::iter::from_fn(|| queue.pop(|| Instant(2_000_000))).count();
        assert_eq!(served, MOST_PER_TURN);
    }

    #[test]
    fn a_rate_spreads_handshakes_and_says_when_the_next_is_due() {
        let mut queue = queue(10_000, 10);
        (0..100).for_each(|slot| assert_eq!(queue.push(id(slot)), None));
        let second = 1_000_000_000;
        let mut served = 0;
        for step in 0..100 {
            let now = Instant(100 * second + step * second / 20);
            queue.begin_turn(now);
            served += std::iter::from_fn(|| queue.pop(|| now)).count();
        }
        // Those of the second before, and five seconds at ten.
        assert!((59..=61).contains(&served), "{served}");
        let now = Instant(105 * second);
        queue.begin_turn(now);
        while queue.pop(|| now).is_some() {}
        let due = queue.begin_turn(now).unwrap();
        assert!(due > now && due <= now.after(Duration::from_millis(100)), "{due:?}");
    }

    #[test]
    fn handshakes_under_way_are_bounded_and_forgotten_when_they_end() {
        let mut queue = queue(2, 0);
        let under_way = |id: ConnId| id.slot() != 1;
        assert_eq!(queue.begin(id(1), 1, under_way), None);
        assert_eq!(queue.begin(id(2), 2, under_way), None);
        assert_eq!(queue.begin(id(3), 2, under_way), None);
        assert_eq!(queue.begin(id(4), 3, under_way), Some(id(2)), "1 has ended by itself");
        for slot in 0..10_000 {
            queue.begin(id(slot), 1, |_| false);
        }
        assert!(queue.begun.len() <= 70, "{}", queue.begun.len());
    }
}
