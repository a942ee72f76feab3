//! Names of backends in operations.

use std::net::SocketAddr;

use throng_io::PeerAddress;

/// The backend that an operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendKey<'p> {
    /// The name of its pool. `None`: the pool `default` if that has the address, otherwise the only
    /// pool that has it.
    pub pool: Option<&'p str>,
    /// Its address.
    pub address: PeerAddress,
}

impl From<PeerAddress> for BackendKey<'_> {
    fn from(address: PeerAddress) -> Self {
        Self { pool: None, address }
    }
}

impl From<SocketAddr> for BackendKey<'_> {
    fn from(address: SocketAddr) -> Self {
        Self { pool: None, address: address.into() }
    }
}

impl<'p, A: Into<PeerAddress>> From<(&'p str, A)> for BackendKey<'p> {
    fn from((pool, address): (&'p str, A)) -> Self {
        Self { pool: Some(pool), address: address.into() }
    }
}
