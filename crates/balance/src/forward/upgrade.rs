//! Validation of a backend's 101.

use std::fmt;

use throng_proto::http1::Response;
use throng_proto::ws::handshake::Key;

/// The reason why a backend's 101 opens no tunnel. The client is answered 502, and the backend's
/// connection is closed: the protocol of the following bytes is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadUpgrade {
    /// The request did not ask for an upgrade.
    Unasked,
    /// It is in HTTP/1.0, which has no upgrades.
    Version,
    /// `Upgrade` is not `websocket` alone.
    Upgrade,
    /// `Connection` does not list `Upgrade`.
    Connection,
    /// `Sec-WebSocket-Accept` is missing, repeated, or does not answer the client's key: the sender
    /// did not understand the handshake.
    Accept,
}

impl fmt::Display for BadUpgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unasked => "the backend answered 101 to a request that asked for no upgrade",
            Self::Version => "the backend answered 101 in HTTP/1.0",
            Self::Upgrade => "the backend's 101 has no Upgrade: websocket",
            Self::Connection => "the backend's 101 has no Connection: Upgrade",
            Self::Accept => "the backend's Sec-WebSocket-Accept does not answer the client's key",
        })
    }
}

impl std::error::Error for BadUpgrade {}

/// Checks a 101 against the request's key: [`RequestKind::key`](super::RequestKind::key).
/// Extensions and subprotocols are for the client to check, RFC 6455 section 4.1: it knows its
/// offer.
///
/// # Errors
///
/// The backend's fault: the first rule that it broke.
pub fn check_upgrade(response: &Response<'_>, key: Option<&Key>) -> Result<(), BadUpgrade> {
    let key = key.ok_or(BadUpgrade::Unasked)?;
    if !response.is_http11() {
        return Err(BadUpgrade::Version);
    }
    let mut upgrades = response.lines().list_members("Upgrade");
    match (upgrades.next(), upgrades.next()) {
        (Some(name), None) if name.eq_ignore_ascii_case(b"websocket") => {}
        _ => return Err(BadUpgrade::Upgrade),
    }
    if !response.says_upgrade() {
        return Err(BadUpgrade::Connection);
    }
    let mut accepts = response.lines().all_bytes("Sec-WebSocket-Accept");
    match (accepts.next(), accepts.next()) {
        (Some(accept), None) if accept == key.accept() => Ok(()),
        _ => Err(BadUpgrade::Accept),
    }
}
