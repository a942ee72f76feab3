//! The report of a comparison.

use serde::Serialize;

use throng_load::page::{Axis, Plot};
use throng_load::report::model::{Document, Render, Table, Unit};
use throng_load::report::{Errors, SCHEMA};
use throng_load::row;
use throng_load::units::{grouped, show_bytes, show_ns};
use throng_load::verdict::{Limit, Verdict};

use super::flags::Broadcast;
use crate::parts::Variant;
use crate::spread::Spread;
use crate::table::{columns, with_lines};

/// Everything about one comparison.
#[derive(Clone, Debug, Serialize)]
pub struct BroadcastReport {
    /// The report's version, as in every report of `throng bench`.
    pub schema: &'static str,
    /// Settings of the comparison.
    pub plan: PlanReport,
    /// A row for each number of shards and subscribers and each variant.
    pub rows: Vec<BroadcastRow>,
    /// The busy share (0 to 1) of the machine's CPU time during the run, including the set-up.
    pub machine_busy_share: Option<f64>,
    /// Counts of errors.
    pub errors: Errors,
    /// Party that limited the run, in the row where it matters most.
    pub verdict: Verdict,
}

/// The plan, as far as it matters for repeating a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// `broadcast-compare`.
    pub mode: &'static str,
    /// Payload bytes of the message.
    pub size_bytes: usize,
    /// Broadcasts measured of each variant.
    pub rounds: usize,
    /// Broadcasts of each variant before those.
    pub warmup_rounds: usize,
    /// Server processes.
    pub server_processes: usize,
    /// Processes of subscribers, all together.
    pub client_processes: usize,
}

/// One variant with so many shards and subscribers. Times are of one broadcast.
#[derive(Clone, Debug, Serialize)]
pub struct BroadcastRow {
    /// The variant.
    pub variant: Variant,
    /// Event loops of each server process.
    pub shards: usize,
    /// Server processes.
    pub processes: usize,
    /// Subscribers of all of them.
    pub subscribers: usize,
    /// From the call until the last subscriber has it.
    pub time_us: Option<Spread>,
    /// From the call until the first subscriber has it.
    pub first_us: Option<Spread>,
    /// Until the call returns to the program that broadcasts.
    pub call_us: Option<Spread>,
    /// CPU time of all server threads, that of the program's call included.
    pub server_cpu_us: Option<Spread>,
    /// Its median by subscriber.
    pub server_cpu_us_per_subscriber: Option<f64>,
    /// CPU time of the subscribers' processes.
    pub client_cpu_us: Option<Spread>,
    /// Times that the call had to wait because a shard's mailbox was full.
    pub mailbox_waits: u64,
    /// Resident memory of the servers at the end, all variants having run in them.
    pub server_rss_bytes: Option<u64>,
    /// Party that limited the run.
    pub verdict: Verdict,
}

impl BroadcastReport {
    pub(super) fn new(
        plan: &Broadcast,
        rows: Vec<BroadcastRow>,
        errors: Errors,
        machine_busy_share: Option<f64>,
    ) -> Self {
        let verdict = overall(&rows);
        let plan = PlanReport {
            mode: "broadcast-compare",
            size_bytes: plan.size,
            rounds: plan.rounds,
            warmup_rounds: plan.warmup_rounds,
            server_processes: plan.processes,
            client_processes: plan.processes * plan.clients,
        };
        Self { schema: SCHEMA, plan, rows, machine_busy_share, errors, verdict }
    }

    /// A line for each variant and number of shards.
    fn lines(&self, plot: Plot, figure: impl Fn(&BroadcastRow) -> Option<f64>) -> Plot {
        let mut lines: Vec<(usize, Variant)> =
            self.rows.iter().map(|row| (row.shards, row.variant)).collect();
        lines.sort_unstable();
        lines.dedup();
        with_lines(
            plot,
            lines.into_iter().map(|(shards, variant)| {
                let of = |row: &&BroadcastRow| (row.shards, row.variant) == (shards, variant);
                let rows = self.rows.iter().filter(of);
                let points = rows.filter_map(|row| Some((row.subscribers as f64, figure(row)?)));
                (format!("{variant}, {}", shard_words(shards)), points.collect())
            }),
        )
    }

    fn setup(&self) -> String {
        let plan = &self.plan;
        let (servers, clients) = (plan.server_processes, plan.client_processes);
        let plural = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "es" });
        format!(
            "{} of text, {} rounds of each variant in turn after {} of warm-up; {}, {}; from the \
             call until the last subscriber has it",
            show_bytes(plan.size_bytes as i64),
            plan.rounds,
            plan.warmup_rounds,
            plural(servers, "server process"),
            plural(clients, "client process"),
        )
    }

    /// Returns the factor by which the naive loop takes longer than this row in the same setting.
    fn gain(&self, row: &BroadcastRow) -> Option<f64> {
        let same = |other: &&BroadcastRow| {
            other.variant == Variant::Naive
                && (other.shards, other.subscribers) == (row.shards, row.subscribers)
        };
        Some(self.rows.iter().find(same)?.time_us?.median / row.time_us?.median)
    }
}

pub(super) fn shard_words(shards: usize) -> String {
    if shards == 1 { "1 shard".to_owned() } else { format!("{shards} shards") }
}

/// The verdict of the row that says most about how far the figures carry: one that does not count
/// before one that is the generator's, that before one that the machine disturbed; among equals the
/// one with most subscribers.
fn overall(rows: &[BroadcastRow]) -> Verdict {
    let worst = rows.iter().max_by_key(|row| (row.verdict.limit.gravity(), row.subscribers));
    let Some(row) = worst else {
        return Verdict {
            limit: Limit::Invalid,
            line: "not valid: nothing was measured".to_owned(),
        };
    };
    let alike = rows.iter().filter(|other| other.verdict.limit == row.verdict.limit).count();
    let line = format!(
        "{} (in {alike} of {} rows; this is {}, {} subscribers, {})",
        row.verdict.line,
        rows.len(),
        row.variant.name(),
        grouped(row.subscribers as u64),
        shard_words(row.shards),
    );
    Verdict { limit: row.verdict.limit, line }
}

impl Render for BroadcastReport {
    fn document(&self) -> Document {
        let most = self.rows.iter().map(|row| row.subscribers).max().unwrap_or(0);
        let mut remarks = Vec::new();
        if let Some(bytes) = self.rows.iter().filter_map(|row| row.server_rss_bytes).max() {
            remarks.push(("servers", format!("at most {} resident", show_bytes(bytes as i64))));
        }
        if let Some(busy) = self.machine_busy_share {
            remarks.push(("machine", format!("{:.0} % busy", busy * 100.0)));
        }
        let waits: u64 = self.rows.iter().map(|row| row.mailbox_waits).sum();
        if waits > 0 {
            remarks.push(("mailboxes", format!("full {} times; the call waited", grouped(waits))));
        }
        remarks.extend(self.errors.remarks());
        Document {
            kind: "broadcast",
            title: format!(
                "One message to up to {} subscribers, three variants",
                grouped(most as u64)
            ),
            conditions: vec![self.setup()],
            tables: vec![self.table()],
            remarks,
            notices: Vec::new(),
            verdict: Some(self.verdict.line.clone()),
        }
    }

    fn exit_code(&self) -> u8 {
        u8::from(self.verdict.limit == Limit::Invalid)
    }
}

impl BroadcastReport {
    fn table(&self) -> Table {
        let columns = columns([
            ("variant", Unit::Text, ""),
            ("shards", Unit::Count, ""),
            ("processes", Unit::Count, ""),
            ("subscribers", Unit::Count, "subscribers"),
            ("", Unit::Count, "shards"),
            ("", Unit::Text, "variant"),
            ("size_bytes", Unit::Bytes, ""),
            ("rounds", Unit::Count, ""),
            ("time_median_us", Unit::Us, "last has it"),
            ("", Unit::Text, "quartiles"),
            ("time_q1_us", Unit::Us, ""),
            ("time_q3_us", Unit::Us, ""),
            ("time_min_us", Unit::Us, ""),
            ("time_max_us", Unit::Us, ""),
            ("first_median_us", Unit::Us, "first"),
            ("call_median_us", Unit::Us, "call"),
            ("server_cpu_median_us", Unit::Us, "server CPU"),
            ("server_cpu_us_per_subscriber", Unit::Us, "CPU each"),
            ("", Unit::Times, "naive/this"),
            ("client_cpu_median_us", Unit::Us, ""),
            ("mailbox_waits", Unit::Count, ""),
            ("server_rss_bytes", Unit::Bytes, ""),
            ("limit", Unit::Text, ""),
        ]);
        let rows = self.rows.iter().map(|row| {
            let time = |figure: fn(Spread) -> f64| row.time_us.map(figure);
            let us = |us: f64| show_ns((us * 1e3).round() as u64);
            let quartiles = row.time_us.map(|time| format!("{} - {}", us(time.q1), us(time.q3)));
            row![
                row.variant.name(),
                row.shards,
                row.processes,
                row.subscribers,
                row.shards,
                row.variant.name(),
                self.plan.size_bytes,
                row.time_us.map_or(0, |time| time.count),
                row.time_us,
                quartiles,
                time(|time| time.q1),
                time(|time| time.q3),
                time(|time| time.min),
                time(|time| time.max),
                row.first_us,
                row.call_us,
                row.server_cpu_us,
                row.server_cpu_us_per_subscriber,
                self.gain(row),
                row.client_cpu_us,
                row.mailbox_waits,
                row.server_rss_bytes,
                row.verdict.limit.name(),
            ]
        });
        Table::new("Figures", columns).rows(rows).plots(self.plots())
    }

    fn plots(&self) -> [Plot; 3] {
        let milliseconds = |spread: Option<Spread>| Some(spread?.median / 1e3);
        let time = Plot::new(
            "Time until the last subscriber has the message",
            Axis::log("subscribers"),
            Axis::log("time in ms (median)"),
        )
        .captioned(
            "Both axes are logarithmic: a straight line of slope one is a constant cost each.",
        );
        let cpu = Plot::new(
            "Server CPU time by subscriber",
            Axis::new("subscribers"),
            Axis::new("CPU time in us by subscriber (median)"),
        )
        .captioned("All threads of the server, the program's own call included. Flat is good.");
        let call = Plot::new(
            "Time until the call returns to the program",
            Axis::log("subscribers"),
            Axis::log("time in ms (median)"),
        )
        .captioned("What a thread that broadcasts is kept busy with; delivery goes on behind it.");
        [
            self.lines(time, |row| milliseconds(row.time_us)),
            self.lines(cpu, |row| row.server_cpu_us_per_subscriber),
            self.lines(call, |row| milliseconds(row.call_us)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;
    use throng_load::page::well_formed::assert_well_formed;

    fn row(
        variant: Variant,
        shards: usize,
        subscribers: usize,
        ms: f64,
        limit: Limit,
    ) -> BroadcastRow {
        let spread = |us: f64| Spread::of([us * 0.9, us, us * 1.1]);
        BroadcastRow {
            variant,
            shards,
            processes: 1,
            subscribers,
            time_us: spread(ms * 1e3),
            first_us: spread(100.0),
            call_us: spread(20.0),
            server_cpu_us: spread(ms * 1e3),
            server_cpu_us_per_subscriber: Some(ms * 1e3 / subscribers as f64),
            client_cpu_us: None,
            mailbox_waits: 0,
            server_rss_bytes: Some(5 << 20),
            verdict: Verdict { limit, line: "server-limited".to_owned() },
        }
    }

    fn report() -> BroadcastReport {
        let mut rows = Vec::new();
        for shards in [1, 2] {
            for subscribers in [1_000, 15_000] {
                for (variant, factor) in
                    Variant::value_variants().iter().copied().zip([3.0, 1.5, 1.0])
                {
                    let ms = subscribers as f64 / 1e3 * factor / shards as f64;
                    rows.push(row(variant, shards, subscribers, ms, Limit::Server));
                }
            }
        }
        BroadcastReport::new(
            &crate::comparison::from_flags(&[]).unwrap(),
            rows,
            Errors::default(),
            Some(0.9),
        )
    }

    #[test]
    fn the_table_has_a_line_a_row_and_ends_with_the_verdict() {
        let text = report().to_text();
        for words in ["15,000", "naive", "45.0 ms", "42.8 ms - 47.2 ms", "3.00x", "5 MiB"] {
            assert!(text.contains(words), "{words:?} in\n{text}");
        }
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("verdict     server-limited (in 12 of 12 rows"), "{last}");
        assert!(text.lines().skip(1).take(14).all(|line| line.chars().count() <= 120), "{text}");
    }

    #[test]
    fn the_page_draws_every_series_and_is_well_formed() {
        let html = report().to_html();
        assert_well_formed(&html);
        for variant in Variant::value_variants() {
            for shards in ["1 shard", "2 shards"] {
                let name = format!("{}, {shards}", variant.name());
                assert_eq!(html.matches(&name).count(), 3, "{name} once in each plot");
            }
        }
        assert!(html.contains("subscribers") && html.contains("time in ms"));
    }

    #[test]
    fn csv_has_as_many_cells_in_every_line() {
        let csv = report().to_csv();
        let cells: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
        assert_eq!((cells.len(), cells.iter().all(|&n| n == cells[0])), (13, true), "{csv}");
        assert!(csv.contains("naive,1,1,15000,100,3,45000"), "{csv}");
    }

    #[test]
    fn all_forms_are_those_of_before() {
        crate::golden::assert_unchanged("broadcast", &report());
    }

    #[test]
    fn json_names_are_stable() {
        let json: serde_json::Value = serde_json::from_str(&report().to_json()).unwrap();
        for pointer in [
            "/plan/mode",
            "/plan/size_bytes",
            "/rows/0/variant",
            "/rows/0/time_us/median",
            "/rows/0/time_us/q3",
            "/rows/0/server_cpu_us_per_subscriber",
            "/rows/11/subscribers",
            "/verdict/line",
            "/machine_busy_share",
        ] {
            assert!(json.pointer(pointer).is_some_and(|value| !value.is_null()), "{pointer}");
        }
        assert_eq!(json["rows"][1]["variant"], "encoded");
    }

    #[test]
    fn the_gravest_verdict_is_announced() {
        let mut rows = report().rows;
        rows[2].verdict =
            Verdict { limit: Limit::Generator, line: "client-limited: so".to_owned() };
        let verdict = overall(&rows);
        assert_eq!(verdict.limit, Limit::Generator);
        assert!(
            verdict.line.contains("client-limited: so (in 1 of 12 rows; this is publish, 1,000"),
            "{}",
            verdict.line
        );
        assert_eq!(overall(&[]).limit, Limit::Invalid);
    }
}
