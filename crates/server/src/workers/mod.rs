//! Work that blocks: handed to the pool, and what comes back to the shard.
//!
//! Start reading at [`Socket::offload`](crate::Socket::offload); the pool itself is `throng_engine::workers`.

mod blocking;
mod offload;
mod replies;

use std::sync::{Arc, OnceLock};

use throng_engine::workers::Workers;

pub(crate) use blocking::{BlockingHandler, BlockingJob};
pub(crate) use offload::{BUSY, Continuation};
pub use replies::Replies;

/// A route's name, and the pool its work goes to.
#[derive(Clone, Debug)]
pub(crate) struct Desk {
    pub(crate) route: Arc<str>,
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
