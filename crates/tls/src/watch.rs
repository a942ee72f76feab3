//! Files that are read again when they change.

use std::fs::Metadata;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::error::ConfigError;

/// The stamps of files, `None` for a missing file.
pub(crate) type Stamps = Vec<Option<Stamp>>;

/// A stamp that shows whether a file was written or replaced. The time alone does not: a symbolic
/// link can be changed to a file with any time.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    modified: Option<SystemTime>,
    len: u64,
    /// Device and number, where the system has them.
    inode: (u64, u64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let inode = {
            use std::os::unix::fs::MetadataExt;
            (metadata.dev(), metadata.ino())
        };
        #[cfg(not(unix))]
        let inode = (0, 0);
        Self { modified: metadata.modified().ok(), len: metadata.len(), inode }
    }
}

/// Returns the stamps of files. Symbolic links are followed.
pub(crate) fn stamps<'a>(files: impl Iterator<Item = &'a Path>) -> Stamps {
    files.map(|file| std::fs::metadata(file).ok().as_ref().map(Stamp::of)).collect()
}

/// Files whose state at their last read is known.
pub(crate) struct Watch(Mutex<WatchedFiles>);

/// The state of the files.
struct WatchedFiles {
    /// These stamps were read, or their mistake was reported.
    known: Stamps,
    /// These stamps were found with a mistake that was not reported yet.
    doubted: Option<Stamps>,
    /// When the files must be read again although they have not changed: one of them is not valid
    /// yet.
    due: Option<SystemTime>,
}

impl Watch {
    pub(crate) fn new(known: Stamps) -> Self {
        Self(Mutex::new(WatchedFiles { known, doubted: None, due: None }))
    }

    /// Records that the files with these stamps were read.
    pub(crate) fn note(&self, known: Stamps) {
        self.note_until(known, None);
    }

    /// Does the same, with a time from which files that are not valid yet may be.
    pub(crate) fn note_until(&self, known: Stamps, due: Option<SystemTime>) {
        *self.state() = WatchedFiles { known, doubted: None, due };
    }

    /// Reads the files, whose current stamps are `now`, if they have changed, or if one of them
    /// becomes valid only at this `time`. Returns whether they were read. The second call that
    /// finds a mistake reports it: the files of a certificate are replaced one after the other.
    pub(crate) fn read_if_changed(
        &self,
        now: Stamps,
        time: SystemTime,
        read: impl FnOnce() -> Result<(), ConfigError>,
    ) -> Result<bool, ConfigError> {
        let doubted = {
            let mut state = self.state();
            if now == state.known && state.due.is_none_or(|due| time < due) {
                state.doubted = None;
                return Ok(false);
            }
            state.doubted.take()
        };
        match read() {
            Ok(()) => self.note(now),
            Err(error) if doubted.as_ref() == Some(&now) => {
                self.note_until(now, error.until);
                return Err(error);
            }
            Err(_) => {
                self.state().doubted = Some(now);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn state(&self) -> MutexGuard<'_, WatchedFiles> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
