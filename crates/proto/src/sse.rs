//! Server-sent events: the text format that a browser's `EventSource` reads.
//!
//! WHATWG HTML section 9.2: an event is a sequence of `field: value` lines up to an empty one; CR,
//! LF and CRLF all end a line.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A comment, which readers ignore: keeps proxies from closing a silent stream.
pub const COMMENT: &[u8] = b":\n\n";

/// Appends one message: text as its lines, anything else as an event of type `binary` in base64.
pub fn encode(text: bool, payload: &[u8], out: &mut Vec<u8>) {
    if !text {
        out.extend_from_slice(b"event: binary\ndata: ");
        out.extend_from_slice(STANDARD.encode(payload).as_bytes());
        out.extend_from_slice(b"\n\n");
        return;
    }
    let mut rest = payload;
    loop {
        let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        out.extend_from_slice(b"data: ");
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
    use super::*;

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
