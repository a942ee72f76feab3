//! Protocol errors of a WebSocket peer.

use std::{error, fmt};

/// The rule of RFC 6455 or RFC 7692, or the limit, that the peer violated.
///
/// Fail the connection with [`ProtocolError::close_code`]; its decoder returns only this error from
/// then on. `Display` describes the violation and the rule, for logs and for the reason of a close
/// frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A reserved bit is set that no negotiated extension defines there
    /// ([RFC 6455 section 5.2](https://www.rfc-editor.org/rfc/rfc6455#section-5.2)).
    ReservedBits,
    /// An opcode of 3-7 or 11-15
    /// ([RFC 6455 section 5.2](https://www.rfc-editor.org/rfc/rfc6455#section-5.2)).
    ReservedOpcode(u8),
    /// A close, ping or pong without FIN
    /// ([RFC 6455 section 5.5](https://www.rfc-editor.org/rfc/rfc6455#section-5.5)).
    FragmentedControl,
    /// A close, ping or pong that declares more than 125 bytes
    /// ([RFC 6455 section 5.5](https://www.rfc-editor.org/rfc/rfc6455#section-5.5)).
    LongControl,
    /// A continuation without a started message
    /// ([RFC 6455 section 5.4](https://www.rfc-editor.org/rfc/rfc6455#section-5.4)).
    UnexpectedContinuation,
    /// A new text or binary message inside a fragmented one
    /// ([RFC 6455 section 5.4](https://www.rfc-editor.org/rfc/rfc6455#section-5.4)).
    UnfinishedMessage,
    /// A client's frame without a mask
    /// ([RFC 6455 section 5.1](https://www.rfc-editor.org/rfc/rfc6455#section-5.1)).
    NotMasked,
    /// A server's frame with a mask
    /// ([RFC 6455 section 5.1](https://www.rfc-editor.org/rfc/rfc6455#section-5.1)).
    Masked,
    /// A length encoded in more bytes than necessary
    /// ([RFC 6455 section 5.2](https://www.rfc-editor.org/rfc/rfc6455#section-5.2)).
    LongLength,
    /// A 64-bit length with its most significant bit set
    /// ([RFC 6455 section 5.2](https://www.rfc-editor.org/rfc/rfc6455#section-5.2)).
    LengthTopBit,
    /// A frame longer than [`Limits::max_frame_size`](super::Limits::max_frame_size).
    FrameTooBig,
    /// A message longer than [`Limits::max_message_size`](super::Limits::max_message_size).
    MessageTooBig,
    /// A compressed message that is not valid DEFLATE data, ends in the middle of it, or refers to
    /// data that was never sent
    /// ([RFC 7692 section 7.2.2](https://www.rfc-editor.org/rfc/rfc7692#section-7.2.2)).
    InvalidDeflate,
    /// Text that is not UTF-8
    /// ([RFC 6455 section 8.1](https://www.rfc-editor.org/rfc/rfc6455#section-8.1)).
    InvalidText,
    /// A close payload of one byte: too short for a status code
    /// ([RFC 6455 section 5.5.1](https://www.rfc-editor.org/rfc/rfc6455#section-5.5.1)).
    ShortClose,
    /// A close status code that must not be sent
    /// ([RFC 6455 section 7.4](https://www.rfc-editor.org/rfc/rfc6455#section-7.4)).
    InvalidCloseCode(u16),
    /// A close reason that is not UTF-8
    /// ([RFC 6455 section 5.5.1](https://www.rfc-editor.org/rfc/rfc6455#section-5.5.1)).
    InvalidCloseReason,
}

impl ProtocolError {
    /// Returns the status code to close with
    /// ([RFC 6455 section 7.4.1](https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1)): 1002, 1007
    /// or 1009.
    #[must_use]
    pub const fn close_code(self) -> u16 {
        match self {
            // The frames were valid, but not their content: data that is not consistent with its
            // type.
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
