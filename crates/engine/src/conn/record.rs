//! The record of one connection.

use throng_io::{Batch, ConnId};

use crate::conn::linger::Linger;
use crate::conn::slab::Index;
use crate::conn::timers::Tick;
use crate::outbox::queue::Waiting;
use crate::shard::admission::Admitted;

/// Stage of a connection's life. It only advances, except that `Http` and `Serving` alternate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Client: the TCP connection is being made.
    Connecting,
    /// Client: the upgrade request is sent; waiting for its answer.
    Upgrading,
    /// Server: HTTP requests are read.
    Http,
    /// Server: the service handles a request and takes no more input until it resumes reading: its
    /// answer comes later or is produced while it is sent, or it cannot take more of the body now.
    Serving,
    /// Server: the answer is a stream of events; the peer sends nothing more.
    Events,
    /// A WebSocket session.
    Open,
    /// Our Close frame is queued or sent; waiting for the peer's.
    Closing,
    /// All output and our FIN are sent. Further input is read and dropped, so that a reset does not
    /// destroy data that the peer has not read yet.
    Lingering,
    /// The driver is closing it; waiting for its last event.
    Ending,
    /// Unused slot.
    Free,
}

/// Action after the queue is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterFlush {
    Nothing,
    /// Close: the peer sends nothing more.
    Close,
    /// FIN, then [`Stage::Lingering`].
    Linger,
    /// Reset now, without waiting for the queue.
    Abort,
}

/// Bits of [`Conn::flags`].
pub(crate) mod flag {
    /// In the list of connections to flush.
    pub(crate) const DIRTY: u16 = 1;
    /// The driver holds a batch.
    pub(crate) const IN_FLIGHT: u16 = 1 << 1;
    /// A heartbeat ping is unanswered.
    pub(crate) const PINGED: u16 = 1 << 2;
    /// A message is incomplete, and listed with its deadline.
    pub(crate) const ASSEMBLING: u16 = 1 << 3;
    /// Reading is paused.
    pub(crate) const PAUSED: u16 = 1 << 4;
    /// `on_open` was called and `on_close` was not.
    pub(crate) const SESSION: u16 = 1 << 5;
    /// A send returned `Queued` or `Dropped`; `on_drain` is to be called.
    pub(crate) const NOTIFY_ON_DRAIN: u16 = 1 << 6;
    /// A request is incomplete; its deadline runs.
    pub(crate) const REQUEST: u16 = 1 << 7;
    /// Counted as a pending handshake.
    pub(crate) const PENDING: u16 = 1 << 8;
    /// We mask our frames: the client's side.
    pub(crate) const CLIENT: u16 = 1 << 9;
    /// permessage-deflate was agreed on.
    pub(crate) const DEFLATE: u16 = 1 << 10;
    /// The peer has ended its side of the stream.
    pub(crate) const FINISHED: u16 = 1 << 11;
    /// In the list of connections that `on_drain` is due for.
    pub(crate) const DRAIN_LISTED: u16 = 1 << 12;
    /// The 101 response is queued and has not left: the queue must not be dropped, and nothing may
    /// overtake it.
    pub(crate) const UPGRADING: u16 = 1 << 13;
    /// Frames published in this turn are in a list, behind what else is queued: see
    /// `outbox/fanout.rs`.
    pub(crate) const FAN_OUT: u16 = 1 << 14;
    /// Messages wait in the per-message queue, behind the output queue.
    pub(crate) const WAITING: u16 = 1 << 15;

    /// In a session: the service has stopped reading. The meaning of [`REQUEST`] ends where a
    /// session begins.
    pub(crate) const STOPPED: u16 = REQUEST;

    /// Flags with which sending a message is more than appending it to the queue.
    pub(crate) const SEND_SLOW_MASK: u16 = IN_FLIGHT | CLIENT | WAITING | FAN_OUT | DEFLATE;
    /// Flags with which a flush is more than handing the queue to the driver.
    pub(crate) const FLUSH_SLOW_MASK: u16 =
        IN_FLIGHT | PAUSED | NOTIFY_ON_DRAIN | UPGRADING | WAITING | FAN_OUT | STOPPED;
    /// Flags with which more than the queue decides whether further messages are decoded.
    pub(crate) const CONTINUE_SLOW_MASK: u16 = IN_FLIGHT | WAITING | FAN_OUT | STOPPED;
    /// Flags with which a published frame goes into the queue.
    pub(crate) const FAN_OUT_SLOW_MASK: u16 = FLUSH_SLOW_MASK & !FAN_OUT | CLIENT;
}

/// A connection. Rarely used state lies in [`Cold`]; an idle session owns only this record, its
/// decoder and its deadline.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) id: ConnId,
    /// Output that is queued and not yet with the driver.
    pub(crate) out: Option<Box<Batch>>,
    pub(crate) cold: Option<Index>,
    /// The service's own value, for instance an index into its user data.
    pub(crate) data: u32,
    /// The service's route.
    pub(crate) route: u16,
    /// Messages of at most so many bytes need no check of the route's limits; 0 until those were
    /// looked up.
    pub(crate) inline_limit: u16,
    pub(crate) flags: u16,
    pub(crate) stage: Stage,
    pub(crate) after_flush: AfterFlush,
}

/// Id in a free slot: no connection has it, so comparing ids shows that the slot is unused.
pub(crate) const NO_CONN: ConnId = ConnId::new(0, ConnId::MAX_SLOTS as u32 - 1, 0);

impl Conn {
    pub(crate) fn new(id: ConnId, stage: Stage) -> Self {
        Self {
            id,
            out: None,
            cold: None,
            data: 0,
            route: 0,
            inline_limit: 0,
            flags: 0,
            stage,
            after_flush: AfterFlush::Nothing,
        }
    }

    /// Returns whether the service has stopped reading this connection.
    pub(crate) fn is_stopped(&self) -> bool {
        match self.stage {
            Stage::Serving => true,
            Stage::Open => self.has(flag::STOPPED),
            _ => false,
        }
    }

    #[inline]
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Sets or clears a flag.
    #[inline]
    pub(crate) fn set(&mut self, flag: u16, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }
}

/// State that only some connections need.
#[derive(Debug, Default)]
pub(crate) struct Cold {
    /// The peer's address, until the upgrade.
    pub(crate) peer: Option<std::net::SocketAddr>,
    /// The place it has; unlike [`Admitted::Counted`] only until it is closed.
    pub(crate) admitted: Admitted,
    /// Bytes that the driver held when it was given the batch.
    pub(crate) in_flight: usize,
    /// Bytes it held at the last sweep, and when that last changed: progress of a slow reader.
    pub(crate) unsent: usize,
    pub(crate) progress: Option<Tick>,
    /// The first segment of the queue is a pong that was not sent yet; only while a batch is in
    /// flight.
    pub(crate) pong_first: bool,
    /// The per-message queue; present while [`flag::WAITING`] is set.
    pub(crate) waiting: Option<Box<Waiting>>,
    /// Start of the incomplete message.
    pub(crate) assembling: Option<Tick>,
    /// Whether it is in the list of incomplete messages.
    pub(crate) assembly_listed: bool,
    /// Whether it is in the list of batches in flight.
    pub(crate) flight_listed: bool,
    /// Whether it is a publisher that waits for room in another shard's queue; see
    /// `pubsub/publishers.rs`.
    pub(crate) awaits_room: bool,
    /// The code we closed with.
    pub(crate) closed_with: u16,
    /// Data read and dropped in [`Stage::Lingering`], if any.
    pub(crate) dropped: Option<Linger<Tick>>,
}

impl Cold {
    pub(crate) fn is_idle(&self) -> bool {
        self.peer.is_none()
            && self.admitted == Admitted::Counted
            && self.in_flight == 0
            && self.progress.is_none()
            && self.waiting.is_none()
            && self.assembling.is_none()
            && !self.assembly_listed
            && !self.flight_listed
            && !self.awaits_room
            && self.closed_with == 0
            && self.dropped.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The budget of ARCHITECTURE.md: 128 bytes a connection, all tables of the process together.
    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Conn>() <= 32, "Conn is {} bytes", size_of::<Conn>());
    }
}
