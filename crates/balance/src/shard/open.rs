//! The beginning of a tunnel: the connections of a handshake, or of a client that is passed through
//! and its backend, become its sides.

use throng_io::{Batch, ConnId, Driver};
use throng_proto::ws::Boundary;

use super::BalanceParts;
use super::records::{ClientRecord, BalanceRecord, HttpSide, EighthTick, Tunnel, Upstream, flag};
use crate::guards::TunnelGuard;

impl BalanceParts {
    /// Turns both connections into a tunnel once the 101 is being sent, or the ClientHello.
    pub(super) fn open_tunnel<D: Driver>(
        &mut self,
        driver: &mut D,
        client_id: ConnId,
        upstream_id: ConnId,
    ) {
        let upstream = self.records.take(upstream_id);
        let BalanceRecord::Upstream(upstream) = upstream else { return };
        let BalanceRecord::Client(mut client) = self.records.take(client_id) else {
            return driver.close(upstream_id);
        };
        let count = TunnelGuard::open(&upstream.backend);
        if let Some(exchange) = &mut client.exchange {
            self.keep_entry(client_id, exchange);
            if !upstream.is_passthrough {
                let took = self.time.now().since(exchange.began);
                upstream.backend.note_handshake(took.as_micros().try_into().unwrap_or(u64::MAX));
            }
        }
        self.metrics.tunnels += 1;
        self.metrics.tunnels_opened += 1;
        self.replace_records(driver, (client_id, &client), (upstream_id, &upstream), count);
        // They serve this client only, which sends no more requests.
        for idle in self.pool.take_of(client_id) {
            self.close(driver, idle);
        }
        // One side is enough to notice the silence of both.
        let timeouts = &self.configuration.settings.timeouts;
        let idle = if upstream.is_passthrough { timeouts.upgrade } else { timeouts.tunnel };
        self.records.set_deadline(client_id, self.time.after(idle));
        self.records.set_deadline(upstream_id, EighthTick::NEVER);
        // The 101, with the bytes after it; and early frames of the client.
        if let Some(answer) = Self::take_outbox(&mut client.http) {
            self.send_in_turn(driver, upstream_id, client_id, answer);
        }
        if !client.held.is_empty() {
            let mut batch = self.spares.take();
            batch.append(|out| out.extend_from_slice(client.held.as_slice()));
            self.send_in_turn(driver, client_id, upstream_id, batch);
        }
        for (id, http) in [(client_id, client.http), (upstream_id, upstream.http)] {
            if http.finished {
                self.end_stream(driver, id);
            }
        }
    }

    /// Enters the records of both sides. A side is read unless a send to the other is in flight.
    fn replace_records<D: Driver>(
        &mut self,
        driver: &mut D,
        (client_id, client): (ConnId, &ClientRecord),
        (upstream_id, upstream): (ConnId, &Upstream),
        count: TunnelGuard,
    ) {
        let (mut early, mut late) = (Boundary::new(), upstream.boundary);
        let mut kind = 0;
        if upstream.is_passthrough {
            (early, late, kind) = (Boundary::unframed(), Boundary::unframed(), flag::UNFRAMED);
        }
        early.advance(client.held.as_slice());
        let (of_client, of_upstream) = (&client.http, &upstream.http);
        let now = self.time.tick();
        let side = |peer, boundary, count, http: &HttpSide, other: &HttpSide| {
            let mut flags = kind;
            if http.sending {
                flags |= flag::SENDING;
            }
            if other.sending {
                flags |= flag::PAUSED;
            }
            Tunnel { peer, boundary, count, seen: now, opened: now, flags }
        };
        let own = side(upstream_id, early, None, of_client, of_upstream);
        let mut other = side(client_id, late, Some(count), of_upstream, of_client);
        if upstream.is_passthrough {
            other.flags |= flag::SILENT;
        }
        for (id, http, side) in [(client_id, of_client, own), (upstream_id, of_upstream, other)] {
            match (http.paused, side.flags & flag::PAUSED != 0) {
                (false, true) => driver.pause(id),
                (true, false) => driver.resume(id),
                _ => {}
            }
            self.records.insert(id, BalanceRecord::Tunnel(side));
        }
    }

    /// Sends a batch, or queues it behind the send in flight.
    fn send_in_turn<D: Driver>(
        &mut self,
        driver: &mut D,
        from: ConnId,
        to: ConnId,
        batch: Box<Batch>,
    ) {
        let is_sending = self.records.tunnel(to).is_some_and(|to| to.flags & flag::SENDING != 0);
        if !is_sending {
            return self.send_tunnelled(driver, from, to, batch);
        }
        self.queued.insert(to, batch);
        if let Some(source) = self.records.tunnel(from) {
            source.flags |= flag::QUEUED;
        }
    }
}
