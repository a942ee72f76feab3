//! The figures of a report, each declared once.

use serde::Serialize;

use super::PlanReport;
use super::model::{Cell, Column, Table, Unit};
use crate::plan::Plan;
use crate::record::Summary;
use crate::sampled::Sampled;

/// A column of a list and its value.
pub(crate) type Figure = (Column, Cell);

/// The measurements of a mode, for readers and CSV.
pub trait Results: Serialize {
    /// The heading of the page.
    fn title(&self) -> String;

    /// Returns the tables, with the columns of the plan and `last` after the figures.
    fn tables(&self, plan: &PlanReport, last: Vec<Figure>) -> Vec<Table>;

    /// Returns whether the report has plots over time instead of the distribution of its times.
    fn has_plots(&self) -> bool {
        false
    }
}

/// The sums of a run's threads, and the samples of its steering thread, from which a report's
/// figures are computed.
pub(crate) struct RunSums<'a, T, P = Plan> {
    pub(crate) plan: &'a P,
    pub(crate) sampled: &'a Sampled,
    pub(crate) measured_s: f64,
    pub(crate) sum: &'a T,
}

impl<T, P> RunSums<'_, T, P> {
    pub(crate) fn per_s(&self, count: u64) -> f64 {
        count as f64 / self.measured_s
    }

    /// Returns the server CPU time per item, for `count` items.
    pub(crate) fn server_cpu_us_per(&self, count: u64) -> Option<f64> {
        let cpu = self.sampled.server().filter(|_| count > 0);
        cpu.map(|cpu| cpu.cpu_s * 1e6 / count as f64)
    }
}

/// Declares the report of some measurements.
///
/// A row is a figure: its key in the JSON, its type, its value, and after a comma its unit and its
/// label, if readers see it. `csv` makes it a CSV column named by its key; after `=>`, a function
/// computes its cell from the report. A [`Summary`] is a row of the table of times instead of the
/// list.
macro_rules! figures {
    (@key $field:ident) => { "" };
    (@key $field:ident csv) => { stringify!($field) };
    (@cell $report:ident $field:ident) => {
        $report.map(|report| Clone::clone(&report.$field))
    };
    (@cell $report:ident $field:ident $cell:expr) => { $report.map($cell) };
    (
        $(#[$attr:meta])*
        pub struct $Report:ident from |$run:ident: $Run:ty| {
            $(
                $(#[$doc:meta])*
                $field:ident: $Type:ty = $value:expr
                $(, $unit:ident $label:literal $($csv:ident)? $(=> $cell:expr)?)?;
            )*
        }
    ) => {
        $(#[$attr])*
        pub struct $Report {
            $($(#[$doc])* pub $field: $Type,)*
        }

        impl $Report {
            pub(crate) fn of($run: $Run) -> Self {
                Self { $($field: $value),* }
            }

            /// Returns the figures for readers and CSV; without a report they are unknown.
            pub(crate) fn figures(report: Option<&Self>) -> Vec<$crate::report::figures::Figure> {
                vec![$($(
                    $crate::report::figures::figure(
                        figures!(@key $field $($csv)?),
                        $crate::report::model::Unit::$unit,
                        $label,
                        figures!(@cell report $field $($cell)?),
                    ),
                )?)*]
            }
        }
    };
}
pub(crate) use figures;

/// Returns a column of a list and its value.
pub(crate) fn figure(key: &'static str, unit: Unit, label: &str, value: impl Into<Cell>) -> Figure {
    (Column::new(key, unit, label), value.into())
}

/// A quantile in tables: its key, its label, and its value.
type Quantile = (&'static str, &'static str, fn(&Summary) -> f64);

const QUANTILES: [Quantile; 4] = [
    ("p50_us", "p50", |times| times.p50_us),
    ("p99_us", "p99", |times| times.p99_us),
    ("p999_us", "p99.9", |times| times.p999_us),
    ("max_us", "max", |times| times.max_us),
];

/// Returns the columns of the quantiles with these keys.
pub(crate) fn quantile_columns(keys: &[&str], is_shown: bool) -> Vec<Column> {
    let named = QUANTILES.iter().filter(|(key, ..)| keys.contains(key));
    let label = |label| if is_shown { label } else { "" };
    named.map(|&(key, name, _)| Column::new(key, Unit::Us, label(name))).collect()
}

/// Returns the cells of the quantiles with these keys.
pub(crate) fn quantile_cells(keys: &[&str], times: Option<&Summary>) -> Vec<Cell> {
    let named = QUANTILES.iter().filter(|(key, ..)| keys.contains(key));
    named.map(|(.., pick)| times.map(pick).into()).collect()
}

/// The keys of all quantiles.
pub(crate) const ALL_QUANTILES: [&str; 4] = ["p50_us", "p99_us", "p999_us", "max_us"];

/// Returns the quantiles of a latency for CSV.
pub(crate) fn quantiles(latency: Option<&Summary>) -> impl Iterator<Item = Figure> {
    let columns = quantile_columns(&ALL_QUANTILES, false);
    columns.into_iter().zip(quantile_cells(&ALL_QUANTILES, latency))
}
