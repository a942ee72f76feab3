//! Values that services and connections exchange: messages, ends of sessions, events of other
//! threads, and reasons for refusals.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use throng_proto::ws::CloseCode;

/// A whole WebSocket message, borrowed from the memory it was received in. There are no other kinds
/// (RFC 6455 section 5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Valid UTF-8.
    Text(&'a str),
    /// Any bytes.
    Binary(&'a [u8]),
}

impl<'a> Message<'a> {
    /// Returns the payload of either kind.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }
}

impl<'a> From<&'a str> for Message<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Message<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a [u8]> for Message<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Binary(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Message<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Binary(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Message<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Binary(bytes)
    }
}

/// The end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Close<'a> {
    /// The close code (RFC 6455 section 7.4): the peer's if it closed, ours if we did, 1005 if a
    /// Close frame carried none, 1006 if the connection ended without a closing handshake.
    pub code: CloseCode,
    /// The reason that came with the code; empty for most.
    pub reason: &'a str,
}

impl Close<'static> {
    /// The end of a connection without a closing handshake.
    pub const ABNORMAL: Self = Self { code: CloseCode::ABNORMAL, reason: "" };
}

/// Value that another thread sends to the service of one connection with
/// [`Remote::post`](crate::Remote::post).
pub struct UserEvent(pub Box<dyn Any + Send>);

impl fmt::Debug for UserEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserEvent")
    }
}

/// Value that another thread sends to the service of each connection that a filter selects, with
/// [`Remote::notify_all`](crate::Remote::notify_all).
#[derive(Clone)]
pub struct Notice {
    /// The value.
    pub content: Arc<dyn Any + Send + Sync>,
    /// Its memory, which counts in the queue of each shard.
    pub bytes: usize,
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notice")
    }
}

/// Reason for refusing a connection before it has sent anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The limit on connections of the process, or on pending handshakes, is reached.
    Full,
    /// The limit on connections of this address is reached.
    FullForAddress,
    /// The server is shutting down.
    Draining,
}
