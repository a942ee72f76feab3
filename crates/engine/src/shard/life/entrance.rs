//! Entrance of connections: the places that they take, and which of them are ended for others.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use throng_io::{ConnId, Instant, ServerTls};

use crate::admission::{Admission, RESERVE};
use crate::conn::arrivals::{Arrivals, ArrivalsByAddress};
use crate::conn::by_address::{AddressKey, KeyBySlot};
use crate::conn::proxy_protocol::ProxyProtocol;
use crate::conn::record::Admitted;
use crate::conn::stage::flag;
use crate::connections::Connections;
use crate::message::Refusal;
use crate::ws::inbound::Inbound;

/// The places of a shard's connections.
pub(crate) struct Entrance {
    admission: Arc<Admission>,
    shard: usize,
    /// Whether this shard is the thread of one connection.
    is_thread: bool,
    /// Keys of connections that count for their address.
    keys: KeyBySlot,
    /// Connections that have not sent a whole request, the oldest first.
    pending: Arrivals,
    /// Pending connections whose address has a cap.
    pending_of_address: ArrivalsByAddress,
    /// Connections beyond the caps, the oldest first, and their number.
    reserve: Arrivals,
    reserved: usize,
    /// `None`: connections begin with a request or a TLS handshake.
    proxy_protocol: Option<ProxyProtocol>,
    rests_until: Option<Instant>,
}

impl Entrance {
    pub(crate) fn new(
        admission: Arc<Admission>,
        shard: usize,
        is_thread: bool,
        proxy_protocol: Option<ProxyProtocol>,
    ) -> Self {
        Self {
            admission,
            shard,
            is_thread,
            keys: KeyBySlot::default(),
            pending: Arrivals::default(),
            pending_of_address: ArrivalsByAddress::default(),
            reserve: Arrivals::default(),
            reserved: 0,
            proxy_protocol,
            rests_until: None,
        }
    }

    /// Returns the counts and caps of the process.
    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Counts a new connection out that was admitted, and has not entered.
    pub(crate) fn give_up(&self, is_new: bool, key: Option<AddressKey>) {
        self.admission.leave(self.shard, is_new, key);
    }

    /// Enters an admitted connection.
    pub(crate) fn enter(
        &mut self,
        id: ConnId,
        key: Option<AddressKey>,
        is_new: bool,
        now: Instant,
    ) {
        self.keys.insert(id.slot(), key);
        if is_new {
            self.pending.push(id);
            self.pending_of_address.push(key, id, now);
        }
    }

    /// Enters a connection beyond the caps.
    pub(crate) fn enter_reserve(&mut self, id: ConnId) {
        self.reserved += 1;
        self.reserve.push(id);
    }

    /// Removes and returns the key under which a connection is counted for its address.
    pub(crate) fn take_key(&mut self, id: ConnId) -> Option<AddressKey> {
        self.keys.take(id.slot())
    }

    /// Counts a connection for its client's address in place of its proxy's.
    pub(crate) fn replace_key(&mut self, id: ConnId, key: Option<AddressKey>, now: Instant) {
        let of_proxy = self.take_key(id);
        self.admission.leave_address(of_proxy);
        self.keys.insert(id.slot(), key);
        self.pending_of_address.push(key, id, now);
    }

    /// Takes a place of the reserve if there is one. Where each connection has a thread, each has a
    /// reserve of its own.
    pub(crate) fn takes_reserve(&self) -> bool {
        match self.is_thread {
            true => self.admission.reserve_thread(RESERVE),
            false => self.reserved < RESERVE,
        }
    }

    /// Returns the oldest connection that has not sent a whole request, and has had time to: of
    /// all, or of an address that has too many.
    pub(crate) fn oldest(
        &mut self,
        why: Refusal,
        address: Option<IpAddr>,
        conns: &Connections,
    ) -> Option<ConnId> {
        let may_go = |id| conns.has(id, flag::PENDING);
        match why {
            Refusal::FullForAddress => {
                let key = self.admission.key(address);
                self.pending_of_address.pop_oldest(key, conns.now(), may_go)
            }
            _ => self.pending.pop_oldest(may_go),
        }
    }

    /// Returns the oldest connection of the reserve if that is full.
    pub(crate) fn oldest_reserved(&mut self, conns: &Connections) -> Option<ConnId> {
        let is_full = self.reserved >= RESERVE;
        is_full.then(|| self.reserve.pop_oldest(|id| conns.refusal(id).is_some())).flatten()
    }

    /// Forgets connections that no longer have to make room.
    pub(crate) fn expire(&mut self, conns: &Connections) {
        self.pending.retain(|id| conns.has(id, flag::PENDING));
        self.pending_of_address.retain(|id| conns.has(id, flag::PENDING));
        self.reserve.retain(|id| conns.refusal(id).is_some());
    }

    /// Counts a connection out, unless that was done before.
    pub(crate) fn leave(&mut self, id: ConnId, now: Admitted, conns: &mut Connections) {
        let Some(conn) = conns.conn_mut(id) else { return };
        let (pending, client) = (conn.has(flag::PENDING), conn.has(flag::CLIENT));
        conn.set(flag::PENDING, false);
        match conns.cold(id).map_or(Admitted::Counted, |cold| cold.admitted) {
            Admitted::Counted if client => {}
            Admitted::Counted => {
                let key = self.take_key(id);
                self.admission.leave(self.shard, pending, key);
            }
            Admitted::Reserve(_) => {
                self.reserved -= 1;
                if self.is_thread {
                    self.admission.unreserve_thread();
                }
            }
            Admitted::Evicted => {}
        }
        if conns.cold(id).is_some()
            && let Some(cold) = conns.cold_mut(id)
        {
            cold.admitted = now;
        }
    }

    /// Removes a connection from the pending handshakes after its first request.
    pub(crate) fn complete(&self, id: ConnId, conns: &mut Connections) {
        if let Some(conn) = conns.conn_mut(id)
            && conn.has(flag::PENDING)
        {
            conn.set(flag::PENDING, false);
            self.admission.complete_handshake();
        }
    }

    /// Returns the decoder of a connection that was accepted just now.
    pub(crate) fn first_inbound(&self) -> Inbound {
        match &self.proxy_protocol {
            Some(_) => Inbound::ProxyHeader(Vec::new()),
            None => Inbound::http(),
        }
    }

    /// Returns the TLS configuration of connections that begin TLS after a PROXY header.
    pub(crate) fn tls_behind_proxy(&self) -> Option<&ServerTls> {
        self.proxy_protocol.as_ref().and_then(|proxy| proxy.tls.as_ref())
    }

    /// Returns whether `peer` may connect: with the PROXY protocol, proxies only.
    pub(crate) fn may_connect(&self, peer: Option<SocketAddr>) -> bool {
        self.proxy_protocol.is_none() || self.admission.is_trusted_proxy(peer.map(|peer| peer.ip()))
    }

    /// Accepts no connection until then, unless one ends earlier.
    pub(crate) fn rest(&mut self, until: Instant) {
        self.rests_until = Some(until);
    }

    pub(crate) fn rests_until(&self) -> Option<Instant> {
        self.rests_until
    }

    /// Returns whether accepting begins again.
    pub(crate) fn end_rest(&mut self) -> bool {
        self.rests_until.take().is_some()
    }

    /// Returns the number of connections in the reserve; for audits.
    pub(crate) fn reserved(&self) -> usize {
        self.reserved
    }
}
