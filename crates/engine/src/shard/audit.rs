//! Holdings of a shard, counted from the tables themselves: for the simulator's checkers, not for
//! serving.

use throng_io::Driver;

use crate::conn::record::Admitted;
use crate::conn::stage::{Stage, flag};
use crate::service::Service;
use crate::shard::Shard;
use crate::ws::inbound::Inbound;

/// Counts of a shard's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Slots in use.
    pub connections: usize,
    /// Slots in use for which `on_close` is still to be called.
    pub sessions: usize,
    /// Cold records in use, or records of output that waits for a peer, or for publications: the
    /// largest number.
    pub cold: usize,
    /// The longest of the lists of connections (to flush, drained, in flight, assembling).
    pub longest_list: usize,
    /// Connections whose reading is paused.
    pub paused: usize,
    /// The largest backlog of a connection, in bytes.
    pub largest_backlog: usize,
    /// Maximum bytes by which messages of one class that wait for one connection are over their
    /// cap, not counting a message that waits alone.
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
        let state = self.state();
        let connections = &state.core.connections;
        let mut audit = Audit {
            cold: connections
                .table
                .cold_len()
                .max(connections.outbox.congested_len())
                .max(connections.outbox.behind_len()),
            held: state.held.len(),
            request_bodies: state.request_bodies.len(),
            channels: state.core.channels.len(),
            memberships: state.core.channels.memberships(),
            addresses: state.admission.addresses(),
            reserved: state.reserved,
            longest_list: connections.outbox.longest_list().max(connections.reading.longest_list()),
            memory: self.memory(),
            spare: state.assembly.spare.capacity(),
            ..Audit::default()
        };
        (audit.admitted, audit.pending, audit.load) = state.admission.counts(state.core.shard);
        for id in connections.table.ids() {
            let Some(conn) = connections.table.conn(id) else { continue };
            debug_assert!(!conn.is(Stage::Free));
            audit.connections += 1;
            audit.sessions += usize::from(conn.has(flag::SESSION));
            let evicted =
                connections.table.cold(id).is_some_and(|c| c.admitted == Admitted::Evicted);
            audit.uncounted += usize::from(evicted && conn.stage() < Stage::Ending);
            audit.paused += usize::from(conn.has(flag::PAUSED));
            audit.largest_backlog = audit.largest_backlog.max(connections.backlog(id));
            audit.largest_excess = audit.largest_excess.max(connections.outbox.excess(conn));
            let partial = match &state.inbound[id.slot()] {
                Inbound::Http(decoder) => decoder.buffered() + state.request_bodies.buffered(id),
                Inbound::Ws(decoder) => decoder.buffered(),
                _ => 0,
            };
            audit.largest_partial = audit.largest_partial.max(partial);
        }
        audit
    }
}
