//! Counts of connections by address, for a cap on each.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The key under which connections of an IPv4 address or of an IPv6 /64 network are counted: the
/// address itself, or a hash of the network under a secret key. Two networks in 2^32 have the same
/// hash, and then share a cap. `None` instead of a key: no cap.
pub type AddressKey = std::num::NonZeroU32;

/// Connections of all shards by address. Used once a connection.
#[derive(Debug, Default)]
pub struct AddressCounts {
    counts: Mutex<HashMap<AddressKey, u32>>,
    hasher: RandomState,
}

impl AddressCounts {
    /// Returns the key of `address`. An IPv4 address mapped to IPv6 has the key of the IPv4 one.
    #[must_use]
    pub fn key(&self, address: IpAddr) -> Option<AddressKey> {
        match address.to_canonical() {
            IpAddr::V4(address) => AddressKey::new(address.to_bits()),
            IpAddr::V6(address) => {
                let network = (address.to_bits() >> 64) as u64;
                AddressKey::new((self.hasher.hash_one(network) as u32).max(1))
            }
        }
    }

    /// Counts a connection under its key, if it has one. Returns false if the key already has
    /// `most` connections.
    #[must_use]
    pub fn enter(&self, key: Option<AddressKey>, most: usize) -> bool {
        let Some(key) = key else { return true };
        let mut counts = self.lock();
        let count = counts.entry(key).or_default();
        if *count as usize >= most {
            return false;
        }
        *count += 1;
        true
    }

    /// Counts a connection out.
    pub fn leave(&self, key: Option<AddressKey>) {
        let Some(key) = key else { return };
        let mut counts = self.lock();
        if let Some(count) = counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&key);
            }
        }
    }

    /// Returns the number of addresses that are counted, for audits.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "audits compare the number")]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AddressKey, u32>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The keys of a shard's connections whose address has a cap, by slot: 4 bytes each, and none as
/// long as there is no such connection.
#[derive(Debug, Default)]
pub struct KeyBySlot(Vec<Option<AddressKey>>);

impl KeyBySlot {
    /// Keeps the key of the connection in `slot`.
    pub fn insert(&mut self, slot: usize, key: Option<AddressKey>) {
        if self.0.len() <= slot {
            if key.is_none() {
                return;
            }
            self.0.resize(slot + 1, None);
        }
        self.0[slot] = key;
    }

    /// Returns the key of the connection in `slot`.
    #[must_use]
    pub fn get(&self, slot: usize) -> Option<AddressKey> {
        self.0.get(slot).copied().flatten()
    }

    /// Takes the key of the connection in `slot`.
    pub fn take(&mut self, slot: usize) -> Option<AddressKey> {
        self.0.get_mut(slot).and_then(Option::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_take_four_bytes_and_only_where_an_address_has_a_cap() {
        let mut keys = KeyBySlot::default();
        keys.insert(1000, None);
        assert_eq!(keys.0.capacity(), 0);
        keys.insert(2, AddressKey::new(7));
        assert_eq!((keys.take(2), keys.take(2), keys.take(5)), (AddressKey::new(7), None, None));
        assert_eq!(size_of::<Option<AddressKey>>(), 4);
    }
}
