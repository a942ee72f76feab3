//! Files that are read again when they change.

use std::fs::Metadata;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// The stamps of files, `None` for one that is missing.
pub(crate) type Stamps = Vec<Option<Stamp>>;

/// A stamp that shows that a file was written or replaced. The time alone would not: a symbolic
/// link can be changed to a file of any time.
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

/// Returns the stamps of files: those that symbolic links lead to.
pub(crate) fn stamps<'a>(files: impl Iterator<Item = &'a Path>) -> Stamps {
    files.map(|file| std::fs::metadata(file).ok().as_ref().map(Stamp::of)).collect()
}

/// Files of which it is known how they were when they were read last.
pub(crate) struct Watch(Mutex<State>);

/// The state of the files.
struct State {
    /// They were read so, or their mistake was reported.
    known: Stamps,
    /// They were found so, with a mistake that was not reported yet.
    doubted: Option<Stamps>,
}

impl Watch {
    pub(crate) fn new(known: Stamps) -> Self {
        Self(Mutex::new(State { known, doubted: None }))
    }

    /// Notes that the files are read as they are with these stamps.
    pub(crate) fn note(&self, known: Stamps) {
        *self.state() = State { known, doubted: None };
    }

    /// Reads the files, whose stamps are `now`, if they have changed. Returns whether they were
    /// read. A mistake is reported by the second call that finds it: the files of a certificate are
    /// replaced one after the other.
    pub(crate) fn read_if_changed<E>(
        &self,
        now: Stamps,
        read: impl FnOnce() -> Result<(), E>,
    ) -> Result<bool, E> {
        let doubted = {
            let mut state = self.state();
            if now == state.known {
                state.doubted = None;
                return Ok(false);
            }
            state.doubted.take()
        };
        match read() {
            Ok(()) => self.note(now),
            Err(error) if doubted.as_ref() == Some(&now) => {
                self.note(now);
                return Err(error);
            }
            Err(_) => {
                self.state().doubted = Some(now);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
