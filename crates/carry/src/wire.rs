//! Messages of tagged fields, within a limit.
//!
//! ```text
//! message  length (4 bytes, of all that follows)  tag (2 bytes)  field*
//! field    tag (2 bytes)  length (4 bytes)  content
//! ```
//!
//! Numbers are little-endian. The other end may be an older or a newer release: a field whose tag
//! is even may be skipped by a reader that does not know it, and one whose tag is odd must be
//! understood. Fields may repeat.

use std::fmt;

use crate::secret::Secret;

/// Bytes of a message's length, and of a field's.
const LENGTH: usize = 4;
/// Bytes of a tag.
const TAG: usize = 2;

/// A message that is being encoded.
#[derive(Clone, Debug)]
#[must_use = "the message is returned by `finish`"]
pub struct Encoder(Secret);

impl Encoder {
    /// Begins a message with this tag.
    pub fn new(tag: u16) -> Self {
        let mut bytes = Secret::default();
        bytes.append(&[0; LENGTH]);
        bytes.append(&tag.to_le_bytes());
        Self(bytes)
    }

    /// Adds a field.
    ///
    /// # Panics
    /// The message would be longer than 4 GiB.
    pub fn bytes(mut self, tag: u16, content: &[u8]) -> Self {
        let length = u32::try_from(content.len()).expect("a field is shorter than 4 GiB");
        self.0.append(&tag.to_le_bytes());
        self.0.append(&length.to_le_bytes());
        self.0.append(content);
        self
    }

    /// Adds a field with a number.
    pub fn number(self, tag: u16, number: u64) -> Self {
        self.bytes(tag, &number.to_le_bytes())
    }

    /// Adds a field with a text.
    pub fn text(self, tag: u16, text: &str) -> Self {
        self.bytes(tag, text.as_bytes())
    }

    /// Adds a message as the content of a field.
    pub fn message(self, tag: u16, message: Self) -> Self {
        let inner = message.finish();
        self.bytes(tag, &inner[LENGTH..])
    }

    /// Returns the encoded message.
    ///
    /// # Panics
    /// The message is longer than 4 GiB.
    #[must_use]
    pub fn finish(mut self) -> Secret {
        let length = u32::try_from(self.0.len() - LENGTH).expect("shorter than 4 GiB");
        self.0[..LENGTH].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// Received bytes, and the whole messages in them.
///
/// It holds what was received and reserves no memory for an announced length.
#[derive(Debug)]
pub struct Inbox {
    bytes: Secret,
    max_message: usize,
}

impl Inbox {
    /// Creates an empty inbox for messages of at most `max_message` bytes.
    #[must_use]
    pub fn new(max_message: usize) -> Self {
        Self { bytes: Secret::default(), max_message }
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.append(bytes);
    }

    /// Takes the next message; `None` if it is not complete yet.
    ///
    /// # Errors
    /// [`CarryError::TooLong`] as soon as a longer message is announced, [`CarryError::Cut`] for a
    /// message without a tag. The rest cannot be decoded after that.
    pub fn next_message(&mut self) -> Result<Option<Message>, CarryError> {
        let Some(length) = self.bytes.first_chunk::<LENGTH>() else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > self.max_message {
            return Err(CarryError::TooLong);
        }
        if self.bytes.len() - LENGTH < length {
            return Ok(None);
        }
        let message = Secret::from(&self.bytes[LENGTH..LENGTH + length]);
        self.bytes.remove_first(LENGTH + length);
        Message::decode(message).map(Some)
    }
}

/// A message with its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    tag: u16,
    /// The fields, encoded.
    fields: Secret,
}

impl Message {
    /// Decodes the tag of a message without its length, such as the content of a field.
    ///
    /// # Errors
    /// [`CarryError::Cut`] if the tag is missing.
    pub fn decode(mut bytes: Secret) -> Result<Self, CarryError> {
        let tag = *bytes.first_chunk::<TAG>().ok_or(CarryError::Cut)?;
        bytes.remove_first(TAG);
        Ok(Self { tag: u16::from_le_bytes(tag), fields: bytes })
    }

    /// Returns its tag.
    #[must_use]
    pub fn tag(&self) -> u16 {
        self.tag
    }

    /// Passes each field to `take`, which returns whether it knows the field.
    ///
    /// # Errors
    /// [`CarryError::Cut`] for a field that does not end, [`CarryError::Unknown`] for a field that
    /// must be known, or the error of `take`.
    pub fn read(
        &self,
        mut take: impl FnMut(u16, Content<'_>) -> Result<bool, CarryError>,
    ) -> Result<(), CarryError> {
        let mut rest = &*self.fields;
        while !rest.is_empty() {
            let (tag, after) = rest.split_first_chunk::<TAG>().ok_or(CarryError::Cut)?;
            let (length, after) = after.split_first_chunk::<LENGTH>().ok_or(CarryError::Cut)?;
            let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
            let (content, after) = after.split_at_checked(length).ok_or(CarryError::Cut)?;
            rest = after;
            let tag = u16::from_le_bytes(*tag);
            if !take(tag, Content(content))? && tag % 2 == 1 {
                return Err(CarryError::Unknown(tag));
            }
        }
        Ok(())
    }
}

/// The content of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content<'a>(pub &'a [u8]);

impl<'a> Content<'a> {
    /// Reads a number.
    ///
    /// # Errors
    /// [`CarryError::Malformed`] if it does not have the length of one.
    pub fn number(self) -> Result<u64, CarryError> {
        self.0.try_into().map(u64::from_le_bytes).map_err(|_| CarryError::Malformed)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// [`CarryError::Malformed`] if it is not UTF-8.
    pub fn text(self) -> Result<&'a str, CarryError> {
        std::str::from_utf8(self.0).map_err(|_| CarryError::Malformed)
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`CarryError::Cut`] if its tag is missing.
    pub fn message(self) -> Result<Message, CarryError> {
        Message::decode(Secret::from(self.0))
    }
}

/// Why bytes are not a message that this release reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CarryError {
    /// A message is longer than the limit.
    TooLong,
    /// A message or a field does not end where its length says.
    Cut,
    /// The content of a field is not of its kind.
    Malformed,
    /// This release does not know a field that must be known.
    Unknown(u16),
    /// A required field is missing.
    Missing(u16),
}

impl fmt::Display for CarryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => f.write_str("a message is longer than the limit"),
            Self::Cut => f.write_str("a message or a field is cut off"),
            Self::Malformed => f.write_str("a field has a malformed value"),
            Self::Unknown(tag) => write!(f, "the field {tag} is required and not known"),
            Self::Missing(tag) => write!(f, "the required field {tag} is missing"),
        }
    }
}

impl std::error::Error for CarryError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 1 << 10;

    /// Returns the tag and the fields of a message.
    fn fields(message: &Message) -> Fields {
        let mut fields = Vec::new();
        message
            .read(|tag, content| {
                fields.push((tag, content.0.to_vec()));
                Ok(true)
            })
            .unwrap();
        (message.tag(), fields)
    }

    #[test]
    fn an_unknown_field_is_skipped_if_its_tag_is_even_and_refused_if_it_is_odd() {
        let read = |tag| {
            let mut inbox = Inbox::new(MAX);
            inbox.push(&Encoder::new(1).text(tag, "new").number(1, 7).finish());
            let message = inbox.next_message().unwrap().unwrap();
            let mut known = None;
            let outcome = message.read(|tag, content| {
                let is_known = tag == 1;
                if is_known {
                    known = Some(content.number()?);
                }
                Ok(is_known)
            });
            outcome.map(|()| known)
        };
        assert_eq!(read(8), Ok(Some(7)));
        assert_eq!(read(9), Err(CarryError::Unknown(9)));
    }

    #[test]
    fn values_of_another_kind_are_refused() {
        assert_eq!(Content(b"short").number(), Err(CarryError::Malformed));
        assert_eq!(Content(b"\xff").text(), Err(CarryError::Malformed));
        assert_eq!(Content(b"1").message(), Err(CarryError::Cut));
        let inner = Encoder::new(3).text(1, "inner");
        let outer = Encoder::new(2).message(1, inner.clone()).finish();
        let mut inbox = Inbox::new(MAX);
        inbox.push(&outer);
        let (_, outer) = fields(&inbox.next_message().unwrap().unwrap());
        let message = Content(&outer[0].1).message().unwrap();
        assert_eq!(fields(&message), (3, vec![(1, b"inner".to_vec())]));
    }

    #[test]
    fn a_long_message_is_refused_when_it_is_announced_and_nothing_is_reserved_for_it() {
        let mut inbox = Inbox::new(MAX);
        inbox.push(&(MAX as u32 + 1).to_le_bytes());
        assert_eq!(inbox.next_message(), Err(CarryError::TooLong));
        let mut inbox = Inbox::new(usize::MAX);
        inbox.push(&u32::MAX.to_le_bytes());
        assert_eq!(inbox.next_message(), Ok(None));
        assert!(inbox.bytes.capacity() < 100);
    }

    /// A tag and fields.
    type Fields = (u16, Vec<(u16, Vec<u8>)>);

    fn messages() -> impl Strategy<Value = Vec<Fields>> {
        let field = (any::<u16>(), prop::collection::vec(any::<u8>(), 0..40));
        let message = (any::<u16>(), prop::collection::vec(field, 0..6));
        prop::collection::vec(message, 0..5)
    }

    proptest! {
        #[test]
        fn messages_come_back_however_the_stream_is_cut(
            sent in messages(),
            piece in 1usize..64,
        ) {
            let encode = |(tag, fields): &Fields| {
                let begun = Encoder::new(*tag);
                fields.iter().fold(begun, |out, (tag, content)| out.bytes(*tag, content)).finish()
            };
            let stream: Vec<u8> = sent.iter().flat_map(|it| encode(it).to_vec()).collect();
            let (mut inbox, mut received) = (Inbox::new(MAX), Vec::new());
            for piece in stream.chunks(piece) {
                inbox.push(piece);
                while let Some(message) = inbox.next_message().unwrap() {
                    received.push(fields(&message));
                }
            }
            prop_assert_eq!(received, sent);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut inbox = Inbox::new(MAX);
            inbox.push(&bytes);
            while let Ok(Some(message)) = inbox.next_message() {
                let _ = message.read(|_, content| {
                    let _ = (content.number(), content.text());
                    content.message().and_then(|inner| inner.read(|_, _| Ok(false))).map(|()| true)
                });
            }
            // As one message, whose fields are arbitrary bytes.
            if let Ok(message) = Message::decode(Secret::from(&*bytes)) {
                let _ = message.read(|_, _| Ok(true));
            }
        }
    }
}
