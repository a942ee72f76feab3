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
}

/// Fault that ends a connection, or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The peer broke the WebSocket protocol; the session is closed with the code of that error.
    Protocol(ProtocolError),
    /// The TLS session failed after its handshake: by an alert, a violation of the protocol, or
    /// exhausted keys. A missing close_notify is a failure only when the peer is a server.
    Tls(SessionFailure),
    /// The peer read too slowly, and its policy closed it.
    SlowConsumer,
    /// A callback panicked.
    Panic {
        /// The route that was [entered](crate::Cx::enter_route) last.
        route: Option<u32>,
    },
    /// A rule or limit of the server ended it.
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

    /// Returns its place in [`Fault::WORDS`].
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

/// The reason why a server ends a session, a stream of events or a response that is being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// The client sent more messages or bytes in a second than it may.
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
    /// The cluster does not accept messages, and a message of the client would have been lost.
    Publication,
    /// Messages of a channel with history are lost in the cluster: the client must reconnect, and
    /// learns that it cannot continue.
    Loss,
    /// The workers have no room for the client's work.
    Workers,
}

impl EndReason {
    /// All reasons.
    pub const ALL: [Self; 10] = [
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
    ];

    /// Returns its word in metrics.
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
        }
    }

    /// Returns the code that a session is closed with.
    #[must_use]
    pub const fn code(self) -> CloseCode {
        match self {
            Self::Rate | Self::Reassembly | Self::Memory | Self::Loss => {
                CloseCode::POLICY_VIOLATION
            }
            Self::Heartbeat | Self::Write => CloseCode::ABNORMAL,
            Self::Lifetime => CloseCode::GOING_AWAY,
            Self::Cluster | Self::Publication | Self::Workers => CloseCode::TRY_AGAIN_LATER,
        }
    }

    /// Returns the text that the client is given, where the close has one.
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
        }
    }
}
