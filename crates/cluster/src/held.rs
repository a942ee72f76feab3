//! Publications that wait until the broker has answered a question about their channel, in memory
//! that all channels of a node share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::envelope::Place;

/// Maximum publications that are held for one channel.
pub(crate) const MAX_HELD: usize = 4096;

/// Memory of a publication besides its bytes.
const OVERHEAD: usize = 64;

/// Memory for the publications that all channels of a node hold.
#[derive(Clone, Debug)]
pub struct Budget {
    used: Arc<Used>,
    max: usize,
}

#[derive(Debug, Default)]
struct Used {
    bytes: AtomicUsize,
    refused: AtomicU64,
}

impl Budget {
    /// Creates a budget of `max` bytes.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { used: Arc::default(), max }
    }

    /// Returns the bytes in use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.used.bytes.load(Ordering::Relaxed)
    }

    /// Returns how many publications were dropped because their channel held too many, or all
    /// channels together used too much memory.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.used.refused.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let with = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.max);
        self.used.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The publications that one channel holds, in the order in which they came.
#[derive(Debug)]
pub(crate) struct BufferedPublication<T> {
    entries: VecDeque<(Place, usize, T)>,
    budget: Budget,
}

impl<T> BufferedPublication<T> {
    pub(crate) fn new(budget: Budget) -> Self {
        Self { entries: VecDeque::new(), budget }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Holds a publication of this many bytes; returns false if there are too many, or if the
    /// memory is used up.
    #[must_use]
    pub(crate) fn push(&mut self, place: Place, publication: T, bytes: usize) -> bool {
        let cost = bytes.saturating_add(OVERHEAD);
        let fits = self.entries.len() < MAX_HELD && self.budget.take(cost);
        if fits {
            self.entries.push_back((place, cost, publication));
        } else {
            self.count_refused();
        }
        fits
    }

    /// Counts a publication that is not held.
    pub(crate) fn count_refused(&self) {
        self.budget.used.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the place of the oldest publication.
    pub(crate) fn first(&self) -> Option<Place> {
        self.entries.front().map(|(place, ..)| *place)
    }

    /// Removes the oldest publication.
    pub(crate) fn pop(&mut self) -> Option<(Place, T)> {
        let (place, cost, publication) = self.entries.pop_front()?;
        self.budget.give_back(cost);
        Some((place, publication))
    }

    /// Drops all publications.
    pub(crate) fn clear(&mut self) {
        self.budget.give_back(self.entries.iter().map(|(_, cost, _)| cost).sum());
        self.entries = VecDeque::new();
    }
}

/// Frees the memory of a channel that is dropped.
impl<T> Drop for BufferedPublication<T> {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_share_their_memory_and_give_it_back() {
        let budget = Budget::new(10_000);
        let [mut one, mut two] = [(); 2].map(|()| BufferedPublication::new(budget.clone()));
        let place = |offset| Place { epoch: 1, offset, tag: 1 };
        assert!(one.push(place(1), 1, 6_000) && !two.push(place(1), 1, 6_000));
        assert!(two.push(place(2), 2, 3_000) && budget.bytes() > 9_000);
        assert!(!one.push(place(2), 2, usize::MAX));
        assert_eq!((one.len(), two.len(), budget.refused()), (1, 1, 2));
        assert_eq!(one.pop(), Some((place(1), 1)));
        assert!(two.push(place(3), 3, 6_000));
        drop(two);
        assert_eq!(budget.bytes(), 0);
        let mut many = BufferedPublication::new(Budget::new(1 << 20));
        assert!((0..MAX_HELD as u64).all(|at| many.push(place(at), at, 0)));
        assert!(!many.push(place(9), 9, 0));
        many.clear();
        assert_eq!((many.budget.bytes(), many.is_empty()), (0, true));
    }
}
