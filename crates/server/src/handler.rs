//! What you write: a WebSocket endpoint, as a struct or as closures.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use throng_engine::{Backpressure, Close, Message, Piece, Sent};
use throng_http::{Reject, Request};
use throng_proto::ws::deflate::Settings as Deflate;

use crate::message::OwnedMessage;
use crate::socket::Socket;
use crate::workers::{BUSY, Replies};

/// A WebSocket endpoint.
///
/// Callbacks of one connection run on its shard, in order, one at a time; those of different connections may run
/// at once on different threads, which is why they get `&self`. They must not block: a blocked callback holds up
/// every connection of its shard, and is told as a [`Stall`](crate::Stall). A panic in one closes its connection with 1011 and nothing else.
///
/// [`Ws`] is the same from closures.
pub trait Handler: Send + Sync + 'static {
    /// What each connection remembers. It lives on the connection's shard and never moves to another thread.
    type Data: Send + 'static;

    /// The upgrade request came: make the connection's data, or refuse with a status.
    ///
    /// # Errors
    /// [`Reject`] is the answer the client gets instead of the upgrade.
    fn upgrade(&self, request: &Request<'_>) -> Result<Self::Data, Reject>;

    /// The session is open. Exactly once, first.
    fn open(&self, ws: &mut Socket<'_, Self::Data>) {
        let _ = ws;
    }

    /// A whole message came. It is borrowed from the memory it was received in: copy what you keep.
    fn message(&self, ws: &mut Socket<'_, Self::Data>, message: Message<'_>);

    /// A part of a message came, where [`Handler::streams`] says so. What came in one part is `first` and `last`.
    fn piece(&self, ws: &mut Socket<'_, Self::Data>, piece: Piece<'_>) {
        let _ = (ws, piece);
    }

    /// Whether messages are given to [`Handler::piece`] as they come, instead of whole to [`Handler::message`]: nothing
    /// of them is held, so that an upload larger than memory runs in the shard's receive buffer. Limit it with
    /// [`Handler::max_message_size`], which still bounds the whole message; the reassembly timeout does not apply,
    /// and no compression is agreed on. Default false.
    fn streams(&self) -> bool {
        false
    }

    /// After a send said [`Sent::Queued`] or [`Sent::Dropped`], the backlog has fallen to a quarter of
    /// `max_backlog`: go on sending.
    fn drain(&self, ws: &mut Socket<'_, Self::Data>) {
        let _ = ws;
    }

    /// The session has ended, whatever the way out. Exactly once, last; sends say [`Sent::Closed`].
    fn close(&self, ws: &mut Socket<'_, Self::Data>, close: Close<'_>) {
        let _ = (ws, close);
    }

    /// The subprotocols this endpoint speaks, best first (RFC 6455 section 1.9). The first that the client offers
    /// too is chosen; if it offers none of them the session has none. Default: none.
    fn subprotocols(&self) -> &[&'static str] {
        &[]
    }

    /// The largest message of this endpoint in bytes, instead of the server's `max_message_size`; 0 lets only empty ones in.
    fn max_message_size(&self) -> Option<usize> {
        None
    }

    /// How messages of this endpoint are compressed, instead of the server's setting. See
    /// [`Compression`](crate::Compression), which becomes a `Deflate` by `into`.
    fn compression(&self) -> Option<Deflate> {
        None
    }

    /// Whether work is handed to the server's pool of workers as a rule: their threads are started with the server then, and not
    /// when the first work comes. Default false.
    fn uses_workers(&self) -> bool {
        false
    }

    /// Goes on after what was offloaded by a callback of a handler that this one is made of.
    #[doc(hidden)]
    fn go_on(&self, ws: &mut Socket<'_, Self::Data>, continuation: Box<dyn Any + Send>) {
        let _ = (ws, continuation);
    }

    /// What happens to messages for connections of this endpoint that read too slowly, instead of the server's rules.
    /// Those of a channel win over both.
    fn backpressure(&self) -> Option<Backpressure> {
        None
    }
}

/// What a message callback may return, so that a one-line `|ws, msg| ws.send(msg)` needs no `let _`.
pub trait Outcome {}

impl Outcome for () {}
impl Outcome for Sent {}

/// An endpoint from closures; each is statically dispatched.
///
/// ```
/// use throng::prelude::*;
///
/// let counted = Ws::upgrade(|_| Ok(0u64)).message(|ws, message| {
///     *ws.data_mut() += 1;
///     let _ = ws.send(message);
/// });
/// # let _ = Server::new().ws("/", counted);
/// ```
pub struct Ws<D, U, O, M, R, C> {
    upgrade: U,
    open: O,
    message: M,
    drain: R,
    close: C,
    settings: Settings,
    data: PhantomData<fn() -> D>,
}

/// What is no callback.
#[derive(Debug, Default)]
struct Settings {
    subprotocols: Vec<&'static str>,
    max_message_size: Option<usize>,
    backpressure: Option<Backpressure>,
    compression: Option<Deflate>,
}

impl<D, U, O, M, R, C> fmt::Debug for Ws<D, U, O, M, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ws").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// A closure of [`Ws`] that makes a connection's data.
pub trait UpgradeFn<D>: Fn(&Request<'_>) -> Result<D, Reject> + Send + Sync + 'static {}
impl<D, F> UpgradeFn<D> for F where F: Fn(&Request<'_>) -> Result<D, Reject> + Send + Sync + 'static {}

/// A closure of [`Ws`] without an argument besides the socket.
pub trait SocketFn<D>: Fn(&mut Socket<'_, D>) + Send + Sync + 'static {}
impl<D, F> SocketFn<D> for F where F: Fn(&mut Socket<'_, D>) + Send + Sync + 'static {}

/// A closure of [`Ws`] that gets messages, whole or in pieces.
pub trait MessageFn<D>: Send + Sync + 'static {
    /// It gets pieces.
    const STREAMS: bool;

    /// It runs on workers.
    const BLOCKS: bool = false;

    /// A whole message.
    fn message(&self, ws: &mut Socket<'_, D>, message: Message<'_>);

    /// A part of a message.
    fn piece(&self, ws: &mut Socket<'_, D>, piece: Piece<'_>);
}

/// A closure that gets whole messages.
struct Whole<F>(F);

impl<D, F, T> MessageFn<D> for Whole<(F, PhantomData<fn() -> T>)>
where
    F: Fn(&mut Socket<'_, D>, Message<'_>) -> T + Send + Sync + 'static,
    T: Outcome + 'static,
{
    const STREAMS: bool = false;

    #[inline]
    fn message(&self, ws: &mut Socket<'_, D>, message: Message<'_>) {
        self.0.0(ws, message);
    }

    fn piece(&self, _: &mut Socket<'_, D>, _: Piece<'_>) {}
}

/// A closure that gets pieces.
struct Pieces<F>(F);

impl<D, F> MessageFn<D> for Pieces<F>
where
    F: Fn(&mut Socket<'_, D>, Piece<'_>) + Send + Sync + 'static,
{
    const STREAMS: bool = true;

    fn message(&self, ws: &mut Socket<'_, D>, message: Message<'_>) {
        let (text, bytes) = (matches!(message, Message::Text(_)), message.as_bytes());
        self.0(ws, Piece { text, first: true, last: true, bytes });
    }

    fn piece(&self, ws: &mut Socket<'_, D>, piece: Piece<'_>) {
        self.0(ws, piece);
    }
}

/// A closure that gets whole messages, on a worker.
struct Blocking<F>(Arc<F>);

impl<D, F> MessageFn<D> for Blocking<F>
where
    D: Clone + Send + 'static,
    F: Fn(&D, Message<'_>, &mut Replies) + Send + Sync + 'static,
{
    const STREAMS: bool = false;
    const BLOCKS: bool = true;

    fn message(&self, ws: &mut Socket<'_, D>, message: Message<'_>) {
        let (handler, data) = (Arc::clone(&self.0), ws.data().clone());
        let bytes = message.as_bytes().len();
        let message = OwnedMessage::from(message);
        let work = move || {
            let mut replies = Replies::default();
            handler(&data, message.as_message(), &mut replies);
            replies
        };
        if ws.offload_holding(bytes, work, |ws, replies| replies.carry_out(ws)).is_err() {
            // A message must not be missing without a word.
            ws.close(1013, BUSY);
        }
    }

    fn piece(&self, _: &mut Socket<'_, D>, _: Piece<'_>) {}
}

/// What an endpoint does that was told nothing about messages.
struct Ignore;

impl<D> MessageFn<D> for Ignore {
    const STREAMS: bool = false;

    fn message(&self, _: &mut Socket<'_, D>, _: Message<'_>) {}

    fn piece(&self, _: &mut Socket<'_, D>, _: Piece<'_>) {}
}

/// A closure of [`Ws`] that learns how the session ended.
pub trait CloseFn<D>: Fn(&mut Socket<'_, D>, Close<'_>) + Send + Sync + 'static {}
impl<D, F> CloseFn<D> for F where F: Fn(&mut Socket<'_, D>, Close<'_>) + Send + Sync + 'static {}

fn accept(_: &Request<'_>) -> Result<(), Reject> {
    Ok(())
}

fn nothing<D>(_: &mut Socket<'_, D>) {}

fn forget<D>(_: &mut Socket<'_, D>, _: Close<'_>) {}

impl Ws<(), (), (), (), (), ()> {
    /// An endpoint that accepts everyone, without data of its own.
    pub fn on_message<F, T>(
        message: F,
    ) -> Ws<
        (),
        impl UpgradeFn<()>,
        impl SocketFn<()>,
        impl MessageFn<()>,
        impl SocketFn<()>,
        impl CloseFn<()>,
    >
    where
        F: Fn(&mut Socket<'_, ()>, Message<'_>) -> T + Send + Sync + 'static,
        T: Outcome + 'static,
    {
        Self::upgrade(accept).message(message)
    }

    /// An endpoint whose connections remember what `upgrade` returns, or are refused with its [`Reject`].
    pub fn upgrade<D, U>(
        upgrade: U,
    ) -> Ws<
        D,
        impl UpgradeFn<D>,
        impl SocketFn<D>,
        impl MessageFn<D>,
        impl SocketFn<D>,
        impl CloseFn<D>,
    >
    where
        D: Send + 'static,
        U: Fn(&Request<'_>) -> Result<D, Reject> + Send + Sync + 'static,
    {
        Ws {
            upgrade,
            open: nothing::<D>,
            message: Ignore,
            drain: nothing::<D>,
            close: forget::<D>,
            settings: Settings::default(),
            data: PhantomData,
        }
    }
}

impl<D, U, O, M, R, C> Ws<D, U, O, M, R, C> {
    /// Called when the session is open. See [`Handler::open`].
    pub fn open<F>(self, open: F) -> Ws<D, U, F, M, R, C>
    where
        F: Fn(&mut Socket<'_, D>) + Send + Sync + 'static,
    {
        let Self { upgrade, message, drain, close, settings, data, .. } = self;
        Ws { upgrade, open, message, drain, close, settings, data }
    }

    /// Called with each message. See [`Handler::message`].
    pub fn message<F, T>(self, message: F) -> Ws<D, U, O, impl MessageFn<D>, R, C>
    where
        F: Fn(&mut Socket<'_, D>, Message<'_>) -> T + Send + Sync + 'static,
        T: Outcome + 'static,
    {
        let message = Whole((message, PhantomData));
        let Self { upgrade, open, drain, close, settings, data, .. } = self;
        Ws { upgrade, open, message, drain, close, settings, data }
    }

    /// Called with each message on the server's pool of workers, where it may block: with a clone of what the connection remembers,
    /// and [`Replies`] that are carried out when it has returned. The messages of a connection are dealt with one at a time, in
    /// order, and those of different connections at once. See [`Server::workers`](crate::Server::workers) for how many, and for what
    /// happens when more come than they can do. While eight messages of a connection wait, or 256 KiB of them, it is not read.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn slow_lookup(user: u64, query: &str) -> String { format!("{user} {query}") }
    /// let search = Ws::upgrade(|_| Ok(7u64)).blocking(|user, message, replies| {
    ///     let Message::Text(query) = message else { return replies.close(1003, "text only") };
    ///     replies.send(slow_lookup(*user, query));
    /// });
    /// # let _ = Server::new().ws("/search", search);
    /// ```
    pub fn blocking<F>(self, message: F) -> Ws<D, U, O, impl MessageFn<D>, R, C>
    where
        D: Clone + Send + 'static,
        F: Fn(&D, Message<'_>, &mut Replies) + Send + Sync + 'static,
    {
        let message = Blocking(Arc::new(message));
        let Self { upgrade, open, drain, close, settings, data, .. } = self;
        Ws { upgrade, open, message, drain, close, settings, data }
    }

    /// Called with each part of a message as it comes, instead of with whole messages. See [`Handler::piece`].
    ///
    /// ```
    /// # use throng::prelude::*;
    /// // Counts the bytes of uploads of up to 1 GiB, and holds none of them.
    /// let upload = Ws::upgrade(|_| Ok(0u64)).max_message_size(1 << 30).pieces(|ws, piece| {
    ///     *ws.data_mut() += piece.bytes.len() as u64;
    ///     if piece.last {
    ///         let total = std::mem::take(ws.data_mut());
    ///         let _ = ws.send(total.to_string());
    ///     }
    /// });
    /// # let _ = Server::new().ws("/upload", upload);
    /// ```
    pub fn pieces<F>(self, piece: F) -> Ws<D, U, O, impl MessageFn<D>, R, C>
    where
        F: Fn(&mut Socket<'_, D>, Piece<'_>) + Send + Sync + 'static,
    {
        let Self { upgrade, open, drain, close, settings, data, .. } = self;
        Ws { upgrade, open, message: Pieces(piece), drain, close, settings, data }
    }

    /// Called when a connection that was behind has caught up. See [`Handler::drain`].
    pub fn drain<F>(self, drain: F) -> Ws<D, U, O, M, F, C>
    where
        F: Fn(&mut Socket<'_, D>) + Send + Sync + 'static,
    {
        let Self { upgrade, open, message, close, settings, data, .. } = self;
        Ws { upgrade, open, message, drain, close, settings, data }
    }

    /// Called when the session has ended. See [`Handler::close`].
    pub fn close<F>(self, close: F) -> Ws<D, U, O, M, R, F>
    where
        F: Fn(&mut Socket<'_, D>, Close<'_>) + Send + Sync + 'static,
    {
        let Self { upgrade, open, message, drain, settings, data, .. } = self;
        Ws { upgrade, open, message, drain, close, settings, data }
    }

    /// The subprotocols spoken, best first. See [`Handler::subprotocols`].
    #[must_use]
    pub fn subprotocols(mut self, names: &[&'static str]) -> Self {
        self.settings.subprotocols = names.to_vec();
        self
    }

    /// The largest message in bytes. See [`Handler::max_message_size`].
    #[must_use]
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.settings.max_message_size = Some(bytes);
        self
    }

    /// How messages are compressed: a [`Compression`](crate::Compression), or all settings. See
    /// [`Handler::compression`].
    #[must_use]
    pub fn compression(mut self, compression: impl Into<Deflate>) -> Self {
        self.settings.compression = Some(compression.into());
        self
    }

    /// The rules for slow receivers. See [`Handler::backpressure`].
    #[must_use]
    pub fn backpressure(mut self, rules: impl Into<Backpressure>) -> Self {
        self.settings.backpressure = Some(rules.into());
        self
    }
}

impl<D, U, O, M, R, C> Handler for Ws<D, U, O, M, R, C>
where
    D: Send + 'static,
    U: UpgradeFn<D>,
    O: SocketFn<D>,
    M: MessageFn<D>,
    R: SocketFn<D>,
    C: CloseFn<D>,
{
    type Data = D;

    fn upgrade(&self, request: &Request<'_>) -> Result<D, Reject> {
        (self.upgrade)(request)
    }

    fn open(&self, ws: &mut Socket<'_, D>) {
        (self.open)(ws);
    }

    #[inline]
    fn message(&self, ws: &mut Socket<'_, D>, message: Message<'_>) {
        self.message.message(ws, message);
    }

    fn piece(&self, ws: &mut Socket<'_, D>, piece: Piece<'_>) {
        self.message.piece(ws, piece);
    }

    fn streams(&self) -> bool {
        M::STREAMS
    }

    fn drain(&self, ws: &mut Socket<'_, D>) {
        (self.drain)(ws);
    }

    fn close(&self, ws: &mut Socket<'_, D>, close: Close<'_>) {
        (self.close)(ws, close);
    }

    fn subprotocols(&self) -> &[&'static str] {
        &self.settings.subprotocols
    }

    fn max_message_size(&self) -> Option<usize> {
        self.settings.max_message_size
    }

    fn compression(&self) -> Option<Deflate> {
        self.settings.compression
    }

    fn uses_workers(&self) -> bool {
        M::BLOCKS
    }

    fn backpressure(&self) -> Option<Backpressure> {
        self.settings.backpressure
    }
}
