//! Bound on the time that the input of one connection takes before others have their turn.

use std::time::Duration;

use throng_io::{Clock, ConnId, Instant};

use crate::conn::record::NO_CONN;

/// Time after which the rest of a connection's input waits for the next turn. Output, publications
/// and compression have budgets of their own; this one bounds the rest: requests that are answered
/// with little, small messages in large reads, and handlers that send nothing.
const MAX_TIME: Duration = Duration::from_micros(500);

/// Events between two readings of the clock, so that reading it costs less than a nanosecond for
/// each message. A handler of 50 us therefore has at most 2.1 ms beyond [`MAX_TIME`].
const EVENTS: u32 = 32;

/// The time that the input of one connection has taken. One for a shard: nothing is set up for a
/// read of few events, which is nearly every one.
#[derive(Debug)]
pub(crate) struct InputTime {
    /// Events until the clock is read.
    left: u32,
    /// The connection whose event caused the clock to be read, and the time.
    of: ConnId,
    since: Instant,
}

impl InputTime {
    pub(crate) fn new() -> Self {
        Self { left: EVENTS, of: NO_CONN, since: Instant(0) }
    }

    /// Counts an event of a read; returns whether the rest of the input must wait.
    #[inline(always)]
    pub(crate) fn is_up(&mut self, id: ConnId, clock: &Clock) -> bool {
        self.left -= 1;
        self.left == 0 && self.check(id, clock)
    }

    /// Counts as many more events, where one costs as much as several.
    pub(crate) fn spend(&mut self, events: u32) {
        self.left = self.left.saturating_sub(events).max(1);
    }

    #[cold]
    #[inline(never)]
    fn check(&mut self, id: ConnId, clock: &Clock) -> bool {
        self.left = EVENTS;
        let now = clock.read();
        if self.of != id {
            (self.of, self.since) = (id, now);
        }
        let is_up = now.since(self.since) >= MAX_TIME;
        if is_up {
            // The rest of the input belongs to another turn.
            self.of = NO_CONN;
        }
        is_up
    }

    /// Begins a turn: time spent in the previous turn does not count.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        self.of = NO_CONN;
    }
}
