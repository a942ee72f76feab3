//! What a callback can reach: its own connection, every other one of the shard, the channels, the other shards.

use std::net::SocketAddr;
use std::sync::Arc;

use throng_io::{ConnId, Instant};
use throng_proto::ws::{Opcode, deflate};

use crate::channels::{Channels, PatternError, Totals};
use crate::conn::{AfterFlush, Stage};
use crate::connections::Connections;
use crate::delivery::{Delivery, Receipt, Share};
use crate::filter::Filter;
use crate::frame::Frame;
use crate::mailbox::Mailbox;
use crate::sending::{Published, Sent};
use crate::service::Message;
use crate::shutdown::DrainPlan;
use crate::stats::Stats;

/// Letters a shard's mailbox holds before senders are told that it is full.
pub const MAILBOX_CAPACITY: usize = 65_536;

/// What one thread asks of a shard.
#[derive(Debug)]
pub enum Mail {
    /// Send to every member of a channel but one: one letter a shard and publish, whatever the number of members.
    Publish {
        /// The channel's name.
        channel: Arc<str>,
        /// The message, encoded once.
        frame: Frame,
        /// The member that does not get it, usually the publisher.
        except: Option<ConnId>,
        /// Where the shard's counts go.
        share: Share,
    },
    /// Send to everyone that a filter lets through.
    Broadcast {
        /// Who gets it.
        filter: Arc<Filter>,
        /// The message, encoded once.
        frame: Frame,
        /// Where the shard's counts go.
        share: Share,
    },
    /// Send to one connection, if it is still there.
    Send {
        /// Which.
        to: ConnId,
        /// The message.
        frame: Frame,
    },
    /// Begin the closing handshake with one connection, if it is still there.
    Close {
        /// Which.
        to: ConnId,
        /// RFC 6455 section 7.4.
        code: u16,
        /// At most 123 bytes; more are cut off.
        reason: Box<str>,
    },
    /// Stop accepting, close everything within the plan's window, then stop.
    Drain(DrainPlan),
}

impl Mail {
    /// The memory that this letter keeps alive.
    fn bytes(&self) -> usize {
        match self {
            Self::Publish { frame, .. }
            | Self::Broadcast { frame, .. }
            | Self::Send { frame, .. } => frame.as_bytes().len(),
            Self::Close { reason, .. } => reason.len(),
            Self::Drain(_) => 0,
        }
    }
}

/// A shard's state without its sockets. Callbacks get it through [`Cx`].
#[derive(Debug)]
pub struct Core {
    pub(crate) connections: Connections,
    pub(crate) channels: Channels,
    pub(crate) remote: Remote,
    pub(crate) shard: usize,
}

/// Publications of one turn may put this much memory into queues before all are flushed, and before a publisher's
/// further messages wait for the next turn: one packet of tiny messages to thousands of members would else be
/// gigabytes. Large enough that a burst to 15,000 members still leaves in few sends.
const PUBLISH_BUDGET: usize = 32 << 20;

impl Core {
    /// The time of this turn.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.connections.now
    }

    /// Which shard this is.
    #[must_use]
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// Whether a channel of this name can be subscribed to.
    ///
    /// # Errors
    /// Wildcards are on, and it is a malformed pattern.
    pub fn check_channel(&self, name: &str) -> Result<(), PatternError> {
        self.channels.check(name)
    }

    /// The counts of subscribers over all shards.
    #[must_use]
    pub fn totals(&self) -> &Arc<Totals> {
        self.channels.totals()
    }

    /// Subscriptions to exactly this channel, or pattern, on all shards, at this moment.
    #[must_use]
    pub fn subscribers(&self, channel: &str) -> usize {
        self.channels.totals().count(channel)
    }

    /// This shard's figures so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.connections.stats
    }

    /// The way to every shard, this one included.
    #[must_use]
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Sends to every member of `channel` but `except`, on this shard now and on the others by one letter each.
    /// The counts are this shard's.
    pub fn publish(&mut self, channel: &str, frame: &Frame, except: Option<ConnId>) -> Delivery {
        let unreached = self.remote.publish_from(self.shard, channel, frame, except);
        self.count_letters(unreached);
        Delivery { unreached, ..self.publish_here(channel, frame, except) }
    }

    /// Sends to everyone that `filter` lets through, on this shard now and on the others by one letter each. The
    /// counts are this shard's.
    pub fn broadcast(&mut self, filter: &Arc<Filter>, frame: &Frame) -> Delivery {
        let unreached = self.remote.broadcast_from(self.shard, filter, frame);
        self.count_letters(unreached);
        Delivery { unreached, ..self.broadcast_here(filter, frame) }
    }

    fn count_letters(&mut self, unreached: u64) {
        self.connections.stats.publishes += 1;
        self.connections.stats.letters_dropped += unreached;
    }

    pub(crate) fn publish_here(
        &mut self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
    ) -> Delivery {
        let mut delivery = Delivery::default();
        let of = Published { channel, class: self.connections.rules.of_channel(channel) };
        let connections = &mut self.connections;
        self.channels.matching(channel, |slot| {
            let Some(id) = connections.in_slot(slot) else { return };
            if Some(id) != except {
                delivery.count(connections.publish_to(id, frame, of));
            }
        });
        delivery
    }

    /// One letter a shard; each finds its own receivers.
    pub(crate) fn broadcast_here(&mut self, filter: &Filter, frame: &Frame) -> Delivery {
        let mut delivery = Delivery::default();
        let Self { connections, channels, shard, .. } = self;
        let channel = filter.channel.as_deref();
        let of = Published {
            channel: channel.unwrap_or_default(),
            class: channel.and_then(|channel| connections.rules.of_channel(channel)),
        };
        let mut offer = |connections: &mut Connections, id: ConnId| {
            let excluded = filter.excludes(id);
            let wanted = filter.subprotocol.as_deref();
            if !excluded && wanted.is_none_or(|name| connections.subprotocol(id) == Some(name)) {
                delivery.count(connections.publish_to(id, frame, of));
            }
        };
        match (&filter.include, channel) {
            (included, Some(channel)) => channels.matching(channel, |slot| {
                if let Some(id) = connections.in_slot(slot)
                    && included.as_ref().is_none_or(|ids| ids.binary_search(&id).is_ok())
                {
                    offer(connections, id);
                }
            }),
            (Some(included), None) => {
                for &id in included.iter().filter(|id| id.shard() == *shard) {
                    offer(connections, id);
                }
            }
            (None, None) => {
                for slot in 0..connections.slots() {
                    if let Some(id) = connections.listener_in(slot) {
                        offer(connections, id);
                    }
                }
            }
        }
        delivery
    }

    /// Publications have used up their share of the turn.
    #[inline]
    pub(crate) fn has_published_enough(&self) -> bool {
        self.connections.published > PUBLISH_BUDGET || self.connections.overfull
    }

    /// No more messages are to be pulled for this connection now: its answers wait, or others do.
    pub(crate) fn must_yield(&self, id: ConnId) -> bool {
        self.has_published_enough()
            || self.connections.kept_backlog(id) > self.connections.high_water()
    }

    /// Sends a message to a connection of this shard.
    #[inline]
    pub fn send(&mut self, to: ConnId, message: Message<'_>) -> Sent {
        let (opcode, payload) = match message {
            Message::Text(text) => (Opcode::Text, text.as_bytes()),
            Message::Binary(bytes) => (Opcode::Binary, bytes),
        };
        self.connections.send(to, opcode, payload)
    }

    /// Sends a finished frame to a connection of this shard.
    pub fn send_frame(&mut self, to: ConnId, frame: &Frame) -> Sent {
        self.connections.send_frame(to, frame, Published::default())
    }

    /// Begins the closing handshake.
    pub fn close(&mut self, conn: ConnId, code: u16, reason: &str) {
        self.connections.close(conn, code, reason);
    }

    /// Ends a connection with a reset, at once.
    pub fn abort(&mut self, conn: ConnId) {
        self.connections.finish(conn, AfterFlush::Abort);
    }

    /// The service's own word of a connection.
    #[must_use]
    pub fn data(&self, conn: ConnId) -> Option<u32> {
        Some(self.connections.conn(conn)?.data)
    }
}

/// One connection, seen from a callback.
#[derive(Debug)]
pub struct Cx<'a> {
    core: &'a mut Core,
    id: ConnId,
    route: u16,
    data: u32,
}

impl<'a> Cx<'a> {
    /// The connection `id` of this shard; sends to one that is gone say so.
    pub fn new(core: &'a mut Core, id: ConnId) -> Self {
        let (route, data) = core.connections.conn(id).map_or((0, 0), |c| (c.route, c.data));
        Self { core, id, route, data }
    }

    /// The same, where the record was looked at just now.
    #[inline]
    pub(crate) fn known(core: &'a mut Core, id: ConnId, route: u16, data: u32) -> Self {
        Self { core, id, route, data }
    }

    /// The same connection, for a callee that wants a `Cx` of its own.
    #[inline]
    pub fn reborrow(&mut self) -> Cx<'_> {
        Cx { core: self.core, id: self.id, route: self.route, data: self.data }
    }

    /// The connection's name, which reaches it from any thread through [`Remote`].
    #[must_use]
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// The shard.
    #[must_use]
    pub fn core(&mut self) -> &mut Core {
        self.core
    }

    /// The shard, to look at.
    #[must_use]
    pub fn core_ref(&self) -> &Core {
        self.core
    }

    /// Sends a message.
    #[inline]
    pub fn send(&mut self, message: Message<'_>) -> Sent {
        self.core.send(self.id, message)
    }

    /// Sends a frame that was encoded before.
    pub fn send_frame(&mut self, frame: &Frame) -> Sent {
        self.core.send_frame(self.id, frame)
    }

    /// Appends raw bytes to what is sent: HTTP heads and bodies, before there is a session.
    pub fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.core.connections.write(self.id, write);
    }

    /// Begins the closing handshake, behind what is queued. Nothing can be sent after it.
    pub fn close(&mut self, code: u16, reason: &str) {
        self.core.close(self.id, code, reason);
    }

    /// Ends the connection with a reset, at once.
    pub fn abort(&mut self) {
        self.core.abort(self.id);
    }

    /// Makes this connection a stream of server-sent events. The head of the answer is written, channels are
    /// subscribed to, and the callback returns [`Answer::Events`](crate::Answer::Events).
    pub fn start_events(&mut self) {
        if let Some(conn) = self.core.connections.conn_mut(self.id)
            && conn.stage == Stage::Http
        {
            conn.stage = Stage::Events;
        }
    }

    /// Notes that permessage-deflate was agreed on, before the session opens. False if that cannot be, for want of
    /// numbers: 65,535 different agreements are told apart.
    pub fn set_deflate(&mut self, policy: deflate::Policy, agreed: deflate::Agreed) -> bool {
        self.core.connections.set_deflate(self.id, policy, agreed)
    }

    /// Sends a message that is not worth compressing, such as an image.
    pub fn send_incompressible(&mut self, message: Message<'_>) -> Sent {
        let text = matches!(message, Message::Text(_));
        self.core.connections.send_hinted(self.id, text, message.as_bytes(), false)
    }

    /// Notes the subprotocol that was agreed, for [`Filter::set_subprotocol`].
    pub fn set_subprotocol(&mut self, name: &str) {
        self.core.connections.set_subprotocol(self.id, name);
    }

    /// The subprotocol that was agreed, if any.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.core.connections.subprotocol(self.id)
    }

    /// Makes this connection a member of a channel; false if it was one, or is closing.
    pub fn subscribe(&mut self, channel: &str) -> bool {
        matches!(self.core.connections.stage(self.id), Stage::Open | Stage::Events)
            && self.core.channels.subscribe(self.id.slot() as u32, channel)
    }

    /// Ends a membership; false if there was none.
    pub fn unsubscribe(&mut self, channel: &str) -> bool {
        self.core.channels.unsubscribe(self.id.slot() as u32, channel)
    }

    /// The channels this connection is a member of.
    pub fn subscriptions(&self) -> impl Iterator<Item = &str> {
        self.core.channels.subscriptions(self.id.slot() as u32).map(|name| &**name)
    }

    /// Sends to every other member of a channel.
    pub fn publish(&mut self, channel: &str, frame: &Frame) -> Delivery {
        self.core.publish(channel, frame, Some(self.id))
    }

    /// Sends to everyone that `filter` lets through, this connection included.
    pub fn broadcast(&mut self, filter: &Arc<Filter>, frame: &Frame) -> Delivery {
        self.core.broadcast(filter, frame)
    }

    /// Bytes queued for this connection that the kernel has not taken.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.core.connections.backlog(self.id)
    }

    /// The peer's address; kept until the upgrade only, unless addresses are counted.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.core.connections.cold(self.id)?.peer
    }

    /// The service's route for this connection.
    #[must_use]
    #[inline]
    pub fn route(&self) -> u16 {
        self.route
    }

    /// The service's own word for this connection.
    #[must_use]
    #[inline]
    pub fn data(&self) -> u32 {
        self.data
    }

    /// Sets the service's route and word.
    pub fn set_route(&mut self, route: u16, data: u32) {
        (self.route, self.data) = (route, data);
        if let Some(conn) = self.core.connections.conn_mut(self.id) {
            conn.route = route;
            conn.data = data;
            conn.harmless_len = 0;
        }
    }
}

/// The way to every shard from any thread; clone it freely.
#[derive(Clone, Debug)]
pub struct Remote {
    shards: Arc<[Mailbox<Mail>]>,
}

/// A shard's mailbox holds [`MAILBOX_CAPACITY`] letters or 64 MiB of messages: the shard is far behind, and this letter
/// was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxFull;

impl std::fmt::Display for MailboxFull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "a shard is {MAILBOX_CAPACITY} letters or 64 MiB of messages behind; send less, or more slowly"
        )
    }
}

impl std::error::Error for MailboxFull {}

impl Remote {
    pub(crate) fn new(shards: Vec<Mailbox<Mail>>) -> Self {
        Self { shards: shards.into() }
    }

    /// Shards of this process.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Sends to every member of `channel` but `except`: one letter to each shard.
    ///
    /// # Errors
    /// At least one shard's mailbox is full; the others have the letter.
    pub fn publish(
        &self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
    ) -> Result<Receipt, MailboxFull> {
        let channel: Arc<str> = channel.into();
        self.to_all(|share| {
            let (channel, frame) = (Arc::clone(&channel), frame.clone());
            Mail::Publish { channel, frame, except, share }
        })
    }

    /// Sends to everyone that `filter` lets through: one letter to each shard.
    ///
    /// # Errors
    /// As for [`Remote::publish`].
    pub fn broadcast(&self, filter: &Arc<Filter>, frame: &Frame) -> Result<Receipt, MailboxFull> {
        self.to_all(|share| {
            let (filter, frame) = (Arc::clone(filter), frame.clone());
            Mail::Broadcast { filter, frame, share }
        })
    }

    fn to_all(&self, letter: impl Fn(Share) -> Mail) -> Result<Receipt, MailboxFull> {
        let (receipt, shares) = Receipt::new(self.shards.len());
        let mut outcome = Ok(());
        for (shard, share) in shares.into_iter().enumerate() {
            outcome = outcome.and(self.post(shard, letter(share)));
        }
        outcome.map(|()| receipt)
    }

    /// Sends to one connection, if it is still there.
    ///
    /// # Errors
    /// Its shard's mailbox is full.
    pub fn send(&self, to: ConnId, frame: &Frame) -> Result<(), MailboxFull> {
        self.post(to.shard(), Mail::Send { to, frame: frame.clone() })
    }

    /// Begins the closing handshake with one connection, if it is still there.
    ///
    /// # Errors
    /// Its shard's mailbox is full.
    pub fn close(&self, to: ConnId, code: u16, reason: &str) -> Result<(), MailboxFull> {
        self.post(to.shard(), Mail::Close { to, code, reason: reason.into() })
    }

    /// Drains every shard.
    ///
    /// # Errors
    /// A shard's mailbox is full; try again.
    pub fn drain(&self, plan: DrainPlan) -> Result<(), MailboxFull> {
        (0..self.shards.len()).try_for_each(|shard| self.post(shard, Mail::Drain(plan)))
    }

    /// To all shards but `from`; returns how many mailboxes were full.
    fn publish_from(
        &self,
        from: usize,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
    ) -> u64 {
        if self.shards.len() == 1 {
            return 0;
        }
        let channel: Arc<str> = channel.into();
        self.to_others(from, || {
            let (channel, frame) = (Arc::clone(&channel), frame.clone());
            Mail::Publish { channel, frame, except, share: Share::nobodys() }
        })
    }

    fn broadcast_from(&self, from: usize, filter: &Arc<Filter>, frame: &Frame) -> u64 {
        self.to_others(from, || {
            let (filter, frame) = (Arc::clone(filter), frame.clone());
            Mail::Broadcast { filter, frame, share: Share::nobodys() }
        })
    }

    fn to_others(&self, from: usize, letter: impl Fn() -> Mail) -> u64 {
        let others = (0..self.shards.len()).filter(|&shard| shard != from);
        others.filter(|&shard| self.post(shard, letter()).is_err()).count() as u64
    }

    /// An id made up from wrong bits names a shard that is not there: nobody, like any id of the past.
    fn post(&self, shard: usize, mail: Mail) -> Result<(), MailboxFull> {
        match self.shards.get(shard) {
            Some(mailbox) => {
                let bytes = mail.bytes();
                mailbox.send_with(mail, bytes).map_err(|_| MailboxFull)
            }
            None => Ok(()),
        }
    }
}
