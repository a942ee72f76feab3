//! The report as tables and plots.

use throng_load::page::{Axis, Plot};
use throng_load::record::Summary;
use throng_load::report::model::{Cell, Column, Document, Render, Row, Table, Unit};
use throng_load::row;
use throng_load::units::{grouped, rounded, show_duration, show_ns};

use super::flags::ProxyTest;
use super::report::{Figures, ProxyReport, ProxyRow, Sample};
use crate::peers::Peer;
use crate::spread::Spread;
use crate::table::{busy_words, quantiles, s, with_lines};

/// In the place of figures, when no round had any.
const FAILED: &str = "failed";
/// Share of the time that a proxy may wait for a CPU.
const CONTENDED: f64 = 0.1;

impl ProxyReport {
    /// All tables that were measured.
    fn tables(&self) -> Vec<Table> {
        let all = [
            self.cost_table(),
            self.latency_table(ProxyTest::Latency),
            self.latency_table(ProxyTest::MostlyIdle),
            self.burst_table(),
        ];
        all.into_iter().filter(|table| !table.is_empty()).chain([self.cell_table()]).collect()
    }

    /// Every cell that was measured, for CSV.
    fn cell_table(&self) -> Table {
        let columns = [
            ("test", Unit::Text),
            ("peer", Unit::Text),
            ("round", Unit::Count),
            ("headline", Unit::Text),
            ("value", Unit::Number),
            ("per_cpu_s", Unit::Number),
            ("per_s", Unit::Number),
            ("cpu_s", Unit::Seconds),
            ("cores", Unit::Number),
            ("seconds", Unit::Seconds),
            ("p50_us", Unit::Us),
            ("p99_us", Unit::Us),
            ("bytes_per_tunnel", Unit::Bytes),
            ("process_bytes", Unit::Bytes),
            ("machine_busy_share", Unit::Share),
        ];
        let columns = columns.map(|(key, unit)| Column::new(key, unit, ""));
        let rows = self.rows.iter().flat_map(|row| {
            row.rounds.iter().map(move |round| {
                let head = row![
                    row.test.to_string(),
                    row.peer.to_string(),
                    round.round,
                    row.test.headline_name(),
                ];
                let Some(figures) = &round.figures else {
                    return Row::without_figures(head, round.failed.as_deref().unwrap_or(""));
                };
                let latency = figures.latency.as_ref();
                let cells = row![
                    row.test.headline(figures),
                    figures.per_cpu_s,
                    figures.per_s,
                    figures.cpu_s,
                    figures.cores,
                    figures.seconds,
                    latency.map(|latency| latency.p50_us),
                    latency.map(|latency| latency.p99_us),
                    figures.bytes_per_tunnel,
                    figures.process_bytes,
                    round.machine_busy_share,
                ];
                [head, cells].concat().into()
            })
        });
        Table::new("", columns.to_vec()).rows(rows).reasons("failed")
    }

    fn peers(&self) -> impl Iterator<Item = Peer> {
        self.peers.iter().map(|peer| peer.peer)
    }

    /// Returns the proxy that the others are compared with: nginx, or the first proxy of all.
    pub(super) fn baseline(&self) -> Option<Peer> {
        let proxy = |peer: &Peer| *peer != Peer::Direct;
        self.peers().find(|&peer| peer == Peer::Nginx).or_else(|| self.peers().find(proxy))
    }

    /// Returns the table of throughput and resources of one worker.
    fn cost_table(&self) -> Table {
        let of_cost = |test: &ProxyTest| {
            matches!(test, ProxyTest::Echo { .. } | ProxyTest::Connect | ProxyTest::Idle)
        };
        let tests: Vec<ProxyTest> = self.tests().into_iter().filter(of_cost).collect();
        let mut columns = vec![Column::new("", Unit::Text, "proxy")];
        columns.extend(tests.iter().map(|test| match test {
            ProxyTest::Idle => Column::new("", Unit::Bytes, "memory/idle tunnel"),
            other => Column::new("", Unit::Number, other.to_string()),
        }));
        let mut rows = Vec::new();
        for peer in self.peers().filter(|_| !tests.is_empty()) {
            let mut cells = row![peer.to_string()];
            cells.extend(tests.iter().map(|&test| self.headline(test, peer)));
            rows.push(cells);
        }
        let baseline = self.baseline();
        let compared = self.peers().filter(|peer| Some(*peer) != baseline && *peer != Peer::Direct);
        for peer in compared.filter(|_| !tests.is_empty()) {
            let Some(baseline) = baseline else { break };
            let mut cells = row![format!("{peer} / {baseline}")];
            cells.extend(tests.iter().map(|&test| {
                let headline = |figures: &Figures| test.headline(figures);
                let ratio = |mine: f64, theirs: f64| mine / theirs;
                let spread = self.against(test, peer, baseline, headline, ratio);
                spread.map(|spread| ratio_words(&spread)).into()
            }));
            rows.push(cells);
        }
        let mut notes = vec![
            "Messages and connections (connect, upgrade, one echo of 100 B, reset) by the \
             CPU-second of the proxy; of \"direct\" by that of the backend."
                .to_owned(),
        ];
        if tests.contains(&ProxyTest::Idle) {
            notes.push(format!(
                "Memory: what the process' private memory grew by, by tunnel, with {} of them.",
                grouped(self.plan.idle as u64)
            ));
        }
        notes.extend(self.least_busy(&tests));
        let plots = tests.iter().any(|test| matches!(test, ProxyTest::Echo { .. }));
        let plots = plots.then(|| self.echo_plot());
        Table::new("What one worker does", columns).rows(rows).plots(plots).notes(notes)
    }

    /// Returns a note about the least busy proxy: one that had to wait pays more a message.
    fn least_busy(&self, tests: &[ProxyTest]) -> Option<String> {
        let busy = self.rows.iter().filter(|row| {
            tests.contains(&row.test) && row.test != ProxyTest::Idle && row.peer != Peer::Direct
        });
        let cores = busy.filter_map(|row| Some((row.spread(|figures| figures.cores)?, row)));
        let (spread, row) = cores.min_by(|(a, _), (b, _)| a.median.total_cmp(&b.median))?;
        Some(format!(
            "Least busy of the proxies: {} with {:.2} of a core ({}). One that waits for others \
             pays more by message.",
            row.peer, spread.median, row.test
        ))
    }

    fn headline(&self, test: ProxyTest, peer: Peer) -> Cell {
        let Some(row) = self.row(test, peer) else { return Cell::Unknown };
        if row.failure().is_some() {
            return FAILED.into();
        }
        // What tunnels cost a backend is not the question.
        if test == ProxyTest::Idle && peer == Peer::Direct {
            return Cell::Unknown;
        }
        row.headline.into()
    }

    /// The two open loops.
    fn latency_table(&self, test: ProxyTest) -> Table {
        let mostly_idle = test == ProxyTest::MostlyIdle;
        let mut columns = vec![("proxy", Unit::Text)];
        columns.extend(["p50", "p99", "added p50", "added p99"].map(|label| (label, Unit::Us)));
        columns.push(("CPU", Unit::Share));
        if mostly_idle {
            let memory = [("memory/tunnel", Unit::Bytes), ("process", Unit::Bytes)];
            columns.extend(memory.into_iter().chain([("messages/s", Unit::Number)]));
        }
        let columns = columns.into_iter().map(|(label, unit)| Column::new("", unit, label));
        let mut rows = Vec::new();
        for peer in self.peers() {
            let Some(row) = self.row(test, peer) else { continue };
            let head = row![peer.to_string()];
            rows.push(match row.failure() {
                Some(_) => Row::without_figures(head, FAILED),
                None => [head, self.latency_cells(row, mostly_idle)].concat().into(),
            });
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
            "Open loop: latency counts from the planned time. Added: minus that of the backend \
             itself in the same round."
                .to_owned(),
        ];
        if self.row(test, Peer::Direct).is_none() {
            notes.push(
                "Added latency is not known without the backend itself (--direct).".to_owned(),
            );
        }
        let late = self.rows.iter().filter(|row| row.test == test);
        let late = late.filter_map(|row| row.spread(|figures| figures.late_p99_us));
        if let Some(worst) = late.map(|spread| spread.max).max_by(f64::total_cmp) {
            let worst = show_ns((worst * 1e3).round() as u64);
            notes.push(format!("Messages left up to {worst} late (p99, the worst round)."));
        }
        Table::new(title, columns.collect()).rows(rows).plots(self.latency_plots(test)).notes(notes)
    }

    fn latency_cells(&self, row: &ProxyRow, mostly_idle: bool) -> Vec<Cell> {
        type Quantile = fn(&Figures) -> Option<f64>;
        let quantiles: [Quantile; 2] =
            [|figures| Some(figures.latency?.p50_us), |figures| Some(figures.latency?.p99_us)];
        let mut cells: Vec<Cell> =
            quantiles.iter().map(|quantile| row.spread(quantile).into()).collect();
        cells.extend(quantiles.iter().map(|quantile| {
            let added = |mine: f64, direct: f64| mine - direct;
            match row.peer {
                Peer::Direct => Cell::Unknown,
                peer => self.against(row.test, peer, Peer::Direct, quantile, added).into(),
            }
        }));
        cells.push(row.spread(|figures| figures.cores).into());
        if mostly_idle {
            let each = row.spread(|figures| figures.bytes_per_tunnel);
            let is_direct = row.peer == Peer::Direct;
            cells.push(if is_direct { Cell::Unknown } else { each.into() });
            let process = row.spread(|figures| figures.process_bytes.map(|bytes| bytes as f64));
            cells.extend([process.into(), row.spread(|figures| figures.per_s).into()]);
        }
        cells
    }

    fn burst_table(&self) -> Table {
        let tests: Vec<ProxyTest> = self
            .tests()
            .into_iter()
            .filter(|test| matches!(test, ProxyTest::Burst { .. }))
            .collect();
        let mut columns = vec![Column::new("", Unit::Text, "message")];
        columns.extend(self.peers().map(|peer| Column::new("", Unit::Seconds, peer.to_string())));
        let rows = tests.iter().filter_map(|&test| {
            let ProxyTest::Burst { size_bytes } = test else { return None };
            let mut cells = row![format!("{} B", grouped(size_bytes as u64))];
            cells.extend(self.peers().map(|peer| {
                let Some(row) = self.row(test, peer) else { return Cell::Unknown };
                if row.failure().is_some() {
                    return FAILED.into();
                }
                let cpu = row.spread(|figures| figures.cpu_s);
                let cpu = cpu.map(|spread| format!(" ({:.3})", spread.median)).unwrap_or_default();
                let seconds = row.headline.map(|spread| spread.median);
                seconds.map(|s| Cell::shown(s, format!("{s:.3} s{cpu}"))).into()
            }));
            Some(cells)
        });
        let title = format!(
            "{} connections x {} messages without delay",
            grouped(self.plan.burst_connections as u64),
            grouped(self.plan.burst_messages)
        );
        let note = "From the first connect call to the last answer, each next message when the \
             last has come back; in parentheses the CPU seconds of the proxy.";
        Table::new(title, columns).rows(rows).plots([self.burst_plot()]).notes([note.to_owned()])
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
        format!(
            "{}; {} round{} of {}, medians{cores}{}",
            names.collect::<Vec<_>>().join(", "),
            plan.rounds,
            s(plan.rounds),
            show_duration(std::time::Duration::from_secs_f64(plan.duration_s)),
            busy_words(self.machine_busy_share),
        )
    }

    /// Returns the errors and the missing peers, a line each.
    pub(super) fn problems(&self) -> Vec<String> {
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
        skipped.chain(failed).chain(self.unwatched()).chain(self.contention()).collect()
    }

    /// Returns a warning if other programs had the CPU that a proxy wanted: they affect seconds and
    /// latencies then.
    fn contention(&self) -> Option<String> {
        let rows = self.rows.iter().filter(|row| row.peer != Peer::Direct);
        let waiting = rows.filter_map(|row| Some((row.spread(|f| f.waiting_share)?.median, row)));
        let (share, row) = waiting.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
        (share > CONTENDED).then(|| {
            format!(
                "the machine was overloaded: {} wanted a CPU and had none for {:.0} % of the time \
                 ({}). Seconds and latencies are not the proxies' own; of CPU only the ratios \
                 count",
                row.peer,
                share * 100.0,
                row.test
            )
        })
    }

    /// Returns a warning if a proxy's processes were not found: half of the figures are missing
    /// then.
    fn unwatched(&self) -> Option<String> {
        let mut figures = self.rows.iter().flat_map(|row| &row.rounds);
        let proxied = figures.any(|round| round.figures.is_some());
        let watched =
            self.rows.iter().filter(|row| row.peer == Peer::Running).any(|row| {
                row.spread(|figures| figures.cpu_s.or(figures.bytes_per_tunnel)).is_some()
            });
        let is_running = self.peers().any(|peer| peer == Peer::Running);
        (is_running && proxied && !watched).then(|| {
            "the proxy's process is not known, so its CPU and memory were not measured: give --pid \
             if it runs on this machine"
                .to_owned()
        })
    }
}

/// `0.82 (0.80-0.85)`; one round has no spread.
fn ratio_words(spread: &Spread) -> Cell {
    let Spread { median, min, max, count, .. } = *spread;
    Cell::shown(
        median,
        match count {
            1 => format!("{median:.2}"),
            _ => format!("{median:.2} ({min:.2}-{max:.2})"),
        },
    )
}

impl Render for ProxyReport {
    fn document(&self) -> Document {
        Document {
            kind: "proxies",
            title: "WebSocket proxies".to_owned(),
            conditions: vec![self.conditions()],
            tables: self.tables(),
            notices: self.problems(),
            ..Document::default()
        }
    }

    fn exit_code(&self) -> u8 {
        let mut rounds = self.rows.iter().flat_map(|row| &row.rounds);
        u8::from(rounds.any(|round| round.failed.is_some()))
    }
}

impl ProxyReport {
    /// Latency, and of mostly idle tunnels memory and CPU over time.
    fn latency_plots(&self, test: ProxyTest) -> Vec<Plot> {
        if test == ProxyTest::Latency {
            return vec![self.latency_plot(test, "Latency at a fixed rate")];
        }
        let resident = |sample: &Sample| Some(sample.resident_bytes as f64 / 1e6);
        let cores = |sample: &Sample| Some(sample.cores? * 100.0);
        vec![
            self.latency_plot(test, "Latency of mostly idle tunnels"),
            self.over_time("Memory of the proxy over time", "resident memory in MB", resident),
            self.over_time("CPU of the proxy over time", "CPU in percent of a core", cores),
        ]
    }

    fn echo_plot(&self) -> Plot {
        let axes = (Axis::log("bytes of a message"), Axis::log("messages by CPU-second"));
        let plot = Plot::new("Echoes by CPU-second", axes.0, axes.1)
            .captioned("Of the proxy; of \"direct\" the backend's.");
        self.by_size(plot, |test| match test {
            ProxyTest::Echo { size_bytes } => Some(size_bytes),
            _ => None,
        })
    }

    fn burst_plot(&self) -> Plot {
        let axes = (Axis::log("bytes of a message"), Axis::new("time in s"));
        self.by_size(Plot::new("Time of a burst", axes.0, axes.1), |test| match test {
            ProxyTest::Burst { size_bytes } => Some(size_bytes),
            _ => None,
        })
    }

    /// Plots the headline figure over the message size, with a line for each proxy.
    fn by_size(&self, plot: Plot, size: fn(ProxyTest) -> Option<usize>) -> Plot {
        self.with_proxies(plot, |peer| {
            let rows = self.rows.iter().filter(|row| row.peer == peer);
            let points =
                rows.filter_map(|row| Some((size(row.test)? as f64, row.headline?.median)));
            Some(points.collect())
        })
    }

    /// Latency over "one answer in so many", a line for each proxy.
    fn latency_plot(&self, test: ProxyTest, title: &str) -> Plot {
        let x = Axis::log("one answer in so many took longer");
        let plot = Plot::new(title, x, Axis::log("time in ms"))
            .captioned("100 on the lower axis is the 99th percentile; medians of the rounds.");
        self.with_proxies(plot, |peer| {
            let row = self.row(test, peer)?;
            let spread = |quantile: fn(&Summary) -> f64| {
                row.spread(|figures| figures.latency.as_ref().map(quantile))
            };
            Some(quantiles(|quantile| Some(spread(quantile)?.median)))
        })
    }

    /// Returns a plot of the samples of the first round.
    fn over_time(&self, title: &str, unit: &str, value: impl Fn(&Sample) -> Option<f64>) -> Plot {
        let axes = (Axis::new("time in s"), Axis::new(unit));
        let plot = Plot::new(title, axes.0, axes.1)
            .captioned("The first round; tunnels are opened in the first seconds.");
        self.with_proxies(plot, |peer| {
            let row = self.row(ProxyTest::MostlyIdle, peer);
            let rounds = row.map(|row| &row.rounds[..]).unwrap_or_default();
            let samples = rounds.iter().find_map(|round| Some(&round.figures.as_ref()?.samples));
            let samples = samples.map(Vec::as_slice).unwrap_or_default().iter();
            Some(samples.filter_map(|sample| Some((sample.at_s, value(sample)?))).collect())
        })
    }

    /// Adds a line for each proxy that has points.
    fn with_proxies(&self, plot: Plot, points: impl Fn(Peer) -> Option<Vec<(f64, f64)>>) -> Plot {
        with_lines(plot, self.peers().filter_map(|peer| Some((peer.name(), points(peer)?))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;
    use super::*;
    use throng_load::page::well_formed::assert_well_formed;

    #[test]
    fn proxies_stand_beside_each_other() {
        let text = example().to_text();
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
        let row = report.row(ProxyTest::Latency, Peer::Nginx).unwrap();
        let cells = report.latency_cells(row, false);
        // 200 and 220 us, minus 100 and 110.
        let near = |cell: &Cell, us: f64| matches!(cell, Cell::Number(n) if (n - us).abs() < 1e-6);
        assert!(
            near(&cells[0], 210.0) && near(&cells[1], 630.0) && near(&cells[2], 105.0),
            "{cells:?}"
        );
        let direct = report.row(ProxyTest::Latency, Peer::Direct).unwrap();
        assert_eq!(report.latency_cells(direct, false)[2], Cell::Unknown);
    }

    #[test]
    fn an_overloaded_machine_is_announced() {
        let mut report = example();
        assert!(!report.to_text().contains("overloaded"));
        let row = report.rows.iter_mut().find(|row| row.peer == Peer::Nginx).unwrap();
        row.rounds.iter_mut().for_each(|round| {
            round.figures.as_mut().unwrap().waiting_share = Some(0.5);
        });
        let text = report.to_text();
        assert!(text.contains("nginx wanted a CPU and had none for 50 % of the time"), "{text}");
    }

    #[test]
    fn an_unknown_figure_is_explained() {
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
        let text = report.to_text();
        assert!(text.contains("give --pid") && text.contains("(--direct)"), "{text}");
    }

    #[test]
    fn the_page_has_everything_and_loads_nothing() {
        let mut report = example();
        for row in report.rows.iter_mut().filter(|row| row.test == ProxyTest::MostlyIdle) {
            let figures = row.rounds[0].figures.as_mut().unwrap();
            figures.samples = (0..20u8)
                .map(|n| Sample {
                    at_s: f64::from(n),
                    tunnels: 200 * u64::from(n),
                    resident_bytes: 1 << 20,
                    cores: Some(0.1),
                })
                .collect();
        }
        let html = report.to_html();
        assert_well_formed(&html);
        assert_eq!((html.matches("<svg").count(), html.matches("<table>").count()), (6, 4));
        for words in ["haproxy / nginx", "throng was left out", "added p99", "Time of a burst"] {
            assert!(html.contains(words), "{words:?}");
        }
        assert!(!html.contains("src=") && !html.contains("href="));
    }
}
