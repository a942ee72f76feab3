//! The status for operators: plain values that serialize under their names.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use serde::Serialize;
use throng_io::{PeerAddress, SessionFailure, TlsFailure};
use throng_tls::TlsServer;

use crate::backend::{Backend, FirstByteTimes, SHARES_PER_WEIGHT};
use crate::limit::LimitRow;
use crate::listener::ListenerRow;
use crate::report::Metrics;
use crate::site::SiteRow;

/// The status of a balancer at a moment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// Time since its start.
    pub uptime_seconds: f64,
    /// The word of the pick.
    pub pick: &'static str,
    /// All backends, in the order they were added.
    pub backends: Vec<Row>,
    /// All backends that have names.
    pub names: Vec<NameRow>,
    /// Whether fewer than half of the backends are up. If so, backends that are down keep their
    /// tunnels.
    pub panic: bool,
    /// The number of times that panic mode began.
    pub panics: u64,
    /// Sums over all shards, at most a second old.
    pub metrics: Metrics,
    /// The last connect that failed because of the balancer itself, with the remedy. It does not
    /// count against a backend.
    pub own_failure: Option<LastFailure>,
    /// The listeners with tables.
    pub listeners: Vec<ListenerRow>,
    /// The limits of rates.
    pub limits: Vec<LimitRow>,
    /// The pools, first the default.
    pub pools: Vec<PoolRow>,
    /// The sites, and routes with [`metrics`](crate::RouteConfig::metrics).
    pub sites: Vec<SiteRow>,
    /// TLS of clients, if there is any.
    pub tls: Option<TlsStatus>,
}

/// TLS of clients in [`Status`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct TlsStatus {
    /// Complete handshakes with a key exchange and a certificate.
    pub full: u64,
    /// Complete handshakes that resumed an earlier session.
    pub resumed: u64,
    /// Failed handshakes by cause.
    pub failed: Vec<(&'static str, u64)>,
    /// Sessions that failed after their handshake, by cause.
    pub sessions_failed: Vec<(&'static str, u64)>,
    /// Certificates that an authority has issued since the start (ACME).
    pub issued: u64,
    /// Failed attempts to have a certificate issued.
    pub issue_failures: u64,
    /// The certificates, by name, and when each expires, in seconds since 1970.
    pub certificates: Vec<(String, i64)>,
}

impl TlsStatus {
    pub(crate) fn of(server: &TlsServer) -> Self {
        let (stats, orders) = (server.stats(), server.orders());
        let sessions = server.session_stats();
        let certificates = server.certificates().into_iter();
        Self {
            full: stats.full,
            resumed: stats.resumed,
            failed: TlsFailure::LABELS.into_iter().zip(stats.failed).collect(),
            sessions_failed: SessionFailure::LABELS.into_iter().zip(sessions.failed).collect(),
            issued: orders.issued,
            issue_failures: orders.failed,
            certificates: certificates.map(|it| (it.name, it.expires)).collect(),
        }
    }
}

/// A backend in [`Status`].
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its address, or the path of its Unix socket, which is also its name in its pool.
    pub address: PeerAddress,
    /// The name of its pool.
    pub pool: String,
    /// The configured name that has this address, if it has one.
    pub name: Option<String>,
    /// `up`, `down`, `draining`, or `removed`: no longer in any list, with its tunnels open.
    pub state: &'static str,
    /// Its source: `file`, `dns` for an address of a name in the file, `api`, `registered`, or
    /// `none` if it leaves with its last tunnel.
    pub source: &'static str,
    /// The configured weight.
    pub weight: u32,
    /// Its current share of new connections, in the unit of `weight` (reduced during slow start).
    pub share: f64,
    /// Whether connections to it begin with a PROXY v2 header.
    pub send_proxy: bool,
    /// The server names whose connections are passed through to it.
    pub passthrough: Vec<String>,
    /// Live tunnels.
    pub tunnels: u32,
    /// HTTP requests under way, handshakes included.
    pub requests: u32,
    /// Connects and handshakes under way.
    pub handshakes: u32,
    /// The limit of `tunnels` and `requests` together; 0: none.
    pub max_connections: u32,
    /// Whether it gets clients only while no other of its pool is up.
    pub backup: bool,
    /// Counters since it was added.
    pub totals: RowTotals,
    /// The 99th percentile of its handshakes of the last 30 to 60 seconds, in milliseconds; 0 if
    /// there were none.
    pub handshake_p99_ms: f64,
    /// The progress of its drain, if it is draining.
    pub drain: Option<DrainProgress>,
    /// Seconds until its registration ends without a heartbeat, if it registered itself.
    pub expires_in_seconds: Option<f64>,
    /// Whether it gets no new clients but keeps its tunnels: it was removed, or it is down and its
    /// checks have not failed.
    pub keeps_tunnels: bool,
    /// Its last failure.
    pub last_failure: Option<LastFailure>,
}

/// A pool in [`Status`].
#[derive(Clone, Debug, Serialize)]
pub struct PoolRow {
    /// Its name.
    pub name: String,
    /// The word of its pick.
    pub pick: &'static str,
    /// Its backends.
    pub backends: usize,
    /// Its backends that are up.
    pub up: usize,
    /// Live tunnels of its backends.
    pub tunnels: u64,
    /// Requests under way at its backends, handshakes included.
    pub requests: u64,
    /// Requests that wait for a backend.
    pub queued: u32,
    /// The pool that serves while none of its backends is up.
    pub fallback: Option<String>,
    /// Final responses of its backends, 101 included, by class: 1xx to 5xx.
    pub statuses: [u64; 5],
}

/// A configured name of backends in [`Status`].
#[derive(Clone, Debug, Serialize)]
pub struct NameRow {
    /// The name and the port.
    pub name: String,
    /// The addresses of the last lookup that succeeded.
    pub addresses: Vec<SocketAddr>,
    /// Lookups that failed.
    pub failures: u64,
    /// The failure of the last lookup, if it failed.
    pub last_failure: Option<LastFailure>,
}

/// The counters of [`Totals`](crate::Totals).
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
    /// Tunnels that the balancer closed.
    pub closed: u64,
    /// Tunnels that ended without a Close frame from its side.
    pub lost: u64,
    /// Final responses, 101 included, by class: 1xx to 5xx.
    pub statuses: [u64; 5],
    /// The times from request to response head for the final responses.
    pub first_bytes: FirstByteTimes,
}

/// The progress of a drain.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DrainProgress {
    /// Tunnels left.
    pub left: u32,
    /// Tunnels closed for it.
    pub closed: u64,
    /// The time until all have been sent a Close frame, at the drain's rate.
    pub seconds_left: u32,
}

/// The last failure of a backend, or of the balancer itself.
#[derive(Clone, Debug, Serialize)]
pub struct LastFailure {
    /// The failure and, where there is one, the remedy.
    pub text: String,
    /// The time, in seconds since 1970.
    pub unix_seconds: u64,
}

/// The changes of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
    /// Backends that are new in the list, or came back.
    pub added: Vec<PeerAddress>,
    /// Backends that leave with their last tunnel.
    pub removed: Vec<RemovedBackend>,
    /// Backends with a new weight.
    pub reweighted: Vec<PeerAddress>,
    /// Backends to which new connections are made in another way: with or without a PROXY header
    /// or TLS, with another name in TLS, passed through for other names, with another limit, or as
    /// a backup or not.
    pub modified: Vec<PeerAddress>,
    /// Whether a setting changed.
    pub settings: bool,
    /// Keys whose change takes effect only at the next start.
    pub needs_restart: Vec<&'static str>,
}

/// A backend that a reload removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RemovedBackend {
    /// Its address.
    pub address: PeerAddress,
    /// Its tunnels.
    pub tunnels: u32,
    /// The number of them closed a second, at most; `None`: they stay.
    pub rate: Option<u32>,
}

/// The effect of a [removal](crate::Balancer::remove).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Removal {
    /// Its tunnels.
    pub tunnels: u32,
    /// The number of them closed a second, at most; `None`: they stay.
    pub rate: Option<u32>,
    /// Whether no other backend is up.
    pub last: bool,
}

/// The expected drain of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Draining {
    /// Its tunnels.
    pub tunnels: u32,
    /// The number of them closed a second, at most.
    pub rate: u32,
    /// Whether no other backend is up.
    pub last: bool,
}

/// The expected drain of all backends of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolDraining {
    /// Its backends.
    pub backends: usize,
    /// Their tunnels.
    pub tunnels: u64,
    /// The number of them closed a second, at most.
    pub rate: u64,
}

/// The tunnels that [`rebalance`](crate::Balancer::rebalance) closes, or would close.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rebalance {
    /// Backends that have more than their part.
    pub moves: Vec<Surplus>,
    /// Tunnels to close in all.
    pub total: u64,
    /// Tunnels closed a second, over all backends.
    pub rate: u32,
    /// The duration of the closing.
    pub seconds: u64,
    /// The largest deviation of a backend from its part now, as a fraction of that part.
    pub spread_before: f64,
    /// The largest deviation once the closed tunnels have reconnected.
    pub spread_after: f64,
    /// Whether nothing was done.
    pub dry_run: bool,
}

/// A backend with more tunnels than its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Surplus {
    /// Its address.
    pub address: PeerAddress,
    /// Its tunnels.
    pub tunnels: u32,
    /// The number of them that are closed.
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
            statuses: totals.statuses.each_ref().map(|status| status.load(Relaxed)),
            first_bytes: FirstByteTimes::of(&totals.first_bytes),
        }
    }
}

/// Returns [`Backend::share`] in the unit of a weight.
pub(crate) fn share_of(backend: &Backend) -> f64 {
    f64::from(backend.share()) / f64::from(SHARES_PER_WEIGHT)
}
