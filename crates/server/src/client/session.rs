//! The protocol of one client session, without I/O: the blocking and the asynchronous client move
//! its bytes.

use std::num::NonZeroUsize;

use throng_engine::{Chunk, CloseCode, Message};
use throng_proto::Input;
use throng_proto::ws::deflate::{Agreed, Deflater, History, Inflater, Policy};
use throng_proto::ws::{
    Decoder, Event, Fragment, Limits, Opcode, ProtocolError, Role, Spare, encode_close,
    encode_deflated, encode_masked,
};

use super::error::Error;
use super::random::Entropy;

/// Bytes that one read can bring.
const INPUT_BYTES: usize = 128 << 10;
/// Memory of the output that is kept for the next message.
const MAX_OUTPUT_KEPT: usize = 1 << 20;
/// Size of the fragments of a message that is sent as a stream.
pub(crate) const FRAGMENT: NonZeroUsize = NonZeroUsize::new(64 << 10).unwrap();

/// A Close frame, or what stands for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseFrame {
    /// The close code; 1005 if the frame had none.
    pub code: CloseCode,
    /// The reason; empty for most.
    pub reason: String,
}

/// The state of a session.
pub(crate) struct Session {
    decoder: Decoder,
    limits: Limits,
    spare: Spare,
    input: InputBuffer,
    output: Output,
    codec: Option<Box<Codec>>,
    next: Next,
    held: Vec<u8>,
    held_text: String,
    stage: Stage,
    by_chunks: bool,
    pongs: u64,
    close: Option<CloseFrame>,
}

/// Where the next message is.
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
enum Stage {
    Open,
    /// We sent a Close frame, and wait for the server's.
    Closing,
    /// Both Close frames have been exchanged, or the session failed.
    Ended,
}

/// The result of [`Session::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A message can be taken with [`Session::message`], or a chunk of one.
    Message,
    /// Bytes are needed.
    NeedInput,
    /// The session has ended with a closing handshake.
    Ended,
}

/// A rule that the server broke, and the Close frame that it is to be sent.
pub(crate) struct Fault {
    pub(crate) error: ProtocolError,
    pub(crate) close_frame: Vec<u8>,
}

/// Received bytes that are not decoded yet.
struct InputBuffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// Frames to be sent.
struct Output {
    bytes: Vec<u8>,
    sent: usize,
    entropy: Entropy,
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

    /// Compresses a message, if that is worth it.
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

impl Session {
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
            output: Output { bytes: Vec::new(), sent: 0, entropy },
            codec,
            next: Next::None,
            held: Vec::new(),
            held_text: String::new(),
            stage: Stage::Open,
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

    /// Returns the server's Close frame.
    pub(crate) fn close_frame(&self) -> Option<&CloseFrame> {
        self.close.as_ref()
    }

    /// Returns whether no message can be sent any more.
    pub(crate) fn is_closing(&self) -> bool {
        self.stage != Stage::Open
    }

    /// Returns whether nothing more will be received.
    pub(crate) fn has_ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// Ends the session without a closing handshake.
    pub(crate) fn end(&mut self) {
        self.stage = Stage::Ended;
    }

    /// Returns memory for received bytes, never empty; [`Session::received`] follows.
    pub(crate) fn input_space(&mut self) -> &mut [u8] {
        self.input.space()
    }

    /// Adds `n` bytes, which were written to [`Session::input_space`].
    pub(crate) fn received(&mut self, n: usize) {
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

    /// Returns what is to be sent; [`Session::sent`] follows.
    pub(crate) fn output(&self) -> &[u8] {
        &self.output.bytes[self.output.sent..]
    }

    /// Removes `n` bytes from the output.
    pub(crate) fn sent(&mut self, n: usize) {
        let output = &mut self.output;
        output.sent += n;
        if output.sent >= output.bytes.len() {
            output.bytes.clear();
            output.bytes.shrink_to(MAX_OUTPUT_KEPT);
            output.sent = 0;
        }
    }

    /// Queues a message.
    pub(crate) fn send(&mut self, message: Message<'_>) -> Result<(), Error> {
        self.check_open()?;
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
    pub(crate) fn send_fragment(&mut self, fragment: Fragment<'_>) -> Result<(), Error> {
        self.check_open()?;
        let key = self.output.key()?;
        fragment.encode(Some(key), &mut self.output.bytes);
        Ok(())
    }

    /// Queues a ping of at most 125 bytes.
    pub(crate) fn ping(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.check_open()?;
        if payload.len() > 125 {
            let len = payload.len();
            let message = format!("the payload of a ping has {len} bytes; at most 125 are allowed");
            return Err(Error::setting("ping", message));
        }
        let key = self.output.key()?;
        encode_masked(Opcode::Ping, payload, key, &mut self.output.bytes);
        Ok(())
    }

    /// Queues a Close frame.
    pub(crate) fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        self.check_open()?;
        if !code.is_sendable() {
            let message = format!("the code {code} is never sent; use 1000, or 4000 to 4999");
            return Err(Error::setting("close", message));
        }
        let key = self.output.key()?;
        encode_close(code.get(), reason, Some(key), &mut self.output.bytes);
        self.stage = Stage::Closing;
        Ok(())
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.stage == Stage::Open { Ok(()) } else { Err(Error::Closed) }
    }

    /// Decodes input up to the next message, and answers control frames. A message that was found
    /// before and not taken is that message still.
    pub(crate) fn advance(&mut self) -> Result<Step, Fault> {
        if !matches!(self.next, Next::None) {
            return Ok(Step::Message);
        }
        loop {
            if self.stage == Stage::Ended {
                return Ok(Step::Ended);
            }
            let max = self.limits.max_whole_message();
            if !self.by_chunks && self.decoder.has_whole_message(self.input.filled(), max) {
                self.next = Next::Whole;
                return Ok(Step::Message);
            }
            if let Some(step) = self.decode()? {
                return Ok(step);
            }
        }
    }

    /// Decodes one event that is not a whole message at the front of the input. `None`: a control
    /// frame, which has been handled.
    fn decode(&mut self) -> Result<Option<Step>, Fault> {
        let Self { decoder, limits, spare, input, output, codec, held, held_text, .. } = self;
        let before = input.end - input.start;
        let mut rest = Input::new(&mut input.bytes[input.start..input.end]);
        let event = match self.by_chunks {
            true => decoder.next_chunk(&mut rest, limits, spare),
            false => decoder.next_event_with(&mut rest, limits, spare),
        };
        let taken = before - rest.len();
        let mut outcome = Ok(Some(Step::Message));
        match event {
            Ok(None) => outcome = Ok(Some(Step::NeedInput)),
            Ok(Some(Event::Text(text))) if self.by_chunks => {
                held.clear();
                held.extend_from_slice(text.as_bytes());
                self.next = Next::HeldChunk { text: true, first: true, last: true };
            }
            Ok(Some(Event::Binary(bytes))) if self.by_chunks => {
                held.clear();
                held.extend_from_slice(bytes);
                self.next = Next::HeldChunk { text: false, first: true, last: true };
            }
            Ok(Some(Event::Text(_))) if spare.joined_text().is_some() => {
                self.next = Next::Joined { text: true };
            }
            Ok(Some(Event::Binary(_))) if spare.joined_bytes().is_some() => {
                self.next = Next::Joined { text: false };
            }
            Ok(Some(Event::Compressed(message))) => {
                let Some(codec) = codec else {
                    return Err(fault(ProtocolError::ReservedBits, output, &mut self.stage));
                };
                let Codec { inflater, peers, .. } = &mut **codec;
                match inflater.inflate(message, peers.as_mut(), limits.max_message_size) {
                    Ok(inflated) => self.next = hold(inflated.event, held, held_text),
                    Err(error) => outcome = Err(error),
                }
            }
            Ok(Some(event @ (Event::Text(_) | Event::Binary(_)))) => {
                self.next = hold(event, held, held_text);
            }
            Ok(Some(Event::Chunk(chunk))) => {
                held.clear();
                held.extend_from_slice(chunk.bytes);
                let Chunk { text, first, last, .. } = chunk;
                self.next = Next::HeldChunk { text, first, last };
            }
            Ok(Some(Event::Ping(payload))) => {
                if self.stage == Stage::Open
                    && let Ok(key) = output.key()
                {
                    encode_masked(Opcode::Pong, payload, key, &mut output.bytes);
                }
                outcome = Ok(None);
            }
            Ok(Some(Event::Pong(_))) => {
                self.pongs += 1;
                outcome = Ok(None);
            }
            Ok(Some(Event::Close(close))) => {
                let (code, reason) = close.map_or((1005, ""), |close| (close.code, close.reason));
                if self.stage == Stage::Open
                    && let Ok(key) = output.key()
                {
                    encode_close(code, "", Some(key), &mut output.bytes);
                }
                let reason = reason.to_owned();
                self.close = Some(CloseFrame { code: CloseCode::new(code), reason });
                self.stage = Stage::Ended;
                outcome = Ok(Some(Step::Ended));
            }
            Err(error) => outcome = Err(error),
        }
        input.take(taken);
        outcome.map_err(|error| fault(error, output, &mut self.stage))
    }

    /// Returns the message that [`Session::advance`] found; an empty one if it found none.
    pub(crate) fn message(&mut self) -> Result<Message<'_>, Fault> {
        let Self { decoder, limits, input, output, stage, .. } = self;
        match std::mem::replace(&mut self.next, Next::None) {
            Next::Whole => {
                let InputBuffer { bytes, start, end } = input;
                let before = *end - *start;
                let mut rest = Input::new(&mut bytes[*start..*end]);
                let event = decoder.whole_message(&mut rest, limits.max_whole_message());
                *start += before - rest.len();
                match event {
                    Some(Event::Text(text)) => Ok(Message::Text(text)),
                    Some(Event::Binary(bytes)) => Ok(Message::Binary(bytes)),
                    _ => Err(fault(ProtocolError::InvalidText, output, stage)),
                }
            }
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

    /// Returns the chunk that [`Session::advance`] found.
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

/// Ends the session: everything that was queued, and a Close frame with the error.
fn fault(error: ProtocolError, output: &mut Output, stage: &mut Stage) -> Fault {
    if *stage == Stage::Open
        && let Ok(key) = output.key()
    {
        encode_close(error.close_code(), &error.to_string(), Some(key), &mut output.bytes);
    }
    *stage = Stage::Ended;
    let sent = std::mem::take(&mut output.sent);
    let close_frame = std::mem::take(&mut output.bytes).split_off(sent);
    Fault { error, close_frame }
}

impl Output {
    fn key(&mut self) -> Result<[u8; 4], Error> {
        self.entropy.take().map_err(Error::Random)
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
            // The decoder takes all that it can, so what is left is a part of one header at most,
            // or was not decoded at all.
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.bytes[self.end..]
    }
}
