//! The end of a session, and the payload of a close frame,
//! [RFC 6455 section 5.5.1](https://www.rfc-editor.org/rfc/rfc6455#section-5.5.1) and
//! [RFC 6455 section 7.4](https://www.rfc-editor.org/rfc/rfc6455#section-7.4).

use std::fmt;

use throng_simd::utf8;

use super::ProtocolError;

/// A close code ([RFC 6455 section 7.4](https://www.rfc-editor.org/rfc/rfc6455#section-7.4), and
/// the registry of IANA).
///
/// ```
/// # use throng_proto::ws as throng;
/// use throng::CloseCode;
///
/// let code = CloseCode::from(1001);
/// assert_eq!(code, CloseCode::GOING_AWAY);
/// assert_eq!(code.to_string(), "1001 (going away)");
/// assert!(code == 1001 && code.is_sendable());
/// assert!(!CloseCode::ABNORMAL.is_sendable());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CloseCode(u16);

impl CloseCode {
    /// 1000: the purpose of the connection has been fulfilled.
    pub const NORMAL: Self = Self(1000);
    /// 1001: the server is going down, or the browser has left the page.
    pub const GOING_AWAY: Self = Self(1001);
    /// 1002: the peer violated the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// 1003: a kind of data that the endpoint does not accept, such as binary messages.
    pub const UNSUPPORTED_DATA: Self = Self(1003);
    /// 1005: the Close frame had no code. Never sent.
    pub const NO_STATUS: Self = Self(1005);
    /// 1006: the connection ended without a Close frame. Never sent.
    pub const ABNORMAL: Self = Self(1006);
    /// 1007: data that contradicts its type, such as text that is not UTF-8.
    pub const INVALID_PAYLOAD: Self = Self(1007);
    /// 1008: a message that violates the endpoint's policy, or a client that is too slow.
    pub const POLICY_VIOLATION: Self = Self(1008);
    /// 1009: a message that is too large.
    pub const MESSAGE_TOO_BIG: Self = Self(1009);
    /// 1010: the client misses an extension that it needs.
    pub const MANDATORY_EXTENSION: Self = Self(1010);
    /// 1011: an error in the server, such as a panic of a handler.
    pub const INTERNAL_ERROR: Self = Self(1011);
    /// 1012: the server restarts; reconnect.
    pub const SERVICE_RESTART: Self = Self(1012);
    /// 1013: the server is busy; reconnect later.
    pub const TRY_AGAIN_LATER: Self = Self(1013);
    /// 1014: a gateway got an invalid answer from its upstream server.
    pub const BAD_GATEWAY: Self = Self(1014);
    /// 1015: the TLS handshake failed. Never sent.
    pub const TLS_HANDSHAKE: Self = Self(1015);

    /// Creates a code; 4000 to 4999 are for applications.
    #[must_use]
    pub const fn new(code: u16) -> Self {
        Self(code)
    }

    /// Returns the code as a number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Returns whether the code may appear in a Close frame: 1000 to 1003 and 1007 to 1014, or 3000
    /// to 4999, which belong to libraries and applications.
    #[must_use]
    pub const fn is_sendable(self) -> bool {
        is_sendable_close_code(self.0)
    }

    /// Returns the meaning of the code; empty for application codes and unregistered codes.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self.0 {
            1000 => "normal closure",
            1001 => "going away",
            1002 => "protocol error",
            1003 => "unsupported data",
            1005 => "no status received",
            1006 => "abnormal closure",
            1007 => "invalid payload",
            1008 => "policy violation",
            1009 => "message too big",
            1010 => "mandatory extension",
            1011 => "internal error",
            1012 => "service restart",
            1013 => "try again later",
            1014 => "bad gateway",
            1015 => "TLS handshake failed",
            _ => "",
        }
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning() {
            "" => write!(f, "{}", self.0),
            meaning => write!(f, "{} ({meaning})", self.0),
        }
    }
}

impl fmt::Debug for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CloseCode({})", self.0)
    }
}

impl From<u16> for CloseCode {
    fn from(code: u16) -> Self {
        Self(code)
    }
}

impl From<CloseCode> for u16 {
    fn from(code: CloseCode) -> Self {
        code.0
    }
}

impl PartialEq<u16> for CloseCode {
    fn eq(&self, code: &u16) -> bool {
        self.0 == *code
    }
}

/// The end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Close<'a> {
    /// The close code (RFC 6455 section 7.4): the peer's if the peer closed first, otherwise the
    /// code sent by this side; 1005 if a Close frame had no code, 1006 if the connection ended
    /// without a closing handshake.
    pub code: CloseCode,
    /// The reason that came with the code; usually empty.
    pub reason: &'a str,
}

impl<'a> Close<'a> {
    /// Creates the end of a session with this code and reason.
    #[must_use]
    pub const fn new(code: CloseCode, reason: &'a str) -> Self {
        Self { code, reason }
    }
}

impl Close<'static> {
    /// The end of a connection without a closing handshake.
    pub const ABNORMAL: Self = Self::new(CloseCode::ABNORMAL, "");
}

/// The peer's reason for closing, from its close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseReason<'a> {
    /// The status code ([RFC 6455 section
    /// 7.4](https://www.rfc-editor.org/rfc/rfc6455#section-7.4)), which is valid in a Close frame.
    pub code: u16,
    /// Text for people and logs, at most 123 bytes, often empty.
    pub reason: &'a str,
}

/// Returns whether `code` may appear in a close frame
/// ([RFC 6455 section 7.4](https://www.rfc-editor.org/rfc/rfc6455#section-7.4)): 1000-1003,
/// 1007-1014 (1012-1014 by IANA's registry), and 3000-4999, which belong to libraries and
/// applications.
///
/// 1004 is reserved; 1005, 1006 and 1015 describe the absence of a close frame.
#[must_use]
pub const fn is_sendable_close_code(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

/// Decodes the (unmasked) payload of a close frame; `None` if it is empty.
pub(super) fn decode(payload: &[u8]) -> Result<Option<CloseReason<'_>>, ProtocolError> {
    let (code, reason) = match payload {
        [] => return Ok(None),
        [_] => return Err(ProtocolError::ShortClose),
        [high, low, reason @ ..] => (u16::from_be_bytes([*high, *low]), reason),
    };
    if !is_sendable_close_code(code) {
        return Err(ProtocolError::InvalidCloseCode(code));
    }
    let reason = utf8::check(reason).ok_or(ProtocolError::InvalidCloseReason)?;
    Ok(Some(CloseReason { code, reason }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc6455_7_4_codes_that_may_be_sent() {
        let sendable: Vec<u16> =
            (0..=u16::MAX).filter(|code| is_sendable_close_code(*code)).collect();
        let mut expected = vec![1000, 1001, 1002, 1003];
        expected.extend(1007..=1014);
        expected.extend(3000..=4999);
        assert_eq!(sendable, expected);
    }

    #[test]
    fn rfc6455_7_4_1_codes_have_names_and_convert_to_numbers_and_back() {
        for (code, number, text) in [
            (CloseCode::NORMAL, 1000, "1000 (normal closure)"),
            (CloseCode::ABNORMAL, 1006, "1006 (abnormal closure)"),
            (CloseCode::TRY_AGAIN_LATER, 1013, "1013 (try again later)"),
            (CloseCode::new(4001), 4001, "4001"),
        ] {
            assert_eq!((u16::from(code), CloseCode::from(number)), (number, code));
            assert_eq!((code == number, code.to_string().as_str()), (true, text));
            assert_eq!(code.is_sendable(), is_sendable_close_code(number));
        }
        assert_eq!(format!("{:?}", CloseCode::GOING_AWAY), "CloseCode(1001)");
    }

    #[test]
    fn rfc6455_5_5_1_payload_is_nothing_or_code_and_reason() {
        assert_eq!(decode(b""), Ok(None));
        assert_eq!(decode(b"\x03"), Err(ProtocolError::ShortClose));
        assert_eq!(decode(b"\x03\xe8"), Ok(Some(CloseReason { code: 1000, reason: "" })));
        assert_eq!(decode(b"\x03\xe9bye"), Ok(Some(CloseReason { code: 1001, reason: "bye" })));
        assert_eq!(decode(b"\x03\xee"), Err(ProtocolError::InvalidCloseCode(1006)));
        assert_eq!(decode(b"\x03\xe8\xce"), Err(ProtocolError::InvalidCloseReason));
    }
}
