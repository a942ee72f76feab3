//! What a decoder gives.

use super::CloseReason;

/// What the peer sent. Payloads are unmasked and borrowed: from the lent bytes if the frame came whole,
/// else from the decoder. Copy what is to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A whole text message, its fragments joined.
    Text(&'a str),
    /// A whole binary message, its fragments joined.
    Binary(&'a [u8]),
    /// To be answered with a pong of the same payload (RFC 6455 section 5.5.3); at most 125 bytes.
    Ping(&'a [u8]),
    /// An answer to a ping of ours, or an unasked sign of life; at most 125 bytes.
    Pong(&'a [u8]),
    /// The peer closes, with or without saying why; to be answered with a close (section 5.5.1). The
    /// last event: whatever the peer sends after it is discarded (section 1.4).
    Close(Option<CloseReason<'a>>),
}
