//! Connections that change their shard: new ones right after they were accepted, or before their
//! session opens.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::conn::by_address::AddressKey;
use crate::remote::adoption::Early;
use crate::remote::handover::Handover;
use crate::remote::mailbox::{Inbox, Mailbox};

/// Starts a connection's thread. Returns the socket if none could be started.
pub(crate) type Starter<T> = Box<StartFn<T>>;

type StartFn<T> =
    dyn FnMut(T, Option<SocketAddr>, Option<AddressKey>, Option<Early>) -> Result<(), T> + Send;

/// The ways on which connections come from other shards, and go to them.
pub(crate) struct ShardMoves<K> {
    handovers: Inbox<Handover<K>>,
    /// Handovers taken from the queue that wait for their turn.
    arrived: VecDeque<Handover<K>>,
    /// The other shards' `handovers`, indexed by shard. Empty where each shard has a descriptor
    /// table of its own: a socket cannot reach another thread.
    neighbours: Vec<Mailbox<Handover<K>>>,
    /// Starts a thread for each connection, in thread-per-connection mode.
    starter: Option<Starter<K>>,
}

impl<K> ShardMoves<K> {
    pub(crate) fn new(
        handovers: Inbox<Handover<K>>,
        neighbours: Vec<Mailbox<Handover<K>>>,
    ) -> Self {
        Self { handovers, arrived: VecDeque::new(), neighbours, starter: None }
    }

    /// Starts a thread for each connection from now on.
    pub(crate) fn set_starter(&mut self, starter: Starter<K>) {
        self.starter = Some(starter);
    }

    /// Returns what starts a thread for a connection.
    pub(crate) fn starter(&mut self) -> Option<&mut Starter<K>> {
        self.starter.as_mut()
    }

    /// Returns whether this shard starts threads.
    pub(crate) fn starts_threads(&self) -> bool {
        self.starter.is_some()
    }

    /// Returns whether sockets reach other shards.
    pub(crate) fn has_neighbours(&self) -> bool {
        !self.neighbours.is_empty()
    }

    /// Returns whether sockets reach this shard.
    pub(crate) fn reaches(&self, to: usize) -> bool {
        self.neighbours.len() > to
    }

    /// Gives a connection to another shard, or returns it.
    pub(crate) fn give(
        &self,
        to: usize,
        handover: Handover<K>,
        bytes: usize,
    ) -> Result<(), Handover<K>> {
        self.neighbours[to].send_to_owner(handover, bytes)
    }

    /// Returns whether connections have come from other shards.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.has_arrived() || self.handovers.has_commands()
    }

    /// Returns whether connections wait that were taken from the queue.
    pub(crate) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Takes what has come, if nothing waits.
    pub(crate) fn take(&mut self) {
        if self.arrived.is_empty() {
            self.arrived.extend(self.handovers.drain());
        }
    }

    /// Returns the next connection that has come.
    pub(crate) fn next_arrival(&mut self) -> Option<Handover<K>> {
        self.arrived.pop_front()
    }

    /// Closes the queue if it is empty: sockets that another shard would send from then on stay
    /// there.
    pub(crate) fn close_if_empty(&mut self) -> bool {
        self.arrived.is_empty() && self.handovers.close_if_empty()
    }
}
