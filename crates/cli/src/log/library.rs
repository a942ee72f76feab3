//! Events of the library in the log.

use std::time::{Duration, SystemTime};

use throng::{Event, Stall};

use super::{Log, events};

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
        Event::ProxyRefused { peer, reason, .. } => log.access(&events::PROXY_REFUSED, || {
            let peer = peer.map_or_else(|| "unix:".to_owned(), |peer| peer.to_string());
            vec![("peer", peer.into()), ("reason", (*reason).into())]
        }),
        Event::TlsRefused { client, reason, .. } => log.access(&events::TLS_REFUSED, || {
            vec![("client", (*client).into()), ("reason", (*reason).into())]
        }),
        Event::TlsSessionFailed { client, reason, .. } => log
            .access(&events::TLS_SESSION_FAILED, || {
                vec![("client", (*client).into()), ("reason", (*reason).into())]
            }),
        Event::CertificateIssued { names, expires, renewal, .. } => {
            log_issued(log, names, *expires, *renewal);
        }
        Event::CertificateFailed { reason, retry_in, .. } => {
            log_not_issued(log, reason, *retry_in);
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

/// Logs that an authority has issued a certificate.
pub(crate) fn log_issued(log: &Log, names: &[String], expires: SystemTime, renewal: SystemTime) {
    let time = |time: SystemTime| humantime::format_rfc3339_seconds(time).to_string();
    let fields = vec![
        ("names", names.join(" ").into()),
        ("expires", time(expires).into()),
        ("renewal", time(renewal).into()),
    ];
    log.event(&events::CERTIFICATE_ISSUED, "", fields);
}

/// Logs that an authority has not issued a certificate.
pub(crate) fn log_not_issued(log: &Log, reason: &str, retry_in: Duration) {
    let fields = vec![("reason", reason.into()), ("retry_in", retry_in.into())];
    log.event(&events::CERTIFICATE_NOT_ISSUED, "", fields);
}
