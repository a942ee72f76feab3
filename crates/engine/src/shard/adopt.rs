//! Connections that the program gives to the server.

use throng_io::{ConnId, Driver};

use crate::conn::held::HeldInput;
use crate::conn::stage::flag;
use crate::remote::adoption::{Adoption, Early};
use crate::service::Service;
use crate::shard::Shard;
use crate::ws::inbound::Inbound;

impl<D: Driver, S: Service> Shard<D, S> {
    /// Takes over a connection, within the limits on accepted ones. It stays on this shard.
    #[cold]
    pub(super) fn take_over(&mut self, adoption: Adoption) {
        let Adoption { stream, received, is_answered } = adoption;
        let early = Early { received, is_answered };
        let peer = stream.peer_addr().ok();
        self.state.core.connections.stats.accepted += 1;
        let Ok(socket) = self.driver.socket(stream) else {
            self.state.core.connections.stats.refused += 1;
            return;
        };
        let key = match self.state.admission.enter(peer.map(|peer| peer.ip())) {
            Ok(key) => key,
            Err(_) if is_answered => {
                self.state.core.connections.stats.refused += 1;
                return;
            }
            Err(why) => {
                if let Some(id) = self.refuse(socket, peer, why) {
                    self.begin_with(id, early);
                }
                return;
            }
        };
        let here = self.state.admission.keep_here(self.state.core.shard);
        let Some(start) = &mut self.starter else {
            if let Some(id) = self.adopt(socket, peer, key) {
                self.begin_with(id, early);
            }
            return;
        };
        if start(socket, peer, key, Some(early)).is_err() {
            self.state.admission.leave(here, true, key);
            self.state.core.connections.stats.thread_failures += 1;
        }
    }

    /// Begins a connection with input that was received elsewhere; no proxy's header is expected in
    /// it.
    pub(crate) fn begin_with(&mut self, id: ConnId, early: Early) {
        let Early { received, is_answered } = early;
        let state = &mut self.state;
        if !matches!(state.inbound[id.slot()], Inbound::Refused) {
            state.inbound[id.slot()] = Inbound::http();
        }
        if let Some(conn) = state.core.connections.table.conn_mut(id) {
            conn.set(flag::ANSWERED, is_answered);
        }
        if received.is_empty() {
            return;
        }
        state.core.connections.stats.bytes_in += received.len() as u64;
        // As held input: it does not lie in memory of the driver's.
        let is_held = state.on_held(id, HeldInput::new(&received));
        self.flush(id);
        if is_held {
            self.hold(id);
        }
    }
}
