//! WebSocket routes: handlers, their sockets, and the sessions of one shard.
//!
//! Start reading at [`Handler`]; [`Ws`] is the same from closures, and `sessions.rs` is where the
//! engine comes in.

mod closures;
pub(crate) mod decision;
mod handler;
mod offload;
mod replies;
mod route;
pub(crate) mod sessions;
mod socket;
pub(crate) mod timers;

use std::any::Any;

use throng_io::Instant;

use crate::panic_notice::PanicNotice;

#[cfg(feature = "tokio")]
pub(crate) use closures::Callbacks;
pub use closures::{Outcome, Ws};
pub use handler::Handler;
#[cfg(feature = "tokio")]
pub(crate) use offload::Continuation;
#[cfg(feature = "tokio")]
pub(crate) use route::WsOptions;
pub use route::{IntoWsRoute, WsRoute};
pub use socket::{Incompressible, NoData, Sendable, Session, Socket};
pub use timers::Timer;

/// An event that another thread, or a callback of its own, sends to a session.
pub(crate) enum SessionEvent {
    /// An offloaded job is done: the [`Continuation`](offload::Continuation), and the number of
    /// credits of the job.
    Continue(Box<dyn Any + Send>, usize),
    /// It sets a timer: when it is due, its name, and the
    /// [`Continuation`](offload::Continuation).
    SetTimer(Instant, Timer, Box<dyn Any + Send>),
    /// It cancels a timer.
    CancelTimer(Timer),
    /// A timer is due.
    Due(Box<dyn Any + Send>),
    /// An offloaded job panicked.
    WorkPanicked(PanicNotice),
    /// A job that waited for room in the workers' queue has been queued.
    QueueCapacity,
    /// Messages that it has published are lost, or may be.
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only clusters lose messages"))]
    Unpublished(Unpublished),
}

/// Messages that a session has published and a cluster has accepted, and which are lost, or may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unpublished {
    /// Messages that no member gets.
    pub refused: u64,
    /// Messages that members may get or not: the broker has not answered.
    pub unknown: u64,
}
