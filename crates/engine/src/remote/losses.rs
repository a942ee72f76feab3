//! Publications that a shard's queue could not take, for the shard to make up for.
//!
//! Connections that publish are held back long before a queue is full, so this is for publications
//! that cannot be held back: a callback that publishes more than a whole queue holds, or the queue
//! of a thread whose handler blocks. The shard learns which publications are missing before it
//! carries out any that follows them, and applies to their receivers their policy for a message
//! that does not fit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use throng_io::ConnId;

use crate::pubsub::filter::Filter;

/// Most sets of receivers that are recorded separately. Beyond that every connection may have
/// missed something.
const MOST: usize = 256;

/// Receivers that miss something.
#[derive(Clone, Debug)]
pub(crate) enum Receivers {
    /// The members of a channel but one.
    Channel(Arc<str>, Option<ConnId>),
    /// Connections that a filter selects.
    Filter(Arc<Filter>),
    /// Any connection: there were too many different receivers to record.
    Any,
}

impl Receivers {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Channel(a, but), Self::Channel(b, also)) => a == b && but == also,
            (Self::Filter(a), Self::Filter(b)) => Arc::ptr_eq(a, b),
            (Self::Any, Self::Any) => true,
            _ => false,
        }
    }
}

/// Publications to the same receivers that a shard will not get.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub(crate) receivers: Receivers,
    pub(crate) count: u64,
}

/// Missing publications of one shard.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    any: AtomicBool,
    list: Mutex<Vec<Lost>>,
}

impl Losses {
    /// Records a missing publication. Commands that its sender queues afterwards come after this.
    #[cold]
    pub(crate) fn add(&self, receivers: Receivers) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = list.last_mut().filter(|last| last.receivers.is(&receivers)) {
            last.count += 1;
        } else if list.len() < MOST {
            list.push(Lost { receivers, count: 1 });
        } else {
            let count = list.iter().map(|lost| lost.count).sum::<u64>() + 1;
            *list = vec![Lost { receivers: Receivers::Any, count }];
        }
        // Release: a thread that sees it in a command that was queued later sees the list, too; the
        // queue's lock orders that.
        self.any.store(true, Ordering::Release);
    }

    /// Returns whether publications are missing.
    #[inline]
    pub(crate) fn are_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes the publications that are missing since the last call. Called after the commands were
    /// taken and before they are carried out.
    pub(crate) fn take(&self) -> Vec<Lost> {
        if !self.are_any() {
            return Vec::new();
        }
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(name: &str) -> Receivers {
        Receivers::Channel(name.into(), None)
    }

    #[test]
    fn losses_are_counted_by_receivers_and_bounded() {
        let losses = Losses::default();
        assert!(losses.take().is_empty());
        for name in ["a", "a", "b", "a"] {
            losses.add(channel(name));
        }
        let taken: Vec<u64> = losses.take().iter().map(|lost| lost.count).collect();
        assert_eq!(taken, [2, 1, 1]);
        (0..MOST + 10).for_each(|n| losses.add(channel(&n.to_string())));
        let taken = losses.take();
        assert!(taken.len() <= 10 && matches!(taken[0].receivers, Receivers::Any));
        assert_eq!(taken.iter().map(|lost| lost.count).sum::<u64>(), MOST as u64 + 10);
        assert!(losses.take().is_empty());
    }
}
