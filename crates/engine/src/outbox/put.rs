//! Messages and control frames that enter a connection's queue, encoded for its side.

use std::sync::Arc;

use throng_io::Segment;
use throng_proto::sse;
use throng_proto::ws::{self, Opcode};

use crate::conn::record::Conn;
use crate::conn::stage::flag;
use crate::outbox::Outbox;
use crate::outbox::borrowed::LARGE;
use crate::outbox::fanout::{Form, JOINED_FRAME};
use crate::outbox::frame::Frame;
use crate::outbox::queue::Content;
use crate::outbox::sent::{REFERENCE_COST, SMALL_FRAME};
use crate::stats::Stats;

impl Outbox {
    /// Compresses a message for a connection, if that was agreed on and is worth it. Returns the
    /// compressed length; [`Outbox::put_deflated`] queues the result.
    pub(crate) fn compress(
        &mut self,
        conn: &Conn,
        payload: &[u8],
        compressible: bool,
        stats: &mut Stats,
    ) -> Option<usize> {
        if !compressible || !conn.has(flag::DEFLATE) {
            return None;
        }
        self.compression.deflate(conn.id.slot(), payload, stats).map(<[u8]>::len)
    }

    /// Queues the message that was compressed last.
    pub(crate) fn put_deflated(&mut self, conn: &mut Conn, text: bool) {
        let mask = self.masks.for_conn(conn);
        let out = self.compression.take_deflated();
        self.append(conn, |queue| ws::encode_deflated(text, &out, mask, queue));
        self.compression.put_back(out);
    }

    /// Queues a message as it is.
    pub(crate) fn put_uncompressed(&mut self, conn: &mut Conn, text: bool, payload: &[u8]) {
        let opcode = if text { Opcode::Text } else { Opcode::Binary };
        if conn.has(flag::CLIENT) {
            return self.control(conn, opcode, payload);
        }
        // With a batch in flight the message leaves after the next flush, when the lent bytes are
        // gone.
        let is_large = payload.len() >= LARGE && !conn.has(flag::IN_FLIGHT);
        match is_large.then(|| self.borrowed.segment(conn.id, payload)).flatten() {
            Some(segment) => {
                let header = ws::encode_header(opcode, true, payload.len() as u64, None);
                let batch = self.queue(conn);
                batch.append(|out| out.extend_from_slice(&header));
                batch.push(segment);
            }
            None => self.append(conn, |out| ws::encode(opcode, payload, out)),
        }
    }

    /// Queues a message that has waited, in the form that its connection needs now. Returns false,
    /// with nothing queued, if it must be sent in fragments: compressed messages are not, since
    /// some clients cannot read them so.
    pub(super) fn put(&mut self, conn: &mut Conn, content: &Content, stats: &mut Stats) -> bool {
        match content {
            Content::Private { text, payload, compressible } => {
                let payload = payload.as_ref().as_ref();
                if self.compress(conn, payload, *compressible, stats).is_some() {
                    self.put_deflated(conn, *text);
                    return true;
                }
                let whole = !self.needs_fragments(payload.len());
                if whole {
                    self.put_uncompressed(conn, *text, payload);
                }
                whole
            }
            Content::Frame { frame, .. } => {
                let Ok((bytes, form)) = self.form(conn, frame, stats) else { return true };
                let whole = form != Form::Plain || !self.needs_fragments(frame.payload().len());
                if whole {
                    self.put_frame(conn, frame, bytes, form);
                }
                whole
            }
        }
    }

    /// Queues a frame in one of its forms, by reference if it is not small.
    pub(crate) fn put_frame(
        &mut self,
        conn: &mut Conn,
        frame: &Frame,
        bytes: &Arc<[u8]>,
        form: Form,
    ) {
        self.published += bytes.len().min(SMALL_FRAME) + REFERENCE_COST;
        if form == Form::Deflated {
            self.compression.record_sent(conn.id.slot(), frame);
        }
        if bytes.len() <= JOINED_FRAME && self.wait_in_list(conn, bytes, form) {
            return;
        }
        let batch = self.queue(conn);
        if bytes.len() <= SMALL_FRAME {
            batch.append(|out| out.extend_from_slice(bytes));
        } else {
            batch.push(Segment::Shared(Arc::clone(bytes)));
        }
    }

    /// Adds a short frame to the fan-out list of a connection with a batch in flight: the list is
    /// moved behind all queued output later. Returns false if the frame must be copied.
    fn wait_in_list(&mut self, conn: &mut Conn, bytes: &Arc<[u8]>, form: Form) -> bool {
        if !conn.has(flag::IN_FLIGHT)
            || conn.is_finishing()
            || !self.fanout.add(conn.id.slot(), bytes, form)
        {
            return false;
        }
        conn.set(flag::FAN_OUT, true);
        self.dirty.add(conn);
        true
    }

    /// Queues a frame in one piece, masked if we are its client.
    pub(crate) fn control(&mut self, conn: &mut Conn, opcode: Opcode, payload: &[u8]) {
        match self.masks.for_conn(conn) {
            None => self.append(conn, |out| ws::encode(opcode, payload, out)),
            Some(key) => self.append(conn, |out| ws::encode_masked(opcode, payload, key, out)),
        }
    }

    /// Queues a Close frame.
    pub(crate) fn put_close(&mut self, conn: &mut Conn, code: u16, reason: &str) {
        let mask = self.masks.for_conn(conn);
        self.append(conn, |out| ws::encode_close(code, reason, mask, out));
    }

    /// Queues a comment that keeps a stream of events alive.
    pub(crate) fn put_comment(&mut self, conn: &mut Conn) {
        self.append(conn, |out| out.extend_from_slice(sse::COMMENT));
    }

    /// Answers a ping. While output waits, only the latest unsent pong is kept, and it is first to
    /// leave (RFC 6455 section 5.5.3 lets one pong answer several pings), so that a peer that pings
    /// and does not read costs 131 bytes.
    pub(crate) fn put_pong(&mut self, conn: &mut Conn, payload: &[u8]) {
        if !conn.has(flag::IN_FLIGHT) || conn.has(flag::UPGRADING) {
            return self.control(conn, Opcode::Pong, payload);
        }
        let mut bytes = Vec::with_capacity(payload.len() + 6);
        match self.masks.for_conn(conn) {
            None => ws::encode(Opcode::Pong, payload, &mut bytes),
            Some(key) => ws::encode_masked(Opcode::Pong, payload, key, &mut bytes),
        }
        let replace = std::mem::replace(&mut self.congested_mut(conn.id).pong_first, true);
        let batch = self.queue(conn);
        if replace {
            batch.pop_front();
        }
        // Not an owned segment: nothing may be appended to a segment that the next pong replaces.
        batch.push_front(Segment::Shared(bytes.into()));
    }
}
