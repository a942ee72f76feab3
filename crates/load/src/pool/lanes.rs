//! State that the threads of a run share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use throng_io::{Instant, Waker};

use crate::error::Error;

/// The times of a run; set once, when all connections are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The time of the first message.
    pub start: Instant,
    /// Start of the measured time.
    pub from: Instant,
    /// End of the measured time.
    pub to: Instant,
}

impl Timeline {
    #[inline]
    pub fn counts(&self, at: Instant) -> bool {
        self.from <= at && at < self.to
    }
}

/// The state that all threads of a run share.
#[derive(Debug)]
pub struct PoolShared {
    lanes: Vec<Lane>,
    timeline: OnceLock<Timeline>,
    finish: AtomicBool,
    failure: Mutex<Option<Error>>,
}

/// The figures of one thread, on separate cache lines: the thread writes them for every message,
/// and other threads rarely read them.
#[derive(Default)]
#[repr(align(128))]
pub struct Lane {
    /// Connections open now.
    pub ready: AtomicU64,
    /// Messages sent.
    pub sent: AtomicU64,
    /// Answers, connections or deliveries completed.
    pub done: AtomicU64,
    waker: OnceLock<Waker>,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl Lane {
    /// Sets the waker with which other threads wake this thread.
    pub fn open(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }

    pub fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

impl PoolShared {
    pub fn new(threads: usize) -> Self {
        Self {
            lanes: (0..threads).map(|_| Lane::default()).collect(),
            timeline: OnceLock::new(),
            finish: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    pub fn lane(&self, thread: usize) -> &Lane {
        &self.lanes[thread]
    }

    /// Returns the sum of one figure over all threads.
    pub fn sum(&self, figure: impl Fn(&Lane) -> &AtomicU64) -> u64 {
        self.lanes.iter().map(|lane| figure(lane).load(Ordering::Relaxed)).sum()
    }

    #[inline]
    pub fn timeline(&self) -> Option<&Timeline> {
        self.timeline.get()
    }

    /// Begins the run.
    pub fn begin(&self, timeline: Timeline) {
        let _ = self.timeline.set(timeline);
        self.wake_all();
    }

    /// Ends every thread.
    pub fn finish(&self) {
        self.finish.store(true, Ordering::Release);
        self.wake_all();
    }

    #[inline]
    pub fn is_finishing(&self) -> bool {
        self.finish.load(Ordering::Acquire)
    }

    /// Ends the run because of `error`; the first error counts.
    pub fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.finish();
    }

    pub fn take_failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub fn wake_all(&self) {
        self.lanes.iter().for_each(Lane::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counted_time_is_half_open() {
        let timeline = Timeline { start: Instant(5), from: Instant(10), to: Instant(20) };
        assert_eq!(
            [9, 10, 19, 20].map(|ns| timeline.counts(Instant(ns))),
            [false, true, true, false]
        );
    }

    #[test]
    fn the_first_failure_counts_and_ends_the_run() {
        let shared = PoolShared::new(2);
        assert!(!shared.is_finishing());
        shared.fail(Error::Interrupted);
        shared.fail(Error::Usage("later".to_owned()));
        assert!(shared.is_finishing());
        assert!(matches!(shared.take_failure(), Some(Error::Interrupted)));
    }

    #[test]
    fn figures_add_up_over_threads() {
        let shared = PoolShared::new(3);
        for thread in 0..3 {
            shared.lane(thread).sent.store(10 + thread as u64, Ordering::Relaxed);
        }
        assert_eq!(shared.sum(|lane| &lane.sent), 33);
    }
}
