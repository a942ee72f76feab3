//! Input of a connection that cannot be used yet.

/// Bytes received and not yet decoded.
///
/// Decoding moves a cursor instead of the bytes, so removing one request or message costs nothing
/// for the bytes that follow.
#[derive(Debug, Default)]
pub struct HeldInput {
    bytes: Vec<u8>,
    /// Used bytes at the front; never more than half of all.
    used: usize,
}

impl HeldInput {
    /// Holds a copy of `bytes`.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), used: 0 }
    }

    /// Returns the number of bytes still to be used.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.used
    }

    /// Returns whether all bytes are used.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the unused bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Returns the unused bytes for a decoder, which unmasks and unfolds in place.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.used..]
    }

    /// Returns the memory that it takes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns the bytes in memory, the used ones included; for audits.
    #[must_use]
    pub fn footprint(&self) -> usize {
        self.bytes.len()
    }

    /// Appends `more`.
    pub fn push(&mut self, more: &[u8]) {
        self.bytes.extend_from_slice(more);
    }

    /// Marks `count` more bytes as used. The unused bytes are moved, and the memory of used bytes
    /// is freed, only when at most half of the bytes are unused: this makes the cost per byte
    /// constant. An empty buffer keeps no memory.
    pub fn consume(&mut self, count: usize) {
        self.used += count;
        debug_assert!(self.used <= self.bytes.len(), "more was used than there is");
        if self.len() <= self.bytes.len() / 2 {
            *self = Self::new(self.as_slice());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_and_the_used_ones_never_outweigh_the_rest() {
        let mut held = HeldInput::default();
        let (mut pushed, mut taken) = (0u32, 0u32);
        for round in 0..1000u32 {
            let more: Vec<u8> = (0..round % 7 + 1).map(|at| (pushed + at) as u8).collect();
            pushed += more.len() as u32;
            held.push(&more);
            let before = held.len();
            let count = before.min(round as usize % 6);
            for (at, byte) in held.as_mut_slice()[..count].iter().enumerate() {
                assert_eq!(*byte, (taken + at as u32) as u8);
            }
            held.consume(count);
            taken += count as u32;
            assert!(held.footprint() <= 2 * before + more.len(), "round {round}");
        }
        assert_eq!(held.as_slice().len(), (pushed - taken) as usize);
        held.consume(held.len());
        assert_eq!((held.is_empty(), held.footprint(), held.memory()), (true, 0, 0));
    }
}
