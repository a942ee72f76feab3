//! The means to measure a cell.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use throng_load::report::Errors;
use throng_load::sampler::Processes;
use throng_load::{Error, Plan, Progress, Report};

use crate::parts::Launch;

/// Connections that open and close before memory is measured, so that one-time allocations of a
/// process do not count as a connection's memory.
pub(crate) const FIRST_CONNECTIONS: usize = 4;
/// Maximum wait until a server has noticed the end of these connections.
const GONE: Duration = Duration::from_secs(2);

/// The means to measure a cell: how to start processes, whether the run must end, and how to report
/// progress.
pub struct Bench<'a> {
    pub(crate) launch: Launch<'a>,
    /// True if the run must end.
    pub(crate) stop: &'a AtomicBool,
    pub(crate) watch: &'a mut dyn FnMut(&Progress),
}

impl Bench<'_> {
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs a load.
    pub(crate) fn load(&mut self, plan: &Plan) -> Result<Report, Error> {
        throng_load::run(plan, self.stop, self.watch)
    }

    /// Runs a load. Wrong answers and lost connections are an error.
    pub(crate) fn flawless_load(&mut self, plan: &Plan) -> Result<Report, Error> {
        let report = self.load(plan)?;
        flawless(&report.errors).map(|()| report)
    }
}

/// Refuses figures from a run with wrong answers or lost connections.
pub(crate) fn flawless(errors: &Errors) -> Result<(), Error> {
    match &errors.first {
        Some(first) => {
            Err(Error::Child(format!("{} failures, the first: {first}", errors.total())))
        }
        None => Ok(()),
    }
}

/// Waits, up to a time limit, until the processes have no more descriptors than `before`.
pub(crate) fn until_gone(processes: &Processes, before: Option<usize>) {
    let begun = Instant::now();
    while processes.descriptors() > before && begun.elapsed() < GONE {
        thread::sleep(Duration::from_millis(5));
    }
}
