//! `lab tables`: the rows of a run of `bench/` as Markdown tables.

use std::collections::BTreeMap;
use std::io::{Read, stdin};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Deserialize;
use throng_cli::{Failure, terminal};
use throng_load::units::grouped;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The rows, as JSON [default: standard input]
    file: Option<PathBuf>,
}

/// The output of `bench/harness/report.py`.
#[derive(Deserialize)]
struct Rows {
    /// The columns.
    servers: Vec<String>,
    /// The server with which the others are compared.
    baseline: Option<String>,
    rows: Vec<Figure>,
    /// Cells that were disturbed or not measured.
    remarks: Vec<String>,
}

/// One figure of one round.
#[derive(Deserialize)]
struct Figure {
    /// The sentence above the figure's table.
    table: String,
    work: String,
    server: String,
    round: u32,
    value: f64,
    digits: usize,
    /// Whether the figure is a rate, whose large values are shown in thousands and millions.
    is_rate: bool,
}

/// Prints the tables.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let name =
        args.file.as_ref().map_or_else(|| "standard input".into(), |it| it.display().to_string());
    let text = match &args.file {
        Some(file) => std::fs::read_to_string(file),
        None => {
            let mut text = String::new();
            stdin().lock().read_to_string(&mut text).map(|_| text)
        }
    };
    let text = text.map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    let rows: Rows = serde_json::from_str(&text)
        .map_err(|error| Failure::usage(format!("{name} has no rows of bench/: {error}")))?;
    terminal::report(rows.to_markdown())?;
    Ok(ExitCode::SUCCESS)
}

impl Rows {
    fn to_markdown(&self) -> String {
        let mut parts = Vec::new();
        for (at, table) in in_order(self.rows.iter().map(|row| &*row.table)).into_iter().enumerate()
        {
            let median = |work: &str, server: &str| self.median(table, work, server);
            parts.extend([table.to_owned(), self.table(table, "work", &median)]);
            let Some(baseline) = self.baseline.as_ref().filter(|it| self.servers.contains(it))
            else {
                continue;
            };
            // Only the first table has ratios; the other tables show its cost.
            if at == 0 {
                let ratio = |work: &str, server: &str| self.ratio(table, work, server, baseline);
                parts.push("Median of same-round ratios, and their spread.".to_owned());
                parts.push(self.table(table, &format!("ratio to {baseline}"), &ratio));
            }
        }
        parts.extend(self.remarks.iter().cloned());
        parts.join("\n\n") + "\n"
    }

    /// Returns a table with a row for each kind of work and a column for each server.
    fn table(
        &self,
        table: &str,
        corner: &str,
        cell: &dyn Fn(&str, &str) -> Option<String>,
    ) -> String {
        let mut lines = vec![
            format!("| {corner} | {} |", self.servers.join(" | ")),
            format!("|---|{}", "---:|".repeat(self.servers.len())),
        ];
        let works = self.rows.iter().filter(|row| row.table == table).map(|row| &*row.work);
        for work in in_order(works) {
            let cells: Vec<String> =
                self.servers.iter().map(|it| cell(work, it).unwrap_or_default()).collect();
            if cells.iter().any(|cell| !cell.is_empty()) {
                lines.push(format!("| {work} | {} |", cells.join(" | ")));
            }
        }
        lines.join("\n")
    }

    fn figures(&self, table: &str, work: &str, server: &str) -> impl Iterator<Item = &Figure> {
        let wanted = (table, work, server);
        self.rows.iter().filter(move |row| (&*row.table, &*row.work, &*row.server) == wanted)
    }

    fn median(&self, table: &str, work: &str, server: &str) -> Option<String> {
        let any = self.figures(table, work, server).next()?;
        let values = self.figures(table, work, server).map(|row| row.value).collect();
        Some(any.show(middle(values)?.1))
    }

    /// Returns the ratios of the rounds that have both servers, so that a slow minute affects both
    /// sides of a ratio.
    fn ratio(&self, table: &str, work: &str, server: &str, baseline: &str) -> Option<String> {
        let theirs = self.figures(table, work, baseline).filter(|row| row.value > 0.0);
        let theirs: BTreeMap<u32, f64> = theirs.map(|row| (row.round, row.value)).collect();
        let ours = self.figures(table, work, server).filter(|_| server != baseline);
        let ratios: Vec<f64> =
            ours.filter_map(|row| Some(row.value / theirs.get(&row.round)?)).collect();
        let count = ratios.len();
        let (least, median, greatest) = middle(ratios)?;
        let digits = if median < 100.0 { 2 } else { 0 };
        let shown = |value: f64| decimal(value, digits);
        Some(match count {
            1 => shown(median),
            _ => format!("{} ({}-{})", shown(median), shown(least), shown(greatest)),
        })
    }
}

impl Figure {
    fn show(&self, value: f64) -> String {
        match value {
            1e6.. if self.is_rate => format!("{:.2}M", value / 1e6),
            1e4.. if self.is_rate => format!("{:.1}k", value / 1e3),
            1e3.. => decimal(value, 0),
            _ => decimal(value, self.digits),
        }
    }
}

/// Formats a number with this many digits after the point, and commas between thousands.
fn decimal(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let sign = if value < 0.0 { "-" } else { "" };
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{}{point}{fraction}", grouped(whole.parse().unwrap_or(0)))
}

/// Returns the minimum, the median and the maximum.
fn middle(mut values: Vec<f64>) -> Option<(f64, f64, f64)> {
    values.sort_by(f64::total_cmp);
    let (least, greatest) = (*values.first()?, *values.last()?);
    let half = values.len() / 2;
    let median = match values.len() % 2 {
        0 => f64::midpoint(values[half - 1], values[half]),
        _ => values[half],
    };
    Some((least, median, greatest))
}

/// Returns each text once, in the order of first occurrence.
fn in_order<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(server: &str, round: u32, value: f64) -> Figure {
        let (table, work) = ("Messages.".to_owned(), "100 B".to_owned());
        Figure { table, work, server: server.to_owned(), round, value, digits: 0, is_rate: true }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // A machine that is half as fast in round 2 must not affect the ratio. Round 3 has only one
        // side.
        let (ours, theirs) = ([90_000.0, 45_000.0], [100_000.0, 50_000.0, 100_000.0]);
        let rows = |server, values: &[f64]| -> Vec<Figure> {
            (1..).zip(values).map(|(round, &value)| figure(server, round, value)).collect()
        };
        let rows = Rows {
            servers: vec!["epoll".to_owned(), "Throng".to_owned()],
            baseline: Some("epoll".to_owned()),
            rows: [rows("epoll", &theirs), rows("Throng", &ours)].into_iter().flatten().collect(),
            remarks: vec!["Not measured:\n- bun".to_owned()],
        };
        let expected = "Messages.\n\n\
            | work | epoll | Throng |\n|---|---:|---:|\n| 100 B | 100.0k | 67.5k |\n\n\
            Median of same-round ratios, and their spread.\n\n\
            | ratio to epoll | epoll | Throng |\n|---|---:|---:|\n\
            | 100 B |  | 0.90 (0.90-0.90) |\n\nNot measured:\n- bun\n";
        assert_eq!(rows.to_markdown(), expected);
    }

    #[test]
    fn numbers_are_shown_in_their_size() {
        let rate = figure("", 1, 0.0);
        let plain = Figure { is_rate: false, digits: 1, ..figure("", 1, 0.0) };
        for (figure, value, shown) in [
            (&rate, 2_345_678.0, "2.35M"),
            (&rate, 12_345.0, "12.3k"),
            (&rate, 1_234.4, "1,234"),
            (&plain, 999.94, "999.9"),
            (&plain, 12_345.6, "12,346"),
            (&plain, -0.25, "-0.2"),
        ] {
            assert_eq!(figure.show(value), shown);
        }
    }
}
