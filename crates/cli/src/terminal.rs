//! Output to the terminal that never panics.
//!
//! `println!` panics when its reader has exited (`throng serve | head -1`) or the disk is full.
//! That must not end a server, so every line of this program goes through this module, including
//! texts of peers: the reason of a Close frame, the body of an answer. All text except the text of
//! [`text_as_is`] is escaped here, so that no peer controls the terminal.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write, stderr, stdout};

use throng_proto::escape::{Escaped, EscapedLines};

use crate::failure::Failure;

/// Prints the report of a command to standard output.
///
/// # Errors
/// It cannot be written, for example because the disk is full. A reader that has exited (`| head`)
/// wanted no more.
pub fn report(text: impl Display) -> Result<(), Failure> {
    match try_to_write(stdout().lock(), &shown(text)) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::runtime(format!("standard output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a line as a [`report`].
///
/// # Errors
/// As for [`report`].
pub fn report_line(text: impl Display) -> Result<(), Failure> {
    report(format_args!("{text}\n"))
}

/// Returns whether a line on `stream` can be replaced by the next: not on a terminal that
/// identifies itself as dumb, such as an editor's, or on an old console of Windows.
pub(crate) fn is_replaceable(stream: &impl IsTerminal) -> bool {
    stream.is_terminal()
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
        && obeys_escapes()
}

/// Returns whether terminals obey escape sequences, which the console of Windows does on request.
fn obeys_escapes() -> bool {
    #[cfg(windows)]
    return throng_io::console::obey_escapes();
    #[cfg(not(windows))]
    true
}

/// Returns the part that fits into a line of the terminal of `stream`, escaped: a line that wraps
/// could not be replaced.
pub(crate) fn fitting(stream: &impl Terminal, line: &str) -> String {
    Escaped(line).to_string().chars().take(columns(stream).saturating_sub(1)).collect()
}

/// Returns the columns of the terminal of `stream`; 80 if they are unknown.
pub(crate) fn columns(stream: &impl Terminal) -> usize {
    #[cfg(unix)]
    let columns = rustix::termios::tcgetwinsize(stream).map_or(0, |size| size.ws_col);
    #[cfg(not(unix))]
    let (_, columns) = (stream, 0u16);
    if columns == 0 { 80 } else { columns.into() }
}

#[cfg(not(unix))]
pub(crate) use std::io::IsTerminal as Terminal;
/// A stream that may be a terminal.
#[cfg(unix)]
pub(crate) use std::os::fd::AsFd as Terminal;

/// Writes a line to standard output; returns false if that fails.
pub fn line(text: impl Display) -> bool {
    text_as_is(shown(format_args!("{text}\n")))
}

/// Returns text without control characters for a terminal.
fn shown(text: impl Display) -> String {
    EscapedLines(text).to_string()
}

/// Writes `text` to standard output unchanged; returns false if that fails. The caller must escape
/// foreign text.
pub fn text_as_is(text: impl Display) -> bool {
    write(stdout().lock(), &text.to_string())
}

/// Writes a line that begins with the program's name to standard error.
pub fn error_line(text: impl Display) {
    write(stderr().lock(), &shown(format_args!("throng: {text}\n")));
}

fn write(to: impl Write, text: &str) -> bool {
    try_to_write(to, text).is_ok()
}

fn try_to_write(mut to: impl Write, text: &str) -> io::Result<()> {
    to.write_all(text.as_bytes()).and_then(|()| to.flush())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_peers_does_not_drive_the_terminal() {
        let reason = "\u{1b}[2J\u{9b}0m\u{202e}gone\ttab\nline";
        assert_eq!(shown(reason), "\\u001b[2J\\u009b0m\\u202egone\ttab\nline");
        assert!(!fitting(&stdout(), reason).contains(char::is_control));
    }

    #[test]
    fn a_full_disk_is_reported_without_a_panic() {
        let mut disk = [0; 4];
        assert!(write(&mut disk[..], "abcd"));
        assert!(!write(&mut disk[..], "abcde"));
    }
}
