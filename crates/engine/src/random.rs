//! Random numbers from a seed, for choices that need not be secret.

/// SplitMix64: eight bytes of state, any seed will do, and the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// The step of the state, the golden ratio of 2^64: it visits all states.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// Creates the generator of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Returns a number below `bound`, which must not be 0. A product instead of a remainder: no
    /// division, and no measurable bias for bounds below 2^32.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Mixes the bits of `x`: each of them changes about half of the result's.
#[must_use]
pub const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        // Of the reference implementation by Sebastiano Vigna, with the seed 1234567.
        let mut random = Random::new(1_234_567);
        let numbers: Vec<_> = (0..3).map(|_| random.bits()).collect();
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973];
        assert_eq!(numbers[..2], expected);
        assert_eq!(numbers[2], 9_817_491_932_198_370_423);
    }

    #[test]
    fn a_shuffle_keeps_all_and_gives_each_place_to_each_equally_often() {
        let mut random = Random::new(3);
        let mut firsts = [0u32; 5];
        for _ in 0..10_000 {
            let mut items = [0, 1, 2, 3, 4];
            random.shuffle(&mut items);
            firsts[items[0]] += 1;
            items.sort_unstable();
            assert_eq!(items, [0, 1, 2, 3, 4]);
        }
        assert!(firsts.iter().all(|count| (1850..2150).contains(count)), "{firsts:?}");
        random.shuffle::<u8>(&mut []);
    }
}
