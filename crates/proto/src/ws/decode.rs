//! Bytes in, events out.

use throng_simd::{BrokenUtf8, mask, utf8};

use super::close;
use super::header::{Decoded, Head, MAX_HEAD, Place, Whole};
use super::pieces::{Pieces, Spare};
use super::{Deflated, Event, Incoming, Limits, Opcode, Piece, ProtocolError, Role, Streamed};
use crate::Input;

/// One end's reader of frames, for the life of a connection after its handshake.
///
/// 32 bytes, and nothing on the heap unless a frame or a message is partly here.
/// What it joins from pieces grows with the bytes received, to at most twice their number.
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
    /// Present only while something is partly here, or was just handed out from here.
    pieces: Option<Box<Pieces>>,
    stage: Stage,
    /// The fragmented message that has begun and not ended.
    message: Option<Kind>,
    role: Role,
    /// permessage-deflate was agreed on.
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
    fn of(head: &Head) -> Option<Self> {
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

/// Where in the stream of frames the next byte falls.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// At the start of a frame.
    Start,
    /// Inside a frame's head, of which these bytes are here.
    Head { bytes: [u8; MAX_HEAD - 1], len: u8 },
    /// Inside a frame's payload.
    Payload(Frame),
    /// At the start of a frame, and what was handed out from the pieces is to be dropped first.
    Delivered { control: bool },
    /// After a close frame.
    Closed,
    /// After an error.
    Failed(ProtocolError),
}

/// A frame whose payload is partly here.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Payload bytes still to come.
    remaining: u64,
    /// Turned so that its first byte meets the next byte of the payload.
    key: Option<[u8; 4]>,
    opcode: Opcode,
    fin: bool,
}

/// What [`Decoder::advance`] came to.
enum Next<'b> {
    /// An event within the lent bytes.
    Lent(Event<'b>),
    /// A compressed message within the lent bytes.
    LentDeflated(Deflated<'b>),
    /// A part of a message, within the lent bytes.
    Piece(Piece<'b>),
    /// A message, in the pieces.
    Message(Kind),
    /// A control frame, in the pieces.
    Control(Opcode),
    /// All input is taken.
    Nothing,
}

impl Decoder {
    /// A decoder for what comes to `role` right after the handshake. Allocates nothing.
    #[must_use]
    pub const fn new(role: Role) -> Self {
        Self { pieces: None, stage: Stage::Start, message: None, role, deflate: false }
    }

    /// As [`Decoder::new`], where permessage-deflate was agreed on: to be asked with
    /// [`Decoder::next_incoming`].
    #[must_use]
    pub const fn with_deflate(role: Role) -> Self {
        Self { pieces: None, stage: Stage::Start, message: None, role, deflate: true }
    }

    /// Takes bytes from `input` up to the next event; `None` when all are taken and none is complete.
    ///
    /// After [`Event::Close`] it discards all input and gives `None`. Memory of a message that came in
    /// pieces is freed by the call after the one that gave it: call until `None`.
    ///
    /// # Errors
    /// The peer broke a rule or a limit. All further input is discarded and every further call gives
    /// the same error.
    #[inline(always)]
    pub fn next_event<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<Event<'a>>, ProtocolError> {
        self.next_event_with(input, limits, &mut Spare::new())
    }

    /// As [`Decoder::next_event`], with memory for joining taken from `spare` and handed back to it
    /// instead of freed: cheaper when large or split messages are common.
    ///
    /// # Errors
    /// As [`Decoder::next_event`].
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
        match self.resume(input, limits, spare)? {
            Some(Incoming::Event(event)) => Ok(Some(event)),
            // Nobody here can inflate it: the caller's mistake, and for this connection the end.
            Some(Incoming::Deflated(_)) => Err(ProtocolError::ReservedBits),
            None => Ok(None),
        }
    }

    /// As [`Decoder::next_event_with`], with compressed messages among the events where permessage-deflate
    /// was agreed on ([`Decoder::with_deflate`]). Text among them is yet to be checked.
    ///
    /// A compressed message may have as many bytes as `limits` allow a message, and a few more: what it
    /// inflates to is for the [`Inflater`](super::deflate::Inflater) to limit.
    ///
    /// # Errors
    /// As [`Decoder::next_event`].
    #[inline]
    pub fn next_incoming<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
        spare: &mut Spare,
    ) -> Result<Option<Incoming<'a>>, ProtocolError> {
        if let Some(event) = self.whole_message(input, limits.max_whole_message()) {
            return Ok(Some(Incoming::Event(event)));
        }
        if self.is_at_rest(input) {
            return Ok(None);
        }
        self.resume(input, limits, spare)
    }

    /// As [`Decoder::next_event_with`], without joining: what comes of a message is given as it comes, in pieces of
    /// at most the size of `input`, and nothing of it is held. `limits` bound the frame and the whole message
    /// all the same. A message that came in one piece may be given as an event. Use this, or the other, for all of a
    /// connection's life; compressed messages are refused.
    ///
    /// # Errors
    /// As [`Decoder::next_event`].
    pub fn next_piece<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
        spare: &mut Spare,
    ) -> Result<Option<Streamed<'a>>, ProtocolError> {
        if let Some(event) = self.whole_message(input, limits.max_whole_message()) {
            return Ok(Some(Streamed::Event(event)));
        }
        Ok(match self.advance(input, limits, spare, false)? {
            Next::Nothing => None,
            Next::Piece(piece) => Some(Streamed::Piece(piece)),
            Next::Lent(event) => Some(Streamed::Event(event)),
            Next::Control(opcode) => Some(Streamed::Event(self.control_event(opcode))),
            // Neither is agreed on nor joined here.
            Next::LentDeflated(_) | Next::Message(_) => {
                return Err(self.fail(ProtocolError::ReservedBits));
            }
        })
    }

    /// No frame and no message is partly here; false bounds the time a peer may take to finish
    /// (the reassembly deadline).
    #[must_use]
    pub fn is_between_messages(&self) -> bool {
        self.message.is_none() && !matches!(self.stage, Stage::Head { .. } | Stage::Payload(_))
    }

    /// Payload bytes held for the unfinished message.
    #[must_use]
    pub fn buffered(&self) -> usize {
        match &self.pieces {
            Some(pieces) if !self.is_between_messages() => {
                pieces.message.len() + pieces.control().len()
            }
            _ => 0,
        }
    }

    /// The next event, if it is what nearly every event is: a message of up to `max_len` bytes, and
    /// up to 65,535, in one frame that is all here. `None` for anything else, also for what is wrong
    /// with it: ask [`Decoder::next_event_with`] then. A short way round all it has to consider.
    #[inline(always)]
    pub fn whole_message<'b>(
        &mut self,
        input: &mut Input<'b>,
        max_len: usize,
    ) -> Option<Event<'b>> {
        if !matches!(self.stage, Stage::Start) || self.message.is_some() {
            return None;
        }
        let Whole { text, len, key, size } = Whole::decode(input.as_slice(), self.role)?;
        if len > max_len {
            return None;
        }
        let payload = &mut input.take_exactly(size + len)?[size..];
        if !text {
            return Some(Event::Binary(unmask(payload, key)));
        }
        let text = unmask_text(payload, key);
        if text.is_none() {
            self.fail(ProtocolError::InvalidText);
        }
        text.map(Event::Text)
    }

    /// `input` is empty and nothing of it is held: another call would give `None` and change nothing.
    #[inline(always)]
    #[must_use]
    pub fn is_at_rest(&self, input: &Input<'_>) -> bool {
        input.is_empty() && matches!(self.stage, Stage::Start) && self.message.is_none()
    }

    /// The payload of this frame is all there is to its event.
    fn stands_alone(&self, head: &Head) -> bool {
        head.fin && (self.message.is_none() || head.opcode.is_control())
    }

    fn check_size(&mut self, head: &Head, limits: &Limits) -> Result<(), ProtocolError> {
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
        let joined = match &self.pieces {
            Some(pieces) if self.message.is_some() => {
                pieces.message.len() as u64 + pieces.streamed.len
            }
            _ => 0,
        };
        if head.len.saturating_add(joined) > limits.max_message_size as u64 {
            return Err(self.fail(ProtocolError::MessageTooBig));
        }
        Ok(())
    }

    /// The event of a frame that stands alone and whose payload is all at the front of `input`.
    fn lent<'b>(&mut self, head: &Head, input: &mut Input<'b>) -> Result<Next<'b>, ProtocolError> {
        let payload = input.take(head.len as usize);
        if head.deflated {
            let (text, payload) = (head.opcode == Opcode::Text, unmask(payload, head.key));
            return Ok(Next::LentDeflated(Deflated { text, payload }));
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
                self.stage = Stage::Closed;
                self.message = None;
                close::decode(unmask(payload, head.key)).map(Event::Close)
            }
        };
        event.map(Next::Lent).map_err(|error| self.fail(error))
    }

    #[cold]
    fn fail(&mut self, error: ProtocolError) -> ProtocolError {
        self.pieces = None;
        self.message = None;
        self.stage = Stage::Failed(error);
        error
    }

    /// All but the hot path.
    #[inline(never)]
    fn resume<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
        spare: &mut Spare,
    ) -> Result<Option<Incoming<'a>>, ProtocolError> {
        Ok(Some(Incoming::Event(match self.advance(input, limits, spare, true)? {
            Next::Lent(event) => event,
            Next::LentDeflated(message) => return Ok(Some(Incoming::Deflated(message))),
            // Pieces are not given where they are joined.
            Next::Nothing | Next::Piece(_) => return Ok(None),
            Next::Message(kind) => {
                let joined = self.pieces.as_ref().map(|pieces| &pieces.message);
                let payload = joined.map_or(&[][..], |joined| joined.as_bytes());
                if kind.is_deflated() {
                    let text = kind == Kind::DeflatedText;
                    return Ok(Some(Incoming::Deflated(Deflated { text, payload })));
                }
                spare.set_joined(joined);
                match kind {
                    // `advance` saw that it is text.
                    Kind::Text => {
                        Event::Text(joined.and_then(|joined| joined.as_str()).unwrap_or_default())
                    }
                    _ => Event::Binary(payload),
                }
            }
            Next::Control(opcode) => self.control_event(opcode),
        })))
    }

    fn control_event(&self, opcode: Opcode) -> Event<'_> {
        let payload = self.control();
        match opcode {
            Opcode::Ping => Event::Ping(payload),
            Opcode::Pong => Event::Pong(payload),
            // `advance` saw that it is well-formed.
            _ => Event::Close(close::decode(payload).unwrap_or_default()),
        }
    }

    /// Takes input up to the end of the next event, or of the next piece of a message if they are not joined.
    fn advance<'b>(
        &mut self,
        input: &mut Input<'b>,
        limits: &Limits,
        spare: &mut Spare,
        join: bool,
    ) -> Result<Next<'b>, ProtocolError> {
        loop {
            match self.stage {
                Stage::Start if input.is_empty() => return Ok(Next::Nothing),
                Stage::Start => self.stage = Stage::Head { bytes: [0; MAX_HEAD - 1], len: 0 },
                Stage::Delivered { control } => {
                    self.drop_delivered(control, spare);
                    self.stage = Stage::Start;
                }
                Stage::Head { bytes, len } => {
                    let Some(head) = self.next_head(input, bytes, len)? else {
                        return Ok(Next::Nothing);
                    };
                    self.stage = Stage::Start;
                    self.check_size(&head, limits)?;
                    if self.stands_alone(&head) && input.len() as u64 >= head.len {
                        return self.lent(&head, input);
                    }
                    if let Some(kind) = Kind::of(&head) {
                        self.message = Some(kind);
                    }
                    let Head { fin, opcode, len: remaining, key, .. } = head;
                    self.stage = Stage::Payload(Frame { remaining, key, opcode, fin });
                }
                Stage::Payload(mut frame) => {
                    let piece = input.take(usize::try_from(frame.remaining).unwrap_or(usize::MAX));
                    frame.remaining -= piece.len() as u64;
                    if !join && !frame.opcode.is_control() {
                        match self.pass_on(frame, piece, spare)? {
                            Some(piece) => return Ok(Next::Piece(piece)),
                            None if frame.remaining > 0 => return Ok(Next::Nothing),
                            None => continue,
                        }
                    }
                    if !piece.is_empty() {
                        self.join(frame, piece, limits, spare)?;
                    }
                    if frame.remaining > 0 {
                        frame.key = frame.key.map(|key| mask::rotate(key, piece.len()));
                        self.stage = Stage::Payload(frame);
                        return Ok(Next::Nothing);
                    }
                    self.stage = Stage::Start;
                    if frame.opcode.is_control() {
                        return self.deliver_control(frame.opcode);
                    }
                    if frame.fin {
                        return self.deliver_message();
                    }
                }
                Stage::Closed => {
                    self.pieces = None;
                    input.take(usize::MAX);
                    return Ok(Next::Nothing);
                }
                Stage::Failed(error) => {
                    input.take(usize::MAX);
                    return Err(error);
                }
            }
        }
    }

    /// The next head, from the `len` bytes that are here and then from `input`.
    fn next_head(
        &mut self,
        input: &mut Input<'_>,
        here: [u8; MAX_HEAD - 1],
        len: u8,
    ) -> Result<Option<Head>, ProtocolError> {
        let mut bytes = [0; MAX_HEAD];
        bytes[..here.len()].copy_from_slice(&here);
        let mut len = usize::from(len);
        let place =
            Place { role: self.role, inside: self.message.is_some(), deflate: self.deflate };
        loop {
            match Head::decode(&bytes[..len], place) {
                Ok(Decoded::Head(head)) => return Ok(Some(head)),
                Ok(Decoded::Needs(needs)) => {
                    let more = input.take(needs - len);
                    if more.is_empty() {
                        // The last byte cannot be here, or the head would be.
                        let [bytes @ .., _] = bytes;
                        self.stage = Stage::Head { bytes, len: len as u8 };
                        return Ok(None);
                    }
                    bytes[len..len + more.len()].copy_from_slice(more);
                    len += more.len();
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
    }

    /// Adds a piece of a payload to what is here. `frame.remaining` is what follows the piece.
    fn join(
        &mut self,
        frame: Frame,
        piece: &mut [u8],
        limits: &Limits,
        spare: &mut Spare,
    ) -> Result<(), ProtocolError> {
        let pieces = self.pieces.get_or_insert_with(|| spare.take());
        if frame.opcode.is_control() {
            pieces.push_control(unmask(piece, frame.key));
            return Ok(());
        }
        // A compressed message may be a little longer than `limits`; room for that is made when it comes.
        let expected = if frame.fin {
            usize::try_from(frame.remaining).unwrap_or(usize::MAX)
        } else {
            limits.max_message_size.saturating_sub(pieces.message.len() + piece.len())
        };
        let message = pieces.make_room(piece.len(), expected);
        if self.message == Some(Kind::Text) {
            let pushed = message.push_text(piece, frame.key);
            return pushed.map_err(|BrokenUtf8| self.fail(ProtocolError::InvalidText));
        }
        message.push(piece, frame.key);
        Ok(())
    }

    /// Gives a piece of a message instead of joining it, if there is anything to give. `frame.remaining` is what
    /// follows the piece.
    fn pass_on<'b>(
        &mut self,
        mut frame: Frame,
        piece: &'b mut [u8],
        spare: &mut Spare,
    ) -> Result<Option<Piece<'b>>, ProtocolError> {
        let passed = &mut self.pieces.get_or_insert_with(|| spare.take()).streamed;
        let last = frame.fin && frame.remaining == 0;
        let text = self.message == Some(Kind::Text);
        let key = frame.key;
        frame.key = key.map(|key| mask::rotate(key, piece.len()));
        self.stage = match frame.remaining {
            0 => Stage::Start,
            _ => Stage::Payload(frame),
        };
        if piece.is_empty() && !last {
            return Ok(None);
        }
        let bytes = unmask(piece, key);
        if text && !passed.check_text(bytes, last) {
            return Err(self.fail(ProtocolError::InvalidText));
        }
        let first = !std::mem::replace(&mut passed.begun, true);
        passed.len += bytes.len() as u64;
        if last {
            self.message = None;
            self.stage = Stage::Delivered { control: false };
        }
        Ok(Some(Piece { text, first, last, bytes }))
    }

    fn control(&self) -> &[u8] {
        self.pieces.as_ref().map_or(&[], |pieces| pieces.control())
    }

    fn deliver_control<'b>(&mut self, opcode: Opcode) -> Result<Next<'b>, ProtocolError> {
        self.stage = Stage::Delivered { control: true };
        if opcode == Opcode::Close {
            if let Err(error) = close::decode(self.control()) {
                return Err(self.fail(error));
            }
            self.stage = Stage::Closed;
            self.message = None;
        }
        Ok(Next::Control(opcode))
    }

    fn deliver_message<'b>(&mut self) -> Result<Next<'b>, ProtocolError> {
        let kind = self.message.take().unwrap_or(Kind::Binary);
        let joined = self.pieces.as_ref().map(|pieces| &pieces.message);
        if kind == Kind::Text && joined.is_some_and(|joined| joined.as_str().is_none()) {
            return Err(self.fail(ProtocolError::InvalidText));
        }
        self.stage = Stage::Delivered { control: false };
        Ok(Next::Message(kind))
    }

    fn drop_delivered(&mut self, control: bool, spare: &mut Spare) {
        spare.set_joined(None);
        if control
            && self.message.is_some()
            && let Some(pieces) = &mut self.pieces
        {
            pieces.clear_control();
        } else if let Some(pieces) = self.pieces.take() {
            spare.give(pieces);
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
