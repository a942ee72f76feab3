//! The report as tables: ours, with those that were published for other servers between them.

use std::time::Duration;

use throng_load::page::{Axis, Plot};
use throng_load::report::model::{Cell, Document, Render, Row, Table, Unit};
use throng_load::row;
use throng_load::units::{grouped, show_bytes, show_duration};

use super::report::{
    BlockingRow, CellFigures, ConnectFigures, IdleFigures, IoModelsReport, SizeRow,
};
use crate::figures as published;
use crate::io_model::{IoModel, IoTable};
use crate::table::{busy_words, columns, quantiles, s, with_lines};

impl Render for IoModelsReport {
    fn document(&self) -> Document {
        let tables = self.plan.tables.iter().map(|table| match table {
            IoTable::Idle => self.idle_table(),
            IoTable::Connect => self.connect_table(),
            IoTable::Workers => self.blocking_table(),
        });
        Document {
            kind: "io-models",
            title: "I/O models side by side".to_owned(),
            conditions: vec![self.conditions()],
            tables: tables.collect(),
            notices: std::iter::once(published::NOTE.to_owned())
                .chain(self.advice.clone())
                .collect(),
            ..Document::default()
        }
    }

    fn exit_code(&self) -> u8 {
        let failed = self.idle.iter().any(|row| row.cell.failed)
            || self.connect.iter().any(|row| row.cell.failed)
            || self.blocking.iter().any(|row| row.cell.failed);
        u8::from(failed)
    }
}

/// A row of ours: its first cells, and its figures or why there are none.
fn ours<T>(
    mut head: Vec<Cell>,
    outcome: &CellFigures<T>,
    figures: impl Fn(&T) -> Vec<Cell>,
) -> Row {
    match (&outcome.figures, &outcome.missing) {
        (Some(measured), _) => {
            head.extend(figures(measured));
            head.into()
        }
        (None, why) => {
            let failed = if outcome.failed { "failed: " } else { "" };
            Row::without_figures(head, format!("{failed}{}", why.as_deref().unwrap_or_default()))
        }
    }
}

impl IoModelsReport {
    fn idle_table(&self) -> Table {
        let columns = columns([
            ("table", Unit::Text, ""),
            ("connections", Unit::Count, "connections"),
            ("server", Unit::Text, "server"),
            ("cpu_percent", Unit::Percent, "CPU"),
            ("cpu_ticks", Unit::Count, "ticks"),
            ("memory_bytes_per_connection", Unit::Bytes, "memory/conn"),
            ("kernel_stack_bytes_per_connection", Unit::Bytes, "kernel stack/conn"),
            ("process_bytes", Unit::Bytes, "process"),
            ("threads", Unit::Count, "threads"),
            ("published_to_ours", Unit::Times, "published/ours"),
        ]);
        let mut rows = Vec::new();
        for size in sizes(self.idle.iter().map(|row| row.connections)) {
            let mut same: Vec<_> = self.idle.iter().filter(|row| row.connections == size).collect();
            same.sort_by_key(|row| self.place(row.model));
            rows.extend(
                same.iter()
                    .map(|row| ours(row!["idle", size, row.model.name()], &row.cell, idle_cells)),
            );
            for (server, stated) in published::IDLE {
                let Some((_, stated)) = stated.iter().find(|(of, _)| *of == size) else { continue };
                let head = row!["idle", size, server.name];
                let of = same.iter().find(|row| row.model == server.ours);
                let bytes = of.and_then(|row| Some(row.cell.figures.as_ref()?.process_bytes));
                rows.push(published_idle(head, *stated, bytes));
            }
        }
        let window = show_duration(Duration::from_secs_f64(self.plan.window_s));
        let notes = [
            format!(
                "CPU: of one core over {window}, from the scheduler's nanoseconds; ticks: the same \
                 as the kernel counts it, in steps of 10 ms. Counted from two seconds after the \
                 last came; pings, one each 25 s, are rarely in it."
            ),
            "Memory: what the process' share of resident memory (PSS) grew by, by connection; \
             process: all of it. Kernel stack: 16 KiB of each thread that came, which is in no \
             process' resident memory. What the kernel keeps of a socket is the same for all, \
             about 4 KiB, and is not in it."
                .to_owned(),
        ];
        let table = Table::new("Idle connections", columns).rows(rows);
        table.reasons("missing").plots([self.memory_plot(), self.cpu_plot()]).notes(notes)
    }

    fn connect_table(&self) -> Table {
        let columns = columns([
            ("table", Unit::Text, ""),
            ("connections", Unit::Count, "connections"),
            ("server", Unit::Text, "server"),
            ("connected_s", Unit::Seconds, "connected"),
            ("answered_s", Unit::Seconds, "and echoed"),
            ("connections_per_s", Unit::Number, "per second"),
            ("server_cpu_s", Unit::Seconds, "server CPU"),
            ("published_to_ours", Unit::Times, "published/ours"),
            ("limit", Unit::Text, "limit"),
        ]);
        let mut rows = Vec::new();
        for size in sizes(self.connect.iter().map(|row| row.connections)) {
            let mut same: Vec<_> =
                self.connect.iter().filter(|row| row.connections == size).collect();
            same.sort_by_key(|row| self.place(row.model));
            rows.extend(same.iter().map(|row| {
                ours(row!["connect", size, row.model.name()], &row.cell, connect_cells)
            }));
            for theirs in published::CONNECT.iter().filter(|theirs| theirs.connections == size) {
                let head = row!["connect", size, theirs.server.name];
                let of = same.iter().find(|row| row.model == theirs.server.ours);
                rows.push(published_connect(
                    head,
                    theirs,
                    of.and_then(|row| row.cell.figures.as_ref()),
                ));
            }
        }
        let note = "Connected: from the first connect call to the last upgrade, 100 connections \
             being made at a time; each sends a message when it is open, and \"and echoed\" ends \
             with the last answer. All stay open. A time that this generator or another process \
             limited has no ratio.";
        let table = Table::new("Time to connect and echo", columns).rows(rows);
        table.reasons("missing").plots([self.connect_plot()]).notes([note.to_owned()])
    }

    fn blocking_table(&self) -> Table {
        let columns = columns([
            ("table", Unit::Text, ""),
            ("connections", Unit::Count, ""),
            ("server", Unit::Text, "where it runs"),
            ("workers", Unit::Count, ""),
            ("messages_per_s", Unit::Number, "messages/s"),
            ("p50_us", Unit::Us, "p50"),
            ("p99_us", Unit::Us, "p99"),
            ("max_us", Unit::Us, "max"),
            ("server_cpu_us_per_message", Unit::Us, "CPU/message"),
            ("limit", Unit::Text, "limit"),
        ]);
        let plan = &self.plan;
        let rows = self.blocking.iter().map(|row| {
            let head = row!["workers", plan.clients, row.words(), row.workers];
            ours(head, &row.cell, |figures| {
                row![
                    figures.messages_per_s,
                    figures.latency.p50_us,
                    figures.latency.p99_us,
                    figures.latency.max_us,
                    figures.server_cpu_us_per_message,
                    figures.verdict.limit.name(),
                ]
            })
        });
        let (blocking, cpu) = (plan.handler.blocking, plan.handler.cpu);
        let mut notes = vec![format!(
            "Workers by the rule: CPUs + (blocking / CPU time) x CPUs = {} + ({} / {}) x {} = {}.",
            plan.cpus,
            show_duration(blocking),
            show_duration(cpu),
            plan.cpus,
            grouped(plan.workers_by_rule as u64),
        )];
        let verdict = |row: &BlockingRow| {
            Some(format!("{}: {}.", row.words(), row.cell.figures.as_ref()?.verdict.line))
        };
        notes.extend(self.blocking.iter().filter_map(verdict));
        let title = format!(
            "A handler that blocks {} and computes {}, {} connections with one message under way \
             on each",
            show_duration(blocking),
            show_duration(cpu),
            grouped(plan.clients as u64)
        );
        let table = Table::new(title, columns).rows(rows);
        table.reasons("missing").plots([self.latency_plot()]).notes(notes)
    }

    /// Position of a model in the order that was asked for, whichever went first.
    fn place(&self, model: IoModel) -> usize {
        self.plan.models.iter().position(|other| *other == model).unwrap_or_default()
    }

    /// The machine and the models.
    fn conditions(&self) -> String {
        let plan = &self.plan;
        let names: Vec<&str> = plan.models.iter().map(|model| model.name()).collect();
        let limit = plan.descriptor_limit.map_or_else(String::new, |limit| {
            format!(", {} descriptors a process", grouped(limit))
        });
        format!(
            "{}; {} CPU{}, {} event loop{}{limit}{}",
            names.join(", "),
            plan.cpus,
            s(plan.cpus),
            plan.event_loops,
            s(plan.event_loops),
            busy_words(self.machine_busy_share),
        )
    }

    fn memory_plot(&self) -> Plot {
        let axis = Axis::log("memory of the server process in MB");
        let plot = Plot::new("Memory of idle connections", Axis::log("connections"), axis)
            .captioned("Without kernel stacks: 16 KiB more for each thread.");
        let plot =
            with_lines(plot, self.lines(&self.idle, |figures| figures.process_bytes as f64 / 1e6));
        with_lines(
            plot,
            published::IDLE.into_iter().map(|(server, stated)| {
                let points = stated.iter().filter_map(|&(connections, stated)| match stated {
                    published::Idle::Measured(_, mb) => Some((connections as f64, mb)),
                    published::Idle::Failed(_) => None,
                });
                (server.name, points.collect())
            }),
        )
    }

    fn cpu_plot(&self) -> Plot {
        let (x, y) = (Axis::log("connections"), Axis::new("CPU in percent of a core"));
        let plot = Plot::new("CPU of idle connections", x, y);
        with_lines(plot, self.lines(&self.idle, |figures| figures.cpu_percent))
    }

    fn connect_plot(&self) -> Plot {
        let (x, y) = (Axis::log("connections"), Axis::log("time in s"));
        let plot = Plot::new("Time until all are connected and have had an echo", x, y)
            .captioned("The published Linux figures are without an echo.");
        let plot = with_lines(plot, self.lines(&self.connect, |figures| figures.answered_s));
        with_lines(
            plot,
            published::SERVERS.into_iter().map(|server| {
                let theirs = published::CONNECT.iter().filter(|theirs| theirs.server == server);
                let points =
                    theirs.filter_map(|theirs| Some((theirs.connections as f64, theirs.took_s?)));
                (server.name, points.collect())
            }),
        )
    }

    /// Returns a line for each model.
    fn lines<T>(
        &self,
        rows: &[SizeRow<T>],
        figure: fn(&T) -> f64,
    ) -> impl Iterator<Item = (&'static str, Vec<(f64, f64)>)> {
        self.plan.models.iter().map(move |model| {
            let rows = rows.iter().filter(|row| row.model == *model);
            let points = rows.filter_map(|row| {
                Some((row.connections as f64, figure(row.cell.figures.as_ref()?)))
            });
            (model.name(), points.collect())
        })
    }

    /// Latency over "one answer in so many", a line for each variant.
    fn latency_plot(&self) -> Plot {
        let x = Axis::log("one answer in so many took longer");
        let plot = Plot::new("Latency with a handler that blocks", x, Axis::log("time in ms"))
            .captioned("100 on the lower axis is the 99th percentile.");
        let measured = self.blocking.iter().filter_map(|row| {
            let latency = &row.cell.figures.as_ref()?.latency;
            Some((row.words(), quantiles(|quantile| Some(quantile(latency)))))
        });
        with_lines(plot, measured)
    }
}

/// Each once, ascending.
fn sizes(all: impl Iterator<Item = usize>) -> Vec<usize> {
    all.collect::<std::collections::BTreeSet<usize>>().into_iter().collect()
}

/// Memory of a process in MB, as the published figures count.
fn megabytes(bytes: f64) -> Cell {
    Cell::shown(bytes, format!("{:.1} MB", bytes / 1e6))
}

fn idle_cells(figures: &IdleFigures) -> Vec<Cell> {
    row![
        figures.cpu_percent,
        figures.cpu_ticks,
        figures.memory_bytes_per_connection,
        Cell::shown(
            figures.kernel_stack_bytes_per_connection,
            show_bytes(figures.kernel_stack_bytes_per_connection.round() as i64)
        ),
        megabytes(figures.process_bytes as f64),
        figures.threads,
        Cell::Unknown,
    ]
}

fn published_idle(mut head: Vec<Cell>, stated: published::Idle, ours: Option<u64>) -> Row {
    match stated {
        published::Idle::Failed(why) => Row::without_figures(head, why),
        published::Idle::Measured(cpu, mb) => {
            let none = || Cell::Unknown;
            let ratio = ours.map(|bytes| mb * 1e6 / bytes as f64);
            let cpu = Cell::shown(cpu, format!("{cpu} %"));
            head.extend(row![cpu, none(), none(), none(), megabytes(mb * 1e6), none(), ratio]);
            head.into()
        }
    }
}

fn connect_cells(figures: &ConnectFigures) -> Vec<Cell> {
    row![
        figures.connected_s,
        figures.answered_s,
        figures.connections_per_s,
        figures.server_cpu_s,
        Cell::Unknown,
        figures.verdict.limit.name(),
    ]
}

fn published_connect(
    mut head: Vec<Cell>,
    theirs: &published::Connect,
    ours: Option<&ConnectFigures>,
) -> Row {
    let Some(took_s) = theirs.took_s else {
        return Row::without_figures(head, "failed");
    };
    let took = Cell::shown(took_s, format!("{took_s} s"));
    let (connected, answered, of_ours) = match theirs.echoed {
        true => (Cell::Unknown, took, ours.map(|figures| figures.answered_s)),
        false => (took, Cell::Unknown, ours.map(|figures| figures.connected_s)),
    };
    let per_s = theirs.connections as f64 / took_s;
    let is_sound = ours.is_some_and(|figures| figures.verdict.limit.is_sound());
    let ratio = of_ours.filter(|_| is_sound).map(|s| took_s / s);
    head.extend(row![connected, answered, per_s, Cell::Unknown, ratio, ""]);
    head.into()
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;
    use super::*;
    use throng_load::page::well_formed::assert_well_formed;

    #[test]
    fn ours_and_theirs_stand_beside_each_other() {
        let text = example().to_text();
        for words in [
            "1,000  threads",
            "0.020 %",
            "28.0 MB",
            "published: epoll",
            "8.9 MB",
            "12.4 MB",
            "published: threads (Windows)",
            "32.2 MB",
            "10 %",
            "needs 20,092 descriptors, this machine gives 20,000",
            "9.49 s",
            "epoll, inline on the shards",
            "epoll, 102 workers (by the rule)",
            "(5ms / 0.1ms)",
            "50 % busy",
            "Which model you need: epoll for many connections",
        ] {
            assert!(text.contains(words), "{words:?} in\n{text}");
        }
    }

    #[test]
    fn theirs_are_related_to_ours_of_the_same_model() {
        let text = example().to_text();
        let ratio = |server: &str, figure: &str| {
            let line = text.lines().find(|line| line.contains(server) && line.contains(figure));
            line.unwrap().split_whitespace().last().unwrap().to_owned()
        };
        // 10.5 MB to 28 MB of threads, 8.9 MB to 4.1 MB of epoll.
        assert_eq!(ratio("published: threads (Linux)", "10.5 MB"), "0.38x");
        assert_eq!(ratio("published: epoll", "8.9 MB"), "2.17x");
        // 16.5 s without an echo to 0.1 s.
        assert_eq!(ratio("published: threads (Linux)", "16.5 s"), "165.00x");
    }

    #[test]
    fn the_page_has_everything_and_loads_nothing() {
        let html = example().to_html();
        assert_well_formed(&html);
        assert_eq!(html.matches("<svg").count(), 4);
        assert_eq!(html.matches("<table>").count(), 3);
        for words in ["published: IOCP", "needs 20,092 descriptors", "Which model you need"] {
            assert!(html.contains(words), "{words:?}");
        }
        assert!(!html.contains("src=") && !html.contains("href="));
    }
}
