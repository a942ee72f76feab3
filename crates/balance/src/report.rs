//! What shards tell the control thread, and what they count.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::Backend;
use crate::forward::BadUpgrade;

/// News from a shard.
#[derive(Debug)]
pub enum Report {
    /// A connect, a handshake or an answer of this backend failed, and the client was not to blame.
    Failed {
        /// Whose.
        backend: Arc<Backend>,
        /// How.
        failure: Failure,
    },
}

/// What a backend did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Its host refused the connection, or cannot be reached.
    Refused,
    /// No connection within `timeouts.connect`.
    ConnectTimeout,
    /// It ended the connection before its answer was complete.
    Reset,
    /// No answer within `timeouts.response`, or a body stood still for `timeouts.body`.
    ResponseTimeout,
    /// Its answer breaks a rule of HTTP: which.
    BadResponse(&'static str),
    /// Its 101 is not one for our request: why.
    BadUpgrade(BadUpgrade),
}

impl Failure {
    /// What the client is answered: 504 when time ran out, else 502.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::ConnectTimeout | Self::ResponseTimeout => 504,
            _ => 502,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("the backend refused the connection"),
            Self::ConnectTimeout => {
                f.write_str("the backend did not accept the connection in time")
            }
            Self::Reset => f.write_str("the backend ended the connection before its answer"),
            Self::ResponseTimeout => f.write_str("the backend did not answer in time"),
            Self::BadResponse(what) => write!(f, "the backend's answer is not valid HTTP: {what}"),
            Self::BadUpgrade(what) => what.fmt(f),
        }
    }
}

/// Sums of a shard, or of all: plain integers that their shard copies out once a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Client connections open.
    pub connections: u64,
    /// Of these, tunnels.
    pub tunnels: u64,
    /// Connections to backends that wait for a request.
    pub idle_backends: u64,
    /// Clients that wait for a place for their handshake.
    pub queued: u64,
    /// Client connections ever accepted.
    pub accepted: u64,
    /// Client connections turned away: `max_connections` was reached, or an untrusted one where PROXY is due.
    pub refused: u64,
    /// Requests ever begun, upgrades included.
    pub requests: u64,
    /// Tunnels ever opened.
    pub tunnels_opened: u64,
    /// Requests tried on another backend, or another connection.
    pub retries: u64,
    /// Requests that we answered ourselves with 4xx.
    pub client_errors: u64,
    /// Requests that we answered ourselves with 5xx.
    pub backend_errors: u64,
    /// Tunnels whose backend went without a Close frame.
    pub lost: u64,
    /// Tunnels that we sent a Close frame, or cut.
    pub closed: u64,
    /// Bytes of clients, after the upgrade.
    pub bytes_up: u64,
    /// Bytes of backends, after the upgrade.
    pub bytes_down: u64,
}

impl std::ops::AddAssign for Figures {
    fn add_assign(&mut self, other: Self) {
        let Self {
            connections,
            tunnels,
            idle_backends,
            queued,
            accepted,
            refused,
            requests,
            tunnels_opened,
            retries,
            client_errors,
            backend_errors,
            lost,
            closed,
            bytes_up,
            bytes_down,
        } = other;
        self.connections += connections;
        self.tunnels += tunnels;
        self.idle_backends += idle_backends;
        self.queued += queued;
        self.accepted += accepted;
        self.refused += refused;
        self.requests += requests;
        self.tunnels_opened += tunnels_opened;
        self.retries += retries;
        self.client_errors += client_errors;
        self.backend_errors += backend_errors;
        self.lost += lost;
        self.closed += closed;
        self.bytes_up += bytes_up;
        self.bytes_down += bytes_down;
    }
}
