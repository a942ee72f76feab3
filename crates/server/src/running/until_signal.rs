//! Running a server until the process gets a signal.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use throng_engine::DrainPlan;

use super::{Bound, Drained};
use crate::error::{Error, Result};

/// Runs `bound` until SIGINT or SIGTERM, and then drains it. A second signal ends the process.
pub(super) fn run_until_signal(bound: Bound, plan: DrainPlan) -> Result<Drained> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Error::Shard)?;
    let handle = signals.handle();
    let running = bound.start()?;
    let stopper = running.stopper();
    let wait = move || {
        if signals.forever().next().is_none() {
            return;
        }
        stopper.shutdown(plan);
        if let Some(signal) = signals.forever().next() {
            let _ = emulate_default_handler(signal);
        }
    };
    let name = "throng-signals".to_owned();
    let waiting = std::thread::Builder::new()
        .name(name)
        .spawn(wait)
        .map_err(|error| Error::Shard(throng_io::limits::thread_not_started(&error)))?;
    let drained = running.wait();
    handle.close();
    let _ = waiting.join();
    drained
}
