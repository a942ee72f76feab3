//! A response's head, parsed lazily.

use super::fields::FramingFields;
use super::head::HeadScan;
use super::span::Span;
use super::target::StatusLine;
use super::{BodyLength, Error, Header, HeaderLines};

/// The head of a valid response. It borrows the received bytes.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    head: &'a [u8],
    line: StatusLine,
    framing_fields: FramingFields,
    lines: Span,
    body: BodyLength,
}

impl<'a> Response<'a> {
    /// Determines the content, which depends on the request: RFC 9112 section 6.3.
    pub(crate) fn new(
        head: &'a [u8],
        scan: &HeadScan<StatusLine>,
        answers_head: bool,
    ) -> Result<Self, Error> {
        let line = scan.start_line;
        let framing = scan.framing_fields.framing(line.minor)?;
        let bodiless = answers_head || matches!(line.status, 100..=199 | 204 | 304);
        let body =
            if bodiless { BodyLength::Known(0) } else { framing.unwrap_or(BodyLength::UntilClose) };
        Ok(Self { head, line, framing_fields: scan.framing_fields, lines: scan.lines(head), body })
    }

    /// Returns the status code: 100 to 999.
    #[inline]
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.line.status
    }

    /// Returns the reason phrase; empty if it is not UTF-8. It has no meaning
    /// ([RFC 9112 section 4](https://www.rfc-editor.org/rfc/rfc9112#section-4)).
    #[must_use]
    pub fn reason(&self) -> &'a str {
        self.line.reason.text_of(self.head)
    }

    /// Returns whether another head for the same request follows: 1xx except 101.
    #[inline]
    #[must_use]
    pub const fn is_interim(&self) -> bool {
        matches!(self.line.status, 100 | 102..=199)
    }

    /// Returns whether the version is HTTP/1.1.
    #[inline]
    #[must_use]
    pub const fn is_http11(&self) -> bool {
        self.line.minor > 0
    }

    /// Returns all header lines, unparsed.
    #[inline]
    #[must_use]
    pub fn lines(&self) -> HeaderLines<'a> {
        HeaderLines::new(self.lines.of(self.head))
    }

    /// Returns the value of the first header called `name`, case-insensitively; also `None` if it
    /// is not UTF-8.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.lines().first(name)
    }

    /// Returns all headers in the order received.
    pub fn headers(&self) -> impl Iterator<Item = Header<'a>> + use<'a> {
        self.lines().iter()
    }

    /// Returns the values of all headers called `name` that are UTF-8, in the order received.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.lines().all(name)
    }

    /// Returns whether the connection can carry another request after this response.
    #[inline]
    #[must_use]
    pub fn keep_alive(&self) -> bool {
        self.framing_fields.keeps_alive(self.line.minor) && self.body != BodyLength::UntilClose
    }

    /// Returns whether the Connection header contains `upgrade`.
    #[inline]
    #[must_use]
    pub const fn says_upgrade(&self) -> bool {
        self.framing_fields.says_upgrade
    }

    /// Returns the framing of the body; `Known(0)` for a response that has no body regardless of
    /// its headers.
    #[inline]
    #[must_use]
    pub const fn body_length(&self) -> BodyLength {
        self.body
    }
}
