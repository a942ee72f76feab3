//! Figures of a node, for metrics and readiness.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Figures of a node, written by its thread.
#[derive(Debug, Default)]
pub struct Status {
    up: AtomicBool,
    /// Since when nothing is delivered, and why.
    down: Mutex<Option<(Instant, String)>>,
    pub(super) reconnects: AtomicU64,
    pub(super) probe_failures: AtomicU64,
    pub(super) published: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) unknown: AtomicU64,
    pub(super) postponed: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) failed_reads: AtomicU64,
    pub(super) failed_presence: AtomicU64,
    pub(super) filled: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) channels: AtomicU64,
    pub(super) pending_bytes: AtomicU64,
    pub(super) held_bytes: AtomicU64,
    pub(super) overfull: AtomicU64,
    pub(super) lag_micros: AtomicU64,
}

/// The figures of a node at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatusSnapshot {
    /// Whether the broker delivers to this node.
    pub is_up: bool,
    /// Connections that replaced others.
    pub reconnects: u64,
    /// Probes of delivery that did not come back.
    pub probe_failures: u64,
    /// Publications that the broker has acknowledged.
    pub published: u64,
    /// Publications that were refused, or waited for too long.
    pub refused: u64,
    /// Publications without history that were on their way when the connection was lost.
    pub unknown: u64,
    /// Times that the broker has refused a publication for now: it is sent again.
    pub postponed: u64,
    /// Publications that the broker has delivered.
    pub received: u64,
    /// Those that were in no form that this release knows, and were dropped.
    pub malformed: u64,
    /// Questions about a channel that the broker could not answer; they are asked again.
    pub failed_reads: u64,
    /// Commands about presence that the broker has refused; they are sent again.
    pub failed_presence: u64,
    /// Times that publications which were missed came from the broker's history.
    pub filled: u64,
    /// Times that a sequence had a hole, of which its members learned.
    pub lost: u64,
    /// Channels that the node follows.
    pub channels: u64,
    /// Memory of publications that the broker has not acknowledged.
    pub pending_bytes: u64,
    /// Memory of publications that wait until the broker has answered a question about their
    /// channel.
    pub held_bytes: u64,
    /// Publications for which there was no such memory, and which the broker was asked for.
    pub overfull: u64,
    /// Time from the publication to this node of the last one that came.
    pub lag: Duration,
}

impl Status {
    /// Returns whether the broker delivers to this node.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// Returns for how long nothing has been delivered, and why.
    #[must_use]
    pub fn down(&self) -> Option<(Duration, String)> {
        let down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        down.as_ref().map(|(since, why)| (since.elapsed(), why.clone()))
    }

    pub(super) fn set_up(&self) {
        *self.down.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.up.store(true, Ordering::Relaxed);
    }

    /// Keeps the time at which it began.
    pub(super) fn set_down(&self, why: String) {
        self.up.store(false, Ordering::Relaxed);
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        let since = down.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        *down = Some((since, why));
    }

    /// Returns the figures.
    #[must_use]
    pub fn snapshot(&self) -> StatusSnapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StatusSnapshot {
            is_up: self.is_up(),
            reconnects: get(&self.reconnects),
            probe_failures: get(&self.probe_failures),
            published: get(&self.published),
            refused: get(&self.refused),
            unknown: get(&self.unknown),
            postponed: get(&self.postponed),
            received: get(&self.received),
            malformed: get(&self.malformed),
            failed_reads: get(&self.failed_reads),
            failed_presence: get(&self.failed_presence),
            filled: get(&self.filled),
            lost: get(&self.lost),
            channels: get(&self.channels),
            pending_bytes: get(&self.pending_bytes),
            held_bytes: get(&self.held_bytes),
            overfull: get(&self.overfull),
            lag: Duration::from_micros(get(&self.lag_micros)),
        }
    }
}
