//! Thresholds that a run has to keep: `p99<10ms`, `rate>50000`.

use std::time::Duration;

use serde::Serialize;

use crate::record::Record;
use throng_config::units::parse_duration;

use crate::units::{rounded, show_ns};

/// One threshold.
#[derive(Clone, Debug, PartialEq)]
pub struct Slo {
    text: String,
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq)]
enum Rule {
    /// This share (0 to 1) of the answers takes less than so long.
    Quantile(f64, Duration),
    /// More requests a second than this.
    Rate(f64),
}

/// What became of a threshold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SloReport {
    /// As it was typed.
    pub threshold: String,
    /// What was measured: microseconds, or requests a second; `null` when nothing was.
    pub measured: Option<f64>,
    /// Whether it was kept.
    pub kept: bool,
}

impl Slo {
    /// Reads `p50<2ms`, `p99.9<10ms`, `max<1s` or `rate>10000`.
    ///
    /// # Errors
    /// One line that says what to write.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = |why: &str| {
            Err(format!("{text:?} {why}: write p99<10ms (also p50, p99.9, max) or rate>10000"))
        };
        let packed: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let rule = if let Some((what, time)) = packed.split_once('<') {
            let share = match what.strip_prefix('p').map(str::parse::<f64>) {
                Some(Ok(percent)) if percent > 0.0 && percent < 100.0 => percent / 100.0,
                None if what == "max" => 1.0,
                _ => return bad("names no percentile"),
            };
            match parse_duration(time) {
                Ok(time) if !time.is_zero() => Rule::Quantile(share, time),
                Ok(_) => return bad("can never be kept"),
                Err(error) => return bad(&format!("has a mistake in its time ({error})")),
            }
        } else if let Some(rate) = packed.strip_prefix("rate>") {
            match rate.trim_end_matches("/s").replace([',', '_'], "").parse::<f64>() {
                Ok(rate) if rate.is_finite() && rate >= 0.0 => Rule::Rate(rate),
                _ => return bad("has no number after rate>"),
            }
        } else {
            return bad("is not a threshold");
        };
        Ok(Self { text: packed, rule })
    }

    /// Compares with what was measured.
    pub(super) fn judge(&self, latency: &Record, requests_per_s: f64) -> SloReport {
        let (measured, kept) = match self.rule {
            Rule::Quantile(..) if latency.count() == 0 => (None, false),
            Rule::Quantile(share, most) => {
                let ns = latency.quantile_ns(share);
                (Some(ns as f64 / 1e3), u128::from(ns) < most.as_nanos())
            }
            Rule::Rate(least) => (Some(requests_per_s), requests_per_s > least),
        };
        SloReport { threshold: self.text.clone(), measured, kept }
    }
}

impl SloReport {
    /// What was measured, for people.
    pub(super) fn shown(&self) -> String {
        match self.measured {
            None => "nothing".to_owned(),
            Some(rate) if self.threshold.starts_with("rate") => {
                format!("{} a second", rounded(rate))
            }
            Some(us) => show_ns((us * 1e3) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_judged() {
        let mut latency = Record::new();
        (1..=1000).for_each(|us| latency.add(us * 1000));
        for (text, kept) in [
            ("p50<600us", true),
            ("p50 < 400us", false),
            ("p99.9<1.1ms", true),
            ("max<999us", false),
            ("max<2ms", true),
            ("rate>99.5", true),
            ("rate>100/s", false),
        ] {
            let report = Slo::parse(text).unwrap().judge(&latency, 100.0);
            assert_eq!(report.kept, kept, "{text}: {report:?}");
        }
        let nothing = Slo::parse("p99<1s").unwrap().judge(&Record::new(), 0.0);
        assert!(!nothing.kept && nothing.measured.is_none());
    }

    #[test]
    fn mistakes_teach() {
        for text in ["p99", "p99<10", "p0<1s", "p100<1s", "p99>1s", "rate<5", "rate>x", "p99<0s"] {
            let error = Slo::parse(text).unwrap_err();
            assert!(error.contains("write p99") || error.contains("did you mean"), "{error}");
        }
    }
}
