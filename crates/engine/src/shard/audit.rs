//! Holdings of a shard, counted from the tables themselves: for the simulator's checkers, not for
//! serving.

use throng_io::Driver;

use crate::conn::record::Admitted;
use crate::conn::stage::{Stage, flag};
use crate::service::Service;
use crate::shard::{EngineParts, Shard};

/// Counts of a shard's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Slots in use.
    pub connections: usize,
    /// Slots in use for which `on_close` is still to be called.
    pub sessions: usize,
    /// Cold records in use, or records of output that waits for a peer or for publications: the
    /// larger number.
    pub cold: usize,
    /// The longest of the lists of connections (to flush, drained, in flight, assembling).
    pub longest_list: usize,
    /// Connections whose reading is paused.
    pub paused: usize,
    /// The largest backlog of a connection, in bytes.
    pub largest_backlog: usize,
    /// Maximum bytes by which the waiting messages of one class exceed their cap on one connection,
    /// not counting a message that waits alone.
    pub largest_excess: usize,
    /// Maximum bytes that a connection's decoder holds.
    pub largest_partial: usize,
    /// Connections with a part of their input held back.
    pub held: usize,
    /// Connections whose request's body is incomplete.
    pub request_bodies: usize,
    /// Channels with members.
    pub channels: usize,
    /// Memberships.
    pub memberships: usize,
    /// Connections counted by admission, in the whole process.
    pub admitted: usize,
    /// Pending handshakes counted by admission, in the whole process.
    pub pending: usize,
    /// Connections counted for this shard by admission.
    pub load: usize,
    /// Memory that all connections cause, measured now.
    pub memory: usize,
    /// Bytes of memory kept for the next large messages.
    pub spare: usize,
    /// Addresses counted by admission, in the whole process.
    pub addresses: usize,
    /// Connections beyond the caps that have a place of the reserve.
    pub reserved: usize,
    /// Connections that are counted nowhere and are not being closed.
    pub uncounted: usize,
}

impl<D: Driver, S: Service> Shard<D, S> {
    /// Counts the holdings of this shard.
    #[must_use]
    pub fn audit(&self) -> Audit {
        let EngineParts { core, intake, entrance, .. } = &self.parts;
        let connections = &core.conns;
        let (held, request_bodies) = intake.lens();
        let (channels, memberships) = core.pubsub.lens();
        let mut audit = Audit {
            cold: connections.records_len(),
            held,
            request_bodies,
            channels,
            memberships,
            addresses: entrance.admission().addresses(),
            reserved: entrance.reserved(),
            longest_list: connections.longest_list(),
            memory: self.memory(),
            spare: intake.spare(),
            ..Audit::default()
        };
        (audit.admitted, audit.pending, audit.load) = entrance.admission().counts(core.shard);
        for id in connections.ids() {
            let Some(conn) = connections.conn(id) else { continue };
            debug_assert!(!conn.is(Stage::Free));
            audit.connections += 1;
            audit.sessions += usize::from(conn.has(flag::SESSION));
            let evicted = connections.cold(id).is_some_and(|c| c.admitted == Admitted::Evicted);
            audit.uncounted += usize::from(evicted && conn.stage() < Stage::Ending);
            audit.paused += usize::from(conn.has(flag::PAUSED));
            audit.largest_backlog = audit.largest_backlog.max(connections.backlog(id));
            audit.largest_excess = audit.largest_excess.max(connections.excess(conn));
            audit.largest_partial = audit.largest_partial.max(intake.buffered(id));
        }
        audit
    }
}
