//! Metrics of the histories of channels.

use serde_json::Value;
use throng_engine::HistoryCounts;
use throng_http::openmetrics::{Type, Writer};

/// Returns the figures with their names and descriptions.
fn each(counts: &HistoryCounts) -> [(&'static str, &'static str, Type, u64); 7] {
    [
        ("channels", "Channels whose history is remembered", Type::Gauge, counts.channels),
        ("publications", "Publications in histories", Type::Gauge, counts.publications),
        ("bytes", "Memory of all histories", Type::Gauge, counts.bytes),
        ("max_bytes", "Limit on the memory of all histories", Type::Gauge, counts.max_bytes),
        (
            "evicted",
            "Publications removed early because the memory of all histories was used up",
            Type::Counter,
            counts.evicted,
        ),
        (
            "recovered",
            "Clients that came back to a channel and got all that they had missed",
            Type::Counter,
            counts.recovered,
        ),
        (
            "unrecovered",
            "Clients that came back to a channel and could not get all that they had missed",
            Type::Counter,
            counts.unrecovered,
        ),
    ]
}

pub(super) fn write(counts: &HistoryCounts, writer: &mut Writer) {
    for (name, help, kind, value) in each(counts) {
        writer.metric(&format!("history_{name}"), help, kind).sample(&[], value);
    }
}

pub(super) fn to_json(counts: &HistoryCounts) -> Value {
    let all = each(counts).map(|(name, _, _, value)| (name.to_owned(), value.into()));
    Value::Object(all.into_iter().collect())
}
