//! Map from ids to values that only a few connections of a shard have.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use throng_io::ConnId;

/// A map from connections. The ids come from this process and not from the network, so a client
/// cannot choose colliding keys, and a hash of one multiplication is enough.
pub type ConnMap<V> = HashMap<ConnId, V, BuildHasherDefault<IdHasher>>;

/// Hasher of a [`ConnMap`].
#[derive(Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, bits: u64) {
        // The table takes its slots from the low bits and its tags from the high ones: fold, so
        // that both depend on all.
        let product = u128::from(self.0 ^ bits) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_slots_are_spread_over_low_and_high_bits() {
        let (mut low, mut high) = ([0u32; 64], [0u32; 64]);
        for slot in 0..6400 {
            let mut hasher = IdHasher::default();
            hasher.write_u64(ConnId::new(0, slot, 1).to_bits());
            low[(hasher.finish() % 64) as usize] += 1;
            high[(hasher.finish() >> 58) as usize] += 1;
        }
        // A hundred are expected in each.
        assert!(
            low.iter().chain(&high).all(|&count| (40..250).contains(&count)),
            "{low:?} {high:?}"
        );
    }
}
