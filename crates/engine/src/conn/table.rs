//! The shard's table of connections, with every operation that callbacks can request.
//!
//! While bytes are lent the driver is borrowed, so nothing here touches a socket: output goes to
//! the connection's queue, and the connection to the list that [`Shard::flush`](crate::Shard)
//! empties.

use std::sync::Arc;

use throng_io::{Batch, ConnId, Instant, Segment};
use throng_proto::sse;
use throng_proto::ws::{self, Opcode, deflate};

use crate::conn::deadlines::Deadlines;
use crate::conn::rate::Rates;
use crate::conn::record::{Cold, Conn, NO_CONN};
use crate::conn::slab::Slab;
use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::conn::subprotocols::Subprotocols;
use crate::conn::timers::{Heartbeats, Tick};
use crate::conn::work_list::WorkList;
use crate::limits::Checked;
use crate::outbox::borrowed::Borrowed;
use crate::outbox::compression::Compression;
use crate::outbox::fanout::Fanout;
use crate::outbox::queue::Waiting;
use crate::outbox::spares::Spares;
use crate::pubsub::backpressure::Rules;
use crate::pubsub::publishers::Publishers;
use crate::random::Random;
use crate::service::Refusal;
use crate::shard::admission::Admitted;
use crate::shard::memory::ShardMemory;
use crate::shard::stats::{ClassCounters, Stats};
use crate::ws::messages::RouteOptions;

/// Fields of a connection's record that receiving needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiving {
    pub(crate) route: u16,
    pub(crate) data: u32,
    /// Copy of [`Conn::inline_limit`].
    pub(crate) inline_limit: u16,
}

/// Value of [`Connections::published`] when a queue has passed its limit within this turn, which
/// only a flush can distinguish from a slow reader. It exceeds any budget, so that one comparison
/// checks both.
pub(crate) const OVERFULL: usize = 1 << (usize::BITS - 1);

/// The shard's connections, and the lists of those with pending work.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) conns: Vec<Conn>,
    pub(crate) cold: Slab<Cold>,
    pub(crate) deadlines: Deadlines<Tick>,
    /// Ends of session lifetimes; unused while those have no limit.
    pub(crate) lifetimes: Deadlines<Tick>,
    pub(crate) rates: Rates,
    subprotocols: Subprotocols,
    pub(crate) dirty: WorkList,
    /// Connections with more output than one flush sends: they are flushed in the next turn.
    pub(crate) unfinished: WorkList,
    /// Connections for which `on_drain` is due.
    pub(crate) drained: WorkList,
    /// Connections whose service resumed reading; input of some may be held back.
    pub(crate) resumed: WorkList,
    /// Batches in flight, checked for progress at each sweep.
    pub(crate) in_flight: WorkList,
    /// Connections with an incomplete message or request. At each sweep the deadline of the message
    /// is checked.
    pub(crate) incomplete: WorkList,
    pub(crate) spares: Spares,
    pub(crate) fanout: Fanout,
    pub(crate) compression: Compression,
    pub(crate) borrowed: Borrowed,
    pub(crate) limits: Checked,
    pub(crate) stats: Stats,
    pub(crate) rules: Arc<Rules>,
    /// Indexed by class.
    pub(crate) counters: Vec<ClassCounters>,
    /// The time of this turn.
    pub(crate) now: Instant,
    /// Cost of publications since the last flush of all; see `PUBLISH_BUDGET`, and [`OVERFULL`].
    pub(crate) published: usize,
    tick: Tick,
    heartbeats: Heartbeats,
    pub(crate) masks: Masks,
    pub(crate) publishers: Publishers,
    pub(crate) memory: ShardMemory,
    /// [`Stats::bytes_in`] when incomplete input was last counted.
    counted_in: u64,
}

impl Connections {
    pub(crate) fn new(
        limits: Checked,
        rules: Arc<Rules>,
        capacity: usize,
        seed: u64,
        now: Instant,
        memory: ShardMemory,
    ) -> Self {
        let mut deadlines = Deadlines::new(Tick::START);
        deadlines.reserve(capacity);
        Self {
            counters: vec![ClassCounters::default(); rules.names().count()],
            rules,
            now,
            published: 0,
            conns: Vec::with_capacity(capacity),
            cold: Slab::default(),
            deadlines,
            lifetimes: Deadlines::new(Tick::START),
            rates: Rates::new(limits.max_messages_per_second, limits.max_bytes_per_second),
            subprotocols: Subprotocols::default(),
            dirty: WorkList::new(flag::DIRTY),
            unfinished: WorkList::new(flag::UNFINISHED_LISTED),
            drained: WorkList::new(flag::DRAIN_LISTED),
            resumed: WorkList::new(flag::RESUME_LISTED),
            in_flight: WorkList::new(flag::FLIGHT_LISTED),
            incomplete: WorkList::new(flag::INCOMPLETE_LISTED),
            spares: Spares::default(),
            fanout: Fanout::default(),
            compression: Compression::default(),
            borrowed: Borrowed::default(),
            heartbeats: Heartbeats::new(limits.heartbeat_interval, Tick::START),
            limits,
            stats: Stats::default(),
            tick: Tick::START,
            masks: Masks(Random::new(seed)),
            publishers: Publishers::default(),
            memory,
            counted_in: 0,
        }
    }

    /// Shifts the start of heartbeats as if slots were `by` higher.
    pub(crate) fn spread_heartbeats(&mut self, by: usize) {
        self.heartbeats.spread(by, self.tick);
    }

    /// Enters a connection that the driver has just reported.
    pub(crate) fn enter(&mut self, id: ConnId, stage: Stage) {
        let slot = id.slot();
        while self.conns.len() <= slot {
            self.conns.push(Conn::new(NO_CONN, Stage::Free));
        }
        self.deadlines.add_slot(slot);
        self.rates.forget(slot);
        self.subprotocols.forget(slot);
        debug_assert_eq!(self.conns[slot].stage(), Stage::Free, "a slot was named twice");
        self.conns[slot] = Conn::new(id, stage);
        self.stats.connections += 1;
    }

    /// Frees the slot of a connection after its last event.
    pub(crate) fn leave(&mut self, id: ConnId) {
        let slot = id.slot();
        let Some(conn) = self.conn_mut(id) else { return };
        let (out, cold, in_flight) = (conn.out.take(), conn.cold.take(), conn.has(flag::IN_FLIGHT));
        *conn = Conn::new(NO_CONN, Stage::Free);
        self.fanout.forget(slot);
        self.compression.forget(slot);
        self.stats.connections -= 1;
        self.stats.backlogged -= u64::from(in_flight);
        if let Some(batch) = out {
            self.spares.give(batch);
        }
        if let Some(cold) = cold.and_then(|index| self.cold.remove(index))
            && let Some(waiting) = cold.waiting
        {
            waiting.discard(&mut self.counters);
        }
        self.deadlines.set(slot, Tick::NEVER);
        if self.limits.lifetime > 0 {
            self.lifetimes.add_slot(slot);
            self.lifetimes.set(slot, Tick::NEVER);
        }
    }

    /// Returns the connection if `id` still names one.
    #[inline]
    pub(crate) fn conn(&self, id: ConnId) -> Option<&Conn> {
        self.conns.get(id.slot()).filter(|conn| conn.id == id)
    }

    /// Returns the connection if `id` still names one.
    #[inline]
    pub(crate) fn conn_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(id.slot()).filter(|conn| conn.id == id)
    }

    /// Returns the stage; [`Stage::Free`] if the connection is gone.
    #[inline]
    pub(crate) fn stage(&self, id: ConnId) -> Stage {
        self.conn(id).map_or(Stage::Free, |conn| conn.stage())
    }

    /// Returns the connection in `slot`, if there is one.
    pub(crate) fn in_slot(&self, slot: u32) -> Option<ConnId> {
        let conn = self.conns.get(slot as usize)?;
        (!conn.is(Stage::Free)).then_some(conn.id)
    }

    /// Returns the number of slots in use or used before.
    pub(crate) fn slots(&self) -> usize {
        self.conns.len()
    }

    /// Returns the connection in `slot`, if broadcasts reach it.
    pub(crate) fn listener_in(&self, slot: usize) -> Option<ConnId> {
        let conn = &self.conns[slot];
        matches!(conn.stage(), Stage::Open | Stage::Events).then_some(conn.id)
    }

    /// Returns the subprotocol that was agreed on.
    pub(crate) fn subprotocol(&self, id: ConnId) -> Option<&str> {
        self.conn(id).and_then(|_| self.subprotocols.of(id.slot()))
    }

    /// Records the subprotocol that was agreed on.
    pub(crate) fn set_subprotocol(&mut self, id: ConnId, name: &str) {
        if self.conn(id).is_some() {
            self.subprotocols.set(id.slot(), name);
        }
    }

    /// Records that permessage-deflate was agreed on. Returns false if that is impossible.
    pub(crate) fn set_deflate(
        &mut self,
        id: ConnId,
        policy: deflate::Policy,
        agreed: deflate::Agreed,
    ) -> bool {
        let set = self.compression.set(id.slot(), policy, agreed);
        match self.conn_mut(id) {
            Some(conn) if set => {
                conn.set(flag::DEFLATE, true);
                true
            }
            _ => false,
        }
    }

    /// Drops the agreement on permessage-deflate of an upgrade that was not completed.
    pub(crate) fn clear_deflate(&mut self, id: ConnId) {
        if let Some(conn) = self.conn_mut(id) {
            conn.set(flag::DEFLATE, false);
            self.compression.forget(id.slot());
        }
    }

    /// Returns the ids of all connections.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnId> {
        self.conns.iter().filter(|conn| !conn.is(Stage::Free)).map(|conn| conn.id)
    }

    /// Returns the cold record of a connection, created if there is none.
    pub(crate) fn cold_mut(&mut self, id: ConnId) -> Option<&mut Cold> {
        let index = match self.conn(id)?.cold {
            Some(index) => index,
            None => {
                let index = self.cold.insert(Cold::default());
                self.conn_mut(id)?.cold = Some(index);
                index
            }
        };
        self.cold.entry_mut(index)
    }

    /// Returns the cold record of a connection, if it has one.
    pub(crate) fn cold(&self, id: ConnId) -> Option<&Cold> {
        self.cold.entry(self.conn(id)?.cold?)
    }

    /// Returns the reason why a connection may send one request only, if it has a place of the
    /// reserve.
    pub(crate) fn refusal(&self, id: ConnId) -> Option<Refusal> {
        match self.cold(id)?.admitted {
            Admitted::Reserve(why) => Some(why),
            Admitted::Counted | Admitted::Evicted => None,
        }
    }

    /// Frees the cold record when it holds nothing any more.
    pub(crate) fn shed_cold(&mut self, id: ConnId) {
        let Some(index) = self.conn(id).and_then(|conn| conn.cold) else { return };
        if self.cold.entry(index).is_some_and(Cold::is_idle) {
            self.cold.remove(index);
            if let Some(conn) = self.conn_mut(id) {
                conn.cold = None;
            }
        }
    }

    /// Registers input of an open session: the peer is alive, and the connection is flushed after
    /// its input. This is the one access to the record that receiving a message needs.
    #[inline]
    pub(crate) fn receiving(&mut self, id: ConnId) -> Option<Receiving> {
        let slot = id.slot();
        let conn = self.conns.get_mut(slot)?;
        if conn.id != id || !conn.is(Stage::Open) {
            return None;
        }
        let was_pinged = conn.has(flag::PINGED);
        conn.mark_received();
        let receiving =
            Receiving { route: conn.route, data: conn.data, inline_limit: conn.inline_limit };
        if was_pinged || !self.limits.heartbeat_always {
            self.deadlines.set(slot, self.heartbeats.due(slot));
        }
        Some(receiving)
    }

    /// Registers input after our Close, when only the peer's is awaited; `None` when no input
    /// matters any more.
    #[cold]
    pub(crate) fn receiving_late(&mut self, id: ConnId) -> Option<Receiving> {
        let conn = self.conn_mut(id)?;
        if !conn.is(Stage::Closing) || conn.is_finishing() {
            return None;
        }
        conn.set(flag::DIRTY, true);
        Some(Receiving { route: conn.route, data: conn.data, inline_limit: 0 })
    }

    /// Returns how the messages of a route are decoded.
    pub(crate) fn route_options(&self, route: u16) -> RouteOptions {
        self.limits.routes.get(usize::from(route)).copied().unwrap_or_default()
    }

    /// Records up to which length messages need no check of the limits.
    pub(crate) fn record_limits(&mut self, id: ConnId, limits: &ws::Limits) {
        if let Some(conn) = self.conn_mut(id) {
            conn.inline_limit = limits.max_whole_message().min(usize::from(u16::MAX)) as u16;
        }
    }

    /// Counts all that was received since the last incomplete input as held. That is too much, and
    /// costs no more than an early measurement; the length of each read would cost each read.
    pub(crate) fn count_incomplete(&mut self) {
        let came = self.stats.bytes_in - self.counted_in;
        self.counted_in = self.stats.bytes_in;
        self.memory.add(usize::try_from(came).unwrap_or(usize::MAX));
    }

    /// Clears the flag of a connection that was removed from a [`WorkList`].
    pub(crate) fn unlist(&mut self, id: ConnId, flag: u32) {
        if let Some(conn) = self.conn_mut(id) {
            conn.set(flag, false);
            self.shed_cold(id);
        }
    }

    /// Lists a connection whose message or request is incomplete.
    pub(crate) fn list_incomplete(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(id.slot()).filter(|conn| conn.id == id) {
            self.incomplete.add(conn);
        }
    }

    /// Returns the current second.
    pub(crate) fn tick(&self) -> Tick {
        self.tick
    }

    /// Starts a new second.
    pub(crate) fn set_tick(&mut self, now: Tick) {
        self.tick = now;
        self.heartbeats.refresh(now);
    }

    /// Starts a session's timers: the first heartbeat is a whole interval away, the end a lifetime.
    pub(crate) fn start_session(&mut self, slot: usize) {
        self.deadlines.set(slot, self.heartbeats.due(slot));
        if self.limits.lifetime > 0 {
            self.lifetimes.add_slot(slot);
            self.lifetimes.set(slot, self.tick.after(self.limits.lifetime));
        }
    }

    /// Returns whether part of a request has arrived, and its answer is still due.
    pub(crate) fn is_in_request(&self, id: ConnId) -> bool {
        self.conn(id).is_some_and(|conn| conn.has(flag::REQUEST))
    }

    /// Sets the deadline of a connection in seconds from now. It passes at least so many seconds
    /// from now, and less than one more, since the current second has already begun.
    pub(crate) fn due_in(&mut self, id: ConnId, secs: u16) {
        self.deadlines.set(id.slot(), self.tick.after(secs + 1));
    }

    /// Completes a deferred answer; see [`Core::finish_answer`](crate::Core::finish_answer).
    pub(crate) fn finish_answer(&mut self, id: ConnId, keep_alive: bool) {
        let keep_alive_secs = self.limits.keep_alive;
        let Some(conn) = self.conn_mut(id) else { return };
        match conn.stage() {
            Stage::Serving => conn.advance(Stage::Http),
            // Its body is still coming, and no callback would read it to its end.
            Stage::Http => return self.finish(id, AfterFlush::Linger),
            _ => return,
        }
        if keep_alive {
            conn.set(flag::REQUEST, false);
            self.due_in(id, keep_alive_secs);
            self.mark_resumed(id);
        } else {
            self.finish(id, AfterFlush::Linger);
        }
    }

    /// Stops reading; see [`Core::stop_reading`](crate::Core::stop_reading).
    pub(crate) fn stop_reading(&mut self, id: ConnId) {
        if let Some(conn) = self.conn_mut(id)
            && conn.is(Stage::Open)
        {
            conn.set(flag::STOPPED, true);
            // The flush pauses the driver's reading.
            self.mark_dirty(id);
        }
    }

    /// Resumes reading; see [`Core::resume_reading`](crate::Core::resume_reading).
    pub(crate) fn resume_reading(&mut self, id: ConnId) {
        let timeout = self.limits.handshake;
        let Some(conn) = self.conn_mut(id) else { return };
        match conn.stage() {
            Stage::Serving => {
                conn.advance(Stage::Http);
                // The delay was ours: the body's deadline restarts.
                self.due_in(id, timeout);
            }
            Stage::Open if conn.has(flag::STOPPED) => {
                conn.set(flag::STOPPED, false);
                // Reading may have been stopped again by the time the connection is resumed, or its
                // output be congested: the code that resumes held input checks both.
                if conn.has(flag::PAUSED) {
                    self.mark_drained(id);
                }
                return;
            }
            _ => return,
        }
        self.mark_resumed(id);
    }

    /// Requests `on_drain`; see [`Core::await_drain`](crate::Core::await_drain).
    pub(crate) fn await_drain(&mut self, id: ConnId) {
        if let Some(conn) = self.conn_mut(id) {
            conn.set(flag::NOTIFY_ON_DRAIN, true);
            self.mark_dirty(id);
        }
    }

    /// Queues raw bytes: HTTP, before there is a session.
    pub(crate) fn write(&mut self, id: ConnId, write: impl FnOnce(&mut Vec<u8>)) {
        if self.stage(id) < Stage::Open {
            self.append(id, write);
        }
    }

    /// Queues a ping of ours.
    pub(crate) fn ping(&mut self, id: ConnId) {
        if self.stage(id) == Stage::Open {
            self.stats.pings += 1;
            self.control(id, Opcode::Ping, &[]);
        }
    }

    /// Queues a comment that keeps a stream of events alive.
    pub(crate) fn comment(&mut self, id: ConnId) {
        self.stats.pings += 1;
        self.append(id, |out| out.extend_from_slice(sse::COMMENT));
    }

    /// Sets the deadline to when the next heartbeat is due.
    pub(crate) fn await_heartbeat(&mut self, id: ConnId) {
        self.deadlines.set(id.slot(), self.heartbeats.due(id.slot()));
    }

    /// Answers a ping. While output waits, only the latest unsent pong is kept, and it is first to
    /// leave (RFC 6455 section 5.5.3 lets one pong answer several pings), so that a peer that pings
    /// and does not read costs 131 bytes.
    pub(crate) fn pong(&mut self, id: ConnId, payload: &[u8]) {
        let conn = &self.conns[id.slot()];
        if !conn.has(flag::IN_FLIGHT) || conn.has(flag::UPGRADING) {
            self.control(id, Opcode::Pong, payload);
            return;
        }
        let mut bytes = Vec::with_capacity(payload.len() + 6);
        self.encode(id, Opcode::Pong, payload, &mut bytes);
        let replace = self.cold(id).is_some_and(|cold| cold.pong_first);
        let batch = self.queue(id);
        if replace {
            batch.pop_front();
        }
        // Not an owned segment: nothing may be appended to a segment that the next pong replaces.
        batch.push_front(Segment::Shared(bytes.into()));
        if let Some(cold) = self.cold_mut(id) {
            cold.pong_first = true;
        }
    }

    /// Begins the closing handshake: a Close frame behind queued output. Nothing is sent after it.
    /// A stream of events just ends.
    pub(crate) fn close(&mut self, id: ConnId, code: u16, reason: &str) {
        match self.stage(id) {
            Stage::Open => {
                // The peer's Close is awaited, whatever comes before it.
                self.resume_reading(id);
                self.release_publisher(id);
                self.take_waiting(id, usize::MAX);
            }
            Stage::Events => {
                self.take_waiting(id, usize::MAX);
                // As after a Close frame: later publications would keep a slow connection open
                // without end.
                self.conns[id.slot()].advance(Stage::Closing);
                self.due_in(id, self.limits.close);
                return self.finish(id, AfterFlush::Close);
            }
            _ => return,
        }
        let mask = self.conns[id.slot()].has(flag::CLIENT).then(|| self.masks.next());
        self.append(id, |out| ws::encode_close(code, reason, mask, out));
        self.conns[id.slot()].advance(Stage::Closing);
        if let Some(cold) = self.cold_mut(id) {
            let is_sent = ws::is_sendable_close_code(code);
            cold.closed_with = if is_sent { code } else { ws::CloseCode::NO_STATUS.get() };
        }
        self.due_in(id, self.limits.close);
    }

    /// Ends a session that cannot continue: queued output is dropped, a Close frame takes its
    /// place, and the connection closes once that has left (RFC 6455 section 7.1.7).
    pub(crate) fn fail(&mut self, id: ConnId, code: u16, reason: &str) {
        if matches!(self.stage(id), Stage::Open | Stage::Events) {
            if !self.conns[id.slot()].has(flag::UPGRADING) {
                self.drop_queue(id);
            }
            self.close(id, code, reason);
        }
        self.finish(id, AfterFlush::Linger);
    }

    /// Sets what happens after the queue is flushed. The more abrupt of two requests wins.
    pub(crate) fn finish(&mut self, id: ConnId, after: AfterFlush) {
        let Some(conn) = self.conn_mut(id) else { return };
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
        self.mark_dirty(id);
    }

    /// Drops output that is queued and not yet with the driver.
    pub(crate) fn drop_queue(&mut self, id: ConnId) {
        let Some(conn) = self.conn_mut(id) else { return };
        let waited = conn.has(flag::WAITING);
        conn.set(flag::WAITING | flag::FAN_OUT, false);
        if let Some(batch) = conn.out.take() {
            self.spares.give(batch);
        }
        if self.cold(id).is_some_and(|cold| cold.pong_first)
            && let Some(cold) = self.cold_mut(id)
        {
            cold.pong_first = false;
        }
        self.fanout.forget(id.slot());
        if waited && let Some(waiting) = self.cold_mut(id).and_then(|cold| cold.waiting.take()) {
            waiting.discard(&mut self.counters);
            self.shed_cold(id);
        }
    }

    /// Returns the bytes queued: here, in the per-message queue, and in the driver.
    #[inline]
    pub(crate) fn backlog(&self, id: ConnId) -> usize {
        self.backlog_of(id, Waiting::bytes)
    }

    /// Returns the bytes queued except messages that may still be dropped: the measure of whether
    /// the peer reads its own answers.
    #[inline]
    pub(crate) fn kept_backlog(&self, id: ConnId) -> usize {
        self.backlog_of(id, Waiting::kept)
    }

    #[inline]
    fn backlog_of(&self, id: ConnId, of_waiting: impl Fn(&Waiting) -> usize) -> usize {
        let Some(conn) = self.conn(id) else { return 0 };
        let listed = if conn.has(flag::FAN_OUT) { self.fanout.len(id.slot()) } else { 0 };
        let queued = listed + conn.out.as_ref().map_or(0, |batch| batch.len());
        if conn.has(flag::IN_FLIGHT | flag::WAITING) {
            let Some(cold) = self.cold(id) else { return queued };
            return queued + cold.in_flight + cold.waiting.as_deref().map_or(0, of_waiting);
        }
        queued
    }

    /// Returns the mark above which the connection is not read and sends return `Queued`.
    pub(crate) fn high_water(&self) -> usize {
        self.limits.max_backlog / 2
    }

    /// Returns the mark at which reading resumes and `on_drain` is called.
    pub(crate) fn low_water(&self) -> usize {
        self.limits.max_backlog / 4
    }

    /// Puts the connection on the list to flush.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, id: ConnId) {
        let conn = &mut self.conns[id.slot()];
        self.dirty.add(conn);
    }

    /// Marks a connection as flushed anyway, right after its input is handled.
    #[inline]
    pub(crate) fn promise_flush(&mut self, id: ConnId) {
        if let Some(conn) = self.conn_mut(id) {
            conn.set(flag::DIRTY, true);
        }
    }

    /// Puts the connection on the list of those that are read again.
    fn mark_resumed(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(id.slot()).filter(|conn| conn.id == id) {
            self.resumed.add(conn);
        }
    }

    /// Puts the connection on the list for `on_drain`.
    pub(crate) fn mark_drained(&mut self, id: ConnId) {
        let conn = &mut self.conns[id.slot()];
        self.drained.add(conn);
    }

    fn control(&mut self, id: ConnId, opcode: Opcode, payload: &[u8]) {
        let mask = self.conns[id.slot()].has(flag::CLIENT).then(|| self.masks.next());
        self.append(id, |out| match mask {
            None => ws::encode(opcode, payload, out),
            Some(key) => ws::encode_masked(opcode, payload, key, out),
        });
    }

    pub(crate) fn encode(&mut self, id: ConnId, opcode: Opcode, payload: &[u8], out: &mut Vec<u8>) {
        match self.conns[id.slot()].has(flag::CLIENT) {
            false => ws::encode(opcode, payload, out),
            true => ws::encode_masked(opcode, payload, self.masks.next(), out),
        }
    }

    pub(crate) fn append(&mut self, id: ConnId, write: impl FnOnce(&mut Vec<u8>)) {
        self.queue(id).append(write);
    }

    /// Returns the connection's queue, created if it has none; the connection will be flushed.
    pub(crate) fn queue(&mut self, id: ConnId) -> &mut Batch {
        let conn = &mut self.conns[id.slot()];
        self.dirty.add(conn);
        let fanned_out = conn.has(flag::FAN_OUT);
        conn.set(flag::FAN_OUT, false);
        let queue = conn.out.get_or_insert_with(|| self.spares.take());
        if fanned_out {
            self.fanout.move_to(id.slot(), queue);
        }
        queue
    }

    /// Moves frames published in this turn into the connection's queue.
    pub(crate) fn queue_fan_out(&mut self, id: ConnId) {
        if self.conn(id).is_some_and(|conn| conn.has(flag::FAN_OUT)) {
            self.queue(id);
        }
    }
}

/// Masking keys for our client side. RFC 6455 section 10.3 requires that a script inside a browser,
/// which chooses the payload, cannot predict them. Here only our own code chooses payloads, so a
/// fast generator with a random seed is enough.
#[derive(Debug)]
pub(crate) struct Masks(Random);

impl Masks {
    pub(crate) fn next(&mut self) -> [u8; 4] {
        ((self.0.bits() >> 32) as u32).to_ne_bytes()
    }
}
