//! The report of a matrix.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use throng_load::page::{Axis, Plot};
use throng_load::record::Summary;
use throng_load::report::SCHEMA;
use throng_load::report::model::{Document, Render, Row, Table, Unit};
use throng_load::row;
use throng_load::units::{grouped, show_duration};
use throng_load::{http, verdict::Limit};

use super::flags::{NetBench, Reuse};
use crate::blank_work::Mode;
use crate::table::{columns, with_lines};

/// Everything about one run of the matrix.
#[derive(Clone, Debug, Serialize)]
pub struct NetBenchReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Settings of the run.
    pub plan: PlanReport,
    /// In the order they ran.
    pub cases: Vec<CaseReport>,
    /// The run was stopped before all cases were measured in full.
    pub interrupted: bool,
}

/// The plan, as far as it matters for repeating a run.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// `netbench`.
    pub mode: &'static str,
    /// The server's name.
    pub name: String,
    /// The words of its command, before anything is filled in.
    pub command: Vec<String>,
    /// Where it listened.
    pub address: String,
    /// `keep-alive` or `close`.
    pub reuse: Reuse,
    /// Time measured in each case.
    pub duration_s: f64,
    /// Time run before and not counted.
    pub warmup_s: f64,
    /// Threads of the generator at most.
    pub threads: usize,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct CaseReport {
    /// Connections held, or without keep-alive requests under way at a time.
    pub connections: usize,
    /// Cost of a request.
    pub mode: Mode,
    /// Why the figures do not count; then those below are `null`.
    pub failure: Option<String>,
    /// Requests sent within the measured time.
    pub requests: Option<u64>,
    /// Complete answers with status 200 within it.
    pub responses: Option<u64>,
    /// Answered requests a second.
    pub throughput_per_s: Option<f64>,
    /// Answered requests a second of CPU time of the server and its descendants.
    pub requests_per_server_cpu_s: Option<f64>,
    /// Party that limited the run.
    pub limit: Option<Limit>,
    /// All that was measured, also of a failed case that came so far.
    pub load: Option<http::HttpReport>,
}

impl CaseReport {
    pub(super) fn measured(connections: usize, mode: Mode, load: http::HttpReport) -> Self {
        let result = &load.result;
        let request_bytes = load.plan.request().map_or(1, |request| request.request_bytes);
        let sent = result.sent_bytes_per_s.unwrap_or(0.0) * result.measured_s;
        Self {
            connections,
            mode,
            failure: None,
            requests: Some((sent / request_bytes.max(1) as f64).round() as u64),
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
        load: Option<http::HttpReport>,
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
    pub(crate) fn line(&self) -> String {
        match (&self.failure, &self.load) {
            (Some(failure), _) => format!("FAILED: {failure}"),
            (None, Some(load)) => load.verdict.line.clone(),
            (None, None) => String::new(),
        }
    }
}

impl NetBenchReport {
    pub(super) fn new(flags: &NetBench, planned: usize, cases: Vec<CaseReport>) -> Self {
        let is_cut = |case: &CaseReport| {
            // A thread ends its share within some milliseconds of the time.
            case.load.as_ref().is_some_and(|load| {
                case.failure.is_none()
                    && load
                        .plan
                        .duration_s
                        .is_some_and(|planned| load.result.measured_s < planned * 0.9)
            })
        };
        Self {
            schema: SCHEMA,
            plan: PlanReport {
                mode: "netbench",
                name: flags.name.clone().unwrap_or_default(),
                command: flags.server.as_ref().map_or(Vec::new(), |it| it.words().to_vec()),
                address: flags.listens_on().to_string(),
                reuse: flags.reuse,
                duration_s: flags.duration.as_secs_f64(),
                warmup_s: flags.warmup.as_secs_f64(),
                threads: flags.threads,
            },
            interrupted: cases.len() < planned || cases.iter().any(is_cut),
            cases,
        }
    }

    fn table(&self) -> Table {
        let columns = columns([
            ("server", Unit::Text, "server"),
            ("reuse", Unit::Text, ""),
            ("connections", Unit::Count, "conn"),
            ("mode", Unit::Text, "mode"),
            ("requests", Unit::Count, "requests"),
            ("responses", Unit::Count, "responses"),
            ("throughput_per_s", Unit::Number, "throughput/s"),
            ("requests_per_server_cpu_s", Unit::Number, "per CPU-s"),
            ("p50_us", Unit::Us, "p50"),
            ("p99_us", Unit::Us, "p99"),
            ("limit", Unit::Text, "limit"),
        ]);
        let rows = self.cases.iter().map(|case| {
            let short: String = self.plan.name.chars().take(10).collect();
            let mut cells =
                row![short, self.plan.reuse.name(), case.connections, case.mode.to_string()];
            if let Some(failure) = &case.failure {
                return Row::without_figures(cells, format!("FAILED: {failure}"));
            }
            let latency = case.latency();
            cells.extend(row![
                case.requests,
                case.responses,
                case.throughput_per_s,
                case.requests_per_server_cpu_s,
                latency.map(|latency| latency.p50_us),
                latency.map(|latency| latency.p99_us),
                case.limit.map(Limit::name),
            ]);
            cells.into()
        });
        let notes = self.cases.iter().filter(|case| case.failure.is_none()).map(|case| {
            format!("{} {}: {}", grouped(case.connections as u64), case.mode, case.line())
        });
        let table = Table::new("Cases", columns).rows(rows).reasons("failure");
        table.plots([self.plot()]).notes(notes)
    }

    fn plot(&self) -> Plot {
        let plot = Plot::new("Throughput", Axis::log("connections"), Axis::new("answers a second"));
        let lines = [Mode::Blank, Mode::Work].into_iter().map(|mode| {
            let cases = self.cases.iter().filter(|case| case.mode == mode);
            let points: Vec<(f64, f64)> = cases
                .filter_map(|case| Some((case.connections as f64, case.throughput_per_s?)))
                .collect();
            (mode.name(), points)
        });
        with_lines(plot, lines.filter(|(_, points)| !points.is_empty()))
    }
}

impl Render for NetBenchReport {
    fn document(&self) -> Document {
        let interrupted = "The run was interrupted: cases are missing or were cut short.";
        Document {
            kind: "netbench",
            title: "The blank/work benchmark".to_owned(),
            conditions: vec![self.plan.to_string()],
            tables: vec![self.table()],
            notices: self.interrupted.then(|| interrupted.to_owned()).into_iter().collect(),
            ..Document::default()
        }
    }

    fn exit_code(&self) -> u8 {
        u8::from(self.interrupted || !self.cases.iter().all(CaseReport::is_valid))
    }
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |s: f64| show_duration(Duration::from_secs_f64(s));
        let reuse = match self.reuse {
            Reuse::Close => "a connection for each request (close)",
            Reuse::KeepAlive => "connections are used again (keep-alive)",
        };
        write!(f, "{} on {}: {reuse}, {}", self.name, self.address, seconds(self.duration_s))?;
        if self.warmup_s > 0.0 {
            write!(f, " after {} of warm-up", seconds(self.warmup_s))?;
        }
        if self.threads > 1 {
            write!(f, ", {} threads", self.threads)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::from_flags;
    use crate::netbench::server_command::ServerCommand;

    #[test]
    fn all_forms_are_those_of_before() {
        let mut flags: NetBench = from_flags(&[]).unwrap();
        flags.server = Some(ServerCommand::parse("./server {mode} --quiet").unwrap());
        flags.name = Some("server".to_owned());
        let measured = |connections: usize, mode, per_s: f64| CaseReport {
            connections,
            mode,
            failure: None,
            requests: Some(1_000),
            responses: Some(999),
            throughput_per_s: Some(per_s),
            requests_per_server_cpu_s: Some(2.0 * per_s),
            limit: Some(Limit::Server),
            load: None,
        };
        let cases = vec![
            measured(1, Mode::Blank, 12_345.6),
            measured(1, Mode::Work, 7_654.3),
            CaseReport::failed(100, Mode::Blank, "the status is 500, not 200".to_owned(), None),
        ];
        crate::golden::assert_unchanged("netbench", &NetBenchReport::new(&flags, 4, cases));
    }
}
