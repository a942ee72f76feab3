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

/// The reason why a TLS handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsFailure {
    /// The peer's certificate has expired.
    Expired,
    /// The peer's certificate is not valid yet.
    NotYetValid,
    /// The peer's certificate leads to no authority that is trusted.
    UnknownIssuer,
    /// The peer's certificate is not for the name that was connected to.
    WrongName,
    /// The peer's certificate was revoked.
    Revoked,
    /// The peer's certificate cannot be used for another reason.
    BadCertificate,
    /// The peer sent no certificate, and one is required.
    NoCertificate,
    /// The peer ended the handshake with this alert.
    Alert(u8),
    /// The peer has no version, cipher suite, group or application protocol that we have.
    Incompatible,
    /// The peer sent something else than a TLS handshake.
    NotTls,
    /// The peer ended the connection during the handshake.
    Ended,
    /// We ended the connection during the handshake: it took too long, or there were too many.
    GivenUp,
    /// An error of our own.
    Internal,
}

impl TlsFailure {
    /// The label of each cause in metrics; [`TlsFailure::index`] is the place in it.
    pub const LABELS: [&str; 13] = [
        "certificate_expired",
        "certificate_not_yet_valid",
        "unknown_issuer",
        "wrong_name",
        "certificate_revoked",
        "bad_certificate",
        "no_certificate",
        "peer_alert",
        "incompatible",
        "not_tls",
        "ended",
        "given_up",
        "internal",
    ];

    /// Returns the place in [`TlsFailure::LABELS`].
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Expired => 0,
            Self::NotYetValid => 1,
            Self::UnknownIssuer => 2,
            Self::WrongName => 3,
            Self::Revoked => 4,
            Self::BadCertificate => 5,
            Self::NoCertificate => 6,
            Self::Alert(_) => 7,
            Self::Incompatible => 8,
            Self::NotTls => 9,
            Self::Ended => 10,
            Self::GivenUp => 11,
            Self::Internal => 12,
        }
    }
}

impl std::fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Expired => "its certificate has expired",
            Self::NotYetValid => "its certificate is not valid yet",
            Self::UnknownIssuer => "its certificate leads to no trusted authority",
            Self::WrongName => "its certificate is for another name",
            Self::Revoked => "its certificate was revoked",
            Self::BadCertificate => "its certificate cannot be used",
            Self::NoCertificate => "it sent no certificate",
            Self::Alert(alert) => return write!(f, "it refused with the TLS alert {alert}"),
            Self::Incompatible => "it has no TLS version, cipher suite or protocol in common",
            Self::NotTls => "it does not speak TLS",
            Self::Ended => "it ended the connection during the TLS handshake",
            Self::GivenUp => "the TLS handshake took too long",
            Self::Internal => "the TLS handshake failed",
        })
    }
}
