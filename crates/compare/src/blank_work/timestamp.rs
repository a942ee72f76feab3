//! Moments in time as JSON documents write them: ISO 8601 in the profile of RFC 3339.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use throng_http::calendar::{date_from_days, days_from_date, days_in_month};

const DAY: i64 = 24 * 60 * MINUTE;
const MINUTE: i64 = 60_000;

/// 0000-01-01T00:00:00.000Z and 9999-12-31T23:59:59.999Z: four digits are all there are for a year.
const FIRST: i64 = -62_167_219_200_000;
const LAST: i64 = 253_402_300_799_999;

/// An instant, in milliseconds since 1970-01-01T00:00:00Z.
///
/// Read from `YYYY-MM-DDTHH:MM:SS`, then any number of digits behind a point or none (those behind
/// the third are cut off, which keeps the order), then `Z` or an offset like `+02:00`. Printed in
/// UTC with three digits and `Z`. There are no leap seconds, as in the clocks of all servers
/// compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timestamp(i64);

impl Timestamp {
    /// `None` if it is not of the form, or no such moment exists.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (start, rest) = text.split_first_chunk::<19>()?;
        let [y0, y1, y2, y3, b'-', mo0, mo1, b'-', d0, d1, b'T', time @ ..] = start else {
            return None;
        };
        let [h0, h1, b':', mi0, mi1, b':', s0, s1] = time else { return None };
        let year = number([*y0, *y1, *y2, *y3])?;
        let (month, day) = (number([*mo0, *mo1])?, number([*d0, *d1])?);
        let (hour, minute, second) =
            (number([*h0, *h1])?, number([*mi0, *mi1])?, number([*s0, *s1])?);
        let is_a_day = (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
        if !is_a_day || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let (millisecond, zone) = fraction(rest)?;
        let time = (hour * 60 + minute) * MINUTE + second * 1000 + millisecond;
        let since_epoch = days_from_date(year, month, day) * DAY + time - offset(zone)?;
        (FIRST..=LAST).contains(&since_epoch).then_some(Self(since_epoch))
    }

    /// `YYYY-MM-DDTHH:MM:SS.mmmZ`.
    pub(super) fn print(self) -> [u8; 24] {
        let (year, month, day) = date_from_days(self.0.div_euclid(DAY));
        let time = self.0.rem_euclid(DAY);
        let minutes = time / MINUTE;
        let mut text = *b"0000-00-00T00:00:00.000Z";
        for (range, value) in [
            (0..4, year),
            (5..7, month),
            (8..10, day),
            (11..13, minutes / 60),
            (14..16, minutes % 60),
            (17..19, time % MINUTE / 1000),
            (20..23, time % 1000),
        ] {
            put(&mut text[range], value);
        }
        text
    }
}

/// Decimal digits and nothing else. One decision for all of them: ten dates are most of the
/// benchmark's work.
#[inline]
fn number<const DIGITS: usize>(text: [u8; DIGITS]) -> Option<i64> {
    let (mut number, mut is_wrong) = (0, false);
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        is_wrong |= digit > 9;
        number = number * 10 + i64::from(digit);
    }
    (!is_wrong).then_some(number)
}

/// Writes `value` with as many digits as there is room for.
fn put(room: &mut [u8], mut value: i64) {
    for digit in room.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

/// The milliseconds of a fraction, if there is one, and what follows it.
fn fraction(text: &[u8]) -> Option<(i64, &[u8])> {
    if let [b'.', m0, m1, m2, b'Z'] = text {
        return Some((number([*m0, *m1, *m2])?, b"Z"));
    }
    let Some(text) = text.strip_prefix(b".") else { return Some((0, text)) };
    let (digits, zone) =
        text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count());
    let digit = |at: usize| digits.get(at).copied().unwrap_or(b'0');
    if digits.is_empty() { None } else { Some((number([digit(0), digit(1), digit(2)])?, zone)) }
}

/// Returns the milliseconds by which a zone's clocks are ahead of UTC.
fn offset(zone: &[u8]) -> Option<i64> {
    match zone {
        b"Z" => Some(0),
        [sign @ (b'+' | b'-'), h0, h1, b':', m0, m1] => {
            let (hours, minutes) = (number([*h0, *h1])?, number([*m0, *m1])?);
            let ahead = (hours * 60 + minutes) * MINUTE;
            (hours <= 23 && minutes <= 59).then_some(if *sign == b'+' { ahead } else { -ahead })
        }
        _ => None,
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Timestamp;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a date like \"2020-01-12T10:53:17.773Z\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Timestamp, E> {
                Timestamp::parse(text.as_bytes()).ok_or_else(|| {
                    E::custom("no such date, or not of the form YYYY-MM-DDTHH:MM:SS.mmmZ")
                })
            }
        }

        from.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Option<Timestamp> {
        Timestamp::parse(text.as_bytes())
    }

    fn print(at: Timestamp) -> String {
        String::from_utf8(at.print().to_vec()).unwrap()
    }

    #[test]
    fn moments_are_read_in_utc_and_printed_with_milliseconds() {
        for (text, since_epoch, printed) in [
            ("1970-01-01T00:00:00.000Z", 0, "1970-01-01T00:00:00.000Z"),
            ("1969-12-31T23:59:59.999Z", -1, "1969-12-31T23:59:59.999Z"),
            ("2020-01-01T00:00:00.007Z", 1_577_836_800_007, "2020-01-01T00:00:00.007Z"),
            ("2020-02-29T01:19:41.793Z", 1_582_939_181_793, "2020-02-29T01:19:41.793Z"),
            ("2000-02-29T12:00:00.000Z", 951_825_600_000, "2000-02-29T12:00:00.000Z"),
            ("0000-01-01T00:00:00.000Z", FIRST, "0000-01-01T00:00:00.000Z"),
            ("9999-12-31T23:59:59.999Z", LAST, "9999-12-31T23:59:59.999Z"),
            // Fractions of other lengths.
            ("1970-01-01T00:00:00Z", 0, "1970-01-01T00:00:00.000Z"),
            ("1970-01-01T00:00:00.5Z", 500, "1970-01-01T00:00:00.500Z"),
            ("1970-01-01T00:00:00.05Z", 50, "1970-01-01T00:00:00.050Z"),
            ("1970-01-01T00:00:00.123999999999Z", 123, "1970-01-01T00:00:00.123Z"),
            ("1969-12-31T23:59:59.9999Z", -1, "1969-12-31T23:59:59.999Z"),
            // Other zones.
            ("1970-01-01T02:00:00.000+02:00", 0, "1970-01-01T00:00:00.000Z"),
            ("1969-12-31T18:30:00.001-05:30", 1, "1970-01-01T00:00:00.001Z"),
            ("1970-01-01T00:00:00-00:00", 0, "1970-01-01T00:00:00.000Z"),
            ("2020-01-01T00:30:00.000+01:00", 1_577_835_000_000, "2019-12-31T23:30:00.000Z"),
            ("9999-12-31T23:59:59.999+00:01", LAST - 60_000, "9999-12-31T23:58:59.999Z"),
        ] {
            let at = parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((at.0, print(at).as_str()), (since_epoch, printed), "{text}");
        }
    }

    #[test]
    fn an_invalid_timestamp_is_refused() {
        for text in [
            "",
            "Z",
            "2020-01-01",
            "2020-01-01T00:00:00",
            "2020-01-01T00:00:00.000",
            "2020-01-01T00:00Z",
            "2020-01-01T00:00:00.Z",
            "2020-01-01T00:00:00,000Z",
            "2020-01-01 00:00:00.000Z",
            "2020-01-01t00:00:00.000z",
            "2020-01-01T00:00:00.000ZZ",
            " 2020-01-01T00:00:00.000Z",
            "2020-01-01T00:00:00.000Z ",
            "2020-1-01T00:00:00.000Z0",
            "+020-01-01T00:00:00.000Z",
            "-001-01-01T00:00:00.000Z",
            "12020-01-01T00:00:00.000Z",
            "2020-01-01T00:00:0x.000Z",
            "2020-01-01T00:00:00.0x0Z",
            "２020-01-01T00:00:00Z",
            // No such day or time.
            "2020-00-01T00:00:00.000Z",
            "2020-13-01T00:00:00.000Z",
            "2020-01-00T00:00:00.000Z",
            "2020-01-32T00:00:00.000Z",
            "2020-04-31T00:00:00.000Z",
            "2019-02-29T00:00:00.000Z",
            "1900-02-29T00:00:00.000Z",
            "2020-02-30T00:00:00.000Z",
            "2020-01-01T24:00:00.000Z",
            "2020-01-01T00:60:00.000Z",
            "2016-12-31T23:59:60.000Z",
            // No such zone.
            "2020-01-01T00:00:00.000+1:00",
            "2020-01-01T00:00:00.000+0100",
            "2020-01-01T00:00:00.000+24:00",
            "2020-01-01T00:00:00.000+01:60",
            "2020-01-01T00:00:00.000 01:00",
            "2020-01-01T00:00:00.000GMT",
            // Years that four digits cannot say.
            "0000-01-01T00:00:00.000+00:01",
            "9999-12-31T23:59:59.999-00:01",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_moment_is_read_in_utc(
            (year, month) in (0i64..=9999, 1i64..=12), day in 1i64..=31, time in 0..DAY,
            digits in 0usize..6, minutes in -1439i64..=1439,
        ) {
            let day = day.min(days_in_month(year, month));
            let mut text = format!("{year:04}-{month:02}-{day:02}T");
            let (seconds, millisecond) = (time / 1000, time % 1000);
            text += &format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
            if digits > 0 {
                text += &format!(".{millisecond:03}98")[..=digits];
            }
            let kept = [0, millisecond / 100 * 100, millisecond / 10 * 10, millisecond];
            let zone = (minutes.abs() / 60, minutes.abs() % 60);
            text += &match minutes {
                0 => "Z".to_owned(),
                1.. => format!("+{:02}:{:02}", zone.0, zone.1),
                _ => format!("-{:02}:{:02}", zone.0, zone.1),
            };
            let midnight = days_from_date(year, month, day) * DAY;
            let expected =
                midnight + seconds * 1000 + kept[digits.min(3)] - minutes * MINUTE;
            let there_is = (FIRST..=LAST).contains(&expected);
            prop_assert_eq!(parse(&text), there_is.then_some(Timestamp(expected)), "{}", text);
            if there_is {
                prop_assert_eq!(parse(&print(Timestamp(expected))), Some(Timestamp(expected)));
            }
        }

        #[test]
        fn no_text_breaks_it(text in "[0-9TZ:.+-]{17,30}") {
            let _ = parse(&text);
        }
    }
}
