//! Memory of publications that wait for the broker, and publishers that wait for room in it.
//!
//! A publisher that can wait is held back when it has used more than is left of a quarter: a
//! single one takes half of that, two of them a third each, and one that publishes little finds
//! room beside them (Choudhury and Hahne, Dynamic queue length thresholds, 1998). The memory above
//! the quarter is for one message each of very many. Publishers that cannot wait are refused when
//! all is used.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most memory of publications.
const MAX_BYTES: usize = 8 << 20;

/// The part that publishers that can wait divide among themselves.
const MARK: usize = MAX_BYTES / 4;

/// Up to this shares are not counted, and down to this those who were held back wait.
const LOW: usize = MARK / 4;

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

/// Memory of a publication, which is to be [released](Pool::release).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reserved {
    bytes: usize,
    /// The publisher whose share it is in.
    publisher: Option<u64>,
}

impl Reserved {
    pub(super) fn bytes(self) -> usize {
        self.bytes
    }
}

/// A publisher that waits: its number, and how it is woken.
type Waiting = (usize, Box<dyn FnOnce() + Send>);

pub(super) struct Pool {
    bytes: AtomicUsize,
    /// Bytes of each publisher, of those that were reserved above [`LOW`].
    shares: Mutex<HashMap<u64, usize>>,
    /// `None` once the node has ended: there is nothing to wait for.
    waiting: Mutex<Option<Vec<Waiting>>>,
}

impl Default for Pool {
    fn default() -> Self {
        let waiting = Mutex::new(Some(Vec::new()));
        Self { bytes: AtomicUsize::new(0), shares: Mutex::default(), waiting }
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

    /// Takes memory for a publication, of a publisher that can wait or of another one; `None`:
    /// there is too little.
    pub(super) fn reserve(&self, bytes: usize, publisher: Option<u64>) -> Option<(Fill, Reserved)> {
        let most = if publisher.is_some() { MAX_BYTES * RESERVE } else { MAX_BYTES };
        let with = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= most);
        let used = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).ok()?;
        let (used, publisher) = (used + bytes, publisher.filter(|_| used + bytes > LOW));
        let Some(number) = publisher else {
            return Some((Fill::Room, Reserved { bytes, publisher: None }));
        };
        let mut shares = lock(&self.shares);
        let share = shares.entry(number).or_default();
        *share += bytes;
        let is_within = *share <= MARK.saturating_sub(used);
        let fill = if is_within { Fill::Room } else { Fill::Crowded };
        Some((fill, Reserved { bytes, publisher }))
    }

    /// Frees the memory of a publication, and wakes publishers when there is much room again.
    pub(super) fn release(&self, Reserved { bytes, publisher }: Reserved) {
        if let Some(number) = publisher {
            let mut shares = lock(&self.shares);
            if let Some(share) = shares.get_mut(&number) {
                *share -= bytes;
                if *share == 0 {
                    shares.remove(&number);
                }
            }
        }
        let used = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        // Who registers under the lock later sees the memory freed; who has done so is listed.
        if used > LOW && used - bytes <= LOW {
            let woken = lock(&self.waiting).as_mut().map(std::mem::take);
            wake(woken);
        }
    }

    pub(super) fn await_room(&self, sender: usize, wake: Box<dyn FnOnce() + Send>) -> bool {
        let mut waiting = lock(&self.waiting);
        let Some(waiting) = waiting.as_mut() else { return false };
        if self.bytes() <= LOW {
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
        let woken = lock(&self.waiting).take();
        wake(woken);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes publishers, without the lock.
fn wake(waiting: Option<Vec<Waiting>>) {
    waiting.into_iter().flatten().for_each(|(_, wake)| wake());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn reserve(pool: &Pool, bytes: usize, publisher: u64) -> (bool, Reserved) {
        let (fill, reserved) = pool.reserve(bytes, Some(publisher)).unwrap();
        (fill == Fill::Room, reserved)
    }

    #[test]
    fn publishers_that_wait_are_woken_when_little_is_used() {
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
        let (_, first) = reserve(&pool, LOW, 7);
        assert!(!await_room(0));
        let (has_room, second) = reserve(&pool, MARK - LOW, 7);
        assert!(!has_room && await_room(0) && await_room(1));
        assert!(await_room(0), "one waits twice, once listed");
        let (_, third) = reserve(&pool, 1, 8);
        pool.release(second);
        assert_eq!(count(), 0);
        pool.release(third);
        assert_eq!((count(), await_room(0)), (2, false));
        assert!(reserve(&pool, 1, 7).0);
        assert!(await_room(0));
        pool.close();
        assert_eq!((count(), await_room(0)), (3, false), "a node that has ended frees nothing");
        pool.release(first);
    }

    #[test]
    fn publishers_that_do_not_wait_leave_room_for_those_that_do() {
        let pool = Pool::default();
        assert!(pool.reserve(MAX_BYTES, None).is_some());
        assert_eq!(pool.reserve(1, None), None);
        assert_eq!(pool.reserve(MAX_BYTES, Some(7)).map(|(fill, _)| fill), Some(Fill::Crowded));
        assert_eq!(pool.reserve(MAX_BYTES * RESERVE, Some(7)), None);
        assert_eq!(pool.reserve(usize::MAX, Some(7)), None);
        assert_eq!(pool.bytes(), 2 * MAX_BYTES);
    }

    #[test]
    fn publishers_of_much_are_held_back_and_those_of_little_find_room() {
        for flooders in [1, 2, 10] {
            let pool = Pool::default();
            let mut all = Vec::new();
            // In turn, until each was held back once.
            let mut are_held = vec![false; flooders];
            while are_held.contains(&false) {
                for (number, is_held) in are_held.iter_mut().enumerate().filter(|(_, held)| !**held)
                {
                    let (has_room, reserved) = reserve(&pool, 1_000, number as u64);
                    all.push(reserved);
                    *is_held = !has_room;
                }
            }
            // About what each of them has taken is left.
            let left = MARK - pool.bytes();
            assert!(left >= (MARK - LOW) / (flooders + 1) - 20_000, "{left} of {flooders}");
            let (has_room, honest) = reserve(&pool, 1_000, 1_000);
            assert!(has_room, "beside {flooders}");
            all.push(honest);
            all.into_iter().for_each(|reserved| pool.release(reserved));
            assert!(pool.bytes() == 0 && lock(&pool.shares).is_empty());
        }
    }
}
