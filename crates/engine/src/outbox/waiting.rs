//! The per-message queue: how messages enter it, and leave it in chunks and in fragments.

use std::sync::Arc;

use throng_io::Segment;
use throng_proto::ws::{self, Fragment, Opcode};

use crate::backpressure::{ClassIndex, SlowPolicy};
use crate::conn::record::Conn;
use crate::conn::stage::flag;
use crate::outbox::admit::TooSlow;
use crate::outbox::borrowed::LARGE;
use crate::outbox::frame::Frame;
use crate::outbox::queue::{Admitted, Content, Millis, Part, Partial, Waiting};
use crate::outbox::sent::Sent;
use crate::outbox::{OVERFULL, Outbox};
use crate::stats::Stats;

/// Bytes of waiting messages moved into the output queue at a time: data that the driver holds can
/// no longer be dropped, and no control frame overtakes it.
const QUANTUM: usize = 64 * 1024;

impl Outbox {
    /// Returns a message for one connection as it waits: without a copy, if it was joined from
    /// fragments.
    pub(crate) fn private(&self, text: bool, payload: &[u8], compressible: bool) -> Content {
        let kept = self.borrowed.kept(payload);
        let payload = kept.unwrap_or_else(|| Arc::new(payload.to_vec()));
        Content::Private { text, payload, compressible }
    }

    /// Returns a frame as it waits; `len`: of the message, or of the event that it is here.
    pub(crate) fn shared(frame: &Frame, len: usize) -> Content {
        Content::Frame { frame: frame.clone(), len }
    }

    /// Puts a message into the per-message queue, as its class's policy decides; `class`: the
    /// channel's, or else the receiver's.
    #[cold]
    pub(crate) fn enqueue(
        &mut self,
        conn: &mut Conn,
        content: Content,
        (class, channel): (Option<ClassIndex>, &str),
        now: Millis,
    ) -> Result<Sent, TooSlow> {
        let rules = Arc::clone(&self.rules);
        let index = self.class_or_own(conn, class);
        let class = rules.class(index);
        // Only a peer that does not take bytes is slow: messages since the kernel was last asked
        // are not dropped.
        let waiting = self.congested.get(&conn.id).and_then(|congested| congested.waiting.as_ref());
        let is_slow = conn.has(flag::IN_FLIGHT) || waiting.is_some_and(|waiting| waiting.is_slow);
        let backlog = self.backlog(conn);
        if class.policy == SlowPolicy::Close
            && is_slow
            && self.kept_backlog(conn) > class.max_backlog
        {
            return Err(TooSlow(index));
        }
        if !is_slow && backlog > class.max_backlog {
            self.published |= OVERFULL;
        }
        let is_congested = is_slow || backlog > 0 && backlog + content.len() > self.high_water;
        let key = match &content {
            Content::Frame { frame, .. } => frame.key_in(channel),
            // Without a key that distinguishes it from others, every message is a value of the same
            // key.
            Content::Private { .. } => 0,
        };
        let mut waiting = self.congested_mut(conn.id).waiting.take().unwrap_or_default();
        waiting.is_slow = is_slow;
        let counters = &mut self.counters[usize::from(index)];
        let admitted = waiting.admit((index, class), key, content, now, counters);
        self.congested_mut(conn.id).waiting = Some(waiting);
        self.dirty.add(conn);
        conn.set(flag::WAITING, true);
        conn.set(flag::NOTIFY_ON_DRAIN, is_congested || conn.has(flag::NOTIFY_ON_DRAIN));
        Ok(match admitted {
            Admitted::Dropped => Sent::Dropped,
            Admitted::Queued if is_congested => Sent::Queued,
            Admitted::Queued => Sent::Accepted,
        })
    }

    /// Moves a quantum of waiting messages into the output queue, oldest first, except those that
    /// have grown too old.
    pub(crate) fn refill(&mut self, conn: &mut Conn, now: Millis, stats: &mut Stats) {
        // Bytes with the driver count like messages that may not be dropped, and must leave room
        // for those.
        self.take_waiting(conn, QUANTUM.min(self.low_water()).max(1), now, stats);
    }

    /// Moves a quantum of this many bytes.
    pub(crate) fn take_waiting(
        &mut self,
        conn: &mut Conn,
        quantum: usize,
        now: Millis,
        stats: &mut Stats,
    ) {
        if !conn.has(flag::WAITING) {
            return;
        }
        let Some(mut waiting) = self.congested_mut(conn.id).waiting.take() else { return };
        let rules = Arc::clone(&self.rules);
        while conn.out.as_ref().map_or(0, |out| out.len()) < quantum {
            if let Some(partial) = waiting.partial.take() {
                waiting.partial = self.put_fragment(conn, partial);
                continue;
            }
            let next = waiting.pop(now, |class| rules.class(class), &mut self.counters);
            let Some(content) = next else { break };
            if !self.put(conn, &content, stats) {
                waiting.partial = Some(Partial { content, sent: 0 });
            }
        }
        self.put_waiting_back(conn, waiting);
    }

    /// Queues the next fragment of a message; returns the rest of it.
    fn put_fragment(&mut self, conn: &mut Conn, partial: Partial) -> Option<Partial> {
        let Partial { content, sent } = partial;
        let (text, message) = content.parts();
        let end = message.len().min(sent + self.limits.fragment_size);
        let opcode = match (sent, text) {
            (0, true) => Opcode::Text,
            (0, false) => Opcode::Binary,
            _ => Opcode::Continuation,
        };
        let (fin, payload) = (end == message.len(), &message[sent..end]);
        let mask = self.masks.for_conn(conn);
        if mask.is_none() && payload.len() >= LARGE {
            let header = ws::encode_header(opcode, fin, payload.len() as u64, None);
            let part = Part { content: content.clone(), range: sent..end };
            let batch = self.queue(conn);
            batch.append(|out| out.extend_from_slice(&header));
            batch.push(Segment::Kept(Arc::new(part)));
        } else {
            let fragment = Fragment { opcode, fin, deflated: false, payload };
            self.append(conn, |out| fragment.encode(mask, out));
        }
        (!fin).then_some(Partial { content, sent: end })
    }

    /// Drops waiting messages that have grown too old.
    pub(crate) fn expire_waiting(&mut self, conn: &mut Conn, now: Millis) {
        let waiting = self.congested.get_mut(&conn.id);
        let Some(mut waiting) = waiting.and_then(|congested| congested.waiting.take()) else {
            return;
        };
        let rules = Arc::clone(&self.rules);
        waiting.expire(now, |class| rules.class(class), &mut self.counters);
        self.put_waiting_back(conn, waiting);
    }

    fn put_waiting_back(&mut self, conn: &mut Conn, waiting: Box<Waiting>) {
        if waiting.is_empty() {
            conn.set(flag::WAITING, false);
            self.shed(conn);
        } else {
            self.congested_mut(conn.id).waiting = Some(waiting);
        }
    }

    /// Returns the maximum bytes by which messages of one class that wait for a connection are over
    /// their cap; for audits.
    pub(crate) fn excess(&self, conn: &Conn) -> usize {
        let congested = self.congested.get(&conn.id);
        let Some(waiting) = congested.and_then(|congested| congested.waiting.as_deref()) else {
            return 0;
        };
        debug_assert!(conn.has(flag::WAITING) && !waiting.is_empty());
        waiting.excess(|class| self.rules.class(class).max_backlog)
    }
}
