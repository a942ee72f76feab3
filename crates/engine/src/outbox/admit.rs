//! Admission of messages: whether each may be queued, in which form, and where.

use std::sync::Arc;

use crate::backpressure::{Class, ClassIndex};
use crate::conn::record::Conn;
use crate::conn::stage::{Stage, flag};
use crate::outbox::fanout::{self, Form};
use crate::outbox::frame::Frame;
use crate::outbox::sent::Sent;
use crate::outbox::{OVERFULL, Outbox};
use crate::stats::Stats;

/// Factor by which the output of one callback may exceed the cap of its class, while the kernel was
/// not asked yet whether the peer takes it. A message of any size is still accepted below that.
/// Where the rules drop messages, none closes a session.
const IN_CALLBACK: usize = 16;

/// Reason why a frame has no form on a connection.
pub(crate) enum FormError<'f> {
    /// The connection is closed or closing.
    Closed,
    /// The connection is a stream of events, and the event would be too large: the event `lost`
    /// takes its place.
    TooLarge(&'f Frame),
}

/// The receiver is too slow: the rules of this class close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooSlow(pub(crate) ClassIndex);

impl Outbox {
    /// Returns the class of a message to this connection; `class`: the channel's.
    pub(crate) fn class_or_own(&self, conn: &Conn, class: Option<ClassIndex>) -> ClassIndex {
        class.unwrap_or_else(|| self.rules.of_route(conn.service.route))
    }

    fn class(&self, conn: &Conn, class: Option<ClassIndex>) -> &Class {
        self.rules.class(self.class_or_own(conn, class))
    }

    /// Returns whether a message of `len` bytes is sent in fragments (RFC 6455 section 5.4).
    pub(crate) fn needs_fragments(&self, len: usize) -> bool {
        len > self.limits.fragment_threshold
    }

    /// Returns whether a message to one connection is sent in fragments.
    pub(crate) fn fragments(&self, conn: &Conn, payload: &[u8], compressible: bool) -> bool {
        self.needs_fragments(payload.len())
            && !(compressible
                && conn.has(flag::DEFLATE)
                && self.compression.can_relay(conn.id.slot(), payload))
    }

    /// Returns whether messages to this connection now go to the per-message queue: earlier ones
    /// are there, or the connection is slow and their class may drop some.
    pub(crate) fn needs_message_queue(&self, conn: &Conn, class: Option<ClassIndex>) -> bool {
        conn.has(flag::WAITING)
            || conn.has(flag::IN_FLIGHT) && self.class(conn, class).is_per_message()
    }

    /// Decides whether a message of `len` may be queued, and the result for its sender. The
    /// per-message queue is empty.
    pub(crate) fn admit(
        &mut self,
        conn: &mut Conn,
        len: usize,
        class: Option<ClassIndex>,
    ) -> Result<Sent, TooSlow> {
        if !conn.has(flag::IN_FLIGHT) {
            match &conn.out {
                None if conn.has(flag::FAN_OUT) => {}
                None => return Ok(Sent::Accepted),
                Some(batch) if batch.len() + len <= self.high_water => return Ok(Sent::Accepted),
                Some(_) => {}
            }
        }
        self.admit_congested(conn, len, class)
    }

    /// Decides this for a connection whose output is congested or that is slow.
    #[cold]
    pub(crate) fn admit_congested(
        &mut self,
        conn: &mut Conn,
        len: usize,
        class: Option<ClassIndex>,
    ) -> Result<Sent, TooSlow> {
        let class = self.class_or_own(conn, class);
        let rules = self.rules.class(class);
        let (max, drops, backlog) =
            (rules.max_backlog, rules.is_per_message(), self.kept_backlog(conn));
        let in_flight = conn.has(flag::IN_FLIGHT);
        // Only a peer that does not take bytes is slow: without a batch in flight the kernel was
        // not asked yet. The backlog before this message counts, so that a message of any size
        // finds its way into a short queue.
        let is_beyond = !drops && backlog > max.saturating_mul(IN_CALLBACK);
        if backlog > max && (in_flight || is_beyond) {
            return Err(TooSlow(class));
        }
        if backlog > max {
            self.published |= OVERFULL;
        }
        if in_flight || backlog + len > self.high_water {
            conn.set(flag::NOTIFY_ON_DRAIN, true);
            return Ok(Sent::Queued);
        }
        Ok(Sent::Accepted)
    }

    /// Returns the form of a frame on a connection.
    #[inline]
    pub(crate) fn form<'f>(
        &mut self,
        conn: &Conn,
        frame: &'f Frame,
        stats: &mut Stats,
    ) -> Result<(&'f Arc<[u8]>, Form), FormError<'f>> {
        match conn.stage() {
            Stage::Open if conn.has(flag::DEFLATE) => {
                let deflated = self.compression.frame(conn.id.slot(), frame, stats);
                Ok(deflated.map_or((frame.shared(), Form::Plain), |bytes| (bytes, Form::Deflated)))
            }
            Stage::Open => Ok((frame.shared(), Form::Plain)),
            Stage::Events => {
                let Self { compression, published, limits, .. } = self;
                let event = frame.event(limits.max_event, |work| {
                    compression.record_work(work);
                    *published += work;
                });
                event.map(|bytes| (bytes, Form::Event)).map_err(FormError::TooLarge)
            }
            _ => Err(FormError::Closed),
        }
    }

    /// Adds a frame to the fan-out list of a connection that has no other output. Returns false if
    /// it needs a queue.
    #[inline]
    pub(crate) fn fan_out(
        &mut self,
        conn: &mut Conn,
        frame: &Frame,
        bytes: &Arc<[u8]>,
        form: Form,
    ) -> bool {
        let slot = conn.id.slot();
        if !conn.status().may_fan_out()
            || conn.out.is_some()
            || (form != Form::Event && self.needs_fragments(frame.payload().len()))
            || !self.fanout.add(slot, bytes, form)
        {
            return false;
        }
        self.published += fanout::COST;
        conn.set(flag::FAN_OUT, true);
        self.dirty.add(conn);
        if form == Form::Deflated {
            self.compression.record_sent(slot, frame);
        }
        true
    }
}
