//! `throng bench`: the command line around `throng-load`.

pub mod args;
mod broadcast;
mod compare;
pub mod deflate;
mod fanout;
mod find_max;
pub mod flags;
mod http;
mod identity;
pub mod output;
mod own;
mod payload;
pub mod progress;
mod script;

use std::process::ExitCode;

use throng_load::find_max::Load;
use throng_load::{Error, Plan, Report};

use self::args::Task;
use self::output::OutputArgs;
use self::progress::StatusLine;
use crate::Failure;
use crate::signals::Stop;

pub use args::Args;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { message: error.to_string(), code: error.exit_code() }
    }
}

/// Runs the load that was asked for, prints its report on standard output, and returns the exit
/// code.
///
/// Ctrl-C ends the run early with a report of what was measured until then; a second one ends the
/// process.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    // For the server of our own, too, which gets a terminal's Ctrl-C as well: it ends when this
    // process lets it go.
    let stop = Stop::on_signals().map_err(Failure::runtime)?;
    match args.task()? {
        Task::Run(plan, output) => measure(&plan, &output, &stop),
        Task::FindMax(plan, start_per_s, args, output) => {
            output.check()?;
            find_max::run(&Load::WebSocket(plan), start_per_s, args, &output, &stop)
        }
        Task::Broadcast(args) => broadcast::run(args, &stop),
        Task::Fanout(args) => fanout::run(args, &stop),
        Task::Http(args) => http::run(args, &stop),
        Task::Compare(args) => compare::run(&args),
        Task::OwnServer(args) => own::run(&args),
    }
}

/// One run of the generator, and its report in any form.
fn measure(plan: &Plan, output: &OutputArgs, stop: &Stop) -> Result<ExitCode, Failure> {
    output.check()?;
    output.show(&load(plan, output.quiet, stop)?)
}

/// One run of the generator.
fn load(plan: &Plan, quiet: bool, stop: &Stop) -> Result<Report, Error> {
    let line = StatusLine::new(plan.mode.name(), quiet);
    throng_load::run(plan, stop.flag(), &mut |progress| line.show(progress))
}
