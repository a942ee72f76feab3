//! Random numbers from a seed.

/// SplitMix64: eight bytes of state, and good enough to spread clients.
#[derive(Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `bound`, which must not be 0. A product instead of a remainder: no
    /// division, and no measurable bias for bounds below 2^32.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mix(self.0)) * u128::from(bound)) >> 64) as u64
    }
}

/// SplitMix64's output function: each bit of `x` changes about half of the result's.
pub(super) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
