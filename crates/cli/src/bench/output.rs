//! Output of a report with plots: a table, JSON or CSV on standard output, and a page in a file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use throng_load::report::Render;

use crate::failure::Failure;
use crate::terminal;

/// The forms in which a report can be shown.
#[derive(Debug, clap::Args)]
pub struct OutputArgs {
    /// Print the report as JSON instead of a table
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print the report as CSV instead of a table
    #[arg(long)]
    pub csv: bool,
    /// Write a page to this file as well, with plots of what was timed; nothing in it is loaded
    /// from elsewhere
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
}

impl OutputArgs {
    /// Refuses a page that could not be written, before anything is measured for it.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn check(&self) -> Result<(), Failure> {
        self.html.as_deref().map_or(Ok(()), |path| check_file("--html", path))
    }

    /// Writes the page, if requested, and prints the report.
    ///
    /// # Errors
    /// The page or the report cannot be written.
    pub fn show(&self, report: &impl Render) -> Result<ExitCode, Failure> {
        if let Some(path) = &self.html {
            write_file("--html", path, &report.to_html())?;
        }
        terminal::report(match (self.json, self.csv) {
            (true, _) => report.to_json(),
            (_, true) => report.to_csv(),
            _ => report.to_text(),
        })?;
        Ok(ExitCode::from(report.exit_code()))
    }
}

/// Refuses a file that could not be written.
///
/// # Errors
/// There is no such directory, or the file is one.
pub(crate) fn check_file(flag: &str, path: &Path) -> Result<(), Failure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match parent {
        Some(parent) if !parent.is_dir() => {
            let (path, shown) = (path.display(), parent.display());
            Err(Failure::usage(match std::fs::metadata(parent) {
                // It may exist but be inaccessible.
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    format!("{flag} {path}: {shown}: {error}")
                }
                _ => format!("{flag} {path}: the directory {shown} does not exist"),
            }))
        }
        _ if path.is_dir() => {
            Err(Failure::usage(format!("{flag} {} is a directory; name a file", path.display())))
        }
        _ => Ok(()),
    }
}

/// Writes a file that a flag names.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write_file(flag: &str, path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| {
        Failure::runtime(format!("cannot write {flag} {}: {error}", path.display()))
    })
}
