//! Recognition of ASCII, by words.

/// Returns whether all bytes are ASCII, in the fewest instructions for a few hundred of them: std's
/// `is_ascii` takes 200 for 100 bytes.
#[inline]
pub(crate) fn is_short_ascii(bytes: &[u8]) -> bool {
    match bytes.last_chunk::<8>() {
        Some(last) => is_word_ascii(or_words(bytes) | u64::from_ne_bytes(*last)),
        None => bytes.iter().fold(0, |all, byte| all | byte).is_ascii(),
    }
}

/// Returns whether eight bytes, or all words combined by OR, are ASCII.
#[inline]
pub(crate) const fn is_word_ascii(word: u64) -> bool {
    word & 0x8080_8080_8080_8080 == 0
}

/// Returns the OR of all whole words of eight bytes.
#[inline]
pub(crate) fn or_words(bytes: &[u8]) -> u64 {
    bytes.as_chunks::<8>().0.iter().fold(0, |all, word| all | u64::from_ne_bytes(*word))
}
