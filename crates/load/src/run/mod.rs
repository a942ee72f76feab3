//! A whole run: starts the threads, times the phases, takes samples between them, ends the threads,
//! and reports.

mod base;
mod fanout;
mod idle;
mod modes;
mod report;
mod steer;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub(crate) use self::base::Base;
pub use self::base::{FinishOnPanic, LEAD};
pub use self::modes::{NO_ANSWER, measure};
pub(crate) use self::report::{RunEnd, Times};
pub use self::steer::Steering;

use crate::client::{self, Handshake, Setup, ThreadStart, Work, WsStart};
use crate::error::Error;
use crate::merge::Merge;
use crate::plan::{Mode, Plan};
use crate::progress::Progress;
use crate::report::{LoadReport, Measured as Results, PlanReport};
pub use crate::sampled::Sampled;
use crate::verdict::Facts;
use crate::work::ChannelLayout;

/// Runs a plan to its end and reports. Blocks; calls `watch` about ten times per second on this
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
) -> Result<LoadReport, Error> {
    plan.check()?;
    let mut plan = plan.clone();
    let sockets = plan.sockets();
    let base = Base::of(&mut plan.common, sockets)?;
    let context = RunContext { plan: &plan, base: &base };
    let steering = base.steering(&plan.common, stop, watch);
    match plan.mode {
        Mode::Echo { pace, .. } => modes::echo(&context, steering, pace),
        Mode::Idle { hold } => idle::run(&context, steering, hold),
        Mode::Connect { rate_per_s, .. } => modes::connect(&context, steering, rate_per_s),
        Mode::Fanout { channels, subscribers, rate_per_s, .. } => {
            fanout::run(&context, steering, ChannelLayout { channels, subscribers }, rate_per_s)
        }
        Mode::Script { timeout, .. } => modes::script(&context, steering, timeout),
        Mode::Broadcast { publishes, timeout } => {
            modes::broadcast(&context, steering, publishes, timeout)
        }
    }
}

/// A run.
struct RunContext<'a> {
    plan: &'a Plan,
    base: &'a Base,
}

impl RunContext<'_> {
    /// Starts a thread for each share of the connections, steers them, and adds up their
    /// measurements.
    fn with_threads<W: Work + Send, R>(
        &self,
        extra_on_first: usize,
        backlog: usize,
        make: impl Fn(usize, usize) -> W + Sync,
        steer: impl FnOnce() -> Result<R, Error>,
    ) -> Result<(R, (Setup, W::Outcome)), Error>
    where
        W::Outcome: Merge,
    {
        let exact = self.plan.mode.is_open() || matches!(self.plan.mode, Mode::Fanout { .. });
        let seed = RandomState::new().hash_one(self.plan.common.connections);
        let handshake = Arc::new(Handshake::of(self.plan, seed)?);
        let common = &self.plan.common;
        let ws = WsStart {
            handshake,
            setup_timeout: common.setup_timeout,
            size: self.plan.size,
            backlog,
        };
        let run = |mut start: ThreadStart| {
            if let Mode::Connect { .. } = self.plan.mode {
                // Without a set-up, all connections may be in progress at any time.
                start.window = start.connections;
            }
            let work = make(start.thread, common.share(start.thread));
            client::run(start, &ws, work)
        };
        self.base.with_threads(common, extra_on_first, self.plan.size, exact, run, steer)
    }

    /// Returns the measured time, and the warm-up time including the ramp of the rate.
    fn times(&self) -> (Duration, Duration) {
        let (duration, warmup) = self.plan.mode.times().unwrap_or_default();
        (duration, warmup + self.plan.common.rate_ramp)
    }

    /// Returns the report of a run. `took` is the time of the set-up, if the run had one.
    fn report(
        &self,
        took: Option<Duration>,
        setup: Setup,
        sampled: &Sampled,
        result: Results,
        facts: Facts,
        times: Times<'_>,
    ) -> LoadReport {
        let end = RunEnd {
            common: &self.plan.common,
            plan: PlanReport::of(self.plan, self.base.sources.count()),
            took: took.map(|took| (took, self.plan.sockets())),
            setup,
            has_subprotocols: !self.plan.subprotocols.is_empty(),
            connections: None,
            sampled,
            result,
            facts,
            times,
        };
        end.report(self.base)
    }
}
