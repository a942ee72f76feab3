//! The view that other modules have of each connection: its record, its deadlines, and its lists.

use std::net::SocketAddr;
use std::sync::Arc;

use throng_io::{ConnId, Instant};

use crate::backpressure::Rules;
use crate::conn::record::{Admitted, Cold, Conn};
use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::conn::timers::Tick;
use crate::conn::work_list::WorkList;
use crate::connections::Connections;
use crate::connections::memory::ShardMemory;
use crate::limits::Checked;
use crate::message::{EndReason, Fault, Refusal};
use crate::outbox::borrowed::Borrowed;
use crate::outbox::compression::Compression;
use crate::stats::{ClassCounters, Stats};

/// A list of connections with work that the shard does later.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Listed {
    /// A message or request is incomplete.
    Incomplete,
    /// The peer is watched, since the connection is not read.
    Watched,
    /// `on_drain` is due.
    Drained,
    /// The connection is read again.
    Resumed,
}

/// Declares a method that a field has with the same meaning.
macro_rules! lend {
    ($field:ident.$name:ident(&self $(, $arg:ident: $of:ty)*) $(-> $result:ty)?) => {
        #[inline]
        pub(crate) fn $name(&self $(, $arg: $of)*) $(-> $result)? {
            self.$field.$name($($arg),*)
        }
    };
    ($field:ident.$name:ident(&mut self $(, $arg:ident: $of:ty)*) $(-> $result:ty)?) => {
        #[inline]
        pub(crate) fn $name(&mut self $(, $arg: $of)*) $(-> $result)? {
            self.$field.$name($($arg),*)
        }
    };
}

/// Declares a method that a part has for the record of a connection, if that is still there.
macro_rules! on_conn {
    ($name:ident, $field:ident.$method:ident) => {
        #[inline]
        pub(crate) fn $name(&mut self, id: ConnId) {
            if let Some(conn) = self.table.conn_mut(id) {
                self.$field.$method(conn);
            }
        }
    };
}

impl Connections {
    on_conn!(clear_deflate, outbox.clear_deflate);
    on_conn!(list_incomplete, reading.mark_incomplete);
    on_conn!(mark_dirty, outbox.mark_dirty);
    on_conn!(mark_drained, outbox.mark_drained);
    on_conn!(mark_unfinished, outbox.mark_unfinished);
    on_conn!(watch, reading.watch);
    on_conn!(drop_queue, outbox.drop_queue);

    lend!(outbox.borrowed(&mut self) -> &mut Borrowed);
    lend!(outbox.compression(&mut self) -> &mut Compression);
    lend!(outbox.rules(&self) -> &Arc<Rules>);
    lend!(reading.has_rates(&self) -> bool);
    lend!(table.cold(&self, id: ConnId) -> Option<&Cold>);
    lend!(table.cold_mut(&mut self, id: ConnId) -> Option<&mut Cold>);
    lend!(table.conn(&self, id: ConnId) -> Option<&Conn>);
    lend!(table.conn_mut(&mut self, id: ConnId) -> Option<&mut Conn>);
    lend!(table.has(&self, id: ConnId, flags: u32) -> bool);
    lend!(table.ids(&self) -> impl Iterator<Item = ConnId>);
    lend!(table.refusal(&self, id: ConnId) -> Option<Refusal>);
    lend!(table.set(&mut self, id: ConnId, flags: u32, on: bool));
    lend!(table.set_subprotocol(&mut self, id: ConnId, name: &str));
    lend!(table.stage(&self, id: ConnId) -> Stage);
    lend!(table.subprotocol(&self, id: ConnId) -> Option<&str>);
    lend!(timers.due_in(&mut self, id: ConnId, secs: u16));
    lend!(timers.spread_heartbeats(&mut self, by: usize));
    lend!(timers.tick(&self) -> Tick);
    lend!(outbox.counters(&self) -> &[ClassCounters]);
    lend!(outbox.dirty_at(&self, at: usize) -> Option<ConnId>);
    lend!(outbox.excess(&self, conn: &Conn) -> usize);
    lend!(outbox.has_published_enough(&self) -> bool);
    lend!(outbox.is_overfull(&self) -> bool);
    lend!(outbox.record_commands(&mut self, posted: usize));
    lend!(outbox.shed_memory(&mut self));

    /// Returns the ids of sessions and event streams, one by one: `next` is the slot to begin at.
    pub(crate) fn next_listener(&self, next: &mut usize) -> Option<ConnId> {
        let rest = *next..self.table.slots();
        let mut listeners = rest.filter_map(|slot| Some((slot, self.table.listener_in(slot)?)));
        let (slot, id) = listeners.next()?;
        *next = slot + 1;
        Some(id)
    }

    /// Returns the connection in `slot`, if there is one.
    #[inline]
    pub(crate) fn at_slot(&self, slot: u32) -> Option<ConnId> {
        self.table.in_slot(slot)
    }

    /// Returns the time of this turn.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Begins a turn.
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        self.now = now;
        self.stats.turns += 1;
        self.outbox.compression().begin_phase();
    }

    /// Returns the limits in force.
    #[inline]
    pub(crate) fn limits(&self) -> &Checked {
        &self.limits
    }

    /// Returns the counters.
    #[inline]
    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Changes counters.
    #[inline(always)]
    pub(crate) fn count(&mut self, change: impl FnOnce(&mut Stats)) {
        change(&mut self.stats);
    }

    /// Returns this shard's part of the account of memory.
    #[inline]
    pub(crate) fn memory(&mut self) -> &mut ShardMemory {
        &mut self.memory
    }

    /// Sets the deadline of a request, or of a part of it.
    pub(crate) fn await_handshake(&mut self, id: ConnId) {
        self.timers.due_in(id, self.limits.handshake);
    }

    /// Opens the session of an upgrade. Returns false if the connection ends.
    pub(crate) fn open_session(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.table.conn_mut(id).filter(|conn| !conn.is_finishing()) else {
            return false;
        };
        conn.advance(Stage::Open);
        conn.set(flag::SESSION, true);
        conn.set(flag::UPGRADING, conn.out.is_some());
        conn.set(flag::REQUEST | flag::ANSWERED, false);
        self.stats.opened += 1;
        self.stats.sessions += 1;
        self.forget_peer(id);
        self.start_session(id);
        true
    }

    /// Opens a stream of events.
    pub(crate) fn open_events(&mut self, id: ConnId) {
        self.stats.streams += 1;
        self.start_session(id);
        self.table.set(id, flag::REQUEST, false);
    }

    /// Sets the deadlines of a session or stream that opens.
    fn start_session(&mut self, id: ConnId) {
        let limits = *self.route_limits_of(id);
        self.timers.start_session(id, &limits);
    }

    /// Forgets what is known of the peer until the upgrade only.
    pub(crate) fn forget_peer(&mut self, id: ConnId) {
        if self.table.cold(id).is_some()
            && let Some(cold) = self.table.cold_mut(id)
        {
            (cold.peer, cold.tls) = (None, None);
            self.table.shed_cold(id);
        }
    }

    /// Begins to wait for the request of a client.
    pub(crate) fn await_client(
        &mut self,
        id: ConnId,
        peer: Option<SocketAddr>,
        admitted: Admitted,
    ) {
        if (peer.is_some() || admitted != Admitted::Counted)
            && let Some(cold) = self.table.cold_mut(id)
        {
            (cold.peer, cold.admitted) = (peer, admitted);
        }
        self.await_handshake(id);
    }

    /// Keeps the address that a connection's socket has, for a report, unless the address of its
    /// client is known. Returns whether it did.
    pub(crate) fn lend_peer(&mut self, id: ConnId, peer: Option<SocketAddr>) -> bool {
        let is_lent = peer.is_some() && self.table.cold(id).is_none_or(|it| it.peer.is_none());
        if is_lent && let Some(cold) = self.table.cold_mut(id) {
            cold.peer = peer;
        }
        is_lent
    }

    /// Forgets the address that was lent.
    pub(crate) fn take_peer(&mut self, id: ConnId) {
        if let Some(cold) = self.table.cold_mut(id) {
            cold.peer = None;
        }
        self.table.shed_cold(id);
    }

    /// Starts a request's deadline at its first byte; later bytes do not move it, so a slow drip
    /// ends on time.
    pub(crate) fn record_request(&mut self, id: ConnId, between: bool) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        if conn.has(flag::FINISHED) {
            // The peer has half-closed, and its earlier requests are answered.
            return self.finish(id, AfterFlush::Close);
        }
        // The first request's deadline runs since the accept.
        let begins = !between && !conn.has(flag::REQUEST | flag::PENDING);
        conn.set(flag::REQUEST, !between);
        if begins {
            self.await_handshake(id);
        }
        if !between {
            self.count_incomplete();
            self.list_incomplete(id);
        }
    }

    /// Keeps a stream of events alive, unless output in flight does. Nothing answers a comment; the
    /// write timeout detects a peer that is gone.
    pub(crate) fn keep_stream_alive(&mut self, id: ConnId, in_flight: bool) {
        if !in_flight {
            self.comment(id);
        }
        let interval = self.route_limits_of(id).heartbeat_interval;
        self.timers.await_heartbeat(id, interval);
    }

    /// Closes sessions that have reached the longest lifetime.
    pub(crate) fn end_lifetimes(&mut self) {
        for slot in self.timers.expire_lifetimes() {
            if let Some(id) = self.table.in_slot(slot) {
                let reason = EndReason::Lifetime;
                self.note_fault(id, Fault::Ended(reason));
                self.close(id, reason.code().get(), reason.text());
            }
        }
    }

    /// Closes sessions whose message has been incomplete for too long, and returns them.
    pub(crate) fn end_incomplete(&mut self, now: Tick) -> Vec<ConnId> {
        let mut late = Vec::new();
        let mut listed = self.take_listed(Listed::Incomplete);
        listed.retain(|&id| {
            let is_late = self.is_late(id, now);
            match is_late {
                Some(false) => return true,
                Some(true) => {
                    self.stats.timeouts += 1;
                    self.fail_for(id, EndReason::Reassembly);
                    late.push(id);
                }
                None => {}
            }
            self.unlist(Listed::Incomplete, id);
            false
        });
        self.put_back(Listed::Incomplete, listed);
        late
    }

    /// Returns whether a message or request that is incomplete should have come; `None` if there is
    /// none.
    fn is_late(&self, id: ConnId, now: Tick) -> Option<bool> {
        let conn = self.table.conn(id)?;
        match conn.stage() {
            // Its deadline is the connection's.
            Stage::Http => conn.has(flag::REQUEST).then_some(false),
            Stage::Open => {
                let since = self.table.cold(id)?.assembling?;
                // While we do not read the connection, we cause the delay.
                Some(!conn.has(flag::PAUSED) && now.since(since) > self.limits.reassembly)
            }
            // Its last message came together with its Close, or the rest is not needed.
            _ => None,
        }
    }

    /// Adds the slots whose deadline comes until `now` to `due`.
    pub(crate) fn take_due(&mut self, now: Tick, due: &mut Vec<u32>) {
        self.timers.advance(now, due);
    }

    /// Returns in how many seconds the next deadline comes; 1 if a list must be looked at.
    pub(crate) fn earliest_deadline(&self) -> Option<u32> {
        let is_listed = self.outbox.has_in_flight()
            || self.reading.has_incomplete()
            || self.reading.has_watched();
        if is_listed { Some(1) } else { self.timers.earliest() }
    }

    /// Counts the input of one read; returns false if the connection has exceeded its limit for
    /// this second.
    pub(crate) fn admit_input(&mut self, id: ConnId, messages: u64, bytes: u64) -> bool {
        let (now, limits) = (self.timers.tick(), self.route_limits_of(id).rates);
        self.reading.admit(id.slot(), now, (messages, bytes), limits)
    }

    /// Records whether a session's input ended `between` messages. `completed`: if a message is
    /// incomplete, it is not the message that was incomplete before.
    pub(crate) fn end_input(&mut self, id: ConnId, between: bool, completed: bool) {
        // Messages passed on in chunks hold next to no memory and have no deadline.
        let between = between || self.route_limits_of(id).streams;
        if !between {
            self.count_incomplete();
        }
        if between == self.table.has(id, flag::ASSEMBLING) || (completed && !between) {
            self.record_assembling(id, between);
        }
    }

    /// Starts or ends the deadline of an incomplete message.
    fn record_assembling(&mut self, id: ConnId, between: bool) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        conn.set(flag::ASSEMBLING, !between);
        let tick = self.timers.tick();
        if let Some(cold) = self.table.cold_mut(id) {
            cold.assembling = (!between).then_some(tick);
        }
        match between {
            true => self.table.shed_cold(id),
            false => self.list_incomplete(id),
        }
    }

    fn list(&mut self, of: Listed) -> &mut WorkList {
        match of {
            Listed::Incomplete => self.reading.incomplete(),
            Listed::Watched => self.reading.watched(),
            Listed::Resumed => self.reading.resumed(),
            Listed::Drained => self.outbox.drained(),
        }
    }

    /// Removes and returns the connections of a list. The caller [unlists](Self::unlist) each or
    /// [puts it back](Self::put_back).
    pub(crate) fn take_listed(&mut self, of: Listed) -> Vec<ConnId> {
        self.list(of).take()
    }

    /// Puts back connections that were taken.
    pub(crate) fn put_back(&mut self, of: Listed, ids: Vec<ConnId>) {
        self.list(of).put_back(ids);
    }

    /// Records that a connection that was taken is no longer listed.
    pub(crate) fn unlist(&mut self, of: Listed, id: ConnId) {
        let flag = self.list(of).flag();
        self.table.unlist(id, flag);
    }

    /// Returns whether connections continue that have waited for room, or for their turn.
    #[inline]
    pub(crate) fn has_continuing(&self) -> bool {
        self.outbox.has_drained() || self.reading.has_resumed()
    }

    /// Returns the recorded faults, and forgets them.
    #[inline]
    pub(crate) fn take_faults(&mut self) -> Vec<(ConnId, Fault)> {
        std::mem::take(&mut self.faults)
    }

    /// Returns the recorded faults of a connection, and forgets them.
    pub(crate) fn take_faults_of(&mut self, id: ConnId) -> Vec<(ConnId, Fault)> {
        self.faults.extract_if(.., |(of, _)| *of == id).collect()
    }

    /// Returns whether faults are recorded.
    #[inline]
    pub(crate) fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }
}
