//! Durations that are measured for a sample only, because each costs two clock readings; and the
//! close codes of sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use throng_io::{ConnId, Instant};
use throng_proto::ws::CloseCode;

use crate::histogram::{Histogram, SharedHistogram};
use crate::message::Fault;

/// One request in this many is measured, and one publication in this many.
const ONE_OF: u64 = 16;

/// Returns whether the thing with this number, from 1, is in the sample.
#[inline]
pub(crate) fn is_sampled(number: u64) -> bool {
    number % ONE_OF == 1
}

/// The ranges of close codes that are counted together. They follow the codes of RFC 6455 and its
/// registry, which are counted individually.
const RANGES: [&str; 3] = ["3000-3999", "4000-4999", "other"];
const CODES: [&str; 16] = [
    "1000", "1001", "1002", "1003", "1004", "1005", "1006", "1007", "1008", "1009", "1010", "1011",
    "1012", "1013", "1014", "1015",
];

/// The ranges of seconds for which sessions were silent before they were lost.
const SILENCES: [&str; 12] = [
    "0",
    "1",
    "2-3",
    "4-7",
    "8-15",
    "16-31",
    "32-63",
    "64-127",
    "128-255",
    "256-511",
    "512-1023",
    "1024-65535",
];

/// Measurements of one shard, or of several, that other threads can read.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) handshakes: SharedHistogram,
    pub(crate) requests: SharedHistogram,
    pub(crate) publications: SharedHistogram,
    closes: [AtomicU64; CODES.len() + RANGES.len()],
    losses: [AtomicU64; SILENCES.len()],
    faults: [AtomicU64; Fault::WORDS.len()],
}

impl Measured {
    /// Counts the end of a session.
    pub(crate) fn count_close(&self, code: CloseCode) {
        let place = match code.get() {
            code @ 1000..=1015 => usize::from(code - 1000),
            3000..=3999 => CODES.len(),
            4000..=4999 => CODES.len() + 1,
            _ => CODES.len() + 2,
        };
        self.closes[place].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a session that ended without a Close frame after a silence of so many seconds.
    pub(crate) fn count_loss(&self, silence: u16) {
        let doublings = (u16::BITS - silence.leading_zeros()) as usize;
        self.losses[doublings.min(SILENCES.len() - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the sessions that ended without a Close frame, by the seconds for which they had
    /// been silent.
    pub(crate) fn losses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.losses.iter().map(|count| count.load(Ordering::Relaxed));
        SILENCES.into_iter().zip(counts)
    }

    /// Counts a fault that ended a connection or a request.
    pub(crate) fn count_fault(&self, fault: Fault) {
        self.faults[fault.number()].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the connections and requests that faults have ended, by the word of the fault.
    pub(crate) fn faults(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.faults.iter().map(|count| count.load(Ordering::Relaxed));
        Fault::WORDS.into_iter().zip(counts)
    }

    /// Returns the number of sessions closed with each code, or with a code of each range.
    pub(crate) fn closes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let labels = CODES.into_iter().chain(RANGES);
        labels.zip(&self.closes).map(|(label, count)| (label, count.load(Ordering::Relaxed)))
    }
}

/// Durations of a server that are [measured](crate::Snapshot::durations).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Durations {
    /// Turns of event loops: all of them.
    pub turns: Histogram,
    /// Handshakes of sessions, from the accept to the response.
    pub handshakes: Histogram,
    /// Requests, from the head to the complete response.
    pub requests: Histogram,
    /// Publications, from the call to the end of the turn that wrote them to their receivers.
    pub publications: Histogram,
}

impl Durations {
    /// Adds the durations of another shard.
    pub fn add(&mut self, other: &Self) {
        self.turns.add(&other.turns);
        self.handshakes.add(&other.handshakes);
        self.requests.add(&other.requests);
        self.publications.add(&other.publications);
    }
}

/// A shard's sample: for each kind, the instance that is being measured. The next instance is
/// chosen when the current one has ended, so long instances are neither omitted nor preferred.
#[derive(Debug)]
pub(crate) struct Samples {
    pub(crate) measured: Arc<Measured>,
    handshake: Option<(ConnId, Instant)>,
    request: Option<(ConnId, Instant)>,
    publication: Option<Instant>,
}

impl Samples {
    pub(crate) fn new(measured: Arc<Measured>) -> Self {
        Self { measured, handshake: None, request: None, publication: None }
    }

    /// Records that a connection was accepted.
    pub(crate) fn accept(&mut self, id: ConnId, now: Instant) {
        self.handshake.get_or_insert((id, now));
    }

    /// Records that a session was opened; `now` is read only for a sample.
    pub(crate) fn open(&mut self, id: ConnId, now: impl FnOnce() -> Instant) {
        if let Some((_, began)) = self.handshake.take_if(|(sampled, _)| *sampled == id) {
            self.measured.handshakes.record(now().0.saturating_sub(began.0));
        }
    }

    /// Records that a request of the sample began.
    #[cold]
    pub(crate) fn begin_request(&mut self, id: ConnId, now: Instant) {
        self.request.get_or_insert((id, now));
    }

    /// Records that a request was answered, but not by an upgrade: its connection may stay open for
    /// long, without any handshake. `now` is read only for a sample.
    #[inline]
    pub(crate) fn end_request(&mut self, id: ConnId, now: impl FnOnce() -> Instant) {
        self.handshake.take_if(|(sampled, _)| *sampled == id);
        if let Some((_, began)) = self.request.take_if(|(sampled, _)| *sampled == id) {
            self.measured.requests.record(now().0.saturating_sub(began.0));
        }
    }

    /// Stops measuring a connection that has ended, or that sends events from now on.
    pub(crate) fn forget(&mut self, id: ConnId) {
        self.handshake.take_if(|(sampled, _)| *sampled == id);
        self.request.take_if(|(sampled, _)| *sampled == id);
    }

    /// Records that a publication of the sample is being delivered.
    pub(crate) fn record_publication(&mut self, began: Instant) {
        self.publication.get_or_insert(began);
    }

    /// Records the end of a turn, with all its output written.
    #[inline]
    pub(crate) fn end_turn(&mut self, now: Instant) {
        if let Some(began) = self.publication.take() {
            self.measured.publications.record(now.0.saturating_sub(began.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_handshake_and_one_request_are_measured_at_a_time() {
        let mut samples = Samples::new(Arc::default());
        let [first, second] = [1, 2].map(|slot| ConnId::new(0, slot, 0));
        samples.accept(first, Instant(100));
        samples.accept(second, Instant(200));
        samples.open(second, || unreachable!("it is not in the sample"));
        samples.open(first, || Instant(150));
        assert_eq!(samples.measured.handshakes.read().sum().as_nanos(), 50);
        samples.accept(second, Instant(300));
        samples.end_request(second, || unreachable!("its head was not in the sample"));
        samples.accept(first, Instant(400));
        samples.open(first, || Instant(410));
        assert_eq!(samples.measured.handshakes.read().sum().as_nanos(), 60);
        samples.begin_request(second, Instant(1000));
        samples.begin_request(first, Instant(1001));
        samples.forget(second);
        samples.end_request(second, || unreachable!("it has ended without an answer"));
        samples.begin_request(first, Instant(2000));
        samples.end_request(first, || Instant(2007));
        assert_eq!(samples.measured.requests.read().sum().as_nanos(), 7);
    }

    #[test]
    fn publications_last_until_the_end_of_their_turn() {
        let mut samples = Samples::new(Arc::default());
        samples.record_publication(Instant(5));
        samples.record_publication(Instant(9));
        samples.end_turn(Instant(25));
        samples.end_turn(Instant(50));
        let publications = samples.measured.publications.read();
        assert_eq!((publications.count(), publications.sum().as_nanos()), (1, 20));
    }

    #[test]
    fn losses_are_counted_by_the_range_of_their_silence() {
        let measured = Measured::default();
        for silence in [0, 1, 2, 3, 4, 60, 63, 1023, 1024, u16::MAX] {
            measured.count_loss(silence);
        }
        let counted: Vec<_> = measured.losses().filter(|(_, count)| *count > 0).collect();
        let expected = [
            ("0", 1),
            ("1", 1),
            ("2-3", 2),
            ("4-7", 1),
            ("32-63", 2),
            ("512-1023", 1),
            ("1024-65535", 2),
        ];
        assert_eq!(counted, expected);
    }

    #[test]
    fn codes_are_counted_alone_or_by_range() {
        let measured = Measured::default();
        for code in [1000, 1000, 1015, 2000, 3000, 4999, 65535] {
            measured.count_close(code.into());
        }
        let counted: Vec<_> = measured.closes().filter(|(_, count)| *count > 0).collect();
        let expected = [("1000", 2), ("1015", 1), ("3000-3999", 1), ("4000-4999", 1), ("other", 2)];
        assert_eq!(counted, expected);
    }

    #[test]
    fn the_first_and_then_each_sixteenth_is_sampled() {
        let sampled: Vec<u64> = (1..40).filter(|number| is_sampled(*number)).collect();
        assert_eq!(sampled, [1, 17, 33]);
    }
}
