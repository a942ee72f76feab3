//! State of a shard without its sockets, and the life of its connections: the handling of each
//! event of the driver.

use std::any::Any;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use throng_io::{Batch, Closed, ConnId, Event, Instant, TlsInfo, Traffic};
use throng_proto::ws::{Close, CloseCode};

use crate::conn::arrivals::{Arrivals, ArrivalsByAddress};
use crate::conn::by_address::KeyBySlot;
use crate::conn::held::HeldInput;
use crate::conn::map::ConnMap;
use crate::conn::proxy_protocol::ProxyProtocol;
use crate::conn::record::Admitted;
use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::context::{Core, Cx};
use crate::http1::body::RequestBodies;
use crate::message::{EndReason, Fault, Refusal, UserEvent};
use crate::remote::ShardInbox;
use crate::service::Service;
use crate::shard::admission::Admission;
use crate::shard::shutdown::{Phase, Working};
use crate::stats::{Added, Snapshot};
use crate::ws::inbound::Inbound;
use crate::ws::messages::Assembly;

/// State of a shard without its sockets: usable while the driver has lent bytes.
pub(crate) struct State<S> {
    pub(crate) core: Core,
    pub(crate) service: S,
    pub(crate) inbound: Vec<Inbound>,
    /// Input that was not decoded yet; its connections are paused.
    pub(crate) held: ConnMap<HeldInput>,
    pub(crate) assembly: Assembly,
    pub(crate) request_bodies: RequestBodies,
    pub(crate) admission: Arc<Admission>,
    pub(crate) inbox: ShardInbox,
    pub(crate) snapshot: Arc<Snapshot>,
    /// Counts added to a snapshot that is common to many shards, of one connection each. Such a
    /// shard sleeps until something is due, for any length of time.
    pub(crate) added: Option<Box<Added>>,
    pub(crate) phase: Phase,
    pub(crate) started: Instant,
    pub(crate) swept_secs: u64,
    /// Keys of connections that count for their address.
    pub(crate) address_keys: KeyBySlot,
    /// Connections that have not sent a whole request, the oldest first.
    pub(crate) pending: Arrivals,
    /// Pending connections whose address has a cap.
    pub(crate) pending_of_address: ArrivalsByAddress,
    /// Connections beyond the caps, the oldest first, and their number.
    pub(crate) reserve: Arrivals,
    pub(crate) reserved: usize,
    pub(crate) seed: u64,
    /// `None`: connections begin with a request or a TLS handshake.
    pub(crate) proxy_protocol: Option<ProxyProtocol>,
}

/// Action for when the lent bytes are returned.
pub(crate) enum AfterEvent<T> {
    Nothing,
    Flush(ConnId),
    /// Flush it; part of its input was not decoded.
    Hold(ConnId),
    Place(T, Option<SocketAddr>),
    RestAccept,
    /// The peer's stream has ended. If its TLS session failed, that is reported first.
    Finish(ConnId),
    /// A connection is gone. `Some` if the service wants its byte counts.
    RetryAccept(Option<ConnId>),
}

impl<S: Service> State<S> {
    /// Keeps the outcome of a TLS handshake: of a client for its requests, of a connection that
    /// this side started for [`Service::on_connected`].
    #[cold]
    fn on_secured(&mut self, id: ConnId, info: Box<TlsInfo>) {
        let connections = &mut self.core.connections;
        let stage = connections.table.stage(id);
        if matches!(stage, Stage::Http | Stage::Connecting)
            && let Some(cold) = connections.table.cold_mut(id)
        {
            cold.tls = Some(Arc::from(info));
        }
    }

    #[inline(always)]
    pub(crate) fn on_event<T>(&mut self, event: Event<'_, T>) -> AfterEvent<T> {
        match event {
            Event::Received(id, bytes) => {
                return match self.on_received(id, bytes) {
                    false => AfterEvent::Flush(id),
                    true => AfterEvent::Hold(id),
                };
            }
            Event::Sent(id, batch) => self.on_sent(id, batch),
            Event::Incoming(socket, peer, _listener) => return AfterEvent::Place(socket, peer),
            Event::Connected(id) => self.on_connected(id),
            // Its first bytes follow; until then it has the deadline of a silent client.
            // Destructured here: otherwise the event is kept alive for its drop, a cost on every
            // event.
            Event::Secured(id, info) => self.on_secured(id, info),
            // No listener of a server passes connections through.
            Event::PassedThrough(_, passed) => drop(passed),
            // It is for the mover of connections, which a shard does not have.
            Event::Parked(_) => {}
            Event::Finished(id) => return AfterEvent::Finish(id),
            Event::Closed(id, why) => {
                let is_counted = self.core.connections.table.has(id, flag::COUNTED);
                self.on_closed(id, why);
                return AfterEvent::RetryAccept(is_counted.then_some(id));
            }
            Event::AcceptStopped(_) => {
                self.core.connections.stats.accept_stopped += 1;
                return AfterEvent::RestAccept;
            }
        }
        AfterEvent::Nothing
    }

    pub(crate) fn enter(&mut self, id: ConnId, stage: Stage, inbound: Inbound) {
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
    pub(crate) fn on_panic(&mut self, id: ConnId, payload: Box<dyn Any + Send>) {
        // The panic hook already reported it. Leak the payload: its `Drop` could panic.
        std::mem::forget(payload);
        self.core.connections.outbox.compression().end_relay();
        self.core.connections.stats.handler_panics += 1;
        let fault = Fault::Panic { route: self.core.watch.entered() };
        match self.core.connections.table.stage(id) {
            // Report now: the address is still known. The answer is reported as well.
            Stage::Http | Stage::Serving => self.report(id, fault, None),
            _ => self.core.connections.note_fault(id, fault),
        }
        match self.core.connections.table.stage(id) {
            Stage::Open => self.core.connections.fail(id, 1011, "internal error"),
            // Its answer was not queued; if it was, the service ignores this call.
            Stage::Http | Stage::Serving => {
                let answered = catch_unwind(AssertUnwindSafe(|| {
                    let mut cx = Cx::new(&mut self.core, id);
                    self.service.on_bad_request(&mut cx, 500, "internal error");
                }));
                let after = if answered.is_ok() { AfterFlush::Linger } else { AfterFlush::Abort };
                self.core.connections.finish(id, after);
            }
            // The closing handshake goes on, within its timeout.
            Stage::Closing => {}
            _ => self.core.connections.finish(id, AfterFlush::Abort),
        }
    }

    /// Ends a request that is not answered by a rule or limit of the server: the service answers it
    /// with this status, and reports it.
    #[cold]
    pub(crate) fn end_unanswered(&mut self, id: ConnId, status: u16, reason: EndReason) {
        self.core.samples.measured.count_fault(Fault::Ended(reason));
        self.guarded(id, |state| {
            let mut cx = Cx::new(&mut state.core, id);
            state.service.on_request_ended(&mut cx, status, reason);
        });
    }

    /// Counts a fault and reports it to the service, whose own panic changes nothing more. `peer`
    /// is the address that the socket knows; the kept address of the client takes precedence.
    #[cold]
    pub(crate) fn report(&mut self, id: ConnId, fault: Fault, peer: Option<SocketAddr>) {
        self.core.samples.measured.count_fault(fault);
        let is_kept = self.core.connections.table.cold(id).is_some_and(|it| it.peer.is_some());
        let lent = peer.filter(|_| !is_kept);
        self.set_peer(id, lent);
        self.counted(|state| state.service.on_fault(&mut Cx::new(&mut state.core, id), fault));
        if lent.is_some() {
            self.core.connections.table.cold_mut(id).map(|cold| cold.peer.take());
            self.core.connections.table.shed_cold(id);
        }
    }

    fn set_peer(&mut self, id: ConnId, peer: Option<SocketAddr>) {
        if peer.is_some()
            && let Some(cold) = self.core.connections.table.cold_mut(id)
        {
            cold.peer = peer;
        }
    }

    /// Reports the faults of a connection that has ended: its socket is gone.
    #[cold]
    fn report_late(&mut self, id: ConnId) {
        let late = self.core.connections.faults.extract_if(.., |(of, _)| *of == id);
        for (_, fault) in late.collect::<Vec<_>>() {
            self.report(id, fault, None);
        }
    }

    /// Passes on the bytes that a connection has carried; a panic changes nothing more.
    #[cold]
    pub(crate) fn report_traffic(&mut self, id: ConnId, traffic: Option<Traffic>) {
        self.counted(|state| state.service.on_traffic(id, traffic));
    }

    /// Returns to the service the event of a connection that could not move.
    #[cold]
    pub(crate) fn report_failed_move(&mut self, event: UserEvent) {
        self.counted(|state| state.service.on_move_failed(&mut state.core, event));
    }

    /// Runs a callback that belongs to no remaining connection: its panic is only counted.
    fn counted(&mut self, run: impl FnOnce(&mut Self)) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| run(self))) {
            // The panic hook already reported it. Leak the payload: its `Drop` could panic.
            std::mem::forget(payload);
            self.core.connections.stats.handler_panics += 1;
        }
    }

    pub(crate) fn on_sent(&mut self, id: ConnId, batch: Box<Batch>) {
        let connections = &mut self.core.connections;
        connections.outbox.give(batch);
        let Some(conn) = connections.table.conn_mut(id) else { return };
        if !conn.has(flag::IN_FLIGHT) {
            return;
        }
        let is_idle = conn.is(Stage::Http) && !conn.has(flag::REQUEST | flag::PENDING);
        connections.stats.backlogged -= 1;
        if is_idle {
            // Its answer has left only now.
            connections.timers.due_in(id, connections.limits.keep_alive);
        }
        connections.outbox.record_left(conn);
        if connections.outbox.kept_backlog(conn) <= connections.outbox.low_water() {
            connections.outbox.mark_drained(conn);
        }
        connections.outbox.mark_dirty(conn);
    }

    pub(crate) fn on_connected(&mut self, id: ConnId) {
        let connections = &mut self.core.connections;
        let Some(conn) = connections.table.conn_mut(id) else { return };
        conn.advance(Stage::Upgrading);
        connections.timers.due_in(id, connections.limits.handshake);
        self.inbound[id.slot()] = Inbound::response();
        self.guarded(id, |state| state.service.on_connected(&mut Cx::new(&mut state.core, id)));
        let table = &mut self.core.connections.table;
        if table.cold(id).is_some_and(|cold| cold.tls.is_some())
            && let Some(cold) = table.cold_mut(id)
        {
            cold.tls = None;
            table.shed_cold(id);
        }
    }

    /// Handles the end of the peer's stream.
    pub(crate) fn on_finished(&mut self, id: ConnId) {
        let Some(conn) = self.core.connections.table.conn_mut(id) else { return };
        conn.set(flag::FINISHED, true);
        let (stage, is_upgrading) = (conn.stage(), conn.has(flag::UPGRADE_LATER));
        if stage == Stage::Open {
            self.end_session(id, Close::new(CloseCode::ABNORMAL, ""), false);
        }
        match stage {
            // A session needs both directions.
            Stage::Serving if is_upgrading => {
                self.core.connections.finish(id, AfterFlush::Close);
            }
            // Its requests are still answered, unless the service ends that; see `record_request`.
            Stage::Serving => self.on_half_closed(id),
            Stage::Http if self.held.contains_key(&id) => {}
            // Answers that are queued still go out to a client that has half-closed.
            Stage::Http | Stage::Upgrading => {
                self.core.connections.finish(id, AfterFlush::Close);
            }
            // A browser that stops listening ends its whole connection.
            Stage::Events => {
                self.core.connections.drop_queue(id);
                self.core.connections.finish(id, AfterFlush::Close);
            }
            // Output queued for a session is lost once its peer is gone without a closing
            // handshake.
            Stage::Open | Stage::Closing => {
                self.core.connections.drop_queue(id);
                self.core.connections.finish(id, AfterFlush::Close);
            }
            Stage::Lingering => {
                self.core.connections.timers.due_in(id, 1);
                self.core.connections.mark_dirty(id);
            }
            _ => {}
        }
    }

    /// Reports to the service that the client of a request that is being answered has ended its
    /// side.
    pub(crate) fn on_half_closed(&mut self, id: ConnId) {
        self.guarded(id, |state| {
            state.service.on_half_closed(&mut Cx::new(&mut state.core, id));
        });
    }

    pub(crate) fn on_closed(&mut self, id: ConnId, why: Closed) {
        self.held.remove(&id);
        self.request_bodies.end(id);
        self.core.samples.forget(id);
        let Some(conn) = self.core.connections.table.conn(id) else { return };
        let client = conn.has(flag::CLIENT);
        let is_session = conn.has(flag::SESSION);
        if !self.core.connections.faults.is_empty() {
            self.report_late(id);
        }
        if is_session && let Some(why) = why.session_failure() {
            self.report(id, Fault::Tls(why), None);
        }
        let code = match self.core.connections.table.cold(id).map_or(0, |cold| cold.closed_with) {
            0 => CloseCode::ABNORMAL,
            code => code.into(),
        };
        self.end_session(id, Close::new(code, ""), false);
        // By its decoder: the stage has already advanced.
        if client && !matches!(self.inbound[id.slot()], Inbound::Ws(_)) {
            self.guarded(id, |state| {
                state.service.on_failed(&mut Cx::new(&mut state.core, id), why);
            });
        }
        let inbound = std::mem::replace(&mut self.inbound[id.slot()], Inbound::Nothing);
        if matches!(inbound, Inbound::Http(_)) {
            self.guarded(id, |state| state.service.on_gone(&mut Cx::new(&mut state.core, id)));
        }
        self.core.unsubscribe_all(id);
        self.core.connections.stats.streams -= u64::from(matches!(inbound, Inbound::Events));
        self.uncount(id, Admitted::Evicted);
        self.core.connections.leave(id);
    }

    /// Calls `on_close`, exactly once for each `on_open`, after any end of the session. `clean`: by
    /// a closing handshake.
    pub(crate) fn end_session(&mut self, id: ConnId, close: Close<'_>, clean: bool) {
        let Some(conn) = self.core.connections.table.conn_mut(id) else { return };
        if !conn.has(flag::SESSION) {
            return;
        }
        conn.set(flag::SESSION, false);
        if conn.is(Stage::Open) {
            // It ended without a Close frame: nothing more can be sent, and no `on_drain` may
            // follow.
            conn.advance(Stage::Closing);
        }
        let stats = &mut self.core.connections.stats;
        stats.sessions -= 1;
        match clean {
            true => stats.closed_clean += 1,
            false => stats.closed_abnormally += 1,
        }
        self.core.samples.measured.count_close(close.code);
        self.core.unsubscribe_all(id);
        self.guarded(id, |state| state.service.on_close(&mut Cx::new(&mut state.core, id), close));
    }

    /// Continues the drain, if there is one. Returns true when all connections were notified, and
    /// listening must end.
    pub(crate) fn continue_drain(&mut self) -> bool {
        let Phase::Draining(drain) = &mut self.phase else { return false };
        let now = self.core.now();
        let (code, rest) = (drain.code, drain.rest(now));
        let batch = drain.next_batch(now);
        let (working, is_late) = drain.take_working(now);
        if batch.is_empty() && drain.is_overdue(now) {
            self.force();
        } else {
            for Working { id, is_notified } in working {
                match is_notified {
                    true => self.close_unless_working(id, code, is_late),
                    false => self.drain_connection(id, code, is_late),
                }
            }
            for id in batch {
                if id.shard() != self.core.shard {
                    // The connection is on a thread of its own, which enforces its deadline as
                    // well.
                    self.core.remote.drain_one(id, rest);
                    continue;
                }
                self.drain_connection(id, code, false);
            }
        }
        let accepted = self.core.connections.stats.accepted;
        match &mut self.phase {
            Phase::Draining(drain) => drain.ends_listening(accepted),
            _ => false,
        }
    }

    fn drain_connection(&mut self, id: ConnId, code: CloseCode, is_late: bool) {
        match self.core.connections.table.stage(id) {
            Stage::Open => {
                self.guarded(id, |state| {
                    state.service.on_shutdown(&mut Cx::new(&mut state.core, id));
                });
                self.close_unless_working(id, code, is_late);
            }
            Stage::Events => self.core.connections.close(id, code.get(), code.meaning()),
            Stage::Http if !is_late && self.awaits_request(id) => self.await_request(id),
            // Half a request: its client gets an answer with the reason.
            Stage::Http if self.request_bodies.is_dropped(id) => {
                self.core.connections.finish(id, AfterFlush::Linger);
            }
            Stage::Http if self.core.connections.is_in_request(id) => {
                self.guarded(id, |state| {
                    let mut cx = Cx::new(&mut state.core, id);
                    state.service.on_refused(&mut cx, Refusal::Draining);
                });
                self.core.connections.finish(id, AfterFlush::Linger);
            }
            Stage::Http => self.core.connections.finish(id, AfterFlush::Close),
            // Its answer is its last, unless that is a session.
            Stage::Serving if !is_late && self.is_handing_over() => self.await_request(id),
            // The service finishes it when it has the answer.
            Stage::Serving => {}
            Stage::Connecting | Stage::Upgrading => {
                self.core.connections.finish(id, AfterFlush::Abort);
            }
            _ => {}
        }
    }

    /// Closes a session that is still open, or keeps it until its work is done.
    fn close_unless_working(&mut self, id: ConnId, code: CloseCode, is_late: bool) {
        if self.core.connections.table.stage(id) != Stage::Open {
            return;
        }
        if !is_late && self.service.has_work(&mut Cx::new(&mut self.core, id)) {
            return self.keep(Working { id, is_notified: true });
        }
        self.core.connections.close(id, code.get(), code.meaning());
    }

    /// Keeps a connection until its request, or its session, has ended, or it is late. Does nothing
    /// without a drain.
    pub(crate) fn await_request(&mut self, id: ConnId) {
        self.keep(Working { id, is_notified: false });
    }

    fn keep(&mut self, connection: Working) {
        if let Phase::Draining(drain) = &mut self.phase {
            drain.await_work(connection);
        }
    }

    fn is_handing_over(&self) -> bool {
        matches!(&self.phase, Phase::Draining(drain) if drain.hand_over)
    }

    /// Returns whether the drain waits for a connection's first request, or for a request that has
    /// begun: where another process takes over, clients must not notice.
    fn awaits_request(&self, id: ConnId) -> bool {
        let connections = &self.core.connections;
        self.is_handing_over()
            && (connections.table.conn(id).is_some_and(|conn| conn.has(flag::PENDING))
                || connections.is_in_request(id))
    }

    /// Resets all connections at the deadline of a drain. Lingering ones have had their answer.
    fn force(&mut self) {
        let late: Vec<ConnId> = self.core.connections.table.ids().collect();
        for id in late {
            let stage = self.core.connections.table.stage(id);
            if stage < Stage::Lingering {
                self.phase.count_forced();
            }
            match stage {
                Stage::Lingering => self.core.connections.end_lingering(id),
                Stage::Ending | Stage::Free => {}
                _ => self.core.connections.finish(id, AfterFlush::Abort),
            }
        }
    }

    pub(crate) fn export_stats(&mut self) {
        let core = &mut self.core;
        core.connections.stats.channels = core.channels.len() as u64;
        core.connections.stats.subscriptions = core.channels.memberships() as u64;
        let (stats, counters) = (&core.connections.stats, core.connections.outbox.counters());
        match &mut self.added {
            None => self.snapshot.export(stats, counters),
            Some(added) => self.snapshot.add(stats, counters, added),
        }
    }

    pub(crate) fn has_stats_to_export(&self) -> bool {
        let connections = &self.core.connections;
        let (stats, counters) = (&connections.stats, connections.outbox.counters());
        match &self.added {
            None => self.snapshot.is_congested(stats, counters),
            Some(added) => added.is_congested(stats, counters),
        }
    }
}

/// Drops a value of a user, whose own drop may panic: that panic does not belong to a callback, and
/// ends no connection. Returns true if it panicked.
pub(crate) fn drop_guarded<T>(what: T) -> bool {
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(what)));
    // The panic hook already reported it. Leak the payload: its `Drop` could panic.
    dropped.map_err(std::mem::forget).is_err()
}
