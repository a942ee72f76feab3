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
/// The data that the handler keeps for the connection is the next argument of the callback. `D` is
/// its type, which the continuations of [`after`](Self::after) and [`offload`](Self::offload) get;
/// a function for the sockets of all routes is `fn f<D>(ws: &mut Socket<'_, D>)`.
///
/// It lives on its shard, and cannot be sent to another thread; to reach the connection later or
/// from another thread, keep its [`Handle`]. Only the subprotocol of the upgrade request is kept,
/// so that a session takes about 100 bytes: keep what you need of it, such as the peer's address,
/// in the data that [`on_upgrade`](crate::Handler::on_upgrade) returns.
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

    /// Sends a message: `&str` and `String` as text, bytes as binary, a [`Message`] as what it is,
    /// a [`Frame`] as a reference to bytes that were encoded before.
    ///
    /// It is queued and leaves when the callback returns; the result says whether the receiver
    /// keeps up. It comes after what this session [published](Self::publish) before to channels
    /// that it is a member of, so that a message can acknowledge a publication: where that waits
    /// for publications of others, the message waits with it. Only what a cluster carries, or the
    /// [`Hub`] publishes, may come later.
    #[inline]
    pub fn send(&mut self, message: impl Sendable) -> Sent {
        message.send_with(&mut self.cx)
    }

    /// Begins the closing handshake, behind what is queued. Nothing can be sent after it. A code
    /// that is not [sendable](CloseCode::is_sendable) is sent as no code; `CloseCode::new(4001)` is
    /// a code of the program's own. `reason` is cut to 123 bytes.
    pub fn close(&mut self, code: CloseCode, reason: &str) {
        self.cx.close(code.get(), reason);
    }

    /// Sends a ping ([RFC 6455 section
    /// 5.5.2](https://www.rfc-editor.org/rfc/rfc6455#section-5.5.2)): for what is between client
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

    /// Joins the channel of exactly this name, in which `*` and `>` are characters like any other:
    /// it gets what is published from this call on, and nothing of what was published before, also
    /// by this callback. False if it had joined before. Costs 12 bytes while it lasts, and ends
    /// with the session. A connection gets a message once, however many of its subscriptions match.
    ///
    /// A name that is made of a user's text should be checked with
    /// [`is_token`](crate::channel::is_token), so that a dot makes no other channel of it.
    pub fn subscribe(&mut self, channel: &str) -> bool {
        self.cx.subscribe(channel)
    }

    /// Joins the channel of exactly this name at an exact place. Of a channel with history
    /// ([`Channels::history`](crate::channel::Channels::history)) the result has what was
    /// published since the position `since`, which is to be sent now with
    /// [`send_missed`](Self::send_missed): nothing is lost, doubled or out of order between the
    /// last of it and the first message that comes live. If that is not possible, or no position
    /// was given, [`Recovery::recovered`] is false, and the member is live from
    /// [`Recovery::position`] on. With [`Since::Last`] the result has the last publications, for a
    /// member that begins with them: `ws.subscribe_since("chat.lobby", Since::Last(50))`.
    ///
    /// Its own publications from before it was lost are among those that it missed, even by
    /// [`publish_to_others`](Self::publish_to_others).
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
    /// ([`Channels::presence`](crate::channel::Channels::presence)) it is listed by
    /// [`Hub::presence`], and members may get it with the join and the leave. The other forms join
    /// without information. A member of a pattern is not listed.
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

    /// Sends what a client has missed, as it is sent live: with offsets if
    /// [`send_offsets`](Self::send_offsets) is on, and by the rules of the channel. So all of it
    /// leaves, or the session is closed with 1008 and the client comes back for it; sent with
    /// [`send`](Self::send), a route's rules may drop some of it silently.
    pub fn send_missed(&mut self, recovery: &Recovery) -> Sent {
        self.cx.send_missed(recovery)
    }

    /// Sets whether what is published to channels with history is sent to this connection with its
    /// offset in front, `OFFSET PAYLOAD`, so that the client knows its position. Default: false.
    pub fn send_offsets(&mut self, on: bool) {
        self.cx.send_offsets(on);
    }

    /// Joins all channels that match a pattern: tokens separated by dots, `*` for any one token,
    /// `>` at the end for all that follow. False if it had joined before.
    ///
    /// Make no pattern of a user's text: a user called `*` would join everything.
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

    /// Leaves a channel: what is still on its way does not come any more. False if it was not a
    /// member.
    pub fn unsubscribe(&mut self, channel: &str) -> bool {
        self.cx.unsubscribe(channel)
    }

    /// The channels and patterns this connection has joined.
    pub fn subscriptions(&self) -> impl Iterator<Item = &str> {
        self.cx.subscriptions()
    }

    /// Sends to every member of a channel, this connection included if it is one, in one order: all
    /// members, on all shards, get what is published so, and by [`Hub::publish`], in the same
    /// order.
    ///
    /// A message is encoded once and never copied per member. What one callback publishes is held
    /// until it returns: a loop over very many messages belongs on another thread, with the
    /// [`Hub`]. Where publications of others are on their way to this shard, this one comes behind
    /// them, and what this session is [sent](Self::send) afterwards behind this one;
    /// [`publish_unordered`](Self::publish_unordered) waits for nothing.
    ///
    /// The receipt counts the receivers on all shards; it may be dropped. Do not wait for it in a
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
    /// With several shards it is the cheaper form: it takes no lock, and has no receipt. The counts
    /// are those of this shard's members. What one session sends so keeps its order, and may
    /// overtake what it published in the common order before.
    pub fn publish_unordered(&mut self, channel: &str, message: impl Into<Frame>) -> Delivery {
        self.cx.publish_unordered(channel, &message.into())
    }

    /// Sends to every *other* session and every stream of events, on all shards, in one order with
    /// what is [published](Self::publish): it comes after what this session published before.
    pub fn broadcast(&mut self, message: impl Into<Frame>) -> Receipt {
        let others = Filter::new().exclude([self.handle()]);
        self.broadcast_to(&others, message)
    }

    /// Sends to all receivers that `filter` selects, on all shards, this connection included if it
    /// is selected; otherwise like [`broadcast`](Self::broadcast).
    pub fn broadcast_to(&mut self, filter: &Filter, message: impl Into<Frame>) -> Receipt {
        self.cx.broadcast(filter.inner(), &message.into())
    }

    /// Subscriptions to exactly this channel, or pattern, on all shards, at this moment. Streams of
    /// events count, and a session that is being closed does until it has ended.
    #[must_use]
    pub fn subscribers(&self, channel: &str) -> usize {
        self.cx.core_ref().subscribers(channel)
    }

    /// The subprotocol that was agreed on, if any
    /// ([RFC 6455 section 1.9](https://www.rfc-editor.org/rfc/rfc6455#section-1.9)).
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
        Hub::of(self.cx.core_ref().remote().clone())
    }

    /// The state of type `T` of this session's event loop, which all its sessions and
    /// [`Server::every_on_shard`](crate::Server::every_on_shard) share: no other thread reaches it,
    /// so it needs no lock. It is `T::default()` at first, and is dropped with the server.
    ///
    /// Sessions are on any of the event loops, unless they are placed by key
    /// ([`Ws::place_by`](crate::Ws::place_by)). With
    /// [`IoBackend::Threads`](crate::server::IoBackend::Threads) each connection has a state of its
    /// own. A panic ends its session and leaves the state as it is by then.
    #[must_use]
    pub fn shard_state<T: Default + Send + 'static>(&mut self) -> &mut T {
        self.cx.core().local()
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

/// A type that can be sent as a message. It is sealed: to send a type of your own, convert it to
/// one of these.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be sent as a message",
    note = "text is sent from `&str` or `String`, binary data from `&[u8]` or `Vec<u8>`",
    note = "an encoded message is sent from a `Frame`"
)]
pub trait Sendable: sealed::Sealed {}

#[allow(unnameable_types, reason = "unnameable traits seal public ones")]
mod sealed {
    use throng_engine::{Cx, Message, Sent};

    /// Queues a message.
    pub trait Sealed {
        fn send_with(self, cx: &mut Cx<'_>) -> Sent;
    }

    /// Borrows the message of what holds one.
    pub trait AsMessage {
        fn as_message(&self) -> Message<'_>;
    }
}

/// A message that is not worth compressing, because it is compressed already:
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
