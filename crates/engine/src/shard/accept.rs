//! Accepting: the choice of a shard for each accepted socket, and who makes room when all places
//! are taken.

use std::net::{IpAddr, SocketAddr};

use throng_io::{ConnId, Driver};

use crate::conn::by_address::AddressKey;
use crate::conn::record::Admitted;
use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::connections::Connections;
use crate::context::Cx;
use crate::message::{EndReason, Fault, Refusal};
use crate::remote::adoption::Early;
use crate::service::Service;
use crate::shard::Shard;
use crate::shard::admission::RESERVE;
use crate::shard::moves::Handover;
use crate::shard::state::State;
use crate::ws::inbound::Inbound;

/// Maximum connections that make room for one: another shard may take the place that became free.
const MAX_EVICTIONS: usize = 4;

/// Starts a connection's thread. Returns the socket if none could be started.
pub(crate) type Starter<T> = Box<StartFn<T>>;

type StartFn<T> =
    dyn FnMut(T, Option<SocketAddr>, Option<AddressKey>, Option<Early>) -> Result<(), T> + Send;

impl<D: Driver, S: Service> Shard<D, S> {
    /// Places an accepted socket: here, at a less loaded shard, or nowhere.
    pub(crate) fn place(&mut self, socket: D::Socket, peer: Option<SocketAddr>) {
        self.state.core.connections.stats.accepted += 1;
        if !self.state.may_connect(peer) {
            return;
        }
        let address = peer.map(|peer| peer.ip());
        let mut entered = self.state.admission.enter(address);
        for _ in 0..MAX_EVICTIONS {
            if !entered.is_err_and(|why| self.make_room(why, address)) {
                break;
            }
            entered = self.state.admission.enter(address);
        }
        let key = match entered {
            Ok(key) => key,
            Err(why) => {
                self.refuse(socket, peer, why);
                return;
            }
        };
        let here = self.state.core.shard;
        let shard = match self.neighbours.is_empty() {
            true => self.state.admission.keep_here(here),
            false => self.state.admission.place(here),
        };
        if let Some(start) = &mut self.starter {
            if let Err(socket) = start(socket, peer, key, None) {
                self.state.admission.leave(shard, true, key);
                self.state.core.connections.stats.thread_failures += 1;
                self.refuse(socket, peer, Refusal::Full);
            }
            return;
        }
        if shard == self.state.core.shard {
            self.adopt(socket, peer, key);
            return;
        }
        let handover = Handover { socket, peer, key, upgrade: None };
        match self.neighbours[shard].send_to_owner(handover, 0) {
            Ok(()) => self.state.core.connections.stats.handed_over += 1,
            Err(Handover { socket, peer, key, .. }) => {
                self.state.admission.keep(self.state.core.shard, shard);
                self.adopt(socket, peer, key);
            }
        }
    }

    /// Enters a connection that was admitted with `key`.
    pub(crate) fn adopt(
        &mut self,
        socket: D::Socket,
        peer: Option<SocketAddr>,
        key: Option<AddressKey>,
    ) -> Option<ConnId> {
        self.adopt_as(socket, peer, key, true)
    }

    /// Enters a connection: a new one, or a connection from another shard after its first request.
    pub(super) fn adopt_as(
        &mut self,
        socket: D::Socket,
        peer: Option<SocketAddr>,
        key: Option<AddressKey>,
        is_new: bool,
    ) -> Option<ConnId> {
        let Ok(id) = self.driver.adopt(socket) else {
            self.state.admission.leave(self.state.core.shard, is_new, key);
            self.state.core.connections.stats.refused += 1;
            return None;
        };
        let inbound = if is_new { self.state.first_inbound() } else { Inbound::http() };
        self.state.enter(id, Stage::Http, inbound);
        self.state.address_keys.insert(id.slot(), key);
        if is_new {
            self.state.pending.push(id);
            self.state.pending_of_address.push(key, id, self.state.core.now());
        }
        let connections = &mut self.state.core.connections;
        if peer.is_some()
            && let Some(cold) = connections.table.cold_mut(id)
        {
            cold.peer = peer;
        }
        if let Some(conn) = connections.table.conn_mut(id) {
            conn.set(flag::PENDING, is_new);
        }
        connections.timers.due_in(id, connections.limits.handshake);
        let now = connections.now;
        if is_new {
            self.state.core.samples.accept(id, now);
        }
        // Where another process takes over, connections come until the listeners are closed.
        self.state.await_request(id);
        Some(id)
    }

    /// Ends the oldest connection that has not sent a whole request: of all, or of an address that
    /// has too many. Returns false if there is none.
    fn make_room(&mut self, why: Refusal, address: Option<IpAddr>) -> bool {
        let Some(reason) = EndReason::of_refusal(why) else { return false };
        let oldest = match why {
            Refusal::FullForAddress => self.state.pop_oldest_of(address),
            _ => {
                let State { core, pending, .. } = &mut self.state;
                pending.pop_oldest(|id| is_pending(&core.connections, id))
            }
        };
        let Some(id) = oldest else { return false };
        self.state.end_for_another(id, reason);
        self.flush_evicted(id);
        true
    }

    /// Closes a connection at once, without waiting for its peer: its resources must be free before
    /// another connection gets them.
    fn flush_evicted(&mut self, id: ConnId) {
        self.flush(id);
        if self.state.core.connections.table.stage(id) < Stage::Ending {
            self.state.core.connections.finish(id, AfterFlush::Abort);
            self.flush(id);
        }
        self.driver.close_now(id);
    }

    /// Takes a connection beyond the caps into the reserve, or refuses it while the server is
    /// draining.
    pub(crate) fn refuse(
        &mut self,
        socket: D::Socket,
        peer: Option<SocketAddr>,
        why: Refusal,
    ) -> Option<ConnId> {
        self.state.core.connections.stats.refused += 1;
        if self.state.reserved >= RESERVE {
            let connections = &self.state.core.connections;
            let oldest = self.state.reserve.pop_oldest(|id| is_reserved(connections, id));
            if let Some(oldest) = oldest {
                self.state.core.connections.note_unserved(oldest);
                self.state.evict(oldest);
                self.flush_evicted(oldest);
            }
        }
        let id = self.driver.adopt(socket).ok()?;
        self.state.enter(id, Stage::Http, self.state.first_inbound());
        self.state.reserved += 1;
        self.state.reserve.push(id);
        let connections = &mut self.state.core.connections;
        if let Some(cold) = connections.table.cold_mut(id) {
            cold.peer = peer;
            cold.admitted = Admitted::Reserve(why);
        }
        connections.timers.due_in(id, connections.limits.handshake);
        if why == Refusal::Draining {
            self.state.inbound[id.slot()] = Inbound::Refused;
            if self.state.begins_tls_later() {
                // Nothing can be sent before the handshake.
                self.state.core.connections.finish(id, AfterFlush::Close);
                self.flush(id);
                return Some(id);
            }
            self.state.guarded(id, |state| {
                state.service.on_refused(&mut Cx::new(&mut state.core, id), why);
            });
            self.state.core.connections.finish(id, AfterFlush::Linger);
            self.flush(id);
        }
        Some(id)
    }

    pub(crate) fn retry_accept(&mut self) {
        if self.accept_rests_until.take().is_some() {
            self.driver.resume_accept();
        }
    }
}

impl<S: Service> State<S> {
    /// Counts a connection out, unless that was done before.
    pub(crate) fn uncount(&mut self, id: ConnId, now: Admitted) {
        let connections = &mut self.core.connections;
        let Some(conn) = connections.table.conn_mut(id) else { return };
        let (pending, client) = (conn.has(flag::PENDING), conn.has(flag::CLIENT));
        conn.set(flag::PENDING, false);
        let admitted = match connections.table.cold(id) {
            Some(cold) => cold.admitted,
            None => Admitted::Counted,
        };
        match admitted {
            Admitted::Counted if client => {}
            Admitted::Counted => {
                let key = self.address_keys.take(id.slot());
                self.admission.leave(self.core.shard, pending, key);
            }
            Admitted::Reserve(_) => {
                self.reserved -= 1;
                if self.added.is_some() {
                    self.admission.unreserve_thread();
                }
            }
            Admitted::Evicted => {}
        }
        if connections.table.cold(id).is_some()
            && let Some(cold) = connections.table.cold_mut(id)
        {
            cold.admitted = now;
        }
    }

    /// Returns the oldest connection of an address that has not sent a whole request, if it has had
    /// time to.
    pub(super) fn pop_oldest_of(&mut self, address: Option<IpAddr>) -> Option<ConnId> {
        let key = self.admission.key(address);
        let connections = &self.core.connections;
        let may_go = |id| is_pending(connections, id);
        self.pending_of_address.pop_oldest(key, connections.now, may_go)
    }

    /// Ends a connection that has not sent a whole request, in favour of another: with a 408 if it
    /// has sent a part of one. Its place is free at once, and it closes with the next flush.
    pub(super) fn end_for_another(&mut self, id: ConnId, reason: EndReason) {
        let connections = &mut self.core.connections;
        connections.stats.refused += 1;
        let unanswered = connections
            .table
            .conn(id)
            .is_some_and(|conn| conn.has(flag::REQUEST) && !conn.is_finishing());
        if unanswered {
            self.end_unanswered(id, 408, reason);
        } else {
            connections.note_fault(id, Fault::Ended(reason));
        }
        self.evict(id);
    }

    /// Uncounts a connection, which closes with the next flush.
    fn evict(&mut self, id: ConnId) {
        self.uncount(id, Admitted::Evicted);
        let connections = &mut self.core.connections;
        match connections.table.stage(id) {
            Stage::Lingering => connections.end_lingering(id),
            _ => connections.finish(id, AfterFlush::Close),
        }
    }

    /// Forgets connections that no longer have to make room.
    pub(crate) fn expire_arrivals(&mut self) {
        let Self { core, pending, pending_of_address, reserve, .. } = self;
        pending.retain(|id| is_pending(&core.connections, id));
        pending_of_address.retain(|id| is_pending(&core.connections, id));
        reserve.retain(|id| is_reserved(&core.connections, id));
    }
}

/// Returns whether a connection has not sent a whole request.
fn is_pending(connections: &Connections, id: ConnId) -> bool {
    connections.table.conn(id).is_some_and(|conn| conn.has(flag::PENDING))
}

/// Returns whether a connection has a place of the reserve.
fn is_reserved(connections: &Connections, id: ConnId) -> bool {
    connections.table.cold(id).is_some_and(|cold| matches!(cold.admitted, Admitted::Reserve(_)))
}
