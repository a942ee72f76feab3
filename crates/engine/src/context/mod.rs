//! State that a callback can reach: its own connection, every other one of the shard, the channels,
//! and the other shards.

pub(crate) mod clocks;
mod followed;
pub(crate) mod joining;
pub(crate) mod locals;
pub(crate) mod mail;
mod presence;
mod publish;
pub(crate) mod recent;
mod recorded;
mod views;

use std::net::SocketAddr;
use std::sync::Arc;

use throng_io::{ConnId, Instant, TlsInfo};
use throng_proto::ws::{Message, Opcode, deflate};

use crate::conn::record::ServiceFields;
use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::connections::Connections;
use crate::connections::dialect::Dialect;
use crate::connections::send::Published;
use crate::connections::wanted::WantedBy;
use crate::context::clocks::Clocks;
use crate::context::joining::Joining;
use crate::context::locals::Locals;
use crate::context::mail::ShardMail;
use crate::context::recent::RecentJoins;
use crate::message::{Fault, UserEvent};
use crate::outbox::frame::Frame;
use crate::outbox::sent::Sent;
use crate::pubsub::channels::{Channels, PatternError, Totals, check_pattern};
use crate::pubsub::delivery::{Delivery, Receipt};
use crate::pubsub::filter::Filter;
use crate::pubsub::history::{Recovery, Since};
use crate::remote::Remote;
use crate::stats::Stats;

/// A request to move a connection; see [`Core::move_upgrade`].
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) id: ConnId,
    pub(crate) to: usize,
    pub(crate) event: UserEvent,
}

/// The channels of a shard, and the publication that it makes now.
#[derive(Debug)]
pub(crate) struct PubSub {
    channels: Channels,
    recent: RecentJoins,
    joining: Joining,
    /// Shards that a publication goes to; kept for its memory.
    homes: Vec<u16>,
    /// The connection that publishes now; `None`: the shard itself.
    publisher: Option<ConnId>,
    /// Shards whose queues the last publication found crowded, or [`crate::remote::BROKER`].
    crowded: Vec<usize>,
    /// A publication that no connection made waits in this shard's queue, since the last
    /// [`Core::begin_tick`].
    waits_here: bool,
}

impl PubSub {
    fn new(channels: Channels) -> Self {
        Self {
            channels,
            recent: RecentJoins::default(),
            joining: Joining::default(),
            homes: Vec::new(),
            publisher: None,
            crowded: Vec::new(),
            waits_here: false,
        }
    }

    /// Returns the channels with members, and the memberships.
    pub(crate) fn lens(&self) -> (usize, usize) {
        (self.channels.len(), self.channels.memberships())
    }

    /// Returns the members that have joined at a place of a channel's history.
    pub(crate) fn recent(&mut self) -> &mut RecentJoins {
        &mut self.recent
    }

    /// Returns whether members wait for the broker.
    pub(crate) fn has_waiting(&self) -> bool {
        self.recent.are_waiting()
    }

    /// Begins a membership whose mark was reached.
    pub(crate) fn reach(&mut self, id: ConnId, name: &Arc<str>, is_pattern: bool) {
        self.joining.reach(id, name, is_pattern);
    }
}

/// A shard's state without its sockets. Callbacks get it through [`Cx`].
#[derive(Debug)]
pub struct Core {
    pub(crate) conns: Connections,
    pub(crate) pubsub: PubSub,
    pub(crate) mail: ShardMail,
    pub(crate) remote: Remote,
    pub(crate) clocks: Clocks,
    pub(crate) shard: usize,
    pub(crate) locals: Locals,
    /// Connections that must move to other shards when the lent bytes are returned.
    moves: Vec<Move>,
    /// The last message that a hub sent to one connection.
    last_sent: Option<(ConnId, Frame)>,
}

/// Maximum bytes of a message that is compared with the next one.
const MAX_COMPARED: usize = 64 << 10;

impl Core {
    /// Counts a message for one connection that equals the one before, for another connection:
    /// a publication would be encoded once.
    pub(crate) fn note_sent(&mut self, to: ConnId, frame: Frame) {
        let is_repeated = self
            .last_sent
            .as_ref()
            .is_some_and(|(last, before)| *last != to && before.as_bytes() == frame.as_bytes());
        self.conns.count(|stats| stats.repeated_sends += u64::from(is_repeated));
        self.last_sent = (frame.as_bytes().len() <= MAX_COMPARED).then_some((to, frame));
    }

    /// Creates the state of the shard, or of the connection's thread, with this number.
    pub(crate) fn new(
        shard: u16,
        conns: Connections,
        remote: &Remote,
        mail: ShardMail,
        clocks: Clocks,
    ) -> Self {
        let mut channels = Channels::new(Arc::clone(remote.totals()));
        channels.set_home(shard);
        Self {
            conns,
            pubsub: PubSub::new(channels),
            mail,
            remote: remote.clone(),
            clocks,
            shard: shard.into(),
            locals: Locals::default(),
            moves: Vec::new(),
            last_sent: None,
        }
    }

    /// Returns whether connections must move.
    #[inline]
    pub(crate) fn has_moves(&self) -> bool {
        !self.moves.is_empty()
    }

    /// Returns the connections that must move, and forgets them.
    pub(crate) fn take_moves(&mut self) -> Vec<Move> {
        std::mem::take(&mut self.moves)
    }

    /// Returns the time of this turn.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.conns.now()
    }

    /// Reads the clock, which is ahead of [`now`](Self::now) in a long turn.
    #[must_use]
    pub fn read_clock(&self) -> Instant {
        self.clocks.read()
    }

    /// Returns the number of this shard.
    #[must_use]
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// Returns the counts of subscribers over all shards.
    #[must_use]
    pub fn totals(&self) -> &Arc<Totals> {
        self.pubsub.channels.totals()
    }

    /// Returns the subscriptions to exactly this channel, or pattern, on all shards, at this
    /// moment.
    #[must_use]
    pub fn subscribers(&self, channel: &str) -> usize {
        self.pubsub.channels.totals().count(channel)
    }

    /// Returns this shard's counters so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.conns.stats()
    }

    /// Returns the handle that reaches every shard, this one included.
    #[must_use]
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Sends a message to a connection of this shard.
    #[inline]
    pub fn send(&mut self, to: ConnId, message: Message<'_>) -> Sent {
        let (opcode, payload) = match message {
            Message::Text(text) => (Opcode::Text, text.as_bytes()),
            Message::Binary(bytes) => (Opcode::Binary, bytes),
        };
        self.conns.send(to, opcode, payload)
    }

    /// Sends a finished frame to a connection of this shard.
    pub fn send_frame(&mut self, to: ConnId, frame: &Frame) -> Sent {
        match self.conns.is_held_behind(to) {
            true => self.conns.keep_frame(to, frame),
            false => self.conns.send_frame(to, frame, Published::default()),
        }
    }

    /// Begins a function that the shard calls outside of callbacks: its later messages follow the
    /// publications it makes by [`Core::publish_unheld`].
    pub fn begin_tick(&mut self) {
        self.pubsub.waits_here = false;
    }

    /// Sends a finished frame to a connection of this shard, behind the publications since
    /// [`Core::begin_tick`].
    pub fn send_in_tick(&mut self, to: ConnId, frame: &Frame) -> Sent {
        if self.pubsub.waits_here {
            self.hold_behind(to);
        }
        self.send_frame(to, frame)
    }

    /// Begins the closing handshake, behind the publications since [`Core::begin_tick`].
    pub fn close_in_tick(&mut self, conn: ConnId, code: u16, reason: &str) {
        if self.pubsub.waits_here {
            self.hold_behind(conn);
        }
        self.close(conn, code, reason);
    }

    /// Requests the total bytes that a session's connection carries:
    /// [`Service::on_traffic`](crate::Service::on_traffic) gets them when its socket is closed.
    /// Only in [`Service::on_open`](crate::Service::on_open).
    pub fn count_traffic(&mut self, conn: ConnId) {
        if let Some(conn) = self.conns.conn_mut(conn) {
            conn.set(flag::COUNTED, true);
        }
    }

    /// Begins the closing handshake.
    pub fn close(&mut self, conn: ConnId, code: u16, reason: &str) {
        self.conns.close(conn, code, reason);
    }

    /// Reports a fault that the service found in a connection:
    /// [`Service::on_fault`](crate::Service::on_fault) is called once the driver can return its
    /// address.
    pub fn note_fault(&mut self, conn: ConnId, fault: Fault) {
        self.conns.note_fault(conn, fault);
    }

    /// Resets a connection at once.
    pub fn abort(&mut self, conn: ConnId) {
        self.conns.finish(conn, AfterFlush::Abort);
    }

    /// Completes an answer announced with [`Answer::Later`](crate::Answer::Later): the next request
    /// is read if both sides keep the connection alive and the request's body has come to its end.
    pub fn finish_answer(&mut self, conn: ConnId, keep_alive: bool) {
        self.conns.finish_answer(conn, keep_alive);
        self.clocks.end_request(conn);
    }

    /// Accepts an upgrade announced with [`Answer::Upgrading`](crate::Answer::Upgrading), in
    /// [`Service::on_user_event`](crate::Service::on_user_event): the session opens when that
    /// returns, so the 101 response is written before. Returns false if there is no longer such
    /// an upgrade.
    #[must_use = "if it is false, no session opens"]
    pub fn accept_upgrade(&mut self, conn: ConnId) -> bool {
        self.conns.accept_upgrade(conn)
    }

    /// Moves a connection whose upgrade is awaited to another shard, whose service then gets
    /// `event` in [`Service::on_user_event`](crate::Service::on_user_event), under another id.
    /// Where it cannot be moved, because a response still has to leave, the other shard has no
    /// room, or each shard has its own descriptor table, the service of this shard gets the event.
    ///
    /// Before the call, its state at the service of this shard must be dropped, or put into the
    /// event: no callback for the old id follows.
    pub fn move_upgrade(&mut self, conn: ConnId, to: usize, event: UserEvent) {
        self.moves.push(Move { id: conn, to, event });
    }

    /// Stops reading messages of this session. Unread data stays with the peer, except for the rest
    /// of the last read; output still leaves, and the peer's silence does not count as a timeout.
    pub fn stop_reading(&mut self, conn: ConnId) {
        self.conns.stop_reading(conn);
    }

    /// Stops reading as [`Core::stop_reading`] does, and ends the session when its peer has ended
    /// the stream, within about a second, although messages before that end are unread: for a
    /// service whose work is of no use to a peer that has gone.
    pub fn stop_reading_until_gone(&mut self, conn: ConnId) {
        self.conns.stop_reading_until_gone(conn);
    }

    /// Requests a call of [`Service::on_half_closed`](crate::Service::on_half_closed) within about
    /// a second when the client of this request has ended its side, although the connection is not
    /// read because input waits behind the request. It takes effect while the answer is awaited,
    /// until more of the request's body is read. On Linux only; elsewhere the end is reported when
    /// it is read.
    pub fn watch_client(&mut self, conn: ConnId) {
        self.conns.watch(conn);
    }

    /// Resumes reading messages after [`Core::stop_reading`], or more of a body after
    /// [`Flow::Stop`](crate::Flow::Stop).
    pub fn resume_reading(&mut self, conn: ConnId) {
        self.conns.resume_reading(conn);
    }

    /// Requests `on_drain` once the backlog is at or below its low-water mark; never called within
    /// this callback.
    pub fn await_drain(&mut self, conn: ConnId) {
        self.conns.await_drain(conn);
    }

    /// Returns the largest request body, in bytes, where the route has no limit of its own.
    #[must_use]
    pub fn max_body(&self) -> u64 {
        self.conns.limits().http.max_body
    }

    /// Returns the service's own value for a connection.
    #[must_use]
    pub fn data(&self, conn: ConnId) -> Option<u32> {
        Some(self.conns.conn(conn)?.service.data)
    }
}

/// Handle of one connection inside a callback.
#[derive(Debug)]
pub struct Cx<'a> {
    core: &'a mut Core,
    id: ConnId,
    service: ServiceFields,
}

impl<'a> Cx<'a> {
    /// Creates a handle for the connection `id` of this shard. If the connection is gone, sends
    /// return [`Sent::Closed`].
    pub fn new(core: &'a mut Core, id: ConnId) -> Self {
        let conn = core.conns.conn(id);
        let service = conn.map_or_else(ServiceFields::default, |conn| conn.service);
        Self { core, id, service }
    }

    /// Creates a handle with fields that were read from the record just now.
    #[inline]
    pub(crate) fn known(core: &'a mut Core, id: ConnId, service: ServiceFields) -> Self {
        Self { core, id, service }
    }

    /// Reborrows the handle, for a callee that takes a `Cx` by value.
    #[inline]
    pub fn reborrow(&mut self) -> Cx<'_> {
        Cx { core: self.core, id: self.id, service: self.service }
    }

    /// Declares that a callback of `route` follows, which a stall is then attributed to (see
    /// [`Watching`](crate::Watching)). `route` is any number the service likes except the greatest.
    #[inline(always)]
    pub fn enter_route(&mut self, route: u32) {
        self.core.clocks.watch().enter(route);
    }

    /// Returns the route entered last in this turn.
    #[must_use]
    pub fn entered_route(&self) -> Option<u32> {
        self.core.clocks.entered()
    }

    /// Returns the connection's id, which reaches it from any thread through [`Remote`].
    #[must_use]
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// Returns the shard.
    #[must_use]
    pub fn core(&mut self) -> &mut Core {
        self.core
    }

    /// Returns the shard, read-only.
    #[must_use]
    pub fn core_ref(&self) -> &Core {
        self.core
    }

    /// Sends a message.
    #[inline]
    pub fn send(&mut self, message: Message<'_>) -> Sent {
        self.core.send(self.id, message)
    }

    /// Sends a frame that is encoded already.
    pub fn send_frame(&mut self, frame: &Frame) -> Sent {
        self.core.send_frame(self.id, frame)
    }

    /// Appends raw bytes to the output: HTTP heads and bodies, before there is a session.
    pub fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.core.conns.write(self.id, write);
    }

    /// Begins the closing handshake, behind queued output. Nothing can be sent after it.
    pub fn close(&mut self, code: u16, reason: &str) {
        self.core.close(self.id, code, reason);
    }

    /// Sends a ping, if the session is open.
    pub fn ping(&mut self) {
        self.core.conns.ping(self.id);
    }

    /// Resets the connection at once.
    pub fn abort(&mut self) {
        self.core.abort(self.id);
    }

    /// Turns this connection into a stream of server-sent events. The head of the answer is
    /// written, channels are subscribed to, and the callback returns
    /// [`Answer::Events`](crate::Answer::Events).
    pub fn start_events(&mut self) {
        if let Some(conn) = self.core.conns.conn_mut(self.id)
            && conn.is(Stage::Http)
        {
            conn.advance(Stage::Events);
        }
    }

    /// Records that permessage-deflate was agreed on, before the session opens. Returns false if
    /// that is impossible: only 65,535 different agreements can be distinguished.
    pub fn set_deflate(&mut self, policy: deflate::Policy, agreed: deflate::Agreed) -> bool {
        self.core.conns.set_deflate(self.id, policy, agreed)
    }

    /// Reverts [`Cx::set_deflate`]: the upgrade was not completed.
    pub fn clear_deflate(&mut self) {
        self.core.conns.clear_deflate(self.id);
    }

    /// Returns whether this is an open session: neither side has begun to close it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.core.conns.is_open(self.id)
    }

    /// Returns whether the connection speaks HTTP yet: there was no session and no stream.
    #[must_use]
    pub fn is_http(&self) -> bool {
        matches!(self.core.conns.stage(self.id), Stage::Http | Stage::Serving)
    }

    /// Stops reading messages; see [`Core::stop_reading`].
    pub fn stop_reading(&mut self) {
        self.core.stop_reading(self.id);
    }

    /// Stops reading messages; see [`Core::stop_reading_until_gone`].
    pub fn stop_reading_until_gone(&mut self) {
        self.core.stop_reading_until_gone(self.id);
    }

    /// Resumes reading messages; see [`Core::resume_reading`].
    pub fn resume_reading(&mut self) {
        self.core.resume_reading(self.id);
    }

    /// Sends a message that is not worth compressing, such as an image.
    pub fn send_incompressible(&mut self, message: Message<'_>) -> Sent {
        let text = matches!(message, Message::Text(_));
        self.core.conns.send_hinted(self.id, text, message.as_bytes(), false)
    }

    /// Records the subprotocol that was agreed on, for [`Filter::set_subprotocol`].
    pub fn set_subprotocol(&mut self, name: &str) {
        self.core.conns.set_subprotocol(self.id, name);
    }

    /// Returns the subprotocol that was agreed on, if any.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.core.conns.subprotocol(self.id)
    }

    /// Adds this connection to the channel of exactly this name; returns false if it was a member,
    /// or is closing. The connection gets publications from now on. It is closed if the channel's
    /// broker has never been connected.
    pub fn subscribe(&mut self, channel: &str) -> bool {
        if self.can_join(channel) {
            self.core.begin_join(self.id, channel, false);
        }
        self.subscribe_announced(channel)
    }

    /// Adds this connection to a channel as [`Cx::subscribe`] does, for a subscription that was
    /// [announced](Remote::announce): publications that wait for this shard came after it.
    pub fn subscribe_announced(&mut self, channel: &str) -> bool {
        let joined = self.can_join(channel)
            && self.core.pubsub.channels.subscribe(self.id.slot() as u32, channel);
        if joined {
            self.core.enter(self.id, channel, "");
        }
        joined
    }

    /// Adds this connection to all channels that match a pattern; returns false if it was a member,
    /// or is closing.
    ///
    /// # Errors
    /// The pattern is malformed.
    pub fn subscribe_pattern(&mut self, pattern: &str) -> Result<bool, PatternError> {
        if self.can_subscribe() {
            let is_pattern = check_pattern(pattern)?;
            self.core.begin_join(self.id, pattern, is_pattern);
        }
        self.subscribe_pattern_announced(pattern)
    }

    /// Adds this connection to a pattern as [`Cx::subscribe_announced`] does to a channel.
    ///
    /// # Errors
    /// The pattern is malformed.
    pub fn subscribe_pattern_announced(&mut self, pattern: &str) -> Result<bool, PatternError> {
        if !self.can_subscribe() {
            return Ok(false);
        }
        let joined = self.core.pubsub.channels.subscribe_pattern(self.id.slot() as u32, pattern)?;
        if joined {
            self.core.enter_pattern(self.id, pattern);
        }
        Ok(joined)
    }

    /// Adds this connection to the channel of exactly this name, at an exact position. The result
    /// has the publications missed since `since`; together with the live publications they are all
    /// publications after that position, each once and in order. Without history it is like
    /// [`Cx::subscribe`].
    pub fn subscribe_since(&mut self, channel: &str, since: impl Into<Since>) -> Recovery {
        self.subscribe_as(channel, since, "")
    }

    /// Adds this connection to a channel as [`Cx::subscribe_since`] does, with information about it
    /// for the channel's presence.
    pub fn subscribe_as(&mut self, channel: &str, since: impl Into<Since>, info: &str) -> Recovery {
        if !self.can_join(channel) {
            return Recovery::default();
        }
        let recovery = self.core.join_at(self.id, channel, since.into());
        if recovery.joined {
            self.core.enter(self.id, channel, info);
        }
        recovery
    }

    /// Sends the missed publications of [`Cx::subscribe_since`], by the rules of the channel: all
    /// of them are sent, or the connection is closed as too slow, and the client reconnects for
    /// them. Other messages to the connection may have rules by which some are dropped.
    pub fn send_missed(&mut self, recovery: &Recovery) -> Sent {
        self.core.send_missed(self.id, recovery)
    }

    /// Sets whether publications of channels with history are sent to this WebSocket with their
    /// offset in front: `OFFSET PAYLOAD`. Events have their position as their id anyway.
    pub fn send_offsets(&mut self, on: bool) {
        self.core.conns.set(self.id, flag::OFFSETS, on);
    }

    /// Sets the filter of this session: it gets only publications and broadcasts for which `wanted`
    /// returns true; `None` removes the filter. It does not apply to messages that are sent to the
    /// session itself. A filter that panics ends the session with 1011.
    pub fn deliver_if(&mut self, wanted: Option<WantedBy>) {
        self.core.conns.set_wanted(self.id, wanted);
    }

    /// Sets the dialect in which this session gets messages that others publish, broadcast or send.
    /// Messages that the session itself sends have their form already.
    pub fn set_dialect(&mut self, dialect: Arc<dyn Dialect>) {
        self.core.conns.set_dialect(self.id, dialect);
    }

    fn can_join(&mut self, channel: &str) -> bool {
        self.can_subscribe() && !self.core.turn_away(self.id, channel)
    }

    fn can_subscribe(&self) -> bool {
        self.core.conns.stage(self.id) == Stage::Events || self.is_open()
    }

    /// Removes this connection from a channel; returns false if it was not a member.
    pub fn unsubscribe(&mut self, channel: &str) -> bool {
        let left = self.core.pubsub.channels.unsubscribe(self.id.slot() as u32, channel);
        if left {
            self.core.pubsub.recent.stop_waiting(self.id, channel);
            self.core.exit(self.id, channel);
        }
        left
    }

    /// Removes a subscription to a pattern; returns false if there was none.
    pub fn unsubscribe_pattern(&mut self, pattern: &str) -> bool {
        let left = self.core.pubsub.channels.unsubscribe_pattern(self.id.slot() as u32, pattern);
        if left {
            self.core.exit_pattern(self.id, pattern);
        }
        left
    }

    /// Returns the channels and patterns this connection is a member of.
    pub fn subscriptions(&self) -> impl Iterator<Item = &str> {
        self.core.pubsub.channels.subscriptions(self.id.slot() as u32).map(|name| &**name)
    }

    /// Sends to every member of a channel, in one order for all members on all shards; see
    /// [`Core::publish`]. When the queue of a shard with members is nearly full, or the queue to
    /// the broker that carries the channel, this connection is not read until the queue has space.
    pub fn publish(&mut self, channel: &str, frame: &Frame) -> Receipt {
        self.core.pubsub.publisher = Some(self.id);
        let receipt = self.core.publish(channel, frame, None);
        self.core.delay_if_crowded(self.id);
        receipt
    }

    /// Sends to every other member of a channel; otherwise like [`Cx::publish`].
    pub fn publish_to_others(&mut self, channel: &str, frame: &Frame) -> Receipt {
        self.core.pubsub.publisher = Some(self.id);
        let receipt = self.core.publish(channel, frame, Some(self.id));
        self.core.delay_if_crowded(self.id);
        receipt
    }

    /// Sends to every other member of a channel; see [`Core::publish_unordered`]. Holds this
    /// connection back as [`Cx::publish`] does.
    pub fn publish_unordered(&mut self, channel: &str, frame: &Frame) -> Delivery {
        self.core.pubsub.publisher = Some(self.id);
        let delivery = self.core.publish_unordered(channel, frame, Some(self.id));
        self.core.delay_if_crowded(self.id);
        delivery
    }

    /// Sends to every connection that `filter` selects, this one included. Holds this connection
    /// back as [`Cx::publish`] does.
    pub fn broadcast(&mut self, filter: &Arc<Filter>, frame: &Frame) -> Receipt {
        self.core.pubsub.publisher = Some(self.id);
        let receipt = self.core.broadcast(filter, frame);
        self.core.delay_if_crowded(self.id);
        receipt
    }

    /// Returns whether this connection is delayed because its publications found the queue of
    /// another shard, or the queue to the broker, crowded. Reading resumes when the queue has
    /// space, and [`Service::on_drain`](crate::Service::on_drain) follows if [`Core::await_drain`]
    /// was called.
    #[must_use]
    pub fn is_held_back(&self) -> bool {
        self.core.conns.awaits_capacity(self.id)
    }

    /// Counts an answer with a status of 5xx.
    pub fn count_server_error(&mut self) {
        self.core.conns.count(|stats| stats.server_errors += 1);
    }

    /// Counts a panic of a handler that did not run in a callback.
    pub fn count_panic(&mut self) {
        self.core.conns.count(|stats| stats.handler_panics += 1);
    }

    /// Returns the bytes queued for this connection that the kernel has not taken.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.core.conns.backlog(self.id)
    }

    /// Returns the peer's address, kept until the upgrade only; in
    /// [`Service::on_fault`](crate::Service::on_fault) the socket's address.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.core.conns.cold(self.id)?.peer
    }

    /// Returns the outcome of the connection's TLS handshake, kept until the upgrade only; `None`
    /// if it has no TLS.
    #[must_use]
    pub fn tls(&self) -> Option<&Arc<TlsInfo>> {
        self.core.conns.cold(self.id)?.tls.as_ref()
    }

    /// Returns whether the client has got the response to its upgrade from another program: see
    /// [`Adoption`](crate::Adoption).
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.core.conns.has(self.id, flag::ANSWERED)
    }

    /// Returns the service's route for this connection.
    #[must_use]
    #[inline]
    pub fn route(&self) -> u16 {
        self.service.route
    }

    /// Returns the service's own value for this connection.
    #[must_use]
    #[inline]
    pub fn data(&self) -> u32 {
        self.service.data
    }

    /// Sets the service's route and value.
    pub fn set_route(&mut self, route: u16, data: u32) {
        self.service = ServiceFields { data, route, inline_limit: 0 };
        if let Some(conn) = self.core.conns.conn_mut(self.id) {
            conn.service = self.service;
        }
    }
}
