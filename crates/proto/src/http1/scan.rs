//! Byte classes and loops over them, eight bytes at a time if that is faster; `block` has the loops
//! over sixteen bytes.

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Marks the high bit of each byte of `word` that is zero. Bytes above the first zero byte may be
/// marked wrongly (the borrow propagates through them), so only the lowest mark and "any at all"
/// may be used.
#[inline]
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(LOW_BITS) & !word & HIGH_BITS
}

/// Finds the first `wanted`.
#[inline]
pub(crate) fn find_byte(bytes: &[u8], wanted: u8) -> Option<usize> {
    let (words, tail) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let marks = zero_bytes(u64::from_le_bytes(*word) ^ (LOW_BITS * u64::from(wanted)));
        if marks != 0 {
            return Some(index * 8 + marks.trailing_zeros() as usize / 8);
        }
    }
    let at = tail.iter().position(|byte| *byte == wanted)?;
    Some(words.len() * 8 + at)
}

/// Finds the first byte that a field value may not contain: CR, LF, NUL, any control character but
/// HTAB. Where it is the CR of a CRLF, the line before it is found and validated in one pass.
#[inline]
pub(crate) const fn find_control(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    while let Some((word, after)) = rest.split_first_chunk::<8>() {
        let word = u64::from_le_bytes(*word);
        let below_space = word.wrapping_sub(LOW_BITS * 0x20) & !word & HIGH_BITS;
        let mut marks = below_space | zero_bytes(word ^ (LOW_BITS * 0x7f));
        while marks != 0 {
            let shift = marks.trailing_zeros() & !7;
            if !is_value_byte((word >> shift) as u8) {
                return Some(bytes.len() - rest.len() + shift as usize / 8);
            }
            // A tab, or a mark caused by a borrow.
            marks &= marks - 1;
        }
        rest = after;
    }
    while let [byte, after @ ..] = rest {
        if !is_value_byte(*byte) {
            return Some(bytes.len() - rest.len());
        }
        rest = after;
    }
    None
}

/// Returns whether a field value is valid, RFC 9110 section 5.5: no control character but HTAB.
/// Bytes from 0x80 are `obs-text`, allowed.
#[inline]
pub(crate) const fn is_field_value(bytes: &[u8]) -> bool {
    find_control(bytes).is_none()
}

/// Returns whether a byte may appear in a field value.
#[inline]
pub(crate) const fn is_value_byte(byte: u8) -> bool {
    (byte >= b' ' && byte != 0x7f) || byte == b'\t'
}

/// Returns whether a byte may appear in a token, RFC 9110 section 5.6.2.
#[inline]
pub(crate) const fn is_token_byte(byte: u8) -> bool {
    TOKEN[byte as usize]
}

/// Returns whether the bytes are a token: non-empty, all token bytes.
pub(crate) const fn is_token(bytes: &[u8]) -> bool {
    let mut at = 0;
    while at < bytes.len() {
        if !is_token_byte(bytes[at]) {
            return false;
        }
        at += 1;
    }
    at > 0
}

static TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        table[byte] = b.is_ascii_alphanumeric()
            || matches!(
                b,
                b'!' | b'#'
                    | b'$'
                    | b'%'
                    | b'&'
                    | b'\''
                    | b'*'
                    | b'+'
                    | b'-'
                    | b'.'
                    | b'^'
                    | b'_'
                    | b'`'
                    | b'|'
                    | b'~'
            );
        byte += 1;
    }
    table
};

/// Trims the spaces and tabs at both ends, called OWS in RFC 9110 section 5.6.3.
#[inline]
pub(crate) const fn trim_ows(bytes: &[u8]) -> &[u8] {
    trim_ows_end(trim_ows_start(bytes))
}

/// Trims the spaces and tabs at the start.
#[inline]
pub(crate) const fn trim_ows_start(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    bytes
}

/// Trims the spaces and tabs at the end.
#[inline]
pub(crate) const fn trim_ows_end(mut bytes: &[u8]) -> &[u8] {
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// Returns whether a byte may appear in a request target.
///
/// More than RFC 3986 allows: browsers send `|`, `{` and `"` raw in a query. But never a space, a
/// control character, a byte beyond ASCII, or the `#` of a fragment, which is not sent.
#[inline]
pub(crate) const fn is_target_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'#'
}

/// Returns whether `name` equals `lower`, which is in lower case, case-insensitively. `name` has no
/// control character: setting the case bit turns none of its bytes except a letter into a letter,
/// `-` or a digit.
#[inline]
pub(crate) fn is_name<const N: usize>(name: &[u8], lower: &[u8; N]) -> bool {
    let Ok(name) = <&[u8; N]>::try_from(name) else { return false };
    let mut difference = 0;
    for (byte, lower) in name.iter().zip(lower) {
        difference |= (byte | 0x20) ^ lower;
    }
    difference == 0
}

/// Returns the members of a comma-separated list (RFC 9110 section 5.6.1), trimmed, including empty
/// ones.
pub(crate) fn list_members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(trim_ows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_at_every_offset_is_classified_as_alone() {
        for byte in 0..=255u8 {
            for offset in 0..24 {
                let mut bytes = [b'a'; 24];
                bytes[offset] = byte;
                assert_eq!(is_field_value(&bytes), is_value_byte(byte), "{byte:#x} at {offset}");
                // A tab before it makes the word take the slow path.
                bytes[offset.saturating_sub(1)] = b'\t';
                bytes[offset] = byte;
                assert_eq!(is_field_value(&bytes), is_value_byte(byte), "{byte:#x} at {offset}");
                let expected = (byte == b'\n').then_some(offset);
                assert_eq!(find_byte(&bytes, b'\n'), expected);
            }
        }
    }

    #[test]
    fn the_first_line_feed_is_found_among_several_and_near_misses() {
        for length in 0..40 {
            for at in 0..length {
                let mut bytes = vec![0x0b; length];
                bytes[at..].fill(b'\n');
                assert_eq!(find_byte(&bytes, b'\n'), Some(at));
            }
            assert_eq!(find_byte(&vec![0x09; length], b'\n'), None);
        }
    }

    #[test]
    fn lists_are_split_and_trimmed() {
        let members: Vec<_> = list_members(b" a ,\tb,, c").collect();
        assert_eq!(members, [&b"a"[..], b"b", b"", b"c"]);
    }
}
