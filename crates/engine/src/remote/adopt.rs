//! Gives a connection of the program to a shard.

use std::io;
use std::sync::atomic::Ordering;

use super::Remote;
use super::adoption::Adoption;
use super::command::Command;

impl Remote {
    /// Gives a connection to a shard, which counts and limits it like an accepted one.
    ///
    /// # Errors
    /// No shard, a full mailbox, or one descriptor table per shard, so that the socket's descriptor
    /// is not known. The socket is closed.
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
