//! One model for every report: tables of columns with key, unit and label, and the text around
//! them.
//!
//! A mode fills in a [`Document`], from which this module makes text, CSV and HTML.

use crate::page::{Page, Plot};
use crate::record::Summary;
use crate::report::csv;
use crate::units::{grouped, rounded, show_bytes, show_ns};

/// Width of the labels on the left of a text report.
const LABEL: usize = 12;
/// Shown to readers instead of an unknown figure.
const UNKNOWN: &str = "-";

/// The unit of a column, which decides how readers see its numbers. CSV contains the plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Text.
    Text,
    /// A whole number.
    Count,
    /// A rate, or another number of any size.
    Number,
    /// Microseconds.
    Us,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// A share from 0 to 1, shown in per cent.
    Share,
    /// Per cent, three decimals.
    Percent,
    /// Factor.
    Times,
}

impl Unit {
    /// Formats a number of this unit for readers.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        let signed = |text: String| if value < 0.0 { format!("-{text}") } else { text };
        let size = value.abs();
        match self {
            Self::Text => value.to_string(),
            Self::Count => signed(grouped(size.round() as u64)),
            Self::Number => signed(rounded(size)),
            Self::Us => signed(show_ns((size * 1e3).round() as u64)),
            Self::Seconds => format!("{value:.3} s"),
            Self::Bytes => show_bytes(value.round() as i64),
            Self::Share => format!("{:.1} %", value * 100.0),
            Self::Percent => format!("{value:.3} %"),
            Self::Times => format!("{value:.2}x"),
        }
    }
}

/// A column of a [`Table`].
#[derive(Clone, Debug)]
pub struct Column {
    key: &'static str,
    unit: Unit,
    label: String,
}

impl Column {
    /// Creates a column: its name in CSV, with the unit last; its unit; and its label for readers.
    ///
    /// A column without a key is omitted from CSV; a column without a label is omitted from the
    /// forms for readers.
    #[must_use]
    pub fn new(key: &'static str, unit: Unit, label: impl Into<String>) -> Self {
        Self { key, unit, label: label.into() }
    }

    /// Its name in CSV.
    pub(crate) fn key(&self) -> &'static str {
        self.key
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    fn is_number(&self) -> bool {
        self.unit != Unit::Text
    }
}

/// The content of a table cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// An unknown value.
    Unknown,
    /// Text.
    Text(String),
    /// A number in the column's unit.
    Number(f64),
    /// A number, and the text that readers see instead.
    Shown(Option<f64>, String),
    /// Times. A list omits them, because a table of their quantiles shows them.
    Times(Summary),
}

impl Cell {
    /// Returns a number with a different text for readers.
    #[must_use]
    pub fn shown(value: impl Into<Option<f64>>, words: impl Into<String>) -> Self {
        Self::Shown(value.into(), words.into())
    }

    fn for_people(&self, unit: Unit) -> String {
        match self {
            Self::Unknown => UNKNOWN.to_owned(),
            Self::Text(text) | Self::Shown(_, text) => text.clone(),
            Self::Number(value) => unit.show(*value),
            Self::Times(times) => Unit::Us.show(times.p50_us),
        }
    }

    fn for_programs(&self) -> String {
        match self {
            Self::Unknown => String::new(),
            Self::Text(text) => text.clone(),
            Self::Number(value) => csv::number(Some(*value)),
            Self::Shown(value, _) => csv::number(*value),
            Self::Times(times) => csv::number(Some(times.p50_us)),
        }
    }
}

/// Declares the values that convert to cells.
macro_rules! cells {
    ($($Type:ty: $value:ident => $cell:expr;)*) => {
        $(impl From<$Type> for Cell {
            fn from($value: $Type) -> Self {
                $cell
            }
        })*
    };
}

cells! {
    &str: text => Self::Text(text.to_owned());
    String: text => Self::Text(text);
    f64: value => Self::Number(value);
    u64: value => Self::Number(value as f64);
    usize: value => Self::Number(value as f64);
    Summary: times => Self::Times(times);
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Unknown, Into::into)
    }
}

/// Makes a row from values that convert to a [`Cell`].
#[macro_export]
macro_rules! row {
    ($($cell:expr),* $(,)?) => {
        vec![$($crate::report::model::Cell::from($cell)),*]
    };
}
pub use crate::row;

/// A row of a [`Table`].
#[derive(Clone, Debug)]
pub struct Row {
    cells: Vec<Cell>,
    /// Why the row has no figures.
    reason: Option<String>,
}

impl Row {
    /// Returns a row that has no figures after `cells`, and the reason.
    #[must_use]
    pub fn without_figures(cells: Vec<Cell>, reason: impl Into<String>) -> Self {
        Self { cells, reason: Some(reason.into()) }
    }
}

impl From<Vec<Cell>> for Row {
    fn from(cells: Vec<Cell>) -> Self {
        Self { cells, reason: None }
    }
}

/// Rows of the same shape.
#[derive(Clone, Debug)]
pub struct Table {
    title: String,
    columns: Vec<Column>,
    rows: Vec<Row>,
    /// The name of the CSV column with the reason why a row has no figures.
    reasons: Option<&'static str>,
    plots: Vec<Plot>,
    notes: Vec<String>,
    /// Whether the only row is shown as a list of labels and values.
    is_list: bool,
}

impl Table {
    /// An empty table; the title may be empty.
    #[must_use]
    pub fn new(title: impl Into<String>, columns: Vec<Column>) -> Self {
        let (rows, plots, notes) = (Vec::new(), Vec::new(), Vec::new());
        Self { title: title.into(), columns, rows, reasons: None, plots, notes, is_list: false }
    }

    /// Returns a single row. For readers each figure has its own line, and unknown figures are
    /// omitted.
    #[must_use]
    pub fn list(figures: Vec<(Column, Cell)>) -> Self {
        let (columns, row) = figures.into_iter().unzip();
        let row: Vec<Cell> = row;
        Self { rows: vec![row.into()], is_list: true, ..Self::new("", columns) }
    }

    /// Adds rows.
    #[must_use]
    pub fn rows<R: Into<Row>>(mut self, rows: impl IntoIterator<Item = R>) -> Self {
        self.rows.extend(rows.into_iter().map(Into::into));
        self
    }

    /// Sets the name of the CSV column with the reason why a row has no figures.
    #[must_use]
    pub fn reasons(mut self, key: &'static str) -> Self {
        self.reasons = Some(key);
        self
    }

    /// Adds plots, for HTML.
    #[must_use]
    pub fn plots(mut self, plots: impl IntoIterator<Item = Plot>) -> Self {
        self.plots.extend(plots);
        self
    }

    /// Adds sentences below the table.
    #[must_use]
    pub fn notes(mut self, notes: impl IntoIterator<Item = String>) -> Self {
        self.notes.extend(notes);
        self
    }

    /// Returns whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn is_in_csv(&self) -> bool {
        self.columns.iter().any(|column| !column.key.is_empty())
    }

    /// Returns the columns that readers see.
    fn shown(&self) -> Vec<usize> {
        (0..self.columns.len()).filter(|&at| !self.columns[at].label.is_empty()).collect()
    }

    /// Returns the head and the rows for readers, as text.
    fn for_people(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let shown = self.shown();
        let words = |row: &[Cell], at: usize| Some(row.get(at)?.for_people(self.columns[at].unit));
        if self.is_list {
            let row = self.rows.first().map(|row| &row.cells[..]).unwrap_or_default();
            let known = shown.into_iter().filter(|&at| row.get(at) != Some(&Cell::Unknown));
            let lines =
                known.filter_map(|at| Some(vec![self.columns[at].label.clone(), words(row, at)?]));
            return (vec!["figure".to_owned(), "value".to_owned()], lines.collect());
        }
        let head = shown.iter().map(|&at| self.columns[at].label.clone()).collect();
        let rows = self.rows.iter().map(|row| {
            let cells = shown.iter().filter_map(|&at| words(&row.cells, at));
            cells.chain(row.reason.clone()).collect()
        });
        (head, rows.collect())
    }

    fn to_text(&self) -> String {
        if self.shown().is_empty() {
            return String::new();
        }
        let (head, rows) = self.for_people();
        let mut out = String::new();
        if !self.title.is_empty() {
            out.push_str(&self.title);
            out.push('\n');
        }
        let mut widths: Vec<usize> = match self.is_list {
            true => vec![0; 2],
            false => head.iter().map(|cell| cell.chars().count()).collect(),
        };
        let has_reason = |at: usize| !self.is_list && self.rows[at].reason.is_some();
        for (at, row) in rows.iter().enumerate() {
            // A reason may run on to the right.
            let counted = row.len() - usize::from(has_reason(at));
            for (width, cell) in widths.iter_mut().zip(row).take(counted) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let shown = self.shown();
        let is_right = |at: usize| match self.is_list {
            true => at == 1,
            false => shown.get(at).is_some_and(|&at| self.columns[at].is_number()),
        };
        let head = (!self.is_list).then_some((&head, false)).into_iter();
        let rows = rows.iter().enumerate().map(|(at, row)| (row, has_reason(at)));
        for (row, has_reason) in head.chain(rows) {
            let mut line = String::new();
            for (at, (width, cell)) in widths.iter().zip(row).enumerate() {
                let is_reason = has_reason && at + 1 == row.len();
                let cell = match is_right(at) && !is_reason {
                    true => format!("{cell:>width$}"),
                    false => format!("{cell:<width$}"),
                };
                line.push_str("  ");
                line.push_str(&cell);
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        for note in &self.notes {
            out.push_str(&format!("  {note}\n"));
        }
        out
    }

    fn to_page(&self, mut page: Page) -> Page {
        if !self.title.is_empty() {
            page = page.heading(&self.title);
        }
        for plot in &self.plots {
            page = page.plot(plot);
        }
        let (head, rows) = self.for_people();
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        if !self.shown().is_empty() && !rows.is_empty() {
            page = page.table(&head, &rows);
        }
        self.notes.iter().fold(page, |page, note| page.text(note))
    }
}

/// A report, ready to be shown in any form.
#[derive(Clone, Debug, Default)]
pub struct Document {
    /// The mode, such as `echo`.
    pub kind: &'static str,
    /// The heading of the page.
    pub title: String,
    /// The conditions of the measurement, one per line.
    pub conditions: Vec<String>,
    /// The figures.
    pub tables: Vec<Table>,
    /// Further lines about server, generator and errors, each with its label.
    pub remarks: Vec<(&'static str, String)>,
    /// Notices: advice, or reasons to distrust the figures.
    pub notices: Vec<String>,
    /// Party that limited the run.
    pub verdict: Option<String>,
}

impl Document {
    /// The text for a terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let mut label = self.kind;
        for condition in &self.conditions {
            out.push_str(&format!("{label:LABEL$}{condition}\n"));
            label = "";
        }
        for text in self.tables.iter().map(Table::to_text).filter(|text| !text.is_empty()) {
            out.push('\n');
            out.push_str(&text);
        }
        if !self.remarks.is_empty() {
            out.push('\n');
        }
        for (label, text) in &self.remarks {
            out.push_str(&format!("{label:LABEL$}{text}\n"));
        }
        if !self.notices.is_empty() {
            out.push('\n');
        }
        for notice in &self.notices {
            out.push_str(&format!("{notice}\n"));
        }
        if let Some(verdict) = &self.verdict {
            out.push_str(&format!("\n{:LABEL$}{verdict}\n", "verdict"));
        }
        out
    }

    /// Returns comma-separated values: a line of keys, then one line per row. Merges the columns of
    /// several tables.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut keys: Vec<&str> = Vec::new();
        let tables: Vec<&Table> = self.tables.iter().filter(|table| table.is_in_csv()).collect();
        for key in tables.iter().flat_map(|table| &table.columns).map(|column| column.key) {
            if !key.is_empty() && !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys.extend(tables.iter().find_map(|table| table.reasons));
        let rows = tables.iter().flat_map(|table| {
            table.rows.iter().map(|row| {
                let cell = |key: &&str| {
                    if table.reasons == Some(*key) {
                        return row.reason.clone();
                    }
                    let at = table.columns.iter().position(|column| column.key == *key)?;
                    row.cells.get(at).map(Cell::for_programs)
                };
                keys.iter().map(|key| cell(key).unwrap_or_default()).collect()
            })
        });
        csv::document(&keys, rows)
    }

    /// One self-contained page, with plots.
    #[must_use]
    pub fn to_html(&self) -> String {
        let mut page = Page::new(&self.title);
        for condition in &self.conditions {
            page = page.text(condition);
        }
        if let Some(verdict) = &self.verdict {
            page = page.notice(&format!("Verdict: {verdict}"));
        }
        for notice in &self.notices {
            page = page.notice(notice);
        }
        for table in &self.tables {
            page = table.to_page(page);
        }
        for (label, text) in &self.remarks {
            page = match *label {
                "" => page.text(text),
                label => page.text(&format!("{label}: {text}")),
            };
        }
        page.to_html()
    }
}

/// A report of one mode: typed figures for programs, and a [`Document`] for all other forms.
pub trait Render: serde::Serialize {
    /// The report as tables.
    fn document(&self) -> Document;

    /// Exit code of a process that made this report: 0, or 1 if the figures do not count.
    fn exit_code(&self) -> u8;

    /// Returns the JSON document, indented, with a final line break. Names are stable; an unknown
    /// value is `null`.
    fn to_json(&self) -> String {
        // Plain structs with string keys: serialising cannot fail.
        let mut json = serde_json::to_string_pretty(self).unwrap_or_default();
        json.push('\n');
        json
    }

    /// The text for a terminal.
    fn to_text(&self) -> String {
        self.document().to_text()
    }

    /// Comma-separated values.
    fn to_csv(&self) -> String {
        self.document().to_csv()
    }

    /// One self-contained page.
    fn to_html(&self) -> String {
        self.document().to_html()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::well_formed::assert_well_formed;

    fn document() -> Document {
        let columns = vec![
            Column::new("server", Unit::Text, "server"),
            Column::new("connections", Unit::Count, "connections"),
            Column::new("rate_per_s", Unit::Number, "per second"),
            Column::new("p99_us", Unit::Us, ""),
            Column::new("", Unit::Bytes, "memory"),
        ];
        let table = Table::new("Servers", columns)
            .rows([row!["a, b", 10_000usize, 1234.5, 1500.0, 2048.0]])
            .rows([row!["c", 5usize, Cell::shown(2.0, "2 (1-3)"), None::<f64>, -3.0]])
            .rows([Row::without_figures(row!["d", 7usize], "no descriptors left for it")])
            .reasons("missing")
            .notes(["One run.".to_owned()]);
        let list = Table::list(vec![
            (Column::new("", Unit::Share, "share"), 0.5.into()),
            (Column::new("", Unit::Share, "unknown"), None::<f64>.into()),
        ]);
        Document {
            kind: "test",
            title: "A < B".to_owned(),
            conditions: vec!["first".to_owned(), "second".to_owned()],
            tables: vec![table, list],
            remarks: vec![("generator", "idle".to_owned())],
            notices: vec!["Take care.".to_owned()],
            verdict: Some("server-limited".to_owned()),
        }
    }

    #[test]
    fn text_has_columns_below_their_labels() {
        let expected = "\
test        first
            second

Servers
  server  connections  per second  memory
  a, b         10,000       1,235   2 KiB
  c                 5     2 (1-3)    -3 B
  d                 7  no descriptors left for it
  One run.

  share  50.0 %

generator   idle

Take care.

verdict     server-limited
";
        let text = document().to_text();
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn csv_has_plain_numbers_below_their_keys() {
        let expected = "\
server,connections,rate_per_s,p99_us,missing
\"a, b\",10000,1234.5,1500,
c,5,2,,
d,7,,,no descriptors left for it
";
        assert_eq!(document().to_csv(), expected);
    }

    #[test]
    fn a_page_has_everything_that_text_has() {
        let html = document().to_html();
        assert_well_formed(&html);
        for words in ["A &lt; B", "Verdict: server-limited", "Take care.", "2 (1-3)", "One run."] {
            assert!(html.contains(words), "{words:?} in\n{html}");
        }
        assert!(html.contains("no descriptors left") && html.contains("50.0 %"), "{html}");
    }
}
