//! The blocking client that reconnects.

use std::fmt;
use std::time::{Duration, Instant};

use throng_proto::ws::Message;

use super::backoff::Backoff;
use super::retry::Retry;
use super::stop::Stopper;
use crate::blocking::{Client, Wait};
use crate::builder::ClientBuilder;
use crate::close_frame::CloseFrame;
use crate::error::{ClientError, DialStep, UpgradeRefused};

/// A blocking client that reconnects when its connection is lost or the server asks for it, from
/// [`ClientBuilder::reconnecting`].
///
/// By default the close codes 1001, 1006 and 1011 to 1014 ask clients to reconnect. So does 1008
/// with the reason "slow consumer", with which this server closes clients that read too slowly; any
/// other 1008 is a refusal. [`ReconnectingClient::reconnect_if`] replaces this rule.
///
/// The client passes each new connection to the resume hook, which can log in, subscribe, and
/// request missed messages. It does not repeat messages without an answer: only the program knows
/// whether that is safe. For tokens that expire, see [`reconnect`](crate::reconnect).
///
/// ```no_run
/// use throng_client::{Backoff, Client};
///
/// # fn main() -> Result<(), throng_client::ClientError> {
/// let mut feed = Client::builder("ws://127.0.0.1:9001/feed")
///     .reconnecting(Backoff::default())
///     .on_connect(|client| client.send("subscribe prices"));
/// while let Some(message) = feed.recv()? {
///     println!("{message:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct ReconnectingClient {
    builder: ClientBuilder,
    resume: Resume,
    retry: Retry,
    client: Option<Client>,
    /// The end of the pause before the next attempt.
    pause_end: Option<Instant>,
    stopper: Stopper,
}

/// Prepares a new connection.
type Resume = Box<dyn FnMut(&mut Client) -> Result<(), ClientError> + Send>;

impl ClientBuilder {
    /// Creates a client that connects at its first use, and again when necessary.
    pub fn reconnecting(self, backoff: Backoff) -> ReconnectingClient {
        ReconnectingClient {
            builder: self,
            resume: Box::new(|_| Ok(())),
            retry: Retry::new(backoff),
            client: None,
            pause_end: None,
            stopper: Stopper::default(),
        }
    }
}

impl ReconnectingClient {
    /// Calls `resume` with each new connection, before anything else uses it. If it fails with a
    /// [temporary](ClientError::is_temporary) error, or because the server is closing with a code
    /// that asks clients to reconnect, this counts as a failed attempt.
    pub fn on_connect(
        mut self,
        resume: impl FnMut(&mut Client) -> Result<(), ClientError> + Send + 'static,
    ) -> Self {
        self.resume = Box::new(resume);
        self
    }

    /// Decides by the server's Close frame whether to reconnect, instead of the default. After a
    /// connection that ends without a Close frame, the client always reconnects.
    ///
    /// ```no_run
    /// # use throng_client::{Backoff, Client};
    /// let feed = Client::builder("ws://127.0.0.1:9001/feed")
    ///     .reconnecting(Backoff::default())
    ///     .reconnect_if(|close| close.code.get() != 4001);
    /// ```
    pub fn reconnect_if(mut self, policy: impl Fn(&CloseFrame) -> bool + Send + 'static) -> Self {
        self.retry.asks_to_reconnect = Box::new(policy);
        self
    }

    /// Decides by the server's refusal of an upgrade whether to try again, after the pause, instead
    /// of the default: [`UpgradeRefused::is_temporary`]. Useful for a 401, for example, after which
    /// [`ClientBuilder::headers_with`] gets another token.
    pub fn on_refused(
        mut self,
        policy: impl FnMut(&UpgradeRefused) -> bool + Send + 'static,
    ) -> Self {
        self.retry.on_refused = Box::new(policy);
        self
    }

    /// Calls `notice` before each pause, with the reason of the next attempt and the length of the
    /// pause: an attempt failed, the connection was lost, or the server asked for it. Useful to log
    /// that the connection is away, or to show it to people.
    pub fn on_retry(mut self, notice: impl FnMut(&ClientError, Duration) + Send + 'static) -> Self {
        self.retry.on_retry = Box::new(notice);
        self
    }

    /// Returns a handle with which another thread can end this client. Take it before the client
    /// connects: it cannot interrupt a wait on an earlier connection, which ends only with a
    /// message or with the connection. Each later connection uses one more descriptor.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
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
    /// connection and does not reconnect.
    ///
    /// # Errors
    /// An error that is not [temporary](ClientError::is_temporary), or the error of the last
    /// attempt that [`Backoff::attempts`] allows; [`ClientError::Closed`] after [`Stopper::stop`].
    pub fn client(&mut self) -> Result<&mut Client, ClientError> {
        self.connect(None)?;
        // There is no client only if the stopper was used.
        self.client.as_mut().ok_or(ClientError::Closed(None))
    }

    /// Connects, unless there is a connection or the client was stopped.
    fn connect(&mut self, until: Option<Wait>) -> Result<(), ClientError> {
        while self.client.is_none() && !self.stopper.is_stopped() {
            if let Some(end) = self.pause_end {
                let limit = match until {
                    None => None,
                    Some(until) => Some(until.left().ok_or_else(|| until.missed())?),
                };
                if !self.stopper.pause(end, limit) {
                    continue;
                }
                self.pause_end = None;
            }
            match self.attempt() {
                Ok(client) => {
                    self.retry.connected();
                    self.client = Some(client);
                }
                Err(_) if self.stopper.is_stopped() => {}
                Err(error) => {
                    let pause = self.retry.failed(error)?;
                    self.reconnect_after(pause);
                }
            }
        }
        if self.stopper.is_stopped() {
            self.disconnect();
        }
        Ok(())
    }

    /// Makes one attempt to connect, and prepares the connection.
    fn attempt(&mut self) -> Result<Client, ClientError> {
        let stopper = &self.stopper;
        let mut client = self.builder.connect_watched(|socket| stopper.watch(socket))?;
        (self.resume)(&mut client)?;
        Ok(client)
    }

    fn reconnect_after(&mut self, pause: Duration) {
        self.disconnect();
        self.pause_end = Instant::now().checked_add(pause);
    }

    /// Ends the connection. The stopper has a duplicate of its descriptor, so it must also drop it.
    fn disconnect(&mut self) {
        self.client = None;
        self.stopper.forget();
    }

    /// Sends a message over the connection, and connects first if necessary: a message composed
    /// for the earlier connection may leave on a new one, before missed messages have been read.
    /// [`connections`](Self::connections) then shows which connection took it.
    ///
    /// # Errors
    /// As for [`ReconnectingClient::client`] and [`Client::send`]. After an error of `send` the
    /// message may or may not have arrived, and the next call reconnects after the pause. After
    /// [`ClientError::Closed`] by the program, or with a code that does not ask clients to
    /// reconnect, every further call returns the same error.
    pub fn send<'m>(&mut self, message: impl Into<Message<'m>>) -> Result<(), ClientError> {
        let sent = self.client()?.send(message);
        if let Err(error) = &sent
            && let Some(pause) = self.retry.ended(error)
        {
            self.reconnect_after(pause);
        }
        sent
    }

    /// Receives the next message, and reconnects as often as necessary. Returns `None`, now and at
    /// every later call, if the program closed the session, or the server with a code that does not
    /// ask clients to reconnect, such as 1000: [`close_frame`](Self::close_frame) has the code.
    /// Also returns `None` after [`Stopper::stop`].
    ///
    /// # Errors
    /// As for [`ReconnectingClient::client`]; also errors of [`Client::recv`] that are not
    /// temporary.
    pub fn recv(&mut self) -> Result<Option<Message<'_>>, ClientError> {
        self.recv_until(None)
    }

    /// Receives the next message if it arrives within `timeout`, which includes connecting and the
    /// pauses; otherwise like [`recv`](Self::recv). An attempt to connect is not interrupted, so
    /// this may return later, by at most [`ClientBuilder::connect_timeout`].
    ///
    /// # Errors
    /// As for [`recv`](Self::recv). [`ClientError::Timeout`] with [`DialStep::Receiving`]: no
    /// message arrived; a later call continues, even during a pause between attempts.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<Message<'_>>, ClientError> {
        self.recv_until(Some(Wait::new(timeout)))
    }

    fn recv_until(&mut self, until: Option<Wait>) -> Result<Option<Message<'_>>, ClientError> {
        loop {
            self.connect(until)?;
            let Some(client) = &mut self.client else { return Ok(None) };
            let error = match client.wait_for_message(until) {
                Ok(true) => break,
                Ok(false) => client.end_error(),
                Err(error @ ClientError::Timeout { during: DialStep::Receiving, .. }) => {
                    return Err(error);
                }
                Err(error) if error.is_temporary() => error,
                Err(error) => return Err(error),
            };
            match self.retry.ended(&error) {
                _ if self.stopper.is_stopped() => {}
                Some(pause) => self.reconnect_after(pause),
                None => return Ok(None),
            }
        }
        self.retry.received();
        match &mut self.client {
            Some(client) => client.recv(),
            None => Ok(None),
        }
    }
}

impl Drop for ReconnectingClient {
    fn drop(&mut self) {
        self.disconnect();
    }
}

impl fmt::Debug for ReconnectingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReconnectingClient")
            .field("backoff", &self.retry.backoff)
            .field("connections", &self.retry.connections)
            .finish_non_exhaustive()
    }
}
