//! The road of an attempt: a request is sent to a backend, or waits for one; a failure leads to
//! another attempt, at another backend, or to a refusal of the balancer's own.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use throng_engine::HeldInput;
use throng_io::{Closed, ConnId, Driver, PeerAddress, SessionFailure};
use throng_proto::proxy_protocol;

use crate::access::EndReason;
use crate::backend::Backend;
use crate::forward;
use crate::guards::Permits;
use crate::pool::Pool;
use crate::report::Failure;
use crate::settings::Target;
use crate::shard::BalanceParts;
use crate::shard::actions::ConnAction;
use crate::shard::clients::Full;
use crate::shard::dispatch::Choice;
use crate::shard::records::{BalanceRecord, EighthTick, Fact, HIGH_WATER, Phase, Upstream};
use crate::shard::roads::request_head::OwnAnswer;
use crate::unix_peer::known;

/// Reasons of refusals that name a setting in the log; see [`setting_of`].
pub(super) const LATE_HEAD: &str = "the request did not come in time";
pub(super) const BUSY: &str = "the backends are busy with other requests: try again";
const LONG_QUEUE: &str = "too many other requests wait for the backends: try again";
const FULL: &str = "the balancer is full: try again";

/// Writes the PROXY header of a client's connection. A Unix socket has no address: the header does
/// not name a client that came over one, and names a backend on one as 0.0.0.0.
fn write_proxy_header(client: SocketAddr, backend: PeerAddress, out: &mut Vec<u8>) {
    match known(client.ip()) {
        Some(_) => {
            let backend = backend.socket_addr().unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into());
            proxy_protocol::encode(client, backend, out);
        }
        None => proxy_protocol::encode_local(out),
    }
}

/// Returns the settings that a refusal follows from, if there are any.
fn setting_of(status: u16, reason: &str) -> Option<&'static str> {
    Some(match (status, reason) {
        (408, LATE_HEAD) => "timeouts.head",
        (408, _) => "timeouts.body, min_body_rate",
        (413, _) => "max_body",
        (414, _) => "max_header_bytes",
        (429, _) => "max_connections_per_address",
        (431, _) => "max_header_bytes, max_headers",
        (503, BUSY) => "max_handshakes, max_connections of backends, timeouts.queue",
        (503, LONG_QUEUE) => "max_queue",
        (503, FULL) => "max_connections",
        (504, _) => "timeouts.connect, timeouts.response, timeouts.upgrade, timeouts.body",
        _ => return None,
    })
}

/// Maximum waiting clients that are looked at in a turn.
const BUDGET: usize = 64;

impl BalanceParts {
    /// Finds a backend and a connection for the request of `id`.
    pub(in crate::shard) fn dispatch<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Self { records, rules, .. } = self;
        let Some(exchange) = records.client(id).and_then(|client| client.exchange.as_ref()) else {
            return;
        };
        let pool = Arc::clone(rules.configuration().pools.current(exchange.facts().pool()));
        loop {
            let Some(client) = self.records.client(id) else { return };
            let Some(exchange) = &client.exchange else { return };
            // A request that has begun goes on before those that wait.
            let is_new = client.phase != Phase::Queued && exchange.is_untried();
            let choice = self.dispatch.choose((exchange, is_new), &pool, &self.rules, &self.mail);
            let (index, permits, other) = match choice {
                Choice::Backend(index, permits, other) => (index, permits, other),
                Choice::Full(backend, other) => {
                    return self.enqueue(id, backend, other.as_ref().unwrap_or(&pool));
                }
                Choice::None => return self.refuse_without_backend(id),
            };
            let is_fallback = other.is_some();
            let serving = other.as_ref().unwrap_or(&pool);
            if let Some(exchange) =
                self.records.client(id).and_then(|client| client.exchange.as_mut())
            {
                exchange.serve_from(is_fallback.then_some(serving));
            }
            if self.begin_try(driver, id, (serving, &serving.targets[index]), permits) {
                return;
            }
        }
    }

    /// Lets a request wait for a permit: of `backend`, or of any in its pool.
    fn enqueue(&mut self, id: ConnId, backend: Option<Arc<Backend>>, pool: &Arc<Pool>) {
        let now = self.time.now();
        let Some(client) = self.records.client(id) else { return };
        let Some(exchange) = &mut client.exchange else { return };
        let Ok(since) = exchange.enter_queue(pool, backend.clone(), now) else {
            self.meters.count(|it| it.queue_full += 1);
            return self.refuse(id, 503, LONG_QUEUE);
        };
        self.dispatch.enqueue(id, backend, pool, since);
        if client.phase != Phase::Queued {
            client.phase = Phase::Queued;
            self.records.set_deadline(id, self.time.after(pool.settings.queue));
        }
    }

    /// Sends a request to `target` of a pool. Returns false if the connection could not even be
    /// begun.
    fn begin_try<D: Driver>(
        &mut self,
        driver: &mut D,
        id: ConnId,
        (pool, target): (&Pool, &Target),
        permits: Permits,
    ) -> bool {
        let backend = &target.backend;
        let Some(client) = self.records.client(id) else { return true };
        let Some(exchange) = &mut client.exchange else { return true };
        client.phase = Phase::Exchange;
        let Permits { handshake, request } = permits;
        exchange.begin_try(request, self.time.now());
        let is_complete = exchange.is_complete();
        let facts = exchange.facts();
        let may_reuse = !facts.wants_tunnel() && !target.send_proxy;
        let (owner, address) = (facts.owner(id), client.origin.address());
        let body = self.rules.body_timeout(Some(exchange));
        let due = if is_complete { EighthTick::NEVER } else { self.time.after(body) };
        self.records.set_deadline(id, due);
        let Self { idle, records, actions, .. } = self;
        let reused =
            if may_reuse { idle.take_usable(backend, owner, records, actions) } else { None };
        let connected = match reused {
            Some(reused) => Ok(reused),
            None => self.connect(driver, (pool, target), address),
        };
        let upstream_id = match connected {
            Ok(upstream) => upstream,
            Err(error) => {
                self.note_failed_connect(id, backend, &error);
                return false;
            }
        };
        let past = self.records.upstream(upstream_id).map(|it| it.past());
        let Some(client) = self.records.client(id) else { return true };
        let Some(exchange) = &mut client.exchange else { return true };
        let is_reused = past.is_some();
        // A plain request needs a permit only for a new connection.
        exchange.send_on(upstream_id, (!is_reused).then_some(handshake));
        let mut upstream = Upstream::new(id, exchange, (pool, target), past);
        // With TLS it comes before the handshake.
        if target.send_proxy && target.tls.is_none() {
            self.actions.write(&mut upstream.http, |out| {
                write_proxy_header(address, backend.address(), out);
            });
        }
        if exchange.has_replay() {
            self.actions.write(&mut upstream.http, |out| exchange.write_to(target, out));
        }
        // A client is read again that was paused because its body had no receiver.
        let has_room = exchange.replay_len() <= HIGH_WATER;
        if has_room && client.held.is_empty() && client.http.resume() {
            driver.resume(id);
        }
        let response = upstream.answer_timeout(self.rules.timeouts());
        let timeout = if is_reused { response } else { pool.settings.connect };
        self.records.enter(upstream_id, BalanceRecord::Upstream(Box::new(upstream)));
        self.records.set_deadline(upstream_id, self.time.after(timeout));
        self.actions.push(ConnAction::Flush(upstream_id));
        true
    }

    /// Begins a connection to `target` for a client with the address `client`.
    fn connect<D: Driver>(
        &mut self,
        driver: &mut D,
        (pool, target): (&Pool, &Target),
        client: SocketAddr,
    ) -> io::Result<ConnId> {
        let address = target.backend.address();
        let local = self.dispatch.next_source(pool, address);
        target.backend.totals().connects.fetch_add(1, Relaxed);
        let Some(tls) = &target.tls else { return driver.connect(address, local) };
        let mut preface = Vec::new();
        if target.send_proxy {
            write_proxy_header(client, address, &mut preface);
        }
        driver.connect_secured(address, local, &tls.for_driver(), &preface)
    }

    /// Notes a connection that could not be begun.
    fn note_failed_connect(&mut self, id: ConnId, backend: &Arc<Backend>, error: &io::Error) {
        let Some(client) = self.records.client(id) else { return };
        let Some(exchange) = &mut client.exchange else { return };
        let failure = Failure::of_connect(error);
        let is_retry = exchange.tries() > 0;
        exchange.fail(failure, Some(backend.key()));
        exchange.end_try();
        let may_retry = exchange.may_retry();
        self.mail.report(&mut self.meters, backend, failure, is_retry);
        if !may_retry {
            self.meters.count(|it| it.retries_refused += 1);
            self.refuse(id, failure.status(), &failure.to_string());
        }
    }

    /// Finds backends for waiting requests, as far as there are permits.
    pub(in crate::shard) fn serve_waiting<D: Driver>(&mut self, driver: &mut D) {
        if self.dispatch.waiting().is_empty() {
            return;
        }
        let numbers = |parts: &Self| {
            let waiting = parts.dispatch.waiting();
            (waiting.len(), waiting.unbound())
        };
        let before = numbers(self);
        self.dispatch.waiting_mut().begin_turn(BUDGET);
        while let Some(id) = self.dispatch.waiting_mut().next_due() {
            self.serve(driver, id);
        }
        let after = numbers(self);
        let has_progressed = after.0 < before.0 || after.1 < before.1;
        self.dispatch.waiting_mut().end_turn(has_progressed);
    }

    fn serve<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        if self.records.client(id).is_some_and(|client| client.phase == Phase::Queued) {
            self.dispatch(driver, id);
            self.perform(driver);
        }
    }

    /// Sends a client the balancer's own answer and ends its connection.
    pub(in crate::shard) fn refuse(&mut self, id: ConnId, status: u16, reason: &str) {
        let now = self.time.now();
        let Some(client) = self.records.client(id) else { return };
        if let Some(exchange) = &mut client.exchange {
            exchange.leave_queue(now);
        }
        let exchange = client.exchange.as_ref();
        if exchange.is_some_and(|exchange| exchange.facts().is(Fact::PassedThrough)) {
            return self.refuse_passthrough(id, reason, ConnAction::Close(id));
        }
        let is_head = exchange.is_some_and(|exchange| exchange.facts().is(Fact::Head));
        self.answer_error(id, status, reason, is_head);
    }

    /// Refuses the request of a client beyond a limit.
    pub(in crate::shard) fn refuse_beyond(&mut self, id: ConnId, full: Full, is_head: bool) {
        let (status, reason) = match full {
            Full::All => (503, FULL),
            Full::Listener => (503, "too many connections to this address"),
            Full::Address => (429, "too many connections from this address"),
        };
        self.meters.count(|it| match full {
            Full::All | Full::Listener => it.answered_full += 1,
            Full::Address => it.answered_full_address += 1,
        });
        self.answer_error(id, status, reason, is_head);
    }

    fn answer_error(&mut self, id: ConnId, status: u16, reason: &str, is_head: bool) {
        let Some(client) = self.records.client(id) else { return };
        let own = client.exchange.as_ref().map(|exchange| exchange.policy());
        let hsts = self.rules.hsts(client.origin.is_secure(), own);
        let date = self.time.date().to_owned();
        let to =
            forward::Client { is_head, hsts: hsts.as_deref(), ..forward::Client::unknown(&date) };
        let mut text = Vec::new();
        let exchange = client.exchange.as_ref();
        let policy = exchange.map_or(&*self.rules.configuration().policy, |it| it.policy());
        match policy.error_page(status) {
            Some(page) => forward::write_page(&mut text, status, page.parts(), &to),
            None => forward::write_error(&mut text, status, reason, &to),
        }
        if let Some(exchange) = &client.exchange {
            exchange.answer_edits().apply(&mut text, 0);
        }
        self.end_with(id, status, reason, |out| out.extend_from_slice(&text));
    }

    /// Answers a client instead of a backend, by a rule. Its connection continues, or ends.
    pub(super) fn answer_itself(
        &mut self,
        id: ConnId,
        answer: &OwnAnswer,
        text: &[u8],
        continues: bool,
    ) {
        let Some(client) = self.records.client(id) else { return };
        let (status, reason) = (answer.response().status().code(), answer.reason());
        self.meters.count_own(status);
        match answer.entry() {
            Some(entry) => self.log.answered_itself(entry, status, reason, self.time.now()),
            None if answer.was_begun() => {}
            None => self.log.refused(client, status, reason, self.time.now()),
        }
        let write = |out: &mut Vec<u8>| out.extend_from_slice(text);
        if !continues {
            return self.leave_with(id, write);
        }
        client.note_asked();
        self.actions.write(&mut client.http, write);
        self.actions.push(ConnAction::Flush(id));
    }

    /// Answers a client instead of its backend, and ends its connection.
    pub(in crate::shard) fn end_with(
        &mut self,
        id: ConnId,
        status: u16,
        reason: &str,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let Some(client) = self.records.client(id) else { return };
        self.meters.count_own(status);
        if let Some(exchange) = &mut client.exchange {
            exchange.answer_itself(status);
        }
        let explained = setting_of(status, reason).map(|setting| format!("{reason}; {setting}"));
        let explained = explained.as_deref().unwrap_or(reason);
        self.log.refused(client, status, explained, self.time.now());
        self.leave_with(id, write);
    }

    /// Ends a client's connection with an answer.
    fn leave_with(&mut self, id: ConnId, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(client) = self.records.client(id) else { return };
        let is_answered = self.actions.drop_exchange(client);
        client.held = HeldInput::default();
        client.phase = Phase::Leaving;
        if is_answered {
            // Half an answer cannot be followed by another: a reset is the only sign that it is
            // incomplete.
            self.actions.push(ConnAction::Cut(id));
        } else {
            self.actions.write(&mut client.http, write);
            self.actions.push(ConnAction::Flush(id));
        }
        self.records.set_deadline(id, self.time.after(self.rules.timeouts().body));
    }

    /// Ends a client that no backend is left for. There is no answer that it would understand: TLS
    /// has not begun.
    pub(in crate::shard) fn refuse_passthrough(
        &mut self,
        id: ConnId,
        reason: &str,
        end: ConnAction,
    ) {
        let Some(client) = self.records.client(id) else { return };
        self.meters.count(|it| it.backend_errors += 1);
        self.log.unconnected(client, reason, self.time.now());
        self.actions.drop_exchange(client);
        client.phase = Phase::Leaving;
        self.records.set_deadline(id, self.time.after(self.rules.timeouts().body));
        self.actions.push(end);
    }

    /// Refuses a request that no backend is left for, with the last failure as the reason.
    pub(in crate::shard) fn refuse_without_backend(&mut self, id: ConnId) {
        let exchange = self.records.client(id).and_then(|client| client.exchange.as_ref());
        let (status, reason) = match exchange.and_then(|exchange| exchange.failure()) {
            Some(failure) => (failure.status(), failure.to_string()),
            None => (503, "there is no backend".to_owned()),
        };
        self.refuse(id, status, &reason);
    }

    /// Handles a backend's connection that is gone or to be given up; its record was taken out.
    pub(in crate::shard) fn upstream_closed(
        &mut self,
        id: ConnId,
        upstream: Upstream,
        failure: Failure,
    ) {
        let Some(client_id) = upstream.client() else {
            return self.idle.remove(upstream.backend().id(), id);
        };
        let Some(client) = self.records.client(client_id) else { return };
        let Some(exchange) = &mut client.exchange else { return };
        let failure = match failure {
            // The backend had accepted the balancer: what comes later breaks the connection off.
            Failure::Insecure(why) if exchange.is_answered() => {
                Failure::of_closed(Closed::Insecure(why))
            }
            failure => failure,
        };
        exchange.end_try();
        // An idle connection may end at any moment: that says nothing about the backend, unless TLS
        // gives a reason.
        let is_stale = upstream.is_reused() && failure.is_break() && !exchange.is_answered();
        let is_silent = is_stale && failure == Failure::Reset;
        // Mostly an early answer (413) that its reset overtook: a refusal of this upload, and not a
        // sign of its health.
        let is_refusal = failure == Failure::Reset
            && upstream.is_connected()
            && (!exchange.is_complete() || !upstream.http.is_clear());
        if upstream.is_reused() && failure == Failure::ResponseTimeout && !exchange.is_answered() {
            upstream.backend().note_silence();
        }
        if !is_silent && !is_refusal {
            let is_retry = exchange.tries() > 0;
            self.mail.report(&mut self.meters, upstream.backend(), failure, is_retry);
        }
        let was_not_sent = !upstream.is_connected();
        let may_repeat = exchange.has_replay()
            && !exchange.is_answered()
            && (was_not_sent || exchange.facts().is(Fact::Idempotent))
            && !matches!(failure, Failure::BadResponse(_) | Failure::BadUpgrade(_));
        if !may_repeat {
            return self.refuse(client_id, failure.status(), &failure.to_string());
        }
        // A backend may close an idle connection at any time: that is the balancer's own risk.
        if !is_stale && !exchange.may_retry() {
            self.meters.count(|it| it.retries_refused += 1);
            return self.refuse(client_id, failure.status(), &failure.to_string());
        }
        exchange.fail(failure, (!is_stale).then(|| upstream.backend().key()));
        self.meters.count(|it| it.retries += 1);
        self.actions.push(ConnAction::Dispatch(client_id));
    }

    /// Handles the end of a backend's stream; `failure` is why its TLS session failed.
    pub(in crate::shard) fn upstream_finished(
        &mut self,
        id: ConnId,
        was_truncated: bool,
        failure: Option<SessionFailure>,
    ) {
        let Some(upstream) = self.records.upstream(id) else { return };
        upstream.http.finish();
        let Some(client) = upstream.client() else {
            self.idle.remove(upstream.backend().id(), id);
            return self.actions.push(ConnAction::Close(id));
        };
        let is_end = matches!(upstream.decoder.handle_end_of_stream(), Ok(Some(_)));
        if is_end && !was_truncated {
            return self.end_answer(client);
        }
        // The answer would be complete if TLS said so (RFC 9112 section 9.8).
        let is_cut = is_end && was_truncated;
        let failure = failure.or(is_cut.then_some(SessionFailure::Truncated));
        let failure = failure.map_or(Failure::Reset, Failure::Tls);
        self.actions.push(ConnAction::Fail(id, failure));
    }

    /// Ends a client that does not read its response.
    pub(in crate::shard) fn end_unread<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        self.meters.count(|it| it.unread_ended += 1);
        if let Some(client) = self.records.client(id) {
            let exchange = client.exchange.as_ref();
            let backend = exchange.and_then(|exchange| exchange.entry()?.backend());
            self.log.ended(&client.origin.subject(), backend, EndReason::Unread);
        }
        driver.abort(id);
        self.close(driver, id);
    }
}
