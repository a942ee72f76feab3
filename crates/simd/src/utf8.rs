//! UTF-8 validation of text that arrived whole. For text in chunks see
//! [`JoinBuffer`](crate::JoinBuffer).

use crate::ascii::is_short_ascii;
use crate::mask;

/// Maximum length for which checking for ASCII first is cheaper than starting the vectors of
/// simdutf8.
const SHORT: usize = 128;

/// Returns `bytes` as text, or `None` if they are not UTF-8 (RFC 3629: shortest form, no
/// surrogates, nothing above U+10FFFF).
#[inline]
#[must_use]
pub fn check(bytes: &[u8]) -> Option<&str> {
    if bytes.len() <= SHORT && is_short_ascii(bytes) {
        return Some(ascii(bytes));
    }
    simdutf8::basic::from_utf8(bytes).ok()
}

/// Unmasks `bytes` in place, like [`mask::apply`], and returns the resulting text. ASCII is
/// recognised while it is unmasked, so most text is read only once.
#[inline]
#[must_use]
pub fn unmask(bytes: &mut [u8], key: [u8; 4]) -> Option<&str> {
    if mask::apply_to_ascii(bytes, key) {
        return Some(ascii(bytes));
    }
    simdutf8::basic::from_utf8(bytes).ok()
}

/// Converts bytes without a most significant bit set to text.
#[inline]
fn ascii(bytes: &[u8]) -> &str {
    debug_assert!(bytes.is_ascii());
    // SAFETY: both callers have checked that every byte is ASCII, which is UTF-8.
    unsafe { str::from_utf8_unchecked(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 4] = [1, 2, 0x83, 0xf4];

    fn agrees(bytes: &[u8]) {
        let expected = str::from_utf8(bytes).ok();
        assert_eq!(check(bytes), expected, "{bytes:x?}");
        let mut masked = bytes.to_vec();
        mask::apply(&mut masked, KEY);
        assert_eq!(unmask(&mut masked, KEY), expected, "{bytes:x?}");
    }

    #[test]
    fn agrees_with_std_on_every_start_of_a_sequence() {
        let step = if cfg!(miri) { 1009 } else { 1 };
        for first in (0..=u16::MAX).step_by(step) {
            let [a, b] = first.to_be_bytes();
            agrees(&[a, b]);
            agrees(&[b'x', a, b, 0x80, 0xbf, b'y']);
        }
    }

    #[test]
    fn agrees_with_std_wherever_an_invalid_or_wide_character_is() {
        let lengths = if cfg!(miri) { 20 } else { 400 };
        for len in (0..lengths).step_by(7) {
            agrees(&vec![b'a'; len]);
            for at in 0..len {
                for insert in [&b"\xff"[..], "é".as_bytes(), "🦀".as_bytes(), b"\xed\xa0\x80"] {
                    let mut bytes = vec![b'a'; len];
                    bytes.splice(at..at, insert.iter().copied());
                    agrees(&bytes);
                }
            }
        }
    }
}
