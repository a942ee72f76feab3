//! Bytes that may contain keys.

use std::fmt;
use std::ops::{Deref, DerefMut};

use zeroize::Zeroize;

/// Bytes that are wiped before their memory is given back: when they are dropped, and when they
/// need more memory.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Returns zeros, for a buffer.
    #[must_use]
    pub fn zeros(count: usize) -> Self {
        Self(vec![0; count])
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) {
        let needed = self.0.len() + bytes.len();
        if needed > self.0.capacity() {
            let mut larger = Vec::with_capacity(needed.max(2 * self.0.capacity()));
            larger.extend_from_slice(&self.0);
            // `Vec` would give the old memory back as it is.
            std::mem::replace(&mut self.0, larger).zeroize();
        }
        self.0.extend_from_slice(bytes);
    }

    /// Removes the first `count` bytes. What follows them moves to the front.
    pub(crate) fn remove_first(&mut self, count: usize) {
        self.0.copy_within(count.., 0);
        let left = self.0.len() - count;
        self.0[left..].zeroize();
        self.0.truncate(left);
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl From<&[u8]> for Secret {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl Deref for Secret {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Secret {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl AsRef<[u8]> for Secret {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    /// Writes the length: the content may be a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_appended_and_removed_and_not_printed() {
        let mut secret = Secret::default();
        for part in [&b"one"[..], b"", b" and a longer part than before", b"!"] {
            secret.append(part);
        }
        assert_eq!(&*secret, b"one and a longer part than before!");
        secret.remove_first(4);
        assert_eq!(secret.as_ref(), b"and a longer part than before!");
        assert_eq!(format!("{secret:?}"), "Secret(30 bytes)");
        secret.remove_first(30);
        assert!(secret.is_empty());
    }
}
