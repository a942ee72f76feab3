//! The access log: requests and sessions.

use std::fmt;
#[cfg(feature = "balance")]
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

#[cfg(feature = "balance")]
use throng::Handle;
use throng::server::Subject;
#[cfg(feature = "balance")]
use throng_io::PeerAddress;

#[cfg(feature = "tls")]
use throng::tls::{ClientCertificate, TlsConnection};
#[cfg(feature = "balance")]
use throng_balance::{Access, AccessLog, EndReason, TlsFailure};
use throng_config::AccessDetail;

use super::{Log, LogEvent, Value, events};

impl Log {
    /// Returns whether the log wants a request or session that begins: never, only if it fails, or
    /// always.
    pub(crate) fn detail(&self) -> AccessDetail {
        let inner = &self.0;
        match self.access_detail() {
            AccessDetail::All => {
                let sample = inner.sample.load(Relaxed);
                let is_sampled =
                    sample <= 1 || inner.candidates.fetch_add(1, Relaxed).is_multiple_of(sample);
                if is_sampled { AccessDetail::All } else { AccessDetail::Errors }
            }
            other => other,
        }
    }

    /// Logs a limited event whose fields are only computed if it is logged.
    pub(crate) fn access(
        &self,
        event: &'static LogEvent,
        fields: impl FnOnce() -> Vec<(&'static str, Value)>,
    ) {
        if self.is_on(event) {
            self.add(event, String::new(), fields());
        }
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

#[cfg(feature = "balance")]
impl AccessLog for Log {
    fn detail(&self) -> AccessDetail {
        self.detail()
    }

    fn record(&self, access: &Access<'_>) {
        let event = match (access.is_tunnel, access.is_failure) {
            (true, true) => &events::SESSION_LOST,
            (true, false) => &events::SESSION,
            (false, true) => &events::REQUEST_FAILED,
            (false, false) => &events::REQUEST,
        };
        let reason = Some(access.reason).filter(|reason| !reason.is_empty());
        let attempts = Some(access.attempts).filter(|attempts| *attempts > 1);
        self.access(event, || {
            let first = of_client(&access.subject);
            let of_kind = match access.is_tunnel {
                true => vec![
                    ("path", access.path.into()),
                    ("server_name", access.server_name.into()),
                    ("code", access.code.into()),
                ],
                false => vec![
                    ("method", access.method.into()),
                    ("path", access.path.into()),
                    ("status", access.status.into()),
                    ("server_name", access.server_name.into()),
                    ("attempts", attempts.into()),
                    ("limit", access.limit.into()),
                ],
            };
            let rest = [
                ("site", access.site.into()),
                ("route", access.route.into()),
                ("pool", access.pool.into()),
                ("split", access.split.into()),
                ("backend", access.backend.into()),
                ("bytes_in", access.bytes_in.into()),
                ("bytes_out", access.bytes_out.into()),
                ("duration", access.duration.into()),
                ("queued", access.queued.into()),
                ("queue_length", access.queue_length.map(u64::from).into()),
                ("reason", reason.into()),
                ("request_id", access.request_id.into()),
                ("traceparent", access.traceparent.into()),
                ("host", access.host.into()),
                ("user_agent", access.user_agent.into()),
                ("tls", access.tls.into()),
            ];
            first.into_iter().chain(of_kind).chain(rest).collect()
        });
    }

    fn ended(
        &self,
        subject: &throng_balance::Subject,
        backend: Option<PeerAddress>,
        reason: EndReason,
    ) {
        let event = match reason {
            EndReason::UntrustedProxy | EndReason::BadProxyHeader | EndReason::LateProxyHeader => {
                &events::PROXY_REFUSED
            }
            EndReason::Tls(_) => &events::TLS_SESSION_FAILED,
            EndReason::Place
            | EndReason::PlaceOfAddress
            | EndReason::Unasked
            | EndReason::Silent
            | EndReason::NoAnswer
            | EndReason::Circle
            | EndReason::HalfClosed
            | EndReason::Lifetime
            | EndReason::Unread
            | EndReason::Memory => &events::ENDED,
        };
        self.access(event, || {
            let mut fields = of_client(subject).to_vec();
            fields.extend(backend.map(|backend| ("backend", backend.into())));
            fields.push(("reason", reason.to_string().into()));
            fields
        });
    }

    fn tls_refused(&self, client: Option<IpAddr>, why: TlsFailure) {
        self.access(&events::TLS_REFUSED, || {
            vec![("client", client.into()), ("reason", why.to_string().into())]
        });
    }
}

/// Returns the fields that identify the cause of an event of the balancer. A connection's number
/// has the same form as a server's.
#[cfg(feature = "balance")]
fn of_client(subject: &throng_balance::Subject) -> [(&'static str, Value); 3] {
    let throng_balance::Subject { session, peer, client } = *subject;
    let session = session.map(|session| Handle::from_bits(session).to_string());
    [("session", session.into()), ("client", client.into()), ("peer", peer.into())]
}

/// Returns the fields that identify the cause of an event of the library.
pub(super) fn of_subject(subject: &Subject) -> [(&'static str, Value); 3] {
    let session = subject.handle.map(|handle| handle.to_string());
    [("session", session.into()), ("client", subject.client.into()), ("peer", subject.peer.into())]
}

impl throng::server::AccessLog for Log {
    fn is_on(&self) -> bool {
        self.access_detail() != AccessDetail::Off
    }

    fn record(&self, access: &throng::server::AccessEntry<'_>) {
        let throng::server::AccessEntry { method, path, status, code, duration, .. } = *access;
        let has_failed = status.is_some_and(|status| status >= 500);
        if !has_failed && self.detail() != AccessDetail::All {
            return;
        }
        let event = match (code, has_failed) {
            (Some(_), _) => &events::SESSION,
            (None, true) => &events::REQUEST_FAILED,
            (None, false) => &events::REQUEST,
        };
        self.access(event, || {
            let first = of_subject(&access.subject);
            let of_kind = match code {
                Some(code) => vec![("path", path.into()), ("code", code.get().into())],
                None => vec![
                    ("method", method.into()),
                    ("path", path.into()),
                    ("status", status.into()),
                ],
            };
            let reason = (!access.is_complete).then_some("the client left, or was too slow");
            #[cfg(feature = "tls")]
            let certificate = access.tls.and_then(TlsConnection::client_certificate);
            #[cfg(feature = "tls")]
            let certificate = certificate.as_ref().map(ClientCertificate::subject);
            #[cfg(not(feature = "tls"))]
            let certificate = None::<&str>;
            let rest = [
                ("client_certificate", certificate.into()),
                ("bytes_in", access.bytes_in.into()),
                ("bytes_out", access.bytes_out.into()),
                ("duration", duration.into()),
                ("reason", reason.into()),
                ("request_id", access.request_id.into()),
                ("traceparent", access.traceparent.into()),
                ("host", access.host.into()),
                ("user_agent", access.user_agent.into()),
            ];
            first.into_iter().chain(of_kind).chain(rest).collect()
        });
    }
}
