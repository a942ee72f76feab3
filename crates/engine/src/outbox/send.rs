//! Queueing of messages on a connection: results for the sender, messages that wait, and messages
//! that are dropped.

use std::sync::Arc;

use throng_io::{ConnId, Segment};
use throng_proto::ws::{self, Opcode};

use crate::conn::stage::{Stage, flag};
use crate::conn::table::{Connections, OVERFULL};
use crate::outbox::borrowed::LARGE;
use crate::outbox::fanout::{self, Form, JOINED_FRAME};
use crate::outbox::frame::Frame;
use crate::outbox::queue::Content;
use crate::pubsub::backpressure::{ClassIndex, SlowPolicy};

/// Result of sending a message. There will be no others: each copy of a message has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a slow receiver shows here, and only here"]
pub enum Sent {
    /// Queued with nothing ahead of it that the peer has not taken: it leaves in this turn.
    Accepted,
    /// Queued behind output that waits for the peer, or the queue has passed its high-water mark.
    /// Nothing is lost; `on_drained` is called when the backlog has fallen.
    Queued,
    /// Not sent: the backlog has reached its cap. The [`SlowPolicy`] was to drop
    /// this message, or to close the connection.
    Dropped,
    /// Not sent: the connection is closed or closing.
    Closed,
}

/// Frames up to this many bytes are copied into queues: a reference costs as much, in memory and in
/// a gathered send, and would let tiny messages pass the backlog's limit, which counts bytes.
pub(crate) const SMALL_FRAME: usize = 64;

/// Cost of a queued reference besides its frame's bytes, generously.
pub(crate) const REFERENCE_COST: usize = 64;

/// Marks that the class follows from the receiver's route; looked up only when it matters.
pub(crate) const UNKNOWN: ClassIndex = ClassIndex::MAX;

/// Reason why a frame has no form on a connection.
enum Formless {
    /// The connection is closed or closing.
    Closed,
    /// The connection is a stream of events, and the event would be too large.
    TooLarge,
}

/// Destination of a published frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Published<'a> {
    /// The channel; empty for a frame that is sent by itself.
    pub(crate) channel: &'a str,
    /// The channel's rules, if it has any.
    pub(crate) class: Option<ClassIndex>,
}

impl Connections {
    /// Queues one message. Inlined wherever it is called: a call would cost a tenth of echoing the
    /// message.
    #[inline(always)]
    pub(crate) fn send(&mut self, id: ConnId, opcode: Opcode, payload: &[u8]) -> Sent {
        let (high, fast_below) = (self.high_water(), self.limits.fast_below);
        match self.conns.get_mut(id.slot()) {
            // Fast path: a small message to a session of a server whose flags are as usual, so
            // nearly all: one read and one write of the record.
            Some(conn)
                if conn.id == id
                    && payload.len() < fast_below
                    && conn.status().is_exactly(
                        Stage::Open,
                        flag::SEND_SLOW_MASK | flag::DIRTY,
                        flag::DIRTY,
                    )
                    && conn.out.as_ref().is_none_or(|out| out.len() + payload.len() <= high) =>
            {
                self.stats.messages_out += 1;
                let out = conn.out.get_or_insert_with(|| self.spares.take());
                out.append(|out| ws::encode(opcode, payload, out));
                Sent::Accepted
            }
            _ => self.send_slow(id, opcode, payload),
        }
    }

    /// Queues one message on any connection: the slow path.
    #[inline(never)]
    fn send_slow(&mut self, id: ConnId, opcode: Opcode, payload: &[u8]) -> Sent {
        self.send_hinted(id, opcode == Opcode::Text, payload, true)
    }

    /// Queues one message, not to be compressed if it is not `compressible`.
    pub(crate) fn send_hinted(
        &mut self,
        id: ConnId,
        text: bool,
        payload: &[u8],
        compressible: bool,
    ) -> Sent {
        if self.stage(id) != Stage::Open {
            return Sent::Closed;
        }
        let in_fragments = self.needs_fragments(payload.len())
            && !(compressible
                && self.conns[id.slot()].has(flag::DEFLATE)
                && self.compression.can_relay(id.slot(), payload));
        if in_fragments || self.needs_message_queue(id, None) {
            let kept = self.borrowed.kept(payload);
            let payload = kept.unwrap_or_else(|| Arc::new(payload.to_vec()));
            let content = Content::Private { text, payload, compressible };
            return self.enqueue_message(id, content, None, "");
        }
        let (compressed, len) = match self.compress(id, payload, compressible) {
            true => (true, self.compression.deflated().len()),
            false => (false, payload.len()),
        };
        let sent = match self.admit(id, len, UNKNOWN) {
            Ok(sent) => sent,
            Err(refused) => return refused,
        };
        self.stats.messages_out += 1;
        match compressed {
            true => self.put_deflated(id, text),
            false => self.put_uncompressed(id, text, payload),
        }
        sent
    }

    fn compress(&mut self, id: ConnId, payload: &[u8], compressible: bool) -> bool {
        compressible
            && self.conns[id.slot()].has(flag::DEFLATE)
            && self.compression.deflate(id.slot(), payload, &mut self.stats).is_some()
    }

    /// Returns whether a message of `len` bytes is sent in fragments (RFC 6455 section 5.4).
    pub(crate) fn needs_fragments(&self, len: usize) -> bool {
        len > self.limits.fragment_threshold
    }

    /// Queues the message that was compressed last.
    fn put_deflated(&mut self, id: ConnId, text: bool) {
        let mask = self.conns[id.slot()].has(flag::CLIENT).then(|| self.masks.next());
        let out = self.compression.take_deflated();
        self.append(id, |queue| ws::encode_deflated(text, &out, mask, queue));
        self.compression.put_back(out);
    }

    fn put_uncompressed(&mut self, id: ConnId, text: bool, payload: &[u8]) {
        let opcode = if text { Opcode::Text } else { Opcode::Binary };
        let status = self.conns[id.slot()].status();
        if status.has(flag::CLIENT) {
            let key = self.masks.next();
            self.append(id, |out| ws::encode_masked(opcode, payload, key, out));
            return;
        }
        // With a batch in flight the next flush is not the one that follows this event.
        let is_large = payload.len() >= LARGE && !status.has(flag::IN_FLIGHT);
        match is_large.then(|| self.borrowed.segment(id, payload)).flatten() {
            Some(segment) => {
                let header = ws::encode_header(opcode, true, payload.len() as u64, None);
                let batch = self.queue(id);
                batch.append(|out| out.extend_from_slice(&header));
                batch.push(segment);
            }
            None => self.append(id, |out| ws::encode(opcode, payload, out)),
        }
    }

    /// Queues a message that has waited, in the form that its connection needs now. Returns false,
    /// with nothing queued, if it must be sent in fragments: compressed messages are not, since
    /// some clients cannot read them so.
    pub(crate) fn put(&mut self, id: ConnId, content: &Content) -> bool {
        match content {
            Content::Private { text, payload, compressible } => {
                let payload = payload.as_ref().as_ref();
                if self.compress(id, payload, *compressible) {
                    self.put_deflated(id, *text);
                    return true;
                }
                let whole = !self.needs_fragments(payload.len());
                if whole {
                    self.put_uncompressed(id, *text, payload);
                }
                whole
            }
            Content::Frame { frame, .. } => {
                let Ok((bytes, form)) = self.form(id, frame) else { return true };
                let whole = form != Form::Plain || !self.needs_fragments(frame.payload().len());
                if whole {
                    self.put_frame(id, frame, bytes, form);
                }
                whole
            }
        }
    }

    /// Returns the form of a frame on a connection.
    #[inline]
    fn form<'f>(
        &mut self,
        id: ConnId,
        frame: &'f Frame,
    ) -> Result<(&'f Arc<[u8]>, Form), Formless> {
        let Some(conn) = self.conn(id) else { return Err(Formless::Closed) };
        match conn.stage() {
            Stage::Open if conn.has(flag::DEFLATE) => {
                let deflated = self.compression.frame(id.slot(), frame, &mut self.stats);
                Ok(deflated.map_or((frame.shared(), Form::Plain), |bytes| (bytes, Form::Deflated)))
            }
            Stage::Open => Ok((frame.shared(), Form::Plain)),
            Stage::Events => {
                let Self { compression, published, limits, .. } = self;
                let event = frame.event(limits.ws.max_message_size, |work| {
                    compression.record_work(work);
                    *published += work;
                });
                event.map(|bytes| (bytes, Form::Event)).ok_or(Formless::TooLarge)
            }
            _ => Err(Formless::Closed),
        }
    }

    /// Drops a frame that would be much larger as an event, as the policy of the stream decides.
    #[cold]
    fn refuse_event(&mut self, id: ConnId, class: Option<ClassIndex>) -> Sent {
        let class = class.unwrap_or_else(|| self.class_of(id));
        match self.rules.class(class).policy {
            SlowPolicy::Close => self.close_slow(id, class),
            _ => {
                self.stats.messages_dropped += 1;
                self.counters[usize::from(class)].too_large += 1;
            }
        }
        Sent::Dropped
    }

    fn put_frame(&mut self, id: ConnId, frame: &Frame, bytes: &Arc<[u8]>, form: Form) {
        self.published += bytes.len().min(SMALL_FRAME) + REFERENCE_COST;
        if form == Form::Deflated {
            self.compression.record_sent(id.slot(), frame);
        }
        if bytes.len() <= JOINED_FRAME && self.wait_in_list(id, bytes, form) {
            return;
        }
        let batch = self.queue(id);
        if bytes.len() <= SMALL_FRAME {
            batch.append(|out| out.extend_from_slice(bytes));
        } else {
            batch.push(Segment::Shared(Arc::clone(bytes)));
        }
    }

    /// Queues a reference to a finished frame, published to a channel or sent by itself.
    pub(crate) fn send_frame(&mut self, id: ConnId, frame: &Frame, of: Published<'_>) -> Sent {
        let (bytes, form) = match self.form(id, frame) {
            Ok(formed) => formed,
            Err(Formless::Closed) => return Sent::Closed,
            Err(Formless::TooLarge) => return self.refuse_event(id, of.class),
        };
        if self.fan_out(id, frame, bytes, form) {
            self.stats.messages_out += 1;
            return Sent::Accepted;
        }
        let large = form != Form::Event && self.needs_fragments(frame.payload().len());
        if large || self.needs_message_queue(id, of.class) {
            // Compressed or not is decided when it leaves.
            let len = if form == Form::Event { bytes.len() } else { frame.payload().len() };
            let content = Content::Frame { frame: frame.clone(), len };
            return self.enqueue_message(id, content, of.class, of.channel);
        }
        let sent = match self.admit(id, bytes.len(), of.class.unwrap_or(UNKNOWN)) {
            Ok(sent) => sent,
            Err(refused) => return refused,
        };
        self.stats.messages_out += 1;
        self.put_frame(id, frame, bytes, form);
        sent
    }

    /// Queues a frame, counted among the publications of its class.
    pub(crate) fn publish_to(&mut self, id: ConnId, frame: &Frame, of: Published<'_>) -> Sent {
        let sent = self.send_frame(id, frame, of);
        let class = of.class.unwrap_or_else(|| self.class_of(id));
        let counters = &mut self.counters[usize::from(class)];
        match sent {
            Sent::Accepted => counters.delivered += 1,
            Sent::Queued => counters.queued += 1,
            Sent::Closed => counters.closed += 1,
            // Counted by what was done about it.
            Sent::Dropped => {}
        }
        sent
    }

    /// Adds a frame to the fan-out list of a connection that has no other output. Returns false if
    /// it needs a queue.
    #[inline]
    fn fan_out(&mut self, id: ConnId, frame: &Frame, bytes: &Arc<[u8]>, form: Form) -> bool {
        let conn = &mut self.conns[id.slot()];
        if !conn.status().may_fan_out()
            || conn.out.is_some()
            || (form != Form::Event && frame.payload().len() > self.limits.fragment_threshold)
            || !self.fanout.add(id.slot(), bytes, form)
        {
            return false;
        }
        self.published += fanout::COST;
        conn.set(flag::FAN_OUT, true);
        self.dirty.add(conn);
        if form == Form::Deflated {
            self.compression.record_sent(id.slot(), frame);
        }
        true
    }

    /// Adds a short frame to the fan-out list of a connection with a batch in flight: the list is
    /// moved behind all that it has queued already. Returns false if it is to be copied.
    fn wait_in_list(&mut self, id: ConnId, bytes: &Arc<[u8]>, form: Form) -> bool {
        let conn = &mut self.conns[id.slot()];
        if !conn.has(flag::IN_FLIGHT) || conn.is_finishing() {
            return false;
        }
        if !self.fanout.add(id.slot(), bytes, form) {
            return false;
        }
        conn.set(flag::FAN_OUT, true);
        self.mark_dirty(id);
        true
    }

    /// Returns whether messages to this connection now go to the per-message queue: earlier ones
    /// are there, or the connection is slow and their class may drop some.
    fn needs_message_queue(&self, id: ConnId, class: Option<ClassIndex>) -> bool {
        let status = self.conns[id.slot()].status();
        if status.has(flag::WAITING) {
            return true;
        }
        let class = || self.rules.class(class.unwrap_or_else(|| self.class_of(id)));
        status.has(flag::IN_FLIGHT) && class().is_per_message()
    }

    /// Returns the class of messages to this connection that belong to no channel with rules of its
    /// own. Ids in a broadcast's filter are the user's: one may be made up.
    pub(crate) fn class_of(&self, id: ConnId) -> ClassIndex {
        self.conns.get(id.slot()).map_or(0, |conn| self.rules.of_route(conn.route))
    }

    /// Decides whether a message of `len` may be queued, and the result for its sender. The
    /// per-message queue is empty.
    fn admit(&mut self, id: ConnId, len: usize, class: ClassIndex) -> Result<Sent, Sent> {
        let high = self.high_water();
        let Some(conn) = self.conns.get(id.slot()) else { return Err(Sent::Closed) };
        if conn.id != id || !matches!(conn.stage(), Stage::Open | Stage::Events) {
            return Err(Sent::Closed);
        }
        if !conn.has(flag::IN_FLIGHT) {
            match &conn.out {
                None if conn.has(flag::FAN_OUT) => {}
                None => return Ok(Sent::Accepted),
                Some(batch) if batch.len() + len <= high => return Ok(Sent::Accepted),
                Some(_) => {}
            }
        }
        self.admit_behind(id, len, class)
    }

    /// Decides this for a connection whose output is congested or that is slow.
    #[cold]
    fn admit_behind(&mut self, id: ConnId, len: usize, class: ClassIndex) -> Result<Sent, Sent> {
        let class = if class == UNKNOWN { self.class_of(id) } else { class };
        let (max, high) = (self.rules.class(class).max_backlog, self.high_water());
        let backlog = self.kept_backlog(id);
        let in_flight = self.conns[id.slot()].has(flag::IN_FLIGHT);
        // Only a peer that does not take bytes is slow: without a batch in flight the kernel was
        // not asked yet. The backlog before this message counts, so that a message of any size
        // finds its way into a short queue.
        if in_flight && backlog > max {
            self.close_slow(id, class);
            return Err(Sent::Dropped);
        }
        if !in_flight && backlog > max {
            self.published |= OVERFULL;
        }
        if in_flight {
            self.memory.add(len + REFERENCE_COST);
        }
        let conn = &mut self.conns[id.slot()];
        if in_flight || backlog + len > high {
            conn.set(flag::NOTIFY_ON_DRAIN, true);
            return Ok(Sent::Queued);
        }
        Ok(Sent::Accepted)
    }

    #[cold]
    pub(crate) fn close_slow(&mut self, id: ConnId, class: ClassIndex) {
        self.conns[id.slot()].set(flag::NOTIFY_ON_DRAIN, true);
        self.stats.messages_dropped += 1;
        self.stats.slow_consumers += 1;
        self.counters[usize::from(class)].slow_consumers += 1;
        if let Some(cold) = self.cold_mut(id) {
            cold.is_slow = true;
        }
        self.fail(id, 1008, "slow consumer");
    }
}
