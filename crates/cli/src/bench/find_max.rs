//! `--find-max` of `throng bench echo`, `connect`, `fanout` and `http`: the highest rate that meets
//! the thresholds.

use throng_load::Error;
use throng_load::find_max::{Event, FindMaxReport, Load, Options, find_max};
use throng_load::units::rounded;

use super::progress::StatusLine;
use crate::signals::Stop;

/// The search.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct FindMaxArgs {
    /// Find the highest rate, of all connections together, that keeps each --slo: one run of
    /// --duration for each rate, doubled and then bisected from --rate on
    #[arg(long)]
    find_max: bool,
    /// Precision of the search, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, requires = "find_max")]
    precision: f64,
}

impl FindMaxArgs {
    /// Returns the options of a search that begins at a first rate, if a search was requested.
    pub(super) fn options(self, start_per_s: f64) -> Option<Options> {
        let options = Options { start_per_s, precision: self.precision / 100.0 };
        self.find_max.then_some(options)
    }
}

/// Searches.
pub(super) fn search(
    load: &Load,
    options: Options,
    quiet: bool,
    stop: &Stop,
) -> Result<FindMaxReport, Error> {
    let mut line = StatusLine::new("find-max", quiet);
    find_max(load, options, stop.flag(), &mut |event| match event {
        Event::Begins { step, rate_per_s } => {
            line.rename(&format!("step {step}, {}/s", rounded(rate_per_s)));
        }
        Event::Running(progress) => line.show(progress),
        Event::Ended(step) => {
            line.keep(step.reason.as_deref().unwrap_or("kept"));
        }
    })
}
