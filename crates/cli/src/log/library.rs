//! Events of the library in the log.

use std::time::{Duration, SystemTime};

use throng::server::{ServerEvent, Stall, Subject};

use super::access::of_subject;
use super::{Log, Value, events};

/// Logs an event of the library.
pub(crate) fn log_event(log: &Log, event: &ServerEvent<'_>) {
    let client = |event, subject: &Subject, rest: &[(&'static str, Value)]| {
        log.access(event, || [&of_subject(subject)[..], rest].concat());
    };
    match event {
        ServerEvent::Refused { subject, route, status, reason, .. } => {
            let status = ("status", status.code().into());
            let rest = [("route", (*route).into()), status, ("reason", (*reason).into())];
            client(&events::REFUSED, subject, &rest);
        }
        ServerEvent::ProxyRefused { subject, reason, .. } => {
            client(&events::PROXY_REFUSED, subject, &[("reason", (*reason).into())]);
        }
        ServerEvent::TlsRefused { subject, reason, .. } => {
            client(&events::TLS_REFUSED, subject, &[("reason", (*reason).into())]);
        }
        ServerEvent::TlsSessionFailed { subject, reason, .. } => {
            client(&events::TLS_SESSION_FAILED, subject, &[("reason", (*reason).into())]);
        }
        ServerEvent::CertificateIssued { names, expires, renewal, .. } => {
            log_issued(log, names, *expires, *renewal);
        }
        ServerEvent::CertificateFailed { reason, retry_in, .. } => {
            log_retried(log, &events::CERTIFICATE_NOT_ISSUED, reason, *retry_in);
        }
        ServerEvent::CertificateUnwritten { reason, retry_in, .. } => {
            log_retried(log, &events::CERTIFICATE_UNWRITTEN, reason, *retry_in);
        }
        ServerEvent::ProtocolError { subject, route, code, reason, .. } => {
            let code = ("code", code.get().into());
            let rest = [("route", (*route).into()), code, ("reason", (*reason).into())];
            client(&events::PROTOCOL_ERROR, subject, &rest);
        }
        ServerEvent::SlowConsumer { subject, route, .. } => {
            let reason = "it reads more slowly than it is sent to; max_backlog, slow_policy";
            let rest = [("route", (*route).into()), ("reason", reason.into())];
            client(&events::SLOW_CONSUMER, subject, &rest);
        }
        ServerEvent::Ended { subject, route, reason, .. } => {
            let code = route.map(|_| reason.code().get());
            let reason = ("reason", reason.to_string().into());
            let rest = [("route", (*route).into()), ("code", code.into()), reason];
            client(&events::ENDED, subject, &rest);
        }
        ServerEvent::BodyFailed { subject, route, reason, .. } => {
            let rest = [("route", (*route).into()), ("reason", (*reason).into())];
            client(&events::RESPONSE_FAILED, subject, &rest);
        }
        ServerEvent::Panicked { subject, route, .. } => {
            client(&events::PANIC, subject, &[("route", (*route).into())]);
        }
        ServerEvent::TickPanicked { period, shard, .. } => log.event(&events::TICK_PANIC, event, {
            [("period", (*period).into()), ("shard", (*shard).into())]
        }),
        ServerEvent::CallbackPanicked { callback, .. } => {
            log.event(&events::CALLBACK_PANIC, event, [("callback", (*callback).into())]);
        }
        ServerEvent::Stalled(stall) => {
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

/// Logs a failure after which another attempt follows.
pub(crate) fn log_retried(
    log: &Log,
    event: &'static super::LogEvent,
    reason: &str,
    retry_in: Duration,
) {
    let fields = vec![("reason", reason.into()), ("retry_in", retry_in.into())];
    log.event(event, "", fields);
}
