//! What can go wrong before a server runs, told so that it can be mended.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Why a server could not be built, bound or run.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A setting has a value that cannot work. The message names it, and the remedy.
    Setting(String),
    /// The address could not be listened on.
    Bind {
        /// The address asked for.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The event loop could not be made, or broke.
    Shard(io::Error),
    /// A shard's thread ended with a panic: a bug in Throng, since handlers' panics are caught.
    ShardPanicked,
}

impl Error {
    pub(crate) fn bind(address: &SocketAddr, source: io::Error) -> Self {
        Self::Bind { address: address.to_string(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(message) => f.write_str(message),
            Self::Bind { address, source } => {
                write!(f, "cannot listen on {address}: ")?;
                match source.kind() {
                    io::ErrorKind::AddrInUse => f.write_str(
                        "another program has this port; stop it, choose another port, or port 0 for a free one",
                    ),
                    io::ErrorKind::PermissionDenied => f.write_str(
                        "ports below 1024 need root or CAP_NET_BIND_SERVICE; choose a higher port",
                    ),
                    io::ErrorKind::AddrNotAvailable => f.write_str(
                        "this machine has no such address; 0.0.0.0 stands for all of them",
                    ),
                    _ => write!(f, "{source}"),
                }
            }
            Self::Shard(source) => write!(f, "the event loop failed: {source}"),
            Self::ShardPanicked => {
                f.write_str("a shard ended with a panic; please report this bug")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bind { source, .. } | Self::Shard(source) => Some(source),
            Self::Setting(_) | Self::ShardPanicked => None,
        }
    }
}

/// This crate's results.
pub type Result<T> = std::result::Result<T, Error>;
