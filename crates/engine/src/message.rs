//! Values that services and connections exchange: faults, events of other threads, and reasons for
//! refusals.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use throng_io::SessionFailure;
use throng_proto::ws::{CloseCode, ProtocolError};

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
    /// Later, in place of an answer: all connections together use too much memory.
    Memory,
    /// Later, in place of an answer: bodies use too much memory.
    BodyMemory,
}

/// Fault that ends a connection, or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The peer violated the WebSocket protocol; the session is closed with the code of the error.
    Protocol(ProtocolError),
    /// The TLS session failed after its handshake: by an alert, a violation of the protocol, or
    /// exhausted keys. A missing close_notify is a failure only when the peer is a server.
    Tls(SessionFailure),
    /// The peer read too slowly, and its policy closed the connection.
    SlowConsumer,
    /// A callback panicked.
    Panic {
        /// The route that the request [entered](crate::Cx::enter_route) last.
        route: Option<u32>,
    },
    /// A rule or limit of the server ended the connection or request.
    Ended(EndReason),
}

impl Fault {
    /// The words of all faults, in the order in which they are counted.
    pub(crate) const WORDS: [&'static str; 4 + EndReason::ALL.len()] = {
        let mut words = [""; 4 + EndReason::ALL.len()];
        [words[0], words[1], words[2], words[3]] =
            ["protocol_error", "tls", "slow_consumer", "panic"];
        let mut at = 0;
        while at < EndReason::ALL.len() {
            words[4 + at] = EndReason::ALL[at].word();
            at += 1;
        }
        words
    };

    /// Returns the index of this fault in [`Fault::WORDS`].
    pub(crate) fn number(self) -> usize {
        match self {
            Self::Protocol(_) => 0,
            Self::Tls(_) => 1,
            Self::SlowConsumer => 2,
            Self::Panic { .. } => 3,
            Self::Ended(reason) => 4 + reason as usize,
        }
    }
}

/// The reason why a server ends a connection, a request that is not answered, a session, a stream
/// of events or a response that is being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// The client sent more messages or bytes per second than allowed.
    Rate,
    /// A message took too long to arrive.
    Reassembly,
    /// All connections together used too much memory, and this connection used the most.
    Memory,
    /// The client did not answer a ping.
    Heartbeat,
    /// The session has reached its longest lifetime.
    Lifetime,
    /// The client did not read for too long, or too slowly.
    Write,
    /// The cluster did not answer in time, so that the client could not join a channel.
    Cluster,
    /// The cluster does not accept publications, and the client would have lost a publication.
    Publication,
    /// Messages of a channel with history were lost in the cluster. The client must reconnect, and
    /// is then informed that it cannot continue.
    Loss,
    /// The workers have no capacity for the client's work.
    Workers,
    /// The client has asked a channel for something that the channel does not have, such as a
    /// position without a history.
    Channel,
    /// The client has no token, or it is not valid, or has expired: it must sign in.
    Token,
    /// The client's token, if any, does not grant the right that an action in a channel needs.
    Right,
    /// The server is at its limit of connections, and another connection needed the slot.
    Place,
    /// The client's address is at its limit of connections, and another connection needed the slot.
    PlaceOfAddress,
    /// The client connected but did not begin a request in time.
    Handshake,
    /// A request took too long to arrive.
    Request,
    /// The answer to an upgrade took too long.
    Upgrade,
    /// The body of a request came too slowly, and other bodies needed its memory.
    Body,
}

impl EndReason {
    /// All reasons.
    pub const ALL: [Self; 19] = [
        Self::Rate,
        Self::Reassembly,
        Self::Memory,
        Self::Heartbeat,
        Self::Lifetime,
        Self::Write,
        Self::Cluster,
        Self::Publication,
        Self::Loss,
        Self::Workers,
        Self::Channel,
        Self::Token,
        Self::Right,
        Self::Place,
        Self::PlaceOfAddress,
        Self::Handshake,
        Self::Request,
        Self::Upgrade,
        Self::Body,
    ];

    /// The code of [`EndReason::Token`]: RFC 6455 has none for a client that may come back with a
    /// new token only.
    const SIGN_IN: CloseCode = CloseCode::new(4001);

    /// Returns why a connection that was refused for `why` ends without a request; `None` if the
    /// connection was not refused at a limit on connections.
    pub(crate) fn of_refusal(why: Refusal) -> Option<Self> {
        match why {
            Refusal::Full => Some(Self::Place),
            Refusal::FullForAddress => Some(Self::PlaceOfAddress),
            Refusal::Draining | Refusal::Memory | Refusal::BodyMemory => None,
        }
    }

    /// Returns the word for this reason in metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Reassembly => "reassembly",
            Self::Memory => "memory",
            Self::Heartbeat => "heartbeat",
            Self::Lifetime => "lifetime",
            Self::Write => "write",
            Self::Cluster => "cluster",
            Self::Publication => "publication",
            Self::Loss => "loss",
            Self::Workers => "workers",
            Self::Channel => "channel",
            Self::Token => "token",
            Self::Right => "right",
            Self::Place => "place",
            Self::PlaceOfAddress => "place_of_address",
            Self::Handshake => "handshake",
            Self::Request => "request",
            Self::Upgrade => "upgrade",
            Self::Body => "body",
        }
    }

    /// Returns the code with which a session is closed.
    #[must_use]
    pub const fn code(self) -> CloseCode {
        match self {
            Self::Rate
            | Self::Reassembly
            | Self::Memory
            | Self::Loss
            | Self::Channel
            | Self::Right => CloseCode::POLICY_VIOLATION,
            Self::Token => Self::SIGN_IN,
            Self::Heartbeat | Self::Write => CloseCode::ABNORMAL,
            Self::Lifetime => CloseCode::GOING_AWAY,
            Self::Cluster | Self::Publication | Self::Workers => CloseCode::TRY_AGAIN_LATER,
            // These reasons do not end sessions.
            Self::Place
            | Self::PlaceOfAddress
            | Self::Handshake
            | Self::Request
            | Self::Upgrade
            | Self::Body => CloseCode::ABNORMAL,
        }
    }

    /// Returns the text that the client gets, for closes that have a text.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Rate => "too much in one second",
            Self::Reassembly => "message took too long to arrive",
            Self::Memory => "the server is out of memory",
            Self::Heartbeat => "heartbeat timeout",
            Self::Lifetime => "session lifetime exceeded",
            Self::Write => "the client did not read in time",
            Self::Cluster => "the cluster does not answer; try again later",
            Self::Publication => "the cluster does not take messages now; try again later",
            Self::Loss => "messages are lost; come back to continue",
            Self::Workers => "the server is busy; try again later",
            Self::Channel => "the channel does not have what the client asks for",
            Self::Token => "sign in and come back with a new token",
            Self::Right => "the client may not do this in this channel",
            Self::Place => "the server is full, and others needed the place",
            Self::PlaceOfAddress => "others of its address needed the place",
            Self::Handshake => "no request came in time",
            Self::Request => "the request took too long",
            Self::Upgrade => "the upgrade took too long",
            Self::Body => "the body came too slowly while memory for bodies was short",
        }
    }

    /// Returns the settings that cause this reason, if any.
    #[must_use]
    pub const fn setting(self) -> Option<&'static str> {
        Some(match self {
            Self::Rate => "max_messages_per_second, max_bytes_per_second",
            Self::Reassembly => "reassembly_timeout",
            Self::Memory => "max_memory",
            Self::Heartbeat => "heartbeat_interval, heartbeat_timeout",
            Self::Lifetime => "max_lifetime",
            Self::Write => "write_timeout, min_response_rate",
            Self::Cluster | Self::Publication => return None,
            Self::Loss => "the memory and persistence of the cluster's server",
            Self::Workers => "the size of the pool of workers and of its queue",
            Self::Channel => "the history of the channel, wildcards",
            Self::Token => "token_keys, open",
            Self::Right => "may_join, may_publish and may_read_history of the channel",
            Self::Place => "max_connections, max_pending_handshakes",
            Self::PlaceOfAddress => "max_connections_per_address",
            Self::Handshake | Self::Upgrade => "handshake_timeout",
            Self::Request => "handshake_timeout, min_body_rate",
            Self::Body => "max_body_memory",
        })
    }
}

/// The text includes the settings that cause the reason.
impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())?;
        self.setting().map_or(Ok(()), |setting| write!(f, "; {setting}"))
    }
}
