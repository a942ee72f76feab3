//! Where a message or a control frame that did not come in one piece is put together.

use throng_simd::JoinBuffer;

/// The parts of a decoder that exist only while something is partly here.
#[derive(Debug)]
pub(super) struct Pieces {
    /// The message so far.
    pub(super) message: JoinBuffer,
    /// The control frame so far: apart from the message, because it may come inside one.
    pub(super) control: [u8; 125],
    pub(super) control_len: u8,
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
}

impl Spare {
    /// Holds nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { pieces: None }
    }

    /// Bytes of memory held for the next message.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.pieces.as_ref().map_or(0, |pieces| size_of::<Pieces>() + pieces.message.capacity())
    }

    pub(super) fn take(&mut self) -> Box<Pieces> {
        self.pieces.take().unwrap_or_else(|| {
            Box::new(Pieces { message: JoinBuffer::new(), control: [0; 125], control_len: 0 })
        })
    }

    pub(super) fn give(&mut self, mut pieces: Box<Pieces>) {
        let capacity = pieces.message.capacity();
        let kept = self.pieces.as_ref().map_or(0, |kept| kept.message.capacity());
        if capacity <= MAX_SPARE && (self.pieces.is_none() || capacity > kept) {
            pieces.message.clear();
            pieces.control_len = 0;
            self.pieces = Some(pieces);
        }
    }
}
