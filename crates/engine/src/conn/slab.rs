//! Side tables: state that only some connections have, reached by a 32-bit index that is 0 when
//! they have none.

/// Index of an entry; the zero niche makes `Option<Index>` four bytes.
pub type Index = std::num::NonZeroU32;

/// Entries with stable indices; freed ones are reused, latest first.
#[derive(Debug)]
pub struct Slab<T> {
    entries: Vec<SlabEntry<T>>,
    /// Index of the first free entry + 1, 0 = none.
    free: u32,
    len: usize,
}

#[derive(Debug)]
enum SlabEntry<T> {
    Used(T),
    Free { next: u32 },
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: 0, len: 0 }
    }
}

impl<T> Slab<T> {
    /// Stores `value`.
    ///
    /// # Panics
    /// Beyond 2^32 - 2 entries; a shard has at most 2^26 connections.
    pub fn insert(&mut self, value: T) -> Index {
        self.len += 1;
        if self.free != 0 {
            let at = self.free as usize - 1;
            if let SlabEntry::Free { next } = self.entries[at] {
                let index = self.free;
                self.free = next;
                self.entries[at] = SlabEntry::Used(value);
                return Index::new(index).expect("free indices are not 0");
            }
            unreachable!("the free list names only free entries");
        }
        self.entries.push(SlabEntry::Used(value));
        let index =
            u32::try_from(self.entries.len()).expect("a shard has at most 2^26 connections");
        Index::new(index).expect("the length after a push is not 0")
    }

    /// Returns the entry at `index`, if it is in use.
    #[inline]
    pub fn entry(&self, index: Index) -> Option<&T> {
        match self.entries.get(index.get() as usize - 1) {
            Some(SlabEntry::Used(value)) => Some(value),
            _ => None,
        }
    }

    /// Returns the entry at `index`, if it is in use.
    #[inline]
    pub fn entry_mut(&mut self, index: Index) -> Option<&mut T> {
        match self.entries.get_mut(index.get() as usize - 1) {
            Some(SlabEntry::Used(value)) => Some(value),
            _ => None,
        }
    }

    /// Removes the entry at `index`.
    pub fn remove(&mut self, index: Index) -> Option<T> {
        let at = index.get() as usize - 1;
        let entry = self.entries.get_mut(at)?;
        if matches!(entry, SlabEntry::Free { .. }) {
            return None;
        }
        let SlabEntry::Used(value) = std::mem::replace(entry, SlabEntry::Free { next: self.free })
        else {
            return None;
        };
        self.free = index.get();
        self.len -= 1;
        Some(value)
    }

    /// Entries in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true when none is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_entries_are_reused_and_stale_indices_find_nothing() {
        let mut slab = Slab::default();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!((slab.remove(a), slab.entry(a), slab.len()), (None, None, 1));
        let c = slab.insert('c');
        assert_eq!((c, slab.entry(b), slab.entry(c)), (a, Some(&'b'), Some(&'c')));
        assert_eq!(size_of::<Option<Index>>(), 4);
    }
}
