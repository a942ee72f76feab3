//! Histograms of durations, the codes that sessions were closed with, and why the server ended
//! connections.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use throng_engine::{Durations, Histogram, Snapshot};
use throng_http::openmetrics::{Type, Writer};

/// Measurements of all shards together.
#[derive(Debug, Default)]
pub(super) struct Figures {
    durations: Durations,
    waits: Histogram,
    closes: Vec<(&'static str, u64)>,
    losses: Vec<(&'static str, u64)>,
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
    /// Sums the histograms of the shards; `waits` has the waiting times of jobs for a worker.
    pub(super) fn of(snapshots: &[Arc<Snapshot>], waits: Histogram) -> Self {
        let mut durations = Durations::default();
        let [mut closes, mut losses, mut faults] = [Vec::new(), Vec::new(), Vec::new()];
        for snapshot in snapshots {
            durations.add(&snapshot.durations());
            add(&mut closes, snapshot.closes());
            add(&mut losses, snapshot.losses());
            add(&mut faults, snapshot.faults());
        }
        Self { durations, waits, closes, losses, faults }
    }

    /// Adds the counts by word, and the durations of turns: seconds, and the turns up to them.
    pub(super) fn add_to(&self, figures: &mut Map<String, Value>) {
        for (name, counts) in [
            ("sessions_closed", &self.closes),
            ("sessions_lost", &self.losses),
            ("connections_ended", &self.faults),
        ] {
            let counts = counts.iter().map(|(word, count)| ((*word).to_owned(), (*count).into()));
            figures.insert(name.to_owned(), Value::Object(counts.collect()));
        }
        let turns = &self.durations.turns;
        let bucket = |(bound, count): (Duration, u64)| json!([bound.as_secs_f64(), count]);
        figures.insert("loop_lag".to_owned(), turns.buckets().map(bucket).collect());
        figures.insert("loop_lag_count".to_owned(), turns.count().into());
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
        let help = "Sessions that ended without a Close frame, by the seconds for which their \
                    client had been silent: many of one range are ended by a proxy between. \
                    Sessions without heartbeats, or that were pinged since, are not counted";
        let mut metric = writer.metric("sessions_lost", help, Type::Counter);
        for (seconds, count) in &self.losses {
            metric.sample(&[("silent_seconds", seconds)], *count);
        }
        let help = "Connections and requests that the server ended, by reason: faults of clients \
                    and handlers, and limits";
        let mut metric = writer.metric("connections_ended", help, Type::Counter);
        for (reason, count) in &self.faults {
            metric.sample(&[("reason", reason)], *count);
        }
    }
}
