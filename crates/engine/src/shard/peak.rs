//! Detection of the end of a peak of memory: when that is worth returning to the system.

/// Bytes below which a peak does not count: walking the heap would cost more than it gains.
const STORM: usize = 16 << 20;

/// Most bytes that connections have held since memory was last returned, sampled each second.
#[derive(Debug, Default)]
pub struct Peak {
    most: usize,
    /// Whether the last sample was less than a quarter of a large peak.
    has_fallen: bool,
}

impl Peak {
    /// Returns whether there was a large peak whose end was not reported yet.
    pub(crate) fn is_awaited(&self) -> bool {
        self.has_fallen || self.most >= STORM
    }

    /// Records the bytes that are held now. Returns true once, after they were less than a quarter
    /// of a large peak: one sample later, since what has ended may still be freeing its memory.
    pub fn is_over(&mut self, held: usize) -> bool {
        let is_over = std::mem::take(&mut self.has_fallen);
        self.most = self.most.max(held);
        if self.most >= STORM && held < self.most / 4 {
            self.most = held;
            self.has_fallen = true;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_over_once_when_three_quarters_are_gone() {
        let mut peak = Peak::default();
        let mib = |count: usize| count << 20;
        for (held, over) in
            [(0, false), (mib(15), false), (0, false), (mib(100), false), (mib(25), false)]
        {
            assert_eq!(peak.is_over(held), over, "{held}");
        }
        assert!(!peak.is_over(mib(24)));
        assert!(peak.is_over(mib(24)), "a sample later");
        assert!(!peak.is_over(0) && peak.is_awaited());
        assert!(peak.is_over(0));
        assert!(!peak.is_over(0) && !peak.is_awaited());
    }
}
