//! The phases of each mode, and its report.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::RunContext;
use super::report::Times;
use super::steer::Steering;
use crate::client::Timeline;
use crate::error::Error;
use crate::plan::Pace;
use crate::progress::RunStage;
use crate::report::{
    BroadcastReport, ConnectReport, EchoReport, LoadReport, Measured as Results, RunSums,
    ScriptReport, StepReport,
};
use crate::sampled::{Moment, Sampled};
use crate::verdict::{Facts, Pacing};
use crate::work::{Broadcast, Connect, Echo, Publication, ScriptWork};

/// Maximum wait for outstanding answers at the end of a run.
pub(super) const DRAIN: Duration = Duration::from_secs(5);
/// Time without an answer after which the rest of a fixed number of messages counts as missing.
pub const NO_ANSWER: Duration = Duration::from_secs(10);
/// Bytes queued for one connection of an open loop before the server counts as stuck.
pub(super) const OPEN_BACKLOG: usize = 256 << 20;
/// Bytes queued for one connection of a script before the server counts as stuck.
const SCRIPT_BACKLOG: usize = 16 << 20;

/// Echo: each answer triggers the next message, or the schedule triggers messages.
pub(super) fn echo(
    context: &RunContext<'_>,
    mut steering: Steering<'_>,
    pace: Pace,
) -> Result<LoadReport, Error> {
    let (plan, common) = (context.plan, &context.plan.common);
    let (duration, warmup) = context.times();
    let backlog = match pace {
        // Space for twice the messages in progress, so that a full buffer never pauses reading.
        Pace::Closed { pipeline } => (1 << 20) + (plan.size + 14).saturating_mul(2 * pipeline),
        Pace::Open { .. } => OPEN_BACKLOG.max(plan.size.saturating_mul(4)),
    };
    let is_open = plan.mode.is_open();
    let ((took, timeline, measured), (mut setup, sum)) = context.with_threads(
        0,
        backlog,
        |thread, share| Echo::new(plan, thread, share, pace),
        || {
            let took = steering.ready(common.connections)?;
            let timeline = context.base.begin(warmup, duration);
            let Some(number) = common.number else {
                let measured = measure(&mut steering, timeline, warmup, duration)?;
                if is_open {
                    steering.drain(DRAIN);
                }
                return Ok((took, timeline, measured));
            };
            let begin = steering.moment();
            steering.count(number, NO_ANSWER, |shared| match shared.sum(|lane| &lane.ready) {
                0 => 0,
                _ => number.saturating_sub(shared.sum(|lane| &lane.done)),
            });
            Ok((took, timeline, steering.measured(begin)))
        },
    )?;
    let mut measured_s = measured.seconds(duration);
    if let Some(number) = common.number {
        let span = sum.last.map_or(Duration::ZERO, |last| last.since(timeline.start));
        measured_s = span.as_secs_f64().max(1e-9);
        if !measured.cut_short {
            setup.errors.note_missing(number.saturating_sub(sum.in_time));
        }
    }
    let run = RunSums { plan, sampled: &measured, measured_s, sum: &sum };
    let echo = EchoReport::of((run, &setup.traffic));
    let pacing = Pacing::of("messages", &sum.lateness, sum.planned, sum.in_time);
    let facts = Facts {
        completed: if is_open { sum.planned - sum.unanswered } else { sum.in_time },
        pacing: is_open.then_some(pacing),
        ..Facts::default()
    };
    let times = Times { of: "latency", record: &sum.latency, rate_per_s: echo.messages_per_s };
    Ok(context.report(Some(took), setup, &measured, Results::Echo(echo), facts, times))
}

/// Connections with one echo each. In a closed loop each end starts the next connection; in an open
/// loop the schedule starts them.
pub(super) fn connect(
    context: &RunContext<'_>,
    mut steering: Steering<'_>,
    rate_per_s: Option<f64>,
) -> Result<LoadReport, Error> {
    let (plan, number) = (context.plan, context.plan.common.number);
    let (duration, warmup) = context.times();
    let (measured, (mut setup, sum)) = context.with_threads(
        0,
        (1 << 20) + 2 * plan.size,
        |thread, places| Connect::new(plan, thread, places, rate_per_s),
        || {
            let begin = steering.moment();
            let timeline = context.base.begin(warmup, duration);
            if let Some(number) = number {
                steering.count(number, NO_ANSWER, |shared| {
                    number.saturating_sub(shared.sum(|lane| &lane.sent))
                });
                return Ok(steering.measured(begin));
            }
            let measured = measure(&mut steering, timeline, warmup, duration)?;
            if rate_per_s.is_some() {
                steering.drain(DRAIN);
            }
            Ok(measured)
        },
    )?;
    let mut measured_s = measured.seconds(duration);
    if let Some(number) = number {
        measured_s = sum.span.seconds().max(1e-9);
        if !measured.cut_short {
            setup.errors.note_missing(number.saturating_sub(sum.over));
        }
    }
    let connect = ConnectReport::of(RunSums { plan, sampled: &measured, measured_s, sum: &sum });
    let pacing = Pacing::of("connections", &sum.lateness, sum.planned, sum.in_time);
    let facts = Facts {
        completed: if rate_per_s.is_some() { sum.planned - sum.unanswered } else { sum.in_time },
        pacing: rate_per_s.map(|_| pacing),
        connects: rate_per_s.is_none(),
        ..Facts::default()
    };
    let times = Times { of: "total", record: &sum.total, rate_per_s: connect.connections_per_s };
    let result = Results::Connect(Box::new(connect));
    let mut report = context.report(None, setup, &measured, result, facts, times);
    let places = plan.common.connections as u64;
    report.verdict = report.verdict.with_places(sum.waited, sum.planned, places);
    Ok(report)
}

/// Clients that follow a script until the time is over or every client has finished it.
pub(super) fn script(
    context: &RunContext<'_>,
    mut steering: Steering<'_>,
    timeout: Duration,
) -> Result<LoadReport, Error> {
    let plan = context.plan;
    // An unchecked plan may have no script.
    let script = plan.script.as_ref();
    let script = script.ok_or_else(|| Error::Usage("the script mode needs a script".to_owned()))?;
    let (duration, warmup) = context.times();
    let (ended, clients) = (Arc::new(AtomicU64::new(0)), plan.common.connections);
    let ((took, measured), (setup, sum)) = context.with_threads(
        0,
        SCRIPT_BACKLOG,
        |thread, share| ScriptWork::new(plan, script, thread, share, timeout, Arc::clone(&ended)),
        || {
            let took = steering.ready(clients)?;
            let timeline = context.base.begin(warmup, duration);
            let begin = warm_up(&mut steering, timeline, warmup)?;
            let clock = steering.clock;
            let all_ended = || ended.load(Ordering::Relaxed) >= clients as u64;
            steering.wait_for(clock.until(timeline.to), all_ended, || {
                let elapsed = clock.now().since(timeline.from);
                RunStage::Measuring { elapsed, total: duration }
            });
            Ok((took, steering.measured(begin)))
        },
    )?;
    // The script may end before the planned time.
    let measured_s = measured.end.at.since(measured.begin.at).min(duration).as_secs_f64().max(1e-9);
    let steps = script.steps().iter().zip(&sum.steps).map(|(step, tally)| StepReport {
        line: step.line,
        text: step.text.clone(),
        done: tally.done,
        mismatches: tally.mismatches,
        missing: tally.missing,
        latency: tally.latency.as_ref().and_then(|latency| latency.summary()),
    });
    let run = RunSums { plan, sampled: &measured, measured_s, sum: &sum };
    let report = ScriptReport::of((run, script.name().to_owned(), steps.collect()));
    // A script may only send.
    let waits = sum.steps.iter().any(|step| step.latency.is_some());
    let completed = if waits { report.answers } else { report.sent };
    let facts = Facts { completed, ..Facts::default() };
    let times = Times { of: "latency", record: &sum.latency, rate_per_s: report.answers_per_s };
    Ok(context.report(Some(took), setup, &measured, Results::Script(report), facts, times))
}

/// One publishes, all others receive.
pub(super) fn broadcast(
    context: &RunContext<'_>,
    mut steering: Steering<'_>,
    publishes: usize,
    timeout: Duration,
) -> Result<LoadReport, Error> {
    let subscribers = context.plan.common.connections;
    let publication = Arc::new(Publication::new(subscribers));
    let ((took, measured), (setup, sum)) = context.with_threads(
        1,
        (1 << 20) + 2 * context.plan.size,
        |thread, share| {
            let publisher = (thread == 0).then_some(share);
            let connections = share + usize::from(thread == 0);
            let publication = Arc::clone(&publication);
            Broadcast::new(context.plan, connections, publishes, timeout, publisher, publication)
        },
        || {
            let took = steering.ready(subscribers + 1)?;
            context.base.begin(Duration::ZERO, Duration::ZERO);
            let stage = || RunStage::Publishing {
                done: publication.complete.load(Ordering::Relaxed),
                total: publishes as u64,
            };
            // The publisher has its own time limit; this limit only has to be longer.
            if !steering.wait_for(FOREVER, || publication.is_warm(), stage) {
                return Err(Error::Interrupted);
            }
            let begin = steering.moment();
            publication.go();
            context.base.shared.lane(0).wake();
            steering.wait_for(FOREVER, || publication.is_done(), stage);
            Ok((took, steering.measured(begin)))
        },
    )?;
    let (sampled, measured_s) = (&measured, 0.0);
    let run = RunSums { plan: context.plan, sampled, measured_s, sum: &sum };
    let broadcast = BroadcastReport::of(run);
    let facts = Facts { completed: broadcast.publishes, ..Facts::default() };
    let times = Times { of: "last", record: &sum.last, rate_per_s: 0.0 };
    Ok(context.report(Some(took), setup, sampled, Results::Broadcast(broadcast), facts, times))
}

const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Waits through warm-up and measurement, sampling at both edges.
pub fn measure(
    steering: &mut Steering<'_>,
    timeline: Timeline,
    warmup: Duration,
    duration: Duration,
) -> Result<Sampled, Error> {
    let begin = warm_up(steering, timeline, warmup)?;
    // The time of the end shows whether the run ended early.
    steering.until(timeline.to, timeline.from, |elapsed| RunStage::Measuring {
        elapsed,
        total: duration,
    });
    Ok(steering.measured(begin))
}

/// Waits through the warm-up; returns the sample at its end.
pub(super) fn warm_up(
    steering: &mut Steering<'_>,
    timeline: Timeline,
    warmup: Duration,
) -> Result<Moment, Error> {
    let warming = |elapsed| RunStage::WarmingUp { elapsed, total: warmup };
    match steering.until(timeline.from, timeline.start, warming) {
        true => Ok(steering.moment()),
        false => Err(Error::Interrupted),
    }
}
