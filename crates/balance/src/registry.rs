//! One backend as the control thread knows it: who wants it in the list, how it does, how it goes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use throng_io::Instant;

use crate::backend::{Backend, State};
use crate::config::BackendConfig;
use crate::health::{HealthTracker, Verdict};
use crate::report::Failure;
use crate::slow_start::share_at;

/// A backend in the list.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) backend: Arc<Backend>,
    pub(crate) send_proxy: bool,
    pub(crate) desired: DesiredState,
    pub(crate) tracker: HealthTracker,
    /// It is going, or out for a while.
    pub(crate) drain: Option<Drain>,
    /// Its heartbeats ended without a word, and nobody else wants it: it gets no new clients.
    pub(crate) expired: bool,
    /// Since when its share grows.
    pub(crate) rising: Option<Instant>,
    pub(crate) last_failure: Option<(Cause, SystemTime)>,
    /// It is down, and its tunnels stay: see [`Entry::is_dead`].
    pub(crate) keeps_tunnels: bool,
    /// Active checks that failed in a row.
    pub(crate) failed_checks: u32,
    /// The last one.
    probation: Probation,
}

/// Who wants a backend in the list. It stays as long as anybody does.
#[derive(Debug, Default)]
pub(crate) struct DesiredState {
    /// As the file had it last.
    pub(crate) file: Option<BackendConfig>,
    /// An operator added it.
    pub(crate) api: bool,
    /// It registered itself.
    pub(crate) ttl: Option<RegistrationTtl>,
}

/// How long a registration lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegistrationTtl {
    pub(crate) time_to_live: Duration,
    pub(crate) expires: Instant,
}

/// A drain under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    /// Tunnels a second; less than one where few go within a long window.
    pub(crate) rate: f64,
    /// [`Totals::closed`](crate::Totals::closed) when it began.
    pub(crate) closed_before: u64,
}

/// The time of a backend that was down, until a client was answered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Probation {
    since: Instant,
    patience: Duration,
    /// What it had answered ever when it began.
    answered_before: u64,
}

/// Why a backend failed last.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// With a client's request.
    Request(Failure),
    /// An active check.
    Check(String),
    /// No heartbeat for so long.
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

    /// The word for it: whoever set the weight.
    pub(crate) fn source(&self) -> &'static str {
        match self {
            Self { file: Some(_), .. } => "file",
            Self { api: true, .. } => "api",
            Self { ttl: Some(_), .. } => "registered",
            _ => "none",
        }
    }
}

impl Entry {
    pub(crate) fn new(backend: Arc<Backend>, desired: DesiredState, send_proxy: bool) -> Self {
        Self {
            backend,
            send_proxy,
            desired,
            tracker: HealthTracker::new(),
            drain: None,
            expired: false,
            rising: None,
            last_failure: None,
            keeps_tunnels: false,
            failed_checks: 0,
            probation: Probation::default(),
        }
    }

    /// Its tunnels are of no more use: `fall` active checks in a row say so. That clients'
    /// connections or requests failed, or that its heartbeats have ended, sends new clients
    /// elsewhere, and says nothing of the tunnels that it has; those whose host is gone end by
    /// themselves.
    pub(crate) fn is_dead(&self, fall: u32) -> bool {
        self.tracker.verdict() == Some(Verdict::Checks)
            || self.expired && self.failed_checks >= fall
    }

    /// Its heartbeats have ended, but it still takes connections: it stays in the list, down, for
    /// clients that no other is left for.
    pub(crate) fn is_only_silent(&self, fall: u32) -> bool {
        self.expired && self.drain.is_none() && !self.is_dead(fall)
    }

    /// Nobody wants it any more: it goes with its last tunnel.
    pub(crate) fn is_being_removed(&self) -> bool {
        !self.desired.by_anybody()
    }

    /// Nothing of it is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.backend.load() == 0 && self.backend.handshakes() == 0
    }

    /// What it should be. An operator's word outranks its health, which says nothing about a backend that gets nobody.
    pub(crate) fn state(&self) -> State {
        match self {
            Self { drain: Some(_), .. } => State::Draining,
            Self { expired: true, .. } => State::Down,
            _ if !self.tracker.is_up() => State::Down,
            _ => State::Up,
        }
    }

    /// Begins it anew, as if it had just been added.
    pub(crate) fn revive(&mut self) {
        self.tracker = HealthTracker::new();
        self.drain = None;
        self.expired = false;
        self.failed_checks = 0;
        self.last_failure = None;
    }

    /// A probation begins: what it answers from now on counts. `patience`: how long clients may pass by before it gets
    /// its whole share all the same.
    pub(crate) fn begin_probation(&mut self, now: Instant, patience: Duration) {
        self.probation = Probation { since: now, patience, answered_before: self.answered() };
    }

    /// Tells the tracker of successes during a probation. Shards do not report them: its counts tell.
    pub(crate) fn note_success(&mut self) {
        if self.tracker.is_half_open() && self.answered() > self.probation.answered_before {
            self.tracker.handle_success();
        }
    }

    /// Sets the share for `now`. Whether it is to be set again soon.
    ///
    /// On probation it gets what a slow start begins with: it has nothing open, so whoever picks by that would else send
    /// it everybody, and nobody knows yet whether it answers. It gets more as time passes: where little is open, the
    /// others have less for their share than one client is for a tenth, and it would be passed by for good.
    pub(crate) fn grow(&mut self, now: Instant, slow_start: Duration) -> bool {
        let weight = self.backend.weight();
        if self.backend.state() == State::Up && self.tracker.is_half_open() {
            self.note_success();
            if self.tracker.is_half_open() {
                self.rising = Some(now);
                let Probation { since, patience, .. } = self.probation;
                self.backend.set_share(share_at(weight, now.since(since), patience));
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

    /// All that it ever answered well.
    pub(crate) fn answered(&self) -> u64 {
        let totals = self.backend.totals();
        totals.tunnels.load(Relaxed).wrapping_add(totals.requests.load(Relaxed))
    }
}
