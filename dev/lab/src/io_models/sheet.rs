//! The tables as people read them, on a terminal and on the page: ours with the articles' rows between them.

use std::fmt::{self, Write};

use super::article;
use super::plan::{Family, Table};
use super::report::{Cell, ConnectFigures, FamiliesReport, IdleFigures, IdleRow};
use throng_load::units::{grouped, rounded, show_bytes, show_duration, show_ns};

/// A table with what one has to know about it.
pub(super) struct Sheet {
    pub(super) table: Table,
    pub(super) title: String,
    pub(super) head: &'static [&'static str],
    pub(super) rows: Vec<Vec<String>>,
    pub(super) notes: Vec<String>,
}

/// In a row of figures, why there are none.
const FIGURES_FROM: usize = 2;

impl FamiliesReport {
    /// All tables that were measured.
    pub(super) fn sheets(&self) -> Vec<Sheet> {
        let sheets = [self.idle_sheet(), self.connect_sheet(), self.blocking_sheet()];
        sheets.into_iter().filter(|sheet| self.plan.tables.contains(&sheet.table)).collect()
    }

    fn idle_sheet(&self) -> Sheet {
        let mut rows = Vec::new();
        for size in sizes(self.idle.iter().map(|row| row.connections)) {
            let mut ours: Vec<&IdleRow> =
                self.idle.iter().filter(|row| row.connections == size).collect();
            ours.sort_by_key(|row| self.place(row.family));
            for row in ours {
                rows.push(line(size, row.family.name(), &row.cell, idle_figures));
            }
            for theirs in article::IDLE {
                let at = theirs.memory_mb.iter().find(|(connections, _)| *connections == size);
                rows.extend(at.map(|(_, mb)| {
                    let cpu = theirs.cpu_percent.map_or("-".to_owned(), |cpu| format!("{cpu} %"));
                    let mut cells =
                        vec![grouped(size as u64), format!("article, {}", theirs.model)];
                    cells.extend([cpu].into_iter().chain(["-", "-", "-"].map(str::to_owned)));
                    cells.extend([format!("{mb} MB"), "-".to_owned()]);
                    cells
                }));
            }
        }
        let window = show_duration(std::time::Duration::from_secs_f64(self.plan.window_s));
        Sheet {
            table: Table::Idle,
            title: "Idle connections".to_owned(),
            head: &[
                "connections",
                "server",
                "CPU",
                "ticks",
                "memory/conn",
                "kernel stack/conn",
                "process",
                "threads",
            ],
            rows,
            notes: vec![
                format!(
                    "CPU: of one core over {window}, from the scheduler's nanoseconds; ticks: the same as the kernel counts it, \
                     in steps of 10 ms. Counted from two seconds after the last came; pings, one each 25 s, are rarely in it."
                ),
                "Memory: what the process' share of resident memory (PSS) grew by, by connection; process: all of it. \
                 Kernel stack: 16 KiB of each thread that came, which is nobody's resident memory. What the kernel keeps of a \
                 socket is the same for all, about 4 KiB, and is not in it."
                    .to_owned(),
            ],
        }
    }

    fn connect_sheet(&self) -> Sheet {
        let mut rows = Vec::new();
        for size in sizes(self.connect.iter().map(|row| row.connections)) {
            let mut ours: Vec<_> =
                self.connect.iter().filter(|row| row.connections == size).collect();
            ours.sort_by_key(|row| self.place(row.family));
            for row in ours {
                rows.push(line(size, row.family.name(), &row.cell, connect_figures));
            }
            for theirs in article::CONNECT.iter().filter(|theirs| theirs.connections == size) {
                let took = format!("{} s", theirs.took_s);
                let (connected, answered) = match theirs.echoed {
                    true => ("-".to_owned(), took),
                    false => (took, "-".to_owned()),
                };
                rows.push(vec![
                    grouped(size as u64),
                    format!("article, {}", theirs.model),
                    connected,
                    answered,
                    rounded(size as f64 / theirs.took_s),
                    "-".to_owned(),
                ]);
            }
        }
        Sheet {
            table: Table::Connect,
            title: "Time to connect and echo".to_owned(),
            head: &["connections", "server", "connected", "and echoed", "per second", "server CPU"],
            rows,
            notes: vec![
                "Connected: from the first connect call to the last upgrade, 100 connections being made at a time; each sends a \
                 message when it is open, and \"and echoed\" ends with the last answer. All stay open."
                    .to_owned(),
            ],
        }
    }

    fn blocking_sheet(&self) -> Sheet {
        let us = |us: f64| show_ns((us * 1e3).round() as u64);
        let rows = self.blocking.iter().map(|row| {
            let mut cells = vec![row.words()];
            match &row.cell.figures {
                Some(figures) => cells.extend([
                    rounded(figures.messages_per_s),
                    us(figures.latency.p50_us),
                    us(figures.latency.p99_us),
                    us(figures.latency.max_us),
                    figures.server_cpu_us_per_message.map_or("-".to_owned(), us),
                    figures.verdict.limit.name().to_owned(),
                ]),
                None => cells.extend(missing(&row.cell)),
            }
            cells
        });
        let plan = &self.plan;
        let (blocking, cpu) = (plan.handler.blocking, plan.handler.cpu);
        let mut notes = vec![format!(
            "Workers by the rule: CPUs + (blocking / CPU time) x CPUs = {} + ({} / {}) x {} = {}.",
            plan.cpus,
            show_duration(blocking),
            show_duration(cpu),
            plan.cpus,
            grouped(plan.workers_by_rule as u64),
        )];
        notes.extend(self.blocking.iter().filter_map(|row| {
            Some(format!("{}: {}.", row.words(), row.cell.figures.as_ref()?.verdict.line))
        }));
        Sheet {
            table: Table::Workers,
            title: format!(
                "A handler that blocks {} and computes {}, {} connections with one message under way on each",
                show_duration(blocking),
                show_duration(cpu),
                grouped(plan.clients as u64)
            ),
            head: &["where it runs", "messages/s", "p50", "p99", "max", "CPU/message", "limit"],
            rows: rows.collect(),
            notes,
        }
    }

    /// Where a family stands: as it was asked for, whichever went first.
    fn place(&self, family: Family) -> usize {
        self.plan.families.iter().position(|other| *other == family).unwrap_or_default()
    }

    /// Under which conditions.
    pub(super) fn conditions(&self) -> String {
        let plan = &self.plan;
        let names: Vec<&str> = plan.families.iter().map(|family| family.name()).collect();
        let limit = plan.descriptor_limit.map_or_else(String::new, |limit| {
            format!(", {} descriptors a process", grouped(limit))
        });
        let busy = self.machine_busy_share.map_or_else(String::new, |share| {
            format!("; the machine was {:.0} % busy, everything on it included", share * 100.0)
        });
        format!(
            "{}; {} CPU{}, {} event loop{}{limit}{busy}",
            names.join(", "),
            plan.cpus,
            if plan.cpus == 1 { "" } else { "s" },
            plan.event_loops,
            if plan.event_loops == 1 { "" } else { "s" },
        )
    }
}

/// Each once, ascending.
fn sizes(all: impl Iterator<Item = usize>) -> Vec<usize> {
    all.collect::<std::collections::BTreeSet<usize>>().into_iter().collect()
}

fn line<T>(
    size: usize,
    server: &str,
    cell: &Cell<T>,
    figures: impl Fn(&T) -> Vec<String>,
) -> Vec<String> {
    let mut cells = vec![grouped(size as u64), server.to_owned()];
    match &cell.figures {
        Some(measured) => cells.extend(figures(measured)),
        None => cells.extend(missing(cell)),
    }
    cells
}

fn missing<T>(cell: &Cell<T>) -> Option<String> {
    let why = cell.missing.as_ref()?;
    Some(if cell.failed { format!("failed: {why}") } else { why.clone() })
}

fn idle_figures(figures: &IdleFigures) -> Vec<String> {
    let bytes = |bytes: f64| show_bytes(bytes.round() as i64);
    vec![
        format!("{:.3} %", figures.cpu_percent),
        figures.cpu_ticks.map_or("-".to_owned(), |ticks| ticks.to_string()),
        bytes(figures.memory_bytes_per_connection),
        bytes(figures.kernel_stack_bytes_per_connection),
        // As the articles count.
        format!("{:.1} MB", figures.process_bytes as f64 / 1e6),
        grouped(figures.threads as u64),
    ]
}

fn connect_figures(figures: &ConnectFigures) -> Vec<String> {
    vec![
        format!("{:.3} s", figures.connected_s),
        format!("{:.3} s", figures.answered_s),
        rounded(figures.connections_per_s),
        figures.server_cpu_s.map_or("-".to_owned(), |cpu| format!("{cpu:.3} s")),
    ]
}

impl fmt::Display for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        let mut widths: Vec<usize> = self.head.iter().map(|cell| cell.len()).collect();
        // What says why there are no figures may run on to the right.
        for row in self.rows.iter().filter(|row| row.len() == self.head.len()) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row).take(FIGURES_FROM.min(row.len() - 1)) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let head: Vec<String> = self.head.iter().map(|cell| (*cell).to_owned()).collect();
        for row in std::iter::once(&head).chain(&self.rows) {
            let mut line = String::new();
            let partial = row.len() < self.head.len();
            for (at, (width, cell)) in widths.iter().zip(row).enumerate() {
                let is_name = self.head[at] == "server" || self.head[at] == "where it runs";
                let says_why = partial && at + 1 == row.len();
                let _ = match is_name || says_why {
                    true => write!(line, "  {cell:<width$}"),
                    false => write!(line, "  {cell:>width$}"),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  {note}"))
    }
}

impl fmt::Display for FamiliesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "families    {}", self.conditions())?;
        for sheet in self.sheets() {
            writeln!(f, "\n{sheet}")?;
        }
        writeln!(f, "{}\n", article::NOTE)?;
        self.advice.iter().try_for_each(|sentence| writeln!(f, "{sentence}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;

    #[test]
    fn ours_and_theirs_stand_beside_each_other() {
        let text = example().to_string();
        for words in [
            "1,000  threads",
            "0.020 %",
            "28.0 MB",
            "article, epoll",
            "8.9 MB",
            "12.4 MB",
            "needs 20,092 descriptors, this machine gives 20,000",
            "9.49 s",
            "epoll, inline on the shards",
            "epoll, 102 workers (by the rule)",
            "(5ms / 0.1ms)",
            "50 % busy",
            "Which family you need: epoll for many connections",
        ] {
            assert!(text.contains(words), "{words:?} in\n{text}");
        }
    }

    #[test]
    fn columns_stand_below_their_names() {
        let sheet = example().idle_sheet().to_string();
        let lines: Vec<&str> = sheet.lines().collect();
        let end = |line: &str, word: &str| line.find(word).unwrap() + word.len();
        assert_eq!(end(lines[1], "ticks"), end(lines[2], "%") + 2 + "ticks".len());
        assert!(lines[1].contains("kernel stack/conn"), "{sheet}");
    }
}
