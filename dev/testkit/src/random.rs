//! Random numbers from a seed, so that a failing case repeats.

/// Marsaglia's xorshift with 64 bits of state.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates the generator of a seed, which is made odd: a state of 0 would stay 0.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Returns 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `end`, which must not be 0.
    pub const fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }
}

/// Returns `len` bytes that do not compress and do not repeat.
#[must_use]
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    std::iter::repeat_with(|| (random.bits() >> 32) as u8).take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_its_own_numbers_each_time() {
        assert_eq!(noise(100, 7), noise(100, 7));
        assert_ne!(noise(100, 7), noise(100, 8));
        assert!((0..1000).all(|seed| Random::new(seed).below(3) < 3));
    }
}
