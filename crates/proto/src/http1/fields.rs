//! Field lines: their grammar, what framing needs of them, and lazy look-ups. RFC 9112 section 5.

use super::head::Span;
use super::{Error, scan, target};

/// How the content of a message is framed. RFC 9112 section 6.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// So many bytes; 0 also when the head names no framing and there is no content.
    Known(u64),
    /// In chunks; the length is known when the last one came.
    Chunked,
    /// Until the connection ends. Responses only.
    UntilClose,
}

/// What a head says about framing and the connection, gathered line by line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    lines: usize,
    content_length: Option<u64>,
    encoding: Encoding,
    /// The value of Host, once.
    pub(crate) host: Option<Span>,
    pub(crate) says_close: bool,
    pub(crate) says_keep_alive: bool,
    pub(crate) says_upgrade: bool,
    pub(crate) has_origin: bool,
    pub(crate) expects_continue: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Absent,
    Chunked,
    /// Known to the RFC or not, but not to us; ends in chunked.
    Other,
}

impl Facts {
    pub(crate) const fn new() -> Self {
        Self {
            lines: 0,
            content_length: None,
            encoding: Encoding::Absent,
            host: None,
            says_close: false,
            says_keep_alive: false,
            says_upgrade: false,
            has_origin: false,
            expects_continue: false,
        }
    }

    /// Judges one field line (without CRLF) that starts at `offset` in the head. `is_plain`: it is known
    /// to have no control character.
    #[inline]
    pub(crate) fn note_line(
        &mut self,
        line: &[u8],
        is_plain: bool,
        offset: usize,
        max_headers: usize,
    ) -> Result<(), Error> {
        self.lines += 1;
        if self.lines > max_headers {
            return Err(Error::TooManyHeaders);
        }
        let name_length = check_line(line, is_plain)?;
        // The length tells most names apart before a byte is compared.
        if !matches!(name_length, 4 | 6 | 10 | 14 | 17) {
            return Ok(());
        }
        let name = &line[..name_length];
        let value = scan::trim_ows(&line[name_length + 1..]);
        if name.eq_ignore_ascii_case(b"host") {
            if self.host.is_some() {
                return Err(Error::RepeatedHost);
            }
            if !target::is_host(value) {
                return Err(Error::BadHost);
            }
            // Where the value is: the line minus what stands before and after it.
            let before = line[name_length + 1..].iter().take_while(|b| matches!(b, b' ' | b'\t'));
            let start =
                offset + name_length + 1 + if value.is_empty() { 0 } else { before.count() };
            self.host = Some(Span::new(start, start + value.len()));
        } else if name.eq_ignore_ascii_case(b"content-length") {
            if self.content_length.is_some() {
                return Err(Error::RepeatedContentLength);
            }
            self.content_length = Some(parse_length(value).ok_or(Error::BadContentLength)?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.encoding != Encoding::Absent {
                return Err(Error::BadTransferEncoding);
            }
            self.encoding = parse_encoding(value)?;
        } else if name.eq_ignore_ascii_case(b"connection") {
            for option in scan::list_members(value) {
                self.says_close |= option.eq_ignore_ascii_case(b"close");
                self.says_keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                self.says_upgrade |= option.eq_ignore_ascii_case(b"upgrade");
            }
        } else if name.eq_ignore_ascii_case(b"origin") {
            self.has_origin = true;
        } else if name.eq_ignore_ascii_case(b"expect") {
            self.expects_continue |= value.eq_ignore_ascii_case(b"100-continue");
        }
        Ok(())
    }

    /// RFC 9112 section 6.3, with every ambiguity refused. `None`: the head names no framing.
    pub(crate) fn framing(&self, minor: u8) -> Result<Option<BodyLength>, Error> {
        match (self.encoding, self.content_length) {
            (Encoding::Absent, length) => Ok(length.map(BodyLength::Known)),
            (_, Some(_)) => Err(Error::LengthWithEncoding),
            (_, None) if minor == 0 => Err(Error::EncodingInHttp10),
            (Encoding::Chunked, None) => Ok(Some(BodyLength::Chunked)),
            (Encoding::Other, None) => Err(Error::UnsupportedTransferEncoding),
        }
    }

    /// RFC 9112 section 9.3: whether the sender lets the connection go on.
    pub(crate) const fn keeps_alive(&self, minor: u8) -> bool {
        !self.says_close && (minor > 0 || self.says_keep_alive)
    }
}

/// The grammar of a field line: the length of its name, if it is well-formed.
#[inline]
fn check_line(line: &[u8], is_plain: bool) -> Result<usize, Error> {
    let at = line.iter().position(|byte| !scan::is_token_byte(*byte));
    match at.map(|at| (at, line[at])) {
        Some((0, b' ' | b'\t')) => Err(Error::FoldedLine),
        Some((0, _)) | None => Err(Error::BadFieldName),
        Some((at, b':')) => {
            if is_plain || scan::is_field_value(&line[at + 1..]) {
                Ok(at)
            } else {
                Err(Error::BadFieldValue)
            }
        }
        Some((_, b' ' | b'\t')) => Err(Error::SpaceBeforeColon),
        Some(_) => Err(Error::BadFieldName),
    }
}

/// RFC 9110 section 8.6: digits, nothing else. No sign, no list, no overflow.
fn parse_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |length, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        length.checked_mul(10)?.checked_add(digit)
    })
}

/// RFC 9112 section 6.3: `chunked` must be the last coding and must not be applied twice.
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

/// One field line of a message that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// The name as sent; compare it without regard to case.
    pub name: &'a str,
    /// The value without white space at its ends. May hold bytes that are not UTF-8.
    pub value: &'a [u8],
}

/// The field lines of a message, kept as they came and read when asked for: a handler that looks at
/// no header pays for none.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeaderLines<'a> {
    lines: &'a [u8],
}

impl<'a> HeaderLines<'a> {
    /// `lines` were accepted by a scan: each is `name ":" value CRLF`.
    #[inline]
    pub(crate) const fn new(lines: &'a [u8]) -> Self {
        Self { lines }
    }

    /// All lines in the order they came, each with its CRLF.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> &'a [u8] {
        self.lines
    }

    /// All fields in the order they came.
    pub fn iter(self) -> impl Iterator<Item = Header<'a>> {
        let mut rest = self.lines;
        std::iter::from_fn(move || {
            let (line, after) = next_line(rest)?;
            rest = after;
            let colon = line.iter().position(|byte| *byte == b':')?;
            let name = str::from_utf8(&line[..colon]).ok()?;
            Some(Header { name, value: scan::trim_ows(&line[colon + 1..]) })
        })
    }

    /// Shows all fields in the order they came: name, and value without white space around it.
    pub(crate) fn each(self, mut see: impl FnMut(&'a [u8], &'a [u8])) {
        let mut rest = self.lines;
        while let Some((line, after)) = next_line(rest) {
            rest = after;
            if let Some(colon) = scan::find_byte(line, b':') {
                see(&line[..colon], scan::trim_ows(&line[colon + 1..]));
            }
        }
    }

    /// The values of all fields called `name`, without regard to case, in the order they came.
    pub fn all_bytes(self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = self.lines;
        std::iter::from_fn(move || {
            loop {
                let (line, after) = next_line(rest)?;
                rest = after;
                // The colon's place first: it tells most names apart with one look.
                if line.get(name.len()) == Some(&b':')
                    && line[..name.len()].eq_ignore_ascii_case(name.as_bytes())
                {
                    return Some(scan::trim_ows(&line[name.len() + 1..]));
                }
            }
        })
    }

    /// As [`all_bytes`](Self::all_bytes), without the values that are not UTF-8.
    pub fn all(self, name: &str) -> impl Iterator<Item = &'a str> {
        self.all_bytes(name).filter_map(|value| str::from_utf8(value).ok())
    }

    /// The value of the first field called `name`, if there is one and it is UTF-8.
    #[must_use]
    pub fn first(self, name: &str) -> Option<&'a str> {
        self.all_bytes(name).next().and_then(|value| str::from_utf8(value).ok())
    }
}

/// The first line without its CRLF, and what follows it.
#[inline]
fn next_line(lines: &[u8]) -> Option<(&[u8], &[u8])> {
    let line_feed = scan::find_byte(lines, b'\n')?;
    let line = &lines[..line_feed];
    Some((line.strip_suffix(b"\r").unwrap_or(line), &lines[line_feed + 1..]))
}
