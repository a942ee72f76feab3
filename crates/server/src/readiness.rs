//! The states of a server that health checks report.

/// Value of `Retry-After` for refused clients, in seconds.
pub(crate) const RETRY_AFTER: u64 = 5;

/// Whether a load balancer should send clients to a server. `/readyz`, metrics, statistics and logs
/// all use this one result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Readiness {
    /// The server serves everything. `/readyz` answers 200.
    Ready,
    /// The server serves clients, but its cluster's broker has become unreachable or is behind,
    /// which affects only the channels that the broker carries. Or a function of
    /// [`Server::every`](crate::Server::every) has panicked at its last call. `/readyz` answers 200
    /// with this reason, since it affects all servers at the same time.
    Degraded(String),
    /// The server should get no clients: it drains, has not reached its broker since the start, or
    /// its broker has been unavailable for longer than `Cluster::unready_after`. `/readyz` answers
    /// 503 with this reason.
    NotReady(String),
}

impl Readiness {
    /// Returns `ready`, `degraded` or `not ready`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Degraded(_) => "degraded",
            Self::NotReady(_) => "not ready",
        }
    }

    /// Returns the reason why the server is degraded or not ready. The text omits the broker's
    /// address, since any client may read it.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Ready => None,
            Self::Degraded(why) | Self::NotReady(why) => Some(why),
        }
    }
}
