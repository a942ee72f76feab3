//! Dispatch: a backend for each request, and another one if that fails before it has answered.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use throng_engine::Progress;
use throng_io::{ConnId, Driver};
use throng_proto::{http1, proxy_protocol};

use super::conn::{Client, Conn, Exchange, HttpSide, Phase, Tick, Upstream};
use super::{Action, State};
use crate::guards::{HandshakePermit, RequestGuard};
use crate::pick::{pick_bound, pick_by_key};
use crate::settings::next_source;
use crate::{Backend, Configuration, Failure, Pick, Report, Sticky};

/// The result of a search.
enum Choice {
    /// The index in the configuration's list, with a permit.
    Backend(usize, HandshakePermit),
    /// All permits are taken: of all backends, or of the one that the client is bound to.
    Full(Option<Arc<Backend>>),
    /// No untried backend is left, up or down.
    None,
}

impl State {
    /// Finds a backend and a connection for the request of `id`.
    pub(super) fn dispatch<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Conn::Client(mut client) = self.conns.take(id) else { return };
        self.dispatch_taken(driver, id, &mut client);
        self.conns.insert(id, Conn::Client(client));
    }

    fn dispatch_taken<D: Driver>(&mut self, driver: &mut D, id: ConnId, client: &mut Client) {
        let configuration = Arc::clone(&self.configuration);
        let settings = &configuration.settings;
        loop {
            let Some(exchange) = client.exchange.as_mut() else { return };
            let (index, permit) = match self.choose(&configuration, exchange) {
                Choice::Backend(index, permit) => (index, permit),
                Choice::Full(backend) => {
                    if client.phase != Phase::Queued {
                        client.phase = Phase::Queued;
                        let due = self.tick.after(settings.timeouts.queue);
                        self.conns.set_deadline(id, due);
                    }
                    return self.waiting.push(id, backend);
                }
                Choice::None => {
                    let (status, reason) = match exchange.failure {
                        Some(failure) => (failure.status(), failure.to_string()),
                        None => (503, "there is no backend".to_owned()),
                    };
                    return self.refuse(id, client, status, &reason);
                }
            };
            let target = &configuration.backends[index];
            let backend = &target.backend;
            client.phase = Phase::Exchange;
            let due = if exchange.is_complete {
                Tick::NEVER
            } else {
                self.tick.after(settings.timeouts.body)
            };
            self.conns.set_deadline(id, due);
            exchange.began = self.now;
            if let Some(entry) = &mut exchange.access {
                entry.backend = Some(backend.address());
                entry.attempts += 1;
            }
            exchange.count = Some(RequestGuard::begin(backend));
            let may_reuse = exchange.key.is_none() && !target.send_proxy;
            let pooled = if may_reuse { self.take_idle(backend.address()) } else { None };
            let is_reused = pooled.is_some();
            let upstream_id = match pooled {
                Some(pooled) => pooled,
                None => {
                    let local = next_source(&settings.sources, &mut self.source, backend.address());
                    backend.totals().connects.fetch_add(1, Relaxed);
                    let connected = match &target.tls {
                        None => driver.connect(backend.address(), local),
                        Some(tls) => {
                            let mut preface = Vec::new();
                            if target.send_proxy {
                                let source = client.address;
                                proxy_protocol::encode(source, backend.address(), &mut preface);
                            }
                            let tls = tls.for_driver();
                            driver.connect_secured(backend.address(), local, &tls, &preface)
                        }
                    };
                    match connected {
                        Ok(upstream) => upstream,
                        Err(error) => {
                            let failure = Failure::of_connect(&error);
                            let is_retry = !exchange.tried.is_empty();
                            exchange.tried.push(backend.key());
                            exchange.failure = Some(failure);
                            exchange.count = None;
                            self.report(backend, failure, is_retry);
                            continue;
                        }
                    }
                }
            };
            // A plain request needs a permit only for a new connection.
            exchange.permit = (!is_reused).then_some(permit);
            exchange.upstream = Some(upstream_id);
            let mut http = HttpSide::default();
            // With TLS it comes before the handshake.
            if target.send_proxy && target.tls.is_none() {
                let source = client.address;
                self.write(&mut http, |out| {
                    proxy_protocol::encode(source, backend.address(), out);
                });
            }
            if let Some(replay) = &exchange.replay {
                self.write(&mut http, |out| out.extend_from_slice(replay));
            }
            let timeout =
                if is_reused { settings.timeouts.response } else { settings.timeouts.connect };
            let mut decoder = http1::ResponseDecoder::new();
            if exchange.is_head {
                decoder.expect_answer_to_head();
            }
            let upstream = Upstream {
                http,
                decoder,
                backend: Arc::clone(backend),
                client: Some(id),
                is_connected: is_reused,
                is_handshake: exchange.key.is_some(),
                is_reused,
                is_last: target.send_proxy || exchange.has_odd_body,
                progress: Progress::default(),
                boundary: throng_proto::ws::Boundary::new(),
            };
            self.conns.insert(upstream_id, Conn::Upstream(Box::new(upstream)));
            self.conns.set_deadline(upstream_id, self.tick.after(timeout));
            self.actions.push_back(Action::Flush(upstream_id));
            if client.http.paused {
                // It was paused because its body had no receiver.
                let has_room = exchange
                    .replay
                    .as_ref()
                    .is_none_or(|replay| replay.len() <= super::output::HIGH_WATER);
                if has_room && client.held.is_empty() {
                    client.http.paused = false;
                    driver.resume(id);
                }
            }
            return;
        }
    }

    /// Picks a backend and takes a permit.
    fn choose(&mut self, configuration: &Configuration, exchange: &Exchange) -> Choice {
        let settings = &configuration.settings;
        let cap = settings.max_handshakes;
        if exchange.tried.len() > usize::from(settings.retries) {
            return Choice::None;
        }
        let untried =
            |index: usize| !exchange.tried.contains(&configuration.backends[index].backend.key());
        let has_room =
            |index: usize| cap == 0 || configuration.backends[index].backend.handshakes() < cap;
        let bound = exchange
            .bound
            .and_then(|tag| pick_bound(configuration, tag))
            .filter(|&index| untried(index));
        // A client that is bound to one backend waits for it; others go to any with a free permit.
        let belongs = bound.is_some()
            || exchange.sticky_key.is_some()
            || matches!(settings.pick, Pick::Rendezvous | Pick::IpHash);
        let mut pick = |usable: &dyn Fn(usize) -> bool| match exchange.sticky_key {
            Some(key) => pick_by_key(configuration, key, usable),
            None => self.picker.pick(configuration, None, exchange.client, usable),
        };
        let picked = bound.or_else(|| {
            if belongs { pick(&untried) } else { pick(&|index| untried(index) && has_room(index)) }
        });
        if let Some(index) = picked {
            let backend = &configuration.backends[index].backend;
            return match HandshakePermit::take(backend, cap) {
                Some(permit) => Choice::Backend(index, permit),
                None => Choice::Full(belongs.then(|| Arc::clone(backend))),
            };
        }
        if pick(&untried).is_some() {
            return Choice::Full(None);
        }
        // Removal of a backend is seen at once; a new one is in a command, possibly one that is not
        // read yet. Commands are read before waiting requests are served.
        if self.commands.has_commands() {
            return Choice::Full(None);
        }
        // A verdict of down may be wrong or outdated: a try in vain is better than a refusal
        // without one.
        match self.picker.pick_down(configuration, untried) {
            Some(index) => match HandshakePermit::take(&configuration.backends[index].backend, cap)
            {
                Some(permit) => Choice::Backend(index, permit),
                None => Choice::Full(None),
            },
            None => Choice::None,
        }
    }

    /// Takes a connection that is still idle.
    fn take_idle(&mut self, backend: std::net::SocketAddr) -> Option<ConnId> {
        while let Some(id) = self.pool.take(backend) {
            if self.conns.upstream(id).is_some_and(|upstream| upstream.client.is_none()) {
                return Some(id);
            }
        }
        None
    }

    /// Handles a backend's connection that is gone or to be given up; its record was taken out.
    pub(super) fn upstream_closed(&mut self, id: ConnId, upstream: Upstream, failure: Failure) {
        let Some(client_id) = upstream.client else {
            return self.pool.remove(upstream.backend.address(), id);
        };
        let Conn::Client(mut client) = self.conns.take(client_id) else { return };
        self.upstream_failed(client_id, &mut client, &upstream, failure);
        self.conns.insert(client_id, Conn::Client(client));
    }

    fn upstream_failed(
        &mut self,
        client_id: ConnId,
        client: &mut Client,
        upstream: &Upstream,
        failure: Failure,
    ) {
        let Some(exchange) = client.exchange.as_mut() else { return };
        exchange.upstream = None;
        exchange.count = None;
        exchange.permit = None;
        // An idle connection may end at any moment: that says nothing about the backend.
        let is_stale = upstream.is_reused && failure == Failure::Reset && !exchange.is_answered;
        // Mostly an early answer (413) that its reset overtook: a refusal of this upload, and no
        // sign of its health.
        let is_refusal = failure == Failure::Reset
            && upstream.is_connected
            && (!exchange.is_complete || !upstream.http.is_clear());
        if !is_stale && !is_refusal {
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
        self.actions.push_back(Action::Dispatch(client_id));
    }

    /// Counts a failure, of the backend or of the balancer, and reports it.
    fn report(&mut self, backend: &Arc<Backend>, failure: Failure, is_retry: bool) {
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
        let _ = self.reports.send(Report::Failed { backend, failure, is_retry });
    }

    /// Handles the end of a backend's stream.
    pub(super) fn upstream_finished(&mut self, id: ConnId, was_truncated: bool) {
        let Conn::Upstream(mut upstream) = self.conns.take(id) else { return };
        upstream.http.finished = true;
        if upstream.client.is_none() {
            self.pool.remove(upstream.backend.address(), id);
            self.conns.insert(id, Conn::Upstream(upstream));
            self.actions.push_back(Action::Close(id));
            return;
        }
        let end = upstream.decoder.handle_end_of_stream();
        let client = upstream.client;
        self.conns.insert(id, Conn::Upstream(upstream));
        match (end, client) {
            (Ok(Some(_)), Some(client)) if !was_truncated => self.end_answer(client),
            _ => self.actions.push_back(Action::Fail(id, Failure::Reset)),
        }
    }

    /// Closes a connection that has been idle for long enough.
    pub(super) fn close_idle<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        if let Some(upstream) = self.conns.upstream(id) {
            let address = upstream.backend.address();
            self.pool.remove(address, id);
        }
        self.close(driver, id);
    }

    /// Returns the cookie that brings a client back to the same backend.
    pub(super) fn cookie_for(&self, exchange: &Exchange) -> Option<String> {
        let settings = &self.configuration.settings;
        let Sticky::Cookie(name) = &settings.sticky else { return None };
        let tag = settings.cookie_key.tag(exchange.count.as_ref()?.backend().address());
        let is_new = exchange.bound != Some(tag);
        is_new.then(|| crate::forward::set_cookie(name, tag, exchange.is_secure))
    }
}
