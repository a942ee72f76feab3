//! Events that an operator should see: refusals, faults of clients, slow receivers, panics and
//! stalls.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use throng_engine::{CloseCode, EndReason};
use throng_http::Status;
#[cfg_attr(
    feature = "tracing",
    allow(unused_imports, reason = "events are logged with tracing")
)]
use throng_proto::escape::Escaped;

use crate::handle::Handle;
use crate::panics::{Callback, Panics, guarded};

/// The cause of an event: the connection, and its known addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subject {
    /// The connection, as other events and the [`AccessLog`](crate::server::AccessLog) name it;
    /// `None` if the connection was closed before it was served.
    pub handle: Option<Handle>,
    /// The other end of the connection, which may be a proxy: of the socket, or of the connection
    /// that a [PROXY header](crate::server::Proxies::proxy_protocol) describes. `None` for a Unix
    /// socket, and for a connection that its client has reset.
    pub peer: Option<SocketAddr>,
    /// The address of the client: the peer's, or the address named by a [trusted
    /// proxy](crate::server::Proxies::trusted). A session does not keep a proxied address: behind
    /// such a proxy, events of requests have it, but events of sessions have it only with an
    /// [`AccessLog`](crate::server::AccessLog).
    pub client: Option<IpAddr>,
}

/// The text begins with a space, and names the client and the peer through which it came; it is
/// empty if neither is known.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.client, self.peer) {
            (Some(client), Some(peer)) if peer.ip().to_canonical() != client => {
                write!(f, " {client} (through {peer})")
            }
            (_, Some(peer)) => write!(f, " {peer}"),
            (Some(client), None) => write!(f, " {client}"),
            (None, None) => Ok(()),
        }
    }
}

/// An event of a running server, for [`Observe::on_event`](crate::server::Observe::on_event).
///
/// Its text names the cause and, where there is one, the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerEvent<'a> {
    /// The server refused a connection, a request or an upgrade, a handler refused an upgrade with
    /// a [`Reject`](crate::Reject), or a request broke HTTP or missed a deadline. A `Reject` of an
    /// HTTP handler is an answer like any other, which only the access log has.
    #[non_exhaustive]
    Refused {
        /// The sender.
        subject: Subject,
        /// The path of the route, as it was given to the app, if one was found.
        route: Option<&'a str>,
        /// The status of the answer.
        status: Status,
        /// The sentence of the answer.
        reason: &'a str,
    },
    /// With [`proxy_protocol`](crate::server::Proxies::proxy_protocol), a connection was closed:
    /// its peer is not a trusted proxy, or its header was wrong or late.
    #[non_exhaustive]
    ProxyRefused {
        /// The client: only its address is known.
        subject: Subject,
        /// The cause, and the remedy.
        reason: &'a str,
    },
    /// The TLS handshake of a client failed, and its connection was closed.
    #[non_exhaustive]
    TlsRefused {
        /// The client: only its address is known, and of an IPv6 address only the first 64 bits. A
        /// Unix socket has no address.
        subject: Subject,
        /// The cause.
        reason: &'a str,
    },
    /// The TLS session of a client failed after its handshake: the client ended it with an alert or
    /// broke the protocol, or the server's keys were used up. The end of a client's stream does not
    /// count as a failure.
    #[non_exhaustive]
    TlsSessionFailed {
        /// The client of that session.
        subject: Subject,
        /// The cause.
        reason: &'a str,
    },
    /// An authority has issued a certificate (`Tls::acme`); the server uses it from now on.
    #[non_exhaustive]
    CertificateIssued {
        /// Its domains.
        names: &'a [String],
        /// The time when it expires.
        expires: SystemTime,
        /// The time when it will be renewed, unless the authority wants it earlier.
        renewal: SystemTime,
    },
    /// An authority has not issued a certificate (`Tls::acme`). The server keeps the current one.
    #[non_exhaustive]
    CertificateFailed {
        /// The cause.
        reason: &'a str,
        /// The time until the next attempt.
        retry_in: Duration,
    },
    /// A certificate that an authority has issued (`Tls::acme`) cannot be written. It is served
    /// from memory, and would be lost with the process.
    #[non_exhaustive]
    CertificateUnwritten {
        /// The cause.
        reason: &'a str,
        /// The time until the next attempt.
        retry_in: Duration,
    },
    /// A client broke the WebSocket protocol, and its session was closed.
    #[non_exhaustive]
    ProtocolError {
        /// The client that violated the protocol.
        subject: Subject,
        /// The path of its route.
        route: &'a str,
        /// The code that it was closed with.
        code: CloseCode,
        /// The violation, with the section of RFC 6455.
        reason: &'a str,
    },
    /// A session or a stream of events was closed because its client reads too slowly.
    #[non_exhaustive]
    SlowConsumer {
        /// The client that reads too slowly.
        subject: Subject,
        /// The path of its route.
        route: &'a str,
    },
    /// The server ended a session, a stream of events, a response, or a connection that has not
    /// sent a request, by a rule or limit of its own.
    #[non_exhaustive]
    Ended {
        /// The client of that session, stream or response.
        subject: Subject,
        /// The path of the route; `None` for a response or a connection.
        route: Option<&'a str>,
        /// The reason.
        reason: EndReason,
    },
    /// The source of a response's body failed, or its length was wrong: the connection was closed
    /// before the end of the body, so that the client does not take it for complete.
    #[non_exhaustive]
    BodyFailed {
        /// The client of that connection.
        subject: Subject,
        /// The path of the route, if it has one.
        route: Option<&'a str>,
        /// The error of the source.
        reason: &'a str,
    },
    /// A handler panicked, and its connection was closed or its request answered with 500. A future
    /// or a job may also panic after its connection has ended.
    #[non_exhaustive]
    Panicked {
        /// The client of that connection.
        subject: Subject,
        /// The path of its route, if it has one.
        route: Option<&'a str>,
    },
    /// A function of [`Server::every`](crate::Server::every) or
    /// [`Server::every_on_shard`](crate::Server::every_on_shard) panicked. It is called again when
    /// its next period has passed.
    #[non_exhaustive]
    TickPanicked {
        /// Its period.
        period: Duration,
        /// The event loop, from 0; `None` for a function of
        /// [`Server::every`](crate::Server::every).
        shard: Option<usize>,
    },
    /// A function that belongs to no connection panicked; the server continues without its result.
    #[non_exhaustive]
    CallbackPanicked {
        /// The function: `access_log`, `run_at`, `shard_offload` or `answer`, named after the
        /// method that it was given to.
        callback: &'a str,
    },
    /// A handler blocked its shard.
    Stalled(Stall<'a>),
}

/// The text has the cause and the remedy on one line.
impl fmt::Display for ServerEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { subject, route, status, reason } => {
                write!(f, "refused{subject}")?;
                if let Some(route) = route {
                    write!(f, " at {route}")?;
                }
                write!(f, " with {status}")?;
                let separator = if reason.is_empty() { "" } else { ": " };
                write!(f, "{separator}{reason}")
            }
            Self::ProxyRefused { subject, reason } => {
                write!(f, "closed a connection of{}: {reason}", OrUnix(subject))
            }
            Self::TlsRefused { subject, reason } => {
                write!(f, "no TLS with{}: {reason}", OrUnix(subject))
            }
            Self::TlsSessionFailed { subject, reason } => {
                write!(f, "the TLS session with{} failed: {reason}", OrUnix(subject))
            }
            Self::CertificateIssued { names, expires, .. } => {
                let left = expires.duration_since(SystemTime::now()).unwrap_or_default();
                let days = left.as_secs() / (24 * 3600);
                write!(f, "a certificate for {} was issued, for {days} days", names.join(", "))
            }
            Self::CertificateFailed { reason, retry_in } => {
                let seconds = retry_in.as_secs();
                write!(f, "no certificate was issued, the next attempt is in {seconds} s: {reason}")
            }
            Self::CertificateUnwritten { reason, retry_in } => {
                let seconds = retry_in.as_secs();
                write!(
                    f,
                    "the certificate that was issued is served from memory, the next attempt to \
                     write it is in {seconds} s: {reason}"
                )
            }
            Self::ProtocolError { subject, route, code, reason } => {
                write!(f, "closed{} of {route} with {code}: {reason}", Named("session", subject))
            }
            Self::SlowConsumer { subject, route } => write!(
                f,
                "closed{} of {route} with 1008: it reads more slowly than it is sent to; raise \
                 max_backlog, or drop messages with another SlowPolicy",
                Named("connection", subject)
            ),
            Self::Ended { subject, route, reason } => {
                write!(f, "ended{}", Named("connection", subject))?;
                if let Some(route) = route {
                    write!(f, " of {route}")?;
                }
                write!(f, ": {reason}")
            }
            Self::BodyFailed { subject, route, reason } => {
                write!(f, "broke off a response to{}", OrUnix(subject))?;
                if let Some(route) = route {
                    write!(f, " at {route}")?;
                }
                write!(f, ": {reason}")
            }
            Self::Panicked { subject, route } => {
                let (route, its) = (route.unwrap_or("(none)"), Named("connection", subject));
                write!(f, "a handler of {route} panicked;{its} was closed")
            }
            Self::TickPanicked { period, shard: None } => {
                write!(f, "the function that is called every {period:?} panicked; it goes on")
            }
            Self::TickPanicked { period, shard: Some(shard) } => write!(
                f,
                "the function that is called every {period:?} on shard {shard} panicked; it goes on"
            ),
            Self::CallbackPanicked { callback } => {
                write!(f, "the function that was given to {callback} panicked; the server goes on")
            }
            Self::Stalled(stall) => stall.fmt(f),
        }
    }
}

/// A subject by its known addresses; a subject without addresses was on a Unix socket.
struct OrUnix<'a>(&'a Subject);

impl fmt::Display for OrUnix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Subject { peer: None, client: None, .. } => f.write_str(" a client of a Unix socket"),
            known => known.fmt(f),
        }
    }
}

/// A subject with the number of its connection or session.
struct Named<'a>(&'static str, &'a Subject);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(what, subject) = self;
        write!(f, " {what}")?;
        if let Some(handle) = subject.handle {
            write!(f, " {handle}")?;
        }
        subject.fmt(f)
    }
}

/// The route of a stall in a turn that called handlers of several routes.
pub(crate) const SEVERAL: &str = "(several)";

/// The route of a stall in a turn that called no handler.
pub(crate) const NONE: &str = "(none)";

/// A report of a handler that blocked its shard, and so every connection there, for
/// [`Observe::stall_warning`](crate::server::Observe::stall_warning) or longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall<'a> {
    /// The route's path as it was given to the app, such as `/chat/{room}`.
    ///
    /// It is `(several)` if handlers of more than one route were called in the turn, or if it also
    /// delivered publications of other threads; for the next
    /// ten seconds the shard measures each event, so that the next stall has its route. It is
    /// `(none)` if no handler was called: the system kept the shard waiting, or it had very much to
    /// send.
    pub route: &'a str,
    /// The event loop, from 0.
    pub shard: usize,
    /// Time for which the shard was blocked.
    pub length: Duration,
}

/// The text has the cause and the remedy on one line.
impl fmt::Display for Stall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { route, shard, length } = self;
        let ms = length.as_millis();
        match *route {
            NONE => write!(
                f,
                "shard {shard} took {ms} ms for a turn without a handler: the machine has too few \
                 CPUs for what runs on it, or very much was sent at once"
            ),
            SEVERAL => write!(
                f,
                "handlers of several routes, or publications to many connections, held shard \
                 {shard} for {ms} ms, while its other connections waited; the next such handler is \
                 named"
            ),
            route => write!(
                f,
                "a handler of {route} held shard {shard} for {ms} ms, while its other connections \
                 waited; move slow work to another thread: offload, blocking or deferred"
            ),
        }
    }
}

/// The callback for events.
#[derive(Clone)]
pub(crate) struct Events {
    callback: Arc<dyn Fn(&ServerEvent<'_>) + Send + Sync>,
    panics: Arc<Panics>,
}

impl Events {
    pub(crate) fn new(callback: impl Fn(&ServerEvent<'_>) + Send + Sync + 'static) -> Self {
        Self { callback: Arc::new(callback), panics: Arc::default() }
    }

    /// Reports an event. A panic of the callback is only counted, since many callers would not
    /// survive it.
    pub(crate) fn report(&self, event: ServerEvent<'_>) {
        if guarded(|| (self.callback)(&event)).is_none() {
            self.panics.count(Callback::Event);
        }
    }

    /// Calls a function that belongs to no connection. Returns `None` if it panicked, which is
    /// reported.
    pub(crate) fn guard<T>(&self, callback: Callback, call: impl FnOnce() -> T) -> Option<T> {
        let returned = guarded(call);
        if returned.is_none() {
            self.panics.count(callback);
            self.report(ServerEvent::CallbackPanicked { callback: callback.name() });
        }
        returned
    }

    pub(crate) fn panics(&self) -> &Arc<Panics> {
        &self.panics
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

/// Logs with `tracing` where the feature is on, otherwise by lines on standard error.
impl Default for Events {
    #[cfg(feature = "tracing")]
    fn default() -> Self {
        Self::new(trace)
    }

    #[cfg(not(feature = "tracing"))]
    fn default() -> Self {
        Self::new(Lines::default().into_hook())
    }
}

/// Logs an event with the target `throng`.
#[cfg(feature = "tracing")]
fn trace(event: &ServerEvent<'_>) {
    match event {
        ServerEvent::Refused { subject, route, status, reason } => {
            let (session, client, peer) = shown(subject);
            let status = status.code();
            tracing::info!(
                target: "throng", session, client, peer, route, status, reason, "refused"
            );
        }
        ServerEvent::ProxyRefused { subject, reason } => {
            let (_, client, peer) = shown(subject);
            tracing::warn!(target: "throng", client, peer, reason, "PROXY header refused");
        }
        ServerEvent::TlsRefused { subject, reason } => {
            let (_, client, peer) = shown(subject);
            tracing::info!(target: "throng", client, peer, reason, "TLS handshake failed");
        }
        ServerEvent::TlsSessionFailed { subject, reason } => {
            let (session, client, peer) = shown(subject);
            tracing::info!(target: "throng", session, client, peer, reason, "TLS session failed");
        }
        ServerEvent::CertificateIssued { .. } => tracing::info!(target: "throng", "{event}"),
        ServerEvent::CertificateFailed { reason, retry_in } => {
            let retry_in_s = retry_in.as_secs();
            tracing::error!(target: "throng", reason, retry_in_s, "no certificate was issued");
        }
        ServerEvent::CertificateUnwritten { reason, retry_in } => {
            let retry_in_s = retry_in.as_secs();
            tracing::error!(target: "throng", reason, retry_in_s, "a certificate is not written");
        }
        ServerEvent::ProtocolError { subject, route, code, reason } => {
            let ((session, client, peer), code) = (shown(subject), code.get());
            tracing::info!(
                target: "throng", session, client, peer, route, code, reason, "protocol error"
            );
        }
        ServerEvent::SlowConsumer { subject, route } => {
            let (session, client, peer) = shown(subject);
            tracing::warn!(target: "throng", session, client, peer, route, "slow consumer");
        }
        ServerEvent::Ended { subject, route, reason } => {
            let ((session, client, peer), reason) = (shown(subject), reason.text());
            tracing::info!(target: "throng", session, client, peer, route, reason, "session ended");
        }
        ServerEvent::BodyFailed { subject, route, reason } => {
            let (_, client, peer) = shown(subject);
            tracing::warn!(target: "throng", client, peer, route, reason, "response broken off");
        }
        ServerEvent::Panicked { subject, route } => {
            let (session, client, peer) = shown(subject);
            tracing::error!(target: "throng", session, client, peer, route, "handler panicked");
        }
        ServerEvent::TickPanicked { period, shard } => {
            let period_ms = period.as_millis() as u64;
            tracing::error!(target: "throng", period_ms, shard, "tick panicked");
        }
        ServerEvent::CallbackPanicked { callback } => {
            tracing::error!(target: "throng", callback, "callback panicked");
        }
        ServerEvent::Stalled(stall) => {
            let length_ms = stall.length.as_millis() as u64;
            let Stall { route, shard, .. } = stall;
            tracing::warn!(target: "throng", route, shard, length_ms, "{stall}");
        }
    }
}

/// A field of a subject in `tracing`, if it is known.
#[cfg(feature = "tracing")]
type Shown<T> = Option<tracing::field::DisplayValue<T>>;

/// The fields of a subject.
#[cfg(feature = "tracing")]
fn shown(subject: &Subject) -> (Shown<Handle>, Shown<IpAddr>, Shown<SocketAddr>) {
    use tracing::field::display;
    (subject.handle.map(display), subject.client.map(display), subject.peer.map(display))
}

/// The least time between two lines on standard error.
#[cfg_attr(feature = "tracing", allow(dead_code, reason = "events are logged with tracing"))]
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// Lines on standard error, limited in rate so that writing them does not delay shards.
#[cfg_attr(feature = "tracing", allow(dead_code, reason = "events are logged with tracing"))]
#[derive(Default)]
struct Lines {
    /// The time of the last line, and the number of events since then without one.
    last: Mutex<(Option<Instant>, u64)>,
}

#[cfg_attr(feature = "tracing", allow(dead_code, reason = "events are logged with tracing"))]
impl Lines {
    /// Returns a callback that writes the lines. Each server has its own: one for the whole process
    /// would need a static.
    fn into_hook(self) -> impl Fn(&ServerEvent<'_>) + Send + Sync {
        move |event| {
            if let Some(skipped) = self.admit(Instant::now()) {
                let more = match skipped {
                    0 => String::new(),
                    skipped => format!(" ({skipped} more events since the last line)"),
                };
                // A closed standard error must not stop the server; `eprintln!` would panic.
                let line = format!("throng: {}{more}\n", Escaped(event));
                let _ = std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes());
            }
        }
    }

    /// Returns `None` if a line would be too early, otherwise the number of events without a line
    /// since the last one.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, skipped) = *last;
        if at.is_some_and(|at| now.saturating_duration_since(at) < BETWEEN_LINES) {
            last.1 += 1;
            return None;
        }
        *last = (Some(now), 0);
        Some(skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_at_most_one_per_second_and_count_the_events_left_out() {
        let lines = Lines::default();
        let start = Instant::now();
        let at = |ms| lines.admit(start + Duration::from_millis(ms));
        assert_eq!(
            [at(0), at(10), at(999), at(1000), at(1001)],
            [Some(0), None, None, Some(2), None]
        );
        assert_eq!(at(5000), Some(1));
    }

    #[test]
    fn the_text_of_an_event_has_the_cause_and_the_remedy() {
        let (handle, route) = (Handle::from_bits(1), "/chat");
        let own: SocketAddr = "127.0.0.1:5".parse().unwrap();
        let status = Status::FORBIDDEN;
        let subject = Subject { handle: Some(handle), peer: Some(own), client: Some(own.ip()) };
        let proxied = Subject { client: Some([198, 51, 100, 7].into()), ..subject };
        let address = Subject { client: Some(own.ip()), ..Subject::default() };
        let unknown = Subject::default();
        for (event, text) in [
            (
                ServerEvent::Refused { subject, route: Some(route), status, reason: "why" },
                "refused 127.0.0.1:5 at /chat with 403 Forbidden: why",
            ),
            (
                ServerEvent::Refused { subject: proxied, route: None, status, reason: "why" },
                "refused 198.51.100.7 (through 127.0.0.1:5) with 403 Forbidden: why",
            ),
            (
                ServerEvent::Refused { subject: unknown, route: None, status, reason: "" },
                "refused with 403 Forbidden",
            ),
            (
                ServerEvent::ProtocolError {
                    subject,
                    route,
                    code: CloseCode::PROTOCOL_ERROR,
                    reason: "x",
                },
                "closed session 0000000000000001 127.0.0.1:5 of /chat with 1002 (protocol error): \
                 x",
            ),
            (
                ServerEvent::ProxyRefused { subject, reason: "why" },
                "closed a connection of 127.0.0.1:5: why",
            ),
            (
                ServerEvent::TlsRefused { subject: address, reason: "it does not speak TLS" },
                "no TLS with 127.0.0.1: it does not speak TLS",
            ),
            (
                ServerEvent::BodyFailed { subject, route: Some(route), reason: "why" },
                "broke off a response to 127.0.0.1:5 at /chat: why",
            ),
            (
                ServerEvent::TlsSessionFailed { subject: unknown, reason: "why" },
                "the TLS session with a client of a Unix socket failed: why",
            ),
            (
                ServerEvent::Ended {
                    subject: proxied,
                    route: Some(route),
                    reason: EndReason::Rate,
                },
                "ended connection 0000000000000001 198.51.100.7 (through 127.0.0.1:5) of /chat: \
                 too much in one second; max_messages_per_second, max_bytes_per_second",
            ),
            (
                ServerEvent::Panicked { subject, route: None },
                "a handler of (none) panicked; connection 0000000000000001 127.0.0.1:5 was closed",
            ),
            (
                ServerEvent::TickPanicked { period: Duration::from_millis(1500), shard: None },
                "the function that is called every 1.5s panicked; it goes on",
            ),
            (
                ServerEvent::TickPanicked { period: Duration::from_millis(33), shard: Some(2) },
                "the function that is called every 33ms on shard 2 panicked; it goes on",
            ),
            (
                ServerEvent::CallbackPanicked { callback: "access_log" },
                "the function that was given to access_log panicked; the server goes on",
            ),
        ] {
            assert_eq!(event.to_string(), text);
        }
        let slow = ServerEvent::SlowConsumer { subject, route }.to_string();
        assert!(slow.contains("/chat") && slow.contains("raise max_backlog"), "{slow}");
    }
}
