//! Entries: the data of a request or tunnel for its record in the log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use throng_carry::{Carried, CarryError, Content, Encoder};
use throng_http::RequestSummary;
use throng_io::{Instant, PeerAddress, SessionFailure, TlsInfo};
use throng_proto::http1::Request;

use super::Origin;
use crate::access::{Access, Subject};
use crate::report::Failure;
use crate::site::RuleNames;

/// A request, or a connection that is passed through, that the log wants.
#[derive(Debug)]
pub(in crate::shard) struct LogEntry {
    /// None of a connection that is passed through.
    request: Option<RequestSummary>,
    /// The host that the client has asked for in TLS (SNI).
    server_name: Option<Box<str>>,
    /// The version of TLS of the client's connection, as in [`TlsInfo`]; 0 without TLS.
    tls: u16,
    /// The names of its route, with sites.
    names: Option<Arc<RuleNames>>,
    /// The client's point in the split that chose its pool.
    split: Option<u16>,
    /// The limit that refused it.
    limit: Option<Box<str>>,
    /// The time until it was sent to a backend.
    queued: Duration,
    queue_length: Option<u32>,
    /// The id that the balancer assigned.
    request_id: Option<Box<str>>,
    subject: Subject,
    began: Instant,
    /// Recorded even if it succeeds.
    always: bool,
    status: Option<u16>,
    backend: Option<PeerAddress>,
    attempts: usize,
    bytes_in: u64,
    bytes_out: u64,
    /// A tunnel's backend ended without a Close frame.
    is_lost: bool,
    /// Why the backend's TLS session failed, if that ended the tunnel.
    tls_failure: Option<SessionFailure>,
}

/// The entry of a tunnel as another process needs it. The id of its client and the backend's
/// address are in the record of the tunnel.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::shard) struct MovedEntry {
    request: Option<Parts>,
    server_name: Option<String>,
    request_id: Option<String>,
    peer: Option<SocketAddr>,
    client: Option<SocketAddr>,
    /// Milliseconds since it began.
    age: u64,
    status: Option<u16>,
    attempts: usize,
    bytes_in: u64,
    bytes_out: u64,
    site: Option<String>,
    route: Option<String>,
    pool: Option<String>,
    split: Option<u16>,
    /// Microseconds until a backend was picked, if it waited.
    queued: Option<u64>,
    /// The number that waited when it came.
    queue_length: Option<u32>,
    /// The version of TLS, with TLS.
    tls: Option<u16>,
}

throng_carry::carried! {
    MovedEntry {
        required { 1 age, 3 attempts, 5 bytes_in, 7 bytes_out }
        optional {
            2 request, 4 server_name, 6 request_id, 8 peer, 10 client, 12 status, 14 site,
            16 route, 18 pool, 20 split, 22 queued, 24 tls,
            26 queue_length,
        }
        rebuilt { }
    }
}

/// The parts of a [`RequestSummary`].
#[derive(Clone, Debug, PartialEq)]
struct Parts([String; 6]);

impl Carried for Parts {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        let inner = Encoder::new(throng_carry::RECORD);
        let add = |inner: Encoder, (at, part): (u16, &String)| inner.text(2 * at + 1, part);
        out.message(tag, (0..).zip(&self.0).fold(inner, add))
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        let mut parts: [String; 6] = Default::default();
        content.message()?.read(|tag, content| match parts.get_mut(usize::from(tag / 2)) {
            Some(part) if tag % 2 == 1 => {
                content.text()?.clone_into(part);
                Ok(true)
            }
            _ => Ok(false),
        })?;
        Ok(Self(parts))
    }
}

impl LogEntry {
    /// Returns what moves of the entry of a tunnel, whose backend is not lost.
    pub(in crate::shard) fn freeze(self, now: Instant) -> MovedEntry {
        let Self {
            request,
            server_name,
            tls,
            names,
            split,
            // A refused request is not a tunnel.
            limit: _,
            queued,
            queue_length,
            request_id,
            subject: Subject { session: _, peer, client },
            began,
            // Entries of tunnels are.
            always: _,
            status,
            backend: _,
            attempts,
            bytes_in,
            bytes_out,
            // Such a tunnel does not move.
            is_lost: _,
            tls_failure: _,
        } = self;
        let name = |of: fn(&RuleNames) -> &str| names.as_deref().map(|it| of(it).to_owned());
        MovedEntry {
            site: name(|names| &names.site),
            route: name(|names| &names.route),
            pool: name(|names| &names.pool),
            split,
            queue_length,
            queued: Some(micros(queued)).filter(|micros| *micros > 0),
            tls: Some(tls).filter(|version| *version > 0),
            request: request.map(|request| Parts(request.parts().map(str::to_owned))),
            server_name: server_name.map(Into::into),
            request_id: request_id.map(Into::into),
            peer,
            client: client.map(|client| SocketAddr::new(client, 0)),
            age: u64::try_from(now.since(began).as_millis()).unwrap_or(u64::MAX),
            status,
            attempts,
            bytes_in,
            bytes_out,
        }
    }

    /// Creates the entry of a tunnel again; `now` is the time when it was frozen, in the clock of
    /// this process.
    pub(in crate::shard) fn thaw(
        moved: MovedEntry,
        session: u64,
        backend: PeerAddress,
        now: Instant,
    ) -> Self {
        let MovedEntry {
            request,
            server_name,
            request_id,
            peer,
            client,
            age,
            status,
            attempts,
            bytes_in,
            bytes_out,
            site,
            route,
            pool,
            split,
            queued,
            queue_length,
            tls,
        } = moved;
        let names = site.map(|site| RuleNames {
            site: site.into(),
            route: route.unwrap_or_default().into(),
            pool: pool.unwrap_or_default().into(),
            ..RuleNames::default()
        });
        let summary =
            |Parts(parts): Parts| RequestSummary::of_parts(parts.each_ref().map(String::as_str));
        let age = Duration::from_millis(age);
        Self {
            request: request.map(summary),
            server_name: server_name.map(Into::into),
            tls: tls.unwrap_or_default(),
            names: names.map(Arc::new),
            split,
            limit: None,
            queue_length,
            queued: Duration::from_micros(queued.unwrap_or_default()),
            request_id: request_id.map(Into::into),
            subject: Subject {
                session: Some(session),
                peer,
                client: client.map(|client| client.ip()),
            },
            began: Instant(now.0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX))),
            always: true,
            status,
            backend: Some(backend),
            attempts,
            bytes_in,
            bytes_out,
            is_lost: false,
            tls_failure: None,
        }
    }

    pub(in crate::shard) fn new(subject: Subject, began: Instant, always: bool) -> Self {
        Self {
            request: None,
            server_name: None,
            tls: 0,
            names: None,
            split: None,
            limit: None,
            queued: Duration::ZERO,
            queue_length: None,
            request_id: None,
            subject,
            began,
            always,
            status: None,
            backend: None,
            attempts: 0,
            bytes_in: 0,
            bytes_out: 0,
            is_lost: false,
            tls_failure: None,
        }
    }

    /// Adds a request, and the id that the balancer assigned.
    pub(in crate::shard) fn set_request(&mut self, request: &Request<'_>, id: Option<String>) {
        self.request = Some(RequestSummary::new(request));
        self.request_id = id.map(Into::into);
    }

    /// Adds the host that a passed-through connection asks for.
    pub(in crate::shard) fn set_server_name(&mut self, name: Option<Box<str>>) {
        self.server_name = name;
    }

    /// Adds the version of TLS and the host that its client has asked for.
    pub(in crate::shard) fn set_tls(&mut self, origin: &Origin) {
        self.tls = origin.tls_version();
        self.server_name = origin.asked_name().map(Into::into);
    }

    /// Adds the names of its route, and the client's point in the split that chose the pool.
    pub(in crate::shard) fn set_names(
        &mut self,
        names: Option<Arc<RuleNames>>,
        split: Option<u16>,
    ) {
        (self.names, self.split) = (names, split);
    }

    /// Records the limit that refused it.
    pub(in crate::shard) fn set_limit(&mut self, limit: &str) {
        self.limit = Some(limit.into());
    }

    /// Returns whether a limit refused it.
    pub(in crate::shard) fn is_beyond_limit(&self) -> bool {
        self.limit.is_some()
    }

    /// Sets the pool that serves it, in place of its route's.
    pub(in crate::shard) fn set_pool(&mut self, pool: &str) {
        if let Some(names) = &self.names {
            self.names = Some(Arc::new(RuleNames { pool: pool.into(), ..RuleNames::clone(names) }));
        }
    }

    /// Returns the subject of the request or tunnel.
    pub(in crate::shard) fn subject(&self) -> Subject {
        self.subject
    }

    /// Adds the backend of a tunnel.
    pub(in crate::shard) fn set_backend(&mut self, backend: Option<PeerAddress>) {
        self.backend = backend;
    }

    /// Returns whether it is recorded even if it succeeds.
    pub(in crate::shard) fn is_always_recorded(&self) -> bool {
        self.always
    }

    /// Returns the backend that it was sent to last.
    pub(in crate::shard) fn backend(&self) -> Option<PeerAddress> {
        self.backend
    }

    /// Returns whether a tunnel's backend ended without a Close frame.
    pub(in crate::shard) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Counts bytes of the request's body.
    pub(in crate::shard) fn count_in(&mut self, bytes: usize) {
        self.bytes_in += bytes as u64;
    }

    /// Counts bytes of the answer's body.
    pub(in crate::shard) fn count_out(&mut self, bytes: usize) {
        self.bytes_out += bytes as u64;
    }

    /// Records that the request is sent to a backend.
    pub(in crate::shard) fn try_backend(&mut self, backend: PeerAddress) {
        self.backend = Some(backend);
        self.attempts += 1;
    }

    /// Records that it has waited for a backend, once more.
    pub(in crate::shard) fn note_queued(&mut self, time: Duration, length: u32) {
        self.queued += time;
        self.queue_length.get_or_insert(length);
    }

    /// Records the head of the response.
    pub(in crate::shard) fn answered(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// Discards a response if none of its bytes were sent.
    pub(in crate::shard) fn unanswered(&mut self) {
        (self.status, self.bytes_out) = (None, 0);
    }

    /// Records that the backend of a tunnel ended without a Close frame, perhaps because its TLS
    /// session failed.
    pub(in crate::shard) fn note_loss(&mut self, failure: Option<SessionFailure>) {
        (self.is_lost, self.tls_failure) = (true, failure);
    }

    /// Returns why a tunnel ended without being closed.
    pub(in crate::shard) fn loss(&self) -> String {
        match (self.is_lost, self.tls_failure) {
            (false, _) => String::new(),
            (true, None) => "the backend ended without a Close frame".to_owned(),
            (true, Some(why)) => Failure::Tls(why).to_string(),
        }
    }

    pub(in crate::shard) fn access(&self, now: Instant) -> Access<'_> {
        let request = self.request.as_ref();
        let names = self.names.as_deref();
        let some = |name: &&str| !name.is_empty();
        let tls = TlsInfo { version: self.tls, ..TlsInfo::default() };
        Access {
            site: names.map(|names| &*names.site),
            route: names.map(|names| &*names.route).filter(some),
            pool: names.map(|names| &*names.pool).filter(some),
            split: self.split,
            limit: self.limit.as_deref(),
            queue_length: self.queue_length,
            queued: Some(self.queued).filter(|queued| !queued.is_zero()),
            tls: tls.version_name(),
            subject: self.subject,
            method: request.map(RequestSummary::method),
            path: request.map(RequestSummary::path),
            server_name: self.server_name.as_deref(),
            is_tunnel: request.is_none(),
            is_failure: self.status.is_some_and(|status| status >= 500),
            status: self.status,
            code: None,
            backend: self.backend,
            attempts: self.attempts,
            bytes_in: Some(self.bytes_in),
            bytes_out: Some(self.bytes_out),
            duration: Some(now.since(self.began)).filter(|duration| !duration.is_zero()),
            host: request.and_then(RequestSummary::host),
            user_agent: request.and_then(RequestSummary::user_agent),
            reason: "",
            request_id: self
                .request_id
                .as_deref()
                .or_else(|| request.and_then(RequestSummary::request_id)),
            traceparent: request.and_then(RequestSummary::traceparent),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also before a backend is connected.
    #[test]
    fn a_connection_passed_through_is_never_recorded_as_a_request() {
        let entry = LogEntry::new(Subject::default(), Instant::default(), true);
        assert!(entry.access(Instant::default()).is_tunnel);
    }
}
