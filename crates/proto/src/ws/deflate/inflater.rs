//! Decompression, one decompressor per shard.

use std::fmt;

use throng_simd::utf8;
use zlib_rs::{Inflate, InflateFlush, Status};

use super::History;
use crate::ws::{Deflated, Event, ProtocolError};

/// The decompressor of a shard, shared by all its connections.
///
/// It keeps no connection's state between two messages. Its memory, about 50 KB and the longest
/// message up to 4 MiB, is allocated by the first messages that need it.
#[derive(Default)]
pub struct Inflater {
    inflate: Option<Box<Inflate>>,
    /// The message, at the front; the rest is left over from longer ones.
    out: Vec<u8>,
    /// Buffer for assembling a history.
    dictionary: Vec<u8>,
}

/// A message that was received compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inflated<'a> {
    /// The message; lent by the inflater.
    pub event: Event<'a>,
    /// Whether its compressed form can be forwarded unchanged, so that an echo or a relay need not
    /// compress.
    ///
    /// It can be sent to every connection that could be sent the result of
    /// [`Deflater::deflate`](super::Deflater::deflate) for the message without a history and with a
    /// window of 15 bits. It refers to nothing before it, is shorter than the message, and does not
    /// end its stream, which some peers cannot read.
    pub relayable: bool,
}

/// The bytes that the sender omitted (RFC 7692 section 7.2.2), followed by an empty last block: a
/// message that ends correctly ends the stream exactly there, and any other does not.
const TAIL: [u8; 9] = [0, 0, 0xff, 0xff, 1, 0, 0, 0xff, 0xff];

/// Initial size of the memory for messages, and the size kept for the next message.
const MIN_OUT: usize = 4 << 10;
const MAX_OUT_KEPT: usize = 4 << 20;

/// The largest distance in any DEFLATE stream.
const MAX_WINDOW: usize = 1 << 15;

impl Inflater {
    /// Creates a decompressor. Allocates nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { inflate: None, out: Vec::new(), dictionary: Vec::new() }
    }

    /// Decompresses a message, which is lent until the next call.
    ///
    /// `history` holds earlier messages of the peer, where the connection keeps a context; the
    /// message is appended to it.
    ///
    /// # Errors
    /// [`ProtocolError::MessageTooBig`] if it has more than `max` bytes, detected with at most
    /// `max` bytes of memory. [`ProtocolError::InvalidDeflate`] and [`ProtocolError::InvalidText`].
    pub fn inflate(
        &mut self,
        message: Deflated<'_>,
        history: Option<&mut History>,
        max: usize,
    ) -> Result<Inflated<'_>, ProtocolError> {
        if self.out.len() > MAX_OUT_KEPT {
            self.out = Vec::new();
        }
        let dictionary = match &history {
            Some(history) => history.dictionary(&mut self.dictionary),
            None => &[],
        };
        let inflate = self.inflate.get_or_insert_with(|| Box::new(Inflate::new(false, 15)));
        let mut stream = Stream { inflate, out: &mut self.out, len: 0, max, dictionary };
        let in_one_stream = stream.run(message.payload)?;
        let len = stream.len;
        let plaintext = &self.out[..len];
        let relayable = in_one_stream && history.is_none() && message.payload.len() < len;
        if let Some(history) = history {
            history.append(plaintext);
        }
        let event = if message.text {
            Event::Text(utf8::check(plaintext).ok_or(ProtocolError::InvalidText)?)
        } else {
            Event::Binary(plaintext)
        };
        Ok(Inflated { event, relayable })
    }

    /// Returns the bytes of memory kept for the next message.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.out.capacity() + self.dictionary.capacity()
    }
}

/// One message in progress.
struct Stream<'a> {
    inflate: &'a mut Inflate,
    out: &'a mut Vec<u8>,
    /// Length of the message in `out` so far.
    len: usize,
    max: usize,
    dictionary: &'a [u8],
}

/// The reason why [`Stream::feed`] stopped.
enum Stop {
    /// All input is taken, and all output of it is written.
    Taken,
    /// The last block of a stream ended, with `left` bytes of the input left.
    Ended { left: usize },
}

impl Stream<'_> {
    /// Inflates the whole payload. Returns true if the payload did not end its stream.
    fn run(&mut self, payload: &[u8]) -> Result<bool, ProtocolError> {
        self.begin()?;
        let mut input = payload;
        let mut in_one_stream = true;
        // A sender may end its stream and start another within a message (RFC 7692 section
        // 7.2.3.4). Each resets our context at some cost, so their number is limited in relation to
        // the length.
        let mut streams_left = 16 + payload.len() / 256;
        loop {
            match self.feed(input)? {
                Stop::Taken => break,
                // Some senders end their last stream and do not start another for the tail.
                Stop::Ended { left: 0 } => return Ok(false),
                Stop::Ended { left } => {
                    streams_left -= 1;
                    if streams_left == 0 {
                        return Err(ProtocolError::InvalidDeflate);
                    }
                    in_one_stream = false;
                    self.begin()?;
                    input = &input[input.len() - left..];
                }
            }
        }
        match self.feed(&TAIL)? {
            Stop::Ended { left: 0 } => Ok(in_one_stream),
            _ => Err(ProtocolError::InvalidDeflate),
        }
    }

    /// Starts a stream whose window is the output so far.
    fn begin(&mut self) -> Result<(), ProtocolError> {
        self.inflate.reset(false);
        let out = &self.out[self.len.saturating_sub(MAX_WINDOW)..self.len];
        let before =
            &self.dictionary[(self.dictionary.len() + out.len()).saturating_sub(MAX_WINDOW)..];
        for part in [before, out] {
            if !part.is_empty() && self.inflate.set_dictionary(part).is_err() {
                return Err(ProtocolError::InvalidDeflate);
            }
        }
        Ok(())
    }

    fn feed(&mut self, mut input: &[u8]) -> Result<Stop, ProtocolError> {
        loop {
            let mut beyond = [0];
            self.reserve();
            let end = self.max.min(self.out.len());
            let room = match self.len < end {
                true => &mut self.out[self.len..end],
                // Exactly the limit is allowed: a byte that is not kept shows whether there is
                // more.
                false => &mut beyond[..],
            };
            let len = room.len();
            let (taken, given) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self.inflate.decompress(input, room, InflateFlush::SyncFlush);
            let taken = (self.inflate.total_in() - taken) as usize;
            let given = (self.inflate.total_out() - given) as usize;
            if self.len + given > self.max {
                return Err(ProtocolError::MessageTooBig);
            }
            self.len += given;
            input = &input[taken..];
            match status {
                Ok(Status::StreamEnd) => return Ok(Stop::Ended { left: input.len() }),
                Ok(Status::Ok | Status::BufError) if given == len => {}
                Ok(Status::Ok | Status::BufError) if input.is_empty() => return Ok(Stop::Taken),
                // Neither input nor space is lacking, so it will never continue.
                Ok(_) if taken == 0 && given == 0 => return Err(ProtocolError::InvalidDeflate),
                Ok(_) => {}
                Err(_) => return Err(ProtocolError::InvalidDeflate),
            }
        }
    }

    /// Doubles the memory once it is full: it follows the inflated size, and stays within the
    /// limit.
    fn reserve(&mut self) {
        if self.len == self.out.len() && self.len < self.max {
            let room = (2 * self.out.len()).max(MIN_OUT).min(self.max);
            self.out.reserve_exact(room - self.out.len());
            self.out.resize(room, 0);
        }
    }
}

impl fmt::Debug for Inflater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inflater").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}
