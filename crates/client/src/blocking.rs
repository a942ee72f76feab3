//! The blocking client.

use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use throng_proto::ws::{Chunk, CloseCode, Fragment, Message, Opcode};

use crate::builder::ClientBuilder;
use crate::close_frame::CloseFrame;
use crate::dial::{self, Dialled, is_timeout};
use crate::error::{ClientError, DialStep};
use crate::handshake::Opened;
use crate::session::{Advance, ClientMachine, FRAGMENT, Output};
use crate::stream::ClientStream;

/// Time limit of a read that takes only available bytes: a limit of 0 s would mean no limit.
const SHORTEST_READ: Duration = Duration::from_micros(1);

/// A blocking WebSocket client.
///
/// While the client is receiving, it answers pings and notices a silent server
/// ([`ClientBuilder::heartbeat`]). Dropping it ends the TCP connection without a closing handshake,
/// which the server sees as 1006; [`Client::close`] ends it properly.
///
/// ```no_run
/// use throng_client::{Client, CloseCode, Message};
///
/// # fn main() -> Result<(), throng_client::ClientError> {
/// let mut client = Client::connect("ws://127.0.0.1:9001/")?;
/// client.send("hello")?;
/// while let Some(message) = client.recv()? {
///     if let Message::Text(text) = message {
///         println!("{text}");
///         break;
///     }
/// }
/// client.close(CloseCode::NORMAL, "")?;
/// # Ok(())
/// # }
/// ```
pub struct Client {
    stream: Box<dyn ClientStream>,
    session: ClientMachine,
    subprotocol: Option<String>,
    timing: Timing,
}

/// The timeouts of a session, and the read timeout that its socket has.
#[derive(Clone, Copy, Debug)]
struct Timing {
    heartbeat: Option<Duration>,
    write: Duration,
    close: Duration,
    armed: Option<Duration>,
    /// When the server fell silent, or was pinged; `None` if it sent a byte since.
    silent_since: Option<Instant>,
    /// Whether the server was pinged, and has been silent since.
    pinged: bool,
}

impl Client {
    /// Connects to a `ws://` or `wss://` URL with the default settings of a [`ClientBuilder`].
    ///
    /// # Errors
    /// All errors except [`ClientError::Protocol`] and [`ClientError::Closed`];
    /// [`ClientError::blame`] returns whose fault it is.
    pub fn connect(url: &str) -> Result<Self, ClientError> {
        Self::builder(url).connect()
    }

    /// Returns the settings of connections to a `ws://` or `wss://` URL, with their defaults.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder::new(url)
    }

    fn new(builder: &ClientBuilder, dialled: Dialled) -> Self {
        let Dialled { stream, opened: Opened { machine: session, subprotocol } } = dialled;
        let timing = Timing {
            heartbeat: builder.heartbeat,
            write: builder.write_timeout,
            close: builder.close_timeout,
            armed: builder.heartbeat,
            silent_since: None,
            pinged: false,
        };
        Self { stream, session, subprotocol, timing }
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
    /// # Errors
    /// [`ClientError::Closed`] after the closing handshake began, with the server's Close frame if
    /// the server began it; [`ClientError::Protocol`] after the server broke a rule;
    /// [`ClientError::Timeout`] if the server does not read; [`ClientError::Lost`] if the
    /// connection failed. After the last two the session is over.
    pub fn send<'m>(&mut self, message: impl Into<Message<'m>>) -> Result<(), ClientError> {
        self.session.send(message.into())?;
        self.flush()
    }

    /// Queues a message, which leaves with the next call of any other method that sends or
    /// receives: several small messages can then leave in one system call.
    ///
    /// # Errors
    /// As for [`send`](Self::send), except [`ClientError::Timeout`].
    pub fn queue<'m>(&mut self, message: impl Into<Message<'m>>) -> Result<(), ClientError> {
        self.session.send(message.into())
    }

    /// Sends queued messages.
    ///
    /// # Errors
    /// As for [`Client::send`], except [`ClientError::Closed`].
    pub fn flush(&mut self) -> Result<(), ClientError> {
        flush(&mut *self.stream, self.session.output(), self.timing.write)
    }

    /// Sends one message as long as `source`, in fragments of 64 KiB, and returns its length. It is
    /// not compressed.
    ///
    /// With `text`, the source must be UTF-8, or the server ends the session with 1007.
    ///
    /// # Errors
    /// As for [`Client::send`]. An error of the source is [`ClientError::Lost`] and ends the
    /// session, since only a part of the message was sent.
    pub fn send_reader(&mut self, text: bool, mut source: impl Read) -> Result<u64, ClientError> {
        let mut opcode = if text { Opcode::Text } else { Opcode::Binary };
        let mut buffer = vec![0; FRAGMENT.get()];
        let mut len = 0;
        loop {
            let filled = match fill(&mut source, &mut buffer) {
                Ok(filled) => filled,
                Err(error) => {
                    self.session.output().end();
                    return Err(ClientError::Lost(error));
                }
            };
            let fin = filled < buffer.len();
            let payload = &buffer[..filled];
            self.session.send_fragment(Fragment { opcode, fin, deflated: false, payload })?;
            self.flush()?;
            len += filled as u64;
            if fin {
                return Ok(len);
            }
            opcode = Opcode::Continuation;
        }
    }

    /// Sends a ping with a payload of at most 125 bytes; the pong is counted by
    /// [`Client::pongs`].
    ///
    /// # Errors
    /// As for [`Client::send`]; [`ClientError::Setting`] if the payload is longer.
    pub fn ping(&mut self, payload: &[u8]) -> Result<(), ClientError> {
        self.session.ping(payload)?;
        self.flush()
    }

    /// Receives the next message, and waits for it; `None` after the server's Close frame, which
    /// [`Client::close_frame`] returns.
    ///
    /// The message is lent until the next call: copy the parts that you keep, for example into an
    /// [`OwnedMessage`](throng_proto::ws::OwnedMessage).
    ///
    /// # Errors
    /// The session is over: [`ClientError::Lost`] if there was no Close frame,
    /// [`ClientError::Protocol`] if the server broke a rule, [`ClientError::Timeout`] if it was
    /// silent or did not read.
    pub fn recv(&mut self) -> Result<Option<Message<'_>>, ClientError> {
        self.recv_until(None)
    }

    /// Receives the next message if it arrives within `timeout`; otherwise like [`Client::recv`].
    /// With a timeout of 0 s it takes only available input.
    ///
    /// # Errors
    /// As for [`Client::recv`]. [`ClientError::Timeout`] with [`DialStep::Receiving`] does not end
    /// the session.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<Message<'_>>, ClientError> {
        self.recv_until(Some(Wait::new(timeout)))
    }

    fn recv_until(&mut self, until: Option<Wait>) -> Result<Option<Message<'_>>, ClientError> {
        if self.session.is_by_chunks() {
            return Err(ClientError::setting(
                "receive_chunks",
                "messages are received in chunks: call recv_chunk",
            ));
        }
        if !self.wait(until)? {
            return Ok(None);
        }
        let Self { session, stream, timing, .. } = self;
        match session.message() {
            Ok(message) => Ok(Some(message)),
            Err(output) => finish(&mut **stream, output, timing).map(|()| None),
        }
    }

    /// Receives the next part of a message, as it arrived; `None` after the server's Close frame.
    /// For clients with [`ClientBuilder::receive_chunks`].
    ///
    /// # Errors
    /// As for [`Client::recv`]; [`ClientError::Setting`] without [`ClientBuilder::receive_chunks`].
    pub fn recv_chunk(&mut self) -> Result<Option<Chunk<'_>>, ClientError> {
        if !self.session.is_by_chunks() {
            return Err(ClientError::setting(
                "receive_chunks",
                "messages are received whole: call recv, or set receive_chunks",
            ));
        }
        if !self.wait(None)? {
            return Ok(None);
        }
        Ok(Some(self.session.chunk()))
    }

    /// Sends a Close frame, waits for the server's, and returns it. Messages that arrive before it
    /// are dropped. The reason is cut at 123 bytes.
    ///
    /// # Errors
    /// [`ClientError::Setting`] if the code must not be sent, [`ClientError::Closed`] if the
    /// session is over. [`ClientError::Timeout`] with [`DialStep::Closing`], or
    /// [`ClientError::Lost`]: the server did not answer.
    pub fn close(
        &mut self,
        code: impl Into<CloseCode>,
        reason: &str,
    ) -> Result<CloseFrame, ClientError> {
        self.session.close(code.into(), reason)?;
        self.flush()?;
        let until = Wait::new(self.timing.close);
        loop {
            match self.wait(Some(until)) {
                Ok(false) => break,
                Ok(true) => self.drop_message()?,
                Err(ClientError::Timeout { limit, .. }) => {
                    self.session.output().end();
                    return Err(ClientError::Timeout { during: DialStep::Closing, limit });
                }
                Err(error) => return Err(error),
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

    /// Waits as [`Client::recv`] does, which then returns at once. Returns false if the session has
    /// ended.
    pub(crate) fn wait_for_message(&mut self, until: Option<Wait>) -> Result<bool, ClientError> {
        self.wait(until)
    }

    fn drop_message(&mut self) -> Result<(), ClientError> {
        if self.session.is_by_chunks() {
            self.session.chunk();
            return Ok(());
        }
        match self.session.message() {
            Ok(_) => Ok(()),
            Err(output) => finish(&mut *self.stream, output, &self.timing),
        }
    }

    /// Waits until a message, or a chunk of one, can be taken. Returns false if none will come.
    fn wait(&mut self, until: Option<Wait>) -> Result<bool, ClientError> {
        let mut has_read = false;
        loop {
            match self.session.advance() {
                Advance::Message => return Ok(true),
                Advance::NeedInput => {}
                Advance::Ended => {
                    finish(&mut *self.stream, self.session.output(), &self.timing)?;
                    return Ok(false);
                }
            }
            self.flush()?;
            let left = match until {
                None => None,
                // A wait of 0 s takes only available input.
                Some(until) if !has_read => Some(until.left().unwrap_or(SHORTEST_READ)),
                Some(until) => Some(until.left().ok_or_else(|| until.missed())?),
            };
            self.read(left)?;
            has_read = true;
        }
    }

    /// Reads once, for at most `left`, and pings a server that is silent.
    fn read(&mut self, left: Option<Duration>) -> Result<(), ClientError> {
        let timing = &mut self.timing;
        let silence = timing.silent_since.map_or(Duration::ZERO, |since| since.elapsed());
        let heartbeat = timing.heartbeat.map(|after| {
            after.checked_sub(silence).filter(|left| !left.is_zero()).unwrap_or(SHORTEST_READ)
        });
        let pause = heartbeat.into_iter().chain(left).min();
        if timing.armed != pause {
            self.stream.set_read_timeout(pause).map_err(ClientError::Lost)?;
            timing.armed = pause;
        }
        match self.stream.read(self.session.input_space()) {
            Ok(0) => {
                self.session.output().end();
                Err(ClientError::Lost(ErrorKind::UnexpectedEof.into()))
            }
            Ok(n) => {
                (timing.silent_since, timing.pinged) = (None, false);
                self.session.received(n);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) if is_timeout(&error) => self.silent(pause.unwrap_or_default()),
            Err(error) => {
                self.session.output().end();
                Err(ClientError::Lost(error))
            }
        }
    }

    /// Nothing came for `pause`, and maybe for longer.
    fn silent(&mut self, pause: Duration) -> Result<(), ClientError> {
        let timing = &mut self.timing;
        let Some(interval) = timing.heartbeat else { return Ok(()) };
        let now = Instant::now();
        let since = *timing.silent_since.get_or_insert(now.checked_sub(pause).unwrap_or(now));
        if now.duration_since(since) < interval {
            return Ok(());
        }
        if timing.pinged {
            self.session.output().end();
            return Err(ClientError::Timeout { during: DialStep::Heartbeat, limit: interval });
        }
        (timing.silent_since, timing.pinged) = (Some(now), true);
        if self.session.output().is_open() { self.ping(b"") } else { Ok(()) }
    }
}

impl ClientBuilder {
    /// Connects, and blocks the calling thread until then.
    ///
    /// # Errors
    /// All errors except [`ClientError::Protocol`] and [`ClientError::Closed`];
    /// [`ClientError::blame`] returns whose fault it is.
    pub fn connect(&self) -> Result<Client, ClientError> {
        self.connect_watched(|_| {})
    }

    /// Connects; passes the socket to `watch` as soon as it exists.
    pub(crate) fn connect_watched(
        &self,
        watch: impl FnOnce(&TcpStream),
    ) -> Result<Client, ClientError> {
        let dialled = dial::connect(self, watch)?;
        Ok(Client::new(self, dialled))
    }

    /// Upgrades an existing connection, such as a Unix socket. Only host and path of the URL are
    /// used; the caller handles proxy and TLS.
    ///
    /// # Errors
    /// As for [`ClientBuilder::connect`].
    pub fn connect_over(&self, stream: impl ClientStream + 'static) -> Result<Client, ClientError> {
        let dialled = dial::connect_over(self, Box::new(stream))?;
        Ok(Client::new(self, dialled))
    }
}

/// A time until which to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    limit: Duration,
    since: Instant,
}

impl Wait {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, since: Instant::now() }
    }

    pub(crate) fn left(self) -> Option<Duration> {
        self.limit.checked_sub(self.since.elapsed()).filter(|left| !left.is_zero())
    }

    pub(crate) fn missed(self) -> ClientError {
        ClientError::Timeout { during: DialStep::Receiving, limit: self.limit }
    }
}

fn flush(
    stream: &mut dyn ClientStream,
    output: &mut Output,
    limit: Duration,
) -> Result<(), ClientError> {
    while !output.unsent().is_empty() {
        match stream.write(output.unsent()) {
            Ok(0) => return Err(unsent(output, ErrorKind::WriteZero.into(), limit)),
            Ok(n) => output.sent(n),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(unsent(output, error, limit)),
        }
    }
    // The TLS layer buffers bytes that the socket did not take at once.
    loop {
        match stream.flush() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            flushed => return flushed.map_err(|error| unsent(output, error, limit)),
        }
    }
}

/// Ends a session whose output cannot be sent.
fn unsent(output: &mut Output, error: io::Error, limit: Duration) -> ClientError {
    output.end();
    match is_timeout(&error) {
        true => ClientError::Timeout { during: DialStep::Sending, limit },
        false => ClientError::Lost(error),
    }
}

/// Sends the last frames, and waits for the server to end the connection. Returns the rule that the
/// server broke, if that was the reason.
fn finish(
    stream: &mut dyn ClientStream,
    output: &mut Output,
    timing: &Timing,
) -> Result<(), ClientError> {
    let flushed = match output.has_ended() {
        true => Ok(()),
        false => flush(stream, output, timing.write).map(|()| linger(stream, timing.close)),
    };
    output.end();
    match output.take_failure() {
        Some(error) => Err(ClientError::Protocol(error)),
        None => flushed,
    }
}

/// Reads and drops input until the server ends the connection, as it must (RFC 6455 section 7.1.1):
/// closing with unread input would be a reset, which can overtake our Close frame.
fn linger(stream: &mut dyn ClientStream, limit: Duration) {
    let until = Wait::new(limit);
    let mut dropped = [0; 4096];
    while let Some(left) = until.left() {
        if stream.set_read_timeout(Some(left)).is_err() {
            return;
        }
        match stream.read(&mut dropped) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Reads until the buffer is full or the source ends.
fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("subprotocol", &self.subprotocol)
            .field("is_compressed", &self.is_compressed())
            .finish_non_exhaustive()
    }
}
