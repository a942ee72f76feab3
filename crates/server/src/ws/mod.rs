//! WebSocket routes: the operations of a [`Handler`](crate::Handler)'s sockets besides the
//! essentials.
//!
//! Start reading at [`Handler`](crate::Handler); [`Ws`](crate::Ws) builds one from closures, and
//! `sessions.rs` is the interface to the engine.

#[cfg(feature = "tokio")]
pub(crate) mod async_options;
mod callbacks;
pub(crate) mod closures;
pub(crate) mod decision;
pub(crate) mod event;
pub(crate) mod handler;
mod into_ws;
mod messages;
mod offload;
mod options;
mod outcome;
mod replies;
mod route;
pub(crate) mod sessions;
pub(crate) mod socket;
pub(crate) mod timers;

use std::any::Any;

use throng_io::Instant;

use crate::panic_notice::PanicNotice;

#[cfg(feature = "tokio")]
pub(crate) use async_options::AsyncOptions;
#[cfg(feature = "tokio")]
pub(crate) use event::EventKind;
pub(crate) use event::SessionEvent;
pub use event::Unpublished;
pub use into_ws::IntoWs;
pub use outcome::Outcome;
pub(crate) use route::WsRoute;
pub(crate) use socket::Socket;
pub use socket::{Incompressible, Sendable};
pub use throng_engine::Chunk;
#[cfg(feature = "deflate")]
pub use throng_proto::ws::deflate::{Mode as DeflateMode, Settings as Deflate};
pub use timers::Timer;

pub use crate::accept::AcceptHeaders;
#[cfg(feature = "deflate")]
pub use crate::compression::Compression;

/// Makes a continuation for a session whose data are of this type.
#[cfg(feature = "centrifuge")]
pub(crate) fn continuation<D: 'static>(
    then: impl FnOnce(&mut Socket<'_, D>, &mut D) + Send + 'static,
) -> Box<dyn Any + Send> {
    Box::new(offload::Continuation(Box::new(then) as offload::ContinuationFn<D>))
}

/// A command to a session from another thread, or from its own callback.
pub(crate) enum SessionMail {
    /// An offloaded job is done. Contains the [`Continuation`](offload::Continuation), and the
    /// job's number of credits.
    Continue(Box<dyn Any + Send>, usize),
    /// The session sets a timer: its deadline, its name, and the
    /// [`Continuation`](offload::Continuation).
    SetTimer(Instant, Timer, Box<dyn Any + Send>),
    /// The session cancels a timer.
    CancelTimer(Timer),
    /// A timer is due.
    Due(Box<dyn Any + Send>),
    /// An offloaded job panicked.
    WorkPanicked(PanicNotice),
    /// A job that waited for room in the workers' queue has been queued.
    QueueCapacity,
    /// Messages that the session has published are lost, or may be.
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only clusters lose messages"))]
    Unpublished(Unpublished),
}
