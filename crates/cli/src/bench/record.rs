//! `throng bench --record`: a scenario from a running server.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use throng_load::scenario::recorded;

use super::output::{check_file, write_file};
use crate::doctor::live::{interval, read_twice};
use crate::failure::Failure;
use crate::terminal;

pub(super) const EXAMPLES: &str = "Examples:
  throng bench --record 127.0.0.1:9001 > scenario.toml
  throng bench record 127.0.0.1:9101 --interval 60s --token-file token -o chat.toml
  throng tune --scenario chat.toml -- throng serve --config throng.toml";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The address of /stats.json: of `throng serve` itself on a loopback address, or of its
    /// admin.listen; of a program with the library, where App::metrics is
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// The time between the readings, at least 1s
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "10s")]
    interval: Duration,
    /// File with the token of the admin API
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Write the scenario to this file, in place of standard output
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Args {
    /// Reads the statistics twice, and writes the scenario.
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        if let Some(path) = &self.out {
            check_file("--out", path)?;
        }
        let address = ("ADDRESS", self.address.as_str());
        let readings = read_twice(address, self.interval, self.token_file.as_deref())?;
        let text = recorded(&readings.before, &readings.after, readings.seconds)
            .map_err(|why| Failure::runtime(format!("{}: {why}", readings.source)))?;
        match &self.out {
            Some(path) => write_file("--out", path, &text)?,
            None => terminal::report(text)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
