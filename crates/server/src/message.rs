//! Owned messages.

use throng_engine::{Frame, Message};

/// A whole message, owned: for jobs and futures that outlive the callback which received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedMessage {
    /// Text, valid UTF-8.
    Text(String),
    /// Arbitrary bytes.
    Binary(Vec<u8>),
}

impl OwnedMessage {
    /// Returns the payload, of either kind.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }

    /// Borrows the message.
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
