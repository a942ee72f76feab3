//! Requests that are not answered at once: by another thread, or with bodies that are longer than memory; and what other
//! threads send to connections.
//!
//! Start reading at [`Exchange`](exchange::Exchange): what a shard knows of such a request.

pub(crate) mod exchange;
pub(crate) mod reader;
mod responder;
mod writer;

pub use reader::BodyReader;
pub use responder::Responder;
pub use writer::BodyWriter;

use std::any::Any;

use throng_http::Response;

/// Bytes of a body that may wait between a connection and another thread, each way.
pub(crate) const WINDOW: usize = 256 << 10;

/// What another thread sends to an exchange, or to a session.
pub(crate) enum Delivered {
    /// The answer.
    Answer(Response),
    /// There is room again for more of the request's body.
    Room,
    /// There is more of the response's body.
    More,
    /// What was offloaded has been done: a [`Continuation`](crate::workers::Continuation) for the session, and as how many
    /// it counted.
    Then(Box<dyn Any + Send>, usize),
    /// It ended with a panic.
    WorkPanicked,
    /// What waited for room in the workers' queue has it.
    RoomInQueue,
}
