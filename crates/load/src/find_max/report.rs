//! The report of a search: all rates that were tried, and the highest rate that was kept.

use serde::Serialize;
use throng_proto::url;

use super::{Load, Options};
use crate::negotiated::{TlsReport, tls_remark};
use crate::page::{Axis, Plot};
use crate::plan::ModeName;
use crate::record::Summary;
use crate::report::SCHEMA;
use crate::report::figures::{ALL_QUANTILES, quantile_cells, quantile_columns};
use crate::report::model::{Column, Document, Render, Table, Unit};
use crate::row;
use crate::slo::SloReport;
use crate::units::{grouped, rounded};
use crate::verdict::Limit;

/// Exit code if no rate was kept, the same as for a missed threshold.
const NONE_KEPT: u8 = 99;

/// Number of answers in a run below which its quantiles are not reliable.
const FEW: u64 = 1000;

/// A rate that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct SearchStep {
    /// Planned messages, connections or requests per second, on all connections together.
    pub rate_per_s: f64,
    /// Answers a second within the measured time; `null` if the run has no report.
    pub answered_per_s: Option<f64>,
    /// From the planned time to the answer.
    pub latency: Option<Summary>,
    /// Errors of the run.
    pub errors: u64,
    /// The thresholds.
    pub slo: Vec<SloReport>,
    /// The limiting party of the run, by its verdict.
    pub limit: Limit,
    /// True if the server kept the rate and the thresholds.
    pub kept: bool,
    /// The reason why not.
    pub reason: Option<String>,
}

/// The result of a search. `Display` prints the table.
#[derive(Clone, Debug, Serialize)]
pub struct FindMaxReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// `find-max`.
    pub mode: &'static str,
    /// The mode whose rate was searched: `echo`, `connect`, `fanout` or `http`.
    pub of: ModeName,
    /// The server.
    pub url: String,
    /// Connections; with `connect` the maximum in progress.
    pub connections: usize,
    /// The negotiated TLS, over all runs; empty without TLS.
    pub tls: Vec<TlsReport>,
    /// The thresholds as the user wrote them.
    pub thresholds: Vec<String>,
    /// The highest rate that was kept, of all connections together; `null` if none was.
    pub max_rate_per_s: Option<f64>,
    /// The lowest rate that was not kept; `null` if all were.
    pub missed_rate_per_s: Option<f64>,
    /// Maximum share by which the highest kept and the lowest missed rate may differ.
    pub precision: f64,
    /// False if the search was stopped before its end.
    pub complete: bool,
    /// Whether the generator was the limit at the lowest missed rate: the server may handle more.
    pub generator_limited: bool,
    /// In the order in which they were tried.
    pub steps: Vec<SearchStep>,
}

impl FindMaxReport {
    pub(super) fn of(
        load: &Load,
        options: Options,
        (max_rate_per_s, missed_rate_per_s): (Option<f64>, Option<f64>),
        steps: Vec<SearchStep>,
        tls: Vec<TlsReport>,
        complete: bool,
    ) -> Self {
        let common = load.common();
        let (of, resource) = match load {
            Load::WebSocket(plan) => (plan.mode.kind(), plan.resource()),
            Load::Http(_) => (ModeName::Http, common.target.resource("/")),
        };
        // The step that sets the upper bound decides, because much higher rates overload both
        // sides.
        let bound = steps.iter().rfind(|step| Some(step.rate_per_s) == missed_rate_per_s);
        let generator_limited = bound.is_some_and(|step| step.limit == Limit::Generator);
        let thresholds = steps.first().map(|step| step.slo.iter());
        let thresholds = thresholds.into_iter().flatten().map(|slo| slo.threshold.clone());
        Self {
            schema: SCHEMA,
            mode: "find-max",
            of,
            url: url::masked(&common.url(resource)),
            connections: common.connections,
            tls,
            thresholds: thresholds.collect(),
            max_rate_per_s,
            missed_rate_per_s,
            precision: options.precision,
            complete,
            generator_limited,
            steps,
        }
    }

    fn verdict(&self) -> String {
        let thresholds = self.thresholds.join(", ");
        let reason = |rate: f64| {
            let step = self.steps.iter().rfind(|step| step.rate_per_s == rate);
            step.and_then(|step| step.reason.clone()).unwrap_or_default()
        };
        let mut line = match (self.max_rate_per_s, self.missed_rate_per_s) {
            (Some(max), Some(missed)) => format!(
                "{} a second keep {thresholds}; {} do not ({})",
                rounded(max),
                rounded(missed),
                reason(missed)
            ),
            (Some(max), None) => {
                format!("{} a second keep {thresholds}; no higher rate was tried", rounded(max))
            }
            (None, missed) => {
                let missed = missed.unwrap_or_default();
                format!(
                    "no rate keeps {thresholds}, not even {} ({})",
                    rounded(missed),
                    reason(missed)
                )
            }
        };
        if self.generator_limited {
            line += "; the generator was the limit there, the server may do more: use --threads";
        }
        let bound = self.steps.iter().rfind(|step| Some(step.rate_per_s) == self.missed_rate_per_s);
        if bound.is_some_and(|step| step.limit == Limit::Machine) {
            line += "; the machine was overloaded there, the server alone may do more";
        }
        if !self.complete {
            line += "; stopped before the end of the search";
        }
        line
    }

    /// Returns a caveat if the highest rate rests on few answers, so that its quantiles are just
    /// the maximum.
    fn few(&self) -> Option<String> {
        let max = self.max_rate_per_s?;
        let step = self.steps.iter().rfind(|step| step.rate_per_s == max)?;
        let count = step.latency.as_ref().map_or(0, |latency| latency.count);
        (count < FEW).then(|| {
            format!(
                "At that rate there were {} answers: with a longer --duration the result means \
                 more.",
                grouped(count)
            )
        })
    }

    fn table(&self) -> Table {
        let mut columns = vec![
            Column::new("rate_per_s", Unit::Number, "rate"),
            Column::new("answered_per_s", Unit::Number, "answered"),
        ];
        columns.extend(quantile_columns(&ALL_QUANTILES, true));
        columns.push(Column::new("errors", Unit::Count, "errors"));
        columns.extend(["limit", "kept", "reason"].map(|key| Column::new(key, Unit::Text, key)));
        let rows = self.steps.iter().map(|step| {
            let mut cells = row![step.rate_per_s, step.answered_per_s];
            cells.extend(quantile_cells(&ALL_QUANTILES, step.latency.as_ref()));
            let kept = if step.kept { "yes" } else { "no" };
            let reason = step.reason.clone().unwrap_or_default();
            cells.extend(row![step.errors, step.limit.name(), kept, reason]);
            cells
        });
        Table::new("", columns).rows(rows).plots([self.plot()])
    }

    fn plot(&self) -> Plot {
        let points = |pick: fn(&Summary) -> f64| {
            let known = self.steps.iter().filter_map(|step| Some((step, step.latency.as_ref()?)));
            let mut points: Vec<(f64, f64)> =
                known.map(|(step, latency)| (step.rate_per_s, pick(latency) / 1e3)).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let of =
            if self.of == ModeName::Connect { "connections a second" } else { "messages a second" };
        Plot::new("Latency by rate", Axis::log(of), Axis::log("time in ms"))
            .series("p50", &points(|latency| latency.p50_us))
            .series("p99", &points(|latency| latency.p99_us))
    }
}

impl Render for FindMaxReport {
    fn document(&self) -> Document {
        Document {
            kind: self.mode,
            title: "The highest rate that keeps the thresholds".to_owned(),
            conditions: vec![
                self.url.clone(),
                format!(
                    "{} {} {} connections, open loop, to {:.1} %",
                    self.of.name(),
                    if self.of == ModeName::Connect { "with at most" } else { "of" },
                    grouped(self.connections as u64),
                    self.precision * 100.0
                ),
            ],
            tables: vec![self.table()],
            remarks: tls_remark(&self.tls).into_iter().collect(),
            notices: self.few().into_iter().collect(),
            verdict: Some(self.verdict()),
        }
    }

    /// 0, or 99 if no rate was kept.
    fn exit_code(&self) -> u8 {
        if self.max_rate_per_s.is_some() { 0 } else { NONE_KEPT }
    }
}

impl std::fmt::Display for FindMaxReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_text())
    }
}
