//! Settings of the PROXY protocol.

use throng_io::ServerTls;

/// Settings of accepted connections that begin with a PROXY header.
///
/// Only [`TrustedProxies`](crate::TrustedProxies) may connect then. From its header on, a
/// connection has the address of its client.
#[derive(Clone, Debug, Default)]
pub struct ProxyProtocol {
    /// Secures connections after the header, instead of the driver, which would take the header for
    /// a handshake.
    pub tls: Option<ServerTls>,
}
