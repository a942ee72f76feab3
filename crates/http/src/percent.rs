//! Percent-encoding of paths
//! ([RFC 3986 section 2.1](https://www.rfc-editor.org/rfc/rfc3986#section-2.1)) and of queries
//! (WHATWG URL section 5.1).

use std::borrow::Cow;
use std::fmt;

/// Invalid percent-encoding: a `%` without two hexadecimal digits, or a decoded path that is not
/// UTF-8 or contains a NUL: 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadEncoding;

impl fmt::Display for BadEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the path's percent-encoding is invalid, or stands for a NUL or for no UTF-8 text",
        )
    }
}

impl std::error::Error for BadEncoding {}

/// Decodes a path or a part of one. Borrows if nothing is encoded. `+` stays `+`.
///
/// # Errors
///
/// [`BadEncoding`]: strict, because a path determines the served resource.
pub fn decode_path(text: &str) -> Result<Cow<'_, str>, BadEncoding> {
    if !text.contains('%') {
        return Ok(Cow::Borrowed(text));
    }
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let (high, low) = (bytes.next(), bytes.next());
                hex_pair(high, low).filter(|byte| *byte != 0).ok_or(BadEncoding)?
            }
            byte => byte,
        });
    }
    String::from_utf8(decoded).map(Cow::Owned).map_err(|_| BadEncoding)
}

/// Decodes a name or value of a query. `+` is a space; an invalid encoding stands for itself and
/// bytes that are not UTF-8 become U+FFFD, as in every browser, so this cannot fail.
#[must_use]
pub fn decode_query(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at += 1;
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => match hex_pair(bytes.get(at).copied(), bytes.get(at + 1).copied()) {
                Some(byte) => {
                    at += 2;
                    byte
                }
                None => b'%',
            },
            byte => *byte,
        });
    }
    let text = String::from_utf8(decoded);
    Cow::Owned(text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Returns the pairs of a query string, still encoded: `a=1&b` gives `("a", "1")` and `("b", "")`.
pub fn query_pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Returns the decoded value of the first pair called `name`. Borrows if its value is not encoded.
#[must_use]
pub fn query_value<'q>(query: &'q str, name: &str) -> Option<Cow<'q, str>> {
    query_pairs(query)
        .find(|(key, _)| *key == name || decode_query(key) == name)
        .map(|(_, value)| decode_query(value))
}

/// Returns the bytes of a part of a path, decoded one by one; an invalid encoding stands for
/// itself.
pub fn decoded_bytes(text: &str) -> impl Iterator<Item = u8> {
    let mut rest = text.as_bytes();
    std::iter::from_fn(move || {
        let (&first, after) = rest.split_first()?;
        rest = after;
        if first == b'%'
            && let [high, low, after @ ..] = after
            && let Some(byte) = hex_pair(Some(*high), Some(*low))
        {
            rest = after;
            return Some(byte);
        }
        Some(first)
    })
}

/// Returns whether [`decode_path`] accepts a path or a part of one. Does not allocate.
pub(crate) fn is_valid_path(text: &str) -> bool {
    let has_digits = text.split('%').skip(1).all(|after| {
        let mut bytes = after.bytes();
        hex_pair(bytes.next(), bytes.next()).is_some_and(|byte| byte != 0)
    });
    has_digits && is_utf8(decoded_bytes(text))
}

/// Returns whether bytes are UTF-8, one character at a time.
fn is_utf8(mut bytes: impl Iterator<Item = u8>) -> bool {
    let mut character = [0; 4];
    while let Some(first) = bytes.next() {
        let length = match first {
            0..0x80 => continue,
            0xc0..0xe0 => 2,
            0xe0..0xf0 => 3,
            _ => 4,
        };
        character[0] = first;
        for byte in &mut character[1..length] {
            let Some(next) = bytes.next() else { return false };
            *byte = next;
        }
        if str::from_utf8(&character[..length]).is_err() {
            return false;
        }
    }
    true
}

fn hex_pair(high: Option<u8>, low: Option<u8>) -> Option<u8> {
    let digit = |byte: Option<u8>| (byte? as char).to_digit(16);
    // Two hexadecimal digits are a byte.
    Some((digit(high)? << 4 | digit(low)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_are_decoded_strictly() {
        for (text, expected) in [
            ("plain", Ok("plain")),
            ("a%20b", Ok("a b")),
            ("%e4%bd%A0", Ok("你")),
            ("a+b", Ok("a+b")),
            ("%2F..%2f", Ok("/../")),
            ("%", Err(BadEncoding)),
            ("%4", Err(BadEncoding)),
            ("%zz", Err(BadEncoding)),
            ("%+1", Err(BadEncoding)),
            ("%ff", Err(BadEncoding)),
            ("%00", Err(BadEncoding)),
            ("%c0%af", Err(BadEncoding)),
        ] {
            assert_eq!(decode_path(text).as_deref(), expected.as_ref().copied(), "{text}");
        }
    }

    proptest! {
        /// Both ways accept the same texts, and decode them to the same bytes.
        #[test]
        fn paths_are_decoded_alike_with_and_without_memory(
            text in "([a-z/]|é|€|𝄞|%[0-9a-fA-F]{2}|%C3%A9|%E2%82%AC|%F0%9D%84%9E|%|%[g-z]){0,12}"
        ) {
            let decoded = decode_path(&text);
            prop_assert_eq!(is_valid_path(&text), decoded.is_ok());
            if let Ok(decoded) = decoded {
                prop_assert!(decoded_bytes(&text).eq(decoded.bytes()));
            }
        }
    }

    #[test]
    fn queries_are_decoded_as_browsers_do() {
        for (query, name, expected) in [
            ("a=1&b=2", "b", Some("2")),
            ("a=1&a=2", "a", Some("1")),
            ("a", "a", Some("")),
            ("a=b=c", "a", Some("b=c")),
            ("&&a=1", "a", Some("1")),
            ("na%6De=x+y%21", "name", Some("x y!")),
            ("a=100%", "a", Some("100%")),
            ("a=%zz%4", "a", Some("%zz%4")),
            ("a=%ff", "a", Some("\u{fffd}")),
            ("", "a", None),
            ("ab=1", "a", None),
        ] {
            assert_eq!(query_value(query, name).as_deref(), expected, "{query}");
        }
    }
}
