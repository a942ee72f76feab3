//! Closing of tunnels: their selection, order, rate and Close frames.
//!
//! A client gets a Close frame after the last whole frame of its backend. Later data of the backend
//! is dropped; data of the client is forwarded to the backend until its own Close frame has come,
//! so nothing it sent before is lost.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use throng_engine::TokenBucket;
use throng_io::{ConnId, Driver, Instant, SessionFailure};
use throng_proto::ws::{CloseCode, encode_close};

use super::records::{BalanceRecord, Phase, EighthTick, Tunnel, flag};
use super::{ConnAction, ShutdownState, BalanceParts};
use crate::backend::Backend;
use crate::report::Report;
use crate::settings::{CloseOrder, Closing};

/// The code for a service that restarts or has moved: clients reconnect, to another backend.
const SERVICE_RESTART: u16 = CloseCode::SERVICE_RESTART.get();
/// The code for the end of the balancer.
pub(super) const GOING_AWAY: u16 = CloseCode::GOING_AWAY.get();

/// Encodes the Close frame of that code.
pub(super) fn encode(code: u16, out: &mut Vec<u8>) {
    let reason = if code == GOING_AWAY { "going away" } else { "please connect again" };
    encode_close(code, reason, None, out);
}

impl Tunnel {
    /// Returns the code for its client.
    pub(super) fn close_code(&self) -> u16 {
        if self.flags & flag::GOING_AWAY != 0 { GOING_AWAY } else { SERVICE_RESTART }
    }
}

/// A job that closes tunnels one after the other.
pub(super) struct CloseJob {
    /// The backend; `None`: all.
    backend: Option<Arc<Backend>>,
    closing: Closing,
    /// Clients, the first last. Listed when the job began: ids that are outdated find nothing.
    list: Vec<ConnId>,
    /// Clients whose tunnels are unframed, to be closed at the deadline: nothing asks
    /// them to connect again, so they get all the time there is.
    unframed: Vec<ConnId>,
    bucket: TokenBucket,
    /// The number of tunnels ever opened when they were listed.
    opened: u64,
    /// The number that all shards together may still close.
    most: Option<Arc<AtomicU32>>,
    deadline: Option<Instant>,
}

impl CloseJob {
    pub(super) fn is_of(&self, backend: &Arc<Backend>) -> bool {
        self.backend.as_ref().is_some_and(|own| Arc::ptr_eq(own, backend))
    }
}

/// Clients whose backends ended without a Close frame. They are closed at a rate: all at once they
/// would reconnect all at once.
pub(super) struct Orphans {
    list: VecDeque<ConnId>,
    /// The rate of all shards...
    rate: u32,
    /// ...and this shard's part.
    bucket: TokenBucket,
}

impl Orphans {
    pub(super) fn new(rate: u32, bucket: TokenBucket) -> Self {
        Self { list: VecDeque::new(), rate, bucket }
    }

    /// Sets the rate. An unchanged rate keeps its bucket: otherwise each change of the
    /// configuration would allow one more closing.
    pub(super) fn set_rate(&mut self, rate: u32, bucket: TokenBucket) {
        if self.rate != rate {
            (self.rate, self.bucket) = (rate, bucket);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    fn push(&mut self, id: ConnId, now: Instant) {
        if self.list.is_empty() {
            self.bucket.renew(now);
        }
        self.list.push_back(id);
    }
}

impl BalanceParts {
    /// Begins a close job; it replaces an earlier one for the same backend.
    pub(super) fn begin_close_job(
        &mut self,
        backend: Arc<Backend>,
        closing: &Closing,
        most: Option<Arc<AtomicU32>>,
    ) {
        self.close_jobs.retain(|job| !job.is_of(&backend));
        let deadline = closing.deadline.map(|deadline| self.time.now().after(deadline));
        let mut job = CloseJob {
            backend: Some(backend),
            closing: closing.clone(),
            list: Vec::new(),
            unframed: Vec::new(),
            opened: 0,
            bucket: self.bucket(closing.rate),
            most,
            deadline,
        };
        self.list_tunnels(&mut job);
        if let Some(window) = closing.deadline {
            job.bucket = TokenBucket::over(job.list.len(), window);
        }
        self.close_jobs.push(job);
    }

    /// Lists the job's tunnels in its order.
    fn list_tunnels(&mut self, job: &mut CloseJob) {
        job.opened = self.metrics.tunnels_opened;
        let mut found: Vec<(EighthTick, EighthTick, ConnId)> = Vec::new();
        // At a backend that is down or drained at a rate they are closed as others are. In a
        // shutdown they end at its deadline, and none is closed to even out loads.
        let waits = job.deadline.is_some() || job.backend.is_none() || job.most.is_some();
        job.unframed.clear();
        for (_, conn) in self.records.iter() {
            let BalanceRecord::Tunnel(tunnel) = conn else { continue };
            let Some(count) = &tunnel.count else { continue };
            let is_ours = job.backend.as_ref().is_none_or(|own| Arc::ptr_eq(own, count.backend()));
            let is_unframed = tunnel.flags & flag::UNFRAMED != 0;
            // A backend that has ended a stream of frames is lost, or has sent a Close frame.
            let ends = match is_unframed {
                true => 0,
                false => flag::DROPPED | flag::CLOSE_DUE | flag::FINISHED,
            };
            if !is_ours || tunnel.flags & ends != 0 {
                continue;
            }
            let Some((client, BalanceRecord::Tunnel(other))) = self.records.at(tunnel.peer.slot()) else {
                continue;
            };
            match waits && is_unframed {
                true => job.unframed.push(client),
                false => found.push((tunnel.seen.max(other.seen), tunnel.opened, client)),
            }
        }
        match job.closing.order {
            CloseOrder::IdleAndOldest => {
                found.sort_unstable_by_key(|&(seen, opened, _)| Reverse((seen, opened)))
            }
            CloseOrder::Shuffled => self.picker.random().shuffle(&mut found),
        }
        job.list = found.into_iter().map(|(_, _, client)| client).collect();
    }

    /// Closes all idle clients, and tunnels within `window`.
    pub(super) fn begin_shutdown<D: Driver>(
        &mut self,
        driver: &mut D,
        window: Duration,
        deadline: Duration,
    ) {
        driver.stop_listening();
        self.shutdown = Some(ShutdownState { deadline: self.time.now().after(deadline) });
        for (id, conn) in self.records.iter() {
            let is_idle = match conn {
                BalanceRecord::Client(client) => {
                    client.phase == Phase::Proxy
                        || client.phase == Phase::Head && client.decoder.is_between_requests()
                }
                BalanceRecord::Upstream(upstream) => upstream.client.is_none(),
                BalanceRecord::Tunnel(_) | BalanceRecord::Vacant | BalanceRecord::Closing => false,
            };
            if is_idle {
                self.actions.push_back(ConnAction::Close(id));
            }
        }
        let rate = self.configuration.settings.close_rate;
        let in_window = self.metrics.tunnels as f64 / window.as_secs_f64();
        let bucket = if in_window > f64::from(rate) / f64::from(self.shards) {
            TokenBucket::over(self.metrics.tunnels as usize, window)
        } else {
            self.bucket(rate)
        };
        let order = CloseOrder::Shuffled;
        let closing = Closing { code: GOING_AWAY, rate, order, deadline: None, later: true };
        let mut job = CloseJob {
            backend: None,
            closing,
            list: Vec::new(),
            unframed: Vec::new(),
            opened: 0,
            bucket,
            most: None,
            deadline: None,
        };
        self.list_tunnels(&mut job);
        self.close_jobs = vec![job];
    }

    /// Returns when the next tunnel is to be closed.
    pub(super) fn next_closing(&self) -> Option<Instant> {
        let orphans = (!self.orphans.list.is_empty()).then(|| self.orphans.bucket.next(self.time.now()));
        let next = |job: &CloseJob| {
            let closes = !job.list.is_empty();
            let waits = closes || !job.unframed.is_empty();
            [closes.then(|| job.bucket.next(self.time.now())), job.deadline.filter(|_| waits)]
        };
        self.close_jobs.iter().flat_map(next).chain([orphans]).flatten().min()
    }

    pub(super) fn close_what_is_due<D: Driver>(&mut self, driver: &mut D) {
        if !self.orphans.list.is_empty() {
            for _ in 0..self.orphans.bucket.due(self.time.now()) {
                let Some(id) = self.orphans.list.pop_front() else { break };
                self.close_orphan(driver, id);
            }
        }
        if self.close_jobs.is_empty() {
            return;
        }
        let mut close_jobs = std::mem::take(&mut self.close_jobs);
        for job in &mut close_jobs {
            let is_late = job.deadline.is_some_and(|deadline| deadline <= self.time.now());
            if is_late {
                job.list.append(&mut job.unframed);
            }
            if job.list.is_empty() {
                continue;
            }
            let mut due = if is_late { u32::MAX } else { job.bucket.due(self.time.now()) };
            while due > 0
                && let Some(id) = job.list.pop()
            {
                let has_one = job.most.as_ref().is_none_or(|most| {
                    most.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
                });
                if !has_one {
                    job.list = Vec::new();
                    break;
                }
                if self.close_tunnel(driver, id, job.closing.code) {
                    due -= 1;
                } else if let Some(most) = &job.most {
                    most.fetch_add(1, Relaxed);
                }
            }
        }
        close_jobs.retain(|job| job.closing.later || !job.list.is_empty());
        self.close_jobs = close_jobs;
    }

    /// Called once a sweep: adds tunnels that were opened since a job began.
    pub(super) fn renew_close_jobs(&mut self) {
        let mut close_jobs = std::mem::take(&mut self.close_jobs);
        close_jobs.retain(|job| {
            job.backend.as_ref().is_none_or(|backend| {
                backend.state() != crate::State::Removed || backend.tunnels() > 0
            })
        });
        for job in &mut close_jobs {
            if job.closing.later && job.list.is_empty() && job.opened != self.metrics.tunnels_opened
            {
                job.bucket.renew(self.time.now());
                self.list_tunnels(job);
            }
        }
        self.close_jobs = close_jobs;
    }

    /// Begins the end of a client's tunnel. Returns false if it had begun already.
    pub(super) fn close_tunnel<D: Driver>(
        &mut self,
        driver: &mut D,
        client_id: ConnId,
        code: u16,
    ) -> bool {
        let deadline = self.time.after(self.configuration.settings.timeouts.close);
        let Some(client) = self.records.tunnel(client_id) else { return false };
        let (flags, upstream_id) = (client.flags, client.peer);
        if flags & flag::UNFRAMED != 0 {
            self.cut_unframed(driver, client_id, upstream_id);
            return true;
        }
        if flags & (flag::CLOSED | flag::FINISHED | flag::ENDED) != 0 || upstream_id == client_id {
            return false;
        }
        let Some(upstream) = self.records.tunnel(upstream_id) else { return false };
        if upstream.boundary.saw_close() || upstream.flags & (flag::CLOSE_DUE | flag::DROPPED) != 0
        {
            return false;
        }
        if upstream.boundary.is_lost() {
            // The data is not frames: there is no boundary for a Close frame.
            self.metrics.closed += 1;
            driver.abort(client_id);
            if let BalanceRecord::Tunnel(client) = self.records.take(client_id) {
                self.end_tunnel(driver, client_id, client);
            }
            return true;
        }
        if code == GOING_AWAY {
            upstream.flags |= flag::GOING_AWAY;
        }
        if upstream.boundary.is_at_boundary() {
            self.send_or_queue(driver, client_id, |out| encode(code, out));
            self.record_close_sent(upstream_id, client_id);
            return true;
        }
        upstream.flags |= flag::CLOSE_DUE;
        for id in [client_id, upstream_id] {
            self.records.set_end(id, deadline);
        }
        true
    }

    /// Resets both sides of a tunnel that is passed through, also if one has ended its stream: an
    /// end of stream would look as if all data had been sent.
    fn cut_unframed<D: Driver>(&mut self, driver: &mut D, client_id: ConnId, upstream_id: ConnId) {
        let BalanceRecord::Tunnel(client) = self.records.take(client_id) else { return };
        self.metrics.closed += 1;
        if let Some(count) = self.records.tunnel(upstream_id).and_then(|tunnel| tunnel.count.as_ref())
        {
            count.backend().totals().closed.fetch_add(1, Relaxed);
        }
        // Before the connections are gone, which know how much they moved.
        if !self.entries.is_empty() {
            self.record_tunnel(driver, client_id, &client);
        }
        driver.abort(client_id);
        driver.abort(upstream_id);
        self.end_tunnel(driver, client_id, client);
    }

    /// Records that a Close frame was sent to `client`, after all data from `upstream`.
    pub(super) fn record_close_sent(&mut self, upstream: ConnId, client: ConnId) {
        let deadline = self.time.after(self.configuration.settings.timeouts.close);
        self.metrics.closed += 1;
        if let Some(tunnel) = self.records.tunnel(upstream) {
            tunnel.flags &= !flag::CLOSE_DUE;
            tunnel.flags |= flag::DROPPED;
            if let Some(count) = &tunnel.count {
                count.backend().totals().closed.fetch_add(1, Relaxed);
            }
        }
        if let Some(tunnel) = self.records.tunnel(client) {
            tunnel.flags |= flag::CLOSED;
            if tunnel.boundary.is_after_close() {
                // The Close frames have crossed: the client has sent its own, and waits for the
                // end.
                self.actions.push_back(ConnAction::Answered(client));
            }
        }
        self.records.set_end(upstream, deadline);
        self.records.set_end(client, deadline);
    }

    /// Handles a client whose backend ended without a Close frame, and perhaps because its TLS
    /// session failed.
    pub(super) fn orphan<D: Driver>(
        &mut self,
        driver: &mut D,
        client_id: ConnId,
        can_close: bool,
        backend: Option<Arc<Backend>>,
        failure: Option<SessionFailure>,
    ) {
        let Some(client) = self.records.tunnel(client_id) else { return };
        // Many servers end the stream in answer to a Close: this is no loss, and their client waits
        // for nothing else.
        let was_leaving = client.boundary.is_after_close();
        if !was_leaving {
            self.metrics.lost += 1;
            if let Some(entry) = self.entries.get_mut(&client_id) {
                entry.note_loss(failure);
            }
            let address = backend.as_ref().map(|backend| backend.address());
            self.record_loss(driver, client_id, address, failure);
            if let Some(backend) = backend {
                backend.totals().lost.fetch_add(1, Relaxed);
                if let Some(why) = failure {
                    // The receiver is gone only when the whole balancer ends.
                    let _ = self.reports.send(Report::of_tunnel(backend, why));
                }
            }
        }
        let Some(client) = self.records.tunnel(client_id) else { return };
        client.peer = client_id;
        client.flags |= flag::DROPPED;
        if client.flags & flag::PAUSED != 0 {
            // Needed to learn of its end, and of its answer to the Close frame.
            client.flags &= !flag::PAUSED;
            driver.resume(client_id);
        }
        if client.flags & (flag::FINISHED | flag::ENDED) != 0 {
            return self.close(driver, client_id);
        }
        if can_close && was_leaving {
            self.close_orphan(driver, client_id);
            self.actions.push_back(ConnAction::Answered(client_id));
        } else if can_close {
            self.orphans.push(client_id, self.time.now());
        } else {
            // In the middle of a frame no Close frame can be sent: only a reset is correct.
            client.flags |= flag::CLOSE_DUE;
            self.orphans.push(client_id, self.time.now());
        }
    }

    /// Closes a client whose backend is lost, unless that was done already.
    pub(super) fn close_orphan<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let deadline = self.time.after(self.configuration.settings.timeouts.close);
        let Some(client) = self.records.tunnel(id) else { return };
        if client.flags & flag::CLOSED != 0 {
            return;
        }
        if client.flags & flag::CLOSE_DUE != 0 {
            self.metrics.closed += 1;
            driver.abort(id);
            return self.close(driver, id);
        }
        self.metrics.closed += 1;
        client.flags |= flag::CLOSED;
        self.records.set_end(id, deadline);
        self.send_or_queue(driver, id, |out| encode(SERVICE_RESTART, out));
    }

    /// Ends both sides after the client's Close frame has come in answer to the balancer's.
    pub(super) fn close_answered<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(client) = self.records.tunnel(id) else { return };
        let peer = client.peer;
        // Nothing may follow a Close frame, and its receiver's stream is ended.
        client.flags |= flag::DROPPED;
        for side in [id, peer] {
            let has_queue = self.queued.contains_key(&side);
            let Some(tunnel) = self.records.tunnel(side) else { continue };
            if tunnel.flags & (flag::ENDED | flag::FINISH_DUE) != 0 {
                continue;
            }
            if tunnel.flags & flag::SENDING != 0 || has_queue {
                tunnel.flags |= flag::FINISH_DUE;
            } else {
                tunnel.flags |= flag::ENDED;
                driver.finish(side);
            }
        }
    }
}
