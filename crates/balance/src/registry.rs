//! The control thread's record of one backend: its sources, its health and its drain.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use throng_io::Instant;

use crate::backend::{Backend, CarriedTotals, State};
use crate::config::{BackendConfig, BackendSide};
use crate::health::{HealthTracker, Verdict};
use crate::pool::PoolSettings;
use crate::report::Failure;
use crate::slow_start::share_at;

/// A pool of backends, as the configuration has it.
#[derive(Debug, PartialEq)]
pub(crate) struct PoolRules {
    pub(crate) name: Arc<str>,
    pub(crate) settings: PoolSettings,
    /// The TLS of connections to all its backends.
    pub(crate) tls: Option<BackendSide>,
}

/// A backend in the list. Its pool and its address identify it.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its pool as last configured: a pool that has left the file since keeps its rules.
    pub(crate) pool: Arc<PoolRules>,
    pub(crate) backend: Arc<Backend>,
    pub(crate) send_proxy: bool,
    /// Whether connections use TLS, if that was set.
    pub(crate) tls: Option<bool>,
    /// The name in its certificate, if that was set.
    pub(crate) tls_name: Option<Arc<str>>,
    /// The server names whose connections are passed through to it.
    pub(crate) passthrough: Arc<[Box<str>]>,
    /// The limit of its requests and tunnels, if that was set.
    pub(crate) max_connections: Option<u32>,
    /// It gets clients only while no other of its pool is up.
    pub(crate) backup: bool,
    pub(crate) desired: DesiredState,
    pub(crate) tracker: HealthTracker,
    /// The drain, if it is being removed or drained.
    pub(crate) drain: Option<Drain>,
    /// Its heartbeats ended without notice, and it has no other source: it gets no new clients.
    pub(crate) expired: bool,
    /// It was removed, and is not drained: it gets no new clients, and keeps its tunnels.
    pub(crate) is_removed: bool,
    /// The time since which its share grows.
    pub(crate) rising: Option<Instant>,
    pub(crate) last_failure: Option<(Cause, SystemTime)>,
    /// Whether the backend is down or removed while its tunnels stay: see [`Entry::is_dead`].
    pub(crate) keeps_tunnels: bool,
    /// Active checks that failed in a row.
    pub(crate) failed_checks: u32,
    /// The last probation.
    probation: Probation,
}

/// The sources that want a backend in the list. It stays as long as there is one.
#[derive(Debug, Default)]
pub(crate) struct DesiredState {
    /// The last configuration in the file.
    pub(crate) file: Option<BackendConfig>,
    /// The name in the file that has its address.
    pub(crate) name: Option<Arc<str>>,
    /// Added by an operator.
    pub(crate) api: bool,
    /// Its own registration.
    pub(crate) ttl: Option<RegistrationTtl>,
}

/// The lifetime of a registration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegistrationTtl {
    pub(crate) time_to_live: Duration,
    pub(crate) expires: Instant,
}

/// A drain in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    /// Tunnels a second; less than one where few are closed within a long window.
    pub(crate) rate: f64,
    /// [`Totals::closed`](crate::Totals::closed) at its beginning.
    pub(crate) closed_before: u64,
}

/// The time from a backend's recovery until a client was answered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Probation {
    since: Instant,
    timeout: Duration,
    /// Its number of answers at the beginning.
    answered_before: u64,
}

/// The cause of a backend's last failure.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// A client's request, or its tunnel.
    Request(Failure),
    /// An active check.
    Check(String),
    /// No heartbeat for this long.
    Silent(Duration),
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Request(failure) => failure.fmt(f),
            Self::Check(why) => write!(f, "the health check failed: {why}"),
            Self::Silent(time) => {
                write!(f, "it registered itself, and sent no heartbeat for {time:?}")
            }
        }
    }
}

impl DesiredState {
    pub(crate) fn by_anybody(&self) -> bool {
        self.file.is_some() || self.api || self.ttl.is_some()
    }

    /// Returns the word for its source: the source that set the weight.
    pub(crate) fn source(&self) -> &'static str {
        match self {
            Self { file: Some(_), name: Some(_), .. } => "dns",
            Self { file: Some(_), .. } => "file",
            Self { api: true, .. } => "api",
            Self { ttl: Some(_), .. } => "registered",
            _ => "none",
        }
    }
}

impl Entry {
    /// Creates a backend of `pool` that no source wants yet.
    pub(crate) fn new(pool: Arc<PoolRules>, backend: Arc<Backend>) -> Self {
        Self {
            pool,
            backend,
            send_proxy: false,
            tls: None,
            tls_name: None,
            passthrough: Arc::default(),
            max_connections: None,
            backup: false,
            desired: DesiredState::default(),
            tracker: HealthTracker::new(),
            drain: None,
            expired: false,
            is_removed: false,
            rising: None,
            last_failure: None,
            keeps_tunnels: false,
            failed_checks: 0,
            probation: Probation::default(),
        }
    }

    /// Returns whether its tunnels are useless: `fall` active checks in a row failed. Failed
    /// connections or requests of clients, or missing heartbeats, send new clients elsewhere, but
    /// prove nothing about its tunnels; tunnels whose host is gone end by themselves.
    pub(crate) fn is_dead(&self, fall: u32) -> bool {
        self.tracker.verdict() == Some(Verdict::Checks)
            || self.expired && self.failed_checks >= fall
    }

    /// Returns whether its heartbeats have ended but it still accepts connections: it stays in the
    /// list, down, for clients without any other backend.
    pub(crate) fn is_only_silent(&self, fall: u32) -> bool {
        self.expired && self.drain.is_none() && !self.is_removed && !self.is_dead(fall)
    }

    /// Returns whether it no longer has a source: it leaves the list with its last tunnel.
    pub(crate) fn is_being_removed(&self) -> bool {
        !self.desired.by_anybody()
    }

    /// Returns whether it may still get clients: it has a source, or has only fallen silent.
    pub(crate) fn is_offered(&self) -> bool {
        !self.is_being_removed() || self.expired && self.drain.is_none() && !self.is_removed
    }

    /// Returns whether it is in the pool of this name.
    pub(crate) fn is_in(&self, pool: &str) -> bool {
        *self.pool.name == *pool
    }

    /// Returns whether connections to it use the same TLS as to `file` in `pool`.
    pub(crate) fn has_tls_of(&self, pool: &PoolRules, file: &BackendConfig) -> bool {
        let tls = |own: Option<bool>, pool: &PoolRules| {
            own.unwrap_or(pool.tls.is_some()).then(|| pool.tls.clone().unwrap_or_default())
        };
        tls(self.tls, &self.pool) == tls(file.tls, pool) && self.tls_name == file.tls_name
    }

    /// Sets how connections to it are made, and how many, as `file` says.
    pub(crate) fn connect_as(&mut self, file: &BackendConfig) {
        (self.max_connections, self.backup) = (file.max_connections, file.backup);
        (self.send_proxy, self.tls) = (file.send_proxy, file.tls);
        self.tls_name.clone_from(&file.tls_name);
        self.passthrough.clone_from(&file.passthrough);
    }

    /// Returns whether it has no open tunnels or requests.
    pub(crate) fn is_empty(&self) -> bool {
        let backend = &self.backend;
        backend.tunnels() == 0 && backend.requests() == 0 && backend.handshakes() == 0
    }

    /// Returns its desired state. An operator's command outranks its health, which carries no
    /// information about a backend without clients.
    pub(crate) fn state(&self) -> State {
        match self {
            Self { drain: Some(_), .. } => State::Draining,
            Self { is_removed: true, .. } => State::Removed,
            Self { expired: true, .. } => State::Down,
            _ if !self.tracker.is_up() => State::Down,
            _ => State::Up,
        }
    }

    /// Resets it, as if it had just been added.
    pub(crate) fn revive(&mut self) {
        self.tracker = HealthTracker::new();
        self.drain = None;
        self.expired = false;
        self.is_removed = false;
        self.failed_checks = 0;
        self.last_failure = None;
    }

    /// Begins a probation: answers from now on count. After `health.down_for` it gets its
    /// whole share even if no client used it.
    pub(crate) fn begin_probation(&mut self, now: Instant) {
        let timeout = self.pool.settings.health.down_for;
        self.probation = Probation { since: now, timeout, answered_before: self.answered() };
    }

    /// Reports successes during a probation to the tracker. Shards do not report them: the counts
    /// show them.
    pub(crate) fn note_success(&mut self) {
        if self.tracker.is_half_open() && self.answered() > self.probation.answered_before {
            self.tracker.handle_success();
        }
    }

    /// Sets the share for `now`. Returns whether it must be set again soon.
    ///
    /// On probation it gets the share that a slow start begins with: it has no load, so picks by
    /// load would otherwise send it all clients before it is known to answer. The share grows with
    /// time: under low load, the others have less per share than one client is for a tenth, and it
    /// would never be picked.
    pub(crate) fn grow(&mut self, now: Instant) -> bool {
        let slow_start = self.pool.settings.slow_start;
        let weight = self.backend.weight();
        if self.backend.state() == State::Up && self.tracker.is_half_open() {
            self.note_success();
            if self.tracker.is_half_open() {
                self.rising = Some(now);
                let Probation { since, timeout, .. } = self.probation;
                self.backend.set_share(share_at(weight, now.since(since), timeout));
                return true;
            }
        }
        let Some(since) = self.rising else { return false };
        let up_for = now.since(since);
        self.backend.set_share(share_at(weight, up_for, slow_start));
        if up_for >= slow_start {
            self.rising = None;
        }
        self.rising.is_some()
    }

    /// Counts on from the totals of a predecessor. What is compared with totals goes along.
    pub(crate) fn count_on(&mut self, totals: &CarriedTotals) {
        self.backend.totals().add(totals);
        self.probation.answered_before += totals.answered();
        if let Some(drain) = &mut self.drain {
            drain.closed_before += totals.closed();
        }
    }

    /// Returns the number of its successful answers.
    pub(crate) fn answered(&self) -> u64 {
        let totals = self.backend.totals();
        totals.tunnels.load(Relaxed).wrapping_add(totals.requests.load(Relaxed))
    }
}
