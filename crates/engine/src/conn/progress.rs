//! Minimum rates.

/// Bytes since a deadline was last moved. A peer that must send `enough` bytes within a timeout
/// keeps a minimum rate, with one deadline and without a clock read per byte.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    fresh: u64,
}

impl Progress {
    /// Counts bytes. Returns true when at least `enough` bytes have come since the last time it
    /// returned true: the caller must then move the deadline.
    pub fn add(&mut self, bytes: usize, enough: u64) -> bool {
        self.fresh = self.fresh.saturating_add(bytes as u64);
        let is_enough = self.fresh >= enough;
        if is_enough {
            self.fresh = 0;
        }
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_timeout_needs_its_own_bytes() {
        let mut progress = Progress::default();
        let moved: Vec<_> =
            [60, 39, 1, 99, 1, 250, 99].map(|bytes| progress.add(bytes, 100)).into();
        assert_eq!(moved, [false, false, true, false, true, true, false]);
        assert!(progress.add(0, 0), "without a minimum any progress is enough");
    }
}
