//! Timeouts.

use std::time::Duration;

use throng_io::{ConnId, Driver, Instant};

use super::closing::GOING_AWAY;
use super::records::{BalanceRecord, Phase, EighthTick, flag};
use super::{ConnAction, SWEEP, BalanceParts};
use crate::access::EndReason;
use crate::report::Failure;

/// Ticks between two sweeps while there are only tunnels.
const SLOW: u32 = 8;
/// Ticks between two sweeps while there are requests.
const FAST: u32 = 2;

impl BalanceParts {
    /// Returns when the shard must wake, if no event comes.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let connections = self.metrics.connections;
        let is_busy = connections > self.metrics.tunnels || !self.pool.is_empty();
        let sweep = if is_busy || !self.waiting.is_empty() {
            Some(self.time.now().after(SWEEP))
        } else if connections > 0
            || self.accept_stopped
            || !self.close_jobs.is_empty()
            || self.awaits_memory()
        {
            Some(self.time.now().after(4 * SWEEP))
        } else {
            None
        };
        let shutdown = self.shutdown.as_ref().map(|shutdown| shutdown.deadline);
        // A permit may become free at another shard.
        let pause = if self.waiting.has_more() { Duration::ZERO } else { SWEEP / 10 };
        let waiting = (!self.waiting.is_empty()).then(|| self.time.now().after(pause));
        [sweep, shutdown, waiting, self.next_closing()].into_iter().flatten().min()
    }

    /// Returns whether free memory may have to be returned to the system.
    fn awaits_memory(&self) -> bool {
        // Also when the last connection has gone, whose memory was held.
        let peak = self.peak.is_awaited() || self.peak.is_up();
        self.burst.is_awaited() || peak || self.trim.is_requested()
    }

    /// Handles the deadlines that have come, up to four times a second.
    pub(super) fn expire<D: Driver>(&mut self, driver: &mut D) {
        if self.shutdown.as_ref().is_some_and(|shutdown| shutdown.deadline <= self.time.now()) {
            return self.cut_all(driver);
        }
        let is_busy = self.metrics.connections > self.metrics.tunnels || !self.pool.is_empty();
        let period = if is_busy { FAST } else { SLOW };
        let is_periodic = self.metrics.connections > 0 || self.awaits_memory();
        if is_periodic && !self.time.is_sweep_due(period) {
            return;
        }
        self.time.begin_sweep();
        if std::mem::take(&mut self.accept_stopped) {
            driver.resume_accept();
        }
        let due = self.time.take_due(&mut self.records);
        for &slot in &due {
            if let Some((id, _)) = self.records.at(slot as usize) {
                self.expire_one(driver, id);
            }
        }
        self.time.reuse(due);
        self.renew_close_jobs();
        // Of the last sweep: another shard may have done it for all since.
        self.trim.run();
        // Both are asked: each follows what happens.
        let input = driver.input_holders().into_iter().map(|id| driver.output_memory(id));
        let held = input.sum::<usize>() + driver.held_output();
        let is_over = self.peak.is_over(held, held);
        if self.burst.is_over(self.metrics.accepted, self.metrics.connections) || is_over {
            self.trim.request();
        }
        self.publish();
    }

    /// Returns when a tunnel will have been silent for too long, over both directions, if it stays
    /// silent. One that is passed through has less time for its backend's first bytes: until then a
    /// client has shown a ClientHello and no more.
    fn end_of_silence(&self, seen: EighthTick, opened: EighthTick, flags: u16, peer: ConnId) -> EighthTick {
        let (other, both) = match self.records.at(peer.slot()) {
            Some((_, BalanceRecord::Tunnel(tunnel))) => (tunnel.seen, flags | tunnel.flags),
            _ => (seen, flags),
        };
        let timeouts = &self.configuration.settings.timeouts;
        if both & flag::SILENT != 0 {
            return opened.after(timeouts.upgrade);
        }
        let is_half_closed = flags & flag::UNFRAMED != 0 && both & flag::FINISHED != 0;
        let timeout = if is_half_closed { timeouts.half_closed } else { timeouts.tunnel };
        seen.max(other).after(timeout)
    }

    /// Makes the next sweep look at all tunnels: the timeout of silent ones has changed.
    pub(super) fn look_at_all_tunnels(&mut self) {
        let silent = |(id, conn): (ConnId, &BalanceRecord)| match conn {
            BalanceRecord::Tunnel(tunnel) if tunnel.count.is_none() => {
                (tunnel.flags & flag::TIMED == 0).then_some(id)
            }
            _ => None,
        };
        let tunnels: Vec<ConnId> = self.records.iter().filter_map(silent).collect();
        for id in tunnels {
            self.records.set_deadline(id, self.time.after(Duration::ZERO));
        }
    }

    fn expire_one<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        match self.records.entry(id) {
            Some(BalanceRecord::Client(_)) => self.expire_client(driver, id),
            Some(BalanceRecord::Upstream(_)) => self.expire_upstream(driver, id),
            Some(BalanceRecord::Tunnel(tunnel)) if tunnel.flags & flag::TIMED == 0 => {
                self.expire_silent(driver, id);
            }
            Some(BalanceRecord::Tunnel(_)) => self.end_in_time(driver, id),
            Some(BalanceRecord::Vacant | BalanceRecord::Closing) | None => {}
        }
    }

    /// Handles the deadline of a client that speaks HTTP.
    fn expire_client<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(client) = self.records.client(id) else { return };
        match client.phase {
            Phase::Head if client.decoder.is_between_requests() => self.close(driver, id),
            Phase::Head => self.answer_error(id, 408, "the request did not come in time"),
            Phase::Queued => {
                let reason = "the backends are busy with other handshakes: try again";
                self.answer_error(id, 503, reason);
            }
            Phase::Exchange => self.expire_exchange(driver, id),
            Phase::Proxy => {
                self.metrics.proxy_errors += 1;
                let subject = client.subject();
                self.report_end(&subject, None, EndReason::LateProxyHeader);
                self.close(driver, id);
            }
            Phase::Leaving | Phase::Lingering => self.close(driver, id),
        }
    }

    /// Handles a client whose request or answer is under way, and whose bytes do not move.
    fn expire_exchange<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(client) = self.records.client(id) else { return };
        let (is_answered, is_paused, is_stuck) = match &client.exchange {
            Some(exchange) => (exchange.is_answered, client.http.paused, client.http.sending),
            None => (true, false, true),
        };
        if is_paused && !is_stuck {
            // Its backend is behind, and that one's deadline applies.
        } else if is_answered || is_stuck {
            self.record_unread(id);
            driver.abort(id);
            self.close(driver, id);
        } else {
            self.answer_error(id, 408, "the request's body did not come in time");
        }
    }

    /// Handles the deadline of a connection to a backend that speaks HTTP.
    fn expire_upstream<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(upstream) = self.records.upstream(id) else { return };
        let Some(client) = upstream.client else { return self.close_idle(driver, id) };
        let (failure, has_all) = if upstream.is_connected {
            (Failure::ResponseTimeout, upstream.http.is_clear())
        } else {
            (Failure::ConnectTimeout, false)
        };
        let is_paused = upstream.http.paused;
        let exchange = self.records.client(client).and_then(|client| client.exchange.as_ref());
        let is_fed = exchange.is_some_and(|exchange| !exchange.is_complete);
        // Not the backend's fault if its answer waits for the client, or the client's body has not
        // come: then the client's own deadline applies.
        let waits_for_client = is_paused || has_all && is_fed;
        if !waits_for_client {
            self.actions.push_back(ConnAction::Fail(id, failure));
        }
    }

    /// Closes a tunnel that has been silent for too long, or looks at it again later.
    fn expire_silent<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(tunnel) = self.records.tunnel(id) else { return };
        let (seen, opened, flags, peer) = (tunnel.seen, tunnel.opened, tunnel.flags, tunnel.peer);
        let is_behind = flags & flag::SENDING != 0;
        let end = self.end_of_silence(seen, opened, flags, peer);
        if end > self.time.tick() {
            return self.records.set_deadline(id, end);
        }
        if peer == id {
            // Its backend is lost, and its paced Close frame is not due yet.
            return self.close_orphan(driver, id);
        }
        let backend =
            self.records.tunnel(peer).and_then(|it| Some(it.count.as_ref()?.backend().address()));
        if self.close_tunnel(driver, id, GOING_AWAY) {
            self.metrics.silent_ended += 1;
            let subject = self.tunnel_subject(driver, id);
            self.report_end(&subject, backend, EndReason::Silent);
        } else {
            // Its backend has sent a Close frame; whether the client has it decides how its
            // connection may end.
            if is_behind {
                driver.abort(id);
            }
            self.close(driver, id);
        }
    }

    /// Ends a tunnel that had a time to end in.
    fn end_in_time<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(tunnel) = self.records.tunnel(id) else { return };
        let peer = tunnel.peer;
        let client = if tunnel.count.is_some() { peer } else { id };
        let flags = |state: &mut Self, id| state.records.tunnel(id).map_or(0, |it| it.flags);
        let (own, both) = (flags(self, client), flags(self, id) | flags(self, peer));
        // A client that does not answer its Close frame, or could not be sent one, or has not
        // received everything: a reset frees its port at once, and does not look like an orderly
        // end. A half-closed one has had its time.
        if own & (flag::CLOSED | flag::SENDING) != 0 || both & flag::FINISHED == 0 {
            driver.abort(client);
        }
        self.close(driver, id);
    }

    /// Resets all connections at the deadline of the shutdown.
    fn cut_all<D: Driver>(&mut self, driver: &mut D) {
        for slot in 0..self.records.len() {
            let Some((id, conn)) = self.records.at(slot) else { continue };
            match conn {
                BalanceRecord::Vacant => {}
                BalanceRecord::Closing => driver.close_now(id),
                BalanceRecord::Tunnel(_) => {
                    self.metrics.forced += 1;
                    self.cut_tunnel(driver, id);
                }
                BalanceRecord::Client(_) | BalanceRecord::Upstream(_) => {
                    self.metrics.forced += u64::from(matches!(conn, BalanceRecord::Client(_)));
                    driver.abort(id);
                    self.close(driver, id);
                }
            }
        }
    }

    /// Resets both sides of a tunnel: an end of stream would look as if all data had been sent.
    fn cut_tunnel<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let BalanceRecord::Tunnel(tunnel) = self.records.take(id) else { return };
        // The driver knows the bytes of open connections only.
        self.record_tunnel(driver, id, &tunnel);
        for side in [id, tunnel.peer] {
            driver.abort(side);
        }
        self.end_tunnel(driver, id, tunnel);
    }
}
