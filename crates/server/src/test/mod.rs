//! Tests of servers: a [`TestServer`] on a free port that stops when it is dropped, with clients
//! for it, and a [`LocalServer`] whose handlers run on the test's thread, without a network and on
//! a clock that the test advances.
//!
//! Mistakes and failures panic, with a message for the person who reads the test's output. Tests
//! that are futures await `TestServer::get_async`.
//!
//! ```
//! use throng::prelude::*;
//! use throng::test::TestServer;
//!
//! let app = App::new()
//!     .ws("/", Ws::new().on_message(|ws, (), message| ws.send(message)))
//!     .get("/health", |_| "fine");
//! let server = TestServer::start(Server::new(app));
//! let mut client = server.ws("/");
//! client.send("hello").unwrap();
//! assert_eq!(client.recv().unwrap(), Some(Message::Text("hello")));
//! assert_eq!(server.get("/health").text(), "fine");
//! ```
//!
//! The rooms of a chat, without a network:
//!
//! ```
//! use throng::prelude::*;
//! use throng::test::LocalServer;
//!
//! struct User {
//!     name: String,
//!     room: String,
//! }
//!
//! fn chat() -> Ws<User> {
//!     Ws::from_request(|request| {
//!         let name = request.query("name").unwrap_or("anonymous").to_owned();
//!         let room = request.param("room").ok_or(Reject::not_found())?.to_owned();
//!         Ok(User { name, room })
//!     })
//!     .on_open(|ws, user| ws.subscribe(&user.room))
//!     .on_message(|ws, user, message| {
//!         let Message::Text(text) = message else { return };
//!         ws.publish(&user.room, format!("{}: {text}", user.name));
//!     })
//! }
//!
//! let server = LocalServer::start(Server::new(App::new().ws("/chat/{room}", chat())));
//! let mut ada = server.ws("/chat/lobby?name=ada");
//! let (mut bob, mut eve) = (server.ws("/chat/lobby"), server.ws("/chat/attic"));
//! ada.send("hello");
//! assert_eq!((bob.recv(), eve.try_recv()), (OwnedMessage::from("ada: hello"), None));
//! ```

mod driver;
mod http;
mod local;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

pub use http::TestResponse;
pub use local::{LocalClient, LocalServer};
use throng_client::{Client, ClientBuilder};

use crate::builder::Server;
use crate::hub::Hub;
use crate::running::Running;

/// The time after which a client's call fails: long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A server on a free port of 127.0.0.1. Dropping it stops it at once.
#[derive(Debug)]
pub struct TestServer {
    running: Running,
}

impl TestServer {
    /// Starts a server.
    ///
    /// # Panics
    /// It cannot start: a route or a setting is wrong.
    #[must_use]
    pub fn start(server: Server) -> Self {
        let started = server.bind((Ipv4Addr::LOCALHOST, 0)).and_then(crate::running::Bound::start);
        match started {
            Ok(running) => Self { running },
            Err(error) => panic!("the server cannot start: {error}"),
        }
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.running.local_addr()
    }

    /// Returns the `ws://` URL of a path.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("ws://{}{path}", self.address())
    }

    /// Returns the running server, for its figures and its drain.
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Returns its hub, to publish and broadcast.
    #[must_use]
    pub fn hub(&self) -> Hub {
        self.running.hub()
    }

    /// Returns the settings of a client of this path. Its `recv` fails after a minute of silence
    /// and a ping that stays unanswered for another minute.
    pub fn client(&self, path: &str) -> ClientBuilder {
        Client::builder(&self.url(path)).connect_timeout(TIMEOUT).heartbeat(TIMEOUT)
    }

    /// Connects a WebSocket client.
    ///
    /// # Panics
    /// The server refuses. At once where it would block the only thread of a tokio runtime, as in a
    /// `#[tokio::test]`: use `client(path).connect_async()` there.
    #[must_use]
    pub fn ws(&self, path: &str) -> Client {
        may_block("TestServer::ws", "client(path).connect_async()");
        match self.client(path).connect() {
            Ok(client) => client,
            Err(error) => panic!("no WebSocket at {path}: {error}"),
        }
    }

    /// Sends a GET request, and returns the response.
    ///
    /// # Panics
    /// The connection fails.
    #[must_use]
    pub fn get(&self, path: &str) -> TestResponse {
        self.request("GET", path, &[], b"")
    }

    /// Sends a POST request with a body, and returns the response.
    ///
    /// # Panics
    /// The connection fails.
    #[must_use]
    pub fn post(&self, path: &str, body: impl AsRef<[u8]>) -> TestResponse {
        self.request("POST", path, &[], body.as_ref())
    }

    /// Sends a request with these headers, and returns the response. Host, Connection and, for a
    /// body, Content-Length are added.
    ///
    /// # Panics
    /// The connection fails, or the response is not HTTP/1.1. At once where it would block the only
    /// thread of a tokio runtime, as in a `#[tokio::test]`, on which the server's handlers may have
    /// to run: use [`request_async`](Self::request_async) there.
    #[must_use]
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TestResponse {
        may_block("TestServer::get", "get_async or request_async");
        let address = self.address();
        let request = http::request(&address.to_string(), method, path, headers, body);
        match http::exchange(address, method, &request) {
            Ok(response) => response,
            Err(error) => panic!("no response to {method} {path}: {error}"),
        }
    }

    /// Sends a GET request from a task of a tokio runtime, and returns the response.
    ///
    /// # Panics
    /// As for [`request_async`](Self::request_async).
    #[cfg(feature = "tokio")]
    pub async fn get_async(&self, path: &str) -> TestResponse {
        self.request_async("GET", path, &[], b"").await
    }

    /// Sends a request as [`request`](Self::request) does, from a task of a tokio runtime, whose
    /// other tasks run until the response comes.
    ///
    /// # Panics
    /// The connection fails, the response is not HTTP/1.1, or there is no runtime.
    #[cfg(feature = "tokio")]
    pub async fn request_async(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TestResponse {
        let (address, of) = (self.address(), method.to_owned());
        let request = http::request(&address.to_string(), method, path, headers, body);
        let exchanged = tokio::task::spawn_blocking(move || http::exchange(address, &of, &request));
        match exchanged.await.map_err(std::io::Error::other).and_then(|response| response) {
            Ok(response) => response,
            Err(error) => panic!("no response to {method} {path}: {error}"),
        }
    }
}

/// Fails where a call that blocks would occupy the only thread of a tokio runtime. Handlers of the
/// server may need it, and the call would wait for its own timeout.
fn may_block(call: &str, remedy: &str) {
    #[cfg(feature = "tokio")]
    if tokio::runtime::Handle::try_current().is_ok() {
        // It panics there, and on no other thread.
        let allowed = std::panic::catch_unwind(|| tokio::task::block_in_place(|| ()));
        assert!(
            allowed.is_ok(),
            "{call} blocks the only thread of this tokio runtime: use {remedy}, or a runtime with \
             more threads: #[tokio::test(flavor = \"multi_thread\")]"
        );
    }
    #[cfg(not(feature = "tokio"))]
    let _ = (call, remedy);
}
