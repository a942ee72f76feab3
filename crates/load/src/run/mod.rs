//! A run from beginning to end: starts the threads, times the phases, samples at their edges, ends
//! the threads, and reports.

mod base;
mod connect;
mod fanout;
mod idle;
mod modes;
mod report;
mod script;
mod steer;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub(crate) use self::base::Base;
pub use self::base::FinishOnPanic;
pub use self::modes::{LEAD, NO_ANSWER, measure};
pub(crate) use self::report::{ProtocolParts, RunOutcome, Times};
pub use self::steer::{Measured, Steering};

use crate::client::{self, Handshake, Setup, Start, Work};
use crate::error::Error;
use crate::plan::{Mode, Pace, Plan};
use crate::progress::Progress;
use crate::report::Report;
use crate::work::ChannelLayout;

/// Runs a plan to its end and reports. Blocks; `watch` is called about ten times a second on this
/// thread.
///
/// When `stop` becomes true the run ends early: with a report on the measurements so far, or with
/// [`Error::Interrupted`] if there are none.
///
/// # Errors
/// Any failure that leaves nothing to report, each with its remedy; see [`Error`].
pub fn run(
    plan: &Plan,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Report, Error> {
    plan.check()?;
    let mut plan = plan.clone();
    let sockets = plan.sockets();
    let base = Base::of(&mut plan.common, sockets)?;
    let context = RunContext { plan: &plan, base: &base };
    let steering = base.steering(&plan.common, stop, watch);
    match plan.mode {
        Mode::Echo { pace: Pace::Closed { pipeline }, duration, warmup } => {
            modes::closed_echo(&context, steering, pipeline, duration, warmup)
        }
        Mode::Echo { pace: Pace::Open { rate_per_s }, duration, warmup } => {
            modes::open_echo(&context, steering, rate_per_s, duration, warmup)
        }
        Mode::Idle { hold } => idle::run(&context, steering, hold),
        Mode::Connect { rate_per_s: None, duration, warmup } => {
            connect::closed(&context, steering, duration, warmup)
        }
        Mode::Connect { rate_per_s: Some(rate_per_s), duration, warmup } => {
            connect::open(&context, steering, rate_per_s, duration, warmup)
        }
        Mode::Fanout { channels, subscribers, rate_per_s, duration, warmup } => {
            let layout = ChannelLayout { channels, subscribers };
            fanout::run(&context, steering, layout, rate_per_s, duration, warmup)
        }
        Mode::Script { duration, warmup, timeout } => {
            let script = plan.script.as_ref().ok_or_else(without_script)?;
            script::run(&context, steering, script, (duration, warmup), timeout)
        }
        Mode::Broadcast { publishes, timeout } => {
            modes::broadcast(&context, steering, publishes, timeout)
        }
    }
}

/// A plan that was not checked.
fn without_script() -> Error {
    Error::Usage("the script mode needs a script".to_owned())
}

/// A run.
struct RunContext<'a> {
    plan: &'a Plan,
    base: &'a Base,
}

impl RunContext<'_> {
    /// Starts a thread for each share of the connections, steers them, and collects their results.
    fn with_threads<W: Work + Send, R>(
        &self,
        extra_on_first: usize,
        backlog: usize,
        make: impl Fn(usize, usize) -> W + Sync,
        steer: impl FnOnce() -> Result<R, Error>,
    ) -> Result<(R, Setup, Vec<W::Outcome>), Error> {
        let exact = matches!(
            self.plan.mode,
            Mode::Echo { pace: Pace::Open { .. }, .. }
                | Mode::Connect { rate_per_s: Some(_), .. }
                | Mode::Fanout { .. }
        );
        let seed = RandomState::new().hash_one(self.plan.common.connections);
        let handshake = Arc::new(Handshake::of(self.plan, seed)?);
        let connections =
            |thread| self.plan.common.share(thread) + if thread == 0 { extra_on_first } else { 0 };
        let threads = 0..self.plan.common.threads;
        let drivers = threads.map(|thread| {
            client::open_driver(connections(thread), self.plan.size, self.base.tls.as_ref())
        });
        let drivers = drivers.collect::<Result<_, _>>()?;
        let run = |thread, driver, tables| {
            let common = &self.plan.common;
            let start = Start {
                shared: Arc::clone(&self.base.shared),
                clock: self.base.clock,
                thread,
                peer: self.base.peer,
                tls: self.base.tls.clone(),
                handshake: Arc::clone(&handshake),
                connections: connections(thread),
                wanted: self.plan.sockets(),
                first: (0..thread).map(connections).sum(),
                sources: self.base.sources,
                window: match self.plan.mode {
                    // Without a set-up, all connections may be in progress at any time.
                    Mode::Connect { .. } => connections(thread),
                    _ => common.window.div_ceil(common.threads),
                },
                ramp: common.ramp,
                setup_timeout: common.setup_timeout,
                size: self.plan.size,
                backlog,
                exact,
                driver,
                tables,
            };
            client::run(start, make(thread, common.share(thread)))
        };
        let (steered, threads) = self.base.with_threads(drivers, run, steer)?;
        let (mut setup, mut outcomes) = (Setup::default(), Vec::new());
        for (thread_setup, outcome) in threads {
            setup.merge(thread_setup);
            outcomes.push(outcome);
        }
        Ok((steered, setup, outcomes))
    }
}
