//! Metrics of the worker pool.

use std::time::Duration;

use serde_json::Value;
use throng_engine::workers::WorkerMetrics;
use throng_http::openmetrics::{self, Type, Writer};

/// One metric; its name lacks the prefix.
pub(super) struct Metric {
    pub(super) name: &'static str,
    help: &'static str,
    value: MetricValue,
}

enum MetricValue {
    Gauge(usize),
    GaugeSeconds(f64),
    Counter(u64),
    CounterSeconds(f64),
}

/// Returns all metrics; each is 0 while there is no pool.
pub(super) fn each(figures: &WorkerMetrics) -> impl Iterator<Item = Metric> {
    // The sum of no floating-point numbers is -0.0.
    let busy = figures.busy.iter().sum::<Duration>().as_secs_f64();
    let (wait, longest) = (figures.waits.sum().as_secs_f64(), figures.longest_wait.as_secs_f64());
    [
        ("threads", "Worker threads", MetricValue::Gauge(figures.workers)),
        ("running", "Jobs that are running", MetricValue::Gauge(figures.running.len())),
        (
            "queue_depth",
            "Jobs that wait for a worker thread",
            MetricValue::Gauge(figures.queue_depth),
        ),
        (
            "waiting_for_capacity",
            "Jobs, of those that wait, that wait for room in the full queue",
            MetricValue::Gauge(figures.waiting_for_capacity),
        ),
        ("jobs", "Jobs that have ended", MetricValue::Counter(figures.jobs)),
        (
            "refused",
            "Jobs refused because the queue was full",
            MetricValue::Counter(figures.refused),
        ),
        (
            "cancelled",
            "Jobs dropped before they ran because their connection had ended",
            MetricValue::Counter(figures.cancelled),
        ),
        ("panics", "Jobs that panicked", MetricValue::Counter(figures.panics)),
        ("wait_seconds", "Time jobs waited before they ran", MetricValue::CounterSeconds(wait)),
        (
            "longest_wait_seconds",
            "The longest wait of a job that started in the last two seconds",
            MetricValue::GaugeSeconds(longest),
        ),
        ("busy_seconds", "Time worker threads ran jobs", MetricValue::CounterSeconds(busy)),
    ]
    .into_iter()
    .map(|(name, help, value)| Metric { name, help, value })
}

impl Metric {
    pub(super) fn to_json(&self) -> Value {
        match self.value {
            MetricValue::Gauge(value) => value.into(),
            MetricValue::Counter(value) => value.into(),
            MetricValue::GaugeSeconds(value) | MetricValue::CounterSeconds(value) => value.into(),
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        let (kind, value): (_, openmetrics::Value) = match self.value {
            MetricValue::Gauge(value) => (Type::Gauge, (value as u64).into()),
            MetricValue::GaugeSeconds(value) => (Type::Gauge, value.into()),
            MetricValue::Counter(value) => (Type::Counter, value.into()),
            MetricValue::CounterSeconds(value) => (Type::Counter, value.into()),
        };
        writer.metric(&format!("worker_{}", self.name), self.help, kind).sample(&[], value);
    }
}
