//! One connection of the load, from the first dial through every time it is opened again.

use throng_io::{ConnId, Instant};

use super::answer::Reading;

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There is none.
    Out,
    /// It is about to be dialled.
    Queued,
    Connecting,
    Open,
    /// Its last answer has come, and the server's end of stream is awaited.
    Ending,
}

/// State of one connection of the load generator.
#[derive(Debug)]
pub(super) struct ClientConn {
    pub(super) id: ConnId,
    pub(super) step: Step,
    /// A batch is on its way out: nothing else can be sent.
    pub(super) is_sending: bool,
    /// It was dialled for the first time, and counts in the window of those under way.
    pub(super) is_first: bool,
    /// It ends, or ended, for a reason that is an error: the next dial waits a little.
    pub(super) has_failed: bool,
    /// An answer has come on it.
    pub(super) has_answered: bool,
    /// When it was dialled, or, while it is ending, when its last answer came.
    pub(super) since: Instant,
    /// When its TCP connection was established, while a TLS handshake has ended and nothing
    /// followed.
    pub(super) tcp: Option<Instant>,
    /// Requests that may have been sent by now; without end in a closed loop.
    pub(super) due: u64,
    /// Requests sent. Those up to `done` are over, the others await their answers in order.
    pub(super) sent: u64,
    pub(super) done: u64,
    pub(super) reading: Reading,
}

impl ClientConn {
    /// A connection that was never dialled.
    pub(super) fn new() -> Self {
        Self {
            id: ConnId::new(0, 0, 0),
            step: Step::Out,
            is_sending: false,
            is_first: false,
            has_failed: false,
            has_answered: false,
            since: Instant(0),
            tcp: None,
            due: 0,
            sent: 0,
            done: 0,
            reading: Reading::new(false),
        }
    }

    /// It is being made.
    pub(super) fn dialled(&mut self, id: ConnId, now: Instant, answers_head: bool) {
        (self.id, self.step, self.since) = (id, Step::Connecting, now);
        (self.is_sending, self.has_failed, self.has_answered) = (false, false, false);
        (self.reading, self.tcp) = (Reading::new(answers_head), None);
    }

    /// Requests that await their answers.
    #[inline]
    pub(super) fn under_way(&self) -> u64 {
        self.sent - self.done
    }

    /// Requests to send now, with `pipeline` under way at most.
    #[inline]
    pub(super) fn sendable(&self, pipeline: usize) -> usize {
        if self.step != Step::Open || self.is_sending {
            return 0;
        }
        let room = (pipeline as u64).saturating_sub(self.under_way());
        // At most `pipeline`, which is a usize.
        room.min(self.due - self.sent) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_requests_are_sent_as_far_as_the_pipeline_has_room() {
        let mut conn = ClientConn::new();
        (conn.due, conn.sent, conn.done) = (10, 4, 2);
        assert_eq!(conn.sendable(8), 0, "not connected");
        conn.dialled(ConnId::new(0, 3, 1), Instant(5), false);
        assert_eq!(conn.sendable(8), 0, "not yet");
        conn.step = Step::Open;
        assert_eq!([1, 2, 3, 8, 100].map(|pipeline| conn.sendable(pipeline)), [0, 0, 1, 6, 6]);
        conn.due = u64::MAX;
        assert_eq!(conn.sendable(100), 98);
        conn.is_sending = true;
        assert_eq!(conn.sendable(100), 0);
    }
}
