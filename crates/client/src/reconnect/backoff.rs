//! Pauses between attempts to connect.

use std::time::Duration;

/// The pauses between attempts to connect: exponential, with full jitter.
///
/// A pause is random between 0 and a bound, so that many clients of a restarted server do not all
/// reconnect at once. The bound is `first`, doubles with each connection that fails or ends without
/// having received a message, and is at most `longest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    pub(super) attempts: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(500),
            longest: Duration::from_secs(30),
            attempts: u32::MAX,
        }
    }
}

impl Backoff {
    /// Sets the upper bound of the first pause. Default 500 ms.
    pub fn first(mut self, first: Duration) -> Self {
        self.first = first;
        self
    }

    /// Sets the upper bound of every pause. Default 30 s.
    pub fn longest(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    /// Sets the number of failed attempts in a row after which the last error is returned. Default:
    /// no limit.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Returns a random pause after `failures` consecutive failures, for a program's own reconnect
    /// loop. If the system has no random numbers, returns the longest possible pause.
    #[must_use]
    pub fn pause(&self, failures: u32) -> Duration {
        self.pause_for(failures, getrandom::u64().unwrap_or(u64::MAX))
    }

    /// Returns the pause for these 64 random bits.
    fn pause_for(&self, failures: u32, random: u64) -> Duration {
        let factor = 1u32.checked_shl(failures).unwrap_or(u32::MAX);
        let bound = self.first.saturating_mul(factor).min(self.longest);
        let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(((u128::from(nanos) * u128::from(random)) >> 64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_random_up_to_a_bound_that_doubles() {
        let backoff = Backoff::default().first(Duration::from_secs(1));
        let bounds =
            [0, 1, 4, 5, 40].map(|failures| backoff.pause_for(failures, u64::MAX).as_secs_f64());
        for (bound, expected) in bounds.into_iter().zip([1.0, 2.0, 16.0, 30.0, 30.0]) {
            assert!((bound - expected).abs() < 1e-6, "{bound} for {expected}");
        }
        assert_eq!(backoff.pause_for(3, 0), Duration::ZERO);
        assert_eq!(backoff.pause_for(3, u64::MAX / 2 + 1), Duration::from_secs(4));
    }
}
