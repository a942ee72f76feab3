//! The open loop: when each message is planned, whatever became of the ones before it.
//!
//! All connections send at the same rate, their phases spread evenly over one interval, so the messages of all of
//! them are one arithmetic sequence: message `n` belongs to connection `n % connections` and is planned at
//! `start + n * interval / connections`. There is no timer per connection and nothing to skip: a generator that
//! comes late sends everything that is due, and the latency of each message counts from its planned time.
//! With a ramp the same messages are planned further apart in the beginning.
//! Measuring from the actual time instead is the coordinated omission that makes a stalled server look fast.

use std::time::Duration;

use throng_io::Instant;

/// Planned send times for a fixed number of connections at a fixed rate each. A pure function of its fields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    start: Instant,
    interval_ns: f64,
    connections: u64,
    /// Time over which the rate rises from 0.
    ramp_ns: f64,
}

impl Schedule {
    /// Every connection sends `rate_per_s` messages a second, the first within one interval of `start`.
    ///
    /// # Panics
    /// If `connections` is 0 or the rate is not a positive number: the plan was not checked.
    #[must_use]
    pub fn new(start: Instant, connections: usize, rate_per_s: f64) -> Self {
        assert!(connections > 0, "a schedule needs a connection");
        assert!(rate_per_s > 0.0 && rate_per_s.is_finite(), "a schedule needs a positive rate");
        let connections = connections as u64;
        Self { start, interval_ns: 1e9 / rate_per_s, connections, ramp_ns: 0.0 }
    }

    /// Lets the rate rise evenly from 0 over `ramp`; half as many messages are planned in that time.
    #[must_use]
    pub fn ramped(self, ramp: Duration) -> Self {
        Self { ramp_ns: ramp.as_nanos() as f64, ..self }
    }

    /// Shifts every time by `share` (0 to 1) of the gap between two messages: threads that run the same plan side
    /// by side interleave instead of sending at the same instants.
    #[must_use]
    pub fn shifted(mut self, share: f64) -> Self {
        let gap = self.interval_ns / self.connections as f64;
        self.start = self.start.after(Duration::from_nanos((gap * share) as u64));
        self
    }

    /// Time of message `n`, counted over all connections.
    #[must_use]
    pub fn planned(&self, n: u64) -> Instant {
        self.at(n / self.connections, n % self.connections)
    }

    /// The connection, from 0, that message `n` belongs to.
    #[must_use]
    pub fn connection(&self, n: u64) -> usize {
        (n % self.connections) as usize
    }

    /// Time of the `k`-th message, from 0, of one connection.
    #[must_use]
    pub fn planned_for(&self, connection: usize, k: u64) -> Instant {
        self.at(k, connection as u64)
    }

    fn at(&self, round: u64, connection: u64) -> Instant {
        // Rounds in f64 stay exact to a nanosecond for 104 days (2^53 ns).
        let phase = connection as f64 / self.connections as f64;
        let even = (round as f64 + phase) * self.interval_ns;
        Instant(self.start.0.saturating_add(self.rising(even) as u64))
    }

    /// The time at which a rising rate has planned what an even one has after `even_ns`: a rate that rises evenly has
    /// planned `t * t / (2 * ramp)` of its full interval by `t`.
    fn rising(&self, even_ns: f64) -> f64 {
        if even_ns < self.ramp_ns / 2.0 {
            (2.0 * self.ramp_ns * even_ns).sqrt()
        } else {
            even_ns + self.ramp_ns / 2.0
        }
    }

    /// The inverse of [`Schedule::rising`].
    fn even(&self, elapsed_ns: f64) -> f64 {
        if elapsed_ns < self.ramp_ns {
            elapsed_ns * elapsed_ns / (2.0 * self.ramp_ns)
        } else {
            elapsed_ns - self.ramp_ns / 2.0
        }
    }

    /// How many messages are planned at or before `now`: send until so many have been sent.
    #[must_use]
    pub fn due(&self, now: Instant) -> u64 {
        if now < self.start {
            return 0;
        }
        let elapsed = self.even(now.since(self.start).as_nanos() as f64);
        let mut n = (elapsed / self.interval_ns * self.connections as f64) as u64;
        // The division may round either way by one message; the times themselves are the truth.
        while self.planned(n) <= now {
            n += 1;
        }
        while n > 0 && self.planned(n - 1) > now {
            n -= 1;
        }
        n
    }

    /// How late message `n` leaves at `now`; zero when early.
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
        // t * t / (2 * 4 s) of a second's messages, and the one at the start.
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
        assert_eq!(schedule.shifted(0.5).planned(0).since(schedule.planned(0)).as_millis(), 25);
    }

    #[test]
    fn times_do_not_drift_over_a_long_run() {
        let schedule = Schedule::new(Instant(0), 3, 3.0);
        let day = 86_400 * 3; // rounds of one connection
        let error = schedule.planned_for(0, day).0.abs_diff(86_400_000_000_000);
        assert!(error <= 1, "{error} ns");
    }
}
