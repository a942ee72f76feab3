//! Errors of building, binding and running a server.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use throng_engine::workers::WorkerError;
use throng_proto::{Blame, SettingError};

/// The reason why a server could not be built, bound or run.
///
/// Its `Debug` text is its `Display` text, so that a `main` which returns [`Result`] prints a
/// readable message.
#[non_exhaustive]
pub enum Error {
    /// A setting or a route cannot work. The text names it, its value and the remedy.
    Setting(SettingError),
    /// The server cannot listen on the address.
    Bind {
        /// The address asked for.
        address: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// An event loop could not be created, or failed.
    Shard(io::Error),
    /// A shard's thread panicked: a bug in Throng, since panics of handlers are caught.
    ShardPanicked,
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Returns who must act on the error.
    #[must_use]
    pub fn blame(&self) -> Blame {
        match self {
            Self::Setting(_) | Self::Bind { .. } => Blame::Configuration,
            Self::Shard(_) => Blame::System,
            Self::ShardPanicked => Blame::Bug,
        }
    }

    pub(crate) fn setting(setting: &'static str, message: impl Into<String>) -> Self {
        Self::Setting(SettingError::new(setting, message))
    }

    /// Converts an error of the worker pool; its message names the setting and the remedy.
    pub(crate) fn of_workers(error: WorkerError) -> Self {
        Self::Setting(error.into())
    }

    pub(crate) fn bind(address: &SocketAddr, source: io::Error) -> Self {
        Self::Bind { address: address.to_string(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(error) => error.fmt(f),
            Self::Bind { address, source } => {
                write!(f, "cannot listen on {address}: ")?;
                match source.kind() {
                    io::ErrorKind::PermissionDenied if address.starts_with("unix:") => f.write_str(
                        "this user may not make a file there, or not connect to the one that is \
                         there; choose a folder that it may write to",
                    ),
                    _ if address.starts_with("unix:") => write!(f, "{source}"),
                    io::ErrorKind::AddrInUse => f.write_str(
                        "another program has this port; stop it, choose another port, \
                         or port 0 for a free one",
                    ),
                    io::ErrorKind::PermissionDenied => f.write_str(
                        "ports below 1024 need root or CAP_NET_BIND_SERVICE; choose a higher port",
                    ),
                    io::ErrorKind::AddrNotAvailable => f.write_str(
                        "this machine has no such address; 0.0.0.0 means all of its addresses",
                    ),
                    _ => write!(f, "{source}"),
                }
            }
            Self::Shard(source) => write!(f, "the event loop failed: {source}"),
            Self::ShardPanicked => {
                f.write_str("an event loop panicked; please report this bug in Throng")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bind { source, .. } | Self::Shard(source) => Some(source),
            Self::Setting(error) => Some(error),
            Self::ShardPanicked => None,
        }
    }
}

impl From<SettingError> for Error {
    fn from(error: SettingError) -> Self {
        Self::Setting(error)
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_main_that_returns_the_error_prints_its_message() {
        let error = Error::setting("shards", "shards is 2000; at most 1024 are possible");
        assert_eq!(format!("{error:?}"), error.to_string());
        assert_eq!(format!("{error:#?}"), error.to_string());
        let Error::Setting(setting) = &error else { panic!("{error}") };
        assert_eq!((setting.setting(), error.blame()), ("shards", Blame::Configuration));
        assert_eq!(Error::ShardPanicked.blame(), Blame::Bug);
    }
}
