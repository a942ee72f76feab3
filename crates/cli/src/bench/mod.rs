//! `throng bench`: the command line around `throng-load`.

mod args;
mod progress;

use std::process::ExitCode;

use throng_load::Error;

use crate::signals::Stop;
use crate::{Failure, say};

pub(crate) use args::Args;

/// Runs the load that was asked for, prints its report on standard output, and returns the exit code.
///
/// Ctrl-C ends the run early with a report of what was measured until then; a second one ends the process.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let stop = Stop::on_signals().map_err(Failure::runtime)?;
    let code = measure(args, &stop)
        .map_err(|error| Failure { message: error.to_string(), code: error.exit_code() })?;
    Ok(ExitCode::from(code))
}

fn measure(args: Args, stop: &Stop) -> Result<u8, Error> {
    let (plan, output) = args.plan()?;
    let mut bar = progress::Bar::new(&plan, output.quiet);
    let outcome = throng_load::run(&plan, stop.flag(), &mut |progress| bar.show(progress));
    bar.finish();
    let report = outcome?;
    if output.json {
        say::text_as_is(report.to_json());
    } else {
        say::text_as_is(&report);
    }
    Ok(report.exit_code())
}
