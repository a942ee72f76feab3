//! The pool of worker threads for blocking work: its settings and its metrics.
//!
//! Work comes from [`Socket::offload`](crate::Socket::offload),
//! [`Ws::on_message_blocking`](crate::Ws::on_message_blocking) and
//! [`Route::blocking`](crate::http::Route::blocking). [`Server::workers`](crate::Server::workers)
//! sets its settings.

mod blocking;
mod replies;

use std::sync::{Arc, OnceLock};

use throng_engine::workers::Workers;

use crate::panic_notice::Reporter;

pub(crate) use blocking::BlockingJob;
pub use replies::Replies;
pub(crate) use replies::Reply;
pub use throng_engine::workers::{
    Busy, MAX_POOL_SIZE, Overload, RunningJob, WorkerMetrics, WorkerSettings, suggested_size,
    usable_cpus,
};

/// The context of a route's handlers, shared by its connections.
#[derive(Clone, Debug)]
pub(crate) struct RouteContext {
    /// The route's path as it was given to the app.
    pub(crate) path: Arc<str>,
    pub(crate) pool: WorkerPool,
    pub(crate) reporter: Arc<Reporter>,
}

/// The server's worker pool. It is empty before `bind`, since it needs the shards' command queues.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerPool(Arc<OnceLock<Workers>>);

impl WorkerPool {
    pub(crate) fn set(&self, workers: Workers) {
        // A server is bound once.
        let _ = self.0.set(workers);
    }

    pub(crate) fn get(&self) -> Option<&Workers> {
        self.0.get()
    }
}
