//! Entries: the data of a request or tunnel for its record in the log.

use std::net::SocketAddr;

use throng_http::RequestSummary;
use throng_io::{Instant, SessionFailure};
use throng_proto::http1::Request;

use crate::access::{Access, Subject};
use crate::report::Failure;

/// A request, or a connection that is passed through, that the log wants.
#[derive(Debug)]
pub(in crate::shard) struct LogEntry {
    /// None of a connection that is passed through.
    request: Option<RequestSummary>,
    server_name: Option<Box<str>>,
    /// The id that the balancer assigned.
    request_id: Option<Box<str>>,
    subject: Subject,
    began: Instant,
    /// Recorded even if it succeeds.
    always: bool,
    status: Option<u16>,
    backend: Option<SocketAddr>,
    attempts: usize,
    bytes_in: u64,
    bytes_out: u64,
    /// A tunnel's backend ended without a Close frame.
    is_lost: bool,
    /// Why the backend's TLS session failed, if that ended the tunnel.
    tls_failure: Option<SessionFailure>,
}

impl LogEntry {
    pub(in crate::shard) fn new(subject: Subject, began: Instant, always: bool) -> Self {
        Self {
            request: None,
            server_name: None,
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

    /// Returns the subject of the request or tunnel.
    pub(in crate::shard) fn subject(&self) -> Subject {
        self.subject
    }

    /// Adds the backend of a tunnel.
    pub(in crate::shard) fn set_backend(&mut self, backend: Option<SocketAddr>) {
        self.backend = backend;
    }

    /// Returns whether it is recorded even if it succeeds.
    pub(in crate::shard) fn is_always_recorded(&self) -> bool {
        self.always
    }

    /// Returns the backend that it was sent to last.
    pub(in crate::shard) fn backend(&self) -> Option<SocketAddr> {
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
    pub(in crate::shard) fn try_backend(&mut self, backend: SocketAddr) {
        self.backend = Some(backend);
        self.attempts += 1;
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
        Access {
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
