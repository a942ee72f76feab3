//! Counters of one thread.

use throng_io::Instant;

use super::{Errors, Expect};
use crate::client::Timeline;
use crate::negotiated::Negotiated;
use crate::record::Record;

/// One thread's figures.
#[derive(Debug)]
pub(super) struct Tally {
    /// From the send, or in an open loop from the planned time, to the complete answer.
    pub(super) latency: Record,
    /// From the connect call to the established TCP connection.
    pub(super) connect: Record,
    /// From there to the end of the TLS handshake; none without TLS.
    pub(super) tls: Record,
    /// The negotiated TLS.
    pub(super) negotiated: Negotiated,
    /// From the connect call to the complete answer; one request a connection only.
    pub(super) whole: Record,
    /// From the planned time to the attempt to send; open loop only.
    pub(super) lateness: Record,
    /// Expected answers within the measured time.
    pub(super) requests: u64,
    /// Bytes received within the measured time.
    pub(super) bytes_in: u64,
    /// Bytes of the requests sent within the measured time.
    pub(super) bytes_out: u64,
    /// Answers within the measured time, by status.
    pub(super) statuses: Vec<u64>,
    /// Requests planned within the measured time; open loop only.
    pub(super) planned: u64,
    /// Planned requests without an expected answer; open loop only.
    pub(super) unanswered: u64,
    /// Connections started, including the warm-up.
    pub(super) opened: u64,
    /// Connections that the server ended between two requests.
    pub(super) ended_by_server: u64,
    /// Requests that were sent again because of that.
    pub(super) resent: u64,
    pub(super) errors: Errors,
    /// Expected answers, including the warm-up.
    pub(super) done: u64,
    /// When the last answer came.
    pub(super) last: Instant,
    /// Whether each status counts as a success.
    expected: Vec<bool>,
}

/// Upper bound of statuses.
const STATUSES: usize = 1000;

/// An answer, and the times that belong to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub(super) status: u16,
    pub(super) now: Instant,
    /// When its request was sent, or planned.
    pub(super) from: Instant,
    /// When its connection was started, if it carries one request.
    pub(super) dialled: Option<Instant>,
}

impl Tally {
    pub(super) fn new(expect: &Expect) -> Self {
        Self {
            latency: Record::new(),
            connect: Record::new(),
            tls: Record::new(),
            negotiated: Negotiated::default(),
            whole: Record::new(),
            lateness: Record::new(),
            requests: 0,
            bytes_in: 0,
            bytes_out: 0,
            statuses: vec![0; STATUSES],
            planned: 0,
            unanswered: 0,
            opened: 0,
            ended_by_server: 0,
            resent: 0,
            errors: Errors::default(),
            done: 0,
            last: Instant(0),
            expected: (0..STATUSES as u16).map(|status| expect.accepts(status)).collect(),
        }
    }

    /// Counts an answer. Only an expected answer has a latency: a server that refuses quickly is
    /// not fast.
    ///
    /// In an open loop the planned time decides whether a latency counts, and the time of the
    /// answer whether it adds to the rate; in a closed loop the time of the answer decides both.
    #[inline]
    pub(super) fn on_answer(&mut self, answered: Answered, timeline: &Timeline, is_open: bool) {
        let Answered { status, now, from, dialled } = answered;
        self.last = now;
        let is_in_time = timeline.counts(now);
        let is_expected = self.expected[usize::from(status)];
        self.statuses[usize::from(status)] += u64::from(is_in_time);
        if !is_expected {
            self.on_unexpected(status, is_in_time, is_open && timeline.counts(from));
            return;
        }
        self.done += 1;
        self.requests += u64::from(is_in_time);
        if if is_open { timeline.counts(from) } else { is_in_time } {
            self.latency.add(now.since(from).as_nanos() as u64);
            if let Some(dialled) = dialled {
                self.whole.add(now.since(dialled).as_nanos() as u64);
            }
        }
    }

    #[cold]
    fn on_unexpected(&mut self, status: u16, is_in_time: bool, was_planned: bool) {
        self.unanswered += u64::from(was_planned);
        if is_in_time {
            self.errors.unexpected_status += 1;
            self.errors.note(|| format!("the server answered with status {status}"));
        }
    }

    /// Adds the figures of another thread.
    pub(super) fn merge(&mut self, other: Self) {
        self.latency.merge(&other.latency);
        self.connect.merge(&other.connect);
        self.tls.merge(&other.tls);
        self.negotiated.merge(other.negotiated);
        self.whole.merge(&other.whole);
        self.lateness.merge(&other.lateness);
        self.requests += other.requests;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        for (sum, more) in self.statuses.iter_mut().zip(&other.statuses) {
            *sum += more;
        }
        self.planned += other.planned;
        self.unanswered += other.unanswered;
        self.opened += other.opened;
        self.ended_by_server += other.ended_by_server;
        self.resent += other.resent;
        self.errors.merge(other.errors);
        self.done += other.done;
        self.last = self.last.max(other.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMELINE: Timeline = Timeline { start: Instant(0), from: Instant(100), to: Instant(200) };

    fn answered(status: u16, from: u64, now: u64) -> Answered {
        Answered { status, now: Instant(now), from: Instant(from), dialled: None }
    }

    #[test]
    fn an_unexpected_status_is_an_error_without_a_latency() {
        let mut tally = Tally::new(&Expect::default());
        for (status, from, now) in
            [(200, 110, 120), (503, 120, 121), (204, 130, 140), (404, 90, 95), (200, 190, 210)]
        {
            tally.on_answer(answered(status, from, now), &TIMELINE, false);
        }
        assert_eq!((tally.requests, tally.latency.count(), tally.done), (2, 2, 3));
        assert_eq!(tally.errors.unexpected_status, 1, "that of the warm-up does not count");
        assert_eq!([200, 204, 404, 503].map(|status| tally.statuses[status]), [1, 1, 0, 1]);
    }

    #[test]
    fn an_open_loop_counts_latency_by_the_plan_and_the_rate_by_the_clock() {
        let mut tally = Tally::new(&Expect::default());
        // Planned in the warm-up and answered in time; planned in time and answered too late.
        tally.on_answer(answered(200, 90, 110), &TIMELINE, true);
        tally.on_answer(answered(200, 190, 500), &TIMELINE, true);
        tally.on_answer(answered(500, 150, 160), &TIMELINE, true);
        assert_eq!((tally.requests, tally.latency.count(), tally.unanswered), (1, 1, 1));
        assert!(tally.latency.quantile_ns(1.0) >= 310);
    }
}
