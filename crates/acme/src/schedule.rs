//! The times of renewals and of attempts after a failure.

use std::time::{Duration, SystemTime};

/// The time between a failure and the next attempt: after the first failure, and the maximum. Let's
/// Encrypt refuses a domain for an hour after five failed validations.
const FIRST_WAIT: Duration = Duration::from_secs(60);
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(6 * 3600);

/// Maximum consecutive failures after which a requested attempt still starts at once.
const FREE_ATTEMPTS: u32 = 3;

/// Bounds for the time between two requests for renewal information; the authority chooses a time
/// within them (RFC 9773 section 4.3.2).
const SHORTEST_POLL: Duration = Duration::from_secs(60);
const LONGEST_POLL: Duration = Duration::from_secs(24 * 3600);

/// The time in which an authority wants a certificate to be renewed (RFC 9773 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: SystemTime,
    pub(crate) end: SystemTime,
}

impl Window {
    /// Returns a time within the window; `random` is between 0 and 1.
    pub(crate) fn pick(self, random: f64) -> SystemTime {
        let length = self.end.duration_since(self.start).unwrap_or_default();
        self.start + length.mul_f64(random)
    }
}

/// The time in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) from: SystemTime,
    pub(crate) until: SystemTime,
}

impl Validity {
    /// Returns when to renew the certificate if its authority does not specify it: after two thirds
    /// of its lifetime, or up to a thirtieth earlier, so that servers do not all renew at once.
    pub(crate) fn renewal(self, random: f64) -> SystemTime {
        let length = self.until.duration_since(self.from).unwrap_or_default();
        self.from + length.mul_f64(2.0 / 3.0 - random / 30.0)
    }
}

/// Returns the time until the next attempt after this many consecutive failures: it doubles with
/// each failure, and is up to a fifth longer at random.
pub(crate) fn wait_after(failures: u32, random: f64) -> Duration {
    let doubled = FIRST_WAIT.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(LONGEST_WAIT).mul_f64(1.0 + random / 5.0)
}

/// Returns how long after a failure no attempt starts, even on request.
pub(crate) fn hold_after(failures: u32, retry_after: Option<Duration>) -> Duration {
    let least = if failures <= FREE_ATTEMPTS { Duration::ZERO } else { FIRST_WAIT };
    retry_after.unwrap_or_default().max(least)
}

/// Returns the time until the next request for the renewal information.
pub(crate) fn poll_after(wanted: Duration) -> Duration {
    wanted.clamp(SHORTEST_POLL, LONGEST_POLL)
}

/// Draws a number between 0 and 1.
pub(crate) fn random() -> f64 {
    let mut bytes = [0; 4];
    match aws_lc_rs::rand::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(days: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(days * 24 * 3600)
    }

    #[test]
    fn rfc9773_4_2_a_time_within_the_window_is_picked() {
        let window = Window { start: at(10), end: at(20) };
        assert_eq!([0.0, 0.5, 1.0].map(|random| window.pick(random)), [at(10), at(15), at(20)]);
        let turned = Window { start: at(20), end: at(10) };
        assert_eq!(turned.pick(1.0), at(20));
    }

    #[test]
    fn without_renewal_information_two_thirds_of_the_time_count() {
        let validity = Validity { from: at(0), until: at(90) };
        let days =
            |random| validity.renewal(random).duration_since(at(0)).unwrap().as_secs() / 86_400;
        assert_eq!((days(0.0), days(1.0)), (60, 57));
        let of_a_week = Validity { from: at(0), until: at(6) };
        assert_eq!(of_a_week.renewal(0.0), at(4));
    }

    #[test]
    fn attempts_become_rarer_but_never_end() {
        let minutes = |failures| wait_after(failures, 0.0).as_secs() / 60;
        assert_eq!([1, 2, 3, 9, 10, 11, u32::MAX].map(minutes), [1, 2, 4, 256, 360, 360, 360]);
        assert_eq!(wait_after(1, 1.0), Duration::from_secs(72));
    }

    #[test]
    fn an_attempt_that_is_asked_for_waits_as_the_authority_says_or_after_three_failures() {
        let hour = Duration::from_secs(3600);
        assert_eq!([1, 3, 4, u32::MAX].map(|it| hold_after(it, Some(hour))), [hour; 4]);
        for none in [None, Some(Duration::ZERO)] {
            let seconds = |failures| hold_after(failures, none).as_secs();
            assert_eq!([1, 3, 4, u32::MAX].map(seconds), [0, 0, 60, 60]);
        }
    }

    #[test]
    fn an_authority_decides_within_limits_how_often_it_is_asked() {
        let hour = Duration::from_secs(3600);
        assert_eq!(poll_after(6 * hour), 6 * hour);
        assert_eq!(poll_after(Duration::ZERO), SHORTEST_POLL);
        assert_eq!(poll_after(1000 * hour), LONGEST_POLL);
    }
}
