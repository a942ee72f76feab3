//! Commands to every shard from any thread, and the queues that take them.

mod adopt;
pub(crate) mod adoption;
mod command;
mod followed;
pub(crate) mod handover;
pub(crate) mod losses;
pub mod mailbox;
mod order;
pub(crate) mod presence;
mod recorded;
pub(crate) mod registry;
mod shard_queue;

use std::any::Any;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use throng_io::{Clock, ConnId, Waker};

use crate::configuration::Configuration;
use crate::drain::DrainPlan;
use crate::message::{Notice, UserEvent};
use crate::outbox::frame::Frame;
use crate::pubsub::channels::{Interest, Totals};
use crate::pubsub::delivery::{AckSlot, AckSlots, Delivery, Receipt};
use crate::pubsub::filter::Filter;
use crate::pubsub::history::{Histories, Position, Stripe};
use crate::pubsub::presence::Presences;
use crate::pubsub::publishing::{PublishRoute, Publishing};
use crate::remote::losses::Receivers;
use crate::remote::mailbox::Fill;
use crate::remote::order::{ORDER_STRIPES, Order, PublishPath};
use crate::remote::registry::ThreadRegistry;
use crate::samples::is_sampled;

pub use command::Command;
pub(crate) use shard_queue::{ShardInbox, ShardQueue, shard_queue, thread_queue};

/// Capacity of a shard's mailbox in commands, after which senders get [`QueueFull`].
pub const MAILBOX_CAPACITY: usize = 65_536;

/// Mark above which a shard's mailbox is crowded: connections that publish to it are held back.
pub const MAILBOX_MARK: usize = MAILBOX_CAPACITY / 4;

/// The first of the numbers that stand for the queues to parts of the broker. Publishers wait for
/// these queues and for the shards' queues, which have lower numbers.
pub(crate) const BROKER: usize = usize::MAX - u16::MAX as usize;

/// Outcome of a publication's commands to other shards.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Posting {
    /// Commands queued.
    pub(crate) posted: usize,
    /// Shards whose queue was full.
    pub(crate) lost: u64,
}

/// Counts of the messages and commands that threads outside of the shards have sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteCounts {
    /// Publications and broadcasts.
    pub publishes: u64,
    /// Commands of any kind that a shard's queue had no room for.
    pub commands_dropped: u64,
}

#[derive(Debug, Default)]
struct Counters {
    /// Picks the shard of the next connection that is given to the server.
    adopted: AtomicUsize,
    publishes: AtomicU64,
    commands_dropped: AtomicU64,
}

/// Handle that reaches every shard from any thread; clone it freely.
#[derive(Clone, Debug)]
pub struct Remote {
    shards: Arc<[ShardQueue]>,
    counters: Arc<Counters>,
    order: Arc<Order>,
    /// The connection threads, in thread-per-connection mode; the first of `shards` is the acceptor
    /// then.
    registry: Option<Arc<ThreadRegistry>>,
    totals: Arc<Totals>,
    /// The shards' clock.
    clock: Clock,
    /// All threads of the process have one descriptor table.
    shares_descriptors: bool,
}

/// Error for a full mailbox: it holds 65,536 commands or 64 MiB of messages because its shard is
/// far behind. This command was not sent to that shard. The metrics count these errors.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueFull {
    /// The receipt of a publication or broadcast: the counts of the shards that have got it; the
    /// others are its [`unreached`](Delivery::unreached).
    pub receipt: Option<Receipt>,
}

impl std::fmt::Display for QueueFull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "shard queue full ({MAILBOX_CAPACITY} commands or 64 MiB of messages); slow down")
    }
}

impl std::error::Error for QueueFull {}

impl Remote {
    pub(crate) fn new(
        shards: Vec<ShardQueue>,
        totals: Arc<Totals>,
        clock: Clock,
        stores: (Histories, Option<Presences>),
    ) -> Self {
        let order = Order::new(stores, shards.len() == 1, totals.relay().cloned());
        Self {
            shards: shards.into(),
            counters: Arc::default(),
            order: Arc::new(order),
            registry: None,
            totals,
            clock,
            shares_descriptors: true,
        }
    }

    /// Marks the shards as having descriptor tables of their own.
    pub(crate) fn with_own_tables(mut self, own: bool) -> Self {
        self.shares_descriptors = !own;
        self
    }

    /// Creates a handle without shards, for owners that exist before the shards.
    #[must_use]
    pub fn of_no_shard() -> Self {
        let stores = (Histories::default(), None);
        Self::new(Vec::new(), Arc::default(), Clock::System, stores)
    }

    /// Returns the subscriptions of all shards.
    #[must_use]
    pub fn totals(&self) -> &Arc<Totals> {
        &self.totals
    }

    pub(crate) fn with_registry(
        acceptor: ShardQueue,
        registry: Arc<ThreadRegistry>,
        totals: Arc<Totals>,
        clock: Clock,
        stores: (Histories, Option<Presences>),
    ) -> Self {
        let order = Order::new(stores, false, totals.relay().cloned());
        Self {
            shards: [acceptor].into(),
            counters: Arc::default(),
            order: Arc::new(order),
            registry: Some(registry),
            totals,
            clock,
            shares_descriptors: true,
        }
    }

    /// Returns the route of a publication. A broker that carries the channel gets the publication
    /// now; `by` is the connection that is delayed if the broker is crowded.
    #[inline]
    pub(crate) fn route(&self, publishing: &Publishing<'_>, by: Option<ConnId>) -> PublishRoute {
        match self.order.path {
            PublishPath::Alone => PublishRoute::Here,
            PublishPath::Shards => PublishRoute::Shards,
            PublishPath::Histories | PublishPath::Relayed => self.route_by_rule(publishing, by),
        }
    }

    /// Returns whether there is no other shard.
    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.shards.len() == 1 && self.registry.is_none()
    }

    pub(crate) fn registry(&self) -> Option<&ThreadRegistry> {
        self.registry.as_deref()
    }

    /// Returns the number of shards of this process.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Sends to every member of `channel` but `except`: one command to each shard that has a member
    /// when this is called.
    ///
    /// For threads outside of the shards: a connection publishes with
    /// [`Cx::publish`](crate::Cx::publish), which holds its connection back instead of failing.
    ///
    /// # Errors
    /// At least one shard's mailbox is full; the others have the command.
    pub fn publish(
        &self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
    ) -> Result<Receipt, QueueFull> {
        self.publish_by(channel, frame, except, None)
    }

    /// Sends like [`Remote::publish`], and waits for room in the mailboxes until `deadline`. Do not
    /// call it in callbacks: their shard would wait for itself.
    ///
    /// # Errors
    /// There was no room in at least one shard's mailbox; the others have the command.
    pub fn publish_by(
        &self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
        deadline: Option<Instant>,
    ) -> Result<Receipt, QueueFull> {
        let began = self.sample();
        let publishing = Publishing { began, ..Publishing::new(channel, frame, except) };
        match self.route(&publishing, None) {
            PublishRoute::Broker { receipt, .. } => return Ok(receipt),
            PublishRoute::History(rule) => return self.put_recorded(&publishing, rule, deadline),
            PublishRoute::Here | PublishRoute::Shards => {}
        }
        let homes = self.totals.homes_of(channel, None);
        let order = (homes.len() > 1).then(|| self.order_of(channel));
        let channel: Arc<str> = channel.into();
        self.put_to(Some(&homes), order, deadline, began, |ack| {
            let (channel, frame) = (Arc::clone(&channel), frame.clone());
            Command::Publish { channel, frame, except, ack }
        })
    }

    /// Sends several messages to every member of `channel`, in their order: one command to each
    /// shard that has a member when this is called. If the channel has a history, or a broker
    /// carries it, they are published one by one.
    ///
    /// # Errors
    /// At least one shard's mailbox is full; the other shards have the command. A channel with
    /// history has the messages before the first message that did not fit.
    pub fn publish_all(&self, channel: &str, frames: Vec<Frame>) -> Result<Receipt, QueueFull> {
        if frames.is_empty() {
            return Ok(Receipt::known(Delivery::default()));
        }
        if self.history_rule(channel).is_some() || self.relay_of(channel).is_some() {
            let mut receipts = Vec::with_capacity(frames.len());
            for frame in &frames {
                match self.publish(channel, frame, None) {
                    Ok(receipt) => receipts.push(receipt),
                    Err(QueueFull { receipt }) => {
                        receipts.extend(receipt);
                        return Err(QueueFull { receipt: Some(Receipt::of_all(receipts)) });
                    }
                }
            }
            return Ok(Receipt::of_all(receipts));
        }
        self.counters.publishes.fetch_add(frames.len() as u64, Ordering::Relaxed);
        let (name, frames): (Arc<str>, Arc<[Frame]>) = (channel.into(), frames.into());
        let homes = self.totals.homes_of(channel, None);
        let order = (homes.len() > 1).then(|| self.order_of(channel));
        self.put_to(Some(&homes), order, None, None, |ack| {
            let (channel, frames) = (Arc::clone(&name), Arc::clone(&frames));
            Command::PublishAll { channel, frames, next: 0, so_far: Delivery::default(), ack }
        })
    }

    /// Counts a publication or broadcast, and returns the time if it is measured.
    fn sample(&self) -> Option<throng_io::Instant> {
        let before = self.counters.publishes.fetch_add(1, Ordering::Relaxed);
        is_sampled(before + 1).then(|| self.clock.read())
    }

    /// Wakes all shards, but no thread of a connection.
    pub(crate) fn wake_shards(&self) {
        self.shards.iter().for_each(|queue| queue.mailbox.wake());
    }

    /// Returns the guard under which publications to a channel are put into several queues.
    pub(crate) fn order_of(&self, channel: &str) -> MutexGuard<'_, Stripe> {
        self.order.of(channel)
    }

    /// Returns the guards under which messages to connections of any channel are put into several
    /// queues.
    pub(crate) fn order_of_all(&self) -> [MutexGuard<'_, Stripe>; ORDER_STRIPES] {
        self.order.of_all()
    }

    /// Returns the numbers of all shards that may have sessions.
    pub(crate) fn numbers(&self) -> Vec<u16> {
        match self.registry() {
            Some(registry) => registry.numbers(),
            None => (0..self.shards.len() as u16).collect(),
        }
    }

    /// Sends to every connection that `filter` selects: one command to each shard that may have
    /// some of them. It takes part in the order of all channels.
    ///
    /// # Errors
    /// As for [`Remote::publish`].
    pub fn broadcast(&self, filter: &Arc<Filter>, frame: &Frame) -> Result<Receipt, QueueFull> {
        let sampled = self.sample();
        let homes = self.homes_of(filter);
        let is_one = self.is_alone() || homes.as_ref().is_some_and(|homes| homes.len() <= 1);
        let order = (!is_one).then(|| self.order_of_all());
        self.put_to(homes.as_deref(), order, None, sampled, |ack| {
            let (filter, frame) = (Arc::clone(filter), frame.clone());
            Command::Broadcast { filter, frame, ack }
        })
    }

    /// Begins the closing handshake with every connection that `filter` selects. The receipt counts
    /// them as delivered.
    ///
    /// # Errors
    /// As for [`Remote::publish`].
    pub fn close_all(
        &self,
        filter: &Arc<Filter>,
        code: u16,
        reason: &str,
    ) -> Result<Receipt, QueueFull> {
        let (homes, reason) = (self.homes_of(filter), Arc::<str>::from(reason));
        self.put_to(homes.as_deref(), (), None, None, |ack| {
            let (filter, reason) = (Arc::clone(filter), Arc::clone(&reason));
            Command::CloseAll { filter, code, reason, ack }
        })
    }

    /// Passes a value to the service of every session and event stream that `filter` selects, which
    /// gets it in [`Service::on_notice`](crate::Service::on_notice). The receipt counts them as
    /// delivered.
    ///
    /// # Errors
    /// As for [`Remote::publish`].
    pub fn notify_all(&self, filter: &Arc<Filter>, notice: &Notice) -> Result<Receipt, QueueFull> {
        let homes = self.homes_of(filter);
        self.put_to(homes.as_deref(), (), None, None, |ack| {
            let (filter, notice) = (Arc::clone(filter), notice.clone());
            Command::Notify { filter, notice, ack }
        })
    }

    /// Returns the shards that may have connections which `filter` selects; `None`: all.
    fn homes_of(&self, filter: &Filter) -> Option<Vec<u16>> {
        match (&filter.include, &filter.channel) {
            (Some(ids), _) => Some(shards_of(ids)),
            (None, Some(channel)) => Some(self.totals.homes_of(channel, None)),
            (None, None) => None,
        }
    }

    /// Announces a subscription to `channel` that is in transit to a shard: until the returned
    /// value is dropped, publications reach that shard, so that the subscription takes effect
    /// before any later publication of the same thread.
    #[must_use]
    pub fn announce(&self, shard: usize, channel: &str) -> Interest {
        Interest::new(&self.totals, shard as u16, channel)
    }

    /// Announces a subscription to a pattern, as [`Remote::announce`] does one to a channel.
    #[must_use]
    pub fn announce_pattern(&self, shard: usize, pattern: &str) -> Interest {
        Interest::in_pattern(&self.totals, shard as u16, pattern)
    }

    /// Sends a command to the shards with these numbers, or to all shards. Puts it into all queues
    /// under `order`; a full queue gets it as soon as it has space, until `deadline`.
    fn put_to(
        &self,
        numbers: Option<&[u16]>,
        order: impl Sized,
        deadline: Option<Instant>,
        began: Option<throng_io::Instant>,
        command: impl Fn(AckSlot) -> Command,
    ) -> Result<Receipt, QueueFull> {
        let threads = self.registry().map(|registry| registry.queues(numbers));
        let queues = threads.as_deref().unwrap_or(&self.shards);
        let (receipt, mut slots) =
            Receipt::new(queues.len() + usize::from(threads.is_some()), began, None);
        if threads.is_some() {
            // One slot more reports an acceptor that has stopped.
            let acceptor = slots.take_one();
            if !self.shards.iter().any(|queue| queue.mailbox.is_closed()) {
                acceptor.count(Delivery::default());
            }
            slots = slots.of_one();
        }
        let is_meant = |shard: usize| {
            threads.is_some() || numbers.is_none_or(|numbers| numbers.contains(&(shard as u16)))
        };
        let mut returned = Vec::new();
        for ((shard, queue), ack) in queues.iter().enumerate().zip(slots) {
            if is_meant(shard) {
                let put = queue.put(command(ack));
                returned.extend(put.err().map(|command| (queue, command)));
            } else if !queue.mailbox.is_closed() {
                ack.count(Delivery::default());
            }
        }
        drop(order);
        let put = |(queue, command): (&ShardQueue, Command)| queue.put_by(command, deadline);
        let lost = returned.into_iter().map(put).filter(|put| !put).count() as u64;
        if lost == 0 {
            return Ok(receipt);
        }
        self.counters.commands_dropped.fetch_add(lost, Ordering::Relaxed);
        Err(QueueFull { receipt: Some(receipt) })
    }

    /// Creates the receipt of a publication with slots for so many shards, and with its position in
    /// a history.
    pub(crate) fn receipt(
        &self,
        shards: usize,
        began: Option<throng_io::Instant>,
        position: Option<Position>,
    ) -> (Receipt, AckSlots) {
        let (receipt, slots) = Receipt::new(shards, began, position);
        (receipt, if self.registry.is_some() { slots.of_one() } else { slots })
    }

    fn count_refused(&self) {
        self.counters.commands_dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts of messages and commands that threads outside of the shards have sent so
    /// far.
    #[must_use]
    pub fn counts(&self) -> RemoteCounts {
        RemoteCounts {
            publishes: self.counters.publishes.load(Ordering::Relaxed),
            commands_dropped: self.counters.commands_dropped.load(Ordering::Relaxed),
        }
    }

    /// Sends to one connection. The receipt has no receiver if it has ended.
    ///
    /// # Errors
    /// Its shard's mailbox is full.
    pub fn send(&self, to: ConnId, frame: &Frame) -> Result<Receipt, QueueFull> {
        let (receipt, slots) = Receipt::new(1, None, None);
        let ack = slots.of_one().take_one();
        self.put(to.shard(), Command::Send { to, frame: frame.clone(), ack })?;
        Ok(receipt)
    }

    /// Begins the closing handshake with one connection, if it is still there.
    ///
    /// # Errors
    /// Its shard's mailbox is full.
    pub fn close(&self, to: ConnId, code: u16, reason: &str) -> Result<(), QueueFull> {
        self.put(to.shard(), Command::Close { to, code, reason: reason.into() })
    }

    /// Passes `what` to the service of one connection, which gets it in
    /// [`Service::on_user_event`](crate::Service::on_user_event) if the connection is still open.
    /// The mailbox's capacity does not apply: the caller must bound the number of events in
    /// transit, for instance by one per request.
    pub fn post(&self, to: ConnId, what: Box<dyn Any + Send>) {
        self.put_always(to, Command::Post { to, event: UserEvent(what) });
    }

    /// Passes `what` to the service of a shard, in [`Service::on_call`](crate::Service::on_call).
    ///
    /// # Errors
    /// Its mailbox is full, or there is no such shard: connections have threads of their own, or
    /// this is a remote without shards.
    pub fn call(&self, shard: usize, what: Box<dyn Any + Send>) -> Result<(), QueueFull> {
        match self.registry().is_none() && shard < self.shards() {
            true => self.put(shard, Command::Call(UserEvent(what))),
            false => Err(QueueFull { receipt: None }),
        }
    }

    /// Passes `what` to the service of a shard, even if its mailbox is full, as for
    /// [`Remote::post`].
    pub fn call_always(&self, shard: usize, what: Box<dyn Any + Send>) {
        self.with_queue(shard, |queue| queue.put_always(Command::Call(UserEvent(what))));
    }

    /// Sends to one connection. The mailbox's capacity does not apply, as for [`Remote::post`].
    pub(crate) fn send_always(&self, to: ConnId, frame: Frame) {
        self.put_always(to, Command::Send { to, frame, ack: AckSlot::unclaimed() });
    }

    /// Queues a command for a connection's shard, even if the queue is full.
    fn put_always(&self, to: ConnId, command: Command) {
        self.with_queue(to.shard(), |queue| queue.put_always(command));
    }

    /// Applies other limits and rules on every shard. The receipt is complete when all have.
    pub(crate) fn configure(&self, configuration: &Arc<Configuration>) -> Receipt {
        let threads = self.registry().map(|registry| registry.queues(None));
        let queues: Vec<_> = self.shards.iter().chain(threads.iter().flatten()).collect();
        let (receipt, acks) = Receipt::new(queues.len(), None, None);
        for (queue, ack) in queues.into_iter().zip(acks) {
            queue.configure(configuration, ack);
        }
        receipt
    }

    /// Drains every shard.
    ///
    /// # Errors
    /// A shard's mailbox is full, and the others have the command; try again, which does no harm to
    /// those.
    pub fn drain(&self, plan: DrainPlan) -> Result<(), QueueFull> {
        // With connection threads, only the acceptor gets it and notifies the others when their
        // time comes.
        let queued = self.shards.iter().map(|queue| queue.put(Command::Drain(plan)).is_ok());
        match queued.fold(true, |all, queued| all & queued) {
            true => Ok(()),
            false => Err(QueueFull { receipt: None }),
        }
    }

    /// Returns the connections with threads of their own that are in a callback at this moment:
    /// each thread's number and the route. Empty where event loops serve them.
    #[must_use]
    pub fn in_callbacks(&self) -> Vec<(usize, u32)> {
        self.registry().map(ThreadRegistry::in_callbacks).unwrap_or_default()
    }

    /// Drains one connection that has a thread of its own, if it is still there.
    pub(crate) fn drain_one(&self, id: ConnId, plan: DrainPlan) {
        // If the queue is full, the handler does not return: the acceptor enforces the deadline.
        self.with_queue(id.shard(), |queue| queue.put(Command::Drain(plan)).ok());
    }

    /// Posts a publication to the shards with these numbers. A shard whose queue is full loses it;
    /// a shard whose queue is crowded is added to `crowded`.
    pub(crate) fn post_to(
        &self,
        homes: &[u16],
        receivers: &Receivers,
        mut command: impl FnMut() -> Command,
        crowded: &mut Vec<usize>,
    ) -> Posting {
        let mut posting = Posting::default();
        self.each_queue(homes, |shard, queue| match queue.put_reserved(command(), receivers) {
            Some(Fill::Available) => posting.posted += 1,
            Some(Fill::Crowded) => {
                posting.posted += 1;
                // Commands that wait for one connection are its backlog, which its policy bounds.
                if self.registry.is_none() && !crowded.contains(&shard) {
                    crowded.push(shard);
                }
            }
            None => posting.lost += 1,
        });
        posting
    }

    /// Calls `each` with the shards of these numbers, and their queues.
    fn each_queue(&self, homes: &[u16], mut each: impl FnMut(usize, &ShardQueue)) {
        if let Some(registry) = self.registry() {
            return registry.queues(Some(homes)).iter().for_each(|queue| each(0, queue));
        }
        for home in homes.iter().map(|home| usize::from(*home)) {
            if let Some(queue) = self.shards.get(home) {
                each(home, queue);
            }
        }
    }

    /// Calls `act` with the queue of one shard, if that shard exists.
    fn with_queue<T>(&self, shard: usize, act: impl FnOnce(&ShardQueue) -> T) -> Option<T> {
        match self.registry() {
            Some(registry) => registry.queue(shard).as_ref().map(act),
            None => self.shards.get(shard).map(act),
        }
    }

    /// Registers `waker` to be woken when the queue of `shard`, or the queue to a part of the
    /// [`BROKER`], has space. Returns false if that queue is not crowded now.
    pub(crate) fn await_capacity(&self, shard: usize, sender: usize, waker: &Waker) -> bool {
        if let Some(part) = shard.checked_sub(BROKER) {
            let relay = self.order.relay.as_ref();
            return relay.is_some_and(|relay| relay.await_capacity(part as u16, sender, waker));
        }
        let queue = self.shards.get(shard);
        queue.is_some_and(|queue| queue.mailbox.await_capacity(sender, waker))
    }

    /// Queues a command for a shard. An id made from wrong bits names a shard that does not exist;
    /// like an id of a closed connection it is ignored.
    fn put(&self, shard: usize, command: Command) -> Result<(), QueueFull> {
        if self.with_queue(shard, |queue| queue.put(command).is_ok()).unwrap_or(true) {
            return Ok(());
        }
        self.counters.commands_dropped.fetch_add(1, Ordering::Relaxed);
        Err(QueueFull { receipt: None })
    }
}

/// Returns the numbers of the shards that these connections are on, each once.
pub(crate) fn shards_of(ids: &[ConnId]) -> Vec<u16> {
    let mut shards: Vec<u16> = ids.iter().map(|id| id.shard() as u16).collect();
    shards.sort_unstable();
    shards.dedup();
    shards
}
