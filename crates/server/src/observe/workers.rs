//! The figures of the pool of workers.

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde_json::Value;
use throng_engine::workers::WorkerMetrics;

/// One figure, without the prefix of its metric.
pub(super) struct Figure {
    pub(super) name: &'static str,
    help: &'static str,
    value: Is,
}

enum Is {
    Gauge(usize),
    GaugeSeconds(f64),
    Counter(u64),
    CounterSeconds(f64),
}

/// All of them; 0 while there is no pool.
pub(super) fn each(figures: &WorkerMetrics) -> impl Iterator<Item = Figure> {
    let busy = figures.busy.iter().map(|busy| busy.as_secs_f64()).sum();
    let (wait, longest) = (figures.wait.as_secs_f64(), figures.longest_wait.as_secs_f64());
    [
        ("threads", "Workers", Is::Gauge(figures.workers)),
        ("running", "Jobs that run", Is::Gauge(figures.running.len())),
        ("queue_depth", "Jobs that wait for a worker", Is::Gauge(figures.queue_depth)),
        (
            "waiting_for_room",
            "Jobs that wait for room in the full queue, of those that wait",
            Is::Gauge(figures.waiting_for_room),
        ),
        ("jobs", "Jobs that have ended", Is::Counter(figures.jobs)),
        ("refused", "Jobs turned away because the queue was full", Is::Counter(figures.refused)),
        (
            "cancelled",
            "Jobs dropped before they ran, because their connection had gone",
            Is::Counter(figures.cancelled),
        ),
        ("panics", "Jobs that ended with a panic", Is::Counter(figures.panics)),
        ("wait_seconds", "Time that jobs waited before they ran", Is::CounterSeconds(wait)),
        (
            "longest_wait_seconds",
            "The longest wait before a job of the last second or two",
            Is::GaugeSeconds(longest),
        ),
        ("busy_seconds", "Time that workers ran jobs", Is::CounterSeconds(busy)),
    ]
    .into_iter()
    .map(|(name, help, value)| Figure { name, help, value })
}

impl Figure {
    pub(super) fn to_json(&self) -> Value {
        match self.value {
            Is::Gauge(value) => value.into(),
            Is::Counter(value) => value.into(),
            Is::GaugeSeconds(value) | Is::CounterSeconds(value) => value.into(),
        }
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let metric_type = match self.value {
            Is::Gauge(_) | Is::GaugeSeconds(_) => MetricType::Gauge,
            Is::Counter(_) | Is::CounterSeconds(_) => MetricType::Counter,
        };
        let name = format!("worker_{}", self.name);
        let metric = encoder.encode_descriptor(&name, self.help, None, metric_type)?;
        match self.value {
            Is::Gauge(value) => ConstGauge::new(value as i64).encode(metric),
            Is::GaugeSeconds(value) => ConstGauge::new(value).encode(metric),
            Is::Counter(value) => ConstCounter::new(value).encode(metric),
            Is::CounterSeconds(value) => ConstCounter::new(value).encode(metric),
        }
    }
}
