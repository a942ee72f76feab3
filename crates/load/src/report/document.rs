//! A run's report as tables.

use std::time::Duration;

use super::deflate::percent;
use super::model::{Cell, Column, Document, Render, Table, Unit};
use super::{
    BroadcastReport, ClosesReport, ConnectReport, ConnectionsReport, EchoReport, Errors,
    GeneratorReport, IdleReport, Measured, OpenLoopReport, PlanReport, Report, RunReport,
    ServerReport, SetupReport, StageReport,
};
use crate::negotiated::tls_remark;
use crate::page::{Axis, Plot};
use crate::record::Summary;
use crate::row;
use crate::session_failures::SessionFailures;
use crate::slo::{SloReport, exit_code};
use crate::units::{grouped, rounded, show_bytes, show_duration, show_ns};
use crate::verdict::Limit;

impl Render for Report {
    fn document(&self) -> Document {
        let (title, mut tables) = match &self.result {
            Measured::Echo(echo) => ("Messages that come back".to_owned(), self.echo(echo)),
            Measured::Idle(idle) => ("Idle connections".to_owned(), self.idle(idle)),
            Measured::Connect(connect) => ("Connections".to_owned(), self.connect(connect)),
            Measured::Broadcast(broadcast) => {
                ("One message to many".to_owned(), self.broadcast(broadcast))
            }
            Measured::Fanout(fanout) => (fanout.title(), fanout.tables()),
            Measured::Script(script) => {
                (format!("Clients that follow {}", script.script), script.tables(self.limit()))
            }
        };
        tables.retain(|table| !table.is_empty());
        // Whether it has plots over time.
        if !matches!(self.result, Measured::Fanout(_)) {
            let last = tables.pop().map(|table| table.plots(self.spread(self.plan.connections)));
            tables.extend(last);
        }
        Document {
            kind: self.plan.mode,
            title,
            conditions: vec![self.plan.url.clone(), self.plan.words()],
            tables,
            remarks: self.remarks(self.errors.remarks()),
            notices: Vec::new(),
            verdict: Some(self.verdict.line.clone()),
        }
    }

    fn exit_code(&self) -> u8 {
        self.exit_code_by_thresholds()
    }
}

impl<P, R, E> RunReport<P, R, E> {
    /// Returns all lines except the figures, with the lines about `errors`.
    pub(crate) fn remarks(&self, errors: Vec<Remark>) -> Vec<Remark> {
        let mut remarks = setup_remark(&self.setup);
        remarks.extend(tls_remark(&self.tls));
        remarks.extend(self.connections.and_then(ConnectionsReport::remark));
        remarks.push(server_remark(self.server.as_ref()));
        remarks.push(generator_remark(&self.generator, self.machine_busy_share));
        remarks.extend(self.run.remarks());
        remarks.extend(errors);
        remarks.extend(self.slo.iter().map(SloReport::remark));
        remarks
    }

    /// Returns the plot of its times over "one in N": equal steps for p90, p99, p99.9.
    pub(crate) fn spread(&self, connections: usize) -> Option<Plot> {
        let histogram = self.histogram.as_ref()?;
        let points = histogram.record().spread();
        let inner = points.iter().filter(|(share, _)| *share < 1.0);
        let points: Vec<(f64, f64)> =
            inner.map(|(share, us)| (1.0 / (1.0 - share), us / 1e3)).collect();
        let caption = "100 on the lower axis is the 99th percentile, 1,000 the 99.9th.";
        let mut title = histogram.of.to_owned();
        title[..1].make_ascii_uppercase();
        let plot =
            Plot::new(&title, Axis::log("one in so many took longer"), Axis::log("time in ms"));
        let name = format!("{} connections", grouped(connections as u64));
        Some(plot.captioned(caption).series(&name, &points))
    }

    /// Returns the exit code of a run: 0 if it is valid and kept its thresholds.
    pub(crate) fn exit_code_by_thresholds(&self) -> u8 {
        exit_code(self.verdict.limit != Limit::Invalid, &self.slo)
    }
}

impl PlanReport {
    /// Describes the plan in one line, without the URL.
    fn words(&self) -> String {
        let Self { headers, tokens, source_addresses, threads, .. } = self;
        let mut words = vec![self.connections_in_words()];
        words.extend(self.messages_in_words());
        words.extend(self.pace_in_words());
        words.extend(self.time_in_words());
        words.extend(clients_in_words(headers.as_deref(), *tokens, *source_addresses, *threads));
        words.join(", ")
    }

    fn connections_in_words(&self) -> String {
        let connections = grouped(self.connections as u64);
        match self.mode {
            "broadcast" => format!("{connections} subscribers"),
            "connect" if self.rate_per_s.is_some() => format!("at most {connections} at a time"),
            "connect" => format!("{connections} at a time"),
            _ if self.connections == 1 => "1 connection".to_owned(),
            _ => format!("{connections} connections"),
        }
    }

    /// Describes size, kind and compression of the messages.
    fn messages_in_words(&self) -> Vec<String> {
        let kind = match (self.payload, self.text) {
            ("json", _) => "JSON",
            (_, true) => "text",
            _ => "binary",
        };
        let mut words = Vec::new();
        if self.mode != "idle" && self.mode != "script" {
            words.push(format!("{} {kind}", show_bytes(self.size_bytes as i64)));
        }
        if self.deflate != "off" {
            words.push(format!("deflate {}", self.deflate));
        }
        words
    }

    /// Describes when and how many messages are sent or connections made.
    fn pace_in_words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(pipeline) = self.pipeline {
            words.push(format!("pipeline {pipeline} (closed loop)"));
        }
        if let (Some(rate), None) = (self.rate_per_s, &self.stages) {
            let of = match self.mode {
                "connect" => "connections/s",
                "fanout" => "messages/s in all",
                _ => "messages/s each",
            };
            words.push(format!("{} {of} (open loop)", rounded(rate)));
        }
        if let Some(ramp) = self.rate_ramp_s {
            words.push(format!("rising over {}", seconds(ramp)));
        }
        let is_connect = self.mode == "connect";
        if let Some(stages) = &self.stages {
            let of = if is_connect { "connections/s" } else { "messages/s in all" };
            words.push(format!("{} {of} (open loop)", StageReport::words(stages)));
        }
        if let Some(number) = self.number {
            let of = if is_connect { "connections" } else { "messages" };
            words.push(format!("{} {of}", grouped(number)));
        }
        if let Some(publishes) = self.publishes {
            words.push(format!("{} publishes", grouped(publishes as u64)));
        }
        words
    }

    fn time_in_words(&self) -> Option<String> {
        let duration = seconds(self.duration_s?);
        let held = if self.mode == "idle" { "held " } else { "" };
        let warmup = self.warmup_s.filter(|&s| s > 0.0);
        let warmup =
            warmup.map_or_else(String::new, |s| format!(" after {} of warm-up", seconds(s)));
        Some(format!("{held}{duration}{warmup}"))
    }
}

/// Describes the clients of a plan: their headers and tokens, their source addresses, and the
/// threads that they share.
pub fn clients_in_words(
    headers: Option<&[String]>,
    tokens: Option<usize>,
    source_addresses: usize,
    threads: usize,
) -> Vec<String> {
    let mut words = Vec::new();
    if let Some(names) = headers {
        words.push(format!("with {}", names.join(", ")));
    }
    if let Some(tokens) = tokens {
        words.push(format!("{} tokens", grouped(tokens as u64)));
    }
    if source_addresses > 1 {
        words.push(format!("{source_addresses} source addresses"));
    }
    if threads > 1 {
        words.push(format!("{threads} threads"));
    }
    words
}

fn seconds(s: f64) -> String {
    show_duration(Duration::from_secs_f64(s))
}

/// A column of a list.
fn figure(key: &'static str, unit: Unit, label: &str, value: impl Into<Cell>) -> (Column, Cell) {
    (Column::new(key, unit, label), value.into())
}

/// Returns the table of the closes by the server.
fn closes(closes: &ClosesReport) -> Table {
    let columns =
        vec![Column::new("", Unit::Text, "closed by the server"), Column::new("", Unit::Count, "")];
    let by_code = closes.by_code.iter();
    let mut rows: Vec<_> =
        by_code.map(|(code, &count)| row![format!("with {code}"), count]).collect();
    rows.push(row!["without a Close frame", closes.without_frame]);
    rows.push(row!["left open", closes.left_open]);
    let took = format!("from the first to the last close: {}", seconds(closes.span_s));
    Table::new("", columns).rows(rows).notes([took])
}

/// The quantiles of several times, a row each; unmeasured ones are left out.
pub fn times(rows: &[(&str, Option<Summary>)]) -> Table {
    let quantiles = ["min", "p50", "p90", "p99", "p99.9", "max"];
    let mut columns = vec![Column::new("", Unit::Text, "time")];
    columns.extend(quantiles.map(|label| Column::new("", Unit::Us, label)));
    let known = rows.iter().filter_map(|(label, summary)| Some((label, (*summary)?)));
    Table::new("", columns).rows(known.map(|(label, s)| {
        row![*label, s.min_us, s.p50_us, s.p90_us, s.p99_us, s.p999_us, s.max_us]
    }))
}

/// The quantiles of a latency in CSV.
pub fn quantiles(latency: Option<Summary>) -> [(Column, Cell); 4] {
    let of = |pick: fn(&Summary) -> f64| latency.as_ref().map(pick);
    [
        figure("p50_us", Unit::Us, "", of(|latency| latency.p50_us)),
        figure("p99_us", Unit::Us, "", of(|latency| latency.p99_us)),
        figure("p999_us", Unit::Us, "", of(|latency| latency.p999_us)),
        figure("max_us", Unit::Us, "", of(|latency| latency.max_us)),
    ]
}

impl OpenLoopReport {
    /// Returns a sentence about the lateness of the schedule.
    pub fn note(&self) -> String {
        let rate = self.planned_per_s.map(|rate| format!(" ({} a second)", rounded(rate)));
        format!(
            "latency counts from the planned time; {} planned{}, {} unanswered",
            grouped(self.planned),
            rate.unwrap_or_default(),
            grouped(self.unanswered)
        )
    }
}

impl Report {
    fn limit(&self) -> (Column, Cell) {
        figure("limit", Unit::Text, "", self.verdict.limit.name())
    }

    fn echo(&self, echo: &EchoReport) -> Vec<Table> {
        let plan = &self.plan;
        let deflate = echo.deflate.as_ref();
        let mut figures = vec![
            figure("connections", Unit::Count, "", plan.connections),
            figure("size_bytes", Unit::Bytes, "", plan.size_bytes),
            figure("payload", Unit::Text, "", plan.payload),
            figure("deflate", Unit::Text, "", plan.deflate.clone()),
            figure("messages", Unit::Count, "messages", echo.messages),
            figure("", Unit::Seconds, "measured", echo.measured_s),
            figure("messages_per_s", Unit::Number, "messages a second", echo.messages_per_s),
            figure("", Unit::Bytes, "payload a second, each way", echo.payload_bytes_per_s),
            figure(
                "messages_per_server_cpu_s",
                Unit::Number,
                "messages per server CPU-second",
                echo.messages_per_server_cpu_s,
            ),
            figure(
                "server_cpu_us_per_message",
                Unit::Us,
                "server CPU by message",
                echo.server_cpu_us_per_message,
            ),
            figure(
                "",
                Unit::Count,
                "connections compressed",
                deflate.map(|deflate| deflate.connections_agreed),
            ),
            figure(
                "ratio_sent",
                Unit::Share,
                "sent, of their size",
                deflate.and_then(|deflate| deflate.ratio_sent),
            ),
            figure(
                "ratio_received",
                Unit::Share,
                "received, of their size",
                deflate.and_then(|deflate| deflate.ratio_received),
            ),
        ];
        figures.extend(quantiles(echo.latency));
        figures.push(self.limit());
        let declined = deflate.is_some_and(|deflate| deflate.connections_agreed == 0);
        let declined = declined.then(|| {
            "the server declined permessage-deflate: these are figures of plain messages".to_owned()
        });
        let lateness = echo.open_loop.and_then(|open| open.lateness);
        vec![
            Table::list(figures).notes(declined),
            times(&[("latency", echo.latency), ("lateness", lateness)])
                .notes(echo.open_loop.as_ref().map(OpenLoopReport::note)),
        ]
    }

    fn idle(&self, idle: &IdleReport) -> Vec<Table> {
        let cpu = idle.server_cores_while_idle.map(|cores| {
            Cell::shown(
                cores,
                format!(
                    "{:.2} % of a core while {} connections did nothing for {}",
                    cores * 100.0,
                    grouped(idle.connections),
                    seconds(idle.held_s)
                ),
            )
        });
        let each = Unit::Number;
        let list = Table::list(vec![
            figure("connections", Unit::Count, "", idle.connections),
            figure("answered", Unit::Count, "answered an echo", idle.answered),
            figure("held_s", Unit::Seconds, "", idle.held_s),
            figure("rss_bytes_per_connection", each, "", idle.rss_bytes_per_connection),
            figure("private_bytes_per_connection", each, "", idle.private_bytes_per_connection),
            figure("anonymous_bytes_per_connection", each, "", idle.anonymous_bytes_per_connection),
            figure("server_cores_while_idle", Unit::Share, "server CPU", cpu),
            figure("server_cpu_us_per_echo", Unit::Us, "", idle.server_cpu_us_per_echo),
            self.limit(),
        ]);
        let (Some(before), Some(after)) = (idle.memory_before, idle.memory_after) else {
            let unknown = "memory is not known: the server's process cannot be read";
            let mut tables = vec![list.notes([unknown.to_owned()])];
            tables.extend(idle.closes.as_ref().map(closes));
            return tables;
        };
        let columns = vec![
            Column::new("", Unit::Text, "memory"),
            Column::new("", Unit::Bytes, "before"),
            Column::new("", Unit::Bytes, "after"),
            Column::new("", Unit::Number, "bytes/connection"),
        ];
        let table = Table::new("", columns).rows([
            row!["resident", before.rss_bytes, after.rss_bytes, idle.rss_bytes_per_connection],
            row![
                "private",
                before.private_bytes,
                after.private_bytes,
                idle.private_bytes_per_connection
            ],
            row![
                "anonymous",
                before.anonymous_bytes,
                after.anonymous_bytes,
                idle.anonymous_bytes_per_connection
            ],
        ]);
        let mut tables = vec![table, list];
        tables.extend(idle.closes.as_ref().map(closes));
        tables
    }

    fn connect(&self, connect: &ConnectReport) -> Vec<Table> {
        let mut figures = vec![
            figure("concurrency", Unit::Count, "", self.plan.connections),
            figure("connections", Unit::Count, "connections", connect.connections),
            figure("", Unit::Seconds, "measured", connect.measured_s),
            figure(
                "connections_per_s",
                Unit::Number,
                "connections a second (connect, upgrade, echo, reset)",
                connect.connections_per_s,
            ),
            figure(
                "connections_per_server_cpu_s",
                Unit::Number,
                "connections per server CPU-second",
                connect.connections_per_server_cpu_s,
            ),
        ];
        figures.extend(quantiles(connect.total));
        figures.push(self.limit());
        let open = connect.open_loop.as_ref();
        vec![
            Table::list(figures),
            times(&[
                ("TCP", connect.tcp),
                ("TLS", connect.tls),
                ("upgrade", connect.upgrade),
                ("echo", connect.echo),
                ("together", connect.total),
                ("lateness", open.and_then(|open| open.lateness)),
            ])
            .notes(open.map(OpenLoopReport::note)),
        ]
    }

    fn broadcast(&self, broadcast: &BroadcastReport) -> Vec<Table> {
        let last = broadcast.last.as_ref();
        let figures = vec![
            figure("subscribers", Unit::Count, "subscribers", broadcast.subscribers),
            figure("size_bytes", Unit::Bytes, "", self.plan.size_bytes),
            figure("publishes", Unit::Count, "publishes delivered to each", broadcast.publishes),
            figure("last_p50_us", Unit::Us, "", last.map(|last| last.p50_us)),
            figure("last_max_us", Unit::Us, "", last.map(|last| last.max_us)),
            figure(
                "server_cpu_us_per_publish",
                Unit::Us,
                "server CPU by publish",
                broadcast.server_cpu_us_per_publish,
            ),
            figure(
                "server_cpu_us_per_delivery",
                Unit::Us,
                "server CPU by delivery",
                broadcast.server_cpu_us_per_delivery,
            ),
            self.limit(),
        ];
        vec![
            Table::list(figures),
            times(&[
                ("first has it", broadcast.first),
                ("each has it", broadcast.delivery),
                ("last has it", broadcast.last),
            ]),
        ]
    }
}

/// A line of a report, with its label.
pub type Remark = (&'static str, String);

/// Returns the remarks about the set-up of the connections.
fn setup_remark(setup: &SetupReport) -> Vec<Remark> {
    if setup.connections == 0 {
        return Vec::new();
    }
    let p50 = |summary: Summary| show_ns((summary.p50_us * 1e3) as u64);
    let steps = [("TCP", setup.tcp), ("TLS", setup.tls), ("upgrade", setup.upgrade)];
    let steps = steps.map(|(name, time)| Some(format!("{name} {}", p50(time?))));
    let steps: Vec<String> = steps.into_iter().flatten().collect();
    let steps = match steps.is_empty() {
        true => String::new(),
        false => format!(" (p50: {})", steps.join(", ")),
    };
    let took = show_ns((setup.took_s * 1e9) as u64);
    let agreed = setup.subprotocol_agreed.map(|agreed| {
        let not = if agreed == 0 { "; the server declined the subprotocols" } else { "" };
        format!(", a subprotocol on {} of them{not}", grouped(agreed))
    });
    let agreed = agreed.unwrap_or_default();
    vec![("setup", format!("{} connections in {took}{steps}{agreed}", grouped(setup.connections)))]
}

impl ConnectionsReport {
    /// Returns the remark about connections that the server ended, if there were any.
    fn remark(self) -> Option<Remark> {
        let Self { ended_by_server, requests_resent, .. } = self;
        let text = format!(
            "{} ended by the server between requests and made again; {} requests sent again",
            grouped(ended_by_server),
            grouped(requests_resent)
        );
        (ended_by_server > 0).then_some(("connections", text))
    }
}

/// The watched server.
fn server_remark(server: Option<&ServerReport>) -> Remark {
    let Some(server) = server else {
        let text = "not watched: no process on this machine was found for its port";
        return ("server", text.to_owned());
    };
    let pids: Vec<String> = server.pids.iter().map(u32::to_string).collect();
    let mut text = format!("{} (pid {})", server.name.as_deref().unwrap_or("?"), pids.join(", "));
    if let Some(cpu) = server.cpu {
        let s = if cpu.threads == 1 { "" } else { "s" };
        text += &format!(", {} CPU, {} thread{s}", percent(cpu.cores), cpu.threads);
    }
    if let Some(memory) = server.memory {
        text += &format!(", {} resident", show_bytes(memory.rss_bytes as i64));
    }
    if let Some(descriptors) = server.descriptors {
        text += &format!(", {} descriptors", grouped(descriptors as u64));
    }
    if server.same_process {
        text += ", in this process";
    }
    ("server", text)
}

/// Describes this generator and the machine.
fn generator_remark(generator: &GeneratorReport, machine_busy_share: Option<f64>) -> Remark {
    let cpu = generator.cpu;
    let mut text = format!("{} of its core", percent(cpu.busiest_thread_cores));
    if cpu.busiest_thread_waiting >= 0.01 {
        text += &format!(", waited {:.0} % for one", cpu.busiest_thread_waiting * 100.0);
    }
    if let Some(memory) = generator.memory {
        text += &format!(", {} resident", show_bytes(memory.rss_bytes as i64));
    }
    if let Some(busy) = machine_busy_share {
        text += &format!("; the machine was {:.0} % busy", busy * 100.0);
    }
    ("generator", text)
}

/// Describes the errors: the counts above 0, those caused by TLS, and the first of them.
pub fn error_remarks(
    kinds: &[(u64, &str)],
    tls: &SessionFailures,
    first: Option<&str>,
) -> Vec<Remark> {
    let seen: Vec<String> = kinds
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{} {what}", grouped(*count)))
        .collect();
    if seen.is_empty() {
        return Vec::new();
    }
    let more = [tls.words(), first.map(|first| format!("first: {first}"))];
    let more = more.into_iter().flatten().map(|more| ("", more));
    std::iter::once(("errors", seen.join(", "))).chain(more).collect()
}

impl Errors {
    /// Returns the errors as lines.
    pub fn remarks(&self) -> Vec<Remark> {
        let kinds = [
            (self.wrong_answers, "wrong answers"),
            (self.missing_answers, "missing answers"),
            (self.connections_lost, "connections lost"),
            (self.connects_failed, "connects failed"),
            (self.sends_refused, "sends refused (backlog full)"),
            (self.publishes_incomplete, "publishes incomplete"),
        ];
        error_remarks(&kinds, &self.tls_failures, self.first.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::common::Common;
    use crate::plan::{Mode, Pace, Plan};
    use crate::record::Record;
    use crate::report::{
        Errors, GeneratorReport, OpenLoopReport, SCHEMA, ServerReport, SetupReport,
    };
    use crate::sampler::{CpuUsage, Memory};
    use crate::target::Target;
    use crate::verdict::{Facts, Verdict};

    fn summary() -> Option<Summary> {
        let mut record = Record::new();
        (1..=100).for_each(|i| record.add(i * 10_000));
        record.summary()
    }

    fn report() -> Report {
        let target = Target::parse("ws://127.0.0.1:9001").unwrap();
        let mode = Mode::Echo {
            pace: Pace::Open { rate_per_s: 10.0 },
            duration: Duration::from_secs(10),
            warmup: Duration::from_millis(500),
        };
        let plan = Plan::new(Common { connections: 10_000, ..target.into() }, mode);
        let cpu = CpuUsage {
            wall_s: 10.0,
            cpu_s: 9.9,
            cores: 0.99,
            busiest_thread_cores: 0.99,
            busiest_thread_waiting: 0.0,
            threads: 1,
        };
        let facts = Facts { completed: 1, server: Some(cpu), ..Facts::default() };
        Report {
            schema: SCHEMA,
            run: super::super::Origin::default(),
            plan: PlanReport::of(&plan, 1),
            setup: SetupReport {
                connections: 10_000,
                took_s: 0.4,
                tcp: summary(),
                ..SetupReport::default()
            },
            tls: Vec::new(),
            connections: None,
            result: Measured::Echo(EchoReport {
                measured_s: 10.0,
                messages: 1_000_000,
                messages_per_s: 100_000.0,
                payload_bytes_per_s: 1e7,
                messages_per_server_cpu_s: Some(101_010.1),
                server_cpu_us_per_message: Some(9.9),
                deflate: None,
                latency: summary(),
                open_loop: Some(OpenLoopReport {
                    planned: 1_000_000,
                    planned_per_s: Some(100_000.0),
                    unanswered: 0,
                    lateness: summary(),
                }),
            }),
            server: Some(ServerReport {
                pids: vec![42],
                name: Some("throng".to_owned()),
                cpus_allowed: Some(1),
                cpu: Some(cpu),
                memory: Some(Memory { rss_bytes: 4 << 20, ..Memory::default() }),
                descriptors: Some(10_012),
                same_process: false,
            }),
            generator: GeneratorReport::default(),
            machine_busy_share: Some(0.7),
            errors: Errors::default(),
            slo: Vec::new(),
            histogram: None,
            verdict: Verdict::of(&facts),
        }
    }

    #[test]
    fn the_table_has_all_results_in_100_columns() {
        let text = report().to_string();
        for words in [
            "ws://127.0.0.1:9001/echo",
            "10,000 connections, 100 B binary, 10.0 messages/s each (open loop), 10s after 500ms \
             of warm-up",
            "messages a second                 100,000",
            "messages                        1,000,000",
            "messages per server CPU-second    101,010",
            "p99.9",
            "500 us",
            "latency counts from the planned time",
            "throng (pid 42), 99.0 % CPU, 1 thread, 4 MiB resident, 10,012 descriptors",
            "verdict     server-limited",
        ] {
            assert!(text.contains(words), "{words:?} in\n{text}");
        }
        for line in text.lines().filter(|line| !line.starts_with("verdict")) {
            assert!(line.chars().count() <= 110, "{line}");
        }
        assert!(!text.contains("errors"));
    }

    #[test]
    fn errors_are_listed_with_the_first_in_words() {
        let mut report = report();
        report.errors.wrong_answers = 3;
        report.errors.note(|| "answer 7 was 99 bytes long".to_owned());
        report.errors.note(|| "later".to_owned());
        let text = report.to_string();
        assert!(text.contains("3 wrong answers") && text.contains("first: answer 7"), "{text}");
    }

    #[test]
    fn json_names_are_stable_and_unknown_is_null() {
        let mut report = report();
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        for pointer in [
            "/schema",
            "/plan/mode",
            "/plan/connections",
            "/plan/size_bytes",
            "/plan/rate_per_s",
            "/plan/duration_s",
            "/setup/took_s",
            "/result/messages_per_s",
            "/result/messages_per_server_cpu_s",
            "/result/latency/p50_us",
            "/result/latency/p999_us",
            "/result/open_loop/unanswered",
            "/server/pids/0",
            "/server/cpu/cpu_s",
            "/server/cpu/busiest_thread_cores",
            "/server/memory/rss_bytes",
            "/generator/cpu/cores",
            "/machine_busy_share",
            "/errors/wrong_answers",
            "/verdict/limit",
            "/verdict/line",
        ] {
            assert!(json.pointer(pointer).is_some_and(|v| !v.is_null()), "{pointer}");
        }
        assert_eq!(json["verdict"]["limit"], "server");
        assert!(json["plan"]["pipeline"].is_null());
        report.server = None;
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert!(json["server"].is_null());
        assert!(report.to_string().contains("not watched"));
    }
}
