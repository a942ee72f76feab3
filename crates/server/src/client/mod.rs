//! WebSocket clients, on the protocol code of the server.
//!
//! [`Client`] is blocking: one thread for each connection. `AsyncClient`, with the feature `tokio`,
//! has futures. [`Reconnecting`] connects again when a connection is lost.
//!
//! An [`Error`] says what failed and, by [`Error::blame`], whose fault it is: the program's, the
//! server's or the network's. What the server sends is judged as strictly as the server judges its
//! clients; masking keys are the operating system's random numbers.
//!
//! ```no_run
//! use throng::client::Client;
//!
//! # fn main() -> Result<(), throng::client::Error> {
//! let mut client = Client::connect("ws://127.0.0.1:9001/")?;
//! client.send("hello")?;
//! println!("{:?}", client.recv()?);
//! client.close(1000, "")?;
//! # Ok(())
//! # }
//! ```

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
mod reconnect;
mod session;
mod stream;
#[cfg(feature = "tls")]
mod tls;

#[cfg(feature = "tokio")]
pub use asynchronous::AsyncClient;
pub use blocking::Client;
pub use builder::Builder;
pub use close_frame::CloseFrame;
pub use error::{Error, Refused, Step};
pub use reconnect::{Backoff, Reconnecting};
#[cfg(feature = "tokio")]
pub use stream::AsyncStream;
pub use stream::Stream;

/// The protocol without I/O, for clients of servers without a network.
#[cfg(feature = "test")]
pub(crate) mod local {
    pub(crate) use super::builder::Plan;
    pub(crate) use super::handshake::Answer;
    pub(crate) use super::session::{Session, Step};
}
