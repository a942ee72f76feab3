//! The message that is broadcast: it says which round it is of and when the server was asked for
//! it.

use std::fmt::Write;

/// Fewest bytes of a message: the round and the time in hexadecimal.
pub(crate) const SMALLEST: usize = 8 + 16;

/// Makes the text of round `round`, `size` bytes long, asked for at `called_ns` on the machine's
/// clock.
///
/// `size` is at least [`SMALLEST`]; a smaller one gives a message of that length.
pub(crate) fn compose(out: &mut String, size: usize, round: u32, called_ns: u64) {
    out.clear();
    // Writing to a string cannot fail.
    let _ = write!(out, "{round:08x}{called_ns:016x}");
    let letters = (0..size.saturating_sub(SMALLEST)).map(|at| char::from(b'a' + (at % 26) as u8));
    out.extend(letters);
}

/// The round and the time of asking; `None` for what [`compose`] did not make with this `size`.
#[must_use]
pub(crate) fn parse(text: &str, size: usize) -> Option<(u32, u64)> {
    if text.len() != size.max(SMALLEST) {
        return None;
    }
    let round = u32::from_str_radix(text.get(..8)?, 16).ok()?;
    let called_ns = u64::from_str_radix(text.get(8..SMALLEST)?, 16).ok()?;
    Some((round, called_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_composed_message_is_parsed() {
        let mut text = String::new();
        for (size, round, at) in
            [(SMALLEST, 0, 0), (100, 7, 123_456_789_012), (3000, u32::MAX, u64::MAX)]
        {
            compose(&mut text, size, round, at);
            assert_eq!(text.len(), size);
            assert_eq!(parse(&text, size), Some((round, at)));
            assert_eq!(parse(&text, size + 1), None, "cut or joined");
        }
        assert_eq!(parse(&"x".repeat(100), 100), None);
    }
}
