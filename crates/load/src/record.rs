//! Latency in HDR histograms, in nanoseconds: every percentile is available.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Maximum time that is recorded exactly: one hour. Longer times count as one hour.
const CEILING_NS: u64 = 3_600_000_000_000;

/// Times in nanoseconds with three significant digits, in bounded memory (about 280 KB) for any
/// number of times.
#[derive(Clone, Debug)]
pub struct Record {
    histogram: Histogram<u64>,
}

impl Default for Record {
    fn default() -> Self {
        Self::new()
    }
}

impl Record {
    /// An empty record.
    #[must_use]
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, CEILING_NS, 3);
        Self { histogram: histogram.expect("the bounds are constants that the crate accepts") }
    }

    /// Adds one time. Never fails: a time of over an hour counts as an hour.
    pub fn add(&mut self, ns: u64) {
        self.histogram.saturating_record(ns.clamp(1, CEILING_NS));
    }

    /// Adds the same time so many times.
    pub fn add_many(&mut self, ns: u64, count: u64) {
        self.histogram.saturating_record_n(ns.clamp(1, CEILING_NS), count);
    }

    /// Returns every bucket that is not empty, in rising order: its largest time in nanoseconds,
    /// and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.histogram
            .iter_recorded()
            .map(|bucket| (bucket.value_iterated_to(), bucket.count_since_last_iteration()))
    }

    /// Adds all times of another record, for instance from another thread.
    pub fn merge(&mut self, other: &Self) {
        // Both records have the same fixed bounds; only different bounds could make this fail.
        let _ = self.histogram.add(&other.histogram);
    }

    /// Removes all times.
    pub fn clear(&mut self) {
        self.histogram.reset();
    }

    /// Returns the number of recorded times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the time in nanoseconds that a `share` (0 to 1) of all times does not exceed; 0 for
    /// an empty record.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> u64 {
        self.histogram.value_at_quantile(share).min(self.histogram.max())
    }

    /// Returns points of the distribution, each a share (0 to 1) of the times and the microseconds
    /// that they do not exceed. Towards long times the points become denser: each step halves the
    /// remaining share.
    #[must_use]
    pub fn spread(&self) -> Vec<(f64, f64)> {
        let at = |share| (share, self.quantile_ns(share) as f64 / 1e3);
        let (mut points, mut left) = (Vec::new(), 1.0_f64);
        // A share finer than one time of all has only the maximum.
        while left * self.count() as f64 >= 1.0 {
            points.extend([1.0 - left, 1.0 - left * 0.75].map(at));
            left /= 2.0;
        }
        points.extend((self.count() > 0).then(|| at(1.0)));
        points
    }

    /// Returns the summary to print; `None` when nothing was recorded.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        let us = |ns: u64| ns as f64 / 1e3;
        (self.count() > 0).then(|| Summary {
            count: self.count(),
            min_us: us(self.histogram.min()),
            mean_us: self.histogram.mean() / 1e3,
            p50_us: us(self.quantile_ns(0.5)),
            p90_us: us(self.quantile_ns(0.9)),
            p99_us: us(self.quantile_ns(0.99)),
            p999_us: us(self.quantile_ns(0.999)),
            max_us: us(self.histogram.max()),
        })
    }
}

/// Summary of a [`Record`], in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Times recorded.
    pub count: u64,
    /// Shortest.
    pub min_us: f64,
    /// Arithmetic mean.
    pub mean_us: f64,
    /// Half were at most this.
    pub p50_us: f64,
    /// 90 % were at most this.
    pub p90_us: f64,
    /// 99 % were at most this.
    pub p99_us: f64,
    /// 99.9 % were at most this.
    pub p999_us: f64,
    /// Longest.
    pub max_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_known_spread() {
        let mut record = Record::new();
        for us in 1..=10_000 {
            record.add(us * 1000);
        }
        let summary = record.summary().unwrap();
        assert_eq!(summary.count, 10_000);
        for (got, want) in [
            (summary.p50_us, 5_000.0),
            (summary.p90_us, 9_000.0),
            (summary.p99_us, 9_900.0),
            (summary.p999_us, 9_990.0),
            (summary.max_us, 10_000.0),
            (summary.mean_us, 5_000.5),
        ] {
            assert!((got / want - 1.0).abs() < 0.002, "{got} for {want}");
        }
    }

    #[test]
    fn merging_equals_recording_in_one() {
        let (mut whole, mut odd, mut even) = (Record::new(), Record::new(), Record::new());
        for i in 0..1000_u64 {
            let ns = i * i * 997;
            whole.add(ns);
            if i % 2 == 0 { even.add(ns) } else { odd.add(ns) }
        }
        odd.merge(&even);
        assert_eq!(odd.summary(), whole.summary());
    }

    #[test]
    fn extremes_are_kept_not_lost() {
        let mut record = Record::new();
        record.add(0);
        record.add(u64::MAX);
        assert_eq!(record.count(), 2);
        assert!(record.summary().unwrap().max_us >= 3.59e9);
    }

    #[test]
    fn an_empty_record_has_no_figures() {
        assert_eq!(Record::new().summary(), None);
        assert_eq!(Record::new().quantile_ns(0.99), 0);
    }
}
