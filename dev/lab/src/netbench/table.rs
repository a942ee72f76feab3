//! The table for people: the suite's figures as columns, then who was the limit of each case.

use std::fmt;
use std::time::Duration;

use super::{CaseReport, PlanReport, Report};
use throng_load::units::{grouped, rounded, show_duration, show_ns};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.plan)?;
        writeln!(
            f,
            "{:<10} {:>6} {:<5} {:>11} {:>11} {:>12} {:>10} {:>8} {:>8}  limit",
            "server",
            "conn",
            "mode",
            "requests",
            "responses",
            "throughput/s",
            "per CPU-s",
            "p50",
            "p99"
        )?;
        self.cases.iter().try_for_each(|case| case.row(f, &self.plan.name))?;
        writeln!(f)?;
        for case in &self.cases {
            let connections = grouped(case.connections as u64);
            writeln!(f, "{connections:>6} {:<5}  {}", case.mode, case.line())?;
        }
        if self.interrupted {
            writeln!(f, "\nThe run was interrupted: cases are missing or were cut short.")?;
        }
        Ok(())
    }
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |s: f64| show_duration(Duration::from_secs_f64(s));
        let reuse = match self.reuse {
            "close" => "a connection for each request (close)",
            _ => "connections are used again (keep-alive)",
        };
        write!(
            f,
            "netbench {} on {}: {reuse}, {}",
            self.name,
            self.address,
            seconds(self.duration_s)
        )?;
        if self.warmup_s > 0.0 {
            write!(f, " after {} of warm-up", seconds(self.warmup_s))?;
        }
        if self.threads > 1 {
            write!(f, ", {} threads", self.threads)?;
        }
        Ok(())
    }
}

impl CaseReport {
    fn row(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        let short: String = name.chars().take(10).collect();
        let connections = grouped(self.connections as u64);
        write!(f, "{short:<10} {connections:>6} {:<5} ", self.mode)?;
        let (Some(requests), Some(responses)) = (self.requests, self.responses) else {
            return writeln!(f, "FAILED");
        };
        let rate = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), rounded);
        let latency = self.latency();
        let time = |us: Option<f64>| {
            us.map_or_else(|| "-".to_owned(), |us| show_ns((us * 1e3).round() as u64))
        };
        writeln!(
            f,
            "{:>11} {:>11} {:>12} {:>10} {:>8} {:>8}  {}",
            grouped(requests),
            grouped(responses),
            rate(self.throughput_per_s),
            rate(self.requests_per_server_cpu_s),
            time(latency.map(|latency| latency.p50_us)),
            time(latency.map(|latency| latency.p99_us)),
            self.limit.map_or("", throng_load::Limit::name),
        )
    }
}
