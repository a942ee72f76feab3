//! The times of all runs of a side, combined from their histograms. They show a tail that no single
//! run shows.

use serde::Serialize;

use super::{Runs, signed_percent};
use crate::record::Record;
use crate::report::Histogram;
use crate::report::model::{Cell, Column, Table, Unit};
use crate::row;

/// The quantiles that are shown.
const SHARES: [(f64, &str); 6] =
    [(0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9"), (0.9999, "p99.99"), (1.0, "max")];

/// A quantile of all times on each side.
#[derive(Clone, Debug, Serialize)]
pub struct Pooled {
    /// The name of the times, such as `latency`.
    pub of: String,
    /// Share (0 to 1) of the times.
    pub share: f64,
    /// The quantile of the first side.
    pub base_us: f64,
    /// The quantile of the second side.
    pub new_us: f64,
    #[serde(skip)]
    label: &'static str,
}

impl Runs {
    /// Returns all times of the side; `None` unless all runs have a histogram of the same times.
    fn pooled(&self) -> Option<(String, Record)> {
        let mut record = Record::new();
        let mut all = self.reports.iter().map(|report| Histogram::read(report, &mut record));
        let first = all.next()??;
        all.all(|of| of.as_ref() == Some(&first)).then_some((first, record))
    }
}

/// Combines the times of each side; empty unless both have histograms of the same times.
pub(super) fn pooled(base: &Runs, new: &Runs) -> Vec<Pooled> {
    let (Some((of, base)), Some((new_of, new))) = (base.pooled(), new.pooled()) else {
        return Vec::new();
    };
    if of != new_of {
        return Vec::new();
    }
    // A quantile finer than one time in all equals the maximum, which has its own row.
    let least = base.count().min(new.count()) as f64;
    let known = SHARES.iter().filter(|(share, _)| *share == 1.0 || (1.0 - share) * least >= 1.0);
    let us = |record: &Record, share| record.quantile_ns(share) as f64 / 1e3;
    let quantiles = known.map(|&(share, label)| Pooled {
        of: of.clone(),
        share,
        base_us: us(&base, share),
        new_us: us(&new, share),
        label,
    });
    quantiles.collect()
}

/// The quantiles as a table for people.
pub(super) fn table(pooled: &[Pooled]) -> Table {
    let of = pooled.first().map_or("", |one| &one.of);
    let columns = vec![
        Column::new("", Unit::Text, format!("{of}, all runs")),
        Column::new("", Unit::Us, "base"),
        Column::new("", Unit::Us, "new"),
        Column::new("", Unit::Number, "change"),
    ];
    Table::new("", columns).rows(pooled.iter().map(|one| {
        let change = one.new_us / one.base_us - 1.0;
        row![one.label, one.base_us, one.new_us, Cell::shown(change, signed_percent(change))]
    }))
}
