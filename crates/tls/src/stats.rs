//! Counts of handshakes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use throng_io::TlsFailure;

/// The causes that failures are counted by.
const CAUSES: usize = TlsFailure::LABELS.len();

/// The handshakes of a server, counted by all its shards.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    full: AtomicU64,
    resumed: AtomicU64,
    failed: [AtomicU64; CAUSES],
    issued: AtomicU64,
    orders_failed: AtomicU64,
}

impl Counters {
    pub(crate) fn count_success(&self, is_resumed: bool) {
        let counter = if is_resumed { &self.resumed } else { &self.full };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_failure(&self, why: TlsFailure) {
        self.failed[why.index()].fetch_add(1, Relaxed);
    }

    #[cfg(feature = "acme")]
    pub(crate) fn count_order(&self, is_issued: bool) {
        let counter = if is_issued { &self.issued } else { &self.orders_failed };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn read_orders(&self) -> OrderStats {
        OrderStats { issued: self.issued.load(Relaxed), failed: self.orders_failed.load(Relaxed) }
    }

    pub(crate) fn read(&self) -> HandshakeStats {
        HandshakeStats {
            full: self.full.load(Relaxed),
            resumed: self.resumed.load(Relaxed),
            failed: std::array::from_fn(|at| self.failed[at].load(Relaxed)),
        }
    }
}

/// Handshakes since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeStats {
    /// Complete ones with a key exchange and a certificate.
    pub full: u64,
    /// Complete ones that resumed an earlier session.
    pub resumed: u64,
    /// Handshakes that failed, by the causes of [`TlsFailure::LABELS`].
    pub failed: [u64; CAUSES],
}

/// Certificates that were ordered from an authority (ACME) since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderStats {
    /// Certificates that it issued.
    pub issued: u64,
    /// Attempts that failed.
    pub failed: u64,
}
