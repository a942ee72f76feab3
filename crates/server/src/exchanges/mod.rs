//! Requests that are answered later, by other threads, or with streamed bodies.
//!
//! Start reading at [`Exchange`](exchange::Exchange), a shard's state of such a request.

pub(crate) mod exchange;
#[cfg(feature = "tokio")]
pub(crate) mod futures;
#[cfg(feature = "tokio")]
mod owned_request;
pub(crate) mod reader;
mod responder;
mod writer;

#[cfg(feature = "tokio")]
pub use owned_request::OwnedRequest;
pub use reader::BodyReader;
pub(crate) use responder::ClientGuard;
pub use responder::Responder;
pub use writer::BodyWriter;

use throng_http::{Reject, Request, Response};

use self::exchange::Exchange;
use crate::accept::AnyAccept;
use crate::access::PendingAccess;
use crate::panic_notice::PanicNotice;

/// A handler of requests that answers at once.
pub(crate) type HttpFn = dyn Fn(&Request<'_>) -> Response + Send + Sync;

/// Bytes of a body that may be buffered between a connection and another thread, each way.
pub(crate) const WINDOW: usize = 256 << 10;

/// An accepted upgrade that is moving to the shard of its session.
pub(crate) struct MovedUpgrade {
    pub(crate) exchange: Exchange,
    pub(crate) accept: AnyAccept,
    pub(crate) entry: Option<Box<PendingAccess>>,
}

/// An event that another thread sends to the exchange of a connection.
pub(crate) enum ExchangeEvent {
    /// The response.
    Answer(Response),
    /// The handler panicked on another thread, or in a future.
    RequestPanicked(PanicNotice),
    /// The decision on an upgrade.
    Upgrade(Result<AnyAccept, Reject>),
    /// An upgrade that another shard's service has accepted.
    Moved(Box<MovedUpgrade>),
    /// There is room for more of the request's body.
    Capacity,
    /// There is more of the response's body.
    More,
}
