//! Histograms of durations, which one thread or many add to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Binary logarithm of the first bucket's bound in nanoseconds: 33 µs.
const FIRST: u32 = 15;

/// Number of buckets with a bound. Each bound is twice the previous bound; the last is 17 s.
const BOUNDS: usize = 20;

/// Returns the bucket of a duration. It is computed rather than looked up: shards count each turn.
#[inline]
fn bucket(nanos: u64) -> usize {
    let doublings = u64::BITS - (nanos.saturating_sub(1) >> FIRST).leading_zeros();
    (doublings as usize).min(BOUNDS)
}

/// Counts of durations. The width of the buckets doubles from each bucket to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// The last bucket has no bound.
    counts: [u64; BOUNDS + 1],
    sum: u64,
}

impl Histogram {
    /// Adds one duration.
    pub fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.sum = self.sum.saturating_add(nanos);
    }

    /// Adds the durations of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Returns the bound of each bucket, and the number of durations up to it.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let mut below = 0;
        self.counts[..BOUNDS].iter().enumerate().map(move |(at, count)| {
            below += count;
            (Duration::from_nanos(1 << (FIRST as usize + at)), below)
        })
    }

    /// Returns the number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }
}

/// A [`Histogram`] that other threads can read.
#[derive(Debug, Default)]
pub(crate) struct SharedHistogram {
    counts: [AtomicU64; BOUNDS + 1],
    sum: AtomicU64,
}

impl SharedHistogram {
    /// Adds a duration, where only one thread adds.
    #[inline]
    pub(crate) fn record_alone(&self, nanos: u64) {
        let add = |to: &AtomicU64, by| to.store(to.load(Ordering::Relaxed) + by, Ordering::Relaxed);
        add(&self.counts[bucket(nanos)], 1);
        add(&self.sum, nanos);
    }

    /// Adds a duration, where many threads add.
    pub(crate) fn record(&self, nanos: u64) {
        self.counts[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum.load(Ordering::Relaxed))
    }

    pub(crate) fn read(&self) -> Histogram {
        Histogram {
            counts: std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed)),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_bucket_of_the_least_bound_that_is_not_less() {
        let empty = Histogram::default();
        for (at, (bound, _)) in empty.buckets().enumerate() {
            let bound = bound.as_nanos() as u64;
            assert_eq!([bucket(bound), bucket(bound + 1)], [at, at + 1]);
        }
        assert_eq!([bucket(0), bucket(u64::MAX)], [0, BOUNDS]);
    }

    #[test]
    fn buckets_are_cumulative_and_what_is_longer_is_in_the_count_alone() {
        let mut histogram = Histogram::default();
        for nanos in [0, 1 << 15, 1 << 16, u64::MAX] {
            histogram.record(Duration::from_nanos(nanos));
        }
        let counts: Vec<u64> = histogram.buckets().map(|(_, count)| count).collect();
        assert_eq!((counts[0], counts[1], counts[BOUNDS - 1]), (2, 3, 3));
        assert_eq!((histogram.count(), histogram.sum()), (4, Duration::from_nanos(u64::MAX)));
        let mut twice = histogram.clone();
        twice.add(&histogram);
        assert_eq!(twice.count(), 8);
    }

    #[test]
    fn a_shared_histogram_has_the_same_counts() {
        let (shared, mut own) = (SharedHistogram::default(), Histogram::default());
        for nanos in [7, 40_000, 90_000_000_000] {
            shared.record_alone(nanos);
            shared.record(nanos);
            own.record(Duration::from_nanos(nanos));
            own.record(Duration::from_nanos(nanos));
        }
        assert_eq!(shared.read(), own);
    }
}
