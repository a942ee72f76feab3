//! Handlers whose messages are processed by futures.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use throng_engine::{Chunk, Close, Message, Recovery, SettingError};
use throng_http::{Reject, Request};
use tokio::runtime;

use super::run::{self, Task};
use super::session::AsyncSession;
use super::shared::{Closed, Shared, Window};
use super::socket::AsyncSocket;
use crate::accept::Accept;
use crate::message::OwnedMessage;
use crate::ws::decision::UpgradeLater;
use crate::ws::sessions::Endpoint;
use crate::ws::{
    Callbacks, Continuation, IntoWsRoute, Socket, Unpublished, Ws, WsOptions, WsRoute,
};

/// The default number of messages of a stream at which its connection is not read.
const CREDITS: usize = 64;

/// The default bytes that may wait, each way.
const WINDOW: usize = 256 << 10;

/// The output of a handler's future: nothing, or `Result<(), Closed>`, so that `?` can be used on
/// sends.
#[diagnostic::on_unimplemented(
    message = "the future of a handler cannot end with `{Self}`",
    label = "it ends with `()` or `Result<(), Closed>`"
)]
pub trait AsyncOutcome: sealed::Sealed {}

impl AsyncOutcome for () {}
impl AsyncOutcome for Result<(), Closed> {}

#[allow(unnameable_types, reason = "unnameable traits seal public ones")]
mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl Sealed for Result<(), super::Closed> {}
}

impl<D: Clone + Send + 'static> Ws<D> {
    /// Processes each message in a future on a tokio runtime, in place of [`Ws::on_message`]. The
    /// handler's other callbacks are set before.
    ///
    /// The futures of one connection run one after the other, in the order of its messages, unless
    /// [`AsyncWs::concurrency`] says otherwise. While `credits` messages wait or are being
    /// processed, the connection is not read: TCP stops a peer that sends more. Below, it is read
    /// again. A panic closes the connection with 1011 and is counted. When the session ends, its
    /// future is dropped at its next `await`, and so are messages that wait; see
    /// [`AsyncWs::finish_after_close`]. A peer that has gone ends its session within about a
    /// second, also while it is not read.
    ///
    /// An idle session costs about 300 bytes more than a plain one, some 650 once it has had a
    /// message, and no task.
    ///
    /// ```no_run
    /// use throng::prelude::*;
    ///
    /// # async fn look_up(query: &[u8]) -> String { String::from_utf8_lossy(query).into_owned() }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    /// let user = |request: &Request<'_>| Ok(request.query("user").unwrap_or("guest").to_owned());
    /// let search = Ws::on_upgrade(user)
    ///     .on_message_async(runtime.handle().clone(), 16, |session, message| async move {
    ///         let answer = look_up(message.as_bytes()).await;
    ///         session.send(format!("{}: {answer}", session.data())).await
    ///     });
    /// let app = App::new().ws("/search", WsRoute::new(search).max_message_size(4096));
    /// Server::new(app).bind("127.0.0.1:9001")?.run()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_message_async<F, Fut>(
        self,
        runtime: runtime::Handle,
        credits: usize,
        on_message: F,
    ) -> AsyncWs<D, PerMessage>
    where
        F: Fn(AsyncSession<D>, OwnedMessage) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: AsyncOutcome> + Send + 'static,
    {
        let handler = Arc::new(on_message);
        let start = move |runtime: &runtime::Handle, session: AsyncSession<D>, cancels| {
            let (task, handler) = (Task::new(&session.shared), Arc::clone(&handler));
            drop(runtime.spawn(run::pump(task, session, handler, cancels)));
        };
        AsyncWs::new(self, runtime, Some(1), true, Box::new(start)).credits(credits)
    }

    /// Runs a future for each session on a tokio runtime, with an [`AsyncSocket`] to receive from
    /// and to send to, in place of [`Ws::on_message`]. The handler's other callbacks are set
    /// before.
    ///
    /// When the future has ended and drops the socket, the session is closed with 1000, after the
    /// messages already sent. The socket may also be moved to another task. A panic closes the
    /// session with 1011 and is counted. The end of the session does not cancel the future: its
    /// stream ends, sends return [`Closed`], and [`AsyncSocket::closed`] can be awaited beside
    /// others.
    ///
    /// A session costs a task on the runtime: with a small future an idle one is about 1.4 KB more
    /// than a plain one.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use throng::prelude::*;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    /// let echo = Ws::new().on_session_async(runtime.handle().clone(), |mut socket| async move {
    ///     let mut clock = tokio::time::interval(Duration::from_secs(1));
    ///     loop {
    ///         tokio::select! {
    ///             message = socket.next() => match message {
    ///                 Some(message) => socket.send(message).await?,
    ///                 None => return Ok(()),
    ///             },
    ///             _ = clock.tick() => socket.send("tick").await?,
    ///         }
    ///     }
    /// });
    /// Server::new(App::new().ws("/", echo)).bind("127.0.0.1:9001")?.run()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The socket is a [`Stream`](futures_core::Stream) and a [`Sink`](futures_sink::Sink), for
    /// example for the `futures-util` crate:
    ///
    /// ```
    /// use futures_util::{SinkExt, StreamExt};
    /// use throng::Closed;
    /// use throng::prelude::*;
    ///
    /// async fn echo(socket: AsyncSocket) -> Result<(), Closed> {
    ///     let (mut sink, mut stream) = socket.split();
    ///     while let Some(message) = stream.next().await {
    ///         sink.send(message).await?;
    ///     }
    ///     Ok(())
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    /// let app = App::new().ws("/", Ws::new().on_session_async(runtime.handle().clone(), echo));
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_session_async<F, Fut>(
        self,
        runtime: runtime::Handle,
        on_session: F,
    ) -> AsyncWs<D, PerSession>
    where
        F: Fn(AsyncSocket<D>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: AsyncOutcome> + Send + 'static,
    {
        let handler = Arc::new(on_session);
        let start = move |runtime: &runtime::Handle, session: AsyncSession<D>, _| {
            let (task, handler) = (Task::new(&session.shared), Arc::clone(&handler));
            drop(runtime.spawn(run::stream(task, session, handler)));
        };
        AsyncWs::new(self, runtime, None, false, Box::new(start))
    }
}

/// A WebSocket handler whose messages are processed by futures; made by [`Ws::on_message_async`] or
/// [`Ws::on_session_async`].
///
/// The callbacks of the `Ws` for upgrades, opening, draining and closing are called as before, on
/// the shard, where they must not block. `K` is [`PerMessage`] or [`PerSession`].
pub struct AsyncWs<D, K = PerMessage> {
    callbacks: Callbacks<D>,
    start: Box<StartFn<D>>,
    runtime: runtime::Handle,
    credits: usize,
    receive: usize,
    send: usize,
    /// The number of a session's futures that process messages at once; `None` for one future per
    /// session.
    concurrency: Option<usize>,
    /// The end of a session drops waiting messages and cancels futures.
    cancels: bool,
    kind: PhantomData<fn() -> K>,
}

/// Starts a future on a runtime; the flag says whether the end of the session cancels it.
type StartFn<D> = dyn Fn(&runtime::Handle, AsyncSession<D>, bool) + Send + Sync;

/// Marks an [`AsyncWs`] with a future for each message.
#[derive(Clone, Copy, Debug)]
pub enum PerMessage {}

/// Marks an [`AsyncWs`] with a future for each session.
#[derive(Clone, Copy, Debug)]
pub enum PerSession {}

impl<D: Send + 'static, K> AsyncWs<D, K> {
    fn new(
        ws: Ws<D>,
        runtime: runtime::Handle,
        concurrency: Option<usize>,
        cancels: bool,
        start: Box<StartFn<D>>,
    ) -> Self {
        Self {
            callbacks: ws.into_callbacks(),
            start,
            runtime,
            credits: CREDITS,
            receive: WINDOW,
            send: WINDOW,
            concurrency,
            cancels,
            kind: PhantomData,
        }
    }

    /// Sets the number of a session's messages, waiting or being processed, at which its connection
    /// is not read. Default: 64 with [`Ws::on_session_async`]. Messages that the same read of the
    /// connection received are held as well.
    /// With 0, which would let no message in, [`Server::bind`](crate::Server::bind) fails.
    #[must_use]
    pub fn credits(mut self, messages: usize) -> Self {
        self.credits = messages;
        self
    }

    /// Sets the bytes of a session's waiting messages at which its connection is not read. One
    /// message of any size is accepted. Default: 256 KiB; 0 means one message at a time.
    #[must_use]
    pub fn receive_window(mut self, bytes: usize) -> Self {
        self.receive = bytes.max(1);
        self
    }

    /// Sets the bytes waiting to be sent at which senders wait, besides those in the connection's
    /// own queue (half of [`Limits::max_backlog`](crate::Limits::max_backlog)). One message of any
    /// size is accepted. Default: 256 KiB; 0 means one message at a time.
    #[must_use]
    pub fn send_window(mut self, bytes: usize) -> Self {
        self.send = bytes.max(1);
        self
    }
}

impl<D> AsyncWs<D, PerMessage> {
    /// Sets how many messages of one connection are processed at once. Their futures begin in
    /// order, and end in any order. Default: 1, one after the other. The credits limit it, too.
    /// With 0, which would process none, [`Server::bind`](crate::Server::bind) fails.
    #[must_use]
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.concurrency = Some(messages);
        self
    }

    /// Processes messages received before the close, instead of dropping them and the running
    /// future. Sends then return [`Closed`]. Use it for fire-and-forget peers.
    #[must_use]
    pub fn finish_after_close(mut self) -> Self {
        self.cancels = false;
        self
    }
}

/// A shard's data of a session.
struct Entry<D> {
    data: D,
    link: Option<Link>,
}

/// The shard's reference to the state it shares with the futures.
struct Link {
    shared: Arc<Shared>,
    cancels: bool,
}

impl Link {
    fn end(&self, close: Close<'_>) {
        self.shared.end(close, self.cancels);
    }
}

/// Ends the session for its futures even if its shard fails and calls no `on_close`. After another
/// end this changes nothing.
impl Drop for Link {
    fn drop(&mut self) {
        self.end(Close::ABNORMAL);
    }
}

impl<D: Clone + Send + 'static, K: 'static> IntoWsRoute for AsyncWs<D, K> {
    fn into_ws_route(self) -> WsRoute {
        let mistake = match (self.credits, self.concurrency) {
            (0, _) => Some(("credits", "credits is 0, which would let no message in")),
            (_, Some(0)) => {
                Some(("concurrency", "concurrency is 0, which would process no message"))
            }
            _ => None,
        };
        let mistake = mistake
            .map(|(name, mistake)| SettingError::new(name, format!("{mistake}; give at least 1")));
        let uses_workers = self.callbacks.blocks();
        let is_placed = self.callbacks.is_placed();
        let options = WsOptions { mistake, uses_workers, is_placed, ..WsOptions::default() };
        WsRoute { endpoint: Arc::new(AsyncEndpoint(self)), options }
    }
}

/// An [`AsyncWs`] as the shards call it.
struct AsyncEndpoint<D, K>(AsyncWs<D, K>);

impl<D: Clone + Send + 'static, K: 'static> Endpoint for AsyncEndpoint<D, K> {
    type Data = Entry<D>;

    fn on_upgrade(&self, request: &Request<'_>) -> Result<Accept<Entry<D>>, Reject> {
        let accept = self.0.callbacks.on_upgrade(request)?;
        Ok(accept.map(|data| Entry { data, link: None }))
    }

    fn upgrade_later(&self) -> Option<UpgradeLater> {
        self.0.callbacks.upgrade_later()
    }

    fn is_placed(&self) -> bool {
        self.0.callbacks.is_placed()
    }

    fn key_of(&self, data: &(dyn Any + Send)) -> Option<u64> {
        self.0.callbacks.key_of(data.downcast_ref()?)
    }

    fn accepted(&self, data: Box<dyn Any + Send>) -> Option<Entry<D>> {
        data.downcast().ok().map(|data| Entry { data: *data, link: None })
    }

    fn pack(&self, data: Entry<D>) -> Box<dyn Any + Send> {
        Box::new(data.data)
    }

    fn on_open(&self, ws: &mut Socket<'_, Entry<D>>) {
        let AsyncWs { callbacks, runtime, start, credits, concurrency, .. } = &self.0;
        callbacks.on_open(&mut ws.with_data(|entry| &mut entry.data));
        let window = Window {
            credits: *credits,
            // At half of the waiting messages: one event for many messages, and no future runs dry.
            resume_at: credits - (credits.saturating_sub(concurrency.unwrap_or(0)) / 2).max(1),
            receive: self.0.receive,
            send: self.0.send,
        };
        let shared = Shared::new(ws.hub(), ws.handle().id(), window, &ws.context().reporter);
        let cancels = self.0.cancels;
        ws.data_mut().link = Some(Link { shared: Arc::clone(&shared), cancels });
        if concurrency.is_none() {
            start(runtime, AsyncSession { shared, data: ws.data().data.clone() }, cancels);
        }
    }

    fn on_message(&self, ws: &mut Socket<'_, Entry<D>>, message: Message<'_>) {
        let AsyncWs { runtime, start, concurrency, cancels, .. } = &self.0;
        let Entry { data, link: Some(link) } = ws.data() else { return };
        let pushed = link.shared.push(message.into(), concurrency.unwrap_or(0));
        if pushed.start {
            let session = AsyncSession { shared: Arc::clone(&link.shared), data: data.clone() };
            start(runtime, session, *cancels);
        }
        if pushed.stop {
            match cancels {
                true => ws.cx_mut().stop_reading_until_gone(),
                // What it has sent before its end is processed.
                false => ws.cx_mut().stop_reading(),
            }
        }
    }

    fn on_chunk(&self, _: &mut Socket<'_, Entry<D>>, _: Chunk<'_>) {}

    fn on_recovery(&self, ws: &mut Socket<'_, Entry<D>>, channel: &str, recovery: Recovery) {
        let ws = &mut ws.with_data(|entry| &mut entry.data);
        self.0.callbacks.on_recovery(ws, channel, recovery);
    }

    fn on_refresh(&self, ws: &mut Socket<'_, Entry<D>>, data: &[u8]) {
        self.0.callbacks.on_refresh(&mut ws.with_data(|entry| &mut entry.data), data);
    }

    fn on_unpublished(&self, ws: &mut Socket<'_, Entry<D>>, lost: Unpublished) {
        self.0.callbacks.on_unpublished(&mut ws.with_data(|entry| &mut entry.data), lost);
    }

    fn on_drained(&self, ws: &mut Socket<'_, Entry<D>>) {
        self.0.callbacks.on_drained(&mut ws.with_data(|entry| &mut entry.data));
        if let Some(link) = &ws.data().link {
            let shared = Arc::clone(&link.shared);
            shared.run_commands(ws.cx_mut(), true);
        }
    }

    fn on_shutdown(&self, ws: &mut Socket<'_, Entry<D>>) {
        self.0.callbacks.on_shutdown(&mut ws.with_data(|entry| &mut entry.data));
        if let Some(link) = &ws.data().link {
            link.shared.shut_down();
        }
    }

    fn has_work(&self, ws: &Socket<'_, Entry<D>>) -> bool {
        let link = ws.data().link.as_ref();
        link.is_some_and(|link| link.shared.has_work(self.0.concurrency.is_some()))
    }

    fn on_close(&self, ws: &mut Socket<'_, Entry<D>>, close: Close<'_>) {
        if let Some(link) = &ws.data().link {
            link.end(close);
        }
        self.0.callbacks.on_close(&mut ws.with_data(|entry| &mut entry.data), close);
    }

    /// Continues callbacks, whose type of data lacks the link.
    fn resume(&self, ws: &mut Socket<'_, Entry<D>>, continuation: Box<dyn Any + Send>) {
        if let Ok(continuation) = continuation.downcast::<Continuation<D>>() {
            (continuation.0)(&mut ws.with_data(|entry| &mut entry.data));
        }
    }
}

impl<D, K> fmt::Debug for AsyncWs<D, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { credits, receive, send, concurrency, .. } = self;
        f.debug_struct("AsyncWs")
            .field("credits", credits)
            .field("receive_window", receive)
            .field("send_window", send)
            .field("concurrency", concurrency)
            .finish_non_exhaustive()
    }
}
