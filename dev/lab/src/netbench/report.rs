//! The result of a matrix, as JSON and CSV for programs and as a page; the table for people is in `table.rs`.

use serde::Serialize;

use super::{Mode, Plan};
use throng_load::page::{Axis, Page, Plot};
use throng_load::record::Summary;
use throng_load::report::{SCHEMA, csv};
use throng_load::units::{grouped, rounded};
use throng_load::{http, verdict::Limit};

/// Everything about one run of the matrix. `Display` prints the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// What was asked for.
    pub plan: PlanReport,
    /// In the order they ran.
    pub cases: Vec<CaseReport>,
    /// The run was stopped before all cases were measured in full.
    pub interrupted: bool,
}

/// The plan, as far as it matters for repeating a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PlanReport {
    /// `netbench`.
    pub mode: &'static str,
    /// The server's name.
    pub name: String,
    /// The words of its command, before anything is filled in.
    pub command: Vec<String>,
    /// Where it listened.
    pub address: String,
    /// `keep-alive` or `close`.
    pub reuse: &'static str,
    /// Time measured in each case.
    pub duration_s: f64,
    /// Time run before and not counted.
    pub warmup_s: f64,
    /// Threads of the generator at most.
    pub threads: usize,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CaseReport {
    /// Connections held, or without keep-alive requests under way at a time.
    pub connections: usize,
    /// What a request cost.
    pub mode: Mode,
    /// Why the figures do not count; then those below are `null`.
    pub failure: Option<String>,
    /// Requests sent within the measured time.
    pub requests: Option<u64>,
    /// Complete answers with status 200 within it.
    pub responses: Option<u64>,
    /// The same, by the second.
    pub throughput_per_s: Option<f64>,
    /// The same by the second of CPU time of the server and its descendants.
    pub requests_per_server_cpu_s: Option<f64>,
    /// Who was the limit.
    pub limit: Option<Limit>,
    /// All that was measured, also of a failed case that came so far.
    pub load: Option<http::Report>,
}

impl CaseReport {
    pub(super) fn measured(connections: usize, mode: Mode, load: http::Report) -> Self {
        let result = &load.result;
        let sent = result.sent_bytes_per_s * result.measured_s;
        Self {
            connections,
            mode,
            failure: None,
            requests: Some((sent / load.plan.request_bytes.max(1) as f64).round() as u64),
            responses: Some(result.requests),
            throughput_per_s: Some(result.requests_per_s),
            requests_per_server_cpu_s: result.requests_per_server_cpu_s,
            limit: Some(load.verdict.limit),
            load: Some(load),
        }
    }

    pub(super) fn failed(
        connections: usize,
        mode: Mode,
        reason: String,
        load: Option<http::Report>,
    ) -> Self {
        Self {
            connections,
            mode,
            failure: Some(reason),
            requests: None,
            responses: None,
            throughput_per_s: None,
            requests_per_server_cpu_s: None,
            limit: None,
            load,
        }
    }

    /// Its figures count.
    fn is_valid(&self) -> bool {
        self.failure.is_none() && self.limit != Some(Limit::Invalid)
    }

    /// From sending to the complete answer; without keep-alive from the connect call.
    pub(super) fn latency(&self) -> Option<Summary> {
        let result = &self.load.as_ref()?.result;
        result.connect_and_answer.or(result.latency)
    }

    /// The failure, or who was the limit, as a line.
    pub(super) fn line(&self) -> String {
        match (&self.failure, &self.load) {
            (Some(failure), _) => format!("FAILED: {failure}"),
            (None, Some(load)) => load.verdict.line.clone(),
            (None, None) => String::new(),
        }
    }
}

impl Report {
    pub(super) fn of(plan: &Plan, planned: usize, cases: Vec<CaseReport>) -> Self {
        let is_cut = |case: &CaseReport| {
            // A thread ends its share within some milliseconds of the time.
            case.load.as_ref().is_some_and(|load| {
                case.failure.is_none() && load.result.measured_s < load.plan.duration_s * 0.9
            })
        };
        Self {
            schema: SCHEMA,
            plan: PlanReport {
                mode: "netbench",
                name: plan.name.clone(),
                command: plan.command.words().to_vec(),
                address: plan.address.to_string(),
                reuse: if plan.keep_alive { "keep-alive" } else { "close" },
                duration_s: plan.duration.as_secs_f64(),
                warmup_s: plan.warmup.as_secs_f64(),
                threads: plan.threads,
            },
            interrupted: cases.len() < planned || cases.iter().any(is_cut),
            cases,
        }
    }

    /// Exit code of a process that made this report: 0, or 1 if a case failed or is missing.
    #[must_use]
    pub(crate) fn exit_code(&self) -> u8 {
        u8::from(self.interrupted || !self.cases.iter().all(CaseReport::is_valid))
    }

    /// The JSON document, indented, with a final line break.
    #[must_use]
    pub(crate) fn to_json(&self) -> String {
        // Plain structs with string keys: serialising cannot fail.
        let mut json = serde_json::to_string_pretty(self).unwrap_or_default();
        json.push('\n');
        json
    }

    /// A row of comma-separated values for each case, after a line of names.
    #[must_use]
    pub(crate) fn to_csv(&self) -> String {
        let head = [
            "server",
            "reuse",
            "connections",
            "mode",
            "requests",
            "responses",
            "throughput_per_s",
            "requests_per_server_cpu_s",
            "p50_us",
            "p99_us",
            "limit",
            "failure",
        ];
        let count = |value: Option<u64>| value.map(|n| n.to_string()).unwrap_or_default();
        let rows = self.cases.iter().map(|case| {
            let latency = case.latency().filter(|_| case.failure.is_none());
            vec![
                self.plan.name.clone(),
                self.plan.reuse.to_owned(),
                case.connections.to_string(),
                case.mode.to_string(),
                count(case.requests),
                count(case.responses),
                csv::number(case.throughput_per_s),
                csv::number(case.requests_per_server_cpu_s),
                csv::number(latency.map(|latency| latency.p50_us)),
                csv::number(latency.map(|latency| latency.p99_us)),
                case.limit.map(Limit::name).unwrap_or_default().to_owned(),
                case.failure.clone().unwrap_or_default(),
            ]
        });
        csv::document(&head, rows)
    }

    /// The table and a plot as one self-contained page.
    #[must_use]
    pub(crate) fn to_html(&self) -> String {
        let head = [
            "connections",
            "mode",
            "requests",
            "responses",
            "throughput/s",
            "per CPU-s",
            "who was the limit",
        ];
        let whole = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), grouped);
        let rate = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), rounded);
        let rows: Vec<Vec<String>> = self
            .cases
            .iter()
            .map(|case| {
                vec![
                    grouped(case.connections as u64),
                    case.mode.to_string(),
                    whole(case.requests),
                    whole(case.responses),
                    rate(case.throughput_per_s),
                    rate(case.requests_per_server_cpu_s),
                    case.line(),
                ]
            })
            .collect();
        Page::new("The blank/work benchmark")
            .text(&self.plan.to_string())
            .heading("Cases")
            .table(&head, &rows)
            .heading("Throughput")
            .plot(&self.plot())
            .to_html()
    }

    fn plot(&self) -> Plot {
        let plot = Plot::new("Throughput", Axis::log("connections"), Axis::new("answers a second"));
        [Mode::Blank, Mode::Work].into_iter().fold(plot, |plot, mode| {
            let points: Vec<(f64, f64)> = self
                .cases
                .iter()
                .filter(|case| case.mode == mode)
                .filter_map(|case| Some((case.connections as f64, case.throughput_per_s?)))
                .collect();
            if points.is_empty() { plot } else { plot.series(mode.name(), &points) }
        })
    }
}
