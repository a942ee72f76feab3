//! What other modules see of each connection: its record, its deadlines, and the lists it is on.

use std::sync::Arc;

use throng_io::{ConnId, Instant};

use crate::backpressure::Rules;
use crate::conn::record::{Cold, Conn};
use crate::conn::stage::{Stage, flag};
use crate::conn::timers::Tick;
use crate::conn::work_list::WorkList;
use crate::connections::Connections;
use crate::connections::memory::ShardMemory;
use crate::limits::Checked;
use crate::message::{Fault, Refusal};
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
    lend!(table.set_subprotocol(&mut self, id: ConnId, name: &str));
    lend!(table.shed_cold(&mut self, id: ConnId));
    lend!(table.stage(&self, id: ConnId) -> Stage);
    lend!(table.subprotocol(&self, id: ConnId) -> Option<&str>);
    lend!(timers.due_in(&mut self, id: ConnId, secs: u16));
    lend!(timers.expire_lifetimes(&mut self) -> Vec<u32>);
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

    /// Sets the deadlines of a session or stream that opens.
    pub(crate) fn start_session(&mut self, id: ConnId) {
        let limits = *self.route_limits_of(id);
        self.timers.start_session(id, &limits);
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

    /// Starts or ends the deadline of an incomplete message.
    pub(crate) fn record_assembling(&mut self, id: ConnId, between: bool) {
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

    /// Removes and returns the connections of a list, each of which is [unlisted](Self::unlist) or
    /// [put back](Self::put_back).
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
