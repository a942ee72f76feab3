//! Detection of the end of a burst of connections that come or go: when its memory is worth
//! returning to the system.

/// Connections of a burst that free enough memory to be worth returning.
const MANY: u64 = 1000;

/// Connections that may come or go between two looks without making a burst.
const FEW: u64 = 64;

/// Looks in a row with few connections until a burst is over: an idle TLS session frees the last of
/// its memory after two seconds.
const QUIET_LOOKS: u8 = 2;

/// Detects the end of a burst of connections. A connection frees memory when its handshake is
/// complete: hundreds of bytes, with TLS thousands. When it ends, it frees the memory of its
/// channels and of its presence in them. After thousands of connections at once the allocator would
/// keep this memory, between blocks in use.
#[derive(Debug, Default)]
pub struct BurstDetector {
    /// Connections ever accepted, and open connections, at the last look.
    accepted: u64,
    open: u64,
    /// Connections that came or went since the last quiet time.
    moved: u64,
    quiet_looks: u8,
}

impl BurstDetector {
    /// Called once per sweep with the number of connections ever accepted and of open connections.
    /// Returns true once when a burst is over.
    pub fn is_over(&mut self, accepted: u64, open: u64) -> bool {
        let came = accepted - std::mem::replace(&mut self.accepted, accepted);
        let went = (std::mem::replace(&mut self.open, open) + came).saturating_sub(open);
        if came + went >= FEW {
            self.moved += came + went;
            self.quiet_looks = 0;
            return false;
        }
        self.quiet_looks = (self.quiet_looks + 1).min(QUIET_LOOKS);
        if self.quiet_looks < QUIET_LOOKS {
            return false;
        }
        std::mem::take(&mut self.moved) >= MANY
    }

    /// Returns whether the end of a burst is still to be reported.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.moved >= MANY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_burst_is_reported_once_after_two_quiet_looks() {
        let mut burst = BurstDetector::default();
        let mut look = |accepted| burst.is_over(accepted, accepted);
        for accepted in [0, 10, 10, 600, 1100, 1110, 1500, 1510] {
            assert!(!look(accepted), "{accepted}");
        }
        assert!(look(1520), "few came twice in a row");
        for accepted in [1520, 1520, 2400, 2400, 2400] {
            assert!(!look(accepted), "{accepted}: too few for a burst");
        }
    }

    #[test]
    fn connections_that_go_are_a_burst_as_well() {
        let mut burst = BurstDetector::default();
        // Slowly come: 50 at each look.
        let mut accepted = 0;
        while accepted < 1500 {
            accepted += 50;
            assert!(!burst.is_over(accepted, accepted));
        }
        for open in [1450, 800, 100] {
            assert!(!burst.is_over(1500, open), "{open}");
        }
        assert!(burst.is_awaited());
        assert!(!burst.is_over(1500, 90));
        assert!(burst.is_over(1500, 80));
        assert!(!burst.is_awaited() && !burst.is_over(1500, 80));
        // Come and gone between two looks.
        assert!(!burst.is_over(2100, 80) && burst.is_awaited());
    }
}
