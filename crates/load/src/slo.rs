//! Thresholds of a run: `p99<10ms`, `rate>50000`, `errors<0.1%`.

use std::time::Duration;

use serde::Serialize;
use throng_config::units::parse_duration;

use crate::record::Record;
use crate::units::{rounded, show_ns};

/// Exit code of a run that missed a threshold.
const NOT_KEPT: u8 = 99;

/// One threshold.
#[derive(Clone, Debug, PartialEq)]
pub struct Slo {
    text: String,
    rule: Rule,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// This share (0 to 1) of the answers must take less than this time.
    Quantile(f64, Duration),
    /// More answers a second than this.
    Rate(f64),
    /// The share (0 to 1) of failed messages or requests must be smaller than this.
    Errors(f64),
}

/// The outcome of a threshold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SloReport {
    /// The threshold as the user wrote it.
    pub threshold: String,
    /// The measured value: microseconds, answers a second, or a share from 0 to 1; `null` when
    /// nothing was measured.
    pub measured: Option<f64>,
    /// True if it was kept.
    pub kept: bool,
    #[serde(skip)]
    rule: Rule,
}

/// The figures to which thresholds apply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures<'a> {
    /// The times from which quantiles are computed.
    pub(crate) latency: &'a Record,
    /// Answers a second.
    pub(crate) rate_per_s: f64,
    /// Failed messages or requests among all that were begun.
    pub(crate) failed: u64,
    pub(crate) begun: u64,
}

impl Slo {
    /// Parses `p50<2ms`, `p99.9<10ms`, `max<1s`, `rate>10000` or `errors<0.1%`.
    ///
    /// # Errors
    /// The error is one line that shows a valid form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = |why: &str| {
            Err(format!(
                "{text:?} {why}: write p99<10ms (also p50, p99.9, max), rate>10000 or errors<0.1%"
            ))
        };
        let packed: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let rule = if let Some(share) = packed.strip_prefix("errors<") {
            match share.strip_suffix('%').map(str::parse::<f64>) {
                Some(Ok(percent)) if percent > 0.0 && percent <= 100.0 => {
                    Rule::Errors(percent / 100.0)
                }
                Some(Ok(0.0)) => return bad("is the rule without a threshold"),
                _ => return bad("has no percentage up to 100 after errors<"),
            }
        } else if let Some((what, time)) = packed.split_once('<') {
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

    /// Returns whether the threshold limits failures, so that it judges a run with failures.
    #[must_use]
    pub fn is_about_errors(&self) -> bool {
        matches!(self.rule, Rule::Errors(_))
    }

    /// Returns whether the threshold concerns the rate, which is a setting of an open loop.
    #[must_use]
    pub fn is_about_rate(&self) -> bool {
        matches!(self.rule, Rule::Rate(_))
    }

    /// Compares the threshold with the measurement.
    pub(crate) fn judge(&self, figures: &Figures<'_>) -> SloReport {
        let Figures { latency, rate_per_s, failed, begun } = *figures;
        let (measured, kept) = match self.rule {
            Rule::Quantile(..) if latency.count() == 0 => (None, false),
            Rule::Quantile(share, most) => {
                let ns = latency.quantile_ns(share);
                (Some(ns as f64 / 1e3), u128::from(ns) < most.as_nanos())
            }
            Rule::Rate(least) => (Some(rate_per_s), rate_per_s > least),
            Rule::Errors(_) if begun == 0 => (None, false),
            Rule::Errors(most) => {
                let share = (failed as f64 / begun as f64).min(1.0);
                (Some(share), share < most)
            }
        };
        SloReport { threshold: self.text.clone(), measured, kept, rule: self.rule }
    }
}

impl SloReport {
    /// The measured value, for people.
    fn shown(&self) -> String {
        match (self.measured, self.rule) {
            (None, _) => "nothing".to_owned(),
            (Some(rate), Rule::Rate(_)) => format!("{} a second", rounded(rate)),
            (Some(share), Rule::Errors(_)) => format!("{:.3} %", share * 100.0),
            (Some(us), Rule::Quantile(..)) => show_ns((us * 1e3) as u64),
        }
    }

    /// The line of a report, with its label.
    pub(crate) fn remark(&self) -> (&'static str, String) {
        let kept = if self.kept { "kept" } else { "NOT KEPT" };
        ("threshold", format!("{} {kept}: {}", self.threshold, self.shown()))
    }
}

/// Exit code of a run: 0, 1 if the figures do not count, or 99 if a threshold was not kept.
pub(crate) fn exit_code(is_valid: bool, slo: &[SloReport]) -> u8 {
    let is_missed = |slo: &SloReport| !slo.kept;
    // If a threshold allows some failures, it reports an excess.
    let mut errors = slo.iter().filter(|slo| matches!(slo.rule, Rule::Errors(_)));
    if errors.any(is_missed) {
        return NOT_KEPT;
    }
    match is_valid {
        false => 1,
        true if slo.iter().any(is_missed) => NOT_KEPT,
        true => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(text: &str, latency: &Record, failed: u64, begun: u64) -> SloReport {
        let figures = Figures { latency, rate_per_s: 100.0, failed, begun };
        Slo::parse(text).unwrap().judge(&figures)
    }

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
            ("errors<0.31%", true),
            ("errors < 0.3 %", false),
        ] {
            let report = judge(text, &latency, 3, 1000);
            assert_eq!(report.kept, kept, "{text}: {report:?}");
        }
        for text in ["p99<1s", "errors<100%"] {
            let nothing = judge(text, &Record::new(), 0, 0);
            assert!(!nothing.kept && nothing.measured.is_none());
        }
        let remark = judge("errors<1%", &latency, 3, 1000).remark().1;
        assert_eq!(remark, "errors<1% kept: 0.300 %");
    }

    #[test]
    fn exit_codes_tell_a_threshold_from_a_run_that_does_not_count() {
        let latency = Record::new();
        let (missed, errors) =
            (judge("p99<1s", &latency, 0, 1), judge("errors<1%", &latency, 1, 1));
        assert_eq!(exit_code(true, std::slice::from_ref(&missed)), 99);
        assert_eq!(exit_code(false, &[missed]), 1);
        assert_eq!(exit_code(false, &[errors]), 99);
        assert_eq!(exit_code(true, &[judge("rate>1", &latency, 0, 1)]), 0);
    }

    #[test]
    fn mistakes_teach() {
        for text in [
            "p99",
            "p99<10",
            "p0<1s",
            "p100<1s",
            "p99>1s",
            "rate<5",
            "rate>x",
            "p99<0s",
            "errors<0.1",
            "errors<0%",
            "errors<101%",
            "errors",
        ] {
            let error = Slo::parse(text).unwrap_err();
            assert!(error.contains("write p99") || error.contains("did you mean"), "{error}");
        }
    }
}
