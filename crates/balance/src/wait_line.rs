//! A line of requests that wait for the same, over all shards: how many, and since when the first.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use throng_io::Instant;

/// The time by which a request of one shard may be served before an earlier one of another shard.
/// Less would let permits lie idle: a shard looks for those that others have given back only
/// every few hundredths of a second.
const LEAD: Duration = Duration::from_millis(100);

/// The time of the first of a line without requests.
const NONE: u64 = u64::MAX;

/// Requests that wait for the same: for any backend of a pool, or for one backend.
#[derive(Debug)]
pub(crate) struct WaitLine {
    len: AtomicU32,
    /// Since when the first has waited, as far as its shard has announced it.
    first: AtomicU64,
}

impl Default for WaitLine {
    fn default() -> Self {
        Self { len: AtomicU32::new(0), first: AtomicU64::new(NONE) }
    }
}

impl WaitLine {
    pub(crate) fn enter(&self) {
        self.len.fetch_add(1, Relaxed);
    }

    pub(crate) fn leave(&self) {
        let before = self.len.fetch_sub(1, Relaxed);
        debug_assert!(before > 0, "left more often than entered");
    }

    /// Returns whether requests wait, on any shard.
    pub(crate) fn has_some(&self) -> bool {
        self.len.load(Relaxed) > 0
    }
}

/// The announcement of a shard about its own part of a line.
#[derive(Debug)]
pub(crate) struct Announced(u64);

impl Announced {
    pub(crate) const fn nothing() -> Self {
        Self(NONE)
    }

    /// Announces since when the shard's first request of the line has waited. Returns whether it
    /// may be served: no other shard has a much earlier one.
    pub(crate) fn announce(&mut self, line: &WaitLine, first: Instant) -> bool {
        if self.0 != first.0 {
            self.withdraw(line);
        }
        self.0 = first.0;
        let earliest = line.first.fetch_min(first.0, Relaxed).min(first.0);
        first.0 - earliest <= LEAD.as_nanos() as u64
    }

    /// Announces that the shard has none.
    pub(crate) fn withdraw(&mut self, line: &WaitLine) {
        // The word may have another shard's earlier time, which stays.
        let _ = line.first.compare_exchange(self.0, NONE, Relaxed, Relaxed);
        self.0 = NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    #[test]
    fn a_shard_leaves_permits_to_a_much_earlier_request_of_another() {
        let line = WaitLine::default();
        let mut shards = [(); 3].map(|()| Announced::nothing());
        assert!(shards[0].announce(&line, at(1000)), "nothing else waits");
        assert!(shards[1].announce(&line, at(1050)) && shards[0].announce(&line, at(1000)));
        assert!(!shards[2].announce(&line, at(1101)));
        // The first is served; the next of its shard is later.
        assert!(shards[0].announce(&line, at(2000)), "the others have not announced again");
        assert!(shards[1].announce(&line, at(1050)) && !shards[0].announce(&line, at(2000)));
        assert!(shards[2].announce(&line, at(1101)));
        shards[1].withdraw(&line);
        assert!(shards[2].announce(&line, at(1101)) && !shards[0].announce(&line, at(2000)));
        shards[2].withdraw(&line);
        assert!(shards[0].announce(&line, at(2000)));
        shards[0].withdraw(&line);
        assert!(shards[1].announce(&line, at(9000)), "the line is empty");
    }
}
