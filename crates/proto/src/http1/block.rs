//! Loops over the bytes of a head, sixteen at a time.
//!
//! Each function returns the same result as its byte-by-byte counterpart in `scan`; the tests check
//! this.

use super::scan;
use throng_simd::block;

/// Finds the index of the first marked byte in whole blocks, or else returns the length of these
/// blocks.
#[inline]
fn first_marked(bytes: &[u8], marks: impl Fn(&[u8; 16]) -> block::Marks) -> Result<usize, usize> {
    let (blocks, _) = bytes.as_chunks::<{ block::SIZE }>();
    let mut passed = 0;
    for bytes in blocks {
        let marks = marks(bytes);
        if marks != 0 {
            return Ok(passed + marks.trailing_zeros() as usize);
        }
        passed += block::SIZE;
    }
    Err(passed)
}

/// Block version of [`scan::find_control`].
#[inline(always)]
pub(crate) fn find_control(bytes: &[u8]) -> Option<usize> {
    match first_marked(bytes, block::controls) {
        Ok(at) => Some(at),
        Err(passed) => find_control_in_tail(bytes, passed),
    }
}

#[inline(never)]
fn find_control_in_tail(bytes: &[u8], passed: usize) -> Option<usize> {
    scan::find_control(&bytes[passed..]).map(|at| passed + at)
}

/// Block version of [`scan::find_byte`].
#[inline]
pub(crate) fn find_byte(bytes: &[u8], wanted: u8) -> Option<usize> {
    match first_marked(bytes, |bytes| block::equal(bytes, wanted)) {
        Ok(at) => Some(at),
        Err(passed) => scan::find_byte(&bytes[passed..], wanted).map(|at| passed + at),
    }
}

/// Returns the length of the token at the start: bytes that satisfy [`scan::is_token_byte`].
#[inline(always)]
pub(crate) fn token_length(bytes: &[u8]) -> usize {
    // Nearly all names consist of letters, digits and dashes up to a colon.
    match common_token_length(bytes) {
        at if bytes.get(at) == Some(&b':') => at,
        at => token_length_from(bytes, at),
    }
}

/// Continues [`token_length`] after the first `at` bytes, which are token bytes.
#[inline(never)]
fn token_length_from(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && scan::is_token_byte(bytes[at]) {
        at += 1;
    }
    at
}

/// Returns the number of letters, digits, `-` and `.` at the start, or fewer: an incomplete last
/// block is not examined.
#[inline(always)]
pub(crate) fn common_token_length(bytes: &[u8]) -> usize {
    match first_marked(bytes, block::not_common_token) {
        Ok(at) | Err(at) => at,
    }
}

/// Returns the number of bytes at the start that may appear in a request target:
/// [`scan::is_target_byte`].
#[inline]
pub(crate) fn target_length(bytes: &[u8]) -> usize {
    let mut at = match first_marked(bytes, |bytes| block::not_visible(bytes, b'#')) {
        Ok(at) => return at,
        Err(passed) => passed,
    };
    while at < bytes.len() && scan::is_target_byte(bytes[at]) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares each function with its byte-by-byte counterpart, for every byte at every position
    /// of blocks and tails.
    #[test]
    fn blocks_classify_every_byte_at_every_offset_as_scalar_code() {
        for byte in 0..=255u8 {
            for length in [1, 7, 15, 16, 17, 31, 32, 40] {
                for offset in 0..length {
                    let mut bytes = vec![b'a'; length];
                    bytes[offset] = byte;
                    let marked = |is_end: bool| is_end.then_some(offset);
                    let ends = |is_end: bool| marked(is_end).unwrap_or(length);
                    let case = format!("{byte:#x} at {offset} of {length}");
                    let control = !scan::is_value_byte(byte);
                    assert_eq!(find_control(&bytes), marked(control), "{case}");
                    assert_eq!(find_byte(&bytes, b'\n'), marked(byte == b'\n'), "{case}");
                    assert_eq!(token_length(&bytes), ends(!scan::is_token_byte(byte)), "{case}");
                    let graphic = byte.is_ascii_graphic() && byte != b'#';
                    assert_eq!(scan::is_target_byte(byte), graphic);
                    assert_eq!(target_length(&bytes), ends(!graphic), "{case}");
                    let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
                    let expected = ends(!plain).min(length);
                    let blocks = length / 16 * 16;
                    assert_eq!(common_token_length(&bytes), expected.min(blocks), "{case}");
                }
            }
        }
    }

    #[test]
    fn the_first_of_several_matches_is_found() {
        for length in 0..50 {
            for at in 0..length {
                let mut bytes = vec![b'x'; length];
                bytes[at..].fill(b'\r');
                assert_eq!(find_control(&bytes), Some(at));
                assert_eq!(find_byte(&bytes, b'\r'), Some(at));
                assert_eq!(token_length(&bytes), at);
                assert_eq!(target_length(&bytes), at);
            }
        }
    }
}
