//! The server side of the handshake,
//! [RFC 6455 section 4.2](https://www.rfc-editor.org/rfc/rfc6455#section-4.2).

use std::io::Write;
use std::{error, fmt};

use super::fields::{Once, is_named, lists};
use super::{Headers, Key, Unsendable, VERSION, is_token, list};
use crate::http1::{HeaderName, HeaderValue};
use crate::ws::deflate;

/// The reason why a request is not an acceptable handshake; respond with [`Refusal::status`] and
/// [`Refusal::headers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The method is not GET: 405.
    Method,
    /// The request is HTTP/1.0 or older: 400.
    HttpVersion,
    /// No `Host`, or several: 400.
    Host,
    /// No `Upgrade: websocket`, an ordinary request to a WebSocket endpoint: 426.
    NotUpgrade,
    /// `Connection` does not list `Upgrade`: 400.
    Connection,
    /// `Sec-WebSocket-Version` is not 13: 426.
    Version,
    /// `Sec-WebSocket-Key` is missing, repeated, or not the base64 of 16 bytes: 400.
    Key,
    /// `Sec-WebSocket-Extensions` is not a valid list of extensions: 400. Found only by
    /// [`Policy::accept`](crate::ws::deflate::Policy::accept).
    Extensions,
}

impl From<deflate::MalformedOffer> for Refusal {
    fn from(_: deflate::MalformedOffer) -> Self {
        Self::Extensions
    }
}

impl Refusal {
    /// Returns the status of the response.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Method => 405,
            Self::NotUpgrade | Self::Version => 426,
            Self::HttpVersion | Self::Host | Self::Connection | Self::Key | Self::Extensions => 400,
        }
    }

    /// Returns the fields that the response must have, as names and values.
    #[must_use]
    pub const fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Method => &[("Allow", "GET")],
            // RFC 9110 section 15.5.22: a 426 must name the protocol to upgrade to.
            Self::NotUpgrade | Self::Version => &[
                ("Upgrade", "websocket"),
                ("Connection", "Upgrade"),
                ("Sec-WebSocket-Version", VERSION),
            ],
            _ => &[],
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Method => "a WebSocket handshake must be a GET",
            Self::HttpVersion => "a WebSocket handshake needs HTTP/1.1",
            Self::Host => "exactly one Host is needed",
            Self::NotUpgrade => "this is a WebSocket endpoint: Upgrade: websocket is needed",
            Self::Connection => "Connection: Upgrade is needed",
            Self::Version => "Sec-WebSocket-Version must be 13",
            Self::Key => "exactly one Sec-WebSocket-Key, the base64 of 16 bytes, is needed",
            Self::Extensions => "Sec-WebSocket-Extensions must be a list of extensions",
        })
    }
}

impl error::Error for Refusal {}

/// Checks a request by
/// [RFC 6455 section 4.2.1](https://www.rfc-editor.org/rfc/rfc6455#section-4.2.1), and returns its
/// key.
///
/// `http11` is true if the request is HTTP/1.1 or a later 1.x. The origin is not checked: admission
/// is a matter of policy.
///
/// # Errors
/// The first rule that the client violated.
pub fn check_request(
    method: &str,
    http11: bool,
    headers: &(impl Headers + ?Sized),
) -> Result<Key, Refusal> {
    if method != "GET" {
        return Err(Refusal::Method);
    }
    if !http11 {
        return Err(Refusal::HttpVersion);
    }
    // One pass over the fields: looking each name up costs more than the rest of a handshake.
    let (mut host, mut version, mut key) = (Once::Missing, Once::Missing, Once::Missing);
    let (mut upgrade, mut connection) = (false, false);
    headers.for_each(|name, value| match name.len() {
        4 if is_named(name, "Host") => host.note(value),
        7 if is_named(name, "Upgrade") => upgrade |= lists(value, "websocket"),
        10 if is_named(name, "Connection") => connection |= lists(value, "Upgrade"),
        17 if is_named(name, "Sec-WebSocket-Key") => key.note(value),
        21 if is_named(name, "Sec-WebSocket-Version") => version.note(value),
        _ => {}
    });
    if host.value().is_none() {
        return Err(Refusal::Host);
    }
    if !upgrade {
        return Err(Refusal::NotUpgrade);
    }
    if !connection {
        return Err(Refusal::Connection);
    }
    if version.value() != Some(VERSION.as_bytes()) {
        return Err(Refusal::Version);
    }
    key.value().and_then(Key::parse).ok_or(Refusal::Key)
}

/// Returns the first subprotocol in the client's order of preference that is in `supported`
/// ([RFC 6455 section 4.2.2](https://www.rfc-editor.org/rfc/rfc6455#section-4.2.2), point 5).
///
/// The result is our string, not the client's; names are compared case-sensitively.
#[must_use]
pub fn choose_subprotocol<'s>(
    headers: &(impl Headers + ?Sized),
    supported: &[&'s str],
) -> Option<&'s str> {
    if supported.is_empty() {
        return None;
    }
    list(headers.values("Sec-WebSocket-Protocol"))
        .find_map(|offered| supported.iter().copied().find(|ours| *ours == offered))
}

/// Appends the 101 response that accepts a handshake
/// ([RFC 6455 section 4.2.2](https://www.rfc-editor.org/rfc/rfc6455#section-4.2.2)); `accept` is
/// [`Key::accept`].
///
/// # Errors
/// The subprotocol is not a token. Nothing was appended.
pub fn encode_response(
    accept: &[u8; 28],
    subprotocol: Option<&str>,
    out: &mut Vec<u8>,
) -> Result<(), Unsendable> {
    encode_response_with(accept, subprotocol, None, out)
}

/// Appends the 101 response with the answer to an offer of permessage-deflate, see
/// [`Policy::accept`](crate::ws::deflate::Policy::accept); otherwise like [`encode_response`].
///
/// # Errors
/// As for [`encode_response`].
pub fn encode_response_with(
    accept: &[u8; 28],
    subprotocol: Option<&str>,
    deflate: Option<&deflate::Parameters>,
    out: &mut Vec<u8>,
) -> Result<(), Unsendable> {
    encode_response_fields(accept, subprotocol, deflate, &[], out)
}

/// Appends the 101 response with further header fields; otherwise like [`encode_response_with`].
///
/// # Errors
/// As for [`encode_response`].
pub fn encode_response_fields(
    accept: &[u8; 28],
    subprotocol: Option<&str>,
    deflate: Option<&deflate::Parameters>,
    fields: &[(HeaderName<'_>, HeaderValue<'_>)],
    out: &mut Vec<u8>,
) -> Result<(), Unsendable> {
    if subprotocol.is_some_and(|name| !is_token(name)) {
        return Err(Unsendable::Subprotocol);
    }
    out.extend_from_slice(
        b"HTTP/1.1 101 Switching Protocols\r\n\
          Upgrade: websocket\r\n\
          Connection: Upgrade\r\n\
          Sec-WebSocket-Accept: ",
    );
    out.extend_from_slice(accept);
    if let Some(name) = subprotocol {
        out.extend_from_slice(b"\r\nSec-WebSocket-Protocol: ");
        out.extend_from_slice(name.as_bytes());
    }
    if let Some(answer) = deflate {
        // Writing to a vector cannot fail.
        let _ = write!(out, "\r\nSec-WebSocket-Extensions: {answer}");
    }
    for (name, value) in fields {
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_str().as_bytes());
    }
    out.extend_from_slice(b"\r\n\r\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 5] = [
        ("Host", "server.example.com"),
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Version", "13"),
    ];

    /// Checks the valid request with one field replaced by these.
    fn with(name: &str, fields: &[(&'static str, &'static str)]) -> Result<Key, Refusal> {
        let mut headers: Vec<_> = GOOD.into_iter().filter(|(field, _)| *field != name).collect();
        assert_eq!(headers.len(), GOOD.len() - 1, "{name} is there to be replaced");
        headers.extend(fields);
        check_request("GET", true, &headers[..])
    }

    #[test]
    fn rfc6455_4_2_1_a_good_request_is_accepted() {
        let key = check_request("GET", true, &GOOD[..]).unwrap();
        assert_eq!(key.as_str(), "dGhlIHNhbXBsZSBub25jZQ==");
    }

    #[test]
    fn rfc6455_4_2_1_method_and_http_version() {
        for method in ["POST", "HEAD", "CONNECT", "get", ""] {
            let refusal = check_request(method, true, &GOOD[..]).unwrap_err();
            assert_eq!((refusal, refusal.status()), (Refusal::Method, 405));
            assert_eq!(refusal.headers(), [("Allow", "GET")]);
        }
        let refusal = check_request("GET", false, &GOOD[..]).unwrap_err();
        assert_eq!((refusal, refusal.status()), (Refusal::HttpVersion, 400));
    }

    #[test]
    fn rfc6455_4_2_1_host() {
        assert_eq!(with("Host", &[]), Err(Refusal::Host));
        assert_eq!(with("Host", &[("Host", "a"), ("host", "b")]), Err(Refusal::Host));
    }

    #[test]
    fn rfc6455_4_2_1_upgrade_in_any_case_and_among_others() {
        assert_eq!(with("Upgrade", &[]), Err(Refusal::NotUpgrade));
        assert_eq!(with("Upgrade", &[("Upgrade", "h2c")]), Err(Refusal::NotUpgrade));
        assert!(with("Upgrade", &[("UPGRADE", "WebSocket")]).is_ok());
        assert!(with("Upgrade", &[("upgrade", "h2c, websocket")]).is_ok());
        assert_eq!(Refusal::NotUpgrade.status(), 426);
    }

    #[test]
    fn rfc6455_4_2_1_connection_token_in_a_list() {
        assert_eq!(with("Connection", &[]), Err(Refusal::Connection));
        assert_eq!(with("Connection", &[("Connection", "upgraded")]), Err(Refusal::Connection));
        assert!(with("Connection", &[("connection", "keep-alive, Upgrade")]).is_ok());
        assert!(with("Connection", &[("CONNECTION", "keep-alive,upgrade")]).is_ok());
        let two = [("Connection", "keep-alive"), ("Connection", "UPGRADE")];
        assert!(with("Connection", &two).is_ok());
    }

    #[test]
    fn rfc6455_4_4_a_wrong_version_is_answered_with_the_right_one() {
        const NAME: &str = "Sec-WebSocket-Version";
        for bad in [&[][..], &[(NAME, "8")], &[(NAME, "8, 13")], &[(NAME, "13"), (NAME, "13")]] {
            let refusal = with(NAME, bad).unwrap_err();
            assert_eq!((refusal, refusal.status()), (Refusal::Version, 426));
            assert!(refusal.headers().contains(&(NAME, "13")));
            assert!(refusal.headers().contains(&("Upgrade", "websocket")));
        }
    }

    #[test]
    fn rfc6455_4_2_1_key_exactly_once() {
        const NAME: &str = "Sec-WebSocket-Key";
        const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
        for bad in [&[][..], &[(NAME, "short")], &[(NAME, "")], &[(NAME, KEY), (NAME, KEY)]] {
            let refusal = with(NAME, bad).unwrap_err();
            assert_eq!((refusal, refusal.status()), (Refusal::Key, 400));
        }
    }

    #[test]
    fn rfc6455_4_2_2_subprotocol_by_the_clients_preference() {
        const NAME: &str = "Sec-WebSocket-Protocol";
        let offers = [(NAME, "mqtt, chat"), (NAME, "superchat")];
        assert_eq!(choose_subprotocol(&offers[..], &["superchat", "chat"]), Some("chat"));
        assert_eq!(choose_subprotocol(&offers[..], &["Chat"]), None);
        assert_eq!(choose_subprotocol(&offers[..], &[]), None);
        assert_eq!(choose_subprotocol(&GOOD[..], &["chat"]), None);
    }

    #[test]
    fn rfc6455_4_2_2_response() {
        let accept = check_request("GET", true, &GOOD[..]).unwrap().accept();
        let mut out = Vec::new();
        encode_response(&accept, Some("chat"), &mut out).unwrap();
        assert_eq!(
            str::from_utf8(&out).unwrap(),
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
             Sec-WebSocket-Protocol: chat\r\n\r\n"
        );
    }

    #[test]
    fn response_splitting_is_refused() {
        let mut out = Vec::new();
        for bad in ["chat\r\nSet-Cookie: a=b", "a b", "", "a,b", "é"] {
            let answer = encode_response(&[b'a'; 28], Some(bad), &mut out);
            assert_eq!(answer, Err(Unsendable::Subprotocol));
            assert!(out.is_empty());
        }
    }
}
