//! Texts of the kernel: files of `/proc` and `/sys`.

/// Whether the system can have such files. On Windows the paths would be of the current drive,
/// where any user may create them.
pub(crate) const MAY_BE: bool = !cfg!(windows);

/// Reads a text; `None` if there is none.
pub(crate) fn read(path: &str) -> Option<String> {
    if MAY_BE { std::fs::read_to_string(path).ok() } else { None }
}
