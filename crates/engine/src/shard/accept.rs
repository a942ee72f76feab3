//! Accepting: the choice of a shard for each accepted socket.

use std::net::SocketAddr;

use throng_io::Driver;

use crate::conn::record::{AfterFlush, Stage, flag};
use crate::context::Cx;
use crate::service::{Refusal, Service};
use crate::shard::Shard;
use crate::shard::shutdown::Phase;
use crate::ws::receive::Inbound;

/// Refused connections at a time that get an answer with the reason; the rest are just closed.
const MAX_REFUSING: usize = 32;

impl<D: Driver, S: Service> Shard<D, S> {
    /// Places an accepted socket: here, at a less loaded shard, or nowhere.
    pub(crate) fn place(&mut self, socket: D::Socket, peer: SocketAddr) {
        self.state.core.connections.stats.accepted += 1;
        if self.state.core.connections.debts.is_over() {
            return self.refuse(socket, peer, Refusal::Full);
        }
        if let Err(why) = self.state.admission.enter(peer.ip()) {
            return self.refuse(socket, peer, why);
        }
        let shard = self.state.admission.place(self.state.core.shard);
        if let Some(start) = &mut self.starter {
            if let Err(socket) = start(socket, peer) {
                self.state.admission.leave(shard, true, Some(peer.ip()));
                self.state.core.connections.stats.thread_failures += 1;
                self.refuse(socket, peer, Refusal::Full);
            }
            return;
        }
        if shard == self.state.core.shard {
            return self.adopt(socket, peer);
        }
        match self.neighbours[shard].send((socket, peer)) {
            Ok(()) => self.state.core.connections.stats.handed_over += 1,
            Err((socket, peer)) => {
                self.state.admission.keep(self.state.core.shard, shard);
                self.adopt(socket, peer);
            }
        }
    }

    pub(crate) fn adopt(&mut self, socket: D::Socket, peer: SocketAddr) {
        let Ok(id) = self.driver.adopt(socket) else {
            self.state.admission.leave(self.state.core.shard, true, Some(peer.ip()));
            self.state.core.connections.stats.refused += 1;
            return;
        };
        self.state.enter(id, Stage::Http, Inbound::http());
        let connections = &mut self.state.core.connections;
        if let Some(cold) = connections.cold_mut(id) {
            cold.peer = Some(peer);
        }
        if let Some(conn) = connections.conn_mut(id) {
            conn.set(flag::PENDING, true);
        }
        connections.due_in(id, connections.limits.handshake);
    }

    /// Answers the first refused connections with a reason; closes the rest.
    pub(crate) fn refuse(&mut self, socket: D::Socket, _peer: SocketAddr, why: Refusal) {
        self.state.core.connections.stats.refused += 1;
        if self.state.refusing >= MAX_REFUSING {
            return;
        }
        let Ok(id) = self.driver.adopt(socket) else { return };
        self.state.enter(id, Stage::Http, Inbound::Refused);
        self.state.refusing += 1;
        self.state.guarded(id, |state| {
            state.service.on_refused(&mut Cx::new(&mut state.core, id), why);
        });
        self.state.core.connections.finish(id, AfterFlush::Linger);
        self.flush(id);
    }

    pub(crate) fn retry_accept(&mut self) {
        if self.accept_rests_until.take().is_some() {
            self.driver.resume_accept();
        }
    }

    pub(crate) fn take_handovers(&mut self) {
        // Collected first: adopting borrows the shard.
        let sockets: Vec<_> = self.handovers.drain().collect();
        for (socket, peer) in sockets {
            match self.state.phase {
                Phase::Running => self.adopt(socket, peer),
                // Accepted before the drain began, and not entered yet: it is refused like those
                // that come later.
                _ => {
                    self.state.admission.leave(self.state.core.shard, true, Some(peer.ip()));
                    self.refuse(socket, peer, Refusal::Draining);
                }
            }
        }
    }
}
