//! WebSocket masking (RFC 6455 section 5.3): XOR with a repeated four-byte key.
//!
//! A short payload is masked inline, in 16-byte steps that every 64-bit CPU supports: a call
//! through a function pointer would cost more than wider vectors save. For a long payload AVX2 is
//! detected at run time. There are no intrinsics: the loops run over plain words, and the compiler
//! turns them into the widest vectors that the surrounding function may use. AVX-512 was tried and
//! is not used: the compiler's code for it was slower than its code for AVX2, which already masks
//! 16 KiB at 140 GB/s, many times the rate of a socket.

use std::mem::MaybeUninit;

use crate::ascii::{is_short_ascii, is_word_ascii, or_words};

/// Minimum length of a long payload.
const LONG: usize = 256;

/// Bytes per iteration of the long loops: four AVX2 vectors, eight of SSE2 or NEON.
const BLOCK: usize = 128;

/// Returns the key rotated by `by` bytes, for the next byte of the same payload.
#[inline]
#[must_use]
pub const fn rotate(key: [u8; 4], by: usize) -> [u8; 4] {
    u32::from_le_bytes(key).rotate_right(8 * (by % 4) as u32).to_le_bytes()
}

/// Masks or unmasks `bytes` in place; `key[0]` applies to the first byte.
#[inline]
pub fn apply(bytes: &mut [u8], key: [u8; 4]) {
    if bytes.len() < LONG {
        short(bytes, key);
    } else {
        long(bytes, key);
    }
}

/// Appends the masked (or unmasked) `bytes` to `out` in one pass; `key[0]` applies to the first
/// byte.
#[inline]
pub fn append(bytes: &[u8], key: [u8; 4], out: &mut Vec<u8>) {
    append_to_ascii(bytes, key, out);
}

/// Masks like [`apply`], and returns whether the result is all ASCII, determined in the same pass
/// if it is long.
#[inline]
pub(crate) fn apply_to_ascii(bytes: &mut [u8], key: [u8; 4]) -> bool {
    if bytes.len() < LONG { short_to_ascii(bytes, key) } else { long(bytes, key) }
}

/// Appends like [`append`], and returns whether the appended bytes are all ASCII.
#[inline]
pub(crate) fn append_to_ascii(bytes: &[u8], key: [u8; 4], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    out.reserve(bytes.len());
    let spare = &mut out.spare_capacity_mut()[..bytes.len()];
    let ascii = if bytes.len() < LONG {
        copy_short(bytes, spare, key)
    } else {
        copy_long(bytes, spare, key)
    };
    // SAFETY: either function wrote all of the `bytes.len()` bytes from `start` on.
    unsafe { out.set_len(start + bytes.len()) };
    ascii
}

/// Returns the key twice.
#[inline]
const fn repeat(key: [u8; 4]) -> u64 {
    u32::from_ne_bytes(key) as u64 * 0x1_0000_0001
}

#[inline]
fn mask_word(word: &mut [u8; 8], key: [u8; 4]) {
    *word = (u64::from_ne_bytes(*word) ^ repeat(key)).to_ne_bytes();
}

/// Masks a short payload. Out of line: its callers need the registers for other things.
#[inline(never)]
fn short(bytes: &mut [u8], key: [u8; 4]) {
    match steps(bytes, key) {
        Some(last) => put_last(bytes, last),
        None => tiny(bytes, key),
    }
}

/// Masks a short payload; returns whether it became all ASCII.
#[inline(never)]
fn short_to_ascii(bytes: &mut [u8], key: [u8; 4]) -> bool {
    let Some(last) = steps(bytes, key) else {
        tiny(bytes, key);
        return is_short_ascii(bytes);
    };
    // Before the last step is stored: reading the overlapping bytes then would wait for the store.
    let combined = or_words(bytes) | or_words(&last);
    put_last(bytes, last);
    is_word_ascii(combined)
}

/// Masks all whole steps of 16 bytes, one for each bit of the length, and returns the last 16 bytes
/// masked: a step that may overlap the others, so that no single bytes are left.
#[inline(always)]
fn steps(bytes: &mut [u8], key: [u8; 4]) -> Option<[u8; 16]> {
    // Read before the steps change the bytes that it shares with them. It begins 16 bytes before
    // the end, which is equivalent to the end itself for the key.
    let mut last = *bytes.last_chunk::<16>()?;
    mask_words(&mut last, rotate(key, bytes.len()));
    let (steps, rest) = bytes.as_chunks_mut::<64>();
    steps.iter_mut().for_each(|step| mask_words(step, key));
    let (steps, rest) = rest.as_chunks_mut::<32>();
    if let [step] = steps {
        mask_words(step, key);
    }
    if let Some(step) = rest.first_chunk_mut::<16>() {
        mask_words(step, key);
    }
    Some(last)
}

#[inline]
fn put_last<const N: usize>(bytes: &mut [u8], last: [u8; N]) {
    if let Some(slot) = bytes.last_chunk_mut() {
        *slot = last;
    }
}

#[inline(always)]
fn mask_words<const N: usize>(bytes: &mut [u8; N], key: [u8; 4]) {
    // Words of the key's size: the compiler broadcasts the key to a vector as it is.
    for word in bytes.as_chunks_mut::<4>().0 {
        *word = (u32::from_ne_bytes(*word) ^ u32::from_ne_bytes(key)).to_ne_bytes();
    }
}

/// Masks fewer than 16 bytes.
#[inline]
fn tiny(bytes: &mut [u8], key: [u8; 4]) {
    if let Some(mut last) = bytes.last_chunk::<8>().copied() {
        mask_words(&mut last, rotate(key, bytes.len()));
        if let Some(first) = bytes.first_chunk_mut::<8>() {
            mask_words(first, key);
        }
        return put_last(bytes, last);
    }
    for (byte, key) in bytes.iter_mut().zip(key.into_iter().cycle()) {
        *byte ^= key;
    }
}

/// Masks a short payload into `to`, which has the same length and is written completely. Returns
/// whether the result is all ASCII.
///
/// Copying first and masking in place would read stores that are still in flight, which takes 24 ns
/// instead of 2 ns for 100 bytes.
#[inline]
fn copy_short(from: &[u8], to: &mut [MaybeUninit<u8>], key: [u8; 4]) -> bool {
    assert_eq!(from.len(), to.len());
    let Some(last) = from.last_chunk::<8>() else {
        let mut combined = 0;
        for ((byte, slot), key) in from.iter().zip(to).zip(key.into_iter().cycle()) {
            combined |= *slot.write(byte ^ key);
        }
        return combined.is_ascii();
    };
    let mut last = *last;
    mask_words(&mut last, rotate(key, from.len()));
    let mut combined = u64::from_ne_bytes(last);
    for (word, slot) in from.as_chunks::<8>().0.iter().zip(to.as_chunks_mut::<8>().0) {
        let mut word = *word;
        mask_word(&mut word, key);
        combined |= u64::from_ne_bytes(word);
        slot.write_copy_of_slice(&word);
    }
    if let Some(slot) = to.last_chunk_mut::<8>() {
        slot.write_copy_of_slice(&last);
    }
    is_word_ascii(combined)
}

/// Masks a long payload; returns whether it became all ASCII.
#[inline(never)]
fn long(bytes: &mut [u8], key: [u8; 4]) -> bool {
    let (blocks, rest) = bytes.as_chunks_mut::<BLOCK>();
    let ascii = mask_blocks(blocks, key);
    // A block is a multiple of the key, so the rest begins with the same byte of it.
    ascii & short_to_ascii(rest, key)
}

/// Masks a long payload into `to`, which has its length and is written completely; returns whether
/// it became all ASCII.
#[inline(never)]
fn copy_long(from: &[u8], to: &mut [MaybeUninit<u8>], key: [u8; 4]) -> bool {
    let (blocks, rest) = from.as_chunks::<BLOCK>();
    let (uninit_blocks, uninit_rest) = to.as_chunks_mut::<BLOCK>();
    let ascii = copy_blocks(blocks, uninit_blocks, key);
    ascii & copy_short(rest, uninit_rest, key)
}

fn mask_blocks(blocks: &mut [[u8; BLOCK]], key: [u8; 4]) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: this CPU has AVX2.
        return unsafe { avx2::mask_blocks(blocks, key) };
    }
    mask_blocks_generic(blocks, key)
}

/// Writes all of `uninit_blocks`, which must have as many blocks as `blocks`.
fn copy_blocks(blocks: &[[u8; BLOCK]], uninit_blocks: &mut [UninitBlock], key: [u8; 4]) -> bool {
    assert_eq!(blocks.len(), uninit_blocks.len());
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: this CPU has AVX2.
        return unsafe { avx2::copy_blocks(blocks, uninit_blocks, key) };
    }
    copy_blocks_generic(blocks, uninit_blocks, key)
}

/// Uninitialised memory for a block.
type UninitBlock = [MaybeUninit<u8>; BLOCK];

/// Masks blocks in a loop that the compiler vectorises, as wide as the caller may use.
#[inline(always)]
fn mask_blocks_generic(blocks: &mut [[u8; BLOCK]], key: [u8; 4]) -> bool {
    let mut combined = OrWords::default();
    for block in blocks {
        combined.mask(block, key);
    }
    combined.is_ascii()
}

/// Masks blocks from one slot to another; otherwise like [`mask_blocks_generic`].
#[inline(always)]
fn copy_blocks_generic(
    blocks: &[[u8; BLOCK]],
    uninit_blocks: &mut [UninitBlock],
    key: [u8; 4],
) -> bool {
    let mut combined = OrWords::default();
    for (block, slot) in blocks.iter().zip(uninit_blocks) {
        let mut block = *block;
        combined.mask(&mut block, key);
        slot.write_copy_of_slice(&block);
    }
    combined.is_ascii()
}

/// The OR of all words, in as many lanes as a block has, so that the compiler can keep them in
/// vectors.
#[derive(Default)]
struct OrWords([u64; BLOCK / 8]);

impl OrWords {
    #[inline(always)]
    fn mask(&mut self, block: &mut [u8; BLOCK], key: [u8; 4]) {
        for (word, combined) in block.as_chunks_mut::<8>().0.iter_mut().zip(&mut self.0) {
            mask_word(word, key);
            *combined |= u64::from_ne_bytes(*word);
        }
    }

    #[inline(always)]
    fn is_ascii(&self) -> bool {
        is_word_ascii(self.0.iter().fold(0, |all, combined| all | combined))
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx2 {
    use super::{BLOCK, UninitBlock, copy_blocks_generic, mask_blocks_generic};

    #[target_feature(enable = "avx2")]
    pub(super) fn mask_blocks(blocks: &mut [[u8; BLOCK]], key: [u8; 4]) -> bool {
        mask_blocks_generic(blocks, key)
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn copy_blocks(
        blocks: &[[u8; BLOCK]],
        uninit_blocks: &mut [UninitBlock],
        key: [u8; 4],
    ) -> bool {
        copy_blocks_generic(blocks, uninit_blocks, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

    /// Masks exactly as RFC 6455 section 5.3 defines it.
    fn oracle(bytes: &[u8], key: [u8; 4]) -> Vec<u8> {
        bytes.iter().enumerate().map(|(i, byte)| byte ^ key[i % 4]).collect()
    }

    /// Returns lengths around every step of every loop.
    fn lengths() -> impl Iterator<Item = usize> {
        let all = if cfg!(miri) { 40 } else { LONG + 2 * BLOCK + 20 };
        (0..all).chain([LONG - 1, LONG, LONG + BLOCK - 1, LONG + BLOCK + 9])
    }

    fn sample(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + 7) as u8).collect()
    }

    #[test]
    fn rfc6455_5_7_hello() {
        let mut bytes = *b"Hello";
        apply(&mut bytes, KEY);
        assert_eq!(bytes, [0x7f, 0x9f, 0x4d, 0x51, 0x58]);
    }

    #[test]
    fn masking_in_place_as_the_rfc_defines_at_all_lengths_and_offsets() {
        for len in lengths() {
            for offset in 0..if cfg!(miri) { 2 } else { 64 } {
                let mut bytes = sample(offset + len + 3);
                let mut expected = bytes.clone();
                expected[offset..offset + len]
                    .copy_from_slice(&oracle(&bytes[offset..][..len], KEY));
                let ascii = apply_to_ascii(&mut bytes[offset..offset + len], KEY);
                assert_eq!(bytes, expected, "{len} bytes at {offset}");
                assert_eq!(ascii, expected[offset..][..len].is_ascii());
                apply(&mut bytes[offset..offset + len], KEY);
                assert_eq!(bytes, sample(offset + len + 3), "{len} bytes at {offset}");
            }
        }
    }

    #[test]
    fn appending_masks_as_the_rfc_defines_at_all_lengths() {
        for len in lengths() {
            let bytes = sample(len);
            let mut out = b"before".to_vec();
            let ascii = append_to_ascii(&bytes, KEY, &mut out);
            assert_eq!(out[..6], *b"before");
            assert_eq!(out[6..], oracle(&bytes, KEY), "{len} bytes");
            assert_eq!(ascii, out[6..].is_ascii());
            append(&bytes, KEY, &mut out);
            assert_eq!(out[6 + len..], out[6..6 + len]);
        }
    }

    #[test]
    fn one_byte_above_ascii_is_detected_at_any_position() {
        for len in lengths() {
            for at in (0..len).step_by(if cfg!(miri) { 37 } else { 1 }) {
                let mut bytes = oracle(&vec![b'a'; len], KEY);
                bytes[at] ^= 0x80;
                let mut out = Vec::new();
                assert!(!append_to_ascii(&bytes, KEY, &mut out), "{at} of {len}");
                assert!(!apply_to_ascii(&mut bytes, KEY), "{at} of {len}");
            }
        }
    }

    #[test]
    fn wide_vectors_equal_plain_words() {
        let mut wide = vec![[0x5a; BLOCK]; 5];
        wide[3][77] = 0xff;
        let mut plain = wide.clone();
        assert_eq!(mask_blocks(&mut wide, KEY), mask_blocks_generic(&mut plain, KEY));
        assert_eq!(wide, plain);
    }

    #[test]
    fn chunks_with_a_rotated_key_equal_the_whole() {
        let bytes = sample(if cfg!(miri) { 30 } else { 600 });
        let mut whole = bytes.clone();
        apply(&mut whole, KEY);
        for cut in 0..=bytes.len() {
            let mut chunks = bytes.clone();
            let (first, second) = chunks.split_at_mut(cut);
            apply(first, KEY);
            apply(second, rotate(KEY, cut));
            assert_eq!(chunks, whole, "cut at {cut}");
        }
    }
}
