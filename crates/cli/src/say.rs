//! What people see, whoever still listens.
//!
//! `println!` panics when its reader has gone (`throng serve | head -1`) or the disk is full. A server must not end
//! for that, so every line of this program goes through here.

use std::fmt::Display;
use std::io::{Write, stderr, stdout};

/// Writes a line to standard output; false if nobody takes it.
pub fn line(text: impl Display) -> bool {
    text_as_is(format!("{text}\n"))
}

/// Writes `text` to standard output without adding to it; false if nobody takes it.
pub fn text_as_is(text: impl Display) -> bool {
    write(stdout().lock(), &text.to_string())
}

/// Writes a line that begins with the program's name to standard error.
pub fn trouble(text: impl Display) {
    write(stderr().lock(), &format!("throng: {text}\n"));
}

fn write(mut to: impl Write, text: &str) -> bool {
    to.write_all(text.as_bytes()).and_then(|()| to.flush()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_and_not_a_panic() {
        let mut room = [0; 4];
        assert!(write(&mut room[..], "abcd"));
        assert!(!write(&mut room[..], "abcde"));
    }
}
