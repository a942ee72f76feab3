//! Formats numbers, sizes and durations for readers.

use std::time::Duration;

/// Maximum time for a flag.
pub(crate) const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

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

/// Formats a rate or count with suitable precision: `1,234,567`, `512`, `9.5`, `0.25`.
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

/// Formats a planned duration as users write it: `30s`, `1.5s`, `250ms`.
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
