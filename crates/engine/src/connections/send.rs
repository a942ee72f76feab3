//! Sending messages to connections: the result for each sender, and the end of receivers that are
//! too slow.

use throng_io::ConnId;
use throng_proto::ws::{self, CloseCode, Opcode};

use crate::backpressure::ClassIndex;
use crate::conn::stage::{Stage, flag};
use crate::connections::Connections;
use crate::message::Fault;
use crate::outbox::frame::Frame;
use crate::outbox::sent::{REFERENCE_COST, Sent};
use crate::outbox::{Content, Form, FormError, Outbox, TooSlow};

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
        // One read and one write of the record.
        let conn = self.table.conn_mut(id);
        match conn.and_then(|conn| self.outbox.fast_queue(conn, payload.len())) {
            Some(queue) => {
                self.stats.messages_out += 1;
                queue.append(|out| ws::encode(opcode, payload, out));
                Sent::Accepted
            }
            None => self.send_slow(id, opcode, payload),
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
        let Self { table, outbox, stats, memory, .. } = self;
        let Some(conn) = table.conn_mut(id).filter(|conn| conn.is(Stage::Open)) else {
            return Sent::Closed;
        };
        if conn.has(flag::HELD) {
            return self.keep_message(id, text, payload, compressible);
        }
        if outbox.fragments(conn, payload, compressible) || outbox.needs_message_queue(conn, None) {
            let content = outbox.private(text, payload, compressible);
            return self.enqueue(id, content, Published::default());
        }
        let compressed = outbox.compress(conn, payload, compressible, stats);
        let len = compressed.unwrap_or(payload.len());
        let sent = match outbox.admit(conn, len, None) {
            Ok(sent) => sent,
            Err(TooSlow(class)) => return self.drop_slow(id, class),
        };
        if conn.has(flag::IN_FLIGHT) {
            memory.add(len + REFERENCE_COST);
        }
        stats.messages_out += 1;
        match compressed {
            Some(_) => outbox.put_deflated(conn, text),
            None => outbox.put_uncompressed(conn, text, payload),
        }
        sent
    }

    /// Queues a reference to a finished frame, published to a channel or sent directly, even if
    /// other output waits behind publications.
    pub(crate) fn send_frame(&mut self, id: ConnId, frame: &Frame, of: Published<'_>) -> Sent {
        let Self { table, outbox, stats, memory, .. } = self;
        let Some(conn) = table.conn_mut(id) else { return Sent::Closed };
        let (bytes, form) = match outbox.form(conn, frame, stats) {
            Ok(formed) => formed,
            Err(FormError::Closed) => return Sent::Closed,
            Err(FormError::TooLarge(lost)) => return self.send_lost(id, lost, of),
        };
        if outbox.fan_out(conn, frame, bytes, form) {
            stats.messages_out += 1;
            return Sent::Accepted;
        }
        let large = form != Form::Event && outbox.needs_fragments(frame.payload().len());
        if large || outbox.needs_message_queue(conn, of.class) {
            // Compressed or not is decided when it leaves.
            let len = if form == Form::Event { bytes.len() } else { frame.payload().len() };
            return self.enqueue(id, Outbox::shared(frame, len), of);
        }
        let sent = match outbox.admit(conn, bytes.len(), of.class) {
            Ok(sent) => sent,
            Err(TooSlow(class)) => return self.drop_slow(id, class),
        };
        if conn.has(flag::IN_FLIGHT) {
            memory.add(bytes.len() + REFERENCE_COST);
        }
        stats.messages_out += 1;
        outbox.put_frame(conn, frame, bytes, form);
        sent
    }

    /// Queues a frame, counted among the publications of its class.
    pub(crate) fn deliver_to(&mut self, id: ConnId, frame: &Frame, of: Published<'_>) -> Sent {
        let sent = self.send_frame(id, frame, of);
        let class = of.class.unwrap_or_else(|| self.class_of(id));
        let counters = &mut self.outbox.counters_mut()[usize::from(class)];
        match sent {
            Sent::Accepted => counters.delivered += 1,
            Sent::Queued => counters.queued += 1,
            Sent::Closed => counters.closed += 1,
            // Already counted where the message was dropped.
            Sent::Dropped => {}
        }
        sent
    }

    /// Counts a publication that a receiver does not want.
    pub(super) fn count_unwanted(&mut self, id: ConnId, of: Published<'_>) {
        let class = of.class.unwrap_or_else(|| self.class_of(id));
        self.outbox.counters_mut()[usize::from(class)].filtered += 1;
    }

    /// Returns the class of messages to this connection outside of channels with their own rules.
    /// Ids in a filter come from the user and may not exist.
    pub(crate) fn class_of(&self, id: ConnId) -> ClassIndex {
        self.table.route_in_slot(id).map_or(0, |route| self.outbox.rules().of_route(route))
    }

    /// Puts a message into the per-message queue.
    #[cold]
    fn enqueue(&mut self, id: ConnId, content: Content, of: Published<'_>) -> Sent {
        let now = self.millis();
        let Some(conn) = self.table.conn_mut(id) else { return Sent::Closed };
        let len = content.len();
        match self.outbox.enqueue(conn, content, (of.class, of.channel), now) {
            Ok(sent) => {
                self.memory.add(len + REFERENCE_COST);
                match sent {
                    Sent::Dropped => self.stats.messages_dropped += 1,
                    _ => self.stats.messages_out += 1,
                }
                sent
            }
            Err(TooSlow(class)) => self.drop_slow(id, class),
        }
    }

    /// Sends the event `lost` in place of an event that would be much larger than its message, and
    /// counts the message as dropped. No policy closes the stream: one publisher could end the
    /// streams of all members, and they would get the message no sooner.
    #[cold]
    fn send_lost(&mut self, id: ConnId, lost: &Frame, of: Published<'_>) -> Sent {
        let class = of.class.unwrap_or_else(|| self.class_of(id));
        self.stats.messages_dropped += 1;
        self.outbox.counters_mut()[usize::from(class)].too_large += 1;
        // The outcome of the message is known; a stream that is too slow for this ends by itself.
        let _ = self.send_frame(id, lost, of);
        Sent::Dropped
    }

    /// Closes a receiver that is too slow for its next message.
    #[cold]
    pub(crate) fn drop_slow(&mut self, id: ConnId, class: ClassIndex) -> Sent {
        self.close_slow(id, class);
        Sent::Dropped
    }

    /// Closes a receiver that is too slow for the rules of a class.
    #[cold]
    pub(crate) fn close_slow(&mut self, id: ConnId, class: ClassIndex) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        conn.set(flag::NOTIFY_ON_DRAIN, true);
        self.stats.messages_dropped += 1;
        self.stats.slow_consumers += 1;
        self.outbox.counters_mut()[usize::from(class)].slow_consumers += 1;
        self.note_fault(id, Fault::SlowConsumer);
        let usual = (CloseCode::POLICY_VIOLATION.get(), "slow consumer");
        let (code, text) = self.closing(id, Fault::SlowConsumer, usual);
        self.fail(id, code, text);
    }
}
