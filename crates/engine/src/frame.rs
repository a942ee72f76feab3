//! Frames encoded once and sent many times.

use std::fmt;
use std::sync::Arc;

use throng_proto::ws::{self, Opcode};

use crate::service::Message;

/// A finished server frame, header included, behind a reference count.
///
/// Make one when the same message goes to many connections or more than once: it is queued as a 16-byte
/// reference and never copied per receiver. Cloning counts a reference.
#[derive(Clone)]
pub struct Frame {
    bytes: Arc<[u8]>,
}

impl Frame {
    /// A text message.
    #[must_use]
    pub fn text(text: impl AsRef<str>) -> Self {
        Self::encode(Opcode::Text, text.as_ref().as_bytes())
    }

    /// A binary message.
    #[must_use]
    pub fn binary(bytes: impl AsRef<[u8]>) -> Self {
        Self::encode(Opcode::Binary, bytes.as_ref())
    }

    fn encode(opcode: Opcode, payload: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(payload.len() + 10);
        ws::encode(opcode, payload, &mut bytes);
        Self { bytes: bytes.into() }
    }

    /// The frame as it goes over the wire.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn shared(&self) -> Arc<[u8]> {
        Arc::clone(&self.bytes)
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes)", self.bytes.len())
    }
}

impl From<&Self> for Frame {
    fn from(frame: &Self) -> Self {
        frame.clone()
    }
}

impl From<Message<'_>> for Frame {
    fn from(message: Message<'_>) -> Self {
        match message {
            Message::Text(text) => Self::text(text),
            Message::Binary(bytes) => Self::binary(bytes),
        }
    }
}

macro_rules! from {
    ($($type:ty => $kind:ident,)+) => {
        $(impl From<$type> for Frame {
            fn from(message: $type) -> Self {
                Self::$kind(message)
            }
        })+
    };
}

from! {
    &str => text,
    String => text,
    &String => text,
    &[u8] => binary,
    Vec<u8> => binary,
    &Vec<u8> => binary,
}
