//! The report of a comparison.

use serde::Serialize;

use throng_load::page::{Axis, Plot};
use throng_load::record::Summary;
use throng_load::report::SCHEMA;
use throng_load::report::model::{Cell, Document, Render, Table, Unit};
use throng_load::row;
use throng_load::units::{grouped, show_bytes, show_duration};
use throng_load::verdict::{Limit, Verdict};

use super::Compression;
use crate::table::{columns, with_lines};

/// Everything about one comparison.
#[derive(Clone, Debug, Serialize)]
pub struct CompressionReport {
    /// The report's version, as in every report of `throng bench`.
    pub schema: &'static str,
    /// `deflate-compare`.
    pub mode: &'static str,
    /// Connections of each measurement.
    pub connections: usize,
    /// Bytes of a JSON document.
    pub size_bytes: usize,
    /// Seed of the documents.
    pub seed: u64,
    /// Time measured, of each setting.
    pub duration_s: f64,
    /// One by setting.
    pub rows: Vec<CompressionRow>,
    /// Verdict of the row that restricts the figures most.
    pub verdict: Verdict,
}

/// One setting.
#[derive(Clone, Debug, Serialize)]
pub struct CompressionRow {
    /// `off`, `no-context` or `window:BITS`.
    pub setting: String,
    /// Size of a window as its binary logarithm.
    pub window_bits: Option<u8>,
    /// True if every connection exchanged at least a window's worth of text on average: less does
    /// not show its memory.
    pub windows_filled: Option<bool>,
    /// Growth of the server's resident memory after use, with all connections open.
    pub memory_bytes_per_connection: Option<f64>,
    /// Server CPU time (all threads): one message inflated, one composed and compressed.
    pub server_cpu_us_per_message: Option<f64>,
    /// CPU time a message if the server relays the messages that it received.
    pub relayed_cpu_us_per_message: Option<f64>,
    /// Payload bytes from the server by bytes of its messages.
    pub ratio: Option<f64>,
    /// Messages back and forth by the second.
    pub messages_per_s: f64,
    /// From sending to the answer.
    pub latency: Option<Summary>,
    /// Share (0 to 1) of the machine's CPU time that all processes used during the measurement.
    pub machine_busy_share: Option<f64>,
    /// Number of errors.
    pub errors: u64,
    /// Party that limited the rate. CPU by message, memory and ratio do not depend on it.
    pub verdict: Verdict,
}

impl CompressionReport {
    pub(super) fn new(plan: &Compression, rows: Vec<CompressionRow>) -> Self {
        let worst = rows.iter().max_by_key(|row| row.verdict.limit.gravity());
        let verdict = worst.map_or_else(
            || Verdict {
                limit: Limit::Invalid,
                line: "not valid: nothing was measured".to_owned(),
            },
            |row| Verdict {
                limit: row.verdict.limit,
                line: format!("{} (of the rate, with {})", row.verdict.line, row.setting),
            },
        );
        Self {
            schema: SCHEMA,
            mode: "deflate-compare",
            connections: plan.connections,
            size_bytes: plan.size,
            seed: plan.seed,
            duration_s: plan.duration.as_secs_f64(),
            rows,
            verdict,
        }
    }

    /// The windows as one line; each setting without a window as a level one.
    fn lines(&self, plot: Plot, figure: impl Fn(&CompressionRow) -> Option<f64>) -> Plot {
        let windows: Vec<(f64, f64)> = self
            .rows
            .iter()
            .filter_map(|row| Some((f64::from(row.window_bits?), figure(row)?)))
            .collect();
        let (from, to) = windows
            .iter()
            .fold((f64::MAX, f64::MIN), |(from, to), &(bits, _)| (from.min(bits), to.max(bits)));
        let (from, to) = if windows.is_empty() { (9.0, 15.0) } else { (from, to) };
        let levels = self.rows.iter().filter(|row| row.window_bits.is_none());
        let levels = levels.filter_map(|row| {
            let value = figure(row)?;
            Some((&row.setting, vec![(from, value), (to, value)]))
        });
        with_lines(plot.series("window", &windows), levels)
    }

    fn setup(&self) -> String {
        format!(
            "{} connections, JSON documents of {}, each answered by one of the server's own; {} \
             measured for each setting, on a fresh server",
            grouped(self.connections as u64),
            show_bytes(self.size_bytes as i64),
            show_duration(std::time::Duration::from_secs_f64(self.duration_s)),
        )
    }

    fn table(&self) -> Table {
        let columns = columns([
            ("setting", Unit::Text, "setting"),
            ("window_bits", Unit::Count, ""),
            ("connections", Unit::Count, ""),
            ("size_bytes", Unit::Bytes, ""),
            ("memory_bytes_per_connection", Unit::Number, "memory/conn"),
            ("", Unit::Number, "more than off"),
            ("windows_filled", Unit::Text, ""),
            ("server_cpu_us_per_message", Unit::Us, "CPU/message"),
            ("relayed_cpu_us_per_message", Unit::Us, "sent on"),
            ("ratio", Unit::Share, "size"),
            ("messages_per_s", Unit::Number, "messages/s"),
            ("p50_us", Unit::Us, ""),
            ("p99_us", Unit::Us, "p99"),
            ("limit", Unit::Text, ""),
        ]);
        let off = self.rows.iter().find(|row| row.setting == "off");
        let off = off.and_then(|off| off.memory_bytes_per_connection);
        let rows = self.rows.iter().map(|row| {
            let mark = if row.windows_filled == Some(false) { "*" } else { "" };
            let bytes = |bytes: f64| Cell::shown(bytes, format!("{bytes:.0}{mark}"));
            let us = |us: f64| Cell::shown(us, format!("{us:.2} us"));
            let memory = row.memory_bytes_per_connection;
            let latency = row.latency.as_ref();
            row![
                row.setting.clone(),
                row.window_bits.map(u64::from),
                self.connections,
                self.size_bytes,
                memory.map(bytes),
                memory.zip(off).map(|(memory, off)| bytes(memory - off)),
                row.windows_filled.map(|filled| filled.to_string()),
                row.server_cpu_us_per_message.map(us),
                row.relayed_cpu_us_per_message.map(us),
                row.ratio,
                row.messages_per_s,
                latency.map(|latency| latency.p50_us),
                latency.map(|latency| latency.p99_us),
                row.verdict.limit.name(),
            ]
        });
        let unfilled = self.rows.iter().any(|row| row.windows_filled == Some(false));
        let note = unfilled.then(|| {
            "* less than a window was exchanged: take fewer --connections or a longer --warmup"
                .to_owned()
        });
        Table::new("Figures", columns).rows(rows).plots(self.plots()).notes(note)
    }

    fn plots(&self) -> [Plot; 3] {
        let plot = |title, y| Plot::new(title, Axis::new("window bits"), Axis::new(y));
        let memory = plot("Server memory of a connection", "resident memory in bytes").captioned(
            "After use, both directions. Off and no-context have no window: a level line each.",
        );
        let cpu = plot("Server CPU of a message", "CPU time in us")
            .captioned("One message received and inflated, one composed, compressed and sent.");
        let size = plot("Size of a message on the wire", "percent of its size")
            .captioned("Payload from the server, without frame headers.");
        [
            self.lines(memory, |row| row.memory_bytes_per_connection),
            self.lines(cpu, |row| row.server_cpu_us_per_message),
            self.lines(size, |row| Some(row.ratio.unwrap_or(1.0) * 100.0)),
        ]
    }
}

impl Render for CompressionReport {
    fn document(&self) -> Document {
        let wrong: u64 = self.rows.iter().map(|row| row.errors).sum();
        let errors = (wrong > 0).then(|| ("errors", grouped(wrong)));
        Document {
            kind: "compression",
            title: "What compression costs, and what it saves".to_owned(),
            conditions: vec![self.setup()],
            tables: vec![self.table()],
            remarks: errors.into_iter().collect(),
            notices: Vec::new(),
            verdict: Some(self.verdict.line.clone()),
        }
    }

    fn exit_code(&self) -> u8 {
        u8::from(self.verdict.limit == Limit::Invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_load::page::well_formed::assert_well_formed;

    fn usual() -> Compression {
        crate::comparison::from_flags(&[]).unwrap()
    }

    fn row(setting: &str, bits: Option<u8>, memory: f64, limit: Limit) -> CompressionRow {
        CompressionRow {
            setting: setting.to_owned(),
            window_bits: bits,
            windows_filled: bits.map(|bits| bits < 15),
            memory_bytes_per_connection: Some(memory),
            server_cpu_us_per_message: Some(8.25),
            relayed_cpu_us_per_message: (setting == "no-context").then_some(5.0),
            ratio: (setting != "off").then_some(0.21),
            messages_per_s: 45_000.0,
            latency: None,
            machine_busy_share: Some(0.9),
            errors: 0,
            verdict: Verdict { limit, line: format!("{}-limited", limit.name()) },
        }
    }

    fn report() -> CompressionReport {
        let rows = vec![
            row("off", None, 150.0, Limit::Server),
            row("no-context", None, 152.0, Limit::Generator),
            row("window:10", Some(10), 2_300.0, Limit::Server),
            row("window:15", Some(15), 66_000.0, Limit::Server),
        ];
        CompressionReport::new(&usual(), rows)
    }

    #[test]
    fn the_table_says_what_a_setting_adds_and_what_is_not_known() {
        let text = report().to_text();
        for words in
            ["2300", "2150", "8.25 us", "5.00 us", "21.0 %", "66000*", "* less than a window"]
        {
            assert!(text.contains(words), "{words:?} in\n{text}");
        }
        assert!(text.contains("generator-limited (of the rate, with no-context)"), "{text}");
        assert!(text.lines().skip(1).all(|line| line.chars().count() <= 120), "{text}");
    }

    #[test]
    fn csv_and_json_have_every_row() {
        let csv = report().to_csv();
        assert_eq!(csv.lines().count(), 5);
        assert!(
            csv.lines().nth(3).unwrap().starts_with("window:10,10,1000,256,2300,true,8.25,,0.21,")
        );
        let json: serde_json::Value = serde_json::from_str(&report().to_json()).unwrap();
        assert_eq!(json["rows"][1]["relayed_cpu_us_per_message"], 5.0);
        assert!(json["rows"][0]["ratio"].is_null());
    }

    #[test]
    fn all_forms_are_those_of_before() {
        crate::golden::assert_unchanged("compression", &report());
    }

    #[test]
    fn the_page_draws_windows_and_levels() {
        let html = report().to_html();
        assert_well_formed(&html);
        assert_eq!(html.matches("<svg").count(), 3);
        assert!(html.contains("no-context") && html.contains("window bits"));
    }

    #[test]
    fn nothing_measured_is_not_valid() {
        let report = CompressionReport::new(&usual(), Vec::new());
        assert_eq!(report.exit_code(), 1);
    }
}
