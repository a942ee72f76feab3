//! Timeouts of connections: the consequence of each deadline. `Shard::sweep` finds those that are
//! due once a second; `shutdown.rs` has the drain.

use throng_io::{ConnId, Driver};
use throng_proto::ws::Close;

use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::conn::timers::Tick;
use crate::message::{EndReason, Fault};
use crate::service::Service;
use crate::shard::Shard;
use crate::shard::proxy::LATE;
use crate::shard::state::State;
use crate::ws::inbound::Inbound;

impl<S: Service> State<S> {
    /// Handles a connection's deadline, whose meaning follows from its stage.
    pub(crate) fn on_due(&mut self, slot: u32) {
        let Some(id) = self.core.connections.table.in_slot(slot) else { return };
        let in_flight = self.core.connections.table.has(id, flag::IN_FLIGHT);
        let connections = &mut self.core.connections;
        match connections.table.stage(id) {
            Stage::Open => self.on_silence(id),
            Stage::Http => self.on_request_due(id),
            Stage::Serving => self.on_answer_due(id),
            // Nothing answers a comment; the write timeouts detect a peer that is gone.
            Stage::Events => {
                if !in_flight {
                    connections.comment(id);
                }
                let interval = connections.route_limits_of(id).heartbeat_interval;
                connections.timers.await_heartbeat(id, interval);
            }
            // The time for the peer's Close begins when our Close has left; the write timeout
            // watches that.
            Stage::Closing if in_flight => connections.timers.due_in(id, connections.limits.close),
            Stage::Connecting | Stage::Upgrading | Stage::Closing => {
                connections.stats.timeouts += 1;
                self.phase.count_forced();
                connections.finish(id, AfterFlush::Abort);
            }
            Stage::Lingering => connections.end_lingering(id),
            Stage::Ending | Stage::Free => {}
        }
    }

    /// Pings a session that was silent, or ends a session that did not answer.
    fn on_silence(&mut self, id: ConnId) {
        let connections = &mut self.core.connections;
        let timeout = connections.route_limits_of(id).heartbeat_timeout;
        // Its input is not read, so its silence means nothing; the write timeout watches it.
        if connections.table.has(id, flag::PAUSED) {
            return connections.timers.due_in(id, timeout);
        }
        if !connections.table.has(id, flag::PINGED) {
            connections.ping(id);
            if let Some(conn) = connections.table.conn_mut(id) {
                conn.set(flag::PINGED, true);
            }
            return connections.timers.due_in(id, timeout);
        }
        connections.stats.timeouts += 1;
        connections.note_fault(id, Fault::Ended(EndReason::Heartbeat));
        let close = Close::new(EndReason::Heartbeat.code(), EndReason::Heartbeat.text());
        self.end_session(id, close, false);
        self.core.connections.finish(id, AfterFlush::Abort);
    }

    /// Ends a connection whose request did not come in time, or that asks for nothing more.
    fn on_request_due(&mut self, id: ConnId) {
        let connections = &mut self.core.connections;
        let Some(conn) = connections.table.conn(id) else { return };
        let (paused, in_flight) = (conn.has(flag::PAUSED), conn.has(flag::IN_FLIGHT));
        let (pending, in_request) = (conn.has(flag::PENDING), conn.has(flag::REQUEST));
        if matches!(self.inbound[id.slot()], Inbound::ProxyHeader(_)) {
            connections.stats.timeouts += 1;
            self.refuse_proxy(id, LATE);
        } else if paused {
            // Its requests are held back until it has read its answers; the write timeout watches
            // that.
            connections.timers.due_in(id, connections.limits.handshake);
        } else if in_request && self.request_bodies.is_dropped(id) {
            // The request that it belongs to is answered.
            connections.stats.timeouts += 1;
            connections.finish(id, AfterFlush::Linger);
        } else if pending && !in_request {
            // A browser that connects early would take a response for that to its first request,
            // or show it: without a request it is not a response (RFC 9112 section 9.2).
            connections.stats.timeouts += 1;
            connections.note_fault(id, Fault::Ended(EndReason::Handshake));
            connections.finish(id, AfterFlush::Close);
        } else if in_request {
            connections.stats.timeouts += 1;
            self.request_bodies.end(id);
            self.end_unanswered(id, 408, EndReason::Request);
            self.core.connections.finish(id, AfterFlush::Linger);
        } else if in_flight {
            // It is idle when its answer has left, and not before.
            connections.timers.due_in(id, connections.limits.keep_alive);
        } else {
            // An idle kept-alive connection: closing it is not a fault.
            connections.note_unserved(id);
            connections.finish(id, AfterFlush::Close);
        }
    }

    /// Refuses an upgrade that takes longer than any handshake; the service is responsible for the
    /// delay of other answers.
    fn on_answer_due(&mut self, id: ConnId) {
        let connections = &mut self.core.connections;
        if !connections.table.has(id, flag::UPGRADE_LATER) {
            return;
        }
        connections.stats.timeouts += 1;
        self.end_unanswered(id, 503, EndReason::Upgrade);
        self.core.connections.finish(id, AfterFlush::Linger);
    }

    /// Closes sessions that have reached the longest lifetime.
    pub(crate) fn expire_lifetimes(&mut self) {
        let connections = &mut self.core.connections;
        for slot in connections.timers.expire_lifetimes() {
            if let Some(id) = connections.table.in_slot(slot) {
                let reason = EndReason::Lifetime;
                connections.note_fault(id, Fault::Ended(reason));
                connections.close(id, reason.code().get(), reason.text());
            }
        }
    }

    /// Closes sessions whose message has been incomplete for too long.
    pub(crate) fn expire_assembling(&mut self, now: Tick) {
        let mut listed = self.core.connections.reading.incomplete().take();
        listed.retain(|&id| {
            let is_incomplete = self.is_incomplete(id, now);
            if !is_incomplete {
                self.core.connections.table.unlist(id, flag::INCOMPLETE_LISTED);
            }
            is_incomplete
        });
        self.core.connections.reading.incomplete().put_back(listed);
    }

    /// Returns whether the connection's message or request is still incomplete, and may be.
    fn is_incomplete(&mut self, id: ConnId, now: Tick) -> bool {
        let connections = &mut self.core.connections;
        let timeout = connections.limits.reassembly;
        match connections.table.stage(id) {
            // Its deadline is the connection's.
            Stage::Http => return connections.is_in_request(id),
            Stage::Open => {}
            // Its last message came together with its Close, or the rest is not needed.
            _ => return false,
        }
        let Some(since) = connections.table.cold(id).and_then(|cold| cold.assembling) else {
            return false;
        };
        // While we do not read the connection, we cause the delay.
        let paused = connections.table.conn(id).is_some_and(|conn| conn.has(flag::PAUSED));
        if paused || now.since(since) <= timeout {
            return true;
        }
        connections.stats.timeouts += 1;
        connections.fail_for(id, EndReason::Reassembly);
        self.end_session(id, Close::new(EndReason::Reassembly.code(), ""), false);
        false
    }
}

impl<D: Driver, S: Service> Shard<D, S> {
    /// Ends sessions that are not read and whose peer has gone, as if its end had been read.
    /// Reports this for requests that are being answered.
    pub(crate) fn end_deserted(&mut self) {
        let mut listed = self.state.core.connections.reading.watched().take();
        listed.retain(|&id| {
            let conn = self.state.core.connections.table.conn(id);
            let conn = conn.filter(|conn| !conn.has(flag::FINISHED));
            // A new request may have taken the place of the watched one.
            let is_serving =
                conn.is_some_and(|conn| conn.is(Stage::Serving) && !conn.has(flag::UPGRADE_LATER));
            let is_unread = is_serving || conn.is_some_and(|conn| conn.has(flag::STOPPED));
            // While a connection is read, the driver reports the end.
            let is_paused = conn.is_some_and(|conn| conn.has(flag::PAUSED));
            let has_gone = is_unread && is_paused && self.driver.has_peer_finished(id);
            match has_gone {
                // Requests before the end may still have to be read.
                true if is_serving => self.state.on_half_closed(id),
                true => self.state.on_finished(id),
                false => {}
            }
            let is_watched = is_unread && !has_gone;
            if !is_watched {
                self.state.core.connections.table.unlist(id, flag::WATCH_LISTED);
            }
            is_watched
        });
        self.state.core.connections.reading.watched().put_back(listed);
    }
}
