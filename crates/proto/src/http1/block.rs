//! The loops over the bytes of a head, sixteen at a time.
//!
//! Each function answers as its byte-by-byte counterpart in `scan` would; the tests hold them to it.

use super::scan;
use throng_simd::block;

/// The index of the first byte that is marked, looking at whole blocks; else how many bytes those are.
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

/// As [`scan::find_control`].
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

/// As [`scan::find_byte`].
#[inline]
pub(crate) fn find_byte(bytes: &[u8], wanted: u8) -> Option<usize> {
    match first_marked(bytes, |bytes| block::equal(bytes, wanted)) {
        Ok(at) => Some(at),
        Err(passed) => scan::find_byte(&bytes[passed..], wanted).map(|at| passed + at),
    }
}

/// How many bytes at the start are of a token: [`scan::is_token_byte`].
#[inline(always)]
pub(crate) fn token_length(bytes: &[u8]) -> usize {
    // Nearly all names end at a colon after letters, digits and dashes.
    match plain_length(bytes) {
        at if bytes.get(at) == Some(&b':') => at,
        at => token_length_from(bytes, at),
    }
}

/// As [`token_length`], of which `at` are known.
#[inline(never)]
fn token_length_from(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && scan::is_token_byte(bytes[at]) {
        at += 1;
    }
    at
}

/// How many letters, digits, `-` and `.` there are at the start, or fewer: what is left of a block is not
/// looked at.
#[inline(always)]
pub(crate) fn plain_length(bytes: &[u8]) -> usize {
    match first_marked(bytes, block::not_plain) {
        Ok(at) | Err(at) => at,
    }
}

/// How many bytes at the start may stand in a request target: [`scan::is_target_byte`].
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

    /// Each function beside its byte-by-byte meaning, for every byte at every place of blocks and tails.
    #[test]
    fn blocks_judge_every_byte_at_every_offset_as_alone() {
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
                    assert_eq!(plain_length(&bytes), expected.min(blocks), "{case}");
                }
            }
        }
    }

    #[test]
    fn the_first_of_several_is_found() {
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
