//! The codec of a build without the feature `deflate`: no message is ever compressed.

use std::convert::Infallible;

use super::{History, Policy};
use crate::ws::{Deflated, Event, ProtocolError};

/// Evidence that this build has a codec, which cannot exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Codec(Infallible);

impl Codec {
    pub(super) fn available() -> Option<Self> {
        None
    }
}

/// The compressor of a shard, which cannot exist.
#[derive(Debug)]
pub struct Deflater(Infallible);

impl Deflater {
    /// Creates a compressor; there is no policy to create it with.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        Self(policy.codec.0)
    }

    /// Compresses `payload`.
    pub fn deflate(
        &mut self,
        _payload: &[u8],
        _window_bits: u8,
        _history: Option<&History>,
        _out: &mut Vec<u8>,
    ) -> bool {
        match self.0 {}
    }

    /// Returns the window bits for a message without history.
    #[must_use]
    pub fn shared_window_bits(window_bits: u8, _len: usize) -> u8 {
        window_bits
    }
}

/// The decompressor of a shard, which refuses every message: none can have been negotiated.
#[derive(Debug, Default)]
pub struct Inflater(());

/// A message that was received compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inflated<'a> {
    /// The message.
    pub event: Event<'a>,
    /// Whether its compressed form can be forwarded unchanged.
    pub relayable: bool,
}

impl Inflater {
    /// Creates a decompressor.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }

    /// Refuses the message.
    ///
    /// # Errors
    /// [`ProtocolError::InvalidDeflate`], always.
    pub fn inflate(
        &mut self,
        _message: Deflated<'_>,
        _history: Option<&mut History>,
        _max: usize,
    ) -> Result<Inflated<'_>, ProtocolError> {
        Err(ProtocolError::InvalidDeflate)
    }

    /// Returns the bytes of memory kept for the next message: none.
    #[must_use]
    pub fn capacity(&self) -> usize {
        0
    }
}
