//! The status of a server in the log, and for the service manager.

use std::time::Duration;

use throng::metrics::process;
use throng::server::Running;

use crate::log::{Log, events};

/// Returns the state of a server on one line, for the service manager.
pub(super) fn status_line(running: &Running) -> String {
    let (stats, most) = (running.stats(), running.max_connections());
    format!("{} of {most} connections", stats.connections)
}

/// Logs the state of a server.
pub(super) fn log_status(log: &Log, running: &Running, uptime: Duration) {
    let stats = running.stats();
    log.event(
        &events::STATUS,
        "",
        [
            ("uptime", uptime.into()),
            ("connections", stats.connections.into()),
            ("max_connections", running.max_connections().into()),
            ("memory_bytes", process::resident_bytes().into()),
            ("descriptors", process::descriptors_in_use().into()),
            ("log_dropped", log.dropped().into()),
        ],
    );
}
