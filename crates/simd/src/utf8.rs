//! UTF-8 for text that came whole.

use crate::mask;

/// The text that `bytes` are, or `None` if they are not UTF-8.
#[inline]
#[must_use]
pub fn check(bytes: &[u8]) -> Option<&str> {
    simdutf8::basic::from_utf8(bytes).ok()
}

/// Unmasks `bytes` in place, as [`mask::apply`] does, and gives the text they then are.
#[inline]
#[must_use]
pub fn unmask(bytes: &mut [u8], key: [u8; 4]) -> Option<&str> {
    mask::apply(bytes, key);
    check(bytes)
}
