//! One connection of the load, from its first dial on. It may be opened again many times.

use throng_io::{ConnId, Instant};

use super::answer::Reading;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpPhase {
    /// There is no connection.
    Out,
    /// The connection waits to be dialled.
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
    pub(super) step: HttpPhase,
    /// Whether a batch is in flight, so that nothing else can be sent.
    pub(super) is_sending: bool,
    /// Whether this is the first dial, which counts against the window of connections in progress.
    pub(super) is_first: bool,
    /// Whether the connection ends or ended because of an error: the next dial then follows after a
    /// pause.
    pub(super) has_failed: bool,
    /// Whether the connection has received an answer.
    pub(super) has_answered: bool,
    /// The time of the dial; while the connection is ending, the time of its last answer.
    pub(super) since: Instant,
    /// When the TCP connection was established, kept from the end of the TLS handshake to the next
    /// step.
    pub(super) tcp: Option<Instant>,
    /// Requests that the schedule allows until now; unlimited in a closed loop.
    pub(super) due: u64,
    /// Requests sent. The first `done` of them are complete; the others await their answers in
    /// order.
    pub(super) sent: u64,
    pub(super) done: u64,
    pub(super) reading: Reading,
}

impl ClientConn {
    /// A connection that was never dialled.
    pub(super) fn new() -> Self {
        Self {
            id: ConnId::new(0, 0, 0),
            step: HttpPhase::Out,
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

    /// Marks the connection as being connected.
    pub(super) fn dialled(&mut self, id: ConnId, now: Instant, answers_head: bool) {
        (self.id, self.step, self.since) = (id, HttpPhase::Connecting, now);
        (self.is_sending, self.has_failed, self.has_answered) = (false, false, false);
        (self.reading, self.tcp) = (Reading::new(answers_head), None);
    }

    /// Requests that await their answers.
    #[inline]
    pub(super) fn under_way(&self) -> u64 {
        self.sent - self.done
    }

    /// Returns how many requests can be sent now, with at most `pipeline` in progress.
    #[inline]
    pub(super) fn sendable(&self, pipeline: usize) -> usize {
        if self.step != HttpPhase::Open || self.is_sending {
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
        conn.step = HttpPhase::Open;
        assert_eq!([1, 2, 3, 8, 100].map(|pipeline| conn.sendable(pipeline)), [0, 0, 1, 6, 6]);
        conn.due = u64::MAX;
        assert_eq!(conn.sendable(100), 98);
        conn.is_sending = true;
        assert_eq!(conn.sendable(100), 0);
    }
}
