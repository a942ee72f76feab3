//! The client side of the handshake,
//! [RFC 6455 section 4.1](https://www.rfc-editor.org/rfc/rfc6455#section-4.1).

use std::io::Write;
use std::{error, fmt};

use super::fields::{has_element, only_value};
use super::{Headers, Key, Unsendable, VERSION, is_token, list};
use crate::ws::deflate;

/// Fields that the handshake writes itself, or that would change the framing of the request.
const RESERVED: [&str; 9] = [
    "Host",
    "Upgrade",
    "Connection",
    "Sec-WebSocket-Key",
    "Sec-WebSocket-Version",
    "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Extensions",
    "Content-Length",
    "Transfer-Encoding",
];

/// Appends the request of a handshake.
///
/// It is a GET of `target` (path and query) from `host` (with a port if it is not the scheme's
/// default), offering `subprotocols` in order of preference, with the `extra` fields last.
///
/// # Errors
/// An argument is not valid in a request. In this case nothing is appended.
pub fn encode_request(
    host: &str,
    target: &str,
    key: &Key,
    subprotocols: &[&str],
    extra: &[(&str, &str)],
    out: &mut Vec<u8>,
) -> Result<(), Unsendable> {
    encode_request_with(host, target, key, subprotocols, None, extra, out)
}

/// Appends the request of a handshake with an offer of permessage-deflate, see
/// [`Policy::offer`](crate::ws::deflate::Policy::offer); otherwise like [`encode_request`].
///
/// # Errors
/// As for [`encode_request`].
pub fn encode_request_with(
    host: &str,
    target: &str,
    key: &Key,
    subprotocols: &[&str],
    deflate: Option<&deflate::Parameters>,
    extra: &[(&str, &str)],
    out: &mut Vec<u8>,
) -> Result<(), Unsendable> {
    let visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    if host.is_empty() || !visible(host) || host.contains(['/', '?', '#', '@', ',']) {
        return Err(Unsendable::Host);
    }
    if !target.starts_with('/') || !visible(target) || target.contains('#') {
        return Err(Unsendable::Target);
    }
    for (index, name) in subprotocols.iter().enumerate() {
        if !is_token(name) {
            return Err(Unsendable::Subprotocol);
        }
        if subprotocols[..index].contains(name) {
            return Err(Unsendable::RepeatedSubprotocol);
        }
    }
    for (name, value) in extra {
        if !is_token(name) || RESERVED.iter().any(|ours| ours.eq_ignore_ascii_case(name)) {
            return Err(Unsendable::FieldName);
        }
        if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
            return Err(Unsendable::FieldValue);
        }
    }
    let mut add = |parts: &[&str]| parts.iter().for_each(|part| out.extend(part.as_bytes()));
    add(&["GET ", target, " HTTP/1.1\r\nHost: ", host]);
    add(&["\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: ", key.as_str()]);
    add(&["\r\nSec-WebSocket-Version: ", VERSION, "\r\n"]);
    for (index, name) in subprotocols.iter().enumerate() {
        add(&[if index == 0 { "Sec-WebSocket-Protocol: " } else { ", " }, name]);
    }
    if !subprotocols.is_empty() {
        add(&["\r\n"]);
    }
    if let Some(offer) = deflate {
        // Writing to a vector cannot fail.
        let _ = write!(out, "Sec-WebSocket-Extensions: {offer}\r\n");
    }
    let mut add = |parts: &[&str]| parts.iter().for_each(|part| out.extend(part.as_bytes()));
    for (name, value) in extra {
        add(&[name, ": ", value, "\r\n"]);
    }
    add(&["\r\n"]);
    Ok(())
}

/// The reason why a response does not open a WebSocket. The connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadResponse {
    /// The status is not 101 but this one: a redirection, an authentication request, or a server at
    /// its limit, for example.
    Status(u16),
    /// `Upgrade` is not `websocket`.
    Upgrade,
    /// `Connection` does not list `Upgrade`.
    Connection,
    /// `Sec-WebSocket-Accept` is missing, repeated, or does not answer our key.
    Accept,
    /// An extension that was not asked for.
    Extension,
    /// A subprotocol that was not asked for, or several.
    Subprotocol,
    /// The answer to our offer of permessage-deflate is invalid.
    Deflate(deflate::BadAnswer),
}

impl fmt::Display for BadResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Status(status) => {
                return write!(f, "the server answered {status} instead of 101");
            }
            Self::Upgrade => "the 101 response has no Upgrade: websocket",
            Self::Connection => "the 101 response has no Connection: Upgrade",
            Self::Accept => "the response's Sec-WebSocket-Accept does not answer our key",
            Self::Extension => "the server uses an extension that was not asked for",
            Self::Subprotocol => "the server chose a subprotocol that was not asked for",
            Self::Deflate(answer) => return answer.fmt(f),
        })
    }
}

impl error::Error for BadResponse {}

/// Checks a response by [RFC 6455 section 4.1](https://www.rfc-editor.org/rfc/rfc6455#section-4.1)
/// and returns the subprotocol that the server chose.
///
/// `asked` must be what [`encode_request`] was given.
///
/// # Errors
/// The first rule that the server violated.
pub fn check_response<'a>(
    status: u16,
    headers: &(impl Headers + ?Sized),
    key: &Key,
    asked: &[&'a str],
) -> Result<Option<&'a str>, BadResponse> {
    check_response_with(status, headers, key, asked, None).map(|opened| opened.subprotocol)
}

/// The negotiated properties of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// The server's choice.
    pub subprotocol: Option<&'a str>,
    /// The compression of both ends; `None` if there is none.
    pub deflate: Option<deflate::Agreed>,
}

/// Checks a response to a request that offered permessage-deflate with this policy; otherwise like
/// [`check_response`].
///
/// # Errors
/// The first rule that the server violated.
pub fn check_response_with<'a>(
    status: u16,
    headers: &(impl Headers + ?Sized),
    key: &Key,
    asked: &[&'a str],
    deflate: Option<&deflate::Policy>,
) -> Result<Opened<'a>, BadResponse> {
    if status != 101 {
        return Err(BadResponse::Status(status));
    }
    if only_value(headers, "Upgrade").is_none_or(|name| !name.eq_ignore_ascii_case("websocket")) {
        return Err(BadResponse::Upgrade);
    }
    if !has_element(headers, "Connection", "upgrade") {
        return Err(BadResponse::Connection);
    }
    if only_value(headers, "Sec-WebSocket-Accept").map(str::as_bytes) != Some(&key.accept()[..]) {
        return Err(BadResponse::Accept);
    }
    let deflate = match deflate {
        Some(policy) => policy.check_answer(headers).map_err(BadResponse::Deflate)?,
        None if list(headers.values("Sec-WebSocket-Extensions")).next().is_some() => {
            return Err(BadResponse::Extension);
        }
        None => None,
    };
    let subprotocol = match headers.values("Sec-WebSocket-Protocol").next() {
        None => None,
        Some(_) => Some(
            only_value(headers, "Sec-WebSocket-Protocol")
                .and_then(|chosen| asked.iter().copied().find(|name| *name == chosen))
                .ok_or(BadResponse::Subprotocol)?,
        ),
    };
    Ok(Opened { subprotocol, deflate })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 3] = [
        ("upgrade", "WebSocket"),
        ("connection", "keep-alive, upgrade"),
        ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
    ];

    fn key() -> Key {
        Key::new(*b"the sample nonce")
    }

    fn check(
        fields: &[(&str, &str)],
        asked: &[&'static str],
    ) -> Result<Option<&'static str>, BadResponse> {
        check_response(101, fields, &key(), asked)
    }

    fn without(
        name: &str,
        fields: &[(&'static str, &'static str)],
    ) -> Result<Option<&'static str>, BadResponse> {
        let mut headers: Vec<_> = GOOD.into_iter().filter(|(field, _)| *field != name).collect();
        headers.extend(fields);
        check(&headers, &["chat", "mqtt"])
    }

    #[test]
    fn rfc6455_4_1_request() {
        let mut out = Vec::new();
        let extra = [("Origin", "http://example.com")];
        encode_request("[::1]:80", "/chat?a=b", &key(), &["chat", "mqtt"], &extra, &mut out)
            .unwrap();
        assert_eq!(
            str::from_utf8(&out).unwrap(),
            "GET /chat?a=b HTTP/1.1\r\nHost: [::1]:80\r\nUpgrade: websocket\r\n\
                Connection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Protocol: chat, mqtt\r\nOrigin: http://example.com\r\n\r\n"
        );
    }

    #[test]
    fn request_splitting_is_refused() {
        let mut out = Vec::new();
        let mut refused = |host, target, offers: &[&str], extra: &[(&str, &str)]| {
            encode_request(host, target, &key(), offers, extra, &mut out).unwrap_err()
        };
        for host in ["", "a b", "a\r\nb: c", "a/b", "u@h"] {
            assert_eq!(refused(host, "/", &[], &[]), Unsendable::Host);
        }
        for target in ["", "chat", "/a b", "/a\r\nb: c", "/#top", "/ä"] {
            assert_eq!(refused("h", target, &[], &[]), Unsendable::Target);
        }
        assert_eq!(refused("h", "/", &["a b"], &[]), Unsendable::Subprotocol);
        assert_eq!(refused("h", "/", &["a", "a"], &[]), Unsendable::RepeatedSubprotocol);
        for name in ["", "a b", "a:", "host", "SEC-WEBSOCKET-KEY", "Content-Length"] {
            assert_eq!(refused("h", "/", &[], &[(name, "x")]), Unsendable::FieldName);
        }
        for value in ["a\r\nb: c", "a\nb", "a\0"] {
            assert_eq!(refused("h", "/", &[], &[("Cookie", value)]), Unsendable::FieldValue);
        }
        assert!(out.is_empty());
    }

    #[test]
    fn rfc6455_4_1_a_good_response_is_accepted() {
        assert_eq!(check(&GOOD, &[]), Ok(None));
        assert_eq!(check(&GOOD, &["chat"]), Ok(None), "the server may choose none");
        assert_eq!(without("", &[("Sec-WebSocket-Protocol", "mqtt")]), Ok(Some("mqtt")));
    }

    #[test]
    fn rfc6455_4_1_status() {
        for status in [200, 301, 401, 426, 503] {
            let answer = check_response(status, &GOOD[..], &key(), &[]);
            assert_eq!(answer, Err(BadResponse::Status(status)));
        }
    }

    #[test]
    fn rfc6455_4_1_upgrade_connection_and_accept() {
        assert_eq!(without("upgrade", &[]), Err(BadResponse::Upgrade));
        assert_eq!(without("upgrade", &[("upgrade", "h2c")]), Err(BadResponse::Upgrade));
        assert_eq!(without("connection", &[]), Err(BadResponse::Connection));
        assert_eq!(without("connection", &[("connection", "close")]), Err(BadResponse::Connection));
        const NAME: &str = "sec-websocket-accept";
        assert_eq!(without(NAME, &[]), Err(BadResponse::Accept));
        let other = [(NAME, "S3pPLMBiTxaQ9kYGzzhZRbK+xOo=")];
        assert_eq!(without(NAME, &other), Err(BadResponse::Accept));
        let two = [GOOD[2], GOOD[2]];
        assert_eq!(without(NAME, &two), Err(BadResponse::Accept));
    }

    #[test]
    fn rfc6455_4_1_unrequested_extensions_and_subprotocols_are_refused() {
        let deflate = [("Sec-WebSocket-Extensions", "permessage-deflate")];
        assert_eq!(without("", &deflate), Err(BadResponse::Extension));
        for chosen in ["soap", "Chat", "chat, mqtt", ""] {
            let chosen = [("Sec-WebSocket-Protocol", chosen)];
            assert_eq!(without("", &chosen), Err(BadResponse::Subprotocol));
        }
        let two = [("Sec-WebSocket-Protocol", "chat"), ("Sec-WebSocket-Protocol", "mqtt")];
        assert_eq!(without("", &two), Err(BadResponse::Subprotocol));
    }
}
