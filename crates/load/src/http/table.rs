//! The table for people: a label, then figures, narrow enough for a terminal of 100 columns.

use std::fmt;
use std::time::Duration;

use super::{PlanReport, Report, RequestsReport};
use crate::report::table::{LABEL, generator_row, per_cpu_second, server_rows, times};
use crate::units::{grouped, rounded, show_bytes, show_duration, show_ns};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:LABEL$}{}", self.plan.mode, self.plan)?;
        writeln!(f)?;
        self.result.rows(f, self.plan.keep_alive)?;
        self.connection_rows(f)?;
        server_rows(f, self.server.as_ref())?;
        generator_row(f, &self.generator, self.machine_busy_share)?;
        self.error_rows(f)?;
        for slo in &self.slo {
            let kept = if slo.kept { "kept" } else { "NOT KEPT" };
            writeln!(f, "{:LABEL$}{} {kept}: {}", "threshold", slo.threshold, slo.shown())?;
        }
        writeln!(f)?;
        writeln!(f, "{:LABEL$}{}", "verdict", self.verdict.line)
    }
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |s: f64| show_duration(Duration::from_secs_f64(s));
        writeln!(f, "{} {}", self.method, self.url)?;
        write!(f, "{:LABEL$}{} connection", "", grouped(self.connections as u64))?;
        write!(f, "{}", if self.connections == 1 { "" } else { "s" })?;
        if self.body_bytes > 0 {
            let chunked = if self.chunked { " in chunks" } else { "" };
            write!(f, ", {} of body{chunked}", show_bytes(self.body_bytes as i64))?;
        }
        match (self.keep_alive, self.rate_per_s) {
            (false, _) => write!(f, ", one request each (no keep-alive)")?,
            (true, None) => write!(f, ", pipeline {}", self.pipeline)?,
            (true, Some(_)) if self.pipeline > 1 => write!(f, ", pipeline {}", self.pipeline)?,
            (true, Some(_)) => {}
        }
        match self.rate_per_s {
            Some(rate) => write!(f, ", {} requests/s in all (open loop)", rounded(rate))?,
            None => write!(f, " (closed loop)")?,
        }
        write!(f, ", {}", seconds(self.duration_s))?;
        if self.warmup_s > 0.0 {
            write!(f, " after {} of warm-up", seconds(self.warmup_s))?;
        }
        if self.source_addresses > 1 {
            write!(f, ", {} source addresses", self.source_addresses)?;
        }
        if self.threads > 1 {
            write!(f, ", {} threads", self.threads)?;
        }
        Ok(())
    }
}

impl RequestsReport {
    fn rows(&self, f: &mut fmt::Formatter<'_>, keep_alive: bool) -> fmt::Result {
        writeln!(
            f,
            "{:LABEL$}{} a second ({} in {}, {} received a second)",
            "requests",
            rounded(self.requests_per_s),
            grouped(self.requests),
            show_ns((self.measured_s * 1e9) as u64),
            show_bytes(self.received_bytes_per_s as i64),
        )?;
        per_cpu_second(f, "requests", self.requests_per_server_cpu_s)?;
        let statuses: Vec<String> = self
            .statuses
            .iter()
            .map(|(status, count)| format!("{status}: {}", grouped(*count)))
            .collect();
        if !statuses.is_empty() {
            writeln!(f, "{:LABEL$}{}", "statuses", statuses.join(", "))?;
        }
        let mut rows = vec![("latency", self.latency)];
        if !keep_alive {
            rows.extend([("connect", self.connect), ("together", self.connect_and_answer)]);
        }
        rows.extend(self.open_loop.map(|open| ("lateness", open.lateness)));
        times(f, &rows)?;
        match self.open_loop {
            Some(open) => writeln!(
                f,
                "{:LABEL$}latency counts from the planned time; {} planned ({} a second), {} unanswered",
                "",
                grouped(open.planned),
                rounded(open.planned_per_s),
                grouped(open.unanswered)
            ),
            None => Ok(()),
        }
    }
}

impl Report {
    fn connection_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.setup.connections > 0 {
            let took = show_ns((self.setup.took_s * 1e9) as u64);
            write!(
                f,
                "{:LABEL$}{} connections in {took}",
                "setup",
                grouped(self.setup.connections)
            )?;
            if let Some(tcp) = self.setup.tcp {
                write!(f, " (TCP p50 {})", show_ns((tcp.p50_us * 1e3) as u64))?;
            }
            writeln!(f)?;
        }
        if self.connections.ended_by_server == 0 {
            return Ok(());
        }
        writeln!(
            f,
            "{:LABEL$}{} ended by the server between requests and made again; {} requests sent again",
            "connections",
            grouped(self.connections.ended_by_server),
            grouped(self.connections.requests_resent)
        )
    }

    fn error_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen: Vec<String> = self
            .errors
            .kinds()
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{} {what}", grouped(*count)))
            .collect();
        if seen.is_empty() {
            return Ok(());
        }
        writeln!(f, "{:LABEL$}{}", "errors", seen.join(", "))?;
        if let Some(first) = &self.errors.first {
            writeln!(f, "{:LABEL$}first: {first}", "")?;
        }
        if self.errors.unexpected_status > 0 {
            writeln!(
                f,
                "{:LABEL$}{} was expected; --expect-status says what counts",
                "", self.plan.expect_status
            )?;
        }
        Ok(())
    }
}
