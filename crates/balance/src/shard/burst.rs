//! Detection of the end of a burst of new clients.

/// The number of clients since the last quiet time that leaves enough free memory to be given back.
const MANY: u64 = 1000;

/// Detects the end of a burst. The memory that a client needs until its tunnel is open, some
/// hundreds of bytes, is free then; after thousands at one moment the allocator would keep it, four
/// times as much as the tunnels themselves have.
#[derive(Debug, Default)]
pub(super) struct BurstDetector {
    /// Clients ever accepted, at the last look, and at the last quiet time.
    looked: u64,
    quiet: u64,
}

impl BurstDetector {
    /// Called once a sweep. Returns whether there was a burst and no client came since the last
    /// look.
    pub(super) fn is_over(&mut self, accepted: u64) -> bool {
        let is_quiet = accepted == std::mem::replace(&mut self.looked, accepted);
        let is_over = is_quiet && accepted - self.quiet >= MANY;
        if is_quiet {
            self.quiet = accepted;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_burst_is_reported_once() {
        let mut burst = BurstDetector::default();
        let events: Vec<_> = [0, 10, 10, 600, 1009, 1010, 1010, 1010, 1500, 1500]
            .map(|accepted| burst.is_over(accepted))
            .into();
        let expected = [false, false, false, false, false, false, true, false, false, false];
        assert_eq!(events, expected);
    }
}
