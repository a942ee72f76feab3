//! Events and the status of a server in the log.

use std::time::Duration;

use throng::{Event, Running, Stall, process};

use crate::log::{Log, events};

/// Logs an event of the library.
pub(crate) fn log_event(log: &Log, event: &Event<'_>) {
    match event {
        Event::Refused { client, route, status, reason, .. } => {
            log.access(&events::REFUSED, || {
                vec![
                    ("client", (*client).into()),
                    ("route", (*route).into()),
                    ("status", status.code().into()),
                    ("reason", (*reason).into()),
                ]
            })
        }
        Event::ProtocolError { handle, route, code, reason, .. } => {
            log.access(&events::PROTOCOL_ERROR, || {
                vec![
                    ("session", handle.to_string().into()),
                    ("route", (*route).into()),
                    ("code", code.get().into()),
                    ("reason", (*reason).into()),
                ]
            });
        }
        Event::SlowConsumer { handle, route, .. } => log.access(&events::SLOW_CONSUMER, || {
            vec![("session", handle.to_string().into()), ("route", (*route).into())]
        }),
        Event::Panicked { handle, route, .. } => log.access(&events::PANIC, || {
            vec![("session", handle.to_string().into()), ("route", (*route).into())]
        }),
        Event::Stalled(stall) => {
            let Stall { route, shard, length, .. } = stall;
            let fields = vec![
                ("route", (*route).into()),
                ("shard", (*shard).into()),
                ("duration", (*length).into()),
            ];
            log.event(&events::STALL, stall, fields);
        }
        other => log.event(&events::WARNING, other, []),
    }
}

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
