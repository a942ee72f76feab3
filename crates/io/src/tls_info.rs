//! The outcome of a TLS handshake, as [`Event::Secured`](crate::Event::Secured) reports it, and the
//! causes that end a session after it.

use crate::time::Instant;

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
    /// When the TCP connection was established and the handshake began, for a connection that we
    /// started.
    pub connected: Option<Instant>,
    /// Whether an earlier session was resumed, and with it the peer's authentication.
    pub is_resumed: bool,
    /// The host name that the client asked for (SNI).
    pub server_name: Option<Box<str>>,
    /// The application protocol that was agreed on (ALPN), such as `http/1.1`.
    pub alpn: Option<Box<[u8]>>,
    /// The certificates that the peer sent, verified, its own first, in DER. Empty if it sent none.
    pub peer_certificates: Vec<Box<[u8]>>,
    /// The number of the server's rules for the name that the client asked for; 0: the rules for
    /// all names.
    pub policy: u64,
}

impl TlsInfo {
    /// Returns the protocol version for people, `TLS 1.3`.
    #[must_use]
    pub fn version_name(&self) -> Option<&'static str> {
        Some(match self.version {
            0x0303 => "TLS 1.2",
            0x0304 => "TLS 1.3",
            _ => return None,
        })
    }

    /// Returns the registered name of the cipher suite, if it is in use today.
    #[must_use]
    pub fn cipher_suite_name(&self) -> Option<&'static str> {
        Some(match self.cipher_suite {
            0x1301 => "TLS_AES_128_GCM_SHA256",
            0x1302 => "TLS_AES_256_GCM_SHA384",
            0x1303 => "TLS_CHACHA20_POLY1305_SHA256",
            0xc02b => "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            0xc02c => "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            0xc02f => "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            0xc030 => "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            0xcca8 => "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            0xcca9 => "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            _ => return None,
        })
    }

    /// Returns the registered name of the key exchange's group, if it is in use today.
    #[must_use]
    pub fn group_name(&self) -> Option<&'static str> {
        Some(match self.group? {
            0x0017 => "secp256r1",
            0x0018 => "secp384r1",
            0x0019 => "secp521r1",
            0x001d => "x25519",
            0x11eb => "SecP256r1MLKEM768",
            0x11ec => "X25519MLKEM768",
            _ => return None,
        })
    }
}

/// A connection whose TLS is not ended here: its bytes are passed on as they come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedThrough {
    /// The host name that the client asked for (SNI).
    pub server_name: Option<Box<str>>,
    /// The pattern of the configuration that it matches.
    pub route: Box<str>,
    /// The random bytes of its ClientHello, which no other connection has.
    pub random: [u8; 32],
    /// All received bytes: the ClientHello, and the bytes after it.
    pub received: Vec<u8>,
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
    /// We have no certificate for the name that the peer asked for, or it is not issued yet.
    LacksCertificate,
    /// An error of our own.
    Internal,
}

impl TlsFailure {
    /// The label of each cause in metrics; [`TlsFailure::index`] is the place in it.
    pub const LABELS: [&str; 14] = [
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
        "own_certificate_missing",
        "internal",
    ];

    /// Returns whether the peer has refused our certificate, or a missing one: in TLS 1.3 a server
    /// reports this only after its client's handshake is complete ([RFC 8446 section
    /// 6.2](https://www.rfc-editor.org/rfc/rfc8446#section-6.2)).
    #[must_use]
    pub fn refuses_certificate(self) -> bool {
        // handshake_failure; bad_certificate to certificate_unknown; unknown_ca, access_denied,
        // decrypt_error; certificate_required.
        matches!(self, Self::Alert(40 | 42..=46 | 48 | 49 | 51 | 116))
    }

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
            Self::LacksCertificate => 12,
            Self::Internal => 13,
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
            Self::Alert(alert) => {
                let name = alert_name(*alert).unwrap_or("which is not registered");
                return write!(f, "it refused with the TLS alert {alert} ({name})");
            }
            Self::Incompatible => "it has no TLS version, cipher suite or protocol in common",
            Self::NotTls => "it does not speak TLS",
            Self::Ended => "it ended the connection during the TLS handshake",
            Self::GivenUp => "the TLS handshake took too long",
            Self::LacksCertificate => "no certificate is for the name that it asked for",
            Self::Internal => "the TLS handshake failed",
        })
    }
}

/// The reason why a TLS session failed after its handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionFailure {
    /// The peer ended its stream without close_notify, and before we ended our stream. Its data may
    /// be incomplete; many clients just end this way.
    Truncated,
    /// The peer ended the session with this fatal alert.
    PeerAlert(u8),
    /// A record could not be authenticated: it was changed in transit, or belongs to another
    /// session.
    BadRecordMac,
    /// A record was longer than allowed.
    RecordOverflow,
    /// A record or a message came that the protocol forbids at this time, or too many that carry
    /// no data.
    UnexpectedMessage,
    /// A field of a message was out of range.
    IllegalParameter,
    /// A record or a message could not be decoded.
    DecodeError,
    /// An error of our own, or keys that have protected as much as they may.
    Internal,
}

impl SessionFailure {
    /// The label of each cause in metrics; [`SessionFailure::index`] is the place in it.
    pub const LABELS: [&str; 8] = [
        "truncated",
        "peer_alert",
        "bad_record_mac",
        "record_overflow",
        "unexpected_message",
        "illegal_parameter",
        "decode_error",
        "internal",
    ];

    /// Returns the place in [`SessionFailure::LABELS`].
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Truncated => 0,
            Self::PeerAlert(_) => 1,
            Self::BadRecordMac => 2,
            Self::RecordOverflow => 3,
            Self::UnexpectedMessage => 4,
            Self::IllegalParameter => 5,
            Self::DecodeError => 6,
            Self::Internal => 7,
        }
    }
}

impl std::fmt::Display for SessionFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Truncated => "it ended its stream without close_notify",
            Self::PeerAlert(alert) => {
                let name = alert_name(*alert).unwrap_or("which is not registered");
                return write!(f, "it ended the session with the TLS alert {alert} ({name})");
            }
            Self::BadRecordMac => "a record that it sent could not be authenticated",
            Self::RecordOverflow => "it sent a record that is too long",
            Self::UnexpectedMessage => "it sent a record that TLS forbids at this time",
            Self::IllegalParameter => "it sent a message with an illegal parameter",
            Self::DecodeError => "it sent a record or a message that cannot be decoded",
            Self::Internal => "the session's keys cannot be used any more",
        })
    }
}

/// Returns the registered name of an alert (RFC 8446 section 6, and RFC 5246 section 7.2 for alerts
/// that TLS 1.3 does not have).
#[must_use]
pub fn alert_name(alert: u8) -> Option<&'static str> {
    Some(match alert {
        0 => "close_notify",
        10 => "unexpected_message",
        20 => "bad_record_mac",
        21 => "decryption_failed",
        22 => "record_overflow",
        30 => "decompression_failure",
        40 => "handshake_failure",
        41 => "no_certificate",
        42 => "bad_certificate",
        43 => "unsupported_certificate",
        44 => "certificate_revoked",
        45 => "certificate_expired",
        46 => "certificate_unknown",
        47 => "illegal_parameter",
        48 => "unknown_ca",
        49 => "access_denied",
        50 => "decode_error",
        51 => "decrypt_error",
        60 => "export_restriction",
        70 => "protocol_version",
        71 => "insufficient_security",
        80 => "internal_error",
        86 => "inappropriate_fallback",
        90 => "user_canceled",
        100 => "no_renegotiation",
        109 => "missing_extension",
        110 => "unsupported_extension",
        111 => "certificate_unobtainable",
        112 => "unrecognized_name",
        113 => "bad_certificate_status_response",
        114 => "bad_certificate_hash_value",
        115 => "unknown_psk_identity",
        116 => "certificate_required",
        120 => "no_application_protocol",
        121 => "ech_required",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_is_shown_with_its_name() {
        let text = TlsFailure::Alert(46).to_string();
        assert_eq!(text, "it refused with the TLS alert 46 (certificate_unknown)");
        let text = TlsFailure::Alert(255).to_string();
        assert_eq!(text, "it refused with the TLS alert 255 (which is not registered)");
        let text = SessionFailure::PeerAlert(46).to_string();
        assert_eq!(text, "it ended the session with the TLS alert 46 (certificate_unknown)");
    }
}
