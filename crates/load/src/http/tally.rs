//! Counters of one thread.

use std::collections::BTreeMap;

use throng_io::Instant;

use super::Expect;
use crate::client::Timeline;
use crate::errors::Errors;
use crate::merge::tally;
use crate::record::Record;

tally! {
    /// One thread's figures.
    pub(crate) struct Tally {
        /// From the send, or in an open loop from the planned time, to the complete answer.
        pub(crate) latency: Record,
        /// From the connect call to the complete answer; only with one request per connection.
        pub(crate) whole: Record,
        /// From the planned time to the attempt to send; only in an open loop.
        pub(crate) lateness: Record,
        /// Expected answers within the measured time.
        pub(crate) requests: u64,
        /// Bytes received within the measured time.
        pub(crate) bytes_in: u64,
        /// Bytes of the requests sent within the measured time.
        pub(crate) bytes_out: u64,
        /// Answers within the measured time, by status.
        statuses: Vec<u64>,
        /// Requests planned within the measured time; only in an open loop.
        pub(crate) planned: u64,
        /// Planned requests without an expected answer; only in an open loop.
        pub(crate) unanswered: u64,
        /// Connections started, including the warm-up.
        pub(super) opened: u64,
        /// Connections that the server ended between two requests.
        pub(super) ended_by_server: u64,
        /// Requests that were sent again because the server had ended their connection.
        pub(super) resent: u64,
        /// Expected answers, including the warm-up.
        pub(super) done: u64,
        /// When the last answer arrived.
        pub(super) last: Option<Instant>,
        expected: Expected,
    }
}

/// Whether each status counts as a success.
#[derive(Debug, Default)]
struct Expected(Vec<bool>);

/// All threads expect the same statuses.
impl crate::merge::Merge for Expected {
    fn merge(&mut self, _: Self) {}
}

/// Exclusive upper bound of statuses.
const STATUSES: usize = 1000;

/// An answer, and the times that belong to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub(super) status: u16,
    pub(super) now: Instant,
    /// When its request was sent, or planned.
    pub(super) from: Instant,
    /// When the connection was dialled, if it carries one request.
    pub(super) dialled: Option<Instant>,
}

impl Tally {
    pub(super) fn new(expect: &Expect) -> Self {
        let expected = (0..STATUSES as u16).map(|status| expect.accepts(status)).collect();
        Self { statuses: vec![0; STATUSES], expected: Expected(expected), ..Self::default() }
    }

    /// Returns the answers within the measured time, by status.
    pub(crate) fn statuses(&self) -> BTreeMap<u16, u64> {
        let statuses = self.statuses.iter().enumerate().filter(|&(_, &count)| count > 0);
        statuses.map(|(status, &count)| (status as u16, count)).collect()
    }

    /// Counts an answer. Only expected answers have a latency: a server that refuses quickly is not
    /// fast.
    ///
    /// In an open loop the planned time decides whether a latency counts, and the time of the
    /// answer decides whether it adds to the rate. In a closed loop the time of the answer decides
    /// both.
    #[inline]
    pub(super) fn on_answer(
        &mut self,
        errors: &mut Errors,
        answered: Answered,
        timeline: &Timeline,
        is_open: bool,
    ) {
        let Answered { status, now, from, dialled } = answered;
        self.last = Some(now);
        let is_in_time = timeline.counts(now);
        let is_expected = self.expected.0[usize::from(status)];
        self.statuses[usize::from(status)] += u64::from(is_in_time);
        if !is_expected {
            let was_planned = is_open && timeline.counts(from);
            self.unanswered += u64::from(was_planned);
            return on_unexpected(errors, status, is_in_time);
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
}

#[cold]
fn on_unexpected(errors: &mut Errors, status: u16, is_in_time: bool) {
    if is_in_time {
        errors.unexpected_status += 1;
        errors.note(|| format!("the server answered with status {status}"));
    }
}
