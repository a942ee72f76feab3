//! The asynchronous client that reconnects.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use throng_proto::ws::Message;
use tokio::time::sleep;

use super::backoff::Backoff;
use super::retry::Retry;
use crate::asynchronous::AsyncClient;
use crate::builder::ClientBuilder;
use crate::close_frame::CloseFrame;
use crate::error::{ClientError, UpgradeRefused};

/// A future returned by a hook, which may borrow the connection: made by `Box::pin(async move { ..
/// })`.
pub type BoxFuture<'c, T> = Pin<Box<dyn Future<Output = T> + Send + 'c>>;

/// A client that reconnects, as [`ReconnectingClient`](crate::ReconnectingClient) does, whose
/// methods are futures, from [`ClientBuilder::reconnecting_async`].
///
/// Its futures are cancel-safe: an attempt to connect, or a pause before one, continues when the
/// next future is polled. So `tokio::select!` can wait for messages and for something else, then
/// send. Dropping the client ends the connection without a closing handshake.
///
/// ```no_run
/// use std::io;
/// use throng_client::{Backoff, Client};
///
/// # async fn token() -> io::Result<String> { Ok(String::new()) }
/// # async fn example() -> Result<(), throng_client::ClientError> {
/// let mut feed = Client::builder("ws://127.0.0.1:9001/feed")
///     .reconnecting_async(Backoff::default())
///     .headers_with(|| async {
///         Ok(vec![("Authorization".to_owned(), format!("Bearer {}", token().await?))])
///     })
///     .on_connect(|client| Box::pin(async move { client.send("subscribe prices").await }));
/// while let Some(message) = feed.recv().await? {
///     println!("{message:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct AsyncReconnectingClient {
    builder: Arc<ClientBuilder>,
    headers_with: Option<Arc<HeadersFn>>,
    resume: Arc<ResumeFn>,
    retry: Retry,
    link: ReconnectLink,
}

type HeadersFn = dyn Fn() -> BoxFuture<'static, io::Result<Vec<(String, String)>>> + Send + Sync;
type Resumed<'c> = BoxFuture<'c, Result<(), ClientError>>;
type ResumeFn = dyn for<'c> Fn(&'c mut AsyncClient) -> Resumed<'c> + Send + Sync;

/// The connection, or an attempt to connect.
enum ReconnectLink {
    /// Neither: the next call begins an attempt.
    Idle,
    /// A pause, and the attempt after it.
    Connecting(BoxFuture<'static, Result<AsyncClient, ClientError>>),
    Connected(Box<AsyncClient>),
}

impl ClientBuilder {
    /// Creates a client that connects at its first use, and again when necessary, on the tokio
    /// runtime of the calling task.
    pub fn reconnecting_async(self, backoff: Backoff) -> AsyncReconnectingClient {
        AsyncReconnectingClient {
            builder: Arc::new(self),
            headers_with: None,
            resume: Arc::new(|_| Box::pin(std::future::ready(Ok(())))),
            retry: Retry::new(backoff),
            link: ReconnectLink::Idle,
        }
    }
}

impl AsyncReconnectingClient {
    /// Adds the headers that the future of `make` returns to the upgrade request of each attempt,
    /// such as a token from another service. Otherwise like [`ClientBuilder::headers_with`], whose
    /// closure cannot await.
    pub fn headers_with<F, Fut>(mut self, make: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<Vec<(String, String)>>> + Send + 'static,
    {
        self.headers_with = Some(Arc::new(move || Box::pin(make())));
        self
    }

    /// Calls `resume` with each new connection and awaits its future, before anything else uses the
    /// connection. Otherwise like
    /// [`ReconnectingClient::on_connect`](crate::ReconnectingClient::on_connect).
    pub fn on_connect<F>(mut self, resume: F) -> Self
    where
        F: for<'c> Fn(&'c mut AsyncClient) -> BoxFuture<'c, Result<(), ClientError>>,
        F: Send + Sync + 'static,
    {
        self.resume = Arc::new(resume);
        self
    }

    /// Decides by the server's Close frame whether to reconnect: see
    /// [`ReconnectingClient::reconnect_if`](crate::ReconnectingClient::reconnect_if).
    pub fn reconnect_if(mut self, policy: impl Fn(&CloseFrame) -> bool + Send + 'static) -> Self {
        self.retry.asks_to_reconnect = Box::new(policy);
        self
    }

    /// Decides by the server's refusal of an upgrade whether to try again: see
    /// [`ReconnectingClient::on_refused`](crate::ReconnectingClient::on_refused).
    pub fn on_refused(
        mut self,
        policy: impl FnMut(&UpgradeRefused) -> bool + Send + 'static,
    ) -> Self {
        self.retry.on_refused = Box::new(policy);
        self
    }

    /// Calls `notice` before each pause: see
    /// [`ReconnectingClient::on_retry`](crate::ReconnectingClient::on_retry).
    pub fn on_retry(mut self, notice: impl FnMut(&ClientError, Duration) + Send + 'static) -> Self {
        self.retry.on_retry = Box::new(notice);
        self
    }

    /// Returns the number of connections made so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.retry.connections
    }

    /// Returns the server's last Close frame, from this connection or an earlier one: the reason
    /// for which [`recv`](Self::recv) returned `None` or reconnected. `None` if no connection has
    /// ended with a Close frame.
    #[must_use]
    pub fn close_frame(&self) -> Option<&CloseFrame> {
        self.retry.close_frame()
    }

    /// Returns the connection, and connects first if necessary. After the server has closed the
    /// session for good, so that [`recv`](Self::recv) returns `None`, this returns the closed
    /// connection and does not reconnect. Cancel-safe.
    ///
    /// # Errors
    /// An error that is not [temporary](ClientError::is_temporary), or the error of the last
    /// attempt that [`Backoff::attempts`] allows.
    pub async fn client(&mut self) -> Result<&mut AsyncClient, ClientError> {
        loop {
            self.link = match &mut self.link {
                ReconnectLink::Connected(_) => break,
                ReconnectLink::Idle => self.attempt_after(Duration::ZERO),
                ReconnectLink::Connecting(attempt) => match attempt.as_mut().await {
                    Ok(client) => {
                        self.retry.connected();
                        ReconnectLink::Connected(Box::new(client))
                    }
                    Err(error) => {
                        // A finished future must not be polled again, even if `failed` returns its
                        // error.
                        self.link = ReconnectLink::Idle;
                        let pause = self.retry.failed(error)?;
                        self.attempt_after(pause)
                    }
                },
            };
        }
        match &mut self.link {
            ReconnectLink::Connected(client) => Ok(client),
            _ => Err(ClientError::Closed(None)),
        }
    }

    /// Returns an attempt that begins after a pause, as a future that borrows nothing.
    fn attempt_after(&self, pause: Duration) -> ReconnectLink {
        let (builder, resume) = (Arc::clone(&self.builder), Arc::clone(&self.resume));
        let headers_with = self.headers_with.clone();
        ReconnectLink::Connecting(Box::pin(async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            let mut client = match headers_with {
                None => builder.connect_async().await?,
                Some(headers_with) => {
                    let headers = headers_with().await.map_err(ClientError::Headers)?;
                    let builder = headers
                        .into_iter()
                        .fold(ClientBuilder::clone(&builder), |builder, (name, value)| {
                            builder.header(name, value)
                        });
                    builder.connect_async().await?
                }
            };
            resume(&mut client).await?;
            Ok(client)
        }))
    }

    /// Sends a message over the connection, and connects first if necessary: a message composed
    /// for the earlier connection may leave on a new one, before missed messages have been read.
    /// [`connections`](Self::connections) then shows which connection took it.
    ///
    /// Dropping the future either leaves the message queued or has no effect.
    ///
    /// # Errors
    /// As for [`client`](Self::client) and [`AsyncClient::send`]. After an error of `send` the
    /// message may or may not have arrived, and the next call reconnects after the pause. After
    /// [`ClientError::Closed`] by the program, or with a code that does not ask clients to
    /// reconnect, every further call returns the same error.
    pub async fn send<'m>(&mut self, message: impl Into<Message<'m>>) -> Result<(), ClientError> {
        let sent = self.client().await?.send(message).await;
        if let Err(error) = &sent
            && let Some(pause) = self.retry.ended(error)
        {
            self.link = self.attempt_after(pause);
        }
        sent
    }

    /// Receives the next message, and reconnects as often as necessary. Returns `None`, now and at
    /// every later call, if the program closed the session, or the server with a code that does not
    /// ask clients to reconnect, such as 1000: [`close_frame`](Self::close_frame) has the code.
    /// Cancel-safe.
    ///
    /// # Errors
    /// As for [`client`](Self::client); also errors of [`AsyncClient::recv`] that are not
    /// temporary.
    pub async fn recv(&mut self) -> Result<Option<Message<'_>>, ClientError> {
        loop {
            let client = self.client().await?;
            let error = match client.wait_for_message().await {
                Ok(true) => break,
                Ok(false) => client.end_error(),
                Err(error) if error.is_temporary() => error,
                Err(error) => return Err(error),
            };
            match self.retry.ended(&error) {
                Some(pause) => self.link = self.attempt_after(pause),
                None => return Ok(None),
            }
        }
        self.retry.received();
        self.client().await?.recv().await
    }
}

impl fmt::Debug for AsyncReconnectingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncReconnectingClient")
            .field("backoff", &self.retry.backoff)
            .field("connections", &self.retry.connections)
            .finish_non_exhaustive()
    }
}
