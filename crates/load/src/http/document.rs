//! A run's report as tables.

use std::time::Duration;

use super::{PlanReport, Report};
use crate::report::document::{clients_in_words, error_remarks, quantiles, times};
use crate::report::model::{Cell, Column, Document, Render, Table, Unit};
use crate::report::{OpenLoopReport, StageReport};
use crate::units::{grouped, rounded, show_bytes, show_duration};

impl Render for Report {
    fn document(&self) -> Document {
        let tables = [self.figures(), self.times()];
        let counts = &self.errors;
        let first = counts.first.as_deref();
        let mut errors = error_remarks(&counts.kinds(), &counts.tls_failures, first);
        if self.errors.unexpected_status > 0 {
            let expected = &self.plan.expect_status;
            errors.push(("", format!("{expected} was expected; --expect-status says what counts")));
        }
        Document {
            kind: self.plan.mode,
            title: "HTTP requests and their answers".to_owned(),
            conditions: vec![format!("{} {}", self.plan.method, self.plan.url), self.plan.words()],
            tables: tables.into_iter().filter(|table| !table.is_empty()).collect(),
            remarks: self.remarks(errors),
            notices: Vec::new(),
            verdict: Some(self.verdict.line.clone()),
        }
    }

    fn exit_code(&self) -> u8 {
        self.exit_code_by_thresholds()
    }
}

impl PlanReport {
    /// The plan in a line, without the URL.
    fn words(&self) -> String {
        let seconds = |s: f64| show_duration(Duration::from_secs_f64(s));
        let s = if self.connections == 1 { "" } else { "s" };
        let mut words = format!("{} connection{s}", grouped(self.connections as u64));
        if self.body_bytes > 0 {
            let chunked = if self.chunked { " in chunks" } else { "" };
            words += &format!(", {} of body{chunked}", show_bytes(self.body_bytes as i64));
        }
        match (self.keep_alive, self.rate_per_s) {
            (false, _) => words += ", one request each (no keep-alive)",
            (true, Some(_)) if self.pipeline == 1 => {}
            (true, _) => words += &format!(", pipeline {}", self.pipeline),
        }
        match self.rate_per_s {
            Some(_) if self.stages.is_some() => {
                let stages = StageReport::words(self.stages.as_deref().unwrap_or_default());
                words += &format!(", {stages} requests/s in all (open loop)");
            }
            Some(rate) => {
                words += &format!(", {} requests/s in all (open loop)", rounded(rate));
            }
            None => words += " (closed loop)",
        }
        if let Some(ramp) = self.rate_ramp_s {
            words += &format!(", rising over {}", seconds(ramp));
        }
        words += &match (self.number, self.duration_s) {
            (Some(number), _) => format!(", {} requests", grouped(number)),
            (None, duration_s) => format!(", {}", seconds(duration_s.unwrap_or_default())),
        };
        if self.warmup_s > 0.0 {
            words += &format!(" after {} of warm-up", seconds(self.warmup_s));
        }
        let Self { headers, tokens, source_addresses, threads, .. } = self;
        for word in clients_in_words(headers.as_deref(), *tokens, *source_addresses, *threads) {
            words += &format!(", {word}");
        }
        words
    }
}

impl Report {
    fn figures(&self) -> Table {
        let (plan, result) = (&self.plan, &self.result);
        let figure = |key, unit, label: &str, value: Cell| (Column::new(key, unit, label), value);
        let statuses: Vec<String> = result
            .statuses
            .iter()
            .map(|(status, count)| format!("{status}: {}", grouped(*count)))
            .collect();
        let statuses = (!statuses.is_empty()).then(|| statuses.join(", "));
        let keep_alive = if plan.keep_alive { "true" } else { "false" };
        let mut figures = vec![
            figure("url", Unit::Text, "", plan.url.clone().into()),
            figure("connections", Unit::Count, "", plan.connections.into()),
            figure("pipeline", Unit::Count, "", plan.pipeline.into()),
            figure("keep_alive", Unit::Text, "", keep_alive.into()),
            figure("rate_per_s", Unit::Number, "", plan.rate_per_s.into()),
            figure("requests", Unit::Count, "requests", result.requests.into()),
            figure("", Unit::Seconds, "measured", result.measured_s.into()),
            figure(
                "requests_per_s",
                Unit::Number,
                "requests a second",
                result.requests_per_s.into(),
            ),
            figure(
                "requests_per_server_cpu_s",
                Unit::Number,
                "requests per server CPU-second",
                result.requests_per_server_cpu_s.into(),
            ),
            figure(
                "server_cpu_us_per_request",
                Unit::Us,
                "server CPU by request",
                result.server_cpu_us_per_request.into(),
            ),
            figure(
                "received_bytes_per_s",
                Unit::Bytes,
                "received a second",
                result.received_bytes_per_s.into(),
            ),
            figure("", Unit::Text, "statuses", statuses.into()),
        ];
        figures.extend(quantiles(result.latency));
        figures.push(figure("errors", Unit::Count, "", self.errors.total().into()));
        figures.push(figure("limit", Unit::Text, "", self.verdict.limit.name().into()));
        Table::list(figures)
    }

    fn times(&self) -> Table {
        let result = &self.result;
        let single = |summary| if self.plan.keep_alive { None } else { summary };
        let open = result.open_loop.as_ref();
        times(&[
            ("latency", result.latency),
            ("connect", single(result.connect)),
            ("TLS", single(result.tls)),
            ("together", single(result.connect_and_answer)),
            ("lateness", open.and_then(|open| open.lateness)),
        ])
        .plots(self.spread(self.plan.connections))
        .notes(open.map(OpenLoopReport::note))
    }
}
