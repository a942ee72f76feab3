//! The program that is started as the successor.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The path and the arguments that this process was started with.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

/// Variables of the service manager that are meant for the process that it started: the successor
/// gets its sockets from this one, and is the one to feed the watchdog.
const NOT_INHERITED: [&str; 4] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"];

impl Program {
    /// Finds the program at the start, when its file is still in its place.
    ///
    /// The path is from the command line: where it is a link, a later one may lead to another
    /// file. `/proc/self/exe` names a deleted file after an update.
    ///
    /// # Errors
    /// The program cannot be found.
    pub(super) fn of_this_process() -> std::io::Result<Self> {
        let mut arguments = std::env::args_os();
        let own = std::env::current_exe()?;
        let path = arguments.next().and_then(|word| find(Path::new(&word)));
        let path = path.filter(|path| is_same(path, &own)).unwrap_or(own);
        Ok(Self { path, arguments: arguments.collect() })
    }

    /// Returns the command that starts it again.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        for name in NOT_INHERITED {
            command.env_remove(name);
        }
        command
    }
}

/// Finds a command as a shell does: a path, or a name in one of the folders of `PATH`.
fn find(word: &Path) -> Option<PathBuf> {
    if word.components().count() > 1 || word.is_absolute() {
        return std::path::absolute(word).ok();
    }
    let folders = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&folders).map(|folder| folder.join(word));
    found.filter(|path| path.is_absolute()).find(|path| path.is_file())
}

fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.dev(), file.ino()))
    };
    identity(one).is_some_and(|it| identity(other) == Some(it))
}
