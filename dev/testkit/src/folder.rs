//! Folders for the files of one test.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new, empty folder for temporary files. Dropping it removes it with its content, even in a
/// failing test.
#[derive(Debug)]
pub struct TempFolder(PathBuf);

impl TempFolder {
    /// Creates a folder whose name contains `name` and is unique on this machine.
    ///
    /// # Panics
    /// The folder cannot be created.
    #[must_use]
    pub fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("throng-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // The remains of an earlier process with this number, which was killed.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        Self(path)
    }

    /// Writes a file in the folder, and returns its path.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, content).expect("a file in a folder of the test's own");
        path
    }
}

impl Deref for TempFolder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for TempFolder {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_ends_with_its_test_also_if_that_fails() {
        let (one, other) = (TempFolder::new("folder"), TempFolder::new("folder"));
        assert_ne!(*one, *other);
        let (file, path) = (one.write("file", "text"), one.to_path_buf());
        assert_eq!(std::fs::read_to_string(file).unwrap(), "text");
        let failed = std::panic::catch_unwind(move || {
            let _one = one;
            std::panic::resume_unwind(Box::new("a failed test"));
        });
        assert!(failed.is_err() && !path.exists() && other.exists());
    }
}
