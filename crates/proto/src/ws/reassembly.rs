//! Reassembly of messages and control frames that arrived in several reads.

use std::sync::Arc;

use throng_simd::JoinBuffer;

/// The parts of a decoder that exist only while a message or frame has arrived in part.
#[derive(Debug)]
pub(super) struct Reassembly {
    /// The message so far. Shared only once it is complete, with senders that forward it.
    pub(super) message: Arc<JoinBuffer>,
    /// The control frame so far, separate from the message because it may come inside one.
    control: [u8; MAX_CONTROL],
    control_len: u8,
    /// The state of a message that is not reassembled.
    pub(super) streamed: StreamedMessage,
}

/// The state of a message whose chunks are returned as they arrive.
#[derive(Debug, Default)]
pub(super) struct StreamedMessage {
    /// Bytes so far.
    pub(super) len: u64,
    /// Whether a chunk was returned.
    pub(super) begun: bool,
    /// The first bytes of a character whose rest is still to come.
    cut: [u8; 4],
    cut_len: usize,
}

impl StreamedMessage {
    /// Validates the next chunk of a text; `last` if no more will come. Returns false if it is not
    /// UTF-8.
    pub(super) fn check_text(&mut self, mut chunk: &[u8], last: bool) -> bool {
        while self.cut_len > 0 {
            let Some((&byte, rest)) = chunk.split_first() else { return !last };
            self.cut[self.cut_len] = byte;
            chunk = rest;
            match str::from_utf8(&self.cut[..=self.cut_len]) {
                Ok(_) => self.cut_len = 0,
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => self.cut_len += 1,
            }
        }
        match str::from_utf8(chunk) {
            Ok(_) => true,
            Err(error) if error.error_len().is_some() || last => false,
            Err(error) => {
                let cut = &chunk[error.valid_up_to()..];
                self.cut[..cut.len()].copy_from_slice(cut);
                self.cut_len = cut.len();
                true
            }
        }
    }
}

/// Maximum payload of a control frame (RFC 6455 section 5.5).
const MAX_CONTROL: usize = 125;

/// Minimum space reserved beyond the first bytes of a message that expects as many.
const MIN_RESERVE: usize = 256;

impl Reassembly {
    fn new() -> Self {
        Self {
            message: Arc::default(),
            control: [0; MAX_CONTROL],
            control_len: 0,
            streamed: StreamedMessage::default(),
        }
    }

    /// Reserves space in the message for `chunk` bytes that have arrived and `expected` bytes that
    /// may follow; for the latter at most as much as was already received. So memory follows the
    /// bytes that a peer sends instead of the length that it declares. This is also enough to avoid
    /// repeated copies of a message of many fragments.
    pub(super) fn reserve(&mut self, chunk: usize, expected: usize) -> &mut JoinBuffer {
        let message = Arc::make_mut(&mut self.message);
        let received = message.len() + chunk;
        if message.capacity() < received {
            message.reserve(chunk + expected.min(received.max(MIN_RESERVE)));
        }
        message
    }

    /// Returns whether a sender forwards the message.
    pub(super) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.message) > 1
    }

    /// Returns the bytes of memory that it takes.
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.message.capacity()
    }

    /// Appends to the control frame. The caller has checked in its header that all of it fits.
    pub(super) fn push_control(&mut self, chunk: &[u8]) {
        let start = usize::from(self.control_len);
        if let Some(room) = self.control.get_mut(start..start + chunk.len()) {
            room.copy_from_slice(chunk);
            self.control_len += chunk.len() as u8;
        }
    }

    /// Returns the control frame so far.
    pub(super) fn control(&self) -> &[u8] {
        &self.control[..usize::from(self.control_len)]
    }

    pub(super) fn clear_control(&mut self) {
        self.control_len = 0;
    }
}

/// Maximum buffers kept for the next messages, so that this many messages that arrive at the same
/// time allocate no memory. The system maps blocks of that size again at each allocation, and
/// faulting their pages in takes a quarter of the cost of a message of 1 MiB.
const MAX_SPARES: usize = 8;
/// Maximum capacity of one kept buffer.
const MAX_SPARE: usize = 4 << 20;
/// Maximum capacity of all kept buffers.
const MAX_SPARE_TOTAL: usize = 8 << 20;
/// A buffer of at most this capacity is for any message.
const SMALL: usize = 16 << 10;
/// A larger buffer has at most this many times the received bytes of its message: memory follows
/// the bytes that a peer sends, and a few bytes do not occupy the buffer of a large message.
const MAX_CAPACITY_RATIO: usize = 8;

/// Reassembly buffers that are not in use, kept for the next split messages.
///
/// The connections of a shard are meant to share one, see [`Decoder::next_event_with`]. It keeps at
/// most 8 buffers, of at most 4 MiB each and 8 MiB together; [`Spare::default`] keeps no buffers.
///
/// [`Decoder::next_event_with`]: super::Decoder::next_event_with
#[derive(Debug, Default)]
pub struct Spare {
    #[allow(clippy::vec_box, reason = "a decoder takes and gives boxes: nothing is boxed again")]
    kept: Vec<Box<Reassembly>>,
    /// The minimum number of kept buffers since the last [`Spare::release_unused`].
    fewest: usize,
    joined: Option<Arc<JoinBuffer>>,
}

impl Spare {
    /// Creates a spare without a buffer.
    #[must_use]
    pub const fn new() -> Self {
        Self { kept: Vec::new(), fewest: 0, joined: None }
    }

    /// Returns the memory of the message that the last call returned, if it was reassembled: keep
    /// it to forward the message without copying it.
    #[must_use]
    pub fn joined(&self) -> Option<Arc<JoinBuffer>> {
        self.joined.clone()
    }

    /// Borrows the message that the last call returned, if it was reassembled: for a caller that
    /// cannot keep the event. `None` also for text if the message is not text.
    #[must_use]
    pub fn joined_text(&self) -> Option<&str> {
        self.joined.as_ref().and_then(|joined| joined.as_str())
    }

    /// Borrows the payload of the message that the last call returned, if it was reassembled.
    #[must_use]
    pub fn joined_bytes(&self) -> Option<&[u8]> {
        self.joined.as_ref().map(|joined| joined.as_bytes())
    }

    /// Returns the bytes of memory kept: for the next messages, and of the message that the last
    /// call returned.
    #[must_use]
    pub fn capacity(&self) -> usize {
        let joined = self.joined.as_ref().map_or(0, |joined| joined.capacity());
        self.kept.iter().map(|kept| kept.memory()).sum::<usize>() + joined
    }

    /// Frees the buffers that no message has needed since the last call, and the message that was
    /// last returned. Call this now and then between two events; otherwise they stay.
    pub fn release_unused(&mut self) {
        self.joined = None;
        self.kept.drain(..self.fewest.min(self.kept.len()));
        self.fewest = self.kept.len();
    }

    pub(super) fn set_joined(&mut self, joined: Option<&Arc<JoinBuffer>>) {
        self.joined = joined.cloned();
    }

    /// Returns a buffer for a message. `received` bytes of the message have arrived.
    pub(super) fn take(&mut self, received: usize) -> Box<Reassembly> {
        let largest = received.saturating_mul(MAX_CAPACITY_RATIO).max(SMALL);
        let free = self.kept.iter_mut().rposition(|kept| {
            // The messages in other buffers are still being sent.
            kept.message.capacity() <= largest && Arc::get_mut(&mut kept.message).is_some()
        });
        let Some(mut reassembly) = free.map(|at| self.kept.remove(at)) else {
            return Box::new(Reassembly::new());
        };
        self.fewest = self.fewest.min(self.kept.len());
        Arc::make_mut(&mut reassembly.message).clear();
        reassembly.streamed = StreamedMessage::default();
        reassembly
    }

    pub(super) fn give(&mut self, mut reassembly: Box<Reassembly>) {
        let capacity = reassembly.message.capacity();
        let total: usize = self.kept.iter().map(|kept| kept.message.capacity()).sum();
        if capacity > MAX_SPARE {
            return;
        }
        reassembly.clear_control();
        if self.kept.len() < MAX_SPARES && total + capacity <= MAX_SPARE_TOTAL {
            return self.kept.push(reassembly);
        }
        let smallest = self.kept.iter_mut().min_by_key(|kept| kept.message.capacity());
        let Some(smallest) = smallest else { return };
        let replaced = smallest.message.capacity();
        if capacity > replaced && total - replaced + capacity <= MAX_SPARE_TOTAL {
            *smallest = reassembly;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reassembly(capacity: usize) -> Box<Reassembly> {
        let mut reassembly = Reassembly::new();
        reassembly.reserve(capacity, 0);
        Box::new(reassembly)
    }

    fn capacities(spare: &Spare) -> Vec<usize> {
        spare.kept.iter().map(|kept| kept.message.capacity()).collect()
    }

    #[test]
    fn eight_buffers_are_kept_at_most_and_large_ones_before_small_ones() {
        let mut spare = Spare::new();
        (0..9).for_each(|_| spare.give(reassembly(100)));
        assert_eq!(capacities(&spare), [100; 8]);
        spare.give(reassembly(2 << 20));
        spare.give(reassembly(50));
        assert_eq!(capacities(&spare).iter().filter(|capacity| **capacity == 100).count(), 7);
        (0..9).for_each(|_| spare.give(reassembly(4 << 20)));
        spare.give(reassembly((4 << 20) + 1));
        let total: usize = capacities(&spare).iter().sum();
        assert!((6 << 20..=8 << 20).contains(&total), "{total}");
    }

    #[test]
    fn a_buffer_whose_message_is_still_being_sent_is_left_alone() {
        let mut spare = Spare::new();
        spare.give(reassembly(300));
        let being_sent = reassembly(500);
        let message = Arc::clone(&being_sent.message);
        spare.give(being_sent);
        assert_eq!(spare.take(1000).message.capacity(), 300);
        assert_eq!(spare.take(1000).message.capacity(), 0);
        drop(message);
        assert_eq!(spare.take(1000).message.capacity(), 500);
    }

    #[test]
    fn a_large_buffer_is_for_a_message_of_which_an_eighth_has_come() {
        let mut spare = Spare::new();
        for capacity in [300, 1 << 20, 200_000] {
            spare.give(reassembly(capacity));
        }
        assert_eq!(spare.take(0).message.capacity(), 300);
        assert_eq!(spare.take(0).message.capacity(), 0);
        assert_eq!(spare.take(25_000).message.capacity(), 200_000);
        assert_eq!(spare.take(25_000).message.capacity(), 0);
        assert_eq!(spare.take(1 << 17).message.capacity(), 1 << 20);
    }

    #[test]
    fn large_buffers_that_no_message_takes_make_room_for_others() {
        let mut spare = Spare::new();
        (0..2).for_each(|_| spare.give(reassembly(4 << 20)));
        for _ in 0..2 {
            let one = spare.take(1 << 17);
            assert!(one.message.capacity() <= 1 << 20);
            spare.give(reassembly(1 << 20));
            spare.release_unused();
        }
        spare.give(reassembly(1 << 20));
        assert_eq!(capacities(&spare), [1 << 20]);
    }

    #[test]
    fn the_last_message_is_kept_no_longer_than_until_the_next_release() {
        let mut spare = Spare::new();
        spare.set_joined(Some(&reassembly(300).message));
        assert_eq!(spare.capacity(), 300);
        spare.release_unused();
        assert_eq!(spare.capacity(), 0);
    }

    #[test]
    fn buffers_that_no_message_needs_are_freed() {
        let mut spare = Spare::new();
        (0..3).for_each(|_| spare.give(reassembly(300)));
        spare.release_unused();
        assert_eq!(spare.kept.len(), 3, "they were given since");
        for _ in 0..5 {
            let one = spare.take(0);
            spare.give(one);
        }
        spare.release_unused();
        assert_eq!(spare.kept.len(), 1, "two were in use at no time");
        spare.release_unused();
        assert_eq!(spare.capacity(), 0);
    }
}
