//! Connections that move to another shard: just accepted, or before their session opens.

use std::net::SocketAddr;
use std::sync::Arc;

use throng_io::{ConnId, Driver, TlsInfo};

use crate::conn::by_address::AddressKey;
use crate::conn::held::HeldInput;
use crate::conn::record::Conn;
use crate::conn::stage::{Stage, flag};
use crate::connections::memory::InTransit;
use crate::context::{Cx, Move};
use crate::message::{Refusal, UserEvent};
use crate::service::Service;
use crate::shard::shutdown::Phase;
use crate::shard::{MAX_MAIL_TIME, Shard};
use crate::ws::inbound::Inbound;

/// A socket in transit to the shard that will serve it, with the key under which its address is
/// counted.
pub(crate) struct Handover<S> {
    pub(crate) socket: S,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) key: Option<AddressKey>,
    /// The upgrade that was accepted elsewhere; `None` for a new connection.
    pub(crate) upgrade: Option<Box<MovedUpgrade>>,
}

/// An upgrade that the service of one shard has passed to another shard's.
pub(crate) struct MovedUpgrade {
    event: UserEvent,
    /// Received after the request.
    input: HeldInput,
    /// Its client has got the response.
    is_answered: bool,
    tls: Option<Arc<TlsInfo>>,
    /// Counts the memory of `input` on the way.
    memory: InTransit,
}

impl<D: Driver, S: Service> Shard<D, S> {
    pub(super) fn move_upgrades(&mut self) {
        if !self.state.core.moves.is_empty() {
            self.carry_out_moves();
        }
    }

    #[cold]
    fn carry_out_moves(&mut self) {
        for Move { id, to, event } in std::mem::take(&mut self.state.core.moves) {
            let Some(conn) = self.state.core.connections.table.conn(id) else {
                self.state.report_failed_move(event);
                continue;
            };
            match can_move(conn) && self.neighbours.len() > to {
                true => self.move_to(id, to, event),
                false => self.pass_upgrade(id, event),
            }
        }
    }

    fn move_to(&mut self, id: ConnId, to: usize, event: UserEvent) {
        let Ok(socket) = self.driver.release(id) else { return self.pass_upgrade(id, event) };
        let state = &mut self.state;
        let here = state.core.shard;
        let is_answered = state.core.connections.table.has(id, flag::ANSWERED);
        let cold = state.core.connections.table.cold(id);
        let (peer, tls) = cold.map_or((None, None), |cold| (cold.peer, cold.tls.clone()));
        let input = state.held.remove(&id).unwrap_or_default();
        let key = state.address_keys.take(id.slot());
        state.core.samples.forget(id);
        state.inbound[id.slot()] = Inbound::Nothing;
        state.core.connections.leave(id);
        state.admission.keep(to, here);
        let bytes = input.memory();
        let memory = state.core.connections.memory.in_transit(bytes);
        let upgrade = Some(Box::new(MovedUpgrade { event, input, is_answered, tls, memory }));
        let handover = Handover { socket, peer, key, upgrade };
        match self.neighbours[to].send_to_owner(handover, bytes) {
            Ok(()) => self.state.core.connections.stats.handed_over += 1,
            Err(returned) => {
                self.state.admission.keep(here, to);
                self.take_moved(returned);
            }
        }
    }

    pub(super) fn take_handovers(&mut self) {
        if !self.arrived.is_empty() || self.handovers.has_commands() {
            self.enter_arrived();
        }
    }

    /// Enters connections from other shards for a bounded time, since sessions open with them; the
    /// rest waits for the next turn.
    #[inline(never)]
    fn enter_arrived(&mut self) {
        if self.arrived.is_empty() {
            self.arrived.extend(self.handovers.drain());
        }
        let until = self.state.core.clock.read().after(MAX_MAIL_TIME);
        while let Some(handover) = self.arrived.pop_front() {
            match handover.upgrade.is_some() {
                true => {
                    // The service refuses it if sessions no longer open.
                    self.take_moved(handover);
                    // Its session's publications leave before the next one publishes.
                    self.flush_early();
                    self.checkpoint();
                }
                false => self.enter_accepted(handover),
            }
            if self.state.core.clock.read() >= until {
                break;
            }
        }
    }

    /// Enters a connection that another shard has just accepted.
    fn enter_accepted(&mut self, handover: Handover<D::Socket>) {
        let Handover { socket, peer, key, .. } = handover;
        match self.state.phase {
            Phase::Running | Phase::Announced { .. } => drop(self.adopt(socket, peer, key)),
            Phase::Draining(ref drain) if drain.hand_over => {
                self.adopt(socket, peer, key);
            }
            // Accepted before the drain began, and not entered yet: it is refused like connections
            // that come later.
            _ => {
                self.state.admission.leave(self.state.core.shard, true, key);
                self.refuse(socket, peer, Refusal::Draining);
            }
        }
    }

    /// Enters a connection that another shard has given up, and passes its upgrade to the service.
    fn take_moved(&mut self, handover: Handover<D::Socket>) {
        let Handover { socket, peer, key, upgrade: Some(upgrade) } = handover else { return };
        let MovedUpgrade { event, input, is_answered, tls, memory } = *upgrade;
        let Some(id) = self.adopt_as(socket, peer, key, false) else {
            return self.state.report_failed_move(event);
        };
        if let Some(conn) = self.state.core.connections.table.conn_mut(id) {
            conn.set(flag::ANSWERED, is_answered);
        }
        if tls.is_some()
            && let Some(cold) = self.state.core.connections.table.cold_mut(id)
        {
            cold.tls = tls;
        }
        self.state.core.connections.await_upgrade(id);
        if !input.is_empty() {
            self.state.core.connections.memory.add(memory.bytes());
            self.state.held.insert(id, input);
            self.hold(id);
        }
        self.pass_upgrade(id, event);
    }

    fn pass_upgrade(&mut self, id: ConnId, event: UserEvent) {
        self.state.guarded(id, |state| {
            state.service.on_user_event(&mut Cx::new(&mut state.core, id), event);
            state.open_accepted(id);
        });
        self.flush(id);
    }
}

/// Returns whether an upgrade is awaited on this connection, and nothing of it has to leave first.
fn can_move(conn: &Conn) -> bool {
    let has_output = conn.out.is_some() || conn.has(flag::IN_FLIGHT);
    let is_awaited = conn.is(Stage::Serving) && conn.has(flag::UPGRADE_LATER);
    is_awaited && !has_output && !conn.has(flag::FINISHED) && !conn.is_finishing()
}
