//! Durations and sizes in text, and the hint for a mistyped word.

use std::time::Duration;

/// The longest duration. A longer one is a typing mistake, and the clock's arithmetic stays far
/// from overflow.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Parses `5s`, `1.5s`, `250ms`, `2m`, `1h`, and `0` for none. The error is the remedy.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let remedy = || "write a duration such as \"5s\", \"250ms\", \"2m\" or \"1h\"".to_owned();
    let (number, unit) = number_and_unit(text);
    let number = number.ok_or_else(remedy)?;
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "" if number == 0.0 => 0.0,
        "" => return Err(format!("it has no unit: write \"{text}s\" or \"{text}ms\"")),
        _ => return Err(remedy()),
    };
    Duration::try_from_secs_f64(number * seconds)
        .ok()
        .filter(|&duration| duration <= LONGEST)
        .ok_or_else(|| "write at most \"8784h\", which is a year".to_owned())
}

/// Parses `100`, `16KiB`, `1.5MiB`, `64KB`: powers of 1024 with an `i`, of 1000 without. The error
/// is the remedy.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let remedy = || "write a size such as \"16KiB\" or \"1MB\"".to_owned();
    let (number, unit) = number_and_unit(text);
    let number = number.ok_or_else(remedy)?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        _ => return Err(remedy()),
    };
    let bytes = number * factor;
    if bytes.fract() != 0.0 {
        return Err("write a whole number of bytes".to_owned());
    }
    // 2^53: up to here an f64 holds every integer.
    if bytes > 9_007_199_254_740_992.0 {
        return Err("write a smaller size, at most \"8388608GiB\"".to_owned());
    }
    Ok(bytes as u64)
}

fn number_and_unit(text: &str) -> (Option<f64>, &str) {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (text[..at].parse().ok(), text[at..].trim_start())
}

/// Returns the word of `known` closest to `word` as a hint, if it is close enough for a typing
/// mistake.
pub(super) fn did_you_mean(word: &str, known: &[&str]) -> Option<String> {
    let (far, near) = known.iter().map(|near| (strsim::levenshtein(word, near), near)).min()?;
    (far <= 1 + word.len() / 4).then(|| format!("did you mean {near}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_parsed() {
        for (text, millis) in [
            ("5s", 5000),
            ("250ms", 250),
            ("1.5s", 1500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "5", "5 days", "-1s", "1e3s", "9000h", "1..2s", "NaNs"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for (text, bytes) in
            [("100", 100), ("16KiB", 16 << 10), ("1.5MiB", 3 << 19), ("64KB", 64_000)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "KiB", "16K", "0.5B", "-1", "99999999GiB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_a_near_word_is_a_hint() {
        assert_eq!(did_you_mean("shard", &["shards", "pick"]).unwrap(), "did you mean shards?");
        assert_eq!(did_you_mean("zzz", &["shards", "pick"]), None);
    }
}
