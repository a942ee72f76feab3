//! The protocol of one client session, without I/O: the blocking and the asynchronous client move
//! its bytes.

use std::fmt;
use std::num::NonZeroUsize;

use throng_proto::Input;
use throng_proto::ws::deflate::{Agreed, Deflater, History, Inflater, Policy};
use throng_proto::ws::{
    Chunk, CloseCode, Decoder, Event, Fragment, Limits, Message, Opcode, ProtocolError, Role,
    Spare, encode_close, encode_deflated, encode_masked,
};

use crate::close_frame::CloseFrame;
use crate::error::ClientError;
use crate::random::Entropy;

/// Maximum bytes of one read.
const INPUT_BYTES: usize = 128 << 10;
/// Bytes of unsent pongs above which the session stops reading.
#[cfg(feature = "tokio")]
const MAX_UNSENT_PONGS: usize = 64 << 10;
/// Memory of each buffer that is kept for the next message.
const MAX_KEPT: usize = 1 << 20;
/// Size of the fragments of a message that is sent as a stream.
pub(crate) const FRAGMENT: NonZeroUsize = NonZeroUsize::new(64 << 10).unwrap();

/// A session without I/O, from [`Opening::finish`](crate::sans_io::Opening::finish).
///
/// Methods that send queue bytes in [`ClientMachine::output`]. The caller writes received bytes to
/// [`ClientMachine::input_space`]; [`ClientMachine::advance`] decodes them.
pub struct ClientMachine {
    decoder: Decoder,
    limits: Limits,
    spare: Spare,
    input: InputBuffer,
    output: Output,
    codec: Option<Box<Codec>>,
    next: Next,
    held: Vec<u8>,
    held_text: String,
    by_chunks: bool,
    pongs: u64,
    close: Option<CloseFrame>,
}

/// The location of the next message.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// Nowhere.
    None,
    /// At the front of the input, not yet decoded.
    Whole,
    /// In the reassembly buffer.
    Joined { text: bool },
    /// In `held_text`.
    HeldText,
    /// In `held`.
    HeldBytes,
    /// In `held`, a chunk of a message.
    HeldChunk { text: bool, first: bool, last: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClosingStage {
    Open,
    /// We sent a Close frame, and wait for the server's.
    Closing,
    /// No more input is processed. The output may still contain the client's Close frame, and the
    /// server must end the connection.
    Ending,
    /// The connection is no longer used.
    Ended,
}

/// The result of [`ClientMachine::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// A message can be taken with [`ClientMachine::message`].
    Message,
    /// Bytes are needed.
    NeedInput,
    /// No more messages follow: send the output. [`Output::take_failure`] returns the reason,
    /// unless the session ended with a closing handshake.
    Ended,
}

/// Received bytes that are not decoded yet.
struct InputBuffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// The half of a session that sends: frames, and the stage of the session.
pub struct Output {
    bytes: Vec<u8>,
    sent: usize,
    /// Bytes of pongs queued since the output was last empty.
    pongs: usize,
    entropy: Entropy,
    stage: ClosingStage,
    /// The rule that the server broke, until it is reported.
    failure: Option<ProtocolError>,
    /// Why the session is over; `None` while it lasts, or if the connection failed.
    end: Option<End>,
}

/// The end of a session, named by the side that began it.
enum End {
    /// The client began to close.
    Ours,
    /// The server began to close.
    Servers(CloseFrame),
    /// The server broke a rule.
    Broken(ProtocolError),
}

/// Compression of one connection.
struct Codec {
    policy: Policy,
    agreed: Agreed,
    deflater: Deflater,
    inflater: Inflater,
    ours: Option<History>,
    peers: Option<History>,
    deflated: Vec<u8>,
}

impl Codec {
    fn new(policy: Policy, agreed: Agreed) -> Self {
        Self {
            deflater: Deflater::new(&policy),
            inflater: Inflater::new(),
            ours: agreed.our_history_bits.map(History::new),
            peers: agreed.peer_history_bits.map(History::new),
            deflated: Vec::new(),
            policy,
            agreed,
        }
    }

    /// Compresses a message, and returns the result if it is smaller.
    fn deflate(&mut self, payload: &[u8]) -> Option<&[u8]> {
        self.deflated.clear();
        let (bits, history) = (self.agreed.our_window_bits, self.ours.as_ref());
        if !self.policy.compresses(payload.len(), &self.agreed)
            || !self.deflater.deflate(payload, bits, history, &mut self.deflated)
        {
            return None;
        }
        if let Some(history) = &mut self.ours {
            history.append(payload);
        }
        Some(&self.deflated)
    }
}

impl ClientMachine {
    /// Creates the session of a connection whose handshake is done.
    pub(crate) fn new(
        limits: Limits,
        by_chunks: bool,
        deflate: Option<(Policy, Agreed)>,
        entropy: Entropy,
    ) -> Self {
        let codec = deflate.map(|(policy, agreed)| Box::new(Codec::new(policy, agreed)));
        Self {
            decoder: match codec {
                Some(_) => Decoder::with_deflate(Role::Client),
                None => Decoder::new(Role::Client),
            },
            limits,
            spare: Spare::new(),
            input: InputBuffer::new(),
            output: Output::new(entropy),
            codec,
            next: Next::None,
            held: Vec::new(),
            held_text: String::new(),
            by_chunks,
            pongs: 0,
            close: None,
        }
    }

    /// Returns whether messages are compressed.
    pub(crate) fn deflates(&self) -> bool {
        self.codec.is_some()
    }

    /// Returns whether messages are received in chunks.
    pub(crate) fn is_by_chunks(&self) -> bool {
        self.by_chunks
    }

    /// Returns the number of pongs received.
    pub(crate) fn pongs(&self) -> u64 {
        self.pongs
    }

    /// Returns the server's Close frame, once it has been decoded.
    pub fn close_frame(&self) -> Option<&CloseFrame> {
        self.close.as_ref()
    }

    /// Returns the error of a call after the end of the session, with the side that ended it.
    pub fn end_error(&self) -> ClientError {
        self.output.end_error()
    }

    /// Returns the half that sends.
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Returns memory for received bytes, never empty. Call [`ClientMachine::received`] afterwards.
    pub fn input_space(&mut self) -> &mut [u8] {
        self.input.space()
    }

    /// Adds `n` bytes, which were written to [`ClientMachine::input_space`].
    pub fn received(&mut self, n: usize) {
        self.input.end = (self.input.end + n).min(self.input.bytes.len());
    }

    /// Adds bytes that came with the response to the upgrade.
    pub(crate) fn receive_first(&mut self, bytes: &[u8]) {
        if bytes.len() > INPUT_BYTES {
            self.input.bytes = vec![0; bytes.len()].into();
        }
        self.input.bytes[..bytes.len()].copy_from_slice(bytes);
        self.input.end = bytes.len();
    }

    /// Queues a message, text or binary.
    ///
    /// # Errors
    /// [`ClientError::Closed`] or [`ClientError::Protocol`] if the session is over;
    /// [`ClientError::Random`] if the system has no random numbers.
    pub fn send(&mut self, message: Message<'_>) -> Result<(), ClientError> {
        self.output.check_open()?;
        let (text, payload) = match message {
            Message::Text(text) => (true, text.as_bytes()),
            Message::Binary(bytes) => (false, bytes),
        };
        let key = self.output.key()?;
        if let Some(codec) = &mut self.codec
            && let Some(deflated) = codec.deflate(payload)
        {
            encode_deflated(text, deflated, Some(key), &mut self.output.bytes);
            return Ok(());
        }
        let opcode = if text { Opcode::Text } else { Opcode::Binary };
        encode_masked(opcode, payload, key, &mut self.output.bytes);
        Ok(())
    }

    /// Queues one fragment of a message.
    pub(crate) fn send_fragment(&mut self, fragment: Fragment<'_>) -> Result<(), ClientError> {
        self.output.check_open()?;
        let key = self.output.key()?;
        fragment.encode(Some(key), &mut self.output.bytes);
        Ok(())
    }

    /// Queues a ping of at most 125 bytes.
    pub(crate) fn ping(&mut self, payload: &[u8]) -> Result<(), ClientError> {
        self.output.check_open()?;
        if payload.len() > 125 {
            let len = payload.len();
            let message = format!("the payload of a ping has {len} bytes; at most 125 are allowed");
            return Err(ClientError::setting("ping", message));
        }
        let key = self.output.key()?;
        encode_masked(Opcode::Ping, payload, key, &mut self.output.bytes);
        Ok(())
    }

    /// Queues a Close frame. The reason is cut at 123 bytes.
    ///
    /// # Errors
    /// [`ClientError::Setting`] if the code must not be sent; otherwise as for
    /// [`ClientMachine::send`].
    pub fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), ClientError> {
        self.output.check_open()?;
        if !code.is_sendable() {
            let message = format!("the code {code} is never sent; use 1000, or 4000 to 4999");
            return Err(ClientError::setting("close", message));
        }
        let key = self.output.key()?;
        encode_close(code.get(), reason, Some(key), &mut self.output.bytes);
        self.output.stage = ClosingStage::Closing;
        self.output.end = Some(End::Ours);
        Ok(())
    }

    /// Decodes input up to the next message, and answers control frames. Returns a message again if
    /// the caller has not taken it.
    pub fn advance(&mut self) -> Advance {
        if !matches!(self.next, Next::None) {
            return Advance::Message;
        }
        self.release();
        loop {
            if matches!(self.output.stage, ClosingStage::Ending | ClosingStage::Ended) {
                return Advance::Ended;
            }
            let max = self.limits.max_whole_message();
            if !self.by_chunks && self.decoder.has_whole_message(self.input.filled(), max) {
                self.next = Next::Whole;
                return Advance::Message;
            }
            match self.decode() {
                Ok(Some(step)) => return step,
                Ok(None) => {}
                Err(error) => self.output.fail(error),
            }
        }
    }

    /// Frees memory that only a large message required.
    fn release(&mut self) {
        if self.held.capacity() > MAX_KEPT {
            self.held = Vec::new();
        }
        if self.held_text.capacity() > MAX_KEPT {
            self.held_text = String::new();
        }
    }

    /// Decodes one event that is not a whole message at the front of the input. `None`: a control
    /// frame, which has been handled.
    fn decode(&mut self) -> Result<Option<Advance>, ProtocolError> {
        let Self { decoder, limits, spare, input, output, codec, held, held_text, .. } = self;
        let before = input.end - input.start;
        let mut rest = Input::new(&mut input.bytes[input.start..input.end]);
        let event = match self.by_chunks {
            true => decoder.next_chunk(&mut rest, limits, spare),
            false => decoder.next_event_with(&mut rest, limits, spare),
        };
        let taken = before - rest.len();
        let mut outcome = Ok(Some(Advance::Message));
        match event {
            Ok(None) => outcome = Ok(Some(Advance::NeedInput)),
            Ok(Some(Event::Text(text))) if self.by_chunks => {
                self.next = hold_chunk(whole_chunk(true, text.as_bytes()), held);
            }
            Ok(Some(Event::Binary(bytes))) if self.by_chunks => {
                self.next = hold_chunk(whole_chunk(false, bytes), held);
            }
            Ok(Some(Event::Text(_))) if spare.joined_text().is_some() => {
                self.next = Next::Joined { text: true };
            }
            Ok(Some(Event::Binary(_))) if spare.joined_bytes().is_some() => {
                self.next = Next::Joined { text: false };
            }
            Ok(Some(Event::Compressed(message))) => {
                let Some(codec) = codec else { return Err(ProtocolError::ReservedBits) };
                let Codec { inflater, peers, .. } = &mut **codec;
                match inflater.inflate(message, peers.as_mut(), limits.max_message_size) {
                    Ok(inflated) => self.next = hold(inflated.event, held, held_text),
                    Err(error) => outcome = Err(error),
                }
            }
            Ok(Some(event @ (Event::Text(_) | Event::Binary(_)))) => {
                self.next = hold(event, held, held_text);
            }
            Ok(Some(Event::Chunk(chunk))) => self.next = hold_chunk(chunk, held),
            Ok(Some(Event::Ping(payload))) => {
                output.answer_ping(payload);
                outcome = Ok(None);
            }
            Ok(Some(Event::Pong(_))) => {
                self.pongs += 1;
                outcome = Ok(None);
            }
            Ok(Some(Event::Close(close))) => {
                let (code, reason) = close
                    .map_or((CloseCode::NO_STATUS.get(), ""), |close| (close.code, close.reason));
                let reason = reason.to_owned();
                let frame = CloseFrame { code: CloseCode::new(code), reason };
                output.answer_close(code);
                output.end.get_or_insert_with(|| End::Servers(frame.clone()));
                self.close = Some(frame);
                outcome = Ok(Some(Advance::Ended));
            }
            Err(error) => outcome = Err(error),
        }
        input.take(taken);
        outcome
    }

    /// Returns the message that [`ClientMachine::advance`] found.
    ///
    /// # Errors
    /// The message is not valid UTF-8. This has ended the session.
    pub fn message(&mut self) -> Result<Message<'_>, &mut Output> {
        match std::mem::replace(&mut self.next, Next::None) {
            Next::Whole => self.whole_message(),
            Next::Joined { text: true } => {
                Ok(Message::Text(self.spare.joined_text().unwrap_or_default()))
            }
            Next::Joined { text: false } => {
                Ok(Message::Binary(self.spare.joined_bytes().unwrap_or_default()))
            }
            Next::HeldText => Ok(Message::Text(&self.held_text)),
            _ => Ok(Message::Binary(&self.held)),
        }
    }

    fn whole_message(&mut self) -> Result<Message<'_>, &mut Output> {
        let Self { decoder, limits, input, output, .. } = self;
        let InputBuffer { bytes, start, end } = input;
        let before = *end - *start;
        let mut rest = Input::new(&mut bytes[*start..*end]);
        let event = decoder.whole_message(&mut rest, limits.max_whole_message());
        *start += before - rest.len();
        match event {
            Some(Event::Text(text)) => Ok(Message::Text(text)),
            Some(Event::Binary(bytes)) => Ok(Message::Binary(bytes)),
            _ => {
                output.fail(ProtocolError::InvalidText);
                Err(output)
            }
        }
    }

    /// Returns the chunk that [`ClientMachine::advance`] found.
    pub(crate) fn chunk(&mut self) -> Chunk<'_> {
        match std::mem::replace(&mut self.next, Next::None) {
            Next::HeldChunk { text, first, last } => Chunk { text, first, last, bytes: &self.held },
            _ => Chunk { text: false, first: false, last: false, bytes: &[] },
        }
    }
}

/// Copies a message that cannot be lent.
fn hold(event: Event<'_>, bytes: &mut Vec<u8>, text: &mut String) -> Next {
    match event {
        Event::Text(message) => {
            text.clear();
            text.push_str(message);
            Next::HeldText
        }
        Event::Binary(message) => {
            bytes.clear();
            bytes.extend_from_slice(message);
            Next::HeldBytes
        }
        _ => Next::None,
    }
}

/// A message as its only chunk.
fn whole_chunk(text: bool, bytes: &[u8]) -> Chunk<'_> {
    Chunk { text, first: true, last: true, bytes }
}

/// Copies a chunk that cannot be lent.
fn hold_chunk(chunk: Chunk<'_>, held: &mut Vec<u8>) -> Next {
    let Chunk { text, first, last, bytes } = chunk;
    held.clear();
    held.extend_from_slice(bytes);
    Next::HeldChunk { text, first, last }
}

impl Output {
    fn new(entropy: Entropy) -> Self {
        Self {
            bytes: Vec::new(),
            sent: 0,
            pongs: 0,
            entropy,
            stage: ClosingStage::Open,
            failure: None,
            end: None,
        }
    }

    /// Returns the bytes to send. Call [`Output::sent`] afterwards.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Removes `n` bytes, which were sent.
    pub fn sent(&mut self, n: usize) {
        self.sent += n;
        if self.sent >= self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(MAX_KEPT);
            (self.sent, self.pongs) = (0, 0);
        }
    }

    /// Returns whether the caller may read more before it sends the output: input may require
    /// answers.
    #[cfg(feature = "tokio")]
    pub(crate) fn admits_input(&self) -> bool {
        self.pongs < MAX_UNSENT_PONGS
    }

    /// Returns whether messages can be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.stage == ClosingStage::Open
    }

    fn check_open(&self) -> Result<(), ClientError> {
        if self.is_open() { Ok(()) } else { Err(self.end_error()) }
    }

    /// Returns the error of a call after the end of the session, with the side that ended it.
    pub(crate) fn end_error(&self) -> ClientError {
        match &self.end {
            Some(End::Ours) => ClientError::Closed(None),
            Some(End::Servers(frame)) => ClientError::Closed(Some(frame.clone())),
            Some(End::Broken(rule)) => ClientError::Protocol(*rule),
            None => ClientError::Lost(std::io::ErrorKind::NotConnected.into()),
        }
    }

    /// Returns whether the connection is no longer used.
    pub(crate) fn has_ended(&self) -> bool {
        self.stage == ClosingStage::Ended
    }

    /// Ends the use of the connection.
    pub(crate) fn end(&mut self) {
        self.stage = ClosingStage::Ended;
    }

    /// Queues the pong to a ping, while the session is open.
    fn answer_ping(&mut self, payload: &[u8]) {
        if self.is_open()
            && let Ok(key) = self.key()
        {
            let before = self.bytes.len();
            encode_masked(Opcode::Pong, payload, key, &mut self.bytes);
            self.pongs += self.bytes.len() - before;
        }
    }

    /// Queues the answer to a Close frame with that code, unless one was sent before; the session
    /// is over.
    fn answer_close(&mut self, code: u16) {
        if self.is_open()
            && let Ok(key) = self.key()
        {
            encode_close(code, "", Some(key), &mut self.bytes);
        }
        self.stage = ClosingStage::Ending;
    }

    /// Queues a Close frame with the error, which ends the session.
    fn fail(&mut self, error: ProtocolError) {
        if self.is_open()
            && let Ok(key) = self.key()
        {
            let (code, reason) = (error.close_code(), error.to_string());
            encode_close(code, &reason, Some(key), &mut self.bytes);
        }
        self.stage = ClosingStage::Ending;
        self.failure = Some(error);
        self.end.get_or_insert(End::Broken(error));
    }

    /// Returns the rule that the server broke, once.
    pub fn take_failure(&mut self) -> Option<ProtocolError> {
        self.failure.take()
    }

    fn key(&mut self) -> Result<[u8; 4], ClientError> {
        self.entropy.take().map_err(ClientError::Random)
    }
}

impl fmt::Debug for ClientMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientMachine").finish_non_exhaustive()
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

impl InputBuffer {
    fn new() -> Self {
        Self { bytes: vec![0; INPUT_BYTES].into(), start: 0, end: 0 }
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn take(&mut self, n: usize) {
        self.start += n;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            // The decoder takes as much as it can. So the rest is at most a part of one header, or
            // input that was not decoded at all.
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.bytes[self.end..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_large_message_is_not_kept() {
        let limits = Limits { max_frame_size: 1 << 30, max_message_size: 1 << 30 };
        let mut session = ClientMachine::new(limits, true, None, Entropy::new().unwrap());
        session.held = vec![0; MAX_KEPT + 1];
        session.held_text = "x".repeat(MAX_KEPT + 1);
        session.receive_first(b"\x82\x01x");
        assert_eq!(session.advance(), Advance::Message);
        assert_eq!(session.chunk().bytes, b"x");
        assert!(session.held.capacity().max(session.held_text.capacity()) <= MAX_KEPT);
    }
}
