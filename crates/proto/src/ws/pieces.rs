//! Where a message or a control frame that did not come in one piece is put together.

use std::sync::Arc;

use throng_simd::JoinBuffer;

/// The parts of a decoder that exist only while something is partly here.
#[derive(Debug)]
pub(super) struct Pieces {
    /// The message so far. Shared only once it is complete, with whoever still sends it on.
    pub(super) message: Arc<JoinBuffer>,
    /// The control frame so far: apart from the message, because it may come inside one.
    control: [u8; MAX_CONTROL],
    control_len: u8,
    /// Of a message that is not joined.
    pub(super) streamed: Passed,
}

/// What is known of a message whose pieces are passed on instead of joined.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// Bytes so far.
    pub(super) len: u64,
    /// A piece was passed on.
    pub(super) begun: bool,
    /// The start of a character whose rest is to come.
    cut: [u8; 4],
    cut_len: usize,
}

impl Passed {
    /// Checks the next piece of a text; `last`: no more will come. False if it is no UTF-8.
    pub(super) fn check_text(&mut self, mut piece: &[u8], last: bool) -> bool {
        while self.cut_len > 0 {
            let Some((&byte, rest)) = piece.split_first() else { return !last };
            self.cut[self.cut_len] = byte;
            piece = rest;
            match str::from_utf8(&self.cut[..=self.cut_len]) {
                Ok(_) => self.cut_len = 0,
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => self.cut_len += 1,
            }
        }
        match str::from_utf8(piece) {
            Ok(_) => true,
            Err(error) if error.error_len().is_some() || last => false,
            Err(error) => {
                let cut = &piece[error.valid_up_to()..];
                self.cut[..cut.len()].copy_from_slice(cut);
                self.cut_len = cut.len();
                true
            }
        }
    }
}

/// Of a control frame's payload (RFC 6455 section 5.5).
const MAX_CONTROL: usize = 125;

/// Room made beyond the first bytes of a message, if it expects as many.
const MIN_ROOM: usize = 256;

impl Pieces {
    fn new() -> Self {
        Self {
            message: Arc::default(),
            control: [0; MAX_CONTROL],
            control_len: 0,
            streamed: Passed::default(),
        }
    }

    /// Makes room in the message for `piece` bytes that are here and `expected` bytes that may come;
    /// for no more of the latter than was already received: memory follows what a peer sends, not what
    /// it promises. That is also enough for many fragments not to be copied many times.
    pub(super) fn make_room(&mut self, piece: usize, expected: usize) -> &mut JoinBuffer {
        let message = Arc::make_mut(&mut self.message);
        let received = message.len() + piece;
        if message.capacity() < received {
            message.reserve(piece + expected.min(received.max(MIN_ROOM)));
        }
        message
    }

    /// Adds to the control frame. The caller saw in its head that all of it has room.
    pub(super) fn push_control(&mut self, piece: &[u8]) {
        let start = usize::from(self.control_len);
        if let Some(room) = self.control.get_mut(start..start + piece.len()) {
            room.copy_from_slice(piece);
            self.control_len += piece.len() as u8;
        }
    }

    /// The control frame so far.
    pub(super) fn control(&self) -> &[u8] {
        &self.control[..usize::from(self.control_len)]
    }

    pub(super) fn clear_control(&mut self) {
        self.control_len = 0;
    }
}

/// More than this is not kept for the next message.
const MAX_SPARE: usize = 4 << 20;

/// A joining buffer that is not in use, kept so that the next split message finds its memory ready.
///
/// One per shard is meant to be shared by its connections, see [`Decoder::next_event_with`]. It holds
/// at most one buffer, of at most 4 MiB; [`Spare::default`] holds none.
///
/// [`Decoder::next_event_with`]: super::Decoder::next_event_with
#[derive(Debug, Default)]
pub struct Spare {
    pieces: Option<Box<Pieces>>,
    joined: Option<Arc<JoinBuffer>>,
}

impl Spare {
    /// Holds nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { pieces: None, joined: None }
    }

    /// The memory of the message that the last call gave, if that was joined from pieces: whoever keeps it can
    /// send the message on without copying it.
    #[must_use]
    pub fn joined(&self) -> Option<Arc<JoinBuffer>> {
        self.joined.clone()
    }

    /// Bytes of memory held for the next message.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.pieces.as_ref().map_or(0, |pieces| size_of::<Pieces>() + pieces.message.capacity())
    }

    pub(super) fn set_joined(&mut self, joined: Option<&Arc<JoinBuffer>>) {
        self.joined = joined.cloned();
    }

    pub(super) fn take(&mut self) -> Box<Pieces> {
        let mut pieces = self.pieces.take().unwrap_or_else(|| Box::new(Pieces::new()));
        match Arc::get_mut(&mut pieces.message) {
            Some(message) => message.clear(),
            // It is still on its way out.
            None => pieces.message = Arc::default(),
        }
        pieces.streamed = Passed::default();
        pieces
    }

    pub(super) fn give(&mut self, mut pieces: Box<Pieces>) {
        let capacity = pieces.message.capacity();
        let kept = self.pieces.as_ref().map_or(0, |kept| kept.message.capacity());
        if capacity <= MAX_SPARE && (self.pieces.is_none() || capacity > kept) {
            pieces.clear_control();
            self.pieces = Some(pieces);
        }
    }
}
