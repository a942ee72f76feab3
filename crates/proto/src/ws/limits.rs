//! Limits on the messages of a peer.

/// Limits on messages of a peer. They are inclusive: one byte more is refused with 1009 as soon as
/// a frame's header declares it, before its payload arrives.
///
/// Memory follows the bytes received, never a declared length, so a high limit costs nothing until
/// a peer really sends that much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum payload bytes of one data frame. Default 4 MiB.
    pub max_frame_size: usize,
    /// Maximum payload bytes of one message, reassembled and, if it is compressed, inflated.
    /// Default 4 MiB.
    pub max_message_size: usize,
}

impl Limits {
    /// Returns the maximum length of a message in one frame, for [`Decoder::whole_message`].
    ///
    /// [`Decoder::whole_message`]: super::Decoder::whole_message
    #[inline]
    #[must_use]
    pub fn max_whole_message(&self) -> usize {
        self.max_frame_size.min(self.max_message_size)
    }

    /// Returns the limits on a compressed message before inflation. Incompressible data may grow by
    /// a few bytes per block: a sixteenth is more than the smallest blocks of zlib add.
    pub(super) fn of_deflated(&self) -> Self {
        let with_overhead = |size: usize| size.saturating_add(size / 16).saturating_add(64);
        Self {
            max_frame_size: with_overhead(self.max_frame_size),
            max_message_size: with_overhead(self.max_message_size),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_frame_size: 4 << 20, max_message_size: 4 << 20 }
    }
}
