//! A driver without a kernel: its connections are buffers in memory, and its clock stands still
//! until the test advances it.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_io::{
    Batch, Clock, Closed, ConnId, Driver, Event, Instant, ListenerId, PeerAddress, SendOutcome,
    Wake, Waker,
};

/// The two directions of a connection.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Sent by the client and not yet received by the server.
    pub(super) to_server: Vec<u8>,
    /// Sent by the server and not yet received by the client.
    pub(super) to_client: Vec<u8>,
    /// Whether the client is gone.
    pub(super) client_gone: bool,
    /// Whether the server sends no further bytes.
    pub(super) server_finished: bool,
    /// The client's address, once it is accepted.
    peer: Option<SocketAddr>,
}

/// One end of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Pipe(Arc<Mutex<Link>>);

impl Pipe {
    pub(super) fn link(&self) -> MutexGuard<'_, Link> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(super) struct LocalDriver {
    clock: Arc<AtomicU64>,
    woken: Arc<Woken>,
    incoming: VecDeque<Pipe>,
    accepted: u16,
    slots: Vec<Slot>,
    lent: Vec<u8>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    conn: Option<Conn>,
}

#[derive(Debug)]
struct Conn {
    pipe: Pipe,
    paused: bool,
    ending: Option<Closed>,
}

#[derive(Debug, Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl LocalDriver {
    pub(super) fn new() -> Self {
        Self {
            // Not 0, so that times before the start can be distinguished from it.
            clock: Arc::new(AtomicU64::new(1_000_000_000)),
            woken: Arc::default(),
            incoming: VecDeque::new(),
            accepted: 0,
            slots: Vec::new(),
            lent: Vec::new(),
        }
    }

    /// Sets the clock, which never goes back.
    pub(super) fn set_clock(&mut self, to: Instant) {
        self.clock.fetch_max(to.0, Ordering::Relaxed);
    }

    /// Adds a connection of a new client.
    pub(super) fn dial(&mut self) -> Pipe {
        let pipe = Pipe::default();
        self.incoming.push_back(pipe.clone());
        pipe
    }

    /// Returns whether a turn would have an event, or commands of other threads.
    pub(super) fn has_work(&self) -> bool {
        self.woken.0.load(Ordering::Acquire)
            || !self.incoming.is_empty()
            || self.slots.iter().filter_map(|slot| slot.conn.as_ref()).any(Conn::has_event)
    }

    fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        let slot = self.slots.get_mut(id.slot())?;
        if slot.generation != id.generation() {
            return None;
        }
        // A connection that is ending has no further effect.
        slot.conn.as_mut().filter(|conn| conn.ending.is_none())
    }

    fn end(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.ending = Some(Closed::Local);
            conn.pipe.link().server_finished = true;
        }
    }
}

impl Conn {
    fn has_event(&self) -> bool {
        let link = self.pipe.link();
        self.ending.is_some() || link.client_gone || !(self.paused || link.to_server.is_empty())
    }
}

impl Driver for LocalDriver {
    type Socket = Pipe;
    type Descriptor = Pipe;
    type Record = ();

    fn now(&self) -> Instant {
        self.clock().read()
    }

    fn clock(&self) -> Clock {
        Clock::Virtual(Arc::clone(&self.clock))
    }

    /// Never sleeps: the test decides when time passes.
    fn wait(&mut self, _: Option<Instant>) -> io::Result<()> {
        self.woken.0.store(false, Ordering::Release);
        Ok(())
    }

    fn next_event(&mut self) -> Option<Event<'_, Pipe>> {
        if let Some(pipe) = self.incoming.pop_front() {
            self.accepted = self.accepted.wrapping_add(1);
            let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, self.accepted.max(1)));
            pipe.link().peer = Some(peer);
            return Some(Event::Incoming(pipe, Some(peer), ListenerId(0)));
        }
        let ready = |slot: &Slot| slot.conn.as_ref().is_some_and(Conn::has_event);
        let at = self.slots.iter().position(ready)?;
        let slot = &mut self.slots[at];
        let id = ConnId::new(0, at as u32, slot.generation);
        let conn = slot.conn.as_mut()?;
        let closed = {
            let mut link = conn.pipe.link();
            if conn.ending.is_none() && !conn.paused && !link.to_server.is_empty() {
                self.lent = std::mem::take(&mut link.to_server);
                drop(link);
                return Some(Event::Received(id, &mut self.lent));
            }
            link.server_finished = true;
            conn.ending.unwrap_or(Closed::Reset)
        };
        slot.conn = None;
        slot.generation = (slot.generation + 1) & ConnId::MAX_GENERATION;
        Some(Event::Closed(id, closed))
    }

    fn lent(&mut self) -> &mut [u8] {
        &mut self.lent
    }

    fn adopt(&mut self, pipe: Pipe) -> io::Result<ConnId> {
        let free = self.slots.iter().position(|slot| slot.conn.is_none());
        let at = free.unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        self.slots[at].conn = Some(Conn { pipe, paused: false, ending: None });
        Ok(ConnId::new(0, at as u32, self.slots[at].generation))
    }

    fn connect(&mut self, _: PeerAddress, _: Option<SocketAddr>) -> io::Result<ConnId> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn send(&mut self, id: ConnId, mut batch: Box<Batch>) -> SendOutcome {
        let lent = std::mem::take(&mut self.lent);
        if let Some(conn) = self.conn(id) {
            batch.copy_to(&lent, &mut conn.pipe.link().to_client);
        }
        self.lent = lent;
        batch.clear();
        SendOutcome::Done(batch)
    }

    fn try_send(&mut self, id: ConnId, bytes: &[u8]) -> usize {
        let Some(conn) = self.conn(id) else { return 0 };
        conn.pipe.link().to_client.extend_from_slice(bytes);
        bytes.len()
    }

    fn peer(&self, id: ConnId) -> Option<SocketAddr> {
        let slot = self.slots.get(id.slot()).filter(|slot| slot.generation == id.generation())?;
        slot.conn.as_ref()?.pipe.link().peer
    }

    fn unsent(&self, _: ConnId) -> usize {
        0
    }

    fn output_memory(&self, _: ConnId) -> usize {
        0
    }

    fn pause(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.paused = true;
        }
    }

    fn resume(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.paused = false;
        }
    }

    fn finish(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.pipe.link().server_finished = true;
        }
    }

    fn close(&mut self, id: ConnId) {
        self.end(id);
    }

    fn abort(&mut self, id: ConnId) {
        self.end(id);
    }

    fn resume_accept(&mut self) {}

    fn stop_listening(&mut self) {
        self.incoming.clear();
    }

    fn waker(&self) -> Waker {
        let waker: Arc<Woken> = Arc::clone(&self.woken);
        waker
    }
}
