//! Measurement of the memory that a shard's connections cause, and the end of the connections that
//! use the most.

use throng_io::{ConnId, Driver};
use throng_proto::ws;
use throng_proto::ws::Close;

use crate::conn::held::HeldInput;
use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::connections::memory::Holder;
use crate::context::Cx;
use crate::message::{EndReason, Fault, Refusal};
use crate::service::Service;
use crate::shard::Shard;
use crate::shard::state::State;
use crate::ws::inbound::Inbound;

impl<D: Driver, S: Service> Shard<D, S> {
    /// Measures the memory of connections if enough may have changed, and ends the worst if all
    /// shards together are over the limit.
    #[inline]
    pub(crate) fn check_memory(&mut self) {
        let growth = self.driver.take_growth();
        self.state.core.connections.memory.add(growth);
        if self.state.core.connections.memory.is_due() {
            self.measure_memory();
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn measure_memory(&mut self) {
        let mut holders = self.holders();
        let worst = self.state.core.connections.memory.measure(&mut holders);
        for holder in &holders[..worst] {
            self.state.end_to_free_memory(holder.id(), holder.is_handshaking());
            self.flush(holder.id());
        }
        if self.state.core.connections.memory.must_wake_others() {
            self.state.core.remote.wake_shards();
        }
    }

    /// Returns the memory that all connections of this shard cause.
    pub(crate) fn memory(&self) -> usize {
        self.holders().iter().map(Holder::bytes).sum()
    }

    /// Returns the connections that hold memory, with how much that is. Handshakes have the rank of
    /// their own size.
    fn holders(&self) -> Vec<Holder> {
        let state = &self.state;
        let connections = &state.core.connections;
        let listed = connections.outbox.all_in_flight().chain(connections.reading.all_incomplete());
        let mut ids: Vec<ConnId> = listed
            .chain(state.held.keys().copied())
            .chain(state.request_bodies.ids())
            .chain(
                connections
                    .outbox
                    .slots_with_context()
                    .filter_map(|slot| connections.table.in_slot(slot)),
            )
            .chain(self.driver.input_holders())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        let holder =
            |id: ConnId| Holder::new(id, self.memory_of(id), self.driver.is_handshaking(id));
        ids.into_iter().map(holder).filter(|holder| holder.bytes() > 0).collect()
    }

    /// Returns the memory that one connection causes; 0 for a connection that is being closed at
    /// once.
    fn memory_of(&self, id: ConnId) -> usize {
        let state = &self.state;
        let connections = &state.core.connections;
        let Some(conn) = connections.table.conn(id) else { return 0 };
        if conn.is(Stage::Ending) {
            return 0;
        }
        let input = match &state.inbound[id.slot()] {
            Inbound::Http(decoder) => decoder.buffered(),
            Inbound::Ws(decoder) => decoder.memory(),
            Inbound::ProxyHeader(start) => start.capacity(),
            _ => 0,
        };
        self.driver.output_memory(id)
            + connections.outbox.memory(conn)
            + input
            + state.held.get(&id).map_or(0, HeldInput::memory)
            + state.request_bodies.memory(id)
    }
}

impl<S: Service> State<S> {
    /// Frees the memory of earlier messages that no message needs now.
    pub(super) fn release_messages(&mut self) {
        self.assembly.spare.release_unused();
        self.core.connections.outbox.borrowed().set_joined(None);
    }

    /// Ends a connection to free its memory: a session with 1008, a request with 503; by a reset if
    /// its output is with the driver, since it would have to leave first, or while its TLS
    /// handshake is in progress.
    #[cold]
    fn end_to_free_memory(&mut self, id: ConnId, is_handshaking: bool) {
        let connections = &mut self.core.connections;
        let Some(conn) = connections.table.conn(id) else { return };
        let (stage, in_flight) = (conn.stage(), conn.has(flag::IN_FLIGHT));
        connections.stats.memory_ended += 1;
        let (code, reason) = (EndReason::Memory.code(), EndReason::Memory.text());
        // A request that is answered with 503 is reported as refused.
        if stage != Stage::Http || in_flight || is_handshaking {
            connections.note_fault(id, Fault::Ended(EndReason::Memory));
        }
        self.held.remove(&id);
        match stage {
            _ if in_flight || is_handshaking => self.core.connections.finish(id, AfterFlush::Abort),
            Stage::Open => self.core.connections.fail(id, code.get(), reason),
            Stage::Http => {
                let answered = self.request_bodies.is_dropped(id);
                self.request_bodies.end(id);
                if !answered {
                    self.guarded(id, |state| {
                        let mut cx = Cx::new(&mut state.core, id);
                        state.service.on_refused(&mut cx, Refusal::Memory);
                    });
                }
                self.core.connections.finish(id, AfterFlush::Linger);
            }
            _ => self.core.connections.finish(id, AfterFlush::Abort),
        }
        self.end_session(id, Close::new(code, ""), false);
        self.forget_input(id);
    }

    /// Drops the buffered part of incomplete input: no more of it is decoded.
    fn forget_input(&mut self, id: ConnId) {
        let is_client =
            self.core.connections.table.conn(id).is_some_and(|conn| conn.has(flag::CLIENT));
        let role = if is_client { ws::Role::Client } else { ws::Role::Server };
        let inbound = &mut self.inbound[id.slot()];
        match inbound {
            Inbound::Http(_) => *inbound = Inbound::http(),
            Inbound::Ws(_) => *inbound = Inbound::Ws(ws::Decoder::new(role)),
            _ => {}
        }
    }
}
