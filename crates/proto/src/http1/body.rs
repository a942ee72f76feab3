//! Content: a counted number of bytes, or chunks with a trailer section.
//! [RFC 9112 section 6](https://www.rfc-editor.org/rfc/rfc9112#section-6) and
//! [RFC 9112 section 7](https://www.rfc-editor.org/rfc/rfc9112#section-7).

use super::{BodyLength, Error, Limits, scan};
use crate::input::Input;

/// The result of decoding the next bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress<'b> {
    /// Content, never empty.
    Data(&'b [u8]),
    /// Nothing until more input comes.
    NeedsInput,
    /// The content is complete; the bytes after it are left in the input.
    Done,
}

/// The position in the content of one message. 24 bytes: no line of it is ever buffered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body {
    /// Bytes left of the content or of the chunk; the value so far while a size is being read.
    remaining: u64,
    /// Content bytes announced so far.
    total: u64,
    /// Bytes of extensions in excess of their allowance, or bytes of the trailer section.
    overhead: u32,
    /// Digits of the size, or lines of the trailer section.
    count: u16,
    at: ChunkState,
}

/// The position of the next byte in the chunk grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    End,
}

impl ChunkState {
    /// Returns whether the next byte belongs to a field line of the trailer section.
    const fn is_in_trailers(self) -> bool {
        use ChunkState::{TrailerLf, TrailerName, TrailerStart, TrailerValue};
        matches!(self, TrailerStart | TrailerName | TrailerValue | TrailerLf)
    }
}

/// Extension bytes that a body may have in excess of the allowance earned by its data. Otherwise an
/// attacker's one-byte chunks with long extensions would cost a server a hundred bytes of reading
/// for each byte of `max_body`.
const MAX_EXTENSION_EXCESS: u32 = 4096;
/// Maximum size of a chunk that is moved to the end of the previous one. A longer chunk is cheaper
/// as a separate piece.
const SMALL_CHUNK: u64 = 1024;
/// Sixteen hexadecimal digits are 64 bits.
const MAX_SIZE_DIGITS: u16 = 16;

impl Body {
    /// No content: the value between messages.
    pub(crate) const NONE: Self =
        Self { remaining: 0, total: 0, overhead: 0, count: 0, at: ChunkState::Size };

    /// Starts content with this framing; fails if the announced length exceeds the limit.
    pub(crate) const fn new(length: BodyLength, limits: &Limits) -> Result<Self, Error> {
        match length {
            BodyLength::Known(length) if length > limits.max_body => Err(Error::BodyTooLarge),
            BodyLength::Known(length) => Ok(Self { remaining: length, ..Self::NONE }),
            BodyLength::Chunked | BodyLength::UntilClose => Ok(Self::NONE),
        }
    }

    /// Takes the next bytes of content counted by Content-Length.
    #[inline]
    pub(crate) fn next_counted<'b>(&mut self, input: &mut Input<'b>) -> Progress<'b> {
        if self.remaining == 0 {
            return Progress::Done;
        }
        self.take(input)
    }

    /// Takes the next bytes of content that ends with the connection.
    pub(crate) fn next_until_close<'b>(
        &mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Progress<'b>, Error> {
        // Delivers bytes up to the limit before the error, so that the split of the input does not
        // affect the delivered length.
        let allowed = limits.max_body.saturating_sub(self.total);
        if allowed == 0 && !input.is_empty() {
            return Err(Error::BodyTooLarge);
        }
        self.remaining = allowed.min(input.len() as u64);
        self.total += self.remaining;
        Ok(self.take(input))
    }

    fn take<'b>(&mut self, input: &mut Input<'b>) -> Progress<'b> {
        let length = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(input.len());
        if length == 0 {
            return Progress::NeedsInput;
        }
        self.remaining -= length as u64;
        Progress::Data(input.take(length))
    }

    /// Takes the next bytes of chunked content. Lines of its trailer section are passed to `gather`
    /// as they arrive.
    pub(crate) fn next_chunked<'b>(
        &mut self,
        input: &mut Input<'b>,
        limits: &Limits,
        mut gather: impl FnMut(&[u8]),
    ) -> Result<Progress<'b>, Error> {
        loop {
            if self.at == ChunkState::Data {
                if self.remaining > 0 {
                    return Ok(self.take_chunks(input, limits));
                }
                self.at = ChunkState::DataCr;
            }
            // Everything between chunk data is decoded a byte at a time: the framing is short, the
            // data is not.
            let in_trailers = self.at.is_in_trailers();
            let mut used = 0;
            let mut stop = false;
            for byte in input.as_slice() {
                used += 1;
                self.at = self.after_byte(*byte, limits)?;
                if matches!(self.at, ChunkState::Data | ChunkState::End)
                    || self.at.is_in_trailers() != in_trailers
                {
                    stop = true;
                    break;
                }
            }
            let taken = input.take(used);
            if in_trailers {
                // The CR of the empty line belongs to the section, but to no field line.
                gather(if self.at == ChunkState::EndLf { &taken[..used - 1] } else { taken });
            }
            if self.at == ChunkState::End {
                return Ok(Progress::Done);
            }
            if !stop {
                return Ok(Progress::NeedsInput);
            }
        }
    }

    /// Takes the data of a chunk and of small chunks after it, which are moved together: a separate
    /// piece for each byte would cost a receiver far more than the sender.
    fn take_chunks<'b>(&mut self, input: &mut Input<'b>, limits: &Limits) -> Progress<'b> {
        let bytes = input.as_mut_slice();
        let (mut read, mut length) = (0, 0);
        loop {
            let rest = usize::try_from(self.remaining).unwrap_or(usize::MAX);
            let some = rest.min(bytes.len() - read);
            if read > length {
                bytes.copy_within(read..read + some, length);
            }
            (read, length) = (read + some, length + some);
            self.remaining -= some as u64;
            let Some((next, framing)) = self.next_small_chunk(&bytes[read..], limits) else {
                break;
            };
            *self = next;
            read += framing;
        }
        match input.take(read) {
            [] => Progress::NeedsInput,
            taken => Progress::Data(&taken[..length]),
        }
    }

    /// Returns the position at the data of the next chunk and the length of the framing before it,
    /// if this chunk is complete and the next one is small. Leaves an error to the next call,
    /// because the bytes before it are content.
    fn next_small_chunk(&self, bytes: &[u8], limits: &Limits) -> Option<(Self, usize)> {
        if self.remaining > 0 {
            return None;
        }
        let mut next = Self { at: ChunkState::DataCr, ..*self };
        for (index, byte) in bytes.iter().enumerate() {
            next.at = next.after_byte(*byte, limits).ok()?;
            match next.at {
                ChunkState::Data => {
                    return (next.remaining <= SMALL_CHUNK).then_some((next, index + 1));
                }
                ChunkState::TrailerStart => return None,
                _ => {}
            }
        }
        None
    }

    /// Applies the grammar of RFC 9112 section 7.1, except that white space before extensions and
    /// any bare CR or LF are refused.
    fn after_byte(&mut self, byte: u8, limits: &Limits) -> Result<ChunkState, Error> {
        match (self.at, byte) {
            (ChunkState::Size, b'\r') if self.count > 0 => {
                self.after_size(limits, ChunkState::SizeLf)
            }
            (ChunkState::Size, b';') if self.count > 0 => {
                self.after_size(limits, ChunkState::Extension)
            }
            (ChunkState::Size, _) => {
                let digit = (byte as char).to_digit(16).ok_or(Error::BadChunkSize)?;
                if self.count == MAX_SIZE_DIGITS {
                    return Err(Error::BadChunkSize);
                }
                self.count += 1;
                self.remaining = self.remaining << 4 | u64::from(digit);
                Ok(ChunkState::Size)
            }
            (ChunkState::Extension, b'\r') => Ok(ChunkState::SizeLf),
            (ChunkState::Extension, _) if !scan::is_value_byte(byte) => {
                Err(Error::BadChunkExtension)
            }
            (ChunkState::Extension, _) => {
                self.overhead += 1;
                let in_debt = self.overhead > MAX_EXTENSION_EXCESS;
                if in_debt { Err(Error::ChunkExtensionTooLong) } else { Ok(ChunkState::Extension) }
            }
            (ChunkState::SizeLf, b'\n') if self.remaining > 0 => {
                // Data earns an allowance for extensions: twice its length and a little for each
                // chunk.
                let paid = u32::try_from(self.remaining).unwrap_or(u32::MAX).saturating_mul(2);
                self.overhead = self.overhead.saturating_sub(paid.saturating_add(16));
                Ok(ChunkState::Data)
            }
            (ChunkState::SizeLf, b'\n') => {
                (self.overhead, self.count) = (0, 0);
                Ok(ChunkState::TrailerStart)
            }
            (ChunkState::SizeLf, _) => Err(Error::BadChunkSize),
            (ChunkState::DataCr, b'\r') => Ok(ChunkState::DataLf),
            (ChunkState::DataLf, b'\n') => {
                self.count = 0;
                Ok(ChunkState::Size)
            }
            (ChunkState::DataCr | ChunkState::DataLf, _) => Err(Error::BadChunkEnd),
            (ChunkState::EndLf, b'\n') => Ok(ChunkState::End),
            (ChunkState::EndLf, _) => Err(Error::BadTrailer),
            (at, _) => self.after_trailer_byte(at, byte, limits),
        }
    }

    /// Checks a complete size against the limit.
    const fn after_size(&mut self, limits: &Limits, next: ChunkState) -> Result<ChunkState, Error> {
        // `total` never exceeds `max_body`, so the subtraction cannot underflow.
        if self.remaining > limits.max_body.saturating_sub(self.total) {
            return Err(Error::BodyTooLarge);
        }
        self.total += self.remaining;
        Ok(next)
    }

    /// Applies the grammar of header lines to trailer lines.
    ///
    /// Trailers are kept apart from the headers: merging them into the head would bypass the checks
    /// that were made on the head. RFC 9110 section 6.5.1.
    fn after_trailer_byte(
        &mut self,
        at: ChunkState,
        byte: u8,
        limits: &Limits,
    ) -> Result<ChunkState, Error> {
        self.overhead += 1;
        if self.overhead as usize > limits.header_bytes() {
            return Err(Error::HeadTooLarge);
        }
        match (at, byte) {
            (ChunkState::TrailerStart, b'\r') => Ok(ChunkState::EndLf),
            (ChunkState::TrailerStart, _) if scan::is_token_byte(byte) => {
                self.count = self.count.saturating_add(1);
                if usize::from(self.count) > limits.max_headers {
                    return Err(Error::TooManyHeaders);
                }
                Ok(ChunkState::TrailerName)
            }
            (ChunkState::TrailerName, b':') => Ok(ChunkState::TrailerValue),
            (ChunkState::TrailerName, _) if scan::is_token_byte(byte) => {
                Ok(ChunkState::TrailerName)
            }
            (ChunkState::TrailerValue, b'\r') => Ok(ChunkState::TrailerLf),
            (ChunkState::TrailerValue, _) if scan::is_value_byte(byte) => {
                Ok(ChunkState::TrailerValue)
            }
            (ChunkState::TrailerLf, b'\n') => Ok(ChunkState::TrailerStart),
            _ => Err(Error::BadTrailer),
        }
    }
}
