//! Frame headers, [RFC 6455 section 5.2](https://www.rfc-editor.org/rfc/rfc6455#section-5.2).

use std::ops::Deref;

use super::{ProtocolError, Role};

/// The opcode of a frame
/// ([RFC 6455 section 5.2](https://www.rfc-editor.org/rfc/rfc6455#section-5.2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// A later fragment of a message.
    Continuation = 0,
    /// A text message, or its first fragment.
    Text = 1,
    /// A binary message, or its first fragment.
    Binary = 2,
    /// A close frame, which ends the stream.
    Close = 8,
    /// A ping, which asks for a pong.
    Ping = 9,
    /// A pong: the response to a ping, or unsolicited.
    Pong = 10,
}

impl Opcode {
    /// Returns whether this is close, ping or pong: short, never fragmented, allowed inside a
    /// fragmented message.
    #[inline]
    #[must_use]
    pub const fn is_control(self) -> bool {
        self as u8 >= 8
    }

    #[inline]
    const fn decode(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }
}

/// The maximum size of a header: 2 bytes, a 64-bit length and a key.
pub(super) const MAX_HEADER: usize = 14;

/// The header of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) fin: bool,
    pub(super) opcode: Opcode,
    /// Length of the payload.
    pub(super) len: u64,
    pub(super) key: Option<[u8; 4]>,
    /// Size of the header itself, 2 to 14.
    pub(super) size: usize,
    /// RSV1: the message that starts with this frame is compressed (RFC 7692 section 6).
    pub(super) deflated: bool,
}

/// The properties of a connection that decide which frames are valid.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameContext {
    /// The role of the reader.
    pub(super) role: Role,
    /// Whether a fragmented message has started and not ended.
    pub(super) inside: bool,
    /// Whether permessage-deflate was negotiated.
    pub(super) deflate: bool,
}

/// The result of decoding a header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    Header(FrameHeader),
    /// More bytes are needed: the header has at least this many.
    Needs(usize),
}

impl FrameHeader {
    /// Decodes the header at the front of `bytes`.
    ///
    /// Errors are reported in the order of the bytes that cause them, so that it does not matter
    /// how the network split them.
    #[inline]
    pub(super) fn decode(bytes: &[u8], place: FrameContext) -> Result<Decoded, ProtocolError> {
        let FrameContext { role, inside, deflate } = place;
        let [first, second, rest @ ..] = bytes else { return Ok(Decoded::Needs(2)) };
        let deflated = first & 0x70 != 0;
        // RFC 7692 section 6: only the first frame of a text or binary message may have RSV1; the
        // other two bits must be 0.
        if deflated && !(deflate && matches!(first & 0x7f, 0x41 | 0x42)) {
            return Err(ProtocolError::ReservedBits);
        }
        let fin = first & 0x80 != 0;
        let Some(opcode) = Opcode::decode(first & 0x0f) else {
            return Err(ProtocolError::ReservedOpcode(first & 0x0f));
        };
        match opcode {
            Opcode::Continuation if !inside => return Err(ProtocolError::UnexpectedContinuation),
            Opcode::Text | Opcode::Binary if inside => {
                return Err(ProtocolError::UnfinishedMessage);
            }
            Opcode::Close | Opcode::Ping | Opcode::Pong if !fin => {
                return Err(ProtocolError::FragmentedControl);
            }
            _ => {}
        }
        let masked = second & 0x80 != 0;
        if masked != (role == Role::Server) {
            let error = if masked { ProtocolError::Masked } else { ProtocolError::NotMasked };
            return Err(error);
        }
        let short = second & 0x7f;
        if opcode.is_control() && short > 125 {
            return Err(ProtocolError::LongControl);
        }
        let (len, rest, size) = match short {
            126 => {
                let Some((len, rest)) = rest.split_first_chunk() else {
                    return Ok(Decoded::Needs(4));
                };
                let len = u16::from_be_bytes(*len);
                if len < 126 {
                    return Err(ProtocolError::LongLength);
                }
                (u64::from(len), rest, 4)
            }
            127 => {
                let Some((len, rest)) = rest.split_first_chunk() else {
                    return Ok(Decoded::Needs(10));
                };
                let len = u64::from_be_bytes(*len);
                if len >> 63 != 0 {
                    return Err(ProtocolError::LengthTopBit);
                }
                if len <= 0xffff {
                    return Err(ProtocolError::LongLength);
                }
                (len, rest, 10)
            }
            short => (u64::from(short), rest, 2),
        };
        if !masked {
            return Ok(Decoded::Header(Self {
                fin,
                opcode,
                len,
                key: None,
                size,
                deflated: first & 0x40 != 0,
            }));
        }
        let Some(key) = rest.first_chunk() else { return Ok(Decoded::Needs(size + 4)) };
        Ok(Decoded::Header(Self {
            fin,
            opcode,
            len,
            key: Some(*key),
            size: size + 4,
            deflated: first & 0x40 != 0,
        }))
    }
}

/// The header of an unfragmented text or binary message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageHeader {
    /// Whether the message is text, else binary.
    pub(super) text: bool,
    /// Whether the header ends with a masking key.
    pub(super) masked: bool,
    /// Length of the payload.
    pub(super) len: usize,
    /// Size of the header itself, with the key.
    pub(super) size: usize,
}

impl MessageHeader {
    /// Decodes the header of the most common kind of frame, of at most 65,535 bytes. `None` means
    /// "call [`FrameHeader::decode`]", not an error. The key may be missing still: the caller
    /// checks the length of header and payload at once.
    #[inline(always)]
    pub(super) fn decode(bytes: &[u8], role: Role) -> Option<Self> {
        let [first @ (0x81 | 0x82), second, rest @ ..] = bytes else { return None };
        let text = *first == 0x81;
        let masked = second & 0x80 != 0;
        if masked != (role == Role::Server) {
            return None;
        }
        let (len, size) = match second & 0x7f {
            len @ ..126 => (usize::from(len), 2),
            126 => {
                let len = u16::from_be_bytes(*rest.first_chunk()?);
                if len < 126 {
                    return None;
                }
                (usize::from(len), 4)
            }
            _ => return None,
        };
        Some(Self { text, masked, len, size: if masked { size + 4 } else { size } })
    }
}

/// The bytes of an encoded frame header, to be sent before its payload; derefs to them.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    bytes: [u8; MAX_HEADER],
    size: u8,
}

impl Header {
    /// Marks the message as compressed (RSV1,
    /// [RFC 7692 section 6](https://www.rfc-editor.org/rfc/rfc7692#section-6)); for the first frame
    /// of a text or binary message only.
    #[inline]
    #[must_use]
    pub fn deflated(mut self) -> Self {
        self.bytes[0] |= 0x40;
        self
    }
}

impl Deref for Header {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.size)]
    }
}

/// Encodes the header of a frame with `len` payload bytes, in the fewest bytes
/// ([RFC 6455 section 5.2](https://www.rfc-editor.org/rfc/rfc6455#section-5.2)).
///
/// With `mask`, which a client must use, the payload must be sent masked with that key. `fin` is
/// false for every fragment of a message but the last; the fragments after the first are
/// [`Opcode::Continuation`]. Bit 63 of `len` must not be set; no allocation is that long.
#[inline]
#[must_use]
pub fn encode_header(opcode: Opcode, fin: bool, len: u64, mask: Option<[u8; 4]>) -> Header {
    let mut bytes = [0; MAX_HEADER];
    bytes[0] = u8::from(fin) << 7 | opcode as u8;
    let masked = u8::from(mask.is_some()) << 7;
    let mut size = if len < 126 {
        bytes[1] = masked | len as u8;
        2
    } else if len <= 0xffff {
        bytes[1] = masked | 126;
        bytes[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        4
    } else {
        bytes[1] = masked | 127;
        bytes[2..10].copy_from_slice(&len.to_be_bytes());
        10
    };
    if let Some(key) = mask {
        bytes[size..size + 4].copy_from_slice(&key);
        size += 4;
    }
    Header { bytes, size: size as u8 }
}
