//! Messages on their way into a connection's queue: who is told what, what may wait, and what is dropped.

use std::sync::Arc;

use throng_io::{ConnId, Segment};
use throng_proto::ws::{self, Opcode};

use crate::backpressure::{ClassIndex, SlowPolicy};
use crate::borrowed::LARGE;
use crate::conn::{AfterFlush, Stage, flag};
use crate::connections::Connections;
use crate::frame::Frame;
use crate::waiting::{Admitted, Millis, Waiting};

/// What became of a message given to `send`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a slow receiver shows here, and only here"]
pub enum Sent {
    /// Queued with nothing ahead of it that the peer has not taken: it leaves in this turn.
    Written,
    /// Queued behind output that waits for the peer, or the queue has passed its high-water mark. Nothing is
    /// lost; `drain` is called when the backlog has fallen.
    Queued,
    /// Not sent: as much as may waits for the receiver already. Its [`SlowPolicy`] was to drop this message, or to
    /// close the connection.
    Dropped,
    /// Not sent: the connection is closed or closing.
    Closed,
}

/// Frames up to this many bytes are copied into queues: a reference costs as much, in memory and in a gathered send,
/// and would let tiny messages pass the backlog's limit, which counts bytes.
pub(crate) const SMALL_FRAME: usize = 64;

/// What a queued reference costs besides its frame's bytes, generously.
const REFERENCE_COST: usize = 64;

/// Waiting messages follow the queue in helpings of this size: what the driver holds can no longer be dropped.
const HELPING: usize = 64 * 1024;

/// Says that the class follows from the receiver's route; looked up only when it matters.
const UNKNOWN: ClassIndex = ClassIndex::MAX;

/// What a frame was published to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Published<'a> {
    /// The channel; empty for a frame that is sent by itself.
    pub(crate) channel: &'a str,
    /// The channel's rules, if it has any.
    pub(crate) class: Option<ClassIndex>,
}

/// A finished message on its way into a queue.
struct Piece {
    segment: Segment,
    /// Of [`SlowPolicy::Latest`].
    key: u64,
    class: ClassIndex,
}

impl Connections {
    /// Queues one message.
    #[inline]
    pub(crate) fn send(&mut self, id: ConnId, opcode: Opcode, payload: &[u8]) -> Sent {
        let high = self.high_water();
        match self.conns.get_mut(id.slot()) {
            // A small message to a session of a server that is where its sender wants it, so nearly all: one
            // look and one write.
            Some(conn)
                if conn.id == id
                    && payload.len() < LARGE
                    && conn.stage == Stage::Open
                    && conn.flags & (flag::NOT_PLAIN_TO_SEND | flag::DIRTY) == flag::DIRTY
                    && conn.out.as_ref().is_none_or(|out| out.len() + payload.len() <= high) =>
            {
                self.stats.messages_out += 1;
                let out = conn.out.get_or_insert_with(|| self.spares.take());
                out.append(|out| ws::encode(opcode, payload, out));
                Sent::Written
            }
            _ => self.send_rarely(id, opcode, payload),
        }
    }

    /// The same for any connection.
    #[inline(never)]
    fn send_rarely(&mut self, id: ConnId, opcode: Opcode, payload: &[u8]) -> Sent {
        if self.stage(id) != Stage::Open {
            return Sent::Closed;
        }
        if self.waits_apart(id, None) {
            let mut bytes = Vec::with_capacity(payload.len() + 14);
            self.encode(id, opcode, payload, &mut bytes);
            let class = self.class_of(id);
            // Without a name to tell it from others, every message is a value of the same key.
            let piece = Piece { segment: Segment::Own(bytes), key: 0, class };
            return self.wait_behind(id, piece);
        }
        let sent = match self.admit(id, payload.len(), UNKNOWN) {
            Ok(sent) => sent,
            Err(refused) => return refused,
        };
        self.stats.messages_out += 1;
        let flags = self.conns[id.slot()].flags;
        if flags & flag::CLIENT != 0 {
            let key = self.masks.next();
            self.append(id, |out| ws::encode_masked(opcode, payload, key, out));
            return sent;
        }
        // With a batch in flight the next flush is not the one that follows this event.
        let is_large = payload.len() >= LARGE && flags & flag::IN_FLIGHT == 0;
        match is_large.then(|| self.borrowed.piece(id, payload)).flatten() {
            Some(piece) => {
                let header = ws::encode_header(opcode, true, payload.len() as u64, None);
                let batch = self.queue(id);
                batch.append(|out| out.extend_from_slice(&header));
                batch.push(piece);
            }
            None => self.append(id, |out| ws::encode(opcode, payload, out)),
        }
        sent
    }

    /// The same, counted among the publications of its class.
    pub(crate) fn publish_to(&mut self, id: ConnId, frame: &Frame, of: Published<'_>) -> Sent {
        let sent = self.send_frame(id, frame, of);
        let class = of.class.unwrap_or_else(|| self.class_of(id));
        let figures = &mut self.figures[usize::from(class)];
        match sent {
            Sent::Written => figures.delivered += 1,
            Sent::Queued => figures.queued += 1,
            Sent::Closed => figures.closed += 1,
            // Counted by what was done about it.
            Sent::Dropped => {}
        }
        sent
    }

    /// Queues a reference to a finished frame, published to a channel or sent by itself.
    pub(crate) fn send_frame(&mut self, id: ConnId, frame: &Frame, of: Published<'_>) -> Sent {
        let bytes = match self.stage(id) {
            Stage::Open => frame.shared(),
            Stage::Events => frame.event(),
            _ => return Sent::Closed,
        };
        if self.fan(id, bytes) {
            self.stats.messages_out += 1;
            return Sent::Written;
        }
        if self.conns[id.slot()].has(flag::IN_FLIGHT | flag::WAITING)
            && self.waits_apart(id, of.class)
        {
            let class = of.class.unwrap_or_else(|| self.class_of(id));
            let segment = Segment::Shared(Arc::clone(bytes));
            let piece = Piece { segment, key: frame.key_in(of.channel), class };
            return self.wait_behind(id, piece);
        }
        let class = of.class.unwrap_or(UNKNOWN);
        let sent = match self.admit(id, bytes.len(), class) {
            Ok(sent) => sent,
            Err(refused) => return refused,
        };
        self.stats.messages_out += 1;
        self.published += bytes.len().min(SMALL_FRAME) + REFERENCE_COST;
        let batch = self.queue(id);
        if bytes.len() <= SMALL_FRAME {
            batch.append(|out| out.extend_from_slice(bytes));
        } else {
            batch.push(Segment::Shared(Arc::clone(bytes)));
        }
        sent
    }

    /// Notes a frame for a connection to which nothing but such frames is to be sent. False if it needs a queue.
    #[inline]
    fn fan(&mut self, id: ConnId, bytes: &Arc<[u8]>) -> bool {
        let conn = &mut self.conns[id.slot()];
        if conn.flags & flag::NOT_PLAIN_TO_FAN != 0
            || conn.out.is_some()
            || conn.after_flush != AfterFlush::Nothing
            || !self.fanout.add(id.slot(), bytes, conn.stage == Stage::Open)
        {
            return false;
        }
        conn.flags |= flag::FANNED;
        if conn.flags & flag::DIRTY == 0 {
            conn.flags |= flag::DIRTY;
            self.dirty.push(id);
        }
        true
    }

    /// Whether messages to this connection now wait one by one: those before them do, or it is slow and their class
    /// may lose some.
    fn waits_apart(&self, id: ConnId, class: Option<ClassIndex>) -> bool {
        let flags = self.conns[id.slot()].flags;
        if flags & flag::WAITING != 0 {
            return true;
        }
        let class = || self.rules.class(class.unwrap_or_else(|| self.class_of(id)));
        flags & flag::IN_FLIGHT != 0 && class().waits_apart()
    }

    /// The class of what is sent to this connection and belongs to no channel with rules of its own. Ids in a
    /// broadcast's filter are the user's: one may be made up.
    pub(crate) fn class_of(&self, id: ConnId) -> ClassIndex {
        self.conns.get(id.slot()).map_or(0, |conn| self.rules.of_route(conn.route))
    }

    /// Lets a message wait by itself, as its class's policy says.
    #[cold]
    fn wait_behind(&mut self, id: ConnId, piece: Piece) -> Sent {
        let rules = Arc::clone(&self.rules);
        let class = rules.class(piece.class);
        if class.policy == SlowPolicy::Close && self.is_full(id, class.max_backlog) {
            self.close_slow(id, piece.class);
            return Sent::Dropped;
        }
        let now = Millis::of(self.now);
        let mut waiting =
            self.cold_mut(id).and_then(|cold| cold.waiting.take()).unwrap_or_default();
        let figures = &mut self.figures[usize::from(piece.class)];
        let admitted = waiting.admit((piece.class, class), piece.key, piece.segment, now, figures);
        if let Some(cold) = self.cold_mut(id) {
            cold.waiting = Some(waiting);
        }
        self.conns[id.slot()].flags |= flag::WAITING | flag::BEHIND;
        match admitted {
            Admitted::Queued => {
                self.stats.messages_out += 1;
                Sent::Queued
            }
            Admitted::Dropped => {
                self.stats.messages_dropped += 1;
                Sent::Dropped
            }
        }
    }

    /// Moves a helping of waiting messages into the queue, oldest first, less what has grown too old.
    pub(crate) fn refill(&mut self, id: ConnId) {
        self.take_waiting(id, HELPING);
    }

    pub(crate) fn take_waiting(&mut self, id: ConnId, helping: usize) {
        let Some(conn) = self.conn(id) else { return };
        if !conn.has(flag::WAITING) {
            return;
        }
        let Some(mut waiting) = self.cold_mut(id).and_then(|cold| cold.waiting.take()) else {
            return;
        };
        let rules = Arc::clone(&self.rules);
        let now = Millis::of(self.now);
        let mut taken = self.conn(id).and_then(|conn| conn.out.as_ref()).map_or(0, |out| out.len());
        while taken < helping
            && let Some(segment) = waiting.pop(now, |class| rules.class(class), &mut self.figures)
        {
            taken += segment.len();
            let batch = self.queue(id);
            match segment {
                Segment::Shared(bytes) if bytes.len() <= SMALL_FRAME => {
                    batch.append(|out| out.extend_from_slice(&bytes));
                }
                segment => batch.push(segment),
            }
        }
        self.put_waiting_back(id, waiting);
    }

    /// Drops waiting messages that have grown too old.
    pub(crate) fn expire_waiting(&mut self, id: ConnId) {
        let Some(mut waiting) = self.cold_mut(id).and_then(|cold| cold.waiting.take()) else {
            return;
        };
        let rules = Arc::clone(&self.rules);
        let now = Millis::of(self.now);
        waiting.expire(now, |class| rules.class(class), &mut self.figures);
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

    /// Whether a message of `len` may be queued, and what its sender is told. Nothing waits one by one.
    fn admit(&mut self, id: ConnId, len: usize, class: ClassIndex) -> Result<Sent, Sent> {
        let high = self.high_water();
        let Some(conn) = self.conns.get(id.slot()) else { return Err(Sent::Closed) };
        if conn.id != id || !matches!(conn.stage, Stage::Open | Stage::Events) {
            return Err(Sent::Closed);
        }
        if conn.flags & flag::IN_FLIGHT == 0 {
            match &conn.out {
                None if conn.has(flag::FANNED) => {}
                None => return Ok(Sent::Written),
                Some(batch) if batch.len() + len <= high => return Ok(Sent::Written),
                Some(_) => {}
            }
        }
        self.admit_behind(id, len, class)
    }

    /// The same, for a connection that is not where its sender wants it.
    #[cold]
    fn admit_behind(&mut self, id: ConnId, len: usize, class: ClassIndex) -> Result<Sent, Sent> {
        let class = if class == UNKNOWN { self.class_of(id) } else { class };
        let (max, high) = (self.rules.class(class).max_backlog, self.high_water());
        let backlog = self.kept_backlog(id);
        let conn = &mut self.conns[id.slot()];
        let in_flight = conn.has(flag::IN_FLIGHT);
        // Only a peer that does not take bytes is slow: without a batch in flight the kernel was not asked yet. The
        // backlog before this message counts, so that a message of any size finds its way into a short queue.
        if in_flight && backlog > max {
            self.close_slow(id, class);
            return Err(Sent::Dropped);
        }
        if !in_flight && backlog > max {
            self.overfull = true;
        }
        if in_flight || backlog + len > high {
            conn.set(flag::BEHIND, true);
            return Ok(Sent::Queued);
        }
        Ok(Sent::Written)
    }

    /// Whether a receiver that takes no bytes has as much waiting as [`SlowPolicy::Close`] allows.
    fn is_full(&self, id: ConnId, max: usize) -> bool {
        self.kept_backlog(id) > max
    }

    #[cold]
    fn close_slow(&mut self, id: ConnId, class: ClassIndex) {
        self.conns[id.slot()].set(flag::BEHIND, true);
        self.stats.messages_dropped += 1;
        self.stats.slow_consumers += 1;
        self.figures[usize::from(class)].slow_consumers += 1;
        self.fail(id, 1008, "slow consumer");
    }
}
