//! What operators are shown: plain values that serialize as they are named.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use serde::Serialize;

use crate::backend::{Backend, SHARES_PER_WEIGHT};
use crate::report::Metrics;

/// A balancer, at a moment.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Since its start.
    pub uptime_seconds: f64,
    /// The pick's word.
    pub pick: &'static str,
    /// Each backend, in the order they came.
    pub backends: Vec<Row>,
    /// Sums over all shards, at most a second old.
    pub metrics: Metrics,
    /// The last connect that failed by our own fault, which is held against no backend, with the remedy.
    pub own_failure: Option<LastFailure>,
}

/// A backend in [`Status`].
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Where it is; also its name.
    pub address: SocketAddr,
    /// `up`, `down` or `draining`.
    pub state: &'static str,
    /// Who wants it: `file`, `api`, `registered`, or `none` if it goes with its last tunnel.
    pub source: &'static str,
    /// As configured.
    pub weight: u32,
    /// What it gets at present, in the unit of `weight`: less during a slow start.
    pub share: f64,
    /// Connections to it begin with a PROXY v2 header.
    pub send_proxy: bool,
    /// Live tunnels.
    pub tunnels: u32,
    /// HTTP requests under way, handshakes included.
    pub requests: u32,
    /// Connects and handshakes under way.
    pub handshakes: u32,
    /// Since it was added.
    pub totals: RowTotals,
    /// The 99th percentile of its handshakes of the last half to whole minute, in milliseconds; 0 if there were none.
    pub handshake_p99_ms: f64,
    /// How far its drain is, if it is draining.
    pub drain: Option<DrainProgress>,
    /// Seconds until its registration ends without a heartbeat, if it registered itself.
    pub expires_in_seconds: Option<f64>,
    /// It is down, and its tunnels stay all the same: only failed checks close them.
    pub keeps_tunnels: bool,
    /// Why it failed last.
    pub last_failure: Option<LastFailure>,
}

/// See [`Totals`](crate::Totals).
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RowTotals {
    /// Tunnels opened.
    pub tunnels: u64,
    /// HTTP requests answered.
    pub requests: u64,
    /// Connections begun.
    pub connects: u64,
    /// Connects, handshakes and answers that failed.
    pub failures: u64,
    /// Tunnels that we closed.
    pub closed: u64,
    /// Tunnels that ended without a Close frame from its side.
    pub lost: u64,
}

/// How far a drain is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DrainProgress {
    /// Tunnels still there.
    pub left: u32,
    /// Tunnels closed for it.
    pub closed: u64,
    /// Until all are told to close, at the drain's rate.
    pub seconds_left: u32,
}

/// The last failure of a backend, or of ours.
#[derive(Clone, Debug, Serialize)]
pub struct LastFailure {
    /// What happened.
    pub text: String,
    /// When, in seconds since 1970.
    pub unix_seconds: u64,
}

/// What a reload changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
    /// Backends that are new in the list, or came back.
    pub added: Vec<SocketAddr>,
    /// Backends that go with their last tunnel.
    pub removed: Vec<SocketAddr>,
    /// Backends of another weight.
    pub reweighted: Vec<SocketAddr>,
    /// Whether a setting is another.
    pub settings: bool,
    /// Keys whose change takes effect with the next start only.
    pub needs_restart: Vec<&'static str>,
}

/// What the end of a backend will be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Draining {
    /// Tunnels it has.
    pub tunnels: u32,
    /// Of these closed a second, at most.
    pub rate: u32,
    /// No other backend is up.
    pub last: bool,
}

/// What [`rebalance`](crate::Balancer::rebalance) closes, or would close.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rebalance {
    /// Backends that have more than their part.
    pub moves: Vec<Surplus>,
    /// Tunnels to close in all.
    pub total: u64,
    /// A second, over all backends.
    pub rate: u32,
    /// How long it takes.
    pub seconds: u64,
    /// How far the backend furthest from its part is from it, as a fraction of the part: now.
    pub spread_before: f64,
    /// The same, when those that were closed are back.
    pub spread_after: f64,
    /// Nothing was done.
    pub dry_run: bool,
}

/// A crowded backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Surplus {
    /// Which.
    pub address: SocketAddr,
    /// What it has.
    pub tunnels: u32,
    /// Of these, how many are closed.
    pub close: u32,
}

impl LastFailure {
    pub(crate) fn new(text: String, at: SystemTime) -> Self {
        let since = at.duration_since(SystemTime::UNIX_EPOCH);
        Self { text, unix_seconds: since.map_or(0, |since| since.as_secs()) }
    }
}

impl RowTotals {
    pub(crate) fn of(backend: &Backend) -> Self {
        let totals = backend.totals();
        Self {
            tunnels: totals.tunnels.load(Relaxed),
            requests: totals.requests.load(Relaxed),
            connects: totals.connects.load(Relaxed),
            failures: totals.failures.load(Relaxed),
            closed: totals.closed.load(Relaxed),
            lost: totals.lost.load(Relaxed),
        }
    }
}

/// [`Backend::share`] in the unit of a weight.
pub(crate) fn share_of(backend: &Backend) -> f64 {
    f64::from(backend.share()) / f64::from(SHARES_PER_WEIGHT)
}
