//! The driver over any readiness poll: epoll, and through mio kqueue and Windows.
//!
//! One loop for both kinds of poll. A level-triggered one (epoll) is asked for as little as possible: an echo is
//! one wait, one receive and one send, and interest is changed only after the kernel has reported something unwanted,
//! so that a pause or a full socket that passes quickly costs nothing. An edge-triggered one (mio) reports once,
//! and a list of ready connections remembers what has not yet been read or written to its end.

pub(crate) mod accept;
pub(crate) mod outgoing;
pub mod poller;
pub(crate) mod table;

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use self::accept::Listeners;
use self::outgoing::Outgoing;
use self::poller::{ERROR, HANG_UP, Interest, Poller, READ, Ready, WRITE};
use self::table::{Entry, NONE, Table, flag};
use crate::wakeup::Wakeup;
use crate::{Batch, Closed, ConnId, Driver, Event, Instant, Options, SendOutcome, Waker};

/// The last slots name the waker and the listeners.
pub(crate) const MOST_CONNECTIONS: usize = ConnId::MAX_SLOTS - MOST_LISTENERS - 1;
/// Listeners that one driver can have.
const MOST_LISTENERS: usize = 1024;
const WAKE_SLOT: usize = ConnId::MAX_SLOTS - 1;

/// Receives for one readable event. More than one only if the buffer was filled to its end.
const READS_PER_EVENT: u8 = 4;
/// Pieces of one gathered send.
const GATHERED: usize = 64;
/// A deadline nearer than this is worth a second look at the clock, since the turn took time as well.
const NEAR: u64 = 100_000_000;

/// A [`Driver`] over a poll of readiness.
///
/// `close` ends a connection with FIN, but a kernel that still holds input nobody has read sends a reset instead,
/// and what it had not yet sent is lost. Who wants his last bytes to arrive for certain calls `finish`, reads
/// to [`Event::Finished`], and closes then.
pub struct ReadinessDriver<P: Poller> {
    poller: P,
    wakeup: Arc<Wakeup<P::Signal>>,
    options: Options,
    now: Instant,
    /// Events of the last wait, and how many of them were taken. Level-triggered only.
    events: usize,
    taken: usize,
    /// What is left to do of the event at hand.
    rest: Rest,
    /// Connections that may have something to read or write, and how many of them this turn looks at.
    /// Edge-triggered only.
    list: VecDeque<ConnId>,
    quota: usize,
    table: Table<P::Socket>,
    outgoing: Outgoing,
    /// Events that we cause ourselves.
    local: VecDeque<Local>,
    listeners: Listeners<P>,
    buffer: Box<[u8]>,
    /// Bytes of `buffer` that are lent.
    lent: usize,
}

#[derive(Clone, Copy)]
struct Rest {
    id: ConnId,
    bits: u8,
    reads: u8,
}

enum Local {
    Sent(ConnId, Box<Batch>),
    Closed(ConnId, Closed),
}

/// An [`Event`] that does not borrow.
pub(crate) enum Step<S> {
    Incoming(S, SocketAddr),
    AcceptStopped(ErrorKind),
    Connected(ConnId),
    Received(ConnId, usize),
    Finished(ConnId),
    Sent(ConnId, Box<Batch>),
    Closed(ConnId, Closed),
}

/// What a send came to.
enum Sending {
    All,
    Part,
    Broken,
}

impl<P: Poller> ReadinessDriver<P> {
    /// A driver without listeners and connections.
    ///
    /// # Errors
    /// No descriptor or memory for the poll or its signal.
    pub fn new(options: Options) -> io::Result<Self> {
        let options = options.clamped();
        let wake_token = ConnId::new(options.shard, WAKE_SLOT as u32, 0).to_bits();
        let (poller, signal) = P::new(options.max_events, wake_token)?;
        Ok(Self {
            poller,
            wakeup: Arc::new(Wakeup::new(signal)),
            now: P::clock(),
            events: 0,
            taken: 0,
            rest: Rest { id: ConnId::from_bits(0), bits: 0, reads: 0 },
            list: VecDeque::new(),
            quota: 0,
            table: Table::new(options.shard, options.max_connections),
            outgoing: Outgoing::default(),
            local: VecDeque::new(),
            listeners: Listeners::new(),
            buffer: vec![0; options.receive_buffer].into_boxed_slice(),
            lent: 0,
            options,
        })
    }

    /// Accepts from a listener, which [`listen`](crate::listen) made, from the next wait on.
    ///
    /// # Errors
    /// It could not be registered, or there are 1,024 already.
    pub fn add_listener(&mut self, listener: std::net::TcpListener) -> io::Result<()> {
        self.listeners.add(&self.poller, listener, &self.options)
    }

    /// Connections, from adoption to the delivery of [`Event::Closed`].
    #[must_use]
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// The next thing to tell. Bytes lie in `buffer`.
    fn step(&mut self) -> Option<Step<P::Socket>> {
        loop {
            if let Some(local) = self.local.pop_front() {
                return Some(match local {
                    Local::Sent(id, batch) => Step::Sent(id, batch),
                    Local::Closed(id, why) => {
                        self.table.release(id);
                        Step::Closed(id, why)
                    }
                });
            }
            if self.listeners.are_ready()
                && let Some(step) = self.listeners.next(&self.poller, &self.options)
            {
                return Some(step);
            }
            let rest = self.next_ready()?;
            if let Some(step) = self.serve(rest) {
                return Some(step);
            }
        }
    }

    /// The next connection that has something to do.
    #[inline]
    fn next_ready(&mut self) -> Option<Rest> {
        if self.rest.bits != 0 {
            let rest = self.rest;
            self.rest.bits = 0;
            return Some(rest);
        }
        if P::LEVEL {
            while self.taken < self.events {
                let Ready { token, bits } = self.poller.ready(self.taken);
                self.taken += 1;
                let id = ConnId::from_bits(token);
                if id.slot() < MOST_CONNECTIONS {
                    return Some(Rest { id, bits, reads: READS_PER_EVENT });
                }
                self.listeners.on_ready(id);
                if self.listeners.are_ready() {
                    // Without bits it does nothing, and the listeners' turn comes.
                    return Some(Rest { id, bits: 0, reads: 0 });
                }
            }
            return None;
        }
        while self.quota > 0 {
            self.quota -= 1;
            let id = self.list.pop_front()?;
            let Some(entry) = self.table.entry(id) else { continue };
            let mut bits = 0;
            for (flag, bit) in
                [(flag::CAN_READ, READ), (flag::CAN_WRITE, WRITE), (flag::TROUBLE, ERROR)]
            {
                bits |= if entry.flags & flag != 0 { bit } else { 0 };
            }
            entry.flags &= !(flag::QUEUED | flag::TROUBLE);
            return Some(Rest { id, bits, reads: 1 });
        }
        None
    }

    /// Does one thing for a connection. What else there is to do goes to `self.rest`.
    #[inline]
    fn serve(&mut self, rest: Rest) -> Option<Step<P::Socket>> {
        // Closed in this very turn, perhaps: the event is of the past.
        let entry = self.table.entry(rest.id)?;
        if rest.bits == READ && entry.flags & flag::NOT_READING == 0 {
            return self.receive(rest.id, rest.reads);
        }
        self.serve_rarely(rest)
    }

    fn serve_rarely(&mut self, rest: Rest) -> Option<Step<P::Socket>> {
        let Rest { id, bits, reads } = rest;
        let entry = self.table.entry(id)?;
        if entry.flags & flag::CONNECTING != 0 {
            return self.serve_connecting(rest);
        }
        if bits & (WRITE | ERROR) != 0 && entry.outgoing != NONE {
            self.rest = Rest { bits: bits & !WRITE & !ERROR, ..rest };
            if bits & ERROR != 0 {
                self.rest.bits |= READ;
            }
            return self.continue_sending(id);
        }
        if bits & (READ | ERROR | HANG_UP) != 0 {
            if entry.flags & flag::NOT_READING == 0 {
                return self.receive(id, reads);
            }
            self.serve_deaf(rest);
        } else if bits & WRITE != 0 {
            // Room for output, and nothing to send.
            self.sync(id);
        }
        None
    }

    #[inline(always)]
    fn receive(&mut self, id: ConnId, reads: u8) -> Option<Step<P::Socket>> {
        let entry = self.table.entry(id)?;
        let socket = entry.socket.as_ref()?;
        loop {
            match P::recv(socket, &mut self.buffer) {
                Ok(0) => {
                    // Interest is dropped only if the kernel reports again: mostly the engine closes at once.
                    entry.flags |= flag::FINISHED;
                    return Some(Step::Finished(id));
                }
                Ok(n) => {
                    if !P::LEVEL {
                        self.enlist(id);
                    } else if n == self.buffer.len() && reads > 1 {
                        self.rest = Rest { id, bits: READ, reads: reads - 1 };
                    }
                    return Some(Step::Received(id, n));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    entry.flags &= !flag::CAN_READ;
                    return None;
                }
                Err(_) => {
                    self.end(id, Closed::Reset);
                    return None;
                }
            }
        }
    }

    /// An event of a connection that does not read: paused, or the peer's stream has ended.
    #[cold]
    fn serve_deaf(&mut self, Rest { id, bits, .. }: Rest) {
        let Some(entry) = self.table.entry(id) else { return };
        let Some(socket) = &entry.socket else { return };
        if bits & ERROR != 0 && P::take_error(socket) {
            self.end(id, Closed::Reset);
            return;
        }
        if P::LEVEL && bits & (ERROR | HANG_UP) != 0 {
            // Cannot be masked and lasts: hear only of changes from now on. The switch itself is reported once more.
            if entry.flags & flag::MUTED == 0 {
                entry.flags |= flag::MUTED;
                entry.flags &= !flag::ARMED_READ;
                self.modify(id);
            }
            return;
        }
        self.sync(id);
    }

    #[cold]
    fn serve_connecting(&mut self, Rest { id, bits, .. }: Rest) -> Option<Step<P::Socket>> {
        let entry = self.table.entry(id)?;
        match P::connected(entry.socket.as_ref()?, bits) {
            None => None,
            Some(true) => {
                entry.flags &= !flag::CONNECTING;
                // Sent before it was connected: on with it.
                self.rest = Rest { id, bits: bits & (READ | WRITE), reads: READS_PER_EVENT };
                self.sync(id);
                Some(Step::Connected(id))
            }
            Some(false) => {
                self.end(id, Closed::Refused);
                None
            }
        }
    }

    #[cold]
    fn continue_sending(&mut self, id: ConnId) -> Option<Step<P::Socket>> {
        let entry = self.table.entry(id)?;
        let batch = self.outgoing.batch(entry.outgoing);
        match transmit::<P>(entry.socket.as_ref()?, batch, &[]) {
            Sending::All => {
                // Write interest stays for now: after a full socket the engine mostly has more to send.
                let index = std::mem::replace(&mut entry.outgoing, NONE);
                Some(Step::Sent(id, self.outgoing.remove(index)))
            }
            Sending::Part => {
                entry.flags &= !flag::CAN_WRITE;
                None
            }
            Sending::Broken => {
                self.end(id, Closed::Reset);
                None
            }
        }
    }

    /// Tells the kernel what we want to hear of, if that has changed.
    fn sync(&mut self, id: ConnId) {
        if !P::LEVEL {
            return;
        }
        let Some(entry) = self.table.entry(id) else { return };
        let armed = entry.flags & (flag::ARMED_READ | flag::ARMED_WRITE | flag::MUTED);
        let mut wanted = 0;
        if entry.flags & flag::NOT_READING == 0 {
            wanted |= flag::ARMED_READ;
        } else {
            wanted |= entry.flags & flag::MUTED;
        }
        if entry.outgoing != NONE || entry.flags & flag::CONNECTING != 0 {
            wanted |= flag::ARMED_WRITE;
        }
        if wanted != armed {
            entry.flags = entry.flags & !armed | wanted;
            self.modify(id);
        }
    }

    #[cold]
    fn modify(&mut self, id: ConnId) {
        let Some(entry) = self.table.entry(id) else { return };
        let interest = interest(entry.flags);
        if let Some(socket) = &entry.socket
            && self.poller.modify(socket, id.to_bits(), interest).is_err()
        {
            // Without reports it would hang for ever.
            self.end(id, Closed::Reset);
        }
    }

    /// Puts a connection in the list of those that may have something to do. Edge-triggered only.
    fn enlist(&mut self, id: ConnId) {
        if let Some(entry) = self.table.entry(id)
            && entry.flags & flag::QUEUED == 0
        {
            entry.flags |= flag::QUEUED;
            self.list.push_back(id);
        }
    }

    /// Closes the socket and tells the engine: the batch in flight first, the end last.
    #[cold]
    fn end(&mut self, id: ConnId, why: Closed) {
        let Some(entry) = self.table.entry(id) else { return };
        let Some(mut socket) = entry.socket.take() else { return };
        if entry.outgoing != NONE {
            let index = std::mem::replace(&mut entry.outgoing, NONE);
            self.local.push_back(Local::Sent(id, self.outgoing.remove(index)));
        }
        self.local.push_back(Local::Closed(id, why));
        self.poller.forget(&mut socket);
    }

    /// Keeps what has not left until there is room.
    #[cold]
    fn keep(&mut self, id: ConnId, mut batch: Box<Batch>, lent: usize) -> SendOutcome {
        batch.own(&self.buffer[..lent]);
        let Some(entry) = self.table.entry(id) else { return SendOutcome::Done(batch) };
        entry.flags &= !flag::CAN_WRITE;
        entry.outgoing = self.outgoing.insert(batch);
        self.sync(id);
        SendOutcome::Pending
    }

    /// Takes a socket into the table and registers it.
    fn enter(&mut self, mut socket: P::Socket, flags: u16) -> io::Result<ConnId> {
        let id = self.table.next_id()?;
        self.poller.register(&mut socket, id.to_bits(), interest(flags))?;
        self.table.insert(socket, flags);
        Ok(id)
    }

    /// Notes the edges that a wait reported.
    fn note_edges(&mut self) {
        for index in 0..self.events {
            let Ready { token, bits } = self.poller.ready(index);
            let id = ConnId::from_bits(token);
            if id.slot() >= MOST_CONNECTIONS {
                self.listeners.on_ready(id);
                continue;
            }
            let Some(entry) = self.table.entry(id) else { continue };
            for (flag, bit) in
                [(flag::CAN_READ, READ), (flag::CAN_WRITE, WRITE), (flag::TROUBLE, ERROR | HANG_UP)]
            {
                entry.flags |= if bits & bit != 0 { flag } else { 0 };
            }
            self.enlist(id);
        }
        self.events = 0;
        self.quota = self.list.len();
    }
}

impl<P: Poller> Driver for ReadinessDriver<P> {
    type Socket = P::Socket;

    fn now(&self) -> Instant {
        self.now
    }

    /// The clock is read once, after the wait; and before it only if the deadline is near, so after a turn longer
    /// than 0.1 s a far deadline may come late by the length of that turn.
    fn wait(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        self.lent = 0;
        if !P::LEVEL && self.rest.bits != 0 {
            // No edge would tell of it again.
            let id = self.rest.id;
            if let Some(entry) = self.table.entry(id) {
                entry.flags |= flag::CAN_READ | flag::CAN_WRITE | flag::TROUBLE;
            }
            self.enlist(id);
        }
        let busy = !self.local.is_empty()
            || self.listeners.has_news()
            || !P::LEVEL && (!self.list.is_empty() || self.listeners.are_ready());
        let timeout = match deadline {
            _ if busy => Some(Duration::ZERO),
            None => None,
            Some(deadline) if deadline.0.saturating_sub(self.now.0) < NEAR => {
                Some(if deadline > self.now { deadline.since(P::clock()) } else { Duration::ZERO })
            }
            Some(deadline) => Some(deadline.since(self.now)),
        };
        let timeout = match timeout {
            Some(Duration::ZERO) => timeout,
            _ if self.wakeup.may_sleep() => timeout,
            _ => Some(Duration::ZERO),
        };
        let waited = self.poller.wait(timeout);
        self.wakeup.awake();
        self.now = P::clock();
        self.events = waited?;
        (self.taken, self.rest.bits) = (0, 0);
        self.listeners.begin_turn(P::LEVEL, self.options.accepts_per_turn);
        if !P::LEVEL {
            self.note_edges();
        }
        Ok(())
    }

    fn next_event(&mut self) -> Option<Event<'_, P::Socket>> {
        self.lent = 0;
        Some(match self.step()? {
            Step::Received(id, n) => {
                self.lent = n;
                Event::Received(id, &mut self.buffer[..n])
            }
            Step::Sent(id, batch) => Event::Sent(id, batch),
            Step::Closed(id, why) => Event::Closed(id, why),
            Step::Finished(id) => Event::Finished(id),
            Step::Connected(id) => Event::Connected(id),
            Step::Incoming(socket, peer) => Event::Incoming(socket, peer),
            Step::AcceptStopped(kind) => Event::AcceptStopped(kind),
        })
    }

    fn adopt(&mut self, socket: P::Socket) -> io::Result<ConnId> {
        self.enter(socket, if P::LEVEL { flag::ARMED_READ } else { 0 })
    }

    fn connect(&mut self, peer: SocketAddr, local: Option<SocketAddr>) -> io::Result<ConnId> {
        self.table.next_id()?;
        let socket = P::dialled(crate::dial::dial(peer, local, &self.options)?);
        let armed = if P::LEVEL { flag::ARMED_READ | flag::ARMED_WRITE } else { 0 };
        self.enter(socket, flag::CONNECTING | armed)
    }

    fn send(&mut self, conn: ConnId, mut batch: Box<Batch>) -> SendOutcome {
        let lent = std::mem::take(&mut self.lent);
        let Some(entry) = self.table.entry(conn) else { return SendOutcome::Done(batch) };
        debug_assert!(entry.outgoing == NONE, "one send at a time (C3)");
        if entry.flags & flag::CONNECTING != 0 {
            return self.keep(conn, batch, lent);
        }
        let Some(socket) = &entry.socket else { return SendOutcome::Done(batch) };
        match transmit::<P>(socket, &mut batch, &self.buffer[..lent]) {
            Sending::All => SendOutcome::Done(batch),
            Sending::Part => self.keep(conn, batch, lent),
            Sending::Broken => {
                self.end(conn, Closed::Reset);
                SendOutcome::Done(batch)
            }
        }
    }

    fn unsent(&self, conn: ConnId) -> usize {
        match self.table.peek(conn) {
            Some(entry) if entry.outgoing != NONE => self.outgoing.unsent(entry.outgoing),
            _ => 0,
        }
    }

    /// No system call: interest is dropped only if input comes while paused.
    fn pause(&mut self, conn: ConnId) {
        if let Some(entry) = self.table.entry(conn) {
            entry.flags |= flag::PAUSED;
        }
    }

    fn resume(&mut self, conn: ConnId) {
        let Some(entry) = self.table.entry(conn) else { return };
        entry.flags &= !flag::PAUSED;
        if P::LEVEL {
            self.sync(conn);
        } else if entry.flags & flag::CAN_READ != 0 {
            self.enlist(conn);
        }
    }

    fn finish(&mut self, conn: ConnId) {
        if let Some(Entry { socket: Some(socket), .. }) = self.table.entry(conn) {
            P::finish(socket);
        }
    }

    fn close(&mut self, conn: ConnId) {
        self.end(conn, Closed::Local);
    }

    fn abort(&mut self, conn: ConnId) {
        if let Some(Entry { socket: Some(socket), .. }) = self.table.entry(conn) {
            P::reset_on_drop(socket);
        }
        self.end(conn, Closed::Local);
    }

    fn resume_accept(&mut self) {
        self.listeners.resume(&self.poller);
    }

    fn stop_listening(&mut self) {
        self.listeners.clear(&self.poller);
    }

    fn waker(&self) -> Waker {
        Arc::clone(&self.wakeup) as Waker
    }
}

fn interest(flags: u16) -> Interest {
    Interest {
        read: flags & flag::ARMED_READ != 0,
        write: flags & flag::ARMED_WRITE != 0,
        muted: flags & flag::MUTED != 0,
    }
}

/// Sends until the kernel takes no more. In line, for the sake of the ordinary case: one piece that leaves whole.
#[inline(always)]
fn transmit<P: Poller>(socket: &P::Socket, batch: &mut Batch, lent: &[u8]) -> Sending {
    loop {
        let (offered, sent) = match batch.single(lent) {
            Some(bytes) => (bytes.len(), P::send(socket, bytes)),
            None => transmit_gathered::<P>(socket, batch, lent),
        };
        match sent {
            Ok(n) => {
                batch.advance(n);
                if batch.is_empty() {
                    return Sending::All;
                }
                // Less than offered: the socket is full. An edge comes only after `WouldBlock`, though.
                if P::LEVEL && n < offered {
                    return Sending::Part;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Sending::Part,
            Err(_) => return Sending::Broken,
        }
    }
}

#[inline(never)]
fn transmit_gathered<P: Poller>(
    socket: &P::Socket,
    batch: &Batch,
    lent: &[u8],
) -> (usize, io::Result<usize>) {
    let mut slices = [IoSlice::new(&[]); GATHERED];
    let filled = batch.gather(lent, &mut slices);
    let slices = &slices[..filled];
    (slices.iter().map(|slice| slice.len()).sum(), P::send_gathered(socket, slices))
}
