//! Parsing of dates in requests.
//! [RFC 9110 section 5.6.7](https://www.rfc-editor.org/rfc/rfc9110#section-5.6.7).

use throng_proto::calendar::{days_from_date, days_in_month, imf_fixdate};

/// A date and time in UTC, in an order suitable for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    year: i64,
    month: i64,
    day: i64,
    second_of_day: i64,
}

/// Parses an HTTP-date in any of its three forms to Unix time in seconds:
/// `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT`, `Sun Nov  6 08:49:37 1994`.
///
/// The day of the week is not compared with the date. `now` determines the century of a two-digit
/// year.
pub(super) fn parse(text: &[u8], now: u64) -> Option<i64> {
    let moment = imf(text).or_else(|| asctime(text)).or_else(|| rfc850(text, now))?;
    Some(moment.unix_seconds())
}

fn imf(text: &[u8]) -> Option<Moment> {
    // Sun, 06 Nov 1994 08:49:37 GMT
    let [_, _, _, b',', b' ', day @ .., b' ', b'G', b'M', b'T'] = text else { return None };
    weekday(&text[..3])?;
    let [d1, d2, b' ', m1, m2, m3, b' ', y1, y2, y3, y4, b' ', time @ ..] = day else {
        return None;
    };
    let year = number(&[*y1, *y2, *y3, *y4])?;
    Moment::new(year, month(&[*m1, *m2, *m3])?, number(&[*d1, *d2])?, time_of_day(time)?)
}

fn asctime(text: &[u8]) -> Option<Moment> {
    // Sun Nov  6 08:49:37 1994
    let [_, _, _, b' ', m1, m2, m3, b' ', d1, d2, b' ', rest @ ..] = text else { return None };
    weekday(&text[..3])?;
    let [time @ .., b' ', y1, y2, y3, y4] = rest else { return None };
    let day = if *d1 == b' ' { number(&[*d2])? } else { number(&[*d1, *d2])? };
    let year = number(&[*y1, *y2, *y3, *y4])?;
    Moment::new(year, month(&[*m1, *m2, *m3])?, day, time_of_day(time)?)
}

fn rfc850(text: &[u8], now: u64) -> Option<Moment> {
    // Sunday, 06-Nov-94 08:49:37 GMT
    const DAYS: [&[u8]; 7] =
        [b"Monday", b"Tuesday", b"Wednesday", b"Thursday", b"Friday", b"Saturday", b"Sunday"];
    let comma = text.iter().position(|byte| *byte == b',')?;
    if !DAYS.contains(&&text[..comma]) {
        return None;
    }
    let [b',', b' ', day @ .., b' ', b'G', b'M', b'T'] = &text[comma..] else { return None };
    let [d1, d2, b'-', m1, m2, m3, b'-', y1, y2, b' ', time @ ..] = day else { return None };
    // "MUST interpret a timestamp that appears to be more than 50 years in the future as
    // representing the most recent year in the past that had the same last two digits": the latest
    // year that is at most 50 years ahead.
    let mut latest = imf(&imf_fixdate(now))?;
    latest.year += 50;
    let last = latest.year - (latest.year - number(&[*y1, *y2])?).rem_euclid(100);
    let (month, day) = (month(&[*m1, *m2, *m3])?, number(&[*d1, *d2])?);
    let of_year = |year| Moment::new(year, month, day, time_of_day(time)?);
    match of_year(last) {
        Some(moment) if moment > latest => of_year(last - 100),
        found => found,
    }
}

fn weekday(name: &[u8]) -> Option<()> {
    const DAYS: [&[u8]; 7] = [b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat", b"Sun"];
    DAYS.contains(&name).then_some(())
}

fn month(name: &[u8]) -> Option<i64> {
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    MONTHS.chunks(3).zip(1..).find_map(|(known, number)| (known == name).then_some(number))
}

fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |number, digit| {
        digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0'))
    })
}

fn time_of_day(text: &[u8]) -> Option<i64> {
    let [h1, h2, b':', m1, m2, b':', s1, s2] = text else { return None };
    let (hour, minute, second) = (number(&[*h1, *h2])?, number(&[*m1, *m2])?, number(&[*s1, *s2])?);
    // 60 is a leap second; Unix time gives it the number of the next second.
    (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3600 + minute * 60 + second)
}

impl Moment {
    fn new(year: i64, month: i64, day: i64, second_of_day: i64) -> Option<Self> {
        let is_day = (1..=days_in_month(year, month)).contains(&day);
        is_day.then_some(Self { year, month, day, second_of_day })
    }

    fn unix_seconds(self) -> i64 {
        days_from_date(self.year, self.month, self.day) * 86_400 + self.second_of_day
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 20 November 2026, 13:00:00.
    const NOW: u64 = 1_795_179_600;

    fn at(text: &str) -> Option<i64> {
        parse(text.as_bytes(), NOW)
    }

    /// The expected seconds were computed with GNU date.
    #[test]
    fn rfc9110_5_6_7_three_forms_of_the_same_moments() {
        for (seconds, imf, rfc850, asctime) in [
            (
                784_111_777,
                "Sun, 06 Nov 1994 08:49:37 GMT",
                "Sunday, 06-Nov-94 08:49:37 GMT",
                "Sun Nov  6 08:49:37 1994",
            ),
            (0, "Thu, 01 Jan 1970 00:00:00 GMT", "", "Thu Jan  1 00:00:00 1970"),
            (-1, "Wed, 31 Dec 1969 23:59:59 GMT", "", "Wed Dec 31 23:59:59 1969"),
            (-62_135_596_800, "Mon, 01 Jan 0001 00:00:00 GMT", "", "Mon Jan  1 00:00:00 0001"),
            (
                951_868_799,
                "Tue, 29 Feb 2000 23:59:59 GMT",
                "Tuesday, 29-Feb-00 23:59:59 GMT",
                "Tue Feb 29 23:59:59 2000",
            ),
            (
                1_709_164_800,
                "Thu, 29 Feb 2024 00:00:00 GMT",
                "Thursday, 29-Feb-24 00:00:00 GMT",
                "Thu Feb 29 00:00:00 2024",
            ),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT", "", "Mon Mar  1 00:00:00 2100"),
            (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT", "", "Fri Dec 31 23:59:59 9999"),
        ] {
            assert_eq!(at(imf), Some(seconds), "{imf}");
            assert_eq!(at(asctime), Some(seconds), "{asctime}");
            if !rfc850.is_empty() {
                assert_eq!(at(rfc850), Some(seconds), "{rfc850}");
            }
        }
        // A leap second.
        assert_eq!(at("Sat, 31 Dec 2016 23:59:60 GMT"), at("Sun, 01 Jan 2017 00:00:00 GMT"));
    }

    #[test]
    fn rfc9110_5_6_7_a_year_of_two_digits_is_at_most_50_years_ahead() {
        for (text, year) in [
            ("Friday, 20-Nov-26 13:00:00 GMT", 2026),
            ("Friday, 20-Nov-75 13:00:00 GMT", 2075),
            ("Friday, 20-Nov-76 13:00:00 GMT", 2076),
            ("Friday, 20-Nov-76 13:00:01 GMT", 1976),
            ("Saturday, 21-Nov-76 00:00:00 GMT", 1976),
            ("Friday, 20-Nov-77 13:00:00 GMT", 1977),
            ("Friday, 20-Nov-99 13:00:00 GMT", 1999),
            ("Friday, 20-Nov-00 13:00:00 GMT", 2000),
        ] {
            let found = rfc850(text.as_bytes(), NOW).map(|moment| moment.year);
            assert_eq!(found, Some(year), "{text}");
        }
        // The 29th of February of 2076 would be more than 50 years ahead of 2026-01-01; 1976 also
        // has one.
        let new_year = 1_767_225_600;
        let found = rfc850(b"Saturday, 29-Feb-76 00:00:00 GMT", new_year).map(|moment| moment.year);
        assert_eq!(found, Some(1976));
    }

    #[test]
    fn rfc9110_5_6_7_invalid_dates() {
        for text in [
            "",
            "0",
            "GMT",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37 +0000",
            "sun, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 nov 1994 08:49:37 GMT",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 94 08:49:37 GMT",
            "Xxx, 06 Nov 1994 08:49:37 GMT",
            "Sun, 31 Nov 1994 08:49:37 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 29 Feb 1900 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Nov 1994 08:60:00 GMT",
            "Sun, 06 Nov 1994 08:49:61 GMT",
            "Sun, 06 Nov 1994 8:49:37 GMT",
            "Sun,  06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT ",
            "Sun, +6 Nov 1994 08:49:37 GMT",
            "Sunday, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-1994 08:49:37 GMT",
            "Sun, 06-Nov-94 08:49:37 GMT",
            "Sunday, 29-Feb-23 08:49:37 GMT",
            "Sun Nov 6 08:49:37 1994",
            "Sun Nov  6 08:49:37 94",
            "Sun Nov   08:49:37 1994",
            "1994-11-06T08:49:37Z",
            "Sun, 06 Nov 1994 08:49:37 GMT, x",
        ] {
            assert_eq!(at(text), None, "{text}");
        }
    }

    #[test]
    fn encoded_messages_decode() {
        // A prime step, so that all times of day and days of the year occur.
        for seconds in (0..253_402_300_799u64).step_by(9_999_991) {
            let text = imf_fixdate(seconds);
            assert_eq!(parse(&text, NOW), i64::try_from(seconds).ok());
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text: Vec<u8>) {
            let _ = parse(&text, NOW);
        }
    }
}
