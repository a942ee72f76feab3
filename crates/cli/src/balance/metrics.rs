//! The balancer's figures in the text format that Prometheus reads.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use throng_balance::{Metrics, Row, Status};

/// The media type of [`text`].
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns all metrics as text.
pub(super) fn text(status: Status) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("throng_balance");
    registry.register_collector(Box::new(Shown(status)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Shown(Status);

/// A metric: name, help, type, and its value of a backend or of the balancer.
type Figure<S> = (&'static str, &'static str, MetricType, fn(&S) -> f64);

const OF_BACKENDS: &[Figure<Row>] = &[
    ("backend_weight", "Weight: its share of the load", MetricType::Gauge, |row| row.weight.into()),
    (
        "backend_share",
        "Current share of new connections (reduced during slow start)",
        MetricType::Gauge,
        |row| row.share,
    ),
    ("backend_tunnels", "Open tunnels", MetricType::Gauge, |row| row.tunnels.into()),
    ("backend_requests", "Requests in progress, handshakes included", MetricType::Gauge, |row| {
        row.requests.into()
    }),
    ("backend_handshakes", "Connects and handshakes in progress", MetricType::Gauge, |row| {
        row.handshakes.into()
    }),
    (
        "backend_handshake_p99_seconds",
        "99th percentile of the time to a handshake's answer, over the last 30 to 60 seconds",
        MetricType::Gauge,
        |row| row.handshake_p99_ms / 1000.0,
    ),
    ("backend_tunnels_opened", "Tunnels opened", MetricType::Counter, |row| {
        row.totals.tunnels as f64
    }),
    ("backend_requests_answered", "Requests answered", MetricType::Counter, |row| {
        row.totals.requests as f64
    }),
    ("backend_connects", "Connections begun", MetricType::Counter, |row| {
        row.totals.connects as f64
    }),
    (
        "backend_failures",
        "Connects, handshakes and answers that failed",
        MetricType::Counter,
        |row| row.totals.failures as f64,
    ),
    ("backend_tunnels_closed", "Tunnels that the balancer closed", MetricType::Counter, |row| {
        row.totals.closed as f64
    }),
    (
        "backend_tunnels_lost",
        "Tunnels that the backend ended without a Close frame",
        MetricType::Counter,
        |row| row.totals.lost as f64,
    ),
];

const OF_ALL: &[Figure<Metrics>] = &[
    ("connections", "Client connections open", MetricType::Gauge, |all| all.connections as f64),
    ("tunnels", "Open tunnels", MetricType::Gauge, |all| all.tunnels as f64),
    (
        "idle_backend_connections",
        "Connections to backends kept for the next request",
        MetricType::Gauge,
        |all| all.idle_backends as f64,
    ),
    ("queued", "Clients waiting for a permit for their handshake", MetricType::Gauge, |all| {
        all.queued as f64
    }),
    ("accepted", "Client connections accepted", MetricType::Counter, |all| all.accepted as f64),
    ("refused", "Client connections refused", MetricType::Counter, |all| all.refused as f64),
    ("requests", "Requests begun, upgrades included", MetricType::Counter, |all| {
        all.requests as f64
    }),
    ("tunnels_opened", "Tunnels opened", MetricType::Counter, |all| all.tunnels_opened as f64),
    ("retries", "Requests retried with another backend", MetricType::Counter, |all| {
        all.retries as f64
    }),
    ("client_errors", "Requests answered with 4xx by the balancer", MetricType::Counter, |all| {
        all.client_errors as f64
    }),
    ("backend_errors", "Requests answered with 5xx by the balancer", MetricType::Counter, |all| {
        all.backend_errors as f64
    }),
    (
        "own_failures",
        "Connects that failed for lack of a port, a descriptor or memory on this machine",
        MetricType::Counter,
        |all| all.own_failures as f64,
    ),
    (
        "tunnels_lost",
        "Tunnels that a backend ended without a Close frame",
        MetricType::Counter,
        |all| all.lost as f64,
    ),
    ("tunnels_closed", "Tunnels that the balancer closed", MetricType::Counter, |all| {
        all.closed as f64
    }),
    ("bytes_up", "Bytes from clients after the upgrade", MetricType::Counter, |all| {
        all.bytes_up as f64
    }),
    ("bytes_down", "Bytes from backends after the upgrade", MetricType::Counter, |all| {
        all.bytes_down as f64
    }),
];

/// The states of a backend.
const STATES: [&str; 3] = ["up", "down", "draining"];

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let Self(Status { backends, metrics, .. }) = self;
        let help = "1 for the state that the backend is in";
        let mut metric =
            encoder.encode_descriptor("backend_state", help, None, MetricType::Gauge)?;
        for row in backends {
            for state in STATES {
                let labels = [("backend", row.address.to_string()), ("state", state.to_owned())];
                let sample = metric.encode_family(&labels)?;
                ConstGauge::new(i64::from(row.state == state)).encode(sample)?;
            }
        }
        for &(name, help, kind, value) in OF_BACKENDS {
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for row in backends {
                let labels = [("backend", row.address.to_string())];
                encode(value(row), kind, metric.encode_family(&labels)?)?;
            }
        }
        for &(name, help, kind, value) in OF_ALL {
            encode(value(metrics), kind, encoder.encode_descriptor(name, help, None, kind)?)?;
        }
        Ok(())
    }
}

fn encode(
    value: f64,
    kind: MetricType,
    encoder: prometheus_client::encoding::MetricEncoder<'_>,
) -> std::fmt::Result {
    match kind {
        MetricType::Counter => ConstCounter::new(value as u64).encode(encoder),
        _ => ConstGauge::new(value).encode(encoder),
    }
}
