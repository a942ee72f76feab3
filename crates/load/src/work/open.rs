//! The open loop: messages are sent by the schedule, whether or not answers come.

use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_engine::{Core, Cx, Message};
use throng_io::Instant;

use crate::client::{ClientPool, MOST_EVENTS, Payload, Timeline, Work};
use crate::plan::Plan;
use crate::record::Record;
use crate::schedule::{RateStage, Schedule};

/// Maximum messages sent in one turn. A turn reads from at least as many connections, so that a
/// generator that has fallen behind does not delay its own answers and blame the server.
const MOST_SENDS: usize = MOST_EVENTS;

/// Open-loop echo on one thread.
#[derive(Debug)]
pub(crate) struct OpenEcho {
    resource: String,
    payload: Payload,
    /// Message rate of all connections of all threads.
    rate_per_s: f64,
    rate_ramp: Duration,
    stages: Vec<RateStage>,
    /// Connections of all threads.
    of: usize,
    /// This thread's position between two messages of one schedule, 0 to 1.
    shift: f64,
    running: Option<(Schedule, Timeline)>,
    /// The number of the next message, counted over all connections.
    next: u64,
    /// Answers so far, by connection.
    answered: Vec<u64>,
    total: u64,
    outcome: OpenOutcome,
}

/// Measurements of one thread.
#[derive(Debug, Default)]
pub(crate) struct OpenOutcome {
    /// From the planned time to the answer, of messages planned within the measured time.
    pub(crate) latency: Record,
    /// From the planned time to the send.
    pub(crate) lateness: Record,
    pub(crate) planned: u64,
    /// Answers within the measured time, for messages planned at any time.
    pub(crate) in_time: u64,
    pub(crate) unanswered: u64,
}

impl OpenOutcome {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.latency.merge(&other.latency);
        self.lateness.merge(&other.lateness);
        self.planned += other.planned;
        self.in_time += other.in_time;
        self.unanswered += other.unanswered;
    }
}

impl OpenEcho {
    pub(crate) fn new(plan: &Plan, connections: usize, rate_per_s: f64, thread: usize) -> Self {
        Self {
            resource: plan.resource().to_owned(),
            payload: Payload::of(plan, plan.common.first(thread)),
            rate_per_s: rate_per_s * plan.common.connections as f64,
            rate_ramp: plan.common.rate_ramp,
            stages: plan.common.stages.clone(),
            of: plan.common.connections,
            shift: thread as f64 / plan.common.threads as f64,
            running: None,
            next: 0,
            answered: vec![0; connections],
            total: 0,
            outcome: OpenOutcome::default(),
        }
    }
}

impl Work for OpenEcho {
    type Outcome = OpenOutcome;

    fn resource(&self, _: usize) -> &str {
        &self.resource
    }

    fn on_start(&mut self, pool: &mut ClientPool, _: &mut Core, timeline: Timeline) {
        let connections = (pool.connections(), self.of);
        let rate = (self.rate_per_s, self.rate_ramp);
        let schedule = Schedule::of_thread(timeline.start, connections, &self.stages, rate);
        self.running = Some((schedule.shifted(self.shift), timeline));
    }

    fn next_deadline(&self) -> Option<Instant> {
        let (schedule, timeline) = self.running.as_ref()?;
        Some(schedule.planned(self.next)).filter(|&at| at < timeline.to)
    }

    fn on_deadline(&mut self, pool: &mut ClientPool, core: &mut Core, now: Instant) {
        let Some((schedule, timeline)) = &self.running else { return };
        let connections = self.answered.len() as u64;
        for _ in 0..MOST_SENDS {
            let planned = schedule.planned(self.next);
            if planned > now || planned >= timeline.to {
                break;
            }
            let (index, k) = (schedule.connection(self.next), self.next / connections);
            self.next += 1;
            let sent = core.send(pool.id(index), self.payload.message(index, k));
            pool.note_sent(sent);
            if timeline.counts(planned) {
                self.outcome.planned += 1;
                self.outcome.lateness.add(now.since(planned).as_nanos() as u64);
            }
        }
        pool.lane().sent.store(self.next, Ordering::Relaxed);
    }

    #[inline]
    fn on_message(
        &mut self,
        pool: &mut ClientPool,
        _: &mut Cx<'_>,
        index: usize,
        message: Message<'_>,
        now: Instant,
    ) {
        let Some((schedule, timeline)) = &self.running else { return };
        let k = self.answered[index];
        if !self.payload.is_answer(message, index, k) {
            pool.note_wrong(|| self.payload.describe(message, index, k));
        }
        self.answered[index] = k + 1;
        let planned = schedule.planned_for(index, k);
        self.outcome.in_time += u64::from(timeline.counts(now));
        if timeline.counts(planned) {
            self.outcome.latency.add(now.since(planned).as_nanos() as u64);
        }
        self.total += 1;
        pool.lane().done.store(self.total, Ordering::Relaxed);
    }

    /// A message without an answer has waited at least from its planned time until now. Leaving it
    /// out would make a server that stops answering look fast.
    fn finish(&mut self, _: &mut ClientPool, now: Instant) -> OpenOutcome {
        if let Some((schedule, timeline)) = &self.running {
            let connections = self.answered.len() as u64;
            for (index, &answered) in self.answered.iter().enumerate() {
                let sent = (self.next + connections - 1 - index as u64) / connections;
                for k in answered..sent {
                    let planned = schedule.planned_for(index, k);
                    if timeline.counts(planned) {
                        self.outcome.unanswered += 1;
                        self.outcome.latency.add(now.since(planned).as_nanos() as u64);
                    }
                }
            }
        }
        std::mem::take(&mut self.outcome)
    }
}
