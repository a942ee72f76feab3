//! Running a server until the process gets a console control event.

use std::sync::atomic::{AtomicBool, Ordering};

use throng_engine::DrainPlan;
use throng_io::console;

use super::{Bound, Drained};
use crate::error::{Error, Result};

/// Runs `bound` until an event: Ctrl-C, Ctrl-Break, the end of the console or of the session. Then
/// drains it. A second event ends the process.
pub(super) fn run_until_signal(bound: Bound, plan: DrainPlan) -> Result<Drained> {
    let running = bound.start()?;
    let stopper = running.stopper();
    let is_draining = AtomicBool::new(false);
    let registration =
        console::on_event(move |_| match is_draining.swap(true, Ordering::Relaxed) {
            false => stopper.shutdown(plan),
            true => std::process::exit(130),
        })
        .map_err(Error::Shard)?;
    let drained = running.wait();
    drop(registration);
    drained
}
