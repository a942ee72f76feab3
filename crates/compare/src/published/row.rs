//! A published figure and Throng's figure beside it.

use serde::Serialize;
use throng_load::Limit;
use throng_load::report::model::{Cell, Row, Table, Unit};
use throng_load::row;

use crate::table::columns;

/// Which of two values is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    Less,
    More,
}

/// A published figure and Throng's figure.
#[derive(Clone, Debug, Serialize)]
pub struct PublishedRow {
    /// The measurement, such as `10,000 clients, 10/s each`.
    pub case: String,
    /// The figure: `p99`.
    pub figure: &'static str,
    /// The unit: `us`, `s`, `bytes`, `share`, `per second` or `count`.
    pub unit: &'static str,
    /// The published value; `null` if there is no published value.
    pub published: Option<f64>,
    /// The server of the published value.
    pub by: Option<&'static str>,
    /// The measured value; `null` if it was not measured, with the reason in `missing`.
    pub ours: Option<f64>,
    /// Factor by which Throng's figure is better; below 1 it is worse. `null` where the figures are
    /// not comparable.
    pub ratio: Option<f64>,
    /// The party that limited the measurement.
    pub limit: Option<Limit>,
    /// Why there is no measured value.
    pub missing: Option<String>,
    #[serde(skip)]
    shown_in: Option<Unit>,
}

impl PublishedRow {
    pub(super) fn new(case: &str, figure: &'static str, unit: Unit) -> Self {
        Self {
            case: case.to_owned(),
            figure,
            unit: unit_name(unit),
            published: None,
            by: None,
            ours: None,
            ratio: None,
            limit: None,
            missing: None,
            shown_in: Some(unit),
        }
    }

    /// Sets the published value and its server.
    pub(super) fn published(mut self, value: f64, by: &'static str) -> Self {
        (self.published, self.by) = (Some(value), Some(by));
        self
    }

    /// Sets the measured value and its limit.
    pub(super) fn ours(mut self, value: impl Into<Option<f64>>, limit: Limit) -> Self {
        (self.ours, self.limit) = (value.into(), Some(limit));
        if self.ours.is_none() {
            self.missing = Some("cannot be read on this system".to_owned());
        }
        self
    }

    /// Sets the ratio, unless something other than the server was the limit.
    pub(super) fn compared(mut self, better: Better) -> Self {
        let both = self.published.zip(self.ours).filter(|&(_, ours)| ours > 0.0);
        let is_sound = self.limit.is_some_and(Limit::is_sound);
        self.ratio = both.filter(|_| is_sound).map(|(published, ours)| match better {
            Better::Less => published / ours,
            Better::More => ours / published,
        });
        self
    }

    /// Sets a measured value that had no limit and is not compared.
    pub(super) fn only(mut self, value: f64) -> Self {
        (self.ours, self.ratio) = (Some(value), None);
        self
    }

    /// Nothing was measured.
    pub(super) fn missing(mut self, why: &str) -> Self {
        self.missing = Some(why.to_owned());
        self
    }

    fn cells(&self) -> Row {
        let unit = self.shown_in.unwrap_or(Unit::Number);
        let shown = |value: Option<f64>| value.map(|value| Cell::shown(value, unit.show(value)));
        let mut cells = row![
            self.case.clone(),
            self.figure,
            shown(self.published),
            self.by.map_or(Cell::Unknown, Cell::from),
        ];
        match &self.missing {
            Some(why) => Row::without_figures(cells, why.clone()),
            None => {
                let limit = self.limit.map_or(Cell::Unknown, |limit| limit.name().into());
                cells.extend(row![shown(self.ours), self.ratio, limit]);
                cells.into()
            }
        }
    }
}

/// Returns the rows as a table.
pub(super) fn table(title: &str, rows: &[PublishedRow]) -> Table {
    let columns = columns([
        ("case", Unit::Text, "case"),
        ("figure", Unit::Text, "figure"),
        ("published", Unit::Number, "published"),
        ("by", Unit::Text, "by"),
        ("ours", Unit::Number, "ours"),
        ("ratio", Unit::Times, "ratio"),
        ("limit", Unit::Text, "limit"),
    ]);
    Table::new(title, columns).rows(rows.iter().map(PublishedRow::cells)).reasons("missing")
}

fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Us => "us",
        Unit::Seconds => "s",
        Unit::Bytes => "bytes",
        Unit::Share => "share",
        Unit::Number => "per second",
        Unit::Text | Unit::Count | Unit::Percent | Unit::Times => "count",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(limit: Limit) -> PublishedRow {
        PublishedRow::new("10 clients", "p99", Unit::Us).published(3_200.0, "a").ours(800.0, limit)
    }

    #[test]
    fn a_ratio_above_one_stands_for_the_better_figure() {
        assert_eq!(row(Limit::Server).compared(Better::Less).ratio, Some(4.0));
        assert_eq!(row(Limit::Neither).compared(Better::More).ratio, Some(0.25));
    }

    #[test]
    fn another_limit_than_the_server_leaves_no_ratio() {
        for limit in [Limit::Generator, Limit::Machine, Limit::Both, Limit::Invalid] {
            assert_eq!(row(limit).compared(Better::Less).ratio, None, "{limit:?}");
        }
        let nothing = PublishedRow::new("", "", Unit::Us).ours(1.0, Limit::Server);
        assert_eq!(nothing.compared(Better::Less).ratio, None);
    }

    #[test]
    fn a_row_without_figures_says_why() {
        let few = PublishedRow::new("250,000 clients", "p50", Unit::Us).published(3_400.0, "a");
        let document = throng_load::report::model::Document {
            tables: vec![table("Echo", &[row(Limit::Machine), few.missing("too few descriptors")])],
            ..Default::default()
        };
        let text = document.to_text();
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(lines[3], "10 clients p99 3.20 ms a 800 us - machine", "{text}");
        assert_eq!(lines[4], "250,000 clients p50 3.40 ms a too few descriptors", "{text}");
    }
}
