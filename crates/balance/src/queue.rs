//! Requests that wait for a backend, counted over all shards: each shard has the requests
//! themselves in its own order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use throng_io::Instant;

use crate::backend::Backend;
use crate::wait_line::WaitLine;

/// The counts of a pool over all shards. They outlive reloads.
#[derive(Debug, Default)]
pub(crate) struct PoolLoad {
    /// Requests that wait.
    len: AtomicU32,
    any: WaitLine,
    /// Requests under way that have been tried again.
    retried: AtomicU32,
}

impl PoolLoad {
    /// Returns the number of requests that wait.
    pub(crate) fn queued(&self) -> u32 {
        self.len.load(Relaxed)
    }

    /// Returns those that any backend of the pool can serve.
    pub(crate) fn any(&self) -> &WaitLine {
        &self.any
    }
}

/// The permit of a request to be tried again, until it ends: retries of a pool whose backends fail
/// must not add to the load of the others without a limit.
#[derive(Debug)]
pub(crate) struct RetryPermit(Arc<PoolLoad>);

impl RetryPermit {
    /// The part of the open requests of a pool that may have been tried again, and how many may be
    /// in any case.
    const PART: u32 = 5;
    const LEAST: u32 = 3;

    /// Takes a permit of a pool with `open` requests, if there is one left.
    pub(crate) fn take(load: &Arc<PoolLoad>, open: u32) -> Option<Self> {
        let most = (open / Self::PART).max(Self::LEAST);
        let more = |retried: u32| (retried < most).then_some(retried + 1);
        let taken = load.retried.fetch_update(Relaxed, Relaxed, more);
        taken.is_ok().then(|| Self(Arc::clone(load)))
    }
}

impl Drop for RetryPermit {
    fn drop(&mut self) {
        let before = self.0.retried.fetch_sub(1, Relaxed);
        debug_assert!(before > 0, "given back more often than taken");
    }
}

/// The place of a request in the queue of its pool. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    pool: Arc<PoolLoad>,
    backend: Option<Arc<Backend>>,
    since: Instant,
    /// The length of the queue when it came.
    length: u32,
}

impl QueuePlace {
    /// Enters a queue of at most `most` requests (0: no limit), for `backend` or for any.
    ///
    /// # Errors
    /// It is full, with this number of requests.
    pub(crate) fn enter(
        pool: &Arc<PoolLoad>,
        backend: Option<Arc<Backend>>,
        most: u32,
        since: Instant,
    ) -> Result<Self, u32> {
        let more = |len: u32| (most == 0 || len < most).then_some(len + 1);
        let length = pool.len.fetch_update(Relaxed, Relaxed, more)?;
        let place = Self { pool: Arc::clone(pool), backend, since, length };
        place.line().enter();
        Ok(place)
    }

    /// Moves to the queue of another pool, of any length, or to wait for another backend of
    /// its own.
    pub(crate) fn move_to(&mut self, pool: &Arc<PoolLoad>, backend: Option<Arc<Backend>>) {
        if let Ok(mut moved) = Self::enter(pool, backend, 0, self.since) {
            moved.length = self.length;
            *self = moved;
        }
    }

    /// Returns since when it has waited.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Returns the number of requests that waited when it came.
    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    fn line(&self) -> &WaitLine {
        match &self.backend {
            None => &self.pool.any,
            Some(backend) => backend.line(),
        }
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let before = self.pool.len.fetch_sub(1, Relaxed);
        debug_assert!(before > 0, "left more often than entered");
        self.line().leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    #[test]
    fn a_queue_has_a_limit_and_ends_empty() {
        let (queue, other) = (Arc::new(PoolLoad::default()), Arc::new(PoolLoad::default()));
        let backend = Arc::new(Backend::new(([127, 0, 0, 1], 1), 1));
        let one = QueuePlace::enter(&queue, None, 2, at(1)).unwrap();
        let mut two = QueuePlace::enter(&queue, Some(Arc::clone(&backend)), 2, at(2)).unwrap();
        assert_eq!(QueuePlace::enter(&queue, None, 2, at(3)).err(), Some(2));
        assert_eq!((one.length(), two.length(), queue.queued()), (0, 1, 2));
        assert!(queue.any().has_some() && backend.line().has_some());
        drop(one);
        assert!(!queue.any().has_some());
        two.move_to(&other, None);
        assert_eq!((queue.queued(), other.queued(), two.since(), two.length()), (0, 1, at(2), 1));
        assert!(other.any().has_some() && !backend.line().has_some());
        two.move_to(&other, None);
        assert_eq!(other.queued(), 1);
        drop(two);
        assert_eq!(other.queued(), 0);
    }

    #[test]
    fn a_fifth_of_the_requests_may_be_tried_again_and_at_least_three() {
        let load = Arc::new(PoolLoad::default());
        for (open, most) in [(0, 3), (19, 3), (20, 4), (104, 20)] {
            let taken: Vec<_> = (0..30).map_while(|_| RetryPermit::take(&load, open)).collect();
            assert_eq!(taken.len(), most, "{open}");
        }
        assert_eq!(load.retried.load(Relaxed), 0);
    }
}
