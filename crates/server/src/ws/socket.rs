//! A connection, seen from its callbacks.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use throng_engine::{
    CloseCode, Cx, Delivery, Frame, Message, PatternError, Receipt, Recovery, Sent, Since,
};
use throng_proto::ws::OwnedMessage;

use crate::filter::Filter;
use crate::handle::Handle;
use crate::hub::Hub;
use crate::workers::RouteContext;

/// A WebSocket connection inside a callback: sends messages, subscribes to channels, closes.
///
/// The next argument of the callback is the data that the handler keeps for the connection. `D` is
/// its type, which the continuations of [`after`](Self::after) and [`offload`](Self::offload) get;
/// a function for the sockets of all routes is `fn f<D>(ws: &mut Socket<'_, D>)`.
///
/// It lives on its shard, and cannot be sent to another thread; to reach the connection later or
/// from another thread, keep its [`Handle`]. Only the subprotocol of the upgrade request is kept,
/// so that a session takes about 100 bytes: copy everything else that you need, such as the peer's
/// address, into the data that [`on_upgrade`](crate::Handler::on_upgrade) returns.
///
/// ```compile_fail,E0277
/// # use throng::prelude::*;
/// let _ = Ws::new().on_message(|ws, (), _| {
///     std::thread::scope(|scope| {
///         scope.spawn(|| ws.send("from another thread"));
///     });
/// });
/// ```
pub struct Socket<'a, D = ()> {
    cx: Cx<'a>,
    context: &'a RouteContext,
    tag: Tag<D>,
}

/// The type of the data. The pointer keeps the socket on its thread.
type Tag<D> = PhantomData<(fn(D), *mut ())>;

// The tag has no size.
const _: () = assert!(size_of::<Socket<'_, [u8; 64]>>() == size_of::<(Cx<'_>, &RouteContext)>());

impl<'a, D> Socket<'a, D> {
    #[inline]
    pub(crate) fn new(cx: Cx<'a>, context: &'a RouteContext) -> Self {
        Self { cx, context, tag: PhantomData }
    }

    /// The name of its route, and the pool of workers.
    pub(crate) fn context(&self) -> &'a RouteContext {
        self.context
    }

    pub(crate) fn cx(&self) -> &Cx<'a> {
        &self.cx
    }

    pub(crate) fn cx_mut(&mut self) -> &mut Cx<'a> {
        &mut self.cx
    }

    /// Sends a message: `&str` and `String` as text, bytes as binary, a [`Message`] as its own
    /// kind, a [`Frame`] as a reference to bytes that were encoded before.
    ///
    /// The message is queued and leaves when the callback returns; the result states whether the
    /// receiver keeps up. It comes after earlier [publications](Self::publish) of this session to
    /// channels that it is a member of, so that a message can acknowledge a publication: if the
    /// publication waits for others, the message waits with it. Only publications that a cluster
    /// carries, and publications of the [`Hub`], may come later.
    #[inline]
    pub fn send(&mut self, message: impl Sendable) -> Sent {
        message.send_with(&mut self.cx)
    }

    /// Begins the closing handshake, after all queued messages. Nothing can be sent after it. A
    /// code that is not [sendable](CloseCode::is_sendable) is sent as no code; use codes like
    /// `CloseCode::new(4001)` for the program's own meanings. `reason` is cut to 123 bytes.
    pub fn close(&mut self, code: CloseCode, reason: &str) {
        self.cx.close(code.get(), reason);
    }

    /// Sends a ping ([RFC 6455 section
    /// 5.5.2](https://www.rfc-editor.org/rfc/rfc6455#section-5.5.2)), for devices between client
    /// and server. The server sends pings by itself; see
    /// [`Limits::heartbeat_interval`](crate::Limits::heartbeat_interval).
    pub fn ping(&mut self) {
        self.cx.ping();
    }

    /// Returns the path of its route, as it was given to the app, such as `/chat/{room}`.
    #[must_use]
    pub fn route(&self) -> &'a str {
        &self.context.path
    }

    /// Ends the connection with a TCP reset, at once.
    pub fn abort(&mut self) {
        self.cx.abort();
    }

    /// Joins the channel of exactly this name, in which `*` and `>` are ordinary characters: the
    /// session gets publications from this call on, and no earlier ones, including earlier ones of
    /// this callback. False if it had joined before. Costs 12 bytes until it leaves or the session
    /// ends. A connection gets a message once, even if several of its subscriptions match.
    ///
    /// Check a name that contains a user's text with [`is_token`](crate::channel::is_token): a dot
    /// would make it a different channel.
    pub fn subscribe(&mut self, channel: &str) -> bool {
        self.cx.subscribe(channel)
    }

    /// Joins the channel of exactly this name at an exact position. In a channel with history
    /// ([`Channels::history`](crate::channel::Channels::history)) the result has the publications
    /// since the position `since`, which the caller must send now with
    /// [`send_missed`](Self::send_missed): between the last of them and the first live message
    /// nothing is lost, duplicated or reordered. If that is not possible, or no position was given,
    /// [`Recovery::recovered`] is false, and the member is live from [`Recovery::position`] on.
    /// With [`Since::Last`] the result has the last publications, for a member that begins with
    /// them: `ws.subscribe_since("chat.lobby", Since::Last(50))`.
    ///
    /// The missed publications include the client's own from before its connection was lost, even
    /// those sent by [`publish_to_others`](Self::publish_to_others).
    ///
    /// ```
    /// # use throng::channel::Position;
    /// # use throng::prelude::*;
    /// let chat = Ws::from_request(|request| {
    ///     Ok(request.query("since").and_then(|since| since.parse::<Position>().ok()))
    /// })
    /// .on_open(|ws, since| {
    ///     ws.send_offsets(true);
    ///     let recovery = ws.subscribe_since("chat.lobby", *since);
    ///     let position = recovery.position.map_or_else(String::new, |at| at.to_string());
    ///     ws.send(format!("from {position}, recovered: {}", recovery.recovered));
    ///     ws.send_missed(&recovery);
    /// });
    /// # let _ = App::new().ws("/", chat);
    /// ```
    pub fn subscribe_since(&mut self, channel: &str, since: impl Into<Since>) -> Recovery {
        self.cx.subscribe_since(channel, since)
    }

    /// Joins a channel as [`subscribe_since`](Self::subscribe_since) does, with information about
    /// this client, such as its user's name: in a channel with presence
    /// ([`Channels::presence`](crate::channel::Channels::presence)), [`Hub::presence`] lists it,
    /// and members may get it with the join and the leave. The other methods join without
    /// information. A member of a pattern is not listed.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// let chat = Ws::new().on_message(|ws, (), name| {
    ///     let Message::Text(name) = name else { return };
    ///     let _ = ws.subscribe_as("chat.lobby", name, None);
    ///     let here = ws.hub().presence("chat.lobby", 1000).unwrap_or_default();
    ///     let names: Vec<&str> = here.iter().map(|present| &*present.info).collect();
    ///     ws.send(names.join(", "));
    /// });
    /// Server::new(App::new().ws("/", chat))
    ///     .channels(Channels::new().presence("chat.*", Presence::new().join_leave(true)));
    /// ```
    pub fn subscribe_as(&mut self, channel: &str, info: &str, since: impl Into<Since>) -> Recovery {
        self.cx.subscribe_as(channel, since, info)
    }

    /// Sends the publications that a client has missed, in the same way as live ones: with offsets
    /// if [`send_offsets`](Self::send_offsets) is on, and by the rules of the channel. So either
    /// all of them leave, or the session is closed with 1008 and the client comes back for them;
    /// with [`send`](Self::send), a route's rules might drop some silently.
    pub fn send_missed(&mut self, recovery: &Recovery) -> Sent {
        self.cx.send_missed(recovery)
    }

    /// Sets whether publications to channels with history are sent to this connection with their
    /// offset in front, `OFFSET PAYLOAD`, so that the client knows its position. Default: false.
    pub fn send_offsets(&mut self, on: bool) {
        self.cx.send_offsets(on);
    }

    /// Delivers only the publications and broadcasts for which `wanted` returns true, from now on,
    /// in place of an earlier filter. It applies on the receiver's event loop, before a message
    /// enters its queue, and to [missed publications](Self::send_missed) as well. Messages that are
    /// [sent](Self::send) to the session itself always arrive. Default: all are delivered.
    ///
    /// The filter owns the values that it compares with: to change them, call this again. It runs
    /// for each publication that this session would get, while all other sessions of the event loop
    /// wait, so put the compared values at the front of the payload rather than parsing all of it.
    /// The filter and an entry of a hash table are the memory that a session with a filter takes
    /// more; where the event loop has any filter, a publication looks each receiver up in that
    /// table. Other publications count as [`filtered`](crate::channel::Delivery::filtered), and
    /// their offsets are missing among the ones that [`send_offsets`](Self::send_offsets) sends. A
    /// panic in the filter ends this session with 1011, and the publisher does not notice.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// // Trades are sent as `SIZE SYMBOL PRICE`; a client sends the smallest size that it wants.
    /// let trades = Ws::new()
    ///     .on_open(|ws, ()| drop(ws.subscribe("trades")))
    ///     .on_message(|ws, (), message| {
    ///         let Message::Text(text) = message else { return };
    ///         let Ok(least) = text.parse::<u32>() else { return };
    ///         ws.deliver_if(move |frame| {
    ///             let size = frame.payload().split(|byte| *byte == b' ').next();
    ///             let size = size.and_then(|size| std::str::from_utf8(size).ok()?.parse().ok());
    ///             size.is_none_or(|size: u32| size >= least)
    ///         });
    ///     });
    /// # Server::new(App::new().ws("/trades", trades));
    /// ```
    pub fn deliver_if(&mut self, wanted: impl Fn(&Frame) -> bool + Send + 'static) {
        self.cx.deliver_if(Some(Box::new(wanted)));
    }

    /// Removes the filter of [`deliver_if`](Self::deliver_if).
    pub fn deliver_all(&mut self) {
        self.cx.deliver_if(None);
    }

    /// Joins all channels that match a pattern: tokens separated by dots, `*` for any one token,
    /// `>` at the end for all that follow. False if it had joined before.
    ///
    /// Never build a pattern from a user's text: a user called `*` would join everything.
    ///
    /// # Errors
    /// The pattern is malformed.
    pub fn subscribe_pattern(&mut self, pattern: &str) -> Result<bool, PatternError> {
        self.cx.subscribe_pattern(pattern)
    }

    /// Leaves a pattern; false if it was not a member.
    pub fn unsubscribe_pattern(&mut self, pattern: &str) -> bool {
        self.cx.unsubscribe_pattern(pattern)
    }

    /// Leaves a channel: messages still queued for this shard no longer arrive. False if it was not
    /// a member.
    pub fn unsubscribe(&mut self, channel: &str) -> bool {
        self.cx.unsubscribe(channel)
    }

    /// Returns the channels and patterns that this connection has joined.
    pub fn subscriptions(&self) -> impl Iterator<Item = &str> {
        self.cx.subscriptions()
    }

    /// Sends to every member of a channel, including this connection if it is a member, in one
    /// order: all members, on all shards, get these publications and the publications of
    /// [`Hub::publish`] in the same order.
    ///
    /// A message is encoded once and never copied per member. Publications of one callback wait
    /// until it returns: a loop over very many messages belongs on another thread, with the
    /// [`Hub`]. If publications of others are queued for this shard, this one comes after them, and
    /// messages that this session is [sent](Self::send) afterwards come after this one;
    /// [`publish_unordered`](Self::publish_unordered) does not wait.
    ///
    /// The receipt counts the receivers on all shards, and may be dropped. Do not wait for it in a
    /// callback.
    pub fn publish(&mut self, channel: &str, message: impl Into<Frame>) -> Receipt {
        self.cx.publish(channel, &message.into())
    }

    /// Sends to every *other* member of a channel; otherwise like [`publish`](Self::publish).
    pub fn publish_to_others(&mut self, channel: &str, message: impl Into<Frame>) -> Receipt {
        self.cx.publish_to_others(channel, &message.into())
    }

    /// Sends to every *other* member of a channel like
    /// [`publish_to_others`](Self::publish_to_others), but without a common order: members on
    /// different shards may get the messages of different publishers in different orders.
    ///
    /// With several shards it is the cheaper form: it takes no lock, and has no receipt. It counts
    /// only this shard's members. The messages that one session sends in this way keep their order,
    /// and may overtake the session's earlier publications in the common order.
    pub fn publish_unordered(&mut self, channel: &str, message: impl Into<Frame>) -> Delivery {
        self.cx.publish_unordered(channel, &message.into())
    }

    /// Sends to every *other* session and every stream of events, on all shards, in one order with
    /// [publications](Self::publish): it comes after the earlier publications of this session.
    pub fn broadcast(&mut self, message: impl Into<Frame>) -> Receipt {
        let others = Filter::new().exclude([self.handle()]);
        self.broadcast_to(&others, message)
    }

    /// Sends to all receivers that `filter` selects, on all shards, including this connection if it
    /// is selected; otherwise like [`broadcast`](Self::broadcast).
    pub fn broadcast_to(&mut self, filter: &Filter, message: impl Into<Frame>) -> Receipt {
        self.cx.broadcast(filter.inner(), &message.into())
    }

    /// Returns the number of subscriptions to exactly this channel, or pattern, on all shards, at
    /// this moment. Event streams count, and a session that is being closed counts until it has
    /// ended.
    #[must_use]
    pub fn subscribers(&self, channel: &str) -> usize {
        self.cx.core_ref().subscribers(channel)
    }

    /// Returns the negotiated subprotocol, if any ([RFC 6455 section
    /// 1.9](https://www.rfc-editor.org/rfc/rfc6455#section-1.9)).
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.cx.subprotocol()
    }

    /// Returns this connection's handle: 64 bits, `Copy`, `Send`.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::of(self.cx.id())
    }

    /// Returns the hub, which reaches all connections from any thread.
    #[must_use]
    pub fn hub(&self) -> Hub {
        Hub::of(self.cx.core_ref().remote().clone())
    }

    /// Returns the state of type `T` of this session's event loop, which all its sessions and
    /// [`Server::every_on_shard`](crate::Server::every_on_shard) share: no other thread reaches it,
    /// so it needs no lock. It is `T::default()` at first, and is dropped with the server.
    ///
    /// Sessions are on any of the event loops, unless they are placed by key
    /// ([`Ws::place_by`](crate::Ws::place_by)). With
    /// [`IoBackend::Threads`](crate::server::IoBackend::Threads) each connection has its own state.
    /// A panic ends its session and leaves the state as it is at that time.
    #[must_use]
    pub fn shard_state<T: Default + Send + 'static>(&mut self) -> &mut T {
        self.cx.core().local()
    }

    /// Returns the number of queued bytes that the peer has not taken.
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

/// A type that can be sent as a message. It is sealed: to send your own type, convert it to one of
/// these.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be sent as a message",
    note = "text is sent from `&str` or `String`, binary data from `&[u8]` or `Vec<u8>`",
    note = "an encoded message is sent from a `Frame`, a value as JSON from `Json(value)`"
)]
pub trait Sendable: sealed::Sealed {}

#[allow(unnameable_types, reason = "unnameable traits seal public ones")]
mod sealed {
    use throng_engine::{Cx, Message, Sent};

    /// Queues a message.
    pub trait Sealed {
        fn send_with(self, cx: &mut Cx<'_>) -> Sent;
    }

    /// Borrows the message that a value contains.
    pub trait AsMessage {
        fn as_message(&self) -> Message<'_>;
    }
}

/// A message that is already compressed, so that compressing it again is useless:
/// `ws.send(Incompressible(&jpeg))`. For a frame, see [`Frame::incompressible`].
#[derive(Clone, Copy, Debug)]
pub struct Incompressible<T>(pub T);

impl<T: sealed::AsMessage> Sendable for Incompressible<T> {}

impl<T: sealed::AsMessage> sealed::Sealed for Incompressible<T> {
    fn send_with(self, cx: &mut Cx<'_>) -> Sent {
        cx.send_incompressible(self.0.as_message())
    }
}

impl Sendable for &Frame {}

impl sealed::Sealed for &Frame {
    fn send_with(self, cx: &mut Cx<'_>) -> Sent {
        cx.send_frame(self)
    }
}

impl Sendable for Frame {}

impl sealed::Sealed for Frame {
    fn send_with(self, cx: &mut Cx<'_>) -> Sent {
        cx.send_frame(&self)
    }
}

/// A text message.
#[cfg(feature = "serde")]
impl<T: serde::Serialize> Sendable for throng_http::Json<T> {}

#[cfg(feature = "serde")]
impl<T: serde::Serialize> sealed::Sealed for throng_http::Json<T> {
    fn send_with(self, cx: &mut Cx<'_>) -> Sent {
        cx.send(Message::Text(&self.to_message()))
    }
}

macro_rules! sendable {
    ($($type:ty => |$this:ident| $message:expr,)+) => {
        $(
            impl Sendable for $type {}

            impl sealed::Sealed for $type {
                #[inline]
                fn send_with(self, cx: &mut Cx<'_>) -> Sent {
                    cx.send(sealed::AsMessage::as_message(&self))
                }
            }

            impl sealed::AsMessage for $type {
                #[inline]
                fn as_message(&self) -> Message<'_> {
                    let $this = self;
                    $message
                }
            }
        )+
    };
}

sendable! {
    Message<'_> => |this| *this,
    OwnedMessage => |this| OwnedMessage::as_message(this),
    &OwnedMessage => |this| OwnedMessage::as_message(this),
    &str => |this| Message::Text(this),
    String => |this| Message::Text(this),
    &String => |this| Message::Text(this),
    &[u8] => |this| Message::Binary(this),
    Vec<u8> => |this| Message::Binary(this),
    &Vec<u8> => |this| Message::Binary(this),
    Box<str> => |this| Message::Text(this),
    Cow<'_, str> => |this| Message::Text(this),
    Box<[u8]> => |this| Message::Binary(this),
    Cow<'_, [u8]> => |this| Message::Binary(this),
}

macro_rules! sendable_arrays {
    ($($type:ty,)+) => {
        $(
            impl<const N: usize> Sendable for $type {}

            impl<const N: usize> sealed::Sealed for $type {
                #[inline]
                fn send_with(self, cx: &mut Cx<'_>) -> Sent {
                    cx.send(sealed::AsMessage::as_message(&self))
                }
            }

            impl<const N: usize> sealed::AsMessage for $type {
                #[inline]
                fn as_message(&self) -> Message<'_> {
                    Message::Binary(&self[..])
                }
            }
        )+
    };
}

sendable_arrays! { [u8; N], &[u8; N], }
