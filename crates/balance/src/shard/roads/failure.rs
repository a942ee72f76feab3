//! The road of a failure: a refusal of the balancer's own, or another try at another backend.

use throng_engine::HeldInput;
use throng_io::{Closed, ConnId, Driver, SessionFailure};

use crate::access::EndReason;
use crate::forward;
use crate::report::Failure;
use crate::shard::BalanceParts;
use crate::shard::actions::ConnAction;
use crate::shard::clients::Full;
use crate::shard::records::{Phase, Upstream};

impl BalanceParts {
    /// Sends a client the balancer's own answer and ends its connection.
    pub(in crate::shard) fn refuse(&mut self, id: ConnId, status: u16, reason: &str) {
        let Some(client) = self.records.client(id) else { return };
        let exchange = client.exchange.as_ref();
        if exchange.is_some_and(|exchange| exchange.facts().route.is_some()) {
            return self.refuse_passthrough(id, reason);
        }
        let is_head = exchange.is_some_and(|exchange| exchange.facts().is_head);
        self.answer_error(id, status, reason, is_head);
    }

    /// Refuses the request of a client beyond a limit.
    pub(in crate::shard) fn refuse_beyond(&mut self, id: ConnId, full: Full, is_head: bool) {
        let (status, reason) = match full {
            Full::All => (503, "the balancer is full: try again"),
            Full::Address => (429, "too many connections from this address"),
        };
        self.meters.count(|it| match full {
            Full::All => it.answered_full += 1,
            Full::Address => it.answered_full_address += 1,
        });
        self.answer_error(id, status, reason, is_head);
    }

    fn answer_error(&mut self, id: ConnId, status: u16, reason: &str, is_head: bool) {
        let Some(client) = self.records.client(id) else { return };
        let hsts = self.rules.hsts(client.is_secure);
        let date = self.time.date().to_owned();
        let to =
            forward::Client { is_head, hsts: hsts.as_deref(), ..forward::Client::unknown(&date) };
        self.end_with(id, status, reason, |out| forward::write_error(out, status, reason, &to));
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
        self.meters.count(|it| match status {
            500.. => it.backend_errors += 1,
            400.. => it.client_errors += 1,
            _ => {}
        });
        self.log.refused(client, status, reason, self.time.now());
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

    /// Closes a client that no backend is left for. There is no answer that it would understand:
    /// TLS has not begun.
    fn refuse_passthrough(&mut self, id: ConnId, reason: &str) {
        let Some(client) = self.records.client(id) else { return };
        self.meters.count(|it| it.backend_errors += 1);
        self.log.unconnected(client, reason, self.time.now());
        self.actions.drop_exchange(client);
        client.phase = Phase::Leaving;
        self.records.set_deadline(id, self.time.after(self.rules.timeouts().body));
        self.actions.push(ConnAction::Close(id));
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
        let Some(client_id) = upstream.client else {
            return self.idle.remove(upstream.backend.address(), id);
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
        let is_stale = upstream.is_reused && failure.is_break() && !exchange.is_answered();
        let is_silent = is_stale && failure == Failure::Reset;
        // Mostly an early answer (413) that its reset overtook: a refusal of this upload, and not a
        // sign of its health.
        let is_refusal = failure == Failure::Reset
            && upstream.is_connected
            && (!exchange.is_complete() || !upstream.http.is_clear());
        if upstream.is_reused && failure == Failure::ResponseTimeout && !exchange.is_answered() {
            upstream.backend.note_silence();
        }
        if !is_silent && !is_refusal {
            let is_retry = exchange.tries() > 0;
            self.mail.report(&mut self.meters, &upstream.backend, failure, is_retry);
        }
        let was_not_sent = !upstream.is_connected;
        let may_repeat = exchange.has_replay()
            && !exchange.is_answered()
            && (was_not_sent || exchange.facts().is_idempotent)
            && !matches!(failure, Failure::BadResponse(_) | Failure::BadUpgrade(_));
        if !may_repeat {
            return self.refuse(client_id, failure.status(), &failure.to_string());
        }
        exchange.fail(failure, (!is_stale).then(|| upstream.backend.key()));
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
        upstream.http.finished = true;
        let Some(client) = upstream.client else {
            self.idle.remove(upstream.backend.address(), id);
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
            self.log.ended(&client.subject(), backend, EndReason::Unread);
        }
        driver.abort(id);
        self.close(driver, id);
    }
}
