//! Reports of shards to the control thread, and their metrics.

use std::sync::Arc;
use std::{fmt, io};

use serde::{Deserialize, Serialize};
use throng_io::{Closed, SessionFailure, TlsFailure};

use crate::backend::Backend;
use crate::forward::BadUpgrade;

/// A report of a shard.
#[derive(Debug)]
pub enum BackendReport {
    /// A connect, a handshake, an answer or a tunnel of this backend failed, and the client was not
    /// to blame. [`Failure::is_ours`] distinguishes the balancer from the backend.
    Failed {
        /// The backend.
        backend: Arc<Backend>,
        /// The failure.
        failure: Failure,
        /// The failure does not count for its health: the request failed at another backend before,
        /// or it ended a tunnel, and many tunnels may end at once.
        spares_health: bool,
    },
}

impl BackendReport {
    /// Returns the report of a tunnel whose backend's TLS session failed; it is counted as lost.
    pub(crate) fn of_tunnel(backend: Arc<Backend>, why: SessionFailure) -> Self {
        Self::Failed { backend, failure: Failure::Tls(why), spares_health: true }
    }
}

/// A failure between the balancer and a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Its host refused the connection, or is unreachable.
    Refused,
    /// Its TLS handshake failed, its certificate does not contain the required name, or it refused
    /// the balancer's certificate.
    Insecure(TlsFailure),
    /// No connection within `timeouts.connect`.
    ConnectTimeout,
    /// It ended the connection before its answer was complete.
    Reset,
    /// Its TLS session failed before its answer was complete, or in a tunnel.
    Tls(SessionFailure),
    /// No answer within `timeouts.response`, or a body without progress for `timeouts.body`.
    ResponseTimeout,
    /// Its answer breaks this rule of HTTP.
    BadResponse(&'static str),
    /// Its 101 does not fit the request, for this reason.
    BadUpgrade(BadUpgrade),
    /// A fault of the balancer: there is no local port to connect from. All ports already lead to
    /// the backend, or `sources` names a foreign address.
    NoPort,
    /// A fault of the balancer: a connection could not be started, for lack of a descriptor or of
    /// memory; the system's error.
    Local(Option<i32>),
}

impl Failure {
    /// Returns the failure for the error of a connect that failed at once. Only errors of the
    /// network on the path to the backend count against it: any other error would also occur with
    /// other backends.
    #[must_use]
    pub fn of_connect(error: &io::Error) -> Self {
        use io::ErrorKind::*;
        match error.kind() {
            AddrNotAvailable | AddrInUse => Self::NoPort,
            ConnectionRefused | ConnectionReset | ConnectionAborted | HostUnreachable
            | NetworkUnreachable | NetworkDown | TimedOut | PermissionDenied => Self::Refused,
            _ => Self::Local(error.raw_os_error()),
        }
    }

    /// Returns the failure of a backend that had accepted a connection and closed it.
    #[must_use]
    pub fn of_closed(why: Closed) -> Self {
        why.session_failure().map_or(Self::Reset, Self::Tls)
    }

    /// Returns whether the backend did not accept the connection. Every other failure concerns an
    /// answer, and clients influence which requests are answered badly.
    #[must_use]
    pub const fn is_of_connection(self) -> bool {
        matches!(self, Self::Refused | Self::Insecure(_) | Self::ConnectTimeout)
    }

    /// Returns whether the backend broke off a connection.
    #[must_use]
    pub const fn is_break(self) -> bool {
        matches!(self, Self::Reset | Self::Tls(_))
    }

    /// Returns whether it is a failure of the balancer, which carries no information about the
    /// backend.
    #[must_use]
    pub const fn is_ours(self) -> bool {
        matches!(self, Self::NoPort | Self::Local(_) | Self::Tls(SessionFailure::Internal))
    }

    /// Returns a remedy for a failure that is [ours](Failure::is_ours).
    #[must_use]
    pub const fn remedy(self) -> Option<&'static str> {
        match self {
            Self::NoPort => Some(
                "name in sources more addresses of this machine, each is good for about 28,000 \
                 connections to a backend",
            ),
            Self::Local(_) => {
                Some("raise the limit of open files (ulimit -n), or lower max_connections")
            }
            _ => None,
        }
    }

    /// Returns the client's status: 503 for a failure of the balancer, 504 for a timeout, else 502.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            _ if self.is_ours() => 503,
            Self::ConnectTimeout | Self::ResponseTimeout => 504,
            _ => 502,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("the backend refused the connection"),
            Self::Insecure(why) => write!(f, "the backend is not trusted: {why}"),
            Self::ConnectTimeout => {
                f.write_str("the backend did not accept the connection in time")
            }
            Self::Reset => f.write_str("the backend ended the connection before its answer"),
            Self::Tls(SessionFailure::Internal) => {
                f.write_str("the balancer could not go on with the TLS session of the backend")
            }
            Self::Tls(why) => write!(f, "the backend's TLS session failed: {why}"),
            Self::ResponseTimeout => f.write_str("the backend did not answer in time"),
            Self::BadResponse(what) => write!(f, "the backend's answer is not valid HTTP: {what}"),
            Self::BadUpgrade(what) => what.fmt(f),
            Self::NoPort => f.write_str("the balancer has no port left to connect from"),
            Self::Local(None) => f.write_str("the balancer could not connect"),
            Self::Local(Some(number)) => {
                write!(
                    f,
                    "the balancer could not connect: {}",
                    io::Error::from_raw_os_error(*number)
                )
            }
        }
    }
}

/// Metrics of a shard, or of all: plain integers that their shard publishes once a second.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct Metrics {
    /// Client connections open.
    pub connections: u64,
    /// Tunnels among these.
    pub tunnels: u64,
    /// Idle connections to backends.
    pub idle_backends: u64,
    /// Clients whose request waits for a backend.
    pub queued: u64,
    /// Client connections ever accepted.
    pub accepted: u64,
    /// Client connections refused, because a limit was reached or an untrusted peer connected where
    /// PROXY is required, and client connections closed without a request to make room for others.
    pub refused: u64,
    /// The part of these refused because of [`max_connections`](crate::Settings::max_connections),
    /// or of the descriptors that limit it.
    pub refused_full: u64,
    /// The part of these refused because of
    /// [`max_connections_per_address`](crate::Settings::max_connections_per_address).
    pub refused_full_address: u64,
    /// Clients beyond the limit of all: each had a place of the reserve for one request.
    pub refused_beyond: u64,
    /// Requests of these that were answered with 503.
    pub answered_full: u64,
    /// Requests answered with 429, since their address had its maximum of connections.
    pub answered_full_address: u64,
    /// Clients closed between two requests to make room for others.
    pub ended_idle: u64,
    /// Clients closed to make room for others, after they had ended their stream.
    pub ended_gone: u64,
    /// Clients closed to make room for others that had not sent a whole request.
    pub ended_new: u64,
    /// Clients closed because they sent no request within `timeouts.head`.
    pub unasked_ended: u64,
    /// Tunnels closed because one side had ended its stream, and the other did not within
    /// `timeouts.half_closed`.
    pub half_closed_ended: u64,
    /// Tunnels that have reached their longest life.
    pub lifetime_ended: u64,
    /// Times when a client was not read, since it was beyond a rate of its route.
    pub throttled: u64,
    /// Tunnels closed for that.
    pub beyond_rate: u64,
    /// Connections to pass through that were closed because they came in a circle.
    pub circles_ended: u64,
    /// Connections ended because TLS needed more memory than `max_tls_memory`.
    pub memory_ended: u64,
    /// Tunnels closed because they were silent for `timeouts.tunnel`.
    pub silent_ended: u64,
    /// Responses cut because their clients did not read them in time.
    pub unread_ended: u64,
    /// Connections closed because their peer is not a trusted proxy, or their PROXY header was
    /// wrong or late.
    pub proxy_errors: u64,
    /// Total requests begun, upgrades included.
    pub requests: u64,
    /// Total tunnels opened.
    pub tunnels_opened: u64,
    /// Total tunnels taken over from the process before.
    pub tunnels_taken_over: u64,
    /// Total connections to pass through by their server name.
    pub passed_through: u64,
    /// Requests answered with 503 because `max_queue` others waited, and connections to pass
    /// through that were closed for it.
    pub queue_full: u64,
    /// Requests and such connections that have waited for `timeouts.queue`.
    pub queue_late: u64,
    /// Requests retried on another backend, or another connection.
    pub retries: u64,
    /// Requests that were not retried, since too many of their pool were.
    pub retries_refused: u64,
    /// Requests that the balancer answered itself with 4xx.
    pub client_errors: u64,
    /// Requests that the balancer answered itself with 5xx, and connections to pass through that no
    /// backend accepted.
    pub backend_errors: u64,
    /// Connects that failed at once, without a fault of the backend: see [`Failure::is_ours`].
    pub own_failures: u64,
    /// Tunnels whose backend ended without a Close frame.
    pub lost: u64,
    /// Tunnels that the balancer sent a Close frame, or reset.
    pub closed: u64,
    /// Clients that were reset at the deadline of the shutdown.
    pub forced: u64,
    /// Bytes of clients, after the upgrade.
    pub bytes_up: u64,
    /// Bytes of backends, after the upgrade.
    pub bytes_down: u64,
    /// Scans of deadlines. A shard with connections has at least one a second.
    pub sweeps: u64,
}

impl Metrics {
    /// Returns the part on which a successor of the process counts on: without what is open now,
    /// and without what concerns the process alone.
    pub(crate) fn carried(self) -> Self {
        Self {
            connections: 0,
            tunnels: 0,
            idle_backends: 0,
            queued: 0,
            forced: 0,
            sweeps: 0,
            ..self
        }
    }
}

impl std::ops::AddAssign for Metrics {
    fn add_assign(&mut self, other: Self) {
        let Self {
            connections,
            tunnels,
            idle_backends,
            queued,
            accepted,
            refused,
            refused_full,
            refused_full_address,
            refused_beyond,
            answered_full,
            answered_full_address,
            ended_idle,
            ended_gone,
            ended_new,
            unasked_ended,
            half_closed_ended,
            lifetime_ended,
            throttled,
            beyond_rate,
            circles_ended,
            memory_ended,
            silent_ended,
            unread_ended,
            proxy_errors,
            requests,
            tunnels_opened,
            tunnels_taken_over,
            passed_through,
            queue_full,
            queue_late,
            retries,
            retries_refused,
            client_errors,
            backend_errors,
            own_failures,
            lost,
            closed,
            forced,
            bytes_up,
            bytes_down,
            sweeps,
        } = other;
        self.connections += connections;
        self.tunnels += tunnels;
        self.idle_backends += idle_backends;
        self.queued += queued;
        self.accepted += accepted;
        self.refused += refused;
        self.refused_full += refused_full;
        self.refused_full_address += refused_full_address;
        self.refused_beyond += refused_beyond;
        self.answered_full += answered_full;
        self.answered_full_address += answered_full_address;
        self.ended_idle += ended_idle;
        self.ended_gone += ended_gone;
        self.ended_new += ended_new;
        self.unasked_ended += unasked_ended;
        self.half_closed_ended += half_closed_ended;
        self.lifetime_ended += lifetime_ended;
        self.throttled += throttled;
        self.beyond_rate += beyond_rate;
        self.circles_ended += circles_ended;
        self.memory_ended += memory_ended;
        self.silent_ended += silent_ended;
        self.unread_ended += unread_ended;
        self.proxy_errors += proxy_errors;
        self.requests += requests;
        self.tunnels_opened += tunnels_opened;
        self.tunnels_taken_over += tunnels_taken_over;
        self.passed_through += passed_through;
        self.queue_full += queue_full;
        self.queue_late += queue_late;
        self.retries += retries;
        self.retries_refused += retries_refused;
        self.client_errors += client_errors;
        self.backend_errors += backend_errors;
        self.own_failures += own_failures;
        self.lost += lost;
        self.closed += closed;
        self.forced += forced;
        self.bytes_up += bytes_up;
        self.bytes_down += bytes_down;
        self.sweeps += sweeps;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn only_the_way_to_it_is_held_against_a_backend() {
        use io::ErrorKind::*;
        for kind in [ConnectionRefused, HostUnreachable, NetworkUnreachable, PermissionDenied] {
            assert_eq!(Failure::of_connect(&kind.into()), Failure::Refused);
        }
        for kind in [AddrNotAvailable, AddrInUse] {
            assert_eq!(Failure::of_connect(&kind.into()), Failure::NoPort);
        }
        // ENFILE and EMFILE, on every Unix; and an error of the driver itself.
        for number in [23, 24] {
            let failure = Failure::of_connect(&io::Error::from_raw_os_error(number));
            assert_eq!(failure, Failure::Local(Some(number)));
            assert!(failure.to_string().contains(&format!("(os error {number})")), "{failure}");
        }
        assert_eq!(Failure::of_connect(&QuotaExceeded.into()), Failure::Local(None));
        for failure in [Failure::NoPort, Failure::Local(None), Failure::Refused, Failure::Reset] {
            assert_eq!(failure.is_ours(), failure.status() == 503);
            assert_eq!(failure.is_ours(), failure.remedy().is_some());
        }
    }
}
