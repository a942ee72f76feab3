//! Encodes frames, appending to a buffer.

use throng_simd::{frame, mask};

use super::{Opcode, close, encode_header};

/// Appends one unmasked frame, a whole message or a control frame, as a server sends it.
///
/// A control frame's payload must have at most 125 bytes and text must be UTF-8, or the peer fails
/// the connection. Neither is checked here.
#[inline]
pub fn encode(opcode: Opcode, payload: &[u8], out: &mut Vec<u8>) {
    let len = payload.len();
    if len < 126 {
        // Nearly every message; a header of constant size costs half of one whose size must be
        // computed.
        return frame::append([0x80 | opcode as u8, len as u8], payload, out);
    }
    if let Ok(len) = u16::try_from(len) {
        let [high, low] = len.to_be_bytes();
        return frame::append([0x80 | opcode as u8, 126, high, low], payload, out);
    }
    encode_long(opcode, payload, out);
}

/// Out of line: messages without a header of constant size are so long that a call does not matter.
#[inline(never)]
fn encode_long(opcode: Opcode, payload: &[u8], out: &mut Vec<u8>) {
    let len = payload.len();
    out.reserve(len + 10);
    out.extend_from_slice(&encode_header(opcode, true, len as u64, None));
    out.extend_from_slice(payload);
}

/// Appends one frame masked with `key`, as a client sends it; otherwise like [`encode`].
///
/// The key should be new for each frame and unpredictable
/// ([RFC 6455 section 5.3](https://www.rfc-editor.org/rfc/rfc6455#section-5.3)).
#[inline]
pub fn encode_masked(opcode: Opcode, payload: &[u8], key: [u8; 4], out: &mut Vec<u8>) {
    out.reserve(payload.len() + 14);
    out.extend_from_slice(&encode_header(opcode, true, payload.len() as u64, Some(key)));
    mask::append(payload, key, out);
}

/// Appends one frame with a whole compressed message
/// ([RFC 7692 section 6.1](https://www.rfc-editor.org/rfc/rfc7692#section-6.1)).
///
/// `deflated` is the output of a [`Deflater`](super::deflate::Deflater). A client must mask it.
#[inline]
pub fn encode_deflated(text: bool, deflated: &[u8], mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    let opcode = if text { Opcode::Text } else { Opcode::Binary };
    let head = encode_header(opcode, true, deflated.len() as u64, mask).deflated();
    out.reserve(head.len() + deflated.len());
    out.extend_from_slice(&head);
    match mask {
        Some(key) => mask::append(deflated, key, out),
        None => out.extend_from_slice(deflated),
    }
}

/// Appends a close frame. `reason` is truncated at a character boundary to at most 123 bytes.
///
/// A `code` that must not be sent, such as 1005 ("no status received"), becomes an empty close
/// frame, which has that meaning.
pub fn encode_close(code: u16, reason: &str, mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    let mut payload = [0; 125];
    let mut len = 0;
    if close::is_sendable_close_code(code) {
        let reason = &reason.as_bytes()[..reason.floor_char_boundary(123)];
        payload[..2].copy_from_slice(&code.to_be_bytes());
        payload[2..2 + reason.len()].copy_from_slice(reason);
        len = 2 + reason.len();
    }
    match mask {
        Some(key) => encode_masked(Opcode::Close, &payload[..len], key, out),
        None => encode(Opcode::Close, &payload[..len], out),
    }
}
