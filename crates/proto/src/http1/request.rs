//! A request's head, parsed lazily.

use super::fields::FramingFields;
use super::head::HeadScan;
use super::span::Span;
use super::target::{RequestLine, TargetForm};
use super::{BodyLength, Error, Header, HeaderLines};

/// The head of a valid request.
///
/// It borrows the received bytes. Nothing beyond framing was parsed: headers are searched for on
/// demand.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    head: &'a [u8],
    /// The head up to the end of the target: text that is validated once.
    start: &'a str,
    parts: Parts,
}

/// The parsed information about a head, as offsets: together with a copy of the bytes it is a
/// request again.
#[derive(Clone, Copy, Debug)]
struct Parts {
    line: RequestLine,
    framing_fields: FramingFields,
    lines: Span,
    body: BodyLength,
}

impl<'a> Request<'a> {
    /// Performs the checks that need the whole head.
    #[inline]
    pub(crate) fn new(head: &'a [u8], scan: &HeadScan<RequestLine>) -> Result<Self, Error> {
        let (line, framing_fields) = (&scan.start_line, &scan.framing_fields);
        if framing_fields.host().is_none() && line.minor > 0 {
            return Err(Error::MissingHost);
        }
        let body = framing_fields.framing(line.minor)?.unwrap_or(BodyLength::Known(0));
        // RFC 9110 section 10.1.1 lets a server ignore an unknown expectation; we report it to the
        // client instead. HTTP/1.0 had no expectations: there a server must ignore them.
        if framing_fields.expects_unknown && line.minor > 0 {
            return Err(Error::UnknownExpectation);
        }
        Ok(Self {
            head,
            start: start_of(head, line),
            parts: Parts {
                line: *line,
                framing_fields: *framing_fields,
                lines: scan.lines(head),
                body,
            },
        })
    }

    /// Returns the method as sent; methods are case-sensitive.
    #[inline]
    #[must_use]
    pub fn method(&self) -> &'a str {
        self.parts.line.method.part_of(self.start)
    }

    /// Returns the request target as sent: printable ASCII.
    #[inline]
    #[must_use]
    pub fn target(&self) -> &'a str {
        self.parts.line.target.part_of(self.start)
    }

    /// Returns the form of the target.
    #[inline]
    #[must_use]
    pub fn target_form(&self) -> TargetForm {
        self.parts.line.form
    }

    /// Returns the path, still percent-encoded.
    ///
    /// It starts with `/`, except for `*` of the asterisk form (or of an absolute OPTIONS without a
    /// path) and the empty path of CONNECT.
    #[inline]
    #[must_use]
    pub fn path(&self) -> &'a str {
        let line = &self.parts.line;
        if !line.path.is_empty() {
            return line.path.part_of(self.start);
        }
        match line.form {
            TargetForm::Asterisk => "*",
            // RFC 9112 section 3.2.4: this is how an OPTIONS for the whole server passes through a
            // proxy.
            TargetForm::Absolute if !line.has_query && self.method() == "OPTIONS" => "*",
            TargetForm::Absolute => "/",
            TargetForm::Origin | TargetForm::Authority => "",
        }
    }

    /// Returns the text after the `?`, still percent-encoded; `None` without a `?`.
    #[inline]
    #[must_use]
    pub fn query(&self) -> Option<&'a str> {
        self.parts.line.query().map(|query| query.part_of(self.start))
    }

    /// Returns the authority of the request: from the target if it names an authority ([RFC 9112
    /// section 3.2.2](https://www.rfc-editor.org/rfc/rfc9112#section-3.2.2)), otherwise from the
    /// Host header.
    ///
    /// The authority may be empty, and is `None` only in HTTP/1.0.
    #[must_use]
    pub fn host(&self) -> Option<&'a str> {
        let authority = self.parts.line.authority;
        if !authority.is_empty() {
            return Some(authority.part_of(self.start));
        }
        self.parts.framing_fields.host().map(|host| host.text_of(self.head))
    }

    /// Returns the minor version: 1 for HTTP/1.1, 0 for HTTP/1.0.
    #[inline]
    #[must_use]
    pub fn minor_version(&self) -> u8 {
        self.parts.line.minor
    }

    /// Returns the values of all Origin headers. If there are none, which is usual, no line is
    /// searched.
    pub fn origins(&self) -> impl Iterator<Item = &'a [u8]> {
        let lines = if self.parts.framing_fields.has_origin {
            self.lines()
        } else {
            HeaderLines::default()
        };
        lines.all_bytes("Origin")
    }

    /// Returns whether the version is HTTP/1.1.
    #[inline]
    #[must_use]
    pub fn is_http11(&self) -> bool {
        self.parts.line.minor > 0
    }

    /// Returns all header lines, unparsed.
    #[inline]
    #[must_use]
    pub fn lines(&self) -> HeaderLines<'a> {
        HeaderLines::new(self.parts.lines.of(self.head))
    }

    /// Returns the value of the first header called `name`, case-insensitively. Also `None` if it
    /// is not UTF-8: see [`header_bytes`](Self::header_bytes).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.lines().first(name)
    }

    /// Returns the value of the first header called `name`, which need not be UTF-8.
    #[must_use]
    pub fn header_bytes(&self, name: &str) -> Option<&'a [u8]> {
        self.lines().all_bytes(name).next()
    }

    /// Returns all headers in the order received.
    pub fn headers(&self) -> impl Iterator<Item = Header<'a>> + use<'a> {
        self.lines().iter()
    }

    /// Returns the values of all headers called `name` that are UTF-8, in the order received.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.lines().all(name)
    }

    /// Returns whether the client keeps the connection open after this request.
    /// [RFC 9112 section 9.3](https://www.rfc-editor.org/rfc/rfc9112#section-9.3).
    #[inline]
    #[must_use]
    pub fn keep_alive(&self) -> bool {
        self.parts.framing_fields.keeps_alive(self.parts.line.minor)
    }

    /// Returns whether the Connection header contains `upgrade`, in a version that has upgrades.
    /// [RFC 9110 section 7.8](https://www.rfc-editor.org/rfc/rfc9110#section-7.8).
    #[inline]
    #[must_use]
    pub fn wants_upgrade(&self) -> bool {
        self.parts.framing_fields.says_upgrade && self.is_http11()
    }

    /// Returns whether the client asks for an upgrade to WebSocket. An upgrade to another protocol,
    /// such as `h2c`, must be ignored by servers without that protocol ([RFC 9110 section
    /// 7.8](https://www.rfc-editor.org/rfc/rfc9110#section-7.8)).
    #[must_use]
    pub fn wants_websocket(&self) -> bool {
        self.wants_upgrade() && self.lines().lists("Upgrade", "websocket")
    }

    /// Returns whether the client waits for `100 Continue` before it sends the body.
    /// [RFC 9110 section 10.1.1](https://www.rfc-editor.org/rfc/rfc9110#section-10.1.1): not in
    /// HTTP/1.0, and not without a body.
    #[inline]
    #[must_use]
    pub fn expects_continue(&self) -> bool {
        self.parts.framing_fields.expects_continue && self.is_http11() && self.has_body()
    }

    /// Returns the framing of the body: never [`BodyLength::UntilClose`].
    #[inline]
    #[must_use]
    pub fn body_length(&self) -> BodyLength {
        self.parts.body
    }

    /// Returns whether a body follows; a chunked one may still be empty.
    #[inline]
    #[must_use]
    pub fn has_body(&self) -> bool {
        self.parts.body != BodyLength::Known(0)
    }

    /// Returns the whole head as sent, including its empty line.
    #[inline]
    #[must_use]
    pub fn raw(&self) -> &'a [u8] {
        self.head
    }
}

/// Returns the text up to the end of the target: printable ASCII.
#[inline]
fn start_of<'a>(head: &'a [u8], line: &RequestLine) -> &'a str {
    str::from_utf8(line.target.up_to_end(head)).unwrap_or_default()
}

/// A copy of a head, for a request whose body is still arriving: the lent bytes are not valid for
/// that long.
///
/// Keep one and [`save`](Self::save) into it again to reuse its memory.
#[derive(Debug, Default)]
pub struct SavedRequest {
    bytes: Vec<u8>,
    parts: Option<Parts>,
}

impl SavedRequest {
    /// Creates an empty copy.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), parts: None }
    }

    /// Copies the head: one `memcpy`, nothing is parsed again.
    pub fn save(&mut self, request: &Request<'_>) {
        self.bytes.clear();
        self.bytes.extend_from_slice(request.head);
        self.parts = Some(request.parts);
    }

    /// Returns the saved head, if there is one.
    #[must_use]
    pub fn request(&self) -> Option<Request<'_>> {
        let head = &self.bytes[..];
        self.parts.map(|parts| Request { head, start: start_of(head, &parts.line), parts })
    }

    /// Removes the head and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.parts = None;
    }
}
