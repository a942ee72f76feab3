//! Rate limits on the input of one connection.

use crate::conn::route_limits::RateLimits;
use crate::conn::timers::Tick;

/// Input of each connection in the current second; empty while nothing is limited.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    /// Whether any route has a limit: checked for each read.
    are_limited: bool,
    received: Vec<Received>,
}

#[derive(Clone, Copy, Debug)]
struct Received {
    second: Tick,
    messages: u64,
    bytes: u64,
}

const NOTHING: Received = Received { second: Tick::NEVER, messages: 0, bytes: 0 };

impl Rates {
    /// Creates the counts; nothing is counted unless it is limited.
    pub(crate) fn new(are_limited: bool) -> Self {
        Self { are_limited, received: Vec::new() }
    }

    /// Returns whether any limit is set.
    #[inline]
    pub(crate) fn are_limited(&self) -> bool {
        self.are_limited
    }

    /// Clears the counts of `slot`, which has a new connection.
    pub(crate) fn forget(&mut self, slot: usize) {
        if let Some(received) = self.received.get_mut(slot) {
            *received = NOTHING;
        }
    }

    /// Counts the input of one read; returns false if the connection has exceeded its limit for
    /// this second.
    pub(crate) fn admit(
        &mut self,
        slot: usize,
        now: Tick,
        (messages, bytes): (u64, u64),
        limits: RateLimits,
    ) -> bool {
        if !limits.are_set() {
            return true;
        }
        if self.received.len() <= slot {
            self.received.resize(slot + 1, NOTHING);
        }
        let received = &mut self.received[slot];
        if received.second != now {
            *received = Received { second: now, ..NOTHING };
        }
        received.messages += messages;
        received.bytes += bytes;
        received.messages <= limits.max_messages && received.bytes <= limits.max_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_and_each_connection_counts_for_itself() {
        let mut rates = Rates::new(true);
        let limits = RateLimits { max_messages: 3, max_bytes: 100 };
        let none = RateLimits { max_messages: u64::MAX, max_bytes: u64::MAX };
        let (now, later) = (Tick::START, Tick::START.after(1));
        assert!(rates.admit(5, now, (3, 10), limits));
        assert!(rates.admit(6, now, (1, 100), limits), "another connection");
        assert!(!rates.admit(5, now, (1, 0), limits), "a fourth message");
        assert!(rates.admit(5, now, (9, 900), none), "a route without limits");
        assert!(rates.admit(5, later, (1, 10), limits), "the next second");
        assert!(!rates.admit(5, later, (0, 91), limits), "101 bytes");
        rates.forget(5);
        assert!(rates.admit(5, later, (3, 100), limits), "another connection in the slot");
    }
}
