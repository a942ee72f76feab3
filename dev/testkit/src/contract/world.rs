//! A rig with the bookkeeping that detects violations of the contract.

use std::collections::HashMap;
use std::io;

use throng_io::PeerAddress;
use throng_io::batch::{Batch, Segment};
use throng_io::driver::{Closed, Driver, Event, ListenerId, SendOutcome};
use throng_io::id::ConnId;
use throng_io::time::Instant;

use super::{PeerRead, Rig};

/// Number of events in one turn above which the turn is assumed never to end.
const TURN: usize = 100_000;

/// An event, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A connection came in and was adopted.
    Adopted(ConnId),
    /// A connection came in and is kept in [`World::stash`].
    Stashed,
    /// An [`Event::AcceptStopped`].
    AcceptStopped,
    /// An [`Event::Connected`].
    Connected(ConnId),
    /// An [`Event::Secured`]. It is not recorded, so that tests need not expect it.
    Secured(ConnId),
    /// An [`Event::Received`], with the number of bytes.
    Received(ConnId, usize),
    /// An [`Event::Finished`].
    Finished(ConnId),
    /// An [`Event::Sent`], with the number of bytes left in the batch.
    Sent(ConnId, usize),
    /// An [`Event::Parked`].
    Parked(ConnId),
    /// An [`Event::Closed`].
    Closed(ConnId, Closed),
}

#[derive(Default)]
struct Conn {
    received: Vec<u8>,
    in_flight: bool,
    connecting: bool,
    secured: bool,
    paused: bool,
    finished: bool,
    closing: bool,
    closed: bool,
    /// To be parked, or parked.
    parking: bool,
    parked: bool,
}

/// A rig whose events are checked and recorded.
pub struct World<R: Rig> {
    /// The rig.
    pub rig: R,
    /// Every event so far.
    pub seen: Vec<Seen>,
    /// Waits so far.
    pub waits: usize,
    /// Accepted sockets, kept here instead of being adopted while `stashing`.
    pub stash: Vec<<R::Driver as Driver>::Socket>,
    /// The listener of every accepted socket so far.
    pub from: Vec<ListenerId>,
    /// Whether accepted sockets go to `stash`.
    pub stashing: bool,
    /// Drivers that were replaced.
    pub old: Vec<R::Driver>,
    conns: HashMap<ConnId, Conn>,
}

/// The record of a parked connection of a rig's driver.
pub type RecordOf<R> = <<R as Rig>::Driver as Driver>::Record;

impl<R: Rig> Default for World<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: Rig> World<R> {
    /// Creates a world without events.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rig: R::new(),
            seen: Vec::new(),
            waits: 0,
            stash: Vec::new(),
            from: Vec::new(),
            stashing: false,
            old: Vec::new(),
            conns: HashMap::new(),
        }
    }

    /// Returns the driver's time.
    pub fn now(&mut self) -> Instant {
        self.rig.driver().now()
    }

    /// Waits until `deadline`.
    pub fn wait(&mut self, deadline: Option<Instant>) {
        self.waits += 1;
        self.rig.driver().wait(deadline).expect("a wait fails only if the shard is unusable");
    }

    /// Takes, checks and records the next event. Incoming connections are adopted or stashed.
    pub fn next_event(&mut self) -> Option<Seen> {
        let seen = match self.rig.driver().next_event()? {
            Event::Incoming(socket, _, listener) if self.stashing => {
                self.from.push(listener);
                self.stash.push(socket);
                Seen::Stashed
            }
            Event::Incoming(socket, _, listener) => {
                self.from.push(listener);
                Seen::Adopted(self.adopt(socket))
            }
            Event::AcceptStopped(_) => Seen::AcceptStopped,
            Event::Connected(id) => {
                let conn = live(&mut self.conns, id, "Connected");
                assert!(std::mem::take(&mut conn.connecting), "{id:?} connected twice");
                Seen::Connected(id)
            }
            Event::Secured(id, _) => {
                let conn = live(&mut self.conns, id, "Secured");
                assert!(!std::mem::replace(&mut conn.secured, true), "C12: {id:?} secured twice");
                assert!(conn.received.is_empty(), "C12: {id:?} received before it was secured");
                return Some(Seen::Secured(id));
            }
            Event::PassedThrough(id, _) => panic!("C12: {id:?} has no route"),
            Event::Received(id, bytes) => {
                assert!(!bytes.is_empty(), "an empty receive");
                let conn = live(&mut self.conns, id, "Received");
                assert!(!conn.connecting, "{id:?} received before it was connected");
                assert!(!conn.paused, "C8: {id:?} received while paused");
                assert!(!conn.finished, "C9: {id:?} received after the end of stream");
                assert!(!conn.closing, "{id:?} received after we closed it");
                conn.received.extend_from_slice(bytes);
                Seen::Received(id, bytes.len())
            }
            Event::Finished(id) => {
                let conn = live(&mut self.conns, id, "Finished");
                assert!(!std::mem::replace(&mut conn.finished, true), "C9: {id:?} finished twice");
                assert!(!conn.paused, "C8: {id:?} finished while paused");
                assert!(!conn.closing, "{id:?} finished after we closed it");
                Seen::Finished(id)
            }
            Event::Sent(id, batch) => {
                let conn = live(&mut self.conns, id, "Sent");
                assert!(
                    std::mem::take(&mut conn.in_flight),
                    "C3: {id:?} sent without a send in flight"
                );
                Seen::Sent(id, batch.len())
            }
            Event::Parked(id) => {
                let conn = live(&mut self.conns, id, "Parked");
                assert!(conn.parking, "C14: {id:?} parked by itself");
                conn.parked = true;
                Seen::Parked(id)
            }
            Event::Closed(id, why) => {
                let conn = live(&mut self.conns, id, "Closed");
                conn.closed = true;
                assert!(!conn.in_flight, "C3: {id:?} closed, and its batch was not returned");
                let ours = conn.closing;
                assert!(ours || why != Closed::Local, "C9: {id:?} closed locally without a close");
                assert!(
                    (why == Closed::Refused) <= conn.connecting,
                    "C9: {id:?} refused after it was connected"
                );
                Seen::Closed(id, why)
            }
        };
        self.seen.push(seen);
        Some(seen)
    }

    /// Takes all events of the turn; returns their number.
    pub fn drain(&mut self) -> usize {
        let before = self.seen.len();
        while self.next_event().is_some() {
            assert!(self.seen.len() - before < TURN, "a turn that does not end");
        }
        self.seen.len() - before
    }

    /// Waits for one slice and takes its events; returns their number.
    pub fn turn(&mut self) -> usize {
        self.rig.step();
        let deadline = self.now().after(R::SLICE);
        self.wait(Some(deadline));
        self.drain()
    }

    /// Runs turns until `holds` returns true.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let end = self.now().after(R::TIMEOUT);
        while !holds(self) {
            if self.now() > end {
                let last = self.seen.len().saturating_sub(20);
                panic!("timed out waiting for {what}; last events: {:?}", &self.seen[last..]);
            }
            self.turn();
        }
    }

    /// Runs turns until that event has been seen.
    #[track_caller]
    pub fn until_seen(&mut self, seen: Seen) {
        self.until(&format!("{seen:?}"), |world| world.saw(seen));
    }

    /// Returns how often that event was seen.
    #[must_use]
    pub fn count(&self, seen: Seen) -> usize {
        self.seen.iter().filter(|&&it| it == seen).count()
    }

    /// Returns whether that event was seen.
    #[must_use]
    pub fn saw(&self, seen: Seen) -> bool {
        self.count(seen) > 0
    }

    /// Waits for ten slices, and asserts that there are no events and that the driver sleeps.
    #[track_caller]
    pub fn assert_idle(&mut self) {
        let (waits, end) = (self.waits, self.now().after(R::SLICE * 10));
        while self.now() < end {
            self.wait(Some(end));
            let events = self.drain();
            assert_eq!(
                events,
                0,
                "unexpected events: {:?}",
                &self.seen[self.seen.len() - events..]
            );
            let waits = self.waits - waits;
            assert!(waits <= 10, "C6: {waits} waits for one deadline: it spins");
        }
    }

    /// Adopts a socket.
    pub fn adopt(&mut self, socket: <R::Driver as Driver>::Socket) -> ConnId {
        let id = self.rig.driver().adopt(socket).expect("a free slot");
        self.begin(id, false);
        id
    }

    /// Releases a connection.
    pub fn release(&mut self, id: ConnId) -> <R::Driver as Driver>::Socket {
        let socket = self.rig.driver().release(id).expect("a connection at rest");
        if let Some(conn) = self.conns.get_mut(&id) {
            (conn.closing, conn.closed) = (true, true);
        }
        socket
    }

    /// Asks for a connection to be parked; false if it must wait.
    pub fn try_park(&mut self, id: ConnId) -> bool {
        let is_ok = self.rig.driver().park(id).is_ok();
        if is_ok {
            self.conns.get_mut(&id).expect("a known id").parking = true;
        }
        is_ok
    }

    /// Parks a connection, and returns its record.
    #[track_caller]
    pub fn park(&mut self, id: ConnId) -> RecordOf<R> {
        // An event before it may have to be taken.
        self.until("a connection that need not wait", |world| world.try_park(id));
        let before = self.count(Seen::Parked(id));
        self.until("a parked connection", |world| world.count(Seen::Parked(id)) > before);
        self.rig.driver().take_record(id).expect("the record of a parked connection")
    }

    /// Continues a parked connection.
    pub fn unpark(&mut self, id: ConnId, record: RecordOf<R>) {
        self.rig.driver().unpark(id, record);
        let conn = self.conns.get_mut(&id).expect("a known id");
        (conn.parking, conn.parked) = (false, false);
    }

    /// Duplicates the descriptor of a parked connection.
    pub fn duplicate(&mut self, id: ConnId) -> <R::Driver as Driver>::Descriptor {
        R::duplicate(self.rig.driver().descriptor(id).expect("it is parked"))
    }

    /// Moves these connections, and all slots, to a successor.
    #[track_caller]
    pub fn move_on(&mut self, ids: &[ConnId]) {
        let parked: Vec<_> = ids.iter().map(|id| (*id, self.park(*id))).collect();
        self.succeed();
        let mut old = self.old.pop().expect("just replaced");
        for id in ids {
            let duplicate = R::duplicate(old.descriptor(*id).expect("it is parked"));
            self.rig.driver().adopt_at(*id, duplicate).expect("a reserved slot");
            old.surrender(*id);
        }
        for (id, record) in parked {
            self.unpark(id, record);
        }
        self.old.push(old);
    }

    /// Replaces the driver by a successor with its slots.
    pub fn succeed(&mut self) {
        let slots = self.rig.driver().give_slots(0).expect("given once");
        let old = self.rig.replace_driver();
        self.rig.driver().begin_with(&slots).expect("a new driver");
        self.old.push(old);
    }

    /// Connects to a remote.
    pub fn connect(&mut self, to: PeerAddress) -> ConnId {
        self.try_connect(to).expect("a free slot")
    }

    /// Connects to a remote, which may refuse at once.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn try_connect(&mut self, to: PeerAddress) -> io::Result<ConnId> {
        let id = self.rig.driver().connect(to, None)?;
        self.begin(id, true);
        Ok(id)
    }

    fn begin(&mut self, id: ConnId, connecting: bool) {
        let conn = Conn { connecting, ..Conn::default() };
        if let Some(before) = self.conns.insert(id, conn) {
            panic!("C5: {id:?} was given before, closed: {}", before.closed);
        }
    }

    /// Connects a peer and adopts its connection.
    #[track_caller]
    pub fn pair(&mut self) -> (ConnId, R::Peer) {
        let address = self.rig.listen();
        let peer = self.rig.dial(address).expect("the driver listens");
        let seen = self.seen.len();
        self.until("a connection", |world| {
            world.seen[seen..].iter().any(|seen| matches!(seen, Seen::Adopted(_)))
        });
        let adopted = self.seen[seen..].iter().find_map(|seen| match seen {
            Seen::Adopted(id) => Some(*id),
            _ => None,
        });
        let id = adopted.expect("just seen");
        if R::SECURES {
            self.until("a handshake", |world| world.conns[&id].secured);
        }
        (id, peer)
    }

    /// Sends a batch; returns true if the batch was returned at once.
    pub fn send(&mut self, id: ConnId, batch: Batch) -> bool {
        let gone = self.conns.get(&id).is_none_or(|conn| conn.closing || conn.closed);
        match self.rig.driver().send(id, Box::new(batch)) {
            SendOutcome::Done(_) => true,
            SendOutcome::Pending => {
                assert!(!gone, "C5: a send on an unknown id is pending");
                let conn = self.conns.get_mut(&id).expect("a known id");
                assert!(!std::mem::replace(&mut conn.in_flight, true), "C3: two sends in flight");
                false
            }
        }
    }

    /// Sends bytes; returns true if all were sent at once.
    pub fn send_bytes(&mut self, id: ConnId, bytes: Vec<u8>) -> bool {
        let mut batch = Batch::default();
        batch.push(Segment::Own(bytes));
        self.send(id, batch)
    }

    /// Pauses reading.
    pub fn pause(&mut self, id: ConnId) {
        self.rig.driver().pause(id);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.paused = true;
        }
    }

    /// Resumes reading.
    pub fn resume(&mut self, id: ConnId) {
        self.rig.driver().resume(id);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.paused = false;
        }
    }

    /// Closes a connection.
    pub fn close(&mut self, id: ConnId) {
        self.rig.driver().close(id);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.closing = true;
        }
    }

    /// Resets a connection.
    pub fn abort(&mut self, id: ConnId) {
        self.rig.driver().abort(id);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.closing = true;
        }
    }

    /// Returns the bytes that a connection has received so far.
    #[must_use]
    pub fn received(&self, id: ConnId) -> &[u8] {
        self.conns.get(&id).map_or(&[], |conn| &conn.received)
    }

    /// Makes the peer write all bytes, running turns while there is no room.
    #[track_caller]
    pub fn write_all(&mut self, peer: &mut R::Peer, bytes: &[u8]) {
        let mut written = 0;
        self.until("room to write", |world| {
            written += world.rig.write(peer, &bytes[written..]);
            written == bytes.len()
        });
    }

    /// Makes the peer read until it has `len` bytes, the stream ends or the connection is reset.
    #[track_caller]
    pub fn read(&mut self, peer: &mut R::Peer, len: usize) -> (Vec<u8>, PeerRead) {
        let (mut bytes, mut outcome) = (Vec::new(), PeerRead::Nothing);
        self.until("bytes for the peer", |world| {
            while bytes.len() < len {
                outcome = world.rig.read(peer, &mut bytes);
                match outcome {
                    PeerRead::Bytes => {}
                    PeerRead::Nothing => return false,
                    PeerRead::Finished | PeerRead::Reset => return true,
                }
            }
            true
        });
        (bytes, outcome)
    }

    /// Fills a connection whose peer does not read, so that a send of [`Rig::CAPACITY`] bytes is in
    /// flight afterwards. Returns those bytes.
    #[track_caller]
    pub fn fill(&mut self, id: ConnId) -> Vec<u8> {
        let bytes = super::pattern(R::CAPACITY, 7);
        assert!(!self.send_bytes(id, bytes.clone()), "CAPACITY bytes fitted");
        bytes
    }
}

/// Checks C4 and C5: an event carries an id that was given out and has not ended.
fn live<'a>(conns: &'a mut HashMap<ConnId, Conn>, id: ConnId, what: &str) -> &'a mut Conn {
    let conn = conns.get_mut(&id).unwrap_or_else(|| panic!("C5: {what} for unknown {id:?}"));
    assert!(!conn.closed, "C4: {what} after Closed for {id:?}");
    assert!(!conn.parked, "C14: {what} after Parked for {id:?}");
    assert!(!conn.parking || what == "Parked", "C14: {what} after the call of park for {id:?}");
    conn
}
