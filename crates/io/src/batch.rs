//! The unit of sending: owned bytes, shared frames, and ranges of the memory just lent.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use throng_carry::{Carried, CarryError, Content, Encoder};

/// Bytes that do not change while they are shared.
pub trait Memory: AsRef<[u8]> + Debug + Send + Sync {}

impl<T: AsRef<[u8]> + Debug + Send + Sync> Memory for T {}

/// One segment of a [`Batch`].
#[derive(Debug)]
pub enum Segment {
    /// Bytes of this connection alone.
    Own(Vec<u8>),
    /// An encoded frame that many connections send; queued as a reference, never copied.
    Shared(Arc<[u8]>),
    /// Borrowed memory that another owner keeps unchanged while this reference exists.
    Kept(Arc<dyn Memory>),
    /// A range of the slice of the last [`Event::Received`](crate::Event::Received).
    ///
    /// Only valid in sends before the next event is taken (C1). A driver that cannot send it at
    /// once copies it.
    Lent(Range<usize>),
}

impl Segment {
    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Shared(bytes) => bytes.len(),
            Self::Kept(memory) => memory.as_ref().as_ref().len(),
            Self::Lent(range) => range.len(),
        }
    }

    /// Returns the memory of the segment, divided by the number of references to it.
    fn share(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.capacity(),
            Self::Shared(bytes) => bytes.len() / Arc::strong_count(bytes),
            Self::Kept(memory) => memory.as_ref().as_ref().len() / Arc::strong_count(memory),
            Self::Lent(_) => 0,
        }
    }

    /// Returns true if the segment has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes; `lent` is the slice that [`Segment::Lent`] refers to.
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

/// The output of one send, in order.
///
/// Nearly every batch is a few owned bytes, so those have a buffer of their own (`head`) and the
/// list after it stays empty. The batch keeps the memory of `head` when it is returned, so a batch
/// that goes to the driver and back does not allocate.
///
/// Invariants: `len` is the length of `head` and of all segments, less `sent`; `sent` counts from
/// the start of `head`, or of the first segment once `head` is empty, and is less than its length;
/// no segment is empty.
#[derive(Debug, Default)]
pub struct Batch {
    head: Vec<u8>,
    segments: VecDeque<Segment>,
    sent: usize,
    len: usize,
}

/// Size from which an owned segment is no longer appended to, so that urgent output can be
/// inserted, and stale output dropped, between segments.
const SEALED_LEN: usize = 64 * 1024;

impl Batch {
    /// Appends a segment. Empty segments are dropped.
    pub fn push(&mut self, segment: Segment) {
        if !segment.is_empty() {
            self.len += segment.len();
            self.segments.push_back(segment);
        }
    }

    /// Appends owned bytes: `write` appends them to a buffer that may already hold some.
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

    /// Inserts a segment at the front. No byte of this batch may have been sent before.
    pub fn push_front(&mut self, segment: Segment) {
        debug_assert_eq!(self.sent, 0, "a segment would land in the middle of another");
        if segment.is_empty() {
            return;
        }
        if !self.head.is_empty() {
            self.segments.push_front(Segment::Own(std::mem::take(&mut self.head)));
        }
        self.len += segment.len();
        self.segments.push_front(segment);
    }

    /// Removes the first segment. No byte of this batch may have been sent before.
    pub fn pop_front(&mut self) {
        debug_assert_eq!(self.sent, 0, "half a segment would be lost");
        if !self.head.is_empty() {
            self.len -= self.head.len();
            self.head.clear();
        } else if let Some(first) = self.segments.pop_front() {
            self.len -= first.len();
        }
    }

    /// Returns the bytes of memory kept for reuse.
    #[must_use]
    #[inline]
    pub fn spare_capacity(&self) -> usize {
        self.head.capacity()
    }

    /// Returns the kept memory to the allocator. The batch must be empty.
    pub fn forget_spare(&mut self) {
        debug_assert!(self.is_empty(), "its memory is in use");
        self.head = Vec::new();
    }

    /// Returns an estimate of the memory of this batch. Memory that several batches refer to counts
    /// by this batch's share, estimated from four of its references.
    #[must_use]
    pub fn memory(&self) -> usize {
        let head = self.head.capacity();
        let count = self.segments.len();
        if count == 0 {
            return head;
        }
        let segments = self.segments.capacity() * size_of::<Segment>();
        let referred = (self.len + self.sent).saturating_sub(self.head.len());
        let sample = |at: usize| (self.segments[at].len(), self.segments[at].share());
        head + segments + estimate_share(referred, count, sample)
    }

    /// Returns the number of bytes still to send.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no bytes are left to send.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns all bytes if they are owned, contiguous and entirely unsent.
    #[must_use]
    #[inline]
    pub fn plain(&self) -> Option<&[u8]> {
        (self.segments.is_empty() && self.sent == 0).then_some(&self.head)
    }

    /// Returns the unsent bytes if they are contiguous, so that a driver can use a plain send.
    #[must_use]
    #[inline]
    pub fn single<'a>(&'a self, lent: &'a [u8]) -> Option<&'a [u8]> {
        match self.segments.len() {
            0 => Some(&self.head[self.sent..]),
            1 if self.head.is_empty() => Some(&self.segments[0].bytes(lent)[self.sent..]),
            _ => None,
        }
    }

    /// Fills `slices` with the first segments, for a vectored send; returns how many it filled.
    pub fn gather<'a>(&'a self, lent: &'a [u8], slices: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.sent;
        let mut filled = 0;
        let head = (!self.head.is_empty()).then_some(self.head.as_slice());
        let segments =
            head.into_iter().chain(self.segments.iter().map(|segment| segment.bytes(lent)));
        for (slice, segment) in slices.iter_mut().zip(segments) {
            *slice = IoSlice::new(&segment[skip..]);
            skip = 0;
            filled += 1;
        }
        filled
    }

    /// Marks `n` bytes as sent.
    ///
    /// # Panics
    /// If `n` is more than [`Batch::len`], which is a bug in the driver.
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

    /// Drops all unsent bytes.
    #[inline]
    pub fn clear(&mut self) {
        self.head.clear();
        self.sent = 0;
        self.len = 0;
        if !self.segments.is_empty() {
            self.clear_segments();
        }
    }

    /// Out of line: few batches have segments.
    #[inline(never)]
    fn clear_segments(&mut self) {
        self.segments.clear();
    }

    /// Replaces lent segments by owned copies, so that the batch may outlive the lent memory.
    pub fn own(&mut self, lent: &[u8]) {
        for segment in &mut self.segments {
            if let Segment::Lent(range) = segment {
                *segment = Segment::Own(lent[range.clone()].to_vec());
            }
        }
    }

    /// Copies the unsent bytes to the end of `out`; for records, the simulator and tests.
    pub fn copy_to(&self, lent: &[u8], out: &mut Vec<u8>) {
        let mut skip = self.sent;
        let head = (!self.head.is_empty()).then_some(self.head.as_slice());
        for segment in
            head.into_iter().chain(self.segments.iter().map(|segment| segment.bytes(lent)))
        {
            out.extend_from_slice(&segment[skip..]);
            skip = 0;
        }
    }
}

/// The unsent bytes move, as bytes of the connection alone. A batch in flight has no lent memory.
impl Carried for Batch {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        let mut bytes = Vec::with_capacity(self.len());
        self.copy_to(&[], &mut bytes);
        out.bytes(tag, &bytes)
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        let mut batch = Self::default();
        batch.append(|out| out.extend_from_slice(content.0));
        Ok(batch)
    }
}

/// Estimates the memory of `total` bytes in `count` pieces (not 0) from four of the pieces.
/// `sample` returns the length of a piece, and its share of the memory that it refers to.
pub fn estimate_share(
    total: usize,
    count: usize,
    sample: impl Fn(usize) -> (usize, usize),
) -> usize {
    let sampled = [0, count / 3, count * 2 / 3, count - 1].map(sample);
    let len: usize = sampled.iter().map(|(len, _)| len).sum();
    let share: usize = sampled.iter().map(|(_, share)| share).sum();
    let scaled = total as u128 * share as u128 / len.max(1) as u128;
    usize::try_from(scaled).unwrap_or(usize::MAX)
}

/// Returns the last segment if it can be appended to, or a new one.
#[inline(never)]
fn open_segment(segments: &mut VecDeque<Segment>) -> &mut Vec<u8> {
    if !matches!(segments.back(), Some(Segment::Own(own)) if own.len() < SEALED_LEN) {
        segments.push_back(Segment::Own(Vec::new()));
    }
    match segments.back_mut() {
        Some(Segment::Own(own)) => own,
        _ => unreachable!("an owned segment was pushed just above"),
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
    fn any_step_size_sends_the_same_bytes() {
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
    fn appending_extends_owned_bytes_only() {
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
    fn memory_counts_a_share_of_what_several_batches_refer_to() {
        let frame: Arc<[u8]> = Arc::from(vec![0; 10_000]);
        let mut batches = [Batch::default(), Batch::default()];
        for batch in &mut batches {
            batch.append(|own| own.extend_from_slice(&[1; 500]));
            batch.push(Segment::Shared(Arc::clone(&frame)));
        }
        let alone: usize = batches.iter().map(Batch::memory).sum();
        // Three references: two batches, and the test's own.
        assert!((7_600..8_900).contains(&alone), "{alone}");
        drop(frame);
        let [mut first, second] = batches;
        drop(second);
        first.push(Segment::Own(vec![0; 40_000]));
        assert!((50_500..52_000).contains(&first.memory()), "{}", first.memory());
        assert_eq!(Batch::default().memory(), 0);
    }

    #[test]
    #[should_panic(expected = "more bytes sent")]
    fn advancing_past_the_end_is_a_driver_bug() {
        batch().advance(11);
    }
}
