//! The per-message queue: how messages enter it, and leave it in chunks and in fragments.

use std::sync::Arc;

use throng_io::{ConnId, Segment};
use throng_proto::ws::{self, Fragment, Opcode};

use crate::conn::stage::flag;
use crate::conn::table::{Connections, OVERFULL};
use crate::outbox::borrowed::LARGE;
use crate::outbox::queue::{Admitted, Content, Millis, Part, Partial, Waiting};
use crate::outbox::send::{REFERENCE_COST, Sent};
use crate::pubsub::backpressure::{ClassIndex, SlowPolicy};

/// Bytes of waiting messages moved into the output queue at a time: data that the driver holds can
/// no longer be dropped, and no control frame overtakes it.
const QUANTUM: usize = 64 * 1024;

impl Connections {
    /// Puts a message into the per-message queue, as its class's policy decides; `class`: the
    /// channel's, or else the receiver's.
    #[cold]
    pub(crate) fn enqueue_message(
        &mut self,
        id: ConnId,
        content: Content,
        class: Option<ClassIndex>,
        channel: &str,
    ) -> Sent {
        let rules = Arc::clone(&self.rules);
        let index = class.unwrap_or_else(|| self.class_of(id));
        let class = rules.class(index);
        let waiting = self.cold(id).and_then(|cold| cold.waiting.as_deref());
        // Only a peer that does not take bytes is slow: what was sent since the kernel was asked
        // last is not dropped.
        let is_slow = self.conns[id.slot()].has(flag::IN_FLIGHT)
            || waiting.is_some_and(|waiting| waiting.is_slow);
        let backlog = self.backlog(id);
        if class.policy == SlowPolicy::Close && is_slow && self.kept_backlog(id) > class.max_backlog
        {
            self.close_slow(id, index);
            return Sent::Dropped;
        }
        if !is_slow && backlog > class.max_backlog {
            self.published |= OVERFULL;
        }
        self.memory.add(content.len() + REFERENCE_COST);
        let is_congested = is_slow || backlog > 0 && backlog + content.len() > self.high_water();
        let key = match &content {
            Content::Frame { frame, .. } => frame.key_in(channel),
            // Without a key that distinguishes it from others, every message is a value of the same
            // key.
            Content::Private { .. } => 0,
        };
        let now = Millis::of(self.now);
        let waiting = self.cold_mut(id).and_then(|cold| cold.waiting.take());
        let mut waiting = waiting.unwrap_or_default();
        waiting.is_slow = is_slow;
        let counters = &mut self.counters[usize::from(index)];
        let admitted = waiting.admit((index, class), key, content, now, counters);
        if let Some(cold) = self.cold_mut(id) {
            cold.waiting = Some(waiting);
        }
        self.mark_dirty(id);
        let conn = &mut self.conns[id.slot()];
        conn.set(flag::WAITING, true);
        conn.set(flag::NOTIFY_ON_DRAIN, is_congested || conn.has(flag::NOTIFY_ON_DRAIN));
        match admitted {
            Admitted::Queued => {
                self.stats.messages_out += 1;
                if is_congested { Sent::Queued } else { Sent::Accepted }
            }
            Admitted::Dropped => {
                self.stats.messages_dropped += 1;
                Sent::Dropped
            }
        }
    }

    /// Moves a quantum of waiting messages into the output queue, oldest first, except those that
    /// have grown too old.
    pub(crate) fn refill(&mut self, id: ConnId) {
        // What the driver holds counts like what may not be dropped, and must leave room for that.
        self.take_waiting(id, QUANTUM.min(self.low_water()).max(1));
    }

    /// Moves a quantum of so many bytes.
    pub(crate) fn take_waiting(&mut self, id: ConnId, quantum: usize) {
        if !self.conn(id).is_some_and(|conn| conn.has(flag::WAITING)) {
            return;
        }
        let Some(mut waiting) = self.cold_mut(id).and_then(|cold| cold.waiting.take()) else {
            return;
        };
        let rules = Arc::clone(&self.rules);
        let now = Millis::of(self.now);
        while self.queued(id) < quantum {
            if let Some(partial) = waiting.partial.take() {
                waiting.partial = self.put_fragment(id, partial);
                continue;
            }
            let next = waiting.pop(now, |class| rules.class(class), &mut self.counters);
            let Some(content) = next else { break };
            if !self.put(id, &content) {
                waiting.partial = Some(Partial { content, sent: 0 });
            }
        }
        self.put_waiting_back(id, waiting);
    }

    /// Queues the next fragment of a message; returns what is left of it.
    fn put_fragment(&mut self, id: ConnId, partial: Partial) -> Option<Partial> {
        let Partial { content, sent } = partial;
        let (text, message) = content.parts();
        let end = message.len().min(sent + self.limits.fragment_size);
        let opcode = match (sent, text) {
            (0, true) => Opcode::Text,
            (0, false) => Opcode::Binary,
            _ => Opcode::Continuation,
        };
        let (fin, payload) = (end == message.len(), &message[sent..end]);
        let mask = self.conns[id.slot()].has(flag::CLIENT).then(|| self.masks.next());
        if mask.is_none() && payload.len() >= LARGE {
            let header = ws::encode_header(opcode, fin, payload.len() as u64, None);
            let part = Part { content: content.clone(), range: sent..end };
            let batch = self.queue(id);
            batch.append(|out| out.extend_from_slice(&header));
            batch.push(Segment::Kept(Arc::new(part)));
        } else {
            let fragment = Fragment { opcode, fin, deflated: false, payload };
            self.append(id, |out| fragment.encode(mask, out));
        }
        (!fin).then_some(Partial { content, sent: end })
    }

    fn queued(&self, id: ConnId) -> usize {
        self.conn(id).and_then(|conn| conn.out.as_ref()).map_or(0, |out| out.len())
    }

    /// Drops waiting messages that have grown too old.
    pub(crate) fn expire_waiting(&mut self, id: ConnId) {
        let Some(mut waiting) = self.cold_mut(id).and_then(|cold| cold.waiting.take()) else {
            return;
        };
        let rules = Arc::clone(&self.rules);
        let now = Millis::of(self.now);
        waiting.expire(now, |class| rules.class(class), &mut self.counters);
        self.put_waiting_back(id, waiting);
    }

    fn put_waiting_back(&mut self, id: ConnId, waiting: Box<Waiting>) {
        if waiting.is_empty() {
            if let Some(conn) = self.conn_mut(id) {
                conn.set(flag::WAITING, false);
            }
            self.shed_cold(id);
        } else if let Some(cold) = self.cold_mut(id) {
            cold.waiting = Some(waiting);
        }
    }
}
