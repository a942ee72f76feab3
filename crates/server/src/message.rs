//! A message that outlives the callback.

use throng_engine::{Frame, Message};

/// A whole message, owned: for work and futures that go on when the memory it came in is used again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedMessage {
    /// UTF-8, checked.
    Text(String),
    /// Any bytes.
    Binary(Vec<u8>),
}

impl OwnedMessage {
    /// The payload, whichever kind it is.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }

    /// The message, borrowed.
    #[must_use]
    pub fn as_message(&self) -> Message<'_> {
        match self {
            Self::Text(text) => Message::Text(text),
            Self::Binary(bytes) => Message::Binary(bytes),
        }
    }
}

impl From<Message<'_>> for OwnedMessage {
    fn from(message: Message<'_>) -> Self {
        match message {
            Message::Text(text) => Self::Text(text.to_owned()),
            Message::Binary(bytes) => Self::Binary(bytes.to_owned()),
        }
    }
}

impl From<OwnedMessage> for Frame {
    fn from(message: OwnedMessage) -> Self {
        message.as_message().into()
    }
}

impl From<&OwnedMessage> for Frame {
    fn from(message: &OwnedMessage) -> Self {
        message.as_message().into()
    }
}
