//! Presence: the clients that are members of channels, over all shards.
//!
//! A client is added when it joins a channel whose rule says so, and removed when it leaves or its
//! connection ends. Both report whether they changed anything, so that each join is announced once,
//! and has its leave once. Channels without such a rule do not come here.

mod rules;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_io::ConnId;

pub use rules::{Presence, PresenceChange, PresenceEvent, PresenceRules, PresenceSwitch};

use crate::outbox::frame::Frame;

/// Channels of different stripes are joined at the same time.
const STRIPES: usize = 64;

/// Memory of a client besides its information, and of a channel besides its name.
const CLIENT: usize = 96;
const CHANNEL: usize = 350;

/// Figures of presence in all channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PresenceCounts {
    /// Channels with a client.
    pub channels: u64,
    /// Clients, in each channel that they have joined.
    pub clients: u64,
    /// Memory of both, in bytes.
    pub bytes: u64,
    /// Most memory.
    pub max_bytes: u64,
    /// Clients that came.
    pub joins: u64,
    /// Clients that went.
    pub leaves: u64,
    /// Clients that were left out because the memory was used up.
    pub unlisted: u64,
}

/// A client that is a member of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Present {
    /// The connection.
    pub client: ConnId,
    /// The information that it was given when it joined; empty without any.
    pub info: Arc<str>,
}

type Members = BTreeMap<ConnId, Arc<str>>;
type Stripe = HashMap<Arc<str>, Members>;

/// Clients of all channels with presence.
#[derive(Debug)]
pub(crate) struct Presences {
    pub(crate) rules: PresenceRules,
    stripes: [Mutex<Stripe>; STRIPES],
    /// Channels with too many members to announce joins and leaves.
    unannounced: Mutex<HashSet<Box<str>>>,
    hasher: RandomState,
    max_bytes: usize,
    bytes: AtomicUsize,
    /// The most since it was asked for.
    most_bytes: AtomicUsize,
    channels: AtomicUsize,
    clients: AtomicUsize,
    joins: AtomicU64,
    leaves: AtomicU64,
    unlisted: AtomicU64,
}

impl Presences {
    pub(crate) fn new(rules: PresenceRules, max_bytes: usize) -> Self {
        Self {
            rules,
            stripes: std::array::from_fn(|_| Mutex::default()),
            unannounced: Mutex::default(),
            hasher: RandomState::new(),
            max_bytes,
            bytes: AtomicUsize::new(0),
            most_bytes: AtomicUsize::new(0),
            channels: AtomicUsize::new(0),
            clients: AtomicUsize::new(0),
            joins: AtomicU64::new(0),
            leaves: AtomicU64::new(0),
            unlisted: AtomicU64::new(0),
        }
    }

    fn stripe(&self, channel: &str) -> MutexGuard<'_, Stripe> {
        let number = self.hasher.hash_one(channel) as usize % STRIPES;
        self.stripes[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client; returns false if it is there, or there is no memory for it.
    pub(crate) fn join(&self, channel: &str, client: ConnId, info: &str) -> bool {
        let mut stripe = self.stripe(channel);
        let members = stripe.get_mut(channel);
        if members.as_ref().is_some_and(|members| members.contains_key(&client)) {
            return false;
        }
        let of_channel = if members.is_some() { 0 } else { CHANNEL + channel.len() };
        let cost = CLIENT + info.len() + of_channel;
        // What others add at the same time is added before the comparison, too.
        if self.bytes.fetch_add(cost, Ordering::Relaxed) + cost > self.max_bytes {
            self.bytes.fetch_sub(cost, Ordering::Relaxed);
            self.unlisted.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        match members {
            Some(members) => drop(members.insert(client, info.into())),
            None => {
                self.channels.fetch_add(1, Ordering::Relaxed);
                stripe.insert(channel.into(), BTreeMap::from([(client, info.into())]));
            }
        }
        self.most_bytes.fetch_max(self.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.clients.fetch_add(1, Ordering::Relaxed);
        self.joins.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Removes a client; returns its information if it was there.
    pub(crate) fn leave(&self, channel: &str, client: ConnId) -> Option<Arc<str>> {
        let mut stripe = self.stripe(channel);
        let members = stripe.get_mut(channel)?;
        let info = members.remove(&client)?;
        let mut cost = CLIENT + info.len();
        if members.is_empty() {
            cost += CHANNEL + channel.len();
            self.channels.fetch_sub(1, Ordering::Relaxed);
            stripe.remove(channel);
            if stripe.capacity() > 64 && stripe.len() < stripe.capacity() / 4 {
                let len = stripe.len();
                stripe.shrink_to(len * 2);
            }
        }
        self.bytes.fetch_sub(cost, Ordering::Relaxed);
        self.clients.fetch_sub(1, Ordering::Relaxed);
        self.leaves.fetch_add(1, Ordering::Relaxed);
        Some(info)
    }

    /// Returns what members of a channel, which are so many, get of a join or leave that is in the
    /// lists already. Calls functions of the program.
    pub(crate) fn frame(&self, event: &PresenceEvent<'_>, members: usize) -> Option<Frame> {
        let rule = self.rules.of(event.channel).filter(|rule| rule.announces())?;
        let channel = event.channel;
        let (was_announced, is_announced) = {
            let all = &self.unannounced;
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            let was_announced = !all.contains(channel);
            let is_announced = rule.is_announced(members, was_announced);
            match is_announced {
                true if !was_announced => drop(all.remove(channel)),
                false if was_announced => drop(all.insert(channel.into())),
                _ => {}
            }
            (was_announced, is_announced)
        };
        if was_announced != is_announced {
            return rule.switch_frame(&PresenceSwitch { channel, members, is_announced });
        }
        // Joins and leaves of a client are the values of one key.
        let keyed = |frame: Frame| frame.keyed(("presence", event.node, event.client));
        if is_announced { rule.frame(event).map(keyed) } else { None }
    }

    /// Returns up to `most` clients of a channel, in the order of their ids.
    pub(crate) fn list(&self, channel: &str, most: usize) -> Vec<Present> {
        let stripe = self.stripe(channel);
        let members = stripe.get(channel).into_iter().flatten().take(most);
        members.map(|(client, info)| Present { client: *client, info: Arc::clone(info) }).collect()
    }

    /// Returns the number of clients of a channel.
    pub(crate) fn count(&self, channel: &str) -> usize {
        self.stripe(channel).get(channel).map_or(0, Members::len)
    }

    /// Returns the memory now, and the most since the last call.
    pub(crate) fn memory(&self) -> (usize, usize) {
        let now = self.bytes.load(Ordering::Relaxed);
        (now, self.most_bytes.swap(now, Ordering::Relaxed))
    }

    pub(crate) fn counts(&self) -> PresenceCounts {
        PresenceCounts {
            channels: self.channels.load(Ordering::Relaxed) as u64,
            clients: self.clients.load(Ordering::Relaxed) as u64,
            bytes: self.bytes.load(Ordering::Relaxed) as u64,
            max_bytes: self.max_bytes as u64,
            joins: self.joins.load(Ordering::Relaxed),
            leaves: self.leaves.load(Ordering::Relaxed),
            unlisted: self.unlisted.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_join_has_one_leave_and_the_memory_is_bounded_and_given_back() {
        let presences = Presences::new(PresenceRules::default(), 1000);
        let id = |slot| ConnId::new(0, slot, 1);
        assert!(presences.join("a", id(1), "one") && !presences.join("a", id(1), "again"));
        assert!(presences.join("a", id(2), "") && presences.join("b", id(1), ""));
        let listed = presences.list("a", 9);
        let infos: Vec<_> = listed.iter().map(|present| (present.client, &*present.info)).collect();
        assert_eq!(infos, [(id(1), "one"), (id(2), "")]);
        assert_eq!(presences.list("a", 1).len(), 1);
        assert!(!presences.join("a", id(3), &"x".repeat(1000)), "there is no memory for it");
        assert_eq!(presences.leave("a", id(3)), None);
        assert_eq!(presences.leave("a", id(1)).as_deref(), Some("one"));
        assert_eq!(presences.leave("a", id(1)), None);
        assert!(presences.leave("a", id(2)).is_some() && presences.leave("b", id(1)).is_some());
        let expected = PresenceCounts {
            max_bytes: 1000,
            joins: 3,
            leaves: 3,
            unlisted: 1,
            ..Default::default()
        };
        assert_eq!(presences.counts(), expected);
    }
}
