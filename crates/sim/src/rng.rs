//! The only source of randomness: all random choices of a run follow from its seed.

use throng_engine::random::Random;

/// A generator with more kinds of choices than production needs.
#[derive(Clone, Debug)]
pub struct Rng(Random);

impl Rng {
    /// The generator of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// An independent generator, so that a change in one part does not change the numbers of
    /// others.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.draw())
    }

    /// 64 random bits.
    pub fn draw(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() % (n.max(1) as u64)) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high.saturating_sub(low) + 1)
    }

    /// Returns true in one of `n` draws on average.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.draw().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// Random text of `len` bytes, with characters of one to four bytes.
    pub fn text(&mut self, len: usize) -> String {
        let mut text = String::with_capacity(len + 4);
        while text.len() < len {
            let next = self.pick(&['a', 'Z', '7', ' ', '\u{e9}', '\u{20ac}', '\u{1f980}']);
            if text.len() + next.len_utf8() <= len {
                text.push(next);
            } else {
                text.push('.');
            }
        }
        text
    }
}

/// A running hash of all events: the same seed must give the same hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace(u64);

impl Default for Trace {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    /// Adds a number.
    pub fn mix(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    /// Adds bytes.
    pub fn mix_bytes(&mut self, bytes: &[u8]) {
        self.mix(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    /// The hash so far.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0
    }
}

/// The hash of one message, its kind included.
#[must_use]
pub fn message_hash(text: bool, payload: &[u8]) -> u64 {
    let mut trace = Trace::default();
    trace.mix(u64::from(text));
    trace.mix_bytes(payload);
    trace.value()
}
