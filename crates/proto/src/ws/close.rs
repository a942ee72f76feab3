//! The payload of a close frame,
//! [RFC 6455 section 5.5.1](https://www.rfc-editor.org/rfc/rfc6455#section-5.5.1) and
//! [RFC 6455 section 7.4](https://www.rfc-editor.org/rfc/rfc6455#section-7.4).

use throng_simd::utf8;

use super::ProtocolError;

/// The peer's reason for closing, from its close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseReason<'a> {
    /// The status code
    /// ([RFC 6455 section 7.4](https://www.rfc-editor.org/rfc/rfc6455#section-7.4));
    /// [`is_sendable_close_code`] returns true for it.
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
    fn rfc6455_5_5_1_payload_is_nothing_or_code_and_reason() {
        assert_eq!(decode(b""), Ok(None));
        assert_eq!(decode(b"\x03"), Err(ProtocolError::ShortClose));
        assert_eq!(decode(b"\x03\xe8"), Ok(Some(CloseReason { code: 1000, reason: "" })));
        assert_eq!(decode(b"\x03\xe9bye"), Ok(Some(CloseReason { code: 1001, reason: "bye" })));
        assert_eq!(decode(b"\x03\xee"), Err(ProtocolError::InvalidCloseCode(1006)));
        assert_eq!(decode(b"\x03\xe8\xce"), Err(ProtocolError::InvalidCloseReason));
    }
}
