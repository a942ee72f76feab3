//! An endpoint whose messages are dealt with by futures.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use throng_engine::{Backpressure, Close, Message};
use throng_http::{Reject, Request};
use throng_proto::ws::deflate::Settings as Deflate;
use tokio::runtime;

use super::run::{self, Task};
use super::session::AsyncSession;
use super::shared::{Closed, Shared, Window};
use super::socket::AsyncSocket;
use crate::handler::{CloseFn, Handler, MessageFn, SocketFn, UpgradeFn, Ws};
use crate::message::OwnedMessage;
use crate::socket::Socket;
use crate::workers::Continuation;

/// Messages of a stream that wait before its connection is not read.
const CREDITS: usize = 64;

/// Bytes that wait, each way, before the other side does.
const WINDOW: usize = 256 << 10;

/// What a future of an endpoint may return: nothing, or that the session was over, so that `?` can be used on sends.
pub trait AsyncOutcome {}

impl AsyncOutcome for () {}
impl AsyncOutcome for Result<(), Closed> {}

impl Ws<(), (), (), (), (), ()> {
    /// An endpoint that accepts everyone, with a future for each message. See [`Ws::message_async`].
    pub fn on_message_async<F, Fut>(
        runtime: runtime::Handle,
        credits: usize,
        message: F,
    ) -> AsyncWs<impl Handler<Data = ()>, Messages<F>>
    where
        F: Fn(AsyncSession, OwnedMessage) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: AsyncOutcome> + Send + 'static,
    {
        Self::upgrade(|_| Ok(())).message_async(runtime, credits, message)
    }

    /// An endpoint that accepts everyone, with a future for each session. See [`Ws::stream`].
    pub fn on_stream<F, Fut>(
        runtime: runtime::Handle,
        session: F,
    ) -> AsyncWs<impl Handler<Data = ()>, Streams<F>>
    where
        F: Fn(AsyncSocket) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: AsyncOutcome> + Send + 'static,
    {
        Self::upgrade(|_| Ok(())).stream(runtime, session)
    }
}

impl<D, U, O, M, R, C> Ws<D, U, O, M, R, C>
where
    D: Clone + Send + 'static,
    U: UpgradeFn<D>,
    O: SocketFn<D>,
    M: MessageFn<D>,
    R: SocketFn<D>,
    C: CloseFn<D>,
{
    /// Deals with each message in a future on a tokio runtime, in the place of [`Ws::message`]. Other settings of the endpoint
    /// come before.
    ///
    /// The futures of one connection run one after the other, in the order of its messages, unless
    /// [`AsyncWs::concurrency`] says otherwise. While `credits` messages wait or are being dealt with, the connection is
    /// not read: TCP stops a peer that sends more. Below, it is read again. A panic closes the connection with 1011 and is
    /// counted. When the session ends, its future is dropped at its next `await`, and so are messages that wait; see
    /// [`AsyncWs::finish_after_close`].
    ///
    /// An idle session costs about 300 bytes more than a plain one, some 650 once it has had a message, and no task.
    ///
    /// ```no_run
    /// use throng::prelude::*;
    ///
    /// # async fn look_up(query: &[u8]) -> String { String::from_utf8_lossy(query).into_owned() }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    /// let search = Ws::upgrade(|request| Ok(request.query("user").unwrap_or("nobody").to_owned()))
    ///     .max_message_size(4096)
    ///     .message_async(runtime.handle().clone(), 16, |session, message| async move {
    ///         let answer = look_up(message.as_bytes()).await;
    ///         session.send(format!("{}: {answer}", session.data())).await
    ///     });
    /// Server::new().ws("/search", search).bind("127.0.0.1:9001")?.run()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// With 0 credits, which would let no message in.
    pub fn message_async<F, Fut>(
        self,
        runtime: runtime::Handle,
        credits: usize,
        message: F,
    ) -> AsyncWs<Self, Messages<F>>
    where
        F: Fn(AsyncSession<D>, OwnedMessage) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: AsyncOutcome> + Send + 'static,
    {
        let kind = Messages { handler: Arc::new(message), concurrency: 1, cancels: true };
        AsyncWs::new(self, kind, runtime).credits(credits)
    }

    /// Runs a future for each session on a tokio runtime, with an [`AsyncSocket`] to receive from and to send to, in the place of
    /// [`Ws::message`]. Other settings of the endpoint come before.
    ///
    /// When the future has ended and the socket is dropped with it, the session is closed with 1000, behind what was
    /// sent; the socket may also be given away, say to a task of one's own. A panic closes it with 1011 and is counted. The end of the
    /// session does not cancel the future: its stream ends, sends say [`Closed`], and
    /// [`AsyncSocket::closed`] can be waited for beside what else it does.
    ///
    /// A session costs a task on the runtime: with a small future an idle one is about 1.4 KB more than a plain one.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use throng::prelude::*;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    /// let echo = Ws::on_stream(runtime.handle().clone(), |mut socket| async move {
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
    /// Server::new().ws("/", echo).bind("127.0.0.1:9001")?.run()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// With the `futures-util` crate it is a [`Stream`](futures_core::Stream) and a [`Sink`](futures_sink::Sink) like any
    /// other:
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
    /// let server = Server::new().ws("/", Ws::on_stream(runtime.handle().clone(), echo));
    /// # Ok(())
    /// # }
    /// ```
    pub fn stream<F, Fut>(self, runtime: runtime::Handle, session: F) -> AsyncWs<Self, Streams<F>>
    where
        F: Fn(AsyncSocket<D>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: AsyncOutcome> + Send + 'static,
    {
        AsyncWs::new(self, Streams { handler: Arc::new(session) }, runtime).credits(CREDITS)
    }
}

/// An endpoint whose messages are dealt with by futures: [`Ws::message_async`] or [`Ws::stream`] made it.
///
/// The callbacks of the `Ws` for opening, draining and closing are called as before, on the shard, where they must not block.
pub struct AsyncWs<H, K> {
    inner: H,
    kind: K,
    runtime: runtime::Handle,
    credits: usize,
    receive: usize,
    send: usize,
}

/// A future for each message.
pub struct Messages<F> {
    handler: Arc<F>,
    concurrency: usize,
    cancels: bool,
}

/// A future for each session.
pub struct Streams<F> {
    handler: Arc<F>,
}

impl<H, K> AsyncWs<H, K> {
    fn new(inner: H, kind: K, runtime: runtime::Handle) -> Self {
        Self { inner, kind, runtime, credits: CREDITS, receive: WINDOW, send: WINDOW }
    }

    /// Messages of a session that wait or are being dealt with before its connection is not read. Default for streams: 64.
    /// What one read of the connection brought besides is held as well.
    ///
    /// # Panics
    /// With 0, which would let no message in.
    #[must_use]
    pub fn credits(mut self, messages: usize) -> Self {
        assert!(messages > 0, "credits is 0, which would let no message in; give at least 1");
        self.credits = messages;
        self
    }

    /// Bytes of messages of a session that wait to be dealt with before its connection is not read; one message of any size is let
    /// in. Default 256 KiB; 0 = one message at a time.
    #[must_use]
    pub fn receive_window(mut self, bytes: usize) -> Self {
        self.receive = bytes.max(1);
        self
    }

    /// Bytes that wait to be sent before senders wait, besides what the connection's own queue holds (half of
    /// [`Limits::max_backlog`](crate::Limits::max_backlog)); one message of any size is let in. Default 256 KiB; 0 = one message at
    /// a time.
    #[must_use]
    pub fn send_window(mut self, bytes: usize) -> Self {
        self.send = bytes.max(1);
        self
    }
}

impl<H, F> AsyncWs<H, Messages<F>> {
    /// Messages of one connection that are dealt with at once; their futures begin in order, and end in any. Default 1, and 0 is the
    /// same: one after the other. Only as many as there are credits.
    #[must_use]
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.kind.concurrency = messages.max(1);
        self
    }

    /// Deals with messages that came before the session ended, in the place of dropping them and the future at work. Sends then say
    /// [`Closed`]. For peers that tell and go.
    #[must_use]
    pub fn finish_after_close(mut self) -> Self {
        self.kind.cancels = false;
        self
    }
}

/// What futures are run for.
pub trait Kind<D>: Send + Sync + 'static {
    /// Futures of a session that deal with messages at once; 0 if the session has one for all.
    fn pumps(&self) -> usize;

    /// Whether the end of a session drops what waits.
    fn cancels(&self) -> bool;

    /// Starts the future.
    fn start(&self, runtime: &runtime::Handle, session: AsyncSession<D>);
}

impl<D, F, Fut> Kind<D> for Messages<F>
where
    D: Clone + Send + 'static,
    F: Fn(AsyncSession<D>, OwnedMessage) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: AsyncOutcome> + Send + 'static,
{
    fn pumps(&self) -> usize {
        self.concurrency
    }

    fn cancels(&self) -> bool {
        self.cancels
    }

    fn start(&self, runtime: &runtime::Handle, session: AsyncSession<D>) {
        let (task, handler) = (Task::new(&session.shared), Arc::clone(&self.handler));
        drop(runtime.spawn(run::pump(task, session, handler, self.cancels)));
    }
}

impl<D, F, Fut> Kind<D> for Streams<F>
where
    D: Send + 'static,
    F: Fn(AsyncSocket<D>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: AsyncOutcome> + Send + 'static,
{
    fn pumps(&self) -> usize {
        0
    }

    fn cancels(&self) -> bool {
        false
    }

    fn start(&self, runtime: &runtime::Handle, session: AsyncSession<D>) {
        let (task, handler) = (Task::new(&session.shared), Arc::clone(&self.handler));
        drop(runtime.spawn(run::stream(task, session, handler)));
    }
}

/// What a shard knows of a session.
pub struct Entry<D> {
    data: D,
    link: Option<Link>,
}

/// The shard's hold on what it shares with the futures.
struct Link {
    shared: Arc<Shared>,
    cancels: bool,
}

impl Link {
    fn end(&self, close: Close<'_>) {
        self.shared.end(close, self.cancels);
    }
}

/// A shard that fails calls no `close`, and nobody may wait for it. After another end this changes nothing.
impl Drop for Link {
    fn drop(&mut self) {
        self.end(Close { code: 1006, reason: "" });
    }
}

impl<H, K> Handler for AsyncWs<H, K>
where
    H: Handler<Data: Clone>,
    K: Kind<H::Data>,
{
    type Data = Entry<H::Data>;

    fn upgrade(&self, request: &Request<'_>) -> Result<Self::Data, Reject> {
        Ok(Entry { data: self.inner.upgrade(request)?, link: None })
    }

    fn open(&self, ws: &mut Socket<'_, Self::Data>) {
        self.inner.open(&mut ws.with_data(|entry| &mut entry.data));
        let pumps = self.kind.pumps();
        let window = Window {
            credits: self.credits,
            // Half of what is not at work: a letter for many messages, and no slot of those at work stays empty.
            resume_at: self.credits - (self.credits.saturating_sub(pumps) / 2).max(1),
            receive: self.receive,
            send: self.send,
        };
        let shared = Shared::new(ws.hub(), ws.handle().id(), window);
        let link = Link { shared: Arc::clone(&shared), cancels: self.kind.cancels() };
        ws.data_mut().link = Some(link);
        if pumps == 0 {
            self.kind.start(&self.runtime, AsyncSession { shared, data: ws.data().data.clone() });
        }
    }

    fn message(&self, ws: &mut Socket<'_, Self::Data>, message: Message<'_>) {
        let Entry { data, link: Some(link) } = ws.data() else { return };
        let pushed = link.shared.push(message.into(), self.kind.pumps());
        if pushed.start {
            let shared = Arc::clone(&link.shared);
            self.kind.start(&self.runtime, AsyncSession { shared, data: data.clone() });
        }
        if pushed.stop {
            ws.cx_mut().stop_reading();
        }
    }

    fn drain(&self, ws: &mut Socket<'_, Self::Data>) {
        self.inner.drain(&mut ws.with_data(|entry| &mut entry.data));
        if let Some(link) = &ws.data().link {
            let shared = Arc::clone(&link.shared);
            shared.carry_out(ws.cx_mut(), true);
        }
    }

    fn close(&self, ws: &mut Socket<'_, Self::Data>, close: Close<'_>) {
        if let Some(link) = &ws.data().link {
            link.end(close);
        }
        self.inner.close(&mut ws.with_data(|entry| &mut entry.data), close);
    }

    fn go_on(&self, ws: &mut Socket<'_, Self::Data>, continuation: Box<dyn Any + Send>) {
        let mut ws = ws.with_data(|entry| &mut entry.data);
        match continuation.downcast::<Continuation<H::Data>>() {
            Ok(continuation) => (continuation.0)(&mut ws),
            Err(inner) => self.inner.go_on(&mut ws, inner),
        }
    }

    fn subprotocols(&self) -> &[&'static str] {
        self.inner.subprotocols()
    }

    fn max_message_size(&self) -> Option<usize> {
        self.inner.max_message_size()
    }

    fn compression(&self) -> Option<Deflate> {
        self.inner.compression()
    }

    fn backpressure(&self) -> Option<Backpressure> {
        self.inner.backpressure()
    }
}

impl<H: fmt::Debug, K> fmt::Debug for AsyncWs<H, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inner, credits, receive, send, .. } = self;
        f.debug_struct("AsyncWs")
            .field("inner", inner)
            .field("credits", credits)
            .field("receive_window", receive)
            .field("send_window", send)
            .finish_non_exhaustive()
    }
}
