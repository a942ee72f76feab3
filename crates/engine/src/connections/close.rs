//! The ways in which connections end.

use throng_io::ConnId;
use throng_proto::ws::{self, CloseCode};

use crate::conn::linger::{LINGER_SILENCE, Linger};
use crate::conn::record::Admitted;
use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::connections::Connections;
use crate::message::{EndReason, Fault};

impl Connections {
    /// Begins the closing handshake: a Close frame behind queued output. Nothing is sent after it.
    /// A stream of events just ends.
    pub(crate) fn close(&mut self, id: ConnId, code: u16, reason: &str) {
        match self.table.stage(id) {
            Stage::Open if self.is_held_behind(id) => self.keep_close(id, code, reason),
            Stage::Open => self.close_session(id, code, reason),
            Stage::Events => self.close_events(id),
            _ => {}
        }
    }

    fn close_session(&mut self, id: ConnId, code: u16, reason: &str) {
        // Continue reading, past any input, up to the peer's Close.
        self.resume_reading(id);
        self.end_delay(id);
        self.queue_all_waiting(id);
        let Some(conn) = self.table.conn_mut(id) else { return };
        self.outbox.put_close(conn, code, reason);
        conn.advance(Stage::Closing);
        if let Some(cold) = self.table.cold_mut(id) {
            let is_sent = ws::is_sendable_close_code(code);
            cold.closed_with = if is_sent { code } else { CloseCode::NO_STATUS.get() };
        }
        self.timers.due_in(id, self.limits.close);
    }

    fn close_events(&mut self, id: ConnId) {
        self.queue_all_waiting(id);
        let Some(conn) = self.table.conn_mut(id) else { return };
        // As after a Close frame: later publications would keep a slow connection open without end.
        conn.advance(Stage::Closing);
        self.timers.due_in(id, self.limits.close);
        self.finish(id, AfterFlush::Close);
    }

    fn queue_all_waiting(&mut self, id: ConnId) {
        let now = self.millis();
        if let Some(conn) = self.table.conn_mut(id) {
            self.outbox.take_waiting(conn, usize::MAX, now, &mut self.stats);
        }
    }

    /// Ends a session or stream for this reason, and records the reason.
    #[cold]
    pub(crate) fn fail_for(&mut self, id: ConnId, reason: EndReason) {
        self.note_fault(id, Fault::Ended(reason));
        let usual = (reason.code().get(), reason.text());
        let (code, text) = self.closing(id, Fault::Ended(reason), usual);
        self.fail(id, code, text);
    }

    /// Records the end of a connection that was refused at a limit and sent no request to refuse.
    /// Other connections are ignored.
    #[cold]
    pub(crate) fn note_unserved(&mut self, id: ConnId) {
        let is_unserved =
            self.table.conn(id).is_some_and(|conn| conn.is(Stage::Http) && !conn.is_finishing());
        let Some(cold) = self.table.cold(id).filter(|_| is_unserved) else { return };
        if let Admitted::Reserve(why) = cold.admitted
            && let Some(reason) = EndReason::of_refusal(why)
        {
            self.note_fault(id, Fault::Ended(reason));
        }
    }

    /// Records a fault for [`Service::on_fault`](crate::Service::on_fault).
    #[cold]
    pub(crate) fn note_fault(&mut self, id: ConnId, fault: Fault) {
        self.faults.push((id, fault));
    }

    /// Ends a session that cannot continue: queued output is dropped, a Close frame takes its
    /// place, and the connection closes once that has left (RFC 6455 section 7.1.7).
    pub(crate) fn fail(&mut self, id: ConnId, code: u16, reason: &str) {
        if let Some(conn) = self.table.conn_mut(id)
            && matches!(conn.stage(), Stage::Open | Stage::Events)
        {
            self.outbox.drop_behind(conn);
            if !conn.has(flag::UPGRADING) {
                self.outbox.drop_queue(conn);
            }
            self.close(id, code, reason);
        }
        self.finish(id, AfterFlush::Linger);
    }

    /// Counts a panic in a callback of a connection.
    pub(crate) fn count_panic(&mut self) {
        self.outbox.compression().end_relay();
        self.stats.handler_panics += 1;
    }

    /// Ends a connection without a request after a panic in its callback.
    pub(crate) fn end_by_panic(&mut self, id: ConnId, fault: Fault) {
        self.note_fault(id, fault);
        match self.table.stage(id) {
            Stage::Open => self.fail(id, CloseCode::INTERNAL_ERROR.get(), "internal error"),
            // The closing handshake goes on, within its timeout.
            Stage::Closing => {}
            _ => self.finish(id, AfterFlush::Abort),
        }
    }

    /// Sets what happens after the queue is flushed. The more abrupt of two requests wins.
    pub(crate) fn finish(&mut self, id: ConnId, after: AfterFlush) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        if conn.stage() >= Stage::Lingering && after != AfterFlush::Abort {
            return;
        }
        if conn.after_flush() != AfterFlush::Abort {
            conn.set_after_flush(after);
        }
        if after == AfterFlush::Abort && matches!(conn.stage(), Stage::Open | Stage::Events) {
            // Later messages would be dropped, and their sender must see that.
            conn.advance(Stage::Closing);
        }
        self.outbox.mark_dirty(conn);
    }

    /// Records that the peer's stream has ended. Returns the stage, and whether an upgrade is
    /// awaited.
    pub(crate) fn record_finished(&mut self, id: ConnId) -> Option<(Stage, bool)> {
        let conn = self.table.conn_mut(id)?;
        conn.set(flag::FINISHED, true);
        Some((conn.stage(), conn.has(flag::UPGRADE_LATER)))
    }

    /// Ends a connection that was in this stage when its peer's stream ended.
    pub(crate) fn end_after_peer(&mut self, id: ConnId, stage: Stage) {
        match stage {
            // A session needs both directions. Answers that are queued still go out to a client
            // that has half-closed.
            Stage::Serving | Stage::Http | Stage::Upgrading => self.finish(id, AfterFlush::Close),
            // A browser that stops listening ends its whole connection. Output queued for a session
            // is lost once its peer is gone without a closing handshake.
            Stage::Events | Stage::Open | Stage::Closing => {
                self.drop_queue(id);
                self.finish(id, AfterFlush::Close);
            }
            Stage::Lingering => {
                self.timers.due_in(id, 1);
                self.mark_dirty(id);
            }
            Stage::Connecting | Stage::Ending | Stage::Free => {}
        }
    }

    /// Ends the session of a connection, `clean`: by a closing handshake. Returns the seconds for
    /// which the peer of a lost session was silent, if they are known; `None` if there is no
    /// session.
    pub(crate) fn end_session(&mut self, id: ConnId, clean: bool) -> Option<Option<u16>> {
        let silence = self.silence(id).filter(|_| !clean);
        let conn = self.table.conn_mut(id).filter(|conn| conn.has(flag::SESSION))?;
        conn.set(flag::SESSION, false);
        if conn.is(Stage::Open) {
            // The session ended without a Close frame: nothing more can be sent, and no `on_drain`
            // may follow.
            conn.advance(Stage::Closing);
        }
        self.stats.sessions -= 1;
        match clean {
            true => self.stats.closed_clean += 1,
            false => self.stats.closed_abnormally += 1,
        }
        Some(silence)
    }

    /// Answers the peer's Close frame with its own code, unless it answers the server's.
    /// Returns the code that was first.
    pub(crate) fn answer_close(&mut self, id: ConnId, code: u16) -> CloseCode {
        let is_without_code = CloseCode::from(code) == CloseCode::NO_STATUS;
        self.close_at_once(id, if is_without_code { 0 } else { code }, "");
        self.code_sent(id).unwrap_or(code.into())
    }

    /// Returns the code of the Close frame that was sent to a session.
    pub(crate) fn code_sent(&self, id: ConnId) -> Option<CloseCode> {
        let code = self.table.cold(id)?.closed_with;
        (code != 0).then(|| code.into())
    }

    /// Ends a session whose peer has violated the protocol. Answers from before the error leave
    /// first; Autobahn calls the rest NON-STRICT.
    pub(crate) fn refuse_input(&mut self, id: ConnId, error: ws::ProtocolError) {
        self.stats.protocol_errors += 1;
        self.close_at_once(id, error.close_code(), &error.to_string());
        self.finish(id, AfterFlush::Linger);
        self.note_fault(id, Fault::Protocol(error));
    }

    /// Resets all connections at the deadline of a drain. Returns how many missed it: lingering
    /// ones have had their answer.
    pub(crate) fn reset_all(&mut self) -> usize {
        let ids: Vec<ConnId> = self.table.ids().collect();
        let late = ids.iter().filter(|&&id| self.table.stage(id) < Stage::Lingering).count();
        for id in ids {
            match self.table.stage(id) {
                Stage::Lingering => self.end_lingering(id),
                Stage::Ending | Stage::Free => {}
                _ => self.finish(id, AfterFlush::Abort),
            }
        }
        late
    }

    /// Counts the bytes from a lingering connection, which are dropped.
    #[cold]
    pub(crate) fn linger_on(&mut self, id: ConnId, bytes: usize) {
        let now = self.timers.tick();
        let Some(cold) = self.table.cold_mut(id) else { return };
        if cold.dropped.get_or_insert(Linger::new(now)).drop_input(now, bytes) {
            self.timers.due_in(id, LINGER_SILENCE.as_secs() as u16);
        }
    }

    /// Closes a connection that has lingered long enough. Not with a reset: the kernel may hold
    /// output that a slow peer has not taken yet, and delivers that without us.
    pub(crate) fn end_lingering(&mut self, id: ConnId) {
        if let Some(conn) = self.table.conn_mut(id) {
            conn.set_after_flush(AfterFlush::Close);
            self.outbox.mark_dirty(conn);
        }
    }
}
