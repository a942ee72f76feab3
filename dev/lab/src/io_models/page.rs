//! A comparison as a page: the tables, and a plot for each.

use super::article;
use super::plan::Table;
use super::report::FamiliesReport;
use throng_load::page::{Axis, Page, Plot};

impl FamiliesReport {
    /// The tables and plots as one self-contained page.
    #[must_use]
    pub(crate) fn to_html(&self) -> String {
        let mut page = Page::new("Server families side by side").text(&self.conditions());
        for sentence in &self.advice {
            page = page.notice(sentence);
        }
        for sheet in self.sheets() {
            page = page.heading(&sheet.title);
            for plot in self.plots(sheet.table) {
                page = page.plot(&plot);
            }
            page = page.table(sheet.head, &sheet.rows);
            for note in &sheet.notes {
                page = page.text(note);
            }
        }
        page.text(article::NOTE).to_html()
    }

    /// What is drawn with a table.
    fn plots(&self, table: Table) -> Vec<Plot> {
        match table {
            Table::Idle => vec![self.memory_plot(), self.cpu_plot()],
            Table::Connect => vec![self.connect_plot()],
            Table::Workers => vec![self.latency_plot()],
        }
    }

    fn memory_plot(&self) -> Plot {
        let axis = Axis::log("memory of the server process in MB");
        let mut plot = Plot::new("Memory of idle connections", Axis::log("connections"), axis)
            .captioned("Without kernel stacks: 16 KiB more for each thread.");
        for &family in &self.plan.families {
            let rows = self.idle.iter().filter(|row| row.family == family);
            let points = rows.filter_map(|row| {
                let figures = row.cell.figures.as_ref()?;
                Some((row.connections as f64, figures.process_bytes as f64 / 1e6))
            });
            plot = plot.series(family.name(), &points.collect::<Vec<_>>());
        }
        for theirs in article::IDLE {
            let points = theirs.memory_mb.iter().map(|&(connections, mb)| (connections as f64, mb));
            let name = format!("article, {}", theirs.model);
            plot = plot.series(&name, &points.collect::<Vec<_>>());
        }
        plot
    }

    fn cpu_plot(&self) -> Plot {
        let (x, y) = (Axis::log("connections"), Axis::new("CPU in percent of a core"));
        let mut plot = Plot::new("CPU of idle connections", x, y);
        for &family in &self.plan.families {
            let rows = self.idle.iter().filter(|row| row.family == family);
            let points = rows.filter_map(|row| {
                Some((row.connections as f64, row.cell.figures.as_ref()?.cpu_percent))
            });
            plot = plot.series(family.name(), &points.collect::<Vec<_>>());
        }
        plot
    }

    fn connect_plot(&self) -> Plot {
        let (x, y) = (Axis::log("connections"), Axis::log("time in s"));
        let mut plot = Plot::new("Time until all are connected and have had an echo", x, y)
            .captioned("The article's epoll figures are without an echo.");
        for &family in &self.plan.families {
            let rows = self.connect.iter().filter(|row| row.family == family);
            let points = rows.filter_map(|row| {
                Some((row.connections as f64, row.cell.figures.as_ref()?.answered_s))
            });
            plot = plot.series(family.name(), &points.collect::<Vec<_>>());
        }
        for model in ["epoll", "IOCP"] {
            let theirs = article::CONNECT.iter().filter(|theirs| theirs.model == model);
            let points = theirs.map(|theirs| (theirs.connections as f64, theirs.took_s));
            plot = plot.series(&format!("article, {model}"), &points.collect::<Vec<_>>());
        }
        plot
    }

    /// Latency over "one answer in so many", a line for each way.
    fn latency_plot(&self) -> Plot {
        let x = Axis::log("one answer in so many took longer");
        let mut plot = Plot::new("Latency with a handler that blocks", x, Axis::log("time in ms"))
            .captioned("100 on the lower axis is the 99th percentile.");
        for row in &self.blocking {
            let Some(figures) = &row.cell.figures else { continue };
            let latency = &figures.latency;
            let points = [
                (2.0, latency.p50_us),
                (10.0, latency.p90_us),
                (100.0, latency.p99_us),
                (1_000.0, latency.p999_us),
            ];
            plot = plot.series(&row.words(), &points.map(|(x, us)| (x, us / 1e3)));
        }
        plot
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;
    use throng_load::page::well_formed::assert_well_formed;

    #[test]
    fn the_page_has_everything_and_loads_nothing() {
        let html = example().to_html();
        assert_well_formed(&html);
        assert_eq!(html.matches("<svg").count(), 4);
        assert_eq!(html.matches("<table>").count(), 3);
        for words in ["article, IOCP", "needs 20,092 descriptors", "Which family you need"] {
            assert!(html.contains(words), "{words:?}");
        }
        assert!(!html.contains("src=") && !html.contains("href="));
    }
}
