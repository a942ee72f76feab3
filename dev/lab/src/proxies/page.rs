//! The measurement as a page: the tables, with plots.

use super::plan::{Table, Test};
use super::report::{ProxyReport, Sample};
use throng_load::page::{Axis, Page, Plot};

impl ProxyReport {
    /// The tables and plots as one self-contained page.
    #[must_use]
    pub(crate) fn to_html(&self) -> String {
        let mut page = Page::new("WebSocket proxies").text(&self.conditions());
        for trouble in self.troubles() {
            page = page.notice(&trouble);
        }
        for sheet in self.sheets() {
            page = page.heading(&sheet.title);
            for plot in self.plots(sheet.table) {
                page = page.plot(&plot);
            }
            let head: Vec<&str> = sheet.head.iter().map(String::as_str).collect();
            page = page.table(&head, &sheet.rows);
            for note in &sheet.notes {
                page = page.text(note);
            }
        }
        page.to_html()
    }

    /// What is drawn with a table.
    fn plots(&self, table: Table) -> Vec<Plot> {
        match table {
            Table::Echo | Table::Connect | Table::Idle => {
                let any = self.tests().iter().any(|test| matches!(test, Test::Echo { .. }));
                any.then(|| self.echo_plot()).into_iter().collect()
            }
            Table::Latency => vec![self.latency_plot(Test::Latency, "Latency at a fixed rate")],
            Table::MostlyIdle => vec![
                self.latency_plot(Test::MostlyIdle, "Latency of mostly idle tunnels"),
                self.over_time(
                    "Memory of the proxy over time",
                    "resident memory in MB",
                    |sample| Some(sample.resident_bytes as f64 / 1e6),
                ),
                self.over_time(
                    "CPU of the proxy over time",
                    "CPU in percent of a core",
                    |sample| Some(sample.cores? * 100.0),
                ),
            ],
            Table::Burst => vec![self.burst_plot()],
        }
    }

    fn echo_plot(&self) -> Plot {
        let axes = (Axis::log("bytes of a message"), Axis::log("messages by CPU-second"));
        let mut plot = Plot::new("Echoes by CPU-second", axes.0, axes.1)
            .captioned("Of the proxy; of \"direct\" the backend's.");
        for peer in &self.peers {
            let rows = self.rows.iter().filter(|row| row.peer == peer.peer);
            let points = rows.filter_map(|row| match row.test {
                Test::Echo { size_bytes } => Some((size_bytes as f64, row.headline?.median)),
                _ => None,
            });
            plot = plot.series(peer.peer.name(), &points.collect::<Vec<_>>());
        }
        plot
    }

    fn burst_plot(&self) -> Plot {
        let axes = (Axis::log("bytes of a message"), Axis::new("time in s"));
        let mut plot = Plot::new("Time of a burst", axes.0, axes.1);
        for peer in &self.peers {
            let rows = self.rows.iter().filter(|row| row.peer == peer.peer);
            let points = rows.filter_map(|row| match row.test {
                Test::Burst { size_bytes } => Some((size_bytes as f64, row.headline?.median)),
                _ => None,
            });
            plot = plot.series(peer.peer.name(), &points.collect::<Vec<_>>());
        }
        plot
    }

    /// Latency over "one answer in so many", a line for each proxy.
    fn latency_plot(&self, test: Test, title: &str) -> Plot {
        let x = Axis::log("one answer in so many took longer");
        let mut plot = Plot::new(title, x, Axis::log("time in ms"))
            .captioned("100 on the lower axis is the 99th percentile; medians of the rounds.");
        for peer in &self.peers {
            let Some(row) = self.row(test, peer.peer) else { continue };
            let points = [
                (2.0, row.spread(|figures| Some(figures.latency?.p50_us))),
                (10.0, row.spread(|figures| Some(figures.latency?.p90_us))),
                (100.0, row.spread(|figures| Some(figures.latency?.p99_us))),
                (1_000.0, row.spread(|figures| Some(figures.latency?.p999_us))),
            ];
            let points =
                points.into_iter().filter_map(|(x, spread)| Some((x, spread?.median / 1e3)));
            plot = plot.series(peer.peer.name(), &points.collect::<Vec<_>>());
        }
        plot
    }

    /// What the first round's samples show.
    fn over_time(&self, title: &str, unit: &str, value: impl Fn(&Sample) -> Option<f64>) -> Plot {
        let axes = (Axis::new("time in s"), Axis::new(unit));
        let mut plot = Plot::new(title, axes.0, axes.1)
            .captioned("The first round; tunnels are opened in the first seconds.");
        for peer in &self.peers {
            let row = self.row(Test::MostlyIdle, peer.peer);
            let rounds = row.map(|row| &row.rounds[..]).unwrap_or_default();
            let samples = rounds.iter().find_map(|round| Some(&round.figures.as_ref()?.samples));
            let samples = samples.map(Vec::as_slice).unwrap_or_default().iter();
            let points = samples.filter_map(|sample| Some((sample.at_s, value(sample)?)));
            plot = plot.series(peer.peer.name(), &points.collect::<Vec<_>>());
        }
        plot
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;
    use super::*;
    use throng_load::page::well_formed::assert_well_formed;

    #[test]
    fn the_page_has_everything_and_loads_nothing() {
        let mut report = example();
        for row in report.rows.iter_mut().filter(|row| row.test == Test::MostlyIdle) {
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
