//! The head of an answer for the client.

use throng_http::STRICT_TRANSPORT_SECURITY as HSTS;
use throng_proto::http1::{BodyLength, Response, ResponseHead};

use super::edits::AnswerEdits;
use super::names::{self, Kind};
use super::{CHUNKED, push_length, push_line};

/// The properties of the client that gets an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client<'a> {
    /// Whether its request was HTTP/1.1, else HTTP/1.0.
    pub http11: bool,
    /// Whether the connection continues after the answer.
    pub keep_alive: bool,
    /// Whether its request was HEAD: the answer has no body, for any header.
    pub is_head: bool,
    /// The value of Strict-Transport-Security, unless the answer already has one.
    pub hsts: Option<&'a str>,
    /// The date, as [`DateCache`](throng_http::DateCache) writes it, for an answer without one (RFC
    /// 9110 section 6.6.1).
    pub date: &'a str,
}

impl<'a> Client<'a> {
    /// Returns the properties before a head was understood: the answer is the last one.
    #[must_use]
    pub const fn unknown(date: &'a str) -> Self {
        Self { http11: true, keep_alive: false, is_head: false, hsts: None, date }
    }
}

/// The framing of the body, after the head was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    Empty,
    /// A body of this many bytes, as they are.
    Length(u64),
    /// A body in chunks: [`write_chunk`](super::write_chunk) and
    /// [`write_last_chunk`](super::write_last_chunk).
    Chunked,
    /// A body sent unchanged, ended by closing the connection, even if the connection was to
    /// continue.
    UntilClose,
}

/// Appends the head of an answer for the client and returns the framing of its body.
///
/// * Fields of one hop are dropped, as from requests; fields of the client's hop are added.
/// * The framing is the balancer's. A length stays; a body in chunks or until close becomes chunks
///   for HTTP/1.1 and ends with the connection for HTTP/1.0. In an answer to HEAD and in a 304 a
///   length stays, though no body follows; in a 204 and an interim one it is dropped (RFC 9110
///   section 8.6).
/// * `Connection: close` if the connection does not continue, and `keep-alive` if it does and the
///   client speaks HTTP/1.0.
/// * An interim answer (1xx except 101) passes to HTTP/1.1 only: for HTTP/1.0 nothing is appended
///   (RFC 9110 section 15.2).
/// * A 101 that [`check_upgrade`](super::check_upgrade) accepted also upgrades the client; its
///   other fields, such as extensions, concern only the two ends. A 426 that asks for a WebSocket
///   keeps its Upgrade (RFC 9110 section 15.5.22).
///
/// `set_cookies` are the values of Set-Cookie to add, see [`set_cookie`](super::set_cookie). They
/// are not added to interim answers, and neither are `hsts` and a date.
pub fn write_response<'c>(
    out: &mut Vec<u8>,
    response: &Response<'_>,
    to: &Client<'_>,
    set_cookies: impl IntoIterator<Item = &'c str>,
) -> Framing {
    write_response_with(out, response, to, set_cookies, &AnswerEdits::default())
}

/// Does the same with changes, except of interim answers.
pub(crate) fn write_response_with<'c>(
    out: &mut Vec<u8>,
    response: &Response<'_>,
    to: &Client<'_>,
    set_cookies: impl IntoIterator<Item = &'c str>,
    edits: &AnswerEdits<'_>,
) -> Framing {
    let is_interim = response.is_interim();
    if is_interim && !to.http11 {
        return Framing::Empty;
    }
    let lines = response.lines();
    let framing = framing(response, to);
    let _ = ResponseHead::start(out, response.status(), response.reason());
    out.reserve(lines.raw().len() + 128);
    let names_fields = names::field_options(lines).next().is_some();
    let keeps_length = framing == Framing::Empty && (to.is_head || response.status() == 304);
    let (mut has_date, mut has_own_hsts) = (false, edits.removes(HSTS.as_bytes()));
    for (name, value) in lines.fields() {
        let passes = match names::kind(name) {
            Kind::Other => !(names_fields && names::is_named(lines, name)),
            Kind::ContentLength => keeps_length && !is_interim && !has_no_length(response.status()),
            // A client without chunks gets no trailers.
            Kind::Trailer => framing == Framing::Chunked,
            Kind::Hop | Kind::Te | Kind::Upgrade => false,
            Kind::EndToEnd
            | Kind::Host
            | Kind::Expect
            | Kind::For
            | Kind::Forwarded
            | Kind::Proto
            | Kind::ForwardedHost
            | Kind::Origin
            | Kind::Loop => true,
        };
        has_date |= name.eq_ignore_ascii_case(b"Date");
        // One field only (RFC 6797 section 7.1).
        has_own_hsts |= name.eq_ignore_ascii_case(HSTS.as_bytes());
        if passes && (is_interim || !edits.removes(name)) {
            push_line(out, (name, value));
        }
    }
    match framing {
        Framing::Length(length) => push_length(out, length),
        Framing::Chunked => out.extend_from_slice(CHUNKED),
        Framing::Empty | Framing::UntilClose => {}
    }
    if !is_interim {
        if !has_date {
            push_field(out, "Date", to.date);
        }
        let keep_alive = to.keep_alive && framing != Framing::UntilClose;
        push_connection(out, response, to, keep_alive);
        if let Some(value) = to.hsts.filter(|_| !has_own_hsts) {
            push_field(out, HSTS, value);
        }
        for cookie in set_cookies {
            push_field(out, "Set-Cookie", cookie);
        }
        edits.write_lines(out);
    }
    out.extend_from_slice(b"\r\n");
    framing
}

/// Returns whether an answer without a body, to HEAD or by its status, announces a body: a backend
/// that is wrong about that may send it, and it would be taken for the next answer.
pub fn names_a_body_that_is_not_due(response: &Response<'_>) -> bool {
    let has_none = response.body_length() == BodyLength::Known(0);
    let names_length = response.header("Content-Length").is_some_and(|length| length != "0");
    has_none && (names_length || response.header("Transfer-Encoding").is_some())
}

fn push_field(out: &mut Vec<u8>, name: &str, value: &str) {
    for part in [name, ": ", value, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

fn framing(response: &Response<'_>, to: &Client<'_>) -> Framing {
    let is_bodiless = to.is_head || matches!(response.status(), 100..=199 | 204 | 304);
    match response.body_length() {
        _ if is_bodiless => Framing::Empty,
        BodyLength::Known(length) => Framing::Length(length),
        BodyLength::Chunked | BodyLength::UntilClose if to.http11 => Framing::Chunked,
        BodyLength::Chunked | BodyLength::UntilClose => Framing::UntilClose,
    }
}

const fn has_no_length(status: u16) -> bool {
    matches!(status, 100..=199 | 204)
}

/// Appends Connection and Upgrade of the client's hop.
fn push_connection(out: &mut Vec<u8>, response: &Response<'_>, to: &Client<'_>, keep_alive: bool) {
    let line: &[u8] = match response.status() {
        101 => b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
        426 if to.http11 && response.lines().lists("Upgrade", "websocket") => {
            if keep_alive {
                b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
            } else {
                b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n"
            }
        }
        _ if !keep_alive => b"Connection: close\r\n",
        _ if !to.http11 => b"Connection: keep-alive\r\n",
        _ => b"",
    };
    out.extend_from_slice(line);
}
