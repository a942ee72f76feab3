//! Signals from connections to the part of a node that uses them.

use std::fmt;
use std::sync::Arc;

use redis::PushInfo;

/// An event of connections.
#[derive(Debug)]
pub(super) enum Signal {
    Push(PushInfo),
    /// One of them is closed.
    Lost,
    /// The sentinels name another master.
    Switched,
}

/// Passes on the signals of the connections of one generation.
#[derive(Clone)]
pub(super) struct Signals {
    pub(super) generation: u64,
    send: Arc<dyn Fn(Signal) + Send + Sync>,
}

impl Signals {
    pub(super) fn new(generation: u64, send: impl Fn(Signal) + Send + Sync + 'static) -> Self {
        Self { generation, send: Arc::new(send) }
    }

    pub(super) fn send(&self, signal: Signal) {
        (self.send)(signal);
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signals({})", self.generation)
    }
}
