//! The line that shows the progress of a run, on standard error and only on a terminal.

use std::fmt::Display;
use std::io::{Write, stderr};
use std::time::Duration;

use throng_compare::CellProgress;
use throng_load::units::{grouped, rounded, show_duration};
use throng_load::{Progress, RunStage};
use throng_proto::escape::Escaped;

use crate::terminal;

/// A status line that overwrites itself. Shows nothing when standard error is not a terminal, or a
/// dumb one.
#[derive(Debug)]
pub struct StatusLine {
    title: String,
    is_shown: bool,
}

impl StatusLine {
    /// A line that begins with `title`; with `quiet` it is never shown.
    #[must_use]
    pub fn new(title: &str, quiet: bool) -> Self {
        Self { title: title.to_owned(), is_shown: !quiet && terminal::is_replaceable(&stderr()) }
    }

    /// Shows the progress of a run.
    pub fn show(&self, progress: &Progress) {
        self.show_text(words(progress));
    }

    /// Shows any text.
    pub fn show_text(&self, text: impl Display) {
        if self.is_shown {
            // A status line that cannot be written is not worth ending a run.
            let line = terminal::fitting(&stderr(), &format!("{}: {text}", self.title));
            let _ = write!(stderr(), "\r\x1b[2K{line}");
        }
    }

    /// Shows a permanent text on a separate line.
    pub fn keep(&self, text: impl Display) {
        if self.is_shown {
            let _ = writeln!(stderr(), "\r\x1b[2K{}: {}", self.title, Escaped(text));
        }
    }

    /// Clears the line, before something else is written to the terminal.
    pub fn clear(&self) {
        if self.is_shown {
            let _ = write!(stderr(), "\r\x1b[2K");
        }
    }

    /// Changes the title.
    pub fn rename(&mut self, title: &str) {
        title.clone_into(&mut self.title);
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A comparison that takes longer is announced with its time.
const LONG: Duration = Duration::from_secs(60);

/// Shows how far a comparison is, after a line that says how long it will take.
#[derive(Debug)]
pub struct CellLine {
    line: StatusLine,
    is_announced: bool,
}

impl CellLine {
    /// A line that begins with `title`; with `quiet` nothing is shown.
    #[must_use]
    pub fn new(title: &str, quiet: bool) -> Self {
        Self { line: StatusLine::new(title, quiet), is_announced: quiet }
    }

    /// Shows the progress.
    pub fn show(&mut self, progress: &CellProgress) {
        let left = show_duration(Duration::from_secs(progress.left.as_secs()));
        if !std::mem::replace(&mut self.is_announced, true) && progress.left > LONG {
            terminal::error_line(format_args!("{} cells, about {left} in all", progress.cells));
        }
        let (cell, number) = (&progress.cell, progress.done + 1);
        self.line.rename(&format!("{number} of {}, about {left} left; {cell}", progress.cells));
        if let Some(within) = &progress.within {
            self.line.show(within);
        }
    }
}

fn words(progress: &Progress) -> String {
    let rate = rounded(progress.per_s);
    match progress.stage {
        RunStage::Connecting { ready, wanted } => {
            format!("connecting {} of {}", grouped(ready), grouped(wanted))
        }
        RunStage::WarmingUp { .. } => format!("warming up, {rate}/s"),
        RunStage::Measuring { elapsed, total } => format!(
            "{rate}/s, {} of {}",
            show_duration(Duration::from_secs(elapsed.as_secs())),
            show_duration(total)
        ),
        RunStage::Counting { done, total } => {
            format!("{rate}/s, {} of {}", grouped(done), grouped(total))
        }
        RunStage::Publishing { done, total } => {
            format!("publish {} of {}, {rate} deliveries/s", grouped(done), grouped(total))
        }
        RunStage::Draining { waiting } => format!("waiting for {} answers", grouped(waiting)),
        RunStage::AwaitingClose { open } => {
            format!("waiting for the server to close {} connections: stop it now", grouped(open))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_has_words() {
        let say = |stage| words(&Progress { stage, connections: 5, done: 10, per_s: 1234.0 });
        assert_eq!(say(RunStage::Connecting { ready: 5, wanted: 1000 }), "connecting 5 of 1,000");
        let (elapsed, total) = (Duration::from_millis(2400), Duration::from_secs(10));
        assert_eq!(say(RunStage::WarmingUp { elapsed, total }), "warming up, 1,234/s");
        assert_eq!(say(RunStage::Measuring { elapsed, total }), "1,234/s, 2s of 10s");
        assert_eq!(
            say(RunStage::Publishing { done: 3, total: 10 }),
            "publish 3 of 10, 1,234 deliveries/s"
        );
        assert_eq!(say(RunStage::Counting { done: 3, total: 10 }), "1,234/s, 3 of 10");
        assert_eq!(say(RunStage::Draining { waiting: 7 }), "waiting for 7 answers");
    }
}
