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
    /// may follow; for the latter no more than was already received: memory follows what a peer
    /// sends, not what it declares. This is also enough to avoid copying a message of many
    /// fragments many times.
    pub(super) fn reserve(&mut self, chunk: usize, expected: usize) -> &mut JoinBuffer {
        let message = Arc::make_mut(&mut self.message);
        let received = message.len() + chunk;
        if message.capacity() < received {
            message.reserve(chunk + expected.min(received.max(MIN_RESERVE)));
        }
        message
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

/// Maximum capacity kept for the next message.
const MAX_SPARE: usize = 4 << 20;

/// A reassembly buffer that is not in use, kept for the next split message.
///
/// One per shard is meant to be shared by its connections, see [`Decoder::next_event_with`]. It
/// holds at most one buffer, of at most 4 MiB; [`Spare::default`] holds none.
///
/// [`Decoder::next_event_with`]: super::Decoder::next_event_with
#[derive(Debug, Default)]
pub struct Spare {
    reassembly: Option<Box<Reassembly>>,
    joined: Option<Arc<JoinBuffer>>,
}

impl Spare {
    /// Creates a spare without a buffer.
    #[must_use]
    pub const fn new() -> Self {
        Self { reassembly: None, joined: None }
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

    /// Returns the bytes of memory kept for the next message.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.reassembly
            .as_ref()
            .map_or(0, |reassembly| size_of::<Reassembly>() + reassembly.message.capacity())
    }

    pub(super) fn set_joined(&mut self, joined: Option<&Arc<JoinBuffer>>) {
        self.joined = joined.cloned();
    }

    pub(super) fn take(&mut self) -> Box<Reassembly> {
        let mut reassembly = self.reassembly.take().unwrap_or_else(|| Box::new(Reassembly::new()));
        match Arc::get_mut(&mut reassembly.message) {
            Some(message) => message.clear(),
            // The message is still being sent.
            None => reassembly.message = Arc::default(),
        }
        reassembly.streamed = StreamedMessage::default();
        reassembly
    }

    pub(super) fn give(&mut self, mut reassembly: Box<Reassembly>) {
        let capacity = reassembly.message.capacity();
        let kept = self.reassembly.as_ref().map_or(0, |kept| kept.message.capacity());
        if capacity <= MAX_SPARE && (self.reassembly.is_none() || capacity > kept) {
            reassembly.clear_control();
            self.reassembly = Some(reassembly);
        }
    }
}
