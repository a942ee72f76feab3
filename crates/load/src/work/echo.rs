//! Echo: in a closed loop each answer triggers the next message; an open loop sends by the
//! schedule, whether or not answers arrive.

use std::sync::atomic::Ordering;

use throng_engine::{Core, Cx, Message};
use throng_io::Instant;

use crate::client::{ClientPool, MAX_EVENTS, Payload, Timeline, Work};
use crate::merge::tally;
use crate::plan::{Pace, Plan};
use crate::record::Record;
use crate::schedule::{Schedule, ThreadRate};

/// Maximum messages sent in one turn. A turn reads from at least as many connections, so that a
/// generator that has fallen behind does not delay its own answers and blame the server.
const MAX_SENDS: usize = MAX_EVENTS;

/// Echo on one thread.
#[derive(Debug)]
pub(crate) struct Echo {
    payload: Payload,
    /// Answers so far, by connection.
    answered: Vec<u64>,
    pace: EchoPace,
    outcome: EchoOutcome,
}

#[derive(Debug)]
enum EchoPace {
    /// `pipeline` messages are in progress on each connection.
    Closed {
        pipeline: usize,
        /// Messages that may still be sent.
        left: u64,
        /// The send times of messages in progress, with a ring of `pipeline` times for each
        /// connection.
        sent_at: Vec<Instant>,
    },
    Open {
        rate: ThreadRate,
        /// Set at the start.
        running: Option<(Schedule, Timeline)>,
        /// The number of the next message, counted over all connections.
        next: u64,
    },
}

tally! {
    /// Measurements of one thread.
    pub(crate) struct EchoOutcome {
        /// The latency of answers within the measured time. In an open loop: from the planned time
        /// to the answer, for messages planned within the measured time.
        pub(crate) latency: Record,
        /// From the planned time to the send.
        pub(crate) lateness: Record,
        pub(crate) planned: u64,
        /// Answers within the measured time, to messages sent at any time.
        pub(crate) in_time: u64,
        pub(crate) unanswered: u64,
        /// When the last answer arrived.
        pub(crate) last: Option<Instant>,
    }
}

impl Echo {
    pub(crate) fn new(plan: &Plan, thread: usize, connections: usize, pace: Pace) -> Self {
        let pace = match pace {
            Pace::Closed { pipeline } => EchoPace::Closed {
                pipeline,
                left: plan.number_of(thread).unwrap_or(u64::MAX),
                sent_at: vec![Instant(0); connections * pipeline],
            },
            Pace::Open { rate_per_s } => {
                let rate_per_s = rate_per_s * plan.common.connections as f64;
                let rate = plan.common.thread_rate(thread, rate_per_s);
                EchoPace::Open { rate, running: None, next: 0 }
            }
        };
        Self {
            payload: Payload::of(plan, plan.common.first(thread)),
            answered: vec![0; connections],
            pace,
            outcome: EchoOutcome::default(),
        }
    }
}

/// Returns the index of message number `k` of a connection in the rings of send times.
#[inline]
fn slot(index: usize, k: u64, pipeline: usize) -> usize {
    index * pipeline + (k % pipeline as u64) as usize
}

impl Work for Echo {
    type Outcome = EchoOutcome;

    fn on_start(&mut self, pool: &mut ClientPool, core: &mut Core, timeline: Timeline) {
        match &mut self.pace {
            EchoPace::Closed { pipeline, left, sent_at } => {
                for index in 0..pool.connections() {
                    for k in 0..(*pipeline as u64).min(*left) {
                        // Reads the clock for each message: encoding for ten thousand connections
                        // takes milliseconds.
                        sent_at[slot(index, k, *pipeline)] = pool.clock.now();
                        let sent = core.send(pool.id(index), self.payload.message(index, k));
                        pool.note_sent(sent);
                    }
                    *left -= (*pipeline as u64).min(*left);
                }
            }
            EchoPace::Open { rate, running, .. } => {
                let schedule = rate.schedule(timeline.start, pool.connections());
                *running = Some((schedule, timeline));
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let EchoPace::Open { running: Some((schedule, timeline)), next, .. } = &self.pace else {
            return None;
        };
        Some(schedule.planned(*next)).filter(|&at| at < timeline.to)
    }

    fn on_deadline(&mut self, pool: &mut ClientPool, core: &mut Core, now: Instant) {
        let EchoPace::Open { running: Some((schedule, timeline)), next, .. } = &mut self.pace
        else {
            return;
        };
        let connections = self.answered.len() as u64;
        for _ in 0..MAX_SENDS {
            let planned = schedule.planned(*next);
            if planned > now || planned >= timeline.to {
                break;
            }
            let (index, k) = (schedule.connection(*next), *next / connections);
            *next += 1;
            let sent = core.send(pool.id(index), self.payload.message(index, k));
            pool.note_sent(sent);
            if timeline.counts(planned) {
                self.outcome.planned += 1;
                self.outcome.lateness.add(now.since(planned).as_nanos() as u64);
            }
        }
        pool.lane().sent.store(*next, Ordering::Relaxed);
    }

    #[inline]
    fn on_message(
        &mut self,
        pool: &mut ClientPool,
        cx: &mut Cx<'_>,
        index: usize,
        message: Message<'_>,
        now: Instant,
    ) {
        let Some(timeline) = pool.started else { return };
        let k = self.answered[index];
        if !self.payload.is_answer(message, index, k) {
            pool.note_wrong(|| self.payload.describe(message, index, k));
        }
        self.answered[index] = k + 1;
        let is_in_time = timeline.counts(now);
        self.outcome.in_time += u64::from(is_in_time);
        self.outcome.last = Some(now);
        pool.count_done();
        match &mut self.pace {
            EchoPace::Closed { pipeline, left, sent_at } => {
                let sent_at = &mut sent_at[slot(index, k, *pipeline)];
                if is_in_time {
                    self.outcome.latency.add(now.since(*sent_at).as_nanos() as u64);
                }
                if *left > 0 {
                    *left -= 1;
                    // The next message reuses the slot of the answered message.
                    *sent_at = now;
                    let sent = cx.send(self.payload.message(index, k + *pipeline as u64));
                    pool.note_sent(sent);
                }
            }
            EchoPace::Open { running: Some((schedule, _)), .. } => {
                let planned = schedule.planned_for(index, k);
                if timeline.counts(planned) {
                    self.outcome.latency.add(now.since(planned).as_nanos() as u64);
                }
            }
            EchoPace::Open { running: None, .. } => {}
        }
    }

    /// A message without an answer has waited at least from its planned time until now. Omitting it
    /// would make a server that stops answering look fast.
    fn finish(&mut self, _: &mut ClientPool, now: Instant) -> EchoOutcome {
        if let EchoPace::Open { running: Some((schedule, timeline)), next, .. } = &self.pace {
            let connections = self.answered.len() as u64;
            for (index, &answered) in self.answered.iter().enumerate() {
                let sent = (next + connections - 1 - index as u64) / connections;
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
