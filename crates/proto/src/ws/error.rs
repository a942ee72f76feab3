//! What a peer can do wrong on a WebSocket.

use std::{error, fmt};

/// A rule of RFC 6455 or RFC 7692, or a limit of ours, that the peer broke. The connection is to be failed with
/// [`ProtocolError::close_code`]; its decoder gives nothing but this error from then on.
///
/// `Display` says what the peer did and what the rule is, for logs and for the reason of a close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A reserved bit is set that no negotiated extension defines there (section 5.2).
    ReservedBits,
    /// An opcode of 3-7 or 11-15 (section 5.2).
    ReservedOpcode(u8),
    /// A close, ping or pong without FIN (section 5.5).
    FragmentedControl,
    /// A close, ping or pong that declares more than 125 bytes (section 5.5).
    LongControl,
    /// A continuation where no message was begun (section 5.4).
    UnexpectedContinuation,
    /// A new text or binary message inside a fragmented one (section 5.4).
    UnfinishedMessage,
    /// A client's frame without a mask (section 5.1).
    NotMasked,
    /// A server's frame with a mask (section 5.1).
    Masked,
    /// A length written in more bytes than it needs (section 5.2).
    LongLength,
    /// A 64-bit length with its top bit set (section 5.2).
    LengthTopBit,
    /// A frame longer than [`Limits::max_frame_size`](super::Limits::max_frame_size).
    FrameTooBig,
    /// A message longer than [`Limits::max_message_size`](super::Limits::max_message_size).
    MessageTooBig,
    /// A compressed message that is not DEFLATE data, ends in the middle of it, or refers to what was never
    /// sent (RFC 7692 section 7.2.2).
    InvalidDeflate,
    /// Text that is not UTF-8 (section 8.1).
    InvalidText,
    /// A close payload of one byte: no room for a status code (section 5.5.1).
    ShortClose,
    /// A close status code that may not be sent (section 7.4).
    InvalidCloseCode(u16),
    /// A close reason that is not UTF-8 (section 5.5.1).
    InvalidCloseReason,
}

impl ProtocolError {
    /// The status code to close with (section 7.4.1): 1002, 1007 or 1009.
    #[must_use]
    pub const fn close_code(self) -> u16 {
        match self {
            // The frames were good, but not what they carried: data that is not consistent with its type.
            Self::InvalidText | Self::InvalidCloseReason | Self::InvalidDeflate => 1007,
            Self::FrameTooBig | Self::MessageTooBig => 1009,
            _ => 1002,
        }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReservedBits => "reserved bit set, but no extension allows it here (5.2)",
            Self::ReservedOpcode(code) => {
                return write!(f, "opcode {code} is reserved: use 0, 1, 2, 8, 9 or 10 (5.2)");
            }
            Self::FragmentedControl => "fragmented control frame: it must come in one frame (5.5)",
            Self::LongControl => "control frame over 125 bytes: it must have 125 or less (5.5)",
            Self::UnexpectedContinuation => "continuation frame, but no message was begun (5.4)",
            Self::UnfinishedMessage => "new message inside a fragmented one: finish it first (5.4)",
            Self::NotMasked => "frame not masked: a client must mask every frame (5.1)",
            Self::Masked => "frame masked: a server must not mask any frame (5.1)",
            Self::LongLength => "length in more bytes than it needs: use the fewest (5.2)",
            Self::LengthTopBit => "64-bit length with its top bit set: it must be 0 (5.2)",
            Self::FrameTooBig => "frame bigger than this endpoint accepts",
            Self::MessageTooBig => "message bigger than this endpoint accepts",
            Self::InvalidDeflate => "compressed message that is not deflate data (RFC 7692)",
            Self::InvalidText => "text message that is not UTF-8 (8.1)",
            Self::ShortClose => "close of 1 byte: a status code takes 2 (5.5.1)",
            Self::InvalidCloseCode(code) => {
                return write!(f, "close code {code} must not be sent (7.4)");
            }
            Self::InvalidCloseReason => "close reason that is not UTF-8 (5.5.1)",
        })
    }
}

impl error::Error for ProtocolError {}
