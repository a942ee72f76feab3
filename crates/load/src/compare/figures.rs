//! The figures that are compared, in the order in which they are shown.

use crate::report::model::Unit;

/// The direction in which a figure should change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    Higher,
    Lower,
}

/// A figure of a run's report.
#[derive(Debug)]
pub(super) struct Figure {
    /// The figure's location in the JSON (RFC 6901).
    pub(super) path: &'static str,
    pub(super) label: &'static str,
    pub(super) unit: Unit,
    pub(super) better: Better,
    /// Whether a change for the worse is a regression. True for the most robust of several figures
    /// of one property.
    pub(super) decides: bool,
}

macro_rules! compared {
    ($($path:literal, $label:literal, $unit:ident, $better:ident $($decides:ident)?;)*) => {
        /// All figures. Each mode has some of them.
        pub(super) const FIGURES: &[Figure] = &[$(Figure {
            path: $path,
            label: $label,
            unit: Unit::$unit,
            better: Better::$better,
            decides: !stringify!($($decides)?).is_empty(),
        }),*];
    };
}

compared! {
    "/result/messages_per_server_cpu_s", "messages per server CPU-second", Number, Higher decides;
    "/result/requests_per_server_cpu_s", "requests per server CPU-second", Number, Higher decides;
    "/result/connections_per_server_cpu_s",
        "connections per server CPU-second", Number, Higher decides;
    "/result/messages_per_s", "messages a second", Number, Higher;
    "/result/requests_per_s", "requests a second", Number, Higher;
    "/result/connections_per_s", "connections a second", Number, Higher;
    "/result/received_per_s", "deliveries a second", Number, Higher;
    "/result/latency/p50_us", "latency p50", Us, Lower;
    "/result/latency/p99_us", "latency p99", Us, Lower decides;
    "/result/latency/p999_us", "latency p99.9", Us, Lower;
    "/result/total/p50_us", "connect, upgrade, echo p50", Us, Lower;
    "/result/total/p99_us", "connect, upgrade, echo p99", Us, Lower decides;
    "/result/connect_and_answer/p99_us", "connect and answer p99", Us, Lower decides;
    "/result/last/p50_us", "last has it p50", Us, Lower decides;
    "/result/delivery/p99_us", "each has it p99", Us, Lower;
    "/result/server_cpu_us_per_publish", "server CPU by publish", Us, Lower decides;
    "/result/server_cpu_us_per_delivery", "server CPU by delivery", Us, Lower decides;
    "/result/lost", "deliveries lost", Count, Lower decides;
    "/result/open_loop/unanswered", "unanswered", Count, Lower decides;
    "/result/deflate/ratio_received", "size received", Share, Lower;
    "/result/rss_bytes_per_connection", "resident memory by connection", Bytes, Lower decides;
    "/result/server_cores_while_idle", "CPU while idle", Share, Lower;
    "/server/memory/rss_bytes", "server memory", Bytes, Lower;
}
