//! Compares two sides of runs, figure by figure: the change, its confidence interval, and whether
//! it is a regression.
//!
//! Reads the JSON of `throng bench echo`, `idle`, `connect`, `broadcast`, `fanout` and `http`. A
//! side's figures are the means of its runs; with at least two runs on each side, a change has a 95
//! % confidence interval by Welch's t-test.

mod figures;
mod pooled;
mod welch;

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use self::figures::{Better, FIGURES, Figure};
pub use self::pooled::Pooled;
use self::welch::{Estimate, change};
use crate::error::Error;
use crate::report::SCHEMA;
use crate::report::model::{Cell, Column, Document, Render, Table, Unit};
use crate::row;
use crate::verdict::Limit;

/// Exit code of a comparison with a regression: the same as for a missed threshold.
const REGRESSION: u8 = 99;

/// The runs of one side.
#[derive(Clone, Debug)]
pub struct Runs {
    reports: Vec<Value>,
}

impl Runs {
    /// Reads reports: one JSON document or several in sequence. `name` names the source in errors,
    /// such as a file name.
    ///
    /// # Errors
    /// [`Error::Usage`] for a text that is not such a report, and for a run whose figures are not
    /// valid.
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        let bad = |what: String| Error::Usage(format!("{name}: {what}"));
        let reports: Vec<Value> = serde_json::Deserializer::from_str(text)
            .into_iter()
            .collect::<Result<_, _>>()
            .map_err(|error| {
                bad(format!("not JSON: {error}; `throng bench ... --json` prints it"))
            })?;
        if reports.is_empty() {
            return Err(bad("no report in it; `throng bench ... --json` prints one".to_owned()));
        }
        for report in &reports {
            if report["schema"] != SCHEMA || report["result"].is_null() {
                let what = format!("not a report of `throng bench` ({SCHEMA}) with one result");
                return Err(bad(what));
            }
            if report["verdict"]["limit"] == Limit::Invalid.name() {
                let line = report["verdict"]["line"].as_str().unwrap_or_default();
                return Err(bad(format!("a run in it does not count: {line}")));
            }
        }
        Ok(Self { reports })
    }

    /// Adds the runs of another file.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.reports.extend(other.reports);
        self
    }

    /// Returns a figure of every run; `None` unless all runs have it.
    fn values(&self, path: &str) -> Option<Vec<f64>> {
        self.reports.iter().map(|report| report.pointer(path)?.as_f64()).collect()
    }

    fn limits(&self) -> impl Iterator<Item = &str> {
        self.reports.iter().filter_map(|report| report["verdict"]["limit"].as_str())
    }
}

/// Options of a comparison of two sides.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A change up to this share is never a regression. Default 0.05.
    pub threshold: f64,
    /// Whether to compare runs even if their plans differ.
    pub force: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { threshold: 0.05, force: false }
    }
}

/// Outcome of the comparison of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FigureOutcome {
    /// Better by more than the threshold.
    Better,
    /// Worse by more than the threshold.
    Worse,
    /// No significant difference.
    Same,
}

impl FigureOutcome {
    fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "same",
        }
    }
}

/// One figure on both sides.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The figure's location in the reports.
    pub key: &'static str,
    /// Mean of the first side.
    pub base: f64,
    /// Mean of the second.
    pub new: f64,
    /// Change as a share of the first side; `null` if that is 0.
    pub change: Option<f64>,
    /// Its 95 % confidence interval; `null` with one run on a side.
    pub interval: Option<(f64, f64)>,
    /// Outcome of the comparison.
    pub outcome: FigureOutcome,
    /// True if a change for the worse is a regression.
    pub decides: bool,
    #[serde(skip)]
    figure: &'static Figure,
    #[serde(skip)]
    sides: (Estimate, Estimate),
}

/// The result of one comparison.
#[derive(Clone, Debug, Serialize)]
pub struct ComparisonReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// `compare`.
    pub mode: &'static str,
    /// The mode of the runs.
    pub of: String,
    /// Runs of the first side.
    pub base_runs: usize,
    /// Runs of the second.
    pub new_runs: usize,
    /// The share that a change must exceed.
    pub threshold: f64,
    /// The figures that both sides have.
    pub figures: Vec<Comparison>,
    /// Quantiles of the times of all runs of each side; empty if a report has no histogram.
    pub pooled: Vec<Pooled>,
    /// Facts that weaken the comparison, as sentences.
    pub caveats: Vec<String>,
    /// Whether a decisive figure became worse.
    pub regression: bool,
}

/// Compares `new` with `base`.
///
/// # Errors
/// [`Error::Usage`] for an invalid threshold, for runs of different plans unless forced, and for
/// runs without a common figure.
pub fn compare(base: &Runs, new: &Runs, options: Options) -> Result<ComparisonReport, Error> {
    if !(0.0..=10.0).contains(&options.threshold) {
        return Err(Error::Usage("--threshold is a percentage from 0 to 1000".to_owned()));
    }
    let differences = plan_differences(base, new);
    if !differences.is_empty() && !options.force {
        let what = differences.join("; ");
        return Err(Error::Usage(format!(
            "these runs were not of the same plan: {what}. Measure both alike, or compare with \
             --force"
        )));
    }
    let figures: Vec<Comparison> =
        FIGURES.iter().filter_map(|figure| figure.compared(base, new, options.threshold)).collect();
    if figures.is_empty() {
        return Err(Error::Usage("these runs have no figure in common".to_owned()));
    }
    let regression = figures.iter().any(|one| one.decides && one.outcome == FigureOutcome::Worse);
    let mut caveats: Vec<String> =
        differences.into_iter().map(|what| format!("The plans differ: {what}.")).collect();
    if base.reports.len() < 2 || new.reports.len() < 2 {
        caveats.push(
            "One run says nothing about how far runs differ: give two of each side or more for \
             intervals."
                .to_owned(),
        );
    }
    if base.limits().chain(new.limits()).any(|limit| limit == Limit::Generator.name()) {
        caveats.push(
            "In some runs the generator was the limit: their rates are not the server's."
                .to_owned(),
        );
    }
    Ok(ComparisonReport {
        schema: SCHEMA,
        mode: "compare",
        of: base.reports[0]["plan"]["mode"].as_str().unwrap_or_default().to_owned(),
        base_runs: base.reports.len(),
        new_runs: new.reports.len(),
        threshold: options.threshold,
        figures,
        pooled: pooled::pooled(base, new),
        caveats,
        regression,
    })
}

/// Returns the fields of the plan in which the runs differ. The address of the server does not
/// matter.
fn plan_differences(base: &Runs, new: &Runs) -> Vec<String> {
    let plans = || base.reports.iter().chain(&new.reports).map(|report| &report["plan"]);
    // A field that an older version's report lacks counts the same as `null` in a newer report.
    let fields: BTreeSet<&String> =
        plans().filter_map(Value::as_object).flat_map(|plan| plan.keys()).collect();
    let mut differences = Vec::new();
    for field in fields.into_iter().filter(|field| *field != "url") {
        let value = &base.reports[0]["plan"][field];
        if let Some(other) = plans().map(|plan| &plan[field]).find(|other| *other != value) {
            differences.push(format!("{field} {value} and {other}"));
        }
    }
    differences
}

impl Figure {
    fn compared(&'static self, base: &Runs, new: &Runs, threshold: f64) -> Option<Comparison> {
        let (base, new) = (base.values(self.path)?, new.values(self.path)?);
        let sides = (Estimate::of(&base), Estimate::of(&new));
        let difference = change(sides.0, sides.1);
        let (share, interval) = (difference.share, difference.interval);
        // Growth from zero has no share, but is still a change.
        let size = share.unwrap_or(if sides.1.mean == sides.0.mean { 0.0 } else { f64::INFINITY });
        let is_certain = interval.is_none_or(|(low, high)| low > 0.0 || high < 0.0);
        let outcome = if size.abs() <= threshold || !is_certain {
            FigureOutcome::Same
        } else if (sides.1.mean > sides.0.mean) == (self.better == Better::Higher) {
            FigureOutcome::Better
        } else {
            FigureOutcome::Worse
        };
        Some(Comparison {
            key: self.path,
            base: sides.0.mean,
            new: sides.1.mean,
            change: share,
            interval,
            outcome,
            decides: self.decides,
            figure: self,
            sides,
        })
    }
}

/// `+1.2 %`.
fn signed_percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

impl Comparison {
    fn row(&self) -> Vec<Cell> {
        let side = |estimate: Estimate| {
            let spread = estimate.half_width.filter(|_| estimate.mean != 0.0);
            let spread =
                spread.map(|half| format!(" ±{:.0} %", half / estimate.mean.abs() * 100.0));
            let mean = self.figure.unit.show(estimate.mean);
            Cell::shown(estimate.mean, format!("{mean}{}", spread.unwrap_or_default()))
        };
        let interval = self
            .interval
            .map(|(low, high)| format!("{} to {}", signed_percent(low), signed_percent(high)));
        let decides = if self.decides { "yes" } else { "" };
        row![
            self.figure.label,
            self.key,
            side(self.sides.0),
            side(self.sides.1),
            self.change.map(|share| Cell::shown(share, signed_percent(share))),
            interval,
            self.interval.map(|(low, _)| low),
            self.interval.map(|(_, high)| high),
            self.outcome.name(),
            decides,
        ]
    }
}

impl Render for ComparisonReport {
    fn document(&self) -> Document {
        let columns = [
            ("", Unit::Text, "figure"),
            ("key", Unit::Text, ""),
            ("base", Unit::Number, "base"),
            ("new", Unit::Number, "new"),
            ("change", Unit::Number, "change"),
            ("", Unit::Text, "95 % interval"),
            ("interval_low", Unit::Number, ""),
            ("interval_high", Unit::Number, ""),
            ("outcome", Unit::Text, "outcome"),
            ("decides", Unit::Text, "decides"),
        ];
        let columns = columns.map(|(key, unit, label)| Column::new(key, unit, label));
        let rows = self.figures.iter().map(Comparison::row);
        let verdict = match self.regression {
            true => "REGRESSION: a figure that decides is worse",
            false => "no regression",
        };
        Document {
            kind: "compare",
            title: format!("Two sides of `throng bench {}`", self.of),
            conditions: vec![format!(
                "{}: {} and {} runs; changes of up to {} do not count",
                self.of,
                self.base_runs,
                self.new_runs,
                format_args!("{:.0} %", self.threshold * 100.0)
            )],
            tables: [Table::new("", columns.to_vec()).rows(rows), pooled::table(&self.pooled)]
                .into_iter()
                .filter(|table| !table.is_empty())
                .collect(),
            notices: self.caveats.clone(),
            verdict: Some(verdict.to_owned()),
            ..Document::default()
        }
    }

    fn exit_code(&self) -> u8 {
        if self.regression { REGRESSION } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::record::Record;
    use crate::report::Histogram;

    fn run(per_cpu_s: f64, p99_us: f64) -> Value {
        json!({
            "schema": SCHEMA,
            "plan": {"mode": "echo", "url": format!("ws://h:{p99_us}"), "connections": 100},
            "result": {
                "messages_per_server_cpu_s": per_cpu_s,
                "latency": {"p50_us": 50.0, "p99_us": p99_us},
            },
            "verdict": {"limit": "server", "line": "server-limited"},
        })
    }

    fn runs(figures: &[(f64, f64)]) -> Runs {
        let text: Vec<String> =
            figures.iter().map(|&(rate, p99)| run(rate, p99).to_string()).collect();
        Runs::parse("test", &text.join("\n")).unwrap()
    }

    fn outcome(report: &ComparisonReport, key: &str) -> FigureOutcome {
        report.figures.iter().find(|one| one.key == key).unwrap().outcome
    }

    const RATE: &str = "/result/messages_per_server_cpu_s";
    const P99: &str = "/result/latency/p99_us";

    #[test]
    fn a_change_beyond_the_noise_and_the_threshold_is_a_regression() {
        let base = runs(&[(100.0, 500.0), (101.0, 510.0), (99.0, 490.0)]);
        let slower = runs(&[(80.0, 500.0), (81.0, 505.0), (79.0, 495.0)]);
        let report = compare(&base, &slower, Options::default()).unwrap();
        assert_eq!(
            (outcome(&report, RATE), outcome(&report, P99)),
            (FigureOutcome::Worse, FigureOutcome::Same)
        );
        assert_eq!((report.regression, report.exit_code()), (true, 99));
        let rate = &report.figures[0];
        let (low, high) = rate.interval.unwrap();
        assert!(low < -0.2 && -0.2 < high && high < -0.15, "{rate:?}");
        let back = compare(&slower, &base, Options::default()).unwrap();
        assert_eq!((outcome(&back, RATE), back.exit_code()), (FigureOutcome::Better, 0));
        let text = report.to_text();
        for words in ["-20.0 %", "±2 %", "worse", "REGRESSION", "3 and 3 runs"] {
            assert!(text.contains(words), "{words:?} in\n{text}");
        }
        assert!(report.to_csv().starts_with("key,base,new,change,interval_low,interval_high,"));
    }

    #[test]
    fn times_of_all_runs_are_put_together_from_their_histograms() {
        let with = |ns: &[u64]| {
            let mut record = Record::new();
            ns.iter().for_each(|&ns| record.add(ns));
            let mut report = run(100.0, 500.0);
            report["histogram"] = json!(Histogram::of("latency", &record).unwrap());
            report.to_string()
        };
        let fast: Vec<u64> = (1..=500).map(|us| us * 1000).collect();
        let slow: Vec<u64> = (501..=1000).map(|us| us * 1000).collect();
        let both = Runs::parse("a", &[with(&fast), with(&slow)].join("\n")).unwrap();
        let one = Runs::parse("b", &[with(&slow), with(&slow)].join("\n")).unwrap();
        let report = compare(&both, &one, Options::default()).unwrap();
        let p50 = report.pooled[0].clone();
        assert!((p50.base_us / 500.0 - 1.0).abs() < 0.01, "{p50:?}");
        assert!((p50.new_us / 750.0 - 1.0).abs() < 0.01, "{p50:?}");
        let text = report.to_text();
        assert!(text.contains("latency, all runs") && text.contains("+49.9 %"), "{text}");
        assert!(text.contains("p99.9 ") && !text.contains("p99.99"), "{text}");
        let without = compare(&both, &runs(&[(1.0, 1.0)]), Options::default()).unwrap();
        assert!(without.pooled.is_empty());
    }

    #[test]
    fn noise_and_small_changes_are_no_regression() {
        let base = runs(&[(100.0, 500.0), (130.0, 800.0), (70.0, 300.0)]);
        let noisy = runs(&[(60.0, 500.0), (120.0, 900.0), (80.0, 400.0)]);
        assert!(!compare(&base, &noisy, Options::default()).unwrap().regression);
        let base = runs(&[(100.0, 500.0), (100.1, 500.0)]);
        let close = runs(&[(97.0, 500.0), (97.1, 500.0)]);
        assert!(!compare(&base, &close, Options::default()).unwrap().regression);
        let strict = Options { threshold: 0.01, ..Options::default() };
        assert!(compare(&base, &close, strict).unwrap().regression);
    }

    #[test]
    fn one_run_of_each_is_judged_by_the_threshold_with_a_caveat() {
        let report = compare(&runs(&[(100.0, 500.0)]), &runs(&[(50.0, 500.0)]), Options::default());
        let report = report.unwrap();
        assert!(report.regression && report.figures[0].interval.is_none());
        assert!(report.caveats[0].contains("two of each side"), "{:?}", report.caveats);
    }

    #[test]
    fn incomparable_runs_are_refused() {
        let fine = || runs(&[(1.0, 1.0)]);
        let mut other = run(1.0, 1.0);
        other["plan"]["connections"] = json!(7);
        let other = Runs::parse("b.json", &other.to_string()).unwrap();
        let error = compare(&fine(), &other, Options::default()).unwrap_err();
        assert!(error.to_string().contains("connections 100 and 7"), "{error}");
        let forced = Options { force: true, ..Options::default() };
        assert!(compare(&fine(), &other, forced).unwrap().caveats[0].contains("plans differ"));
        let mut invalid = run(1.0, 1.0);
        invalid["verdict"] = json!({"limit": "invalid", "line": "not valid: 3 wrong answers"});
        for (text, words) in [
            ("", "no report in it"),
            ("{", "not JSON"),
            ("{}", "not a report"),
            (&invalid.to_string(), "3 wrong answers"),
        ] {
            let error = Runs::parse("a.json", text).unwrap_err().to_string();
            assert!(error.starts_with("a.json: ") && error.contains(words), "{error}");
        }
        let options = Options { threshold: -1.0, ..Options::default() };
        assert!(compare(&fine(), &fine(), options).is_err());
    }
}
