//! The open loop: the planned time of each message, independent of earlier messages.
//!
//! Connections take turns, so the messages of all of them form one sequence: message `n` belongs to
//! connection `n % connections`, and is planned for the time at which the rate, summed from the
//! start, reaches `n`. At an even rate the planned times are an arithmetic sequence, and the phases
//! of the connections are spread evenly over one interval; in a [stage](RateStage) the rate changes
//! evenly. There is no timer per connection, and no message is skipped: a late generator sends
//! everything that is due, and the latency of each message counts from its planned time. Measuring
//! from the actual time instead is the coordinated omission that makes a stalled server look fast.

use std::sync::Arc;
use std::time::Duration;

use throng_io::Instant;

use crate::units::WEEK;

/// A part of a run in which the rate changes evenly, from the previous stage's rate (or 0) to its
/// own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateStage {
    /// Length of the stage; with 0 the rate jumps.
    pub duration: Duration,
    /// Messages a second at its end, of all connections together.
    pub rate_per_s: f64,
}

impl RateStage {
    /// The length of all stages.
    #[must_use]
    pub fn total(stages: &[Self]) -> Duration {
        stages.iter().fold(Duration::ZERO, |sum, stage| sum.saturating_add(stage.duration))
    }

    /// Describes a mistake in the stages. No stage may have more than `most` messages per second.
    pub(crate) fn mistake(stages: &[Self], most: f64) -> Option<String> {
        let (total, highest) = (Self::total(stages), Self::highest(stages));
        if stages.is_empty() {
            return None;
        }
        if stages.iter().any(|stage| !(0.0..=most).contains(&stage.rate_per_s)) {
            return Some(format!("--stages: a rate is between 0 and {most} a second"));
        }
        if highest < 0.001 {
            return Some("--stages: one rate at least is more than 0".to_owned());
        }
        (total < Duration::from_millis(10) || total > WEEK)
            .then(|| "--stages: all together last between 10ms and a week (168h)".to_owned())
    }

    /// The highest rate of all stages.
    #[must_use]
    pub fn highest(stages: &[Self]) -> f64 {
        stages.iter().fold(0.0, |most, stage| stage.rate_per_s.max(most))
    }
}

/// A thread's part of the rate of an open loop.
#[derive(Clone, Debug)]
pub(crate) struct ThreadRate {
    /// The rate of all connections of all threads.
    pub(crate) rate_per_s: f64,
    pub(crate) ramp: Duration,
    pub(crate) stages: Vec<RateStage>,
    /// Connections of all threads.
    pub(crate) of: usize,
    /// The offset of the thread's messages within the gap between two messages, 0 to 1.
    pub(crate) shift: f64,
}

impl ThreadRate {
    /// Returns the schedule of the thread, which has this many of all connections. It follows the
    /// rates of the stages, or without stages the rate after a ramp.
    pub(crate) fn schedule(&self, start: Instant, connections: usize) -> Schedule {
        let share = connections as f64 / self.of as f64;
        let own = |stage: &RateStage| RateStage { rate_per_s: stage.rate_per_s * share, ..*stage };
        let schedule = match &self.stages[..] {
            [] => Schedule::new(start, connections, self.rate_per_s / self.of as f64)
                .ramped(self.ramp),
            stages => {
                Schedule::staged(start, connections, &stages.iter().map(own).collect::<Vec<_>>())
            }
        };
        schedule.shifted(self.shift)
    }
}

/// Planned send times for a fixed number of connections. A pure function of its fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    start: Instant,
    connections: u64,
    /// The offset of this thread's messages within the gap between two messages, 0 to 1.
    shift: f64,
    /// The pieces in order; the last one has no end.
    pieces: Arc<[Piece]>,
}

/// A part of a schedule, with times in nanoseconds from its start.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    begins_ns: f64,
    /// Messages planned before this piece.
    before: f64,
    /// Messages per nanosecond at the beginning of the piece.
    rate: f64,
    /// The change of the rate per nanosecond.
    slope: f64,
}

impl Piece {
    /// Messages planned within the first `elapsed` nanoseconds.
    fn planned(&self, elapsed: f64) -> f64 {
        elapsed * (self.rate + self.slope * elapsed / 2.0)
    }

    /// The inverse of [`Piece::planned`], in the form that stays exact when the slope is small.
    fn elapsed(&self, messages: f64) -> f64 {
        if messages <= 0.0 {
            return 0.0;
        }
        let root = (self.rate * self.rate + 2.0 * self.slope * messages).max(0.0).sqrt();
        2.0 * messages / (self.rate + root)
    }
}

impl Schedule {
    /// Every connection sends `rate_per_s` messages a second, the first within one interval of
    /// `start`.
    ///
    /// # Panics
    /// If `connections` is 0 or the rate is not a positive number: the plan was not checked.
    #[must_use]
    pub fn new(start: Instant, connections: usize, rate_per_s: f64) -> Self {
        assert!(rate_per_s > 0.0 && rate_per_s.is_finite(), "a schedule needs a positive rate");
        let duration = Duration::ZERO;
        let rate_per_s = rate_per_s * connections as f64;
        Self::staged(start, connections, &[RateStage { duration, rate_per_s }])
    }

    /// Creates a schedule in which connections take turns at a rate that changes by stages. The
    /// last rate continues.
    ///
    /// # Panics
    /// If `connections` is 0, which a checked plan excludes.
    #[must_use]
    pub fn staged(start: Instant, connections: usize, stages: &[RateStage]) -> Self {
        assert!(connections > 0, "a schedule needs a connection");
        let (mut begins_ns, mut before, mut rate) = (0.0, 0.0, 0.0);
        let mut pieces = Vec::new();
        for stage in stages {
            let (length, next) = (stage.duration.as_nanos() as f64, stage.rate_per_s / 1e9);
            if length > 0.0 {
                let piece = Piece { begins_ns, before, rate, slope: (next - rate) / length };
                pieces.push(piece);
                begins_ns += length;
                before += (rate + next) / 2.0 * length;
            }
            rate = next;
        }
        pieces.push(Piece { begins_ns, before, rate, slope: 0.0 });
        Self { start, connections: connections as u64, shift: 0.0, pieces: pieces.into() }
    }

    /// Raises the rate evenly from 0 over `ramp`, then continues at the rate from
    /// [`Schedule::new`]. The ramp plans half as many messages.
    #[must_use]
    pub fn ramped(self, ramp: Duration) -> Self {
        let rate_per_s = self.pieces.last().map_or(0.0, |last| last.rate * 1e9);
        let stage = RateStage { duration: ramp, rate_per_s };
        let pieces = Self::staged(self.start, self.connections as usize, &[stage]).pieces;
        Self { pieces, ..self }
    }

    /// Shifts every time by `share` (0 to 1) of the gap between two messages, so that threads that
    /// run the same plan in parallel interleave instead of sending at the same instants.
    #[must_use]
    pub fn shifted(self, share: f64) -> Self {
        Self { shift: share, ..self }
    }

    /// Time of message `n`, counted over all connections.
    #[must_use]
    pub fn planned(&self, n: u64) -> Instant {
        // Numbers of messages in f64 are exact up to 2^53.
        let n = n as f64 + self.shift;
        let at = self
            .pieces
            .iter()
            .rposition(|piece| piece.before <= n && piece.rate + piece.slope > 0.0);
        let elapsed = match at {
            Some(at) => {
                let piece = &self.pieces[at];
                piece.begins_ns + piece.elapsed(n - piece.before)
            }
            None => f64::INFINITY,
        };
        Instant(self.start.0.saturating_add(elapsed.round() as u64))
    }

    /// Returns the index of the connection that sends message `n`.
    #[must_use]
    pub fn connection(&self, n: u64) -> usize {
        (n % self.connections) as usize
    }

    /// Time of the `k`-th message, from 0, of one connection.
    #[must_use]
    pub fn planned_for(&self, connection: usize, k: u64) -> Instant {
        self.planned(k * self.connections + connection as u64)
    }

    /// Returns the number of messages planned until `now`.
    #[must_use]
    pub fn due(&self, now: Instant) -> u64 {
        if now < self.start {
            return 0;
        }
        let elapsed = now.since(self.start).as_nanos() as f64;
        let at = self.pieces.iter().rposition(|piece| piece.begins_ns <= elapsed).unwrap_or(0);
        let piece = &self.pieces[at];
        let planned = piece.before + piece.planned(elapsed - piece.begins_ns);
        let mut n = (planned - self.shift).max(0.0) as u64;
        // Rounding may be off by one message in either direction; the planned times are
        // authoritative.
        while self.planned(n) <= now {
            n += 1;
        }
        while n > 0 && self.planned(n - 1) > now {
            n -= 1;
        }
        n
    }

    /// Returns the lateness of message `n` if it is sent at `now`; zero if it is early.
    #[must_use]
    pub fn lateness(&self, n: u64, now: Instant) -> Duration {
        now.since(self.planned(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant(5_000_000_000);

    #[test]
    fn phases_are_spread_evenly_over_one_interval() {
        let schedule = Schedule::new(START, 4, 10.0); // 100 ms apart, 25 ms between connections
        let at = |n| schedule.planned(n).since(START).as_millis();
        assert_eq!([0, 1, 2, 3, 4, 5].map(at), [0, 25, 50, 75, 100, 125]);
        assert_eq!([0, 1, 2, 3, 4, 5].map(|n| schedule.connection(n)), [0, 1, 2, 3, 0, 1]);
        assert_eq!(schedule.planned_for(2, 3).since(START).as_millis(), 350);
    }

    #[test]
    fn nothing_is_due_before_the_start_and_the_first_at_it() {
        let schedule = Schedule::new(START, 3, 1.0);
        assert_eq!(schedule.due(Instant(START.0 - 1)), 0);
        assert_eq!(schedule.due(START), 1);
    }

    #[test]
    fn due_counts_exactly_the_messages_planned_by_now() {
        for (connections, rate) in [(1, 1.0), (3, 7.0), (7, 33.3), (10_000, 10.0), (100, 12_345.6)]
        {
            let schedule = Schedule::new(START, connections, rate);
            for n in (0..200_000).step_by(1_009) {
                let planned = schedule.planned(n);
                let due = schedule.due(planned);
                assert!(due > n, "{connections} x {rate}: message {n} is due at its time");
                assert!(schedule.planned(due) > planned);
                assert!(schedule.planned(due - 1) <= planned);
            }
        }
    }

    #[test]
    fn a_ramp_plans_half_as_many_messages_and_then_the_full_rate() {
        let second = Duration::from_secs(1);
        let schedule = Schedule::new(START, 10, 100.0).ramped(4 * second); // 1,000 a second
        let due = |ms| schedule.due(START.after(Duration::from_millis(ms)));
        // One second's messages times t * t / (2 * 4 s), and the message at the start.
        for (ms, messages) in [(1000, 125), (2000, 500), (3000, 1125), (4000, 2000), (6000, 4000)] {
            assert!(due(ms).abs_diff(messages + 1) <= 1, "{ms} ms: {}", due(ms));
        }
        for n in 0..5_000 {
            let planned = schedule.planned(n);
            assert!(schedule.due(planned) == n + 1 && planned < schedule.planned(n + 1), "{n}");
        }
        let steady = schedule.planned(4_001).since(schedule.planned(4_000));
        assert_eq!(steady.as_micros(), 1_000);
    }

    #[test]
    fn stages_follow_one_another() {
        let stage =
            |secs, rate_per_s| RateStage { duration: Duration::from_secs(secs), rate_per_s };
        // 1,000 messages while it rises, 4,000 after a jump, and 4,000 while it falls.
        let stages = [stage(2, 1e3), stage(0, 4e3), stage(1, 4e3), stage(2, 0.0)];
        assert_eq!((RateStage::total(&stages).as_secs(), RateStage::highest(&stages)), (5, 4e3));
        let schedule = Schedule::staged(START, 10, &stages);
        let due = |ms| schedule.due(START.after(Duration::from_millis(ms)));
        for (ms, messages) in
            [(1000, 250), (2000, 1000), (2500, 3000), (3000, 5000), (4000, 8000), (5000, 9000)]
        {
            assert!(due(ms).abs_diff(messages) <= 1, "{ms} ms: {}", due(ms));
        }
        for n in 0..8_990 {
            let planned = schedule.planned(n);
            assert!(schedule.due(planned) == n + 1 && planned < schedule.planned(n + 1), "{n}");
        }
        assert!(schedule.planned(9_001) >= START.after(Duration::from_secs(5)), "the rate is 0");
        assert_eq!(schedule.planned_for(3, 100), schedule.planned(1_003));
    }

    #[test]
    fn a_stall_is_caught_up_in_full() {
        let schedule = Schedule::new(START, 10, 100.0); // 1,000 a second
        let (mut sent, mut now) = (0, START);
        for pause in [1, 3, 700, 2, 1, 293] {
            now = now.after(Duration::from_millis(pause));
            sent = schedule.due(now);
        }
        assert_eq!(sent, 1001, "one second of messages and the one at its end, none skipped");
    }

    #[test]
    fn lateness_counts_from_the_plan() {
        let schedule = Schedule::new(START, 1, 1000.0);
        let late = START.after(Duration::from_micros(2_250));
        assert_eq!(schedule.lateness(2, late), Duration::from_micros(250));
        assert_eq!(schedule.lateness(3, late), Duration::ZERO);
    }

    #[test]
    fn shards_interleave() {
        let schedule = Schedule::new(START, 2, 10.0);
        let shifted = schedule.clone().shifted(0.5);
        assert_eq!(shifted.planned(0).since(schedule.planned(0)).as_millis(), 25);
    }

    #[test]
    fn times_do_not_drift_over_a_long_run() {
        let schedule = Schedule::new(Instant(0), 3, 3.0);
        let day = 86_400 * 3; // rounds of one connection
        let error = schedule.planned_for(0, day).0.abs_diff(86_400_000_000_000);
        assert!(error <= 1, "{error} ns");
    }
}
