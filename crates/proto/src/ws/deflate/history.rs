//! The plaintext that later messages of one direction may refer to.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The last 2^bits bytes of plaintext in one direction of one connection, in order, from the
/// messages that were sent compressed.
///
/// It excludes messages that were sent uncompressed ([RFC 7692 section
/// 7.2](https://www.rfc-editor.org/rfc/rfc7692#section-7.2)). It starts empty and grows with
/// appended plaintext, to at most about 2^bits bytes. Plaintext shared by many connections can be
/// referenced instead of copied.
#[derive(Debug)]
pub struct History {
    /// Plaintext owned by this history, oldest first.
    own: VecDeque<u8>,
    /// Plaintext referenced by this history, oldest first.
    shared: VecDeque<SharedHistory>,
    /// Length of both in bytes.
    len: usize,
    bits: u8,
}

/// A part of the history that lies in shared memory.
#[derive(Debug)]
struct SharedHistory {
    bytes: Arc<[u8]>,
    /// The range within `bytes`.
    start: u32,
    end: u32,
    /// Number of bytes of `own` between the previous shared part and this one.
    own_before: u32,
}

/// Shorter plaintext is copied: a reference takes 32 bytes.
const MIN_SHARED: usize = 64;

/// Initial capacity, enough for a few short messages; beyond it a window of up to [`SMALL_WINDOW`]
/// is allocated completely.
const INITIAL_CAPACITY: usize = 128;

/// In bytes.
const SMALL_WINDOW: usize = 2048;

/// Maximum size of shared memory that is kept alive for its end, in windows; the end of larger
/// memory is copied.
const MAX_SHARED: usize = 8;

impl SharedHistory {
    fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start as usize..self.end as usize]
    }
}

impl History {
    /// Creates an empty history of at most 2^`bits` bytes.
    ///
    /// `bits` is [`our_history_bits`](super::Agreed::our_history_bits) or
    /// [`peer_history_bits`](super::Agreed::peer_history_bits) of the connection: 9 to 15.
    #[must_use]
    pub fn new(bits: u8) -> Self {
        let bits = bits.clamp(9, 15);
        Self { own: VecDeque::new(), shared: VecDeque::new(), len: 0, bits }
    }

    /// Returns the length of the plaintext in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the history is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes of heap memory, without shared plaintext.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.own.capacity() + self.shared.capacity() * size_of::<SharedHistory>()
    }

    /// Appends the plaintext of a message by copying the part that fits the window.
    pub fn append(&mut self, plaintext: &[u8]) {
        let kept = &plaintext[plaintext.len().saturating_sub(1 << self.bits)..];
        self.drop_oldest((1 << self.bits) - kept.len());
        self.reserve_own(kept.len());
        self.own.extend(kept);
        self.len += kept.len();
    }

    /// Appends the plaintext of a message that was sent to many connections: `plaintext` within
    /// `bytes`, such as the payload within an encoded frame.
    ///
    /// It is referenced, not copied, unless it is very short, or `bytes` is so much larger than the
    /// window that too much memory would be kept for too little of it.
    ///
    /// # Panics
    /// If `plaintext` is not within `bytes`.
    pub fn append_shared(&mut self, bytes: &Arc<[u8]>, plaintext: Range<usize>) {
        let text = &bytes[plaintext.clone()];
        if text.len() < MIN_SHARED || bytes.len() > MAX_SHARED << self.bits {
            return self.append(text);
        }
        let start = plaintext.start.max(plaintext.end.saturating_sub(1 << self.bits));
        let len = plaintext.end - start;
        self.drop_oldest((1 << self.bits) - len);
        let before: usize = self.shared.iter().map(|shared| shared.own_before as usize).sum();
        if self.shared.len() == self.shared.capacity() {
            // Not doubled: there are few references, and very many connections.
            self.shared.reserve_exact(4);
        }
        // `bytes` is at most 8 * 2^15 long.
        self.shared.push_back(SharedHistory {
            bytes: Arc::clone(bytes),
            start: start as u32,
            end: plaintext.end as u32,
            own_before: (self.own.len() - before) as u32,
        });
        self.len += len;
    }

    /// Returns the history as one slice, assembled in `scratch` if it is not contiguous.
    #[must_use]
    pub fn dictionary<'a>(&'a self, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        let (front, back) = self.own.as_slices();
        if self.shared.is_empty() && back.is_empty() {
            return front;
        }
        scratch.clear();
        // The range of `own` that comes next.
        let mut own = 0..0;
        let mut take_own = |count: usize, scratch: &mut Vec<u8>| {
            own = own.end..own.end + count;
            let (from, to, split) = (own.start, own.end, front.len());
            scratch.extend_from_slice(&front[from.min(split)..to.min(split)]);
            scratch.extend_from_slice(&back[from.max(split) - split..to.max(split) - split]);
        };
        let mut rest = self.own.len();
        for shared in &self.shared {
            rest -= shared.own_before as usize;
            take_own(shared.own_before as usize, scratch);
            scratch.extend_from_slice(shared.as_slice());
        }
        take_own(rest, scratch);
        scratch
    }

    /// Drops the oldest bytes, so that at most `len` are left.
    fn drop_oldest(&mut self, len: usize) {
        let mut excess = self.len.saturating_sub(len);
        self.len -= excess;
        while excess > 0 {
            let Some(oldest) = self.shared.front_mut() else {
                self.own.drain(..excess);
                return;
            };
            let own = excess.min(oldest.own_before as usize);
            self.own.drain(..own);
            oldest.own_before -= own as u32;
            excess -= own;
            let shared = excess.min(oldest.len());
            oldest.start += shared as u32;
            excess -= shared;
            if oldest.start == oldest.end {
                self.shared.pop_front();
            }
        }
    }

    /// Reserves space for `more` bytes: doubling at first, and in the end exactly the window.
    fn reserve_own(&mut self, more: usize) {
        let needed = self.own.len() + more;
        if needed > self.own.capacity() {
            let window = 1 << self.bits;
            // Small windows are allocated at once: memory that grows by steps, next to many others
            // that do, leaves gaps of its former sizes that cannot be used.
            let room = match needed {
                _ if needed > INITIAL_CAPACITY && window <= SMALL_WINDOW => window,
                _ => needed.max(2 * self.own.capacity()).min(window),
            };
            self.own.reserve_exact(room - self.own.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn contents(history: &History) -> Vec<u8> {
        history.dictionary(&mut vec![1, 2, 3]).to_vec()
    }

    #[test]
    fn a_new_history_is_empty() {
        let history = History::new(15);
        assert!(history.is_empty());
        assert_eq!((history.memory(), contents(&history)), (0, vec![]));
    }

    #[test]
    fn shared_plaintext_is_not_copied() {
        let frame: Arc<[u8]> = vec![7; 600].into();
        let mut histories: Vec<History> = (0..10).map(|_| History::new(10)).collect();
        for history in &mut histories {
            history.append_shared(&frame, 4..600);
            assert_eq!(contents(history), [7; 596]);
            assert!(history.memory() <= 128, "{}", history.memory());
        }
        assert_eq!(Arc::strong_count(&frame), 11);
        // Plaintext outside the window is released.
        histories.iter_mut().for_each(|history| history.append(&[8; 1024]));
        assert_eq!(Arc::strong_count(&frame), 1);
    }

    #[test]
    fn memory_far_beyond_the_window_is_not_kept_alive() {
        let frame: Arc<[u8]> = vec![7; 100_000].into();
        let mut history = History::new(10);
        history.append_shared(&frame, 0..100_000);
        assert_eq!((history.len(), Arc::strong_count(&frame)), (1024, 1));
    }

    #[derive(Clone, Debug)]
    enum WindowStep {
        Own(Vec<u8>),
        Shared(Vec<u8>, usize),
    }

    proptest! {
        #[test]
        fn a_history_is_the_end_of_all_appended_bytes_within_its_memory(
            bits in 9..=12u8,
            steps in vec(
                prop_oneof![
                    vec(any::<u8>(), 0..300).prop_map(WindowStep::Own),
                    vec(any::<u8>(), 0..3000).prop_map(WindowStep::Own),
                    (vec(any::<u8>(), 0..300), 0..10usize)
                        .prop_map(|(bytes, start)| WindowStep::Shared(bytes, start)),
                    (vec(any::<u8>(), 0..9000), 0..10usize)
                        .prop_map(|(bytes, start)| WindowStep::Shared(bytes, start)),
                ],
                0..40,
            ),
        ) {
            let mut history = History::new(bits);
            let mut all = Vec::new();
            for step in &steps {
                match step {
                    WindowStep::Own(bytes) => {
                        history.append(bytes);
                        all.extend_from_slice(bytes);
                    }
                    WindowStep::Shared(bytes, start) => {
                        let start = (*start).min(bytes.len());
                        history.append_shared(&bytes[..].into(), start..bytes.len());
                        all.extend_from_slice(&bytes[start..]);
                    }
                }
                let window = 1 << bits;
                let expected = &all[all.len().saturating_sub(window)..];
                prop_assert_eq!(&contents(&history), expected);
                prop_assert_eq!(history.len(), expected.len());
                prop_assert!(history.own.capacity() <= window);
                let parts = history.memory() - history.own.capacity();
                prop_assert!(parts <= window, "{} bytes of references", parts);
            }
        }
    }
}
