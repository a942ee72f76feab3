//! The simulated network: a clock, listeners, and links whose two ends exchange bytes through
//! bounded pipes.

mod secured;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use throng_io::{Clock, ConnId, PeerAddress, UnixPath};

use self::secured::SecuredEnd;
use crate::rng::Trace;

/// One network, shared by all drivers and peers of a run (they live on one thread).
pub type SharedNet = Rc<RefCell<Net>>;

/// The sockets of links. They may be dropped while the network is borrowed.
type Sockets = Arc<Mutex<SocketStates>>;

#[derive(Debug, Default)]
struct SocketStates {
    /// Ends whose last socket was dropped.
    dropped: Vec<(LinkId, Side)>,
    /// Ends with several sockets; an end is listed once for each additional socket.
    duplicates: Vec<(LinkId, Side)>,
}

impl SocketStates {
    /// Removes one of several sockets of an end; returns false if the end has only one.
    fn take_duplicate(&mut self, link: LinkId, side: Side) -> bool {
        let at = self.duplicates.iter().position(|end| *end == (link, side));
        at.map(|at| self.duplicates.swap_remove(at)).is_some()
    }
}

/// Index of a link.
pub type LinkId = usize;

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that connected.
    Dialer = 0,
    /// The end that accepted.
    Acceptor = 1,
}

impl Side {
    /// The other end.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Dialer => Self::Acceptor,
            Self::Acceptor => Self::Dialer,
        }
    }
}

/// State of a link as one end sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readable {
    /// The number of readable bytes.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// All is read, and the other end has ended its side.
    Finished,
    /// The link was reset; unread bytes are lost.
    Reset,
}

/// Properties of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkOptions {
    /// Nanoseconds from one end to the other.
    pub latency: u64,
    /// Capacity per direction: bytes between a writer and a reader that does not read.
    pub capacity: usize,
    /// The network resets the link when so many bytes were written in both directions together.
    pub cut_after: Option<u64>,
}

/// A bug planted into the network, to test that the checks of a run detect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A piece of an acceptor's data is lost.
    Lose,
    /// A piece of an acceptor's data overtakes the piece before it.
    Swap,
}

/// One direction of a link.
#[derive(Debug, Default)]
struct Pipe {
    in_transit: VecDeque<(u64, Vec<u8>)>,
    ready: VecDeque<u8>,
    /// Bytes written and not read.
    held: usize,
    last_arrival: u64,
    fin_at: Option<u64>,
}

impl Pipe {
    fn arrive(&mut self, now: u64) {
        while self.in_transit.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, bytes)) = self.in_transit.pop_front() {
                self.ready.extend(bytes);
            }
        }
    }

    fn discard(&mut self) {
        self.in_transit.clear();
        self.ready.clear();
        self.held = 0;
    }
}

#[derive(Debug)]
struct Link {
    options: LinkOptions,
    address: SocketAddr,
    /// The pipe of each direction, with the end of its stream.
    pipes: [Pipe; 2],
    /// Times at which each side learns that the link was reset.
    reset_at: [Option<u64>; 2],
    /// The side has closed its socket.
    gone: [bool; 2],
    /// Whether the side has closed its socket with unsent output, or without an orderly end.
    cut_short: [bool; 2],
    written: u64,
    /// Bytes that the acceptor has read.
    taken: usize,
    cut: bool,
}

impl Link {
    fn new(address: SocketAddr, options: LinkOptions) -> Self {
        Self {
            options,
            address,
            pipes: [Pipe::default(), Pipe::default()],
            reset_at: [None; 2],
            gone: [false; 2],
            cut_short: [false; 2],
            written: 0,
            taken: 0,
            cut: false,
        }
    }
}

#[derive(Debug)]
struct Listener {
    address: SocketAddr,
    open: bool,
    backlog: VecDeque<(u64, LinkId)>,
    /// The options of links that drivers dial to this listener.
    dialled: LinkOptions,
}

/// The simulated network.
#[derive(Debug, Default)]
pub struct Net {
    now: Arc<AtomicU64>,
    links: Vec<Link>,
    listeners: Vec<Listener>,
    sockets: Sockets,
    silent: Vec<SocketAddr>,
    /// The addresses that stand for Unix sockets.
    unix: BTreeMap<UnixPath, SocketAddr>,
    /// By the link and the side.
    secured: BTreeMap<(LinkId, usize), SecuredEnd>,
    failures: Vec<String>,
    /// Whether bytes on links are ciphertext. It differs in each run, so only its length enters the
    /// hash.
    pub is_secured: bool,
    /// Hash of all events.
    pub trace: Trace,
    /// Whether to print the events as text to standard error.
    pub log: bool,
    /// The shard whose turn has just handled its last event, until this is taken: the shard then
    /// reads its mailbox.
    pub after_events: Option<usize>,
    /// Connections of drivers whose end was reported, until they are taken.
    pub ended: Vec<ConnId>,
    /// A planted bug, and the number of pieces before it strikes.
    pub bug: Option<(Bug, usize)>,
}

impl Net {
    /// An empty network at time 0.
    #[must_use]
    pub fn shared() -> SharedNet {
        Rc::new(RefCell::new(Self::default()))
    }

    /// Logs an event, if a log is wanted.
    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.log {
            eprintln!("{:>12} us  {}", self.now() / 1000, what());
        }
    }

    /// Virtual nanoseconds.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Returns the clock of virtual time.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock::Virtual(Arc::clone(&self.now))
    }

    /// Advances time to `at`, but never moves it back.
    pub fn advance_to(&mut self, at: u64) {
        self.now.fetch_max(at, Ordering::Relaxed);
        self.settle();
    }

    /// Opens a listener.
    pub fn listen(&mut self, address: SocketAddr) -> usize {
        let dialled = LinkOptions { latency: 50_000, capacity: 64 * 1024, cut_after: None };
        self.listen_with(address, dialled)
    }

    /// Makes `path` the Unix socket of the listener at `address`.
    pub fn name(&mut self, path: UnixPath, address: SocketAddr) {
        self.unix.insert(path, address);
    }

    /// Returns the address of a listener; `None` for a Unix socket that does not exist.
    #[must_use]
    pub fn address_of(&self, peer: PeerAddress) -> Option<SocketAddr> {
        match peer {
            PeerAddress::Ip(address) => Some(address),
            PeerAddress::Unix(path) => self.unix.get(&path).copied(),
        }
    }

    /// Opens a listener; links that drivers dial to it have these options.
    pub fn listen_with(&mut self, address: SocketAddr, dialled: LinkOptions) -> usize {
        self.listeners.push(Listener { address, open: true, backlog: VecDeque::new(), dialled });
        self.listeners.len() - 1
    }

    /// Returns the options of links that drivers dial to `listener`, or to no listener.
    #[must_use]
    pub fn dial_options(&self, listener: Option<usize>) -> LinkOptions {
        match listener {
            Some(listener) => self.listeners[listener].dialled,
            None => LinkOptions { latency: 50_000, capacity: 64 * 1024, cut_after: None },
        }
    }

    /// Drops from now on all data sent to this address. No answer arrives.
    pub fn silence(&mut self, address: SocketAddr) {
        self.silent.push(address);
    }

    /// Returns whether it was [silenced](Self::silence).
    #[must_use]
    pub fn is_silent(&self, address: SocketAddr) -> bool {
        self.silent.contains(&address)
    }

    /// Closes a listener; connections in its backlog are reset.
    pub fn stop_listening(&mut self, listener: usize) {
        let Some(listener) = self.listeners.get_mut(listener) else { return };
        listener.open = false;
        for (_, link) in std::mem::take(&mut listener.backlog) {
            self.reset(link, Side::Acceptor);
        }
    }

    /// Dials a link to `listener`; `None` if it is closed.
    pub fn dial(
        &mut self,
        listener: usize,
        from: SocketAddr,
        options: LinkOptions,
    ) -> Option<LinkId> {
        let (now, link) = (self.now(), self.links.len());
        let listener = self.listeners.get_mut(listener).filter(|listener| listener.open)?;
        listener.backlog.push_back((now + options.latency, link));
        self.links.push(Link::new(from, options));
        Some(link)
    }

    /// Makes a link to an address without a listener: the dialer learns of a reset.
    pub fn dead_link(&mut self, from: SocketAddr, options: LinkOptions) -> LinkId {
        self.links.push(Link::new(from, options));
        let link = self.links.len() - 1;
        self.links[link].reset_at[Side::Dialer as usize] = Some(self.now() + 2 * options.latency);
        link
    }

    /// The open listener at `address`.
    #[must_use]
    pub fn listener_at(&self, address: SocketAddr) -> Option<usize> {
        self.listeners.iter().position(|it| it.open && it.address == address)
    }

    /// Returns when the next connection waits at `listener`.
    #[must_use]
    pub fn next_incoming(&self, listener: usize) -> Option<u64> {
        self.listeners.get(listener)?.backlog.front().map(|(at, _)| *at)
    }

    /// The side has closed its socket.
    #[must_use]
    pub fn is_gone(&self, link: LinkId, side: Side) -> bool {
        self.links[link].gone[side as usize]
    }

    /// Takes the next connection that has come to `listener`.
    pub fn accept(&mut self, listener: usize) -> Option<(SimSocket, SocketAddr)> {
        if self.next_incoming(listener)? > self.now() {
            return None;
        }
        let (_, link) = self.listeners[listener].backlog.pop_front()?;
        Some((self.socket(link, Side::Acceptor), self.links[link].address))
    }

    /// Returns one side of a link as a socket, which another driver may adopt.
    #[must_use]
    pub fn socket(&self, link: LinkId, side: Side) -> SimSocket {
        SimSocket { link, side, sockets: Some(Arc::clone(&self.sockets)) }
    }

    /// Returns whether the network itself has cut the link.
    #[must_use]
    pub fn was_cut(&self, link: LinkId) -> bool {
        self.links[link].cut
    }

    /// Bytes that the acceptor has read from the link.
    #[must_use]
    pub fn taken(&self, link: LinkId) -> usize {
        self.links[link].taken
    }

    fn raw_space(&self, link: LinkId, side: Side) -> usize {
        let link = &self.links[link];
        if link.reset_at.iter().any(Option::is_some) {
            // A reset is in flight, and a full pipe stays full until it arrives.
            return 0;
        }
        if link.gone[side.other() as usize] {
            return link.options.capacity;
        }
        link.options.capacity - link.pipes[side as usize].held.min(link.options.capacity)
    }

    fn raw_write(&mut self, link_id: LinkId, side: Side, bytes: &[u8]) {
        let (now, space) = (self.now(), self.raw_space(link_id, side));
        let bug = self.strike(link_id, side);
        let link = &mut self.links[link_id];
        if link.reset_at.iter().any(Option::is_some) || bug == Some(Bug::Lose) {
            return;
        }
        assert!(bytes.len() <= space, "more was written than fits");
        if link.gone[side.other() as usize] {
            // The other end is gone: the answer is a reset, one round trip later.
            link.reset_at[side as usize] = Some(now + 2 * link.options.latency);
            return;
        }
        let pipe = &mut link.pipes[side as usize];
        assert!(pipe.fin_at.is_none(), "a write after the end of stream");
        let at = pipe.last_arrival.max(now + link.options.latency);
        pipe.last_arrival = at;
        pipe.held += bytes.len();
        if !bytes.is_empty() {
            pipe.in_transit.push_back((at, bytes.to_vec()));
        }
        if bug == Some(Bug::Swap)
            && let [.., (_, before), (_, last)] = pipe.in_transit.make_contiguous()
        {
            std::mem::swap(before, last);
        }
        link.written += bytes.len() as u64;
        if link.options.cut_after.is_some_and(|cut| link.written >= cut) {
            link.options.cut_after = None;
            link.cut = true;
            link.reset_at = [Some(now + link.options.latency / 2); 2];
        }
    }

    /// Returns the planted bug if it strikes now.
    fn strike(&mut self, link: LinkId, side: Side) -> Option<Bug> {
        let (bug, before) = self.bug.as_mut().filter(|_| side == Side::Acceptor)?;
        let is_possible =
            *bug != Bug::Swap || !self.links[link].pipes[side as usize].in_transit.is_empty();
        if *before > 0 || !is_possible {
            *before = before.saturating_sub(1);
            return None;
        }
        self.bug.take().map(|(bug, _)| bug)
    }

    fn raw_readable(&mut self, link: LinkId, side: Side) -> Readable {
        let now = self.now();
        let link = &mut self.links[link];
        if link.reset_at[side as usize].is_some_and(|at| at <= now) {
            return Readable::Reset;
        }
        let pipe = &mut link.pipes[side.other() as usize];
        pipe.arrive(now);
        if !pipe.ready.is_empty() {
            return Readable::Bytes(pipe.ready.len());
        }
        match pipe.fin_at {
            Some(at) if at <= now && pipe.in_transit.is_empty() => Readable::Finished,
            _ => Readable::Nothing,
        }
    }

    /// Returns the state of the link for a driver. It can still read bytes that arrived before a
    /// reset (C9 of the driver contract), as on Linux. Peers lose these bytes, as on other systems.
    pub fn kept(&mut self, link: LinkId, side: Side) -> Readable {
        let now = self.now();
        let link = &mut self.links[link];
        let reset_at = link.reset_at[side as usize].filter(|at| *at <= now);
        let until = reset_at.unwrap_or(now);
        let pipe = &mut link.pipes[side.other() as usize];
        pipe.arrive(until);
        if reset_at.is_some() {
            pipe.in_transit.clear();
            pipe.held = pipe.ready.len();
        }
        if !pipe.ready.is_empty() {
            return Readable::Bytes(pipe.ready.len());
        }
        match pipe.fin_at {
            Some(at) if at <= until && pipe.in_transit.is_empty() => Readable::Finished,
            _ if reset_at.is_some() => Readable::Reset,
            _ => Readable::Nothing,
        }
    }

    fn raw_read(&mut self, link: LinkId, side: Side, max: usize, into: &mut Vec<u8>) {
        if let Readable::Bytes(n) = self.kept(link, side) {
            let n = n.min(max);
            let link = &mut self.links[link];
            link.taken += if side == Side::Acceptor { n } else { 0 };
            let pipe = &mut link.pipes[side.other() as usize];
            into.extend(pipe.ready.drain(..n));
            pipe.held -= n;
        }
    }

    /// Returns when the reader on `side` sees the next change, if anything is in flight.
    #[must_use]
    pub fn next_change(&self, link: LinkId, side: Side) -> Option<u64> {
        let link = &self.links[link];
        let pipe = &link.pipes[side.other() as usize];
        let arrival = pipe.in_transit.front().map(|(at, _)| *at);
        let later = |at: &u64| *at > self.now();
        [arrival, pipe.fin_at.filter(later), link.reset_at[side as usize].filter(later)]
            .into_iter()
            .flatten()
            .min()
    }

    fn raw_finish(&mut self, link: LinkId, side: Side) {
        let now = self.now();
        let link = &mut self.links[link];
        let pipe = &mut link.pipes[side as usize];
        if pipe.fin_at.is_none() {
            pipe.fin_at = Some(pipe.last_arrival.max(now + link.options.latency));
        }
    }

    fn raw_close(&mut self, link_id: LinkId, side: Side) {
        let now = self.now();
        let link = &mut self.links[link_id];
        if std::mem::replace(&mut link.gone[side as usize], true) {
            return;
        }
        let other = side.other() as usize;
        if link.pipes[other].held > 0 && link.reset_at[other].is_none() {
            // As in a kernel, unread input turns the end of stream into a reset, which may overtake
            // sent data.
            link.reset_at[other] = Some(now + 2 * link.options.latency);
        }
        link.pipes[other].discard();
        // A socket that was reset can no longer send an end of stream.
        if !self.knows_reset(link_id, side) {
            self.raw_finish(link_id, side);
        }
    }

    fn raw_reset(&mut self, link_id: LinkId, side: Side) {
        let now = self.now();
        let link = &mut self.links[link_id];
        if std::mem::replace(&mut link.gone[side as usize], true) {
            return;
        }
        let other = side.other() as usize;
        let at = now + link.options.latency;
        link.reset_at[other] = Some(link.reset_at[other].map_or(at, |known| known.min(at)));
        link.pipes[other].discard();
        let pipe = &mut link.pipes[side as usize];
        pipe.arrive(now);
        pipe.in_transit.clear();
        pipe.held = pipe.ready.len();
        // The reset overtakes an end of stream in flight, and the bytes before it.
        pipe.fin_at = pipe.fin_at.filter(|at| *at <= now);
    }

    /// Records that `side` cannot end its stream in order: the end of the link alone does not end a
    /// TLS session (RFC 8446 section 6.1).
    pub(crate) fn cut_short(&mut self, link: LinkId, side: Side) {
        self.links[link].cut_short[side as usize] = true;
    }

    /// Returns whether `side` has noticed a reset.
    #[must_use]
    pub fn knows_reset(&self, link: LinkId, side: Side) -> bool {
        self.links[link].reset_at[side as usize].is_some_and(|at| at <= self.now())
    }

    /// Cuts the link in the network: both ends see a reset.
    pub fn give_up(&mut self, link: LinkId) {
        let now = self.now();
        let link = &mut self.links[link];
        link.cut = true;
        for at in &mut link.reset_at {
            at.get_or_insert(now);
        }
    }

    /// Adds the data that a driver has received to the hash of all events.
    pub(crate) fn trace_received(&mut self, bytes: &[u8]) {
        match self.is_secured {
            true => self.trace.mix(bytes.len() as u64),
            false => self.trace.mix_bytes(bytes),
        }
    }

    /// Closes dropped sockets, and moves the bytes of secured ends.
    pub(crate) fn settle(&mut self) {
        self.reap();
        self.move_ends();
    }

    /// Returns whether an end that is being closed stays open, since it has another socket.
    pub(crate) fn has_other_socket(&self, link: LinkId, side: Side) -> bool {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.take_duplicate(link, side)
    }

    /// Closes dropped sockets.
    fn reap(&mut self) {
        let dropped = {
            let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
            if sockets.dropped.is_empty() {
                return;
            }
            std::mem::take(&mut sockets.dropped)
        };
        for (link, side) in dropped {
            // The keys of a session are gone with its socket.
            self.cut_short(link, side);
            self.close(link, side);
        }
    }
}

/// A socket that a driver has not yet taken, or has parked. Dropping it closes it.
#[derive(Debug)]
pub struct SimSocket {
    pub(crate) link: LinkId,
    pub(crate) side: Side,
    sockets: Option<Sockets>,
}

impl SimSocket {
    /// Takes the socket over, so that dropping it no longer closes it.
    #[must_use]
    pub fn into_link(mut self) -> (LinkId, Side) {
        self.sockets = None;
        (self.link, self.side)
    }

    /// Returns another socket of the same end, which closes when both are dropped.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        if let Some(sockets) = &self.sockets {
            let mut sockets = sockets.lock().unwrap_or_else(PoisonError::into_inner);
            sockets.duplicates.push((self.link, self.side));
        }
        Self { link: self.link, side: self.side, sockets: self.sockets.clone() }
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        if let Some(sockets) = self.sockets.take() {
            let mut sockets = sockets.lock().unwrap_or_else(PoisonError::into_inner);
            if !sockets.take_duplicate(self.link, self.side) {
                sockets.dropped.push((self.link, self.side));
            }
        }
    }
}
