//! Memory of publications that wait for the broker, and publishers that wait for this memory.
//!
//! A publisher that can wait is delayed when its share exceeds the free rest of a quarter of the
//! memory: a single publisher takes half of the quarter, two take a third each, and a publisher of
//! few messages still finds space (Choudhury and Hahne, Dynamic queue length thresholds, 1998). The
//! memory above the quarter serves very many publishers with one message each. Publishers that
//! cannot wait are refused when all memory is used.
//!
//! The parts of the node share half of the memory. Each part also has its share of the other half,
//! at least 64 KiB: with 128 partitions these shares add up to 8 MiB, and the whole to 12 MiB.
//! Publications for an unreachable server use the shared half and the share of their part.
//! Publishers to another part use that part's share, and are not delayed because of other parts.
//! Publishers that cannot wait are refused beyond it. But while a part's share is unused, one
//! message of up to 1 MiB is accepted, even though it exceeds the share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum memory of publications.
const MAX_BYTES: usize = 8 << 20;

/// The memory that publishers that can wait divide among themselves.
const MARK: usize = MAX_BYTES / 4;

/// Below this fill, the pool stops tracking shares by publisher, and delayed publishers resume.
const LOW: usize = MARK / 4;

/// Memory that parts share.
const SHARED: usize = MAX_BYTES / 2;

/// Minimum of each part's own memory, for a node with very many parts.
const MIN_OWN: usize = 64 << 10;

/// Maximum bytes of a message that a part accepts beyond its own memory while it uses none of it.
const MAX_ALONE: usize = 1 << 20;

/// Factor by which waiting publishers may use more memory than others: very many publishers each
/// publish some messages before they are delayed.
const RESERVE: usize = 4;

/// Fill of the memory after a publication was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// There is room for many more publications.
    Available,
    /// A publisher that can wait should stop until the part with this number has capacity: see
    /// [`Bus::await_capacity`](super::Bus::await_capacity).
    Crowded(u16),
}

/// Memory of a publication, which must be [released](SendBudget::release).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reserved {
    part: u16,
    bytes: usize,
    /// The bytes outside the part's own memory.
    shared: usize,
    /// The publisher whose share includes this memory.
    publisher: Option<u64>,
}

impl Reserved {
    pub(super) fn bytes(self) -> usize {
        self.bytes
    }
}

/// A publisher that waits: its number, and its waker.
type Waiting = (usize, Box<dyn FnOnce() + Send>);

/// The memory of publications to one part.
struct Part {
    bytes: AtomicUsize,
    /// The bytes in the part's own memory.
    own: AtomicUsize,
    /// Bytes by publisher, counted while the part was crowded.
    shares: Mutex<HashMap<u64, usize>>,
    /// `None` once the node has ended: there is nothing to wait for.
    waiting: Mutex<Option<Vec<Waiting>>>,
}

impl Default for Part {
    fn default() -> Self {
        let waiting = Mutex::new(Some(Vec::new()));
        let (bytes, own) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { bytes, own, shares: Mutex::default(), waiting }
    }
}

pub(super) struct SendBudget {
    bytes: AtomicUsize,
    /// The bytes outside all parts' own memory.
    shared: AtomicUsize,
    parts: Box<[Part]>,
    /// Size of each part's own memory.
    own: usize,
}

impl std::fmt::Debug for SendBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SendBudget({} bytes)", self.bytes())
    }
}

impl SendBudget {
    /// Creates the pool of a node with this many parts.
    pub(super) fn new(parts: usize) -> Self {
        let own = ((MAX_BYTES - SHARED) / parts.max(1)).max(MIN_OWN);
        let parts = (0..parts).map(|_| Part::default()).collect();
        Self { bytes: AtomicUsize::new(0), shared: AtomicUsize::new(0), parts, own }
    }

    /// Returns the memory in use.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Reserves memory for a publication to a part. `publisher` is `None` if the publisher cannot
    /// wait. Returns `None` if too little memory is left.
    pub(super) fn reserve(
        &self,
        number: u16,
        bytes: usize,
        publisher: Option<u64>,
    ) -> Option<(Fill, Reserved)> {
        let most = if publisher.is_some() { RESERVE * MAX_BYTES - self.own } else { SHARED };
        let part = &self.parts[usize::from(number)];
        let shared = self.take(part, bytes, most)?;
        let used = part.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let all = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut reserved = Reserved { part: number, bytes, shared, publisher: None };
        let Some(publisher) = publisher.filter(|_| self.is_crowded(used, all)) else {
            return Some((Fill::Available, reserved));
        };
        reserved.publisher = Some(publisher);
        let mut shares = lock(&part.shares);
        let share = shares.entry(publisher).or_default();
        *share += bytes;
        let left = MARK.saturating_sub(all).max(self.mark().saturating_sub(used));
        let fill = if *share <= left { Fill::Available } else { Fill::Crowded(number) };
        Some((fill, reserved))
    }

    /// Reserves the part's own memory and, for bytes that do not fit, shared memory up to `most`;
    /// returns the shared bytes. A failing reservation never takes the part's memory, not even for
    /// a moment, so that it does not make others fail.
    fn take(&self, part: &Part, bytes: usize, most: usize) -> Option<usize> {
        let (mut shared, mut used) = (0, part.own.load(Ordering::Relaxed));
        loop {
            let missing = bytes - self.own_capacity(used, bytes);
            if missing > shared {
                if !self.take_shared(missing - shared, most) {
                    // Another thread has just used some of the part's own memory.
                    self.shared.fetch_sub(shared, Ordering::Relaxed);
                    return None;
                }
                shared = missing;
            }
            let own = used + (bytes - shared);
            match part.own.compare_exchange_weak(used, own, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(shared),
                Err(now) => used = now,
            }
        }
    }

    /// Returns how many of these bytes fit in a part's own memory, with `used` bytes in use.
    fn own_capacity(&self, used: usize, bytes: usize) -> usize {
        let is_alone = used == 0 && bytes <= MAX_ALONE;
        if is_alone { bytes } else { bytes.min(self.own.saturating_sub(used)) }
    }

    /// Reserves shared memory, unless its use would exceed `most`.
    fn take_shared(&self, bytes: usize, most: usize) -> bool {
        let add = |used| (bytes <= most.saturating_sub(used)).then(|| used + bytes);
        self.shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Returns the bytes that publishers to one part divide among themselves, regardless of the use
    /// of other parts.
    fn mark(&self) -> usize {
        self.own / 2
    }

    /// Returns whether a part is crowded, with `used` bytes in use there and `all` in total.
    fn is_crowded(&self, used: usize, all: usize) -> bool {
        all > LOW && used > self.mark() / 4
    }

    /// Frees the memory of a publication, and wakes publishers when there is much room again.
    pub(super) fn release(&self, reserved: Reserved) {
        let Reserved { part: number, bytes, shared, publisher } = reserved;
        let part = &self.parts[usize::from(number)];
        if let Some(publisher) = publisher {
            let mut shares = lock(&part.shares);
            if let Some(share) = shares.get_mut(&publisher) {
                *share -= bytes;
                if *share == 0 {
                    shares.remove(&publisher);
                }
            }
        }
        let used = part.bytes.fetch_sub(bytes, Ordering::Relaxed);
        part.own.fetch_sub(bytes - shared, Ordering::Relaxed);
        if shared > 0 {
            self.shared.fetch_sub(shared, Ordering::Relaxed);
        }
        let all = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        // A publisher that registers later, under the lock, sees the freed memory; an earlier one
        // is in the list.
        if all > LOW && all - bytes <= LOW {
            self.parts.iter().for_each(Part::wake);
        } else if used > self.mark() / 4 && used - bytes <= self.mark() / 4 {
            part.wake();
        }
    }

    pub(super) fn await_capacity(
        &self,
        number: u16,
        sender: usize,
        wake: Box<dyn FnOnce() + Send>,
    ) -> bool {
        let part = &self.parts[usize::from(number)];
        let mut waiting = lock(&part.waiting);
        let Some(waiting) = waiting.as_mut() else { return false };
        if !self.is_crowded(part.bytes.load(Ordering::Relaxed), self.bytes()) {
            return false;
        }
        // Thread numbers are reused: another thread may have the number of an ended one.
        match waiting.iter_mut().find(|(other, _)| *other == sender) {
            Some((_, before)) => *before = wake,
            None => waiting.push((sender, wake)),
        }
        true
    }

    /// Wakes all publishers; from now on none may wait.
    pub(super) fn close(&self) {
        for part in &self.parts {
            let woken = lock(&part.waiting).take();
            wake(woken);
        }
    }
}

impl Part {
    fn wake(&self) {
        let woken = lock(&self.waiting).as_mut().map(std::mem::take);
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

    fn reserve(pool: &SendBudget, bytes: usize, publisher: u64) -> (bool, Reserved) {
        let (fill, reserved) = pool.reserve(0, bytes, Some(publisher)).unwrap();
        (fill == Fill::Available, reserved)
    }

    #[test]
    fn publishers_that_wait_are_woken_when_little_is_used() {
        let pool = SendBudget::new(1);
        let woken = Arc::new(AtomicUsize::new(0));
        let await_capacity = |sender| {
            let woken = Arc::clone(&woken);
            let wake = move || {
                woken.fetch_add(1, Ordering::Relaxed);
            };
            pool.await_capacity(0, sender, Box::new(wake))
        };
        let count = || woken.load(Ordering::Relaxed);
        let (_, first) = reserve(&pool, LOW, 7);
        assert!(!await_capacity(0));
        let (has_room, second) = reserve(&pool, MARK - LOW, 7);
        assert!(!has_room && await_capacity(0) && await_capacity(1));
        assert!(await_capacity(0), "one waits twice, once listed");
        let (_, third) = reserve(&pool, 1, 8);
        pool.release(second);
        assert_eq!(count(), 0);
        pool.release(third);
        assert_eq!((count(), await_capacity(0)), (2, false));
        assert!(reserve(&pool, 1, 7).0);
        assert!(await_capacity(0));
        pool.close();
        assert_eq!((count(), await_capacity(0)), (3, false), "a node that has ended frees nothing");
        pool.release(first);
    }

    #[test]
    fn publishers_that_do_not_wait_leave_room_for_those_that_do() {
        let pool = SendBudget::new(1);
        assert!(pool.reserve(0, MAX_BYTES, None).is_some());
        assert_eq!(pool.reserve(0, 1, None), None);
        assert_eq!(
            pool.reserve(0, MAX_BYTES, Some(7)).map(|(fill, _)| fill),
            Some(Fill::Crowded(0))
        );
        assert_eq!(pool.reserve(0, MAX_BYTES * RESERVE, Some(7)), None);
        assert_eq!(pool.reserve(0, usize::MAX, Some(7)), None);
        assert_eq!(pool.bytes(), 2 * MAX_BYTES);
    }

    #[test]
    fn publishers_of_much_are_held_back_and_those_of_little_find_room() {
        for flooders in [1, 2, 10] {
            let pool = SendBudget::new(1);
            let mut all = Vec::new();
            // The publishers take turns until each has been delayed once.
            let mut are_held = vec![false; flooders];
            while are_held.contains(&false) {
                for (number, is_held) in are_held.iter_mut().enumerate().filter(|(_, held)| !**held)
                {
                    let (has_room, reserved) = reserve(&pool, 1_000, number as u64);
                    all.push(reserved);
                    *is_held = !has_room;
                }
            }
            // The rest is about as large as the share of each of them.
            let left = MARK - pool.bytes();
            assert!(left >= (MARK - LOW) / (flooders + 1) - 20_000, "{left} of {flooders}");
            let (has_room, honest) = reserve(&pool, 1_000, 1_000);
            assert!(has_room, "beside {flooders}");
            all.push(honest);
            all.into_iter().for_each(|reserved| pool.release(reserved));
            assert!(pool.bytes() == 0 && lock(&pool.parts[0].shares).is_empty());
        }
    }

    #[test]
    fn publications_that_wait_for_one_part_take_no_room_of_another() {
        for parts in [2, 3, 128] {
            let pool = SendBudget::new(parts);
            let woken = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&woken);
            let wake = Box::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
            });
            // Use all memory of publishers that do not wait, in each part except the last.
            let last = parts as u16 - 1;
            let mut away = Vec::new();
            for part in (0..last).cycle().take(4 * parts) {
                away.extend(std::iter::from_fn(|| pool.reserve(part, 10_000, None)));
            }
            assert!(pool.bytes() > MARK && pool.reserve(0, 10_000, None).is_none());
            // First a publisher that cannot wait, then a numbered publisher, which can.
            let (_, first) = pool.reserve(last, 10_000, None).unwrap();
            let (fill, second) = pool.reserve(last, 1_000, Some(7)).unwrap();
            assert_eq!(fill, Fill::Available, "of {parts}");
            pool.release(second);
            // A flooding publisher is delayed until its own publications have left.
            let flood = std::iter::from_fn(|| {
                let (fill, reserved) = pool.reserve(last, 1_000, Some(7)).unwrap();
                (fill == Fill::Available).then_some(reserved)
            });
            let flood: Vec<_> = flood.collect();
            assert!(pool.await_capacity(last, 0, wake));
            flood.into_iter().for_each(|reserved| pool.release(reserved));
            pool.release(first);
            assert_eq!(woken.load(Ordering::Relaxed), 1, "of {parts}");
            assert!(!pool.await_capacity(last, 0, Box::new(|| ())));
            away.into_iter().for_each(|(_, reserved)| pool.release(reserved));
            // Only the last publication of the flood remains.
            assert_eq!((pool.bytes(), pool.shared.load(Ordering::Relaxed)), (1_000, 0));
        }
    }

    #[test]
    fn threads_at_the_limit_of_a_share_take_what_they_give_back_and_no_room_of_others() {
        let pool = &SendBudget::new(128);
        let reserve = |part, bytes| pool.reserve(part, bytes, None).map(|(_, reserved)| reserved);
        // Little of the shared memory is left, and parts are about to need it.
        let bases =
            [(0, pool.own - 5_000), (1, pool.own - 5_000), (2, pool.own + SHARED - 100_000)];
        let bases = bases.map(|(part, bytes)| reserve(part, bytes).unwrap());
        std::thread::scope(|scope| {
            for (part, bytes) in [(0, 200), (0, 10_000), (0, 10_000), (1, 10_000)] {
                scope.spawn(move || {
                    for _ in 0..500_000 {
                        pool.release(reserve(part, bytes).expect("there is room"));
                    }
                });
            }
            scope.spawn(|| (0..500_000).for_each(|_| assert_eq!(reserve(3, SHARED), None)));
        });
        bases.into_iter().for_each(|reserved| pool.release(reserved));
        let all = [&pool.bytes, &pool.shared, &pool.parts[0].bytes, &pool.parts[1].bytes];
        assert_eq!(all.map(|bytes| bytes.load(Ordering::Relaxed)), [0; 4]);
        assert!(pool.parts.iter().all(|part| part.own.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn a_part_takes_a_message_that_is_larger_than_its_share_when_none_is_in_it() {
        let pool = SendBudget::new(128);
        let reserve = |part, bytes| pool.reserve(part, bytes, None).map(|(_, reserved)| reserved);
        let mut away: Vec<_> = std::iter::from_fn(|| reserve(0, 100_000)).collect();
        assert_eq!(away.len(), 1 + SHARED / 100_000);
        let mut others: Vec<_> = (1..128).map(|part| reserve(part, 100_000).unwrap()).collect();
        assert_eq!(reserve(1, 100_000), None);
        pool.release(others.remove(0));
        assert_eq!(reserve(1, MAX_ALONE + 1), None);
        others.push(reserve(1, MAX_ALONE).unwrap());
        away.append(&mut others);
        away.into_iter().for_each(|reserved| pool.release(reserved));
        assert_eq!((pool.bytes(), pool.shared.load(Ordering::Relaxed)), (0, 0));
    }
}
