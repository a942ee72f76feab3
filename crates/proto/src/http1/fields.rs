//! Field lines: their grammar, the fields that framing needs, and lazy lookups.
//! [RFC 9112 section 5](https://www.rfc-editor.org/rfc/rfc9112#section-5).

use super::span::Span;
use super::{Error, Limits, block, host, scan};

/// The framing of a message's content.
/// [RFC 9112 section 6.3](https://www.rfc-editor.org/rfc/rfc9112#section-6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// A known number of bytes; 0 also when the head names no framing and there is no content.
    Known(u64),
    /// In chunks; the length is known when the last one has arrived.
    Chunked,
    /// Until the connection ends. Responses only.
    UntilClose,
}

/// Framing and connection information of a head, collected line by line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FramingFields {
    /// Valid if `has_length`.
    content_length: u64,
    /// The value of Host; valid if `has_host`.
    host: Span,
    lines: u32,
    encoding: Encoding,
    has_length: bool,
    has_host: bool,
    says_close: bool,
    says_keep_alive: bool,
    pub(crate) says_upgrade: bool,
    pub(crate) has_origin: bool,
    pub(crate) expects_continue: bool,
    /// Expect contains an expectation other than 100-continue.
    pub(crate) expects_unknown: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Absent,
    Chunked,
    /// A coding that we do not support, whether the RFC defines it or not; ends in chunked.
    Other,
}

impl FramingFields {
    pub(crate) const fn new() -> Self {
        Self {
            content_length: 0,
            host: Span::new(0, 0),
            lines: 0,
            encoding: Encoding::Absent,
            has_length: false,
            has_host: false,
            says_close: false,
            says_keep_alive: false,
            says_upgrade: false,
            has_origin: false,
            expects_continue: false,
            expects_unknown: false,
        }
    }

    /// Returns the value of Host, if there is one.
    #[inline]
    pub(crate) fn host(&self) -> Option<Span> {
        self.has_host.then_some(self.host)
    }

    /// Validates one field line: the first `length` of `bytes`, followed by its CRLF. It starts at
    /// `offset` in the head. `is_plain` means that it is known to have no control character.
    pub(crate) fn record_line(
        &mut self,
        bytes: &[u8],
        length: usize,
        is_plain: bool,
        offset: usize,
        limits: &Limits,
    ) -> Result<(), Error> {
        if self.lines as usize >= limits.max_headers {
            return Err(Error::TooManyHeaders);
        }
        let name_length = block::token_length(&bytes[..length]);
        let (name, value) = bytes[..length].split_at(name_length);
        match (name, value) {
            ([], [b' ' | b'\t', ..]) => Err(Error::FoldedLine),
            (_, [b' ' | b'\t', ..]) => Err(Error::SpaceBeforeColon),
            ([_, ..], [b':', value @ ..]) if is_plain || scan::is_field_value(value) => {
                let field = FieldLine { name_length, value_length: value.len() };
                self.record_field(bytes, field, offset, limits)
            }
            ([_, ..], [b':', ..]) => Err(Error::BadFieldValue),
            _ => Err(Error::BadFieldName),
        }
    }

    /// Records one field line at the start of `bytes`, and at `offset` in the head, whose grammar
    /// is valid.
    #[inline(always)]
    pub(crate) fn record_field(
        &mut self,
        bytes: &[u8],
        field: FieldLine,
        offset: usize,
        limits: &Limits,
    ) -> Result<(), Error> {
        self.lines += 1;
        if self.lines as usize > limits.max_headers {
            return Err(Error::TooManyHeaders);
        }
        // The length distinguishes most names before a byte is compared.
        if matches!(field.name_length, 4 | 6 | 10 | 14 | 17) {
            self.record_known_field(bytes, field, offset)
        } else {
            Ok(())
        }
    }

    /// Records a field that framing or the connection may depend on.
    fn record_known_field(
        &mut self,
        bytes: &[u8],
        field: FieldLine,
        offset: usize,
    ) -> Result<(), Error> {
        let Some((name, value)) = field.of(bytes) else { return Err(Error::BadFieldName) };
        match name.len() {
            4 if scan::is_name(name, b"host") => self.record_host(&bytes[5..], value, offset + 5),
            6 if scan::is_name(name, b"origin") => {
                self.has_origin = true;
                Ok(())
            }
            6 if scan::is_name(name, b"expect") => {
                self.record_expect(value);
                Ok(())
            }
            10 if scan::is_name(name, b"connection") => {
                self.record_connection(value);
                Ok(())
            }
            14 if scan::is_name(name, b"content-length") => self.record_length(value),
            17 if scan::is_name(name, b"transfer-encoding") => self.record_encoding(value),
            _ => Ok(()),
        }
    }

    /// Records a field of that kind. `value` is at `offset` in the head; `bytes` starts with it and
    /// continues after it.
    #[inline]
    fn record_host(&mut self, bytes: &[u8], value: &[u8], offset: usize) -> Result<(), Error> {
        if self.has_host {
            return Err(Error::RepeatedHost);
        }
        let trimmed = scan::trim_ows_start(value);
        let before = value.len() - trimmed.len();
        let host = scan::trim_ows_end(trimmed);
        if !host::is_host_at(&bytes[before..], host) {
            return Err(Error::BadHost);
        }
        self.has_host = true;
        self.host = Span::new(offset + before, offset + before + host.len());
        Ok(())
    }

    fn record_length(&mut self, value: &[u8]) -> Result<(), Error> {
        if self.has_length {
            return Err(Error::RepeatedContentLength);
        }
        self.has_length = true;
        self.content_length = parse_length(scan::trim_ows(value)).ok_or(Error::BadContentLength)?;
        Ok(())
    }

    fn record_encoding(&mut self, value: &[u8]) -> Result<(), Error> {
        if self.encoding != Encoding::Absent {
            return Err(Error::BadTransferEncoding);
        }
        self.encoding = parse_encoding(value)?;
        Ok(())
    }

    fn record_connection(&mut self, value: &[u8]) {
        // The values of browsers and benchmark clients, compared first.
        if matches!(value, b" keep-alive" | b" Keep-Alive") {
            self.says_keep_alive = true;
            return;
        }
        for option in scan::list_members(value) {
            self.says_close |= scan::is_name(option, b"close");
            self.says_keep_alive |= scan::is_name(option, b"keep-alive");
            self.says_upgrade |= scan::is_name(option, b"upgrade");
        }
    }

    /// Records an expectation, RFC 9110 section 10.1.1; empty members of the list are ignored
    /// (section 5.6.1.2).
    fn record_expect(&mut self, value: &[u8]) {
        for expectation in scan::list_members(value).filter(|member| !member.is_empty()) {
            let is_continue = expectation.eq_ignore_ascii_case(b"100-continue");
            self.expects_continue |= is_continue;
            self.expects_unknown |= !is_continue;
        }
    }

    /// Determines the framing by RFC 9112 section 6.3, refusing every ambiguity. `None` if the head
    /// names no framing.
    #[inline]
    pub(crate) fn framing(&self, minor: u8) -> Result<Option<BodyLength>, Error> {
        match (self.encoding, self.has_length) {
            (Encoding::Absent, false) => Ok(None),
            (Encoding::Absent, true) => Ok(Some(BodyLength::Known(self.content_length))),
            (_, true) => Err(Error::LengthWithEncoding),
            (_, false) if minor == 0 => Err(Error::EncodingInHttp10),
            (Encoding::Chunked, false) => Ok(Some(BodyLength::Chunked)),
            (Encoding::Other, false) => Err(Error::UnsupportedTransferEncoding),
        }
    }

    /// Returns whether the sender keeps the connection open, RFC 9112 section 9.3.
    #[inline]
    pub(crate) const fn keeps_alive(&self, minor: u8) -> bool {
        !self.says_close && (minor > 0 || self.says_keep_alive)
    }
}

/// A field line whose grammar is valid, as lengths from its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldLine {
    name_length: usize,
    /// Including white space at its ends.
    value_length: usize,
}

impl FieldLine {
    /// Parses the common case: at the start of `bytes` are a name, a colon, a value and CRLF, all
    /// of it received. `None` decides nothing.
    #[inline]
    pub(crate) fn find(bytes: &[u8]) -> Option<Self> {
        // The name first: none of its bytes is a control character, so they need no second check.
        let name_length = block::token_length(bytes);
        let [b':', value @ ..] = bytes.get(name_length..)? else { return None };
        let value_length = block::find_control(value)?;
        let is_whole = name_length > 0 && value[value_length..].starts_with(b"\r\n");
        is_whole.then_some(Self { name_length, value_length })
    }

    /// Returns the position of its CR.
    #[inline]
    pub(crate) const fn end(self) -> usize {
        self.name_length + 1 + self.value_length
    }

    /// Returns name and value.
    #[inline]
    fn of(self, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
        let (name, [b':', after @ ..]) = bytes.split_at_checked(self.name_length)? else {
            return None;
        };
        Some((name, after.get(..self.value_length)?))
    }
}

/// Parses a length, RFC 9110 section 8.6: digits only. No sign, no list, no overflow.
fn parse_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |length, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        length.checked_mul(10)?.checked_add(digit)
    })
}

/// Parses the codings, RFC 9112 section 6.3: `chunked` must be the last one and must not be applied
/// twice.
fn parse_encoding(value: &[u8]) -> Result<Encoding, Error> {
    let mut encoding = Encoding::Absent;
    let mut others = false;
    for coding in scan::list_members(value) {
        if encoding == Encoding::Chunked {
            return Err(Error::BadTransferEncoding); // something follows chunked
        }
        if coding.eq_ignore_ascii_case(b"chunked") {
            encoding = Encoding::Chunked;
        } else if scan::is_token(coding) {
            others = true;
        } else {
            return Err(Error::BadTransferEncoding);
        }
    }
    match encoding {
        Encoding::Chunked if others => Ok(Encoding::Other),
        Encoding::Chunked => Ok(Encoding::Chunked),
        _ => Err(Error::BadTransferEncoding),
    }
}

/// One field line of an accepted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// The name as sent; compare it case-insensitively.
    pub name: &'a str,
    /// The value without surrounding white space. May contain bytes that are not UTF-8.
    pub value: &'a [u8],
}

/// The field lines of a message, stored as received and parsed on demand, so that a handler that
/// reads no header pays nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeaderLines<'a> {
    lines: &'a [u8],
}

impl<'a> HeaderLines<'a> {
    /// Wraps `lines` that a scan has accepted: each is `name ":" value CRLF`.
    #[inline]
    pub(crate) const fn new(lines: &'a [u8]) -> Self {
        Self { lines }
    }

    /// Returns all lines in the order received, each with its CRLF.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> &'a [u8] {
        self.lines
    }

    /// Returns all fields in the order received.
    pub fn iter(self) -> impl Iterator<Item = Header<'a>> {
        self.fields().map_while(|(name, value)| {
            let name = str::from_utf8(name).ok()?;
            Some(Header { name, value })
        })
    }

    /// Returns the names and values of all fields in the order received, as bytes: a name is ASCII.
    pub fn fields(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut rest = self.lines;
        std::iter::from_fn(move || {
            let (line, after) = next_line(rest)?;
            rest = after;
            let (name, value) = line.split_at(block::token_length(line));
            Some((name, scan::trim_ows(value.get(1..)?)))
        })
    }

    /// Returns the values of all fields called `name`, case-insensitively, in the order received.
    pub fn all_bytes(self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = self.lines;
        std::iter::from_fn(move || {
            loop {
                let (line, after) = next_line(rest)?;
                rest = after;
                // The position of the colon first: it distinguishes most names with one comparison.
                if line.get(name.len()) == Some(&b':')
                    && line[..name.len()].eq_ignore_ascii_case(name.as_bytes())
                {
                    return Some(scan::trim_ows(&line[name.len() + 1..]));
                }
            }
        })
    }

    /// Returns the members of the comma-separated lists in all fields called `name`, trimmed and
    /// without empty ones
    /// ([RFC 9110 section 5.6.1](https://www.rfc-editor.org/rfc/rfc9110#section-5.6.1)).
    pub fn list_members(self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.all_bytes(name).flat_map(scan::list_members).filter(|member| !member.is_empty())
    }

    /// Returns whether the lists in all fields called `name` have the member `wanted`, without
    /// regard to case.
    #[must_use]
    pub fn lists(self, name: &str, wanted: &str) -> bool {
        self.list_members(name).any(|member| member.eq_ignore_ascii_case(wanted.as_bytes()))
    }

    /// Returns the values of all fields called `name` that are UTF-8, in the order received.
    pub fn all(self, name: &str) -> impl Iterator<Item = &'a str> {
        self.all_bytes(name).filter_map(|value| str::from_utf8(value).ok())
    }

    /// Returns the value of the first field called `name`, if there is one and it is UTF-8.
    #[must_use]
    pub fn first(self, name: &str) -> Option<&'a str> {
        self.all_bytes(name).next().and_then(|value| str::from_utf8(value).ok())
    }
}

/// Splits off the first line without its CRLF.
#[inline]
fn next_line(lines: &[u8]) -> Option<(&[u8], &[u8])> {
    let line_feed = block::find_byte(lines, b'\n')?;
    Some((&lines[..line_feed.saturating_sub(1)], &lines[line_feed + 1..]))
}
