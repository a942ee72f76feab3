//! A request's head, read lazily.

use super::fields::Facts;
use super::head::{HeadScan, Span};
use super::target::RequestLine;
use super::{BodyLength, Error, Header, HeaderLines};
use crate::ws::handshake::Headers;

/// Which of the four forms a request target has. RFC 9112 section 3.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetForm {
    /// `/path?query`: the usual one.
    #[default]
    Origin,
    /// `http://host/path?query`: as to a proxy; its host overrides the Host header.
    Absolute,
    /// `host:port`, of CONNECT.
    Authority,
    /// `*`, of an OPTIONS that asks about the server as a whole.
    Asterisk,
}

/// The head of a request that broke no rule.
///
/// It borrows the bytes it came in. Nothing beyond framing was parsed: a header is looked for when it
/// is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    head: &'a [u8],
    parts: Parts,
}

/// Everything known about a head, as offsets: with it a copy of the bytes is a request again.
#[derive(Clone, Copy, Debug)]
struct Parts {
    line: RequestLine,
    facts: Facts,
    lines: Span,
    body: BodyLength,
}

impl<'a> Request<'a> {
    /// The checks that need the whole head.
    #[inline]
    pub(crate) fn new(head: &'a [u8], scan: &HeadScan<RequestLine>) -> Result<Self, Error> {
        let (line, facts) = (&scan.start_line, &scan.facts);
        if facts.host().is_none() && line.minor > 0 {
            return Err(Error::MissingHost);
        }
        let body = facts.framing(line.minor)?.unwrap_or(BodyLength::Known(0));
        // RFC 9110 section 10.1.1 lets a server ignore what it does not know; the client that asked for
        // it is told instead. HTTP/1.0 had no expectations: there a server must ignore them.
        if facts.expects_unknown && line.minor > 0 {
            return Err(Error::UnknownExpectation);
        }
        Ok(Self {
            head,
            parts: Parts { line: *line, facts: *facts, lines: scan.lines(head), body },
        })
    }

    /// The method as sent; methods are case-sensitive.
    #[inline]
    #[must_use]
    pub fn method(&self) -> &'a str {
        match self.parts.line.method.of(self.head) {
            // Known to be text without another look.
            b"GET" => "GET",
            b"POST" => "POST",
            other => str::from_utf8(other).unwrap_or_default(),
        }
    }

    /// The request target as sent: printable ASCII.
    #[inline]
    #[must_use]
    pub fn target(&self) -> &'a str {
        self.parts.line.target.text_of(self.head)
    }

    /// Which form the target has.
    #[inline]
    #[must_use]
    pub fn target_form(&self) -> TargetForm {
        self.parts.line.form
    }

    /// The path, still percent-encoded: starts with `/`, but for `*` of the asterisk form (or of an
    /// absolute OPTIONS without a path) and the empty path of CONNECT.
    #[inline]
    #[must_use]
    pub fn path(&self) -> &'a str {
        let line = &self.parts.line;
        if !line.path.is_empty() {
            return line.path.text_of(self.head);
        }
        match line.form {
            TargetForm::Asterisk => "*",
            // RFC 9112 section 3.2.4: so an OPTIONS for the whole server passes through a proxy.
            TargetForm::Absolute if !line.has_query && self.method() == "OPTIONS" => "*",
            TargetForm::Absolute => "/",
            TargetForm::Origin | TargetForm::Authority => "",
        }
    }

    /// What follows the `?`, still percent-encoded; `None` without a `?`.
    #[inline]
    #[must_use]
    pub fn query(&self) -> Option<&'a str> {
        self.parts.line.query().map(|query| query.text_of(self.head))
    }

    /// The authority the request is for: of the target if it names one (RFC 9112 section 3.2.2),
    /// else the Host header. May be empty, and is `None` only in HTTP/1.0.
    #[must_use]
    pub fn host(&self) -> Option<&'a str> {
        let authority = self.parts.line.authority;
        if !authority.is_empty() {
            return Some(authority.text_of(self.head));
        }
        self.parts.facts.host().map(|host| host.text_of(self.head))
    }

    /// 1 for HTTP/1.1, 0 for HTTP/1.0.
    #[inline]
    #[must_use]
    pub fn minor_version(&self) -> u8 {
        self.parts.line.minor
    }

    /// The values of all Origin headers; mostly there are none, and no line is looked at then.
    pub fn origins(&self) -> impl Iterator<Item = &'a [u8]> {
        let lines = if self.parts.facts.has_origin { self.lines() } else { HeaderLines::default() };
        lines.all_bytes("Origin")
    }

    /// HTTP/1.1.
    #[inline]
    #[must_use]
    pub fn is_http11(&self) -> bool {
        self.parts.line.minor > 0
    }

    /// All header lines, unparsed.
    #[inline]
    #[must_use]
    pub fn lines(&self) -> HeaderLines<'a> {
        HeaderLines::new(self.parts.lines.of(self.head))
    }

    /// The value of the first header called `name`, without regard to case. `None` also if it is not
    /// UTF-8: see [`header_bytes`](Self::header_bytes).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.lines().first(name)
    }

    /// As [`header`](Self::header), whatever bytes the value has.
    #[must_use]
    pub fn header_bytes(&self, name: &str) -> Option<&'a [u8]> {
        self.lines().all_bytes(name).next()
    }

    /// All headers in the order they came.
    pub fn headers(&self) -> impl Iterator<Item = Header<'a>> + use<'a> {
        self.lines().iter()
    }

    /// The values of all headers called `name` that are UTF-8, in the order they came.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.lines().all(name)
    }

    /// The client lets the connection go on after this request. RFC 9112 section 9.3.
    #[inline]
    #[must_use]
    pub fn keep_alive(&self) -> bool {
        self.parts.facts.keeps_alive(self.parts.line.minor)
    }

    /// The Connection header names `upgrade`, in a version that has upgrades. RFC 9110 section 7.8.
    #[inline]
    #[must_use]
    pub fn wants_upgrade(&self) -> bool {
        self.parts.facts.says_upgrade && self.is_http11()
    }

    /// The client waits for `100 Continue` before it sends the body. RFC 9110 section 10.1.1: not in
    /// HTTP/1.0, and not without a body.
    #[inline]
    #[must_use]
    pub fn expects_continue(&self) -> bool {
        self.parts.facts.expects_continue && self.is_http11() && self.has_body()
    }

    /// How the body is framed: never [`BodyLength::UntilClose`].
    #[inline]
    #[must_use]
    pub fn body_length(&self) -> BodyLength {
        self.parts.body
    }

    /// A body follows; it may still turn out empty if it is chunked.
    #[inline]
    #[must_use]
    pub fn has_body(&self) -> bool {
        self.parts.body != BodyLength::Known(0)
    }

    /// The whole head as sent, through its empty line.
    #[inline]
    #[must_use]
    pub fn raw(&self) -> &'a [u8] {
        self.head
    }
}

/// A copy of a head, for a request whose body is still coming: the lent bytes are gone by then.
///
/// Keep one and [`save`](Self::save) into it again: its memory is reused.
#[derive(Debug, Default)]
pub struct SavedRequest {
    bytes: Vec<u8>,
    parts: Option<Parts>,
}

impl SavedRequest {
    /// Holds nothing yet.
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

    /// The saved head, if there is one.
    #[must_use]
    pub fn request(&self) -> Option<Request<'_>> {
        self.parts.map(|parts| Request { head: &self.bytes, parts })
    }

    /// Forgets the head and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.parts = None;
    }
}

impl Headers for Request<'_> {
    fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.lines().all(name)
    }

    fn each<'a>(&'a self, see: impl FnMut(&'a [u8], &'a [u8])) {
        self.lines().each(see);
    }
}
