//! Finding the end of a head, line by line, each byte looked at once however it arrives.

use super::fields::{Facts, FieldLine};
use super::rare::append_within;
use super::{Error, Limits, block, scan};

/// A range of a head. 32 bits, so that an unfinished head stays small; `Limits` sees to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// Offsets are below `Limits::MAX_HEADER_BYTES`, so they fit.
    #[inline]
    pub(crate) const fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// What follows this span, but for `between` bytes, to the end of `whole`.
    #[inline]
    pub(crate) const fn after_until(self, between: u32, whole: Self) -> Self {
        Self { start: self.end + between, end: whole.end }
    }

    /// The bytes; none if the span is not of this head.
    #[inline]
    pub(crate) fn of(self, head: &[u8]) -> &[u8] {
        head.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// The text; empty if it is not UTF-8, which start lines are not allowed to be.
    #[inline]
    pub(crate) fn text_of(self, head: &[u8]) -> &str {
        str::from_utf8(self.of(head)).unwrap_or_default()
    }
}

/// The first line of a head, of a request or of a response.
pub(crate) trait StartLine: Copy {
    /// Before there is one.
    const NONE: Self;
    /// When it alone passes the limit.
    const TOO_LONG: Error;
    /// When it cannot be one from its first byte.
    const MALFORMED: Error;

    /// Understands `line`, which starts at `offset` in the head and has lost its CRLF.
    fn parse(line: &[u8], offset: usize) -> Result<Self, Error>;
}

/// How far a head was read, and what was learned from it.
///
/// A head is judged a line at a time, in order, and a line is judged when its LF is here. So the first
/// error is the same however the bytes were cut, and a head that drips in byte by byte is scanned
/// once, not once per byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadScan<S> {
    place: Place,
    /// Where the field lines start; 0 until the start line was judged.
    fields_start: u32,
    skipped_empty_line: bool,
    pub(crate) start_line: S,
    pub(crate) facts: Facts,
}

/// Where a scan stands. Small and apart, so that it stays in registers from line to line.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Where the current line starts.
    line_start: usize,
    /// Up to here the bytes are judged, or known to hold no end of the current line.
    scanned: usize,
    /// The current line has no control character so far: with its CRLF, its bytes are judged.
    is_plain: bool,
}

/// What a look for the end of the current line found.
enum Found {
    /// A line whose LF is here.
    Line {
        /// Where its CR is.
        end: usize,
        /// It has no control character.
        is_plain: bool,
    },
    /// No LF.
    Nothing(Place),
    BareLineFeed,
}

impl Place {
    /// The start of the line after one that ended before `start`.
    const fn at(start: usize) -> Self {
        Self { line_start: start, scanned: start, is_plain: true }
    }

    /// Looks for the end of the current line, wherever the search stands.
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
        self.find_odd_line(bytes)
    }

    /// As [`find_line`](Self::find_line), of a line with a control character that does not end it.
    #[cold]
    #[inline(never)]
    fn find_odd_line(mut self, bytes: &[u8]) -> Found {
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

/// The length of the usual line at the start of `bytes`: no control character before its CRLF, and all here.
/// `None` decides nothing.
#[inline]
fn find_plain_line(bytes: &[u8]) -> Option<usize> {
    let length = block::find_control(bytes)?;
    bytes[length..].starts_with(b"\r\n").then_some(length)
}

impl<S: StartLine> HeadScan<S> {
    pub(crate) const fn new() -> Self {
        Self {
            place: Place::at(0),
            fields_start: 0,
            skipped_empty_line: false,
            start_line: S::NONE,
            facts: Facts::new(),
        }
    }

    /// How many bytes the search for the next LF has behind it.
    #[cfg(test)]
    pub(crate) const fn scanned_bytes(&self) -> usize {
        self.place.scanned
    }

    /// The field lines of a complete head, without the empty line after them.
    #[inline]
    pub(crate) fn lines(&self, head: &[u8]) -> Span {
        Span::new(self.fields_start as usize, head.len().saturating_sub(2))
    }

    /// Goes on over `bytes`, which begin with all the bytes of earlier calls. Gives the length of
    /// the head once its end is here.
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
            // Prompt, before any LF: another protocol, such as TLS, gets its answer at once.
            match bytes.get(start) {
                Some(byte) if *byte != b'\r' && !scan::is_token_byte(*byte) => {
                    let bare = *byte == b'\n';
                    return Err(if bare { Error::BareLineFeed } else { S::MALFORMED });
                }
                _ => {}
            }
            // What was looked at before is not looked at again.
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
            place = Place::at(end + 2);
            // RFC 9112 section 2.2: one empty line before a request is forgiven, since old
            // clients sent CRLF after a body.
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
            // The usual line, in one pass.
            if place.scanned == start
                && let Some(field) = FieldLine::find(rest)
            {
                self.facts.note_field(rest, field, start, limits)?;
                place = Place::at(start + field.end() + 2);
                continue;
            }
            let (end, is_plain) = match place.find_line(bytes) {
                Found::Line { end, is_plain } => (end, is_plain),
                Found::Nothing(_) if is_full => return Err(Error::HeadTooLarge),
                Found::Nothing(place) => return Ok(self.wait_at(place)),
                Found::BareLineFeed => return Err(Error::BareLineFeed),
            };
            self.facts.note_line(rest, end - start, is_plain, start, limits)?;
            place = Place::at(end + 2);
        }
    }

    /// The end of the head is not here.
    #[cold]
    fn wait_at(&mut self, place: Place) -> Option<usize> {
        self.place = place;
        None
    }
}

/// A head of which a part is here: the bytes, and the scan that remembers how far it went.
#[derive(Debug)]
pub(crate) struct PartialHead<S> {
    pub(crate) bytes: Vec<u8>,
    pub(crate) scan: HeadScan<S>,
    /// `bytes` is exactly a head.
    pub(crate) complete: bool,
}

impl<S: StartLine> PartialHead<S> {
    pub(crate) const fn new(scan: HeadScan<S>) -> Self {
        Self { bytes: Vec::new(), scan, complete: false }
    }

    /// Appends as much of `input` as the limit lets a head have and scans it. Gives how many bytes
    /// of `input` are used up.
    pub(crate) fn advance(&mut self, input: &[u8], limits: &Limits) -> Result<usize, Error> {
        let max = limits.header_bytes();
        let before = self.bytes.len();
        let added = &input[..input.len().min(max.saturating_sub(before))];
        append_within(&mut self.bytes, added, max);
        match self.scan.advance(&self.bytes, limits)? {
            // The scan saw no end in the bytes of earlier calls, so the end is in these.
            Some(length) => {
                self.bytes.truncate(length);
                self.complete = true;
                Ok(length.saturating_sub(before))
            }
            None => Ok(added.len()),
        }
    }
}
