//! The idle mode: the cost of connections without traffic, and how they end.

use std::time::Duration;

use super::RunContext;
use super::modes::{DRAIN, measure};
use super::report::Times;
use super::steer::Steering;
use crate::error::Error;
use crate::progress::RunStage;
use crate::record::Record;
use crate::report::{
    ClosesReport, Errors, IdleReport, IdleSums, LoadReport, Measured as Results, RunSums,
};
use crate::sampler::Processes;
use crate::units::grouped;
use crate::verdict::Facts;
use crate::work::{Closes, Idle};

/// Pause between the last connection and the measured idle time.
const SETTLE: Duration = Duration::from_millis(500);
/// Close code of a connection that ended without a Close frame (RFC 6455 section 7.1.5).
const WITHOUT_FRAME: u16 = 1006;

/// Connections that do nothing.
pub(super) fn run(
    context: &RunContext<'_>,
    mut steering: Steering<'_>,
    hold: Duration,
) -> Result<LoadReport, Error> {
    let before = context.base.server.as_ref().and_then(Processes::memory);
    let ((took, measured, echo_cpu_s, left_open), (mut setup, sum)) = context.with_threads(
        0,
        1 << 20,
        |thread, share| Idle::new(context.plan, thread, share),
        || {
            let took = steering.ready(context.plan.common.connections)?;
            let timeline = context.base.begin(SETTLE, hold);
            let measured = measure(&mut steering, timeline, SETTLE, hold)?;
            let used = || context.base.server.as_ref()?.cpu(0);
            let mut echo_cpu_s = None;
            if context.plan.echo_after_idle {
                let before = used();
                await_echoes(context, &mut steering)?;
                echo_cpu_s = before.zip(used()).map(|(before, after)| after.since(&before).cpu_s);
            }
            let limit = context.plan.await_close;
            let left_open = limit.map(|limit| await_closes(context, &mut steering, limit));
            Ok((took, measured, echo_cpu_s, left_open))
        },
    )?;
    let closes = left_open.map(|left_open| closes_report(sum, left_open));
    closes.iter().for_each(|closes| note_closes(closes, &mut setup.errors));
    let connections = context.plan.common.connections as u64;
    let has_echoed = context.plan.echo_after_idle;
    let sum = IdleSums { connections, has_echoed, memory_before: before, echo_cpu_s, closes };
    let (sampled, measured_s) = (&measured, measured.seconds(hold));
    let idle = IdleReport::of(RunSums { plan: context.plan, sampled, measured_s, sum: &sum });
    let facts = Facts { completed: connections, idle: true, ..Facts::default() };
    let times = Times { of: "none", record: &Record::new(), rate_per_s: 0.0 };
    Ok(context.report(Some(took), setup, &measured, Results::Idle(idle), facts, times))
}

/// Waits until each connection has answered its echo, as long as answers keep arriving.
fn await_echoes(context: &RunContext<'_>, steering: &mut Steering<'_>) -> Result<(), Error> {
    let wanted = context.plan.common.connections as u64;
    let answered = || context.base.shared.sum(|lane| &lane.done);
    loop {
        let before = answered();
        let stage = || RunStage::Draining { waiting: wanted.saturating_sub(answered()) };
        if steering.wait_for(DRAIN, || answered() >= wanted, stage) {
            return Ok(());
        }
        if steering.is_over() {
            return Err(Error::Interrupted);
        }
        if answered() == before {
            return Err(Error::Unanswered { answered: before, wanted, after: DRAIN });
        }
    }
}

/// Waits until the server has closed each connection, but at most for `limit`; returns the number
/// of open connections.
fn await_closes(context: &RunContext<'_>, steering: &mut Steering<'_>, limit: Duration) -> u64 {
    let open = || context.base.shared.sum(|lane| &lane.ready);
    steering.wait_for(limit, || open() == 0, || RunStage::AwaitingClose { open: open() });
    open()
}

fn closes_report(mut closes: Closes, left_open: u64) -> ClosesReport {
    let without_frame = closes.codes.remove(&WITHOUT_FRAME).unwrap_or(0);
    let span_s = closes.span.seconds();
    ClosesReport { span_s, by_code: closes.codes, without_frame, left_open }
}

/// A connection that was not closed by a Close frame is lost.
fn note_closes(closes: &ClosesReport, errors: &mut Errors) {
    let lost = closes.without_frame + closes.left_open;
    errors.connections_lost += lost;
    if lost > 0 {
        errors.note(|| {
            format!(
                "{} connections ended without a Close frame, {} were left open",
                grouped(closes.without_frame),
                grouped(closes.left_open)
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use throng_io::Instant;

    use super::*;
    use crate::merge::Merge;

    #[test]
    fn a_connection_without_a_close_frame_or_left_open_is_lost() {
        let mut one = Closes::default();
        for (code, at) in [(1001, 5), (1006, 7), (1001, 9)] {
            one.add(code, Instant(at));
        }
        let mut sum = Closes::default();
        sum.add(1012, Instant(1_000_000_003));
        sum.merge(one);
        let report = closes_report(sum, 2);
        assert_eq!(report.by_code, [(1001, 2), (1012, 1)].into());
        assert_eq!((report.without_frame, report.left_open), (1, 2));
        assert!((report.span_s - 0.999_999_998).abs() < 1e-9, "{report:?}");
        let mut errors = Errors::default();
        note_closes(&report, &mut errors);
        assert_eq!(errors.connections_lost, 3);
    }
}
