//! Rate limits on the input of one connection.

use crate::conn::timers::Tick;

/// Input of each connection in the current second; empty while nothing is limited.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    /// Whether any limit is set: checked for each read.
    are_limited: bool,
    max_messages: u64,
    max_bytes: u64,
    said: Vec<Said>,
}

#[derive(Clone, Copy, Debug)]
struct Said {
    second: Tick,
    messages: u64,
    bytes: u64,
}

const NOTHING: Said = Said { second: Tick::NEVER, messages: 0, bytes: 0 };

impl Rates {
    /// Limits a second's messages and bytes; 0 = no limit.
    pub(crate) fn new(max_messages: u64, max_bytes: u64) -> Self {
        let or_none = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        Self {
            are_limited: max_messages > 0 || max_bytes > 0,
            max_messages: or_none(max_messages),
            max_bytes: or_none(max_bytes),
            said: Vec::new(),
        }
    }

    /// Returns whether any limit is set.
    #[inline]
    pub(crate) fn are_limited(&self) -> bool {
        self.are_limited
    }

    /// Clears the counts of `slot`, which has a new connection.
    pub(crate) fn forget(&mut self, slot: usize) {
        if let Some(said) = self.said.get_mut(slot) {
            *said = NOTHING;
        }
    }

    /// Counts the input of one read; returns false if the connection has exceeded its limit for
    /// this second.
    pub(crate) fn admit(&mut self, slot: usize, now: Tick, messages: u64, bytes: u64) -> bool {
        if self.said.len() <= slot {
            self.said.resize(slot + 1, NOTHING);
        }
        let said = &mut self.said[slot];
        if said.second != now {
            *said = Said { second: now, ..NOTHING };
        }
        said.messages += messages;
        said.bytes += bytes;
        said.messages <= self.max_messages && said.bytes <= self.max_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_and_each_connection_counts_for_itself() {
        let mut rates = Rates::new(3, 100);
        let (now, later) = (Tick::START, Tick::START.after(1));
        assert!(rates.are_limited() && !Rates::new(0, 0).are_limited());
        assert!(rates.admit(5, now, 3, 10));
        assert!(rates.admit(6, now, 1, 100), "another connection");
        assert!(!rates.admit(5, now, 1, 0), "a fourth message");
        assert!(rates.admit(5, later, 1, 10), "the next second");
        assert!(!rates.admit(5, later, 0, 91), "101 bytes");
        rates.forget(5);
        assert!(rates.admit(5, later, 3, 100), "another connection in the slot");
    }
}
