//! A cursor over the bytes that a driver lent.

use std::mem;

/// The rest of the bytes that a driver lent for one event.
///
/// A decoder takes bytes from the front and leaves the rest. Taken bytes keep the lifetime `'b` of
/// the loan, not of the `Input`, so a payload can be unmasked in place and passed to a handler, and
/// the next frame decoded, without a copy.
#[derive(Debug)]
pub struct Input<'b> {
    rest: &'b mut [u8],
}

impl<'b> Input<'b> {
    /// Wraps all bytes that the driver lent.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'b mut [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns whether no bytes are left.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the number of bytes left.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.rest.len()
    }

    /// Returns the bytes left, without taking them.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.rest
    }

    /// Returns the bytes left, without taking them, so that they can be changed.
    #[inline]
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.rest
    }

    /// Takes up to `n` bytes from the front: all that is left if there are fewer.
    #[inline]
    pub fn take(&mut self, n: usize) -> &'b mut [u8] {
        let rest = mem::take(&mut self.rest);
        // Fewer bytes instead of a panic: input from the network reaches this function.
        let (taken, rest) = rest.split_at_mut(n.min(rest.len()));
        self.rest = rest;
        taken
    }

    /// Takes `n` bytes from the front, or nothing if there are fewer.
    #[inline]
    pub fn take_exactly(&mut self, n: usize) -> Option<&'b mut [u8]> {
        if n > self.rest.len() {
            return None;
        }
        Some(self.take(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_bytes_outlive_the_next_take() {
        let mut bytes = *b"abcdef";
        let mut input = Input::new(&mut bytes);
        let first = input.take(2);
        let second = input.take(3);
        first[0] = b'x';
        assert_eq!((&*first, &*second, input.as_slice()), (&b"xb"[..], &b"cde"[..], &b"f"[..]));
    }

    #[test]
    fn take_returns_what_is_left() {
        let mut bytes = *b"abc";
        let mut input = Input::new(&mut bytes);
        assert_eq!(input.take(10), b"abc");
        assert!(input.is_empty());
        assert_eq!(input.len(), 0);
        assert_eq!(input.take(1), b"");
    }
}
