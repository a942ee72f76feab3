//! Connections that move to another shard before their session opens.

use std::net::SocketAddr;
use std::sync::Arc;

use throng_io::{ConnId, Driver, TlsInfo};

use crate::conn::by_address::AddressKey;
use crate::conn::held::HeldInput;
use crate::conn::record::Conn;
use crate::conn::stage::{Stage, flag};
use crate::context::{Cx, Move};
use crate::message::UserEvent;
use crate::service::Service;
use crate::shard::Shard;
use crate::shard::state::drop_guarded;
use crate::ws::inbound::Inbound;

/// A socket on its way to the shard that will serve it, with the key under which its address is
/// counted.
pub(crate) struct Handover<S> {
    pub(crate) socket: S,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) key: Option<AddressKey>,
    /// The upgrade that was accepted elsewhere; `None` for a new connection.
    pub(crate) upgrade: Option<Box<MovedUpgrade>>,
}

/// An upgrade that the service of one shard has left to that of another.
pub(crate) struct MovedUpgrade {
    event: UserEvent,
    /// Received behind the request.
    input: HeldInput,
    /// Its client has got the response.
    is_answered: bool,
    tls: Option<Arc<TlsInfo>>,
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
                let panicked = drop_guarded(event);
                self.state.core.connections.stats.handler_panics += u64::from(panicked);
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
        let upgrade = Some(Box::new(MovedUpgrade { event, input, is_answered, tls }));
        match self.neighbours[to].send_to_owner(Handover { socket, peer, key, upgrade }) {
            Ok(()) => self.state.core.connections.stats.handed_over += 1,
            Err(returned) => {
                self.state.admission.keep(here, to);
                self.take_moved(returned);
            }
        }
    }

    /// Enters a connection that another shard has given up, and passes its upgrade to the service.
    pub(super) fn take_moved(&mut self, handover: Handover<D::Socket>) {
        let Handover { socket, peer, key, upgrade: Some(upgrade) } = handover else { return };
        let MovedUpgrade { event, input, is_answered, tls } = *upgrade;
        let Some(id) = self.adopt_as(socket, peer, key, false) else {
            drop_guarded(event);
            return;
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
            self.state.core.connections.memory.add(input.len());
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
