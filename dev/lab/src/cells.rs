//! Progress of a comparison that measures one cell after the other.

use std::time::Duration;

use throng_cli::bench::progress::StatusLine;
use throng_cli::terminal;
use throng_load::Progress;
use throng_load::units::show_duration;

/// Progress of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct CellProgress {
    /// The current cell, for people: `round 1, nginx, 4 KiB echo`.
    pub(crate) cell: String,
    /// Cells done.
    pub(crate) done: usize,
    /// All cells.
    pub(crate) cells: usize,
    /// Estimated time that the rest will take.
    pub(crate) left: Duration,
    /// Progress of the cell; `None` before it has begun.
    pub(crate) within: Option<Progress>,
}

/// Shows how far a comparison is, after a line that says how long it will take.
pub(crate) struct CellLine {
    line: StatusLine,
    is_announced: bool,
}

impl CellLine {
    pub(crate) fn new(title: &str, quiet: bool) -> Self {
        Self { line: StatusLine::new(title, quiet), is_announced: quiet }
    }

    pub(crate) fn show(&mut self, progress: &CellProgress) {
        let left = show_duration(Duration::from_secs(progress.left.as_secs()));
        if !std::mem::replace(&mut self.is_announced, true) {
            terminal::error_line(format_args!("{} cells, about {left} in all", progress.cells));
        }
        let (cell, number) = (&progress.cell, progress.done + 1);
        self.line.rename(&format!("{number} of {}, about {left} left; {cell}", progress.cells));
        if let Some(within) = &progress.within {
            self.line.show(within);
        }
    }
}
