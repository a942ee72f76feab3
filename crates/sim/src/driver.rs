//! The simulated driver: the second implementation of the contract.
//!
//! It answers as the contract allows a driver to answer, within the faults of its seed. It also
//! *asserts* the engine's duties under the contract, since a fake that only answers is half a test.
//! A breach panics at the wrong call.

mod calls;
mod parking;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use throng_io::{Batch, Closed, ConnId, Event, ListenerId, Wake};

use self::parking::Parked;
pub use self::parking::SimRecord;
use crate::faults::{Faults, strikes};
use crate::net::{LinkId, Readable, SharedNet, Side, SimSocket};
use crate::rng::Rng;

/// Behavior of a wait when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The caller turns a shard only when there is something to do: a wait that would sleep is a
    /// lost wake-up.
    Never,
    /// As `Never`, but permits calls that the contract ignores: calls with the id of a connection
    /// whose end was reported, and a close after an abort. An engine that ends two connections at
    /// the same time, such as a balancer, makes these calls.
    Tolerant,
    /// The clock jumps to the next event or to the deadline.
    Jump,
}

/// Counts of the engine's calls, for checkers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calls {
    /// Consecutive waits that ended only by their deadline, without a passage of time or a send
    /// since the previous wait.
    pub idle_turns_in_a_row: usize,
    /// Number of calls of `send` and `try_send`.
    pub sends: u64,
    /// Bytes passed to these calls.
    pub bytes_sent: u64,
    /// Sends that were pending.
    pub pending: u64,
    /// Connections adopted or connected.
    pub entered: u64,
}

/// A connection of this driver.
#[derive(Debug)]
struct Conn {
    link: LinkId,
    side: Side,
    connecting: Option<u64>,
    batch: Option<Box<Batch>>,
    /// Until this time the kernel takes no more of the batch, or does not report that all of it has
    /// left.
    batch_rests_until: u64,
    paused: bool,
    finished_reported: bool,
    fin_sent: bool,
    starved_until: u64,
    /// We closed the connection, or it ended: from now on the driver only reports its end.
    ending: Option<(u64, Closed)>,
}

impl Conn {
    fn new(link: LinkId, side: Side, connecting: Option<u64>) -> Self {
        Self {
            link,
            side,
            connecting,
            batch: None,
            batch_rests_until: 0,
            paused: false,
            finished_reported: false,
            fin_sent: false,
            starved_until: 0,
            ending: None,
        }
    }
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    conn: Option<Conn>,
    parked: Option<Parked>,
    /// The slot belongs to another process: the successor or the predecessor.
    away: bool,
}

/// The simulated driver of one shard.
pub struct SimDriver {
    net: SharedNet,
    shard: u16,
    listeners: Vec<usize>,
    accept_stopped: bool,
    /// Accepting fails until this is cleared, to simulate a lack of descriptors for the contract
    /// suite.
    pub starving: bool,
    faults: Faults,
    rng: Rng,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The slots that stay free in this driver while a successor has the others.
    kept: Option<Vec<usize>>,
    /// Connections to report as parked.
    parking: VecDeque<ConnId>,
    waiting: Waiting,
    wakeup: Arc<Flag>,
    /// The slots to check in this turn.
    round: VecDeque<usize>,
    events_left: usize,
    lent: Vec<u8>,
    /// Whether the bytes of `lent` are lent, which lasts until the next event or wait.
    lending: bool,
    last_wait: Option<u64>,
    /// Counts for the checkers.
    pub calls: Calls,
}

/// A waker for a thread that never sleeps: a flag that the next wait reads.
#[derive(Debug, Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl SimDriver {
    /// A driver on `net`, without listeners.
    #[must_use]
    pub fn new(net: &SharedNet, shard: u16, faults: Faults, rng: Rng, waiting: Waiting) -> Self {
        Self {
            net: SharedNet::clone(net),
            shard,
            listeners: Vec::new(),
            accept_stopped: false,
            starving: false,
            faults,
            rng,
            slots: Vec::new(),
            free: Vec::new(),
            kept: None,
            parking: VecDeque::new(),
            waiting,
            wakeup: Arc::default(),
            round: VecDeque::new(),
            events_left: 0,
            lent: Vec::new(),
            lending: false,
            last_wait: None,
            calls: Calls::default(),
        }
    }

    /// Accepts from a listener of the network; its connections carry the id returned.
    pub fn add_listener(&mut self, listener: usize) -> ListenerId {
        self.listeners.push(listener);
        ListenerId((self.listeners.len() - 1) as u16)
    }

    /// Returns the number of connections between adoption and the report of their end.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.slots.iter().filter(|slot| slot.conn.is_some() || slot.parked.is_some()).count()
    }

    /// Returns the maximum remaining bytes of any send in flight.
    #[must_use]
    pub fn most_in_flight(&self) -> usize {
        let conns = self.slots.iter().filter_map(|slot| slot.conn.as_ref());
        conns.filter_map(|conn| conn.batch.as_ref()).map(|batch| batch.len()).max().unwrap_or(0)
    }

    /// Does the kernel's work: sends pending batches as far as there is space.
    pub fn progress(&mut self) {
        let net = SharedNet::clone(&self.net);
        let mut net = net.borrow_mut();
        let now = net.now();
        for slot in &mut self.slots {
            let Some(conn) = &mut slot.conn else { continue };
            if conn.connecting.is_some_and(|at| at > now) || conn.ending.is_some() {
                continue;
            }
            let Some(batch) = &mut conn.batch else { continue };
            while !batch.is_empty() && conn.batch_rests_until <= now {
                let space = net.space(conn.link, conn.side);
                if space == 0 {
                    break;
                }
                let mut n = space.min(batch.len());
                if n > 1 && strikes(&mut self.rng, self.faults.partial_sends) {
                    n = 1 + self.rng.below(n);
                }
                leave(batch, &[], n, |bytes| net.write(conn.link, conn.side, bytes));
                let rests = !batch.is_empty() && n < space
                    || batch.is_empty() && strikes(&mut self.rng, self.faults.delayed_sends);
                if rests {
                    conn.batch_rests_until = now + self.rng.between(1_000, 3_000_000);
                }
            }
        }
    }

    /// Returns whether a wait would return at once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let now = self.net.borrow().now();
        let is_woken = self.wakeup.0.load(Ordering::Acquire) || !self.parking.is_empty();
        is_woken || self.next_event_at().is_some_and(|at| at <= now)
    }

    /// Returns when the next event is due, as far as is known now.
    #[must_use]
    pub fn next_event_at(&self) -> Option<u64> {
        let mut net = self.net.borrow_mut();
        let now = net.now();
        let incoming = self
            .listeners
            .iter()
            .filter(|_| !self.accept_stopped)
            .filter_map(|listener| net.next_incoming(*listener))
            .min();
        let mut next = incoming;
        let mut note = |at: u64| next = Some(next.map_or(at, |known: u64| known.min(at)));
        for conn in self.slots.iter().filter_map(|slot| slot.conn.as_ref()) {
            if let Some((at, _)) = conn.ending {
                note(at);
                continue;
            }
            if let Some(at) = conn.connecting {
                note(at);
                continue;
            }
            if let Some(batch) = &conn.batch
                && (batch.is_empty() || net.space(conn.link, conn.side) > 0)
            {
                note(conn.batch_rests_until);
            }
            let reads_nothing = conn.paused || conn.finished_reported;
            match net.kept(conn.link, conn.side) {
                _ if reads_nothing && net.knows_reset(conn.link, conn.side) => note(now),
                Readable::Reset => note(now),
                Readable::Bytes(_) if !conn.paused => note(conn.starved_until),
                Readable::Finished if !conn.paused && !conn.finished_reported => {
                    note(conn.starved_until);
                }
                _ => {}
            }
            if let Some(at) = net.next_change(conn.link, conn.side) {
                note(at);
            }
        }
        next
    }

    /// Ends the loan at the next event or wait, after which the lent bytes must not be read.
    fn take_back(&mut self) {
        if std::mem::take(&mut self.lending) {
            self.lent.fill(0xdd);
        }
    }

    /// Returns the connection with this `id`, if it has not ended.
    ///
    /// # Panics
    /// If `id` was never issued.
    #[track_caller]
    fn conn_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        if self.waiting == Waiting::Never {
            assert_eq!(id.shard(), usize::from(self.shard), "{id:?} is another shard's");
            let slot = self.slots.get(id.slot()).expect("an id that was never given out");
            assert!(id.generation() <= slot.generation, "an id that was never given out: {id:?}");
            assert!(
                id.generation() == slot.generation && slot.conn.is_some(),
                "a call with an id whose end was reported: {id:?}"
            );
        }
        let slot =
            self.slots.get_mut(id.slot()).filter(|_| id.shard() == usize::from(self.shard))?;
        slot.conn.as_mut().filter(|_| slot.generation == id.generation())
    }

    fn enter(&mut self, link: LinkId, side: Side, connecting: Option<u64>) -> ConnId {
        let slot = self.free.pop().unwrap_or_else(|| {
            assert!(self.kept.is_none(), "a successor has all other slots");
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        self.calls.entered += 1;
        let entry = &mut self.slots[slot];
        entry.generation += 1;
        entry.conn = Some(Conn::new(link, side, connecting));
        let id = ConnId::new(self.shard, slot as u32, entry.generation);
        self.mix(1, id.to_bits());
        id
    }

    fn mix(&self, what: u64, value: u64) {
        let mut net = self.net.borrow_mut();
        let now = net.now();
        net.trace.mix(what << 56 ^ u64::from(self.shard) << 48 ^ now);
        net.trace.mix(value);
        net.say(|| {
            let name = NAMES.get(what as usize % 16).unwrap_or(&"?");
            format!("{name} {:?} ({})", ConnId::from_bits(value), what / 16)
        });
    }

    fn end(&mut self, id: ConnId, why: Closed, reset: bool) {
        let delay = match strikes(&mut self.rng, self.faults.slow_closes) {
            true => self.rng.between(1_000, 2_000_000),
            false => 0,
        };
        let net = SharedNet::clone(&self.net);
        let mut net = net.borrow_mut();
        let at = net.now() + delay;
        let Some(conn) = self.conn_mut(id) else { return };
        if conn.ending.is_some() {
            return;
        }
        conn.ending = Some((at, why));
        if conn.batch.as_ref().is_some_and(|batch| !batch.is_empty()) {
            net.cut_short(conn.link, conn.side);
        }
        match reset {
            true => net.reset(conn.link, conn.side),
            false if net.has_other_socket(conn.link, conn.side) => {}
            false => net.close(conn.link, conn.side),
        }
    }

    fn next_accept(&mut self) -> Option<Event<'static, SimSocket>> {
        if self.accept_stopped {
            return None;
        }
        let net = SharedNet::clone(&self.net);
        let mut net = net.borrow_mut();
        let now = net.now();
        for (number, listener) in self.listeners.iter().enumerate() {
            if net.next_incoming(*listener).is_none_or(|at| at > now) {
                continue;
            }
            if self.starving || strikes(&mut self.rng, self.faults.accept_fails) {
                self.accept_stopped = true;
                return Some(Event::AcceptStopped(io::ErrorKind::Other));
            }
            let (socket, address) = net.accept(*listener)?;
            return Some(Event::Incoming(socket, Some(address), ListenerId(number as u16)));
        }
        None
    }

    /// Returns an event of the connection in `slot`, if there is one.
    fn look_at(&mut self, slot: usize) -> Option<Found> {
        let net = SharedNet::clone(&self.net);
        let mut net = net.borrow_mut();
        let now = net.now();
        let entry = &mut self.slots[slot];
        let id = ConnId::new(self.shard, slot as u32, entry.generation);
        let conn = entry.conn.as_mut()?;
        if let Some((at, why)) = conn.ending {
            if at > now {
                return None;
            }
            if let Some(batch) = conn.batch.take() {
                return Some(Found::Event(Event::Sent(id, batch)));
            }
            entry.conn = None;
            self.free_slot(slot);
            return Some(Found::Event(Event::Closed(id, why)));
        }
        if let Some(at) = conn.connecting {
            if at > now {
                return None;
            }
            if net.knows_reset(conn.link, conn.side) {
                conn.ending = Some((now, Closed::Refused));
                return Some(Found::Again);
            }
            conn.connecting = None;
            return Some(Found::Event(Event::Connected(id)));
        }
        let readable = net.kept(conn.link, conn.side);
        let reads_nothing = conn.paused || conn.finished_reported;
        if readable == Readable::Reset || reads_nothing && net.knows_reset(conn.link, conn.side) {
            conn.ending = Some((now, Closed::Reset));
            net.close(conn.link, conn.side);
            return Some(Found::Again);
        }
        if conn.batch_rests_until <= now
            && let Some(batch) = conn.batch.take_if(|batch| batch.is_empty())
        {
            return Some(Found::Event(Event::Sent(id, batch)));
        }
        if conn.paused || conn.starved_until > now {
            return None;
        }
        match readable {
            Readable::Bytes(n) => {
                if strikes(&mut self.rng, self.faults.starved_receives) {
                    conn.starved_until = now + self.rng.between(1_000, 1_000_000);
                    return None;
                }
                let mut n = n.min(self.faults.receive_buffer);
                match self.faults.cut_receives {
                    0 => {}
                    most => n = n.min(1 + self.rng.below(most)),
                }
                // The bytes move to another address each time, so that no engine relies on it.
                self.lent = Vec::with_capacity(n);
                net.read(conn.link, conn.side, n, &mut self.lent);
                Some(Found::Bytes(id))
            }
            Readable::Finished if !conn.finished_reported => {
                conn.finished_reported = true;
                Some(Found::Event(Event::Finished(id)))
            }
            _ => None,
        }
    }
}

/// The names of events for the log, and their numbers for the trace.
const NAMES: [&str; 16] = [
    "?",
    "enter",
    "accept",
    "received",
    "sent",
    "closed",
    "finished",
    "connected",
    "send",
    "pause",
    "resume",
    "finish",
    "close",
    "abort",
    "try_send",
    "parked",
];

enum Found {
    Event(Event<'static, SimSocket>),
    Bytes(ConnId),
    Again,
}

/// The first `n` bytes of a batch leave.
fn leave(batch: &mut Batch, lent: &[u8], n: usize, mut write: impl FnMut(&[u8])) {
    let mut left = n;
    while left > 0 {
        let mut slices = [io::IoSlice::new(&[]); 8];
        let filled = batch.gather(lent, &mut slices);
        let mut gone = 0;
        for slice in &slices[..filled] {
            let piece = slice.len().min(left - gone);
            write(&slice[..piece]);
            gone += piece;
        }
        assert!(gone > 0, "a batch that says it has bytes and gives none");
        batch.advance(gone);
        left -= gone;
    }
}
