//! A buffer that joins the chunks of one message.

use std::fmt;

use crate::mask;

/// A byte that cannot continue the UTF-8 sequence before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenUtf8;

impl fmt::Display for BrokenUtf8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a byte that breaks UTF-8")
    }
}

impl std::error::Error for BrokenUtf8 {}

/// The chunks of one message, joined in one allocation and unmasked while appending.
///
/// Text is validated as it arrives. A byte that no continuation can make valid is refused by the
/// push that contains it, a sequence split at the end of a chunk waits for the next one, and
/// [`JoinBuffer::as_str`] costs nothing.
#[derive(Clone, Debug, Default)]
pub struct JoinBuffer {
    bytes: Vec<u8>,
    /// Invariant: `bytes[..checked]` is UTF-8, and only `clear` shortens `bytes`.
    checked: usize,
}

impl JoinBuffer {
    /// Creates an empty buffer; allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), checked: 0 }
    }

    /// Returns the number of bytes joined so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the buffer is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the number of bytes allocated.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Reserves capacity for exactly `additional` more bytes, not for more as a `Vec`'s growth
    /// does.
    pub fn reserve(&mut self, additional: usize) {
        self.bytes.reserve_exact(additional);
    }

    /// Appends `chunk`, unmasked if there is a key; `key[0]` applies to its first byte. Not
    /// validated as text.
    pub fn push(&mut self, chunk: &[u8], key: Option<[u8; 4]>) {
        match key {
            Some(key) => mask::append(chunk, key, &mut self.bytes),
            None => self.bytes.extend_from_slice(chunk),
        }
    }

    /// Appends like [`JoinBuffer::push`], and validates all bytes that were not validated before.
    ///
    /// # Errors
    /// A byte can never belong to UTF-8, regardless of the bytes after it. The buffer must then be
    /// [cleared](JoinBuffer::clear).
    pub fn push_text(&mut self, chunk: &[u8], key: Option<[u8; 4]>) -> Result<(), BrokenUtf8> {
        let start = self.bytes.len();
        let ascii = match key {
            Some(key) => mask::append_to_ascii(chunk, key, &mut self.bytes),
            None => {
                self.bytes.extend_from_slice(chunk);
                chunk.is_ascii()
            }
        };
        if ascii && self.checked == start {
            self.checked = self.bytes.len();
            return Ok(());
        }
        self.check_rest()
    }

    fn check_rest(&mut self) -> Result<(), BrokenUtf8> {
        match simdutf8::compat::from_utf8(&self.bytes[self.checked..]) {
            Ok(_) => self.checked = self.bytes.len(),
            // Split inside a sequence that is valid so far: std and simdutf8 guarantee that a
            // sequence without `error_len` could be completed.
            Err(error) if error.error_len().is_none() => self.checked += error.valid_up_to(),
            Err(_) => return Err(BrokenUtf8),
        }
        Ok(())
    }

    /// Returns the joined bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the joined text, if all of it was pushed as text and no sequence is incomplete at
    /// the end.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        if self.checked != self.bytes.len() {
            return None;
        }
        // SAFETY: by the invariant of `checked`, which is the whole length here.
        Some(unsafe { str::from_utf8_unchecked(&self.bytes) })
    }

    /// Clears the content and keeps the allocation.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.checked = 0;
    }
}

impl AsRef<[u8]> for JoinBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Option<[u8; 4]> = Some([0x37, 0xfa, 0x21, 0x3d]);

    /// Pushes byte by byte; returns where it is refused, or whether the whole is text.
    fn byte_by_byte(bytes: &[u8], key: Option<[u8; 4]>) -> Result<bool, usize> {
        let mut joined = JoinBuffer::new();
        for (at, byte) in bytes.iter().enumerate() {
            let key = key.map(|key| mask::rotate(key, at));
            let masked = byte ^ key.map_or(0, |key| key[0]);
            joined.push_text(&[masked], key).map_err(|BrokenUtf8| at)?;
        }
        assert_eq!(joined.as_bytes(), bytes);
        Ok(joined.as_str().is_some())
    }

    /// Computes the expected result by RFC 3629, using std: a byte breaks the sequence if no
    /// continuation makes the bytes up to it valid text.
    fn oracle(bytes: &[u8]) -> Result<bool, usize> {
        let can_go_on = |end: usize| match str::from_utf8(&bytes[..end]) {
            Ok(_) => true,
            Err(error) => {
                let start = &bytes[error.valid_up_to()..end];
                [&[][..], &[0x80], &[0xbf], &[0x80; 2], &[0xbf; 2], &[0x80; 3], &[0xbf; 3]]
                    .iter()
                    .any(|more| {
                        let full = [start, more].concat();
                        str::from_utf8(&full).is_ok_and(|text| text.chars().count() == 1)
                    })
            }
        };
        match (1..=bytes.len()).find(|end| !can_go_on(*end)) {
            Some(end) => Err(end - 1),
            None => Ok(str::from_utf8(bytes).is_ok()),
        }
    }

    #[test]
    fn refuses_at_the_first_invalid_byte() {
        let others = [0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xff];
        let others = if cfg!(miri) { &others[2..5] } else { &others[..] };
        for first in (0..=u8::MAX).step_by(if cfg!(miri) { 13 } else { 1 }) {
            for second in others {
                for third in others {
                    let bytes = [b'a', first, *second, *third, 0x80];
                    assert_eq!(byte_by_byte(&bytes, None), oracle(&bytes), "{bytes:x?}");
                    assert_eq!(byte_by_byte(&bytes, KEY), oracle(&bytes), "{bytes:x?}");
                }
            }
        }
    }

    #[test]
    fn autobahn_6_4_invalid_bytes_are_located() {
        // "κόσμε", then U+110000, then "edited".
        let text = b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xf4\x90\x80\x80edited";
        assert_eq!(byte_by_byte(text, KEY), Err(12));
    }

    #[test]
    fn text_split_anywhere_is_accepted() {
        let text = "a κόσμε 🦀 zażółć ".repeat(if cfg!(miri) { 1 } else { 40 });
        for cut in 0..=text.len() {
            let mut joined = JoinBuffer::new();
            let (first, second) = text.as_bytes().split_at(cut);
            joined.push_text(first, None).unwrap();
            assert_eq!(joined.as_str().is_some(), text.is_char_boundary(cut));
            joined.push_text(second, None).unwrap();
            assert_eq!(joined.as_str(), Some(&*text));
        }
    }

    #[test]
    fn bytes_not_pushed_as_text_are_not_text() {
        let mut joined = JoinBuffer::new();
        joined.push(b"abc", None);
        assert_eq!(joined.as_str(), None);
        assert_eq!(joined.push_text(b"d", None), Ok(()));
        assert_eq!(joined.as_str(), Some("abcd"), "checked when text is pushed after it");
        joined.push(b"\xff", None);
        assert_eq!(joined.as_str(), None);
        assert_eq!(joined.push_text(b"d", None), Err(BrokenUtf8));
        joined.clear();
        assert_eq!((joined.as_str(), joined.len(), joined.is_empty()), (Some(""), 0, true));
        assert!(joined.capacity() >= 5);
    }

    #[test]
    fn reserves_exactly_the_requested_capacity() {
        let mut joined = JoinBuffer::new();
        joined.reserve(1000);
        assert_eq!(joined.capacity(), 1000);
    }
}
