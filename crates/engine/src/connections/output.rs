//! Output between the queues and the driver: what a flush takes and leaves behind.

use throng_io::{Batch, ConnId};

use crate::conn::record::Conn;
use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::conn::timers::Tick;
use crate::connections::Connections;
use crate::message::{EndReason, Fault};

/// Actions of one connection's flush besides sending.
pub(crate) struct SlowFlush {
    /// The driver counts the bytes of the connection from now on.
    pub(crate) counts_traffic: bool,
    /// The driver stops reading.
    pub(crate) pauses: bool,
    /// Whether its backlog must be looked at when some of it has left.
    pub(crate) awaits_room: bool,
    pub(crate) in_flight: bool,
    pub(crate) after: AfterFlush,
}

impl Connections {
    /// Sends the frames published in this turn with `send`, which returns how many bytes have left,
    /// if the connection gets nothing else; returns false if there is more.
    #[inline]
    pub(crate) fn send_fan_out(&mut self, id: ConnId, send: impl FnOnce(&[u8]) -> usize) -> bool {
        let Self { table, outbox, stats, .. } = self;
        let Some(conn) = table.conn_mut(id) else { return true };
        if !conn.status().only_fans_out() || conn.out.is_some() {
            return false;
        }
        let bytes = outbox.fan_out_bytes(conn);
        let sent = send(bytes);
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
        let Some(conn) = self.table.conn_mut(id) else { return };
        self.outbox.queue_fan_out(conn);
        if let Some(batch) = &mut conn.out {
            batch.advance(sent);
        }
    }

    /// Begins a flush on the slow path.
    pub(crate) fn begin_slow_flush(&mut self, id: ConnId) -> Option<SlowFlush> {
        let conn = self.table.conn_mut(id)?;
        self.outbox.queue_fan_out(conn);
        let counts_traffic = conn.has(flag::COUNTED) && conn.has(flag::UPGRADING);
        if counts_traffic {
            conn.set(flag::UPGRADING, conn.out.is_some());
        }
        let pauses = conn.is_stopped() && !conn.has(flag::PAUSED);
        if pauses {
            conn.set(flag::PAUSED, true);
        }
        Some(SlowFlush {
            counts_traffic,
            pauses,
            awaits_room: conn.has(flag::NOTIFY_ON_DRAIN | flag::PAUSED),
            in_flight: conn.has(flag::IN_FLIGHT),
            after: conn.after_flush(),
        })
    }

    /// Returns the next output of a connection, of its queue or of messages that have waited.
    pub(crate) fn next_batch(&mut self, id: ConnId) -> Option<Box<Batch>> {
        let now = self.millis();
        let conn = self.table.conn_mut(id)?;
        self.outbox.refill(conn, now, &mut self.stats);
        let batch = conn.out.take()?;
        conn.set(flag::UPGRADING | flag::DIRTY, false);
        Some(batch)
    }

    /// Clears what one flush of all has sent, and lists the connections that have more to send.
    pub(crate) fn end_flush(&mut self) {
        for id in self.outbox.end_flush() {
            if let Some(conn) = self.table.conn_mut(id) {
                conn.set(flag::UNFINISHED_LISTED, false);
                self.outbox.mark_dirty(conn);
            }
        }
    }

    /// Keeps a batch that has left.
    #[inline]
    pub(crate) fn reuse(&mut self, batch: Box<Batch>) {
        self.outbox.give(batch);
    }

    /// Records that the kernel did not take all of a batch, and still lacks `len` bytes.
    pub(crate) fn record_in_flight(&mut self, id: ConnId, len: usize) {
        self.stats.backlogged += 1;
        self.memory.add(len);
        if let Some(conn) = self.table.conn_mut(id) {
            self.outbox.record_in_flight(conn, len, self.timers.tick());
        }
    }

    /// Records that all of a batch in flight has left.
    pub(crate) fn record_sent(&mut self, id: ConnId, batch: Box<Batch>) {
        self.outbox.give(batch);
        let Some(conn) = self.table.conn_mut(id) else { return };
        if !conn.has(flag::IN_FLIGHT) {
            return;
        }
        self.stats.backlogged -= 1;
        if conn.is(Stage::Http) && !conn.has(flag::REQUEST | flag::PENDING) {
            // Its answer has left only now.
            self.timers.due_in(id, self.limits.keep_alive);
        }
        self.outbox.record_left(conn);
        if self.outbox.kept_backlog(conn) <= self.outbox.low_water() {
            self.outbox.mark_drained(conn);
        }
        self.outbox.mark_dirty(conn);
    }

    /// Resets connections whose output has not moved for the write timeout; `unsent` returns what
    /// the driver still has of it.
    pub(crate) fn expire_writes(&mut self, now: Tick, unsent: impl Fn(ConnId) -> usize) {
        let mut listed = self.outbox.in_flight().take();
        listed.retain(|&id| {
            let is_in_flight = self.is_in_flight(id, unsent(id), now);
            if !is_in_flight {
                self.table.unlist(id, flag::FLIGHT_LISTED);
            }
            is_in_flight
        });
        self.outbox.in_flight().put_back(listed);
    }

    /// Returns whether this connection has a batch in flight, and resets the connection if the
    /// batch has been in flight for too long.
    fn is_in_flight(&mut self, id: ConnId, unsent: usize, now: Tick) -> bool {
        let (timeout, rate) = (self.limits.write, self.limits.min_response_rate);
        let millis = self.millis();
        let Some(conn) = self.table.conn_mut(id) else { return false };
        if !conn.has(flag::IN_FLIGHT) {
            return false;
        }
        let is_http = conn.stage() <= Stage::Serving;
        // The end was already reported, or the program requested it.
        let is_closing = conn.stage() >= Stage::Closing;
        self.outbox.expire_waiting(conn, millis);
        // One byte is a sign of life from a session's peer. A client that requests a page and then
        // takes it a byte at a time would hold the connection for days.
        let enough = if is_http { usize::from(timeout) * rate } else { 1 };
        if self.outbox.record_unsent(conn, unsent, enough, now) > timeout {
            self.stats.timeouts += 1;
            if !is_closing {
                self.note_fault(id, Fault::Ended(EndReason::Write));
            }
            self.finish(id, AfterFlush::Abort);
        }
        true
    }

    /// Marks a connection as not read; returns false if it was marked already.
    pub(crate) fn pause(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.table.conn_mut(id).filter(|conn| !conn.has(flag::PAUSED)) else {
            return false;
        };
        conn.set(flag::PAUSED, true);
        true
    }

    /// Returns whether a peer does not read its answers.
    pub(crate) fn is_behind(&self, id: ConnId) -> bool {
        let is_read = self.table.conn(id).is_some_and(|conn| conn.stage() <= Stage::Open);
        is_read && self.kept_backlog(id) > self.outbox.high_water()
    }

    /// Takes a connection from the list for `on_drain`. Returns whether `on_drain` must be called,
    /// and whether reading must be resumed; `None` if its backlog is still too high, or it waits
    /// for room for its publications: then it is listed again when there is room.
    pub(crate) fn begin_drained(&mut self, id: ConnId) -> Option<(bool, bool)> {
        let low = self.outbox.low_water();
        let (backlog, kept) = (self.backlog(id), self.kept_backlog(id));
        let is_held = self.awaits_capacity(id);
        let conn = self.table.conn_mut(id)?;
        conn.set(flag::DRAIN_LISTED, false);
        if kept > low || is_held {
            return None;
        }
        let notifies = conn.has(flag::NOTIFY_ON_DRAIN) && backlog <= low;
        if notifies {
            conn.set(flag::NOTIFY_ON_DRAIN, false);
        }
        let has_callbacks = matches!(conn.stage(), Stage::Http | Stage::Serving | Stage::Open);
        Some((notifies && has_callbacks, conn.has(flag::PAUSED)))
    }

    /// Returns whether a session's next message can be decoded: checks in one access to its record
    /// what [`Connections::must_yield`] checks in several. False only means that those must be
    /// checked.
    #[inline(always)]
    pub(crate) fn can_continue(&self, id: ConnId) -> bool {
        self.table.conn(id).is_some_and(|conn| self.outbox.is_free(conn))
            && !self.outbox.has_published_enough()
            && !self.outbox.has_worked_enough()
    }

    /// Returns whether decoding must pause for this connection: its output is congested, or others
    /// wait.
    pub(crate) fn must_yield(&self, id: ConnId) -> bool {
        self.outbox.has_published_enough()
            || self.outbox.has_worked_enough()
            || self.kept_backlog(id) > self.outbox.high_water()
            || self.table.conn(id).is_some_and(Conn::is_stopped)
            || self.awaits_capacity(id)
    }

    /// Returns whether there is nothing to flush, and no connection continues.
    pub(crate) fn is_idle(&self) -> bool {
        self.outbox.is_idle() && !self.reading.has_resumed()
    }

    /// Returns the memory of a connection's output, without the driver's part.
    pub(crate) fn output_memory(&self, conn: &Conn) -> usize {
        self.outbox.memory(conn)
    }

    /// Returns the connections that may hold memory for output, or for incomplete input.
    pub(crate) fn memory_holders(&self) -> impl Iterator<Item = ConnId> {
        let slots = self.outbox.slots_with_context();
        let with_context = slots.filter_map(|slot| self.table.in_slot(slot));
        let listed = self.outbox.all_in_flight().chain(self.reading.all_incomplete());
        listed.chain(with_context)
    }

    /// Returns the number of cold records, or of records of output that waits; for audits.
    pub(crate) fn records_len(&self) -> usize {
        let waiting = self.outbox.congested_len().max(self.outbox.behind_len());
        self.table.cold_len().max(waiting)
    }

    /// Returns the length of the longest list; for audits.
    pub(crate) fn longest_list(&self) -> usize {
        self.outbox.longest_list().max(self.reading.longest_list())
    }
}
