//! Classification of sixteen bytes at once, with one result bit for each byte, the first byte's
//! lowest.
//!
//! SSE2 is part of every x86-64 and does this in a handful of instructions. Without intrinsics the
//! compiler sometimes does as well and sometimes unrolls byte by byte: it has no operation for "a
//! bit of each". Other machines use a plain loop.

/// Number of bytes in a block.
pub const SIZE: usize = 16;

/// One bit for each byte of a block.
pub type Marks = u32;

/// Marks control characters except the tab: 0 to 31 without 9, and 127.
#[inline]
#[must_use]
pub fn controls(block: &[u8; SIZE]) -> Marks {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE2.
    return unsafe { lanes::controls(block) };
    #[cfg(not(target_arch = "x86_64"))]
    portable::controls(block)
}

/// Marks bytes that are not an ASCII letter, a digit, `-` or `.`.
#[inline]
#[must_use]
pub fn not_common_token(block: &[u8; SIZE]) -> Marks {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE2.
    return unsafe { lanes::not_common_token(block) };
    #[cfg(not(target_arch = "x86_64"))]
    portable::not_common_token(block)
}

/// Marks bytes that are not visible ASCII (`!` to `~`), or equal `except`.
#[inline]
#[must_use]
pub fn not_visible(block: &[u8; SIZE], except: u8) -> Marks {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE2.
    return unsafe { lanes::not_visible(block, except) };
    #[cfg(not(target_arch = "x86_64"))]
    portable::not_visible(block, except)
}

/// Marks bytes that equal `wanted`.
#[inline]
#[must_use]
pub fn equal(block: &[u8; SIZE], wanted: u8) -> Marks {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE2.
    return unsafe { lanes::equal(block, wanted) };
    #[cfg(not(target_arch = "x86_64"))]
    portable::equal(block, wanted)
}

/// Sixteen lanes of SSE2.
#[cfg(target_arch = "x86_64")]
mod lanes {
    use super::{Marks, SIZE};
    use std::arch::x86_64::{
        __m128i, _mm_add_epi8, _mm_andnot_si128, _mm_cmpeq_epi8, _mm_cmplt_epi8, _mm_min_epu8,
        _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8,
    };

    #[inline]
    #[target_feature(enable = "sse2")]
    fn load(block: &[u8; SIZE]) -> __m128i {
        // One load: the compiler combines the two halves.
        let whole = u128::from_le_bytes(*block);
        _mm_set_epi64x((whole >> 64) as i64, whole as i64)
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn all(byte: u8) -> __m128i {
        _mm_set1_epi8(byte.cast_signed())
    }

    /// Marks `count` bytes from `first` on.
    #[inline]
    #[target_feature(enable = "sse2")]
    fn range(bytes: __m128i, first: u8, count: u8) -> __m128i {
        let moved = _mm_add_epi8(bytes, all(first.wrapping_neg()));
        _mm_cmpeq_epi8(_mm_min_epu8(moved, all(count - 1)), moved)
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn marks(lanes: __m128i) -> Marks {
        _mm_movemask_epi8(lanes).cast_unsigned()
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    pub(super) fn controls(block: &[u8; SIZE]) -> Marks {
        let bytes = load(block);
        let low = _mm_cmpeq_epi8(_mm_min_epu8(bytes, all(0x1f)), bytes);
        let low = _mm_andnot_si128(_mm_cmpeq_epi8(bytes, all(b'\t')), low);
        marks(_mm_or_si128(low, _mm_cmpeq_epi8(bytes, all(0x7f))))
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    pub(super) fn not_common_token(block: &[u8; SIZE]) -> Marks {
        let bytes = load(block);
        let letters = range(_mm_or_si128(bytes, all(0x20)), b'a', 26);
        let others = _mm_or_si128(range(bytes, b'0', 10), range(bytes, b'-', 2));
        marks(_mm_or_si128(letters, others)) ^ 0xffff
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    pub(super) fn not_visible(block: &[u8; SIZE], except: u8) -> Marks {
        let bytes = load(block);
        // Signed: a byte beyond ASCII is also less than a space.
        let low = _mm_cmplt_epi8(bytes, all(b'!'));
        let others =
            _mm_or_si128(_mm_cmpeq_epi8(bytes, all(except)), _mm_cmpeq_epi8(bytes, all(0x7f)));
        marks(_mm_or_si128(low, others))
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    pub(super) fn equal(block: &[u8; SIZE], wanted: u8) -> Marks {
        marks(_mm_cmpeq_epi8(load(block), all(wanted)))
    }
}

/// Byte by byte: for other machines, and as the reference for the lanes.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    use super::{Marks, SIZE};

    fn marks(block: &[u8; SIZE], is_marked: impl Fn(u8) -> bool) -> Marks {
        let bit = |(index, byte): (usize, &u8)| Marks::from(is_marked(*byte)) << index;
        block.iter().enumerate().map(bit).sum()
    }

    pub(super) fn controls(block: &[u8; SIZE]) -> Marks {
        marks(block, |byte| byte.is_ascii_control() && byte != b'\t')
    }

    pub(super) fn not_common_token(block: &[u8; SIZE]) -> Marks {
        marks(block, |byte| !byte.is_ascii_alphanumeric() && byte != b'-' && byte != b'.')
    }

    pub(super) fn not_visible(block: &[u8; SIZE], except: u8) -> Marks {
        marks(block, |byte| !byte.is_ascii_graphic() || byte == except)
    }

    pub(super) fn equal(block: &[u8; SIZE], wanted: u8) -> Marks {
        marks(block, |byte| byte == wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_in_every_lane_has_its_class() {
        for byte in 0..=255u8 {
            for around in [b'a', b'\t', 0, 0xff, b'#'] {
                for lane in 0..SIZE {
                    let mut block = [around; SIZE];
                    block[lane] = byte;
                    let case = format!("{byte:#x} in lane {lane} among {around:#x}");
                    assert_eq!(controls(&block), portable::controls(&block), "{case}");
                    assert_eq!(
                        not_common_token(&block),
                        portable::not_common_token(&block),
                        "{case}"
                    );
                    for except in [b'#', b'a', 0x80] {
                        let expected = portable::not_visible(&block, except);
                        assert_eq!(not_visible(&block, except), expected, "{case}");
                    }
                    assert_eq!(equal(&block, byte), portable::equal(&block, byte), "{case}");
                }
            }
        }
    }
}
