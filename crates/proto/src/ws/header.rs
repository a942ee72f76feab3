//! The head of a frame, RFC 6455 section 5.2.

use std::ops::Deref;

use super::{ProtocolError, Role};

/// What a frame is (section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// A later fragment of a message.
    Continuation = 0,
    /// A text message, or its first fragment.
    Text = 1,
    /// A binary message, or its first fragment.
    Binary = 2,
    /// The end.
    Close = 8,
    /// Asks for a pong.
    Ping = 9,
    /// Answers a ping, or is a sign of life unasked.
    Pong = 10,
}

impl Opcode {
    /// Close, ping or pong: short, never fragmented, allowed inside a fragmented message.
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

/// The longest head: 2 bytes, a 64-bit length and a key.
pub(super) const MAX_HEAD: usize = 14;

/// The head of a frame as it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) fin: bool,
    pub(super) opcode: Opcode,
    /// Of the payload.
    pub(super) len: u64,
    pub(super) key: Option<[u8; 4]>,
    /// Of the head itself, 2 to 14.
    pub(super) size: usize,
    /// RSV1: the message that begins with this frame is compressed (RFC 7692 section 6).
    pub(super) deflated: bool,
}

/// What a frame may be, from where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Who reads.
    pub(super) role: Role,
    /// A fragmented message has begun and not ended.
    pub(super) inside: bool,
    /// permessage-deflate was agreed on.
    pub(super) deflate: bool,
}

/// What can be said about the head at the front of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    Head(Head),
    /// The head has at least this many bytes; more than were given.
    Needs(usize),
}

impl Head {
    /// Reads the head at the front of `bytes`. Faults are reported in the order of the bytes that show
    /// them, so that it does not matter how the network cut them.
    #[inline]
    pub(super) fn decode(bytes: &[u8], place: Place) -> Result<Decoded, ProtocolError> {
        let Place { role, inside, deflate } = place;
        let [first, second, rest @ ..] = bytes else { return Ok(Decoded::Needs(2)) };
        let deflated = first & 0x70 != 0;
        // RFC 7692 section 6: only the first frame of a text or binary message may have RSV1, and nothing
        // the other two.
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
            return Ok(Decoded::Head(Self {
                fin,
                opcode,
                len,
                key: None,
                size,
                deflated: first & 0x40 != 0,
            }));
        }
        let Some(key) = rest.first_chunk() else { return Ok(Decoded::Needs(size + 4)) };
        Ok(Decoded::Head(Self {
            fin,
            opcode,
            len,
            key: Some(*key),
            size: size + 4,
            deflated: first & 0x40 != 0,
        }))
    }
}

/// The head of an unfragmented text or binary message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole {
    /// Text, else binary.
    pub(super) text: bool,
    /// Of the payload.
    pub(super) len: usize,
    pub(super) key: Option<[u8; 4]>,
    /// Of the head itself.
    pub(super) size: usize,
}

impl Whole {
    /// A quick look for the frame that nearly every frame is, of at most 65,535 bytes. `None` means
    /// "ask [`Head::decode`]", not that something is wrong.
    #[inline(always)]
    pub(super) fn decode(bytes: &[u8], role: Role) -> Option<Self> {
        let [first @ (0x81 | 0x82), second, rest @ ..] = bytes else { return None };
        let text = *first == 0x81;
        let masked = second & 0x80 != 0;
        if masked != (role == Role::Server) {
            return None;
        }
        let (len, rest, size) = match second & 0x7f {
            len @ ..126 => (usize::from(len), rest, 2),
            126 => {
                let (len, rest) = rest.split_first_chunk()?;
                let len = u16::from_be_bytes(*len);
                if len < 126 {
                    return None;
                }
                (usize::from(len), rest, 4)
            }
            _ => return None,
        };
        if masked {
            Some(Self { text, len, key: Some(*rest.first_chunk()?), size: size + 4 })
        } else {
            Some(Self { text, len, key: None, size })
        }
    }
}

/// The bytes of a frame's head, ready to be sent before its payload; derefs to them.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    bytes: [u8; MAX_HEAD],
    size: u8,
}

impl Header {
    /// The same, of a message that is compressed (RSV1, RFC 7692 section 6): for the first frame of a text
    /// or binary message only.
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

/// The head of a frame with `len` payload bytes, in the fewest bytes (section 5.2).
///
/// With `mask`, as a client must, the payload is to be sent masked with that key. `fin` is false for
/// every fragment of a message but the last; the fragments after the first are
/// [`Opcode::Continuation`]. Bit 63 of `len` must not be set; no allocation is that long.
#[inline]
#[must_use]
pub fn encode_header(opcode: Opcode, fin: bool, len: u64, mask: Option<[u8; 4]>) -> Header {
    let mut bytes = [0; MAX_HEAD];
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
