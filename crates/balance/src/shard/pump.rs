//! Tunnels: bytes of one side are forwarded to the other from the kernel's buffer.
//!
//! A tunnel holds data only while a side is behind: then its other side is not read, and the driver
//! has the one batch that is in flight.

use throng_io::{Batch, Closed, ConnId, Driver, Segment, SendOutcome, SessionFailure};

use super::records::{BalanceRecord, Tunnel, flag};
use super::{ConnAction, BalanceParts};

/// The size up to which data is copied: cheaper than a send from lent memory.
const COPIED: usize = 4 << 10;

/// Returns a batch of `bytes`, which are the lent ones from their start.
#[inline]
fn load(mut batch: Box<Batch>, bytes: &[u8]) -> Box<Batch> {
    if bytes.len() <= COPIED {
        batch.append(|out| out.extend_from_slice(bytes));
    } else {
        batch.push(Segment::Lent(0..bytes.len()));
    }
    batch
}

impl BalanceParts {
    /// Tracks the frames, and returns the data to send and its receiver.
    #[inline]
    pub(super) fn tunnel_received(
        &mut self,
        id: ConnId,
        bytes: &[u8],
    ) -> Option<(ConnId, Box<Batch>)> {
        let tick = self.time.tick();
        let tunnel = self.records.tunnel(id)?;
        tunnel.seen = tick;
        if tunnel.count.is_some() {
            self.metrics.bytes_down += bytes.len() as u64;
        } else {
            self.metrics.bytes_up += bytes.len() as u64;
        }
        if tunnel.flags & flag::SLOW_PATH != 0 {
            return self.tunnel_received_slow(id, bytes);
        }
        tunnel.boundary.advance(bytes);
        let peer = tunnel.peer;
        Some((peer, load(self.spares.take(), bytes)))
    }

    /// Handles data of a tunnel with a queue or a Close frame between its sides.
    #[cold]
    fn tunnel_received_slow(&mut self, id: ConnId, bytes: &[u8]) -> Option<(ConnId, Box<Batch>)> {
        let tunnel = self.records.tunnel(id)?;
        tunnel.flags &= !flag::SILENT;
        let (flags, peer) = (tunnel.flags, tunnel.peer);
        let mut bytes = bytes;
        let mut close = None;
        if flags & flag::CLOSE_DUE != 0 {
            let end = tunnel.boundary.advance_to_boundary(bytes);
            if tunnel.boundary.is_at_boundary() {
                bytes = &bytes[..end];
                close = Some(tunnel.close_code());
            }
        } else {
            tunnel.boundary.advance(bytes);
        }
        // Only with its last byte: the end of the stream must not overtake the rest.
        let has_answered = tunnel.boundary.is_after_close();
        if flags & flag::CLOSED != 0 && has_answered {
            self.actions.push_back(ConnAction::Answered(id));
        }
        if flags & flag::DROPPED != 0 || peer == id {
            return None;
        }
        let mut batch = if flags & (flag::PAUSED | flag::QUEUED) != 0 {
            let queued = self.queued.entry(peer).or_default();
            queued.append(|out| out.extend_from_slice(bytes));
            None
        } else {
            Some(load(self.spares.take(), bytes))
        };
        if let Some(code) = close
            && !self.records.tunnel(id).is_some_and(|tunnel| tunnel.boundary.saw_close())
        {
            let frame = |out: &mut Vec<u8>| super::closing::encode(code, out);
            match &mut batch {
                Some(batch) => batch.append(frame),
                None => self.queued.entry(peer).or_default().append(frame),
            }
            self.record_close_sent(id, peer);
        }
        batch.map(|batch| (peer, batch))
    }

    /// Forwards a tunnel's bytes; if they are not sent whole, their source is not read until they
    /// are.
    #[inline]
    pub(super) fn send_tunnelled<D: Driver>(
        &mut self,
        driver: &mut D,
        from: ConnId,
        to: ConnId,
        batch: Box<Batch>,
    ) {
        match driver.send(to, batch) {
            SendOutcome::Done(batch) => self.spares.give(batch),
            SendOutcome::Pending => self.tunnel_behind(driver, from, to),
        }
    }

    #[cold]
    fn tunnel_behind<D: Driver>(&mut self, driver: &mut D, from: ConnId, to: ConnId) {
        if let Some(tunnel) = self.records.tunnel(to) {
            tunnel.flags |= flag::SENDING;
        }
        // A client without its backend is its own other side: its answer to the Close frame must be
        // read.
        if from != to
            && let Some(tunnel) = self.records.tunnel(from)
        {
            tunnel.flags |= flag::PAUSED;
            driver.pause(from);
        }
    }

    /// Sends bytes of the balancer to a side: at once, or after the send in flight.
    pub(super) fn send_or_queue<D: Driver>(
        &mut self,
        driver: &mut D,
        to: ConnId,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let Some(tunnel) = self.records.tunnel(to) else { return };
        let (is_sending, peer) = (tunnel.flags & flag::SENDING != 0, tunnel.peer);
        if is_sending || self.queued.contains_key(&to) {
            self.queued.entry(to).or_default().append(write);
            if let Some(source) = self.records.tunnel(peer)
                && peer != to
            {
                source.flags |= flag::QUEUED;
            }
            return;
        }
        let mut batch = self.spares.take();
        batch.append(write);
        self.send_tunnelled(driver, peer, to, batch);
    }

    /// Handles the end of a send: starts the next one, or resumes the other side.
    pub(super) fn tunnel_sent<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let queued = self.queued.remove(&id);
        let Some(tunnel) = self.records.tunnel(id) else { return };
        tunnel.flags &= !flag::SENDING;
        let peer = tunnel.peer;
        if let Some(batch) = queued {
            match driver.send(id, batch) {
                SendOutcome::Done(batch) => self.spares.give(batch),
                SendOutcome::Pending => {
                    if let Some(tunnel) = self.records.tunnel(id) {
                        tunnel.flags |= flag::SENDING;
                    }
                    return;
                }
            }
        }
        let Some(tunnel) = self.records.tunnel(id) else { return };
        if tunnel.flags & flag::FINISH_DUE != 0 {
            tunnel.flags &= !flag::FINISH_DUE;
            tunnel.flags |= flag::ENDED;
            driver.finish(id);
        }
        if peer != id
            && let Some(source) = self.records.tunnel(peer)
        {
            source.flags &= !flag::QUEUED;
            if source.flags & flag::PAUSED != 0 {
                source.flags &= !flag::PAUSED;
                driver.resume(peer);
            }
        }
        self.end_if_both_ended(driver, id);
    }

    /// Handles the end of a side's stream.
    pub(super) fn tunnel_finished<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        if self.records.tunnel(id).is_some_and(|side| side.count.is_none()) {
            self.note_gone(id);
        }
        self.end_stream(driver, id);
    }

    /// Ends what goes to the other side of a tunnel: this side has ended its stream.
    pub(super) fn end_stream<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let deadline = self.time.after(self.configuration.settings.timeouts.half_closed);
        let Some(tunnel) = self.records.tunnel(id) else { return };
        tunnel.flags |= flag::FINISHED;
        let (flags, peer) = (tunnel.flags, tunnel.peer);
        let is_backend = tunnel.count.is_some();
        // Half a Close frame does not close.
        let said_close = tunnel.boundary.is_after_close();
        if peer == id {
            // A client without its backend. The send in flight has its backend's last bytes, or a
            // Close frame.
            if flags & flag::SENDING == 0 {
                return self.close(driver, id);
            }
            if let Some(tunnel) = self.records.tunnel(id) {
                tunnel.flags |= flag::FINISH_DUE;
            }
            return self.records.limit_end(id, deadline);
        }
        if flags & flag::CLOSED != 0 {
            // A client that ends in answer to the Close frame: its earlier data is still forwarded
            // to its backend, and closing that connection while it sends would be a reset, which
            // may overtake it.
            self.close_answered(driver, id);
            return self.end_if_both_ended(driver, id);
        }
        if is_backend && flags & flag::DROPPED != 0 {
            // Its client has been sent a Close frame and is about to answer; a backend that ends
            // its stream may still read.
            return self.end_if_both_ended(driver, id);
        }
        if is_backend && !said_close && flags & (flag::ENDED | flag::UNFRAMED) == 0 {
            return self.lose_backend(driver, id);
        }
        let has_queue = self.queued.contains_key(&peer);
        if let Some(other) = self.records.tunnel(peer) {
            if other.flags & flag::SENDING != 0 || has_queue {
                other.flags |= flag::FINISH_DUE;
            } else {
                other.flags |= flag::ENDED;
                driver.finish(peer);
            }
        }
        if flags & flag::UNFRAMED != 0 {
            // Only silence ends it: much may still come from the other side.
            self.records.set_deadline(if is_backend { peer } else { id }, deadline);
        } else {
            self.records.limit_end(id, deadline);
            self.records.limit_end(peer, deadline);
        }
        self.end_if_both_ended(driver, id);
    }

    /// Closes the tunnel if both streams of both sides have ended.
    fn end_if_both_ended<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        const DONE: u16 = flag::FINISHED | flag::ENDED;
        let is_done =
            |tunnel: &mut Tunnel| tunnel.flags & DONE == DONE && tunnel.flags & flag::SENDING == 0;
        let Some(tunnel) = self.records.tunnel(id) else { return };
        let peer = tunnel.peer;
        if is_done(tunnel) && self.records.tunnel(peer).is_some_and(is_done) {
            self.close(driver, id);
        }
    }

    /// Handles the end of a side's connection: a reset, or the network gave up, or its TLS session
    /// failed.
    pub(super) fn tunnel_closed<D: Driver>(
        &mut self,
        driver: &mut D,
        id: ConnId,
        tunnel: Tunnel,
        why: Closed,
        failure: Option<SessionFailure>,
    ) {
        if tunnel.flags & flag::UNFRAMED != 0 {
            return self.unframed_closed(driver, id, tunnel, why);
        }
        let is_backend = tunnel.count.is_some() && tunnel.peer != id;
        if is_backend && tunnel.flags & flag::DROPPED != 0 {
            return self.leave_alone(driver, id, tunnel.peer);
        }
        let is_behind =
            self.records.tunnel(tunnel.peer).is_some_and(|it| it.flags & flag::SENDING != 0);
        let said_close = tunnel.boundary.is_after_close();
        if is_backend && is_behind && said_close {
            // It sent all data, including its Close frame, and some of it is still in flight.
            let deadline = self.time.after(self.configuration.settings.timeouts.half_closed);
            if let Some(client) = self.records.tunnel(tunnel.peer) {
                client.flags |= flag::FINISH_DUE;
            }
            self.records.limit_end(tunnel.peer, deadline);
            return self.leave_alone(driver, id, tunnel.peer);
        }
        // Half a Close frame does not close.
        let is_lost = is_backend && !said_close && tunnel.flags & flag::ENDED == 0;
        if is_lost {
            self.queued.remove(&id);
            let can_close = tunnel.boundary.is_at_boundary();
            let backend = tunnel.count.as_ref().map(|count| count.backend().clone());
            self.orphan(driver, tunnel.peer, can_close, backend, failure);
        } else {
            let is_client = tunnel.peer != id && tunnel.count.is_none();
            if why == Closed::Reset && is_client && !tunnel.boundary.saw_close() {
                // A reset is forwarded as one: an orderly end would leave a local port in TIME_WAIT
                // for each such client, and ports are limited. Not after a Close frame, which must
                // arrive.
                if !self.entries.is_empty() {
                    self.record_tunnel(driver, id, &tunnel);
                }
                driver.abort(tunnel.peer);
            }
            self.end_tunnel(driver, id, tunnel);
        }
    }

    /// Handles the end of a side that is passed through: a reset is forwarded as one.
    fn unframed_closed<D: Driver>(
        &mut self,
        driver: &mut D,
        id: ConnId,
        tunnel: Tunnel,
        why: Closed,
    ) {
        if why == Closed::Reset {
            if !self.entries.is_empty() {
                self.record_tunnel(driver, id, &tunnel);
            }
            driver.abort(tunnel.peer);
        }
        self.end_tunnel(driver, id, tunnel);
    }

    /// Handles a backend's side that ended its stream without a Close frame.
    fn lose_backend<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        if let BalanceRecord::Tunnel(tunnel) = self.records.take(id) {
            // The driver forgets it with the connection.
            let failure = driver.session_failure(id);
            driver.close(id);
            self.tunnel_closed(driver, id, tunnel, Closed::Local, failure);
        }
    }

    /// Detaches a backend's side that is gone; its client has been sent a Close frame, or is being
    /// sent one, and stays until it has answered.
    fn leave_alone<D: Driver>(&mut self, driver: &mut D, id: ConnId, client_id: ConnId) {
        self.queued.remove(&id);
        let Some(client) = self.records.tunnel(client_id) else { return };
        client.peer = client_id;
        client.flags |= flag::DROPPED;
        if client.flags & flag::FINISHED != 0 && client.flags & flag::SENDING == 0 {
            return self.close(driver, client_id);
        }
        if client.flags & flag::PAUSED != 0 {
            client.flags &= !flag::PAUSED;
            driver.resume(client_id);
        }
    }

    /// Ends both sides; `tunnel` is the record of `id`, already taken out.
    pub(super) fn end_tunnel<D: Driver>(&mut self, driver: &mut D, id: ConnId, tunnel: Tunnel) {
        if !self.entries.is_empty() {
            self.record_tunnel(driver, id, &tunnel);
        }
        let mut end = |state: &mut Self, id: ConnId, tunnel: &Tunnel| {
            state.queued.remove(&id);
            if tunnel.count.is_some() {
                return driver.close(id);
            }
            state.metrics.tunnels -= 1;
            state.close_counted(driver, id);
        };
        end(self, id, &tunnel);
        if tunnel.peer != id
            && let BalanceRecord::Tunnel(other) = self.records.take(tunnel.peer)
        {
            end(self, tunnel.peer, &other);
        }
    }
}
