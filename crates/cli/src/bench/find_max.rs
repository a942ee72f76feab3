//! `--find-max` of `throng bench echo` and `http`: the highest rate that keeps the thresholds.

use std::process::ExitCode;

use throng_load::find_max::{Event, Load, Options, find_max};
use throng_load::units::rounded;

use super::output::OutputArgs;
use super::progress::StatusLine;
use crate::Failure;
use crate::signals::Stop;

/// The search.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct FindMaxArgs {
    /// Find the highest rate, of all connections together, that keeps each --slo: one run of
    /// --duration for each rate, doubled and then bisected from --rate on
    #[arg(long)]
    pub(super) find_max: bool,
    /// How close the search comes, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, requires = "find_max")]
    precision: f64,
}

/// Searches, and shows the report.
pub(super) fn run(
    load: &Load,
    start_per_s: f64,
    args: FindMaxArgs,
    output: &OutputArgs,
    stop: &Stop,
) -> Result<ExitCode, Failure> {
    let options = Options { start_per_s, precision: args.precision / 100.0 };
    let mut line = StatusLine::new("find-max", output.quiet);
    let report = find_max(load, options, stop.flag(), &mut |event| match event {
        Event::Begins { step, rate_per_s } => {
            line.rename(&format!("step {step}, {}/s", rounded(rate_per_s)));
        }
        Event::Running(progress) => line.show(progress),
        Event::Ended(step) => {
            line.keep(step.reason.as_deref().unwrap_or("kept"));
        }
    });
    drop(line);
    output.show(&report?)
}
