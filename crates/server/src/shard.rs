//! An event loop, for functions that run on it outside of a session's callbacks.

use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::LazyLock;

use throng_engine::{CloseCode, Core, Frame, Receipt, Sent};

use crate::handle::Handle;
use crate::hub::Hub;

/// An event loop of the server, inside a function that runs on it:
/// [`Server::every_on_shard`](crate::Server::every_on_shard).
pub struct Shard<'a> {
    core: &'a mut Core,
}

impl<'a> Shard<'a> {
    pub(crate) fn new(core: &'a mut Core) -> Self {
        core.begin_tick();
        Self { core }
    }

    /// Returns its number, from 0 on.
    #[must_use]
    pub fn number(&self) -> usize {
        self.core.shard()
    }

    /// Returns the hub, which reaches all connections.
    #[must_use]
    pub fn hub(&self) -> Hub {
        Hub::of(self.core.remote().clone())
    }

    /// Sends a message to a session of this event loop, without a command through its queue, after
    /// messages that this call has [published](Self::publish). [`Sent::Closed`] if the session has
    /// ended, or belongs to another event loop: use [`Hub::send`] there.
    pub fn send(&mut self, to: Handle, message: impl Into<Frame>) -> Sent {
        self.core.send_in_tick(to.id(), &message.into())
    }

    /// Begins the closing handshake with a session of this event loop, like
    /// [`Socket::close`](crate::Socket::close). Nothing happens if it has ended, or belongs to
    /// another event loop.
    pub fn close(&mut self, session: Handle, code: impl Into<CloseCode>, reason: &str) {
        self.core.close_in_tick(session.id(), code.into().get(), reason);
    }

    /// Sends to every member of a channel, on all event loops, like
    /// [`Socket::publish`](crate::Socket::publish). Members on this loop need no command, unless
    /// others wait in its queue. Members on an event loop whose queue is full are counted as
    /// unreached.
    pub fn publish(&mut self, channel: &str, message: impl Into<Frame>) -> Receipt {
        self.core.publish_unheld(channel, &message.into())
    }
}

impl fmt::Debug for Shard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("number", &self.number()).finish_non_exhaustive()
    }
}

/// The hash of keys that place sessions. Its keys are random, so that no client can choose names
/// that all map to one event loop.
static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Hashes a key that places a session.
pub(crate) fn hash_of<K: Hash + ?Sized>(key: &K) -> u64 {
    KEYS.hash_one(key)
}

/// Returns the shard of sessions whose key has this hash.
pub(crate) fn shard_of(hash: u64, core: &Core) -> usize {
    (hash % core.remote().shards().max(1) as u64) as usize
}
