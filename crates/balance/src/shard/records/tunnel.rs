//! The record of one side of a tunnel: its flow to the other side, and the output to it.

use std::sync::Arc;

use throng_io::ConnId;
use throng_proto::ws::{Boundary, CloseCode};

use super::{EighthTick, HttpSide};
use crate::backend::Backend;
use crate::guards::TunnelGuard;

/// One side of a tunnel.
#[derive(Debug)]
pub(in crate::shard) struct Tunnel {
    /// The other side, or this side itself once that is gone.
    peer: ConnId,
    /// The frame boundaries of data from this side.
    boundary: Boundary,
    /// Counts the tunnel; only in the backend's side.
    count: Option<TunnelGuard>,
    /// The time of the last bytes.
    seen: EighthTick,
    opened: EighthTick,
    flags: u16,
}

/// Bits of [`Tunnel::flags`].
mod flag {
    /// A send to this side is in flight.
    pub(super) const SENDING: u16 = 1;
    /// This side is not read, since the other is behind.
    pub(super) const PAUSED: u16 = 1 << 1;
    /// This side has ended its stream.
    pub(super) const FINISHED: u16 = 1 << 2;
    /// This side's stream must be ended after the send in flight.
    pub(super) const FINISH_DUE: u16 = 1 << 3;
    /// Data from this side is dropped: its receiver has been sent a Close frame, or is gone.
    pub(super) const DROPPED: u16 = 1 << 4;
    /// A Close frame follows the next whole frame from this side.
    pub(super) const CLOSE_DUE: u16 = 1 << 5;
    /// This side was sent a Close frame by the balancer.
    pub(super) const CLOSED: u16 = 1 << 6;
    /// The other side has bytes in the shard's queue.
    pub(super) const QUEUED: u16 = 1 << 7;
    /// The balancer ended the stream to this side.
    pub(super) const ENDED: u16 = 1 << 8;
    /// The close code is 1001, else 1012.
    pub(super) const GOING_AWAY: u16 = 1 << 9;
    /// Its deadline ends it; without this, only silence does.
    pub(super) const TIMED: u16 = 1 << 10;
    /// The tunnel passes bytes through that are not frames: each end of a stream is passed on, and
    /// no Close frame is sent.
    pub(super) const UNFRAMED: u16 = 1 << 11;
    /// Nothing has come from this side yet, a backend that is passed through to.
    pub(super) const SILENT: u16 = 1 << 12;

    /// With none of these, bytes from this side go straight to the other.
    pub(super) const SLOW_PATH: u16 = PAUSED | DROPPED | CLOSE_DUE | CLOSED | QUEUED | SILENT;
}

impl Tunnel {
    /// Creates a side of a tunnel that is opened `now`; `count` counts it, in the backend's side.
    pub(in crate::shard) fn new(
        peer: ConnId,
        boundary: Option<Boundary>,
        count: Option<TunnelGuard>,
        now: EighthTick,
    ) -> Self {
        let mut flags = 0;
        if boundary.is_none() {
            flags |= flag::UNFRAMED;
            if count.is_some() {
                flags |= flag::SILENT;
            }
        }
        let boundary = boundary.unwrap_or_else(Boundary::unframed);
        Self { peer, boundary, count, seen: now, opened: now, flags }
    }

    /// Adopts the output of both connections: a side is read unless a send to the other is in
    /// flight.
    pub(in crate::shard) fn with_output(mut self, http: &HttpSide, other: &HttpSide) -> Self {
        self.set(flag::SENDING, http.sending);
        self.set(flag::PAUSED, other.sending);
        self
    }

    fn has(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    fn set(&mut self, flags: u16, on: bool) {
        if on {
            self.flags |= flags;
        } else {
            self.flags &= !flags;
        }
    }

    /// Returns the other side, or this side itself once that is gone.
    #[inline]
    pub(in crate::shard) fn peer(&self) -> ConnId {
        self.peer
    }

    /// Returns whether this is the backend's side.
    #[inline]
    pub(in crate::shard) fn is_backend(&self) -> bool {
        self.count.is_some()
    }

    /// Returns the backend; `None` in the client's side.
    pub(in crate::shard) fn backend(&self) -> Option<&Arc<Backend>> {
        self.count.as_ref().map(TunnelGuard::backend)
    }

    /// Returns the frame boundaries of data from this side.
    #[inline]
    pub(in crate::shard) fn boundary(&mut self) -> &mut Boundary {
        &mut self.boundary
    }

    /// Returns whether its whole Close frame has come: half a Close frame does not close.
    pub(in crate::shard) fn has_said_close(&self) -> bool {
        self.boundary.is_after_close()
    }

    /// Returns when the last bytes came.
    pub(in crate::shard) fn seen(&self) -> EighthTick {
        self.seen
    }

    pub(in crate::shard) fn opened(&self) -> EighthTick {
        self.opened
    }

    /// Records that bytes have come; returns whether they go straight to the other side.
    #[inline]
    pub(in crate::shard) fn is_direct(&mut self, now: EighthTick) -> bool {
        self.seen = now;
        self.flags & flag::SLOW_PATH == 0
    }

    /// Records that bytes have come from a backend that may have been silent.
    pub(in crate::shard) fn end_silence(&mut self) {
        self.set(flag::SILENT, false);
    }

    /// Returns whether nothing has come from this side yet, a backend that is passed through to.
    pub(in crate::shard) fn is_silent(&self) -> bool {
        self.has(flag::SILENT)
    }

    /// Returns whether a send to this side is in flight.
    pub(in crate::shard) fn is_sending(&self) -> bool {
        self.has(flag::SENDING)
    }

    /// Records that a send to this side is in flight, or has ended.
    pub(in crate::shard) fn set_sending(&mut self, is_sending: bool) {
        self.set(flag::SENDING, is_sending);
    }

    /// Returns whether this side is not read, since the other is behind.
    pub(in crate::shard) fn is_paused(&self) -> bool {
        self.has(flag::PAUSED)
    }

    /// Records that this side is not read.
    pub(in crate::shard) fn pause(&mut self) {
        self.set(flag::PAUSED, true);
    }

    /// Records that this side is read. Returns whether it was not.
    #[must_use]
    pub(in crate::shard) fn resume(&mut self) -> bool {
        let was_paused = self.is_paused();
        self.set(flag::PAUSED, false);
        was_paused
    }

    /// Records that the other side has bytes in the queue, or has none.
    pub(in crate::shard) fn set_queued(&mut self, is_queued: bool) {
        self.set(flag::QUEUED, is_queued);
    }

    /// Returns whether data from this side goes into the queue.
    pub(in crate::shard) fn waits(&self) -> bool {
        self.has(flag::PAUSED | flag::QUEUED)
    }

    /// Returns whether this side has ended its stream.
    pub(in crate::shard) fn has_finished(&self) -> bool {
        self.has(flag::FINISHED)
    }

    /// Records that this side has ended its stream.
    pub(in crate::shard) fn finish(&mut self) {
        self.set(flag::FINISHED, true);
    }

    /// Ends the stream to this side, unless that was done: at once, or after what is in flight or
    /// queued. Returns whether the driver must end it now.
    #[must_use]
    pub(in crate::shard) fn end_output(&mut self, has_queue: bool) -> bool {
        if self.has(flag::SENDING) || has_queue {
            self.set(flag::FINISH_DUE, true);
            return false;
        }
        self.set(flag::ENDED, true);
        true
    }

    /// Returns whether the stream to this side has ended, or will once what is in flight has left.
    pub(in crate::shard) fn is_output_ending(&self) -> bool {
        self.has(flag::ENDED | flag::FINISH_DUE)
    }

    /// Returns whether the end of the stream to this side waits for the send in flight.
    pub(in crate::shard) fn is_end_due(&self) -> bool {
        self.has(flag::FINISH_DUE)
    }

    /// Lets the stream to this side end after the send in flight.
    pub(in crate::shard) fn end_after_send(&mut self) {
        self.set(flag::FINISH_DUE, true);
    }

    /// Ends the stream to this side if that is due. Returns whether the driver must end it now.
    #[must_use]
    pub(in crate::shard) fn end_if_due(&mut self) -> bool {
        let is_due = self.is_end_due();
        if is_due {
            self.set(flag::FINISH_DUE, false);
            self.set(flag::ENDED, true);
        }
        is_due
    }

    /// Returns whether the balancer ended the stream to this side.
    pub(in crate::shard) fn is_ended(&self) -> bool {
        self.has(flag::ENDED)
    }

    /// Returns whether both streams of this side have ended, and all was sent.
    pub(in crate::shard) fn is_done(&self) -> bool {
        const DONE: u16 = flag::FINISHED | flag::ENDED;
        self.flags & (DONE | flag::SENDING) == DONE
    }

    /// Returns whether data from this side is dropped: its receiver has been sent a Close frame, or
    /// is gone.
    pub(in crate::shard) fn is_dropped(&self) -> bool {
        self.has(flag::DROPPED)
    }

    /// Drops data from this side from now on.
    pub(in crate::shard) fn drop_input(&mut self) {
        self.set(flag::DROPPED, true);
    }

    /// Returns whether a Close frame follows the next whole frame from this side.
    pub(in crate::shard) fn is_close_due(&self) -> bool {
        self.has(flag::CLOSE_DUE)
    }

    /// Lets a Close frame follow the next whole frame from this side.
    pub(in crate::shard) fn close_at_boundary(&mut self) {
        self.set(flag::CLOSE_DUE, true);
    }

    /// Records that a Close frame follows all data from this side.
    pub(in crate::shard) fn cut(&mut self) {
        self.set(flag::CLOSE_DUE, false);
        self.set(flag::DROPPED, true);
    }

    /// Returns whether this side was sent a Close frame by the balancer.
    pub(in crate::shard) fn is_closed(&self) -> bool {
        self.has(flag::CLOSED)
    }

    /// Records that this side was sent a Close frame by the balancer.
    pub(in crate::shard) fn close(&mut self) {
        self.set(flag::CLOSED, true);
    }

    /// Detaches it from the other side, which is gone.
    pub(in crate::shard) fn leave_alone(&mut self, id: ConnId) {
        self.peer = id;
        self.drop_input();
    }

    /// Lets its Close frame have this code.
    pub(in crate::shard) fn set_close_code(&mut self, code: u16) {
        if code == CloseCode::GOING_AWAY.get() {
            self.set(flag::GOING_AWAY, true);
        }
    }

    /// Returns the code for its client.
    pub(in crate::shard) fn close_code(&self) -> u16 {
        if self.has(flag::GOING_AWAY) {
            CloseCode::GOING_AWAY.get()
        } else {
            CloseCode::SERVICE_RESTART.get()
        }
    }

    /// Returns whether its deadline ends it; if not, only silence does.
    pub(in crate::shard) fn is_timed(&self) -> bool {
        self.has(flag::TIMED)
    }

    pub(super) fn set_timed(&mut self) {
        self.set(flag::TIMED, true);
    }

    /// Returns whether it passes bytes through that are not frames: each end of a stream is passed
    /// on, and no Close frame is sent.
    pub(in crate::shard) fn is_unframed(&self) -> bool {
        self.has(flag::UNFRAMED)
    }
}
