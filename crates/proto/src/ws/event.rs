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

/// A part of a message, as it came: what a [`Decoder`](super::Decoder) gives that does not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Of a text message. Its bytes were checked to be UTF-8 as far as they go; a character may be cut in two.
    pub text: bool,
    /// The message begins with it.
    pub first: bool,
    /// The message ends with it.
    pub last: bool,
    /// Its bytes; empty only if the message, or its last fragment, is.
    pub bytes: &'a [u8],
}

/// What the peer sent, where messages are not joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streamed<'a> {
    /// A control frame, or a message that came in one piece.
    Event(Event<'a>),
    /// A part of a message.
    Piece(Piece<'a>),
}

/// What the peer sent, before decompression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming<'a> {
    /// As it is.
    Event(Event<'a>),
    /// A compressed message: for an [`Inflater`](super::deflate::Inflater).
    Deflated(Deflated<'a>),
}

/// A whole compressed message, its fragments joined, unmasked and still compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deflated<'a> {
    /// Text once it is decompressed, else binary.
    pub text: bool,
    /// As it was sent: without the 00 00 FF FF at its end (RFC 7692 section 7.2.1).
    pub payload: &'a [u8],
}
