//! Server-sent events: the text format that a browser's `EventSource` reads.
//!
//! WHATWG HTML section 9.2: an event is a sequence of `field: value` lines up to an empty one; CR,
//! LF and CRLF all end a line.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A comment, which readers ignore: keeps proxies from closing a silent stream.
pub const COMMENT: &[u8] = b":\n\n";

const BINARY: &[u8] = b"event: binary\ndata: ";
const DATA: &[u8] = b"data: ";

/// Returns how many bytes [`encode`] appends for a message: at most 7 for each of its own and 8
/// more, since an empty line is a byte of a text and seven of its event.
#[must_use]
pub fn encoded_len(text: bool, payload: &[u8]) -> usize {
    if !text {
        return BINARY.len() + payload.len().div_ceil(3) * 4 + 2;
    }
    let ends = payload.iter().filter(|byte| matches!(byte, b'\r' | b'\n')).count();
    let pairs = payload.windows(2).filter(|pair| *pair == b"\r\n").count();
    let lines = ends - pairs + 1;
    payload.len() - ends + lines * (DATA.len() + 1) + 1
}

/// Appends one message: text as its lines, anything else as an event of type `binary` in base64.
pub fn encode(text: bool, payload: &[u8], out: &mut Vec<u8>) {
    out.reserve(encoded_len(text, payload));
    if !text {
        out.extend_from_slice(BINARY);
        let start = out.len();
        out.resize(start + payload.len().div_ceil(3) * 4, 0);
        // It has exactly the room that it needs.
        let _ = STANDARD.encode_slice(payload, &mut out[start..]);
        out.extend_from_slice(b"\n\n");
        return;
    }
    let mut rest = payload;
    loop {
        let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        out.extend_from_slice(DATA);
        out.extend_from_slice(&rest[..end.unwrap_or(rest.len())]);
        out.push(b'\n');
        let Some(end) = end else { break };
        let width = if rest[end..].starts_with(b"\r\n") { 2 } else { 1 };
        rest = &rest[end + width..];
    }
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The bound that SECURITY.md's figures rest on, and the length that is reserved.
        #[test]
        fn an_event_is_as_long_as_was_said_and_at_most_seven_times_its_message(
            text: bool,
            payload in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..200),
                proptest::collection::vec(proptest::sample::select(&b"\r\nx"[..]), 0..200),
            ],
        ) {
            let mut out = Vec::new();
            encode(text, &payload, &mut out);
            prop_assert_eq!(out.len(), encoded_len(text, &payload));
            let most = if text { 7 * payload.len() + 8 } else { payload.len() * 4 / 3 + 64 };
            prop_assert!(out.len() <= most);
        }
    }

    #[test]
    fn every_line_is_a_field_and_nothing_ends_an_event_early() {
        for (text, payload, event) in [
            (true, "hello", "data: hello\n\n"),
            (true, "", "data: \n\n"),
            (true, "a\nb", "data: a\ndata: b\n\n"),
            (true, "a\r\nb\rc\n", "data: a\ndata: b\ndata: c\ndata: \n\n"),
            (true, "\n\nid: 1\nretry: 0", "data: \ndata: \ndata: id: 1\ndata: retry: 0\n\n"),
            (false, "\0\u{1}", "event: binary\ndata: AAE=\n\n"),
        ] {
            let mut out = Vec::new();
            encode(text, payload.as_bytes(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), event, "{payload:?}");
        }
    }
}
