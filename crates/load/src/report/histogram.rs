//! All times of a run as counts of buckets, from which quantiles are computed, and which can be
//! merged with other runs' counts.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::record::Record;

/// The times of a run. Each time is at most its bucket's value, and less than it by at most a
/// thousandth.
#[derive(Clone, Debug, Serialize)]
pub struct Histogram {
    /// Name of the recorded times, such as `latency`.
    pub of: &'static str,
    /// Times recorded.
    pub count: u64,
    /// For each bucket that is not empty, its largest time in nanoseconds and its count.
    pub buckets_ns: Box<RawValue>,
}

impl Histogram {
    /// The histogram of a record; `None` if it is empty.
    #[must_use]
    pub fn of(of: &'static str, record: &Record) -> Option<Self> {
        let buckets: Vec<(u64, u64)> = record.buckets().collect();
        // On one line, because people also read the report.
        let buckets_ns = serde_json::value::to_raw_value(&buckets).ok()?;
        (!buckets.is_empty()).then(|| Self { of, count: record.count(), buckets_ns })
    }

    /// Returns the record from which the histogram was made.
    pub(crate) fn record(&self) -> Record {
        let mut record = Record::new();
        let buckets = serde_json::from_str::<Vec<(u64, u64)>>(self.buckets_ns.get());
        buckets.into_iter().flatten().for_each(|(ns, count)| record.add_many(ns, count));
        record
    }

    /// Adds the times of a report's histogram to a record; returns their name.
    #[must_use]
    pub fn read(report: &Value, record: &mut Record) -> Option<String> {
        let histogram = &report["histogram"];
        let buckets = Vec::<(u64, u64)>::deserialize(&histogram["buckets_ns"]).ok()?;
        buckets.into_iter().for_each(|(ns, count)| record.add_many(ns, count));
        Some(histogram["of"].as_str()?.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_that_was_written_and_read_has_the_same_quantiles() {
        let mut record = Record::new();
        (0..1000_u64).for_each(|i| record.add(i * i * 997));
        record.add(u64::MAX);
        let report = serde_json::json!({ "histogram": Histogram::of("latency", &record).unwrap() });
        let mut read = Record::new();
        assert_eq!(Histogram::read(&report, &mut read).as_deref(), Some("latency"));
        assert_eq!(read.count(), 1001);
        for share in [0.0, 0.1, 0.5, 0.99, 0.999, 1.0] {
            let (one, two) = (record.quantile_ns(share), read.quantile_ns(share));
            assert!(one.abs_diff(two) as f64 <= one as f64 * 0.001, "{share}: {one} and {two}");
        }
        assert!(Histogram::of("latency", &Record::new()).is_none());
        for broken in ["{}", r#"{"histogram":{"buckets_ns":[[1]],"of":"x"}}"#] {
            let report = serde_json::from_str(broken).unwrap();
            assert!(Histogram::read(&report, &mut read).is_none());
        }
    }
}
