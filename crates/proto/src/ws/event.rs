//! The events of a decoder.

use super::CloseReason;

/// A message of the peer, or a part of one, or a control frame.
///
/// Payloads are unmasked and borrowed: from the lent bytes if the frame arrived whole, otherwise
/// from the decoder. Copy payloads that must be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A whole text message, reassembled if it was fragmented.
    Text(&'a str),
    /// A whole binary message, reassembled if it was fragmented.
    Binary(&'a [u8]),
    /// A whole compressed message, where permessage-deflate was negotiated: for an
    /// [`Inflater`](super::deflate::Inflater).
    Compressed(Deflated<'a>),
    /// A chunk of a message, where messages are not reassembled.
    Chunk(Chunk<'a>),
    /// A ping, which must be answered with a pong of the same payload ([RFC 6455 section
    /// 5.5.3](https://www.rfc-editor.org/rfc/rfc6455#section-5.5.3)); at most 125 bytes.
    Ping(&'a [u8]),
    /// A pong: the response to our ping, or unsolicited; at most 125 bytes.
    Pong(&'a [u8]),
    /// A close frame, with or without a reason, which must be answered with a close ([RFC 6455
    /// section 5.5.1](https://www.rfc-editor.org/rfc/rfc6455#section-5.5.1)).
    ///
    /// This is the last event: any later input is discarded ([RFC 6455 section
    /// 1.4](https://www.rfc-editor.org/rfc/rfc6455#section-1.4)).
    Close(Option<CloseReason<'a>>),
}

/// A chunk of a message as it arrived, for connections that do not reassemble messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Whether the message is text. The bytes are validated UTF-8 as far as they go; a character
    /// may be split between two chunks.
    pub text: bool,
    /// Whether the message starts with this chunk.
    pub first: bool,
    /// Whether the message ends with this chunk.
    pub last: bool,
    /// The bytes; empty only if the message, or its last fragment, is.
    pub bytes: &'a [u8],
}

/// A whole compressed message, reassembled and unmasked, still compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deflated<'a> {
    /// Text once it is decompressed, else binary.
    pub text: bool,
    /// The payload as sent: without the 00 00 FF FF at its end
    /// ([RFC 7692 section 7.2.1](https://www.rfc-editor.org/rfc/rfc7692#section-7.2.1)).
    pub payload: &'a [u8],
}
