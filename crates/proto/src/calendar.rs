//! The proleptic Gregorian calendar (ISO 8601): days since 1970-01-01 as year, month and day; and
//! the dates of HTTP.
//!
//! Years begin with March here, so that the leap day is the last day of a year. The calendar
//! repeats after 400 years of 146,097 days. See Howard Hinnant, "chrono-Compatible Low-Level Date
//! Algorithms".

/// Days from 0000-03-01 to 1970-01-01.
const EPOCH: i64 = 719_468;

/// Returns the number of days of `month`, which is 1 to 12.
#[inline]
#[must_use]
pub const fn days_in_month(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Converts a year, a month of 1 to 12 and a day of 1 to 31 to days since the epoch.
#[inline]
#[must_use]
pub const fn days_from_date(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - EPOCH
}

/// Converts days since the epoch to year, month 1 to 12 and day 1 to 31: the inverse of
/// [`days_from_date`].
#[inline]
#[must_use]
pub const fn date_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_of_era;
    if month < 10 { (year, month + 3, day) } else { (year + 1, month - 9, day) }
}

/// Bytes of an [`imf_fixdate`].
pub const IMF_LENGTH: usize = 29;

/// Formats a Unix time in seconds as IMF-fixdate, in ASCII
/// ([RFC 9110 section 5.6.7](https://www.rfc-editor.org/rfc/rfc9110#section-5.6.7)).
///
/// From year 10000 on it returns the last second of 9999, because the format has four digits.
#[must_use]
pub fn imf_fixdate(unix_seconds: u64) -> [u8; IMF_LENGTH] {
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
    fn every_day_follows_the_day_before() {
        // GNU date has the same first day.
        let mut days = -719_528;
        for year in 0..=9999 {
            for month in 1..=12 {
                for day in 1..=days_in_month(year, month) {
                    assert_eq!(days_from_date(year, month, day), days);
                    assert_eq!(date_from_days(days), (year, month, day));
                    days += 1;
                }
            }
        }
        // 9999-12-31T23:59:59Z is 253,402,300,799.
        assert_eq!(days * 86_400, 253_402_300_800);
    }

    #[test]
    fn a_year_is_a_leap_year_by_three_rules() {
        for (year, days) in [(2023, 28), (2024, 29), (1900, 28), (2100, 28), (2000, 29)] {
            assert_eq!(days_in_month(year, 2), days, "{year}");
        }
    }

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
}
