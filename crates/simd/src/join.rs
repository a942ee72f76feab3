//! A buffer in which the pieces of one message are joined.

use std::fmt;

use crate::mask;

/// A byte that cannot continue the UTF-8 sequence before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenUtf8;

impl fmt::Display for BrokenUtf8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a byte that breaks UTF-8")
    }
}

impl std::error::Error for BrokenUtf8 {}

/// The pieces of one message, joined in one allocation, unmasked on the way in.
///
/// Text is checked as it comes: a byte that no continuation can make valid is refused by the very
/// push that brings it, a sequence cut at the end of a piece waits for the next one, and
/// [`JoinBuffer::as_str`] costs nothing.
#[derive(Debug, Default)]
pub struct JoinBuffer {
    bytes: Vec<u8>,
    /// Invariant: `bytes[..checked]` is UTF-8.
    checked: usize,
}

impl JoinBuffer {
    /// An empty buffer; allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), checked: 0 }
    }

    /// Bytes joined so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Nothing was joined yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes allocated.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Makes room for exactly `additional` more bytes; no more than asked, unlike a `Vec`'s growth.
    pub fn reserve(&mut self, additional: usize) {
        self.bytes.reserve_exact(additional);
    }

    /// Appends `piece`, unmasked if there is a key; the first byte meets `key[0]`. Not checked as text.
    pub fn push(&mut self, piece: &[u8], key: Option<[u8; 4]>) {
        match key {
            Some(key) => mask::append(piece, key, &mut self.bytes),
            None => self.bytes.extend_from_slice(piece),
        }
    }

    /// As [`JoinBuffer::push`], and checks all that was not checked before.
    ///
    /// # Errors
    /// A byte cannot belong to UTF-8 whatever follows. The buffer is then only good for [`JoinBuffer::clear`].
    pub fn push_text(&mut self, piece: &[u8], key: Option<[u8; 4]>) -> Result<(), BrokenUtf8> {
        self.push(piece, key);
        match simdutf8::compat::from_utf8(&self.bytes[self.checked..]) {
            Ok(_) => self.checked = self.bytes.len(),
            Err(error) if error.error_len().is_none() => self.checked += error.valid_up_to(),
            Err(_) => return Err(BrokenUtf8),
        }
        Ok(())
    }

    /// What was joined.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What was joined, if all of it was pushed as text and no sequence is cut at the end.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        (self.checked == self.bytes.len()).then(|| {
            // SAFETY: by the invariant of `checked`, which is the whole length here.
            unsafe { std::str::from_utf8_unchecked(&self.bytes) }
        })
    }

    /// Forgets the content and keeps the allocation.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.checked = 0;
    }
}
