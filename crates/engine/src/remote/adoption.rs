//! Connections that a program gives to a server, instead of the server accepting them.

use std::io;
use std::net::TcpStream;
use std::sync::atomic::Ordering;

use super::{Command, Remote};

/// A connection that was accepted elsewhere, with what was read of it there.
#[derive(Debug)]
pub struct Adoption {
    /// The socket; one of a Unix socket, too.
    pub stream: TcpStream,
    /// Bytes that were received and not used, from the head of a request on.
    pub received: Vec<u8>,
    /// The first request is an upgrade, and its client has got the response.
    pub is_answered: bool,
}

/// The part of an [`Adoption`] that a shard is given beside its socket.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) received: Vec<u8>,
    pub(crate) is_answered: bool,
}

impl Remote {
    /// Gives a connection to a shard, which counts and limits it like one that it accepted.
    ///
    /// # Errors
    /// There is no shard, its mailbox is full, or shards have descriptor tables of their own, where
    /// the socket's descriptor is not known. The socket is closed.
    pub fn adopt(&self, adoption: Adoption) -> io::Result<()> {
        if !self.shares_descriptors {
            return Err(io::Error::other(
                "each event loop has a descriptor table of its own, so a connection cannot be \
                 given to it; keep one table for all",
            ));
        }
        let count = self.shards.len().max(1);
        let next = self.counters.adopted.fetch_add(1, Ordering::Relaxed) % count;
        let queue = self.shards.get(next).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotConnected, "the hub's server is not bound yet")
        })?;
        let full = |_| io::Error::other("the shard's queue is full: the server is far behind");
        queue.put(Command::Adopt(Box::new(adoption))).map_err(full)
    }
}
