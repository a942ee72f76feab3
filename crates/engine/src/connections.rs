//! The shard's table of connections, and everything that can be done to one from inside a callback.
//!
//! While bytes are lent the driver is borrowed, so nothing here touches a socket: output goes to the
//! connection's queue, and the connection to the list that [`Shard::flush`](crate::Shard) empties.

use throng_io::{Batch, ConnId, Segment};
use throng_proto::ws::{self, Opcode};

use crate::borrowed::{Borrowed, LARGE};
use crate::conn::{AfterFlush, Cold, Conn, Stage, flag};
use crate::frame::Frame;
use crate::limits::Checked;
use crate::rate::Rates;
use crate::slab::Slab;
use crate::spares::Spares;
use crate::stats::Stats;
use crate::tick::{Deadlines, Heartbeats, Tick};

/// What became of a message given to `send`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a slow receiver shows here, and only here"]
pub enum Sent {
    /// Queued with nothing ahead of it that the peer has not taken: it leaves in this turn.
    Written,
    /// Queued behind output that waits for the peer, or the queue has passed its high-water mark. Nothing is
    /// lost; `drain` is called when the backlog has fallen.
    Queued,
    /// Not sent: the connection's backlog is full, and the slow-consumer policy was applied.
    Dropped,
    /// Not sent: the connection is closed or closing.
    Closed,
}

/// What a connection's record says when bytes come.
pub(crate) struct Receiving {
    pub(crate) route: u16,
    pub(crate) data: u32,
    /// See [`Conn::harmless_len`].
    pub(crate) harmless_len: u16,
    /// A message was partly here before.
    pub(crate) assembling: bool,
}

/// Frames up to this many bytes are copied into queues: a reference costs as much, in memory and in a gathered send,
/// and would let tiny messages pass the backlog's limit, which counts bytes.
pub(crate) const SMALL_FRAME: usize = 64;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Connections {
    conns: Vec<Conn>,
    pub(crate) cold: Slab<Cold>,
    pub(crate) deadlines: Deadlines,
    /// The ends of sessions' lives; untouched while those have no limit.
    pub(crate) lifetimes: Deadlines,
    pub(crate) rates: Rates,
    pub(crate) dirty: Vec<ConnId>,
    /// `on_drain` is due for these.
    pub(crate) drained: Vec<ConnId>,
    /// Batches in flight, checked for progress at each sweep.
    pub(crate) in_flight: Vec<ConnId>,
    /// Messages partly here, checked for their deadline at each sweep.
    pub(crate) assembling: Vec<ConnId>,
    pub(crate) spares: Spares,
    pub(crate) borrowed: Borrowed,
    pub(crate) limits: Checked,
    pub(crate) stats: Stats,
    tick: Tick,
    heartbeats: Heartbeats,
    masks: Masks,
}

impl Connections {
    pub(crate) fn new(limits: Checked, capacity: usize, seed: u64) -> Self {
        Self {
            conns: Vec::with_capacity(capacity),
            cold: Slab::default(),
            deadlines: Deadlines::with_capacity(capacity),
            lifetimes: Deadlines::default(),
            rates: Rates::new(limits.max_messages_per_second, limits.max_bytes_per_second),
            dirty: Vec::new(),
            drained: Vec::new(),
            in_flight: Vec::new(),
            assembling: Vec::new(),
            spares: Spares::default(),
            borrowed: Borrowed::default(),
            heartbeats: Heartbeats::new(limits.heartbeat_interval, Tick::START),
            limits,
            stats: Stats::default(),
            tick: Tick::START,
            masks: Masks(seed | 1),
        }
    }

    /// Enters a connection that the driver has just named.
    pub(crate) fn enter(&mut self, id: ConnId, stage: Stage) {
        let slot = id.slot();
        while self.conns.len() <= slot {
            self.conns.push(Conn::new(ConnId::new(0, 0, 0), Stage::Free));
        }
        self.deadlines.add_slot(slot);
        self.rates.forget(slot);
        debug_assert_eq!(self.conns[slot].stage, Stage::Free, "a slot was named twice");
        self.conns[slot] = Conn::new(id, stage);
        self.stats.connections += 1;
    }

    /// Frees the slot of a connection whose last event has come.
    pub(crate) fn leave(&mut self, id: ConnId) {
        let slot = id.slot();
        let Some(conn) = self.conn_mut(id) else { return };
        let (out, cold, in_flight) = (conn.out.take(), conn.cold.take(), conn.has(flag::IN_FLIGHT));
        conn.stage = Stage::Free;
        conn.flags = 0;
        self.stats.connections -= 1;
        self.stats.backlogged -= u64::from(in_flight);
        if let Some(batch) = out {
            self.spares.give(batch);
        }
        if let Some(index) = cold {
            self.cold.remove(index);
        }
        self.deadlines.set(slot, Tick::NEVER);
        if self.limits.lifetime > 0 {
            self.lifetimes.add_slot(slot);
            self.lifetimes.set(slot, Tick::NEVER);
        }
    }

    /// The connection, if `id` still names one.
    #[inline]
    pub(crate) fn conn(&self, id: ConnId) -> Option<&Conn> {
        let conn = self.conns.get(id.slot())?;
        (conn.id == id && conn.stage != Stage::Free).then_some(conn)
    }

    /// The connection, if `id` still names one.
    #[inline]
    pub(crate) fn conn_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        let conn = self.conns.get_mut(id.slot())?;
        (conn.id == id && conn.stage != Stage::Free).then_some(conn)
    }

    /// Its stage; [`Stage::Free`] if `id` names nobody any more.
    #[inline]
    pub(crate) fn stage(&self, id: ConnId) -> Stage {
        self.conn(id).map_or(Stage::Free, |conn| conn.stage)
    }

    /// The connection in `slot`, if there is one.
    pub(crate) fn in_slot(&self, slot: u32) -> Option<ConnId> {
        let conn = self.conns.get(slot as usize)?;
        (conn.stage != Stage::Free).then_some(conn.id)
    }

    /// All connections.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnId> {
        self.conns.iter().filter(|conn| conn.stage != Stage::Free).map(|conn| conn.id)
    }

    /// Its cold record, made if there is none.
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

    /// Its cold record, if it has one.
    pub(crate) fn cold(&self, id: ConnId) -> Option<&Cold> {
        self.cold.entry(self.conn(id)?.cold?)
    }

    /// Gives the cold record back when it says nothing any more.
    pub(crate) fn shed_cold(&mut self, id: ConnId) {
        let Some(index) = self.conn(id).and_then(|conn| conn.cold) else { return };
        if self.cold.entry(index).is_some_and(Cold::is_idle) {
            self.cold.remove(index);
            if let Some(conn) = self.conn_mut(id) {
                conn.cold = None;
            }
        }
    }

    /// Bytes came from the peer of an open session: it lives, and will be flushed when they are dealt with. The
    /// one look at the record that receiving a message needs.
    #[inline]
    pub(crate) fn receiving(&mut self, id: ConnId) -> Option<Receiving> {
        let slot = id.slot();
        let conn = self.conns.get_mut(slot)?;
        if conn.id != id || conn.stage != Stage::Open {
            return None;
        }
        let flags = conn.flags;
        conn.flags = flags & !flag::PINGED | flag::DIRTY;
        let receiving = Receiving {
            route: conn.route,
            data: conn.data,
            harmless_len: conn.harmless_len,
            assembling: flags & flag::ASSEMBLING != 0,
        };
        if flags & flag::PINGED != 0 || !self.limits.heartbeat_always {
            self.deadlines.set(slot, self.heartbeats.due(slot));
        }
        Some(receiving)
    }

    /// The same after our Close, when only the peer's is still awaited; `None` when nothing is of interest any more.
    #[cold]
    pub(crate) fn receiving_late(&mut self, id: ConnId) -> Option<Receiving> {
        let conn = self.conn_mut(id)?;
        if conn.stage != Stage::Closing || conn.after_flush != AfterFlush::Nothing {
            return None;
        }
        conn.flags |= flag::DIRTY;
        Some(Receiving {
            route: conn.route,
            data: conn.data,
            harmless_len: 0,
            assembling: conn.has(flag::ASSEMBLING),
        })
    }

    /// Notes what needs no look at the limits any more.
    pub(crate) fn note_limits(&mut self, id: ConnId, limits: &ws::Limits) {
        if let Some(conn) = self.conn_mut(id) {
            conn.harmless_len = limits.max_whole_message().min(usize::from(u16::MAX)) as u16;
        }
    }

    /// The current second.
    pub(crate) fn tick(&self) -> Tick {
        self.tick
    }

    /// A new second has begun.
    pub(crate) fn set_tick(&mut self, now: Tick) {
        self.tick = now;
        self.heartbeats.refresh(now);
    }

    /// The session has begun: its first heartbeat is a whole interval away, its end a lifetime.
    pub(crate) fn start_session(&mut self, slot: usize) {
        self.deadlines.set(slot, self.heartbeats.due(slot));
        if self.limits.lifetime > 0 {
            self.lifetimes.add_slot(slot);
            self.lifetimes.set(slot, self.tick.after(self.limits.lifetime));
        }
    }

    /// Part of a request is here, and its answer is owed.
    pub(crate) fn is_in_request(&self, id: ConnId) -> bool {
        self.conn(id).is_some_and(|conn| conn.has(flag::REQUEST))
    }

    /// Sets the deadline of a connection, in seconds from now: never less, and less than one more, since the
    /// current second has already begun.
    pub(crate) fn due_in(&mut self, id: ConnId, secs: u16) {
        self.deadlines.set(id.slot(), self.tick.after(secs + 1));
    }

    /// Queues one message.
    #[inline]
    pub(crate) fn send(&mut self, id: ConnId, opcode: Opcode, payload: &[u8]) -> Sent {
        let high = self.high_water();
        match self.conns.get_mut(id.slot()) {
            // A small message to a session of a server that is where its sender wants it, so nearly all: one
            // look and one write.
            Some(conn)
                if conn.id == id
                    && payload.len() < LARGE
                    && conn.stage == Stage::Open
                    && conn.flags & (flag::NOT_PLAIN_TO_SEND | flag::DIRTY) == flag::DIRTY
                    && conn.out.as_ref().is_none_or(|out| out.len() + payload.len() <= high) =>
            {
                self.stats.messages_out += 1;
                let out = conn.out.get_or_insert_with(|| self.spares.take());
                out.append(|out| ws::encode(opcode, payload, out));
                Sent::Written
            }
            _ => self.send_rarely(id, opcode, payload),
        }
    }

    /// The same for any connection.
    #[inline(never)]
    fn send_rarely(&mut self, id: ConnId, opcode: Opcode, payload: &[u8]) -> Sent {
        let sent = match self.admit(id, payload.len()) {
            Ok(sent) => sent,
            Err(refused) => return refused,
        };
        self.stats.messages_out += 1;
        let flags = self.conns[id.slot()].flags;
        if flags & flag::CLIENT != 0 {
            let key = self.masks.next();
            self.append(id, |out| ws::encode_masked(opcode, payload, key, out));
            return sent;
        }
        // With a batch in flight the next flush is not the one that follows this event.
        let is_large = payload.len() >= LARGE && flags & flag::IN_FLIGHT == 0;
        match is_large.then(|| self.borrowed.piece(id, payload)).flatten() {
            Some(piece) => {
                let header = ws::encode_header(opcode, true, payload.len() as u64, None);
                let batch = self.queue(id);
                batch.append(|out| out.extend_from_slice(&header));
                batch.push(piece);
            }
            None => self.append(id, |out| ws::encode(opcode, payload, out)),
        }
        sent
    }

    /// Queues a reference to a finished frame.
    pub(crate) fn send_frame(&mut self, id: ConnId, frame: &Frame) -> Sent {
        let sent = match self.admit(id, frame.as_bytes().len()) {
            Ok(sent) => sent,
            Err(refused) => return refused,
        };
        self.stats.messages_out += 1;
        let batch = self.queue(id);
        if frame.as_bytes().len() <= SMALL_FRAME {
            batch.append(|out| out.extend_from_slice(frame.as_bytes()));
        } else {
            batch.push(Segment::Shared(frame.shared()));
        }
        sent
    }

    /// Queues raw bytes: HTTP, before there is a session.
    pub(crate) fn write(&mut self, id: ConnId, write: impl FnOnce(&mut Vec<u8>)) {
        if self.stage(id) < Stage::Closing {
            self.append(id, write);
        }
    }

    /// A ping of ours.
    pub(crate) fn ping(&mut self, id: ConnId) {
        if self.stage(id) == Stage::Open {
            self.stats.pings += 1;
            self.control(id, Opcode::Ping, &[]);
        }
    }

    /// Answers a ping. While output waits, only the latest unsent pong is kept, and it is first to leave
    /// (RFC 6455 section 5.5.3 lets one pong answer several pings), so that a peer that pings and does not read
    /// costs 131 bytes.
    pub(crate) fn pong(&mut self, id: ConnId, payload: &[u8]) {
        let conn = &self.conns[id.slot()];
        if !conn.has(flag::IN_FLIGHT) || conn.has(flag::UPGRADING) {
            self.control(id, Opcode::Pong, payload);
            return;
        }
        let mut bytes = Vec::with_capacity(payload.len() + 6);
        self.encode_control(id, Opcode::Pong, payload, &mut bytes);
        let replace = self.conns[id.slot()].has(flag::PONG_FIRST);
        let batch = self.queue(id);
        if replace {
            batch.pop_front();
        }
        // Not owned: nothing may be appended to a piece that the next pong replaces.
        batch.push_front(Segment::Shared(bytes.into()));
        self.conns[id.slot()].set(flag::PONG_FIRST, true);
    }

    /// Begins the closing handshake: a Close frame behind what is queued. Nothing is sent after it.
    pub(crate) fn close(&mut self, id: ConnId, code: u16, reason: &str) {
        if self.stage(id) != Stage::Open {
            return;
        }
        let mask = self.conns[id.slot()].has(flag::CLIENT).then(|| self.masks.next());
        self.append(id, |out| ws::encode_close(code, reason, mask, out));
        self.conns[id.slot()].stage = Stage::Closing;
        if let Some(cold) = self.cold_mut(id) {
            cold.closed_with = code;
        }
        self.due_in(id, self.limits.close);
    }

    /// Ends a session that cannot go on: what is queued is dropped, a Close frame takes its place, and the
    /// connection closes once that has left (RFC 6455 section 7.1.7).
    pub(crate) fn fail(&mut self, id: ConnId, code: u16, reason: &str) {
        if self.stage(id) == Stage::Open {
            if !self.conns[id.slot()].has(flag::UPGRADING) {
                self.drop_queue(id);
            }
            self.close(id, code, reason);
        }
        self.finish(id, AfterFlush::Linger);
    }

    /// Says what follows when the queue has left. Of two such wishes the ruder wins.
    pub(crate) fn finish(&mut self, id: ConnId, after: AfterFlush) {
        let Some(conn) = self.conn_mut(id) else { return };
        if conn.stage >= Stage::Lingering && after != AfterFlush::Abort {
            return;
        }
        if conn.after_flush != AfterFlush::Abort {
            conn.after_flush = after;
        }
        self.mark_dirty(id);
    }

    /// Drops what is queued and not yet with the driver.
    pub(crate) fn drop_queue(&mut self, id: ConnId) {
        let Some(conn) = self.conn_mut(id) else { return };
        conn.set(flag::PONG_FIRST, false);
        if let Some(batch) = conn.out.take() {
            self.spares.give(batch);
        }
    }

    /// Bytes queued, here and in the driver.
    #[inline]
    pub(crate) fn backlog(&self, id: ConnId) -> usize {
        let Some(conn) = self.conn(id) else { return 0 };
        let queued = conn.out.as_ref().map_or(0, |batch| batch.len());
        if conn.has(flag::IN_FLIGHT) {
            return queued + self.cold(id).map_or(0, |cold| cold.in_flight);
        }
        queued
    }

    /// The mark above which the connection is not read and sends say `Queued`.
    pub(crate) fn high_water(&self) -> usize {
        self.limits.max_backlog / 2
    }

    /// The mark at which reading goes on and `on_drain` comes.
    pub(crate) fn low_water(&self) -> usize {
        self.limits.max_backlog / 4
    }

    /// Puts the connection on the list to flush.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, id: ConnId) {
        let conn = &mut self.conns[id.slot()];
        if conn.flags & flag::DIRTY == 0 {
            conn.flags |= flag::DIRTY;
            self.dirty.push(id);
        }
    }

    /// Says that the connection will be flushed anyway, as soon as the bytes it sent us are dealt with.
    #[inline]
    pub(crate) fn promise_flush(&mut self, id: ConnId) {
        if let Some(conn) = self.conn_mut(id) {
            conn.flags |= flag::DIRTY;
        }
    }

    /// Puts the connection on the list for `on_drain`.
    pub(crate) fn mark_drained(&mut self, id: ConnId) {
        let conn = &mut self.conns[id.slot()];
        if !conn.has(flag::DRAIN_LISTED) {
            conn.set(flag::DRAIN_LISTED, true);
            self.drained.push(id);
        }
    }

    /// Whether a message of `len` may be queued, and what its sender is told.
    fn admit(&mut self, id: ConnId, len: usize) -> Result<Sent, Sent> {
        let high = self.high_water();
        let Some(conn) = self.conns.get(id.slot()) else { return Err(Sent::Closed) };
        if conn.id != id || conn.stage != Stage::Open {
            return Err(Sent::Closed);
        }
        if conn.flags & flag::IN_FLIGHT == 0 {
            match &conn.out {
                None => return Ok(Sent::Written),
                Some(batch) if batch.len() + len <= high => return Ok(Sent::Written),
                Some(_) => {}
            }
        }
        self.admit_behind(id, len)
    }

    /// The same, for a connection that is not where its sender wants it.
    #[cold]
    fn admit_behind(&mut self, id: ConnId, len: usize) -> Result<Sent, Sent> {
        let (backlog, max, high) = (self.backlog(id), self.limits.max_backlog, self.high_water());
        let conn = &mut self.conns[id.slot()];
        let in_flight = conn.has(flag::IN_FLIGHT);
        // Only a peer that does not take bytes is slow: without a batch in flight the kernel was not asked yet. The
        // backlog before this message counts, so that a message of any size finds its way into a short queue.
        if in_flight && backlog > max {
            conn.set(flag::BEHIND, true);
            self.stats.messages_dropped += 1;
            self.stats.slow_consumers += 1;
            self.fail(id, 1008, "slow consumer");
            return Err(Sent::Dropped);
        }
        if in_flight || backlog + len > high {
            conn.set(flag::BEHIND, true);
            return Ok(Sent::Queued);
        }
        Ok(Sent::Written)
    }

    fn control(&mut self, id: ConnId, opcode: Opcode, payload: &[u8]) {
        let mask = self.conns[id.slot()].has(flag::CLIENT).then(|| self.masks.next());
        self.append(id, |out| match mask {
            None => ws::encode(opcode, payload, out),
            Some(key) => ws::encode_masked(opcode, payload, key, out),
        });
    }

    fn encode_control(&mut self, id: ConnId, opcode: Opcode, payload: &[u8], out: &mut Vec<u8>) {
        match self.conns[id.slot()].has(flag::CLIENT) {
            false => ws::encode(opcode, payload, out),
            true => ws::encode_masked(opcode, payload, self.masks.next(), out),
        }
    }

    fn append(&mut self, id: ConnId, write: impl FnOnce(&mut Vec<u8>)) {
        self.queue(id).append(write);
    }

    /// The connection's queue, made if it has none; the connection will be flushed.
    fn queue(&mut self, id: ConnId) -> &mut Batch {
        let conn = &mut self.conns[id.slot()];
        if conn.flags & flag::DIRTY == 0 {
            conn.flags |= flag::DIRTY;
            self.dirty.push(id);
        }
        conn.out.get_or_insert_with(|| self.spares.take())
    }
}

/// Masking keys for our client side. RFC 6455 section 10.3 wants them unpredictable to a script inside a browser
/// that chooses the payload; nobody but us chooses ours, so a fast generator with a random seed does.
#[derive(Debug)]
struct Masks(u64);

impl Masks {
    fn next(&mut self) -> [u8; 4] {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32) as u32).to_ne_bytes()
    }
}
