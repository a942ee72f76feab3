//! Range requests. [RFC 9110 section 14](https://www.rfc-editor.org/rfc/rfc9110#section-14).

use std::ops::Range;

/// Maximum number of ranges answered in parts. Each part costs its own head, and readers of many
/// small parts are rare, while a request for hundreds of overlapping ones once stopped half the
/// web's servers (CVE-2011-3192).
pub(super) const MAX_RANGES: usize = 8;

/// The parts that a Range field selects of a file of known length.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The field is invalid, or has too many ranges: 200.
    Whole,
    /// 206: not empty, in the order requested, no two adjacent or overlapping.
    Parts(Vec<Range<u64>>),
    /// 416: no range is within the file.
    Nothing,
}

/// Parses the value of a Range field for a file of `length` bytes.
pub(super) fn parse(value: &[u8], length: u64) -> Wanted {
    // No range of an empty file has a Content-Range; clients that always send a Range need a
    // response.
    if length == 0 {
        return Wanted::Whole;
    }
    let Some((unit, set)) = value.split_at_checked(6) else { return Wanted::Whole };
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return Wanted::Whole;
    }
    let (mut count, mut parts) = (0, Vec::new());
    for spec in set.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
        if spec.is_empty() {
            continue; // RFC 9110 section 5.6.1.2
        }
        count += 1;
        match part(spec, length) {
            _ if count > MAX_RANGES => return Wanted::Whole,
            None => return Wanted::Whole,
            Some(part) if part.is_empty() => {}
            Some(part) => add(&mut parts, part),
        }
    }
    match (count, parts.is_empty()) {
        (0, _) => Wanted::Whole,
        (_, true) => Wanted::Nothing,
        (_, false) => Wanted::Parts(parts),
    }
}

/// Parses one range-spec; empty if it lies beyond the end, `None` if it is invalid.
fn part(spec: &[u8], length: u64) -> Option<Range<u64>> {
    let dash = spec.iter().position(|byte| *byte == b'-')?;
    let (first, last) = (number(&spec[..dash]), number(&spec[dash + 1..]));
    match (first?, last?) {
        (None, None) => None,
        (None, Some(suffix)) => Some(length.saturating_sub(suffix)..length),
        (Some(first), None) => Some(first.min(length)..length),
        (Some(first), Some(last)) if first <= last => {
            Some(first.min(length)..last.saturating_add(1).min(length))
        }
        (Some(_), Some(_)) => None,
    }
}

/// Parses digits; returns `Some(None)` if there are no digits. A number that is too large becomes
/// the largest number.
fn number(digits: &[u8]) -> Option<Option<u64>> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let append =
        |number: u64, digit: &u8| number.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Some((!digits.is_empty()).then(|| digits.iter().fold(0, append)))
}

/// Joins `part` with all parts that it overlaps or touches, at the position of the first of them,
/// or else appends it (RFC 9110 section 15.3.7.2).
fn add(parts: &mut Vec<Range<u64>>, mut part: Range<u64>) {
    let mut position = parts.len();
    let touches = |a: &Range<u64>, b: &Range<u64>| a.start <= b.end && b.start <= a.end;
    while let Some(index) = parts.iter().position(|known| touches(known, &part)) {
        let known = parts.remove(index);
        part = part.start.min(known.start)..part.end.max(known.end);
        position = position.min(index);
    }
    parts.insert(position.min(parts.len()), part);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn show(value: &str, length: u64) -> String {
        match parse(value.as_bytes(), length) {
            Wanted::Whole => "whole".into(),
            Wanted::Nothing => "nothing".into(),
            Wanted::Parts(parts) => {
                let parts = parts.iter().map(|part| format!("{}..{}", part.start, part.end));
                parts.collect::<Vec<_>>().join(" ")
            }
        }
    }

    #[test]
    fn rfc9110_14_1_2_byte_ranges() {
        for (value, expected) in [
            ("bytes=0-0", "0..1"),
            ("bytes=0-499", "0..500"),
            ("bytes=500-999", "500..1000"),
            ("bytes=500-", "500..1000"),
            ("bytes=0-", "0..1000"),
            ("bytes=999-", "999..1000"),
            ("bytes=-1", "999..1000"),
            ("bytes=-500", "500..1000"),
            ("bytes=-1000", "0..1000"),
            ("bytes=-1001", "0..1000"),
            ("bytes=900-5000", "900..1000"),
            ("bytes=0-18446744073709551615", "0..1000"),
            ("bytes=0-99999999999999999999999", "0..1000"),
            ("bytes=-99999999999999999999999", "0..1000"),
            ("bytes=007-0008", "7..9"),
            ("BYTES=1-2", "1..3"),
            ("bytes= 1-2 ", "1..3"),
            ("bytes=1-2,", "1..3"),
            ("bytes=,,1-2", "1..3"),
            ("bytes=1-2\t, 5-6", "1..3 5..7"),
        ] {
            assert_eq!(show(value, 1000), expected, "{value}");
        }
    }

    #[test]
    fn rfc9110_14_1_2_unsatisfiable_ranges() {
        for value in [
            "bytes=1000-",
            "bytes=1000-1000",
            "bytes=5000-6000",
            "bytes=-0",
            "bytes=99999999999999999999999-",
            "bytes=18446744073709551615-18446744073709551615",
            "bytes=1000-,2000-2001,-0",
        ] {
            assert_eq!(show(value, 1000), "nothing", "{value}");
        }
        // One satisfiable range is enough.
        assert_eq!(show("bytes=1000-, 3-4, -0", 1000), "3..5");
    }

    #[test]
    fn rfc9110_14_2_invalid_ranges_are_ignored() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes= , ",
            "bytes=-",
            "bytes=a",
            "bytes=a-b",
            "bytes=1",
            "bytes=1-2-3",
            "bytes=2-1",
            "bytes=0-1,2-1",
            "bytes=0-1,x",
            "bytes=+1-2",
            "bytes=1-+2",
            "bytes=-+2",
            "bytes=--2",
            "bytes=1 -2",
            "bytes=1- 2",
            "bytes =1-2",
            " bytes=1-2",
            "bytes:1-2",
            "byte=1-2",
            "items=1-2",
            "seconds=1-",
            "bytes=0x1-2",
            "bytes=1.0-2",
            "bytes=1-2;3-4",
            "bytes=1-2, bytes=3-4",
            "bytes=99999999999999999999-1",
            "bytes=\u{661}-2",
        ] {
            assert_eq!(show(value, 1000), "whole", "{value}");
        }
    }

    #[test]
    fn rfc9110_14_2_many_ranges_are_ignored() {
        let ranges = |count: u64| {
            let specs = (0..count).map(|index| format!("{}-{}", index * 10, index * 10));
            format!("bytes={}", specs.collect::<Vec<_>>().join(","))
        };
        assert_eq!(show(&ranges(8), 1000).split(' ').count(), 8);
        assert_eq!(show(&ranges(9), 1000), "whole");
        let overlapping = format!("bytes=0-{}", ",0-".repeat(1000));
        assert_eq!(show(&overlapping, 1000), "whole");
    }

    #[test]
    fn rfc9110_15_3_7_2_adjacent_ranges_are_joined_in_order() {
        for (value, expected) in [
            ("bytes=0-4,5-9", "0..10"),
            ("bytes=0-4,6-9", "0..5 6..10"),
            ("bytes=5-9,0-4", "0..10"),
            ("bytes=500-600,601-999", "500..1000"),
            ("bytes=500-700,601-999", "500..1000"),
            ("bytes=0-,0-,0-,0-", "0..1000"),
            ("bytes=90-95,0-1,50-55", "90..96 0..2 50..56"),
            ("bytes=90-95,0-1,50-55,2-3", "90..96 0..4 50..56"),
            ("bytes=0-1,90-95,50-55,0-999", "0..1000"),
            ("bytes=90-95,0-1,50-55,1-50", "90..96 0..56"),
            ("bytes=-10,0-9", "990..1000 0..10"),
        ] {
            assert_eq!(show(value, 1000), expected, "{value}");
        }
    }

    #[test]
    fn rfc9110_14_2_a_range_of_nothing_is_ignored() {
        for value in ["bytes=0-", "bytes=-1", "bytes=0-0", "bytes=1-"] {
            assert_eq!(show(value, 0), "whole", "{value}");
        }
    }

    fn of_spec() -> impl Strategy<Value = (Option<u64>, Option<u64>)> {
        (prop::option::of(0u64..50), prop::option::of(0u64..50))
    }

    proptest! {
        /// The model marks bytes: which bytes of a file of `length` bytes does the set select?
        #[test]
        fn ranges_match_a_naive_model(
            length in 1u64..40,
            specs in prop::collection::vec(of_spec(), 1..10),
        ) {
            let number = |number: &Option<u64>| number.map_or(String::new(), |n| n.to_string());
            let text = specs.iter().map(|(first, last)| {
                format!("{}-{}", number(first), number(last))
            });
            let value = format!("bytes={}", text.collect::<Vec<_>>().join(","));
            let is_valid = specs.iter().all(|spec| match spec {
                (None, None) => false,
                (Some(first), Some(last)) => first <= last,
                _ => true,
            });
            let marked: Vec<bool> = (0..length).map(|byte| specs.iter().any(|spec| match *spec {
                (None, suffix) => suffix.is_some_and(|suffix| byte + suffix >= length),
                (Some(first), last) => first <= byte && last.is_none_or(|last| byte <= last),
            })).collect();
            match parse(value.as_bytes(), length) {
                Wanted::Whole => prop_assert!(!is_valid || specs.len() > MAX_RANGES),
                Wanted::Nothing => prop_assert!(is_valid && !marked.contains(&true)),
                Wanted::Parts(parts) => {
                    prop_assert!(is_valid && specs.len() <= MAX_RANGES);
                    let is_sent = |byte| parts.iter().any(|part| part.contains(&byte));
                    let found: Vec<bool> = (0..length).map(is_sent).collect();
                    prop_assert_eq!(found, marked);
                    // No part is empty, and no two touch: the response is never longer than the
                    // file.
                    let mut sorted = parts.clone();
                    sorted.sort_by_key(|part| part.start);
                    prop_assert!(sorted.iter().all(|part| part.start < part.end));
                    prop_assert!(sorted.windows(2).all(|pair| pair[0].end < pair[1].start));
                }
            }
        }

        #[test]
        fn any_value_is_parsed_or_refused(value: Vec<u8>, length: u64) {
            let _ = parse(&value, length);
            let value = [b"bytes=", &*value].concat();
            let _ = parse(&value, length);
        }

        #[test]
        fn no_range_exceeds_the_file(
            specs in "([0-9]{0,22}-[0-9]{0,22},){1,8}",
            length: u64,
        ) {
            if let Wanted::Parts(parts) = parse(format!("bytes={specs}").as_bytes(), length) {
                prop_assert!(!parts.is_empty());
                prop_assert!(parts.iter().all(|part| part.start < part.end && part.end <= length));
            }
        }
    }
}
