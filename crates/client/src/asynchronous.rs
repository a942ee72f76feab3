//! The asynchronous client, on a tokio runtime of the program.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use futures_core::Stream;
use futures_sink::Sink;
use throng_proto::ws::{Chunk, CloseCode, Message, OwnedMessage};
use tokio::io::ReadBuf;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::builder::{ClientBuilder, DialPlan};
use crate::close_frame::CloseFrame;
use crate::dial_async::{Deadline, connect_tcp, pass_proxy, read, write_all};
use crate::error::{ClientError, DialStep};
use crate::handshake::{Opened, Opening};
use crate::session::{Advance, ClientMachine, Output};
use crate::stream::AsyncStream;

/// A WebSocket client whose methods are futures, on a tokio runtime with I/O and time enabled.
///
/// [`AsyncClient::recv`] is cancel-safe, so that `tokio::select!` can wait for messages and for
/// something else, then send. While the client is receiving, it answers pings and notices a silent
/// server. It is both a [`Stream`] of messages and a [`Sink`] for them, and can be split. Dropping
/// it ends the TCP connection without a closing handshake, which the server sees as 1006.
///
/// ```no_run
/// use throng_client::{AsyncClient, CloseCode};
///
/// # async fn example() -> Result<(), throng_client::ClientError> {
/// let mut client = AsyncClient::connect("ws://127.0.0.1:9001/").await?;
/// client.send("hello").await?;
/// println!("{:?}", client.recv().await?);
/// client.close(CloseCode::NORMAL, "").await?;
/// # Ok(())
/// # }
/// ```
pub struct AsyncClient {
    link: Link,
    session: ClientMachine,
    subprotocol: Option<String>,
    heartbeat: Option<Heartbeat>,
}

/// The connection, and the unfinished work of dropped operations.
struct Link {
    stream: Box<dyn AsyncStream>,
    write_timeout: Duration,
    close_timeout: Duration,
    /// Whether the stream may hold written bytes, as TLS does.
    flush_due: bool,
    /// Runs while the server does not read.
    write_timer: Option<Pin<Box<Sleep>>>,
    /// The time that the server has to end the connection.
    linger: Option<Pin<Box<Sleep>>>,
    /// The tasks of both halves, while they wait for output to leave: a stream has only one waker
    /// for that.
    receiver: Option<Waker>,
    sender: Option<Waker>,
}

/// Detects a silent server.
struct Heartbeat {
    interval: Duration,
    timer: Pin<Box<Sleep>>,
    /// Whether a byte came since the timer was set.
    heard: bool,
    /// Whether the server was pinged, and has been silent since.
    pinged: bool,
}

impl AsyncClient {
    /// Connects to a `ws://` or `wss://` URL with the default settings of a [`ClientBuilder`].
    ///
    /// # Errors
    /// As for [`Client::connect`](crate::Client::connect).
    pub async fn connect(url: &str) -> Result<Self, ClientError> {
        ClientBuilder::new(url).connect_async().await
    }

    /// Returns the subprotocol that the server chose from the client's offers.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }

    /// Returns whether the server agreed to compress messages.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        self.session.deflates()
    }

    /// Returns the number of pongs received so far.
    #[must_use]
    pub fn pongs(&self) -> u64 {
        self.session.pongs()
    }

    /// Returns the server's Close frame, once it has been received.
    #[must_use]
    pub fn close_frame(&self) -> Option<&CloseFrame> {
        self.session.close_frame()
    }

    /// Sends a message, text or binary.
    ///
    /// Dropping the future either leaves the message queued or has no effect: a queued message
    /// leaves with the next call that sends or receives.
    ///
    /// # Errors
    /// [`ClientError::Closed`] after the closing handshake began, with the server's Close frame if
    /// the server began it; [`ClientError::Protocol`] after the server broke a rule;
    /// [`ClientError::Timeout`] if the server does not read; [`ClientError::Lost`] if the
    /// connection failed. After the last two the session is over.
    pub async fn send<'m>(&mut self, message: impl Into<Message<'m>>) -> Result<(), ClientError> {
        self.session.send(message.into())?;
        self.flush().await
    }

    /// Queues a message, which leaves with the next call that sends or receives: several small
    /// messages can then leave in one system call.
    ///
    /// # Errors
    /// As for [`send`](Self::send), except [`ClientError::Timeout`].
    pub fn queue<'m>(&mut self, message: impl Into<Message<'m>>) -> Result<(), ClientError> {
        self.session.send(message.into())
    }

    /// Sends queued messages.
    ///
    /// # Errors
    /// As for [`AsyncClient::send`], except [`ClientError::Closed`].
    pub async fn flush(&mut self) -> Result<(), ClientError> {
        let Self { link, session, .. } = self;
        poll_fn(|cx| link.poll_flush(session.output(), cx)).await
    }

    /// Sends a ping with a payload of at most 125 bytes; the pong is counted by
    /// [`AsyncClient::pongs`].
    ///
    /// # Errors
    /// As for [`AsyncClient::send`]; [`ClientError::Setting`] if the payload is longer.
    pub async fn ping(&mut self, payload: &[u8]) -> Result<(), ClientError> {
        self.session.ping(payload)?;
        self.flush().await
    }

    /// Receives the next message, and waits for it; `None` after the server's Close frame, which
    /// [`AsyncClient::close_frame`] returns. The message is lent until the next call.
    ///
    /// Cancel-safe: if the future is dropped before it is ready, no message is lost.
    ///
    /// # Errors
    /// The session is over: [`ClientError::Lost`] if there was no Close frame,
    /// [`ClientError::Protocol`] if the server broke a rule, [`ClientError::Timeout`] if it was
    /// silent or did not read.
    pub async fn recv(&mut self) -> Result<Option<Message<'_>>, ClientError> {
        if self.session.is_by_chunks() {
            return Err(ClientError::setting(
                "receive_chunks",
                "messages are received in chunks: call recv_chunk",
            ));
        }
        if !self.wait().await? {
            return Ok(None);
        }
        let Self { session, link, .. } = self;
        match session.message() {
            Ok(message) => Ok(Some(message)),
            Err(output) => link.finish(output).await.map(|()| None),
        }
    }

    /// Receives the next part of a message, as it arrived; otherwise like [`AsyncClient::recv`].
    /// For clients with [`ClientBuilder::receive_chunks`].
    ///
    /// # Errors
    /// As for [`AsyncClient::recv`]; [`ClientError::Setting`] without
    /// [`ClientBuilder::receive_chunks`].
    pub async fn recv_chunk(&mut self) -> Result<Option<Chunk<'_>>, ClientError> {
        if !self.session.is_by_chunks() {
            return Err(ClientError::setting(
                "receive_chunks",
                "messages are received whole: call recv, or set receive_chunks",
            ));
        }
        if !self.wait().await? {
            return Ok(None);
        }
        Ok(Some(self.session.chunk()))
    }

    /// Sends a Close frame, waits for the server's, and returns it. Messages that arrive before it
    /// are dropped. The reason is cut at 123 bytes.
    ///
    /// # Errors
    /// As for [`Client::close`](crate::Client::close).
    pub async fn close(
        &mut self,
        code: impl Into<CloseCode>,
        reason: &str,
    ) -> Result<CloseFrame, ClientError> {
        self.session.close(code.into(), reason)?;
        let limit = self.link.close_timeout;
        let answered = timeout(limit, async {
            while self.wait().await? {
                if self.session.is_by_chunks() {
                    self.session.chunk();
                } else if let Err(output) = self.session.message() {
                    self.link.finish(output).await?;
                }
            }
            Ok::<(), ClientError>(())
        })
        .await;
        match answered {
            Ok(answered) => answered?,
            // The server answered, but left the TCP connection open.
            Err(_) if self.session.close_frame().is_some() => {}
            Err(_) => {
                self.session.output().end();
                return Err(ClientError::Timeout { during: DialStep::Closing, limit });
            }
        }
        match self.session.close_frame() {
            Some(frame) => Ok(frame.clone()),
            None => Err(self.session.output().end_error()),
        }
    }

    /// Returns why no message will come: which side has ended the session, and how.
    pub(crate) fn end_error(&self) -> ClientError {
        self.session.end_error()
    }

    /// Waits until [`AsyncClient::recv`] would return at once. Returns false if the session has
    /// ended.
    pub(crate) async fn wait_for_message(&mut self) -> Result<bool, ClientError> {
        self.wait().await
    }

    /// Waits until a message, or a chunk of one, can be taken. Returns false if none will come.
    async fn wait(&mut self) -> Result<bool, ClientError> {
        loop {
            match self.session.advance() {
                Advance::Message => return Ok(true),
                Advance::NeedInput => {}
                Advance::Ended => {
                    self.link.finish(self.session.output()).await?;
                    return Ok(false);
                }
            }
            let outcome = poll_fn(|cx| self.poll_exchange(cx)).await;
            if outcome.is_err() {
                self.session.output().end();
            }
            outcome?;
        }
    }

    /// Sends queued bytes, and reads or queues a ping. The caller may stop polling without losing
    /// data.
    fn poll_exchange(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        let Self { link, session, .. } = self;
        let output = session.output();
        let is_due = link.flush_due || !output.unsent().is_empty();
        let is_stuck = match is_due.then(|| link.poll_flush_of_receiver(output, cx)) {
            Some(Poll::Ready(flushed)) => {
                flushed?;
                false
            }
            Some(Poll::Pending) => true,
            None => false,
        };
        if !is_stuck {
            return self.poll_input(cx);
        }
        // A server may have much to send before it reads. Pings that could not be answered would
        // only make the output longer, and no pong can come: the write timeout is running.
        match self.session.output().admits_input() {
            true => self.poll_read(cx),
            false => Poll::Pending,
        }
    }

    /// Reads, or queues a ping.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        match self.poll_read(cx) {
            Poll::Pending => self.poll_heartbeat(cx),
            read => read,
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        let mut buffer = ReadBuf::new(self.session.input_space());
        let stream = Pin::new(&mut *self.link.stream);
        ready!(stream.poll_read(cx, &mut buffer)).map_err(ClientError::Lost)?;
        let n = buffer.filled().len();
        if n == 0 {
            return Poll::Ready(Err(ClientError::Lost(ErrorKind::UnexpectedEof.into())));
        }
        self.session.received(n);
        if let Some(heartbeat) = &mut self.heartbeat {
            (heartbeat.heard, heartbeat.pinged) = (true, false);
        }
        Poll::Ready(Ok(()))
    }

    /// Queues a ping if the server has been silent, and detects a server that stays silent.
    fn poll_heartbeat(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        let Some(heartbeat) = &mut self.heartbeat else { return Poll::Pending };
        loop {
            ready!(heartbeat.timer.as_mut().poll(cx));
            let interval = heartbeat.interval;
            heartbeat.timer.as_mut().reset(Instant::now() + interval);
            if heartbeat.heard {
                heartbeat.heard = false;
                continue;
            }
            if heartbeat.pinged {
                let during = DialStep::Heartbeat;
                return Poll::Ready(Err(ClientError::Timeout { during, limit: interval }));
            }
            heartbeat.pinged = true;
            if self.session.output().is_open() {
                return Poll::Ready(self.session.ping(b""));
            }
        }
    }
}

impl ClientBuilder {
    /// Connects, on the tokio runtime of the calling task.
    ///
    /// # Errors
    /// As for [`ClientBuilder::connect`].
    pub async fn connect_async(&self) -> Result<AsyncClient, ClientError> {
        let deadline = Deadline::after(self.connect_timeout);
        let plan = self.plan()?;
        let stream = deadline.bound(self.reach(&plan)).await?;
        self.upgrade(plan.opening, stream, deadline).await
    }

    /// Upgrades an existing connection; otherwise like [`ClientBuilder::connect_over`].
    ///
    /// # Errors
    /// As for [`ClientBuilder::connect`].
    pub async fn connect_async_over(
        &self,
        stream: impl AsyncStream + 'static,
    ) -> Result<AsyncClient, ClientError> {
        let deadline = Deadline::after(self.connect_timeout);
        self.upgrade(self.open()?, Box::new(stream), deadline).await
    }

    /// Connects by TCP, through the proxy and with TLS as the settings require.
    async fn reach(&self, plan: &DialPlan) -> Result<Box<dyn AsyncStream>, ClientError> {
        let (host, port) = (plan.url.host(), plan.url.port());
        let tcp = match &plan.proxy {
            None => connect_tcp(&plan.url.lookup_host(), port).await?,
            Some(proxy) => {
                let mut tcp = connect_tcp(&proxy.host, proxy.port).await?;
                pass_proxy(&mut tcp, proxy, host, port).await?;
                tcp
            }
        };
        match plan.url.is_secure() {
            false => Ok(Box::new(tcp)),
            #[cfg(feature = "tls")]
            true => {
                let tls = self.tls.client_for(&plan.url)?;
                Ok(Box::new(tls.handshake_async(tcp).await.map_err(ClientError::Tls)?))
            }
            #[cfg(not(feature = "tls"))]
            true => Err(ClientError::without_tls()),
        }
    }

    async fn upgrade(
        &self,
        mut opening: Opening,
        mut stream: Box<dyn AsyncStream>,
        deadline: Deadline,
    ) -> Result<AsyncClient, ClientError> {
        let writing = async {
            write_all(&mut *stream, opening.request()).await.map_err(ClientError::before_response)
        };
        deadline.bound(writing).await?;
        let mut buffer = vec![0; 8 << 10];
        loop {
            let reading = async {
                read(&mut *stream, &mut buffer).await.map_err(ClientError::before_response)
            };
            let n = match deadline.bound(reading).await {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) => return Err(opening.cut_off(error)),
            };
            if opening.receive(&mut buffer[..n])? {
                break;
            }
        }
        let Opened { machine, subprotocol } = opening.finish_with(self.by_chunks)?;
        Ok(AsyncClient {
            link: Link {
                stream,
                write_timeout: self.write_timeout,
                close_timeout: self.close_timeout,
                flush_due: false,
                write_timer: None,
                linger: None,
                receiver: None,
                sender: None,
            },
            session: machine,
            subprotocol,
            heartbeat: self.heartbeat.map(|interval| Heartbeat {
                interval,
                timer: Box::pin(sleep(interval)),
                heard: false,
                pinged: false,
            }),
        })
    }
}

impl Link {
    /// Sends queued bytes for the receiving half, and wakes the sending half when they have left.
    fn poll_flush_of_receiver(
        &mut self,
        output: &mut Output,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ClientError>> {
        let flushed = self.poll_flush(output, cx);
        let (own, other) = (&mut self.receiver, &mut self.sender);
        share(flushed.is_ready(), (own, other), cx);
        flushed
    }

    /// Sends queued bytes for the sending half.
    fn poll_flush_of_sender(
        &mut self,
        output: &mut Output,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ClientError>> {
        let flushed = self.poll_flush(output, cx);
        let (own, other) = (&mut self.sender, &mut self.receiver);
        share(flushed.is_ready(), (own, other), cx);
        flushed
    }

    /// Sends queued bytes, and flushes the stream. The caller may stop polling without losing data.
    fn poll_flush(
        &mut self,
        output: &mut Output,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ClientError>> {
        let before = output.unsent().len();
        let flushed = match self.poll_write(output, cx) {
            Poll::Ready(flushed) => flushed.map_err(ClientError::Lost),
            Poll::Pending => {
                if output.unsent().len() < before {
                    self.write_timer = None;
                }
                let limit = self.write_timeout;
                let timer = self.write_timer.get_or_insert_with(|| Box::pin(sleep(limit)));
                ready!(timer.as_mut().poll(cx));
                Err(ClientError::Timeout { during: DialStep::Sending, limit })
            }
        };
        self.write_timer = None;
        if flushed.is_err() {
            output.end();
        }
        Poll::Ready(flushed)
    }

    fn poll_write(&mut self, output: &mut Output, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut stream = Pin::new(&mut *self.stream);
        while !output.unsent().is_empty() {
            self.flush_due = true;
            match ready!(stream.as_mut().poll_write(cx, output.unsent()))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                n => output.sent(n),
            }
        }
        ready!(stream.poll_flush(cx))?;
        self.flush_due = false;
        Poll::Ready(Ok(()))
    }

    /// Sends the last frames, and waits for the server to end the connection. Returns the rule that
    /// the server broke, if that was the reason. It can be called again if its future is dropped.
    async fn finish(&mut self, output: &mut Output) -> Result<(), ClientError> {
        let mut flushed = Ok(());
        if !output.has_ended() {
            flushed = poll_fn(|cx| self.poll_flush(output, cx)).await;
        }
        if !output.has_ended() {
            poll_fn(|cx| self.poll_linger(cx)).await;
            output.end();
        }
        match output.take_failure() {
            Some(error) => Err(ClientError::Protocol(error)),
            None => flushed,
        }
    }

    /// Reads and drops input until the server ends the connection, as RFC 6455 requires. After the
    /// time limit the client ends it.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.close_timeout;
        let timer = self.linger.get_or_insert_with(|| Box::pin(sleep(limit)));
        let mut dropped = [0; 4096];
        loop {
            let mut buffer = ReadBuf::new(&mut dropped);
            match Pin::new(&mut *self.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return timer.as_mut().poll(cx),
            }
        }
    }
}

/// Registers the task of the half that must wait, or wakes the task of the other half.
fn share(is_ready: bool, (own, other): (&mut Option<Waker>, &mut Option<Waker>), cx: &Context<'_>) {
    match is_ready {
        true => {
            *own = None;
            other.take().into_iter().for_each(Waker::wake);
        }
        false => *own = Some(cx.waker().clone()),
    }
}

/// Bytes that wait for the server to read, above which the sink is not ready.
const SINK_WINDOW: usize = 64 << 10;

/// The messages, owned; it ends after the server's Close frame, or an error. For clients that
/// receive in chunks it is an error.
impl Stream for AsyncClient {
    type Item = Result<OwnedMessage, ClientError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Each poll resumes where the last `recv` stopped.
        let received = ready!(pin!(self.recv()).poll(cx));
        Poll::Ready(received.map(|message| message.map(OwnedMessage::from)).transpose())
    }
}

/// Messages leave with a flush, or with the next call that sends or receives. Closing it sends a
/// Close frame with 1000; the stream ends when the server has answered.
impl<T: Into<OwnedMessage>> Sink<T> for AsyncClient {
    type Error = ClientError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        let Self { link, session, .. } = &mut *self;
        match session.output().unsent().len() < SINK_WINDOW {
            true => Poll::Ready(Ok(())),
            false => link.poll_flush_of_sender(session.output(), cx),
        }
    }

    fn start_send(mut self: Pin<&mut Self>, message: T) -> Result<(), ClientError> {
        self.queue(&message.into())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        let Self { link, session, .. } = &mut *self;
        link.poll_flush_of_sender(session.output(), cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        let Self { link, session, .. } = &mut *self;
        if session.output().is_open() {
            session.close(CloseCode::NORMAL, "")?;
        }
        link.poll_flush_of_sender(session.output(), cx)
    }
}

impl fmt::Debug for AsyncClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncClient")
            .field("subprotocol", &self.subprotocol)
            .field("is_compressed", &self.is_compressed())
            .finish_non_exhaustive()
    }
}
