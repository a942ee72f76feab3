//! The process that a container was started with: its command line has the flags that a health
//! check is not given. Both share their environment variables.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;

use crate::config::Program;

/// Returns the program of the first process, or of its only child that runs this program, if the
/// first one is an init such as tini; `None` in all other cases, as outside of containers.
pub(super) fn of_container() -> Option<Program> {
    let children = std::fs::read_to_string("/proc/1/task/1/children").unwrap_or_default();
    let mut found = children.split_whitespace().filter_map(program);
    program("1").or_else(|| found.next().filter(|_| found.next().is_none()))
}

/// Returns the program of a process, if it is `serve` or `balance` of this binary.
fn program(process: &str) -> Option<Program> {
    let file = |process: &str| {
        let file = std::fs::metadata(format!("/proc/{process}/exe")).ok()?;
        Some((file.dev(), file.ino()))
    };
    if file(process)? != file("self")? {
        return None;
    }
    let line = std::fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let words = line.strip_suffix(&[0]).unwrap_or(&line).split(|byte| *byte == 0);
    crate::program_of(words.map(|word| OsString::from_vec(word.to_vec())))
}
