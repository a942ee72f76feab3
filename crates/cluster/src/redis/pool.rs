//! Memory of publications that wait for the broker, and publishers that wait for room in it.
//!
//! A publisher that can wait is held back when more than a quarter is used, as for the queue of
//! another shard: the rest is one message's worth for each of very many. Publishers that cannot
//! wait are refused when all is used.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most memory of publications.
const MAX_BYTES: usize = 8 << 20;

/// Above this publishers that can wait are held back.
const MARK: usize = MAX_BYTES / 4;

/// Factor by which publishers that wait may use more than others: this is for what each of very
/// many may publish before it is held.
const RESERVE: usize = 4;

/// Fill of the memory after a publication was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// There is room for many more publications.
    Room,
    /// A publisher that can wait should publish no more until there is room: see
    /// [`Bus::await_room`](super::Bus::await_room).
    Crowded,
}

/// A publisher that waits: its number, and how it is woken.
type Waiting = (usize, Box<dyn FnOnce() + Send>);

pub(super) struct Pool {
    bytes: AtomicUsize,
    /// `None` once the node has ended: there is nothing to wait for.
    waiting: Mutex<Option<Vec<Waiting>>>,
}

impl Default for Pool {
    fn default() -> Self {
        Self { bytes: AtomicUsize::new(0), waiting: Mutex::new(Some(Vec::new())) }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} bytes)", self.bytes())
    }
}

impl Pool {
    /// Returns the memory in use.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Takes memory for a publication; `None`: there is too little.
    pub(super) fn reserve(&self, bytes: usize, waits: bool) -> Option<Fill> {
        let most = if waits { MAX_BYTES * RESERVE } else { MAX_BYTES };
        let with = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= most);
        let used = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).ok()?;
        Some(if used + bytes > MARK { Fill::Crowded } else { Fill::Room })
    }

    /// Frees the memory of publications, and wakes publishers when there is much room again.
    pub(super) fn release(&self, bytes: usize) {
        let used = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        // Who registers under the lock later sees the memory freed; who has done so is listed.
        if used > MARK && used - bytes <= MARK {
            let woken = self.lock().as_mut().map(std::mem::take);
            wake(woken);
        }
    }

    pub(super) fn await_room(&self, sender: usize, wake: Box<dyn FnOnce() + Send>) -> bool {
        let mut waiting = self.lock();
        let Some(waiting) = waiting.as_mut() else { return false };
        if self.bytes() <= MARK {
            return false;
        }
        // The number of a thread that has ended may be that of another by now.
        match waiting.iter_mut().find(|(other, _)| *other == sender) {
            Some((_, before)) => *before = wake,
            None => waiting.push((sender, wake)),
        }
        true
    }

    /// Wakes all, and lets no publisher wait any more.
    pub(super) fn close(&self) {
        let woken = self.lock().take();
        wake(woken);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Waiting>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes publishers, without the lock.
fn wake(waiting: Option<Vec<Waiting>>) {
    waiting.into_iter().flatten().for_each(|(_, wake)| wake());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn publishers_that_wait_are_woken_when_less_than_a_quarter_is_used() {
        let pool = Pool::default();
        let woken = Arc::new(AtomicUsize::new(0));
        let await_room = |sender| {
            let woken = Arc::clone(&woken);
            let wake = move || {
                woken.fetch_add(1, Ordering::Relaxed);
            };
            pool.await_room(sender, Box::new(wake))
        };
        let count = || woken.load(Ordering::Relaxed);
        assert_eq!(pool.reserve(MARK, false), Some(Fill::Room));
        assert!(!await_room(0));
        assert_eq!(pool.reserve(2, false), Some(Fill::Crowded));
        assert!(await_room(0) && await_room(1) && await_room(0), "one waits twice, once listed");
        pool.release(1);
        assert_eq!(count(), 0);
        pool.release(1);
        assert_eq!((count(), await_room(0)), (2, false));
        assert_eq!(pool.reserve(1, true), Some(Fill::Crowded));
        assert!(await_room(0));
        pool.close();
        assert_eq!((count(), await_room(0)), (3, false), "a node that has ended frees nothing");
    }

    #[test]
    fn publishers_that_do_not_wait_leave_room_for_those_that_do() {
        let pool = Pool::default();
        assert_eq!(pool.reserve(MAX_BYTES, false), Some(Fill::Crowded));
        assert_eq!(pool.reserve(1, false), None);
        assert_eq!(pool.reserve(MAX_BYTES, true), Some(Fill::Crowded));
        assert_eq!(pool.reserve(MAX_BYTES * RESERVE, true), None);
        assert_eq!(pool.reserve(usize::MAX, true), None);
        assert_eq!(pool.bytes(), 2 * MAX_BYTES);
    }
}
