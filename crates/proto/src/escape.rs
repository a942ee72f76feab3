//! Escapes text that a peer chose, for a terminal or a log.

use std::fmt::{self, Write};

/// Returns whether a character can end a line, control a terminal, change the direction of writing
/// or be invisible: control characters (C0, DEL, C1), direction marks, line separators, and
/// characters without width.
#[must_use]
pub fn is_special(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}')
        || matches!(char, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        || matches!(char, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Displays a value with each [special](is_special) character as `\u001b`, a form that is also
/// valid JSON.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<T>(pub T);

impl<T: fmt::Display> fmt::Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping { to: f, keeps_lines: false }, "{}", self.0)
    }
}

/// Displays a value as [`Escaped`] does, but keeps its tabs and line ends, for text of several
/// lines that the program itself has composed.
#[derive(Clone, Copy, Debug)]
pub struct EscapedLines<T>(pub T);

impl<T: fmt::Display> fmt::Display for EscapedLines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping { to: f, keeps_lines: true }, "{}", self.0)
    }
}

struct Escaping<'a, W> {
    to: &'a mut W,
    keeps_lines: bool,
}

impl<W: Write> Write for Escaping<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let is_kept = |char| self.keeps_lines && matches!(char, '\n' | '\t');
        let mut rest = text;
        while let Some(at) = rest.find(|char| is_special(char) && !is_kept(char)) {
            self.to.write_str(&rest[..at])?;
            let Some(special) = rest[at..].chars().next() else { break };
            for unit in special.encode_utf16(&mut [0; 2]) {
                write!(self.to, "\\u{unit:04x}")?;
            }
            rest = &rest[at + special.len_utf8()..];
        }
        self.to.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn special_characters_are_escaped() {
        for (text, shown) in [
            ("it's \u{1b}[2J\u{7}", "it's \\u001b[2J\\u0007"),
            ("\u{9b}31m\u{7f}\r", "\\u009b31m\\u007f\\u000d"),
            ("a\u{202e}b\u{2066}c\u{2069}", "a\\u202eb\\u2066c\\u2069"),
            ("\u{200b}\u{200d}\u{feff}\u{2028}\u{2029}", "\\u200b\\u200d\\ufeff\\u2028\\u2029"),
            ("\u{e0041}", "\\udb40\\udc41"),
            ("häuser \\ \"日本\" 🦀", "häuser \\ \"日本\" 🦀"),
            ("one\n\ttwo", "one\\u000a\\u0009two"),
        ] {
            assert_eq!(Escaped(text).to_string(), shown);
        }
        assert_eq!(EscapedLines("one\n\ttwo\r\u{1b}").to_string(), "one\n\ttwo\\u000d\\u001b");
    }

    proptest! {
        #[test]
        fn nothing_special_is_left_and_all_else_is_kept(text in any::<String>()) {
            let shown = Escaped(&text).to_string();
            prop_assert!(!shown.chars().any(is_special));
            let plain: String = text.chars().filter(|char| !is_special(*char)).collect();
            if plain == text {
                prop_assert_eq!(shown, text);
            }
        }
    }
}
