//! Output of connections: from a message that is sent to the one flush of a turn.

pub(crate) mod about;
mod admit;
pub(crate) mod behind;
pub(crate) mod borrowed;
pub(crate) mod compression;
mod congested;
mod fanout;
pub(crate) mod frame;
mod put;
mod queue;
pub(crate) mod sent;
pub(crate) mod spares;
mod waiting;

pub(crate) use admit::{FormError, TooSlow};
pub(crate) use fanout::Form;
pub(crate) use queue::{Content, Millis};

use std::sync::Arc;

use throng_io::{Batch, ConnId};
use throng_proto::ws::deflate;

use crate::backpressure::Rules;
use crate::conn::map::ConnMap;
use crate::conn::record::Conn;
use crate::conn::stage::{Stage, flag};
use crate::conn::work_list::WorkList;
use crate::limits::Checked;
use crate::outbox::behind::Behind;
use crate::outbox::borrowed::{Borrowed, LARGE};
use crate::outbox::compression::Compression;
use crate::outbox::congested::Congested;
use crate::outbox::fanout::Fanout;
use crate::outbox::spares::Spares;
use crate::random::Random;
use crate::stats::ClassCounters;

/// Budget for the publications of one turn (`fanout::COST` each, or the bytes they put into queues)
/// before all are flushed, and before a publisher's further messages wait for the next turn.
/// Without it one packet of tiny messages to thousands of members would take gigabytes, and seconds
/// in which no other connection is served. Large enough that a burst to 15,000 members still leaves
/// in few sends.
const PUBLISH_BUDGET: usize = 16 << 20;

/// Cost of a command to another shard in [`PUBLISH_BUDGET`]: 32,768 of them end a turn's decoding.
const COMMAND_COST: usize = PUBLISH_BUDGET >> 15;

/// Value of [`Outbox::published`] when a queue has passed its limit within this turn, which only a
/// flush can distinguish from a slow reader. It exceeds any budget, so that one comparison checks
/// both.
const OVERFULL: usize = 1 << (usize::BITS - 1);

/// Limits on output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutboxLimits {
    /// Bytes that wait for one connection.
    pub(crate) max_backlog: usize,
    /// Length above which messages are sent in fragments.
    pub(crate) fragment_threshold: usize,
    pub(crate) fragment_size: usize,
    /// Largest message as a server-sent event.
    pub(crate) max_event: usize,
}

impl OutboxLimits {
    pub(crate) fn new(limits: &Checked) -> Self {
        Self {
            max_backlog: limits.max_backlog,
            fragment_threshold: limits.fragment_threshold,
            fragment_size: limits.fragment_size,
            max_event: limits.route.ws.max_message_size,
        }
    }
}

/// The output of a shard's connections: their queues, the parts they share, and the lists of
/// connections to flush.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Length below which messages are sent whole and by a copy: the fast path.
    fast_below: usize,
    /// Mark above which a connection is not read and sends return `Queued`.
    high_water: usize,
    spares: Spares,
    dirty: WorkList,
    /// Cost of publications since the last flush of all; see [`PUBLISH_BUDGET`] and [`OVERFULL`].
    published: usize,
    fanout: Fanout,
    compression: Compression,
    borrowed: Borrowed,
    masks: Masks,
    limits: OutboxLimits,
    rules: Arc<Rules>,
    /// Indexed by class.
    counters: Vec<ClassCounters>,
    /// Output of connections whose peer did not take all.
    congested: ConnMap<Congested>,
    /// Connections with more output than one flush sends: they are flushed in the next turn.
    unfinished: WorkList,
    /// Connections for which `on_drain` is due.
    drained: WorkList,
    /// Batches in flight, checked for progress at each sweep.
    in_flight: WorkList,
    behind: ConnMap<Behind>,
}

/// Returns the length below which messages are sent whole and by a copy.
fn fast_below(limits: &OutboxLimits) -> usize {
    LARGE.min(limits.fragment_threshold.saturating_add(1))
}

impl Outbox {
    pub(crate) fn new(limits: OutboxLimits, rules: Arc<Rules>, seed: u64) -> Self {
        Self {
            fast_below: fast_below(&limits),
            high_water: limits.max_backlog / 2,
            spares: Spares::default(),
            dirty: WorkList::new(flag::DIRTY),
            published: 0,
            fanout: Fanout::default(),
            compression: Compression::default(),
            borrowed: Borrowed::default(),
            masks: Masks(Random::new(seed)),
            limits,
            counters: vec![ClassCounters::default(); rules.names().count()],
            rules,
            congested: ConnMap::default(),
            unfinished: WorkList::new(flag::UNFINISHED_LISTED),
            drained: WorkList::new(flag::DRAIN_LISTED),
            in_flight: WorkList::new(flag::FLIGHT_LISTED),
            behind: ConnMap::default(),
        }
    }

    /// Applies other limits and rules to later output. The numbers of existing classes keep their
    /// meaning.
    pub(crate) fn configure(&mut self, limits: OutboxLimits, rules: Arc<Rules>) {
        self.fast_below = fast_below(&limits);
        self.high_water = limits.max_backlog / 2;
        self.limits = limits;
        self.counters.resize(rules.names().count(), ClassCounters::default());
        self.rules = rules;
    }

    /// Drops all output of a connection that is gone.
    pub(crate) fn leave(&mut self, conn: &mut Conn) {
        let slot = conn.id.slot();
        self.fanout.forget(slot);
        self.compression.forget(slot);
        self.drop_behind(conn);
        if let Some(batch) = conn.out.take() {
            self.spares.give(batch);
        }
        if conn.has(flag::IN_FLIGHT | flag::WAITING)
            && let Some(waiting) = self.congested.remove(&conn.id).and_then(Congested::into_waiting)
        {
            waiting.discard(&mut self.counters);
        }
    }

    /// Returns the connection's queue if a message of `len` bytes only has to be appended to it:
    /// true for a small message to a server's session with the usual flags, and so for nearly all
    /// messages.
    #[inline(always)]
    pub(crate) fn fast_queue<'c>(
        &mut self,
        conn: &'c mut Conn,
        len: usize,
    ) -> Option<&'c mut Batch> {
        const FLAGS: u32 = flag::SEND_SLOW_MASK | flag::DIRTY;
        if len >= self.fast_below || !conn.status().is_exactly(Stage::Open, FLAGS, flag::DIRTY) {
            return None;
        }
        match &mut conn.out {
            Some(out) if out.len() + len > self.high_water => None,
            Some(out) => Some(out),
            // Not `insert`, which is not inlined.
            none => Some(none.get_or_insert_with(|| self.spares.take())),
        }
    }

    /// Returns whether this is an open session whose output leaves as it comes. False only means
    /// that more must be checked.
    #[inline(always)]
    pub(crate) fn is_free(&self, conn: &Conn) -> bool {
        conn.status().is_exactly(Stage::Open, flag::CONTINUE_SLOW_MASK, 0)
            && conn.out.as_ref().is_none_or(|out| out.len() <= self.high_water)
    }

    /// Appends bytes to the connection's queue.
    pub(crate) fn append(&mut self, conn: &mut Conn, write: impl FnOnce(&mut Vec<u8>)) {
        self.queue(conn).append(write);
    }

    /// Returns the connection's queue, created if it has none; the connection will be flushed.
    fn queue<'c>(&mut self, conn: &'c mut Conn) -> &'c mut Batch {
        self.dirty.add(conn);
        let fanned_out = conn.has(flag::FAN_OUT);
        conn.set(flag::FAN_OUT, false);
        let slot = conn.id.slot();
        let queue = conn.out.get_or_insert_with(|| self.spares.take());
        if fanned_out {
            self.fanout.move_to(slot, queue);
        }
        queue
    }

    /// Moves frames published in this turn into the connection's queue.
    pub(crate) fn queue_fan_out(&mut self, conn: &mut Conn) {
        if conn.has(flag::FAN_OUT) {
            self.queue(conn);
        }
    }

    /// Keeps the memory of a batch that is no longer needed.
    #[inline]
    pub(crate) fn give(&mut self, batch: Box<Batch>) {
        self.spares.give(batch);
    }

    /// Drops output that is queued and not yet with the driver.
    pub(crate) fn drop_queue(&mut self, conn: &mut Conn) {
        let waited = conn.has(flag::WAITING);
        conn.set(flag::WAITING | flag::FAN_OUT, false);
        self.drop_behind(conn);
        if let Some(batch) = conn.out.take() {
            self.spares.give(batch);
        }
        self.fanout.forget(conn.id.slot());
        if let Some(congested) = self.congested.get_mut(&conn.id) {
            congested.pong_first = false;
            if waited && let Some(waiting) = congested.waiting.take() {
                waiting.discard(&mut self.counters);
            }
        }
        self.shed(conn);
    }

    /// Returns the bytes queued: here, in the per-message queue, and in the driver.
    #[inline]
    pub(crate) fn backlog(&self, conn: &Conn) -> usize {
        self.backlog_of(conn, Congested::waiting_bytes)
    }

    /// Returns the bytes queued except messages that may still be dropped: the measure of whether
    /// the peer reads its own answers.
    #[inline]
    pub(crate) fn kept_backlog(&self, conn: &Conn) -> usize {
        self.backlog_of(conn, Congested::waiting_kept)
    }

    #[inline]
    fn backlog_of(&self, conn: &Conn, of_waiting: impl Fn(&Congested) -> usize) -> usize {
        let listed = if conn.has(flag::FAN_OUT) { self.fanout.len(conn.id.slot()) } else { 0 };
        let behind = if conn.has(flag::HELD) { self.bytes_behind(conn) } else { 0 };
        let queued = behind + listed + conn.out.as_ref().map_or(0, |batch| batch.len());
        if conn.has(flag::IN_FLIGHT | flag::WAITING) {
            let Some(congested) = self.congested.get(&conn.id) else { return queued };
            return queued + congested.in_flight + of_waiting(congested);
        }
        queued
    }

    /// Returns the memory of this connection's output, without the driver's part, and of the
    /// contexts of its compression.
    pub(crate) fn memory(&self, conn: &Conn) -> usize {
        let queued = conn.out.as_ref().map_or(0, |batch| batch.memory());
        let waiting = self.congested.get(&conn.id).map_or(0, Congested::waiting_memory);
        queued + waiting + self.bytes_behind(conn) + self.compression.memory(conn.id.slot())
    }

    /// Frees memory that only large or compressed messages needed.
    pub(crate) fn shed_memory(&mut self) {
        self.compression.shed_memory();
        self.spares = Spares::default();
    }

    /// Returns the mark above which a connection is not read and sends return `Queued`.
    #[inline]
    pub(crate) fn high_water(&self) -> usize {
        self.high_water
    }

    /// Returns the mark at which reading resumes and `on_drain` is called.
    pub(crate) fn low_water(&self) -> usize {
        self.limits.max_backlog / 4
    }

    /// Returns the rules for slow receivers.
    pub(crate) fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// Returns the counters of each class.
    pub(crate) fn counters(&self) -> &[ClassCounters] {
        &self.counters
    }

    /// Returns the counters of each class.
    pub(crate) fn counters_mut(&mut self) -> &mut [ClassCounters] {
        &mut self.counters
    }

    /// Returns the shard's codec.
    pub(crate) fn compression(&mut self) -> &mut Compression {
        &mut self.compression
    }

    /// Returns the memory in which received messages lie.
    pub(crate) fn borrowed(&mut self) -> &mut Borrowed {
        &mut self.borrowed
    }

    /// Records that permessage-deflate was agreed on. Returns false if that is impossible.
    pub(crate) fn set_deflate(
        &mut self,
        conn: &mut Conn,
        policy: deflate::Policy,
        agreed: deflate::Agreed,
    ) -> bool {
        let set = self.compression.set(conn.id.slot(), policy, agreed);
        if set {
            conn.set(flag::DEFLATE, true);
        }
        set
    }

    /// Drops the agreement on permessage-deflate of an upgrade that was not completed.
    pub(crate) fn clear_deflate(&mut self, conn: &mut Conn) {
        conn.set(flag::DEFLATE, false);
        self.compression.forget(conn.id.slot());
    }

    /// Returns the slots of connections that keep a context of compression.
    pub(crate) fn slots_with_context(&self) -> impl Iterator<Item = u32> {
        self.compression.slots()
    }

    /// Returns whether publications have used up their part of the turn.
    #[inline]
    pub(crate) fn has_published_enough(&self) -> bool {
        self.published > PUBLISH_BUDGET
    }

    /// Returns whether the codec has worked enough on the input of one connection.
    #[inline]
    pub(crate) fn has_worked_enough(&self) -> bool {
        self.compression.has_worked_enough()
    }

    /// Counts a publication's commands against the turn's budget.
    pub(crate) fn record_commands(&mut self, posted: usize) {
        self.published += posted * COMMAND_COST;
    }

    /// Uses up the turn's budget: further messages of a publisher wait for the next flush of all.
    pub(crate) fn use_up_budget(&mut self) {
        self.published = self.published.max(PUBLISH_BUDGET + 1);
    }

    /// Returns whether a queue has passed its limit within this turn.
    pub(crate) fn is_overfull(&self) -> bool {
        self.published >= OVERFULL
    }

    /// Puts a connection on the list to flush.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, conn: &mut Conn) {
        self.dirty.add(conn);
    }

    /// Puts a connection on the list for `on_drain`.
    pub(crate) fn mark_drained(&mut self, conn: &mut Conn) {
        self.drained.add(conn);
    }

    /// Puts a connection on the list for the next turn's flush.
    pub(crate) fn mark_unfinished(&mut self, conn: &mut Conn) {
        self.unfinished.add(conn);
    }

    /// Returns the connection at this place of the list to flush.
    #[inline]
    pub(crate) fn dirty_at(&self, at: usize) -> Option<ConnId> {
        self.dirty.get(at)
    }

    /// Returns whether there is nothing to flush and `on_drain` is not due for any connection.
    pub(crate) fn is_idle(&self) -> bool {
        self.dirty.is_empty() && self.drained.is_empty()
    }

    /// Returns the list of connections for which `on_drain` is due.
    pub(crate) fn drained(&mut self) -> &mut WorkList {
        &mut self.drained
    }

    /// Returns whether `on_drain` is due for any connection.
    pub(crate) fn has_drained(&self) -> bool {
        !self.drained.is_empty()
    }

    /// Returns the bytes published in this turn to a connection that gets nothing else.
    #[inline]
    pub(crate) fn fan_out_bytes(&mut self, conn: &Conn) -> &[u8] {
        self.fanout.bytes(conn.id.slot())
    }

    /// Records that these bytes have left.
    #[inline]
    pub(crate) fn record_fan_out(&mut self, conn: &mut Conn) {
        self.fanout.forget(conn.id.slot());
        conn.set(flag::FAN_OUT | flag::DIRTY, false);
    }

    /// Clears what one flush of all has sent. Returns the connections that have more to send.
    pub(crate) fn end_flush(&mut self) -> Vec<ConnId> {
        self.dirty.clear();
        self.fanout.clear();
        self.published = 0;
        self.unfinished.take()
    }

    /// Returns the length of the longest list of connections; for audits.
    pub(crate) fn longest_list(&self) -> usize {
        let lists = [&self.dirty, &self.drained, &self.in_flight, &self.unfinished];
        lists.into_iter().map(WorkList::len).max().unwrap_or(0)
    }
}

/// Masking keys for our client side. RFC 6455 section 10.3 requires that a script inside a browser,
/// which chooses the payload, cannot predict them. Here only our own code chooses payloads, so a
/// fast generator with a random seed is enough.
#[derive(Debug)]
struct Masks(Random);

impl Masks {
    fn next(&mut self) -> [u8; 4] {
        ((self.0.bits() >> 32) as u32).to_ne_bytes()
    }

    /// Returns the masking key for the next frame to this connection, if we mask its frames.
    fn for_conn(&mut self, conn: &Conn) -> Option<[u8; 4]> {
        conn.has(flag::CLIENT).then(|| self.next())
    }
}
