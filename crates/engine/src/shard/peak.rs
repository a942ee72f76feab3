//! Detection of the end of a peak of memory: when that is worth returning to the system.

/// Bytes below which a peak does not count: walking the heap would cost more than it gains.
const STORM: usize = 16 << 20;

/// Most bytes that connections have held since memory was last returned, sampled each second.
#[derive(Debug, Default)]
pub struct Peak(usize);

impl Peak {
    /// Returns whether there was a large peak whose end has not come yet.
    pub(crate) fn is_awaited(&self) -> bool {
        self.0 >= STORM
    }

    /// Records the bytes that are held now. Returns true if they are less than a quarter of a large
    /// peak; then they are the new peak.
    pub fn is_over(&mut self, waits: usize) -> bool {
        self.0 = self.0.max(waits);
        let is_over = self.0 >= STORM && waits < self.0 / 4;
        if is_over {
            self.0 = waits;
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
        for (waits, over) in
            [(0, false), (mib(15), false), (0, false), (mib(100), false), (mib(25), false)]
        {
            assert_eq!(peak.is_over(waits), over, "{waits}");
        }
        assert!(peak.is_over(mib(24)));
        assert!(!peak.is_over(mib(24)));
        assert!(peak.is_over(0));
        assert!(!peak.is_over(0));
    }
}
