//! A run from beginning to end: starts the threads, times the phases, samples at their edges, ends
//! the threads, and reports.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use throng_io::tables::Tables;

use super::client::Client;
use super::pool::Start;
use super::request::Wire;
use super::steered::Steered;
use super::tally::Tally;
use super::{Pace, Plan, Report};
use crate::client::{Timeline, open_driver};
use crate::error::Error;
use crate::progress::Progress;
use crate::run::{Base, LEAD, NO_ANSWER, Steering, measure};

/// Maximum wait for outstanding answers at the end of an open loop.
const DRAIN: Duration = Duration::from_secs(5);

/// Runs a plan to its end and reports. Blocks; `watch` is called about ten times a second on this
/// thread.
///
/// When `stop` becomes true the run ends early: with a report on the measurements so far, or with
/// [`Error::Interrupted`] if there are none.
///
/// # Errors
/// Any failure that leaves nothing to report, each with its remedy; see [`Error`]. A failure during
/// the measurement is counted in the report instead.
pub fn run(
    plan: &Plan,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Report, Error> {
    plan.check()?;
    let mut plan = plan.clone();
    let sockets = plan.common.connections;
    let base = Base::of(&mut plan.common, sockets)?;
    let context = RunContext { plan: &plan, wire: Wire::of(&plan)?, base: &base };
    let steering = base.steering(&plan.common, stop, watch);
    let (steered, tally) = context.with_threads(|| context.steer(steering))?;
    let server = base.server.as_ref();
    Ok(Report::of(&plan, &base.sources, &context.wire, server, &steered, tally))
}

/// A run.
struct RunContext<'a> {
    plan: &'a Plan,
    wire: Wire,
    base: &'a Base,
}

impl RunContext<'_> {
    /// Waits through the phases of the run.
    fn steer(&self, mut steering: Steering<'_>) -> Result<Steered, Error> {
        let plan = self.plan;
        let took = match plan.keep_alive {
            true => Some(steering.ready(plan.common.connections)?),
            false => None,
        };
        let start = self.base.clock.now().after(LEAD);
        let warmup = plan.warmup + plan.common.rate_ramp;
        let from = start.after(warmup);
        let timeline = Timeline { start, from, to: from.after(plan.duration) };
        self.base.shared.begin(timeline);
        if let Some(number) = plan.common.number {
            let begin = steering.moment();
            let limit = NO_ANSWER.max(plan.timeout + Duration::from_secs(2));
            steering.count(number, limit, |shared| {
                let over = shared.sum(|lane| &lane.sent) + shared.sum(|lane| &lane.done);
                number.saturating_sub(over)
            });
            return Ok(Steered { took, start: Some(start), measured: steering.measured(begin) });
        }
        let measured = measure(&mut steering, timeline, warmup, plan.duration)?;
        if let Pace::Open { .. } = plan.pace {
            steering.drain(DRAIN.min(plan.timeout));
        }
        Ok(Steered { took, start: None, measured })
    }

    /// Starts a thread for each share of the connections, steers them, and adds up their figures.
    fn with_threads<R>(
        &self,
        steer: impl FnOnce() -> Result<R, Error>,
    ) -> Result<(R, Tally), Error> {
        let common = &self.plan.common;
        let drivers = (0..common.threads)
            .map(|thread| open_driver(common.share(thread), 0, self.base.tls.as_ref()));
        let run = |thread, driver, tables: Option<Arc<Tables>>| {
            let start = Start {
                plan: self.plan,
                wire: self.wire.clone(),
                shared: Arc::clone(&self.base.shared),
                clock: self.base.clock,
                peer: self.base.peer,
                tls: self.base.tls.clone(),
                sources: self.base.sources,
                thread,
                connections: common.share(thread),
                first: common.first(thread),
            };
            Client::new(start, driver, tables.as_deref())?.run()
        };
        let drivers = drivers.collect::<Result<_, _>>()?;
        let (steered, tallies) = self.base.with_threads(drivers, run, steer)?;
        let mut sum = Tally::new(&self.plan.expect);
        tallies.into_iter().for_each(|tally| sum.merge(tally));
        Ok((steered, sum))
    }
}
