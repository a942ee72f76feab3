//! The balancer's figures in the text format that Prometheus reads.

use std::time::Duration;

use throng::metrics::openmetrics::{self, Type, Writer};
use throng_balance::{
    DEFAULT_POOL, LimitRow, ListenerRow, Metrics, NameRow, Row, Status, TlsStatus,
};

use super::site_metrics::{CLASSES, write_pools, write_sites};
use crate::build_labels::BUILD_LABELS;

/// Writes all metrics.
pub(super) fn write(status: &Status, writer: &mut Writer) {
    let Status { backends, names, metrics, tls, limits, pools, sites, listeners, .. } = status;
    writer.set_prefix("throng_balance");
    if let Some(tls) = tls {
        write_tls(tls, writer);
    }
    write_backends(backends, writer);
    write_pools(pools, writer);
    write_sites(sites, writer);
    for &(name, help, kind, value) in OF_NAMES {
        let mut metric = writer.metric(name, help, kind);
        for row in names {
            metric.sample(&[("name", &row.name)], rounded(value(row), kind));
        }
    }
    for &(name, help, kind, value) in OF_ALL {
        writer.metric(name, help, kind).sample(&[], rounded(value(metrics), kind));
    }
    let help = "Connections and tunnels that the balancer ended by a rule of its own, by reason";
    let mut metric = writer.metric("connections_ended", help, Type::Counter);
    for (reason, count) in [
        ("memory", metrics.memory_ended),
        ("silent", metrics.silent_ended),
        ("unread", metrics.unread_ended),
        ("idle", metrics.ended_idle),
        ("gone", metrics.ended_gone),
        ("new", metrics.ended_new),
        ("unasked", metrics.unasked_ended),
        ("half_closed", metrics.half_closed_ended),
        ("circle", metrics.circles_ended),
        ("lifetime", metrics.lifetime_ended),
        ("rate", metrics.beyond_rate),
    ] {
        metric.sample(&[("reason", reason)], count);
    }
    for &(name, help, kind, value) in OF_LISTENERS {
        let mut metric = writer.metric(name, help, kind);
        for row in listeners {
            metric.sample(&[("listener", &row.name)], value(row));
        }
    }
    let help = "Tunnels that a limit counts, handshakes under way included";
    let mut metric = writer.metric("limit_tunnels", help, Type::Gauge);
    for row in limits {
        metric.sample(&[("limit", &row.name)], row.tunnels);
    }
    for &(name, help, value) in OF_LIMITS {
        let mut metric = writer.metric(name, help, Type::Counter);
        for row in limits {
            metric.sample(&[("limit", &row.name)], value(row));
        }
    }
    let help =
        "Whether fewer than half of the backends are up: tunnels of those that are down stay";
    writer.metric("panic", help, Type::Gauge).sample(&[], u64::from(status.panic));
    let help = "Times when fewer than half of the backends began to be up";
    writer.metric("panics", help, Type::Counter).sample(&[], status.panics);
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    let labels: Vec<_> = version.into_iter().chain(BUILD_LABELS.iter().copied()).collect();
    let help = "The version of the balancer, as labels; the value is 1";
    writer.metric("build_info", help, Type::Gauge).sample(&labels, 1);
}

/// With more backends, samples of 0 are left out, and the times of their responses have no buckets:
/// the page would have several megabytes.
const MOST_WHOLE: usize = 256;

fn write_backends(backends: &[Row], writer: &mut Writer) {
    let is_whole = backends.len() <= MOST_WHOLE;
    let help = "1 for the state that the backend is in";
    let mut metric = writer.metric("backend_state", help, Type::Gauge);
    for row in backends {
        let of = Labels::of(row);
        for state in STATES.into_iter().filter(|state| is_whole || row.state == *state) {
            metric.sample(&of.with(&[("state", state)]), u64::from(row.state == state));
        }
    }
    for &(name, help, kind, value) in OF_BACKENDS {
        let mut metric = writer.metric(name, help, kind);
        for row in backends.iter().filter(|row| is_whole || value(row) != 0.0) {
            let sample = rounded(value(row), kind);
            metric.sample(&Labels::of(row).with(&[]), sample);
        }
    }
    write_answers(backends, is_whole, writer);
}

/// Writes the metrics of a balancer that has just started, with TLS.
pub(crate) fn write_idle(writer: &mut Writer) {
    write(&Status { tls: Some(TlsStatus::default()), ..Status::default() }, writer);
}

/// Counters are whole numbers.
fn rounded(value: f64, kind: Type) -> openmetrics::Value {
    match kind {
        Type::Counter => (value as u64).into(),
        _ => value.into(),
    }
}

/// A metric: name, help, type, and its value of a backend or of the balancer.
type Figure<S> = (&'static str, &'static str, Type, fn(&S) -> f64);

/// Figures of a listener with a table.
type ListenerFigure = (&'static str, &'static str, Type, fn(&ListenerRow) -> u64);

const OF_LISTENERS: &[ListenerFigure] = &[
    ("listener_connections", "Clients of a listener", Type::Gauge, |row| row.connections as u64),
    ("listener_accepted", "Clients that a listener has accepted", Type::Counter, |row| {
        row.accepted
    }),
    (
        "listener_refused",
        "Clients beyond the max_connections of a listener",
        Type::Counter,
        |row| row.refused,
    ),
];

/// Counters of a limit of rates.
type LimitFigure = (&'static str, &'static str, fn(&LimitRow) -> u64);

const OF_LIMITS: &[LimitFigure] = &[
    ("limit_passed", "Requests or handshakes that a limit counted and let pass", |row| row.passed),
    ("limit_refused", "Requests or handshakes beyond a limit; with dry_run they pass", |row| {
        row.refused
    }),
    (
        "limit_keys_forgotten",
        "Keys that a limit forgot before their time, since its memory was full",
        |row| row.forgotten_keys,
    ),
];

const OF_BACKENDS: &[Figure<Row>] = &[
    ("backend_weight", "Weight: its share of the load", Type::Gauge, |row| row.weight.into()),
    (
        "backend_share",
        "Current share of new connections (reduced during slow start)",
        Type::Gauge,
        |row| row.share,
    ),
    ("backend_tunnels", "Open tunnels", Type::Gauge, |row| row.tunnels.into()),
    ("backend_requests", "Requests in progress, handshakes included", Type::Gauge, |row| {
        row.requests.into()
    }),
    ("backend_handshakes", "Connects and handshakes in progress", Type::Gauge, |row| {
        row.handshakes.into()
    }),
    (
        "backend_max_connections",
        "Limit of open tunnels and requests in progress together; 0 = none",
        Type::Gauge,
        |row| row.max_connections.into(),
    ),
    (
        "backend_handshake_p99_seconds",
        "99th percentile of the time to a handshake's answer, over the last 30 to 60 seconds",
        Type::Gauge,
        |row| row.handshake_p99_ms / 1000.0,
    ),
    ("backend_tunnels_opened", "Tunnels opened", Type::Counter, |row| row.totals.tunnels as f64),
    ("backend_requests_answered", "Requests answered", Type::Counter, |row| {
        row.totals.requests as f64
    }),
    ("backend_connects", "Connections begun", Type::Counter, |row| row.totals.connects as f64),
    ("backend_failures", "Connects, handshakes and answers that failed", Type::Counter, |row| {
        row.totals.failures as f64
    }),
    ("backend_tunnels_closed", "Tunnels that the balancer closed", Type::Counter, |row| {
        row.totals.closed as f64
    }),
    (
        "backend_tunnels_lost",
        "Tunnels that the backend ended without a Close frame",
        Type::Counter,
        |row| row.totals.lost as f64,
    ),
];

const OF_NAMES: &[Figure<NameRow>] = &[
    ("name_addresses", "Addresses of a backend's name", Type::Gauge, |row| {
        row.addresses.len() as f64
    }),
    ("name_lookups_failed", "Failed lookups of a backend's name", Type::Counter, |row| {
        row.failures as f64
    }),
];

const OF_ALL: &[Figure<Metrics>] = &[
    ("connections", "Client connections open", Type::Gauge, |all| all.connections as f64),
    ("tunnels", "Open tunnels", Type::Gauge, |all| all.tunnels as f64),
    (
        "idle_backend_connections",
        "Connections to backends kept for the next request",
        Type::Gauge,
        |all| all.idle_backends as f64,
    ),
    ("clients_queued", "Clients whose request waits for a backend", Type::Gauge, |all| {
        all.queued as f64
    }),
    ("connections_accepted", "Client connections accepted", Type::Counter, |all| {
        all.accepted as f64
    }),
    ("connections_refused", "Client connections refused", Type::Counter, |all| all.refused as f64),
    (
        "requests_refused_full",
        "Requests answered with 503, as max_connections was reached",
        Type::Counter,
        |all| all.answered_full as f64,
    ),
    (
        "requests_refused_full_address",
        "Requests answered with 429, as max_connections_per_address was reached",
        Type::Counter,
        |all| all.answered_full_address as f64,
    ),
    (
        "proxy_protocol_errors",
        "Connections closed because they came from no trusted proxy, or their PROXY header was \
         wrong or late",
        Type::Counter,
        |all| all.proxy_errors as f64,
    ),
    ("requests", "Requests begun, upgrades included", Type::Counter, |all| all.requests as f64),
    ("tunnels_opened", "Tunnels opened", Type::Counter, |all| all.tunnels_opened as f64),
    (
        "tunnels_taken_over",
        "Tunnels taken over from an earlier process in an upgrade",
        Type::Counter,
        |all| all.tunnels_taken_over as f64,
    ),
    (
        "connections_passed_through",
        "Connections to be passed through by their server name, also those that no backend \
         accepted",
        Type::Counter,
        |all| all.passed_through as f64,
    ),
    (
        "requests_refused_queue_full",
        "Requests answered with 503, as max_queue others waited",
        Type::Counter,
        |all| all.queue_full as f64,
    ),
    (
        "requests_refused_queue_late",
        "Requests answered with 503, as they had waited for timeouts.queue",
        Type::Counter,
        |all| all.queue_late as f64,
    ),
    ("retries", "Requests retried with another backend", Type::Counter, |all| all.retries as f64),
    (
        "retries_refused",
        "Requests not retried, since a fifth of their pool's were, and at least 3",
        Type::Counter,
        |all| all.retries_refused as f64,
    ),
    ("client_errors", "Requests answered with 4xx by the balancer", Type::Counter, |all| {
        all.client_errors as f64
    }),
    (
        "backend_errors",
        "Requests answered with 5xx by the balancer, and connections to be passed through that no \
         backend accepted",
        Type::Counter,
        |all| all.backend_errors as f64,
    ),
    (
        "own_failures",
        "Connects that failed for lack of a port, a descriptor or memory on this machine",
        Type::Counter,
        |all| all.own_failures as f64,
    ),
    ("tunnels_lost", "Tunnels that a backend ended without a Close frame", Type::Counter, |all| {
        all.lost as f64
    }),
    ("tunnels_closed", "Tunnels that the balancer closed", Type::Counter, |all| all.closed as f64),
    ("bytes_up", "Bytes from clients after the upgrade", Type::Counter, |all| all.bytes_up as f64),
    ("bytes_down", "Bytes from backends after the upgrade", Type::Counter, |all| {
        all.bytes_down as f64
    }),
];

/// The labels of a backend: its address, and its pool unless that is the default.
struct Labels<'r> {
    address: String,
    pool: Option<&'r str>,
}

impl<'r> Labels<'r> {
    fn of(row: &'r Row) -> Self {
        let pool = Some(&*row.pool).filter(|pool| *pool != DEFAULT_POOL);
        Self { address: row.address.to_string(), pool }
    }

    fn with<'l>(&'l self, more: &[(&'l str, &'l str)]) -> Vec<(&'l str, &'l str)> {
        let own = std::iter::once(("backend", &*self.address));
        own.chain(self.pool.map(|pool| ("pool", pool))).chain(more.iter().copied()).collect()
    }
}

fn write_answers(backends: &[Row], is_whole: bool, writer: &mut Writer) {
    let help = "Responses of a backend by the class of their status, upgrades included";
    let mut metric = writer.metric("backend_responses", help, Type::Counter);
    for row in backends {
        let of = Labels::of(row);
        let classes = CLASSES.into_iter().zip(row.totals.statuses);
        for (class, count) in classes.filter(|(_, count)| is_whole || *count > 0) {
            metric.sample(&of.with(&[("status", class)]), count);
        }
    }
    let help = "Time from the first byte sent to a backend, or its connection, to the head of its \
                response";
    let mut metric = writer.metric("backend_first_byte_seconds", help, Type::Histogram);
    for row in backends.iter().filter(|row| is_whole || row.totals.first_bytes.count > 0) {
        let times = row.totals.first_bytes;
        let shown = if is_whole { &times.up_to_micros[..] } else { &[] };
        let buckets = shown.iter().map(|(bound, count)| (Duration::from_micros(*bound), *count));
        let sum = Duration::from_micros(times.sum_micros);
        metric.histogram(&Labels::of(row).with(&[]), buckets, times.count, sum);
    }
}

/// The states of a backend.
const STATES: [&str; 4] = ["up", "down", "draining", "removed"];

fn write_tls(tls: &TlsStatus, writer: &mut Writer) {
    let help = "TLS handshakes of clients that were completed";
    let mut metric = writer.metric("tls_handshakes", help, Type::Counter);
    for (kind, count) in [("full", tls.full), ("resumed", tls.resumed)] {
        metric.sample(&[("kind", kind)], count);
    }
    let help = "TLS handshakes of clients that failed, by cause";
    let mut metric = writer.metric("tls_handshake_failures", help, Type::Counter);
    for (cause, count) in &tls.failed {
        metric.sample(&[("cause", cause)], *count);
    }
    let help = "TLS sessions of clients that failed after their handshake, by cause";
    let mut metric = writer.metric("tls_session_failures", help, Type::Counter);
    for (cause, count) in &tls.sessions_failed {
        metric.sample(&[("cause", cause)], *count);
    }
    let help = "Certificates ordered from an authority (ACME)";
    let mut metric = writer.metric("tls_certificate_orders", help, Type::Counter);
    for (outcome, count) in [("issued", tls.issued), ("failed", tls.issue_failures)] {
        metric.sample(&[("outcome", outcome)], count);
    }
    let help = "When a certificate expires, in seconds since 1970";
    let mut metric = writer.metric("tls_certificate_expiry_seconds", help, Type::Gauge);
    let mut shown = Vec::new();
    for (name, expires) in &tls.certificates {
        // An EC and an RSA certificate may have one name.
        if !shown.contains(&name) {
            metric.sample(&[("name", name)], u64::try_from(*expires).unwrap_or(0));
            shown.push(name);
        }
    }
}
