//! The closed loop: a fixed number of messages in progress on each connection, and each answer
//! triggers the next.

use std::sync::atomic::Ordering;

use throng_engine::{Core, Cx, Message};
use throng_io::Instant;

use crate::client::{ClientPool, Payload, Timeline, Work};
use crate::plan::Plan;
use crate::record::Record;

/// Closed-loop echo on one thread.
#[derive(Debug)]
pub(crate) struct ClosedEcho {
    resource: String,
    payload: Payload,
    pipeline: usize,
    /// Messages that may still be sent.
    left: u64,
    /// Answers so far, by connection; `pipeline` more were sent.
    answered: Vec<u64>,
    /// The send times of the messages in progress: a ring of `pipeline` times for each connection.
    sent_at: Vec<Instant>,
    timeline: Option<Timeline>,
    outcome: ClosedOutcome,
    total: u64,
}

/// Measurements of one thread.
#[derive(Debug, Default)]
pub(crate) struct ClosedOutcome {
    /// Latency of every answer that came within the measured time.
    pub(crate) latency: Record,
    /// When the last answer came.
    pub(crate) last: Option<Instant>,
}

impl ClosedEcho {
    pub(crate) fn new(plan: &Plan, thread: usize, connections: usize, pipeline: usize) -> Self {
        Self {
            resource: plan.resource().to_owned(),
            payload: Payload::of(plan, plan.common.first(thread)),
            pipeline,
            left: plan.number_of(thread).unwrap_or(u64::MAX),
            answered: vec![0; connections],
            sent_at: vec![Instant(0); connections * pipeline],
            timeline: None,
            outcome: ClosedOutcome::default(),
            total: 0,
        }
    }

    fn slot(&self, index: usize, k: u64) -> usize {
        index * self.pipeline + (k % self.pipeline as u64) as usize
    }
}

impl Work for ClosedEcho {
    type Outcome = ClosedOutcome;

    fn resource(&self, _: usize) -> &str {
        &self.resource
    }

    fn on_start(&mut self, pool: &mut ClientPool, core: &mut Core, timeline: Timeline) {
        self.timeline = Some(timeline);
        for index in 0..pool.connections() {
            for k in 0..(self.pipeline as u64).min(self.left) {
                let slot = self.slot(index, k);
                // Read for each message: encoding for ten thousand connections takes milliseconds.
                self.sent_at[slot] = pool.clock.now();
                let sent = core.send(pool.id(index), self.payload.message(index, k));
                pool.note_sent(sent);
            }
            self.left -= (self.pipeline as u64).min(self.left);
        }
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
        let Some(timeline) = self.timeline else { return };
        let k = self.answered[index];
        if !self.payload.is_answer(message, index, k) {
            pool.note_wrong(|| self.payload.describe(message, index, k));
        }
        self.answered[index] = k + 1;
        let slot = self.slot(index, k);
        if timeline.counts(now) {
            self.outcome.latency.add(now.since(self.sent_at[slot]).as_nanos() as u64);
        }
        self.total += 1;
        pool.lane().done.store(self.total, Ordering::Relaxed);
        self.outcome.last = Some(now);
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        // The slot of the answered message in the ring is reused for the next message.
        self.sent_at[slot] = now;
        let sent = cx.send(self.payload.message(index, k + self.pipeline as u64));
        pool.note_sent(sent);
    }

    fn finish(&mut self, _: &mut ClientPool, _: Instant) -> ClosedOutcome {
        std::mem::take(&mut self.outcome)
    }
}
