//! Connections that another part of the program has accepted, or upgraded.

use std::io;
use std::net::TcpStream;

use throng_engine::Adoption;

use crate::hub::Hub;

impl Hub {
    /// Serves a connection that another part of the program has accepted: HTTP and WebSockets, as
    /// if the server had accepted it, and within the same limits. `received` has the bytes already
    /// read from the connection, from the first byte on; it is empty if none were read.
    ///
    /// This lets a program share a port with a server of another library: it accepts connections,
    /// looks at their first bytes with [`TcpStream::peek`], and gives Throng's connections to the
    /// hub. The connection has no TLS and no PROXY header. A server for such connections alone does
    /// not listen: see [`Server::without_listener`](crate::Server::without_listener).
    ///
    /// ```no_run
    /// use std::net::TcpListener;
    /// use throng::prelude::*;
    ///
    /// # fn serve_with_another_library(_: std::net::TcpStream) {}
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let app = App::new().ws("/live", Ws::new().on_message(|ws, (), message| ws.send(message)));
    /// let running = Server::new(app).without_listener()?.start()?;
    /// for stream in TcpListener::bind("127.0.0.1:9001")?.incoming() {
    ///     let stream = stream?;
    ///     // On a thread of its own, in a program that serves strangers: a client may be slow.
    ///     let mut start = [0; 9];
    ///     match stream.peek(&mut start)? {
    ///         9 if start == *b"GET /live" => running.hub().adopt(stream, &[])?,
    ///         _ => serve_with_another_library(stream),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The server is not bound yet, its queue is full, or it has one descriptor table per event
    /// loop. The connection is closed.
    pub fn adopt(&self, stream: TcpStream, received: &[u8]) -> io::Result<()> {
        let received = received.to_vec();
        self.remote().adopt(Adoption { stream, received, is_answered: false })
    }
}

#[cfg(feature = "http")]
pub use upgraded::Upgrade;

#[cfg(feature = "http")]
mod upgraded {
    use std::fmt;
    use std::io;
    use std::net::TcpStream;

    use http::header::{self, HeaderMap, HeaderName, HeaderValue};
    use throng_engine::Adoption;
    use throng_http::Reject;
    use throng_proto::ws::handshake::{self, Headers};

    use crate::hub::Hub;

    /// An upgrade of a server of another library, such as hyper or axum, whose WebSocket Throng
    /// serves.
    ///
    /// The other server has received the request and sends the [response](Self::response). Then
    /// [`adopt`](Self::adopt) gives its connection to a Throng server, which routes the request by
    /// its path and calls the handler's `on_upgrade` as for its own requests. Compression is not
    /// negotiated. If no route matches, or the handler refuses, the client gets a Close frame with
    /// 1008, 1011 or 1013, since the response was already sent. The connection must not use TLS,
    /// since the server reads and writes its socket.
    ///
    /// ```no_run
    /// use std::net::TcpStream;
    /// use throng::Hub;
    /// use throng::embed::Upgrade;
    ///
    /// // With hyper, the stream is what `Upgraded::downcast` returns, in std's form, and
    /// // `received` its `read_buf`.
    /// # fn upgraded() -> (TcpStream, Vec<u8>) { unimplemented!() }
    /// # fn send(_: http::Response<()>) {}
    /// fn live(hub: &Hub, request: &http::Request<()>) -> Result<(), Box<dyn std::error::Error>> {
    ///     let upgrade = Upgrade::new(request).map_err(|_| "not a handshake")?;
    ///     send(upgrade.response());
    ///     let (stream, received) = upgraded();
    ///     upgrade.adopt(hub, stream, &received)?;
    ///     Ok(())
    /// }
    /// ```
    pub struct Upgrade {
        /// The request's head, as the server receives it.
        head: Vec<u8>,
        accept: HeaderValue,
        subprotocol: Option<HeaderValue>,
    }

    /// Fields that the server must not see: the upgrade negotiates no extension, and the request
    /// has no body.
    const LEFT_OUT: [HeaderName; 5] = [
        header::SEC_WEBSOCKET_EXTENSIONS,
        header::SEC_WEBSOCKET_PROTOCOL,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::HOST,
    ];

    impl Upgrade {
        /// Checks the request of an upgrade, by [RFC 6455 section
        /// 4.2.1](https://www.rfc-editor.org/rfc/rfc6455#section-4.2.1).
        ///
        /// # Errors
        /// The request is not a WebSocket handshake of HTTP/1.1; the rejection is the response to
        /// send.
        pub fn new<B>(request: &http::Request<B>) -> Result<Self, Reject> {
            let is_http11 = request.version() == http::Version::HTTP_11;
            let fields = Fields(request.headers());
            let key = handshake::check_request(request.method().as_str(), is_http11, &fields)?;
            let accept = HeaderValue::from_bytes(&key.accept())
                .map_err(|_| Reject::bad_request("the key is invalid"))?;
            Ok(Self { head: head_of(request), accept, subprotocol: None })
        }

        /// Sets the subprotocol of the response. The client must have offered it; the handler's
        /// route sees no other subprotocol. Default: none.
        ///
        /// # Errors
        /// The name is not a valid token.
        pub fn subprotocol(mut self, name: &str) -> Result<Self, Reject> {
            let value = HeaderValue::from_str(name).ok().filter(|_| handshake::is_token(name));
            let invalid = || Reject::bad_request("the subprotocol is not a token");
            self.subprotocol = Some(value.ok_or_else(invalid)?);
            Ok(self)
        }

        /// Returns the response for the client: 101. Further headers may be added.
        #[must_use]
        pub fn response(&self) -> http::Response<()> {
            let mut response = http::Response::new(());
            *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
            let headers = response.headers_mut();
            headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, self.accept.clone());
            if let Some(name) = &self.subprotocol {
                headers.insert(header::SEC_WEBSOCKET_PROTOCOL, name.clone());
            }
            response
        }

        /// Gives the connection to a server after the response was sent. `received` has the bytes
        /// that the other server has read after the request.
        ///
        /// # Errors
        /// As for [`Hub::adopt`].
        pub fn adopt(mut self, hub: &Hub, stream: TcpStream, received: &[u8]) -> io::Result<()> {
            if let Some(name) = &self.subprotocol {
                push_field(&mut self.head, &header::SEC_WEBSOCKET_PROTOCOL, name);
            }
            self.head.extend_from_slice(b"\r\n");
            self.head.extend_from_slice(received);
            hub.remote().adopt(Adoption { stream, received: self.head, is_answered: true })
        }
    }

    /// Writes the head of a request, without its end.
    fn head_of<B>(request: &http::Request<B>) -> Vec<u8> {
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        let mut head = format!("GET {target} HTTP/1.1\r\n").into_bytes();
        if let Some(host) = request.headers().get(header::HOST) {
            push_field(&mut head, &header::HOST, host);
        }
        for (name, value) in request.headers() {
            if !LEFT_OUT.contains(name) {
                push_field(&mut head, name, value);
            }
        }
        head
    }

    /// Both are valid by their types: without line ends.
    fn push_field(head: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }

    struct Fields<'h>(&'h HeaderMap);

    impl Headers for Fields<'_> {
        fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
            self.0.get_all(name).iter().filter_map(|value| value.to_str().ok())
        }

        fn for_each<'a>(&'a self, mut visit: impl FnMut(&'a [u8], &'a [u8])) {
            self.0
                .iter()
                .for_each(|(name, value)| visit(name.as_str().as_bytes(), value.as_bytes()));
        }
    }

    impl fmt::Debug for Upgrade {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Upgrade")
                .field("subprotocol", &self.subprotocol)
                .finish_non_exhaustive()
        }
    }
}
