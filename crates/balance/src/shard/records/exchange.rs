//! The record of a request and its answer.

use std::net::IpAddr;

use throng_engine::Progress;
use throng_io::{ConnId, Instant};
use throng_proto::http1::{BodyLength, Request};
use throng_proto::ws::handshake::Key;

use super::LogEntry;
use crate::backend::Wanted;
use crate::forward::Framing;
use crate::guards::{HandshakePermit, RequestGuard};
use crate::report::Failure;

/// A client on a connection: a trusted proxy's carries the requests of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) struct Owner {
    pub(in crate::shard) client: ConnId,
    /// Its address, past trusted proxies.
    pub(in crate::shard) address: IpAddr,
}

/// A request and the answer to it.
#[derive(Debug)]
pub(in crate::shard) struct Exchange {
    /// The bytes for the backend, from the first, for as long as they may be sent again.
    pub(in crate::shard) replay: Option<Vec<u8>>,
    /// Where in them the Host is due that the backend has, as the request has none.
    pub(in crate::shard) host_at: Option<usize>,
    /// The key of a WebSocket handshake.
    pub(in crate::shard) key: Option<Key>,
    pub(in crate::shard) is_head: bool,
    /// RFC 9110 section 9.2.2: sending it twice does no harm.
    pub(in crate::shard) is_idempotent: bool,
    pub(in crate::shard) is_http11: bool,
    pub(in crate::shard) keep_alive: bool,
    /// Its client has announced it as its last (RFC 9112 section 9.6).
    pub(in crate::shard) is_last: bool,
    /// It has a body.
    pub(in crate::shard) has_body: bool,
    /// Its body means nothing to its method, so a backend may take it for the next request.
    pub(in crate::shard) has_odd_body: bool,
    /// Its body is forwarded in chunks.
    pub(in crate::shard) chunked: bool,
    /// The client's address, past trusted proxies.
    pub(in crate::shard) client: IpAddr,
    /// The key for picks by a key.
    pub(in crate::shard) sticky_key: Option<u64>,
    /// The backend named by its cookie, by its tag.
    pub(in crate::shard) bound: Option<u64>,
    /// The client uses https: its connection has TLS, or a trusted proxy reports it.
    pub(in crate::shard) is_secure: bool,
    /// Backends that were tried, by their keys.
    pub(in crate::shard) tried: Vec<u64>,
    /// The last failure.
    pub(in crate::shard) failure: Option<Failure>,
    /// Its last byte has been received.
    pub(in crate::shard) is_complete: bool,
    /// The progress of its body.
    pub(in crate::shard) progress: Progress,
    /// Interim responses to it (RFC 9110 section 15.2).
    pub(in crate::shard) interim: u8,
    /// The head of the answer was forwarded.
    pub(in crate::shard) is_answered: bool,
    /// The framing of the answer's body for the client.
    pub(in crate::shard) framing: Framing,
    pub(in crate::shard) upstream: Option<ConnId>,
    pub(in crate::shard) count: Option<RequestGuard>,
    pub(in crate::shard) permit: Option<HandshakePermit>,
    /// When the backend was first sent something.
    pub(in crate::shard) began: Instant,
    /// The pattern of a connection that is passed through; its ClientHello is in `replay`.
    pub(in crate::shard) route: Option<Box<str>>,
    /// Its entry for the log.
    pub(in crate::shard) access: Option<Box<LogEntry>>,
}

impl Exchange {
    /// Counts the head of its backend's final response.
    pub(in crate::shard) fn note_answer(&self, status: u16, now: Instant) {
        let Some(count) = &self.count else { return };
        let took = now.since(self.began).as_micros();
        count.backend().note_answer(status, took.try_into().unwrap_or(u64::MAX));
    }

    /// Returns what its client wants.
    pub(in crate::shard) fn wanted(&self) -> Wanted {
        match self.key.is_some() || self.route.is_some() {
            true => Wanted::Tunnel,
            false => Wanted::Request,
        }
    }

    /// Returns who it is of, on the connection `client`.
    pub(in crate::shard) fn owner(&self, client: ConnId) -> Owner {
        Owner { client, address: self.client }
    }

    /// Creates the record of a request that has just come, without its text for the backend.
    pub(in crate::shard) fn new(request: &Request<'_>, client: IpAddr, now: Instant) -> Self {
        let method = request.method();
        Self {
            is_head: method == "HEAD",
            is_idempotent: matches!(
                method,
                "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE" | "TRACE"
            ),
            is_http11: request.is_http11(),
            keep_alive: request.keep_alive(),
            is_last: !request.keep_alive(),
            has_body: request.has_body(),
            // Backends may leave the body of any other method unread, and of one they do not know.
            has_odd_body: request.has_body() && !matches!(method, "POST" | "PUT" | "PATCH"),
            chunked: request.body_length() == BodyLength::Chunked,
            ..Self::blank(client, now)
        }
    }

    /// Creates the record of a connection that is passed through, after these bytes.
    pub(in crate::shard) fn passed_through(
        route: Box<str>,
        received: Vec<u8>,
        client: IpAddr,
        now: Instant,
    ) -> Self {
        Self {
            replay: Some(received),
            route: Some(route),
            is_complete: true,
            ..Self::blank(client, now)
        }
    }

    fn blank(client: IpAddr, now: Instant) -> Self {
        Self {
            replay: None,
            host_at: None,
            key: None,
            is_head: false,
            is_idempotent: false,
            is_http11: false,
            keep_alive: false,
            is_last: false,
            has_body: false,
            has_odd_body: false,
            chunked: false,
            client,
            sticky_key: None,
            bound: None,
            is_secure: false,
            tried: Vec::new(),
            failure: None,
            is_complete: false,
            progress: Progress::default(),
            interim: 0,
            is_answered: false,
            framing: Framing::Empty,
            upstream: None,
            count: None,
            permit: None,
            began: now,
            route: None,
            access: None,
        }
    }
}
