//! Tables, plots and sentences shared by several reports.

use throng_load::page::Plot;
use throng_load::record::Summary;
use throng_load::report::model::{Cell, Column, Unit};

use crate::spread::Spread;

/// Creates columns, each with its name in CSV, its unit, and its label for readers.
pub(crate) fn columns<const N: usize>(all: [(&'static str, Unit, &'static str); N]) -> Vec<Column> {
    all.map(|(key, unit, label)| Column::new(key, unit, label)).to_vec()
}

/// Shows the median of a few repetitions.
impl From<Spread> for Cell {
    fn from(spread: Spread) -> Self {
        spread.median.into()
    }
}

/// Adds a line for each name that has points.
pub(crate) fn with_lines(
    plot: Plot,
    lines: impl IntoIterator<Item = (impl AsRef<str>, Vec<(f64, f64)>)>,
) -> Plot {
    lines.into_iter().fold(plot, |plot, (name, points)| plot.series(name.as_ref(), &points))
}

/// A quantile of latencies, in microseconds.
type Quantile = fn(&Summary) -> f64;

/// Returns the points of the line "one answer in N took longer than": the quantiles of `of`, in
/// microseconds.
pub(crate) fn quantiles(of: impl Fn(Quantile) -> Option<f64>) -> Vec<(f64, f64)> {
    let all: [(f64, Quantile); 4] = [
        (2.0, |latency| latency.p50_us),
        (10.0, |latency| latency.p90_us),
        (100.0, |latency| latency.p99_us),
        (1_000.0, |latency| latency.p999_us),
    ];
    all.into_iter().filter_map(|(x, quantile)| Some((x, of(quantile)? / 1e3))).collect()
}

/// Returns the end of a sentence that states how busy the machine was.
pub(crate) fn busy_words(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| {
        format!("; the machine was {:.0} % busy, everything on it included", share * 100.0)
    })
}

/// Returns the plural `s`, unless `number` is 1.
pub(crate) fn s(number: usize) -> &'static str {
    if number == 1 { "" } else { "s" }
}
