//! A run as a page: figures, and the latencies' whole spread as a plot.

use super::Report;
use crate::page::{Axis, Page, Plot};
use crate::units::{grouped, rounded, show_bytes, show_ns};

impl Report {
    /// The figures and a plot as one self-contained page.
    #[must_use]
    pub fn to_html(&self) -> String {
        let head = ["figure", "value"];
        let rows: Vec<Vec<String>> =
            self.figures().into_iter().map(|(name, value)| vec![name, value]).collect();
        Page::new("HTTP requests and their answers")
            .text(&self.plan.to_string())
            .notice(&format!("Verdict: {}", self.verdict.line))
            .heading("Latency")
            .plot(&self.spread())
            .heading("Figures")
            .table(&head, &rows)
            .to_html()
    }

    /// Latency over "one answer in so many": equal steps for p90, p99, p99.9.
    fn spread(&self) -> Plot {
        let inner = self.result.quantiles.iter().filter(|point| point.share < 1.0);
        let points: Vec<(f64, f64)> =
            inner.map(|point| (1.0 / (1.0 - point.share), point.us / 1e3)).collect();
        let caption = "100 on the lower axis is the 99th percentile, 1,000 the 99.9th.";
        Plot::new(
            "Latency",
            Axis::log("one answer in so many took longer"),
            Axis::log("time in ms"),
        )
        .captioned(caption)
        .series(&format!("{} connections", grouped(self.plan.connections as u64)), &points)
    }

    fn figures(&self) -> Vec<(String, String)> {
        let us = |us: f64| show_ns((us * 1e3).round() as u64);
        let result = &self.result;
        let mut figures = vec![
            ("requests a second".to_owned(), rounded(result.requests_per_s)),
            ("requests".to_owned(), grouped(result.requests)),
            ("received a second".to_owned(), show_bytes(result.received_bytes_per_s as i64)),
        ];
        let mut add = |name: &str, value: Option<String>| {
            figures.extend(value.map(|value| (name.to_owned(), value)));
        };
        add("requests per server CPU-second", result.requests_per_server_cpu_s.map(rounded));
        add("server CPU by request", result.server_cpu_us_per_request.map(us));
        for (what, summary) in [
            ("latency", result.latency),
            ("connect", result.connect),
            ("connect and answer", result.connect_and_answer),
        ] {
            let Some(summary) = summary else { continue };
            for (name, value) in [
                ("p50", summary.p50_us),
                ("p90", summary.p90_us),
                ("p99", summary.p99_us),
                ("p99.9", summary.p999_us),
                ("max", summary.max_us),
            ] {
                add(&format!("{what} {name}"), Some(us(value)));
            }
        }
        for (status, count) in &result.statuses {
            add(&format!("status {status}"), Some(grouped(*count)));
        }
        for (count, what) in self.errors.kinds().into_iter().filter(|(count, _)| *count > 0) {
            add(what, Some(grouped(count)));
        }
        let memory = self.server.as_ref().and_then(|server| server.memory);
        add("server memory", memory.map(|memory| show_bytes(memory.rss_bytes as i64)));
        for slo in &self.slo {
            let kept = if slo.kept { "kept" } else { "not kept" };
            add(&slo.threshold, Some(format!("{kept} ({})", slo.shown())));
        }
        figures
    }
}
