//! Connections and channels from any thread.

use std::sync::Arc;

use throng_engine::{Frame, MailboxFull, Receipt, Remote, Totals};
use throng_io::ConnId;

use crate::filter::Filter;

/// Names a connection: 64 bits, `Copy`, `Send`. A handle kept after its connection ended names nobody, not
/// whoever came later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(ConnId);

impl Handle {
    pub(crate) fn of(id: ConnId) -> Self {
        Self(id)
    }

    pub(crate) fn id(self) -> ConnId {
        self.0
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
/// Each call puts one letter into the mailbox of each shard concerned and wakes it if it slept. A mailbox holds 65,536
/// letters and 64 MiB of messages; a thread that meets a full one gets an error. Connections that publish by
/// [`Socket::publish`](crate::Socket::publish) are held back before that instead. Letters of one thread are carried out in order, after what its callback (if it is one)
/// does itself.
#[derive(Clone, Debug)]
pub struct Hub {
    remote: Remote,
    totals: Arc<Totals>,
}

impl Hub {
    pub(crate) fn new(remote: Remote, totals: Arc<Totals>) -> Self {
        Self { remote, totals }
    }

    pub(crate) fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Sends to every member of a channel. One letter to each shard that has members at this moment, whatever their number.
    ///
    /// # Errors
    /// A shard's mailbox is full; members on the other shards get the message.
    pub fn publish(
        &self,
        channel: &str,
        message: impl Into<Frame>,
    ) -> Result<Receipt, MailboxFull> {
        self.remote.publish(channel, &message.into(), None)
    }

    /// Sends to every session and every stream of events. One letter a shard, encoded once: pass a `&`[`Frame`] to
    /// send the same message again.
    ///
    /// # Errors
    /// A shard's mailbox is full; those on the other shards get the message.
    pub fn broadcast(&self, message: impl Into<Frame>) -> Result<Receipt, MailboxFull> {
        self.broadcast_to(&Filter::new(), message)
    }

    /// Sends to everyone that `filter` lets through.
    ///
    /// # Errors
    /// As for [`Hub::broadcast`].
    pub fn broadcast_to(
        &self,
        filter: &Filter,
        message: impl Into<Frame>,
    ) -> Result<Receipt, MailboxFull> {
        self.remote.broadcast(filter.inner(), &message.into())
    }

    /// Subscriptions to exactly this channel, or pattern, on all shards, at this moment. Streams of events count, and
    /// a session that is being closed does until it has ended.
    #[must_use]
    pub fn subscribers(&self, channel: &str) -> usize {
        self.totals.count(channel)
    }

    /// Channels and patterns that have subscribers, with their number, in no order.
    #[must_use]
    pub fn channels(&self) -> Vec<(Arc<str>, usize)> {
        self.totals.list()
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
