//! Handlers that are futures: on a tokio runtime of the user's, never on a shard's thread (feature `tokio`).
//!
//! A shard and the futures of a session meet in [`Shared`](shared::Shared): messages wait there one way, orders the other. A
//! side that waits is woken by the other, which for a shard is a letter. Start reading there; then `run.rs`.

mod handler;
mod run;
mod seats;
mod session;
mod shared;
mod socket;

pub use handler::{AsyncOutcome, AsyncWs, PerMessage, PerSession};
pub use session::{AsyncSession, Ended};
pub use shared::{CloseReason, Closed};
pub use socket::AsyncSocket;

use std::any::Any;

use throng_engine::Cx;

/// Carries out what futures ask of this connection, if that is what another thread has sent.
pub(crate) fn on_delivery(cx: &mut Cx<'_>, parcel: Box<dyn Any + Send>) {
    if let Ok(letter) = parcel.downcast::<shared::Letter>() {
        letter.carry_out(cx);
    }
}
