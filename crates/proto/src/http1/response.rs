//! A response's head, read lazily.

use super::fields::Facts;
use super::head::{HeadScan, Span};
use super::target::StatusLine;
use super::{BodyLength, Error, Header, HeaderLines};
use crate::ws::handshake::Headers;

/// The head of a response that broke no rule. It borrows the bytes it came in.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    head: &'a [u8],
    line: StatusLine,
    facts: Facts,
    lines: Span,
    body: BodyLength,
}

impl<'a> Response<'a> {
    /// RFC 9112 section 6.3: what a response's content is depends on what was asked.
    pub(crate) fn new(
        head: &'a [u8],
        scan: &HeadScan<StatusLine>,
        answers_head: bool,
    ) -> Result<Self, Error> {
        let line = scan.start_line;
        let framing = scan.facts.framing(line.minor)?;
        let bodiless = answers_head || matches!(line.status, 100..=199 | 204 | 304);
        let body =
            if bodiless { BodyLength::Known(0) } else { framing.unwrap_or(BodyLength::UntilClose) };
        Ok(Self { head, line, facts: scan.facts, lines: scan.lines(head), body })
    }

    /// The status code: 100 to 999.
    #[inline]
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.line.status
    }

    /// The reason phrase; empty if it is not UTF-8. Means nothing (RFC 9112 section 4).
    #[must_use]
    pub fn reason(&self) -> &'a str {
        self.line.reason.text_of(self.head)
    }

    /// 1xx but 101: another head for the same request follows.
    #[inline]
    #[must_use]
    pub const fn is_interim(&self) -> bool {
        matches!(self.line.status, 100 | 102..=199)
    }

    /// HTTP/1.1.
    #[inline]
    #[must_use]
    pub const fn is_http11(&self) -> bool {
        self.line.minor > 0
    }

    /// All header lines, unparsed.
    #[inline]
    #[must_use]
    pub fn lines(&self) -> HeaderLines<'a> {
        HeaderLines::new(self.lines.of(self.head))
    }

    /// The value of the first header called `name`, without regard to case; `None` also if it is not
    /// UTF-8.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.lines().first(name)
    }

    /// All headers in the order they came.
    pub fn headers(&self) -> impl Iterator<Item = Header<'a>> + use<'a> {
        self.lines().iter()
    }

    /// The values of all headers called `name` that are UTF-8, in the order they came.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.lines().all(name)
    }

    /// The connection can carry another request after this response.
    #[inline]
    #[must_use]
    pub fn keep_alive(&self) -> bool {
        self.facts.keeps_alive(self.line.minor) && self.body != BodyLength::UntilClose
    }

    /// The Connection header names `upgrade`.
    #[inline]
    #[must_use]
    pub const fn says_upgrade(&self) -> bool {
        self.facts.says_upgrade
    }

    /// How the body is framed; `Known(0)` for an answer that has none whatever its headers say.
    #[inline]
    #[must_use]
    pub const fn body_length(&self) -> BodyLength {
        self.body
    }
}

impl Headers for Response<'_> {
    fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.lines().all(name)
    }

    fn each<'a>(&'a self, see: impl FnMut(&'a [u8], &'a [u8])) {
        self.lines().each(see);
    }
}
