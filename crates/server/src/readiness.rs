//! The states of a server that health checks ask for.

/// Value of `Retry-After` for clients that are turned away, in seconds.
pub(crate) const RETRY_AFTER: u64 = 5;

/// Whether a server should get clients: the one judgement, for `/readyz`, metrics, statistics and
/// logs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Readiness {
    /// It serves everything. `/readyz` answers 200.
    Ready,
    /// It serves, but its cluster's broker, which was there, is away or behind: channels that the
    /// broker carries are concerned, and nothing else. Or a function of
    /// [`Server::every`](crate::Server::every) has panicked at its last call. `/readyz` answers 200
    /// with this reason, since other servers have it at once, too.
    Degraded(String),
    /// It should get no clients: it drains, or its broker has not been there since the start, or
    /// has been away for longer than `Cluster::unready_after`. `/readyz` answers 503 with this
    /// reason.
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

    /// Returns why the server is not simply ready. It has no address of a broker: any client may
    /// read it.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Ready => None,
            Self::Degraded(why) | Self::NotReady(why) => Some(why),
        }
    }
}
