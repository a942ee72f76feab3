//! A folder for temporary files that lasts as long as the process.

use std::io;
use std::path::{Path, PathBuf};

/// A new folder that only this user can read; dropping it removes it with its content.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Creates a folder, whose name begins with `name`.
    ///
    /// # Errors
    /// It cannot be created, or exists already.
    pub(crate) fn make(name: &str) -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        private_folder(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Any remains are in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(unix)]
fn private_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn private_folder(folder: &Path) -> io::Result<()> {
    std::fs::create_dir(folder)
}
