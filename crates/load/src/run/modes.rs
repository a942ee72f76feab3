//! The phases of each mode, and its report.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_io::Instant;

use super::RunContext;
use super::report::{ProtocolParts, RunOutcome, Times};
use super::steer::{Measured, Moment, Steering};
use crate::client::{Setup, Timeline};
use crate::error::Error;
use crate::progress::Stage;
use crate::record::Record;
use crate::report::{
    BroadcastReport, DeflateReport, EchoReport, Measured as Results, OpenLoopReport, PlanReport,
    Report, SetupReport,
};
use crate::sampler::CpuUsage;
use crate::verdict::{Facts, Pacing};
use crate::work::{
    Broadcast, BroadcastOutcome, ClosedEcho, ClosedOutcome, OpenEcho, OpenOutcome, Publication,
};

/// Pause before the first message when all connections are ready: the threads have to be informed.
pub const LEAD: Duration = Duration::from_millis(5);
/// Maximum wait for outstanding answers at the end of a run.
pub(super) const DRAIN: Duration = Duration::from_secs(5);
/// Time without any answer after which the rest of a fixed number of messages counts as missing.
pub const NO_ANSWER: Duration = Duration::from_secs(10);
/// Bytes queued for one connection of an open loop before the server counts as stuck.
pub(super) const OPEN_BACKLOG: usize = 256 << 20;

/// Echo in a closed loop: each answer triggers the next message.
pub(super) fn closed_echo(
    context: &RunContext<'_>,
    mut steering: Steering<'_>,
    pipeline: usize,
    duration: Duration,
    warmup: Duration,
) -> Result<Report, Error> {
    // Space for twice the messages in progress, so that reading is never paused because of it.
    let backlog = (1 << 20) + (context.plan.size + 14).saturating_mul(2 * pipeline);
    let ((took, timeline, measured), mut setup, outcomes) = context.with_threads(
        0,
        backlog,
        |thread, share| ClosedEcho::new(context.plan, thread, share, pipeline),
        || {
            let took = steering.ready(context.plan.common.connections)?;
            let timeline = context.begin(warmup, duration);
            let Some(number) = context.plan.common.number else {
                return Ok((took, timeline, measure(&mut steering, timeline, warmup, duration)?));
            };
            let begin = steering.moment();
            steering.count(number, NO_ANSWER, |shared| match shared.sum(|lane| &lane.ready) {
                0 => 0,
                _ => number.saturating_sub(shared.sum(|lane| &lane.done)),
            });
            Ok((took, timeline, steering.measured(begin)))
        },
    )?;
    let (mut latency, mut last) = (Record::new(), timeline.start);
    for ClosedOutcome { latency: more, last: at } in &outcomes {
        latency.merge(more);
        last = last.max(at.unwrap_or(last));
    }
    let messages = latency.count();
    let measured_s = match context.plan.common.number {
        None => measured.seconds(duration),
        Some(number) => {
            if !measured.cut_short {
                setup.errors.note_missing(number.saturating_sub(messages));
            }
            last.since(timeline.start).as_secs_f64().max(1e-9)
        }
    };
    let echo = EchoReport {
        measured_s,
        messages,
        messages_per_s: messages as f64 / measured_s,
        server_cpu_us_per_message: measured.server_cpu_us_each(),
        deflate: DeflateReport::of(context.plan, &setup.traffic),
        payload_bytes_per_s: messages as f64 * context.plan.size as f64 / measured_s,
        messages_per_server_cpu_s: measured.per_server_cpu_s(),
        latency: latency.summary(),
        open_loop: None,
    };
    let facts = Facts { completed: messages, ..Facts::default() };
    let times = Times { of: "latency", record: &latency, rate_per_s: echo.messages_per_s };
    Ok(context.report(Some(took), setup, &measured, Results::Echo(echo), facts, &times))
}

/// Messages by the schedule.
pub(super) fn open_echo(
    context: &RunContext<'_>,
    mut steering: Steering<'_>,
    rate_per_s: f64,
    duration: Duration,
    warmup: Duration,
) -> Result<Report, Error> {
    let ((took, measured), setup, outcomes) = context.with_threads(
        0,
        OPEN_BACKLOG.max(context.plan.size.saturating_mul(4)),
        |thread, connections| OpenEcho::new(context.plan, connections, rate_per_s, thread),
        || {
            let took = steering.ready(context.plan.common.connections)?;
            let warmup = warmup + context.plan.common.rate_ramp;
            let timeline = context.begin(warmup, duration);
            let measured = measure(&mut steering, timeline, warmup, duration)?;
            steering.drain(DRAIN);
            Ok((took, measured))
        },
    )?;
    let mut sum = OpenOutcome::default();
    outcomes.iter().for_each(|outcome| sum.merge(outcome));
    let measured_s = measured.seconds(duration);
    let echo = EchoReport {
        measured_s,
        messages: sum.in_time,
        messages_per_s: sum.in_time as f64 / measured_s,
        server_cpu_us_per_message: measured.server_cpu_us_each(),
        deflate: DeflateReport::of(context.plan, &setup.traffic),
        payload_bytes_per_s: sum.in_time as f64 * context.plan.size as f64 / measured_s,
        messages_per_server_cpu_s: measured.per_server_cpu_s(),
        latency: sum.latency.summary(),
        open_loop: Some(OpenLoopReport::of(sum.planned, sum.unanswered, &sum.lateness, measured_s)),
    };
    let pacing = Pacing::of("messages", &sum.lateness, sum.planned, sum.in_time);
    let facts =
        Facts { completed: sum.planned - sum.unanswered, pacing: Some(pacing), ..Facts::default() };
    let times = Times { of: "latency", record: &sum.latency, rate_per_s: echo.messages_per_s };
    Ok(context.report(Some(took), setup, &measured, Results::Echo(echo), facts, &times))
}

/// One publishes, all others receive.
pub(super) fn broadcast(
    context: &RunContext<'_>,
    mut steering: Steering<'_>,
    publishes: usize,
    timeout: Duration,
) -> Result<Report, Error> {
    let subscribers = context.plan.common.connections;
    let publication = Arc::new(Publication::new(subscribers));
    let ((took, measured), setup, outcomes) = context.with_threads(
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
            context.begin(Duration::ZERO, Duration::ZERO);
            let stage = || Stage::Publishing {
                done: publication.complete.load(Ordering::Relaxed),
                total: publishes as u64,
            };
            // The publisher has its own time limit; this one only has to be longer.
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
    let mut sum = BroadcastOutcome::default();
    outcomes.iter().for_each(|outcome| sum.merge(outcome));
    let complete = sum.last.count();
    let server_cpu_us = measured.server().map(|cpu| cpu.cpu_s * 1e6);
    let per = |n: u64| server_cpu_us.filter(|_| n > 0).map(|us| us / n as f64);
    let broadcast = BroadcastReport {
        publishes: complete,
        subscribers: subscribers as u64,
        first: sum.first.summary(),
        last: sum.last.summary(),
        delivery: sum.delivery.summary(),
        server_cpu_us_per_publish: per(complete),
        server_cpu_us_per_delivery: per(sum.delivery.count()),
    };
    let facts = Facts { completed: complete, ..Facts::default() };
    let times = Times { of: "last", record: &sum.last, rate_per_s: 0.0 };
    Ok(context.report(Some(took), setup, &measured, Results::Broadcast(broadcast), facts, &times))
}

const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Waits through warm-up and measurement, sampling at both edges.
pub fn measure(
    steering: &mut Steering<'_>,
    timeline: Timeline,
    warmup: Duration,
    duration: Duration,
) -> Result<Measured, Error> {
    let warming = |elapsed| Stage::WarmingUp { elapsed, total: warmup };
    if !steering.until(timeline.from, timeline.start, warming) {
        return Err(Error::Interrupted);
    }
    let begin = steering.moment();
    // The time of the end shows whether the run was cut short.
    steering
        .until(timeline.to, timeline.from, |elapsed| Stage::Measuring { elapsed, total: duration });
    Ok(steering.measured(begin))
}

impl Measured {
    /// The server's CPU use.
    pub fn server(&self) -> Option<CpuUsage> {
        Some(self.end.server.as_ref()?.since(self.begin.server.as_ref()?))
    }

    /// Returns the work completed between the samples for each second of server CPU time.
    pub fn per_server_cpu_s(&self) -> Option<f64> {
        let done = self.end.done.saturating_sub(self.begin.done);
        self.server().filter(|cpu| cpu.cpu_s > 0.0).map(|cpu| done as f64 / cpu.cpu_s)
    }

    /// The server's CPU time for each completed unit of work between the samples, in microseconds.
    pub fn server_cpu_us_each(&self) -> Option<f64> {
        self.per_server_cpu_s().filter(|&rate| rate > 0.0).map(|rate| 1e6 / rate)
    }

    /// The measured time in seconds: the planned time, or less if the run was cut short. The
    /// threads count by the planned times, not by the samples, which are taken a moment later.
    pub fn seconds(&self, planned: Duration) -> f64 {
        let sampled = self.end.at.since(self.begin.at);
        let measured = if self.cut_short { sampled.min(planned) } else { planned };
        measured.as_secs_f64().max(1e-9)
    }

    pub fn generator(&self) -> CpuUsage {
        let Moment { own: Some(begin), .. } = &self.begin else { return CpuUsage::default() };
        self.end.own.as_ref().map(|end| end.since(begin)).unwrap_or_default()
    }

    pub fn machine_busy(&self) -> Option<f64> {
        Some(self.end.machine?.busy_since(&self.begin.machine?))
    }
}

impl RunContext<'_> {
    /// Sets the timeline; the threads begin.
    pub(super) fn begin(&self, warmup: Duration, duration: Duration) -> Timeline {
        let start: Instant = self.base.clock.now().after(LEAD);
        let from = start.after(warmup);
        let timeline = Timeline { start, from, to: from.after(duration) };
        self.base.shared.begin(timeline);
        timeline
    }

    pub(super) fn report(
        &self,
        took: Option<Duration>,
        setup: Setup,
        measured: &Measured,
        result: Results,
        facts: Facts,
        times: &Times<'_>,
    ) -> Report {
        let outcome = RunOutcome {
            common: &self.plan.common,
            server: self.base.server.as_ref(),
            measured,
            facts: Facts { failures: setup.errors.total(), ..facts },
            times: *times,
        };
        outcome.report(ProtocolParts {
            plan: PlanReport::of(self.plan, self.base.sources.count()),
            setup: self.setup_report(took, &setup),
            tls: setup.negotiated.into_report(),
            result,
            connections: None,
            errors: setup.errors,
        })
    }

    fn setup_report(&self, took: Option<Duration>, setup: &Setup) -> SetupReport {
        let has_subprotocols = !self.plan.subprotocols.is_empty();
        took.map_or_else(SetupReport::default, |took| SetupReport {
            connections: self.plan.sockets() as u64,
            took_s: took.as_secs_f64(),
            tcp: setup.tcp.summary(),
            tls: setup.tls.summary(),
            upgrade: setup.upgrade.summary(),
            subprotocol_agreed: has_subprotocols.then_some(setup.subprotocols),
        })
    }
}
