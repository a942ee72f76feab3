//! Handlers that are futures on a tokio runtime of the user's (feature `tokio`).
//!
//! A shard and the futures of a session share a [`Shared`](shared::Shared), which queues messages
//! for the futures, and commands for the shard. A side that waits is woken by the other: futures by
//! their wakers, the shard by an event. Start reading there; then `run.rs`.

mod handler;
mod run;
mod session;
mod shared;
mod socket;
mod wakers;

pub use handler::AsyncOutcome;
pub use session::{AsyncSender, UntilClosed, UntilShutdown};
pub use shared::{CloseReason, SessionClosed};
pub use socket::AsyncSocket;

pub use crate::exchanges::OwnedRequest;
pub use crate::ws::async_options::AsyncOptions;

use std::any::Any;

use throng_engine::Cx;

/// Runs the commands of futures to this connection, or handles their panic, if that is the event.
pub(crate) fn on_delivery(cx: &mut Cx<'_>, event: Box<dyn Any + Send>) {
    match event.downcast::<shared::RunCommands>() {
        Ok(commands) => commands.run_commands(cx),
        Err(event) => {
            if let Ok(panicked) = event.downcast::<shared::FuturePanicked>() {
                panicked.panic_again(cx);
            }
        }
    }
}
