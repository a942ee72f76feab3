//! A comparison: cells that are measured one after the other, and the report with their rows.

use std::fmt::Display;
use std::time::Duration;

use throng_load::Error;
use throng_load::report::Render;

use crate::bench::Bench;

/// A comparison, whose fields are its flags.
pub trait Comparison: clap::Args {
    /// One measurement to make; its text names it in messages.
    type Cell: Display;
    /// The measurement of a cell, or the reason why there is no measurement.
    type Row;
    /// The rows, which can be written in all report formats.
    type Findings: Render;

    /// The name of the comparison on the command line.
    const NAME: &'static str;

    /// Refuses invalid flags, and finds the programs to measure.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the flag, the value and the remedy; or the error that no program to
    /// measure was found.
    fn prepare(&mut self) -> Result<(), Error>;

    /// The cells, in the order in which they are measured.
    fn cells(&self) -> Vec<Self::Cell>;

    /// Returns roughly how long a cell takes.
    fn estimate(&self, cell: &Self::Cell) -> Duration;

    /// Measures a cell.
    ///
    /// # Errors
    /// The cell has no figures; [`Error::Interrupted`] if the run was stopped.
    fn measure(&self, cell: &Self::Cell, bench: &mut Bench<'_>) -> Result<Self::Row, Error>;

    /// Returns the row of a failed cell; `None`, the default, if the failure ends the comparison.
    fn failed(&self, _: &Self::Cell, _: &Error) -> Option<Self::Row> {
        None
    }

    /// Returns sentences that follow from the rows.
    fn advice(&self, _: &[Self::Row]) -> Vec<String> {
        Vec::new()
    }

    /// The report.
    fn report(self, measured: Measured<Self::Row>) -> Self::Findings;
}

/// The rows of a run.
#[derive(Clone, Debug, Default)]
pub struct Measured<R> {
    /// The rows, in the order of their cells. A stopped run has fewer rows than cells.
    pub rows: Vec<R>,
    /// The sentences of [`Comparison::advice`].
    pub advice: Vec<String>,
    /// Share (0 to 1) of the machine's CPU time that all processes used during the run.
    pub machine_busy_share: Option<f64>,
}

/// Parses the flags of a comparison; without flags, returns the usual comparison.
///
/// # Errors
/// An unknown flag or value.
pub fn from_flags<C: Comparison>(flags: &[&str]) -> Result<C, clap::Error> {
    let command = C::augment_args(clap::Command::new(C::NAME).no_binary_name(true));
    C::from_arg_matches(&command.try_get_matches_from(flags)?)
}

/// Returns a test's comparison with its flags checked, but without a run.
#[cfg(test)]
pub(crate) fn checked<C: Comparison>(line: &str) -> Result<C, String> {
    let flags: Vec<&str> = line.split_whitespace().collect();
    let mut comparison = from_flags::<C>(&flags).map_err(|error| error.to_string())?;
    comparison.prepare().map_err(|error| error.to_string())?;
    Ok(comparison)
}

/// Checks that each line of flags is refused with an error that contains these words.
#[cfg(test)]
pub(crate) fn assert_refused<C: Comparison>(lines: &[(&str, &str)]) {
    for (line, words) in lines {
        let error = checked::<C>(line).err().unwrap_or_default();
        assert!(error.contains(words), "{line}: {error:?}");
    }
}
