//! The phases of the connect mode, and its reports.

use std::time::Duration;

use throng_io::Instant;

use super::RunContext;
use super::modes::{DRAIN, NO_ANSWER, measure};
use super::report::Times;
use super::steer::{Measured, Steering};
use crate::error::Error;
use crate::record::Record;
use crate::report::{ConnectReport, Measured as Results, OpenLoopReport, Report};
use crate::verdict::{Facts, Pacing};
use crate::work::{Connect, ConnectOutcome, OpenConnect, OpenConnectOutcome};

/// When a connection ends, its place makes the next.
pub(super) fn closed(
    context: &RunContext<'_>,
    mut steering: Steering<'_>,
    duration: Duration,
    warmup: Duration,
) -> Result<Report, Error> {
    let (measured, mut setup, outcomes) = context.with_threads(
        0,
        (1 << 20) + 2 * context.plan.size,
        |thread, share| Connect::new(context.plan, thread, share),
        || {
            let begin = steering.moment();
            let timeline = context.begin(warmup, duration);
            if let Some(number) = context.plan.common.number {
                steering.count(number, NO_ANSWER, |shared| {
                    number.saturating_sub(shared.sum(|lane| &lane.sent))
                });
                return Ok(steering.measured(begin));
            }
            measure(&mut steering, timeline, warmup, duration)
        },
    )?;
    let mut sum = ConnectOutcome::default();
    outcomes.iter().for_each(|outcome| sum.merge(outcome));
    let (connections, mut measured_s) = (sum.together.count(), measured.seconds(duration));
    if let Some(number) = context.plan.common.number {
        let (from, to) = sum.span.unwrap_or((Instant(0), Instant(0)));
        measured_s = to.since(from).as_secs_f64().max(1e-9);
        if !measured.cut_short {
            setup.errors.note_missing(number.saturating_sub(sum.over));
        }
    }
    let connect = report(&sum, &sum.together, connections, measured_s, &measured);
    let facts = Facts { completed: connections, connects: true, ..Facts::default() };
    let rate_per_s = connect.connections_per_s;
    let times = Times { of: "total", record: &sum.together, rate_per_s };
    Ok(context.report(None, setup, &measured, Results::Connect(Box::new(connect)), facts, &times))
}

/// The report of a closed loop, which an open loop extends with the outcome of its schedule.
fn report(
    steps: &ConnectOutcome,
    total: &Record,
    connections: u64,
    measured_s: f64,
    measured: &Measured,
) -> ConnectReport {
    ConnectReport {
        measured_s,
        connections,
        connections_per_s: connections as f64 / measured_s,
        connections_per_server_cpu_s: measured.per_server_cpu_s(),
        tcp: steps.tcp.summary(),
        tls: steps.tls.summary(),
        upgrade: steps.upgrade.summary(),
        echo: steps.echo.summary(),
        total: total.summary(),
        open_loop: None,
        waited_for_place: None,
    }
}

/// Connections begin by the schedule.
pub(super) fn open(
    context: &RunContext<'_>,
    mut steering: Steering<'_>,
    rate_per_s: f64,
    duration: Duration,
    warmup: Duration,
) -> Result<Report, Error> {
    let (measured, setup, outcomes) = context.with_threads(
        0,
        (1 << 20) + 2 * context.plan.size,
        |thread, places| OpenConnect::new(context.plan, rate_per_s, thread, places),
        || {
            let warmup = warmup + context.plan.common.rate_ramp;
            let timeline = context.begin(warmup, duration);
            let measured = measure(&mut steering, timeline, warmup, duration)?;
            steering.drain(DRAIN);
            Ok(measured)
        },
    )?;
    let mut sum = OpenConnectOutcome::default();
    outcomes.iter().for_each(|outcome| sum.merge(outcome));
    let OpenConnectOutcome { steps, open, waited } = sum;
    let measured_s = measured.seconds(duration);
    let connect = ConnectReport {
        open_loop: Some(OpenLoopReport::of(
            open.planned,
            open.unanswered,
            &open.lateness,
            measured_s,
        )),
        waited_for_place: Some(waited),
        ..report(&steps, &open.latency, open.in_time, measured_s, &measured)
    };
    let pacing = Pacing::of("connections", &open.lateness, open.planned, open.in_time);
    let completed = open.planned - open.unanswered;
    let facts = Facts { completed, pacing: Some(pacing), ..Facts::default() };
    let times = Times { of: "total", record: &open.latency, rate_per_s: connect.connections_per_s };
    let mut report =
        context.report(None, setup, &measured, Results::Connect(Box::new(connect)), facts, &times);
    let places = context.plan.common.connections as u64;
    report.verdict = report.verdict.with_places(waited, open.planned, places);
    Ok(report)
}
