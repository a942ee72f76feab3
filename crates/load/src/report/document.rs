//! A run's report as tables.

use super::figures::{
    ALL_QUANTILES, Figure, Results, figure, quantile_cells, quantile_columns, quantiles,
};
use super::model::{Cell, Column, Document, Render, Table, Unit};
use super::{
    BroadcastReport, ClosesReport, ConnectReport, ConnectionsReport, DeflateReport, EchoReport,
    FanoutReport, GeneratorReport, IdleReport, LoadReport, Measured, ModeName, OpenLoopReport,
    PlanReport, ProtocolReport, ScriptReport, ServerReport, SetupReport, Slice, StageReport,
    percent, seconds,
};
use crate::negotiated::tls_remark;
use crate::page::{Axis, Plot};
use crate::record::Summary;
use crate::row;
use crate::slo::{SloReport, exit_code};
use crate::units::{grouped, rounded, show_bytes, show_ns};
use crate::verdict::Limit;

impl<R: Results> Render for LoadReport<R> {
    fn document(&self) -> Document {
        let mut last = vec![figure("limit", Unit::Text, "", self.verdict.limit.name())];
        let mut errors = self.errors.remarks();
        let mut server = self.plan.url.clone();
        if let Some(request) = self.plan.request() {
            server = format!("{} {server}", request.method);
            last.insert(0, figure("errors", Unit::Count, "", self.errors.total()));
            if self.errors.unexpected_status > 0 {
                let expected = &request.expect_status;
                let what = format!("{expected} was expected; --expect-status says what counts");
                errors.push(("", what));
            }
        }
        let mut tables = self.result.tables(&self.plan, last);
        tables.retain(|table| !table.is_empty());
        if !self.result.has_plots() {
            let last = tables.pop().map(|table| table.plots(self.spread()));
            tables.extend(last);
        }
        Document {
            kind: self.plan.mode.name(),
            title: self.result.title(),
            conditions: vec![server, self.plan.words()],
            tables,
            remarks: self.remarks(errors),
            notices: Vec::new(),
            verdict: Some(self.verdict.line.clone()),
        }
    }

    /// Returns 0 if the run is valid and kept its thresholds.
    fn exit_code(&self) -> u8 {
        exit_code(self.verdict.limit != Limit::Invalid, &self.slo)
    }
}

impl<R> LoadReport<R> {
    /// Returns all lines except the figures, with the lines about `errors`.
    fn remarks(&self, errors: Vec<Remark>) -> Vec<Remark> {
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

    /// Returns the plot of the report's times over "one in N", with equal steps for p90, p99 and
    /// p99.9.
    fn spread(&self) -> Option<Plot> {
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
        let name = format!("{} connections", grouped(self.plan.connections as u64));
        Some(plot.captioned(caption).series(&name, &points))
    }
}

impl PlanReport {
    /// Describes the plan in one line, without the URL.
    fn words(&self) -> String {
        let mut words = vec![self.connections_in_words()];
        words.extend(self.messages_in_words());
        words.extend(self.pace_in_words());
        words.extend(self.time_in_words());
        words.extend(self.clients_in_words());
        words.join(", ")
    }

    fn connections_in_words(&self) -> String {
        let connections = grouped(self.connections as u64);
        match self.mode {
            ModeName::Broadcast => format!("{connections} subscribers"),
            ModeName::Connect if self.rate_per_s.is_some() => {
                format!("at most {connections} at a time")
            }
            ModeName::Connect => format!("{connections} at a time"),
            _ if self.connections == 1 => "1 connection".to_owned(),
            _ => format!("{connections} connections"),
        }
    }

    /// Describes the size, kind and compression of the messages, or the body of the requests.
    fn messages_in_words(&self) -> Vec<String> {
        let mut words = Vec::new();
        match &self.protocol {
            ProtocolReport::Messages(messages) => {
                let kind = match (messages.payload, messages.text) {
                    ("json", _) => "JSON",
                    (_, true) => "text",
                    _ => "binary",
                };
                if !matches!(self.mode, ModeName::Idle | ModeName::Script) {
                    words.push(format!("{} {kind}", show_bytes(messages.size_bytes as i64)));
                }
                if messages.deflate != "off" {
                    words.push(format!("deflate {}", messages.deflate));
                }
            }
            ProtocolReport::Requests(request) if request.body_bytes > 0 => {
                let chunked = if request.chunked { " in chunks" } else { "" };
                let size = show_bytes(request.body_bytes as i64);
                words.push(format!("{size} of body{chunked}"));
            }
            ProtocolReport::Requests(_) => {}
        }
        words
    }

    /// Describes when and how many messages are sent, or connections made.
    fn pace_in_words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let is_open = self.rate_per_s.is_some();
        let loops = if is_open { "" } else { " (closed loop)" };
        let is_single = self.request().is_some_and(|request| !request.keep_alive);
        match self.pipeline {
            _ if is_single => words.push(format!("one request each (no keep-alive){loops}")),
            Some(1) if is_open => {}
            Some(pipeline) => words.push(format!("pipeline {pipeline}{loops}")),
            None => {}
        }
        let (of, of_each) = match self.mode {
            ModeName::Connect => ("connections", "connections/s"),
            ModeName::Http => ("requests", "requests/s in all"),
            ModeName::Fanout => ("messages", "messages/s in all"),
            _ => ("messages", "messages/s each"),
        };
        if let (Some(rate), None) = (self.rate_per_s, &self.stages) {
            words.push(format!("{} {of_each} (open loop)", rounded(rate)));
        }
        if let Some(ramp) = self.rate_ramp_s {
            words.push(format!("rising over {}", seconds(ramp)));
        }
        if let Some(stages) = &self.stages {
            let of_all = of_each.replace("each", "in all");
            words.push(format!("{} {of_all} (open loop)", StageReport::words(stages)));
        }
        words.extend(self.number.map(|number| format!("{} {of}", grouped(number))));
        if let ProtocolReport::Messages(messages) = &self.protocol
            && let Some(publishes) = messages.publishes
        {
            words.push(format!("{} publishes", grouped(publishes as u64)));
        }
        words
    }

    fn time_in_words(&self) -> Option<String> {
        let duration = seconds(self.duration_s?);
        let held = if self.mode == ModeName::Idle { "held " } else { "" };
        let warmup = self.warmup_s.filter(|&s| s > 0.0);
        let warmup =
            warmup.map_or_else(String::new, |s| format!(" after {} of warm-up", seconds(s)));
        Some(format!("{held}{duration}{warmup}"))
    }

    /// Describes the clients: their headers and tokens, their source addresses, and the threads
    /// that they share.
    fn clients_in_words(&self) -> Vec<String> {
        let several = |count: usize, of| (count > 1).then(|| format!("{count} {of}"));
        let words = [
            self.headers.as_ref().map(|names| format!("with {}", names.join(", "))),
            self.tokens.map(|tokens| format!("{} tokens", grouped(tokens as u64))),
            several(self.source_addresses, "source addresses"),
            several(self.threads, "threads"),
        ];
        words.into_iter().flatten().collect()
    }

    /// Returns the plan's columns.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let count = |key, count| figure(key, Unit::Count, "", count);
        match &self.protocol {
            ProtocolReport::Messages(messages) => vec![
                count("connections", self.connections),
                figure("size_bytes", Unit::Bytes, "", messages.size_bytes),
                figure("payload", Unit::Text, "", messages.payload),
                figure("deflate", Unit::Text, "", messages.deflate.clone()),
            ],
            ProtocolReport::Requests(request) => vec![
                figure("url", Unit::Text, "", self.url.clone()),
                count("connections", self.connections),
                figure("pipeline", Unit::Count, "", self.pipeline),
                figure("keep_alive", Unit::Text, "", request.keep_alive.to_string()),
                figure("rate_per_s", Unit::Number, "", self.rate_per_s),
            ],
        }
    }
}

/// Returns two tables: the list of the figures, and the table of those that are times.
pub(crate) fn list_and_times(figures: Vec<Figure>) -> [Table; 2] {
    let is_time = |(_, cell): &Figure| matches!(cell, Cell::Times(_));
    let (times, list): (Vec<_>, Vec<_>) = figures.into_iter().partition(is_time);
    let rows = times.into_iter().filter_map(|(column, cell)| match cell {
        Cell::Times(times) => Some((column.label().to_owned(), times)),
        _ => None,
    });
    [Table::list(list), times_table(rows)]
}

/// Returns the quantiles of several times, with a row for each.
fn times_table(rows: impl Iterator<Item = (String, Summary)>) -> Table {
    let quantiles = ["min", "p50", "p90", "p99", "p99.9", "max"];
    let mut columns = vec![Column::new("", Unit::Text, "time")];
    columns.extend(quantiles.map(|label| Column::new("", Unit::Us, label)));
    Table::new("", columns).rows(
        rows.map(|(label, s)| {
            row![label, s.min_us, s.p50_us, s.p90_us, s.p99_us, s.p999_us, s.max_us]
        }),
    )
}

impl OpenLoopReport {
    /// Returns a sentence about the lateness of the schedule.
    pub(crate) fn note(&self) -> String {
        let rate = self.planned_per_s.map(|rate| format!(" ({} a second)", rounded(rate)));
        format!(
            "latency counts from the planned time; {} planned{}, {} unanswered",
            grouped(self.planned),
            rate.unwrap_or_default(),
            grouped(self.unanswered)
        )
    }
}

impl Results for Measured {
    fn title(&self) -> String {
        match self {
            Self::Echo(_) => "Messages that come back".to_owned(),
            Self::Idle(_) => "Idle connections".to_owned(),
            Self::Connect(_) => "Connections".to_owned(),
            Self::Broadcast(_) => "One message to many".to_owned(),
            Self::Fanout(fanout) => fanout.title(),
            Self::Script(script) => format!("Clients that follow {}", script.script),
        }
    }

    fn tables(&self, plan: &PlanReport, last: Vec<Figure>) -> Vec<Table> {
        match self {
            Self::Echo(echo) => echo.tables(plan, last),
            Self::Idle(idle) => idle.tables(last),
            Self::Connect(connect) => connect.tables(plan, last),
            Self::Broadcast(broadcast) => broadcast.tables(plan, last),
            Self::Fanout(fanout) => fanout.tables(),
            Self::Script(script) => script.tables(last),
        }
    }

    fn has_plots(&self) -> bool {
        matches!(self, Self::Fanout(_))
    }
}

impl EchoReport {
    fn tables(&self, plan: &PlanReport, last: Vec<Figure>) -> Vec<Table> {
        let deflate = self.deflate.as_ref();
        let mut figures = plan.figures();
        figures.extend(Self::figures(Some(self)));
        figures.extend(DeflateReport::figures(deflate));
        figures.extend(OpenLoopReport::figures(self.open_loop.as_ref()));
        figures.extend(quantiles(self.latency.as_ref()).chain(last));
        let declined = deflate.is_some_and(|deflate| deflate.connections_agreed == 0);
        let declined = declined.then(|| {
            "the server declined permessage-deflate: these are figures of plain messages".to_owned()
        });
        let [list, times] = list_and_times(figures);
        let note = self.open_loop.as_ref().map(OpenLoopReport::note);
        vec![list.notes(declined), times.notes(note)]
    }
}

impl IdleReport {
    fn tables(&self, last: Vec<Figure>) -> Vec<Table> {
        let list = Table::list(Self::figures(Some(self)).into_iter().chain(last).collect());
        let mut tables = match (self.memory_before, self.memory_after) {
            (Some(before), Some(after)) => {
                let columns = [
                    (Unit::Text, "memory"),
                    (Unit::Bytes, "before"),
                    (Unit::Bytes, "after"),
                    (Unit::Number, "bytes/connection"),
                ];
                let columns = columns.map(|(unit, label)| Column::new("", unit, label));
                let rows = [
                    row!["resident", before.rss_bytes, after.rss_bytes],
                    row!["private", before.private_bytes, after.private_bytes],
                    row!["anonymous", before.anonymous_bytes, after.anonymous_bytes],
                ];
                let each = [
                    self.rss_bytes_per_connection,
                    self.private_bytes_per_connection,
                    self.anonymous_bytes_per_connection,
                ];
                let rows = rows.into_iter().zip(each);
                let rows = rows.map(|(row, each)| [row, row![each]].concat());
                vec![Table::new("", columns.to_vec()).rows(rows), list]
            }
            _ => {
                let unknown = "memory is not known: the server's process cannot be read";
                vec![list.notes([unknown.to_owned()])]
            }
        };
        tables.extend(self.closes.as_ref().map(ClosesReport::table));
        tables
    }
}

impl ClosesReport {
    fn table(&self) -> Table {
        let columns = vec![
            Column::new("", Unit::Text, "closed by the server"),
            Column::new("", Unit::Count, ""),
        ];
        let by_code = self.by_code.iter();
        let mut rows: Vec<_> =
            by_code.map(|(code, &count)| row![format!("with {code}"), count]).collect();
        rows.push(row!["without a Close frame", self.without_frame]);
        rows.push(row!["left open", self.left_open]);
        let took = format!("from the first to the last close: {}", seconds(self.span_s));
        Table::new("", columns).rows(rows).notes([took])
    }
}

impl ConnectReport {
    fn tables(&self, plan: &PlanReport, last: Vec<Figure>) -> Vec<Table> {
        let mut figures = vec![figure("concurrency", Unit::Count, "", plan.connections)];
        figures.extend(Self::figures(Some(self)));
        figures.extend(OpenLoopReport::figures(self.open_loop.as_ref()));
        figures.extend(quantiles(self.total.as_ref()).chain(last));
        let [list, times] = list_and_times(figures);
        vec![list, times.notes(self.open_loop.as_ref().map(OpenLoopReport::note))]
    }
}

impl BroadcastReport {
    fn tables(&self, plan: &PlanReport, last: Vec<Figure>) -> Vec<Table> {
        let us = |key, pick: fn(&Summary) -> f64| {
            figure(key, Unit::Us, "", self.last.as_ref().map(pick))
        };
        let mut figures = Self::figures(Some(self));
        // Columns must keep their places.
        let size = plan.figures().into_iter().filter(|(column, _)| column.key() == "size_bytes");
        figures.splice(1..1, size);
        figures.splice(
            3..3,
            [us("last_p50_us", |last| last.p50_us), us("last_max_us", |last| last.max_us)],
        );
        figures.extend(last);
        list_and_times(figures).into()
    }
}

impl FanoutReport {
    fn title(&self) -> String {
        format!(
            "{} messages a second to {} channels of {} subscribers",
            rounded(self.published_per_s),
            grouped(self.channels),
            grouped(self.subscribers_per_channel)
        )
    }

    fn tables(&self) -> Vec<Table> {
        let [list, times] = list_and_times(Self::figures(Some(self)));
        let note = "latency counts from the planned time of the publish to each subscriber";
        vec![list, times.notes([note.to_owned()]), self.slice_table()]
    }

    /// Returns the slices: rows in CSV, plots on a page.
    fn slice_table(&self) -> Table {
        let hidden = |key, unit| Column::new(key, unit, "");
        let mut columns =
            vec![hidden("at_s", Unit::Seconds), hidden("received_per_s", Unit::Number)];
        columns.extend(quantile_columns(&ALL_QUANTILES, false));
        columns.push(hidden("server_cores", Unit::Number));
        columns.push(hidden("server_rss_bytes", Unit::Bytes));
        columns.push(hidden("generator_cores", Unit::Number));
        let rows = self.slices.iter().map(|slice| {
            let mut cells = row![slice.at_s, slice.received_per_s];
            cells.extend(quantile_cells(&ALL_QUANTILES, slice.latency.as_ref()));
            cells.extend(row![slice.server_cores, slice.server_rss_bytes, slice.generator_cores]);
            cells
        });
        Table::new("", columns).rows(rows).plots(self.plots())
    }

    fn plots(&self) -> [Plot; 4] {
        let line = |figure: &dyn Fn(&Slice) -> Option<f64>| -> Vec<(f64, f64)> {
            let point = |slice: &Slice| Some((slice.at_s, figure(slice)?));
            self.slices.iter().filter_map(point).collect()
        };
        let latency = |figure: fn(&Summary) -> f64| {
            line(&move |slice| Some(figure(slice.latency.as_ref()?) / 1e3))
        };
        let time = || Axis::new("time in s");
        let mib = |slice: &Slice| Some(slice.server_rss_bytes? as f64 / f64::from(1 << 20));
        [
            Plot::new("Delivery latency", time(), Axis::log("latency in ms"))
                .captioned(
                    "Of the deliveries that came in each slice of time; the axis is logarithmic.",
                )
                .series("p50", &latency(|summary| summary.p50_us))
                .series("p99", &latency(|summary| summary.p99_us))
                .series("p99.9", &latency(|summary| summary.p999_us))
                .series("max", &latency(|summary| summary.max_us)),
            Plot::new("CPU", time(), Axis::new("CPU in cores"))
                .captioned("The server with all its threads; of the generator the busiest thread.")
                .series("server", &line(&|slice| slice.server_cores))
                .series("generator", &line(&|slice| slice.generator_cores)),
            Plot::new("Server memory", time(), Axis::new("resident memory in MiB"))
                .series("resident", &line(&mib)),
            Plot::new("Deliveries", time(), Axis::new("deliveries in 1/s"))
                .series("received", &line(&|slice| Some(slice.received_per_s))),
        ]
    }
}

impl ScriptReport {
    fn tables(&self, last: Vec<Figure>) -> Vec<Table> {
        const QUANTILES: [&str; 3] = ["p50_us", "p99_us", "max_us"];
        let [list, times] = list_and_times(Self::figures(Some(self)));
        let columns = [
            ("line", Unit::Count),
            ("step", Unit::Text),
            ("done", Unit::Count),
            ("mismatches", Unit::Count),
            ("missing", Unit::Count),
        ];
        let mut columns = columns.map(|(key, unit)| Column::new(key, unit, key)).to_vec();
        columns.extend(quantile_columns(&QUANTILES, true));
        let (last_columns, last_cells): (Vec<_>, Vec<_>) = last.into_iter().unzip();
        columns.extend(last_columns);
        let rows = self.steps.iter().map(|step| {
            let waits = step.latency.is_some() || step.mismatches + step.missing > 0;
            let text: String = step.text.chars().take(40).collect();
            let mut cells = row![
                step.line,
                text,
                step.done,
                waits.then_some(step.mismatches),
                waits.then_some(step.missing),
            ];
            cells.extend(quantile_cells(&QUANTILES, step.latency.as_ref()));
            cells.extend(last_cells.clone());
            cells
        });
        let steps = Table::new("Steps", columns).rows(rows).notes(self.mismatches.clone());
        vec![list, times, steps]
    }
}

/// A line of a report, with its label.
type Remark = (&'static str, String);

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::common::Common;
    use crate::plan::{Mode, Pace, Plan};
    use crate::record::Record;
    use crate::report::{Errors, Origin, SCHEMA};
    use crate::sampler::{CpuUsage, Memory};
    use crate::target::Target;
    use crate::verdict::{Facts, Verdict};

    fn summary() -> Option<Summary> {
        let mut record = Record::new();
        (1..=100).for_each(|i| record.add(i * 10_000));
        record.summary()
    }

    fn report() -> LoadReport {
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
        LoadReport {
            schema: SCHEMA,
            run: Origin::default(),
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
                latency: summary(),
                open_loop: Some(OpenLoopReport {
                    planned: 1_000_000,
                    planned_per_s: Some(100_000.0),
                    unanswered: 0,
                    lateness: summary(),
                }),
                ..EchoReport::default()
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
