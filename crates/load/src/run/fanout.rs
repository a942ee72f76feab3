//! The phases of the fan-out mode: connect, warm up, measure in slices, wait for deliveries in
//! progress, report.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_io::Instant;

use super::report::Times;
use super::steer::Steering;
use super::{RunContext, modes};
use crate::client::Timeline;
use crate::error::Error;
use crate::progress::RunStage;
use crate::report::{FanoutReport, LoadReport, Measured as Results, RunSums, Slice};
use crate::sampled::Moment;
use crate::sampler::Processes;
use crate::schedule::Schedule;
use crate::verdict::{Facts, Pacing};
use crate::work::{ChannelLayout, Fanout, FanoutTally};

/// Maximum wait for outstanding deliveries after the last message was sent.
const DRAIN: Duration = Duration::from_secs(10);
/// Time without any delivery after which the rest counts as lost.
const QUIET: Duration = Duration::from_secs(2);
/// Maximum number of slices in a run, and their minimum length. A shorter slice would have too few
/// kernel ticks.
const MAX_SLICES: u32 = 120;
const SHORTEST_SLICE: Duration = Duration::from_millis(250);

/// Messages to many channels by the schedule.
pub(super) fn run(
    context: &RunContext<'_>,
    mut steering: Steering<'_>,
    layout: ChannelLayout,
    rate_per_s: f64,
) -> Result<LoadReport, Error> {
    let (duration, warmup) = context.times();
    let tally = Arc::new(FanoutTally::new());
    let ((took, measured, slices), (setup, sum)) = context.with_threads(
        0,
        modes::OPEN_BACKLOG.max(context.plan.size.saturating_mul(4)),
        |thread, share| {
            let first = context.plan.common.first(thread);
            Fanout::new(context.plan, layout, rate_per_s, first, share, Arc::clone(&tally))
        },
        || {
            let took = steering.ready(context.plan.common.connections)?;
            let timeline = context.base.begin(warmup, duration);
            let begin = modes::warm_up(&mut steering, timeline, warmup)?;
            let slices = slices(&mut steering, context, &tally, timeline, duration);
            if steering.is_over() {
                tally.until_ns.store(steering.clock.now().0, Ordering::Release);
            }
            let measured = steering.measured(begin);
            await_deliveries(context, &mut steering, &tally, layout, (timeline, rate_per_s));
            Ok((took, measured, slices))
        },
    )?;
    let measured_s = measured.seconds(duration);
    let run = RunSums { plan: context.plan, sampled: &measured, measured_s, sum: &sum };
    let fanout = FanoutReport::of((run, layout, slices));
    let pacing = Pacing::of("messages", &sum.lateness, sum.expected, sum.in_time);
    let facts = Facts { completed: sum.received, pacing: Some(pacing), ..Facts::default() };
    let times = Times { of: "latency", record: &sum.latency, rate_per_s: fanout.received_per_s };
    let result = Results::Fanout(fanout);
    let mut report = context.report(Some(took), setup, &measured, result, facts, times);
    report.verdict = report.verdict.with_loss(sum.lost, sum.expected);
    Ok(report)
}

/// Waits until the messages planned before the end have reached their subscribers, as long as
/// deliveries keep arriving.
fn await_deliveries(
    context: &RunContext<'_>,
    steering: &mut Steering<'_>,
    tally: &FanoutTally,
    layout: ChannelLayout,
    (timeline, rate_per_s): (Timeline, f64),
) {
    // Counts planned messages instead of sent ones: the last messages may be sent a moment late.
    let until = timeline.to.min(Instant(tally.until_ns.load(Ordering::Acquire)));
    let each = rate_per_s / layout.channels as f64;
    let planned = Schedule::new(timeline.start, layout.channels, each).due(Instant(until.0 - 1));
    let wanted = planned * layout.subscribers as u64;
    let done = || context.base.shared.sum(|lane| &lane.done);
    let waiting = || wanted.saturating_sub(done());
    let deadline = steering.clock.now().after(DRAIN);
    let mut before = u64::MAX;
    // A message that the server dropped never arrives: the wait ends when no more deliveries
    // arrive.
    while waiting() > 0 && done() != before && steering.clock.now() < deadline {
        before = done();
        let stage = || RunStage::Draining { waiting: waiting() };
        steering.wait_for(QUIET, || waiting() == 0, stage);
    }
}

/// Waits through the measurement, and takes all samples at the end of each slice.
fn slices(
    steering: &mut Steering<'_>,
    context: &RunContext<'_>,
    tally: &FanoutTally,
    timeline: Timeline,
    duration: Duration,
) -> Vec<Slice> {
    let length = (duration / MAX_SLICES).max(SHORTEST_SLICE);
    let mut slices = Vec::new();
    // Messages received during the warm-up belong to no slice.
    drop(tally.take_latency());
    let mut before = steering.moment();
    let mut end = timeline.from;
    while end < timeline.to && !steering.is_over() {
        end = end.after(length).min(timeline.to);
        steering
            .until(end, timeline.from, |elapsed| RunStage::Measuring { elapsed, total: duration });
        let now = steering.moment();
        slices.push(slice(&before, &now, timeline.from, tally, context.base.server.as_ref()));
        before = now;
    }
    slices
}

fn slice(
    before: &Moment,
    now: &Moment,
    from: Instant,
    tally: &FanoutTally,
    server: Option<&Processes>,
) -> Slice {
    let latency = tally.take_latency();
    let seconds = now.at.since(before.at).as_secs_f64().max(1e-9);
    let cores = now
        .server
        .as_ref()
        .zip(before.server.as_ref())
        .map(|(now, before)| now.since(before).cores);
    Slice {
        at_s: now.at.since(from).as_secs_f64(),
        received_per_s: latency.count() as f64 / seconds,
        latency: latency.summary(),
        server_cores: cores,
        server_rss_bytes: server.and_then(Processes::resident),
        generator_cores: now
            .own
            .as_ref()
            .zip(before.own.as_ref())
            .map(|(now, before)| now.since(before).busiest_thread_cores),
    }
}
