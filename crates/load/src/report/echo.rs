//! An echo run as CSV and as a page.

use super::deflate::percent;
use super::{EchoReport, Report, csv};
use crate::page::Page;
use crate::units::{grouped, rounded, show_bytes, show_ns};

impl Report {
    /// One row, after a line of names.
    pub(super) fn echo_csv(&self, echo: &EchoReport) -> String {
        let plan = &self.plan;
        let latency = echo.latency.as_ref();
        let deflate = echo.deflate.as_ref();
        let row = [
            ("connections", plan.connections.to_string()),
            ("size_bytes", plan.size_bytes.to_string()),
            ("payload", plan.payload.to_owned()),
            ("deflate", plan.deflate.clone()),
            ("messages", echo.messages.to_string()),
            ("messages_per_s", csv::number(Some(echo.messages_per_s))),
            ("messages_per_server_cpu_s", csv::number(echo.messages_per_server_cpu_s)),
            ("server_cpu_us_per_message", csv::number(echo.server_cpu_us_per_message)),
            ("ratio_sent", csv::number(deflate.and_then(|deflate| deflate.ratio_sent))),
            ("ratio_received", csv::number(deflate.and_then(|deflate| deflate.ratio_received))),
            ("p50_us", csv::number(latency.map(|latency| latency.p50_us))),
            ("p99_us", csv::number(latency.map(|latency| latency.p99_us))),
            ("p999_us", csv::number(latency.map(|latency| latency.p999_us))),
            ("limit", self.verdict.limit.name().to_owned()),
        ];
        let head = row.each_ref().map(|(name, _)| *name);
        csv::document(&head, std::iter::once(row.map(|(_, value)| value).to_vec()))
    }

    /// The figures as a page.
    pub(super) fn echo_html(&self, echo: &EchoReport) -> String {
        let plan = &self.plan;
        let us = |us: f64| show_ns((us * 1e3).round() as u64);
        let mut figures = vec![
            ("messages a second", rounded(echo.messages_per_s)),
            ("messages", grouped(echo.messages)),
        ];
        if let Some(rate) = echo.messages_per_server_cpu_s {
            figures.push(("messages per server CPU-second", rounded(rate)));
        }
        if let Some(each) = echo.server_cpu_us_per_message {
            figures.push(("server CPU by message", us(each)));
        }
        if let Some(deflate) = &echo.deflate {
            figures.push(("connections compressed", grouped(deflate.connections_agreed)));
            for (name, ratio) in [
                ("sent, of their size", deflate.ratio_sent),
                ("received, of their size", deflate.ratio_received),
            ] {
                figures.extend(ratio.map(|ratio| (name, percent(ratio))));
            }
        }
        if let Some(latency) = echo.latency {
            figures.push(("latency p50", us(latency.p50_us)));
            figures.push(("latency p99", us(latency.p99_us)));
            figures.push(("latency p99.9", us(latency.p999_us)));
            figures.push(("latency max", us(latency.max_us)));
        }
        if let Some(memory) = self.server.as_ref().and_then(|server| server.memory) {
            figures.push(("server memory", show_bytes(memory.rss_bytes as i64)));
        }
        let rows: Vec<Vec<String>> =
            figures.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
        Page::new("Messages that come back")
            .text(&plan.to_string())
            .notice(&format!("Verdict: {}", self.verdict.line))
            .heading("Figures")
            .table(&["figure", "value"], &rows)
            .to_html()
    }
}
