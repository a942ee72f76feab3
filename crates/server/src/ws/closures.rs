//! A WebSocket handler made of closures.

use std::any::Any;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use throng_engine::{Chunk, Close, EndReason, Message, Receipt, Recovery, Sent};
use throng_http::{Reject, Request};

use super::Unpublished;
#[cfg(feature = "tokio")]
use super::decision::UpgradeFuture;
use super::decision::{OnUpgrade, UpgradeLater};
use super::sessions::{AnyEndpoint, Endpoint, KeyFn};
use super::socket::Socket;
use crate::accept::Accept;
use crate::message::OwnedMessage;
use crate::shard::hash_of;
use crate::workers::Replies;

/// The result of a message callback, so that a one-line `|ws, message| ws.send(message)` needs no
/// `let _`: nothing, or what [`Socket::send`](crate::Socket::send) or
/// [`Socket::publish`](crate::Socket::publish) returned.
#[diagnostic::on_unimplemented(
    message = "a message callback cannot return `{Self}`",
    label = "it returns `()`, `Sent` or `Receipt`",
    note = "an error is handled in the callback, with `match` or `let .. else` instead of `?`",
    note = "if the callback is `async`, use `Ws::on_message_async`, with the feature `tokio`"
)]
pub trait Outcome: sealed::Sealed {}

impl Outcome for () {}
impl Outcome for Sent {}
impl Outcome for Receipt {}

#[allow(unnameable_types, reason = "unnameable traits seal public ones")]
mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl Sealed for throng_engine::Sent {}
    impl Sealed for throng_engine::Receipt {}
}

/// A WebSocket handler made of closures. `D` is the data of a connection.
///
/// The message callback is inlined into the loop over the messages of a read; the others are called
/// by pointer.
///
/// ```
/// use throng::prelude::*;
///
/// let echo: Ws = Ws::new().on_message(|ws, message| ws.send(message));
///
/// let counted: Ws<u64> = Ws::on_upgrade(|_| Ok(0u64)).on_message(|ws, message| {
///     *ws.data_mut() += 1;
///     ws.send(message)
/// });
/// # let _ = App::new().ws("/", echo).ws("/counted", counted);
/// ```
pub struct Ws<D = ()> {
    callbacks: Callbacks<D>,
    messages: Box<dyn Attach<D>>,
}

type SocketFn<D> = dyn Fn(&mut Socket<'_, D>) + Send + Sync;
type RecoveryFn<D> = dyn Fn(&mut Socket<'_, D>, &str, Recovery) + Send + Sync;
type RefreshFn<D> = dyn Fn(&mut Socket<'_, D>, &[u8]) + Send + Sync;
type UnpublishedFn<D> = dyn Fn(&mut Socket<'_, D>, Unpublished) + Send + Sync;
type CloseFn<D> = dyn Fn(&mut Socket<'_, D>, Close<'_>) + Send + Sync;

/// The callbacks of a session but those for messages.
pub(crate) struct Callbacks<D> {
    on_upgrade: OnUpgrade<D>,
    /// The hash of the key that a session is placed by.
    key: Option<Box<KeyFn<D>>>,
    on_open: Option<Box<SocketFn<D>>>,
    on_recovery: Option<Box<RecoveryFn<D>>>,
    on_refresh: Option<Box<RefreshFn<D>>>,
    on_unpublished: Option<Box<UnpublishedFn<D>>>,
    on_drained: Option<Box<SocketFn<D>>>,
    on_shutdown: Option<Box<SocketFn<D>>>,
    on_close: Option<Box<CloseFn<D>>>,
}

impl<D: Send + 'static> Callbacks<D> {
    pub(crate) fn on_upgrade(&self, request: &Request<'_>) -> Result<Accept<D>, Reject> {
        self.on_upgrade.decide(request)
    }

    pub(crate) fn upgrade_later(&self) -> Option<UpgradeLater> {
        self.on_upgrade.later()
    }

    /// Whether workers decide on upgrades.
    pub(crate) fn blocks(&self) -> bool {
        self.on_upgrade.blocks()
    }

    pub(crate) fn is_placed(&self) -> bool {
        self.key.is_some()
    }

    /// Returns the hash of the key that a session is placed by.
    pub(crate) fn key_of(&self, data: &D) -> Option<u64> {
        self.key.as_ref().map(|key| key(data))
    }

    pub(crate) fn on_open(&self, ws: &mut Socket<'_, D>) {
        if let Some(on_open) = &self.on_open {
            on_open(ws);
        }
    }

    pub(crate) fn on_recovery(&self, ws: &mut Socket<'_, D>, channel: &str, recovery: Recovery) {
        if let Some(on_recovery) = &self.on_recovery {
            on_recovery(ws, channel, recovery);
        }
    }

    pub(crate) fn on_refresh(&self, ws: &mut Socket<'_, D>, data: &[u8]) {
        if let Some(on_refresh) = &self.on_refresh {
            on_refresh(ws, data);
        }
    }

    pub(crate) fn on_unpublished(&self, ws: &mut Socket<'_, D>, lost: Unpublished) {
        match &self.on_unpublished {
            Some(on_unpublished) => on_unpublished(ws, lost),
            None => ws.close_for(EndReason::Publication),
        }
    }

    pub(crate) fn on_drained(&self, ws: &mut Socket<'_, D>) {
        if let Some(on_drained) = &self.on_drained {
            on_drained(ws);
        }
    }

    pub(crate) fn on_shutdown(&self, ws: &mut Socket<'_, D>) {
        if let Some(on_shutdown) = &self.on_shutdown {
            on_shutdown(ws);
        }
    }

    pub(crate) fn on_close(&self, ws: &mut Socket<'_, D>, close: Close<'_>) {
        if let Some(on_close) = &self.on_close {
            on_close(ws, close);
        }
    }
}

impl Ws<()> {
    /// A handler that accepts every upgrade, without data.
    #[must_use]
    pub fn new() -> Self {
        Self::on_upgrade(|_| Ok(()))
    }
}

impl Default for Ws<()> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Send + 'static> Ws<D> {
    /// A handler whose connections have the data that `on_upgrade` returns, or are refused with its
    /// [`Reject`].
    #[must_use]
    pub fn on_upgrade<F>(on_upgrade: F) -> Self
    where
        F: Fn(&Request<'_>) -> Result<D, Reject> + Send + Sync + 'static,
    {
        Self::on_upgrade_with(move |request| on_upgrade(request).map(Accept::new))
    }

    /// A handler like that of [`Ws::on_upgrade`], where `on_upgrade` can also set headers of the
    /// 101 response: see [`Accept`].
    #[must_use]
    pub fn on_upgrade_with<F>(on_upgrade: F) -> Self
    where
        F: Fn(&Request<'_>) -> Result<Accept<D>, Reject> + Send + Sync + 'static,
    {
        Self::deciding(OnUpgrade::Now(Box::new(on_upgrade)))
    }

    /// A handler like that of [`Ws::on_upgrade`], whose `on_upgrade` runs on the server's pool of
    /// workers, where it may block: for a login that asks a database.
    ///
    /// The client gets 503 if it takes longer than
    /// [`Limits::handshake_timeout`](crate::Limits::handshake_timeout), and if the pool is full. A
    /// panic is answered with 500.
    ///
    /// ```
    /// use throng::prelude::*;
    /// # fn find_user(token: &str) -> Option<String> { Some(token.to_owned()) }
    ///
    /// let greeting = Ws::on_upgrade_blocking(|request| {
    ///     let token = request.bearer().ok_or(Reject::unauthorized())?;
    ///     let user = find_user(token).ok_or(Reject::unauthorized())?;
    ///     Ok(Accept::new(user))
    /// })
    /// .on_open(|ws| {
    ///     let (user, mut session) = ws.split();
    ///     let _ = session.send(format!("hello {user}"));
    /// });
    /// # let _ = App::new().ws("/", greeting);
    /// ```
    #[must_use]
    pub fn on_upgrade_blocking<F>(on_upgrade: F) -> Self
    where
        F: Fn(&Request<'_>) -> Result<Accept<D>, Reject> + Send + Sync + 'static,
    {
        Self::deciding(OnUpgrade::Blocking(Arc::new(on_upgrade)))
    }

    /// A handler like that of [`Ws::on_upgrade`], whose `on_upgrade` is a future on a tokio
    /// runtime: for a login that asks another server.
    ///
    /// The client gets 503 if it takes longer than
    /// [`Limits::handshake_timeout`](crate::Limits::handshake_timeout). When the client disconnects
    /// or the time is up, the future is dropped. A panic is answered with 500.
    ///
    /// ```no_run
    /// use throng::prelude::*;
    /// # async fn find_user(token: &str) -> Option<String> { Some(token.to_owned()) }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    /// let greeting = Ws::on_upgrade_async(runtime.handle().clone(), |request| async move {
    ///     let request = request.as_request();
    ///     let token = request.bearer().ok_or(Reject::unauthorized())?.to_owned();
    ///     drop(request);
    ///     Ok(Accept::new(find_user(&token).await.ok_or(Reject::unauthorized())?))
    /// });
    /// # let _: App = App::new().ws("/", greeting);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn on_upgrade_async<F, Fut>(runtime: tokio::runtime::Handle, on_upgrade: F) -> Self
    where
        F: Fn(crate::OwnedRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Accept<D>, Reject>> + Send + 'static,
    {
        let decide = move |request| -> UpgradeFuture<Accept<D>> { Box::pin(on_upgrade(request)) };
        Self::deciding(OnUpgrade::Async(runtime, Arc::new(decide)))
    }

    fn deciding(on_upgrade: OnUpgrade<D>) -> Self {
        let callbacks = Callbacks {
            on_upgrade,
            key: None,
            on_open: None,
            on_recovery: None,
            on_refresh: None,
            on_unpublished: None,
            on_drained: None,
            on_shutdown: None,
            on_close: None,
        };
        Self { callbacks, messages: Box::new(Ignore) }
    }

    /// Places sessions on event loops by a part of their data, such as the name of a room: all with
    /// the same key come to the same event loop, whose [state](Socket::shard_state) they share
    /// without a lock.
    ///
    /// When the upgrade is accepted, a connection that another event loop has accepted is moved,
    /// before its 101 response; that costs two system calls and a wake-up. If it cannot be moved,
    /// because that event loop's queue is full or the client has not taken earlier responses, it
    /// gets 503. Keys are spread by their hash: a few keys with very many sessions load few event
    /// loops.
    ///
    /// [`Server::bind`](crate::Server::bind) refuses it with
    /// [`IoBackend::Threads`](crate::IoBackend::Threads), where each connection has a thread of its
    /// own.
    ///
    /// ```
    /// # use std::collections::HashMap;
    /// # use throng::prelude::*;
    /// struct Login {
    ///     room: String,
    /// }
    ///
    /// /// Messages of the rooms of one event loop.
    /// #[derive(Default)]
    /// struct Counts(HashMap<String, u64>);
    ///
    /// let counted = Ws::on_upgrade(|request| {
    ///     Ok(Login { room: request.param("room").unwrap_or_default().to_owned() })
    /// })
    /// .place_by(|login| &login.room)
    /// .on_message(|ws, _| {
    ///     let (login, mut session) = ws.split();
    ///     let count = session.shard_state::<Counts>().0.entry(login.room.clone()).or_default();
    ///     *count += 1;
    ///     let text = count.to_string();
    ///     let _ = session.send(text);
    /// });
    /// # Server::new(App::new().ws("/{room}", counted)).check().unwrap();
    /// ```
    #[must_use]
    pub fn place_by<K, F>(mut self, key: F) -> Self
    where
        K: Hash + ?Sized + 'static,
        F: for<'d> Fn(&'d D) -> &'d K + Send + Sync + 'static,
    {
        self.callbacks.key = Some(Box::new(move |data| hash_of(key(data))));
        self
    }

    /// Sets the callback for an open session. See [`Handler::on_open`](crate::Handler::on_open).
    #[must_use]
    pub fn on_open<F>(mut self, on_open: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>) + Send + Sync + 'static,
    {
        self.callbacks.on_open = Some(Box::new(on_open));
        self
    }

    /// Sets the callback for messages. See [`Handler::on_message`](crate::Handler::on_message).
    #[must_use]
    pub fn on_message<F, T>(mut self, on_message: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, Message<'_>) -> T + Send + Sync + 'static,
        T: Outcome + 'static,
    {
        self.messages = Box::new(Whole(on_message, PhantomData));
        self
    }

    /// Sets the callback for messages to one that runs on the server's pool of workers, where it
    /// may block: with a clone of the connection's data, and [`Replies`] that are carried out when
    /// it has returned. The messages of a connection are processed one at a time, in order, and
    /// those of different connections at once. See [`Server::workers`](crate::Server::workers) for
    /// how many, and for what happens when more come than they can do. While eight messages of a
    /// connection wait, or 256 KiB of them, it is not read.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn slow_lookup(user: u64, query: &str) -> String { format!("{user} {query}") }
    /// let search = Ws::on_upgrade(|_| Ok(7u64)).on_message_blocking(|user, message, replies| {
    ///     let Message::Text(query) = message else { return replies.close(1003, "text only") };
    ///     replies.send(slow_lookup(*user, query));
    /// });
    /// # let _ = App::new().ws("/", search);
    /// ```
    #[must_use]
    pub fn on_message_blocking<F>(mut self, on_message: F) -> Self
    where
        D: Clone,
        F: Fn(&D, Message<'_>, &mut Replies) + Send + Sync + 'static,
    {
        self.messages = Box::new(Blocking(Arc::new(on_message)));
        self
    }

    /// Sets the callback for parts of messages as they come, instead of one for whole messages, and
    /// makes the route [streaming](crate::WsRoute::streaming).
    ///
    /// ```
    /// # use throng::prelude::*;
    /// // Counts the bytes of uploads of up to 1 GiB, and holds none of them.
    /// let upload = Ws::on_upgrade(|_| Ok(0u64)).on_chunk(|ws, chunk| {
    ///     *ws.data_mut() += chunk.bytes.len() as u64;
    ///     if chunk.last {
    ///         let total = std::mem::take(ws.data_mut());
    ///         let _ = ws.send(total.to_string());
    ///     }
    /// });
    /// # let _ = App::new().ws("/upload", WsRoute::new(upload).max_message_size(1 << 30));
    /// ```
    #[must_use]
    pub fn on_chunk<F>(mut self, on_chunk: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, Chunk<'_>) + Send + Sync + 'static,
    {
        self.messages = Box::new(Chunks(on_chunk));
        self
    }

    /// Sets the callback for a place in a channel that was pending. See
    /// [`Handler::on_recovery`](crate::Handler::on_recovery).
    #[must_use]
    pub fn on_recovery<F>(mut self, on_recovery: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, &str, Recovery) + Send + Sync + 'static,
    {
        self.callbacks.on_recovery = Some(Box::new(on_recovery));
        self
    }

    /// Sets the callback for the data of a [`Hub::refresh`](crate::Hub::refresh). See
    /// [`Handler::on_refresh`](crate::Handler::on_refresh).
    #[must_use]
    pub fn on_refresh<F>(mut self, on_refresh: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, &[u8]) + Send + Sync + 'static,
    {
        self.callbacks.on_refresh = Some(Box::new(on_refresh));
        self
    }

    /// Sets the callback for messages that were accepted and are lost, or may be, in place of
    /// closing the session with 1013. See
    /// [`Handler::on_unpublished`](crate::Handler::on_unpublished).
    #[must_use]
    pub fn on_unpublished<F>(mut self, on_unpublished: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, Unpublished) + Send + Sync + 'static,
    {
        self.callbacks.on_unpublished = Some(Box::new(on_unpublished));
        self
    }

    /// Sets the callback for a backlog that has drained. See
    /// [`Handler::on_drained`](crate::Handler::on_drained).
    #[must_use]
    pub fn on_drained<F>(mut self, on_drained: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>) + Send + Sync + 'static,
    {
        self.callbacks.on_drained = Some(Box::new(on_drained));
        self
    }

    /// Sets the callback for the shutdown of the server. See
    /// [`Handler::on_shutdown`](crate::Handler::on_shutdown).
    #[must_use]
    pub fn on_shutdown<F>(mut self, on_shutdown: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>) + Send + Sync + 'static,
    {
        self.callbacks.on_shutdown = Some(Box::new(on_shutdown));
        self
    }

    /// Sets the callback for the end of the session. See
    /// [`Handler::on_close`](crate::Handler::on_close).
    #[must_use]
    pub fn on_close<F>(mut self, on_close: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, Close<'_>) + Send + Sync + 'static,
    {
        self.callbacks.on_close = Some(Box::new(on_close));
        self
    }

    /// The callbacks but those for messages, for handlers that process messages themselves.
    #[cfg(feature = "tokio")]
    pub(crate) fn into_callbacks(self) -> Callbacks<D> {
        self.callbacks
    }

    pub(crate) fn is_placed(&self) -> bool {
        self.callbacks.is_placed()
    }

    /// Whether messages are passed on in parts, and whether they are processed by workers.
    pub(crate) fn traits(&self) -> (bool, bool) {
        (self.messages.streams(), self.messages.blocks() || self.callbacks.blocks())
    }

    pub(crate) fn into_endpoint(self) -> Arc<dyn AnyEndpoint> {
        self.messages.attach(self.callbacks)
    }
}

impl<D> fmt::Debug for Ws<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ws").field("streaming", &self.messages.streams()).finish_non_exhaustive()
    }
}

/// A message callback of one closure's type.
trait OnMessage<D>: Send + Sync + 'static {
    const STREAMS: bool = false;
    const BLOCKS: bool = false;

    fn on_message(&self, ws: &mut Socket<'_, D>, message: Message<'_>);

    fn on_chunk(&self, ws: &mut Socket<'_, D>, chunk: Chunk<'_>) {
        let _ = (ws, chunk);
    }
}

/// A message callback of any type, before the other callbacks are known.
trait Attach<D>: Send + Sync {
    fn streams(&self) -> bool;

    fn blocks(&self) -> bool;

    fn attach(self: Box<Self>, callbacks: Callbacks<D>) -> Arc<dyn AnyEndpoint>;
}

impl<D: Send + 'static, M: OnMessage<D>> Attach<D> for M {
    fn streams(&self) -> bool {
        M::STREAMS
    }

    fn blocks(&self) -> bool {
        M::BLOCKS
    }

    fn attach(self: Box<Self>, callbacks: Callbacks<D>) -> Arc<dyn AnyEndpoint> {
        Arc::new(Closures { callbacks, messages: *self })
    }
}

/// All callbacks of a handler.
struct Closures<D, M> {
    callbacks: Callbacks<D>,
    messages: M,
}

impl<D: Send + 'static, M: OnMessage<D>> Endpoint for Closures<D, M> {
    type Data = D;

    fn on_upgrade(&self, request: &Request<'_>) -> Result<Accept<D>, Reject> {
        self.callbacks.on_upgrade(request)
    }

    fn upgrade_later(&self) -> Option<UpgradeLater> {
        self.callbacks.upgrade_later()
    }

    fn is_placed(&self) -> bool {
        self.callbacks.is_placed()
    }

    fn key_of(&self, data: &(dyn Any + Send)) -> Option<u64> {
        self.callbacks.key_of(data.downcast_ref()?)
    }

    fn accepted(&self, data: Box<dyn Any + Send>) -> Option<D> {
        data.downcast().ok().map(|data| *data)
    }

    fn on_open(&self, ws: &mut Socket<'_, D>) {
        self.callbacks.on_open(ws);
    }

    #[inline]
    fn on_message(&self, ws: &mut Socket<'_, D>, message: Message<'_>) {
        self.messages.on_message(ws, message);
    }

    fn on_chunk(&self, ws: &mut Socket<'_, D>, chunk: Chunk<'_>) {
        self.messages.on_chunk(ws, chunk);
    }

    fn on_recovery(&self, ws: &mut Socket<'_, D>, channel: &str, recovery: Recovery) {
        self.callbacks.on_recovery(ws, channel, recovery);
    }

    fn on_refresh(&self, ws: &mut Socket<'_, D>, data: &[u8]) {
        self.callbacks.on_refresh(ws, data);
    }

    fn on_unpublished(&self, ws: &mut Socket<'_, D>, lost: Unpublished) {
        self.callbacks.on_unpublished(ws, lost);
    }

    fn on_drained(&self, ws: &mut Socket<'_, D>) {
        self.callbacks.on_drained(ws);
    }

    fn on_shutdown(&self, ws: &mut Socket<'_, D>) {
        self.callbacks.on_shutdown(ws);
    }

    fn on_close(&self, ws: &mut Socket<'_, D>, close: Close<'_>) {
        self.callbacks.on_close(ws, close);
    }
}

/// A closure that gets whole messages.
struct Whole<F, T>(F, PhantomData<fn() -> T>);

impl<D, F, T> OnMessage<D> for Whole<F, T>
where
    F: Fn(&mut Socket<'_, D>, Message<'_>) -> T + Send + Sync + 'static,
    T: Outcome + 'static,
{
    #[inline]
    fn on_message(&self, ws: &mut Socket<'_, D>, message: Message<'_>) {
        self.0(ws, message);
    }
}

/// A closure that gets messages in parts.
struct Chunks<F>(F);

impl<D, F> OnMessage<D> for Chunks<F>
where
    F: Fn(&mut Socket<'_, D>, Chunk<'_>) + Send + Sync + 'static,
{
    const STREAMS: bool = true;

    fn on_message(&self, ws: &mut Socket<'_, D>, message: Message<'_>) {
        let (text, bytes) = (matches!(message, Message::Text(_)), message.as_bytes());
        self.0(ws, Chunk { text, first: true, last: true, bytes });
    }

    fn on_chunk(&self, ws: &mut Socket<'_, D>, chunk: Chunk<'_>) {
        self.0(ws, chunk);
    }
}

/// A closure that gets whole messages, on a worker.
struct Blocking<F>(Arc<F>);

impl<D, F> OnMessage<D> for Blocking<F>
where
    D: Clone + Send + 'static,
    F: Fn(&D, Message<'_>, &mut Replies) + Send + Sync + 'static,
{
    const BLOCKS: bool = true;

    fn on_message(&self, ws: &mut Socket<'_, D>, message: Message<'_>) {
        let (handler, data) = (Arc::clone(&self.0), ws.data().clone());
        let bytes = message.as_bytes().len();
        let message = OwnedMessage::from(message);
        let work = move || {
            let mut replies = Replies::default();
            handler(&data, message.as_message(), &mut replies);
            replies
        };
        if ws.offload_holding(bytes, work, |ws, replies| ws.run_replies(replies)).is_err() {
            ws.close_for(EndReason::Workers);
        }
    }
}

/// Ignores messages: the default.
struct Ignore;

impl<D> OnMessage<D> for Ignore {
    fn on_message(&self, _: &mut Socket<'_, D>, _: Message<'_>) {}
}
