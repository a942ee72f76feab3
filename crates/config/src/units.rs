//! Sizes, durations and counts in text, and the hint for a mistyped word. Each error is the remedy.

use std::str::FromStr;
use std::time::Duration;

/// The maximum duration. A longer one is a typing mistake, and this bound keeps clock arithmetic
/// far from overflow.
pub const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// The largest size and count, 2^53: up to here an `f64` holds every integer.
pub const LARGEST: u64 = 1 << 53;

/// Parses `5s`, `1.5s`, `250ms`, `50us`, `2m`, `1h`, `30d`, `1y`, and `0` for none. A number
/// without a unit is refused, because some tools mean seconds by it and others milliseconds.
///
/// # Errors
/// The remedy.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let remedy = || "write a duration such as \"5s\", \"250ms\", \"2m\" or \"1h\"".to_owned();
    let (number, unit) = number_and_unit(text);
    let value = parse_number(number).ok_or_else(remedy)?;
    let seconds = match unit {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 24.0 * 3600.0,
        "y" => 365.0 * 24.0 * 3600.0,
        "" if value == 0.0 => 0.0,
        "" => return Err(format!("it has no unit: write \"{number}s\" or \"{number}ms\"")),
        _ => return Err(remedy()),
    };
    Duration::try_from_secs_f64(value * seconds)
        .ok()
        .filter(|&duration| duration <= LONGEST)
        .ok_or_else(|| "write at most \"8784h\", which is a year".to_owned())
}

/// Parses `100`, `100B`, `16KiB`, `1.5MiB`, `64KB`: powers of 1024 with an `i`, of 1000 without;
/// letter case does not matter.
///
/// # Errors
/// The remedy.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let remedy = || "write a size such as \"16KiB\" or \"1MB\"".to_owned();
    let (number, unit) = number_and_unit(text);
    let value = parse_number(number).ok_or_else(remedy)?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "k" | "m" | "g" => {
            let unit = unit.to_ascii_uppercase();
            return Err(format!(
                "its unit is ambiguous: write \"{number}{unit}iB\" (powers of 1024) or \
                 \"{number}{unit}B\" (of 1000)"
            ));
        }
        _ => return Err(remedy()),
    };
    whole(value * factor).map_err(|why| match why {
        NotWhole::Fraction => "write a whole number of bytes".to_owned(),
        NotWhole::TooLarge => "write a smaller size, at most \"8388608GiB\"".to_owned(),
    })
}

/// Parses `100`, `1_000`, `10k`, `1.5M`: `k` is a thousand, `M` a million.
///
/// # Errors
/// The remedy.
pub fn parse_count(text: &str) -> Result<usize, String> {
    let remedy = || "write a whole number, for example 1000 or \"10k\"".to_owned();
    let (number, unit) = number_and_unit(text);
    let value = parse_number(number).ok_or_else(remedy)?;
    let factor = match unit {
        "" => 1.0,
        "k" | "K" => 1e3,
        "m" | "M" => 1e6,
        _ => return Err(remedy()),
    };
    whole(value * factor).map_err(|why| match why {
        NotWhole::Fraction => remedy(),
        NotWhole::TooLarge => "write a smaller number".to_owned(),
    })
}

/// A number of events in a time: `"5/s"`, `"600/m"`, `"1000/h"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The events, at least 1.
    pub events: u32,
    /// The time: a second, a minute or an hour.
    pub time: Duration,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let remedy = || "write a rate such as \"5/s\", \"600/m\" or \"1000/h\"".to_owned();
        let (events, unit) = text.split_once('/').ok_or_else(remedy)?;
        let events = parse_count(events).ok().and_then(|events| u32::try_from(events).ok());
        let seconds = match unit.trim() {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return Err(remedy()),
        };
        let events = events.filter(|&events| events > 0).ok_or_else(remedy)?;
        Ok(Self { events, time: Duration::from_secs(seconds) })
    }
}

enum NotWhole {
    Fraction,
    TooLarge,
}

fn whole(number: f64) -> Result<usize, NotWhole> {
    // Rounding may leave 0.1k a little beside 100.
    let rounded = number.round();
    if (number - rounded).abs() > 1e-6 {
        return Err(NotWhole::Fraction);
    }
    match rounded <= LARGEST as f64 {
        true => usize::try_from(rounded as u64).map_err(|_| NotWhole::TooLarge),
        false => Err(NotWhole::TooLarge),
    }
}

fn number_and_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    (&text[..at], text[at..].trim_start())
}

fn parse_number(text: &str) -> Option<f64> {
    text.replace('_', "").parse().ok().filter(|value: &f64| value.is_finite())
}

/// Writes a size as short as it can be read: `1KiB`, `1MiB`, `1000`.
#[must_use]
pub fn show_size(bytes: u64) -> String {
    let fits = |shift: u32| bytes != 0 && bytes.trailing_zeros() >= shift;
    match () {
        () if fits(30) => format!("{}GiB", bytes >> 30),
        () if fits(20) => format!("{}MiB", bytes >> 20),
        () if fits(10) => format!("{}KiB", bytes >> 10),
        () => bytes.to_string(),
    }
}

/// Writes a duration as short as it can be read: `24h`, `1s`, `250ms`.
#[must_use]
pub fn show_duration(duration: Duration) -> String {
    match duration.as_secs() {
        hours if hours > 0 && hours.is_multiple_of(3600) && duration.subsec_nanos() == 0 => {
            format!("{}h", hours / 3600)
        }
        _ => format!("{duration:?}"),
    }
}

/// Returns the word of `known` that is closest to `word`, if it is close enough for a typing
/// mistake.
#[must_use]
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let (far, near) =
        known.into_iter().map(|near| (strsim::levenshtein(word, near), near)).min()?;
    (far <= 1 + word.len() / 4).then_some(near)
}

/// Returns [`nearest`] as a question.
#[must_use]
pub fn did_you_mean<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<String> {
    nearest(word, known).map(|near| format!("did you mean {near}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, millis) in [
            ("5s", 5000),
            ("250ms", 250),
            ("1.5s", 1500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse_duration("50us"), Ok(Duration::from_micros(50)));
        for (text, hint) in [
            ("", "write a duration"),
            ("s", "write a duration"),
            ("5", "write \"5s\" or \"5ms\""),
            ("5 days", "write a duration"),
            ("-1s", "write a duration"),
            ("1e3s", "write a duration"),
            ("1..2s", "write a duration"),
            ("NaNs", "write a duration"),
            ("9000h", "a year"),
            ("99999999999999999999h", "a year"),
        ] {
            assert!(parse_duration(text).unwrap_err().contains(hint), "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("100", 100),
            ("100B", 100),
            ("16KiB", 16 << 10),
            ("4 kib", 4096),
            ("1.5MiB", 3 << 19),
            ("64KB", 64_000),
            ("1_000", 1000),
            ("1GB", 1_000_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for (text, hint) in [
            ("", "write a size"),
            ("KiB", "write a size"),
            ("4K", "\"4KiB\""),
            ("1.5", "whole number"),
            ("0.5B", "whole number"),
            ("-1", "write a size"),
            ("1..5KiB", "write a size"),
            ("4KiBB", "write a size"),
            ("99999999999GiB", "a smaller size"),
        ] {
            assert!(parse_size(text).unwrap_err().contains(hint), "{text}");
        }
        for (bytes, text) in [(0, "0"), (1024, "1KiB"), (1 << 20, "1MiB"), (1500, "1500")] {
            assert_eq!(show_size(bytes), text);
        }
        for (seconds, text) in [(0, "0ns"), (5, "5s"), (90, "90s"), (7200, "2h")] {
            assert_eq!(show_duration(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn counts_have_k_and_m() {
        for (text, count) in [
            ("0", 0),
            ("1_000", 1000),
            ("10k", 10_000),
            ("0.1k", 100),
            ("1.5M", 1_500_000),
            ("250 K", 250_000),
        ] {
            assert_eq!(parse_count(text), Ok(count), "{text}");
        }
        for text in ["", "k", "-1", "1.5", "1.2345k", "10kk", "10KiB", "1e3", "all"] {
            let error = parse_count(text).unwrap_err();
            assert!(error.contains("a whole number, for example 1000 or \"10k\""), "{text}");
        }
    }

    #[test]
    fn rates() {
        for (text, events, seconds) in
            [("5/s", 5, 1), ("600/m", 600, 60), ("1k / h", 1000, 3600), ("1_000/s", 1000, 1)]
        {
            let time = Duration::from_secs(seconds);
            assert_eq!(text.parse(), Ok(Rate { events, time }), "{text}");
        }
        for text in ["", "5", "5/", "/s", "0/s", "-1/s", "1.5/s", "5/d", "5s", "5000M/s"] {
            let error = text.parse::<Rate>().unwrap_err();
            assert!(error.contains("a rate such as \"5/s\""), "{text}");
        }
    }

    #[test]
    fn only_a_near_word_is_a_hint() {
        assert_eq!(did_you_mean("shard", ["shards", "pick"]).unwrap(), "did you mean shards?");
        assert_eq!(did_you_mean("zzz", ["shards", "pick"]), None);
    }
}
