//! What other threads ask of a shard.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::{Backend, Closing, Configuration};

/// Mail for a shard.
#[derive(Debug)]
pub enum Command {
    /// Work by this from now on.
    Configure(Arc<Configuration>),
    /// Close tunnels of this backend.
    CloseTunnels {
        /// Whose.
        backend: Arc<Backend>,
        /// How.
        closing: Closing,
        /// What all shards together may still close; `None`: all there are.
        most: Option<Arc<AtomicU32>>,
    },
    /// Close no more of this backend's.
    KeepTunnels(Arc<Backend>),
    /// Accept nothing, close all tunnels within `window`, and be gone by `deadline`.
    ShutDown {
        /// Tunnels are closed spread over this.
        window: Duration,
        /// What is left is cut after this.
        deadline: Duration,
    },
}
