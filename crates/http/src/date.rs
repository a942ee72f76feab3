//! The Date header. [RFC 9110 section 5.6.7](https://www.rfc-editor.org/rfc/rfc9110#section-5.6.7).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::calendar::date_from_days;

/// A cache of the formatted date, updated once a second. It never reads a clock: the caller passes
/// the time.
#[derive(Clone, Debug)]
pub struct DateCache {
    unix_seconds: u64,
    text: [u8; LENGTH],
}

const LENGTH: usize = 29;

/// The current date, by a caller's steady clock: the system's clock is read once a second.
#[derive(Clone, Debug, Default)]
pub struct LiveDate {
    cache: DateCache,
    /// By the steady clock.
    until: u64,
    /// The date at 0 of the steady clock, if that clock alone counts.
    beginning: Option<Duration>,
}

impl LiveDate {
    /// Creates a date that is `unix_seconds` where the caller's clock is 0, and follows that clock
    /// alone: for simulations, whose runs must repeat.
    #[must_use]
    pub fn beginning_at(unix_seconds: u64) -> Self {
        Self { beginning: Some(Duration::from_secs(unix_seconds)), ..Self::default() }
    }

    /// Returns the date at `now`, in nanoseconds of a clock that never goes back.
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

    /// Returns the date of the last [`at`](Self::at).
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
        Self { unix_seconds: 0, text: imf_fixdate(0) }
    }

    /// Returns the date at `unix_seconds`, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
    #[inline]
    pub fn at(&mut self, unix_seconds: u64) -> &str {
        if unix_seconds != self.unix_seconds {
            self.unix_seconds = unix_seconds;
            self.text = imf_fixdate(unix_seconds);
        }
        self.current()
    }

    /// Returns the date of the last [`at`](Self::at).
    #[inline]
    #[must_use]
    pub fn current(&self) -> &str {
        str::from_utf8(&self.text).unwrap_or_default()
    }
}

impl Default for DateCache {
    fn default() -> Self {
        Self::new()
    }
}

/// Formats a Unix time in seconds as IMF-fixdate, in ASCII. From year 10000 on it stays at the last
/// second of 9999: the format has four digits.
#[must_use]
pub fn imf_fixdate(unix_seconds: u64) -> [u8; LENGTH] {
    const LAST: i64 = 253_402_300_799;
    const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed"; // the epoch was a Thursday
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";

    let seconds = i64::try_from(unix_seconds).unwrap_or(LAST).min(LAST);
    let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date_from_days(days);

    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    text[..3].copy_from_slice(three(DAYS, days % 7));
    put(&mut text[5..7], day);
    text[8..11].copy_from_slice(three(MONTHS, month - 1));
    put(&mut text[12..14], year / 100);
    put(&mut text[14..16], year % 100);
    put(&mut text[17..19], second_of_day / 3600);
    put(&mut text[20..22], second_of_day / 60 % 60);
    put(&mut text[23..25], second_of_day % 60);
    text
}

fn three(names: &[u8], index: i64) -> &[u8] {
    let start = index as usize * 3;
    &names[start..start + 3]
}

fn put(digits: &mut [u8], number: i64) {
    digits[0] = b'0' + (number / 10 % 10) as u8;
    digits[1] = b'0' + (number % 10) as u8;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9110_5_6_7_known_dates() {
        for (seconds, expected) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (951_868_799, "Tue, 29 Feb 2000 23:59:59 GMT"),
            (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"),
            (1_709_164_800, "Thu, 29 Feb 2024 00:00:00 GMT"),
            (1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT"),
            (1_735_689_600, "Wed, 01 Jan 2025 00:00:00 GMT"),
            (2_147_483_648, "Tue, 19 Jan 2038 03:14:08 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(str::from_utf8(&imf_fixdate(seconds)), Ok(expected), "{seconds}");
        }
    }

    #[test]
    fn a_live_date_is_read_again_when_its_second_is_over() {
        let mut date = LiveDate::default();
        let year: u64 = date.at(7)[12..16].parse().unwrap();
        assert!(year >= 2025, "{year}");
        // The clock knows that this second is not over.
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
