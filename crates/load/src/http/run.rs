//! A whole run: starts the threads, times the phases, takes samples between them, ends the threads,
//! and reports.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::client::HttpThread;
use super::plan::HttpPlan;
use super::request::Wire;
use super::results::RequestsReport;
use super::tally::Tally;
use crate::error::Error;
use crate::pool::{Setup, Timeline};
use crate::progress::Progress;
use crate::report::{ConnectionsReport, LoadReport, PlanReport, RunSums};
use crate::run::{Base, NO_ANSWER, RunEnd, Steering, Times, measure};
use crate::sampled::Sampled;
use crate::verdict::{Facts, Pacing};

/// Maximum wait for outstanding answers at the end of an open loop.
const DRAIN: Duration = Duration::from_secs(5);

/// Runs a plan to its end and reports. Blocks; calls `watch` about ten times per second on this
/// thread.
///
/// When `stop` becomes true the run ends early: with a report on the measurements so far, or with
/// [`Error::Interrupted`] if there are none.
///
/// # Errors
/// Any failure that leaves nothing to report, each with its remedy; see [`Error`]. A failure during
/// the measurement is counted in the report instead.
pub fn run(
    plan: &HttpPlan,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&Progress),
) -> Result<LoadReport<RequestsReport>, Error> {
    plan.check()?;
    let mut plan = plan.clone();
    let sockets = plan.common.connections;
    let base = Base::of(&mut plan.common, sockets)?;
    let (common, wire) = (&plan.common, Wire::of(&plan)?);
    let steering = base.steering(common, stop, watch);
    let run = |start| HttpThread::new(start, &plan, wire.clone())?.run();
    let (steered, (setup, tally)) =
        base.with_threads(common, 0, 0, plan.is_open(), run, || steer(&plan, &base, steering))?;
    let plan_report = PlanReport::of_requests(&plan, base.sources.count(), wire.len());
    Ok(report(&plan, &base, plan_report, &steered, setup, &tally))
}

/// Observations of the steering thread.
struct Steered {
    /// Time of the set-up; `None` without one.
    took: Option<Duration>,
    timeline: Timeline,
    sampled: Sampled,
}

/// Waits through the phases of the run.
fn steer(plan: &HttpPlan, base: &Base, mut steering: Steering<'_>) -> Result<Steered, Error> {
    let took = match plan.keep_alive {
        true => Some(steering.ready(plan.common.connections)?),
        false => None,
    };
    let warmup = plan.warmup + plan.common.rate_ramp;
    let timeline = base.begin(warmup, plan.duration);
    if let Some(number) = plan.common.number {
        let begin = steering.moment();
        let limit = NO_ANSWER.max(plan.timeout + Duration::from_secs(2));
        steering.count(number, limit, |shared| {
            let over = shared.sum(|lane| &lane.sent) + shared.sum(|lane| &lane.done);
            number.saturating_sub(over)
        });
        return Ok(Steered { took, timeline, sampled: steering.measured(begin) });
    }
    let sampled = measure(&mut steering, timeline, warmup, plan.duration)?;
    if plan.is_open() {
        steering.drain(DRAIN.min(plan.timeout));
    }
    Ok(Steered { took, timeline, sampled })
}

fn report(
    plan: &HttpPlan,
    base: &Base,
    plan_report: PlanReport,
    steered: &Steered,
    setup: Setup,
    tally: &Tally,
) -> LoadReport<RequestsReport> {
    let Steered { took, timeline, sampled } = steered;
    let measured_s = match plan.common.number {
        None => sampled.seconds(plan.duration),
        // With a fixed number of requests, the time ends with the last answer.
        Some(_) => {
            let span = tally.last.map_or(Duration::ZERO, |last| last.since(timeline.start));
            span.as_secs_f64().max(1e-9)
        }
    };
    let result = RequestsReport::of((RunSums { plan, sampled, measured_s, sum: tally }, &setup));
    let pacing = Pacing::of("requests", &tally.lateness, tally.planned, tally.requests);
    let facts = Facts {
        completed: match plan.is_open() {
            false => tally.requests,
            true => tally.planned - tally.unanswered.min(tally.planned),
        },
        pacing: plan.is_open().then_some(pacing),
        ..Facts::default()
    };
    let rate_per_s = result.requests_per_s;
    let end = RunEnd {
        common: &plan.common,
        plan: plan_report,
        took: took.map(|took| (took, plan.common.connections)),
        setup,
        has_subprotocols: false,
        connections: Some(ConnectionsReport {
            opened: tally.opened,
            ended_by_server: tally.ended_by_server,
            requests_resent: tally.resent,
        }),
        sampled,
        result,
        facts,
        times: Times { of: "latency", record: &tally.latency, rate_per_s },
    };
    end.report(base)
}
