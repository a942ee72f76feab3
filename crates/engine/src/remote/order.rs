//! One order of a channel's publications on all shards.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::pubsub::history::{Histories, Stripe};
use crate::pubsub::presence::Presences;
use crate::pubsub::relay::Relay;

/// Locks that give the publications to a channel one order on all shards: each is held while a
/// command is put into the queues of all shards concerned.
#[derive(Debug)]
pub(super) struct Order {
    /// The stripes, each with the histories of the channels that it orders.
    pub(super) stripes: [Mutex<Stripe>; ORDER_STRIPES],
    hasher: RandomState,
    pub(super) histories: Histories,
    pub(super) path: PublishPath,
    pub(super) relay: Option<Arc<dyn Relay>>,
    /// `None`: no channel has presence.
    pub(super) presences: Option<Presences>,
}

/// Publishers to different channels rarely meet at a lock.
pub(super) const ORDER_STRIPES: usize = 64;

impl Order {
    pub(super) fn new(
        (histories, presences): (Histories, Option<Presences>),
        is_alone: bool,
        relay: Option<Arc<dyn Relay>>,
    ) -> Self {
        let path = match histories.rules.is_empty() {
            _ if relay.is_some() => PublishPath::Relayed,
            true if is_alone => PublishPath::Alone,
            true => PublishPath::Shards,
            false => PublishPath::Histories,
        };
        let stripes = std::array::from_fn(|_| Mutex::default());
        Self { stripes, hasher: RandomState::new(), histories, path, relay, presences }
    }

    /// Locks the stripe of `channel` and returns the guard.
    pub(super) fn of(&self, channel: &str) -> MutexGuard<'_, Stripe> {
        let stripe = self.hasher.hash_one(channel) as usize % ORDER_STRIPES;
        self.stripes[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the guards of all channels.
    pub(super) fn of_all(&self) -> [MutexGuard<'_, Stripe>; ORDER_STRIPES] {
        // Always in the order of the stripes, so that no two callers wait for each other.
        let lock = |stripe: usize| self.stripes[stripe].lock();
        std::array::from_fn(|stripe| lock(stripe).unwrap_or_else(PoisonError::into_inner))
    }
}

/// Path of a shard's publications, known when the server is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublishPath {
    /// There is one shard.
    Alone,
    /// There are others, or may be.
    Shards,
    /// Some channels have a history.
    Histories,
    /// A broker carries some channels.
    Relayed,
}
