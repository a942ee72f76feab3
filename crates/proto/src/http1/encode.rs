//! Heads and chunks to bytes, appended to the caller's buffer.
//!
//! A name or value that could break out of its line is refused by its type: without a [`HeaderName`] and
//! a [`HeaderValue`] nothing can be written, and they cannot be made of CR, LF or NUL.

use super::head::StartLine;
use super::target::{self, RequestLine};
use super::{Error, block, scan};
use std::fmt;

/// Why a header was refused: it would have changed the shape of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidHeader {
    /// The name is empty or not a token. RFC 9110 section 5.1.
    Name,
    /// The value has a control character: CR, LF and NUL among them. RFC 9110 section 5.5.
    Value,
}

impl fmt::Display for InvalidHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "a header name must be letters, digits and !#$%&'*+-.^_`|~ only",
            Self::Value => "a header value must have no control characters, such as line breaks",
        })
    }
}

impl std::error::Error for InvalidHeader {}

/// A field name that is safe to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderName<'a>(&'a str);

impl<'a> HeaderName<'a> {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`InvalidHeader::Name`].
    pub const fn new(name: &'a str) -> Result<Self, InvalidHeader> {
        if scan::is_token(name.as_bytes()) { Ok(Self(name)) } else { Err(InvalidHeader::Name) }
    }

    /// A name known when the program is built: `const DATE: HeaderName = HeaderName::literal("Date");`
    ///
    /// # Panics
    ///
    /// If the name is not valid; in a `const` that is an error of compilation.
    #[must_use]
    pub const fn literal(name: &'a str) -> Self {
        match Self::new(name) {
            Ok(name) => name,
            Err(_) => panic!("not a valid header name"),
        }
    }

    /// The name.
    #[must_use]
    pub const fn as_str(self) -> &'a str {
        self.0
    }
}

/// A field value that is safe to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderValue<'a>(&'a str);

impl<'a> HeaderValue<'a> {
    /// Checks a value.
    ///
    /// # Errors
    ///
    /// [`InvalidHeader::Value`].
    pub const fn new(value: &'a str) -> Result<Self, InvalidHeader> {
        if !scan::is_field_value(value.as_bytes()) {
            return Err(InvalidHeader::Value);
        }
        Ok(Self(value))
    }

    /// A value known when the program is built.
    ///
    /// # Panics
    ///
    /// If the value is not valid; in a `const` that is an error of compilation.
    #[must_use]
    pub const fn literal(value: &'a str) -> Self {
        match Self::new(value) {
            Ok(value) => value,
            Err(_) => panic!("not a valid header value"),
        }
    }

    /// The value.
    #[must_use]
    pub const fn as_str(self) -> &'a str {
        self.0
    }
}

/// Writes the head of a response.
///
/// ```
/// use throng_proto::http1::ResponseHead;
///
/// let mut out = Vec::new();
/// ResponseHead::start(&mut out, 200, "OK").header("Content-Type", "text/plain")?.content_length(2).finish();
/// out.extend_from_slice(b"OK");
/// assert_eq!(out, b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nOK");
/// # Ok::<(), throng_proto::http1::InvalidHeader>(())
/// ```
#[derive(Debug)]
#[must_use = "a head is complete only after finish()"]
pub struct ResponseHead<'o> {
    lines: Lines<'o>,
}

impl<'o> ResponseHead<'o> {
    /// The status line. `status` outside 100 to 999 is written as 500; a `reason` that has a control
    /// character is left out, since it means nothing to any recipient.
    #[inline]
    pub fn start(out: &'o mut Vec<u8>, status: u16, reason: &str) -> Self {
        // One write where it can be: each one checks the room anew. The usual heads fit in this much.
        out.reserve(192);
        // Whole, where there is no doubt about the reason; the others are put together.
        match (status, reason) {
            (200, "OK") => out.extend_from_slice(b"HTTP/1.1 200 OK\r\n"),
            (204, "No Content") => out.extend_from_slice(b"HTTP/1.1 204 No Content\r\n"),
            (304, "Not Modified") => out.extend_from_slice(b"HTTP/1.1 304 Not Modified\r\n"),
            (404, "Not Found") => out.extend_from_slice(b"HTTP/1.1 404 Not Found\r\n"),
            _ => push_status_line(status, reason, out),
        }
        Self { lines: Lines { out } }
    }

    /// Appends a header after checking both parts.
    ///
    /// # Errors
    ///
    /// Nothing is written if one is not valid.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, InvalidHeader> {
        self.lines.push(HeaderName::new(name)?, HeaderValue::new(value)?);
        Ok(self)
    }

    /// Appends a header whose parts were checked before.
    #[inline]
    pub fn field(mut self, name: HeaderName<'_>, value: HeaderValue<'_>) -> Self {
        self.lines.push(name, value);
        self
    }

    /// Appends Content-Length. Not together with [`chunked`](Self::chunked).
    #[inline]
    pub fn content_length(mut self, length: u64) -> Self {
        self.lines.push_length(length);
        self
    }

    /// Appends `Transfer-Encoding: chunked`; the body is then written by [`encode_chunk`]. Not in an
    /// answer to HTTP/1.0.
    pub fn chunked(self) -> Self {
        self.field(HeaderName("Transfer-Encoding"), HeaderValue("chunked"))
    }

    /// The empty line: the head is complete and the body follows.
    #[inline]
    pub fn finish(self) {
        self.lines.out.extend_from_slice(b"\r\n");
    }
}

/// Any status line but those that most answers begin with.
fn push_status_line(status: u16, reason: &str, out: &mut Vec<u8>) {
    let status = if matches!(status, 100..=999) { status } else { 500 };
    let [a, b, c] = [status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8);
    out.extend_from_slice(&[b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1', b' ', a, b, c, b' ']);
    if scan::is_field_value(reason.as_bytes()) {
        out.extend_from_slice(reason.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the head of a request.
#[derive(Debug)]
#[must_use = "a head is complete only after finish()"]
pub struct RequestHead<'o> {
    lines: Lines<'o>,
}

impl<'o> RequestHead<'o> {
    /// The request line and Host.
    ///
    /// # Errors
    ///
    /// The [`Error`] a strict server would answer with, for a method, target or host that is not
    /// valid; nothing is written then.
    pub fn start(
        out: &'o mut Vec<u8>,
        method: &str,
        target: &str,
        host: &str,
    ) -> Result<Self, Error> {
        let before = out.len();
        for part in [method, " ", target, " HTTP/1.1"] {
            out.extend_from_slice(part.as_bytes());
        }
        // One grammar for what is written and what is read.
        let line = RequestLine::parse(&out[before..], 0);
        let checked = if !scan::is_token(method.as_bytes()) {
            Err(Error::BadRequestLine)
        } else if block::target_length(target.as_bytes()) != target.len() {
            Err(Error::BadTarget)
        } else if !target::is_host(host.as_bytes()) {
            Err(Error::BadHost)
        } else {
            line.map(|_| ())
        };
        if let Err(error) = checked {
            out.truncate(before);
            return Err(error);
        }
        out.extend_from_slice(b"\r\nHost: ");
        out.extend_from_slice(host.as_bytes());
        out.extend_from_slice(b"\r\n");
        Ok(Self { lines: Lines { out } })
    }

    /// Appends a header after checking both parts.
    ///
    /// # Errors
    ///
    /// Nothing is written if one is not valid.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, InvalidHeader> {
        self.lines.push(HeaderName::new(name)?, HeaderValue::new(value)?);
        Ok(self)
    }

    /// Appends Content-Length.
    pub fn content_length(mut self, length: u64) -> Self {
        self.lines.push_length(length);
        self
    }

    /// Appends `Transfer-Encoding: chunked`.
    pub fn chunked(mut self) -> Self {
        self.lines.push(HeaderName("Transfer-Encoding"), HeaderValue("chunked"));
        self
    }

    /// The empty line: the head is complete and the body follows.
    pub fn finish(self) {
        self.lines.out.extend_from_slice(b"\r\n");
    }
}

/// The field lines of either head.
#[derive(Debug)]
struct Lines<'o> {
    out: &'o mut Vec<u8>,
}

impl Lines<'_> {
    #[inline]
    fn push(&mut self, name: HeaderName<'_>, value: HeaderValue<'_>) {
        let (name, value) = (name.0.as_bytes(), value.0.as_bytes());
        self.out.reserve(name.len() + value.len() + 4);
        self.out.extend_from_slice(name);
        self.out.extend_from_slice(b": ");
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn push_length(&mut self, length: u64) {
        self.out.reserve(b"Content-Length: \r\n".len() + DIGITS);
        self.out.extend_from_slice(b"Content-Length: ");
        push_decimal(length, self.out);
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Appends `100 Continue`: send it once, when the body of a request that
/// [expects it](super::Request::expects_continue) is wanted.
pub fn encode_continue(out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
}

/// Appends one chunk. No data is no chunk: an empty one would end the body.
pub fn encode_chunk(data: &[u8], out: &mut Vec<u8>) {
    if data.is_empty() {
        return;
    }
    let digits = (usize::BITS - data.len().leading_zeros()).div_ceil(4);
    for place in (0..digits).rev() {
        out.push(b"0123456789abcdef"[data.len() >> (place * 4) & 0xf]);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Appends the last chunk and the trailer section, which is usually empty: the body is complete.
pub fn encode_last_chunk(trailers: &[(HeaderName<'_>, HeaderValue<'_>)], out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    let mut lines = Lines { out };
    for (name, value) in trailers {
        lines.push(*name, *value);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends `number` in decimal, without the machinery of `fmt`.
#[inline]
pub fn push_decimal(mut number: u64, out: &mut Vec<u8>) {
    if number < 10 {
        out.push(b'0' + number as u8);
        return;
    }
    let mut digits = [0; DIGITS];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// What `u64::MAX` needs.
const DIGITS: usize = 20;
