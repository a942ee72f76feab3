//! WebSocket routes: handlers, their sockets, and the sessions of one shard.
//!
//! Start reading at [`Handler`]; [`Ws`] is the same from closures, and `sessions.rs` is where the
//! engine comes in.

#[cfg(feature = "tokio")]
mod async_options;
mod callbacks;
mod closures;
pub(crate) mod decision;
mod event;
mod handler;
mod into_ws;
mod messages;
mod offload;
mod options;
mod outcome;
mod replies;
mod route;
pub(crate) mod sessions;
mod socket;
pub(crate) mod timers;

use std::any::Any;

use throng_io::Instant;

use crate::panic_notice::PanicNotice;

#[cfg(feature = "tokio")]
pub use async_options::AsyncOptions;
pub use closures::Ws;
#[cfg(feature = "tokio")]
pub(crate) use event::EventKind;
pub use event::{SessionEvent, Unpublished};
pub use handler::Handler;
pub use into_ws::IntoWs;
pub use outcome::Outcome;
pub(crate) use route::WsRoute;
pub use socket::{Incompressible, Sendable, Socket};
pub use timers::Timer;

/// A command that another thread, or a callback of its own, sends to a session.
pub(crate) enum SessionMail {
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
