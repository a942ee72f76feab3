//! Batches that are not in use, kept for the next queue.

use throng_io::Batch;

/// Maximum small batches that a server's shard keeps. More can be in use; the excess is freed.
const SMALL_SPARES: usize = 1024;
/// A batch whose memory is at most this is small.
const SMALL_CAPACITY: usize = 16 * 1024;
/// Number of batches with larger memory that are kept as such, so that large answers do not
/// allocate each time.
const LARGE_SPARES: usize = 4;
/// Largest memory of such a batch.
const LARGE_CAPACITY: usize = 8 << 20;

/// One shard's batches that are not in use.
#[derive(Debug)]
pub struct Spares {
    /// Number of small batches that are kept at most.
    most_small: usize,
    /// Largest memory of a batch that keeps it.
    largest: usize,
    /// The batch returned last: an echo never needs another.
    at_hand: Option<Box<Batch>>,
    #[allow(
        clippy::vec_box,
        reason = "the driver takes and returns boxes: nothing is boxed again"
    )]
    small: Vec<Box<Batch>>,
    #[allow(clippy::vec_box, reason = "as above")]
    large: Vec<Box<Batch>>,
}

impl Default for Spares {
    /// Creates the spares of a server's shard.
    fn default() -> Self {
        Self { largest: LARGE_CAPACITY, ..Self::small(SMALL_SPARES) }
    }
}

impl Spares {
    /// Creates an empty list that keeps up to `most` batches, beside the one at hand, of up to 16
    /// KiB each.
    #[must_use]
    pub const fn small(most: usize) -> Self {
        Self {
            most_small: most,
            largest: SMALL_CAPACITY,
            at_hand: None,
            small: Vec::new(),
            large: Vec::new(),
        }
    }

    /// Returns the bytes of memory that are kept.
    #[must_use]
    pub fn capacity(&self) -> usize {
        let kept = self.at_hand.iter().chain(&self.small).chain(&self.large);
        kept.map(|batch| batch.spare_capacity()).sum()
    }

    /// Returns an empty batch, with the memory of a spare one if there is any.
    #[inline]
    #[must_use]
    pub fn take(&mut self) -> Box<Batch> {
        match self.at_hand.take() {
            Some(batch) => batch,
            None => self.fetch(),
        }
    }

    /// Keeps an empty batch, or the memory of a full batch that is not needed.
    #[inline]
    pub fn give(&mut self, batch: Box<Batch>) {
        let is_usual = batch.is_empty() && batch.spare_capacity() <= self.largest;
        if is_usual && self.at_hand.is_none() {
            self.at_hand = Some(batch);
        } else {
            self.store(batch);
        }
    }

    #[inline(never)]
    fn fetch(&mut self) -> Box<Batch> {
        self.large.pop().or_else(|| self.small.pop()).unwrap_or_default()
    }

    #[inline(never)]
    fn store(&mut self, mut batch: Box<Batch>) {
        batch.clear();
        if batch.spare_capacity() > SMALL_CAPACITY {
            if batch.spare_capacity() <= self.largest && self.large.len() < LARGE_SPARES {
                return self.large.push(batch);
            }
            batch.forget_spare();
        }
        if self.small.len() < self.most_small {
            self.small.push(batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(capacity: usize) -> Box<Batch> {
        let mut batch = Box::<Batch>::default();
        batch.append(|out| out.reserve_exact(capacity));
        batch
    }

    #[test]
    fn the_batch_returned_last_is_taken_first_and_is_empty() {
        let mut spares = Spares::default();
        let mut full = batch(100);
        full.append(|out| out.push(1));
        spares.give(full);
        spares.give(batch(200));
        assert!(spares.take().spare_capacity() >= 200);
        let emptied = spares.take();
        assert!(emptied.is_empty() && emptied.spare_capacity() >= 100);
        assert_eq!(spares.take().spare_capacity(), 0);
    }

    #[test]
    fn a_list_of_small_batches_keeps_no_large_one() {
        let mut spares = Spares::small(2);
        for capacity in [SMALL_CAPACITY, SMALL_CAPACITY + 1] {
            (0..9).for_each(|_| spares.give(batch(capacity)));
        }
        assert_eq!(spares.capacity(), 3 * SMALL_CAPACITY);
    }

    #[test]
    fn kept_memory_is_bounded() {
        let mut spares = Spares::default();
        for _ in 0..2 * SMALL_SPARES {
            spares.give(batch(SMALL_CAPACITY + 1));
            spares.give(batch(LARGE_CAPACITY + 1));
        }
        let batches: Vec<_> = (0..3 * SMALL_SPARES).map(|_| spares.take()).collect();
        let kept = batches.iter().filter(|batch| batch.spare_capacity() > 0).count();
        assert!(kept <= 1 + LARGE_SPARES, "{kept}");
    }
}
