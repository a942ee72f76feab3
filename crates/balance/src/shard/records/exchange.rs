//! The record of a request and its answer.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use throng_engine::Progress;
use throng_io::{ConnId, Instant};
use throng_proto::http1::{BodyLength, Request};
use throng_proto::ws::handshake::Key;

use super::LogEntry;
use crate::backend::{Backend, Wanted};
use crate::forward::{AnswerEdits, Bound, Framing};
use crate::guards::{HandshakePermit, RequestGuard, TunnelGuard};
use crate::limit::TunnelPlaces;
use crate::pool::Pool;
use crate::queue::{QueuePlace, RetryPermit};
use crate::report::Failure;
use crate::settings::Target;
use crate::site::{CountedRequest, Policy, RouteTimes, Treatment};

/// The bytes of a request that are kept for a retry; a longer request has only its first try.
const REPLAY_LIMIT: usize = 64 << 10;

/// A client on a connection: a trusted proxy's carries the requests of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) struct Owner {
    client: ConnId,
    /// Its address, past trusted proxies.
    address: IpAddr,
}

impl Owner {
    pub(in crate::shard) fn new(client: ConnId, address: IpAddr) -> Self {
        Self { client, address }
    }

    /// Returns the client's connection.
    pub(in crate::shard) fn client(&self) -> ConnId {
        self.client
    }
}

/// A fact of a request that is true or not.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) enum Fact {
    /// The method is HEAD.
    Head = 1,
    /// RFC 9110 section 9.2.2: sending it twice does no harm.
    Idempotent = 1 << 1,
    Http11 = 1 << 2,
    /// Its client has announced it as its last (RFC 9112 section 9.6).
    Last = 1 << 3,
    Body = 1 << 4,
    /// The method defines no body; a backend may parse it as the next request (smuggling).
    OddBody = 1 << 5,
    /// Its body is forwarded in chunks.
    Chunked = 1 << 6,
    /// The client uses https: its connection has TLS, or a trusted proxy reports it.
    Secure = 1 << 7,
    /// It is a connection that is passed through.
    PassedThrough = 1 << 8,
}

/// The facts of a request after its head. They do not change.
#[derive(Debug)]
pub(in crate::shard) struct RequestFacts {
    /// The [`Fact`]s that are true.
    facts: u16,
    /// The key of a WebSocket handshake.
    key: Option<Key>,
    /// The client's address, past trusted proxies.
    client: IpAddr,
    /// The backend that its client is bound to, or the key for picks by a key.
    bound: Option<Bound>,
    /// The pool of its backends.
    pool: Arc<Pool>,
}

impl RequestFacts {
    /// Reads the facts of a request from `client`.
    pub(in crate::shard) fn new(
        request: &Request<'_>,
        key: Option<Key>,
        client: IpAddr,
        (pool, bound): (Arc<Pool>, Option<Bound>),
        is_secure: bool,
    ) -> Self {
        let method = request.method();
        let is_idempotent =
            matches!(method, "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE" | "TRACE");
        // Backends may leave the body of any other method unread, and of one they do not know.
        let may_have_body = matches!(method, "POST" | "PUT" | "PATCH");
        let facts = [
            (Fact::Head, method == "HEAD"),
            (Fact::Idempotent, is_idempotent),
            (Fact::Http11, request.is_http11()),
            (Fact::Last, !request.keep_alive()),
            (Fact::Body, request.has_body()),
            (Fact::OddBody, request.has_body() && !may_have_body),
            (Fact::Chunked, request.body_length() == BodyLength::Chunked),
            (Fact::Secure, is_secure),
        ];
        let facts = facts.map(|(fact, is_true)| if is_true { fact as u16 } else { 0 });
        let facts = facts.into_iter().fold(0, |all, fact| all | fact);
        Self { facts, key, client, bound, pool }
    }

    /// Returns the facts of a connection that is passed through.
    fn passed_through(pool: Arc<Pool>, client: IpAddr, bound: Option<Bound>) -> Self {
        Self { facts: Fact::PassedThrough as u16, key: None, client, bound, pool }
    }

    /// Returns whether a fact is true.
    pub(in crate::shard) fn is(&self, fact: Fact) -> bool {
        self.facts & fact as u16 != 0
    }

    /// Returns the key of a WebSocket handshake.
    pub(in crate::shard) fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// Returns the client's address, past trusted proxies.
    pub(in crate::shard) fn client(&self) -> IpAddr {
        self.client
    }

    /// Returns the backend that its client is bound to, or the key for picks by a key.
    pub(in crate::shard) fn bound(&self) -> Option<Bound> {
        self.bound
    }

    /// Returns the pool of its backends, as it was when the request came.
    pub(in crate::shard) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns whether it asks for an upgrade, or is a connection that is passed through.
    pub(in crate::shard) fn wants_tunnel(&self) -> bool {
        self.key.is_some() || self.is(Fact::PassedThrough)
    }

    /// Returns what its client wants.
    pub(in crate::shard) fn wanted(&self) -> Wanted {
        if self.wants_tunnel() { Wanted::Tunnel } else { Wanted::Request }
    }

    /// Returns the team: the client's connection, and its address.
    pub(in crate::shard) fn owner(&self, client: ConnId) -> Owner {
        Owner::new(client, self.client)
    }
}

/// The request's tries at backends.
#[derive(Debug, Default)]
struct BackendAttempt {
    /// The bytes for the backend, from the first, while they may be sent again.
    replay: Option<Vec<u8>>,
    /// The position of the Host in them, which the backend supplies if the request has none.
    host_at: Option<usize>,
    /// Backends that were tried, by their keys.
    tried: Vec<u64>,
    /// The last failure.
    failure: Option<Failure>,
    upstream: Option<ConnId>,
    count: Option<RequestGuard>,
    permit: Option<HandshakePermit>,
    /// Its place among the requests that wait for a backend.
    place: Option<QueuePlace>,
    /// Its permit to be tried again.
    retry: Option<RetryPermit>,
    /// The pool of the backend, if it is not the request's own.
    fallback: Option<Arc<Pool>>,
    /// When the first byte was sent to the backend.
    began: Instant,
}

/// The request's body, as far as it has come.
#[derive(Debug)]
enum BodyState {
    /// Its last byte has not been received.
    Running(Progress),
    Complete,
}

/// The answer to a request, as far as it was forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answering {
    /// After this many interim responses (RFC 9110 section 15.2).
    Interim(u8),
    /// Its head was forwarded: the framing of its body for the client.
    Forwarding(Framing),
}

/// A request and the answer to it.
#[derive(Debug)]
pub(in crate::shard) struct Exchange {
    facts: RequestFacts,
    attempt: BackendAttempt,
    body: BodyState,
    answering: Answering,
    /// The client's connection may continue after the answer.
    keep_alive: bool,
    /// Its entry for the log.
    entry: Option<Box<LogEntry>>,
    /// The value of a Set-Cookie with the client's point in a split.
    split_cookie: Option<Box<str>>,
    /// Its places in limits of tunnels.
    places: TunnelPlaces,
    /// The counters of its site.
    counted: Option<CountedRequest>,
    /// The treatment of its route.
    policy: Arc<Policy>,
    /// The lines of its answer that depend on it.
    answer_lines: Option<Box<[u8]>>,
    /// The class of the tunnel that it may become.
    class: u16,
}

impl Exchange {
    /// Creates the record of a request that has just come, with its treatment and the lines of its
    /// answer that depend on it; `text` is for the backend, whose Host is due at `host_at` if the
    /// request has none.
    pub(in crate::shard) fn new(
        facts: RequestFacts,
        (policy, answer_lines): Treatment,
        (text, host_at): (Vec<u8>, Option<usize>),
        entry: Option<Box<LogEntry>>,
        now: Instant,
    ) -> Self {
        let attempt =
            BackendAttempt { replay: Some(text), host_at, began: now, ..BackendAttempt::default() };
        let (body, answering) = (BodyState::Running(Progress::default()), Answering::Interim(0));
        let keep_alive = !facts.is(Fact::Last);
        Self {
            keep_alive,
            facts,
            attempt,
            body,
            answering,
            entry,
            split_cookie: None,
            places: TunnelPlaces::default(),
            counted: None,
            policy,
            answer_lines,
            class: 0,
        }
    }

    /// Creates the record of a connection that is passed through, after these bytes.
    pub(in crate::shard) fn passed_through(
        (pool, policy): (Arc<Pool>, Arc<Policy>),
        received: Vec<u8>,
        (client, bound): (IpAddr, Option<Bound>),
        entry: Option<Box<LogEntry>>,
        now: Instant,
    ) -> Self {
        let facts = RequestFacts::passed_through(pool, client, bound);
        let mut exchange = Self::new(facts, (policy, None), (received, None), entry, now);
        (exchange.keep_alive, exchange.body) = (false, BodyState::Complete);
        exchange
    }

    /// Returns it with a cookie that its client gets with the answer.
    pub(in crate::shard) fn with_split_cookie(self, split_cookie: Option<Box<str>>) -> Self {
        Self { split_cookie, ..self }
    }

    /// Returns it with the counters of its site.
    pub(in crate::shard) fn with_counts(self, counted: Option<CountedRequest>) -> Self {
        Self { counted, ..self }
    }

    /// Returns it with its places in limits of tunnels.
    pub(in crate::shard) fn with_places(self, places: TunnelPlaces) -> Self {
        Self { places, ..self }
    }

    /// Takes its places in limits of tunnels, for the tunnel.
    pub(in crate::shard) fn take_places(&mut self) -> TunnelPlaces {
        std::mem::take(&mut self.places)
    }

    /// Returns the value of the Set-Cookie with the client's point in a split.
    pub(in crate::shard) fn split_cookie(&self) -> Option<&str> {
        self.split_cookie.as_deref()
    }

    /// Returns it with the class of the tunnel that it may become.
    pub(in crate::shard) fn with_class(self, class: u16) -> Self {
        Self { class, ..self }
    }

    /// Returns the class of the tunnel that it may become.
    pub(in crate::shard) fn class(&self) -> u16 {
        self.class
    }

    /// Returns the treatment of its route.
    pub(in crate::shard) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the times and limits of its route.
    pub(in crate::shard) fn times(&self) -> &RouteTimes {
        &self.policy.times
    }

    /// Returns the changes of the head of its answer.
    pub(in crate::shard) fn answer_edits(&self) -> AnswerEdits<'_> {
        let backend = self.backend().map(|backend| backend.address());
        self.policy.answer_edits(self.answer_lines.as_deref(), backend)
    }

    pub(in crate::shard) fn facts(&self) -> &RequestFacts {
        &self.facts
    }

    /// Returns its entry for the log, if the log wants it.
    pub(in crate::shard) fn entry(&self) -> Option<&LogEntry> {
        self.entry.as_deref()
    }

    /// Takes its entry for the log.
    pub(in crate::shard) fn take_entry(&mut self) -> Option<Box<LogEntry>> {
        self.entry.take()
    }

    fn note(&mut self, note: impl FnOnce(&mut LogEntry)) {
        if let Some(entry) = &mut self.entry {
            note(entry);
        }
    }

    /// Returns whether the last byte of the request has been received.
    pub(in crate::shard) fn is_complete(&self) -> bool {
        matches!(self.body, BodyState::Complete)
    }

    /// Records the last byte of the request.
    pub(in crate::shard) fn complete(&mut self) {
        self.body = BodyState::Complete;
    }

    /// Counts bytes of its body. Returns whether `enough` have come for more time.
    pub(in crate::shard) fn receive_body(&mut self, bytes: usize, enough: u64) -> bool {
        self.note(|entry| entry.count_in(bytes));
        match &mut self.body {
            BodyState::Running(progress) => progress.add(bytes, enough),
            BodyState::Complete => false,
        }
    }

    /// Counts bytes of the answer's body.
    pub(in crate::shard) fn send_body(&mut self, bytes: usize) {
        self.note(|entry| entry.count_out(bytes));
    }

    /// Appends more of its body to the copy for a retry, while there is one. `is_sent`: it was also
    /// sent to a backend.
    pub(in crate::shard) fn keep_body(&mut self, is_sent: bool, write: impl FnOnce(&mut Vec<u8>)) {
        if is_sent && self.replay_len() > REPLAY_LIMIT {
            self.attempt.replay = None;
        }
        if let Some(replay) = &mut self.attempt.replay {
            write(replay);
        }
    }

    /// Returns the bytes that are kept for another try.
    pub(in crate::shard) fn replay_len(&self) -> usize {
        self.attempt.replay.as_ref().map_or(0, Vec::len)
    }

    /// Returns whether there are bytes to send to a backend, from the first.
    pub(in crate::shard) fn has_replay(&self) -> bool {
        self.attempt.replay.is_some()
    }

    /// Writes the request as it is sent to `target`.
    pub(in crate::shard) fn write_to(&self, target: &Target, out: &mut Vec<u8>) {
        let Some(replay) = &self.attempt.replay else { return };
        let (before, after) = replay.split_at(self.attempt.host_at.unwrap_or(replay.len()));
        out.extend_from_slice(before);
        if self.attempt.host_at.is_some() {
            target.write_host(out);
        }
        out.extend_from_slice(after);
    }

    /// Returns the connection to a backend that carries it.
    pub(in crate::shard) fn upstream(&self) -> Option<ConnId> {
        self.attempt.upstream
    }

    /// Returns its backend, while it counts there.
    pub(in crate::shard) fn backend(&self) -> Option<&Arc<Backend>> {
        self.attempt.count.as_ref().map(RequestGuard::backend)
    }

    /// Returns whether no backend was tried yet, nor a connection to one.
    pub(in crate::shard) fn is_untried(&self) -> bool {
        self.attempt.failure.is_none()
    }

    /// Returns the number of backends that failed.
    pub(in crate::shard) fn tries(&self) -> usize {
        self.attempt.tried.len()
    }

    /// Returns whether the backend with this key was tried.
    pub(in crate::shard) fn has_tried(&self, key: u64) -> bool {
        self.attempt.tried.contains(&key)
    }

    /// Returns the last failure.
    pub(in crate::shard) fn failure(&self) -> Option<Failure> {
        self.attempt.failure
    }

    /// Waits for a backend: of its pool as it is now, or for this one. It keeps the time since when
    /// it waits.
    ///
    /// # Errors
    /// So many others wait already.
    pub(in crate::shard) fn enter_queue(
        &mut self,
        pool: &Arc<Pool>,
        backend: Option<Arc<Backend>>,
        now: Instant,
    ) -> Result<Instant, u32> {
        let (load, most) = (pool.load(), pool.settings.max_queue);
        match &mut self.attempt.place {
            Some(place) => place.move_to(load, backend),
            None => match QueuePlace::enter(load, backend, most, now) {
                Ok(place) => self.attempt.place = Some(place),
                Err(length) => {
                    self.note(|entry| entry.note_queued(Duration::ZERO, length));
                    return Err(length);
                }
            },
        }
        Ok(self.attempt.place.as_ref().map_or(now, QueuePlace::since))
    }

    /// Waits no longer.
    pub(in crate::shard) fn leave_queue(&mut self, now: Instant) {
        if let Some(place) = self.attempt.place.take() {
            let time = now.since(place.since());
            self.note(|entry| entry.note_queued(time, place.length()));
        }
    }

    /// Sets the pool that serves it, if that is not its own.
    pub(in crate::shard) fn serve_from(&mut self, fallback: Option<&Arc<Pool>>) {
        if self.attempt.fallback.is_none() && fallback.is_none() {
            return;
        }
        self.attempt.fallback = fallback.cloned();
        let pool = Arc::clone(self.serving_pool());
        self.note(|entry| entry.set_pool(pool.name()));
    }

    /// Returns the pool that serves it: its own, or the fallback of that.
    pub(in crate::shard) fn serving_pool(&self) -> &Arc<Pool> {
        self.attempt.fallback.as_ref().unwrap_or(&self.facts.pool)
    }

    /// Begins a try at the backend that `count` is for.
    pub(in crate::shard) fn begin_try(&mut self, count: RequestGuard, now: Instant) {
        self.leave_queue(now);
        self.attempt.began = now;
        let address = count.backend().address();
        self.attempt.count = Some(count);
        self.note(|entry| entry.try_backend(address));
    }

    /// Returns the count of the tunnel that it becomes.
    pub(in crate::shard) fn take_tunnel_count(&mut self) -> Option<TunnelGuard> {
        self.attempt.count.take().map(TunnelGuard::of_request)
    }

    /// Records the connection that carries it, with the permit that this needs.
    pub(in crate::shard) fn send_on(&mut self, id: ConnId, permit: Option<HandshakePermit>) {
        (self.attempt.upstream, self.attempt.permit) = (Some(id), permit);
    }

    /// Returns its permit: the connection is established, or the handshake is over.
    pub(in crate::shard) fn give_permit_back(&mut self) {
        self.attempt.permit = None;
    }

    /// Ends a try: the connection is gone.
    pub(in crate::shard) fn end_try(&mut self) {
        let attempt = &mut self.attempt;
        (attempt.upstream, attempt.count, attempt.permit) = (None, None, None);
    }

    /// Returns whether it may be tried again: of the requests of its pool, not too many are.
    pub(in crate::shard) fn may_retry(&mut self) -> bool {
        if self.attempt.retry.is_none() {
            self.attempt.retry = self.facts.pool.take_retry();
        }
        self.attempt.retry.is_some()
    }

    /// Records why a try failed, and the key of the backend if that is not tried again.
    pub(in crate::shard) fn fail(&mut self, failure: Failure, backend: Option<u64>) {
        self.attempt.failure = Some(failure);
        self.attempt.tried.extend(backend);
    }

    /// Returns the time since the backend was first sent something, in microseconds.
    pub(in crate::shard) fn micros(&self, now: Instant) -> u64 {
        now.since(self.attempt.began).as_micros().try_into().unwrap_or(u64::MAX)
    }

    /// Returns whether the head of the answer was forwarded.
    pub(in crate::shard) fn is_answered(&self) -> bool {
        matches!(self.answering, Answering::Forwarding(_))
    }

    /// Returns the framing of the answer's body for the client, once its head was forwarded.
    pub(in crate::shard) fn framing(&self) -> Framing {
        match self.answering {
            Answering::Forwarding(framing) => framing,
            Answering::Interim(_) => Framing::Empty,
        }
    }

    /// Counts an interim response; returns their number. If its client receives it, a second
    /// backend's would be one too many: then there is no other try.
    pub(in crate::shard) fn count_interim(&mut self) -> u8 {
        if let Answering::Interim(number) = &mut self.answering {
            *number += 1;
            if self.facts.is(Fact::Http11) {
                self.attempt.replay = None;
            }
            return *number;
        }
        0
    }

    /// Records the head of its final response, and the framing of its body for the client.
    pub(in crate::shard) fn answer(&mut self, status: u16, framing: Framing, now: Instant) {
        self.answering = Answering::Forwarding(framing);
        if let Some(backend) = self.backend() {
            backend.note_answer(status, self.micros(now));
        }
        self.note(|entry| entry.answered(status));
        if let Some(counted) = &mut self.counted {
            counted.answered(status, now);
        }
    }

    /// Counts the answer for its site: it is not taken back.
    pub(in crate::shard) fn count_answer(&mut self) {
        if let Some(counted) = &mut self.counted {
            counted.note();
        }
    }

    /// Records that the balancer answers, in place of a backend.
    pub(in crate::shard) fn answer_itself(&mut self, status: u16) {
        if let (false, Some(counted)) = (self.is_answered(), &mut self.counted) {
            counted.answered_itself(status);
        }
    }

    /// Discards a response whose bytes have not left.
    pub(in crate::shard) fn take_answer_back(&mut self) {
        self.answering = Answering::Interim(0);
        self.note(LogEntry::unanswered);
        if let Some(counted) = &mut self.counted {
            counted.unanswered();
        }
    }

    /// Returns whether the client's connection may continue after the answer.
    pub(in crate::shard) fn keeps_alive(&self) -> bool {
        self.keep_alive
    }

    /// Sets whether the client's connection continues after the answer.
    pub(in crate::shard) fn set_keep_alive(&mut self, keep_alive: bool) {
        self.keep_alive = keep_alive;
    }
}
