//! So many messages on each connection without delay: the first as soon as it is open, each next
//! one when the last has come back.

use std::sync::atomic::Ordering;

use throng_engine::{Cx, Message};
use throng_io::Instant;

use throng_load::client::{ClientPool, Work};
use throng_load::{Error, Record};

use super::traffic::Content;

/// Work of the table burst on one thread.
pub(super) struct Burst {
    resource: String,
    content: Content,
    size: usize,
    messages: u64,
    /// By connection: answers so far, and when the message under way was sent.
    answered: Vec<(u64, Instant)>,
    total: u64,
    outcome: BurstOutcome,
}

/// Measurements of one thread.
#[derive(Debug, Default)]
pub(super) struct BurstOutcome {
    pub(super) latency: Record,
    times: Option<Times>,
}

#[derive(Clone, Copy, Debug)]
struct Times {
    begun: Instant,
    opened: Instant,
    answered: Instant,
}

impl BurstOutcome {
    /// Seconds from the first connect call to the last upgrade, and to the last answer.
    pub(super) fn seconds(&self) -> Option<(f64, f64)> {
        let times = self.times?;
        let since = |at: Instant| at.since(times.begun).as_secs_f64();
        Some((since(times.opened), since(times.answered)))
    }
}

impl Burst {
    pub(super) fn new(
        resource: &str,
        seed: u64,
        connections: usize,
        messages: u64,
        size: usize,
    ) -> Self {
        Self {
            resource: resource.to_owned(),
            content: Content::new(seed, size),
            size,
            messages,
            answered: vec![(0, Instant(0)); connections],
            total: 0,
            outcome: BurstOutcome::default(),
        }
    }

    fn send(&mut self, pool: &mut ClientPool, cx: &mut Cx<'_>, index: usize, k: u64, now: Instant) {
        self.answered[index] = (k, now);
        let sent = cx.send(Message::Binary(self.content.message(index, k, self.size)));
        pool.note_sent(sent);
    }
}

impl Work for Burst {
    type Outcome = BurstOutcome;

    fn resource(&self, _: usize) -> &str {
        &self.resource
    }

    fn on_open(&mut self, pool: &mut ClientPool, cx: &mut Cx<'_>, index: usize, now: Instant) {
        let begun = pool.times(index).dialled;
        let times = self.outcome.times.get_or_insert(Times { begun, opened: now, answered: now });
        times.begun = times.begun.min(begun);
        times.opened = times.opened.max(now);
        self.send(pool, cx, index, 0, now);
    }

    fn on_message(
        &mut self,
        pool: &mut ClientPool,
        cx: &mut Cx<'_>,
        index: usize,
        message: Message<'_>,
        now: Instant,
    ) {
        let (k, sent_at) = self.answered[index];
        let expected = self.content.message(index, k, self.size);
        if k == self.messages || !matches!(message, Message::Binary(bytes) if bytes == expected) {
            // No further message would arrive on this connection, and a partial run has no figure.
            pool.shared.fail(Error::Child(format!(
                "{} bytes that do not answer message {k} of connection {index}",
                message.as_bytes().len()
            )));
            return;
        }
        self.outcome.latency.add(now.since(sent_at).as_nanos() as u64);
        if let Some(times) = &mut self.outcome.times {
            times.answered = times.answered.max(now);
        }
        self.total += 1;
        pool.lane().done.store(self.total, Ordering::Relaxed);
        if k + 1 < self.messages {
            self.send(pool, cx, index, k + 1, now);
        } else {
            self.answered[index] = (self.messages, now);
        }
    }

    fn finish(&mut self, _: &mut ClientPool, _: Instant) -> BurstOutcome {
        std::mem::take(&mut self.outcome)
    }
}
