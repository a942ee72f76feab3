//! Histograms of durations, the codes that sessions were closed with, and why the server ended
//! connections.

use std::sync::Arc;

use throng_engine::{Durations, Histogram, Snapshot};
use throng_http::openmetrics::{Type, Writer};

/// Measurements of all shards together.
#[derive(Debug, Default)]
pub(super) struct Figures {
    durations: Durations,
    waits: Histogram,
    closes: Vec<(&'static str, u64)>,
    faults: Vec<(&'static str, u64)>,
}

fn add(sums: &mut Vec<(&'static str, u64)>, counts: impl Iterator<Item = (&'static str, u64)>) {
    for (at, (word, count)) in counts.enumerate() {
        match sums.get_mut(at) {
            Some((_, sum)) => *sum += count,
            None => sums.push((word, count)),
        }
    }
}

impl Figures {
    /// `waits` are the waiting times of jobs for a worker.
    pub(super) fn of(snapshots: &[Arc<Snapshot>], waits: Histogram) -> Self {
        let mut durations = Durations::default();
        let (mut closes, mut faults) = (Vec::new(), Vec::new());
        for snapshot in snapshots {
            durations.add(&snapshot.durations());
            add(&mut closes, snapshot.closes());
            add(&mut faults, snapshot.faults());
        }
        Self { durations, waits, closes, faults }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        let Durations { turns, handshakes, requests, publications, .. } = &self.durations;
        let mut histogram = |name, help, of: &Histogram| {
            let mut metric = writer.metric(name, help, Type::Histogram);
            metric.histogram(&[], of.buckets(), of.count(), of.sum());
        };
        histogram(
            "loop_lag_seconds",
            "Duration of each turn of an event loop: how long an event may have waited for others",
            turns,
        );
        histogram(
            "handshake_duration_seconds",
            "Time from accepting a connection to opening its WebSocket session, of a sample: one \
             handshake of each shard at a time",
            handshakes,
        );
        histogram(
            "http_request_duration_seconds",
            "Time from the head of a request to its complete response, of a sample: one request in \
             16, and one of each shard at a time",
            requests,
        );
        histogram(
            "publish_write_duration_seconds",
            "Time from a publication to the end of the turn that wrote it to receivers, of a \
             sample: one publication in 16, by each shard that has receivers, one a turn at most",
            publications,
        );
        histogram(
            "worker_wait_duration_seconds",
            "Time that each offloaded job waited for a worker thread",
            &self.waits,
        );
        let help = "WebSocket sessions closed, by the code of the Close frame; 1006 without one";
        let mut metric = writer.metric("sessions_closed", help, Type::Counter);
        for (code, count) in &self.closes {
            metric.sample(&[("code", code)], *count);
        }
        let help = "Connections and requests that the server ended, by reason: faults of clients \
                    and handlers, and limits";
        let mut metric = writer.metric("connections_ended", help, Type::Counter);
        for (reason, count) in &self.faults {
            metric.sample(&[("reason", reason)], *count);
        }
    }
}
