//! Dispatch: a backend for each request, and another one if that fails before it has answered.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use throng_engine::Progress;
use throng_io::{ConnId, Driver};
use throng_proto::{http1, proxy_protocol};

use super::choice::Choice;
use super::records::{ClientRecord, BalanceRecord, HttpSide, Phase, EighthTick, Upstream, Exchange};
use super::output::HIGH_WATER;
use super::pool::Owner;
use super::{ConnAction, BalanceParts};
use crate::backend::Backend;
use crate::guards::{HandshakePermit, RequestGuard};
use crate::report::Failure;
use crate::settings::{Target, next_source};

impl BalanceParts {
    /// Finds a backend and a connection for the request of `id`.
    pub(super) fn dispatch<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let BalanceRecord::Client(mut client) = self.records.take(id) else { return };
        self.dispatch_taken(driver, id, &mut client);
        self.records.insert(id, BalanceRecord::Client(client));
    }

    fn dispatch_taken<D: Driver>(&mut self, driver: &mut D, id: ConnId, client: &mut ClientRecord) {
        let configuration = Arc::clone(&self.configuration);
        loop {
            let Some(exchange) = client.exchange.as_mut() else { return };
            let (index, permit) = match self.choose(&configuration, exchange) {
                Choice::Backend(index, permit) => (index, permit),
                Choice::Full(backend) => return self.enqueue(id, client, backend),
                Choice::None => return self.refuse_without_backend(id, client),
            };
            if self.begin_try(driver, id, client, &configuration.backends[index], permit) {
                return;
            }
        }
    }

    /// Lets a request wait for a permit: of `backend`, or of any.
    fn enqueue(&mut self, id: ConnId, client: &mut ClientRecord, backend: Option<Arc<Backend>>) {
        if client.phase != Phase::Queued {
            client.phase = Phase::Queued;
            let due = self.time.after(self.configuration.settings.timeouts.queue);
            self.records.set_deadline(id, due);
        }
        let route = client.exchange.as_ref().and_then(|exchange| exchange.route.as_deref());
        self.waiting.push(id, backend, route);
    }

    /// Refuses a request that no backend is left for, with the last failure as the reason.
    fn refuse_without_backend(&mut self, id: ConnId, client: &mut ClientRecord) {
        let failure = client.exchange.as_ref().and_then(|exchange| exchange.failure);
        let (status, reason) = match failure {
            Some(failure) => (failure.status(), failure.to_string()),
            None => (503, "there is no backend".to_owned()),
        };
        self.refuse(id, client, status, &reason);
    }

    /// Sends a request to `target`. Returns false if the connection could not even be begun.
    fn begin_try<D: Driver>(
        &mut self,
        driver: &mut D,
        id: ConnId,
        client: &mut ClientRecord,
        target: &Target,
        permit: HandshakePermit,
    ) -> bool {
        let Some(exchange) = client.exchange.as_mut() else { return true };
        let backend = &target.backend;
        client.phase = Phase::Exchange;
        let body = self.configuration.settings.timeouts.body;
        let due = if exchange.is_complete { EighthTick::NEVER } else { self.time.after(body) };
        self.records.set_deadline(id, due);
        exchange.began = self.time.now();
        if let Some(entry) = &mut exchange.access {
            entry.backend = Some(backend.address());
            entry.attempts += 1;
        }
        exchange.count = Some(RequestGuard::begin(backend, exchange.wanted()));
        let may_reuse = exchange.key.is_none() && exchange.route.is_none() && !target.send_proxy;
        let owner = exchange.owner(id);
        let pooled = if may_reuse { self.take_idle(backend, owner) } else { None };
        let is_reused = pooled.is_some();
        let connected = match pooled {
            Some(pooled) => Ok(pooled),
            None => self.connect(driver, target, client.address),
        };
        let upstream_id = match connected {
            Ok(upstream) => upstream,
            Err(error) => {
                self.note_failed_connect(exchange, backend, &error);
                return false;
            }
        };
        // A plain request needs a permit only for a new connection.
        exchange.permit = (!is_reused).then_some(permit);
        exchange.upstream = Some(upstream_id);
        let timeouts = &self.configuration.settings.timeouts;
        let timeout = if is_reused { timeouts.response } else { timeouts.connect };
        let mut upstream = self.new_upstream((id, client.address), exchange, target, is_reused);
        let before = self.records.upstream(upstream_id);
        upstream.generation =
            before.as_ref().map_or_else(|| backend.generation(), |before| before.generation);
        let carried = before.and_then(|before| before.owner);
        upstream.owner = carried.or(exchange.has_body.then_some(owner));
        self.records.insert(upstream_id, BalanceRecord::Upstream(Box::new(upstream)));
        self.records.set_deadline(upstream_id, self.time.after(timeout));
        self.actions.push_back(ConnAction::Flush(upstream_id));
        self.resume_body(driver, id, client);
        true
    }

    /// Begins a connection to `target` for a client with the address `client`.
    fn connect<D: Driver>(
        &mut self,
        driver: &mut D,
        target: &Target,
        client: SocketAddr,
    ) -> io::Result<ConnId> {
        let sources = &self.configuration.settings.sources;
        let address = target.backend.address();
        let local = next_source(sources, &mut self.source, address);
        target.backend.totals().connects.fetch_add(1, Relaxed);
        let Some(tls) = &target.tls else { return driver.connect(address, local) };
        let mut preface = Vec::new();
        if target.send_proxy {
            proxy_protocol::encode(client, address, &mut preface);
        }
        driver.connect_secured(address, local, &tls.for_driver(), &preface)
    }

    /// Notes a connection that could not be begun.
    fn note_failed_connect(
        &mut self,
        exchange: &mut Exchange,
        backend: &Arc<Backend>,
        error: &io::Error,
    ) {
        let failure = Failure::of_connect(error);
        let is_retry = !exchange.tried.is_empty();
        exchange.tried.push(backend.key());
        exchange.failure = Some(failure);
        exchange.count = None;
        self.report(backend, failure, is_retry);
    }

    /// Returns the record of a connection that carries this request, which is in its outbox.
    fn new_upstream(
        &mut self,
        (client, address): (ConnId, SocketAddr),
        exchange: &Exchange,
        target: &Target,
        is_reused: bool,
    ) -> Upstream {
        let backend = &target.backend;
        let mut http = HttpSide::default();
        // With TLS it comes before the handshake.
        if target.send_proxy && target.tls.is_none() {
            self.write(&mut http, |out| {
                proxy_protocol::encode(address, backend.address(), out);
            });
        }
        if let Some(replay) = &exchange.replay {
            self.write(&mut http, |out| match exchange.host_at {
                None => out.extend_from_slice(replay),
                Some(at) => {
                    out.extend_from_slice(&replay[..at]);
                    target.write_host(out);
                    out.extend_from_slice(&replay[at..]);
                }
            });
        }
        let mut decoder = http1::ResponseDecoder::new();
        if exchange.is_head {
            decoder.expect_answer_to_head();
        }
        Upstream {
            http,
            decoder,
            backend: Arc::clone(backend),
            client: Some(client),
            is_connected: is_reused,
            is_handshake: exchange.key.is_some(),
            is_passthrough: exchange.route.is_some(),
            is_reused,
            is_last: target.send_proxy || exchange.has_odd_body,
            generation: 0,
            owner: None,
            progress: Progress::default(),
            boundary: throng_proto::ws::Boundary::new(),
        }
    }

    /// Reads a client again that was paused because its body had no receiver.
    fn resume_body<D: Driver>(&mut self, driver: &mut D, id: ConnId, client: &mut ClientRecord) {
        let replay = client.exchange.as_ref().and_then(|exchange| exchange.replay.as_ref());
        let has_room = replay.is_none_or(|replay| replay.len() <= HIGH_WATER);
        if client.http.paused && has_room && client.held.is_empty() {
            client.http.paused = false;
            driver.resume(id);
        }
    }

    /// Takes a connection that is still idle, and may serve this client.
    fn take_idle(&mut self, backend: &Backend, client: Owner) -> Option<ConnId> {
        while let Some(id) = self.pool.take(backend.address(), client) {
            let Some(upstream) = self.records.upstream(id) else { continue };
            match upstream.client {
                None if upstream.generation == backend.generation() => return Some(id),
                None => self.actions.push_back(ConnAction::Close(id)),
                Some(_) => {}
            }
        }
        None
    }
}
