//! Clients against peers within the tests. The tests of the server `throng` run them against the
//! server.

#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
mod reconnecting;
#[cfg(feature = "tls")]
mod tls;
