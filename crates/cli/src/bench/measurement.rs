//! A measurement: a load, its server, and the form of its report.

use std::process::ExitCode;

use throng_load::Progress;
use throng_load::find_max::{Load, Options};

use super::find_max;
use super::output::OutputArgs;
use super::own;
use super::progress::StatusLine;
use crate::failure::Failure;
use crate::signals::Stop;

/// A load as the flags of its mode describe it; mistakes were refused before.
#[derive(Debug)]
pub(super) struct Measurement {
    pub(super) load: Load,
    /// Options of the search for the highest rate; `None`: one run is made.
    pub(super) search: Option<Options>,
    /// Event loops of a server to start, which replaces the load's target.
    pub(super) own_shards: Option<usize>,
    pub(super) output: OutputArgs,
}

impl Measurement {
    /// Measures, and shows the report.
    pub(super) fn run(mut self, stop: &Stop) -> Result<ExitCode, Failure> {
        self.output.check()?;
        // Kept until the end: dropping it stops the server.
        let _own = match self.own_shards {
            Some(shards) => Some(own::start(shards, &mut self.load)?),
            None => None,
        };
        stop.begin();
        let quiet = self.output.quiet;
        match (&self.load, self.search) {
            (load, Some(options)) => {
                let report = find_max::search(load, options, quiet, stop)?;
                stop.end();
                self.output.show(&report)
            }
            (Load::WebSocket(plan), None) => {
                let report = watched(plan.mode.name(), quiet, |watch| {
                    throng_load::run(plan, stop.flag(), watch)
                })?;
                stop.end();
                self.output.show(&report)
            }
            (Load::Http(plan), None) => {
                let report = watched("http", quiet, |watch| {
                    throng_load::http::run(plan, stop.flag(), watch)
                })?;
                stop.end();
                self.output.show(&report)
            }
        }
    }
}

/// Executes a run and shows its progress on a line until it ends.
fn watched<R>(title: &str, quiet: bool, run: impl FnOnce(&mut dyn FnMut(&Progress)) -> R) -> R {
    let line = StatusLine::new(title, quiet);
    run(&mut |progress| line.show(progress))
}
