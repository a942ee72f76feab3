//! Output to the terminal that never panics.
//!
//! `println!` panics when its reader has exited (`throng serve | head -1`) or the disk is full.
//! That must not end a server, so every line of this program goes through this module.

use std::fmt::Display;
use std::io::{Write, stderr, stdout};

/// Writes a line to standard output; returns false if that fails.
pub fn line(text: impl Display) -> bool {
    text_as_is(format!("{text}\n"))
}

/// Writes `text` to standard output as it is; returns false if that fails.
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
    fn a_full_disk_is_reported_without_a_panic() {
        let mut disk = [0; 4];
        assert!(write(&mut disk[..], "abcd"));
        assert!(!write(&mut disk[..], "abcde"));
    }
}
