//! Ends: of a peer's stream, of connections and sessions, and of all of them by a drain.

use std::time::Duration;

use throng_io::{Closed, ConnId, Driver, Instant, SessionFailure};
use throng_proto::ws::{Close, CloseCode};

use crate::conn::record::Admitted;
use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::context::Cx;
use crate::drain::DrainPlan;
use crate::message::{Fault, Refusal};
use crate::remote::registry::ThreadRegistry;
use crate::service::Service;
use crate::shard::life::drain::Working;
use crate::shard::{EngineParts, Shard};
use crate::ws::inbound::Inbound;

/// Time after the deadline of a drain for which a handler that does not return is waited for: its
/// connection's own deadline was the same moment.
const LAST_WAIT: Duration = Duration::from_millis(500);

impl<S: Service> EngineParts<S> {
    /// Handles the end of the peer's stream.
    pub(crate) fn on_finished(&mut self, id: ConnId) {
        let Some((stage, is_upgrading)) = self.core.conns.record_finished(id) else { return };
        match stage {
            // Its requests are still answered, unless the service stops that; see `record_request`.
            Stage::Serving if !is_upgrading => return self.on_half_closed(id),
            Stage::Http if self.intake.is_holding(id) => return,
            Stage::Open => self.end_session(id, Close::new(CloseCode::ABNORMAL, ""), false),
            _ => {}
        }
        self.core.conns.end_after_peer(id, stage);
    }

    /// Reports to the service that the client of a request that is being answered has ended its
    /// side.
    pub(crate) fn on_half_closed(&mut self, id: ConnId) {
        self.guarded(id, |parts| {
            parts.service.on_half_closed(&mut Cx::new(&mut parts.core, id));
        });
    }

    pub(crate) fn on_closed(&mut self, id: ConnId, why: Closed) {
        self.intake.end(id);
        self.core.clocks.samples().forget(id);
        let Some(conn) = self.core.conns.conn(id) else { return };
        let client = conn.has(flag::CLIENT);
        let is_session = conn.has(flag::SESSION);
        self.report_late(id);
        if is_session && let Some(why) = why.session_failure() {
            self.report(id, Fault::Tls(why), None);
        }
        let code = self.core.conns.code_sent(id).unwrap_or(CloseCode::ABNORMAL);
        self.end_session(id, Close::new(code, ""), false);
        let inbound = self.intake.take(id);
        // The decoder decides this: the stage has already advanced.
        if client && !matches!(inbound, Inbound::Ws(_)) {
            self.guarded(id, |parts| {
                parts.service.on_failed(&mut Cx::new(&mut parts.core, id), why);
            });
        }
        if matches!(inbound, Inbound::Http(_)) {
            self.guarded(id, |parts| parts.service.on_gone(&mut Cx::new(&mut parts.core, id)));
        }
        self.core.unsubscribe_all(id);
        let is_stream = matches!(inbound, Inbound::Events);
        self.core.conns.count(|stats| stats.streams -= u64::from(is_stream));
        self.entrance.leave(id, Admitted::Evicted, &mut self.core.conns);
        self.core.conns.leave(id);
    }

    /// Calls `on_close`, exactly once for each `on_open`, after any end of the session. `clean`: by
    /// a closing handshake.
    pub(crate) fn end_session(&mut self, id: ConnId, close: Close<'_>, clean: bool) {
        let Some(silence) = self.core.conns.end_session(id, clean) else { return };
        if let Some(seconds) = silence {
            self.core.clocks.measured().count_loss(seconds);
        }
        self.core.clocks.measured().count_close(close.code);
        self.core.unsubscribe_all(id);
        self.guarded(id, |parts| parts.service.on_close(&mut Cx::new(&mut parts.core, id), close));
    }

    /// Continues the drain, if any. Returns true when all connections were notified, and listening
    /// must end.
    pub(crate) fn continue_drain(&mut self) -> bool {
        let Some(drain) = self.life.drain() else { return false };
        let now = self.core.now();
        let (code, rest) = (drain.code(), drain.rest(now));
        let batch = drain.next_batch(now);
        let (working, is_late) = drain.take_working(now);
        if batch.is_empty() && drain.is_overdue(now) {
            self.life.count_forced(self.core.conns.reset_all());
        } else {
            for connection in working {
                match connection {
                    Working::Session(id) => self.close_unless_working(id, code, is_late),
                    Working::Request(id) => self.drain_connection(id, code, is_late),
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
        let accepted = self.core.conns.stats().accepted;
        self.life.drain().is_some_and(|drain| drain.ends_listening(accepted))
    }

    fn drain_connection(&mut self, id: ConnId, code: CloseCode, is_late: bool) {
        let after = match self.core.conns.stage(id) {
            Stage::Open => {
                self.guarded(id, |parts| {
                    parts.service.on_shutdown(&mut Cx::new(&mut parts.core, id));
                });
                return self.close_unless_working(id, code, is_late);
            }
            Stage::Events => return self.core.conns.close(id, code.get(), code.meaning()),
            Stage::Http if !is_late && self.awaits_request(id) => return self.await_request(id),
            Stage::Http if self.intake.is_body_dropped(id) => AfterFlush::Linger,
            // Half a request: its client gets an answer with the reason.
            Stage::Http if self.core.conns.is_in_request(id) => {
                return self.refuse_request(id, Refusal::Draining);
            }
            Stage::Http => AfterFlush::Close,
            // Its answer is its last, unless that is a session.
            Stage::Serving if !is_late && self.life.is_handing_over() => {
                return self.await_request(id);
            }
            Stage::Connecting | Stage::Upgrading => AfterFlush::Abort,
            // The service finishes a request when it has the answer.
            _ => return,
        };
        self.core.conns.finish(id, after);
    }

    /// Closes a session that is still open, or keeps it until its work is done.
    fn close_unless_working(&mut self, id: ConnId, code: CloseCode, is_late: bool) {
        if self.core.conns.stage(id) != Stage::Open {
            return;
        }
        if !is_late && self.service.has_work(&mut Cx::new(&mut self.core, id)) {
            return self.life.await_work(Working::Session(id));
        }
        self.core.conns.close(id, code.get(), code.meaning());
    }

    /// Keeps a connection until its request, or its session, has ended, or it is late. Does nothing
    /// without a drain.
    pub(crate) fn await_request(&mut self, id: ConnId) {
        self.life.await_work(Working::Request(id));
    }

    /// Returns whether the drain waits for a connection's first request, or for a request that has
    /// begun: if another process takes over, clients must not notice.
    fn awaits_request(&self, id: ConnId) -> bool {
        let connections = &self.core.conns;
        self.life.is_handing_over()
            && (connections.conn(id).is_some_and(|conn| conn.has(flag::PENDING))
                || connections.is_in_request(id))
    }
}

impl<D: Driver, S: Service> Shard<D, S> {
    /// Returns why the TLS session failed on a connection whose stream has ended. A missing
    /// close_notify is a failure only when the peer is a server: many clients omit it.
    pub(crate) fn session_failure(&self, id: ConnId) -> Option<SessionFailure> {
        let is_cut = || {
            let connections = &self.parts.core.conns;
            let is_open_client =
                connections.has(id, flag::CLIENT) && connections.has(id, flag::SESSION);
            is_open_client && self.driver.was_truncated(id)
        };
        let failure = self.driver.session_failure(id);
        failure.or_else(|| is_cut().then_some(SessionFailure::Truncated))
    }

    /// Closes connections for which the driver reports no further event.
    pub(crate) fn abandon(&mut self) {
        let ids: Vec<ConnId> = self.parts.core.conns.ids().collect();
        ids.into_iter().for_each(|id| self.parts.on_closed(id, Closed::Reset));
    }

    /// Exports the last counters of a shard that ends. Returns how many of its connections missed
    /// the deadline of a drain.
    pub(crate) fn forced(&mut self) -> usize {
        self.parts.export_stats();
        self.parts.life.forced()
    }

    /// Begins a drain, or the delay before it.
    pub(super) fn announce_drain(&mut self, plan: DrainPlan) {
        if !plan.is_delayed() {
            return self.begin_drain(plan);
        }
        let parts = &mut self.parts;
        parts.entrance.admission().announce_drain(&plan);
        parts.life.announce(plan, parts.core.now());
    }

    pub(super) fn begin_drain(&mut self, plan: DrainPlan) {
        let parts = &mut self.parts;
        parts.entrance.admission().begin_drain(plan.hand_over);
        let mut ids: Vec<ConnId> = parts.core.conns.ids().collect();
        if self.moves.starts_threads() {
            // Connections on their own threads are spread over the same window.
            let taken = parts.core.remote.registry().map(ThreadRegistry::taken);
            ids.extend(taken.unwrap_or_default());
        }
        parts.life.begin(plan, ids, parts.core.now());
    }

    /// Continues the drain, if there is one.
    pub(crate) fn continue_drain(&mut self) {
        let now = self.parts.core.now();
        if let Some(plan) = self.parts.life.due_plan(now) {
            self.begin_drain(plan);
        }
        if self.parts.continue_drain() {
            self.driver.stop_listening();
            self.add_late_threads();
        }
        let EngineParts { life, core, .. } = &mut self.parts;
        if life.drain().is_some_and(|drain| drain.is_overdue(now)) {
            // A close with TLS may wait for its peer.
            let connections = &core.conns;
            for id in connections.ids().filter(|id| connections.stage(*id) == Stage::Ending) {
                self.driver.close_now(id);
            }
        }
    }

    /// Adds the threads that have started since the drain began to its list.
    fn add_late_threads(&mut self) {
        if self.moves.starts_threads() {
            let started = self.parts.core.remote.registry().map(ThreadRegistry::taken);
            self.parts.life.add(started.unwrap_or_default());
        }
    }

    /// Returns how many connections missed the deadline of a drain, if the shard has stopped.
    #[inline]
    pub(crate) fn stopped(&mut self) -> Option<usize> {
        if self.parts.life.is_running() {
            return None;
        }
        if let Some(deadline) = self.parts.life.last_deadline()
            && self.parts.core.conns.stats().connections == 0
            && self.awaited(deadline) == 0
            // This must come last: sockets that another shard would send from here on stay there.
            && self.moves.close_if_empty()
        {
            let elsewhere = self.forced_elsewhere();
            self.parts.life.stop(elsewhere);
            self.parts.export_stats();
        }
        self.parts.life.is_over().then(|| self.parts.life.forced())
    }

    /// Returns the connections on other threads that a drain still waits for; none once their
    /// deadline is well past, when only handlers that do not return can be left.
    pub(crate) fn awaited(&self, deadline: Instant) -> usize {
        if !self.moves.starts_threads() || self.parts.core.now() > deadline.after(LAST_WAIT) {
            return 0;
        }
        self.parts.core.remote.registry().map_or(0, ThreadRegistry::count)
    }

    /// Returns the connections of other threads that missed the deadline of a drain, or are in a
    /// handler that does not return.
    pub(crate) fn forced_elsewhere(&self) -> usize {
        match self.parts.core.remote.registry() {
            Some(registry) if self.moves.starts_threads() => registry.forced() + registry.count(),
            _ => 0,
        }
    }
}
