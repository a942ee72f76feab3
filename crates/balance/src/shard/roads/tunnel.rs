//! The road of a tunnel: it opens, forwards, and ends with a Close frame, paced and on time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use throng_io::{Batch, Closed, ConnId, Driver, Instant, SessionFailure};
use throng_proto::ws::Boundary;

use crate::backend::Backend;
use crate::meter::{Meter, OverRate};
use crate::shard::BalanceParts;
use crate::shard::actions::ConnAction;
use crate::shard::records::{BalanceRecord, EighthTick, Phase, Tunnel};
use crate::shard::request_log::RequestLog;
use crate::shard::tunnels::{BEYOND_RATE, CloseJob, Forward, SERVICE_RESTART, Tunnels, encode};

impl BalanceParts {
    /// Turns both connections into a tunnel once the 101 is being sent, or the ClientHello.
    pub(in crate::shard) fn open_tunnel<D: Driver>(
        &mut self,
        driver: &mut D,
        client_id: ConnId,
        upstream_id: ConnId,
    ) {
        let Some(upstream) = self.records.upstream(upstream_id) else { return };
        let is_passthrough = upstream.is_passthrough();
        let tick = self.time.tick();
        let mut class = 0;
        let classes = &self.rules.configuration().classes;
        let is_metered = |class| !is_passthrough && classes.rates(class).are_metered();
        let opened = self.records.open_tunnel(client_id, upstream_id, |client, upstream| {
            let guard = client.exchange.as_mut()?.take_tunnel_count()?;
            let boundary = (!is_passthrough).then_some(upstream.boundary());
            let (of_client, of_upstream) = (&client.http, &upstream.http);
            let outputs = (of_upstream, of_client);
            class = client.exchange.as_ref().map_or(0, |exchange| exchange.class());
            let late = Tunnel::new(client_id, boundary, Some(guard), tick, outputs);
            let boundary = boundary.map(|_| Boundary::new());
            let outputs = (of_client, of_upstream);
            let mut early = Tunnel::new(upstream_id, boundary, None, tick, outputs);
            early.boundary().advance(client.held.as_slice());
            if is_metered(class) {
                early.meter();
            }
            Some([early, late].map(|side| side.with_class(class)))
        });
        let Some((mut client, upstream)) = opened else {
            self.records.remove(upstream_id);
            return driver.close(upstream_id);
        };
        if let Some(exchange) = &mut client.exchange {
            self.log.keep(client_id, exchange);
            self.tunnels.keep_places(client_id, exchange.take_places());
            if !is_passthrough {
                upstream.backend().note_handshake(exchange.micros(self.time.now()));
            }
        }
        if is_metered(class) {
            self.tunnels.meter(client_id, Meter::default());
        }
        self.meters.count(|it| {
            it.tunnels += 1;
            it.tunnels_opened += 1;
        });
        // A side is read unless a send to the other is in flight.
        for (id, was_paused, is_paused) in [
            (client_id, client.http.is_paused(), upstream.http.is_sending()),
            (upstream_id, upstream.http.is_paused(), client.http.is_sending()),
        ] {
            match (was_paused, is_paused) {
                (false, true) => driver.pause(id),
                (true, false) => driver.resume(id),
                _ => {}
            }
        }
        // They serve this client only, which sends no more requests.
        for idle in self.idle.take_of(client_id) {
            self.close(driver, idle);
        }
        // A deadline on one side suffices to notice the silence of both.
        let timeouts = self.rules.tunnel_timeouts(class);
        let silence = if is_passthrough { timeouts.upgrade } else { timeouts.tunnel };
        let lifetime = self.rules.configuration().classes.rates(class).lifetime(client_id);
        let due = lifetime.map_or(silence, |lifetime| lifetime.min(silence));
        self.records.set_deadline(client_id, self.time.after(due));
        self.records.set_deadline(upstream_id, EighthTick::NEVER);
        // The 101, with the bytes after it; and early frames of the client.
        let Self { tunnels, records, actions, .. } = self;
        if let Some(answer) = client.http.take_output() {
            tunnels.send_first(driver, (upstream_id, client_id), answer, records, actions);
        }
        if !client.held.is_empty() {
            let mut batch = actions.batch();
            batch.append(|out| out.extend_from_slice(client.held.as_slice()));
            tunnels.send_first(driver, (client_id, upstream_id), batch, records, actions);
        }
        for (id, http) in [(client_id, client.http), (upstream_id, upstream.http)] {
            if http.has_finished() {
                self.end_stream(driver, id);
            }
        }
    }

    /// Handles data of a tunnel with a queue or a Close frame between its sides. Returns what is
    /// sent now, and its receiver.
    #[cold]
    pub(in crate::shard) fn tunnel_received_slow(
        &mut self,
        id: ConnId,
        bytes: &[u8],
    ) -> Option<(ConnId, Box<Batch>)> {
        let Self { tunnels, records, actions, .. } = self;
        let tunnel = records.tunnel(id)?;
        if tunnel.is_metered()
            && let Some(meter) = tunnels.meter_of(id)
        {
            let rates = self.rules.configuration().classes.rates(tunnel.class());
            let data = (*tunnel.boundary(), bytes);
            if let Some(until) = meter.count(&rates, data, self.time.now()) {
                let closes = rates.over == Some(OverRate::Close);
                actions.push(ConnAction::Throttle(id, until, closes));
            }
        }
        let forward = tunnels.received(id, bytes, records, actions)?;
        let peer = self.records.tunnel(id)?.peer();
        let batch = match forward {
            Forward::More(batch) => batch,
            Forward::Last(batch) => {
                self.record_close_sent(id, peer);
                batch
            }
        };
        Some((peer, batch?))
    }

    /// Does not read a client that is beyond a rate until it is within it.
    #[cold]
    pub(in crate::shard) fn throttle<D: Driver>(
        &mut self,
        driver: &mut D,
        id: ConnId,
        (until, closes): (Instant, bool),
    ) {
        let Some(tunnel) = self.records.tunnel(id) else { return };
        if !tunnel.is_throttled() {
            tunnel.throttle();
            driver.pause(id);
            self.tunnels.throttle(id, until);
            self.meters.count(|it| it.throttled += 1);
        }
        if closes && self.close_tunnel(driver, id, BEYOND_RATE) {
            self.meters.count(|it| it.beyond_rate += 1);
        }
    }

    /// Reads clients again that are within their rates.
    pub(in crate::shard) fn read_within_rate<D: Driver>(&mut self, driver: &mut D) {
        let now = self.time.now();
        while let Some(id) = self.tunnels.next_within(now) {
            if self.records.tunnel(id).is_some_and(|tunnel| tunnel.end_throttle()) {
                driver.resume(id);
            }
        }
    }

    /// Forwards a tunnel's bytes; if they are not sent whole, their source is not read until they
    /// are.
    #[inline]
    pub(in crate::shard) fn send_tunnelled<D: Driver>(
        &mut self,
        driver: &mut D,
        from: ConnId,
        to: ConnId,
        batch: Box<Batch>,
    ) {
        Tunnels::send(driver, (from, to), batch, &mut self.records, &mut self.actions);
    }

    /// Handles the end of a send: starts the next one, or resumes the other side.
    pub(in crate::shard) fn tunnel_sent<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        if self.tunnels.sent(driver, id, &mut self.records, &mut self.actions) {
            self.end_if_both_ended(driver, id);
        }
    }

    /// Handles the end of a side's stream.
    pub(in crate::shard) fn tunnel_finished<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        if self.records.tunnel(id).is_some_and(|side| !side.is_backend()) {
            self.clients.note_gone(id, self.time.tick());
        }
        self.end_stream(driver, id);
    }

    /// Ends what goes to the other side of a tunnel: this side has ended its stream.
    fn end_stream<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(tunnel) = self.records.tunnel(id) else { return };
        let timeouts = self.rules.tunnel_timeouts(tunnel.class());
        let deadline = self.time.after(timeouts.half_closed);
        tunnel.finish();
        let (peer, is_backend) = (tunnel.peer(), tunnel.is_backend());
        if peer == id {
            // A client without its backend. The send in flight has its backend's last bytes, or a
            // Close frame.
            if tunnel.end_output() || !tunnel.is_sending() {
                return self.close(driver, id);
            }
            return self.records.limit_end(id, deadline);
        }
        if tunnel.is_closed() {
            // A client that ends in answer to the Close frame: its earlier data is still forwarded
            // to its backend, and closing that connection while it sends would be a reset, which
            // may overtake it.
            self.close_answered(driver, id);
            return self.end_if_both_ended(driver, id);
        }
        if is_backend && tunnel.is_dropped() {
            // Its client has been sent a Close frame and is about to answer; a backend that ends
            // its stream may still read.
            return self.end_if_both_ended(driver, id);
        }
        let is_unframed = tunnel.is_unframed();
        if is_backend && !tunnel.has_said_close() && !tunnel.is_ended() && !is_unframed {
            return self.lose_backend(driver, id);
        }
        self.end_output(driver, peer);
        if is_unframed {
            // Only silence ends it: much may still come from the other side.
            self.records.set_deadline(if is_backend { peer } else { id }, deadline);
        } else {
            self.records.limit_end(id, deadline);
            self.records.limit_end(peer, deadline);
        }
        self.end_if_both_ended(driver, id);
    }

    /// Ends the stream to a side, unless that was done: at once, or after what is in flight or
    /// queued.
    fn end_output<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        if self.records.tunnel(id).is_some_and(|side| side.end_output()) {
            driver.finish(id);
        }
    }

    /// Closes the tunnel if both streams of both sides have ended.
    fn end_if_both_ended<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(tunnel) = self.records.tunnel(id) else { return };
        let (peer, is_done) = (tunnel.peer(), tunnel.is_done());
        if is_done && self.records.tunnel(peer).is_some_and(|peer| peer.is_done()) {
            self.close(driver, id);
        }
    }

    /// Handles the end of a side's connection: a reset, or the network gave up, or its TLS session
    /// failed. `tunnel` is its record, already taken out.
    pub(in crate::shard) fn tunnel_closed<D: Driver>(
        &mut self,
        driver: &mut D,
        id: ConnId,
        tunnel: Tunnel,
        why: Closed,
        failure: Option<SessionFailure>,
    ) {
        let peer_id = tunnel.peer();
        let mut tunnel = tunnel;
        if tunnel.is_unframed() {
            if why == Closed::Reset {
                self.reset_other(driver, id, &tunnel);
            }
            return self.end_tunnel(driver, id, tunnel);
        }
        let is_backend = tunnel.is_backend() && peer_id != id;
        if is_backend && tunnel.is_dropped() {
            return self.leave_alone(driver, id, peer_id);
        }
        let has_said_close = tunnel.has_said_close();
        if is_backend
            && has_said_close
            && let Some(client) = self.records.tunnel(peer_id)
            && client.is_sending()
            && !client.end_output()
        {
            // It sent all data, including its Close frame, and some of it is still in flight.
            let timeouts = self.rules.tunnel_timeouts(client.class());
            let deadline = self.time.after(timeouts.half_closed);
            self.records.limit_end(peer_id, deadline);
            return self.leave_alone(driver, id, peer_id);
        }
        // Half a Close frame does not close.
        if is_backend && !has_said_close && !tunnel.is_ended() {
            self.tunnels.forget(id);
            let can_close = tunnel.boundary().is_at_boundary();
            return self.orphan(driver, peer_id, can_close, tunnel.backend().cloned(), failure);
        }
        let is_client = peer_id != id && !tunnel.is_backend();
        if why == Closed::Reset && is_client && !tunnel.boundary().saw_close() {
            // A reset is forwarded as one: an orderly end would leave a local port in TIME_WAIT
            // for each such client, and ports are limited. Not after a Close frame, which must
            // arrive.
            self.reset_other(driver, id, &tunnel);
        }
        self.end_tunnel(driver, id, tunnel);
    }

    /// Forwards the reset of a side. It is recorded before, while the other connection is open.
    fn reset_other<D: Driver>(&mut self, driver: &mut D, id: ConnId, tunnel: &Tunnel) {
        self.log.tunnel_ended(driver, &self.records, (id, tunnel), self.time.now());
        driver.abort(tunnel.peer());
    }

    /// Handles a backend's side that ended its stream without a Close frame.
    fn lose_backend<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        if let Some(tunnel) = self.records.remove_tunnel(id) {
            // The driver forgets it with the connection.
            let failure = driver.session_failure(id);
            driver.close(id);
            self.tunnel_closed(driver, id, tunnel, Closed::Local, failure);
        }
    }

    /// Detaches a backend's side that is gone; its client has been sent a Close frame, or is being
    /// sent one, and stays until it has answered.
    fn leave_alone<D: Driver>(&mut self, driver: &mut D, id: ConnId, client_id: ConnId) {
        self.tunnels.forget(id);
        let Some(client) = self.records.tunnel(client_id) else { return };
        client.leave_alone(client_id);
        if client.has_finished() && !client.is_sending() {
            return self.close(driver, client_id);
        }
        if client.resume() {
            driver.resume(client_id);
        }
    }

    /// Ends both sides; `tunnel` is the record of `id`, already taken out.
    pub(in crate::shard) fn end_tunnel<D: Driver>(
        &mut self,
        driver: &mut D,
        id: ConnId,
        tunnel: Tunnel,
    ) {
        self.log.tunnel_ended(driver, &self.records, (id, &tunnel), self.time.now());
        let peer = tunnel.peer();
        self.end_side(driver, id, tunnel);
        if peer != id
            && let Some(other) = self.records.remove_tunnel(peer)
        {
            self.end_side(driver, peer, other);
        }
    }

    fn end_side<D: Driver>(&mut self, driver: &mut D, id: ConnId, tunnel: Tunnel) {
        self.tunnels.forget(id);
        if tunnel.is_backend() {
            return driver.close(id);
        }
        self.meters.count(|it| it.tunnels -= 1);
        self.close_counted(driver, id);
    }

    /// Closes all idle clients, and tunnels within `window`. With `hand_over`, clients that have
    /// not sent a request yet are answered: they could not know that this process ends.
    pub(in crate::shard) fn begin_shutdown<D: Driver>(
        &mut self,
        driver: &mut D,
        window: Duration,
        deadline: Duration,
        hand_over: bool,
    ) {
        driver.stop_listening();
        for (id, record) in self.records.iter() {
            let is_idle = match record {
                BalanceRecord::Client(client) if hand_over && !client.has_asked() => false,
                BalanceRecord::Client(client) => {
                    client.phase == Phase::Proxy
                        || client.phase == Phase::Head && client.decoder.is_between_requests()
                }
                BalanceRecord::Upstream(upstream) => upstream.client().is_none(),
                BalanceRecord::Tunnel(_) | BalanceRecord::Vacant | BalanceRecord::Closing => false,
            };
            if is_idle {
                self.actions.push(ConnAction::Close(id));
            }
        }
        let rate = self.rules.settings().close_rate;
        let bucket = self.meters.bucket_over(self.meters.metrics().tunnels, window, rate);
        let job = CloseJob::of_shutdown(rate, bucket);
        let opened = self.meters.metrics().tunnels_opened;
        let ends_at = self.time.now().after(deadline);
        let random = self.dispatch.random();
        self.tunnels.begin_shutdown(job, ends_at, &self.records, opened, random);
    }

    /// Closes the tunnels whose turn has come.
    pub(in crate::shard) fn close_due<D: Driver>(&mut self, driver: &mut D) {
        let now = self.time.now();
        for _ in 0..self.tunnels.orphans_due(now) {
            let Some(id) = self.tunnels.next_orphan() else { break };
            self.close_orphan(driver, id);
        }
        if self.tunnels.jobs() == 0 {
            return;
        }
        let mut jobs = self.tunnels.take_jobs();
        for job in &mut jobs {
            let (mut due, code) = job.due(now);
            while due > 0
                && let Some(id) = job.next()
            {
                match self.close_tunnel(driver, id, code) {
                    true => due -= 1,
                    false => job.undo(),
                }
            }
        }
        self.tunnels.keep_jobs(jobs);
    }

    /// Begins the end of a client's tunnel. Returns false if it had begun already.
    pub(in crate::shard) fn close_tunnel<D: Driver>(
        &mut self,
        driver: &mut D,
        client_id: ConnId,
        code: u16,
    ) -> bool {
        let deadline = self.time.after(self.rules.timeouts().close);
        let Some(client) = self.records.tunnel(client_id) else { return false };
        let upstream_id = client.peer();
        if client.is_unframed() {
            self.cut_unframed(driver, client_id, upstream_id);
            return true;
        }
        let has_ended = client.is_closed() || client.has_finished() || client.is_ended();
        if has_ended || upstream_id == client_id {
            return false;
        }
        let Some(upstream) = self.records.tunnel(upstream_id) else { return false };
        if upstream.boundary().saw_close() || upstream.is_cut_due() || upstream.is_dropped() {
            return false;
        }
        if upstream.boundary().is_lost() {
            // Raw bytes have no frame boundary at which to insert a Close frame.
            self.meters.count(|it| it.closed += 1);
            driver.abort(client_id);
            if let Some(client) = self.records.remove_tunnel(client_id) {
                self.end_tunnel(driver, client_id, client);
            }
            return true;
        }
        upstream.set_close_code(code);
        if upstream.boundary().is_at_boundary() {
            self.send_own(driver, client_id, code);
            self.record_close_sent(upstream_id, client_id);
            return true;
        }
        upstream.cut_at_boundary();
        for id in [client_id, upstream_id] {
            self.records.set_end(id, deadline);
        }
        true
    }

    /// Sends a client the balancer's Close frame.
    fn send_own<D: Driver>(&mut self, driver: &mut D, id: ConnId, code: u16) {
        let Self { tunnels, records, actions, .. } = self;
        tunnels.send_or_queue(driver, id, records, actions, |out| encode(code, out));
    }

    /// Resets both sides of a tunnel that is passed through, also if one has ended its stream: an
    /// end of stream would look as if all data had been sent.
    fn cut_unframed<D: Driver>(&mut self, driver: &mut D, client_id: ConnId, upstream_id: ConnId) {
        let Some(client) = self.records.remove_tunnel(client_id) else { return };
        self.meters.count(|it| it.closed += 1);
        self.count_closed_at_backend(upstream_id);
        self.cut(driver, client_id, client);
    }

    /// Resets both sides of a tunnel. It is recorded before, since the driver knows the bytes of
    /// open connections only.
    pub(in crate::shard) fn cut<D: Driver>(&mut self, driver: &mut D, id: ConnId, tunnel: Tunnel) {
        self.log.tunnel_ended(driver, &self.records, (id, &tunnel), self.time.now());
        for side in [id, tunnel.peer()] {
            driver.abort(side);
        }
        self.end_tunnel(driver, id, tunnel);
    }

    fn count_closed_at_backend(&mut self, upstream: ConnId) {
        if let Some(backend) = self.records.tunnel(upstream).and_then(|tunnel| tunnel.backend()) {
            backend.totals().closed.fetch_add(1, Relaxed);
        }
    }

    /// Records that a Close frame was sent to `client`, after all data from `upstream`.
    fn record_close_sent(&mut self, upstream: ConnId, client: ConnId) {
        let deadline = self.time.after(self.rules.timeouts().close);
        self.meters.count(|it| it.closed += 1);
        self.count_closed_at_backend(upstream);
        if let Some(tunnel) = self.records.tunnel(upstream) {
            tunnel.cut();
        }
        if let Some(tunnel) = self.records.tunnel(client) {
            tunnel.close();
            if tunnel.has_said_close() {
                // The Close frames have crossed: the client has sent its own, and waits for the
                // end.
                self.actions.push(ConnAction::Answered(client));
            }
        }
        self.records.set_end(upstream, deadline);
        self.records.set_end(client, deadline);
    }

    /// Handles a client whose backend ended without a Close frame, and perhaps because its TLS
    /// session failed.
    fn orphan<D: Driver>(
        &mut self,
        driver: &mut D,
        client_id: ConnId,
        can_close: bool,
        backend: Option<Arc<Backend>>,
        failure: Option<SessionFailure>,
    ) {
        let Some(client) = self.records.tunnel(client_id) else { return };
        // Many servers end the stream in answer to a Close. This is not a loss, because their
        // client waits for nothing else.
        let was_leaving = client.has_said_close();
        if !was_leaving {
            self.meters.count(|it| it.lost += 1);
            let address = backend.as_ref().map(|backend| backend.address());
            let subject = |log: &RequestLog| log.tunnel_subject(driver, &self.rules, client_id);
            self.log.lost(client_id, address, failure, self.time.now(), subject);
            if let Some(backend) = backend {
                backend.totals().lost.fetch_add(1, Relaxed);
                if let Some(why) = failure {
                    self.mail.report_tunnel(backend, why);
                }
            }
        }
        let Some(client) = self.records.tunnel(client_id) else { return };
        client.leave_alone(client_id);
        if client.resume() {
            // Needed to learn of its end, and of its answer to the Close frame.
            driver.resume(client_id);
        }
        if client.has_finished() || client.is_ended() {
            return self.close(driver, client_id);
        }
        if can_close && was_leaving {
            self.close_orphan(driver, client_id);
            return self.actions.push(ConnAction::Answered(client_id));
        }
        if !can_close {
            // In the middle of a frame no Close frame can be sent: only a reset is correct.
            client.tear();
        }
        self.tunnels.add_orphan(client_id, self.time.now());
    }

    /// Closes a client whose backend is lost, unless that was done already.
    pub(in crate::shard) fn close_orphan<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let deadline = self.time.after(self.rules.timeouts().close);
        let Some(client) = self.records.tunnel(id) else { return };
        if client.is_closed() {
            return;
        }
        self.meters.count(|it| it.closed += 1);
        if client.is_torn() {
            driver.abort(id);
            return self.close(driver, id);
        }
        client.close();
        self.records.set_end(id, deadline);
        self.send_own(driver, id, SERVICE_RESTART);
    }

    /// Ends both streams after the client's Close frame has come in answer to the balancer's.
    pub(in crate::shard) fn close_answered<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(client) = self.records.tunnel(id) else { return };
        // Nothing may follow a Close frame, and its receiver's stream is ended.
        client.cut();
        for side in [id, client.peer()] {
            self.end_output(driver, side);
        }
    }
}
