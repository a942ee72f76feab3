//! Records of requests and sessions that have ended, for an access log.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use throng_engine::{CloseCode, ConnMap, Cx};
use throng_http::{Network, RequestSummary, client_address, client_on_unix_socket};
use throng_io::{ConnId, Instant, Traffic};
use throng_proto::http1::Request;

use crate::events::{Events, Subject};
use crate::handle::Handle;
use crate::panics::Callback;
#[cfg(feature = "tls")]
use crate::tls::TlsConnection;

/// Receives a record of each request and session, for [`Observe::access_log`].
///
/// It is called on the shard's thread, so it must not take long. If it panics, the record is lost,
/// and [`ServerEvent::CallbackPanicked`](crate::server::ServerEvent::CallbackPanicked) follows.
///
/// [`Observe::access_log`]: crate::server::Observe::access_log
pub trait AccessLog: Send + Sync + 'static {
    /// Returns whether the log wants requests that begin now and the sessions that they open. Other
    /// requests cost nothing.
    fn is_on(&self) -> bool {
        true
    }

    /// Takes the record of a request or session that has ended.
    fn record(&self, access: &AccessEntry<'_>);
}

/// A request or a session that has ended; or a stream of events that began.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccessEntry<'a> {
    /// The sender: events of the same connection have the same handle.
    pub subject: Subject,
    /// The method.
    pub method: &'a str,
    /// The path without the query, of 512 bytes at most.
    pub path: &'a str,
    /// The path of the route, as it was given to [`App`](crate::App), such as `/rooms/{room}`;
    /// `None` if no route was found.
    pub route: Option<&'a str>,
    /// The status code of the response; 101 of a session. `None` if the client left before.
    pub status: Option<u16>,
    /// The code that a session was closed with.
    pub code: Option<CloseCode>,
    /// Whether the response is whole. Always true of sessions.
    pub is_complete: bool,
    /// Bytes from the client. Of a request: the bytes of the body that the handler was given. Of a
    /// session: all bytes of its connection, as the kernel counted them, TLS included. `None` for
    /// sessions where the system does not count, as on Unix sockets.
    pub bytes_in: Option<u64>,
    /// Bytes to the client, counted in the same way.
    pub bytes_out: Option<u64>,
    /// The time from the head of the request to the end; `None` if both came in the same turn of
    /// the event loop, which reads the clock once.
    pub duration: Option<Duration>,
    /// The host that the request is for, with its port; at most 128 bytes.
    pub host: Option<&'a str>,
    /// The header User-Agent; at most 256 bytes.
    pub user_agent: Option<&'a str>,
    /// The id from [`RequestIds`](crate::http::RequestIds), otherwise the request's header
    /// X-Request-ID; at most 128 bytes.
    pub request_id: Option<&'a str>,
    /// The header traceparent (W3C Trace Context), of 128 bytes at most.
    pub traceparent: Option<&'a str>,
    /// The TLS of the connection, and in it the client's certificate; `None` if it has none.
    #[cfg(feature = "tls")]
    pub tls: Option<&'a TlsConnection>,
}

/// The log of a server.
#[derive(Clone, Default)]
pub(crate) struct Log(Option<Arc<dyn AccessLog>>);

impl Log {
    pub(crate) fn new(log: impl AccessLog) -> Self {
        Self(Some(Arc::new(log)))
    }

    /// Returns the data to record for a request that begins.
    pub(crate) fn entry(
        &self,
        cx: &Cx<'_>,
        head: &Request<'_>,
        trusted_proxies: &[Network],
    ) -> Option<Box<PendingAccess>> {
        let is_on = self.0.as_ref().is_some_and(|log| log.is_on());
        is_on.then(|| Box::new(PendingAccess::new(cx, head, trusted_proxies)))
    }

    pub(crate) fn record(&self, access: &AccessEntry<'_>, events: &Events) {
        if let Some(log) = &self.0 {
            // The request has its response, so a panic does not close its connection.
            events.guard(Callback::AccessLog, || log.record(access));
        }
    }
}

/// Counts bytes of the body of a request and of its response, if it will be recorded.
pub(crate) fn count_body(
    entries: &mut ConnMap<Box<PendingAccess>>,
    id: ConnId,
    bytes_in: usize,
    bytes_out: usize,
) {
    if !entries.is_empty()
        && let Some(entry) = entries.get_mut(&id)
    {
        entry.bytes_in += bytes_in as u64;
        entry.bytes_out += bytes_out as u64;
    }
}

/// The data of a request that its record will have.
pub(crate) struct PendingAccess {
    request: RequestSummary,
    route: Option<Arc<str>>,
    /// The id that middleware gave it.
    request_id: Option<Box<str>>,
    subject: Subject,
    began: Instant,
    #[cfg(feature = "tls")]
    tls: Option<TlsConnection>,
    pub(crate) status: Option<u16>,
    /// Bytes of bodies.
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// A session's end, which is recorded when its socket is closed.
    pub(crate) closed: Option<(CloseCode, Instant)>,
}

impl PendingAccess {
    fn new(cx: &Cx<'_>, head: &Request<'_>, trusted_proxies: &[Network]) -> Self {
        let peer = cx.peer();
        let client = match peer {
            Some(peer) => Some(client_address(head, peer, trusted_proxies)),
            None => client_on_unix_socket(head, trusted_proxies),
        };
        Self {
            request: RequestSummary::new(head),
            route: None,
            request_id: None,
            subject: Subject { handle: Some(Handle::of(cx.id())), peer, client },
            began: cx.core_ref().now(),
            #[cfg(feature = "tls")]
            tls: TlsConnection::of(cx),
            status: None,
            bytes_in: 0,
            bytes_out: 0,
            closed: None,
        }
    }

    /// Returns the address of the client.
    pub(crate) fn client(&self) -> Option<IpAddr> {
        self.subject.client
    }

    /// Keeps the route that was found, and the id of the request if middleware gave it one.
    pub(crate) fn set_route(&mut self, route: Option<&Arc<str>>, id: Option<&str>) {
        self.route = route.cloned();
        self.request_id = id.map(Into::into);
    }

    /// Returns the record of a request that ends now.
    pub(crate) fn access(&self, now: Instant) -> AccessEntry<'_> {
        AccessEntry {
            subject: self.subject,
            method: self.request.method(),
            path: self.request.path(),
            route: self.route.as_deref(),
            status: self.status,
            code: None,
            is_complete: true,
            bytes_in: Some(self.bytes_in),
            bytes_out: Some(self.bytes_out),
            duration: Some(now.since(self.began)).filter(|duration| !duration.is_zero()),
            host: self.request.host(),
            user_agent: self.request.user_agent(),
            request_id: self.request_id.as_deref().or_else(|| self.request.request_id()),
            traceparent: self.request.traceparent(),
            #[cfg(feature = "tls")]
            tls: self.tls.as_ref(),
        }
    }

    /// Returns the record of a session that has ended.
    pub(crate) fn session_access(&self, traffic: Option<Traffic>) -> Option<AccessEntry<'_>> {
        let (code, ended) = self.closed?;
        Some(AccessEntry {
            code: Some(code),
            bytes_in: traffic.map(|traffic| traffic.received),
            bytes_out: traffic.map(|traffic| traffic.sent),
            ..self.access(ended)
        })
    }
}
