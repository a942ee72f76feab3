//! A driver that secures the connections of another driver.
//!
//! As long as no listener has TLS, each call costs one additional branch. Otherwise connections
//! without TLS pass through after a look at their slot. On secured connections, records are opened
//! in place in the lent memory of the driver below, and sealed from the engine's segments without a
//! copy. Handshakes wait until the events of a turn are handled, and the newest is served first: in
//! a storm, clients that have waited long have often disconnected.

mod busy;
mod closing;
mod input;
mod output;
mod parking;
mod queue;
mod table;
mod warm;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;

use throng_io::{
    Batch, ClientTls, Clock, Closed, ConnId, Driver, Event, EventOf, Instant, ListenerId,
    PassedThrough, PeerAddress, SendOutcome, ServerTls, SessionFailure, Slots, TlsFailure, TlsInfo,
    Traffic, Waker,
};

use self::closing::Closing;
pub use self::parking::TlsRecord;
pub use self::queue::HandshakeLimits;
use self::queue::{Address, Queue};
use self::table::{Endpoint, Established, SecureStage, Table, flag};
use self::warm::Warm;
use crate::client::TlsClient;
use crate::server::TlsServer;
use crate::session::Messages;

/// A driver whose listeners may have TLS; see the [module documentation](self).
pub struct Tls<D: Driver> {
    inner: D,
    /// Whether any connection may be secured.
    is_on: bool,
    /// By [`ListenerId`].
    listeners: Vec<Option<Arc<TlsServer>>>,
    /// TLS of connections that we start, unless they bring their own.
    client: Option<Arc<TlsClient>>,
    table: Table,
    warm: Warm,
    lending: Lending,
    /// Messages after the handshake, for a connection that is not busy: empty between two reads.
    messages: Messages,
    /// Plaintext of records that were cut, and kept input of earlier turns.
    scratch: Vec<u8>,
    /// The connection with lent input that is not yet examined, and the offset of that input.
    rest: Option<(ConnId, usize)>,
    /// Connections with whole records in their `Busy::input`.
    ready: VecDeque<ConnId>,
    queued: VecDeque<Queued>,
    handshakes: Queue,
    /// Bytes of input and of handshakes that were kept since [`Driver::take_growth`].
    growth: usize,
    /// Failed connections that we started, until they are closed.
    refused: Vec<(ConnId, TlsFailure)>,
    closing: Closing,
    /// The sessions of parked connections.
    parked: HashMap<ConnId, Box<Established>>,
    /// A spare batch for ciphertext.
    spare: Option<Box<Batch>>,
}

/// The place of the memory that is lent to the engine.
#[derive(Clone, Debug)]
enum Lending {
    Nothing,
    /// All the memory that the driver below lends.
    Inner,
    /// A part of the memory that the driver below lends.
    Part(Range<usize>),
    /// A part of `scratch`.
    Scratch(Range<usize>),
}

impl Queued {
    fn id(&self) -> ConnId {
        match self {
            Self::Connected(id) | Self::Finished(id) => *id,
            Self::Secured(id, _) => *id,
            Self::PassedThrough(id, _) => *id,
            Self::Sent(id, _) => *id,
            Self::Closed(id, _) => *id,
        }
    }
}

/// A second event that was found together with the reported one.
enum Queued {
    Secured(ConnId, Box<TlsInfo>),
    PassedThrough(ConnId, Box<PassedThrough>),
    Connected(ConnId),
    Finished(ConnId),
    Sent(ConnId, Box<Batch>),
    Closed(ConnId, Closed),
}

/// An [`Event`] that does not borrow.
type TlsStep<S> = EventOf<(), S>;

fn without_bytes<S>(event: Event<'_, S>) -> TlsStep<S> {
    event.map_bytes(drop)
}

/// Converts an event of a driver without any TLS listener.
#[inline(never)]
fn plain<S>(event: Event<'_, S>) -> Event<'_, Socket<S>> {
    event.map_socket(|socket, peer, _| Socket::plain(socket, Address::of(peer)))
}

/// An accepted socket, and the TLS configuration of its listener.
#[derive(Debug)]
pub struct Socket<S> {
    socket: S,
    tls: Option<Arc<TlsServer>>,
    /// The peer's address.
    address: Address,
    /// The session of a connection that another driver has released.
    established: Option<Box<Established>>,
}

impl<S> Socket<S> {
    fn plain(socket: S, address: Address) -> Self {
        Self { socket, tls: None, address, established: None }
    }
}

impl<D: Driver> Tls<D> {
    /// Wraps a driver; no listener has TLS yet.
    #[must_use]
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            is_on: false,
            listeners: Vec::new(),
            client: None,
            table: Table::default(),
            warm: Warm::default(),
            lending: Lending::Nothing,
            messages: Messages::default(),
            scratch: Vec::new(),
            rest: None,
            ready: VecDeque::new(),
            queued: VecDeque::new(),
            handshakes: Queue::default(),
            growth: 0,
            refused: Vec::new(),
            closing: Closing::default(),
            parked: HashMap::new(),
            spare: None,
        }
    }

    /// Returns the driver below, to add listeners to it.
    pub fn inner(&mut self) -> &mut D {
        &mut self.inner
    }

    /// Returns the driver below, for inspection.
    pub fn driver(&self) -> &D {
        &self.inner
    }

    /// Returns whether a wait would return at once because of input from earlier turns.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let has_events = !self.ready.is_empty() || !self.queued.is_empty();
        has_events || self.rest.is_some() || !self.handshakes.is_empty()
    }

    /// Secures the connections that `listener` accepts from now on.
    pub fn secure(&mut self, listener: ListenerId, server: Arc<TlsServer>) {
        self.turn_on();
        let index = usize::from(listener.0);
        if self.listeners.len() <= index {
            self.listeners.resize(index + 1, None);
        }
        self.listeners[index] = Some(server);
    }

    /// Sets the limits of handshakes with clients.
    pub fn limit_handshakes(&mut self, limits: HandshakeLimits) {
        self.handshakes.limits = limits;
    }

    /// Secures the connections that [`Driver::connect`] starts from now on.
    pub fn secure_connects(&mut self, client: Arc<TlsClient>) {
        self.turn_on();
        self.client = Some(client);
    }

    fn turn_on(&mut self) {
        if !self.is_on {
            self.is_on = true;
            // Until here only the driver below knew the place of the lent bytes.
            self.lending = Lending::Inner;
        }
    }

    /// Returns the number of secured connections.
    #[must_use]
    pub fn secured(&self) -> usize {
        self.table.connections()
    }

    /// Returns the bytes that were lent to the engine.
    #[inline(always)]
    fn lent_now<'a>(inner: &'a mut D, scratch: &'a mut [u8], lending: &Lending) -> &'a mut [u8] {
        match lending {
            Lending::Part(part) => &mut inner.lent()[part.clone()],
            Lending::Inner => inner.lent(),
            Lending::Scratch(part) => &mut scratch[part.clone()],
            Lending::Nothing => &mut [],
        }
    }

    /// Returns the next event, which may result from `first`, an event of the driver below.
    #[inline(never)]
    fn next_step(
        &mut self,
        first: Option<TlsStep<D::Socket>>,
    ) -> Option<Event<'_, Socket<D::Socket>>> {
        let step = self.step(first)?;
        let Self { inner, scratch, lending, .. } = self;
        Some(step.map_bytes(|()| Self::lent_now(inner, scratch, lending)))
    }

    /// Returns the next event, which may result from `first`, an event of the driver below.
    /// `lending` locates the bytes that it lends.
    fn step(
        &mut self,
        mut first: Option<TlsStep<D::Socket>>,
    ) -> Option<TlsStep<Socket<D::Socket>>> {
        loop {
            if let Some(step) = first.take() {
                if let Some(step) = self.pass_on(step) {
                    return Some(step);
                }
            } else if let Some(queued) = self.queued.pop_front() {
                if let Some(step) = self.take_queued(queued) {
                    return Some(step);
                }
            } else if let Some((id, at)) = self.rest.take() {
                if self.read(id, at) {
                    return Some(TlsStep::Received(id, ()));
                }
            } else if let Some(id) = self.ready.pop_front() {
                if self.read_kept(id) {
                    return Some(TlsStep::Received(id, ()));
                }
            } else {
                first = self.inner.next_event().map(without_bytes);
                if first.is_none() && !self.do_handshake_step() {
                    return None;
                }
            }
        }
    }

    /// Handles an event of the driver below; returns the event for the engine, if any.
    fn pass_on(&mut self, step: TlsStep<D::Socket>) -> Option<TlsStep<Socket<D::Socket>>> {
        Some(match step {
            TlsStep::Received(id, ()) if self.table.is_secured(id) => {
                return self.read(id, 0).then_some(TlsStep::Received(id, ()));
            }
            TlsStep::Received(id, ()) => {
                self.lending = Lending::Inner;
                TlsStep::Received(id, ())
            }
            TlsStep::Sent(id, batch) if self.table.is_secured(id) => {
                TlsStep::Sent(id, self.on_sent(id, batch)?)
            }
            TlsStep::Finished(id) => return self.on_finished(id).then_some(TlsStep::Finished(id)),
            TlsStep::Closed(id, why) => self.on_closed(id, why),
            TlsStep::Connected(id) if self.table.is_secured(id) => {
                self.queue_client(id);
                return None;
            }
            other => other.map_socket(|socket, peer, listener| {
                let tls = self.listeners.get(usize::from(listener.0)).cloned().flatten();
                Socket { tls, ..Socket::plain(socket, Address::of(peer)) }
            }),
        })
    }

    /// Returns an event that was found earlier, unless it no longer applies.
    fn take_queued(&mut self, queued: Queued) -> Option<TlsStep<Socket<D::Socket>>> {
        match queued {
            Queued::Secured(id, info) => {
                let conn = self.table.conn(id)?;
                (!conn.has(flag::CLOSING)).then_some(TlsStep::Secured(id, info))
            }
            // Since then the connection has lost its TLS: it is passed through.
            Queued::PassedThrough(id, passed) => Some(TlsStep::PassedThrough(id, passed)),
            Queued::Connected(id) => {
                let conn = self.table.conn(id)?;
                conn.flags &= !flag::CONNECTING;
                (!conn.has(flag::CLOSING)).then_some(TlsStep::Connected(id))
            }
            Queued::Sent(id, batch) => Some(TlsStep::Sent(id, batch)),
            Queued::Closed(id, why) => Some(TlsStep::Closed(id, why)),
            Queued::Finished(id) => {
                let (conn, busy) = self.table.make_busy(id)?;
                let (is_paused, is_closing) = (conn.has(flag::PAUSED), conn.has(flag::CLOSING));
                busy.finished = is_paused && !is_closing;
                self.table.settle(id);
                (!is_paused && !is_closing).then_some(TlsStep::Finished(id))
            }
        }
    }

    /// Handles the end of a connection. Returns the end, or first the batch that waited for its
    /// handshake.
    fn on_closed(&mut self, id: ConnId, why: Closed) -> TlsStep<Socket<D::Socket>> {
        // No record is sealed after this point, even if the handshake completes.
        let busy = self.table.conn_and_busy(id).and_then(|(_, busy)| busy);
        let (batch, was_closing) =
            busy.map_or((None, false), |busy| (busy.batch.take(), busy.close));
        // We closed the connection first; the event that ended its wait does not matter.
        let why = if was_closing { Closed::Local } else { why };
        self.hear_last_words(id);
        let refusal = self.refused.iter().position(|(of, _)| *of == id);
        let mut refusal = refusal.map(|at| self.refused.swap_remove(at).1);
        let has_begun = self.table.conn(id).is_some_and(|conn| {
            conn.has(flag::CONNECTING) && !matches!(conn.stage, SecureStage::Begin(_))
        });
        if has_begun && why == Closed::Reset {
            refusal = refusal.or(Some(TlsFailure::Ended));
        }
        self.count_failure(id, TlsFailure::Ended);
        self.table.remove(id);
        self.warm.forget(id);
        let why = refusal.map_or(why, Closed::Insecure);
        let Some(batch) = batch else { return TlsStep::Closed(id, why) };
        self.queued.push_back(Queued::Closed(id, why));
        TlsStep::Sent(id, batch)
    }

    /// Ends a connection that we started after its handshake or session failed.
    fn refuse(&mut self, id: ConnId, why: TlsFailure) {
        if !self.refused.iter().any(|(of, _)| *of == id) {
            self.refused.push((id, why));
        }
        self.end_stage(id);
        if let Some(conn) = self.table.conn(id) {
            conn.flags |= flag::FINISHED | flag::CLOSING;
        }
        self.inner.close(id);
    }

    /// Handles the end of the stream below. Returns whether to report it.
    fn on_finished(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.table.conn(id) else { return true };
        if conn.flags & flag::NO_INPUT_MASK != 0 {
            return false;
        }
        conn.flags |= flag::FINISHED | flag::TRUNCATED;
        self.count_failure(id, TlsFailure::Ended);
        let Some(conn) = self.table.conn(id) else { return true };
        // After our own end, many peers send nothing more, not even a close_notify.
        if matches!(conn.stage, SecureStage::Established(_)) && !conn.has(flag::CLOSE_SENT) {
            self.count_session_failure(id, SessionFailure::Truncated);
        }
        let Some(conn) = self.table.conn(id) else { return true };
        if conn.has(flag::CONNECTING) {
            self.refuse(id, TlsFailure::Ended);
            return false;
        }
        if let Some((_, Some(busy))) = self.table.conn_and_busy(id) {
            busy.input = Vec::new();
        }
        self.table.settle(id);
        true
    }
}

impl<D: Driver> Driver for Tls<D> {
    type Socket = Socket<D::Socket>;
    type Descriptor = D::Descriptor;
    type Record = TlsRecord<D::Record>;

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    #[inline]
    fn wait(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        if !self.is_on {
            return self.inner.wait(deadline);
        }
        if let Some((id, at)) = self.rest.take() {
            self.keep_rest(id, at);
        }
        self.lending = Lending::Nothing;
        let now = self.inner.now();
        let (handshakes, sweep) = (self.handshakes.begin_turn(now), self.warm.sweep(now));
        let closing = self.expire_closing(now);
        let deadline = [handshakes, sweep, closing, deadline].into_iter().flatten().min();
        let is_busy = !self.ready.is_empty() || !self.queued.is_empty();
        self.inner.wait(if is_busy { Some(now) } else { deadline })
    }

    #[inline(always)]
    fn next_event(&mut self) -> Option<Event<'_, Self::Socket>> {
        if !self.is_on {
            return match self.inner.next_event() {
                Some(Event::Received(id, bytes)) => Some(Event::Received(id, bytes)),
                None => None,
                Some(event) => Some(plain(event)),
            };
        }
        self.lending = Lending::Nothing;
        if !self.queued.is_empty() || self.rest.is_some() || !self.ready.is_empty() {
            return self.next_step(None);
        }
        match self.inner.next_event() {
            // Moves out all of the event, so that nothing is left to drop.
            Some(Event::Received(id, _bytes)) => {
                if !self.table.is_secured(id) {
                    self.lending = Lending::Inner;
                    return Some(Event::Received(id, self.inner.lent()));
                }
                if self.read(id, 0) {
                    let Self { inner, scratch, lending, .. } = self;
                    return Some(Event::Received(id, Self::lent_now(inner, scratch, lending)));
                }
                self.next_step(None)
            }
            None if self.handshakes.is_empty() => None,
            event => {
                let first = event.map(without_bytes);
                self.next_step(first)
            }
        }
    }

    fn lent(&mut self) -> &mut [u8] {
        if !self.is_on {
            return self.inner.lent();
        }
        let Self { inner, scratch, lending, .. } = self;
        Self::lent_now(inner, scratch, lending)
    }

    fn socket(&mut self, stream: TcpStream) -> io::Result<Self::Socket> {
        Ok(Socket::plain(self.inner.socket(stream)?, Address::OWN))
    }

    fn adopt(&mut self, socket: Self::Socket) -> io::Result<ConnId> {
        let Socket { socket, tls, address, established } = socket;
        let id = self.inner.adopt(socket)?;
        if let Some(mut established) = established {
            self.turn_on();
            established.resume();
            let kept = self.table.insert_established(id, established);
            self.growth += kept;
            if kept > 0 {
                self.ready.push_back(id);
            }
            return Ok(id);
        }
        if let Some(server) = tls {
            self.turn_on();
            self.table.insert(id, Endpoint::Server(server), address, 0);
        }
        Ok(id)
    }

    fn release(&mut self, conn: ConnId) -> io::Result<Self::Socket> {
        if !self.table.is_secured(conn) {
            return Ok(Socket::plain(self.inner.release(conn)?, Address::OWN));
        }
        if let Some((_, at)) = self.rest.take_if(|(of, _)| *of == conn) {
            self.keep_rest(conn, at);
        }
        if !self.table.is_at_rest(conn) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let socket = self.inner.release(conn)?;
        self.warm.forget(conn);
        let established = self.table.take_established(conn);
        Ok(Socket { established, ..Socket::plain(socket, Address::OWN) })
    }

    fn park(&mut self, conn: ConnId) -> io::Result<()> {
        self.park_connection(conn)
    }

    fn take_record(&mut self, conn: ConnId) -> Option<Self::Record> {
        self.take_parked_record(conn)
    }

    fn descriptor(&self, conn: ConnId) -> Option<&D::Descriptor> {
        self.inner.descriptor(conn)
    }

    fn unpark(&mut self, conn: ConnId, record: Self::Record) {
        self.unpark_connection(conn, record);
    }

    fn surrender(&mut self, conn: ConnId) {
        self.parked.remove(&conn);
        self.inner.surrender(conn);
    }

    fn adopt_at(&mut self, conn: ConnId, descriptor: D::Descriptor) -> io::Result<()> {
        self.inner.adopt_at(conn, descriptor)
    }

    fn give_slots(&mut self, kept: usize) -> io::Result<Slots> {
        self.inner.give_slots(kept)
    }

    fn take_slots_back(&mut self) {
        self.inner.take_slots_back();
    }

    fn begin_with(&mut self, slots: &Slots) -> io::Result<()> {
        self.inner.begin_with(slots)
    }

    fn vacate(&mut self, conn: ConnId) {
        self.inner.vacate(conn);
    }

    fn connect(&mut self, peer: PeerAddress, local: Option<SocketAddr>) -> io::Result<ConnId> {
        let id = self.inner.connect(peer, local)?;
        if let Some(client) = &self.client {
            let client = Endpoint::Client(Arc::clone(client));
            self.table.insert(id, client, Address::OWN, flag::CONNECTING);
        }
        Ok(id)
    }

    fn connect_secured(
        &mut self,
        peer: PeerAddress,
        local: Option<SocketAddr>,
        tls: &ClientTls,
        preface: &[u8],
    ) -> io::Result<ConnId> {
        let client = Arc::clone(tls).downcast().map_err(|_| io::ErrorKind::InvalidInput)?;
        self.turn_on();
        let id = self.inner.connect(peer, local)?;
        self.table.insert(id, Endpoint::Client(client), Address::OWN, flag::CONNECTING);
        if !preface.is_empty()
            && let Some((_, busy)) = self.table.make_busy(id)
        {
            busy.control.extend_from_slice(preface);
        }
        Ok(id)
    }

    fn secure_accepted(
        &mut self,
        conn: ConnId,
        tls: &ServerTls,
        peer: Option<SocketAddr>,
        received: &[u8],
    ) -> bool {
        let Ok(server) = Arc::clone(tls).downcast() else { return false };
        self.turn_on();
        self.table.insert(conn, Endpoint::Server(server), Address::of(peer), 0);
        if !received.is_empty()
            && let Some((_, busy)) = self.table.make_busy(conn)
        {
            busy.input.extend_from_slice(received);
            self.growth += received.len();
            self.ready.push_back(conn);
        }
        true
    }

    #[inline(always)]
    fn send(&mut self, conn: ConnId, mut batch: Box<Batch>) -> SendOutcome {
        if !self.is_on {
            return self.inner.send(conn, batch);
        }
        if self.table.is_secured(conn) {
            return self.send_secured(conn, batch);
        }
        if matches!(self.lending, Lending::Part(_) | Lending::Scratch(_)) {
            // The driver below would look for lent segments in its own memory.
            batch.own(self.lent());
        }
        self.inner.send(conn, batch)
    }

    #[inline]
    fn try_send(&mut self, conn: ConnId, bytes: &[u8]) -> usize {
        match self.table.is_secured(conn) {
            true => self.try_send_secured(conn, bytes),
            false => self.inner.try_send(conn, bytes),
        }
    }

    fn unsent(&self, conn: ConnId) -> usize {
        if !self.table.is_secured(conn) {
            return self.inner.unsent(conn);
        }
        let Some(busy) = self.table.busy_ref(conn) else { return 0 };
        let Some(batch) = &busy.batch else { return 0 };
        let unsent = if busy.sealed > 0 { self.inner.unsent(conn) } else { 0 };
        batch.len() - busy.sealed + output::plain_unsent(busy.sealed, unsent)
    }

    fn output_memory(&self, conn: ConnId) -> usize {
        let below = self.inner.output_memory(conn) + self.table.input_memory(conn);
        let Some(busy) = self.table.busy_ref(conn) else { return below };
        below + busy.output_memory()
    }

    fn held_output(&self) -> usize {
        self.inner.held_output() + self.table.held_output()
    }

    #[inline]
    fn take_growth(&mut self) -> usize {
        std::mem::take(&mut self.growth)
    }

    fn input_holders(&self) -> Vec<ConnId> {
        self.table.holders().collect()
    }

    fn is_handshaking(&self, conn: ConnId) -> bool {
        self.table.is_handshaking(conn)
    }

    fn peer(&self, conn: ConnId) -> Option<SocketAddr> {
        self.inner.peer(conn)
    }

    fn traffic(&self, conn: ConnId) -> Option<Traffic> {
        self.inner.traffic(conn)
    }

    fn count_traffic(&mut self, conn: ConnId) {
        self.inner.count_traffic(conn);
    }

    fn session_failure(&self, conn: ConnId) -> Option<SessionFailure> {
        self.table.failure(conn)
    }

    fn has_peer_finished(&self, conn: ConnId) -> bool {
        self.inner.has_peer_finished(conn)
    }

    fn was_truncated(&self, conn: ConnId) -> bool {
        match self.table.conn_ref(conn) {
            Some(conn) => conn.has(flag::TRUNCATED),
            None => self.inner.was_truncated(conn),
        }
    }

    fn pause(&mut self, conn: ConnId) {
        if let Some(conn) = self.table.conn(conn) {
            conn.flags |= flag::PAUSED;
        }
        self.inner.pause(conn);
    }

    fn resume(&mut self, conn: ConnId) {
        if let Some((state, busy)) = self.table.conn_and_busy(conn) {
            state.flags &= !flag::PAUSED;
            // Its input waits for a step of the handshake.
            if state.has(flag::QUEUED) && matches!(state.stage, SecureStage::Handshake(..)) {
                return;
            }
            if let Some(busy) = busy {
                if !busy.input.is_empty() {
                    self.ready.push_back(conn);
                }
                if std::mem::take(&mut busy.finished) {
                    self.queued.push_back(Queued::Finished(conn));
                }
            }
        }
        self.inner.resume(conn);
    }

    fn finish(&mut self, conn: ConnId) {
        match self.table.is_secured(conn) {
            true => self.finish_secured(conn),
            false => self.inner.finish(conn),
        }
    }

    fn close(&mut self, conn: ConnId) {
        match self.table.is_secured(conn) {
            true => self.close_secured(conn),
            false => self.inner.close(conn),
        }
    }

    fn is_closing(&self, conn: ConnId) -> bool {
        self.is_closing_secured(conn)
    }

    fn close_now(&mut self, conn: ConnId) {
        self.close_below(conn);
    }

    fn abort(&mut self, conn: ConnId) {
        match self.table.is_secured(conn) {
            true => self.abort_secured(conn),
            false => self.inner.abort(conn),
        }
    }

    fn resume_accept(&mut self) {
        self.inner.resume_accept();
    }

    fn stop_listening(&mut self) {
        self.inner.stop_listening();
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}
