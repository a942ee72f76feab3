//! The outcome of a TLS handshake, as [`Event::Secured`](crate::Event::Secured) reports it.

/// The parameters that a TLS handshake agreed on, and the identity of the peer.
///
/// Numbers are the registered ones of IANA's "TLS Parameters", so that this crate needs no TLS
/// library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsInfo {
    /// The protocol version: 0x0303 is TLS 1.2, 0x0304 is TLS 1.3.
    pub version: u16,
    /// The cipher suite, such as 0x1301 for `TLS_AES_128_GCM_SHA256`.
    pub cipher_suite: u16,
    /// The group of the key exchange, such as 0x001d for `x25519`; none if a session was resumed
    /// without a key exchange.
    pub group: Option<u16>,
    /// Whether an earlier session was resumed, and with it the peer's authentication.
    pub is_resumed: bool,
    /// The host name that the client asked for (SNI).
    pub server_name: Option<Box<str>>,
    /// The application protocol that was agreed on (ALPN), such as `http/1.1`.
    pub alpn: Option<Box<[u8]>>,
    /// The certificates that the peer sent, verified, its own first, in DER. Empty if it sent none.
    pub peer_certificates: Vec<Box<[u8]>>,
}
