//! A client that reconnects.

use std::fmt;
use std::thread;
use std::time::Duration;

use throng_proto::ws::Message;

use crate::blocking::Client;
use crate::builder::ClientBuilder;
use crate::close_frame::CloseFrame;
use crate::error::ClientError;
use crate::random::Entropy;

/// The pauses between attempts to connect: exponential, with full jitter.
///
/// A pause is random between 0 and a bound, so that many clients of a restarted server do not come
/// back at once. The bound is `first`, doubles with each connection that fails or ends without
/// having received a message, and is at most `longest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    attempts: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(500),
            longest: Duration::from_secs(30),
            attempts: u32::MAX,
        }
    }
}

impl Backoff {
    /// Sets the upper bound of the first pause. Default 500 ms.
    pub fn first(mut self, first: Duration) -> Self {
        self.first = first;
        self
    }

    /// Sets the upper bound of every pause. Default 30 s.
    pub fn longest(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    /// Sets the number of failed attempts in a row after which the last error is returned. Default:
    /// no limit.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Returns the pause after `failures` failed attempts in a row, for 64 random bits.
    fn pause(self, failures: u32, random: u64) -> Duration {
        let factor = 1u32.checked_shl(failures).unwrap_or(u32::MAX);
        let bound = self.first.saturating_mul(factor).min(self.longest);
        let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(((u128::from(nanos) * u128::from(random)) >> 64) as u64)
    }
}

/// A blocking client that reconnects when its connection is lost or the server asks for it, from
/// [`ClientBuilder::reconnecting`].
///
/// By default the close codes 1001, 1006 and 1011 to 1014 ask for it, and 1008 with the reason
/// "slow consumer", with which this server closes clients that read too slowly; any other 1008 is a
/// refusal. [`ReconnectingClient::reconnect_if`] replaces this rule.
///
/// Each new connection first goes to the resume hook, which can log in, subscribe, and request
/// missed messages. Messages without an answer are not repeated: only the program knows whether
/// that is safe.
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
    backoff: Backoff,
    resume: Resume,
    asks_to_reconnect: Policy,
    client: Option<Client>,
    connections: u64,
    /// Connections that failed or ended since the last message: they lengthen the pauses.
    failures: u32,
}

/// Prepares a new connection.
type Resume = Box<dyn FnMut(&mut Client) -> Result<(), ClientError> + Send>;

/// Returns whether a server that closes with this frame expects its clients back.
type Policy = Box<dyn Fn(&CloseFrame) -> bool + Send>;

impl ClientBuilder {
    /// Creates a client that connects when it is first used, and again whenever that is necessary.
    pub fn reconnecting(self, backoff: Backoff) -> ReconnectingClient {
        let resume = Box::new(|_: &mut Client| Ok(()));
        ReconnectingClient {
            builder: self,
            backoff,
            resume,
            asks_to_reconnect: Box::new(CloseFrame::asks_to_reconnect),
            client: None,
            connections: 0,
            failures: 0,
        }
    }
}

impl ReconnectingClient {
    /// Calls `resume` with each new connection, before anything else uses it. If it fails with a
    /// [temporary](ClientError::is_temporary) error, or because the server is closing with a code
    /// that asks to connect again, that counts as a failed attempt.
    pub fn on_connect(
        mut self,
        resume: impl FnMut(&mut Client) -> Result<(), ClientError> + Send + 'static,
    ) -> Self {
        self.resume = Box::new(resume);
        self
    }

    /// Decides by the server's Close frame whether to reconnect, instead of the default. After a
    /// connection that ends without one, the client always reconnects.
    ///
    /// ```no_run
    /// # use throng_client::{Backoff, Client};
    /// let feed = Client::builder("ws://127.0.0.1:9001/feed")
    ///     .reconnecting(Backoff::default())
    ///     .reconnect_if(|close| close.code.get() != 4001);
    /// ```
    pub fn reconnect_if(mut self, policy: impl Fn(&CloseFrame) -> bool + Send + 'static) -> Self {
        self.asks_to_reconnect = Box::new(policy);
        self
    }

    /// Returns the number of connections made so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// Returns the connection, and opens it if there is none. When the server has closed the
    /// session for good, so that [`recv`](Self::recv) returns `None`, it is the closed connection,
    /// whose [`close_frame`](Client::close_frame) has the code: the client does not reconnect.
    ///
    /// # Errors
    /// An error that is not [temporary](ClientError::is_temporary), or the last of as many attempts
    /// as [`Backoff::attempts`] allows.
    pub fn client(&mut self) -> Result<&mut Client, ClientError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => self.connect()?,
        };
        Ok(self.client.insert(client))
    }

    fn connect(&mut self) -> Result<Client, ClientError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.attempt() {
                Ok(client) => {
                    self.connections += 1;
                    return Ok(client);
                }
                Err((_, true)) if attempts < self.backoff.attempts => self.sleep()?,
                Err((error, _)) => return Err(error),
            }
        }
    }

    /// Connects once and prepares the connection. The flag of an error is true if another attempt
    /// can succeed.
    fn attempt(&mut self) -> Result<Client, (ClientError, bool)> {
        let temporary = |error: ClientError| {
            let is_temporary = error.is_temporary();
            (error, is_temporary)
        };
        let mut client = self.builder.connect().map_err(temporary)?;
        match (self.resume)(&mut client) {
            Ok(()) => Ok(client),
            Err(ClientError::Closed(Some(close))) => {
                let asks = (self.asks_to_reconnect)(&close);
                Err((ClientError::Closed(Some(close)), asks))
            }
            Err(error) => Err(temporary(error)),
        }
    }

    fn sleep(&mut self) -> Result<(), ClientError> {
        let random =
            Entropy::new().and_then(|mut source| source.take()).map_err(ClientError::Random)?;
        thread::sleep(self.backoff.pause(self.failures, u64::from_ne_bytes(random)));
        self.failures = self.failures.saturating_add(1);
        Ok(())
    }

    /// Sends a message over the connection, which it opens if there is none.
    ///
    /// # Errors
    /// As for [`ReconnectingClient::client`] and [`Client::send`]. After an error of the latter the
    /// message may or may not have arrived, and the next call reconnects; but
    /// [`ClientError::Closed`] with a code that does not ask for that is the error of every further
    /// call.
    pub fn send<'m>(&mut self, message: impl Into<Message<'m>>) -> Result<(), ClientError> {
        let sent = self.client()?.send(message);
        match &sent {
            Ok(()) => {}
            Err(ClientError::Closed(Some(close))) if !(self.asks_to_reconnect)(close) => {}
            Err(_) => self.client = None,
        }
        sent
    }

    /// Receives the next message, and reconnects as often as necessary; `None` if the server closed
    /// the session with a code that does not ask for that, such as 1000, and from then on.
    /// [`client`](Self::client) returns the closed connection, which has the code.
    ///
    /// # Errors
    /// As for [`ReconnectingClient::client`], and errors of [`Client::recv`] that are not
    /// temporary.
    pub fn recv(&mut self) -> Result<Option<Message<'_>>, ClientError> {
        while !self.wait()? {
            let close = self.client.as_ref().and_then(Client::close_frame);
            if !close.is_none_or(&self.asks_to_reconnect) {
                return Ok(None);
            }
            self.client = None;
            self.sleep()?;
        }
        match &mut self.client {
            Some(client) => client.recv(),
            None => Ok(None),
        }
    }

    /// Waits until a message can be taken. Returns false if the connection has ended.
    fn wait(&mut self) -> Result<bool, ClientError> {
        match self.client()?.wait_for_message() {
            Err(error) if error.is_temporary() => {
                self.client = None;
                Ok(false)
            }
            Ok(true) => {
                self.failures = 0;
                Ok(true)
            }
            outcome => outcome,
        }
    }
}

impl fmt::Debug for ReconnectingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReconnectingClient")
            .field("backoff", &self.backoff)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use throng_proto::ws::CloseCode;

    use super::*;

    #[test]
    fn pauses_are_random_up_to_a_bound_that_doubles() {
        let backoff = Backoff::default().first(Duration::from_secs(1));
        let bounds =
            [0, 1, 4, 5, 40].map(|failures| backoff.pause(failures, u64::MAX).as_secs_f64());
        for (bound, expected) in bounds.into_iter().zip([1.0, 2.0, 16.0, 30.0, 30.0]) {
            assert!((bound - expected).abs() < 1e-6, "{bound} for {expected}");
        }
        assert_eq!(backoff.pause(3, 0), Duration::ZERO);
        assert_eq!(backoff.pause(3, u64::MAX / 2 + 1), Duration::from_secs(4));
    }

    #[test]
    fn a_normal_closure_is_an_end_and_a_restart_is_none() {
        let asks = |code, reason: &str| {
            let code = CloseCode::new(code);
            CloseFrame { code, reason: reason.to_owned() }.asks_to_reconnect()
        };
        let codes = [1000, 1001, 1008, 1011, 1012, 1013, 4001].map(|code| asks(code, ""));
        assert_eq!(codes, [false, true, false, true, true, true, false]);
        assert!(asks(1008, "slow consumer") && !asks(1008, "not a member"));
    }
}
