//! Bound on the time that the input of one connection takes before others have their turn.

use std::time::Duration;

use throng_io::{Clock, Instant};

/// Time after which the rest of a connection's input waits for the next turn. Output, publications
/// and compression have budgets of their own; this one bounds the rest: requests that are answered
/// with little, small messages in large reads, and handlers that send nothing.
const MAX_TIME: Duration = Duration::from_millis(1);

/// Events between two readings of the clock, so that reading it costs less than a nanosecond for
/// each message. A handler of 50 us therefore has at most 2.6 ms beyond [`MAX_TIME`].
const EVENTS: u32 = 32;

/// The time that the events of one read have taken.
#[derive(Debug)]
pub(crate) struct InputTime {
    /// Events until the clock is read.
    left: u32,
    /// The first reading. A read of few events has none.
    since: Option<Instant>,
}

impl InputTime {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self { left: EVENTS, since: None }
    }

    /// Counts an event; returns whether the rest of the input is to wait.
    #[inline(always)]
    pub(crate) fn is_up(&mut self, clock: &Clock) -> bool {
        self.left -= 1;
        self.left == 0 && self.check(clock)
    }

    #[cold]
    #[inline(never)]
    fn check(&mut self, clock: &Clock) -> bool {
        self.left = EVENTS;
        let now = clock.read();
        now.since(*self.since.get_or_insert(now)) >= MAX_TIME
    }
}
