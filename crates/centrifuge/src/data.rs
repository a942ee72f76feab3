//! Payloads: JSON values in JSON, bytes in Protobuf.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::de::{Deserializer, IgnoredAny};
use serde::ser::{Error as _, Serializer};
use serde::{Deserialize as _, Serialize as _};
use serde_json::value::RawValue;

/// Appends a payload as a JSON value without line breaks, which separate the messages of a frame:
/// JSON as it is, other text as a string, other bytes as a string of base64.
pub(crate) fn write_json(payload: &[u8], out: &mut Vec<u8>) {
    if serde_json::from_slice::<IgnoredAny>(payload).is_ok() {
        // A line break in JSON is white space: in a string it is escaped.
        let start = out.len();
        out.extend_from_slice(payload);
        for byte in &mut out[start..] {
            if matches!(byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        return;
    }
    match std::str::from_utf8(payload) {
        Ok(text) => write_string(text, out),
        Err(_) => write_string(&BASE64_STANDARD.encode(payload), out),
    }
}

/// Appends a text as a JSON string.
pub(crate) fn write_string(text: &str, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = serde_json::to_writer(out, text);
}

/// Returns a payload as JSON.
pub(crate) fn to_json(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len());
    write_json(payload, &mut out);
    out
}

/// Reads any JSON value as a payload.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let value = Box::<RawValue>::deserialize(from)?;
    Ok(Box::<str>::from(value).into_string().into_bytes())
}

/// Writes a payload as a JSON value.
pub(crate) fn serialize<S: Serializer>(payload: &[u8], to: S) -> Result<S::Ok, S::Error> {
    let json = String::from_utf8(to_json(payload)).map_err(S::Error::custom)?;
    RawValue::from_string(json).map_err(S::Error::custom)?.serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_payload_is_one_line_of_json() {
        for (payload, expected) in [
            (&b"{\"a\": 1}"[..], "{\"a\": 1}"),
            (b"{\n\"a\":\r\n[1]}", "{ \"a\":  [1]}"),
            (b"12", "12"),
            (b"null", "null"),
            (b"", "\"\""),
            (b"hello", "\"hello\""),
            (b"two\nlines \"quoted\"", "\"two\\nlines \\\"quoted\\\"\""),
            (b"{\"a\":1} {\"b\":2}", "\"{\\\"a\\\":1} {\\\"b\\\":2}\""),
            (&[0xff, 0xfe], "\"//4=\""),
            ("\"\u{2028}\"".as_bytes(), "\"\u{2028}\""),
        ] {
            let json = to_json(payload);
            assert_eq!(String::from_utf8_lossy(&json), expected);
            serde_json::from_slice::<serde_json::Value>(&json).unwrap();
        }
    }
}
