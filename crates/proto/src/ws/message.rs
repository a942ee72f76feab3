//! Whole messages, borrowed and owned.

/// A whole WebSocket message, borrowed from the memory in which it was received. RFC 6455 section
/// 5.6 has no other kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Valid UTF-8.
    Text(&'a str),
    /// Any bytes.
    Binary(&'a [u8]),
}

impl<'a> Message<'a> {
    /// Returns the payload of a text or binary message.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }

    /// Parses the payload of a text or binary message as JSON. The value may borrow from the
    /// message.
    ///
    /// ```
    /// # mod throng { pub use throng_proto::ws::*; }
    /// use throng::Message;
    ///
    /// let point: (u32, &str) = Message::Text(r#"[7,"north"]"#).json().unwrap();
    /// assert_eq!(point, (7, "north"));
    /// assert!(Message::Text("7").json::<String>().is_err());
    /// ```
    ///
    /// # Errors
    /// The payload is not JSON, or the JSON does not fit `T`: a mistake of the peer. A callback may
    /// close its session with [`INVALID_PAYLOAD`](crate::ws::CloseCode::INVALID_PAYLOAD).
    #[cfg(feature = "serde")]
    pub fn json<T: serde::Deserialize<'a>>(self) -> serde_json::Result<T> {
        serde_json::from_slice(self.as_bytes())
    }
}

impl<'a> From<&'a str> for Message<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Message<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a [u8]> for Message<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Binary(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Message<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Binary(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Message<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Binary(bytes)
    }
}

/// A whole message with its own memory, for jobs and futures that outlive the callback that
/// received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedMessage {
    /// Text, valid UTF-8.
    Text(String),
    /// Arbitrary bytes.
    Binary(Vec<u8>),
}

impl OwnedMessage {
    /// Returns the payload of a text or binary message.
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

    /// Parses the payload as JSON: see [`Message::json`].
    ///
    /// # Errors
    /// As for [`Message::json`].
    #[cfg(feature = "serde")]
    pub fn json<'a, T: serde::Deserialize<'a>>(&'a self) -> serde_json::Result<T> {
        self.as_message().json()
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

/// Returns the payload of a text or binary message.
impl AsRef<[u8]> for OwnedMessage {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_made_of_text_and_bytes() {
        let text = OwnedMessage::from("text");
        assert_eq!((&text, text.as_ref()), (&String::from("text").into(), &b"text"[..]));
        assert_eq!(text.as_message(), Message::from("text"));
        let bytes = OwnedMessage::from(vec![1, 2]);
        assert_eq!(bytes, OwnedMessage::from(&[1, 2][..]));
        assert_eq!(OwnedMessage::from(Message::from(&[1, 2])), bytes);
    }
}
