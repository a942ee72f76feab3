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

impl<'a> From<&'a OwnedMessage> for Message<'a> {
    fn from(message: &'a OwnedMessage) -> Self {
        message.as_message()
    }
}

impl From<String> for OwnedMessage {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for OwnedMessage {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Vec<u8>> for OwnedMessage {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Binary(bytes)
    }
}

impl From<&[u8]> for OwnedMessage {
    fn from(bytes: &[u8]) -> Self {
        Self::Binary(bytes.to_owned())
    }
}

/// The payload, of either kind.
impl AsRef<[u8]> for OwnedMessage {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_made_of_text_and_bytes_and_become_frames() {
        let text = OwnedMessage::from("text");
        assert_eq!((&text, text.as_ref()), (&String::from("text").into(), &b"text"[..]));
        let bytes = OwnedMessage::from(vec![1, 2]);
        assert_eq!(bytes, OwnedMessage::from(&[1, 2][..]));
        assert_eq!(Frame::from(&text), Frame::text("text"));
        assert_ne!(Frame::from(&text), Frame::binary("text"));
        assert_ne!(Frame::from(text), Frame::text("text").keyed(1));
        assert_eq!(Frame::from(bytes).as_ref(), [1, 2]);
    }
}
