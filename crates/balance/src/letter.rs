//! What other threads ask of a shard.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::{Backend, Closing, Configuration};

/// Mail for a shard.
#[derive(Debug)]
pub(crate) enum Letter {
    /// Work by this from now on.
    Configure(Arc<Configuration>),
    /// Close tunnels of this backend.
    CloseTunnels {
        backend: Arc<Backend>,
        closing: Closing,
        /// What all shards together may still close; `None`: all there are.
        most: Option<Arc<AtomicU32>>,
    },
    /// Close no more of this backend's.
    KeepTunnels(Arc<Backend>),
    /// Accept nothing, close all tunnels within `window`, and be gone by `deadline`.
    ShutDown { window: Duration, deadline: Duration },
}
