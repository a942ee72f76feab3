//! One thread, one driver, its connections. Read [`Shard::turn`] first.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use throng_io::{Batch, Closed, ConnId, Driver, Event, Instant, SendOutcome};
use throng_proto::ws::Spare;

use crate::admission::Admission;
use crate::conn::{AfterFlush, Stage, flag};
use crate::core::{Core, Cx, Mail};
use crate::mailbox::{Letters, Mailbox};
use crate::receive::Inbound;
use crate::service::{Close, Refusal, Service};
use crate::shutdown::{Drain, Phase};
use crate::stats::Snapshot;
use crate::tick::Tick;

/// How long accepting rests after descriptors ran out, if no connection ends before.
const ACCEPT_REST: Duration = Duration::from_millis(200);
/// Seconds a connection is read and dropped after our FIN.
const LINGER_SECS: u16 = 2;
/// Connections at a time that are told why they are turned away; the rest are just closed.
const MAX_REFUSING: usize = 32;

/// An accepted socket on its way to the shard that will serve it.
pub type Handover<S> = (S, SocketAddr);

/// The event loop.
pub struct Shard<D: Driver, S: Service> {
    driver: D,
    state: State<S>,
    handovers: Letters<Handover<D::Socket>>,
    /// The other shards' `handovers`, by shard.
    neighbours: Vec<Mailbox<Handover<D::Socket>>>,
    accept_rests_until: Option<Instant>,
    /// For the sweep; reused.
    due: Vec<u32>,
}

/// Everything but the sockets: what may be used while the driver has lent bytes.
pub(crate) struct State<S> {
    pub(crate) core: Core,
    pub(crate) service: S,
    pub(crate) inbound: Vec<Inbound>,
    pub(crate) spare_pieces: Spare,
    pub(crate) admission: Arc<Admission>,
    letters: Letters<Mail>,
    snapshot: Arc<Snapshot>,
    phase: Phase,
    started: Instant,
    swept_secs: u64,
    refusing: usize,
    seed: u64,
}

/// What [`crate::build`] puts together for one shard.
pub(crate) struct Parts<D: Driver, S> {
    pub(crate) driver: D,
    pub(crate) core: Core,
    pub(crate) service: S,
    pub(crate) admission: Arc<Admission>,
    pub(crate) letters: Letters<Mail>,
    pub(crate) handovers: Letters<Handover<D::Socket>>,
    pub(crate) neighbours: Vec<Mailbox<Handover<D::Socket>>>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) capacity: usize,
    pub(crate) seed: u64,
}

impl<D: Driver, S: Service> Shard<D, S> {
    pub(crate) fn new(parts: Parts<D, S>) -> Self {
        let started = parts.driver.now();
        let mut state = State {
            core: parts.core,
            service: parts.service,
            inbound: Vec::with_capacity(parts.capacity),
            spare_pieces: Spare::new(),
            admission: parts.admission,
            letters: parts.letters,
            snapshot: parts.snapshot,
            phase: Phase::Running,
            started,
            swept_secs: 0,
            refusing: 0,
            seed: parts.seed,
        };
        state.core.now = started;
        Self {
            driver: parts.driver,
            state,
            handovers: parts.handovers,
            neighbours: parts.neighbours,
            accept_rests_until: None,
            due: Vec::new(),
        }
    }

    /// Turns until a drain has ended. Returns how many connections missed its deadline and were reset.
    ///
    /// # Errors
    /// The driver's wait failed; the shard cannot go on.
    pub fn run(&mut self) -> io::Result<usize> {
        loop {
            if let Some(forced) = self.turn()? {
                return Ok(forced);
            }
        }
    }

    /// One turn: wait, take what came, answer, flush. Every byte of output leaves in `flush`. `Some` when the
    /// shard has stopped.
    ///
    /// # Errors
    /// The driver's wait failed.
    pub fn turn(&mut self) -> io::Result<Option<usize>> {
        self.driver.wait(self.next_deadline())?;
        self.state.core.now = self.driver.now();
        self.state.core.connections.stats.turns += 1;
        while let Some(event) = self.driver.next_event() {
            // `event` borrows the driver, so nothing in `on_event` *can* write to a socket.
            match self.state.on_event(event) {
                Then::Flush(id) => self.flush(id),
                Then::Place(socket, peer) => self.place(socket, peer),
                Then::RestAccept => {
                    self.accept_rests_until = Some(self.state.core.now.after(ACCEPT_REST));
                }
                Then::RetryAccept => self.retry_accept(),
                Then::Nothing => {}
            }
        }
        self.take_handovers();
        self.take_letters();
        self.expire();
        self.call_drained();
        self.flush_all();
        Ok(self.stopped())
    }

    /// Opens a client connection to `peer`; `on_connected` or `on_failed` follows.
    ///
    /// # Errors
    /// It could not even be begun: no descriptor, no free port on `local`.
    pub fn connect(
        &mut self,
        peer: SocketAddr,
        local: Option<SocketAddr>,
        data: u32,
    ) -> io::Result<ConnId> {
        let id = self.driver.connect(peer, local)?;
        self.state.enter(id, Stage::Connecting, Inbound::Nothing);
        if let Some(conn) = self.state.core.connections.conn_mut(id) {
            conn.set(flag::CLIENT, true);
            conn.data = data;
        }
        let secs = self.state.core.connections.limits.handshake;
        self.state.core.connections.due_in(id, secs);
        Ok(id)
    }

    /// The service.
    pub fn service(&mut self) -> &mut S {
        &mut self.state.service
    }

    /// The service and the shard's state, for work outside of callbacks; what it sends leaves in the next turn's
    /// flush at the latest, or with [`Shard::flush_all`].
    pub fn service_and_core(&mut self) -> (&mut S, &mut Core) {
        (&mut self.state.service, &mut self.state.core)
    }

    /// The driver, for the simulator's checkers.
    pub fn driver(&mut self) -> &mut D {
        &mut self.driver
    }

    /// The shard's state.
    pub fn core(&self) -> &Core {
        &self.state.core
    }

    /// For [`Shard::audit`].
    pub(crate) fn state(&self) -> &State<S> {
        &self.state
    }

    /// The one place where bytes leave.
    #[inline(always)]
    fn flush(&mut self, id: ConnId) {
        let connections = &mut self.state.core.connections;
        let Some(conn) = connections.conn_mut(id) else { return };
        conn.flags &= !flag::DIRTY;
        if conn.has(flag::NOT_PLAIN_TO_FLUSH) || conn.after_flush != AfterFlush::Nothing {
            return self.flush_rarely(id);
        }
        if let Some(batch) = conn.out.take() {
            self.send(id, batch);
        }
    }

    /// What flushing can be besides: it may have to wait, and something may follow it.
    #[inline(never)]
    fn flush_rarely(&mut self, id: ConnId) {
        let connections = &mut self.state.core.connections;
        let Some(conn) = connections.conn_mut(id) else { return };
        let (behind, after) = (conn.has(flag::BEHIND | flag::PAUSED), conn.after_flush);
        if after == AfterFlush::Abort {
            return self.end(id);
        }
        if conn.has(flag::IN_FLIGHT) {
            return self.pause_if_behind(id);
        }
        if let Some(batch) = conn.out.take() {
            conn.flags &= !(flag::PONG_FIRST | flag::UPGRADING);
            if !self.send(id, batch) {
                return;
            }
            if behind {
                self.state.core.connections.mark_drained(id);
            }
        }
        if after != AfterFlush::Nothing {
            self.end(id);
        }
    }

    /// Whether all of it has left.
    #[inline(always)]
    fn send(&mut self, id: ConnId, batch: Box<Batch>) -> bool {
        let connections = &mut self.state.core.connections;
        let len = batch.len();
        connections.stats.bytes_out += len as u64;
        match self.driver.send(id, batch) {
            SendOutcome::Done(batch) => {
                connections.spares.give(batch);
                true
            }
            SendOutcome::Pending => {
                self.note_in_flight(id, len);
                false
            }
        }
    }

    /// The kernel did not take all of a batch.
    #[cold]
    fn note_in_flight(&mut self, id: ConnId, len: usize) {
        let connections = &mut self.state.core.connections;
        let tick = connections.tick();
        connections.stats.backlogged += 1;
        if let Some(cold) = connections.cold_mut(id) {
            cold.in_flight = len;
            cold.unsent = len;
            cold.progress = Some(tick);
        }
        let Some(conn) = connections.conn_mut(id) else { return };
        conn.set(flag::IN_FLIGHT, true);
        if !conn.has(flag::FLIGHT_LISTED) {
            conn.set(flag::FLIGHT_LISTED, true);
            connections.in_flight.push(id);
        }
        self.pause_if_behind(id);
    }

    /// Whoever does not read its answers is not read: TCP carries the back-pressure to it.
    fn pause_if_behind(&mut self, id: ConnId) {
        let connections = &mut self.state.core.connections;
        let behind = connections.backlog(id) > connections.high_water();
        let Some(conn) = connections.conn_mut(id) else { return };
        if behind && !conn.has(flag::PAUSED) && conn.stage <= Stage::Open {
            conn.set(flag::PAUSED, true);
            self.driver.pause(id);
        }
    }

    /// Everything has left, or does not matter any more: end our side.
    fn end(&mut self, id: ConnId) {
        let connections = &mut self.state.core.connections;
        let Some(conn) = connections.conn_mut(id) else { return };
        if conn.stage == Stage::Ending {
            return;
        }
        match conn.after_flush {
            AfterFlush::Linger if conn.has(flag::FINISHED) => self.hang_up(id),
            AfterFlush::Linger if conn.stage < Stage::Lingering => {
                conn.stage = Stage::Lingering;
                let paused = conn.has(flag::PAUSED);
                conn.set(flag::PAUSED, false);
                connections.due_in(id, LINGER_SECS);
                self.driver.finish(id);
                if paused {
                    self.driver.resume(id);
                }
            }
            AfterFlush::Close => self.hang_up(id),
            AfterFlush::Abort => {
                conn.stage = Stage::Ending;
                connections.drop_queue(id);
                self.driver.abort(id);
            }
            AfterFlush::Nothing | AfterFlush::Linger => {}
        }
    }

    fn hang_up(&mut self, id: ConnId) {
        if let Some(conn) = self.state.core.connections.conn_mut(id) {
            conn.stage = Stage::Ending;
            self.driver.close(id);
        }
    }

    /// Flushes every connection that has something to send, and carries out what callbacks asked for.
    pub fn flush_all(&mut self) {
        let mut at = 0;
        while let Some(&id) = self.state.core.connections.dirty.get(at) {
            at += 1;
            if self.state.core.connections.conn(id).is_some_and(|conn| conn.has(flag::DIRTY)) {
                self.flush(id);
            }
        }
        self.state.core.connections.dirty.clear();
    }

    /// Finds a home for an accepted socket: here, at a less loaded shard, or nowhere.
    fn place(&mut self, socket: D::Socket, peer: SocketAddr) {
        self.state.core.connections.stats.accepted += 1;
        if let Err(why) = self.state.admission.enter(peer.ip()) {
            return self.refuse(socket, peer, why);
        }
        let shard = self.state.admission.place(self.state.core.shard);
        if shard == self.state.core.shard {
            return self.adopt(socket, peer);
        }
        match self.neighbours[shard].send((socket, peer)) {
            Ok(()) => self.state.core.connections.stats.handed_over += 1,
            Err((socket, peer)) => {
                self.state.admission.keep(self.state.core.shard, shard);
                self.adopt(socket, peer);
            }
        }
    }

    fn adopt(&mut self, socket: D::Socket, peer: SocketAddr) {
        let Ok(id) = self.driver.adopt(socket) else {
            self.state.admission.leave(self.state.core.shard, true, Some(peer.ip()));
            self.state.core.connections.stats.refused += 1;
            return;
        };
        self.state.enter(id, Stage::Http, Inbound::http());
        let connections = &mut self.state.core.connections;
        if let Some(cold) = connections.cold_mut(id) {
            cold.peer = Some(peer);
        }
        if let Some(conn) = connections.conn_mut(id) {
            conn.set(flag::PENDING, true);
        }
        connections.due_in(id, connections.limits.handshake);
    }

    /// Says why, to the first few; a crowd at the door is just closed.
    fn refuse(&mut self, socket: D::Socket, _peer: SocketAddr, why: Refusal) {
        self.state.core.connections.stats.refused += 1;
        if self.state.refusing >= MAX_REFUSING {
            return;
        }
        let Ok(id) = self.driver.adopt(socket) else { return };
        self.state.enter(id, Stage::Http, Inbound::Refused);
        self.state.refusing += 1;
        self.state.guarded(id, |state| {
            state.service.on_refused(&mut Cx::new(&mut state.core, id), why);
        });
        self.state.core.connections.finish(id, AfterFlush::Linger);
        self.flush(id);
    }

    fn retry_accept(&mut self) {
        if self.accept_rests_until.take().is_some() {
            self.driver.resume_accept();
        }
    }

    fn take_handovers(&mut self) {
        // Collected first: adopting borrows the shard.
        let sockets: Vec<_> = self.handovers.drain().collect();
        for (socket, peer) in sockets {
            match self.state.phase {
                Phase::Running => self.adopt(socket, peer),
                // Accepted before the drain began, and nobody's yet: it is turned away like those that come later.
                _ => {
                    self.state.admission.leave(self.state.core.shard, true, Some(peer.ip()));
                    self.refuse(socket, peer, Refusal::Draining);
                }
            }
        }
    }

    fn take_letters(&mut self) {
        let state = &mut self.state;
        let mut drain = None;
        for mail in state.letters.drain() {
            match mail {
                Mail::Publish { channel, frame, except } => {
                    let _ = state.core.publish_here(&channel, &frame, except);
                }
                Mail::Send { to, frame } => {
                    let _ = state.core.send_frame(to, &frame);
                }
                Mail::Close { to, code, reason } => state.core.close(to, code, &reason),
                Mail::Drain(plan) => drain = Some(plan),
            }
        }
        if let Some(plan) = drain
            && matches!(self.state.phase, Phase::Running)
        {
            let state = &mut self.state;
            state.admission.begin_drain();
            self.driver.stop_listening();
            let ids = state.core.connections.ids().collect();
            state.phase = Phase::Draining(Drain::new(plan, ids, state.core.now, state.seed));
        }
    }

    /// What time alone brings about: once a second the sweep, then the service's own deadline and the drain.
    fn expire(&mut self) {
        let now = self.state.core.now;
        let secs = now.since(self.state.started).as_secs();
        if secs > self.state.swept_secs {
            self.sweep(secs);
        }
        if self.accept_rests_until.is_some_and(|until| now >= until) {
            self.retry_accept();
        }
        if self.state.service.next_deadline().is_some_and(|at| now >= at) {
            self.state.service.on_deadline(&mut self.state.core, now);
        }
        if matches!(self.state.phase, Phase::Draining(_)) {
            self.state.continue_drain();
        }
    }

    fn sweep(&mut self, secs: u64) {
        let state = &mut self.state;
        let last = state.core.connections.tick();
        let strides = (secs - state.swept_secs).min(u64::from(crate::tick::MAX_SECS - 1));
        let now = last.after(strides as u16);
        state.swept_secs = secs;
        state.core.connections.set_tick(now);
        let mut due = std::mem::take(&mut self.due);
        state.core.connections.deadlines.expire(last, now, &mut due);
        for slot in due.drain(..) {
            state.on_due(slot);
        }
        self.due = due;
        state.expire_assembling(now);
        self.expire_writes(now);
        self.state.publish_stats();
    }

    /// Resets connections whose output has not moved for the write timeout.
    fn expire_writes(&mut self, now: Tick) {
        let mut listed = std::mem::take(&mut self.state.core.connections.in_flight);
        listed.retain(|&id| {
            let unsent = self.driver.unsent(id);
            let connections = &mut self.state.core.connections;
            let timeout = connections.limits.write;
            let Some(conn) = connections.conn_mut(id) else { return false };
            if !conn.has(flag::IN_FLIGHT) {
                conn.set(flag::FLIGHT_LISTED, false);
                return false;
            }
            let Some(cold) = connections.cold_mut(id) else { return false };
            let since = *cold.progress.get_or_insert(now);
            if unsent != cold.unsent {
                cold.unsent = unsent;
                cold.progress = Some(now);
            } else if now.since(since) > timeout {
                connections.stats.timeouts += 1;
                connections.finish(id, AfterFlush::Abort);
            }
            true
        });
        self.state.core.connections.in_flight.append(&mut listed);
    }

    fn call_drained(&mut self) {
        let state = &mut self.state;
        for id in std::mem::take(&mut state.core.connections.drained) {
            let low = state.core.connections.low_water();
            let backlog = state.core.connections.backlog(id);
            let Some(conn) = state.core.connections.conn_mut(id) else { continue };
            conn.set(flag::DRAIN_LISTED, false);
            if backlog > low {
                continue;
            }
            if conn.has(flag::PAUSED) {
                conn.set(flag::PAUSED, false);
                self.driver.resume(id);
            }
            if conn.has(flag::BEHIND) {
                conn.set(flag::BEHIND, false);
                if conn.stage == Stage::Open {
                    state.guarded(id, |state| {
                        state.service.on_drain(&mut Cx::new(&mut state.core, id));
                    });
                }
            }
        }
    }

    /// When the next turn is due at the latest, if nothing comes before; `None`: not before something comes.
    pub fn next_deadline(&self) -> Option<Instant> {
        let state = &self.state;
        let core = &state.core;
        if !core.connections.drained.is_empty() || !core.connections.dirty.is_empty() {
            return Some(core.now);
        }
        let sweeping = core.connections.stats.connections > 0 || state.has_unpublished_stats();
        let sweep =
            sweeping.then(|| state.started.after(Duration::from_secs(state.swept_secs + 1)));
        let drain = match &state.phase {
            Phase::Draining(drain) => Some(drain.next_step(core.now)),
            _ => None,
        };
        [sweep, drain, self.accept_rests_until, state.service.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    fn stopped(&mut self) -> Option<usize> {
        match self.state.phase {
            Phase::Draining(ref drain) if self.state.core.connections.stats.connections == 0 => {
                let forced = drain.forced;
                self.state.phase = Phase::Stopped { forced };
                self.state.publish_stats();
                Some(forced)
            }
            Phase::Stopped { forced } => Some(forced),
            _ => None,
        }
    }
}

/// What is to be done once the lent bytes are returned.
enum Then<T> {
    Nothing,
    Flush(ConnId),
    Place(T, SocketAddr),
    RestAccept,
    RetryAccept,
}

impl<S: Service> State<S> {
    #[inline]
    fn on_event<T>(&mut self, event: Event<'_, T>) -> Then<T> {
        match event {
            Event::Received(id, bytes) => {
                self.on_received(id, bytes);
                return Then::Flush(id);
            }
            Event::Sent(id, batch) => self.on_sent(id, batch),
            Event::Incoming(socket, peer) => return Then::Place(socket, peer),
            Event::Connected(id) => self.on_connected(id),
            Event::Finished(id) => self.on_finished(id),
            Event::Closed(id, why) => {
                self.on_closed(id, why);
                return Then::RetryAccept;
            }
            Event::AcceptStopped(_) => {
                self.core.connections.stats.accept_stopped += 1;
                return Then::RestAccept;
            }
        }
        Then::Nothing
    }

    fn enter(&mut self, id: ConnId, stage: Stage, inbound: Inbound) {
        self.core.connections.enter(id, stage);
        while self.inbound.len() <= id.slot() {
            self.inbound.push(Inbound::Nothing);
        }
        self.inbound[id.slot()] = inbound;
    }

    /// Runs callbacks so that a panic in one ends its connection and nothing else.
    #[inline]
    pub(crate) fn guarded(&mut self, id: ConnId, run: impl FnOnce(&mut Self)) {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(self)));
        if let Err(payload) = outcome {
            self.on_panic(id, payload);
        }
    }

    #[cold]
    fn on_panic(&mut self, id: ConnId, payload: Box<dyn Any + Send>) {
        // The panic hook has told people; the payload's own drop must not panic out of here.
        std::mem::forget(payload);
        self.core.connections.stats.handler_panics += 1;
        match self.core.connections.stage(id) {
            Stage::Open => self.core.connections.fail(id, 1011, "internal error"),
            _ => self.core.connections.finish(id, AfterFlush::Abort),
        }
    }

    fn on_sent(&mut self, id: ConnId, batch: Box<Batch>) {
        let connections = &mut self.core.connections;
        connections.spares.give(batch);
        let Some(conn) = connections.conn_mut(id) else { return };
        if !conn.has(flag::IN_FLIGHT) {
            return;
        }
        conn.set(flag::IN_FLIGHT, false);
        connections.stats.backlogged -= 1;
        if let Some(cold) = connections.cold_mut(id) {
            cold.in_flight = 0;
            cold.unsent = 0;
            cold.progress = None;
        }
        connections.shed_cold(id);
        let low = connections.low_water();
        if connections.backlog(id) <= low {
            connections.mark_drained(id);
        }
        connections.mark_dirty(id);
    }

    fn on_connected(&mut self, id: ConnId) {
        let connections = &mut self.core.connections;
        let Some(conn) = connections.conn_mut(id) else { return };
        conn.stage = Stage::Upgrading;
        connections.due_in(id, connections.limits.handshake);
        self.inbound[id.slot()] = Inbound::response();
        self.guarded(id, |state| state.service.on_connected(&mut Cx::new(&mut state.core, id)));
    }

    /// The peer will send no more.
    fn on_finished(&mut self, id: ConnId) {
        let Some(conn) = self.core.connections.conn_mut(id) else { return };
        conn.set(flag::FINISHED, true);
        let stage = conn.stage;
        if stage == Stage::Open {
            self.end_session(id, Close { code: 1006, reason: "" });
        }
        match stage {
            // Answers that are queued still go out to a client that has half-closed.
            Stage::Http | Stage::Upgrading => {
                self.core.connections.finish(id, AfterFlush::Close);
            }
            // Nobody reads what a session has queued once its peer is gone without a closing handshake.
            Stage::Open | Stage::Closing => {
                self.core.connections.drop_queue(id);
                self.core.connections.finish(id, AfterFlush::Close);
            }
            Stage::Lingering => {
                self.core.connections.due_in(id, 1);
                self.core.connections.mark_dirty(id);
            }
            _ => {}
        }
    }

    fn on_closed(&mut self, id: ConnId, _why: Closed) {
        let Some(conn) = self.core.connections.conn(id) else { return };
        let (pending, client) = (conn.has(flag::PENDING), conn.has(flag::CLIENT));
        let cold = self.core.connections.cold(id);
        let peer = cold.and_then(|cold| cold.peer);
        let code = cold.map_or(0, |cold| cold.closed_with);
        self.end_session(id, Close { code: if code == 0 { 1006 } else { code }, reason: "" });
        // By its decoder, since the stage is past all that by now.
        if client && !matches!(self.inbound[id.slot()], Inbound::Ws(_)) {
            self.guarded(id, |state| state.service.on_failed(&mut Cx::new(&mut state.core, id)));
        }
        match std::mem::replace(&mut self.inbound[id.slot()], Inbound::Nothing) {
            Inbound::Refused => self.refusing -= 1,
            _ if client => {}
            _ => self.admission.leave(self.core.shard, pending, peer.map(|peer| peer.ip())),
        }
        self.core.connections.leave(id);
    }

    /// `on_close`, exactly once for each `on_open`, whatever the way out.
    pub(crate) fn end_session(&mut self, id: ConnId, close: Close<'_>) {
        let Some(conn) = self.core.connections.conn_mut(id) else { return };
        if !conn.has(flag::SESSION) {
            return;
        }
        conn.set(flag::SESSION, false);
        if conn.stage == Stage::Open {
            // It ended without a Close frame: nothing can be sent any more, and no `on_drain` may follow.
            conn.stage = Stage::Closing;
        }
        let stats = &mut self.core.connections.stats;
        stats.sessions -= 1;
        match close.code {
            1006 => stats.closed_abnormally += 1,
            _ => stats.closed_clean += 1,
        }
        self.core.channels.unsubscribe_all(id.slot() as u32);
        self.guarded(id, |state| state.service.on_close(&mut Cx::new(&mut state.core, id), close));
    }

    fn continue_drain(&mut self) {
        let Phase::Draining(drain) = &mut self.phase else { return };
        let now = self.core.now;
        let code = drain.code;
        let batch = drain.next_batch(now);
        let overdue = drain.is_overdue(now);
        for id in batch {
            match self.core.connections.stage(id) {
                Stage::Open => self.core.connections.close(id, code, "going away"),
                // Half a request is still answered, with `Connection: close`; the deadline bounds the wait.
                Stage::Http if self.core.connections.is_in_request(id) => {}
                Stage::Http => self.core.connections.finish(id, AfterFlush::Close),
                Stage::Connecting | Stage::Upgrading => {
                    self.core.connections.finish(id, AfterFlush::Abort);
                }
                _ => {}
            }
        }
        if overdue {
            let late: Vec<ConnId> = self.core.connections.ids().collect();
            let mut forced = 0;
            for id in late {
                if self.core.connections.stage(id) < Stage::Ending {
                    forced += 1;
                    self.core.connections.finish(id, AfterFlush::Abort);
                }
            }
            let Phase::Draining(drain) = &mut self.phase else { return };
            drain.forced += forced;
        }
    }

    fn publish_stats(&mut self) {
        let core = &mut self.core;
        core.connections.stats.channels = core.channels.len() as u64;
        core.connections.stats.subscriptions = core.channels.memberships() as u64;
        self.snapshot.publish(&core.connections.stats);
    }

    fn has_unpublished_stats(&self) -> bool {
        self.snapshot.is_behind(&self.core.connections.stats)
    }
}
