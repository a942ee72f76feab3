//! Clients that reconnect when a connection is lost.
//!
//! [`ReconnectingClient`] blocks; `AsyncReconnectingClient`, with the feature `tokio`, has futures.
//!
//! For tokens that expire, [`ClientBuilder::headers_with`](crate::ClientBuilder::headers_with)
//! makes headers for each attempt, and `on_refused` decides whether to try again after a refusal
//! such as a 401.
//!
//! ```no_run
//! use std::io;
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicBool, Ordering};
//! use throng_client::{Backoff, Client};
//!
//! # fn token(renew: bool) -> io::Result<String> { Ok(String::new()) }
//! # fn main() -> Result<(), throng_client::ClientError> {
//! let expired = Arc::new(AtomicBool::new(false));
//! let refused = Arc::clone(&expired);
//! let mut feed = Client::builder("ws://127.0.0.1:9001/feed")
//!     .headers_with(move || {
//!         let token = token(expired.swap(false, Ordering::Relaxed))?;
//!         Ok(vec![("Authorization".to_owned(), format!("Bearer {token}"))])
//!     })
//!     .reconnecting(Backoff::default())
//!     .on_refused(move |answer| {
//!         refused.store(answer.status == 401, Ordering::Relaxed);
//!         answer.status == 401 || answer.is_temporary()
//!     });
//! while let Some(message) = feed.recv()? {
//!     println!("{message:?}");
//! }
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "tokio")]
mod asynchronous;
mod backoff;
mod blocking;
mod retry;
mod stop;

#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncReconnectingClient, BoxFuture};
pub use backoff::Backoff;
pub use blocking::ReconnectingClient;
pub use stop::Stopper;
