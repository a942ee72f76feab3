//! The road of a sweep: timeouts, metrics, and memory that is returned.

use std::time::Duration;

use throng_io::{ConnId, Driver, Instant, PeerAddress};

use crate::access::{EndReason, Subject};
use crate::report::Failure;
use crate::shard::BalanceParts;
use crate::shard::actions::ConnAction;
use crate::shard::records::{BalanceRecord, Phase};
use crate::shard::roads::attempt::{BUSY, LATE_HEAD};
use crate::shard::tunnels::GOING_AWAY;
use crate::shard::upkeep::{Holder, to_be_ended};

/// The interval of sweeps while there are requests under way; tunnels alone need one a second.
const SWEEP: Duration = Duration::from_millis(250);
/// Ticks between two sweeps while there are only tunnels.
const SLOW: u32 = 8;
/// Ticks between two sweeps while there are requests.
const FAST: u32 = 2;

impl BalanceParts {
    /// Returns when the shard must wake, if no event comes.
    pub(in crate::shard) fn next_deadline(&self) -> Option<Instant> {
        let now = self.time.now();
        let waiting = self.dispatch.waiting();
        let sweep = if self.has_requests() || !waiting.is_empty() {
            Some(now.after(SWEEP))
        } else if self.meters.metrics().connections > 0
            || self.clients.is_stopped()
            || self.tunnels.jobs() > 0
            || self.meters.awaits_memory()
        {
            Some(now.after(4 * SWEEP))
        } else {
            None
        };
        // A permit may become free at another shard.
        let pause = if waiting.has_more() { Duration::ZERO } else { SWEEP / 10 };
        let waiting = (!waiting.is_empty()).then(|| now.after(pause));
        let closing = self.tunnels.next_closing(now);
        [sweep, self.tunnels.ends_at(), waiting, closing].into_iter().flatten().min()
    }

    /// Returns whether there are clients, or idle connections to backends, that speak HTTP.
    fn has_requests(&self) -> bool {
        let metrics = self.meters.metrics();
        metrics.connections > metrics.tunnels || !self.idle.is_empty()
    }

    /// Handles the deadlines that have come, up to four times a second.
    pub(in crate::shard) fn expire<D: Driver>(&mut self, driver: &mut D) {
        if self.tunnels.ends_at().is_some_and(|ends_at| ends_at <= self.time.now()) {
            return self.cut_all(driver);
        }
        let period = if self.has_requests() { FAST } else { SLOW };
        let is_periodic = self.meters.metrics().connections > 0 || self.meters.awaits_memory();
        if is_periodic && !self.time.is_sweep_due(period) {
            return;
        }
        self.time.begin_sweep();
        if self.clients.take_stopped() {
            driver.resume_accept();
        }
        let due = self.time.take_due(&mut self.records);
        for &slot in &due {
            if let Some((id, _)) = self.records.at(slot as usize) {
                self.expire_one(driver, id);
            }
        }
        self.time.reuse(due);
        let (opened, now) = (self.meters.metrics().tunnels_opened, self.time.now());
        self.tunnels.renew_jobs(&self.records, opened, self.dispatch.random(), now);
        self.meters.run_trim();
        let input = driver.input_holders().into_iter().map(|id| driver.output_memory(id));
        let held = input.sum::<usize>() + driver.held_output();
        self.meters.follow_memory(held);
        self.publish();
    }

    /// Publishes the metrics, and forgets clients that have left.
    pub(in crate::shard) fn publish(&mut self) {
        self.dispatch.forget_left(&self.records);
        self.clients.forget_left(&self.records);
        let (queued, idle) = (self.dispatch.waiting().len() as u64, self.idle.len() as u64);
        self.meters.count(|it| (it.queued, it.idle_backends) = (queued, idle));
        self.meters.publish();
    }

    fn expire_one<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        match self.records.entry(id) {
            Some(BalanceRecord::Client(_)) => self.expire_client(driver, id),
            Some(BalanceRecord::Upstream(_)) => self.expire_upstream(driver, id),
            Some(BalanceRecord::Tunnel(tunnel)) if tunnel.is_timed() => {
                self.end_in_time(driver, id);
            }
            Some(BalanceRecord::Tunnel(_)) => self.expire_silent(driver, id),
            Some(BalanceRecord::Vacant | BalanceRecord::Closing) | None => {}
        }
    }

    /// Handles the deadline of a client that speaks HTTP.
    fn expire_client<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(client) = self.records.client(id) else { return };
        match client.phase {
            Phase::Head if client.decoder.is_between_requests() => {
                if client.is_new() {
                    self.end_unasked(driver, id);
                }
                self.close(driver, id);
            }
            Phase::Head => self.refuse(id, 408, LATE_HEAD),
            Phase::Queued => {
                self.meters.count(|it| it.queue_late += 1);
                self.refuse(id, 503, BUSY);
            }
            Phase::Exchange => self.expire_exchange(driver, id),
            Phase::Proxy => {
                self.meters.count(|it| it.proxy_errors += 1);
                self.log.ended(&client.origin.subject(), None, EndReason::LateProxyHeader);
                self.close(driver, id);
            }
            Phase::Leaving | Phase::Lingering => self.close(driver, id),
        }
    }

    /// Reports a client that has sent no request.
    fn end_unasked<D: Driver>(&mut self, driver: &D, id: ConnId) {
        let reason = match self.clients.beyond(id) {
            Some(full) => full.end_reason(),
            None => {
                self.meters.count(|it| it.unasked_ended += 1);
                EndReason::Unasked
            }
        };
        self.report_end(driver, id, reason);
    }

    /// Handles a client whose request or answer is under way, and whose bytes do not move.
    fn expire_exchange<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(client) = self.records.client(id) else { return };
        let (is_answered, is_paused, is_stuck) = match &client.exchange {
            Some(exchange) => {
                (exchange.is_answered(), client.http.is_paused(), client.http.is_sending())
            }
            None => (true, false, true),
        };
        if is_paused && !is_stuck {
            // Its backend is behind, and the deadline of that applies.
        } else if is_answered || is_stuck {
            self.end_unread(driver, id);
        } else {
            self.refuse(id, 408, "the request's body did not come in time");
        }
    }

    /// Handles the deadline of a connection to a backend that speaks HTTP.
    fn expire_upstream<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(upstream) = self.records.upstream(id) else { return };
        let Some(client) = upstream.client() else { return self.close(driver, id) };
        let (failure, has_all) = if upstream.is_connected() {
            (Failure::ResponseTimeout, upstream.http.is_clear())
        } else {
            (Failure::ConnectTimeout, false)
        };
        let is_paused = upstream.http.is_paused();
        let exchange = self.records.client(client).and_then(|client| client.exchange.as_ref());
        let is_fed = exchange.is_some_and(|exchange| !exchange.is_complete());
        // Not the backend's fault if its answer waits for the client, or the client's body has not
        // come: then the client's own deadline applies.
        let waits_for_client = is_paused || has_all && is_fed;
        if !waits_for_client {
            self.actions.push(ConnAction::Fail(id, failure));
        }
    }

    /// Closes a tunnel that has been silent for too long, or looks at it again later.
    fn expire_silent<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let class = self.records.tunnel(id).map_or(0, |side| side.class());
        let silence = self.records.end_of_silence(id, &self.rules.tunnel_timeouts(class));
        let Some((end, reason)) = silence else { return };
        let lifetime = self.rules.configuration().classes.rates(class).lifetime(id);
        let opened = self.records.tunnel(id).map(|side| side.opened());
        let life = opened.zip(lifetime).map(|(opened, lifetime)| opened.after(lifetime));
        let (end, reason) = match life {
            Some(life) if life < end => (life, EndReason::Lifetime),
            _ => (end, reason),
        };
        if end > self.time.tick() {
            return self.records.set_deadline(id, end);
        }
        let Some(tunnel) = self.records.tunnel(id) else { return };
        let (peer, is_behind) = (tunnel.peer(), tunnel.is_sending());
        if peer == id {
            // Its backend is lost, and its paced Close frame is not due yet.
            return self.close_orphan(driver, id);
        }
        let backend = self.records.tunnel(peer).and_then(|peer| peer.backend());
        let backend = backend.map(|backend| backend.address());
        self.report_tunnel_end(driver, id, backend, reason);
        if !self.close_tunnel(driver, id, GOING_AWAY) {
            // Its backend has sent a Close frame; whether the client has it decides how its
            // connection may end.
            if is_behind {
                driver.abort(id);
            }
            self.close(driver, id);
        }
    }

    /// Counts and reports a tunnel that a timeout ends; `id` is its client.
    #[cold]
    fn report_tunnel_end<D: Driver>(
        &mut self,
        driver: &D,
        id: ConnId,
        backend: Option<PeerAddress>,
        reason: EndReason,
    ) {
        self.meters.count(|it| match reason {
            EndReason::HalfClosed => it.half_closed_ended += 1,
            EndReason::Lifetime => it.lifetime_ended += 1,
            _ => it.silent_ended += 1,
        });
        let subject = self.log.tunnel_subject(driver, &self.rules, id);
        self.log.ended(&subject, backend, reason);
    }

    /// Ends a tunnel that had a time to end in.
    fn end_in_time<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(tunnel) = self.records.tunnel(id) else { return };
        let (peer_id, is_backend) = (tunnel.peer(), tunnel.is_backend());
        let has_finished = tunnel.has_finished();
        let has_finished =
            has_finished || self.records.tunnel(peer_id).is_some_and(|peer| peer.has_finished());
        // A client that does not answer its Close frame, or could not be sent one, or has not
        // received everything: a reset frees its port at once, and does not look like an orderly
        // end. A half-closed one has had its time.
        let client_id = if is_backend { peer_id } else { id };
        let client = self.records.tunnel(client_id);
        let is_closed = client.as_ref().is_some_and(|client| client.is_closed());
        let is_owed = is_closed || client.is_some_and(|client| client.is_sending());
        if is_owed || !has_finished {
            driver.abort(client_id);
        }
        if has_finished && !is_closed {
            let backend_id = if is_backend { id } else { peer_id };
            let backend = self.records.tunnel(backend_id).and_then(|side| side.backend());
            let backend = backend.map(|backend| backend.address());
            self.report_tunnel_end(driver, client_id, backend, EndReason::HalfClosed);
        }
        self.close(driver, id);
    }

    /// Resets all connections at the deadline of the shutdown.
    fn cut_all<D: Driver>(&mut self, driver: &mut D) {
        for slot in 0..self.records.len() {
            let Some((id, record)) = self.records.at(slot) else { continue };
            match record {
                BalanceRecord::Vacant => {}
                BalanceRecord::Closing => driver.close_now(id),
                BalanceRecord::Tunnel(_) => {
                    self.meters.count(|it| it.forced += 1);
                    if let Some(tunnel) = self.records.remove_tunnel(id) {
                        self.cut(driver, id, tunnel);
                    }
                }
                BalanceRecord::Client(_) | BalanceRecord::Upstream(_) => {
                    let is_client = matches!(record, BalanceRecord::Client(_));
                    self.meters.count(|it| it.forced += u64::from(is_client));
                    driver.abort(id);
                    self.close(driver, id);
                }
            }
        }
    }

    /// Ends connections if enough memory was taken since the last time, and too much is held.
    pub(in crate::shard) fn check_memory<D: Driver>(&mut self, driver: &mut D) {
        let configured = self.rules.settings().max_tls_memory;
        if let Some(limit) = self.meters.memory_due(driver.take_growth(), configured) {
            self.free_memory(driver, limit);
        }
    }

    #[cold]
    fn free_memory<D: Driver>(&mut self, driver: &mut D, limit: usize) {
        let holder = |id| Holder::new(id, driver.is_handshaking(id), driver.output_memory(id));
        let holders = driver.input_holders().into_iter().map(holder).collect();
        for id in to_be_ended(holders, limit) {
            self.meters.count(|it| it.memory_ended += 1);
            // A client, or the one whose backend's connection it is.
            let unknown = Subject { peer: driver.peer(id), ..Subject::default() };
            let subject = self.subject(driver, id).unwrap_or(unknown);
            self.log.ended(&subject, None, EndReason::Memory);
            driver.abort(id);
        }
    }
}
