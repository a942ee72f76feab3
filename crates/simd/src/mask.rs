//! WebSocket masking (RFC 6455 section 5.3): XOR with a four-byte key that repeats.

/// The key as it stands after `by` bytes: what the next byte of the same payload is masked with first.
#[inline]
#[must_use]
pub fn rotate(key: [u8; 4], by: usize) -> [u8; 4] {
    let mut key = key;
    key.rotate_left(by % 4);
    key
}

/// Masks or unmasks `bytes` in place; the first byte meets `key[0]`.
#[inline]
pub fn apply(bytes: &mut [u8], key: [u8; 4]) {
    for (byte, key) in bytes.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
}

/// Appends the masked (or unmasked) `bytes` to `out` in one pass; the first byte meets `key[0]`.
pub fn append(bytes: &[u8], key: [u8; 4], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(bytes);
    apply(&mut out[start..], key);
}
