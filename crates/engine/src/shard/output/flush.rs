//! Flushing, the only place of output: queued bytes go to the driver, and actions that callbacks
//! requested are carried out.

use throng_io::{Batch, ConnId, Driver, SendOutcome};

use crate::conn::linger::LINGER_SILENCE;
use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::service::Service;
use crate::shard::Shard;

/// Chunks of the per-message queue sent in one flush, though the kernel may take more: a large
/// message to a peer that reads as fast as we write must not keep the shard from its other
/// connections.
const QUANTA: usize = 16;

impl<D: Driver, S: Service> Shard<D, S> {
    /// Flushes a connection.
    #[inline(always)]
    pub(crate) fn flush(&mut self, id: ConnId) {
        let connections = &mut self.parts.core.conns;
        let Some(conn) = connections.conn_mut(id) else { return };
        conn.set(flag::DIRTY, false);
        if conn.status().flushes_slowly() {
            return self.flush_slow(id);
        }
        if let Some(batch) = conn.out.take() {
            self.send(id, batch);
        }
    }

    /// Flushes on the slow path: output may have to wait, and an action may follow.
    #[inline(never)]
    pub(crate) fn flush_slow(&mut self, id: ConnId) {
        let Self { driver, parts, .. } = self;
        let connections = &mut parts.core.conns;
        if connections.send_fan_out(id, |bytes| driver.try_send(id, bytes)) {
            return;
        }
        let Some(flush) = connections.begin_slow_flush(id) else { return };
        if flush.counts_traffic {
            driver.count_traffic(id);
        }
        if flush.pauses {
            driver.pause(id);
        }
        if flush.after == AfterFlush::Abort {
            return self.end(id);
        }
        if flush.in_flight {
            return self.pause_if_behind(id);
        }
        // If too much output waits already, only the kernel bounds it.
        let most = if connections.is_overfull() { usize::MAX } else { QUANTA };
        let mut whole = false;
        for _ in 0..most {
            let Some(batch) = self.parts.core.conns.next_batch(id) else {
                whole = true;
                break;
            };
            if !self.send(id, batch) {
                return;
            }
        }
        let connections = &mut self.parts.core.conns;
        if flush.awaits_room {
            // Even if nothing has left: all waiting messages may have grown too old, and no other
            // event would report that the connection may be read again.
            connections.mark_drained(id);
        }
        if !whole {
            connections.mark_unfinished(id);
        } else if flush.after != AfterFlush::Nothing {
            self.end(id);
        }
    }

    /// Returns whether all of it has left.
    #[inline(always)]
    pub(crate) fn send(&mut self, id: ConnId, batch: Box<Batch>) -> bool {
        let connections = &mut self.parts.core.conns;
        let len = batch.len();
        connections.count(|stats| stats.bytes_out += len as u64);
        match self.driver.send(id, batch) {
            SendOutcome::Done(batch) => {
                connections.reuse(batch);
                true
            }
            SendOutcome::Pending => {
                self.record_in_flight(id);
                false
            }
        }
    }

    /// Records that the kernel did not take all of a batch.
    #[cold]
    pub(crate) fn record_in_flight(&mut self, id: ConnId) {
        let len = self.driver.unsent(id);
        self.parts.core.conns.record_in_flight(id, len);
        self.pause_if_behind(id);
    }

    /// Stops reading a peer that does not read its answers: TCP carries the back-pressure to it.
    pub(crate) fn pause_if_behind(&mut self, id: ConnId) {
        let connections = &mut self.parts.core.conns;
        if connections.is_behind(id) && connections.pause(id) {
            self.driver.pause(id);
        }
    }

    /// Ends our side, after all output has left or no longer matters.
    pub(crate) fn end(&mut self, id: ConnId) {
        let connections = &mut self.parts.core.conns;
        let Some(conn) = connections.conn_mut(id) else { return };
        if conn.is(Stage::Ending) {
            return;
        }
        let after = conn.after_flush();
        self.report_faults();
        let connections = &mut self.parts.core.conns;
        let Some(conn) = connections.conn_mut(id) else { return };
        match after {
            AfterFlush::Linger if conn.has(flag::FINISHED) => self.hang_up(id),
            AfterFlush::Linger if conn.stage() < Stage::Lingering => {
                conn.advance(Stage::Lingering);
                let paused = conn.has(flag::PAUSED);
                conn.set(flag::PAUSED, false);
                connections.due_in(id, LINGER_SILENCE.as_secs() as u16);
                self.driver.finish(id);
                if paused {
                    self.driver.resume(id);
                }
            }
            AfterFlush::Close => self.hang_up(id),
            AfterFlush::Abort => {
                conn.advance(Stage::Ending);
                connections.drop_queue(id);
                self.driver.abort(id);
            }
            AfterFlush::Nothing | AfterFlush::Linger => {}
        }
    }

    /// Reports the recorded faults while the addresses of their sockets are still available.
    #[inline]
    pub(crate) fn report_faults(&mut self) {
        while self.parts.core.conns.has_faults() {
            for (id, fault) in self.parts.core.conns.take_faults() {
                let peer = self.driver.peer(id);
                self.parts.report(id, fault, peer);
            }
        }
    }

    pub(crate) fn hang_up(&mut self, id: ConnId) {
        if let Some(conn) = self.parts.core.conns.conn_mut(id) {
            conn.advance(Stage::Ending);
            self.driver.close(id);
        }
    }

    /// Flushes every connection with output, and carries out actions that callbacks requested.
    pub fn flush_all(&mut self) {
        self.report_faults();
        let mut at = 0;
        while let Some(id) = self.parts.core.conns.dirty_at(at) {
            at += 1;
            if self.parts.core.conns.has(id, flag::DIRTY) {
                self.flush(id);
            }
        }
        self.parts.core.conns.end_flush();
        self.pause_publishers();
        self.check_memory();
    }

    /// Flushes everything when publications have put much memory into queues, or much into one,
    /// within one turn.
    #[inline]
    pub(crate) fn flush_early(&mut self) {
        if self.parts.core.conns.has_published_enough() {
            self.flush_all();
        }
    }
}
