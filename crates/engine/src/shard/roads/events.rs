//! Events of the driver, and the callbacks of the service that they cause. While bytes are lent,
//! nothing here can touch a socket.

use std::any::Any;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use throng_io::{ConnId, Event, TlsInfo, Traffic};

use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::context::Cx;
use crate::message::{EndReason, Fault, UserEvent};
use crate::service::Service;
use crate::shard::{AfterEvent, EngineParts};
use crate::ws::inbound::Inbound;

impl<S: Service> EngineParts<S> {
    #[inline(always)]
    pub(crate) fn on_event<T>(&mut self, event: Event<'_, T>) -> AfterEvent<T> {
        match event {
            Event::Received(id, bytes) => {
                return match self.on_received(id, bytes) {
                    false => AfterEvent::Flush(id),
                    true => AfterEvent::Hold(id),
                };
            }
            Event::Sent(id, batch) => self.core.conns.record_sent(id, batch),
            Event::Incoming(socket, peer, _listener) => return AfterEvent::Place(socket, peer),
            Event::Connected(id) => self.on_connected(id),
            // The first bytes follow; until then the connection has the deadline of a silent
            // client. The event is destructured here: otherwise it would be kept alive for its
            // drop, a cost on every event.
            Event::Secured(id, info) => self.on_secured(id, info),
            // No listener of a server passes connections through.
            Event::PassedThrough(_, passed) => drop(passed),
            // This event is for the mover of connections, which a shard does not have.
            Event::Parked(_) => {}
            Event::Finished(id) => return AfterEvent::Finish(id),
            Event::Closed(id, why) => {
                let is_counted = self.core.conns.has(id, flag::COUNTED);
                self.on_closed(id, why);
                return AfterEvent::RetryAccept(is_counted.then_some(id));
            }
            Event::AcceptStopped(_) => {
                self.core.conns.count(|stats| stats.accept_stopped += 1);
                return AfterEvent::RestAccept;
            }
        }
        AfterEvent::Nothing
    }

    /// Keeps the outcome of a TLS handshake: of a client for its requests, of a connection that
    /// this side started for [`Service::on_connected`].
    #[cold]
    fn on_secured(&mut self, id: ConnId, info: Box<TlsInfo>) {
        let connections = &mut self.core.conns;
        let stage = connections.stage(id);
        if matches!(stage, Stage::Http | Stage::Connecting)
            && let Some(cold) = connections.cold_mut(id)
        {
            cold.tls = Some(Arc::from(info));
        }
    }

    pub(crate) fn enter(&mut self, id: ConnId, stage: Stage, inbound: Inbound) {
        self.core.conns.enter(id, stage);
        self.intake.enter(id, inbound);
    }

    pub(crate) fn on_connected(&mut self, id: ConnId) {
        let connections = &mut self.core.conns;
        let Some(conn) = connections.conn_mut(id) else { return };
        conn.advance(Stage::Upgrading);
        connections.await_handshake(id);
        self.intake.set(id, Inbound::response());
        self.guarded(id, |parts| parts.service.on_connected(&mut Cx::new(&mut parts.core, id)));
        self.core.conns.forget_peer(id);
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
        self.core.conns.count_panic();
        let fault = Fault::Panic { route: self.core.clocks.entered() };
        if !matches!(self.core.conns.stage(id), Stage::Http | Stage::Serving) {
            return self.core.conns.end_by_panic(id, fault);
        }
        // Report now, while the address is still known. The answer is also reported.
        self.report(id, fault, None);
        // The answer was not queued; if it was, the service ignores this call.
        let answered = catch_unwind(AssertUnwindSafe(|| {
            let mut cx = Cx::new(&mut self.core, id);
            self.service.on_bad_request(&mut cx, 500, "internal error");
        }));
        let after = if answered.is_ok() { AfterFlush::Linger } else { AfterFlush::Abort };
        self.core.conns.finish(id, after);
    }

    /// Ends an unanswered request by a rule or limit of the server: the service answers it with
    /// this status, and reports it.
    #[cold]
    pub(crate) fn end_unanswered(&mut self, id: ConnId, status: u16, reason: EndReason) {
        self.core.clocks.measured().count_fault(Fault::Ended(reason));
        self.guarded(id, |parts| {
            let mut cx = Cx::new(&mut parts.core, id);
            parts.service.on_request_ended(&mut cx, status, reason);
        });
        self.core.conns.finish(id, AfterFlush::Linger);
    }

    /// Counts a fault and reports it to the service; a panic of the service in this call has no
    /// further effect. `peer` is the address that the socket knows; the kept address of the client
    /// takes precedence.
    #[cold]
    pub(crate) fn report(&mut self, id: ConnId, fault: Fault, peer: Option<SocketAddr>) {
        self.core.clocks.measured().count_fault(fault);
        let is_lent = self.core.conns.lend_peer(id, peer);
        self.counted(|parts| parts.service.on_fault(&mut Cx::new(&mut parts.core, id), fault));
        if is_lent {
            self.core.conns.take_peer(id);
        }
    }

    /// Reports the faults of a connection that has ended and whose socket is closed.
    #[cold]
    pub(super) fn report_late(&mut self, id: ConnId) {
        for (_, fault) in self.core.conns.take_faults_of(id) {
            self.report(id, fault, None);
        }
    }

    /// Passes on the bytes that a connection has carried; a panic changes nothing more.
    #[cold]
    pub(crate) fn report_traffic(&mut self, id: ConnId, traffic: Option<Traffic>) {
        self.counted(|parts| parts.service.on_traffic(id, traffic));
    }

    /// Returns to the service the event of a connection that could not move.
    #[cold]
    pub(crate) fn report_failed_move(&mut self, event: UserEvent) {
        self.counted(|parts| parts.service.on_move_failed(&mut parts.core, event));
    }

    /// Runs a callback that belongs to no open connection: a panic is only counted.
    fn counted(&mut self, run: impl FnOnce(&mut Self)) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| run(self))) {
            // The panic hook already reported it. Leak the payload: its `Drop` could panic.
            std::mem::forget(payload);
            self.core.conns.count(|stats| stats.handler_panics += 1);
        }
    }
}
