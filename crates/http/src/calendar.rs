//! The Gregorian calendar, also before there was one (ISO 8601): days since 1970-01-01 as year,
//! month and day.
//!
//! Years begin with March here, so that the leap day is a year's last; the calendar repeats after
//! 400 years of 146,097 days. See Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".

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
}
