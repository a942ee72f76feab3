//! Errors of clients.

use std::time::Duration;
use std::{fmt, io};

use throng_proto::escape::Escaped;
use throng_proto::http1;
use throng_proto::url::InvalidUrl;
use throng_proto::ws::ProtocolError;
use throng_proto::ws::handshake::BadResponse;
use throng_proto::{Blame, SettingError};

use crate::close_frame::CloseFrame;

/// Bytes of a server's text that the text of an error shows.
const MAX_SHOWN: usize = 200;

/// The reason why a client could not connect, or why its session ended without a closing handshake.
///
/// [`ClientError::blame`] returns who must act on it, [`ClientError::is_temporary`] whether another
/// attempt can succeed. Its `Debug` text is its `Display` text.
#[non_exhaustive]
pub enum ClientError {
    /// The URL is not valid; the text shows the expected form.
    Url(InvalidUrl),
    /// A setting cannot work; the text names it, its value and the remedy.
    Setting(SettingError),
    /// The closure of [`ClientBuilder::headers_with`] failed. The failure is temporary, unless its
    /// kind is [`PermissionDenied`](io::ErrorKind::PermissionDenied).
    ///
    /// [`ClientBuilder::headers_with`]: crate::ClientBuilder::headers_with
    Headers(io::Error),
    /// The host has no address.
    Resolve {
        /// The host.
        host: String,
        /// The error of the system's resolver.
        source: io::Error,
    },
    /// No TCP connection could be made to the server, or to the proxy.
    Connect {
        /// The address tried last.
        address: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The proxy refused, or does not follow its protocol.
    Proxy(String),
    /// The TLS handshake failed, for example because of a certificate that is not trusted. In TLS
    /// 1.3 a server refuses its client's certificate only in place of a response to the upgrade
    /// request.
    Tls(io::Error),
    /// The server answered the upgrade request with another status than 101.
    Refused(Box<UpgradeRefused>),
    /// The server's answer to the upgrade request is not HTTP/1.1.
    Http(http1::Error),
    /// The server's 101 response is invalid.
    Handshake(BadResponse),
    /// The server broke a rule of RFC 6455 or RFC 7692, or exceeded a limit of this client. The
    /// client has sent a Close frame with the code.
    Protocol(ProtocolError),
    /// Something took longer than its setting allows.
    Timeout {
        /// The operation that was not done in time.
        during: DialStep,
        /// The time it had.
        limit: Duration,
    },
    /// The connection ended or failed without a closing handshake (code 1006). If the TLS session
    /// failed, the error contains the reason: an alert from the server, an invalid record, or an
    /// end of the stream without close_notify.
    Lost(io::Error),
    /// The session is closed: nothing can be sent. Contains the server's Close frame, or `None` if
    /// this client began the closing handshake.
    Closed(Option<CloseFrame>),
    /// The operating system has no random numbers for masking.
    Random(io::Error),
}

/// An operation that has a time limit, named by [`ClientError::Timeout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DialStep {
    /// Connecting, the TLS handshake, or the upgrade: [`ClientBuilder::connect_timeout`].
    ///
    /// [`ClientBuilder::connect_timeout`]: crate::ClientBuilder::connect_timeout
    Connecting,
    /// Waiting for a message; the client remains usable.
    Receiving,
    /// Sending: the server does not read. See [`ClientBuilder::write_timeout`].
    ///
    /// [`ClientBuilder::write_timeout`]: crate::ClientBuilder::write_timeout
    Sending,
    /// Waiting for an answer to a ping: [`ClientBuilder::heartbeat`].
    ///
    /// [`ClientBuilder::heartbeat`]: crate::ClientBuilder::heartbeat
    Heartbeat,
    /// Waiting for the server's Close frame: [`ClientBuilder::close_timeout`].
    ///
    /// [`ClientBuilder::close_timeout`]: crate::ClientBuilder::close_timeout
    Closing,
}

/// A server's answer that is not 101, such as a redirection, a 401 or a 503.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpgradeRefused {
    /// The status code, 200 to 999.
    pub status: u16,
    /// Names and values of the headers that are valid UTF-8, in the order received.
    pub headers: Vec<(String, String)>,
    /// The beginning of the body, at most 16 KiB.
    pub body: Vec<u8>,
}

impl UpgradeRefused {
    /// Returns whether a later attempt may succeed: the status is 408, 425, 429, or 500 and above.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self.status, 408 | 425 | 429 | 500..)
    }

    /// Returns the value of the first header called `name`, case-insensitively.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

impl ClientError {
    /// Returns the party that must act on this error.
    #[must_use]
    pub fn blame(&self) -> Blame {
        match self {
            Self::Url(_) | Self::Setting(_) | Self::Closed(None) => Blame::Configuration,
            Self::Headers(_) => Blame::Configuration,
            Self::Resolve { .. } | Self::Connect { .. } | Self::Lost(_) => Blame::Network,
            Self::Timeout { .. } => Blame::Network,
            Self::Proxy(_) | Self::Tls(_) | Self::Http(_) | Self::Handshake(_) => Blame::Peer,
            Self::Protocol(_) | Self::Closed(Some(_)) => Blame::Peer,
            // 4xx: the request was wrong, or its sender has no right to it.
            Self::Refused(refused) if (400..500).contains(&refused.status) => Blame::Configuration,
            Self::Refused(_) => Blame::Peer,
            Self::Random(_) => Blame::System,
        }
    }

    /// Returns whether a later attempt with the same settings may succeed: the network failed, the
    /// server was busy (408, 425, 429, 5xx), or it closed with a code that asks clients to
    /// reconnect: 1001, 1006, 1011 to 1014, and 1008 for a slow consumer of this server. For other
    /// codes, such as a program's own, read the Close frame in [`ClientError::Closed`].
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Resolve { .. } | Self::Connect { .. } | Self::Lost(_) => true,
            Self::Timeout { .. } | Self::Http(_) => true,
            Self::Refused(refused) => refused.is_temporary(),
            Self::Headers(error) => error.kind() != io::ErrorKind::PermissionDenied,
            Self::Closed(Some(close)) => close.asks_to_reconnect(),
            // A handshake that was interrupted, unlike a handshake that failed for a reason.
            Self::Tls(error) => error.kind() != io::ErrorKind::InvalidData,
            _ => false,
        }
    }

    /// The error of a `wss://` URL in a build without TLS.
    #[cfg(not(feature = "tls"))]
    pub(crate) fn without_tls() -> Self {
        let remedy =
            "a URL with wss:// needs the feature `tls` of the crate throng, or throng-client";
        Self::setting("url", remedy)
    }

    /// The error of a connection that failed before the response to the upgrade request came.
    pub(crate) fn before_response(source: io::Error) -> Self {
        #[cfg(feature = "tls")]
        if throng_tls::is_certificate_refused(&source) {
            return Self::Tls(source);
        }
        Self::Lost(source)
    }

    pub(crate) fn setting(name: &'static str, message: impl Into<String>) -> Self {
        Self::Setting(SettingError::new(name, message))
    }
}

impl fmt::Debug for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(error) => error.fmt(f),
            Self::Setting(error) => error.fmt(f),
            Self::Headers(source) => write!(f, "the headers of the request failed: {source}"),
            Self::Resolve { host, source } => write!(f, "cannot find the host {host}: {source}"),
            Self::Connect { address, source } => write!(f, "cannot connect to {address}: {source}"),
            Self::Proxy(what) => write!(f, "the proxy made no connection: {what}"),
            Self::Tls(source) => write!(f, "the TLS handshake failed: {source}"),
            Self::Refused(refused) => {
                write!(f, "the server answered {} instead of 101", refused.status)?;
                let body = String::from_utf8_lossy(&refused.body);
                match body.lines().next().map(str::trim).filter(|line| !line.is_empty()) {
                    Some(line) => {
                        let begin = &line[..line.floor_char_boundary(MAX_SHOWN)];
                        write!(f, ": {}", Escaped(begin))
                    }
                    None => Ok(()),
                }
            }
            Self::Http(error) => write!(f, "the server's answer is not HTTP/1.1: {error}"),
            Self::Handshake(error) => error.fmt(f),
            Self::Protocol(error) => write!(f, "the server broke the protocol: {error}"),
            Self::Timeout { during, limit } => {
                let what = match during {
                    DialStep::Connecting => "the connection was not open",
                    DialStep::Receiving => "no message came",
                    DialStep::Sending => "the server did not read",
                    DialStep::Heartbeat => "no sign of life came from the server",
                    DialStep::Closing => "the server did not answer the Close frame",
                };
                write!(f, "{what} within {limit:?}")
            }
            Self::Lost(source) => write!(f, "the connection ended without a Close frame: {source}"),
            Self::Closed(None) => f.write_str("this client has closed the session; connect again"),
            Self::Closed(Some(CloseFrame { code, reason })) => {
                write!(f, "the server closed the session with {code}")?;
                let separator = if reason.is_empty() { "" } else { ": " };
                write!(f, "{separator}{}", Escaped(reason))
            }
            Self::Random(source) => write!(f, "the system has no random numbers: {source}"),
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Url(error) => Some(error),
            Self::Setting(error) => Some(error),
            Self::Http(error) => Some(error),
            Self::Handshake(error) => Some(error),
            Self::Protocol(error) => Some(error),
            Self::Resolve { source, .. } | Self::Connect { source, .. } => Some(source),
            Self::Tls(source) | Self::Lost(source) => Some(source),
            Self::Headers(source) | Self::Random(source) => Some(source),
            Self::Proxy(_) | Self::Refused(_) | Self::Timeout { .. } | Self::Closed(_) => None,
        }
    }
}

impl From<InvalidUrl> for ClientError {
    fn from(error: InvalidUrl) -> Self {
        Self::Url(error)
    }
}

impl From<SettingError> for ClientError {
    fn from(error: SettingError) -> Self {
        Self::Setting(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_not_in_the_text() {
        let body = format!("it's \u{1b}[2J\u{202e}gone{}", "x".repeat(1000)).into_bytes();
        let refused = UpgradeRefused { status: 403, headers: Vec::new(), body };
        let text = ClientError::Refused(Box::new(refused)).to_string();
        assert!(text.contains(r"it's \u001b[2J\u202egonexx"), "{text}");
        assert!(text.len() < 300, "{text}");
    }
}
