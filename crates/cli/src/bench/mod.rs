//! `throng bench`: the command line around `throng-load`.

pub mod args;
mod broadcast;
mod compare;
mod connect;
mod fanout;
mod find_max;
pub mod flags;
mod http;
mod identity;
mod measurement;
pub mod output;
mod own;
mod payload;
pub mod progress;
mod published;
mod record;
mod script;

use std::process::ExitCode;

use throng_load::Error;
use throng_load::plan::MAX_SIZE;

use self::args::Task;
use crate::failure::Failure;
use crate::signals::Stop;

pub use args::Args;

/// Maximum bytes of a file that is read for a run: the same as of the largest payload.
const MAX_FILE: u64 = MAX_SIZE as u64;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { message: error.to_string(), code: error.exit_code() }
    }
}

/// Runs the requested load, prints its report on standard output, and returns the exit code.
///
/// Ctrl-C ends the run early with a report of the figures so far; a second one ends the process. So
/// does the first one while files are read, or one of the report is written.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    // Also for the started parts, which get a terminal's Ctrl-C as well: they end when this
    // process stops them.
    let stop = Stop::after_start().map_err(Failure::runtime)?;
    match args.task()? {
        // A signal ends it.
        Task::BlankWork(server) => server.run(),
        Task::Measure(measurement) => measurement.run(&stop),
        Task::Compare(args) => compare::run(&args),
        Task::Record(args) => args.run(),
        Task::Published(args) => {
            stop.begin();
            published::run(&args, &stop)
        }
        Task::Part(part) => {
            stop.begin();
            throng_compare::parts::play(&part)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
