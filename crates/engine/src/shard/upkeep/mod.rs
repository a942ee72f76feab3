//! Upkeep of a shard: its counters for other threads, and memory that is returned to the system.

pub(crate) mod burst;
pub(crate) mod peak;

use std::sync::Arc;

use throng_io::memory::Trim;

use crate::context::Core;
use crate::shard::upkeep::burst::BurstDetector;
use crate::shard::upkeep::peak::Peak;
use crate::stats::{Added, Snapshot};

/// Duties of a shard beside its connections.
pub(crate) struct Upkeep {
    snapshot: Arc<Snapshot>,
    /// Counts added to a snapshot that many shards of one connection each share. Such a shard
    /// sleeps until something is due, for any length of time.
    added: Option<Box<Added>>,
    peak: Peak,
    burst: BurstDetector,
    trim: Trim,
}

impl Upkeep {
    /// `is_thread`: the shard is the thread of one connection.
    pub(crate) fn new(snapshot: Arc<Snapshot>, is_thread: bool) -> Self {
        Self {
            snapshot,
            added: is_thread.then(Box::default),
            peak: Peak::default(),
            burst: BurstDetector::default(),
            trim: Trim::default(),
        }
    }

    /// Returns whether the shard is the thread of one connection.
    pub(crate) fn is_thread(&self) -> bool {
        self.added.is_some()
    }

    /// Makes the counters visible to other threads.
    pub(crate) fn export(&mut self, core: &mut Core) {
        let (channels, memberships) = core.pubsub.lens();
        let connections = &mut core.conns;
        connections.count(|stats| {
            stats.channels = channels as u64;
            stats.subscriptions = memberships as u64;
        });
        let (stats, counters) = (connections.stats(), connections.counters());
        match &mut self.added {
            None => self.snapshot.export(stats, counters),
            Some(added) => self.snapshot.add(stats, counters, added),
        }
    }

    /// Returns whether counters have changed since they were exported.
    pub(crate) fn has_to_export(&self, core: &Core) -> bool {
        let (stats, counters) = (core.conns.stats(), core.conns.counters());
        match &self.added {
            None => self.snapshot.is_congested(stats, counters),
            Some(added) => added.is_congested(stats, counters),
        }
    }

    /// Returns memory to the system if the last sweep has requested it, and another shard has not
    /// done it.
    pub(crate) fn trim(&mut self) {
        self.trim.run();
    }

    /// Looks for the end of a peak of memory, and of a burst of connections, once a sweep.
    pub(crate) fn look(&mut self, (held, most): (usize, usize), core: &Core) {
        let stats = core.conns.stats();
        // Call both, without short circuit: each updates its own state.
        let is_over = self.peak.is_over(held, most);
        if self.burst.is_over(stats.accepted, stats.connections) || is_over {
            self.trim.request();
        }
    }

    /// Returns whether later sweeps will return memory to the system.
    pub(crate) fn awaits_memory(&self) -> bool {
        self.burst.is_awaited() || self.trim.is_requested() || self.peak.is_awaited()
    }
}
