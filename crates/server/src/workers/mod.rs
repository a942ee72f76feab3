//! Blocking work: jobs for the worker pool, and their results on the shard.
//!
//! Start reading at [`Socket::offload`](crate::Socket::offload); the pool itself is
//! `throng_engine::workers`.

mod blocking;
mod offload;
mod replies;

use std::sync::{Arc, OnceLock};

use throng_engine::workers::Workers;

pub(crate) use blocking::BlockingJob;
pub(crate) use offload::{BUSY, Continuation};
pub use replies::Replies;

/// The context of a route's handlers, shared by its connections.
#[derive(Clone, Debug)]
pub(crate) struct RouteContext {
    /// The route's path as it was given to the app.
    pub(crate) path: Arc<str>,
    pub(crate) pool: Pool,
}

/// The server's worker pool. It is empty before `bind`, since it needs the shards' command queues.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool(Arc<OnceLock<Workers>>);

impl Pool {
    pub(crate) fn set(&self, workers: Workers) {
        // A server is bound once.
        let _ = self.0.set(workers);
    }

    pub(crate) fn get(&self) -> Option<&Workers> {
        self.0.get()
    }
}
