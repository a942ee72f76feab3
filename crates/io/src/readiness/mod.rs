//! The driver over any readiness poll: epoll, poll(2), and through mio kqueue and Windows.
//!
//! One loop serves both kinds of poll. A level-triggered one (epoll) needs as few calls as
//! possible: an echo is one wait, one receive and one send, and interest is changed only after the
//! kernel has reported an unwanted event, so that a short pause, or a socket that is full for a
//! moment, costs nothing. An edge-triggered one (mio) reports once, and a list of ready connections
//! remembers which have not yet been read or written to the end. A turn receives a bounded number
//! of bytes; with a level-triggered poll that list has the connections whose input is left for the
//! next turn.

mod accept;
mod driver;
mod interest;
mod outgoing;
mod parking;
pub mod poller;
mod sending;
mod table;
mod turn;
mod wakeup;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use self::accept::Listeners;
use self::interest::interest;
use self::outgoing::Outgoing;
use self::parking::Parked;
use self::poller::Poller;
use self::table::{NONE, Table, flag};
use self::turn::{Budget, Pending, QueuedEvent, Share};
use self::wakeup::Wakeup;
use crate::clock::Clock;
use crate::driver::{Closed, ListenerId, Traffic};
use crate::id::ConnId;
use crate::listener::Listener;
use crate::options::Options;
use crate::time::Instant;

const WAKE_SLOT: usize = ConnId::MAX_SLOTS - 1;

/// A [`Driver`](crate::Driver) over a readiness poll.
///
/// `close` ends a connection with FIN, but a kernel that still holds unread input sends a reset
/// instead, and unsent output is lost. To be certain that the last bytes arrive, call `finish`,
/// read until [`Event::Finished`](crate::Event::Finished), and then close.
pub struct ReadinessDriver<P: Poller> {
    poller: P,
    wakeup: Arc<Wakeup<P::Signal>>,
    options: Options,
    now: Instant,
    /// The number of events of the last wait that were taken. Level-triggered only.
    taken: usize,
    /// The rest of the current event.
    pending: Pending,
    /// Connections that may have something to read or write, in the order in which they are served,
    /// and how many of them this turn looks at. Level-triggered: only connections with more input
    /// than their part of a turn, or than the turn had room for.
    ready_list: VecDeque<ConnId>,
    quota: usize,
    /// The number of the first in the list that were looked at and left in their places, because
    /// the budget is used up. Edge-triggered only.
    passed: usize,
    /// Connections accepted since the last wait whose registration is deferred, and the number of
    /// them that were read.
    unregistered: Vec<ConnId>,
    cursor: usize,
    table: Table<P::Socket>,
    outgoing: Outgoing,
    /// Connections that are out of the poll.
    parked: HashMap<ConnId, Parked<P::Socket>>,
    /// Events caused by our own calls.
    queued_events: VecDeque<QueuedEvent>,
    listeners: Listeners<P>,
    buffer: Box<[u8]>,
    /// Each connection's part of this turn.
    share: Share,
    budget: Budget,
    /// Bytes of `buffer` that are lent.
    lent: usize,
    /// The connection whose end was delivered last, if its bytes were to be counted.
    ended: Option<(ConnId, Traffic)>,
}

impl<P: Poller> ReadinessDriver<P> {
    /// Creates a driver without listeners and connections.
    ///
    /// # Errors
    /// No descriptor or memory is left for the poll or its wake descriptor.
    pub fn new(options: Options) -> io::Result<Self> {
        let options = options.clamped();
        let wake_token = ConnId::new(options.shard, WAKE_SLOT as u32, 0).to_bits();
        let (poller, signal) = P::new(options.max_events, wake_token)?;
        Ok(Self {
            poller,
            wakeup: Arc::new(Wakeup::new(signal)),
            now: Clock::System.read(),
            taken: 0,
            pending: Pending { id: ConnId::from_bits(0), bits: 0, reads: 0 },
            ready_list: VecDeque::new(),
            quota: 0,
            passed: 0,
            unregistered: Vec::new(),
            cursor: 0,
            table: Table::new(options.shard, options.first_generation, options.max_connections),
            outgoing: Outgoing::default(),
            parked: HashMap::new(),
            queued_events: VecDeque::new(),
            listeners: Listeners::new(),
            buffer: vec![0; options.receive_buffer].into_boxed_slice(),
            share: Share::of(1, options.receive_buffer),
            budget: Budget::default(),
            lent: 0,
            ended: None,
            options,
        })
    }

    /// Accepts from a listener that does not block, such as one made by
    /// [`listen`](crate::listen()), from the next wait on. Its connections carry the id that is
    /// returned.
    ///
    /// # Errors
    /// The listener could not be registered, or there are 1,024 already.
    pub fn add_listener(&mut self, listener: impl Into<Listener>) -> io::Result<ListenerId> {
        self.listeners.add(&self.poller, listener.into(), &self.options)
    }

    /// Returns the number of the shard that this driver is for.
    #[must_use]
    pub fn shard(&self) -> usize {
        self.options.shard.into()
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn poller(&self) -> &P {
        &self.poller
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn signal(&self) -> &P::Signal {
        self.wakeup.signal()
    }

    /// Returns the number of connections, from adoption to the delivery of
    /// [`Event::Closed`](crate::Event::Closed).
    #[must_use]
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Inserts a socket into the table and registers it.
    fn enter(&mut self, mut socket: P::Socket, flags: u64) -> io::Result<ConnId> {
        let id = self.table.next_id()?;
        self.poller.register(&mut socket, id.to_bits(), interest(flags))?;
        self.table.insert(socket, flags);
        Ok(id)
    }

    /// Registers the connections that were accepted in this turn and are still open.
    fn register_deferred(&mut self) {
        self.cursor = 0;
        for at in 0..self.unregistered.len() {
            let id = self.unregistered[at];
            let Some(entry) = self.table.entry(id) else { continue };
            entry.flags &= !flag::UNREGISTERED;
            let interest = interest(entry.flags);
            if let Some(socket) = &mut entry.socket
                && self.poller.register(socket, id.to_bits(), interest).is_err()
            {
                // Without events the connection would hang forever.
                self.end(id, Closed::Reset);
            }
        }
        self.unregistered.clear();
    }

    /// Closes the socket and queues the events: the batch in flight first, the end last.
    #[cold]
    fn end(&mut self, id: ConnId, why: Closed) {
        let Some(entry) = self.table.entry(id) else { return };
        let Some(mut socket) = entry.socket.take() else { return };
        if entry.outgoing != NONE {
            let index = std::mem::replace(&mut entry.outgoing, NONE);
            self.queued_events.push_back(QueuedEvent::Sent(id, self.outgoing.remove(index)));
        }
        let is_counted = entry.flags & flag::COUNTED != 0;
        let traffic = if is_counted { P::traffic(&socket) } else { None };
        let is_adopted = entry.flags & flag::ADOPTED != 0;
        self.queued_events.push_back(QueuedEvent::Closed(id, why, traffic));
        match is_adopted {
            true => self.poller.release(&mut socket),
            false => self.poller.deregister(&mut socket),
        }
    }
}
