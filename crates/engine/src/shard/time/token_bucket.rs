//! A limit on closings per second: connections are closed spread out, so that their clients
//! reconnect spread out.

use std::time::Duration;

use throng_io::Instant;

const SECOND: u64 = 1_000_000_000;

/// A token bucket. A turn that comes late makes up for a tenth of a second's closings, or for one,
/// and no more. So within any span of time at most its seconds times the rate are closed, plus a
/// tenth of a second's closings, plus one.
#[derive(Debug)]
pub struct TokenBucket {
    /// This many closings...
    count: u64,
    /// ...in this many nanoseconds.
    per: u64,
    /// Nanoseconds times `count`, so that nothing is lost to rounding: one closing costs `per`.
    credit: u64,
    /// The initial credit.
    first: u64,
    /// The time when the credit was last updated; `None` before the first call.
    at: Option<Instant>,
}

impl TokenBucket {
    /// A bucket of `rate_per_second`; 0 is taken as 1. The first closing is due at once.
    #[must_use]
    pub fn new(rate_per_second: u32) -> Self {
        Self::share(rate_per_second, 0, 1)
    }

    /// Creates the bucket of shard number `shard` for its part of a rate of all `shards`; each
    /// shard closes its own tunnels. The shards take turns: the first close is due at once in shard
    /// 0, and after nearly `shards / rate` seconds in the last shard. So the shards together close
    /// at the rate, even if it is less than one per second and shard.
    #[must_use]
    pub fn share(rate_per_second: u32, shard: u32, shards: u32) -> Self {
        let shards = u64::from(shards.max(1));
        let per = SECOND * shards;
        let first = per - SECOND * u64::from(shard).min(shards - 1);
        Self { count: rate_per_second.max(1).into(), per, credit: first, first, at: None }
    }

    /// A bucket of `count` closings, 0 taken as 1, spread evenly over `window`. The first is due at
    /// once.
    #[must_use]
    pub fn over(count: usize, window: Duration) -> Self {
        let per = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).max(1);
        Self { count: count.max(1) as u64, per, credit: per, first: per, at: None }
    }

    /// Restarts the bucket if a close is already due: the bucket has been idle, as have the buckets
    /// of other shards, and otherwise all shards would close a tunnel at once.
    pub fn renew(&mut self, now: Instant) {
        if self.at.is_some() && self.next(now) <= now {
            self.credit = self.first;
            self.at = None;
        }
    }

    /// Returns how many tunnels may be closed at `now`. They count as closed: the caller cannot
    /// give back closes for which it has no tunnels.
    pub fn due(&mut self, now: Instant) -> u32 {
        let nanos = self.at.map_or(0, |at| now.0.saturating_sub(at.0));
        // A clock that another thread read a little earlier must not earn the same time twice.
        self.at = self.at.max(Some(now));
        self.credit = self.credit.saturating_add(nanos.saturating_mul(self.count));
        let in_a_tenth = self.count.saturating_mul(SECOND / 10) / self.per;
        let (due, most) = (self.credit / self.per, in_a_tenth.max(1));
        // The fraction is carried over; otherwise a caller that asks at fixed times would lose a
        // little at each closing.
        self.credit %= self.per;
        u32::try_from(due.min(most)).unwrap_or(u32::MAX)
    }

    /// Returns when the next closing is due: `now`, if it is already.
    #[must_use]
    pub fn next(&self, now: Instant) -> Instant {
        let Some(at) = self.at else { return now };
        let missing = self.per.saturating_sub(self.credit);
        at.after(Duration::from_nanos(missing.div_ceil(self.count))).max(now)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Instant {
        Instant(7_000_000_000 + millis * 1_000_000)
    }

    #[test]
    fn a_few_are_spread_over_a_long_window() {
        let mut bucket = TokenBucket::over(3, Duration::from_secs(30));
        let due: Vec<_> = [0, 1, 9_999, 10_000, 19_999, 20_000].map(|t| bucket.due(at(t))).into();
        assert_eq!(due, [1, 0, 0, 1, 0, 1]);
        assert_eq!(bucket.next(at(20_000)), at(30_000));
        // None, no time, and all the time there is: nothing overflows.
        for (count, window) in
            [(0, Duration::ZERO), (usize::MAX, Duration::ZERO), (usize::MAX, Duration::MAX)]
        {
            let mut bucket = TokenBucket::over(count, window);
            assert!(bucket.due(at(0)) > 0);
            let _ = (bucket.due(at(100_000)), bucket.next(at(100_000)));
        }
    }

    #[test]
    fn the_first_is_due_at_once_and_the_rest_in_time() {
        let mut bucket = TokenBucket::new(4);
        assert_eq!(bucket.next(at(0)), at(0));
        let due: Vec<_> = [0, 0, 249, 250, 499, 500, 750].map(|t| bucket.due(at(t))).into();
        assert_eq!(due, [1, 0, 0, 1, 0, 1, 1]);
        assert_eq!(bucket.next(at(750)), at(1000));
        assert_eq!(bucket.next(at(2000)), at(2000));
    }

    #[test]
    fn fractions_are_carried() {
        // Three closes per second, polled every 10 ms: a third of a second is not a whole number of
        // nanoseconds.
        let mut bucket = TokenBucket::new(3);
        let sum: u32 = (0..=100_000).map(|tick| bucket.due(at(tick * 10))).sum();
        assert_eq!(sum, 3001);
    }

    /// From the start, all shards together close as many as one bucket for all would.
    #[test]
    fn the_parts_of_a_rate_add_up_to_it_at_every_moment() {
        for (rate, shards) in [(1, 1), (1, 2), (1, 8), (3, 8), (7, 8), (8, 8), (9, 8), (200, 3)] {
            let mut one = TokenBucket::new(rate);
            let mut buckets: Vec<_> =
                (0..shards).map(|it| TokenBucket::share(rate, it, shards)).collect();
            let (mut whole, mut parts) = (0, 0);
            for tick in 0..20_000 {
                let now = at(tick * 10);
                whole += one.due(now);
                parts += buckets.iter_mut().map(|bucket| bucket.due(now)).sum::<u32>();
                assert_eq!(parts, whole, "{rate} over {shards} shards after {tick} ticks");
            }
            assert!(whole >= rate * 199, "{whole}");
            assert!(
                buckets.iter_mut().all(|bucket| bucket.due(at(400_000)) > 0),
                "each has its part"
            );
        }
    }

    /// After an idle time each shard would otherwise have one at once.
    #[test]
    fn parts_that_have_rested_begin_one_after_the_other_again() {
        let mut buckets: Vec<_> = (0..4).map(|shard| TokenBucket::share(4, shard, 4)).collect();
        let mut due = |millis| {
            let due = buckets.iter_mut().map(|bucket| {
                bucket.renew(at(millis));
                bucket.due(at(millis))
            });
            due.collect::<Vec<_>>()
        };
        assert_eq!(due(0), [1, 0, 0, 0]);
        assert_eq!(due(60_000), [1, 0, 0, 0], "a minute later it is as at first");
        // A bucket whose close is not yet due continues.
        let mut own = TokenBucket::share(1, 0, 2);
        assert_eq!(own.due(at(0)), 1);
        own.renew(at(1999));
        assert_eq!((own.due(at(1999)), own.due(at(2000))), (0, 1));
    }

    #[test]
    fn a_late_turn_makes_up_for_a_tenth_of_a_second() {
        for (rate, burst) in [(1, 1), (9, 1), (10, 1), (200, 20), (u32::MAX, u32::MAX / 10), (0, 1)]
        {
            let mut bucket = TokenBucket::new(rate);
            assert_eq!(bucket.due(at(0)), 1);
            assert_eq!(bucket.due(at(3_600_000)), burst, "{rate}");
            assert_eq!(bucket.due(at(3_600_000)), 0);
        }
    }

    #[test]
    fn a_clock_that_goes_back_earns_nothing() {
        let mut bucket = TokenBucket::new(10);
        let due: Vec<_> = [1000, 0, 1000, 50, 1000, 1100].map(|t| bucket.due(at(t))).into();
        assert_eq!(due, [1, 0, 0, 0, 0, 1]);
    }

    proptest! {
        /// In every window, at any times of asking.
        #[test]
        fn never_more_than_the_rate(
            rate in 1u32..5000,
            steps in prop::collection::vec(0u64..300_000_000, 1..80),
        ) {
            let mut bucket = TokenBucket::new(rate);
            let mut now = at(0);
            let mut closed = Vec::new();
            for step in steps {
                now = Instant(now.0 + step);
                closed.push((now, u64::from(bucket.due(now))));
            }
            let more = u128::from((rate / 10).max(1) + 1);
            for first in 0..closed.len() {
                let mut sum = 0;
                for &(end, count) in &closed[first..] {
                    sum += u128::from(count);
                    let nanos = u128::from(end.0 - closed[first].0.0);
                    let earned = nanos * u128::from(rate) / u128::from(SECOND);
                    prop_assert!(sum <= earned + more, "{sum} in {nanos} ns");
                }
            }
        }

        /// A caller that asks at the reported time gets each closing then, and none before.
        #[test]
        fn the_next_is_due_when_it_says(rate in 1u32..100_000) {
            let mut bucket = TokenBucket::new(rate);
            let (start, mut now) = (at(0), at(0));
            for number in 0..200u64 {
                if number > 0 {
                    prop_assert_eq!(bucket.due(Instant(now.0 - 1)), 0);
                }
                prop_assert_eq!(bucket.due(now), 1);
                prop_assert_eq!(now.0 - start.0, (number * SECOND).div_ceil(rate.into()));
                now = bucket.next(now);
            }
        }
    }
}
