//! Metrics of presence in channels.

use serde_json::Value;
use throng_engine::PresenceCounts;
use throng_http::openmetrics::{Type, Writer};

/// Returns the figures with their names and descriptions.
fn each(counts: &PresenceCounts) -> [(&'static str, &'static str, Type, u64); 7] {
    [
        ("channels", "Channels with presence that have members", Type::Gauge, counts.channels),
        ("clients", "Members listed in channels with presence", Type::Gauge, counts.clients),
        ("bytes", "Memory of presence", Type::Gauge, counts.bytes),
        ("max_bytes", "Limit on the memory of presence", Type::Gauge, counts.max_bytes),
        ("joins", "Clients that joined a channel with presence", Type::Counter, counts.joins),
        ("leaves", "Clients that left a channel with presence", Type::Counter, counts.leaves),
        (
            "unlisted",
            "Clients that joined and are not listed because the memory of presence was used up",
            Type::Counter,
            counts.unlisted,
        ),
    ]
}

pub(super) fn write(counts: &PresenceCounts, writer: &mut Writer) {
    for (name, help, kind, value) in each(counts) {
        writer.metric(&format!("presence_{name}"), help, kind).sample(&[], value);
    }
}

pub(super) fn to_json(counts: &PresenceCounts) -> Value {
    let all = each(counts).map(|(name, _, _, value)| (name.to_owned(), value.into()));
    Value::Object(all.into_iter().collect())
}
