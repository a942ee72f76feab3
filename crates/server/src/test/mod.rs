//! Tests of servers: a [`TestServer`] on a free port that stops when it is dropped, with clients
//! for it, and a [`LocalServer`] whose handlers run on the test's thread, without a network and on
//! a clock that the test advances.
//!
//! Mistakes and failures panic, with a message for the person who reads the test's output.
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
    /// The server refuses.
    #[must_use]
    pub fn ws(&self, path: &str) -> Client {
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
    /// The connection fails, or the response is not HTTP/1.1.
    #[must_use]
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TestResponse {
        match http::exchange(self.address(), method, path, headers, body) {
            Ok(response) => response,
            Err(error) => panic!("no response to {method} {path}: {error}"),
        }
    }
}
