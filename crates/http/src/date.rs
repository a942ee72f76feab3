//! The Date header. [RFC 9110 section 5.6.7](https://www.rfc-editor.org/rfc/rfc9110#section-5.6.7).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use throng_proto::calendar::imf_fixdate;

/// A cache of the formatted date, updated once a second. It never reads a clock: the caller passes
/// the time.
#[derive(Clone, Debug)]
pub struct DateCache {
    unix_seconds: u64,
    text: String,
}

/// The current date by the caller's monotonic clock. Reads the system's clock once a second.
#[derive(Clone, Debug, Default)]
pub struct LiveDate {
    cache: DateCache,
    /// The end of validity, by the monotonic clock.
    until: u64,
    /// The date at time 0 of the monotonic clock, if only that clock counts.
    beginning: Option<Duration>,
}

impl LiveDate {
    /// Creates a date that is `unix_seconds` at time 0 of the caller's clock, and follows only that
    /// clock: simulations must be repeatable.
    #[must_use]
    pub fn beginning_at(unix_seconds: u64) -> Self {
        Self { beginning: Some(Duration::from_secs(unix_seconds)), ..Self::default() }
    }

    /// Returns the date at `now`, in nanoseconds of a monotonic clock.
    #[inline]
    pub fn at(&mut self, now: u64) -> &str {
        if now >= self.until {
            let since_epoch = match self.beginning {
                Some(beginning) => beginning + Duration::from_nanos(now),
                None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            };
            self.cache.at(since_epoch.as_secs());
            self.until = now + 1_000_000_000 - u64::from(since_epoch.subsec_nanos());
        }
        self.cache.current()
    }

    /// Returns the date of the last call of [`at`](Self::at).
    #[inline]
    #[must_use]
    pub fn current(&self) -> &str {
        self.cache.current()
    }
}

impl DateCache {
    /// Creates a cache of the epoch, until the first update.
    #[must_use]
    pub fn new() -> Self {
        Self { unix_seconds: 0, text: text_of(0) }
    }

    /// Returns the date at `unix_seconds`, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
    #[inline]
    pub fn at(&mut self, unix_seconds: u64) -> &str {
        if unix_seconds != self.unix_seconds {
            self.unix_seconds = unix_seconds;
            self.text = text_of(unix_seconds);
        }
        self.current()
    }

    /// Returns the date of the last [`at`](Self::at).
    #[inline]
    #[must_use]
    pub fn current(&self) -> &str {
        &self.text
    }
}

fn text_of(unix_seconds: u64) -> String {
    imf_fixdate(unix_seconds).iter().map(|byte| char::from(*byte)).collect()
}

impl Default for DateCache {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_date_is_read_again_when_its_second_is_over() {
        let mut date = LiveDate::default();
        let year: u64 = date.at(7)[12..16].parse().unwrap();
        assert!(year >= 2025, "{year}");
        // The cached second is not over, so the system's clock is not read.
        date.cache.at(0);
        assert_eq!(date.at(7)[12..16], *"1970");
        assert_ne!(date.at(7 + 1_000_000_000)[12..16], *"1970");
    }

    #[test]
    fn a_date_that_begins_somewhere_follows_the_callers_clock_alone() {
        let mut date = LiveDate::beginning_at(784_111_777);
        for (now, second) in [(0, "37"), (999_999_999, "37"), (1_000_000_000, "38")] {
            assert_eq!(date.at(now), format!("Sun, 06 Nov 1994 08:49:{second} GMT"), "{now}");
        }
    }

    #[test]
    fn the_cache_follows_its_clock_even_backwards() {
        let mut cache = DateCache::new();
        assert_eq!(cache.at(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(cache.at(784_111_778), "Sun, 06 Nov 1994 08:49:38 GMT");
        assert_eq!(cache.at(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(cache.current(), "Thu, 01 Jan 1970 00:00:00 GMT");
    }
}
