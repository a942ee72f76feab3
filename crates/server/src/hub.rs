//! Connections and channels from any thread.

use throng_engine::{Frame, MailboxFull, Remote};
use throng_io::ConnId;

/// Names a connection: 64 bits, `Copy`, `Send`. A handle kept after its connection ended names nobody, not
/// whoever came later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(ConnId);

impl Handle {
    pub(crate) fn of(id: ConnId) -> Self {
        Self(id)
    }

    /// The 64 bits, to store.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// The inverse of [`Handle::to_bits`].
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self(ConnId::from_bits(bits))
    }
}

/// Reaches every connection and channel of a server from any thread; clone it freely.
///
/// Each call puts one letter into the mailbox of each shard concerned (65,536 letters at most) and wakes it.
/// Letters of one thread are carried out in order.
#[derive(Clone, Debug)]
pub struct Hub {
    remote: Remote,
}

impl Hub {
    pub(crate) fn new(remote: Remote) -> Self {
        Self { remote }
    }

    /// Sends to every member of a channel. One letter a shard, whatever the number of members.
    ///
    /// # Errors
    /// A shard's mailbox is full; members on the other shards get the message.
    pub fn publish(&self, channel: &str, message: impl Into<Frame>) -> Result<(), MailboxFull> {
        self.remote.publish(channel, &message.into(), None)
    }

    /// Sends to one connection, if it is still there.
    ///
    /// # Errors
    /// Its shard's mailbox is full.
    pub fn send(&self, to: Handle, message: impl Into<Frame>) -> Result<(), MailboxFull> {
        self.remote.send(to.0, &message.into())
    }

    /// Begins the closing handshake with one connection, if it is still there. See
    /// [`Socket::close`](crate::Socket::close).
    ///
    /// # Errors
    /// Its shard's mailbox is full.
    pub fn close(&self, to: Handle, code: u16, reason: &str) -> Result<(), MailboxFull> {
        self.remote.close(to.0, code, reason)
    }
}
