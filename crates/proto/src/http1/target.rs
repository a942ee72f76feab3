//! The start lines, request line and status line:
//! [RFC 9112 section 3](https://www.rfc-editor.org/rfc/rfc9112#section-3) and
//! [RFC 9112 section 4](https://www.rfc-editor.org/rfc/rfc9112#section-4).

use super::error::Error;
use super::head::StartLine;
use super::host::is_host;
use super::span::Span;
use super::{block, scan};

/// The form of a request target.
/// [RFC 9112 section 3.2](https://www.rfc-editor.org/rfc/rfc9112#section-3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetForm {
    /// Origin form, `/path?query`: the usual one.
    #[default]
    Origin,
    /// Absolute form, `http://host/path?query`, as sent to a proxy; its host overrides the Host
    /// header.
    Absolute,
    /// Authority form, `host:port`, of CONNECT.
    Authority,
    /// Asterisk form, `*`, of an OPTIONS request for the server as a whole.
    Asterisk,
}

/// A request line, as offsets into the head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLine {
    pub(crate) method: Span,
    pub(crate) target: Span,
    /// The authority of absolute-form and authority-form; empty otherwise.
    pub(crate) authority: Span,
    /// Empty where the form has none: see `Request::path`.
    pub(crate) path: Span,
    /// Whether there is a query: everything after the path and its `?`.
    pub(crate) has_query: bool,
    pub(crate) form: TargetForm,
    pub(crate) minor: u8,
}

impl StartLine for RequestLine {
    const NONE: Self = Self {
        method: Span::new(0, 0),
        target: Span::new(0, 0),
        authority: Span::new(0, 0),
        path: Span::new(0, 0),
        has_query: false,
        form: TargetForm::Origin,
        minor: 0,
    };
    const TOO_LONG: Error = Error::TargetTooLong;
    const MALFORMED: Error = Error::BadRequestLine;

    #[inline]
    fn parse(line: &[u8], offset: usize) -> Result<Self, Error> {
        let method_end = match line {
            [b'G', b'E', b'T', b' ', ..] => 3,
            _ => block::token_length(line),
        };
        let (method, after_method) = line.split_at(method_end);
        let [b' ', after_space @ ..] = after_method else { return Err(Error::BadRequestLine) };
        let (target, after_target) = after_space.split_at(block::target_length(after_space));
        let version = match after_target {
            [b' ', version @ ..] if !target.is_empty() && !method.is_empty() => version,
            [] | [b' ', ..] => return Err(Error::BadRequestLine),
            _ => return Err(Error::BadTarget),
        };
        let start = offset + method_end + 1;
        let mut request = Self {
            method: Span::new(offset, offset + method_end),
            target: Span::new(start, start + target.len()),
            minor: parse_version(version)?,
            ..Self::NONE
        };
        if target[0] == b'/' && method != b"CONNECT" {
            request.split_path(target, 0, start);
        } else {
            request.split_target(method, target, start)?;
        }
        Ok(request)
    }
}

impl RequestLine {
    /// Parses one of the other three forms, RFC 9112 section 3.2, and locates its parts.
    #[cold]
    fn split_target(&mut self, method: &[u8], target: &[u8], offset: usize) -> Result<(), Error> {
        let length = target.len();
        if method == b"CONNECT" {
            // RFC 9112 section 3.2.3: a host and a port, both required.
            let colon = target.iter().rposition(|byte| *byte == b':').ok_or(Error::BadTarget)?;
            let port = &target[colon + 1..];
            let has_port = !port.is_empty() && port.iter().all(u8::is_ascii_digit);
            if colon == 0 || !has_port || !is_host(target) {
                return Err(Error::BadTarget);
            }
            self.form = TargetForm::Authority;
            self.authority = Span::new(offset, offset + length);
            return Ok(());
        }
        if target == b"*" {
            self.form = TargetForm::Asterisk;
            // RFC 9112 section 3.2.4: only a server-wide OPTIONS.
            return if method == b"OPTIONS" { Ok(()) } else { Err(Error::BadTarget) };
        }
        // RFC 9112 section 3.2.2: a server must accept it, proxy or not.
        self.form = TargetForm::Absolute;
        let authority_start = scheme_length(target).ok_or(Error::BadTarget)?;
        let rest = &target[authority_start..];
        let authority_length =
            rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
        let path_start = authority_start + authority_length;
        let authority = &target[authority_start..path_start];
        // RFC 9110 section 4.2.1: an empty host is invalid; RFC 9110 section 4.2.4: so is user
        // information.
        if authority.is_empty() || authority[0] == b':' || !is_host(authority) {
            return Err(Error::BadTarget);
        }
        self.authority = Span::new(offset + authority_start, offset + path_start);
        self.split_path(target, path_start, offset);
        Ok(())
    }

    /// Records path and query, which start at `start` in the target, which is at `offset` in the
    /// head.
    #[inline]
    fn split_path(&mut self, target: &[u8], start: usize, offset: usize) {
        let mark = block::find_byte(&target[start..], b'?');
        let end = mark.map_or(target.len(), |mark| start + mark);
        self.path = Span::new(offset + start, offset + end);
        self.has_query = mark.is_some();
    }

    /// Returns the text after the `?`, if there is one.
    #[inline]
    pub(crate) const fn query(&self) -> Option<Span> {
        if self.has_query { Some(self.path.after_until(1, self.target)) } else { None }
    }
}

/// Returns the length of `http://` or `https://`.
fn scheme_length(target: &[u8]) -> Option<usize> {
    [&b"http://"[..], b"https://", b"ws://", b"wss://"].into_iter().find_map(|scheme| {
        let start = target.get(..scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(scheme.len())
    })
}

/// Parses the minor version: 0, or 1 for every later one, as RFC 9110 section 2.5 requires.
#[inline]
pub(crate) fn parse_version(version: &[u8]) -> Result<u8, Error> {
    // Compared as one word: nearly every request has this version.
    match <[u8; 8]>::try_from(version) {
        Ok(word) if u64::from_ne_bytes(word) == u64::from_ne_bytes(*b"HTTP/1.1") => Ok(1),
        _ => parse_other_version(version),
    }
}

#[cold]
fn parse_other_version(version: &[u8]) -> Result<u8, Error> {
    match version {
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            match (major, minor) {
                (b'1', b'0') => Ok(0),
                (b'1', _) => Ok(1),
                _ => Err(Error::UnsupportedVersion),
            }
        }
        _ => Err(Error::BadVersion),
    }
}

/// A status line, as offsets into the head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusLine {
    pub(crate) status: u16,
    pub(crate) reason: Span,
    pub(crate) minor: u8,
}

impl StartLine for StatusLine {
    const NONE: Self = Self { status: 0, reason: Span::new(0, 0), minor: 0 };
    const TOO_LONG: Error = Error::HeadTooLarge;
    const MALFORMED: Error = Error::BadStatusLine;

    fn parse(line: &[u8], offset: usize) -> Result<Self, Error> {
        let (version, rest) = line.split_at_checked(8).ok_or(Error::BadStatusLine)?;
        let minor = parse_version(version)?;
        // The space before an empty reason is often left out; it has no effect.
        let (digits, reason_start) = match rest {
            [b' ', a, b, c] => ([*a, *b, *c], line.len()),
            [b' ', a, b, c, b' ', ..] => ([*a, *b, *c], version.len() + 5),
            _ => return Err(Error::BadStatusLine),
        };
        if !digits.iter().all(u8::is_ascii_digit) || !scan::is_field_value(&line[reason_start..]) {
            return Err(Error::BadStatusLine);
        }
        let status = digits.iter().fold(0, |value, digit| value * 10 + u16::from(digit - b'0'));
        if status < 100 {
            return Err(Error::BadStatusLine);
        }
        Ok(Self { status, reason: Span::new(offset + reason_start, offset + line.len()), minor })
    }
}
