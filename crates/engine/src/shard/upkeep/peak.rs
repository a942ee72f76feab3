//! Detection of the end of a peak of memory: when freed memory is worth returning to the system.

/// Bytes whose release does not count: walking the heap would cost more than it gains.
const LITTLE: usize = 16 << 20;

/// Samples between two reports, at least: memory that comes and goes all the time is not returned
/// each time.
const REST: u8 = 10;

/// Maximum bytes held since memory was last returned, sampled once a second.
#[derive(Debug, Default)]
pub struct Peak {
    most: usize,
    /// Whether the last sample was far below the peak, and this must be reported.
    has_fallen: bool,
    /// Whether it was so too soon after the last report.
    is_early: bool,
    /// Samples until the next report may follow.
    rest: u8,
}

impl Peak {
    /// Returns whether the end of a peak is still to be reported.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.has_fallen || self.is_early
    }

    /// Returns whether enough memory is in use that returning it will be worthwhile: the end of the
    /// peak is still to come.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.most > LITTLE
    }

    /// Records the bytes that are held now, and the maximum since the last call. Returns true once
    /// memory has fallen 16 MiB plus 10 % of the rest below its peak, one sample late, because
    /// ended connections may still be freeing memory.
    pub fn is_over(&mut self, held: usize, most: usize) -> bool {
        let is_over = std::mem::take(&mut self.has_fallen);
        self.most = self.most.max(most).max(held);
        self.rest = self.rest.saturating_sub(1);
        let is_far_below = self.most - held > LITTLE + held / 10;
        self.is_early = is_far_below && self.rest > 0;
        if is_far_below && self.rest == 0 {
            (self.most, self.rest) = (held, REST);
            self.has_fallen = true;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_peak_is_reported_once_a_sample_later_whatever_is_left() {
        let mut peak = Peak::default();
        let mib = |count: usize| count << 20;
        for held in [0, 16, 0, 300, 260] {
            assert!(!peak.is_over(mib(held), 0) && !peak.is_awaited(), "{held}");
        }
        assert!(!peak.is_over(mib(250), 0) && peak.is_awaited());
        assert!(peak.is_over(mib(200), 0), "a sample later");
        // Too soon for another report.
        for _ in 2..REST {
            assert!(!peak.is_over(0, 0) && peak.is_awaited());
        }
        assert!(!peak.is_over(0, 0) && peak.is_over(0, 0));
        assert!(!peak.is_over(0, 0) && !peak.is_awaited());
    }

    #[test]
    fn a_peak_is_up_until_its_end_is_seen() {
        let mut peak = Peak::default();
        assert!(!peak.is_over(LITTLE, 0) && !peak.is_up());
        assert!(!peak.is_over(LITTLE + 1, 0) && peak.is_up());
        // All at once.
        assert!(!peak.is_over(0, 0) && peak.is_awaited());
        assert!(peak.is_over(0, 0) && !peak.is_up() && !peak.is_awaited());
    }

    #[test]
    fn a_peak_between_two_samples_counts() {
        let mut peak = Peak::default();
        assert!(!peak.is_over(0, 17 << 20) && peak.is_awaited());
        assert!(peak.is_over(0, 0));
    }
}
