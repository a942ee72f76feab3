//! Ranges of a head.

/// A range of a head. It takes 32 bits, so that an unfinished head stays small; `Limits` guarantees
/// that they suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// Creates a span. Offsets are below `Limits::MAX_HEADER_BYTES`, so they fit.
    #[inline]
    pub(crate) const fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Returns the span that begins `between` bytes after this one and ends where `whole` ends.
    #[inline]
    pub(crate) const fn after_until(self, between: u32, whole: Self) -> Self {
        Self { start: self.end + between, end: whole.end }
    }

    /// Returns the bytes; empty if the span does not belong to this head.
    #[inline]
    pub(crate) fn of(self, head: &[u8]) -> &[u8] {
        head.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// Returns the part of the head's first text, which is known to be UTF-8; empty if it does not
    /// belong to this head.
    #[inline]
    pub(crate) fn part_of(self, start: &str) -> &str {
        start.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// Returns the bytes up to its end.
    #[inline]
    pub(crate) fn up_to_end(self, head: &[u8]) -> &[u8] {
        head.get(..self.end as usize).unwrap_or_default()
    }

    /// Returns the text; empty if it is not UTF-8.
    #[inline]
    pub(crate) fn text_of(self, head: &[u8]) -> &str {
        str::from_utf8(self.of(head)).unwrap_or_default()
    }
}
