//! A connection, seen from its callbacks.

use std::fmt;
use std::sync::Arc;

use throng_engine::{Cx, Delivery, Frame, Message, Sent};

use crate::filter::Filter;
use crate::hub::{Handle, Hub};
use crate::workers::Desk;

/// One WebSocket connection inside a callback. It lives on its shard; to reach the connection later or from
/// another thread, keep its [`Handle`].
pub struct Socket<'a, D> {
    cx: Cx<'a>,
    data: &'a mut D,
    desk: &'a Desk,
}

impl<'a, D> Socket<'a, D> {
    #[inline]
    pub(crate) fn new(cx: Cx<'a>, data: &'a mut D, desk: &'a Desk) -> Self {
        Self { cx, data, desk }
    }

    /// Where its route hands work in.
    pub(crate) fn desk(&self) -> &'a Desk {
        self.desk
    }

    pub(crate) fn cx(&self) -> &Cx<'a> {
        &self.cx
    }

    pub(crate) fn cx_mut(&mut self) -> &mut Cx<'a> {
        &mut self.cx
    }

    /// The same for whom a part of the data is all of it.
    #[cfg(feature = "tokio")]
    pub(crate) fn with_data<P>(&mut self, part: impl FnOnce(&mut D) -> &mut P) -> Socket<'_, P> {
        Socket { cx: self.cx.reborrow(), data: part(self.data), desk: self.desk }
    }

    /// What the connection remembers.
    #[inline]
    #[must_use]
    pub fn data(&self) -> &D {
        self.data
    }

    /// What the connection remembers, to change it.
    #[inline]
    #[must_use]
    pub fn data_mut(&mut self) -> &mut D {
        self.data
    }

    /// Sends a message: `&str` and `String` as text, bytes as binary, a [`Message`] as what it is, a `&`[`Frame`]
    /// as a reference to bytes that were encoded before.
    ///
    /// It is queued and leaves when the callback returns; the result tells how the receiver keeps up.
    #[inline]
    pub fn send(&mut self, message: impl Sendable) -> Sent {
        message.send_with(&mut self.cx)
    }

    /// Begins the closing handshake, behind what is queued. Nothing can be sent after it. `code` is 1000 (normal),
    /// 1001 (going away), 1003, 1007 to 1014, or 3000 to 4999 (RFC 6455 section 7.4); another is sent as no code.
    /// `reason` is cut to 123 bytes.
    pub fn close(&mut self, code: u16, reason: &str) {
        self.cx.close(code, reason);
    }

    /// Ends the connection with a TCP reset, at once.
    pub fn abort(&mut self) {
        self.cx.abort();
    }

    /// Joins a channel, or with [`Server::wildcards`](crate::Server::wildcards) all that match a pattern; false if it
    /// had joined before, or if the pattern is malformed. Costs 12 bytes while it lasts, and ends with the session. A
    /// connection gets a message once, however many of its subscriptions match.
    pub fn subscribe(&mut self, channel: &str) -> bool {
        self.cx.subscribe(channel)
    }

    /// Leaves a channel; false if it was no member.
    pub fn unsubscribe(&mut self, channel: &str) -> bool {
        self.cx.unsubscribe(channel)
    }

    /// The channels this connection has joined.
    pub fn subscriptions(&self) -> impl Iterator<Item = &str> {
        self.cx.subscriptions()
    }

    /// Sends to every *other* member of a channel, on all shards. Encoded once, never copied per member.
    ///
    /// The counts are those of this shard's members; the others' shards count their own. What one callback publishes
    /// is held until it returns: a loop over very many messages belongs on another thread, with the
    /// [`Hub`].
    pub fn publish(&mut self, channel: &str, message: impl Into<Frame>) -> Delivery {
        self.cx.publish(channel, &message.into())
    }

    /// Sends to every *other* session and every stream of events, on all shards. The counts are this shard's.
    pub fn broadcast(&mut self, message: impl Into<Frame>) -> Delivery {
        let others = Filter::new().exclude([self.handle()]);
        self.broadcast_to(&others, message)
    }

    /// Sends to everyone that `filter` lets through, on all shards, this connection included if it does. The counts
    /// are this shard's.
    pub fn broadcast_to(&mut self, filter: &Filter, message: impl Into<Frame>) -> Delivery {
        self.cx.broadcast(filter.inner(), &message.into())
    }

    /// Subscriptions to exactly this channel, or pattern, on all shards, at this moment. Streams of events count, and
    /// a session that is being closed does until it has ended.
    #[must_use]
    pub fn subscribers(&self, channel: &str) -> usize {
        self.cx.core_ref().subscribers(channel)
    }

    /// The subprotocol that was agreed on, if any (RFC 6455 section 1.9).
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.cx.subprotocol()
    }

    /// This connection's name: 64 bits, `Copy`, `Send`.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::of(self.cx.id())
    }

    /// The way to all connections from any thread.
    #[must_use]
    pub fn hub(&self) -> Hub {
        let core = self.cx.core_ref();
        Hub::new(core.remote().clone(), Arc::clone(core.totals()))
    }

    /// Bytes queued that the peer has not taken.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.cx.backlog()
    }
}

impl<D> fmt::Debug for Socket<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket({:?})", self.cx.id())
    }
}

/// What can be sent.
pub trait Sendable {
    /// Queues it.
    fn send_with(self, cx: &mut Cx<'_>) -> Sent;
}

impl Sendable for Message<'_> {
    #[inline]
    fn send_with(self, cx: &mut Cx<'_>) -> Sent {
        cx.send(self)
    }
}

/// A message that is not worth compressing, because it is compressed already: `ws.send(Incompressible(&jpeg))`. For a
/// frame, see [`Frame::incompressible`].
#[derive(Clone, Copy, Debug)]
pub struct Incompressible<T>(pub T);

impl Sendable for Incompressible<Message<'_>> {
    fn send_with(self, cx: &mut Cx<'_>) -> Sent {
        cx.send_incompressible(self.0)
    }
}

impl Sendable for &Frame {
    fn send_with(self, cx: &mut Cx<'_>) -> Sent {
        cx.send_frame(self)
    }
}

macro_rules! sendable {
    ($($type:ty => $kind:ident,)+) => {
        $(impl Sendable for $type {
            #[inline]
            fn send_with(self, cx: &mut Cx<'_>) -> Sent {
                cx.send(Message::$kind(self.as_ref()))
            }
        }

        impl Sendable for Incompressible<$type> {
            fn send_with(self, cx: &mut Cx<'_>) -> Sent {
                cx.send_incompressible(Message::$kind(self.0.as_ref()))
            }
        })+
    };
}

sendable! {
    &str => Text,
    String => Text,
    &String => Text,
    &[u8] => Binary,
    Vec<u8> => Binary,
    &Vec<u8> => Binary,
}
