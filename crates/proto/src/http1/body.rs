//! Content: so many bytes, or chunks with a trailer section. RFC 9112 sections 6 and 7.

use super::{BodyLength, Error, Limits, scan};
use crate::Input;

/// What the next bytes gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'b> {
    /// Content, never empty.
    Data(&'b [u8]),
    /// Nothing until more comes.
    Starved,
    /// The content is complete; following bytes were not touched.
    Done,
}

/// How far the content of one message was read. 24 bytes: no line of it is ever buffered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body {
    /// Bytes left of the content, or of the chunk; the size being read.
    remaining: u64,
    /// Content bytes so far announced.
    total: u64,
    /// Bytes of extensions beyond what the chunks pay for; bytes of the trailer section.
    overhead: u32,
    /// Digits of the size; lines of the trailer section.
    count: u16,
    at: At,
}

/// Where in the grammar of chunks the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
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

impl At {
    /// In a field line of the trailer section, or at the start of one.
    const fn is_in_trailers(self) -> bool {
        use At::{TrailerLf, TrailerName, TrailerStart, TrailerValue};
        matches!(self, TrailerStart | TrailerName | TrailerValue | TrailerLf)
    }
}

/// Extension bytes a body may have beyond what its data pays for. An attacker's one-byte chunks with
/// long extensions would otherwise cost a server a hundred bytes of reading for each byte of `max_body`.
const MAX_EXTENSION_DEBT: u32 = 4096;
/// Sixteen digits are 64 bits.
const MAX_SIZE_DIGITS: u16 = 16;

impl Body {
    /// No content: what a decoder holds between messages.
    pub(crate) const NONE: Self =
        Self { remaining: 0, total: 0, overhead: 0, count: 0, at: At::Size };

    /// Content framed so; fails if it is announced to be too large.
    pub(crate) const fn new(length: BodyLength, limits: &Limits) -> Result<Self, Error> {
        match length {
            BodyLength::Known(length) if length > limits.max_body => Err(Error::BodyTooLarge),
            BodyLength::Known(length) => Ok(Self { remaining: length, ..Self::NONE }),
            BodyLength::Chunked | BodyLength::UntilClose => Ok(Self::NONE),
        }
    }

    /// The next piece of content counted by Content-Length.
    #[inline]
    pub(crate) fn next_counted<'b>(&mut self, input: &mut Input<'b>) -> Piece<'b> {
        if self.remaining == 0 {
            return Piece::Done;
        }
        self.take(input)
    }

    /// The next piece of content that ends with the connection.
    pub(crate) fn next_until_close<'b>(
        &mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Piece<'b>, Error> {
        // Up to the limit and then the error, so that the cut does not decide how much is delivered.
        let allowed = limits.max_body.saturating_sub(self.total);
        if allowed == 0 && !input.is_empty() {
            return Err(Error::BodyTooLarge);
        }
        self.remaining = allowed.min(input.len() as u64);
        self.total += self.remaining;
        Ok(self.take(input))
    }

    fn take<'b>(&mut self, input: &mut Input<'b>) -> Piece<'b> {
        let length = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(input.len());
        if length == 0 {
            return Piece::Starved;
        }
        self.remaining -= length as u64;
        Piece::Data(input.take(length))
    }

    /// The next piece of chunked content. Lines of its trailer section go to `gather`, as they come.
    pub(crate) fn next_chunked<'b>(
        &mut self,
        input: &mut Input<'b>,
        limits: &Limits,
        mut gather: impl FnMut(&[u8]),
    ) -> Result<Piece<'b>, Error> {
        loop {
            if self.at == At::Data {
                if self.remaining > 0 {
                    return Ok(self.take(input));
                }
                self.at = At::DataCr;
            }
            // Everything between data, a byte at a time: the framing is short, the data is not.
            let in_trailers = self.at.is_in_trailers();
            let mut used = 0;
            let mut stop = false;
            for byte in input.as_slice() {
                used += 1;
                self.at = self.after_byte(*byte, limits)?;
                if matches!(self.at, At::Data | At::End) || self.at.is_in_trailers() != in_trailers
                {
                    stop = true;
                    break;
                }
            }
            let taken = input.take(used);
            if in_trailers {
                // The CR of the empty line is of the section, but of no field line.
                gather(if self.at == At::EndLf { &taken[..used - 1] } else { taken });
            }
            if self.at == At::End {
                return Ok(Piece::Done);
            }
            if !stop {
                return Ok(Piece::Starved);
            }
        }
    }

    /// The grammar of RFC 9112 section 7.1, minus white space before extensions and any bare CR or LF.
    fn after_byte(&mut self, byte: u8, limits: &Limits) -> Result<At, Error> {
        match (self.at, byte) {
            (At::Size, b'\r') if self.count > 0 => self.after_size(limits, At::SizeLf),
            (At::Size, b';') if self.count > 0 => self.after_size(limits, At::Extension),
            (At::Size, _) => {
                let digit = (byte as char).to_digit(16).ok_or(Error::BadChunkSize)?;
                if self.count == MAX_SIZE_DIGITS {
                    return Err(Error::BadChunkSize);
                }
                self.count += 1;
                self.remaining = self.remaining << 4 | u64::from(digit);
                Ok(At::Size)
            }
            (At::Extension, b'\r') => Ok(At::SizeLf),
            (At::Extension, _) if !scan::is_value_byte(byte) => Err(Error::BadChunkExtension),
            (At::Extension, _) => {
                self.overhead += 1;
                let in_debt = self.overhead > MAX_EXTENSION_DEBT;
                if in_debt { Err(Error::ChunkExtensionTooLong) } else { Ok(At::Extension) }
            }
            (At::SizeLf, b'\n') if self.remaining > 0 => {
                // Data pays for extensions: twice its length and a little for each chunk.
                let paid = u32::try_from(self.remaining).unwrap_or(u32::MAX).saturating_mul(2);
                self.overhead = self.overhead.saturating_sub(paid.saturating_add(16));
                Ok(At::Data)
            }
            (At::SizeLf, b'\n') => {
                (self.overhead, self.count) = (0, 0);
                Ok(At::TrailerStart)
            }
            (At::SizeLf, _) => Err(Error::BadChunkSize),
            (At::DataCr, b'\r') => Ok(At::DataLf),
            (At::DataLf, b'\n') => {
                self.count = 0;
                Ok(At::Size)
            }
            (At::DataCr | At::DataLf, _) => Err(Error::BadChunkEnd),
            (At::EndLf, b'\n') => Ok(At::End),
            (At::EndLf, _) => Err(Error::BadTrailer),
            (at, _) => self.after_trailer_byte(at, byte, limits),
        }
    }

    /// The size is complete: is it too much?
    const fn after_size(&mut self, limits: &Limits, next: At) -> Result<At, Error> {
        // `total` never passes `max_body`, so the subtraction holds.
        if self.remaining > limits.max_body.saturating_sub(self.total) {
            return Err(Error::BodyTooLarge);
        }
        self.total += self.remaining;
        Ok(next)
    }

    /// Trailer lines are held to the same grammar as header lines, and kept apart from them: merging them
    /// into the head is how checks on the head are got around. RFC 9110 section 6.5.1.
    fn after_trailer_byte(&mut self, at: At, byte: u8, limits: &Limits) -> Result<At, Error> {
        self.overhead += 1;
        if self.overhead as usize > limits.header_bytes() {
            return Err(Error::HeadTooLarge);
        }
        match (at, byte) {
            (At::TrailerStart, b'\r') => Ok(At::EndLf),
            (At::TrailerStart, _) if scan::is_token_byte(byte) => {
                self.count = self.count.saturating_add(1);
                if usize::from(self.count) > limits.max_headers {
                    return Err(Error::TooManyHeaders);
                }
                Ok(At::TrailerName)
            }
            (At::TrailerName, b':') => Ok(At::TrailerValue),
            (At::TrailerName, _) if scan::is_token_byte(byte) => Ok(At::TrailerName),
            (At::TrailerValue, b'\r') => Ok(At::TrailerLf),
            (At::TrailerValue, _) if scan::is_value_byte(byte) => Ok(At::TrailerValue),
            (At::TrailerLf, b'\n') => Ok(At::TrailerStart),
            _ => Err(Error::BadTrailer),
        }
    }
}
