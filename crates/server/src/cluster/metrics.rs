//! Metrics of a node of a cluster.

#[cfg(feature = "metrics")]
use serde_json::{Value, json};
use throng_cluster::redis::{Health, StatusSnapshot};
use throng_http::openmetrics::{Type, Writer};

use super::Node;

impl Node {
    /// Writes the figures of the node, if the server has one.
    #[cfg(feature = "metrics")]
    pub(crate) fn write(&self, writer: &mut Writer) {
        if let Some((relay, _)) = &self.0 {
            let status = relay.bus.status();
            write(&status.snapshot(), status.parts().1, writer);
        }
    }

    /// Writes the metrics of a node that has just started.
    #[cfg(feature = "metrics")]
    pub(crate) fn write_idle(writer: &mut Writer) {
        write(&StatusSnapshot::default(), 0, writer);
    }

    /// Returns the figures of the node as JSON, if the server has one: whether the broker delivers,
    /// and if not, for how long and why.
    #[cfg(feature = "metrics")]
    pub(crate) fn to_json(&self) -> Option<Value> {
        let (relay, _) = self.0.as_ref()?;
        let bus = &relay.bus;
        let now = bus.status().snapshot();
        let (parts, parts_down) = bus.status().parts();
        let (state, time, why) = match bus.status().health() {
            Health::Up => ("up", None, None),
            Health::Degraded(time, why) if now.is_up => ("behind", Some(time), Some(why)),
            Health::Degraded(time, why) => ("down", Some(time), Some(why)),
            Health::Unlinked(time, why) => ("unlinked", Some(time), Some(why)),
        };
        Some(json!({
            "up": now.is_up,
            "state": state,
            "down_seconds": time.map(|time| time.as_secs()),
            "why": why,
            "parts": parts,
            "parts_down": parts_down,
            "reconnects": now.reconnects,
            "probe_failures": now.probe_failures,
            "published": now.published,
            "refused": now.refused,
            "unknown": now.unknown,
            "postponed": now.postponed,
            "received": now.received,
            "malformed": now.malformed,
            "server": format!("{:016x}", relay.node),
            "rules": relay.rules(),
            "differing": bus.status().differing(),
            "other_rules": now.other_rules,
            "failed_reads": now.failed_reads,
            "filled": now.filled,
            "lost": now.lost,
            "gaps": now.gaps,
            "channels": now.channels,
            "pending_bytes": now.pending_bytes,
            "held_bytes": now.held_bytes,
            "overfull": now.overfull,
            "lag_microseconds": u64::try_from(now.lag.as_micros()).unwrap_or(u64::MAX),
        }))
    }
}

/// Writes the metrics; `down` is the number of unavailable parts of the broker.
#[cfg(feature = "metrics")]
fn write(now: &StatusSnapshot, down: usize, writer: &mut Writer) {
    for (name, help, kind, value) in [
        ("up", "Whether the broker delivers", Type::Gauge, u64::from(now.is_up)),
        ("parts_down", "Servers or partitions that deliver nothing", Type::Gauge, down as u64),
        ("reconnects", "Attempts to connect again", Type::Counter, now.reconnects),
        ("probe_failures", "Probes that did not come back", Type::Counter, now.probe_failures),
        ("malformed", "Publications and commands dropped unread", Type::Counter, now.malformed),
        ("other_rules", "From servers with other rules", Type::Counter, now.other_rules),
        ("differing", "Servers with other rules", Type::Gauge, now.differing),
        ("failed_reads", "Histories not read, asked again", Type::Counter, now.failed_reads),
        ("failed_presence", "Presence refused", Type::Counter, now.failed_presence),
        ("postponed", "Publications refused for now, sent again", Type::Counter, now.postponed),
        ("channels", "Channels that are followed", Type::Gauge, now.channels),
        ("pending_bytes", "Memory not acknowledged", Type::Gauge, now.pending_bytes),
        ("held_bytes", "Memory that waits for a history", Type::Gauge, now.held_bytes),
        ("overfull", "Publications not held, asked for", Type::Counter, now.overfull),
        ("gaps", "Gaps in channels without history", Type::Counter, now.gaps),
    ] {
        writer.metric(&format!("cluster_{name}"), help, kind).sample(&[], value);
    }
    let outcomes = [
        ("published", now.published),
        ("refused", now.refused),
        ("unknown", now.unknown),
        ("received", now.received),
    ];
    let help = "Publications to the broker, and from it";
    let mut metric = writer.metric("cluster_publications", help, Type::Counter);
    for (outcome, value) in outcomes {
        metric.sample(&[("outcome", outcome)], value);
    }
    let help = "Sequences that were caught up with, or had a hole";
    let mut metric = writer.metric("cluster_fills", help, Type::Counter);
    for (outcome, value) in [("filled", now.filled), ("lost", now.lost)] {
        metric.sample(&[("outcome", outcome)], value);
    }
    let help = "Microseconds from a publication to this server, of the last one";
    let lag = u64::try_from(now.lag.as_micros()).unwrap_or(u64::MAX);
    writer.metric("cluster_lag_microseconds", help, Type::Gauge).sample(&[], lag);
}
