//! The frame decoder: bytes in, events out.

use throng_simd::{BrokenUtf8, mask, utf8};

use super::close;
use super::header::{Decoded, FrameContext, FrameHeader, MAX_HEADER, MessageHeader};
use super::reassembly::{Reassembly, Spare};
use super::{Chunk, Deflated, Event, Limits, Opcode, ProtocolError, Role};
use crate::input::Input;

/// Decodes the frames that one end of a connection receives after the handshake.
///
/// It takes 32 bytes, with no heap memory unless a frame or a message has arrived in part. The
/// reassembly buffer grows with the bytes received, to at most twice their number; a reused buffer
/// has at most 16 KiB, or 8 times the first bytes received.
///
/// ```
/// use throng_proto::{Input, ws::{Decoder, Event, Limits, Role}};
///
/// let mut bytes = *b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"; // RFC 6455 section 5.7
/// let mut input = Input::new(&mut bytes);
/// let mut decoder = Decoder::new(Role::Server);
/// while let Some(event) = decoder.next_event(&mut input, &Limits::default())? {
///     assert_eq!(event, Event::Text("Hello"));
/// }
/// # Ok::<(), throng_proto::ws::ProtocolError>(())
/// ```
#[derive(Debug)]
pub struct Decoder {
    /// Present only while a frame or message has arrived in part, or was just returned from here.
    reassembly: Option<Box<Reassembly>>,
    stage: FrameStage,
    /// The fragmented message that has started and not ended.
    message: Option<Kind>,
    role: Role,
    /// Whether permessage-deflate was negotiated.
    deflate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Binary,
    DeflatedText,
    DeflatedBinary,
}

impl Kind {
    fn of(head: &FrameHeader) -> Option<Self> {
        Some(match (head.opcode, head.deflated) {
            (Opcode::Text, false) => Self::Text,
            (Opcode::Text, true) => Self::DeflatedText,
            (Opcode::Binary, false) => Self::Binary,
            (Opcode::Binary, true) => Self::DeflatedBinary,
            _ => return None,
        })
    }

    fn is_deflated(self) -> bool {
        matches!(self, Self::DeflatedText | Self::DeflatedBinary)
    }
}

/// The position of the next byte in the stream of frames.
#[derive(Clone, Copy, Debug)]
enum FrameStage {
    /// At the start of a frame.
    Start,
    /// Inside a frame header. These bytes of the header have arrived.
    Header { bytes: [u8; MAX_HEADER - 1], len: u8 },
    /// Inside a frame's payload.
    Payload(Frame),
    /// At the start of a frame, after an event was returned from the reassembly buffer. The buffer
    /// must be released first.
    Delivered { control: bool },
    /// After a close frame.
    Closed,
    /// After an error.
    Failed(ProtocolError),
}

/// A frame whose payload has arrived in part.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Payload bytes still to come.
    remaining: u64,
    /// The masking key, rotated so that its first byte applies to the next byte of the payload.
    key: Option<[u8; 4]>,
    opcode: Opcode,
    fin: bool,
}

/// The result of [`Decoder::advance`].
enum Next<'b> {
    /// An event within the lent bytes.
    Lent(Event<'b>),
    /// A message, in the reassembly buffer.
    Message(Kind),
    /// A control frame, in the reassembly buffer.
    Control(Opcode),
    /// Nothing more: all input is taken.
    Nothing,
}

impl Decoder {
    /// Creates a decoder for the frames that `role` receives after the handshake. Allocates
    /// nothing.
    #[must_use]
    pub const fn new(role: Role) -> Self {
        Self { reassembly: None, stage: FrameStage::Start, message: None, role, deflate: false }
    }

    /// Creates a decoder for a connection that negotiated permessage-deflate. Compressed messages
    /// are returned as [`Event::Compressed`].
    #[must_use]
    pub const fn with_deflate(role: Role) -> Self {
        Self { reassembly: None, stage: FrameStage::Start, message: None, role, deflate: true }
    }

    /// Takes bytes from `input` up to the next event. Returns `None` if all bytes are taken and no
    /// event is complete.
    ///
    /// After [`Event::Close`] it discards all input and returns `None`. The next call after a
    /// reassembled message was returned frees its memory, so call until `None`.
    ///
    /// # Errors
    /// The peer violated a rule or a limit. All further input is discarded and every further call
    /// returns the same error.
    #[inline(always)]
    pub fn next_event<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<Event<'a>>, ProtocolError> {
        self.next_event_with(input, limits, &mut Spare::new())
    }

    /// Like [`Decoder::next_event`], with the reassembly buffer taken from `spare` and returned to
    /// it instead of freed: cheaper when large or split messages are common.
    ///
    /// A compressed message may have as many bytes as `limits` allow a message, and a few more, and
    /// its text is not yet validated; the [`Inflater`](super::deflate::Inflater) limits its
    /// inflated size.
    ///
    /// # Errors
    /// As for [`Decoder::next_event`].
    #[inline(always)]
    pub fn next_event_with<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
        spare: &mut Spare,
    ) -> Result<Option<Event<'a>>, ProtocolError> {
        if let Some(event) = self.whole_message(input, limits.max_whole_message()) {
            return Ok(Some(event));
        }
        if self.is_at_rest(input) {
            return Ok(None);
        }
        self.resume(input, limits, spare)
    }

    /// Like [`Decoder::next_event_with`], without reassembly: a message is returned in chunks as it
    /// arrives, each at most the size of `input`, and nothing of it is buffered.
    ///
    /// `limits` still apply to the frame and to the whole message. A message that arrived whole may
    /// be returned as an event. Use this method, or the others, for the whole life of a connection;
    /// compressed messages are refused.
    ///
    /// # Errors
    /// As for [`Decoder::next_event`].
    pub fn next_chunk<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
        spare: &mut Spare,
    ) -> Result<Option<Event<'a>>, ProtocolError> {
        if let Some(event) = self.whole_message(input, limits.max_whole_message()) {
            return Ok(Some(event));
        }
        Ok(match self.advance(input, limits, spare, false)? {
            // Compression is not negotiated, and nothing is reassembled here.
            Next::Lent(Event::Compressed(_)) | Next::Message(_) => {
                return Err(self.fail(ProtocolError::ReservedBits));
            }
            Next::Nothing => None,
            Next::Lent(event) => Some(event),
            Next::Control(opcode) => Some(self.control_event(opcode)),
        })
    }

    /// Returns whether permessage-deflate was negotiated.
    #[must_use]
    pub fn deflates(&self) -> bool {
        self.deflate
    }

    /// Returns whether no frame and no message has arrived in part. If false, the reassembly
    /// deadline bounds the time that the peer may take to finish.
    #[must_use]
    pub fn is_between_messages(&self) -> bool {
        self.message.is_none()
            && !matches!(self.stage, FrameStage::Header { .. } | FrameStage::Payload(_))
    }

    /// Returns the number of payload bytes buffered for the unfinished message.
    #[must_use]
    pub fn buffered(&self) -> usize {
        match &self.reassembly {
            Some(reassembly) if !self.is_between_messages() => {
                reassembly.message.len() + reassembly.control().len()
            }
            _ => 0,
        }
    }

    /// Returns the memory in bytes used by a message that has arrived in part, or that was returned
    /// last. This is more than [`Decoder::buffered`], because the buffer may be a reused one. The
    /// memory of a forwarded message counts at its sender.
    #[must_use]
    pub fn memory(&self) -> usize {
        let own = self.reassembly.as_ref().filter(|reassembly| !reassembly.is_shared());
        own.map_or(0, |reassembly| reassembly.memory())
    }

    /// Returns the next event in the most common case: an unfragmented message of at most `max_len`
    /// and 65,535 bytes that has arrived whole.
    ///
    /// Returns `None` for anything else, including errors: call [`Decoder::next_event_with`] then.
    /// This is the fast path that skips all checks of that call.
    #[inline(always)]
    pub fn whole_message<'b>(
        &mut self,
        input: &mut Input<'b>,
        max_len: usize,
    ) -> Option<Event<'b>> {
        if !matches!(self.stage, FrameStage::Start) || self.message.is_some() {
            return None;
        }
        let MessageHeader { text, masked, len, size } =
            MessageHeader::decode(input.as_slice(), self.role)?;
        if len > max_len {
            return None;
        }
        let (head, payload) = input.take_exactly(size + len)?.split_at_mut(size);
        let key = if masked { head.last_chunk().copied() } else { None };
        if !text {
            return Some(Event::Binary(unmask(payload, key)));
        }
        let text = unmask_text(payload, key);
        if text.is_none() {
            self.fail(ProtocolError::InvalidText);
        }
        text.map(Event::Text)
    }

    /// Returns whether [`Decoder::whole_message`] would take a message from these bytes, or find
    /// that its text is not UTF-8. For a caller that cannot borrow the message yet.
    #[inline]
    #[must_use]
    pub fn has_whole_message(&self, bytes: &[u8], max_len: usize) -> bool {
        matches!(self.stage, FrameStage::Start)
            && self.message.is_none()
            && MessageHeader::decode(bytes, self.role)
                .is_some_and(|head| head.len <= max_len && head.size + head.len <= bytes.len())
    }

    /// Returns whether `input` is empty and nothing of it is buffered, so that another call would
    /// return `None` and change nothing.
    #[inline(always)]
    #[must_use]
    pub fn is_at_rest(&self, input: &Input<'_>) -> bool {
        input.is_empty() && matches!(self.stage, FrameStage::Start) && self.message.is_none()
    }

    /// Returns whether the payload of this frame alone is its event.
    fn stands_alone(&self, head: &FrameHeader) -> bool {
        head.fin && (self.message.is_none() || head.opcode.is_control())
    }

    fn check_size(&mut self, head: &FrameHeader, limits: &Limits) -> Result<(), ProtocolError> {
        if head.opcode.is_control() {
            return Ok(());
        }
        let loose;
        let limits = if head.deflated || self.message.is_some_and(Kind::is_deflated) {
            loose = limits.of_deflated();
            &loose
        } else {
            limits
        };
        if head.len > limits.max_frame_size as u64 {
            return Err(self.fail(ProtocolError::FrameTooBig));
        }
        let joined = match &self.reassembly {
            Some(reassembly) if self.message.is_some() => {
                reassembly.message.len() as u64 + reassembly.streamed.len
            }
            _ => 0,
        };
        if head.len.saturating_add(joined) > limits.max_message_size as u64 {
            return Err(self.fail(ProtocolError::MessageTooBig));
        }
        Ok(())
    }

    /// Returns the event of a frame that stands alone and whose payload is all at the front of
    /// `input`.
    fn lent<'b>(
        &mut self,
        head: &FrameHeader,
        input: &mut Input<'b>,
    ) -> Result<Next<'b>, ProtocolError> {
        let payload = input.take(head.len as usize);
        if head.deflated {
            let (text, payload) = (head.opcode == Opcode::Text, unmask(payload, head.key));
            return Ok(Next::Lent(Event::Compressed(Deflated { text, payload })));
        }
        let event = match head.opcode {
            Opcode::Text => match unmask_text(payload, head.key) {
                Some(text) => Ok(Event::Text(text)),
                None => Err(ProtocolError::InvalidText),
            },
            // A continuation never stands alone.
            Opcode::Binary | Opcode::Continuation => Ok(Event::Binary(unmask(payload, head.key))),
            Opcode::Ping => Ok(Event::Ping(unmask(payload, head.key))),
            Opcode::Pong => Ok(Event::Pong(unmask(payload, head.key))),
            Opcode::Close => {
                self.stage = FrameStage::Closed;
                self.message = None;
                close::decode(unmask(payload, head.key)).map(Event::Close)
            }
        };
        event.map(Next::Lent).map_err(|error| self.fail(error))
    }

    #[cold]
    fn fail(&mut self, error: ProtocolError) -> ProtocolError {
        self.reassembly = None;
        self.message = None;
        self.stage = FrameStage::Failed(error);
        error
    }

    /// Handles everything but the fast path.
    #[inline(never)]
    fn resume<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
        spare: &mut Spare,
    ) -> Result<Option<Event<'a>>, ProtocolError> {
        Ok(Some(match self.advance(input, limits, spare, true)? {
            Next::Nothing => return Ok(None),
            Next::Lent(event) => event,
            Next::Message(kind) => {
                let joined = self.reassembly.as_ref().map(|reassembly| &reassembly.message);
                let payload = joined.map_or(&[][..], |joined| joined.as_bytes());
                if kind.is_deflated() {
                    let text = kind == Kind::DeflatedText;
                    return Ok(Some(Event::Compressed(Deflated { text, payload })));
                }
                spare.set_joined(joined);
                match kind {
                    // `advance` validated that it is text.
                    Kind::Text => {
                        Event::Text(joined.and_then(|joined| joined.as_str()).unwrap_or_default())
                    }
                    _ => Event::Binary(payload),
                }
            }
            Next::Control(opcode) => self.control_event(opcode),
        }))
    }

    fn control_event(&self, opcode: Opcode) -> Event<'_> {
        let payload = self.control();
        match opcode {
            Opcode::Ping => Event::Ping(payload),
            Opcode::Pong => Event::Pong(payload),
            // `advance` validated that it is well-formed.
            _ => Event::Close(close::decode(payload).unwrap_or_default()),
        }
    }

    /// Takes input up to the end of the next event, or of the next chunk of a message if messages
    /// are not reassembled.
    fn advance<'b>(
        &mut self,
        input: &mut Input<'b>,
        limits: &Limits,
        spare: &mut Spare,
        join: bool,
    ) -> Result<Next<'b>, ProtocolError> {
        loop {
            match self.stage {
                FrameStage::Start if input.is_empty() => return Ok(Next::Nothing),
                FrameStage::Start => {
                    self.stage = FrameStage::Header { bytes: [0; MAX_HEADER - 1], len: 0 }
                }
                FrameStage::Delivered { control } => {
                    self.drop_delivered(control, spare);
                    self.stage = FrameStage::Start;
                }
                FrameStage::Header { bytes, len } => {
                    let Some(head) = self.next_header(input, bytes, len)? else {
                        return Ok(Next::Nothing);
                    };
                    self.stage = FrameStage::Start;
                    self.check_size(&head, limits)?;
                    if self.stands_alone(&head) && input.len() as u64 >= head.len {
                        return self.lent(&head, input);
                    }
                    if let Some(kind) = Kind::of(&head) {
                        self.message = Some(kind);
                    }
                    let FrameHeader { fin, opcode, len: remaining, key, .. } = head;
                    self.stage = FrameStage::Payload(Frame { remaining, key, opcode, fin });
                }
                FrameStage::Payload(mut frame) => {
                    let chunk = input.take(usize::try_from(frame.remaining).unwrap_or(usize::MAX));
                    frame.remaining -= chunk.len() as u64;
                    if !join && !frame.opcode.is_control() {
                        match self.message_chunk(frame, chunk, spare)? {
                            Some(chunk) => return Ok(Next::Lent(Event::Chunk(chunk))),
                            None if frame.remaining > 0 => return Ok(Next::Nothing),
                            None => continue,
                        }
                    }
                    if !chunk.is_empty() {
                        self.join(frame, chunk, limits, spare)?;
                    }
                    if frame.remaining > 0 {
                        frame.key = frame.key.map(|key| mask::rotate(key, chunk.len()));
                        self.stage = FrameStage::Payload(frame);
                        return Ok(Next::Nothing);
                    }
                    self.stage = FrameStage::Start;
                    if frame.opcode.is_control() {
                        return self.deliver_control(frame.opcode);
                    }
                    if frame.fin {
                        return self.deliver_message();
                    }
                }
                FrameStage::Closed => {
                    self.reassembly = None;
                    input.take(usize::MAX);
                    return Ok(Next::Nothing);
                }
                FrameStage::Failed(error) => {
                    input.take(usize::MAX);
                    return Err(error);
                }
            }
        }
    }

    /// Decodes the next header, from the `len` bytes buffered and then from `input`.
    fn next_header(
        &mut self,
        input: &mut Input<'_>,
        here: [u8; MAX_HEADER - 1],
        len: u8,
    ) -> Result<Option<FrameHeader>, ProtocolError> {
        let mut bytes = [0; MAX_HEADER];
        bytes[..here.len()].copy_from_slice(&here);
        let mut len = usize::from(len);
        let place =
            FrameContext { role: self.role, inside: self.message.is_some(), deflate: self.deflate };
        loop {
            match FrameHeader::decode(&bytes[..len], place) {
                Ok(Decoded::Header(head)) => return Ok(Some(head)),
                Ok(Decoded::Needs(needs)) => {
                    let more = input.take(needs - len);
                    if more.is_empty() {
                        // The last byte cannot have arrived, or the header would be complete.
                        let [bytes @ .., _] = bytes;
                        self.stage = FrameStage::Header { bytes, len: len as u8 };
                        return Ok(None);
                    }
                    bytes[len..len + more.len()].copy_from_slice(more);
                    len += more.len();
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
    }

    /// Appends a chunk of a payload to the reassembly buffer. `frame.remaining` counts the bytes
    /// after the chunk.
    fn join(
        &mut self,
        frame: Frame,
        chunk: &mut [u8],
        limits: &Limits,
        spare: &mut Spare,
    ) -> Result<(), ProtocolError> {
        let received = if frame.opcode.is_control() { 0 } else { chunk.len() };
        let reassembly = self.reassembly.get_or_insert_with(|| spare.take(received));
        if frame.opcode.is_control() {
            reassembly.push_control(unmask(chunk, frame.key));
            return Ok(());
        }
        // A compressed message may be a little longer than `limits`; space for that is allocated
        // when it arrives.
        let expected = if frame.fin {
            usize::try_from(frame.remaining).unwrap_or(usize::MAX)
        } else {
            limits.max_message_size.saturating_sub(reassembly.message.len() + chunk.len())
        };
        let message = reassembly.reserve(chunk.len(), expected);
        if self.message == Some(Kind::Text) {
            let pushed = message.push_text(chunk, frame.key);
            return pushed.map_err(|BrokenUtf8| self.fail(ProtocolError::InvalidText));
        }
        message.push(chunk, frame.key);
        Ok(())
    }

    /// Returns a chunk of a message instead of buffering it, if a chunk is available.
    /// `frame.remaining` counts the bytes after the chunk.
    fn message_chunk<'b>(
        &mut self,
        mut frame: Frame,
        chunk: &'b mut [u8],
        spare: &mut Spare,
    ) -> Result<Option<Chunk<'b>>, ProtocolError> {
        let streamed = &mut self.reassembly.get_or_insert_with(|| spare.take(0)).streamed;
        let last = frame.fin && frame.remaining == 0;
        let text = self.message == Some(Kind::Text);
        let key = frame.key;
        frame.key = key.map(|key| mask::rotate(key, chunk.len()));
        self.stage = match frame.remaining {
            0 => FrameStage::Start,
            _ => FrameStage::Payload(frame),
        };
        if chunk.is_empty() && !last {
            return Ok(None);
        }
        let bytes = unmask(chunk, key);
        if text && !streamed.check_text(bytes, last) {
            return Err(self.fail(ProtocolError::InvalidText));
        }
        let first = !std::mem::replace(&mut streamed.begun, true);
        streamed.len += bytes.len() as u64;
        if last {
            self.message = None;
            self.stage = FrameStage::Delivered { control: false };
        }
        Ok(Some(Chunk { text, first, last, bytes }))
    }

    fn control(&self) -> &[u8] {
        self.reassembly.as_ref().map_or(&[], |reassembly| reassembly.control())
    }

    fn deliver_control<'b>(&mut self, opcode: Opcode) -> Result<Next<'b>, ProtocolError> {
        self.stage = FrameStage::Delivered { control: true };
        if opcode == Opcode::Close {
            if let Err(error) = close::decode(self.control()) {
                return Err(self.fail(error));
            }
            self.stage = FrameStage::Closed;
            self.message = None;
        }
        Ok(Next::Control(opcode))
    }

    fn deliver_message<'b>(&mut self) -> Result<Next<'b>, ProtocolError> {
        let kind = self.message.take().unwrap_or(Kind::Binary);
        let joined = self.reassembly.as_ref().map(|reassembly| &reassembly.message);
        if kind == Kind::Text && joined.is_some_and(|joined| joined.as_str().is_none()) {
            return Err(self.fail(ProtocolError::InvalidText));
        }
        self.stage = FrameStage::Delivered { control: false };
        Ok(Next::Message(kind))
    }

    fn drop_delivered(&mut self, control: bool, spare: &mut Spare) {
        spare.set_joined(None);
        if control
            && self.message.is_some()
            && let Some(reassembly) = &mut self.reassembly
        {
            reassembly.clear_control();
        } else if let Some(reassembly) = self.reassembly.take() {
            spare.give(reassembly);
        }
    }
}

#[inline]
fn unmask(payload: &mut [u8], key: Option<[u8; 4]>) -> &[u8] {
    if let Some(key) = key {
        mask::apply(payload, key);
    }
    payload
}

#[inline]
fn unmask_text(payload: &mut [u8], key: Option<[u8; 4]>) -> Option<&str> {
    match key {
        Some(key) => utf8::unmask(payload, key),
        None => utf8::check(payload),
    }
}
