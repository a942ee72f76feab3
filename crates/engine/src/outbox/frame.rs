//! Frames encoded once and sent many times.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::{self, Write as _};
use std::hash::{BuildHasher, Hash, RandomState};
use std::ops::Range;
use std::sync::{Arc, LazyLock, OnceLock};

use throng_proto::sse;
use throng_proto::ws::{self, Message, Opcode, OwnedMessage};

use crate::outbox::about::About;

/// A message encoded once for everyone: finished bytes, header included, behind a reference count.
/// Make one when the same message goes to many connections or more than once: it is queued as a
/// 16-byte reference and never copied per receiver (frames of up to 64 bytes are: the reference
/// would cost as much). Cloning counts a reference. A form for another transport is made when its
/// first connection needs it, and shared likewise: a compressed form for each size of window, and
/// the server-sent event.
#[derive(Clone)]
pub struct Frame {
    inner: Arc<Inner>,
}

struct Inner {
    bytes: Arc<[u8]>,
    text: bool,
    header: usize,
    /// Hash of the key of [`Frame::keyed`]; 0 = none.
    key: u64,
    incompressible: bool,
    /// The id and the name of the server-sent event, and the subject of the message.
    meta: Option<Arc<Meta>>,
    /// The server-sent event, or if it would be too large, the event `lost`.
    event: OnceLock<Result<Arc<[u8]>, Frame>>,
    /// Compressed forms, one for each size of window.
    deflated: OnceLock<Box<[Variant; WINDOWS]>>,
}

/// The parts of a frame that few frames have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Meta {
    fields: sse::Fields,
    about: Option<About>,
}

impl Meta {
    fn memory(&self) -> usize {
        let about = self.about.as_ref().map_or(0, About::memory);
        size_of::<Option<About>>() + about + self.fields.memory()
    }
}

/// The parts of a [`Frame`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameParts<'a> {
    /// Whether it is a text message.
    pub is_text: bool,
    /// Whether it is not compressed.
    pub is_incompressible: bool,
    /// Hash of its key.
    pub key: Option<u64>,
    /// Name of the server-sent event.
    pub name: Option<&'a str>,
    /// Id of the server-sent event.
    pub id: Option<&'a str>,
    /// Description of the client that has published it.
    pub publisher: Option<&'a str>,
    /// The message.
    pub payload: &'a [u8],
}

/// A compressed form; `None` inside: compression does not shrink it.
type Variant = OnceLock<Option<Arc<[u8]>>>;

/// Number of sizes: window bits of 9 to 15.
const WINDOWS: usize = 7;

/// Hasher of keys. They are compared by a 64-bit hash, so clients must not be able to find
/// collisions of it.
static KEY_HASH: LazyLock<RandomState> = LazyLock::new(RandomState::new);

thread_local! {
    /// Memory for [`Frame::format`].
    static FORMATTED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Bytes of that memory that a thread keeps.
const MAX_KEPT: usize = 64 * 1024;

/// Frames are equal if their message, key, compression setting, id and name are equal.
impl PartialEq for Frame {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&*self.inner, &*other.inner);
        Arc::ptr_eq(&self.inner, &other.inner)
            || (a.key, a.incompressible, &a.meta) == (b.key, b.incompressible, &b.meta)
                && a.bytes == b.bytes
    }
}

impl Eq for Frame {}

/// The message, as [`Frame::payload`] returns it.
impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        self.payload()
    }
}

impl Frame {
    /// Creates a text message.
    #[must_use]
    pub fn text(text: impl AsRef<str>) -> Self {
        Self::encode(Opcode::Text, text.as_ref().as_bytes())
    }

    /// Creates a binary message.
    #[must_use]
    pub fn binary(bytes: impl AsRef<[u8]>) -> Self {
        Self::encode(Opcode::Binary, bytes.as_ref())
    }

    /// A text message from `format_args!`, without a `String` in between.
    ///
    /// ```
    /// # use throng_engine::Frame;
    /// let (name, text) = ("alice", "hello");
    /// let frame = Frame::format(format_args!("{name}: {text}"));
    /// assert_eq!(frame.payload(), b"alice: hello");
    /// ```
    #[must_use]
    pub fn format(text: fmt::Arguments<'_>) -> Self {
        let mut formatted = FORMATTED.take();
        formatted.clear();
        // Only a `Display` of the caller's can fail; the text it wrote before is the message.
        let _ = formatted.write_fmt(text);
        let frame = Self::text(&formatted);
        if formatted.capacity() <= MAX_KEPT {
            FORMATTED.set(formatted);
        }
        frame
    }

    fn encode(opcode: Opcode, payload: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(payload.len() + 10);
        ws::encode(opcode, payload, &mut bytes);
        let (text, header) = (opcode == Opcode::Text, bytes.len() - payload.len());
        let bytes = bytes.into();
        Self::of(Inner {
            bytes,
            text,
            header,
            key: 0,
            incompressible: false,
            meta: None,
            event: OnceLock::new(),
            deflated: OnceLock::new(),
        })
    }

    /// Returns the memory of all forms made so far.
    pub(crate) fn memory(&self) -> usize {
        let Inner { bytes, event, deflated, .. } = &*self.inner;
        let event = match event.get() {
            Some(Ok(event)) => event.len(),
            Some(Err(lost)) => lost.memory(),
            None => 0,
        };
        let deflated = deflated.get().into_iter().flat_map(|forms| forms.iter());
        let deflated = deflated.filter_map(OnceLock::get).flatten();
        let forms: usize = deflated.map(|form| form.len()).sum();
        let meta = self.inner.meta.as_deref().map_or(0, Meta::memory);
        size_of::<Inner>() + bytes.len() + meta + event + forms
    }

    /// Returns how many owners share it.
    pub(crate) fn references(&self) -> usize {
        Arc::strong_count(&self.inner)
    }

    fn of(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// Returns the message with its derived forms.
    fn copy(&self) -> Inner {
        Inner {
            bytes: Arc::clone(&self.inner.bytes),
            meta: self.inner.meta.clone(),
            event: self.inner.event.clone(),
            deflated: self.inner.deflated.clone(),
            ..*self.inner
        }
    }

    /// Returns the message without its derived forms, which a copy of it makes for itself.
    pub(crate) fn bare(&self) -> Self {
        Self::of(Inner {
            bytes: Arc::clone(&self.inner.bytes),
            meta: self.inner.meta.clone(),
            event: OnceLock::new(),
            deflated: OnceLock::new(),
            ..*self.inner
        })
    }

    /// Returns the message without its derived forms, with this id.
    pub(crate) fn numbered(&self, id: &str) -> Self {
        let mut meta = self.inner.meta.as_deref().cloned().unwrap_or_default();
        meta.fields.set_id(id);
        Self::of(Inner {
            bytes: Arc::clone(&self.inner.bytes),
            meta: Some(Arc::new(meta)),
            event: OnceLock::new(),
            deflated: OnceLock::new(),
            ..*self.inner
        })
    }

    /// Returns the message with a text in front of it.
    pub(crate) fn prefixed(&self, prefix: &str) -> Self {
        let opcode = if self.inner.text { Opcode::Text } else { Opcode::Binary };
        let payload = [prefix.as_bytes(), self.payload()].concat();
        Self::encode(opcode, &payload).into_form_of(self)
    }

    /// Sets a key: the message is the newest value of `key`, for
    /// [`SlowPolicy::Latest`](crate::SlowPolicy::Latest). While a receiver is slow, only the newest
    /// value of each key waits for it. Keys of different channels are different.
    #[must_use]
    pub fn keyed(self, key: impl Hash) -> Self {
        Self::of(Inner { key: KEY_HASH.hash_one(key).max(1), ..self.copy() })
    }

    /// Disables compression of the message: for data that is compressed already, such as images.
    #[must_use]
    pub fn incompressible(self) -> Self {
        Self::of(Inner { incompressible: true, ..self.copy() })
    }

    /// Sets the id that the message has as a server-sent event. A browser whose stream ends sends
    /// the id of the last event with its next request (`Request::last_event_id`). Line breaks in
    /// `id` are removed.
    #[must_use]
    pub fn event_id(self, id: impl AsRef<str>) -> Self {
        self.with_meta(|meta| meta.fields.set_id(id.as_ref()))
    }

    /// Sets the type that the message has as a server-sent event, which pages listen for by name.
    /// Ends of lines are left out.
    #[must_use]
    pub fn event_name(self, name: impl AsRef<str>) -> Self {
        self.with_meta(|meta| meta.fields.set_name(name.as_ref()))
    }

    /// Sets the subject of the message. Only sessions with a [`Dialect`](crate::Dialect) get it.
    #[must_use]
    pub fn with_about(self, about: About) -> Self {
        self.with_meta(|meta| meta.about = Some(about))
    }

    /// Returns the subject of the message, if it is known.
    #[must_use]
    pub fn about(&self) -> Option<&About> {
        self.inner.meta.as_deref()?.about.as_ref()
    }

    /// Returns another form of a message, with the message's key and compression setting.
    pub(crate) fn into_form_of(self, of: &Self) -> Self {
        let Inner { key, incompressible, .. } = *of.inner;
        if key == 0 && !incompressible {
            return self;
        }
        Self::of(Inner { key, incompressible, ..self.copy() })
    }

    /// Returns the parts of the message, to send it to another process.
    #[must_use]
    pub fn parts(&self) -> FrameParts<'_> {
        let fields = self.fields();
        let publisher = match self.about() {
            Some(About::Publisher(publisher)) => Some(&**publisher),
            _ => None,
        };
        FrameParts {
            is_text: self.inner.text,
            is_incompressible: self.inner.incompressible,
            key: Some(self.inner.key).filter(|key| *key != 0),
            name: fields.and_then(sse::Fields::name),
            id: fields.and_then(sse::Fields::id),
            publisher,
            payload: self.payload(),
        }
    }

    /// Creates a message of parts that another process has sent. A payload that is text must be
    /// UTF-8.
    #[must_use]
    pub fn from_parts(parts: &FrameParts<'_>) -> Self {
        let opcode = if parts.is_text { Opcode::Text } else { Opcode::Binary };
        let mut inner = Self::encode(opcode, parts.payload).copy();
        (inner.key, inner.incompressible) = (parts.key.unwrap_or(0), parts.is_incompressible);
        if parts.name.is_some() || parts.id.is_some() || parts.publisher.is_some() {
            let mut meta = Meta::default();
            parts.name.into_iter().for_each(|name| meta.fields.set_name(name));
            parts.id.into_iter().for_each(|id| meta.fields.set_id(id));
            meta.about = parts.publisher.map(|publisher| About::Publisher(publisher.into()));
            inner.meta = Some(Arc::new(meta));
        }
        Self::of(inner)
    }

    fn with_meta(self, set: impl FnOnce(&mut Meta)) -> Self {
        let mut meta = self.inner.meta.as_deref().cloned().unwrap_or_default();
        set(&mut meta);
        let meta = Some(Arc::new(meta));
        Self::of(Inner { meta, event: OnceLock::new(), ..self.copy() })
    }

    fn fields(&self) -> Option<&sse::Fields> {
        self.inner.meta.as_deref().map(|meta| &meta.fields)
    }

    /// Returns the frame as sent on a WebSocket.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.inner.bytes
    }

    /// Returns the message.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.inner.bytes[self.inner.header..]
    }

    /// Returns the key's hash within this channel: without a key of its own, the channel is the
    /// key.
    pub(crate) fn key_in(&self, channel: &str) -> u64 {
        KEY_HASH.hash_one((channel, self.inner.key))
    }

    pub(crate) fn shared(&self) -> &Arc<[u8]> {
        &self.inner.bytes
    }

    pub(crate) fn is_text(&self) -> bool {
        self.inner.text
    }

    pub(crate) fn is_incompressible(&self) -> bool {
        self.inner.incompressible
    }

    /// Returns the position of the message in [`Frame::shared`].
    pub(crate) fn payload_range(&self) -> Range<usize> {
        self.inner.header..self.inner.bytes.len()
    }

    /// Returns the frame compressed without context for a window of `bits` (9 to 15), if that
    /// shrinks it. `compress` appends the compressed message, or returns false; it is called once
    /// for each size of window.
    pub(crate) fn deflated(
        &self,
        bits: u8,
        compress: impl FnOnce(&[u8], &mut Vec<u8>) -> bool,
    ) -> Option<&Arc<[u8]>> {
        let variants = self.inner.deflated.get_or_init(Box::default);
        let variant = variants[usize::from(bits - 9)].get_or_init(|| {
            let mut deflated = Vec::new();
            compress(self.payload(), &mut deflated).then(|| {
                let mut out = Vec::with_capacity(deflated.len() + 10);
                ws::encode_deflated(self.inner.text, &deflated, None, &mut out);
                out.into()
            })
        });
        variant.as_ref()
    }

    /// Appends the message as a server-sent event.
    pub fn encode_event(&self, out: &mut Vec<u8>) {
        let no_fields = sse::Fields::default();
        let fields = self.fields().unwrap_or(&no_fields);
        sse::encode(fields, self.inner.text, self.payload(), out);
    }

    /// Returns the length of the message as a server-sent event.
    pub(crate) fn event_len(&self) -> usize {
        let no_fields = sse::Fields::default();
        let fields = self.fields().unwrap_or(&no_fields);
        sse::encoded_len(fields, self.inner.text, self.payload())
    }

    /// Returns the message as a server-sent event, or the event `lost` if that is more than a third
    /// larger than the message, and than `max_message`: as base64 it is a third larger, and a text
    /// of many empty lines seven times. `made` is called the first time, with the number of bytes
    /// processed.
    pub(crate) fn event(
        &self,
        max_message: usize,
        made: impl FnOnce(usize),
    ) -> Result<&Arc<[u8]>, &Self> {
        let event = self.inner.event.get_or_init(|| {
            let (payload, len) = (self.payload(), self.event_len());
            let most = payload.len().max(max_message);
            let is_fair = len <= most.saturating_add(most / 3).saturating_add(64);
            made(payload.len() + if is_fair { len } else { 0 });
            if is_fair { Ok(self.encoded_event()) } else { Err(self.lost()) }
        });
        event.as_ref()
    }

    fn encoded_event(&self) -> Arc<[u8]> {
        let mut out = Vec::new();
        self.encode_event(&mut out);
        out.into()
    }

    /// Returns the event `lost`, whose id and data are the id of this message. The event has one
    /// form for ids of any length.
    fn lost(&self) -> Self {
        let id = self.fields().and_then(sse::Fields::id);
        let lost = Self::text(id.unwrap_or_default()).event_name("lost");
        let lost = id.into_iter().fold(lost, |lost, id| lost.event_id(id));
        let event = OnceLock::from(Ok(lost.encoded_event()));
        Self::of(Inner { key: self.inner.key, event, ..lost.copy() })
    }
}

impl sse::ToEvent for Frame {
    fn encode_event(&self, out: &mut Vec<u8>) {
        Self::encode_event(self, out);
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes)", self.inner.bytes.len())
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

/// A text message.
#[cfg(feature = "serde")]
impl<T: serde::Serialize> From<throng_proto::json::Json<T>> for Frame {
    fn from(value: throng_proto::json::Json<T>) -> Self {
        Self::text(value.to_message())
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
    Box<str> => text,
    Cow<'_, str> => text,
    Box<[u8]> => binary,
    Cow<'_, [u8]> => binary,
}

impl<const N: usize> From<[u8; N]> for Frame {
    fn from(message: [u8; N]) -> Self {
        Self::binary(message)
    }
}

impl<const N: usize> From<&[u8; N]> for Frame {
    fn from(message: &[u8; N]) -> Self {
        Self::binary(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_messages_become_frames_of_their_kind() {
        let text = OwnedMessage::from("text");
        assert_eq!(Frame::from(&text), Frame::text("text"));
        assert_ne!(Frame::from(&text), Frame::binary("text"));
        assert_ne!(Frame::from(text), Frame::text("text").keyed(1));
        assert_eq!(Frame::from(OwnedMessage::from(vec![1, 2])).as_ref(), [1, 2]);
    }
}
