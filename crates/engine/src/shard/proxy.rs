//! The PROXY protocol: clients behind a proxy that sends the client's address before all else.

use std::net::SocketAddr;

use throng_io::{ConnId, Driver};
use throng_proto::Input;
use throng_proto::proxy_protocol::{self, Decoded, Header, MAX_LENGTH};

use crate::conn::record::Admitted;
use crate::conn::stage::AfterFlush;
use crate::message::{EndReason, Fault, Refusal};
use crate::service::Service;
use crate::shard::Shard;
use crate::shard::admission::RESERVE;
use crate::shard::state::State;
use crate::ws::inbound::Inbound;

/// The reason why a peer that is not trusted is closed.
const UNTRUSTED: &str = "it is not in trusted_proxies, and with proxy_protocol only those may \
                         connect: add it there (unix: for Unix sockets), or let it \
                         connect through the proxy";

/// The reason why a connection without a header is closed at its deadline.
pub(super) const LATE: &str = "no complete PROXY protocol header came within handshake_timeout: \
                               turn it on in the proxy (HAProxy: send-proxy-v2, nginx: \
                               proxy_protocol on)";

impl<S: Service> State<S> {
    /// Returns the decoder of a connection that was accepted just now.
    pub(super) fn first_inbound(&self) -> Inbound {
        match &self.proxy_protocol {
            Some(_) => Inbound::ProxyHeader(Vec::new()),
            None => Inbound::http(),
        }
    }

    /// Returns whether TLS begins after a PROXY header.
    pub(super) fn begins_tls_later(&self) -> bool {
        self.proxy_protocol.as_ref().is_some_and(|proxy| proxy.tls.is_some())
    }

    /// Returns whether `peer` may connect; if not, it is counted and reported.
    pub(super) fn may_connect(&mut self, peer: Option<SocketAddr>) -> bool {
        if self.proxy_protocol.is_none()
            || self.admission.is_trusted_proxy(peer.map(|peer| peer.ip()))
        {
            return true;
        }
        self.report_proxy(peer, UNTRUSTED);
        false
    }

    /// Reads the PROXY header, and the first request if that came with it.
    pub(super) fn pump_proxy_header(&mut self, id: ConnId, input: &mut Input<'_>) {
        let Inbound::ProxyHeader(start) = &mut self.inbound[id.slot()] else { return };
        let before = start.len();
        let bytes = input.as_slice();
        start.extend_from_slice(&bytes[..bytes.len().min(MAX_LENGTH - before)]);
        match proxy_protocol::decode(start) {
            Ok(Decoded::Needs(_)) => {
                input.take(usize::MAX);
            }
            Ok(Decoded::Header(header)) => self.begin_behind_proxy(id, &header, before, input),
            Err(error) => {
                input.take(usize::MAX);
                self.refuse_proxy(id, &error.to_string());
            }
        }
    }

    /// Begins with the input after a PROXY header; `before` bytes of the header came earlier.
    fn begin_behind_proxy(
        &mut self,
        id: ConnId,
        header: &Header,
        before: usize,
        input: &mut Input<'_>,
    ) {
        if let Some((client, _)) = header.addresses
            && !self.count_for(id, client)
        {
            input.take(usize::MAX);
            return;
        }
        let rest_at = header.len - before;
        if self.begins_tls_later() {
            // The received bytes are held as they are, until the driver can be given the rest of
            // them.
            self.inbound[id.slot()] = Inbound::DueTls(rest_at);
            return;
        }
        input.take(rest_at);
        self.inbound[id.slot()] = Inbound::http();
        if !input.is_empty() {
            self.pump_http(id, input);
        }
    }

    /// Counts a connection for the address of its client, in place of its proxy's. Returns false if
    /// it was closed; if only the client's own cap is reached, the connection may send one request,
    /// to learn that.
    fn count_for(&mut self, id: ConnId, client: SocketAddr) -> bool {
        let cold = self.core.connections.table.cold_mut(id);
        let admitted = cold.map_or(Admitted::Evicted, |cold| {
            cold.peer = Some(client);
            cold.admitted
        });
        if admitted != Admitted::Counted {
            return true;
        }
        let address = Some(client.ip());
        let mut entered = self.admission.enter_address(address);
        if entered.is_err()
            && let Some(oldest) = self.pop_oldest_of(address)
        {
            self.end_for_another(oldest, EndReason::PlaceOfAddress);
            entered = self.admission.enter_address(address);
        }
        if let Ok(key) = entered {
            let of_proxy = self.address_keys.take(id.slot());
            self.admission.leave_address(of_proxy);
            self.address_keys.insert(id.slot(), key);
            self.pending_of_address.push(key, id, self.core.now());
            return true;
        }
        self.core.connections.stats.refused += 1;
        // Where each connection has a thread, each has a reserve of its own.
        let has_place = match self.added {
            None => self.reserved < RESERVE,
            Some(_) => self.admission.reserve_thread(RESERVE),
        };
        if !has_place {
            self.inbound[id.slot()] = Inbound::Refused;
            let reason = EndReason::PlaceOfAddress;
            self.core.connections.note_fault(id, Fault::Ended(reason));
            self.core.connections.finish(id, AfterFlush::Close);
            return false;
        }
        self.uncount(id, Admitted::Reserve(Refusal::FullForAddress));
        self.reserved += 1;
        self.reserve.push(id);
        true
    }

    /// Closes a connection whose PROXY header is wrong or late. There is no response: the peer may
    /// not speak HTTP.
    pub(super) fn refuse_proxy(&mut self, id: ConnId, reason: &str) {
        self.inbound[id.slot()] = Inbound::Refused;
        let peer = self.core.connections.table.cold(id).and_then(|cold| cold.peer);
        self.report_proxy(peer, reason);
        self.core.connections.finish(id, AfterFlush::Close);
    }

    #[cold]
    fn report_proxy(&mut self, peer: Option<SocketAddr>, reason: &str) {
        self.core.connections.stats.proxy_errors += 1;
        self.service.on_proxy_refused(peer, reason);
    }
}

impl<D: Driver, S: Service> Shard<D, S> {
    /// Begins TLS on a connection whose PROXY header has come: the first `rest_at` held bytes
    /// belong to the header.
    #[cold]
    pub(super) fn begin_tls(&mut self, id: ConnId, rest_at: usize) {
        let held = self.state.held.remove(&id).unwrap_or_default();
        self.state.inbound[id.slot()] = Inbound::http();
        let peer = self.state.core.connections.table.cold(id).and_then(|cold| cold.peer);
        let tls = self.state.proxy_protocol.as_ref().and_then(|proxy| proxy.tls.as_ref());
        let rest = held.as_slice().get(rest_at..).unwrap_or_default();
        let is_secured = tls.is_some_and(|tls| self.driver.secure_accepted(id, tls, peer, rest));
        if !is_secured {
            self.state.core.connections.finish(id, AfterFlush::Abort);
            self.flush(id);
        }
    }
}
