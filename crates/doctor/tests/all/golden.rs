//! Texts that were reviewed.

use std::path::Path;

/// Set this variable to write the files instead.
const WRITE: &str = "UPDATE_DOCUMENTS";

/// Checks or writes a file.
pub(crate) fn is_current(path: &Path, text: &str) {
    if std::env::var_os(WRITE).is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == text,
        "{} is not current; write it with `{WRITE}=1 cargo test -p throng-doctor`\n{text}",
        path.display()
    );
}
