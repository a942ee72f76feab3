//! Sizes and durations as people type and read them.

use std::time::Duration;

/// Reads a size such as `100`, `100B`, `4KiB`, `1.5MiB`, `64KB` or `1GB`.
///
/// `KiB`, `MiB` and `GiB` are powers of 1024, `KB`, `MB` and `GB` powers of 1000; letter case does not matter.
///
/// # Errors
/// One line that says what was expected, for a missing or unknown unit, a fraction of a byte or an overflow.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let (number, unit) = split_unit(text);
    let factor: f64 = match unit.to_ascii_lowercase().as_str() {
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
                "{text:?} is ambiguous: write {number}{unit}iB (powers of 1024) or {number}{unit}B (of 1000)"
            ));
        }
        _ => {
            return Err(format!(
                "unknown unit in {text:?}: expected a size such as 100, 4KiB or 1MB"
            ));
        }
    };
    let value = parse_number(number)
        .ok_or_else(|| format!("{text:?} is not a size: expected one such as 100, 4KiB or 1MB"))?;
    let bytes = value * factor;
    if bytes.fract() != 0.0 {
        return Err(format!("{text:?} is not a whole number of bytes"));
    }
    // 2^53: the last integer that a f64 holds exactly, and more memory than a machine has.
    if bytes > 9_007_199_254_740_992.0 {
        return Err(format!("{text:?} is more than a machine can address"));
    }
    Ok(bytes as usize)
}

/// Reads a duration such as `30s`, `1.5s`, `250ms`, `50us`, `2m` or `1h`.
///
/// # Errors
/// One line that says what was expected. A number without a unit is refused, because half the world's tools mean
/// seconds and the other half milliseconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split_unit(text);
    let expected = "expected one such as 30s, 1.5s, 250ms or 2m";
    let seconds: f64 = match unit {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "" if !number.is_empty() => {
            return Err(format!("{text:?} has no unit: did you mean {number}s?"));
        }
        _ => return Err(format!("unknown unit in {text:?}: {expected}")),
    };
    let value =
        parse_number(number).ok_or_else(|| format!("{text:?} is not a duration: {expected}"))?;
    Duration::try_from_secs_f64(value * seconds)
        .map_err(|_| format!("{text:?} is too long: {expected}"))
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    (&text[..at], text[at..].trim_start())
}

fn parse_number(text: &str) -> Option<f64> {
    let value: f64 = text.replace('_', "").parse().ok()?;
    value.is_finite().then_some(value)
}

/// `1234567` as `1,234,567`.
#[must_use]
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A rate or count with the precision people read: `1,234,567`, `512`, `9.5`, `0.25`.
#[must_use]
pub fn rounded(value: f64) -> String {
    if value >= 100.0 {
        grouped(value.round() as u64)
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// Bytes for people: `100 B`, `4 KiB`, `1.5 MiB`. Negative differences keep their sign.
#[must_use]
pub fn show_bytes(bytes: i64) -> String {
    let size = bytes.unsigned_abs() as f64;
    let sign = if bytes < 0 { "-" } else { "" };
    let (value, unit) = match bytes.unsigned_abs() {
        0..1024 => return format!("{bytes} B"),
        1024..0x10_0000 => (size / 1024.0, "KiB"),
        0x10_0000..0x4000_0000 => (size / 1024.0 / 1024.0, "MiB"),
        _ => (size / 1024.0 / 1024.0 / 1024.0, "GiB"),
    };
    let value = format!("{value:.1}");
    format!("{sign}{} {unit}", value.strip_suffix(".0").unwrap_or(&value))
}

/// A time for people, from nanoseconds: `850 ns`, `12.3 us`, `4.56 ms`, `1.50 s`.
#[must_use]
pub fn show_ns(ns: u64) -> String {
    let value = ns as f64;
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (value / 1e3, "us"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    if value >= 100.0 {
        format!("{value:.0} {unit}")
    } else if value >= 10.0 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.2} {unit}")
    }
}

/// A planned duration as short as it was typed: `30s`, `1.5s`, `250ms`.
#[must_use]
pub fn show_duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds > 0.0 && seconds < 1.0 {
        format!("{}ms", (seconds * 1e6).round() / 1e3)
    } else {
        format!("{}s", (seconds * 1e3).round() / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("100", 100),
            ("100B", 100),
            ("4KiB", 4096),
            ("4 kib", 4096),
            ("1.5MiB", 1_572_864),
            ("64KB", 64_000),
            ("1_000", 1000),
            ("1GB", 1_000_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn bad_sizes_say_what_to_write() {
        for (text, hint) in [
            ("4K", "4KiB"),
            ("", "not a size"),
            ("KiB", "not a size"),
            ("-1", "unknown unit"),
            ("1.5", "whole number"),
            ("1..5KiB", "not a size"),
            ("4KiBB", "unknown unit"),
            ("99999999999GiB", "more than"),
        ] {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn durations() {
        for (text, ms) in
            [("30s", 30_000), ("1.5s", 1500), ("250ms", 250), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parse_duration("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn bad_durations_say_what_to_write() {
        for (text, hint) in [
            ("30", "did you mean 30s?"),
            ("", "unknown unit"),
            ("s", "not a duration"),
            ("1.2.3s", "not a duration"),
            ("-1s", "unknown unit"),
            ("5 days", "unknown unit"),
            ("99999999999999999999h", "too long"),
        ] {
            let error = parse_duration(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(
            [1_234_567.4, 512.0, 12.34, 0.251].map(rounded),
            ["1,234,567", "512", "12.3", "0.25"]
        );
        assert_eq!(
            [0, 100, 4096, 1_572_864, -2048].map(show_bytes),
            ["0 B", "100 B", "4 KiB", "1.5 MiB", "-2 KiB"]
        );
        assert_eq!(
            [850, 12_340, 4_560_000, 1_500_000_000, 123_000].map(show_ns),
            ["850 ns", "12.3 us", "4.56 ms", "1.50 s", "123 us"]
        );
        assert_eq!(
            [0, 30_000, 1500, 250].map(|ms| show_duration(Duration::from_millis(ms))),
            ["0s", "30s", "1.5s", "250ms"]
        );
    }
}
