//! Input of a client that cannot be used yet.

/// Bytes received and not yet decoded: pipelined requests, or frames before the 101.
///
/// Decoding moves a cursor instead of the bytes, so taking one request out costs nothing for those
/// behind it.
#[derive(Debug, Default)]
pub(super) struct PendingInput {
    bytes: Vec<u8>,
    /// Used bytes at the front.
    used: usize,
}

impl PendingInput {
    /// Returns the number of bytes still to be used.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.used
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Returns the unused bytes for a decoder, which unmasks and unfolds in place.
    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.used..]
    }

    /// Returns the bytes in memory, the used ones included.
    pub(super) fn footprint(&self) -> usize {
        self.bytes.len()
    }

    /// Appends `more`. Used bytes are removed only when they are at least as many as those that
    /// have to be moved, which makes the cost of a byte constant.
    pub(super) fn push(&mut self, more: &[u8]) {
        if self.used >= self.len() {
            self.bytes.drain(..self.used);
            self.used = 0;
        }
        self.bytes.extend_from_slice(more);
    }

    /// Marks `count` more bytes as used. Without any left the memory is freed: an idle connection
    /// holds no buffer.
    pub(super) fn consume(&mut self, count: usize) {
        self.used += count;
        debug_assert!(self.used <= self.bytes.len(), "more was used than there is");
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_and_the_used_ones_never_outweigh_the_rest() {
        let mut held = PendingInput::default();
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
        assert_eq!((held.is_empty(), held.footprint()), (true, 0));
    }
}
