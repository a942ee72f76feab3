//! What one send carries: owned bytes, shared frames, and pieces of the memory just lent.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that do not change while they are shared.
pub trait Memory: AsRef<[u8]> + Debug + Send + Sync {}

impl<T: AsRef<[u8]> + Debug + Send + Sync> Memory for T {}

/// One piece of output.
#[derive(Debug)]
pub enum Segment {
    /// Bytes of this connection alone.
    Own(Vec<u8>),
    /// A finished frame that many connections send; queued as a reference, never copied.
    Shared(Arc<[u8]>),
    /// Somebody else's memory, which stays as it is while it is kept here.
    Kept(Arc<dyn Memory>),
    /// Part of the slice of the last [`Event::Received`](crate::Event::Received), by offset. Only valid in a send
    /// that is the very next call to the driver after that event; a driver that cannot send it at once copies it.
    Lent(Range<usize>),
}

impl Segment {
    /// Bytes of this piece.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Shared(bytes) => bytes.len(),
            Self::Kept(memory) => memory.as_ref().as_ref().len(),
            Self::Lent(range) => range.len(),
        }
    }

    /// True for a piece without bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The piece itself; `lent` is what [`Segment::Lent`] refers to.
    #[must_use]
    pub fn bytes<'a>(&'a self, lent: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
            Self::Kept(memory) => memory.as_ref().as_ref(),
            Self::Lent(range) => &lent[range.clone()],
        }
    }
}

/// The unit of sending: what is to leave, in order.
///
/// Nearly every batch is nothing but a few owned bytes, so those have a place of their own (`head`) and the list
/// behind it stays empty. The memory of `head` comes home with the batch: a batch that goes to the driver and back
/// does not allocate.
///
/// Invariants: `len` is the length of `head` and of all segments, less `sent`; `sent` counts from the start of
/// `head`, or of the first segment once `head` is empty, and is less than its length; no segment is empty.
#[derive(Debug, Default)]
pub struct Batch {
    head: Vec<u8>,
    segments: VecDeque<Segment>,
    sent: usize,
    len: usize,
}

/// An owned piece of this size is not appended to any more, so that what must overtake or be dropped can be
/// put between pieces.
const SEALED_LEN: usize = 64 * 1024;

impl Batch {
    /// Adds a piece behind the others. Empty pieces are dropped.
    pub fn push(&mut self, segment: Segment) {
        if !segment.is_empty() {
            self.len += segment.len();
            self.segments.push_back(segment);
        }
    }

    /// Adds owned bytes behind the others: `write` appends them to a buffer that may already hold some.
    #[inline(always)]
    pub fn append<R>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let own = if self.segments.is_empty() && self.head.len() < SEALED_LEN {
            &mut self.head
        } else {
            open_segment(&mut self.segments)
        };
        let before = own.len();
        let result = write(own);
        self.len += own.len() - before;
        result
    }

    /// Puts a piece before the others. Nothing of this batch may have been sent.
    pub fn push_front(&mut self, segment: Segment) {
        debug_assert_eq!(self.sent, 0, "a piece would land in the middle of another");
        if segment.is_empty() {
            return;
        }
        if !self.head.is_empty() {
            self.segments.push_front(Segment::Own(std::mem::take(&mut self.head)));
        }
        self.len += segment.len();
        self.segments.push_front(segment);
    }

    /// Drops the first piece. Nothing of this batch may have been sent.
    pub fn pop_front(&mut self) {
        debug_assert_eq!(self.sent, 0, "half a piece would be lost");
        if !self.head.is_empty() {
            self.len -= self.head.len();
            self.head.clear();
        } else if let Some(first) = self.segments.pop_front() {
            self.len -= first.len();
        }
    }

    /// Bytes of memory kept for reuse.
    #[must_use]
    #[inline]
    pub fn spare_capacity(&self) -> usize {
        self.head.capacity()
    }

    /// Gives the kept memory back to the allocator. The batch must be empty.
    pub fn forget_spare(&mut self) {
        debug_assert!(self.is_empty(), "its memory is in use");
        self.head = Vec::new();
    }

    /// Bytes still to send.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when everything has left.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it, if it is nothing but owned bytes in one piece of which none has left.
    #[must_use]
    #[inline]
    pub fn plain(&self) -> Option<&[u8]> {
        (self.segments.is_empty() && self.sent == 0).then_some(&self.head)
    }

    /// The only piece, if there is just one: lets a driver use the plain send.
    #[must_use]
    #[inline]
    pub fn single<'a>(&'a self, lent: &'a [u8]) -> Option<&'a [u8]> {
        match self.segments.len() {
            0 => Some(&self.head[self.sent..]),
            1 if self.head.is_empty() => Some(&self.segments[0].bytes(lent)[self.sent..]),
            _ => None,
        }
    }

    /// Fills `slices` with the first pieces, for a gathered send; returns how many.
    pub fn gather<'a>(&'a self, lent: &'a [u8], slices: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.sent;
        let mut filled = 0;
        let head = (!self.head.is_empty()).then_some(self.head.as_slice());
        let pieces = head.into_iter().chain(self.segments.iter().map(|piece| piece.bytes(lent)));
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(&piece[skip..]);
            skip = 0;
            filled += 1;
        }
        filled
    }

    /// Notes that `n` bytes have left.
    ///
    /// # Panics
    /// If `n` is more than [`Batch::len`]: a driver's bug.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        if n == self.len {
            self.clear();
        } else {
            self.advance_within(n);
        }
    }

    #[cold]
    fn advance_within(&mut self, n: usize) {
        assert!(n < self.len, "a driver reported more bytes sent than it was given");
        self.len -= n;
        self.sent += n;
        if !self.head.is_empty() {
            if self.sent < self.head.len() {
                return;
            }
            self.sent -= self.head.len();
            self.head.clear();
        }
        while let Some(first) = self.segments.front() {
            if self.sent < first.len() {
                break;
            }
            self.sent -= first.len();
            self.segments.pop_front();
        }
    }

    /// Drops what has not left.
    #[inline]
    pub fn clear(&mut self) {
        self.head.clear();
        self.sent = 0;
        self.len = 0;
        if !self.segments.is_empty() {
            self.clear_segments();
        }
    }

    /// Out of line: few batches have any.
    #[inline(never)]
    fn clear_segments(&mut self) {
        self.segments.clear();
    }

    /// Replaces lent pieces by owned copies, so that the batch may outlive the lending.
    pub fn own(&mut self, lent: &[u8]) {
        for segment in &mut self.segments {
            if let Segment::Lent(range) = segment {
                *segment = Segment::Own(lent[range.clone()].to_vec());
            }
        }
    }

    /// Copies what is still to send to the end of `out`; for the simulator and for tests.
    pub fn copy_to(&self, lent: &[u8], out: &mut Vec<u8>) {
        let mut skip = self.sent;
        let head = (!self.head.is_empty()).then_some(self.head.as_slice());
        for piece in head.into_iter().chain(self.segments.iter().map(|piece| piece.bytes(lent))) {
            out.extend_from_slice(&piece[skip..]);
            skip = 0;
        }
    }
}

/// The last piece, if it can be appended to, or a new one.
#[inline(never)]
fn open_segment(segments: &mut VecDeque<Segment>) -> &mut Vec<u8> {
    if !matches!(segments.back(), Some(Segment::Own(own)) if own.len() < SEALED_LEN) {
        segments.push_back(Segment::Own(Vec::new()));
    }
    match segments.back_mut() {
        Some(Segment::Own(own)) => own,
        _ => unreachable!("an owned piece was pushed just above"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        let mut batch = Batch::default();
        batch.push(Segment::Own(b"abc".to_vec()));
        batch.push(Segment::Own(Vec::new()));
        batch.push(Segment::Shared(Arc::from(&b"defgh"[..])));
        batch.push(Segment::Lent(1..3));
        batch
    }

    #[test]
    fn any_way_of_leaving_gives_the_same_bytes() {
        let lent = b"xijy";
        for step in 1..11 {
            let (mut batch, mut wire) = (batch(), Vec::new());
            while !batch.is_empty() {
                let mut slices = [IoSlice::new(&[]); 2];
                let filled = batch.gather(lent, &mut slices);
                let mut left = step;
                for slice in &slices[..filled] {
                    let n = left.min(slice.len());
                    wire.extend_from_slice(&slice[..n]);
                    left -= n;
                }
                batch.advance(step - left);
            }
            assert_eq!(wire, b"abcdefghij", "step {step}");
        }
    }

    #[test]
    fn owning_keeps_bytes_and_position() {
        let mut batch = batch();
        batch.advance(9);
        batch.own(b"xijy");
        let mut out = Vec::new();
        batch.copy_to(b"", &mut out);
        assert_eq!(out, b"j");
        assert_eq!(batch.single(b""), Some(&b"j"[..]));
    }

    #[test]
    fn appending_joins_owned_bytes_only() {
        let mut batch = Batch::default();
        batch.append(|own| own.extend_from_slice(b"ab"));
        batch.append(|own| own.extend_from_slice(b"cd"));
        assert_eq!(batch.single(b""), Some(&b"abcd"[..]));
        batch.push(Segment::Shared(Arc::from(&b"ef"[..])));
        batch.append(|own| own.extend_from_slice(b"gh"));
        batch.push_front(Segment::Own(b"!".to_vec()));
        let mut out = Vec::new();
        batch.copy_to(b"", &mut out);
        assert_eq!((out.as_slice(), batch.len()), (&b"!abcdefgh"[..], 9));
    }

    #[test]
    #[should_panic(expected = "more bytes sent")]
    fn advancing_past_the_end_is_a_driver_bug() {
        batch().advance(11);
    }
}
