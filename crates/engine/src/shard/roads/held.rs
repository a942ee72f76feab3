//! Connections that continue: their input was held back, or `on_drain` is due.

use std::time::Duration;

use throng_io::{ConnId, Driver, Instant};

use crate::conn::record::Conn;
use crate::conn::stage::{Stage, flag};
use crate::connections::records::Listed;
use crate::context::Cx;
use crate::service::Service;
use crate::shard::Shard;
use crate::ws::inbound::Inbound;

/// Time in which a turn continues connections whose input was held; it continues at least one.
const MAX_RESUMING: Duration = Duration::from_micros(500);

impl<D: Driver, S: Service> Shard<D, S> {
    pub(crate) fn resume_held(&mut self) {
        if self.parts.core.conns.has_continuing() {
            self.continue_held();
        }
    }

    /// Continues connections that waited for memory or for their turn, for a bounded time. The
    /// others come first in the next turn.
    #[inline(never)]
    fn continue_held(&mut self) {
        self.parts.core.conns.compression().begin_phase();
        let until = self.parts.core.clocks.read().after(MAX_RESUMING);
        self.continue_listed(Listed::Drained, until, Self::continue_drained);
        self.continue_listed(Listed::Resumed, until, Self::resume);
    }

    fn continue_listed(&mut self, list: Listed, until: Instant, go_on: fn(&mut Self, ConnId)) {
        let mut listed = self.parts.core.conns.take_listed(list).into_iter();
        for id in listed.by_ref() {
            go_on(self, id);
            self.parts.core.clocks.checkpoint();
            if self.parts.core.clocks.read() >= until {
                break;
            }
        }
        self.parts.core.conns.put_back(list, listed.collect());
    }

    /// Calls `on_drain` if the backlog is low enough, and resumes reading.
    fn continue_drained(&mut self, id: ConnId) {
        let parts = &mut self.parts;
        let Some((notifies, paused)) = parts.core.conns.begin_drained(id) else { return };
        if notifies {
            parts.guarded(id, |parts| parts.service.on_drain(&mut Cx::new(&mut parts.core, id)));
        }
        let connections = &self.parts.core.conns;
        let is_stopped = connections.conn(id).is_some_and(Conn::is_stopped);
        if paused && !is_stopped && !connections.awaits_capacity(id) {
            self.resume_reading(id);
        }
    }

    /// Resumes a connection whose answer was completed later, or whose service takes more of its
    /// body.
    fn resume(&mut self, id: ConnId) {
        let connections = &mut self.parts.core.conns;
        connections.unlist(Listed::Resumed, id);
        let conn = connections.conn(id);
        if conn.is_some_and(|conn| conn.is(Stage::Open) && conn.is_stopped()) {
            // A message after its upgrade has paused this connection; its service resumes it.
            return;
        }
        // Also called without bytes: the end of the request may still have to be reported.
        let bytes = self.parts.intake.take_held(id).unwrap_or_default();
        self.parts.on_held(id, bytes);
        self.flush(id);
        self.flush_early();
        let connections = &mut self.parts.core.conns;
        if connections.has(id, flag::PAUSED) {
            connections.mark_drained(id);
        }
    }

    /// Stops reading a connection until the rest of its input has been decoded.
    pub(crate) fn hold(&mut self, id: ConnId) {
        if let Inbound::DueTls(rest_at) = *self.parts.intake.inbound(id) {
            return self.begin_tls(id, rest_at);
        }
        let connections = &mut self.parts.core.conns;
        if let Some(conn) = connections.conn_mut(id) {
            conn.set(flag::PAUSED, true);
            connections.mark_drained(id);
            self.driver.pause(id);
        }
    }

    /// Resumes with input that was held back, or else with reading.
    fn resume_reading(&mut self, id: ConnId) {
        let Some(bytes) = self.parts.intake.take_held(id) else {
            if let Some(conn) = self.parts.core.conns.conn_mut(id) {
                conn.set(flag::PAUSED, false);
                self.driver.resume(id);
            }
            return;
        };
        self.parts.on_held(id, bytes);
        self.flush(id);
        self.flush_early();
        // Either way the connection is resumed again: for the rest, or to be read.
        self.parts.core.conns.mark_drained(id);
    }
}
