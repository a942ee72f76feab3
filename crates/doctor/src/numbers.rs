//! Numbers for people.

/// Returns a number with commas: `19,921`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a size with a binary unit: `1.5 GiB`.
pub(crate) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if value.fract() == 0.0 => format!("{value} {}", units[unit]),
        _ => format!("{value:.1} {}", units[unit]),
    }
}

/// Returns a number with a noun.
pub(crate) fn plural(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_and_sizes_a_unit() {
        let counts = [0, 999, 1000, 19_921, 1_048_576].map(count);
        assert_eq!(counts, ["0", "999", "1,000", "19,921", "1,048,576"]);
        let sizes = [0, 1023, 1024, 1536, 3 << 30].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1 KiB", "1.5 KiB", "3 GiB"]);
    }
}
