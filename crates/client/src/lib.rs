//! WebSocket clients, on the protocol code of the server `throng`, which re-exports them as
//! `throng::client`.
//!
//! [`Client`] is blocking: one thread for each connection. `AsyncClient`, with the feature `tokio`,
//! has futures. [`ReconnectingClient`] connects again when a connection is lost, and so does
//! `reconnect::AsyncReconnectingClient`. There is no client for plain HTTP: log in with another
//! crate, and pass the cookie or token by [`ClientBuilder::headers_with`].
//!
//! A [`ClientError`] names the failure; [`ClientError::blame`] returns whose fault it is: the
//! program's, the server's or the network's. The client checks input as strictly as the server
//! does; the operating system's random numbers are the masking keys.
//!
//! ```no_run
//! use throng_client::{Client, CloseCode};
//!
//! # fn main() -> Result<(), throng_client::ClientError> {
//! let mut client = Client::connect("ws://127.0.0.1:9001/")?;
//! client.send("hello")?;
//! println!("{:?}", client.recv()?);
//! client.close(CloseCode::NORMAL, "")?;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! | feature | default | adds | dependencies |
//! |---|---|---|---|
//! | `deflate` | yes | compression of messages: `ClientBuilder::compression` | zlib-rs |
//! | `serde` | no | messages as JSON: `Message::json` | serde, serde_json |
//! | `tls` | no | `wss` | rustls, aws-lc-rs (a C compiler) |
//! | `tokio` | no | `AsyncClient`, and reconnecting | tokio (`net`, `rt`, `time`) |
//!
//! * Duty: connect, upgrade, send and receive: sockets, proxies, TLS, reconnecting.
//! * Not its duty: the bytes of RFC 6455 (`throng-proto`), records of TLS (`throng-tls`).
//! * Depends on: `throng-proto`, `throng-tls`.
//! * Start reading at: [`Client`]; then `session.rs`, the protocol without I/O.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(unnameable_types)]

#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
mod builder;
mod close_frame;
mod dial;
#[cfg(feature = "tokio")]
mod dial_async;
mod error;
mod handshake;
mod proxy;
mod random;
pub mod reconnect;
mod session;
mod stream;
#[cfg(feature = "tls")]
mod tls;

#[cfg(feature = "tokio")]
pub use asynchronous::AsyncClient;
pub use blocking::Client;
pub use builder::ClientBuilder;
pub use close_frame::CloseFrame;
pub use error::{ClientError, DialStep, UpgradeRefused};
pub use reconnect::{Backoff, ReconnectingClient};
#[cfg(feature = "tokio")]
pub use stream::AsyncStream;
pub use stream::ClientStream;
pub use throng_proto::Blame;
#[cfg(feature = "deflate")]
pub use throng_proto::ws::deflate::{Mode as DeflateMode, Settings as Deflate};
pub use throng_proto::ws::{Chunk, CloseCode, Message, OwnedMessage};

/// The protocol without I/O: the program moves the bytes, for example between a client and a server
/// in one test.
///
/// ```
/// use throng_client::Client;
///
/// # fn main() -> Result<(), throng_client::ClientError> {
/// let mut opening = Client::builder("ws://localhost/chat").open()?;
/// assert!(opening.request().starts_with(b"GET /chat HTTP/1.1\r\n"));
/// let mut answer = *b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n";
/// assert!(opening.receive(&mut answer)?);
/// assert!(opening.finish().is_err());
/// # Ok(())
/// # }
/// ```
pub mod sans_io {
    pub use crate::handshake::{Opened, Opening};
    pub use crate::session::{Advance, ClientMachine, Output};
}
