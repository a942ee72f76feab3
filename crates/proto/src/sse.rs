//! Server-sent events: the text format that a browser's `EventSource` reads.
//!
//! WHATWG HTML section 9.2: an event is a sequence of `field: value` lines up to an empty one; CR,
//! LF and CRLF all end a line.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A comment, which readers ignore: keeps proxies from closing a silent stream.
pub const COMMENT: &[u8] = b":\n\n";

const ID: &str = "id: ";
const NAME: &str = "event: ";
const BINARY: &str = "binary";
const DATA: &[u8] = b"data: ";

/// Fields of an event besides its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    id: Option<Box<str>>,
    name: Option<Box<str>>,
}

impl Fields {
    /// Returns the memory of both.
    #[must_use]
    pub fn memory(&self) -> usize {
        let both = [&self.id, &self.name].into_iter().flatten();
        size_of::<Self>() + both.map(|text| text.len()).sum::<usize>()
    }

    /// Sets the id, which a browser that reconnects sends as `Last-Event-ID`.
    pub fn set_id(&mut self, id: &str) {
        self.id = Some(one_line(id));
    }

    /// Sets the event's type; without one it is `message`, or `binary`.
    pub fn set_name(&mut self, name: &str) {
        self.name = Some(one_line(name));
    }

    /// Returns the id.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns the event's type.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The lines of these fields.
    fn lines(&self, text: bool) -> impl Iterator<Item = (&'static str, &str)> {
        let name = self.name.as_deref().or((!text).then_some(BINARY));
        let id = self.id.as_deref().map(|id| (ID, id));
        id.into_iter().chain(name.map(|name| (NAME, name)))
    }
}

/// A message that can be sent as an event: a text, or a frame.
pub trait ToEvent {
    /// Appends the event.
    fn encode_event(&self, out: &mut Vec<u8>);
}

impl<T: AsRef<str>> ToEvent for T {
    fn encode_event(&self, out: &mut Vec<u8>) {
        encode(&Fields::default(), true, self.as_ref().as_bytes(), out);
    }
}

/// Returns the text without the characters that would end its line, or make an id invalid.
fn one_line(text: &str) -> Box<str> {
    text.chars().filter(|c| !matches!(c, '\r' | '\n' | '\0')).collect::<String>().into()
}

/// Appends the time after which a reader reconnects if its connection is lost.
pub fn encode_retry(after: Duration, out: &mut Vec<u8>) {
    let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
    out.extend_from_slice(format!("retry: {millis}\n\n").as_bytes());
}

/// Returns how many bytes [`encode`] appends for a message: at most 7 for each of its own and 8
/// more, since an empty line is a byte of a text and seven of its event, besides the fields.
#[must_use]
pub fn encoded_len(fields: &Fields, text: bool, payload: &[u8]) -> usize {
    let fields = fields.lines(text).map(|(field, value)| field.len() + value.len() + 1);
    fields.sum::<usize>() + data_len(text, payload)
}

fn data_len(text: bool, payload: &[u8]) -> usize {
    if !text {
        return DATA.len() + payload.len().div_ceil(3) * 4 + 2;
    }
    let ends = payload.iter().filter(|byte| matches!(byte, b'\r' | b'\n')).count();
    let pairs = payload.windows(2).filter(|pair| *pair == b"\r\n").count();
    let lines = ends - pairs + 1;
    payload.len() - ends + lines * (DATA.len() + 1) + 1
}

/// Appends one message: text as its lines, anything else as an event of type `binary` in base64.
pub fn encode(fields: &Fields, text: bool, payload: &[u8], out: &mut Vec<u8>) {
    out.reserve(encoded_len(fields, text, payload));
    for (field, value) in fields.lines(text) {
        out.extend_from_slice(field.as_bytes());
        out.extend_from_slice(value.as_bytes());
        out.push(b'\n');
    }
    if !text {
        out.extend_from_slice(DATA);
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
        /// Tests the bound behind the figures in SECURITY.md, and the reserved length.
        #[test]
        fn an_event_is_as_long_as_was_said_and_at_most_seven_times_its_message(
            text: bool,
            payload in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..200),
                proptest::collection::vec(proptest::sample::select(&b"\r\nx"[..]), 0..200),
            ],
        ) {
            let mut out = Vec::new();
            let fields = Fields::default();
            encode(&fields, text, &payload, &mut out);
            prop_assert_eq!(out.len(), encoded_len(&fields, text, &payload));
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
            encode(&Fields::default(), text, payload.as_bytes(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), event, "{payload:?}");
        }
    }

    #[test]
    fn an_event_has_its_id_and_name_on_one_line_each() {
        let mut fields = Fields::default();
        fields.set_id("7\r\ndata: forged\0");
        fields.set_name("price\n\n");
        for (text, event) in [
            (true, "id: 7data: forged\nevent: price\ndata: x\n\n"),
            (false, "id: 7data: forged\nevent: price\ndata: eA==\n\n"),
        ] {
            let mut out = Vec::new();
            encode(&fields, text, b"x", &mut out);
            assert_eq!(out.len(), encoded_len(&fields, text, b"x"));
            assert_eq!(String::from_utf8(out).unwrap(), event);
        }
        let mut out = Vec::new();
        encode_retry(Duration::from_secs(3), &mut out);
        assert_eq!(out, b"retry: 3000\n\n");
    }
}
