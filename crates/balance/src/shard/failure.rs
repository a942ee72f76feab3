//! Connections to backends that fail or end: another try, or a refusal.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use throng_io::{Closed, ConnId, Driver, SessionFailure};

use super::records::{ClientRecord, BalanceRecord, Upstream};
use super::{ConnAction, BalanceParts};
use crate::backend::Backend;
use crate::report::{Failure, Report};

impl BalanceParts {
    /// Handles a backend's connection that is gone or to be given up; its record was taken out.
    pub(super) fn upstream_closed(&mut self, id: ConnId, upstream: Upstream, failure: Failure) {
        let Some(client_id) = upstream.client else {
            return self.pool.remove(upstream.backend.address(), id);
        };
        let BalanceRecord::Client(mut client) = self.records.take(client_id) else { return };
        self.upstream_failed(client_id, &mut client, &upstream, failure);
        self.records.insert(client_id, BalanceRecord::Client(client));
    }

    fn upstream_failed(
        &mut self,
        client_id: ConnId,
        client: &mut ClientRecord,
        upstream: &Upstream,
        failure: Failure,
    ) {
        let Some(exchange) = client.exchange.as_mut() else { return };
        let failure = match failure {
            // The backend had accepted the balancer: what comes later breaks the connection off.
            Failure::Insecure(why) if exchange.is_answered => {
                Failure::of_closed(Closed::Insecure(why))
            }
            failure => failure,
        };
        exchange.upstream = None;
        exchange.count = None;
        exchange.permit = None;
        // An idle connection may end at any moment: that says nothing about the backend, unless TLS
        // gives a reason.
        let is_stale = upstream.is_reused && failure.is_break() && !exchange.is_answered;
        let is_silent = is_stale && failure == Failure::Reset;
        // Mostly an early answer (413) that its reset overtook: a refusal of this upload, and no
        // sign of its health.
        let is_refusal = failure == Failure::Reset
            && upstream.is_connected
            && (!exchange.is_complete || !upstream.http.is_clear());
        if upstream.is_reused && failure == Failure::ResponseTimeout && !exchange.is_answered {
            upstream.backend.note_silence();
        }
        if !is_silent && !is_refusal {
            let is_retry = !exchange.tried.is_empty();
            self.report(&upstream.backend, failure, is_retry);
        }
        let was_not_sent = !upstream.is_connected;
        let may_repeat = exchange.replay.is_some()
            && !exchange.is_answered
            && (was_not_sent || exchange.is_idempotent)
            && !matches!(failure, Failure::BadResponse(_) | Failure::BadUpgrade(_));
        if !may_repeat {
            let status = failure.status();
            return self.refuse(client_id, client, status, &failure.to_string());
        }
        exchange.failure = Some(failure);
        if !is_stale {
            exchange.tried.push(upstream.backend.key());
        }
        self.metrics.retries += 1;
        self.actions.push_back(ConnAction::Dispatch(client_id));
    }

    /// Counts a failure, of the backend or of the balancer, and reports it.
    pub(super) fn report(&mut self, backend: &Arc<Backend>, failure: Failure, is_retry: bool) {
        if failure.is_of_connection() {
            backend.note_refusal();
        }
        if failure.is_ours() {
            self.metrics.own_failures += 1;
        } else {
            backend.totals().failures.fetch_add(1, Relaxed);
        }
        let backend = Arc::clone(backend);
        // The receiver is gone only when the whole balancer ends.
        let _ = self.reports.send(Report::Failed { backend, failure, spares_health: is_retry });
    }

    /// Handles the end of a backend's stream; `failure` says why its TLS session failed.
    pub(super) fn upstream_finished(
        &mut self,
        id: ConnId,
        was_truncated: bool,
        failure: Option<SessionFailure>,
    ) {
        let BalanceRecord::Upstream(mut upstream) = self.records.take(id) else { return };
        upstream.http.finished = true;
        if upstream.client.is_none() {
            self.pool.remove(upstream.backend.address(), id);
            self.records.insert(id, BalanceRecord::Upstream(upstream));
            self.actions.push_back(ConnAction::Close(id));
            return;
        }
        let end = upstream.decoder.handle_end_of_stream();
        let client = upstream.client;
        self.records.insert(id, BalanceRecord::Upstream(upstream));
        let is_end = matches!(end, Ok(Some(_)));
        match client {
            Some(client) if is_end && !was_truncated => self.end_answer(client),
            _ => {
                // The answer would be complete if TLS said so (RFC 9112 section 9.8).
                let is_cut = is_end && was_truncated;
                let failure = failure.or(is_cut.then_some(SessionFailure::Truncated));
                let failure = failure.map_or(Failure::Reset, Failure::Tls);
                self.actions.push_back(ConnAction::Fail(id, failure));
            }
        }
    }

    /// Closes a connection that has been idle for long enough.
    pub(super) fn close_idle<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        if let Some(upstream) = self.records.upstream(id) {
            let address = upstream.backend.address();
            self.pool.remove(address, id);
        }
        self.close(driver, id);
    }
}
