//! Encodes heads and chunks, appending to the caller's buffer.
//!
//! The types prevent injection: nothing can be written without a [`HeaderName`] and a
//! [`HeaderValue`], and neither can contain CR, LF or NUL.

use super::head::StartLine;
use super::host;
use super::target::RequestLine;
use super::{Error, block, scan};
use std::fmt;

/// An invalid header, which would have changed the structure of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidHeader {
    /// The name is empty or not a token.
    /// [RFC 9110 section 5.1](https://www.rfc-editor.org/rfc/rfc9110#section-5.1).
    Name,
    /// The value contains a control character, such as CR, LF or NUL.
    /// [RFC 9110 section 5.5](https://www.rfc-editor.org/rfc/rfc9110#section-5.5).
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
    /// Validates a name.
    ///
    /// # Errors
    ///
    /// [`InvalidHeader::Name`].
    pub const fn new(name: &'a str) -> Result<Self, InvalidHeader> {
        if scan::is_token(name.as_bytes()) { Ok(Self(name)) } else { Err(InvalidHeader::Name) }
    }

    /// Creates a name known at compile time: `const DATE: HeaderName =
    /// HeaderName::literal("Date");`
    ///
    /// # Panics
    ///
    /// If the name is invalid; in a `const` that is a compile-time error.
    #[must_use]
    pub const fn literal(name: &'a str) -> Self {
        match Self::new(name) {
            Ok(name) => name,
            Err(_) => panic!("not a valid header name"),
        }
    }

    /// Returns the name.
    #[must_use]
    pub const fn as_str(self) -> &'a str {
        self.0
    }
}

/// A field value that is safe to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderValue<'a>(&'a str);

impl<'a> HeaderValue<'a> {
    /// Validates a value.
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

    /// Creates a value known at compile time.
    ///
    /// # Panics
    ///
    /// If the value is invalid; in a `const` that is a compile-time error.
    #[must_use]
    pub const fn literal(value: &'a str) -> Self {
        match Self::new(value) {
            Ok(value) => value,
            Err(_) => panic!("not a valid header value"),
        }
    }

    /// Returns the value.
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
/// ResponseHead::start(&mut out, 200, "OK")
///     .header("Content-Type", "text/plain")?
///     .content_length(2)
///     .finish();
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
    /// Writes the status line.
    ///
    /// A `status` outside 100 to 999 is written as 500. A `reason` with a control character is left
    /// out, since recipients ignore it.
    #[inline]
    pub fn start(out: &'o mut Vec<u8>, status: u16, reason: &str) -> Self {
        // Reserve once: each write checks the capacity again. The usual heads fit in this much.
        out.reserve(192);
        // Common status lines are written whole; others are assembled.
        match (status, reason) {
            (200, "OK") => out.extend_from_slice(b"HTTP/1.1 200 OK\r\n"),
            (204, "No Content") => out.extend_from_slice(b"HTTP/1.1 204 No Content\r\n"),
            (304, "Not Modified") => out.extend_from_slice(b"HTTP/1.1 304 Not Modified\r\n"),
            (404, "Not Found") => out.extend_from_slice(b"HTTP/1.1 404 Not Found\r\n"),
            _ => push_status_line(status, reason, out),
        }
        Self { lines: Lines { out } }
    }

    /// Validates and appends a header.
    ///
    /// # Errors
    ///
    /// Nothing is written if the name or the value is invalid.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, InvalidHeader> {
        self.lines.push(HeaderName::new(name)?, HeaderValue::new(value)?);
        Ok(self)
    }

    /// Appends a header that is already validated.
    #[inline]
    pub fn field(mut self, name: HeaderName<'_>, value: HeaderValue<'_>) -> Self {
        self.lines.push(name, value);
        self
    }

    /// Appends Content-Length. Not to be combined with [`chunked`](Self::chunked).
    #[inline]
    pub fn content_length(mut self, length: u64) -> Self {
        self.lines.push_length(length);
        self
    }

    /// Appends `Transfer-Encoding: chunked`; the body is then written by [`encode_chunk`]. Not for
    /// a response to HTTP/1.0.
    pub fn chunked(self) -> Self {
        self.field(HeaderName("Transfer-Encoding"), HeaderValue("chunked"))
    }

    /// Writes the empty line that ends the head; the body follows.
    #[inline]
    pub fn finish(self) {
        self.lines.out.extend_from_slice(b"\r\n");
    }
}

/// Writes a status line that is not one of the common ones.
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
    /// Writes the request line and Host.
    ///
    /// # Errors
    ///
    /// The [`Error`] that a strict server would respond with, for a method, target or host that is
    /// invalid; nothing is written then.
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
        // The same grammar for writing and reading.
        let line = RequestLine::parse(&out[before..], 0);
        let checked = if !scan::is_token(method.as_bytes()) {
            Err(Error::BadRequestLine)
        } else if block::target_length(target.as_bytes()) != target.len() {
            Err(Error::BadTarget)
        } else if !host::is_host(host.as_bytes()) {
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

    /// Validates and appends a header.
    ///
    /// # Errors
    ///
    /// Nothing is written if the name or the value is invalid.
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

    /// Writes the empty line that ends the head; the body follows.
    pub fn finish(self) {
        self.lines.out.extend_from_slice(b"\r\n");
    }
}

/// The field lines of a request or response head.
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

/// Appends a `100 Continue` response.
///
/// Send it once, when the body of a request that [expects it](super::Request::expects_continue) is
/// wanted.
pub fn encode_continue(out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
}

/// Appends one chunk. Empty data writes nothing: an empty chunk would end the body.
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

/// Appends `number` in decimal, without the overhead of `fmt`.
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

/// Number of digits of `u64::MAX`.
const DIGITS: usize = 20;
