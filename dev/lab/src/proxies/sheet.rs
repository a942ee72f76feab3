//! The tables as people read them, on a terminal and on the page.

use std::fmt::{self, Write};

use super::peers::Peer;
use super::plan::{Table, Test};
use super::report::{Figures, ProxyReport, Row};
use super::spread::Spread;
use throng_load::units::{grouped, rounded, show_bytes, show_duration, show_ns};

/// A table with what one has to know about it.
pub(super) struct Sheet {
    pub(super) table: Table,
    pub(super) title: String,
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
    pub(super) notes: Vec<String>,
}

const UNKNOWN: &str = "-";
/// Share of the time that a proxy may wait for a CPU.
const CROWDED: f64 = 0.1;

impl ProxyReport {
    /// All tables that were measured.
    pub(super) fn sheets(&self) -> Vec<Sheet> {
        let all = [
            self.cost_sheet(),
            self.latency_sheet(Test::Latency),
            self.latency_sheet(Test::MostlyIdle),
            self.burst_sheet(),
        ];
        all.into_iter().filter(|sheet| !sheet.rows.is_empty()).collect()
    }

    fn peers(&self) -> impl Iterator<Item = Peer> {
        self.peers.iter().map(|peer| peer.peer)
    }

    /// Whom the others are compared with: nginx, or the first proxy of all.
    pub(super) fn baseline(&self) -> Option<Peer> {
        let proxy = |peer: &Peer| *peer != Peer::Direct;
        self.peers().find(|&peer| peer == Peer::Nginx).or_else(|| self.peers().find(proxy))
    }

    /// What one worker does and takes.
    fn cost_sheet(&self) -> Sheet {
        let of_cost = |test: &Test| matches!(test, Test::Echo { .. } | Test::Connect | Test::Idle);
        let tests: Vec<Test> = self.tests().into_iter().filter(of_cost).collect();
        let mut head = vec!["proxy".to_owned()];
        head.extend(tests.iter().map(|test| match test {
            Test::Idle => "memory/idle tunnel".to_owned(),
            other => other.to_string(),
        }));
        let mut rows = Vec::new();
        for peer in self.peers().filter(|_| !tests.is_empty()) {
            let mut cells = vec![peer.to_string()];
            cells.extend(tests.iter().map(|&test| self.headline(test, peer)));
            rows.push(cells);
        }
        let baseline = self.baseline();
        let compared = self.peers().filter(|peer| Some(*peer) != baseline && *peer != Peer::Direct);
        for peer in compared.filter(|_| !tests.is_empty()) {
            let Some(baseline) = baseline else { break };
            let mut cells = vec![format!("{peer} / {baseline}")];
            cells.extend(tests.iter().map(|&test| {
                let headline = |figures: &Figures| test.headline(figures);
                let ratio = |mine: f64, theirs: f64| mine / theirs;
                let spread = self.against(test, peer, baseline, headline, ratio);
                spread.map_or(UNKNOWN.to_owned(), |spread| ratio_words(&spread))
            }));
            rows.push(cells);
        }
        let mut notes = vec![
            "Messages and connections (connect, upgrade, one echo of 100 B, reset) by the CPU-second of the proxy; of \
             \"direct\" by that of the backend."
                .to_owned(),
        ];
        if tests.contains(&Test::Idle) {
            notes.push(format!(
                "Memory: what the process' private memory grew by, by tunnel, with {} of them.",
                grouped(self.plan.idle as u64)
            ));
        }
        notes.extend(self.least_busy(&tests));
        Sheet { table: Table::Echo, title: "What one worker does".to_owned(), head, rows, notes }
    }

    /// How busy the proxies were: one that had to wait pays more by message.
    fn least_busy(&self, tests: &[Test]) -> Option<String> {
        let busy = self.rows.iter().filter(|row| {
            tests.contains(&row.test) && row.test != Test::Idle && row.peer != Peer::Direct
        });
        let cores = busy.filter_map(|row| Some((row.spread(|figures| figures.cores)?, row)));
        let (spread, row) = cores.min_by(|(a, _), (b, _)| a.median.total_cmp(&b.median))?;
        Some(format!(
            "Least busy of the proxies: {} with {:.2} of a core ({}). One that waits for others pays more by message.",
            row.peer, spread.median, row.test
        ))
    }

    fn headline(&self, test: Test, peer: Peer) -> String {
        let Some(row) = self.row(test, peer) else { return UNKNOWN.to_owned() };
        if row.failure().is_some() {
            return "failed".to_owned();
        }
        // What tunnels cost a backend is not the question.
        if test == Test::Idle && peer == Peer::Direct {
            return UNKNOWN.to_owned();
        }
        row.headline.map_or(UNKNOWN.to_owned(), |spread| match test {
            Test::Idle | Test::MostlyIdle => show_bytes(spread.median.round() as i64),
            _ => rounded(spread.median),
        })
    }

    /// The two open loops.
    fn latency_sheet(&self, test: Test) -> Sheet {
        let mostly_idle = test == Test::MostlyIdle;
        let mut head = vec!["proxy", "p50", "p99", "added p50", "added p99", "CPU"];
        if mostly_idle {
            head.extend(["memory/tunnel", "process", "messages/s"]);
        }
        let mut rows = Vec::new();
        for peer in self.peers() {
            let Some(row) = self.row(test, peer) else { continue };
            let mut cells = vec![peer.to_string()];
            match row.failure() {
                Some(_) => cells.push("failed".to_owned()),
                None => cells.extend(self.latency_cells(row, mostly_idle)),
            }
            rows.push(cells);
        }
        let plan = &self.plan;
        let title = match mostly_idle {
            true => format!(
                "{} mostly idle tunnels, each with a message of 10 to 4096 bytes every 0.1 to 10 s",
                grouped(plan.idle as u64)
            ),
            false => format!(
                "Latency of 100 B on {} connections, {} messages/s on each",
                grouped(plan.connections as u64),
                rounded(plan.rate_per_s)
            ),
        };
        let mut notes = vec![
            "Open loop: latency counts from the planned time. Added: minus that of the backend itself in the same round."
                .to_owned(),
        ];
        if self.row(test, Peer::Direct).is_none() {
            notes.push(
                "Added latency is not known without the backend itself (--direct).".to_owned(),
            );
        }
        let late = self.rows.iter().filter(|row| row.test == test);
        let late = late.filter_map(|row| row.spread(|figures| figures.late_p99_us));
        if let Some(worst) = late.map(|spread| spread.greatest).max_by(f64::total_cmp) {
            notes.push(format!("Messages left up to {} late (p99, the worst round).", us(worst)));
        }
        let table = if mostly_idle { Table::MostlyIdle } else { Table::Latency };
        let head = head.into_iter().map(str::to_owned).collect();
        Sheet { table, title, head, rows, notes }
    }

    fn latency_cells(&self, row: &Row, mostly_idle: bool) -> Vec<String> {
        type Quantile = fn(&Figures) -> Option<f64>;
        let quantiles: [Quantile; 2] =
            [|figures| Some(figures.latency?.p50_us), |figures| Some(figures.latency?.p99_us)];
        let known = |spread: Option<Spread>, words: &dyn Fn(f64) -> String| {
            spread.map_or(UNKNOWN.to_owned(), |spread| words(spread.median))
        };
        let mut cells: Vec<String> =
            quantiles.iter().map(|quantile| known(row.spread(quantile), &us)).collect();
        cells.extend(quantiles.iter().map(|quantile| {
            let added = |mine: f64, direct: f64| mine - direct;
            match row.peer {
                Peer::Direct => UNKNOWN.to_owned(),
                peer => known(self.against(row.test, peer, Peer::Direct, quantile, added), &us),
            }
        }));
        cells.push(known(row.spread(|figures| figures.cores), &|cores| {
            format!("{:.1} %", cores * 100.0)
        }));
        if mostly_idle {
            let bytes = |bytes: f64| show_bytes(bytes.round() as i64);
            let each = row.spread(|figures| figures.bytes_per_tunnel);
            cells.push(match row.peer {
                Peer::Direct => UNKNOWN.to_owned(),
                _ => known(each, &bytes),
            });
            let process = row.spread(|figures| figures.process_bytes.map(|bytes| bytes as f64));
            cells.push(known(process, &bytes));
            cells.push(known(row.spread(|figures| figures.per_s), &rounded));
        }
        cells
    }

    fn burst_sheet(&self) -> Sheet {
        let tests: Vec<Test> =
            self.tests().into_iter().filter(|test| matches!(test, Test::Burst { .. })).collect();
        let mut head = vec!["message".to_owned()];
        head.extend(self.peers().map(|peer| peer.to_string()));
        let rows = tests.iter().map(|&test| {
            let Test::Burst { size_bytes } = test else { return Vec::new() };
            let mut cells = vec![format!("{} B", grouped(size_bytes as u64))];
            cells.extend(self.peers().map(|peer| {
                let Some(row) = self.row(test, peer) else { return UNKNOWN.to_owned() };
                if row.failure().is_some() {
                    return "failed".to_owned();
                }
                let seconds = row.headline.map(|spread| format!("{:.3} s", spread.median));
                let cpu = row.spread(|figures| figures.cpu_s);
                let cpu = cpu.map(|spread| format!(" ({:.3})", spread.median));
                seconds.unwrap_or(UNKNOWN.to_owned()) + &cpu.unwrap_or_default()
            }));
            cells
        });
        Sheet {
            table: Table::Burst,
            title: format!(
                "{} connections x {} messages without delay",
                grouped(self.plan.burst_connections as u64),
                grouped(self.plan.burst_messages)
            ),
            head,
            rows: rows.collect(),
            notes: vec![
                "From the first connect call to the last answer, each next message when the last has come back; in \
                 parentheses the CPU seconds of the proxy."
                    .to_owned(),
            ],
        }
    }

    /// Under which conditions.
    pub(super) fn conditions(&self) -> String {
        let plan = &self.plan;
        let names = self.peers.iter().map(|peer| match &peer.version {
            Some(version) => format!("{} ({version})", peer.peer),
            None => peer.peer.to_string(),
        });
        let cores = match plan.cores {
            Some((proxy, others)) => {
                format!("; proxies on core {proxy}, backend and generator on core {others}")
            }
            None => String::new(),
        };
        let busy = self.machine_busy_share.map_or_else(String::new, |share| {
            format!("; the machine was {:.0} % busy, everything on it included", share * 100.0)
        });
        let s = if plan.rounds == 1 { "" } else { "s" };
        format!(
            "{}; {} round{s} of {}, medians{cores}{busy}",
            names.collect::<Vec<_>>().join(", "),
            plan.rounds,
            show_duration(std::time::Duration::from_secs_f64(plan.duration_s)),
        )
    }

    /// What went wrong, and who is missing, a line each.
    pub(super) fn troubles(&self) -> Vec<String> {
        let skipped = self
            .skipped
            .iter()
            .map(|skipped| format!("{} was left out: {}", skipped.peer, skipped.why));
        let failed = self.rows.iter().flat_map(|row| {
            row.rounds.iter().filter_map(move |round| {
                let why = round.failed.as_ref()?;
                Some(format!("{}, {}, round {}: {why}", row.peer, row.test, round.round))
            })
        });
        skipped.chain(failed).chain(self.unwatched()).chain(self.crowded()).collect()
    }

    /// Told when others had the CPU that a proxy wanted: seconds and latencies are theirs then.
    fn crowded(&self) -> Option<String> {
        let rows = self.rows.iter().filter(|row| row.peer != Peer::Direct);
        let waiting = rows.filter_map(|row| Some((row.spread(|f| f.waiting_share)?.median, row)));
        let (share, row) = waiting.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
        (share > CROWDED).then(|| {
            format!(
                "the machine was crowded: {} wanted a CPU and had none for {:.0} % of the time ({}). Seconds and latencies \
                 are not the proxies' own; of CPU only the ratios count",
                row.peer,
                share * 100.0,
                row.test
            )
        })
    }

    /// Told when a proxy's processes were not found: then half of the figures are missing.
    fn unwatched(&self) -> Option<String> {
        let mut figures = self.rows.iter().flat_map(|row| &row.rounds);
        let proxied = figures.any(|round| round.figures.is_some());
        let watched =
            self.rows.iter().filter(|row| row.peer == Peer::Running).any(|row| {
                row.spread(|figures| figures.cpu_s.or(figures.bytes_per_tunnel)).is_some()
            });
        let is_running = self.peers().any(|peer| peer == Peer::Running);
        (is_running && proxied && !watched).then(|| {
            "the proxy's process is not known, so its CPU and memory were not measured: give --pid if it runs on this \
             machine"
                .to_owned()
        })
    }
}

fn us(us: f64) -> String {
    let sign = if us < 0.0 { "-" } else { "" };
    format!("{sign}{}", show_ns((us.abs() * 1e3).round() as u64))
}

/// `0.82 (0.80-0.85)`; one round has no spread.
fn ratio_words(spread: &Spread) -> String {
    let Spread { median, least, greatest, rounds } = *spread;
    match rounds {
        1 => format!("{median:.2}"),
        _ => format!("{median:.2} ({least:.2}-{greatest:.2})"),
    }
}

impl fmt::Display for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        let mut widths: Vec<usize> = self.head.iter().map(|cell| cell.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in std::iter::once(&self.head).chain(&self.rows) {
            let mut line = String::new();
            for (at, (width, cell)) in widths.iter().zip(row).enumerate() {
                let _ = match at {
                    0 => write!(line, "  {cell:<width$}"),
                    _ => write!(line, "  {cell:>width$}"),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  {note}"))
    }
}

impl fmt::Display for ProxyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "proxy       {}", self.conditions())?;
        for sheet in self.sheets() {
            write!(f, "\n{sheet}")?;
        }
        let troubles = self.troubles();
        if !troubles.is_empty() {
            writeln!(f)?;
        }
        troubles.iter().try_for_each(|trouble| writeln!(f, "{trouble}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;
    use super::*;

    #[test]
    fn proxies_stand_beside_each_other() {
        let text = example().to_string();
        for words in [
            "nginx (1.0)",
            "60 % busy",
            "proxies on core 0",
            "105,000",
            "haproxy / nginx",
            "0.50 (0.50-0.50)",
            "2 KiB",
            "added p99",
            "500 connections x 50 messages",
            "4,096 B",
            "1.050 s (0.200)",
            "throng was left out: not here",
            "Least busy of the proxies: nginx with 0.50",
        ] {
            assert!(text.contains(words), "{words:?} in\n{text}");
        }
        assert!(!text.contains("direct / nginx") && !text.contains("--pid"), "{text}");
    }

    #[test]
    fn added_latency_is_the_difference_within_a_round() {
        let report = example();
        let row = report.row(Test::Latency, Peer::Nginx).unwrap();
        let cells = report.latency_cells(row, false);
        // 200 and 220 us, minus 100 and 110.
        assert_eq!(cells[..3], ["210 us", "630 us", "105 us"]);
        let direct = report.row(Test::Latency, Peer::Direct).unwrap();
        assert_eq!(report.latency_cells(direct, false)[2], UNKNOWN);
        assert_eq!(us(-1.5), "-1.50 us");
    }

    #[test]
    fn a_crowded_machine_is_told() {
        let mut report = example();
        assert!(!report.to_string().contains("crowded"));
        let row = report.rows.iter_mut().find(|row| row.peer == Peer::Nginx).unwrap();
        row.rounds.iter_mut().for_each(|round| {
            round.figures.as_mut().unwrap().waiting_share = Some(0.5);
        });
        let text = report.to_string();
        assert!(text.contains("nginx wanted a CPU and had none for 50 % of the time"), "{text}");
    }

    #[test]
    fn what_is_not_known_is_said() {
        let mut report = example();
        for row in &mut report.rows {
            row.peer = if row.peer == Peer::Nginx { Peer::Running } else { row.peer };
            for round in &mut row.rounds {
                let figures = round.figures.as_mut().unwrap();
                (figures.cpu_s, figures.bytes_per_tunnel) = (None, None);
            }
        }
        report.rows.retain(|row| row.peer == Peer::Running);
        report.peers.retain(|peer| peer.peer == Peer::Nginx);
        report.peers[0].peer = Peer::Running;
        let text = report.to_string();
        assert!(text.contains("give --pid") && text.contains("(--direct)"), "{text}");
    }
}
