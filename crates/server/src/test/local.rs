//! A server without a network, on the thread of the test.

use std::cell::{RefCell, RefMut};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use throng_client::sans_io::{Advance, ClientMachine, Opened};
use throng_client::{Client, ClientBuilder, ClientError, CloseFrame};
use throng_engine::{CloseCode, Message, Shard};
use throng_io::Driver;
use throng_proto::ws::OwnedMessage;

use super::driver::{LocalDriver, Pipe};
use super::http::{Receiving, TestResponse, request};
use crate::builder::Server;
use crate::hub::Hub;
use crate::service::ShardService;

/// A server whose connections are in memory. Its handlers run on the test's thread when one of its
/// clients sends or receives, and its clock stands still until [`advance`](LocalServer::advance):
/// timers, heartbeats and timeouts can be tested without waiting and without sockets or threads.
///
/// It has one event loop, and ignores settings of the kernel, TLS and listeners. Work that handlers
/// pass to workers, other threads or a runtime completes at an unpredictable time: test it with a
/// [`TestServer`](super::TestServer).
///
/// ```
/// use std::time::Duration;
/// use throng::prelude::*;
/// use throng::test::LocalServer;
///
/// let greet = Ws::new().on_open(|ws, ()| {
///     ws.after(Duration::from_secs(20), |ws, ()| {
///         ws.send("20 seconds have passed");
///     });
/// });
/// let server = LocalServer::start(Server::new(App::new().ws("/", greet)));
/// let mut client = server.ws("/");
/// assert_eq!(client.try_recv(), None);
/// server.advance(Duration::from_secs(20));
/// assert_eq!(client.recv(), OwnedMessage::from("20 seconds have passed"));
/// ```
#[derive(Clone)]
pub struct LocalServer {
    inner: Rc<RefCell<Inner>>,
}

struct Inner {
    shard: Shard<LocalDriver, ShardService>,
    hub: Hub,
}

/// Maximum turns of settling: a handler that creates work for itself forever is a mistake.
const MAX_TURNS: usize = 100_000;

impl LocalServer {
    /// Starts a server.
    ///
    /// # Panics
    /// It cannot start: a route or a setting is wrong.
    #[must_use]
    pub fn start(server: Server) -> Self {
        match server.build_local(LocalDriver::new()) {
            Ok((shard, hub)) => Self { inner: Rc::new(RefCell::new(Inner { shard, hub })) },
            Err(error) => panic!("the server cannot start: {error}"),
        }
    }

    /// Returns its hub, to publish and broadcast.
    #[must_use]
    pub fn hub(&self) -> Hub {
        self.inner().hub.clone()
    }

    /// Connects a WebSocket client.
    ///
    /// # Panics
    /// The server refuses.
    #[must_use]
    pub fn ws(&self, path: &str) -> LocalClient {
        match self.connect(&Client::builder(&format!("ws://localhost{path}"))) {
            Ok(client) => client,
            Err(error) => panic!("no WebSocket at {path}: {error}"),
        }
    }

    /// Connects a WebSocket client with its own headers, subprotocols, compression and limits. Only
    /// host and path of the URL are used.
    ///
    /// # Errors
    /// The server refuses, or a setting is wrong.
    pub fn connect(&self, builder: &ClientBuilder) -> Result<LocalClient, ClientError> {
        let mut opening = builder.open()?;
        let pipe = self.dial(opening.request());
        // If the answer is incomplete, the session is not open.
        opening.receive(&mut self.take(&pipe))?;
        let Opened { machine: session, subprotocol, .. } = opening.finish()?;
        Ok(LocalClient { server: self.clone(), pipe, session, subprotocol })
    }

    /// Sends a GET request, and returns the response.
    ///
    /// # Panics
    /// There is no response.
    #[must_use]
    pub fn get(&self, path: &str) -> TestResponse {
        self.request("GET", path, &[], b"")
    }

    /// Sends a POST request with a body, and returns the response.
    ///
    /// # Panics
    /// There is no response.
    #[must_use]
    pub fn post(&self, path: &str, body: impl AsRef<[u8]>) -> TestResponse {
        self.request("POST", path, &[], body.as_ref())
    }

    /// Sends a request with these headers, and returns the response. Host, Connection and, for a
    /// body, Content-Length are added.
    ///
    /// # Panics
    /// There is no response, or it is not HTTP/1.1.
    #[must_use]
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TestResponse {
        let pipe = self.dial(&request("localhost", method, path, headers, body));
        let mut receiving = Receiving::new(method);
        let mut received = self.take(&pipe);
        let whole = receiving.receive(&mut received).and_then(|whole| match whole {
            Some(whole) => Ok(Some(whole)),
            None => receiving.receive(&mut []),
        });
        pipe.link().client_gone = true;
        self.settle();
        match whole {
            Ok(Some(response)) => response,
            Ok(None) => panic!("no response to {method} {path}"),
            Err(error) => panic!("no response to {method} {path}: {error}"),
        }
    }

    /// Advances the clock: everything due until then happens in its order.
    ///
    /// Clients answer pings when they receive, as a blocking [`Client`] does: a client that
    /// receives nothing for longer than heartbeats allow is disconnected.
    ///
    /// # Panics
    /// The event loop fails.
    pub fn advance(&self, time: Duration) {
        let end = self.inner().shard.driver().now().after(time);
        self.settle();
        for _ in 0..MAX_TURNS {
            let mut inner = self.inner();
            let next = inner.shard.next_deadline().filter(|next| *next <= end);
            inner.shard.driver().set_clock(next.unwrap_or(end));
            inner.turn();
            drop(inner);
            self.settle();
            if next.is_none() {
                return;
            }
        }
        panic!("the server does not come to rest");
    }

    fn dial(&self, request: &[u8]) -> Pipe {
        let pipe = self.inner().shard.driver().dial();
        pipe.link().to_server.extend_from_slice(request);
        pipe
    }

    /// Runs the server until it has no more work, and returns its output.
    fn take(&self, pipe: &Pipe) -> Vec<u8> {
        self.settle();
        std::mem::take(&mut pipe.link().to_client)
    }

    /// Runs turns until there is no more work.
    fn settle(&self) {
        for _ in 0..MAX_TURNS {
            let mut inner = self.inner();
            let now = inner.shard.driver().now();
            let is_due = inner.shard.next_deadline().is_some_and(|next| next <= now);
            if !inner.shard.driver().has_work() && !is_due {
                return;
            }
            inner.turn();
        }
        panic!("the server does not come to rest");
    }

    /// Borrows the server.
    ///
    /// Handlers run within a turn and cannot reach it, so it is never borrowed twice.
    fn inner(&self) -> RefMut<'_, Inner> {
        self.inner.borrow_mut()
    }
}

impl Inner {
    fn turn(&mut self) {
        if let Err(error) = self.shard.turn() {
            panic!("the event loop failed: {error}");
        }
    }
}

/// A client of a [`LocalServer`]. Dropping it ends the connection without a closing handshake.
pub struct LocalClient {
    server: LocalServer,
    pipe: Pipe,
    session: ClientMachine,
    subprotocol: Option<String>,
}

impl LocalClient {
    /// Returns the subprotocol that the server chose.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }

    /// Sends a message, which its handler gets at once.
    ///
    /// # Panics
    /// The session has ended.
    pub fn send<'m>(&mut self, message: impl Into<Message<'m>>) {
        if let Err(error) = self.session.send(message.into()) {
            panic!("the message cannot be sent: {error}");
        }
        self.deliver();
    }

    /// Returns the next message.
    ///
    /// # Panics
    /// No message has come, or the session has ended.
    pub fn recv(&mut self) -> OwnedMessage {
        match (self.try_recv(), self.close_frame()) {
            (Some(message), _) => message,
            (None, Some(close)) => panic!("no message came, but {close:?}"),
            (None, None) if self.is_ended() => panic!("no message came: the server disconnected"),
            (None, None) => panic!("no message came, and no handler has anything left to do"),
        }
    }

    /// Returns the next message, if one has come.
    ///
    /// # Panics
    /// The server's bytes break RFC 6455.
    pub fn try_recv(&mut self) -> Option<OwnedMessage> {
        self.server.settle();
        loop {
            match self.session.advance() {
                Advance::Message => {
                    if let Ok(message) = self.session.message() {
                        return Some(message.into());
                    }
                }
                Advance::Ended => {
                    self.deliver();
                    if let Some(error) = self.session.output().take_failure() {
                        panic!("the server broke the protocol: {error}");
                    }
                    return None;
                }
                Advance::NeedInput => {
                    self.deliver();
                    if !self.receive() {
                        return None;
                    }
                }
            }
        }
    }

    /// Sends a Close frame, and returns the server's. Received messages are dropped.
    ///
    /// # Panics
    /// The session has ended, the code must not be sent, or the server does not answer.
    pub fn close(&mut self, code: impl Into<CloseCode>, reason: &str) -> CloseFrame {
        if let Err(error) = self.session.close(code.into(), reason) {
            panic!("the session cannot be closed: {error}");
        }
        self.deliver();
        while self.try_recv().is_some() {}
        match self.session.close_frame() {
            Some(close) => close.clone(),
            None => panic!("the server does not answer the Close frame"),
        }
    }

    /// Returns the server's Close frame, if it has come and all messages before it were read.
    pub fn close_frame(&self) -> Option<&CloseFrame> {
        self.session.close_frame()
    }

    /// Returns whether the server has ended the connection.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.server.settle();
        let link = self.pipe.link();
        link.server_finished && link.to_client.is_empty()
    }

    /// Moves queued bytes to the server, and runs it.
    fn deliver(&mut self) {
        let output = self.session.output();
        let len = output.unsent().len();
        self.pipe.link().to_server.extend_from_slice(output.unsent());
        output.sent(len);
        self.server.settle();
    }

    /// Moves the server's output into the session. Returns false if there is none.
    fn receive(&mut self) -> bool {
        let mut link = self.pipe.link();
        let space = self.session.input_space();
        let n = space.len().min(link.to_client.len());
        space[..n].copy_from_slice(&link.to_client[..n]);
        link.to_client.drain(..n);
        drop(link);
        self.session.received(n);
        n > 0
    }
}

impl Drop for LocalClient {
    fn drop(&mut self) {
        self.pipe.link().client_gone = true;
        if !std::thread::panicking() {
            self.server.settle();
        }
    }
}

impl fmt::Debug for LocalServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalServer").finish_non_exhaustive()
    }
}

impl fmt::Debug for LocalClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalClient")
            .field("subprotocol", &self.subprotocol)
            .finish_non_exhaustive()
    }
}
