//! Requests that a balancer refuses before it contacts any backend.

use std::fmt;

use throng_proto::http1::{Request, TargetForm};
use throng_proto::ws::handshake::Key;

use super::names;

/// The limit of options of a Connection header that may name fields; real ones name none or one,
/// and each costs a scan of every line.
pub const MAX_CONNECTION_OPTIONS: usize = 16;

/// The kind of a request that may pass.
#[derive(Clone, Debug)]
pub enum RequestKind {
    /// A plain request. An upgrade to something other than a WebSocket is not forwarded, so it also
    /// counts as plain.
    Http,
    /// A WebSocket handshake: a 101 must answer this key, see
    /// [`check_upgrade`](super::check_upgrade).
    WebSocket(Key),
}

impl RequestKind {
    /// Returns the key of a WebSocket handshake.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Http => None,
            Self::WebSocket(key) => Some(key),
        }
    }
}

/// The reason why a request is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// CONNECT, or a target of its form: a tunnel to any host is the task of a forward proxy.
    Connect,
    /// TRACE: its answer shows the client the headers that proxies add, and the headers that
    /// browsers hide from scripts (cookies). nginx also refuses it.
    Trace,
    /// `OPTIONS *`: it concerns one server, and there are several here.
    Asterisk,
    /// A WebSocket handshake that is not a GET. RFC 6455 section 4.1.
    UpgradeMethod,
    /// A WebSocket handshake with a body: two servers could disagree on which protocol its bytes
    /// belong to.
    UpgradeBody,
    /// A WebSocket handshake without one well-formed Sec-WebSocket-Key: its 101 could not be
    /// checked.
    UpgradeKey,
    /// Connection names more than [`MAX_CONNECTION_OPTIONS`] fields.
    ConnectionOptions,
    /// The host is empty: a URL of HTTP has one (RFC 9110 section 4.2.1), and a request for an
    /// invalid one is answered with 400 (RFC 9112 section 3.2). nginx also refuses it. HTTP/1.0
    /// without Host is another matter: see [`write_request`](super::write_request).
    EmptyHost,
}

impl Refusal {
    /// Returns the status of the answer: 400 or 501.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Connect | Self::Trace | Self::Asterisk => 501,
            Self::UpgradeMethod
            | Self::UpgradeBody
            | Self::UpgradeKey
            | Self::ConnectionOptions
            | Self::EmptyHost => 400,
        }
    }

    /// Returns one sentence for the client.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Connect => "CONNECT is not served here: this is not a forward proxy",
            Self::Trace => "TRACE is not passed on",
            Self::Asterisk => {
                "OPTIONS * asks about one server, and there are several here: name a path"
            }
            Self::UpgradeMethod => "a WebSocket handshake must be a GET",
            Self::UpgradeBody => "a WebSocket handshake must not have a body",
            Self::UpgradeKey => {
                "a WebSocket handshake needs one Sec-WebSocket-Key of 16 bytes in base64"
            }
            Self::ConnectionOptions => "Connection names too many headers",
            Self::EmptyHost => "Host is empty",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for Refusal {}

/// Decides whether a request that the decoder accepted may be forwarded, and returns its kind.
///
/// The backend must check the version of the WebSocket protocol: its 426 is forwarded. Max-Forwards
/// matters only to methods that are refused.
///
/// # Errors
///
/// The client's fault, or something that is not served here. The connection may continue (see
/// [`write_error`](super::write_error)) if the body is read or there is none.
pub fn validate(request: &Request<'_>) -> Result<RequestKind, Refusal> {
    match request.target_form() {
        TargetForm::Origin => {}
        // RFC 9112 section 3.2.4: an absolute OPTIONS without a path is passed on as `*`.
        TargetForm::Absolute if request.path() != "*" => {}
        TargetForm::Absolute | TargetForm::Asterisk => return Err(Refusal::Asterisk),
        TargetForm::Authority => return Err(Refusal::Connect),
    }
    if request.host().is_some_and(|host| host.is_empty() || host.starts_with(':')) {
        return Err(Refusal::EmptyHost);
    }
    match request.method() {
        "CONNECT" => return Err(Refusal::Connect),
        "TRACE" => return Err(Refusal::Trace),
        _ => {}
    }
    if names::field_options(request.lines()).nth(MAX_CONNECTION_OPTIONS).is_some() {
        return Err(Refusal::ConnectionOptions);
    }
    if !request.wants_websocket() {
        return Ok(RequestKind::Http);
    }
    if request.method() != "GET" {
        return Err(Refusal::UpgradeMethod);
    }
    if request.has_body() {
        return Err(Refusal::UpgradeBody);
    }
    let mut keys = request.lines().all_bytes("Sec-WebSocket-Key");
    match (keys.next().and_then(Key::parse), keys.next()) {
        (Some(key), None) => Ok(RequestKind::WebSocket(key)),
        _ => Err(Refusal::UpgradeKey),
    }
}
