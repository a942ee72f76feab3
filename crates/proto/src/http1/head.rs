//! Finding the end of a head, line by line, each byte looked at once however it arrives.

use super::fields::Facts;
use super::{Error, Limits, scan};
use std::mem;

/// A range of a head. 32 bits, so that an unfinished head stays small; `Limits` sees to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Up to here the bytes are judged, or known to hold no end of the current line.
    scanned: usize,
    /// Where the current line starts.
    line_start: usize,
    /// The current line has no control character so far: with its CRLF, its bytes are judged.
    is_plain: bool,
    skipped_empty_line: bool,
    pub(crate) start_line: Option<S>,
    /// The field lines, without the empty line after them.
    pub(crate) lines: Span,
    pub(crate) facts: Facts,
}

impl<S: StartLine> HeadScan<S> {
    pub(crate) const fn new() -> Self {
        Self {
            scanned: 0,
            line_start: 0,
            is_plain: true,
            skipped_empty_line: false,
            start_line: None,
            lines: Span { start: 0, end: 0 },
            facts: Facts::new(),
        }
    }

    /// How many bytes the search for the next LF has behind it.
    #[cfg(test)]
    pub(crate) const fn scanned_bytes(&self) -> usize {
        self.scanned
    }

    /// Goes on over `bytes`, which begin with all the bytes of earlier calls. Gives the length of
    /// the head once its end is here.
    pub(crate) fn advance(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
    ) -> Result<Option<usize>, Error> {
        let max = limits.header_bytes();
        let bytes = &bytes[..bytes.len().min(max)];
        loop {
            if self.start_line.is_none() {
                // Prompt, before any LF: another protocol, such as TLS, gets its answer at once.
                match bytes.get(self.line_start) {
                    Some(byte) if *byte != b'\r' && !scan::is_token_byte(*byte) => {
                        let bare = *byte == b'\n';
                        return Err(if bare { Error::BareLineFeed } else { S::MALFORMED });
                    }
                    _ => {}
                }
            }
            let Some(line_feed) = self.find_line_feed(bytes) else {
                if bytes.len() < max {
                    return Ok(None);
                }
                let in_first = self.start_line.is_none();
                return Err(if in_first { S::TOO_LONG } else { Error::HeadTooLarge });
            };
            let line_start = self.line_start;
            let Some(line) = bytes[line_start..line_feed].strip_suffix(b"\r") else {
                return Err(Error::BareLineFeed);
            };
            let is_plain = mem::replace(&mut self.is_plain, true);
            self.scanned = line_feed + 1;
            self.line_start = line_feed + 1;
            if self.start_line.is_none() {
                // RFC 9112 section 2.2: one empty line before a request is forgiven, since old
                // clients sent CRLF after a body.
                if line.is_empty() && !self.skipped_empty_line {
                    self.skipped_empty_line = true;
                    continue;
                }
                self.start_line = Some(S::parse(line, line_start)?);
                self.lines = Span::new(line_feed + 1, line_feed + 1);
            } else if line.is_empty() {
                return Ok(Some(line_feed + 1));
            } else {
                self.facts.note_line(line, is_plain, line_start, limits.max_headers)?;
                self.lines.end = line_feed as u32 + 1;
            }
        }
    }

    /// The LF that ends the current line, if it is here; else remembers how far it looked.
    #[inline]
    fn find_line_feed(&mut self, bytes: &[u8]) -> Option<usize> {
        if self.is_plain {
            let Some(found) = scan::find_control(&bytes[self.scanned..]) else {
                self.scanned = bytes.len();
                return None;
            };
            self.scanned += found;
            match bytes[self.scanned..] {
                [b'\r', b'\n', ..] => return Some(self.scanned + 1),
                [b'\r'] => return None,
                _ => self.is_plain = false,
            }
        }
        let found = scan::find_byte(&bytes[self.scanned..], b'\n');
        self.scanned = found.map_or(bytes.len(), |found| self.scanned + found);
        found.map(|_| self.scanned)
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
        let needed = before + added.len();
        if needed > self.bytes.capacity() {
            // Doubling, but never past the limit: that is what an unfinished head may cost.
            let target = needed.next_power_of_two().max(256).min(max.max(needed));
            self.bytes.reserve_exact(target - before);
        }
        self.bytes.extend_from_slice(added);
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
