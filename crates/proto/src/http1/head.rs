//! Finds the end of a head line by line, and examines each byte once for any split of the input.

use super::fields::{FieldLine, FramingFields};
use super::span::Span;
use super::{Error, Limits, block, scan};

/// The first line of a head: a request line or a status line.
pub(crate) trait StartLine: Copy {
    /// The value before one has been read.
    const NONE: Self;
    /// The error if the line alone exceeds the limit.
    const TOO_LONG: Error;
    /// The error if the first byte cannot begin such a line.
    const MALFORMED: Error;

    /// Parses `line`, without its CRLF, which starts at `offset` in the head.
    fn parse(line: &[u8], offset: usize) -> Result<Self, Error>;
}

/// The progress of reading a head, and the information collected from it.
///
/// A head is validated a line at a time, in order, and a line is validated when its LF has arrived.
/// So the first error does not depend on how the bytes were split, and a head that arrives byte by
/// byte is scanned once, not once per byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadScan<S> {
    place: ScanPosition,
    /// Start of the field lines; 0 until the start line is validated.
    fields_start: u32,
    skipped_empty_line: bool,
    pub(crate) start_line: S,
    pub(crate) framing_fields: FramingFields,
}

/// The position of a scan. Small and separate, so that it stays in registers from line to line.
#[derive(Clone, Copy, Debug)]
struct ScanPosition {
    /// Start of the current line.
    line_start: usize,
    /// Up to here the bytes are validated, or known to contain no end of the current line.
    scanned: usize,
    /// Whether the current line has no control character so far: with its CRLF, its bytes are
    /// valid.
    is_plain: bool,
}

/// The result of searching for the end of the current line.
enum Found {
    /// A line whose LF has arrived.
    Line {
        /// Position of its CR.
        end: usize,
        /// Whether it has no control character.
        is_plain: bool,
    },
    /// No LF.
    Nothing(ScanPosition),
    BareLineFeed,
}

impl ScanPosition {
    /// Returns the state at the start of a line that begins at `start`.
    const fn at(start: usize) -> Self {
        Self { line_start: start, scanned: start, is_plain: true }
    }

    /// Searches for the end of the current line from the current position.
    #[inline(never)]
    fn find_line(mut self, bytes: &[u8]) -> Found {
        if self.is_plain {
            let Some(found) = block::find_control(&bytes[self.scanned..]) else {
                self.scanned = bytes.len();
                return Found::Nothing(self);
            };
            self.scanned += found;
            match bytes[self.scanned..] {
                [b'\r', b'\n', ..] => return Found::Line { end: self.scanned, is_plain: true },
                [b'\r'] => return Found::Nothing(self),
                _ => {}
            }
        }
        self.find_line_with_controls(bytes)
    }

    /// Continues [`find_line`](Self::find_line) for a line with a control character that does not
    /// end it.
    #[cold]
    #[inline(never)]
    fn find_line_with_controls(mut self, bytes: &[u8]) -> Found {
        let Some(found) = scan::find_byte(&bytes[self.scanned..], b'\n') else {
            (self.scanned, self.is_plain) = (bytes.len(), false);
            return Found::Nothing(self);
        };
        let line_feed = self.scanned + found;
        match bytes[self.line_start..line_feed] {
            [.., b'\r'] => Found::Line { end: line_feed - 1, is_plain: false },
            _ => Found::BareLineFeed,
        }
    }
}

/// Returns the length of a common line at the start of `bytes`: no control character before its
/// CRLF, and all of it received. `None` decides nothing.
#[inline]
fn find_plain_line(bytes: &[u8]) -> Option<usize> {
    let length = block::find_control(bytes)?;
    bytes[length..].starts_with(b"\r\n").then_some(length)
}

impl<S: StartLine> HeadScan<S> {
    pub(crate) const fn new() -> Self {
        Self {
            place: ScanPosition::at(0),
            fields_start: 0,
            skipped_empty_line: false,
            start_line: S::NONE,
            framing_fields: FramingFields::new(),
        }
    }

    /// Returns the number of bytes already searched for the next LF.
    #[cfg(test)]
    pub(crate) const fn scanned_bytes(&self) -> usize {
        self.place.scanned
    }

    /// Returns the field lines of a complete head, without the empty line after them.
    #[inline]
    pub(crate) fn lines(&self, head: &[u8]) -> Span {
        Span::new(self.fields_start as usize, head.len().saturating_sub(2))
    }

    /// Continues the scan over `bytes`, which begin with all the bytes of earlier calls. Returns
    /// the length of the head once its end has arrived.
    #[inline]
    pub(crate) fn advance(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
    ) -> Result<Option<usize>, Error> {
        let max = limits.header_bytes();
        let bytes = &bytes[..bytes.len().min(max)];
        let is_full = bytes.len() == max;
        let mut place = self.place;
        while self.fields_start == 0 {
            let start = place.line_start;
            // At once, before any LF: another protocol, such as TLS, gets its error response
            // immediately.
            match bytes.get(start) {
                Some(byte) if *byte != b'\r' && !scan::is_token_byte(*byte) => {
                    let bare = *byte == b'\n';
                    return Err(if bare { Error::BareLineFeed } else { S::MALFORMED });
                }
                _ => {}
            }
            // Bytes examined before are not examined again.
            let end = if place.scanned == start
                && let Some(length) = find_plain_line(&bytes[start..])
            {
                start + length
            } else {
                match place.find_line(bytes) {
                    Found::Line { end, .. } => end,
                    Found::Nothing(_) if is_full => return Err(S::TOO_LONG),
                    Found::Nothing(place) => return Ok(self.wait_at(place)),
                    Found::BareLineFeed => return Err(Error::BareLineFeed),
                }
            };
            place = ScanPosition::at(end + 2);
            // RFC 9112 section 2.2: one empty line before a request is ignored, since old clients
            // sent CRLF after a body.
            if end == start && !self.skipped_empty_line {
                self.skipped_empty_line = true;
                continue;
            }
            self.start_line = S::parse(&bytes[start..end], start)?;
            self.fields_start = place.line_start as u32;
        }
        loop {
            let start = place.line_start;
            let rest = &bytes[start..];
            if rest.starts_with(b"\r\n") {
                return Ok(Some(start + 2));
            }
            // A common line, in one pass.
            if place.scanned == start
                && let Some(field) = FieldLine::find(rest)
            {
                self.framing_fields.record_field(rest, field, start, limits)?;
                place = ScanPosition::at(start + field.end() + 2);
                continue;
            }
            let (end, is_plain) = match place.find_line(bytes) {
                Found::Line { end, is_plain } => (end, is_plain),
                Found::Nothing(_) if is_full => return Err(Error::HeadTooLarge),
                Found::Nothing(place) => return Ok(self.wait_at(place)),
                Found::BareLineFeed => return Err(Error::BareLineFeed),
            };
            self.framing_fields.record_line(rest, end - start, is_plain, start, limits)?;
            place = ScanPosition::at(end + 2);
        }
    }

    /// Saves the position: the end of the head has not arrived.
    #[cold]
    fn wait_at(&mut self, place: ScanPosition) -> Option<usize> {
        self.place = place;
        None
    }
}

/// A head that has arrived in part: its bytes, and the scan with its position.
#[derive(Debug)]
pub(crate) struct PartialHead<S> {
    pub(crate) bytes: Vec<u8>,
    pub(crate) scan: HeadScan<S>,
    /// Whether `bytes` is exactly a head.
    pub(crate) complete: bool,
}

impl<S: StartLine> PartialHead<S> {
    pub(crate) const fn new(scan: HeadScan<S>) -> Self {
        Self { bytes: Vec::new(), scan, complete: false }
    }

    /// Appends as much of `input` as the limit allows and scans it. Returns how many bytes of
    /// `input` were used.
    pub(crate) fn advance(&mut self, input: &[u8], limits: &Limits) -> Result<usize, Error> {
        let max = limits.header_bytes();
        let before = self.bytes.len();
        let added = &input[..input.len().min(max.saturating_sub(before))];
        append_within(&mut self.bytes, added, max);
        match self.scan.advance(&self.bytes, limits)? {
            // The scan found no end in the bytes of earlier calls, so the end is in these.
            Some(length) => {
                self.bytes.truncate(length);
                self.complete = true;
                Ok(length.saturating_sub(before))
            }
            None => Ok(added.len()),
        }
    }
}

/// Appends bytes. Capacity doubles when necessary, but never exceeds `max`, the memory that a peer
/// may use.
pub(crate) fn append_within(held: &mut Vec<u8>, bytes: &[u8], max: usize) {
    let (before, needed) = (held.len(), held.len() + bytes.len());
    if needed > held.capacity() {
        held.reserve_exact(needed.next_power_of_two().max(256).min(max.max(needed)) - before);
    }
    held.extend_from_slice(bytes);
}
