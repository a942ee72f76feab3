//! Upkeep: a shard's metrics, and the memory that it returns.

mod memory;

use std::sync::{Arc, Mutex};

use throng_engine::{BurstDetector, Peak, TokenBucket};
use throng_io::memory::Trim;

use self::memory::Measurements;
pub(super) use self::memory::{Holder, to_be_ended};
use crate::report::Metrics;

/// A shard's counters, published about once a second, and its measurements of memory.
pub(super) struct Meters {
    metrics: Metrics,
    published: Arc<Mutex<Metrics>>,
    /// The number of this shard among `shards`, by which limits for the whole process are divided.
    shard: u32,
    shards: u32,
    burst: BurstDetector,
    trim: Trim,
    /// Memory of handshakes and incomplete records.
    peak: Peak,
    memory: Measurements,
}

impl Meters {
    pub(super) fn new(published: Arc<Mutex<Metrics>>, shard: u32, shards: u32) -> Self {
        Self {
            metrics: Metrics::default(),
            published,
            shard,
            shards,
            burst: BurstDetector::default(),
            trim: Trim::default(),
            peak: Peak::default(),
            memory: Measurements::default(),
        }
    }

    #[inline]
    pub(super) fn count(&mut self, count: impl FnOnce(&mut Metrics)) {
        count(&mut self.metrics);
    }

    /// Counts an answer of the balancer's own.
    pub(super) fn count_own(&mut self, status: u16) {
        match status {
            500.. => self.metrics.backend_errors += 1,
            400.. => self.metrics.client_errors += 1,
            _ => {}
        }
    }

    /// Counts bytes that one side of a tunnel sent.
    #[inline]
    pub(super) fn count_tunnelled(&mut self, is_backend: bool, bytes: usize) {
        if is_backend {
            self.metrics.bytes_down += bytes as u64;
        } else {
            self.metrics.bytes_up += bytes as u64;
        }
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the token bucket for this shard's part of a rate of the whole process.
    pub(super) fn bucket(&self, rate: u32) -> TokenBucket {
        TokenBucket::share(rate, self.shard, self.shards)
    }

    /// Returns the token bucket that closes a number of connections within a time, or at this
    /// shard's part of `rate` if that is faster.
    pub(super) fn bucket_over(
        &self,
        count: u64,
        window: std::time::Duration,
        rate: u32,
    ) -> TokenBucket {
        let in_window = count as f64 / window.as_secs_f64();
        if in_window > f64::from(rate) / f64::from(self.shards) {
            TokenBucket::over(count as usize, window)
        } else {
            self.bucket(rate)
        }
    }

    /// Publishes the metrics.
    pub(super) fn publish(&mut self) {
        self.metrics.sweeps += 1;
        if let Ok(mut published) = self.published.lock() {
            *published = self.metrics;
        }
    }

    /// Counts `growth` more bytes that the driver took for TLS. Returns the memory limit if a
    /// measurement is due.
    pub(super) fn memory_due(&mut self, growth: usize, configured: usize) -> Option<usize> {
        let shards = self.shards;
        self.memory.due(growth, || memory::part_of_limit(configured, shards))
    }

    /// Forgets the memory limit after a change of the configuration.
    pub(super) fn forget_limit(&mut self) {
        self.memory.forget_limit();
    }

    /// Returns whether free memory may have to be returned to the system.
    pub(super) fn awaits_memory(&self) -> bool {
        // The trim is also due when the last connection has gone, since its memory was held.
        let peak = self.peak.is_awaited() || self.peak.is_up();
        self.burst.is_awaited() || peak || self.trim.is_requested()
    }

    /// Runs the trim that the last sweep requested, unless another shard did.
    pub(super) fn run_trim(&mut self) {
        self.trim.run();
    }

    /// Requests a trim if a burst of connections, or the memory `held` of them, is over.
    pub(super) fn follow_memory(&mut self, held: usize) {
        // Call both: each of them keeps track of what happens.
        let is_over = self.peak.is_over(held, held);
        if self.burst.is_over(self.metrics.accepted, self.metrics.connections) || is_over {
            self.trim.request();
        }
    }
}
