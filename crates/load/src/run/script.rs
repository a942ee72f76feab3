//! The phases of a script: connect, follow the script until the time is over or every client has
//! finished it, report.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::RunContext;
use super::report::Times;
use super::steer::Steering;
use crate::error::Error;
use crate::progress::Stage;
use crate::report::{Measured as Results, Report, ScriptReport};
use crate::script::Script;
use crate::verdict::Facts;
use crate::work::{ScriptOutcome, ScriptWork};

/// Bytes queued for one connection before the server counts as stuck.
const BACKLOG: usize = 16 << 20;

/// Clients that follow a script.
pub(super) fn run(
    context: &RunContext<'_>,
    mut steering: Steering<'_>,
    script: &Arc<Script>,
    (duration, warmup): (Duration, Duration),
    timeout: Duration,
) -> Result<Report, Error> {
    let ended = Arc::new(AtomicU64::new(0));
    let clients = context.plan.common.connections as u64;
    let ((took, measured), setup, outcomes) = context.with_threads(
        0,
        BACKLOG,
        |thread, share| {
            ScriptWork::new(context.plan, script, thread, share, timeout, Arc::clone(&ended))
        },
        || {
            let took = steering.ready(context.plan.common.connections)?;
            let timeline = context.begin(warmup, duration);
            let warming = |elapsed| Stage::WarmingUp { elapsed, total: warmup };
            if !steering.until(timeline.from, timeline.start, warming) {
                return Err(Error::Interrupted);
            }
            let begin = steering.moment();
            let clock = steering.clock;
            let all_ended = || ended.load(Ordering::Relaxed) >= clients;
            let limit = clock.until(timeline.to);
            steering.wait_for(limit, all_ended, || {
                let elapsed = clock.now().since(timeline.from);
                Stage::Measuring { elapsed, total: duration }
            });
            Ok((took, steering.measured(begin)))
        },
    )?;
    let mut sum = ScriptOutcome::default();
    outcomes.into_iter().for_each(|outcome| sum.merge(outcome));
    // The script may end before the planned time.
    let measured_s = measured.end.at.since(measured.begin.at).min(duration).as_secs_f64().max(1e-9);
    let server_cpu_us = measured.server_cpu_us_each();
    let report = ScriptReport::of(script, &sum, measured_s, server_cpu_us);
    // A script may consist of sends only.
    let waits = sum.steps.iter().any(|step| step.latency.is_some());
    let completed = if waits { report.answers } else { report.sent };
    let facts = Facts { completed, ..Facts::default() };
    let rate_per_s = report.answers_per_s;
    let times = Times { of: "latency", record: &sum.latency, rate_per_s };
    Ok(context.report(Some(took), setup, &measured, Results::Script(report), facts, &times))
}
