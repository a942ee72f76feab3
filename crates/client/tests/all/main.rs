//! Clients against peers that the tests write out; those against the server `throng` are its tests.

#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
#[cfg(feature = "tls")]
mod tls;
