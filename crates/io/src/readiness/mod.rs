//! The driver over any readiness poll: epoll, and through mio kqueue and Windows.
//!
//! One loop for both kinds of poll. A level-triggered one (epoll) is asked for as little as possible: an echo is
//! one wait, one receive and one send, and interest is changed only after the kernel has reported something unwanted,
//! so that a pause or a full socket that passes quickly costs nothing. An edge-triggered one (mio) reports once,
//! and a list of ready connections remembers what has not yet been read or written to its end.

mod accept;
mod driver;
mod interest;
mod outgoing;
pub mod poller;
mod sending;
mod table;
mod turn;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use self::accept::Listeners;
use self::interest::interest;
use self::outgoing::Outgoing;
use self::poller::Poller;
use self::table::{NONE, Table, flag};
use self::turn::{Local, Rest};
use crate::wakeup::Wakeup;
use crate::{Closed, ConnId, Instant, Options};

/// The last slots name the waker and the listeners.
pub(crate) const MOST_CONNECTIONS: usize = ConnId::MAX_SLOTS - MOST_LISTENERS - 1;
/// Listeners that one driver can have.
const MOST_LISTENERS: usize = 1024;
const WAKE_SLOT: usize = ConnId::MAX_SLOTS - 1;

/// A [`Driver`](crate::Driver) over a poll of readiness.
///
/// `close` ends a connection with FIN, but a kernel that still holds input nobody has read sends a reset instead,
/// and what it had not yet sent is lost. Who wants his last bytes to arrive for certain calls `finish`, reads
/// to [`Event::Finished`](crate::Event::Finished), and closes then.
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
    /// Accepted since the last wait and not registered yet, and how many of them were read.
    newcomers: Vec<ConnId>,
    tried: usize,
    table: Table<P::Socket>,
    outgoing: Outgoing,
    /// Events that we cause ourselves.
    local: VecDeque<Local>,
    listeners: Listeners<P>,
    buffer: Box<[u8]>,
    /// Bytes of `buffer` that are lent.
    lent: usize,
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
            newcomers: Vec::new(),
            tried: 0,
            table: Table::new(options.shard, options.first_generation, options.max_connections),
            outgoing: Outgoing::default(),
            local: VecDeque::new(),
            listeners: Listeners::new(),
            buffer: vec![0; options.receive_buffer].into_boxed_slice(),
            lent: 0,
            options,
        })
    }

    /// Accepts from a listener, which [`listen`](crate::listen()) made, from the next wait on.
    ///
    /// # Errors
    /// It could not be registered, or there are 1,024 already.
    pub fn add_listener(&mut self, listener: std::net::TcpListener) -> io::Result<()> {
        self.listeners.add(&self.poller, listener, &self.options)
    }

    /// Connections, from adoption to the delivery of [`Event::Closed`](crate::Event::Closed).
    #[must_use]
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Takes a socket into the table and registers it.
    fn enter(&mut self, mut socket: P::Socket, flags: u16) -> io::Result<ConnId> {
        let id = self.table.next_id()?;
        self.poller.register(&mut socket, id.to_bits(), interest(flags))?;
        self.table.insert(socket, flags);
        Ok(id)
    }

    /// Registers who was accepted in this turn and is still here.
    fn register_newcomers(&mut self) {
        self.tried = 0;
        for at in 0..self.newcomers.len() {
            let id = self.newcomers[at];
            let Some(entry) = self.table.entry(id) else { continue };
            entry.flags &= !flag::NEW;
            let interest = interest(entry.flags);
            if let Some(socket) = &mut entry.socket
                && self.poller.register(socket, id.to_bits(), interest).is_err()
            {
                // Without reports it would hang for ever.
                self.end(id, Closed::Reset);
            }
        }
        self.newcomers.clear();
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
}
