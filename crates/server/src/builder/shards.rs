//! The shards of a server: how many, their I/O and their CPUs.

use crate::affinity::CpuAffinity;
use crate::io_backend::IoBackend;

/// Bytes of the stack of a connection's thread, with [`IoBackend::Threads`].
const THREAD_STACK: usize = 256 * 1024;

/// The shards of a server, threads with an event loop each: for
/// [`Server::shards`](crate::Server::shards). A number converts into this: `server.shards(4)`.
///
/// ```
/// # use throng::prelude::*;
/// use throng::server::{CpuAffinity, Shards};
///
/// let server = Server::new(App::new()).shards(Shards::new().count(1).pin(CpuAffinity::Cores));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Shards {
    pub(super) count: Option<usize>,
    pub(super) io: IoBackend,
    pub(super) pin: CpuAffinity,
    pub(super) thread_stack: usize,
}

impl Shards {
    /// The defaults.
    pub fn new() -> Self {
        Self {
            count: None,
            io: IoBackend::Auto,
            pin: CpuAffinity::None,
            thread_stack: THREAD_STACK,
        }
    }

    /// Sets the number of shards. Default: `None`, one per usable CPU. A connection stays on one
    /// shard for life. On Linux each shard accepts; elsewhere one shard accepts for each address,
    /// and hands connections over to shards that have fewer.
    pub fn count(mut self, shards: impl Into<Option<usize>>) -> Self {
        self.count = shards.into();
        self
    }

    /// Sets the I/O backend. Default: [`IoBackend::Auto`].
    pub fn io(mut self, io: IoBackend) -> Self {
        self.io = io;
        self
    }

    /// Sets whether each shard is pinned to its own CPU. Default: [`CpuAffinity::None`].
    /// [`Running::placement`](crate::server::Running::placement) returns the CPUs chosen.
    pub fn pin(mut self, affinity: CpuAffinity) -> Self {
        self.pin = affinity;
        self
    }

    /// Sets the stack size of a connection's thread with [`IoBackend::Threads`], in bytes. Default:
    /// 256 KiB; minimum: 64 KiB. The system allocates memory for it as it is used: 8 KiB for an
    /// idle connection with a shallow handler. A handler that overflows its stack, by deep
    /// recursion or large arrays, aborts the process, as on any thread.
    pub fn thread_stack(mut self, bytes: usize) -> Self {
        self.thread_stack = bytes;
        self
    }
}

impl Default for Shards {
    fn default() -> Self {
        Self::new()
    }
}

/// So many shards.
impl From<usize> for Shards {
    fn from(count: usize) -> Self {
        Self::new().count(count)
    }
}
