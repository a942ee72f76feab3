//! The identity of a client.

use std::net::SocketAddr;

use throng_io::{ConnId, ListenerId, ServerTls};

use crate::access::Subject;
use crate::unix_peer::known;

/// The identity of a client, from its socket, its PROXY header and its TLS handshake.
#[derive(Debug)]
pub(in crate::shard) struct Origin {
    id: ConnId,
    /// The other end of its socket; [`UNIX_PEER`](crate::unix_peer::UNIX_PEER) stands for one
    /// without an address.
    peer: SocketAddr,
    /// Its address, from the kernel or its PROXY header.
    address: SocketAddr,
    /// Its connection has TLS.
    is_secure: bool,
    /// It connected to an address with TLS.
    is_due_tls: bool,
    /// TLS that has not begun.
    tls: Option<ServerTls>,
    /// The certificate that it has shown, in DER.
    certificate: Option<Box<[u8]>>,
    /// The host that it has asked for in its handshake (SNI).
    server_name: Option<Box<str>>,
    /// Its requests must be for that host.
    is_host_bound: bool,
    /// The version of TLS, as in [`TlsInfo`](throng_io::TlsInfo); 0 without TLS.
    tls_version: u16,
    /// The number of the rules that its TLS handshake has followed.
    policy: u64,
    /// The listener that it connected to.
    listener: ListenerId,
}

impl Origin {
    /// Creates it for a client of a listener with this TLS.
    pub(in crate::shard) fn new(
        id: ConnId,
        peer: SocketAddr,
        listener: ListenerId,
        tls: Option<ServerTls>,
    ) -> Self {
        Self {
            id,
            peer,
            address: peer,
            is_secure: false,
            is_due_tls: tls.is_some(),
            tls,
            certificate: None,
            server_name: None,
            is_host_bound: false,
            tls_version: 0,
            policy: 0,
            listener,
        }
    }

    pub(in crate::shard) fn id(&self) -> ConnId {
        self.id
    }

    /// Returns the listener that it connected to.
    pub(in crate::shard) fn listener(&self) -> ListenerId {
        self.listener
    }

    /// Returns its address, from the kernel or its PROXY header.
    pub(in crate::shard) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the address that its PROXY header names.
    pub(in crate::shard) fn set_address(&mut self, address: SocketAddr) {
        self.address = address;
    }

    /// Returns whether TLS must begin.
    pub(in crate::shard) fn awaits_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Takes the TLS that begins now.
    pub(in crate::shard) fn take_tls(&mut self) -> Option<ServerTls> {
        self.tls.take()
    }

    /// Records the end of its TLS handshake. `is_host_bound`: its requests must be for the host
    /// that it has asked for.
    pub(in crate::shard) fn secure(
        &mut self,
        certificate: Option<Box<[u8]>>,
        (version, server_name): (u16, Option<Box<str>>),
        is_host_bound: bool,
    ) {
        (self.is_secure, self.is_host_bound) = (true, is_host_bound);
        (self.certificate, self.tls_version, self.server_name) =
            (certificate, version, server_name);
    }

    /// Sets the number of the rules that its TLS handshake has followed.
    pub(in crate::shard) fn set_policy(&mut self, policy: u64) {
        self.policy = policy;
    }

    /// Returns the number of the rules that its TLS handshake has followed; `None` without TLS.
    pub(in crate::shard) fn policy(&self) -> Option<u64> {
        self.is_secure.then_some(self.policy)
    }

    /// Returns whether its connection has TLS.
    pub(in crate::shard) fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Returns whether it connected to an address with TLS.
    pub(in crate::shard) fn is_due_tls(&self) -> bool {
        self.is_due_tls
    }

    /// Returns the certificate that it has shown, in DER.
    pub(in crate::shard) fn certificate(&self) -> Option<&[u8]> {
        self.certificate.as_deref()
    }

    /// Returns the host that its requests must be for.
    pub(in crate::shard) fn server_name(&self) -> Option<&str> {
        self.asked_name().filter(|_| self.is_host_bound)
    }

    /// Returns the host that it has asked for in its handshake (SNI).
    pub(in crate::shard) fn asked_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// Returns the version of TLS; 0 without TLS.
    pub(in crate::shard) fn tls_version(&self) -> u16 {
        self.tls_version
    }

    /// Returns who it is, before a request names the client of a proxy.
    pub(in crate::shard) fn subject(&self) -> Subject {
        Subject {
            session: Some(self.id.to_bits()),
            peer: known(self.peer.ip()).map(|_| self.peer),
            client: known(self.address.ip().to_canonical()),
        }
    }
}
