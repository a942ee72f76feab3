//! Settings of the PROXY protocol.

use throng_io::ServerTls;

/// Settings of accepted connections that begin with a PROXY header.
///
/// With these settings only [`TrustedProxies`](crate::TrustedProxies) may connect. After its
/// header, a connection has the address of its client.
#[derive(Clone, Debug, Default)]
pub struct ProxyProtocol {
    /// Secures connections after the header. The driver cannot do this: it would take the header
    /// for a handshake.
    pub tls: Option<ServerTls>,
}
