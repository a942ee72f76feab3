//! How a report with plots is shown: a table, JSON or CSV on standard output, and a page in a file.

use std::fmt::Display;
use std::path::PathBuf;

use crate::{Failure, say};

/// The forms in which a report can be shown.
#[derive(Debug, clap::Args)]
pub struct OutputArgs {
    /// Print the report as JSON instead of a table
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print the report as CSV instead of a table
    #[arg(long)]
    pub csv: bool,
    /// Write a page with plots to this file as well; nothing in it is loaded from elsewhere
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// A report in all its forms.
pub trait Shown: Display {
    /// As JSON.
    fn to_json(&self) -> String;
    /// As CSV.
    fn to_csv(&self) -> String;
    /// As a page.
    fn to_html(&self) -> String;
}

/// Says that a report has all three forms by methods of its own.
#[macro_export]
macro_rules! shown {
    ($report:ty) => {
        impl $crate::bench::output::Shown for $report {
            fn to_json(&self) -> String {
                self.to_json()
            }

            fn to_csv(&self) -> String {
                self.to_csv()
            }

            fn to_html(&self) -> String {
                self.to_html()
            }
        }
    };
}
pub use crate::shown;

impl OutputArgs {
    /// Refuses a page that could not be written, before anything is measured for it.
    pub fn check(&self) -> Result<(), Failure> {
        let Some(path) = &self.html else { return Ok(()) };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        match parent {
            Some(parent) if !parent.is_dir() => Err(Failure::usage(format!(
                "--html {}: there is no directory {}",
                path.display(),
                parent.display()
            ))),
            _ if path.is_dir() => Err(Failure::usage(format!(
                "--html {} is a directory; name a file",
                path.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Writes the page, if one was asked for, and prints the report.
    pub fn show(&self, report: &impl Shown) -> Result<(), Failure> {
        if let Some(path) = &self.html {
            std::fs::write(path, report.to_html()).map_err(|error| {
                Failure::runtime(format!("cannot write --html {}: {error}", path.display()))
            })?;
        }
        match (self.json, self.csv) {
            (true, _) => say::text_as_is(report.to_json()),
            (_, true) => say::text_as_is(report.to_csv()),
            _ => say::text_as_is(report),
        };
        Ok(())
    }
}
