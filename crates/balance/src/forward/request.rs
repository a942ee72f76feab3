//! The head of a request for the backend.

use std::io::Write;
use std::net::IpAddr;

use crate::unix_peer::known;
use base64::Engine;
use throng_http::{forwarded, x_forwarded_for};
use throng_proto::http1::encode::push_decimal;
use throng_proto::http1::{BodyLength, HeaderLines, Request, TargetForm};
use throng_proto::ws::handshake::is_token;

use super::edits::{ForwardedHost, PREFIX, RequestEdits};
use super::names::{self, Kind};
use super::sticky::came_by_https;
use super::{CHUNKED, push_length, push_line};

/// The properties of this hop that are added to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop<'a> {
    /// The sender: the connection's peer, or the address in its PROXY header.
    pub peer: IpAddr,
    /// Whether the peer is a trusted proxy: its claims about the client are kept, and added to.
    /// Otherwise they are dropped.
    pub trusted: bool,
    /// The scheme of the client's connection.
    pub scheme: Scheme,
    /// The certificate that the client has presented, in DER.
    pub certificate: Option<&'a [u8]>,
    /// Whether the connection to the backend is closed after the request.
    pub close: bool,
    /// Fields that are dropped if the peer is not trusted: see
    /// [`drop_headers`](crate::Settings::drop_headers).
    pub dropped: &'a [String],
    /// The balancer's own id, which is added to CDN-Loop.
    pub loop_id: &'a str,
}

/// The scheme of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain.
    Http,
    /// Under TLS.
    Https,
}

impl Scheme {
    /// Returns the scheme as in a URL. A WebSocket handshake is HTTP, so it is never `ws`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// Appends the head of a request that [`validate`](super::validate) accepted, for the backend; a
/// chunked body must be chunked again.
///
/// * The request line is HTTP/1.1 with the target in origin-form. Host is the decoder's choice (an
///   absolute target's host wins, RFC 9112 section 3.2.2). An HTTP/1.0 request without a host gets
///   the backend's, which is not known yet: the position of its line is returned.
/// * Fields of one hop are dropped: Connection and the fields it names (but nothing the backend
///   relies on: Host, Content-*, Cookie, Authorization, Sec-*, X-Forwarded-*, ...), Keep-Alive,
///   Proxy-*, TE (except `trailers`), Transfer-Encoding, Upgrade. Only fields of the next hop are
///   added: the framing by [`Request::body_length`], and the upgrade of a WebSocket.
/// * A name that would have a meaning here with `-` for `_` is dropped: `X_Forwarded_For` and
///   `Content_Length` are aliases in the environment of a CGI program. Other names with `_` pass,
///   as in HAProxy; nginx drops them all.
/// * Expect: 100-continue passes (RFC 9110 section 10.1.1); the backend's 100 is an interim answer
///   like any other. It is dropped from an HTTP/1.0 client, and without a body, since it has no
///   meaning there.
/// * X-Forwarded-For, -Proto, -Host and Forwarded are added, see [`Hop::trusted`].
///   X-Forwarded-Proto and -Host of the first trusted proxy stay.
/// * Client-Cert is added if the client has presented a certificate (RFC 9440); a field in the
///   request, which any client could send, is dropped unless a trusted proxy has written it.
/// * CDN-Loop passes, with the balancer's own id on a separate line (RFC 8586): see [`has_looped`].
/// * Via is not written: nginx, for one, stops compressing for requests with it.
pub fn write_request(out: &mut Vec<u8>, request: &Request<'_>, hop: &Hop<'_>) -> Option<usize> {
    write_request_with(out, request, hop, None)
}

/// Does the same with changes.
pub(crate) fn write_request_with(
    out: &mut Vec<u8>,
    request: &Request<'_>,
    hop: &Hop<'_>,
    edits: Option<&RequestEdits<'_>>,
) -> Option<usize> {
    let lines = request.lines();
    // One allocation for nearly every request: the added fields are shorter than this.
    out.reserve(request.raw().len() + 256);
    let host_at = push_start(out, request, edits);
    let names_fields = names::field_options(lines).next().is_some();
    let mut seen = SeenHeaders::default();
    for (name, value) in lines.fields() {
        let passes = match names::kind(name) {
            Kind::Loop => !name.contains(&b'_'),
            _ if !hop.trusted && names::is_one_of(name, hop.dropped) => false,
            Kind::Other => !(names_fields && names::is_named(lines, name)),
            _ if name.contains(&b'_') => false,
            Kind::EndToEnd => true,
            Kind::Expect => {
                let first = !std::mem::replace(&mut seen.expect, true);
                first && request.expects_continue()
            }
            Kind::Trailer => request.body_length() == BodyLength::Chunked,
            Kind::ContentLength => {
                seen.length = true;
                false
            }
            Kind::Proto => {
                seen.proto = true;
                hop.trusted
            }
            Kind::ForwardedHost => {
                seen.host = true;
                hop.trusted
            }
            Kind::Origin => hop.trusted,
            Kind::Te => {
                seen.te = true;
                false
            }
            Kind::Host | Kind::Upgrade | Kind::Hop | Kind::For | Kind::Forwarded => false,
        };
        if passes && edits.is_none_or(|edits| !edits.drops(name)) {
            push_line(out, (name, value));
        }
    }
    push_connection(out, request, hop, seen);
    match request.body_length() {
        BodyLength::Known(0) if !seen.length => {}
        BodyLength::Known(length) => push_length(out, length),
        BodyLength::Chunked | BodyLength::UntilClose => out.extend_from_slice(CHUNKED),
    }
    push_origin(out, request, hop, (seen, edits));
    push_parts(out, &["CDN-Loop: ", hop.loop_id, "\r\n"]);
    let has_own = edits.is_some_and(|edits| edits.removes(b"Client-Cert"));
    if let Some(certificate) = hop.certificate.filter(|_| !hop.trusted && !has_own) {
        push_certificate(out, certificate);
    }
    if let Some(edits) = edits {
        if let Some(prefix) = edits.prefix.filter(|_| !edits.removes(PREFIX.as_bytes())) {
            // A proxy before this one has taken off an earlier part.
            let before = request.header(PREFIX).filter(|_| hop.trusted).unwrap_or_default();
            push_parts(out, &[PREFIX, ": ", before.trim_end_matches('/'), prefix, "\r\n"]);
        }
        (edits.lines)(out);
    }
    out.extend_from_slice(b"\r\n");
    host_at
}

/// Returns whether a request has been here before: CDN-Loop has this id, with parameters or without
/// (RFC 8586 section 2).
#[must_use]
pub fn has_looped(request: &Request<'_>, loop_id: &str) -> bool {
    request.lines().list_members("CDN-Loop").any(|member| {
        let id = member.split(|byte| *byte == b';').next().unwrap_or_default();
        id.trim_ascii().eq_ignore_ascii_case(loop_id.as_bytes())
    })
}

/// Appends the client's certificate (RFC 9440 section 2.1).
fn push_certificate(out: &mut Vec<u8>, certificate: &[u8]) {
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    out.extend_from_slice(b"Client-Cert: :");
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b":\r\n");
}

/// Headers seen in the request.
#[derive(Clone, Copy, Default)]
struct SeenHeaders {
    length: bool,
    te: bool,
    expect: bool,
    proto: bool,
    host: bool,
}

/// Appends the request line and Host; returns where Host is missing.
fn push_start(
    out: &mut Vec<u8>,
    request: &Request<'_>,
    edits: Option<&RequestEdits<'_>>,
) -> Option<usize> {
    out.extend_from_slice(request.method().as_bytes());
    out.push(b' ');
    if let Some(target) = edits.and_then(|edits| edits.target) {
        target(out);
    } else if request.target_form() == TargetForm::Origin {
        out.extend_from_slice(request.target().as_bytes());
    } else {
        out.extend_from_slice(request.path().as_bytes());
        if let Some(query) = request.query() {
            out.push(b'?');
            out.extend_from_slice(query.as_bytes());
        }
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let host = match edits.and_then(|edits| edits.host) {
        None => request.host(),
        Some(ForwardedHost::Backend) => None,
        Some(ForwardedHost::Fixed(host)) => Some(host),
    };
    let Some(host) = host else { return Some(out.len()) };
    push_parts(out, &["Host: ", host, "\r\n"]);
    None
}

/// Appends Connection and its fields, for the hop to the backend.
fn push_connection(out: &mut Vec<u8>, request: &Request<'_>, hop: &Hop<'_>, seen: SeenHeaders) {
    let upgrade = request.wants_websocket();
    // RFC 9110 section 10.1.4: `trailers` is an option about the path of the answer, which is
    // forwarded in chunks.
    let trailers = seen.te && request.is_http11() && request.lines().lists("TE", "trailers");
    let options = [("Upgrade", upgrade), ("TE", trailers), ("close", hop.close && !upgrade)];
    let mut lead = "Connection: ";
    for (option, _) in options.into_iter().filter(|(_, is_set)| *is_set) {
        out.extend_from_slice(lead.as_bytes());
        out.extend_from_slice(option.as_bytes());
        lead = ", ";
    }
    if lead == ", " {
        out.extend_from_slice(b"\r\n");
    }
    if upgrade {
        out.extend_from_slice(b"Upgrade: websocket\r\n");
    }
    if trailers {
        out.extend_from_slice(b"TE: trailers\r\n");
    }
}

/// Appends the origin of the request: X-Forwarded-* and Forwarded (RFC 7239). If a trusted proxy
/// has sent one of X-Forwarded-For and Forwarded, the other says the same, as in section 7.4: a
/// backend that found two different clients could trust neither.
fn push_origin(
    out: &mut Vec<u8>,
    request: &Request<'_>,
    hop: &Hop<'_>,
    (seen, edits): (SeenHeaders, Option<&RequestEdits<'_>>),
) {
    let has_own = |name: &str| edits.is_some_and(|edits| edits.removes(name.as_bytes()));
    let lines = request.lines();
    let is_listed = hop.trusted && x_forwarded_for(lines).next().is_some();
    let is_forwarded = hop.trusted && is_closed_list(lines) && forwarded(lines).next().is_some();
    let peer = known(hop.peer.to_canonical());
    // A proxy on a Unix socket has no address to append.
    let is_named = peer.is_some() || !is_listed && !is_forwarded;
    if !has_own("X-Forwarded-For") {
        push_forwarded_for(out, lines, (is_listed, is_forwarded), peer);
    }
    let host = request.host().filter(|host| !host.is_empty());
    if !(hop.trusted && seen.proto || has_own("X-Forwarded-Proto")) {
        let is_https = is_forwarded && came_by_https(request);
        let scheme = if is_https { Scheme::Https } else { hop.scheme };
        push_parts(out, &["X-Forwarded-Proto: ", scheme.as_str(), "\r\n"]);
    }
    if !(hop.trusted && seen.host || has_own("X-Forwarded-Host"))
        && let Some(host) = host
    {
        push_parts(out, &["X-Forwarded-Host: ", host, "\r\n"]);
    }
    if has_own("Forwarded") {
        return;
    }
    out.extend_from_slice(b"Forwarded: ");
    if is_forwarded {
        for value in lines.all_bytes("Forwarded").filter(|value| !value.is_empty()) {
            out.extend_from_slice(value);
            out.extend_from_slice(b", ");
        }
    } else if is_listed {
        let proto = (seen.proto && came_by_https(request)).then_some(";proto=https");
        for client in x_forwarded_for(lines) {
            push_node(out, client);
            push_parts(out, &[proto.unwrap_or_default(), ", "]);
        }
    }
    if !is_named {
        out.truncate(out.len() - b", ".len());
        out.extend_from_slice(b"\r\n");
        return;
    }
    push_node(out, peer);
    push_parts(out, &[";proto=", hop.scheme.as_str()]);
    if let Some(host) = host {
        // A valid host needs no backslash: see the decoder's grammar of it.
        let quote = if is_token(host) { "" } else { "\"" };
        push_parts(out, &[";host=", quote, host, quote]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends X-Forwarded-For with the list that a trusted proxy has sent, in one of the two fields.
fn push_forwarded_for(
    out: &mut Vec<u8>,
    lines: HeaderLines<'_>,
    (is_listed, is_forwarded): (bool, bool),
    peer: Option<IpAddr>,
) {
    out.extend_from_slice(b"X-Forwarded-For: ");
    if is_listed {
        for member in lines.list_members("X-Forwarded-For") {
            out.extend_from_slice(member);
            out.extend_from_slice(b", ");
        }
    } else if is_forwarded {
        for element in forwarded(lines) {
            match element.client {
                Some(client) => push_address(out, client),
                None => out.extend_from_slice(b"unknown"),
            }
            out.extend_from_slice(b", ");
        }
    }
    match peer {
        Some(peer) => push_address(out, peer),
        None if !is_listed && !is_forwarded => out.extend_from_slice(b"unknown"),
        None => out.truncate(out.len() - b", ".len()),
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends `for=` with an address. RFC 7239 section 6: an IPv6 address is in brackets, which only a
/// quoted string may have, and an address that is not known has the word for it.
fn push_node(out: &mut Vec<u8>, address: Option<IpAddr>) {
    let (before, after) = match address {
        None => ("for=unknown", ""),
        Some(IpAddr::V4(_)) => ("for=", ""),
        Some(IpAddr::V6(_)) => ("for=\"[", "]\""),
    };
    push_parts(out, &[before]);
    address.inspect(|address| push_address(out, *address));
    push_parts(out, &[after]);
}

/// Appends an address as text; the usual kind without the machinery of `fmt`.
fn push_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            for (index, octet) in address.octets().into_iter().enumerate() {
                if index > 0 {
                    out.push(b'.');
                }
                push_decimal(octet.into(), out);
            }
        }
        // Writing to a vector does not fail.
        IpAddr::V6(address) => drop(write!(out, "{address}")),
    }
}

/// Returns whether every quoted string in the Forwarded lines ends in its line. Otherwise it would
/// swallow the element that is appended here.
fn is_closed_list(lines: HeaderLines<'_>) -> bool {
    lines.all_bytes("Forwarded").all(|value| {
        let mut bytes = value.iter();
        let mut quoted = false;
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => quoted = !quoted,
                b'\\' if quoted => {
                    bytes.next();
                }
                _ => {}
            }
        }
        !quoted
    })
}

fn push_parts(out: &mut Vec<u8>, parts: &[&str]) {
    parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
}
