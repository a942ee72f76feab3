//! Flushing, the only place of output: queued bytes go to the driver, and actions that callbacks
//! requested are carried out.

use throng_io::{Batch, ConnId, Driver, SendOutcome};

use crate::conn::linger::LINGER_SILENCE;
use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::connections::Connections;
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
        let connections = &mut self.state.core.connections;
        let Some(conn) = connections.table.conn_mut(id) else { return };
        conn.set(flag::DIRTY, false);
        if conn.status().flushes_slowly() {
            return self.flush_slow(id);
        }
        if let Some(batch) = conn.out.take() {
            self.send(id, batch);
        }
    }

    /// Sends the frames published in this turn if the connection gets nothing else; returns false
    /// if there is more.
    #[inline]
    fn flush_fan_out(&mut self, id: ConnId) -> bool {
        let Connections { table, outbox, stats, .. } = &mut self.state.core.connections;
        let Some(conn) = table.conn_mut(id) else { return true };
        if !conn.status().only_fans_out() || conn.out.is_some() {
            return false;
        }
        let bytes = outbox.fan_out_bytes(conn);
        let sent = self.driver.try_send(id, bytes);
        stats.bytes_out += sent as u64;
        if sent < bytes.len() {
            self.queue_rest(id, sent);
            return false;
        }
        outbox.record_fan_out(conn);
        true
    }

    /// Queues the rest of published frames after the kernel took only `sent` bytes; it waits like
    /// any other output.
    #[cold]
    fn queue_rest(&mut self, id: ConnId, sent: usize) {
        let Connections { table, outbox, .. } = &mut self.state.core.connections;
        let Some(conn) = table.conn_mut(id) else { return };
        outbox.queue_fan_out(conn);
        if let Some(batch) = &mut conn.out {
            batch.advance(sent);
        }
    }

    /// Flushes on the slow path: output may have to wait, and an action may follow.
    #[inline(never)]
    pub(crate) fn flush_slow(&mut self, id: ConnId) {
        if self.flush_fan_out(id) {
            return;
        }
        let Connections { table, outbox, .. } = &mut self.state.core.connections;
        let Some(conn) = table.conn_mut(id) else { return };
        outbox.queue_fan_out(conn);
        if conn.has(flag::COUNTED) && conn.has(flag::UPGRADING) {
            self.driver.count_traffic(id);
            conn.set(flag::UPGRADING, conn.out.is_some());
        }
        if conn.is_stopped() && !conn.has(flag::PAUSED) {
            conn.set(flag::PAUSED, true);
            self.driver.pause(id);
        }
        let (behind, after) = (conn.has(flag::NOTIFY_ON_DRAIN | flag::PAUSED), conn.after_flush());
        if after == AfterFlush::Abort {
            return self.end(id);
        }
        if conn.has(flag::IN_FLIGHT) {
            return self.pause_if_behind(id);
        }
        // Unless there is too much already: then only the kernel bounds the waiting output.
        let most = if outbox.is_overfull() { usize::MAX } else { QUANTA };
        let mut whole = false;
        for _ in 0..most {
            let connections = &mut self.state.core.connections;
            let now = connections.millis();
            let Connections { table, outbox, stats, .. } = connections;
            let Some(conn) = table.conn_mut(id) else { return };
            outbox.refill(conn, now, stats);
            let Some(batch) = conn.out.take() else {
                whole = true;
                break;
            };
            conn.set(flag::UPGRADING | flag::DIRTY, false);
            if !self.send(id, batch) {
                return;
            }
        }
        if behind {
            // Even if nothing has left: all waiting messages may have grown too old, and no other
            // event would report that the connection may be read again.
            self.state.core.connections.mark_drained(id);
        }
        if !whole {
            let Connections { table, outbox, .. } = &mut self.state.core.connections;
            if let Some(conn) = table.conn_mut(id) {
                outbox.mark_unfinished(conn);
            }
        } else if after != AfterFlush::Nothing {
            self.end(id);
        }
    }

    /// Returns whether all of it has left.
    #[inline(always)]
    pub(crate) fn send(&mut self, id: ConnId, batch: Box<Batch>) -> bool {
        let connections = &mut self.state.core.connections;
        let len = batch.len();
        connections.stats.bytes_out += len as u64;
        match self.driver.send(id, batch) {
            SendOutcome::Done(batch) => {
                connections.outbox.give(batch);
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
        let connections = &mut self.state.core.connections;
        let tick = connections.timers.tick();
        connections.stats.backlogged += 1;
        connections.memory.add(len);
        let Some(conn) = connections.table.conn_mut(id) else { return };
        connections.outbox.record_in_flight(conn, len, tick);
        self.pause_if_behind(id);
    }

    /// Stops reading a peer that does not read its answers: TCP carries the back-pressure to it.
    pub(crate) fn pause_if_behind(&mut self, id: ConnId) {
        let connections = &mut self.state.core.connections;
        let behind = connections.kept_backlog(id) > connections.outbox.high_water();
        let Some(conn) = connections.table.conn_mut(id) else { return };
        if behind && !conn.has(flag::PAUSED) && conn.stage() <= Stage::Open {
            conn.set(flag::PAUSED, true);
            self.driver.pause(id);
        }
    }

    /// Ends our side, after all output has left or no longer matters.
    pub(crate) fn end(&mut self, id: ConnId) {
        let connections = &mut self.state.core.connections;
        let Some(conn) = connections.table.conn_mut(id) else { return };
        if conn.is(Stage::Ending) {
            return;
        }
        let after = conn.after_flush();
        self.report_faults();
        let connections = &mut self.state.core.connections;
        let Some(conn) = connections.table.conn_mut(id) else { return };
        match after {
            AfterFlush::Linger if conn.has(flag::FINISHED) => self.hang_up(id),
            AfterFlush::Linger if conn.stage() < Stage::Lingering => {
                conn.advance(Stage::Lingering);
                let paused = conn.has(flag::PAUSED);
                conn.set(flag::PAUSED, false);
                connections.timers.due_in(id, LINGER_SILENCE.as_secs() as u16);
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

    /// Reports the recorded faults, while their sockets can be asked for the addresses.
    #[inline]
    pub(crate) fn report_faults(&mut self) {
        while !self.state.core.connections.faults.is_empty() {
            for (id, fault) in std::mem::take(&mut self.state.core.connections.faults) {
                let peer = self.driver.peer(id);
                self.state.report(id, fault, peer);
            }
        }
    }

    pub(crate) fn hang_up(&mut self, id: ConnId) {
        if let Some(conn) = self.state.core.connections.table.conn_mut(id) {
            conn.advance(Stage::Ending);
            self.driver.close(id);
        }
    }

    /// Flushes every connection with output, and carries out actions that callbacks requested.
    pub fn flush_all(&mut self) {
        self.report_faults();
        let mut at = 0;
        while let Some(id) = self.state.core.connections.outbox.dirty_at(at) {
            at += 1;
            if self.state.core.connections.table.has(id, flag::DIRTY) {
                self.flush(id);
            }
        }
        let Connections { table, outbox, .. } = &mut self.state.core.connections;
        for id in outbox.end_flush() {
            if let Some(conn) = table.conn_mut(id) {
                conn.set(flag::UNFINISHED_LISTED, false);
                outbox.mark_dirty(conn);
            }
        }
        self.delay_new();
        self.check_memory();
    }

    /// Flushes everything when publications have put much memory into queues, or much into one,
    /// within one turn.
    #[inline]
    pub(crate) fn flush_early(&mut self) {
        if self.state.core.has_published_enough() {
            self.flush_all();
        }
    }
}
