//! WebSocket routes: handlers, their sockets, and the sessions of one shard.
//!
//! Start reading at [`Handler`]; [`Ws`] is the same from closures, and `sessions.rs` is where the
//! engine comes in.

pub(crate) mod accept;
mod closures;
mod handler;
mod route;
pub(crate) mod sessions;
mod socket;
pub(crate) mod timers;

pub use accept::Accept;
#[cfg(feature = "tokio")]
pub(crate) use closures::Callbacks;
pub use closures::{Outcome, Ws};
pub use handler::Handler;
#[cfg(feature = "tokio")]
pub(crate) use route::WsOptions;
pub use route::{IntoWsRoute, WsRoute};
pub use socket::{Incompressible, NoData, Sendable, Session, Socket};
pub use timers::Timer;
