//! The addresses of a server that listens, and its capacity.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use throng_io::Listener;

use crate::error::{Error, Result};

/// Addresses on which a server listens: at least one socket address or path.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) tcp: Vec<SocketAddr>,
    pub(crate) unix: Vec<PathBuf>,
}

impl Addresses {
    /// Adds the address of an open listener.
    pub(crate) fn add(&mut self, listener: &Listener) -> Result<()> {
        match listener {
            Listener::Tcp(listener) => self.tcp.push(listener.local_addr().map_err(Error::Shard)?),
            #[cfg(unix)]
            Listener::Unix(socket) => self.unix.push(socket.path().unwrap_or_default()),
            other => {
                let message = format!("{other:?} is of a kind that servers do not know");
                return Err(Error::setting("listeners", message));
            }
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tcp.is_empty() && self.unix.is_empty()
    }

    pub(super) fn first(&self) -> SocketAddr {
        self.tcp.first().copied().unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into())
    }
}

/// The maximum number of connections of a server, and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capacity {
    /// The number, as [`Bound::max_connections`](crate::server::Bound::max_connections) returns
    /// it.
    pub connections: usize,
    /// The origin of the number where each shard has its own descriptor table; `None` where all
    /// shards share one table.
    pub reason: Option<String>,
    /// Why the shards share a descriptor table although separate tables were requested.
    pub tables_refused: Option<String>,
}
