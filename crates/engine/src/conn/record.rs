//! The record of one connection.

use throng_io::{Batch, ConnId};

use crate::conn::linger::Linger;
use crate::conn::slab::Index;
use crate::conn::stage::{AfterFlush, Stage, Status, flag};
use crate::conn::timers::Tick;
use crate::message::Refusal;

/// A connection. Rarely used state lies in [`Cold`]; an idle session owns only this record, its
/// decoder and its deadline.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) id: ConnId,
    /// Output that is queued and not yet with the driver.
    pub(crate) out: Option<Box<Batch>>,
    pub(crate) cold: Option<Index>,
    status: Status,
    pub(crate) service: ServiceFields,
}

/// Fields of a connection that each read hands to the service: one word, copied at once.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
pub(crate) struct ServiceFields {
    /// The service's own value, for instance an index into its user data.
    pub(crate) data: u32,
    /// The service's route.
    pub(crate) route: u16,
    /// Maximum bytes of a message that needs no check of the route's limits; 0 until the limits
    /// were looked up.
    pub(crate) inline_limit: u16,
}

/// Id in a free slot: no connection has it, so comparing ids shows that the slot is unused.
pub(crate) const NO_CONN: ConnId = ConnId::new(0, ConnId::MAX_SLOTS as u32 - 1, 0);

impl Conn {
    pub(crate) fn new(id: ConnId, stage: Stage) -> Self {
        Self {
            id,
            out: None,
            cold: None,
            status: Status::new(stage),
            service: ServiceFields::default(),
        }
    }

    /// Returns whether the service has stopped reading this connection.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is(Stage::Serving) || self.is(Stage::Open) && self.has(flag::STOPPED)
    }

    pub(crate) fn stage(&self) -> Stage {
        self.status.stage()
    }

    /// Returns whether the stage is this one.
    #[inline(always)]
    pub(crate) fn is(&self, stage: Stage) -> bool {
        self.status.is(stage)
    }

    /// Enters the next stage.
    pub(crate) fn advance(&mut self, next: Stage) {
        self.status.advance(next);
    }

    pub(crate) fn after_flush(&self) -> AfterFlush {
        self.status.after_flush()
    }

    pub(crate) fn set_after_flush(&mut self, after: AfterFlush) {
        self.status.set_after_flush(after);
    }

    /// Returns whether an action follows the flush.
    #[inline(always)]
    pub(crate) fn is_finishing(&self) -> bool {
        self.status.is_finishing()
    }

    #[inline(always)]
    pub(crate) fn status(&self) -> Status {
        self.status
    }

    /// Records input: a ping is answered by it, and a flush follows it.
    #[inline(always)]
    pub(crate) fn mark_received(&mut self) {
        self.status.mark_received();
    }

    /// Returns whether any of these flags is set.
    #[inline(always)]
    pub(crate) fn has(&self, flags: u32) -> bool {
        self.status.has(flags)
    }

    /// Sets or clears flags.
    #[inline(always)]
    pub(crate) fn set(&mut self, flags: u32, on: bool) {
        self.status.set(flags, on);
    }
}

/// The place that a connection has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// Counted in [`Admission`](crate::Admission), unless it is a client's.
    #[default]
    Counted,
    /// One of the reserve: it was refused for this reason, and may send one request.
    Reserve(Refusal),
    /// None: it was uncounted, and is being closed.
    Evicted,
}

/// State that only some connections need.
#[derive(Debug, Default)]
pub(crate) struct Cold {
    /// The peer's address, until the upgrade.
    pub(crate) peer: Option<std::net::SocketAddr>,
    /// The outcome of the TLS handshake, until the upgrade.
    pub(crate) tls: Option<std::sync::Arc<throng_io::TlsInfo>>,
    /// The place it has; unlike [`Admitted::Counted`] only until it is closed.
    pub(crate) admitted: Admitted,
    /// Start of the incomplete message.
    pub(crate) assembling: Option<Tick>,
    /// Whether it is a publisher that waits for room in another shard's queue; see
    /// `connections/publishers.rs`.
    pub(crate) awaits_capacity: bool,
    /// The code we closed with.
    pub(crate) closed_with: u16,
    /// Data read and dropped in [`Stage::Lingering`], if any.
    pub(crate) dropped: Option<Linger<Tick>>,
}

impl Cold {
    pub(crate) fn is_idle(&self) -> bool {
        self.peer.is_none()
            && self.tls.is_none()
            && self.admitted == Admitted::Counted
            && self.assembling.is_none()
            && !self.awaits_capacity
            && self.closed_with == 0
            && self.dropped.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Part of the budget in docs/design/memory.md: 128 bytes per connection, for all tables
    /// together.
    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Conn>() <= 32, "Conn is {} bytes", size_of::<Conn>());
    }
}
