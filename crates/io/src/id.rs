//! Connection ids.

use std::fmt;

/// A connection id: slot, shard and generation in 64 bits.
///
/// It *is* the epoll data and, in the public API, the handle: no map lookup leads from the kernel
/// to a connection. A slot is reused after its connection has closed. The generation distinguishes
/// the two, so an id kept too long refers to no connection instead of to the wrong one (contract
/// C5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(u64);

pub(crate) const SLOT_BITS: u32 = 22;
/// As many shards as a thread-per-connection server can have threads, since each connection is a
/// shard there.
const SHARD_BITS: u32 = 16;
const GENERATION_BITS: u32 = 64 - SLOT_BITS - SHARD_BITS;

/// The slots of a driver, for its successor: so that no id names two connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// By slot, the generation of its connection, or of the next one if it is free.
    pub generations: Vec<u32>,
    /// The free slots that the successor may use, in the order in which they were freed.
    pub free: Vec<u32>,
}

impl ConnId {
    /// Maximum connections of one shard: 4 million.
    pub const MAX_SLOTS: usize = 1 << SLOT_BITS;
    /// Maximum shards of one process.
    pub const MAX_SHARDS: usize = 1 << SHARD_BITS;
    /// Largest generation; the next one is 0 again.
    pub const MAX_GENERATION: u32 = (1 << GENERATION_BITS) - 1;

    /// Packs the three parts; each is truncated to its width.
    #[must_use]
    pub const fn new(shard: u16, slot: u32, generation: u32) -> Self {
        let slot = slot as u64 & (Self::MAX_SLOTS as u64 - 1);
        let shard = shard as u64 & (Self::MAX_SHARDS as u64 - 1);
        let generation = (generation & Self::MAX_GENERATION) as u64;
        Self(slot | shard << SLOT_BITS | generation << (SLOT_BITS + SHARD_BITS))
    }

    /// Returns the index into the shard's tables.
    #[must_use]
    pub const fn slot(self) -> usize {
        (self.0 & (Self::MAX_SLOTS as u64 - 1)) as usize
    }

    /// Returns the shard that owns the connection for its whole life.
    #[must_use]
    pub const fn shard(self) -> usize {
        (self.0 >> SLOT_BITS & (Self::MAX_SHARDS as u64 - 1)) as usize
    }

    /// Returns the number of earlier uses of the slot, modulo 2^26.
    #[must_use]
    pub const fn generation(self) -> u32 {
        (self.0 >> (SLOT_BITS + SHARD_BITS)) as u32
    }

    /// Returns whether its shard and its generation equal those in `bits`, whose slot may be
    /// anything.
    #[must_use]
    #[inline]
    pub(crate) const fn is_of(self, bits: u64) -> bool {
        (self.0 ^ bits) >> SLOT_BITS == 0
    }

    /// Returns the 64 bits, for the kernel's user data and for logs.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Converts the 64 bits of [`ConnId::to_bits`] back.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}.{}", self.shard(), self.slot(), self.generation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_survive_packing() {
        for (shard, slot, generation) in
            [(0, 0, 0), (1, 2, 3), (65_535, (1 << 22) - 1, ConnId::MAX_GENERATION), (7, 1, 1 << 25)]
        {
            let id = ConnId::new(shard, slot, generation);
            assert_eq!(
                (id.shard(), id.slot(), id.generation()),
                (shard as usize, slot as usize, generation)
            );
            assert_eq!(ConnId::from_bits(id.to_bits()), id);
            let is_of = |shard, last| id.is_of(ConnId::new(shard, !slot, last).to_bits());
            let last = id.generation();
            assert!(is_of(shard, last));
            assert!(!is_of(shard ^ 1, last) && !is_of(shard, last ^ 1));
        }
    }
}
