//! Work that blocks: handed to the pool, and what comes back to the shard.
//!
//! Start reading at [`Socket::offload`](crate::Socket::offload); the pool itself is `throng_engine::workers`.

mod blocking;
mod offload;
mod replies;

use std::sync::{Arc, OnceLock};

use throng_engine::workers::Workers;

pub(crate) use blocking::BlockingJob;
pub(crate) use offload::{BUSY, Continuation};
pub use replies::Replies;

/// What the handlers of a route need besides their connection.
#[derive(Clone, Debug)]
pub(crate) struct RouteContext {
    /// The route's path as it was given to the app.
    pub(crate) path: Arc<str>,
    pub(crate) pool: Pool,
}

/// The server's pool of workers: nobody's before `bind`, since it has to know the way back to the shards.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool(Arc<OnceLock<Workers>>);

impl Pool {
    pub(crate) fn set(&self, workers: Workers) {
        // There is one `bind` a server.
        let _ = self.0.set(workers);
    }

    pub(crate) fn get(&self) -> Option<&Workers> {
        self.0.get()
    }
}
