//! Presence: the clients that are members of channels, over all shards.
//!
//! A client is added when it joins a channel with presence, and removed when it leaves or its
//! connection ends. Both operations report whether they changed anything, so that each join is
//! announced once and has exactly one leave. Channels without such a rule do not come here.

mod rules;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_io::ConnId;

pub use rules::{Presence, PresenceEvent, PresenceRules, PresenceSwitch};

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
    /// Maximum memory.
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

/// The clients of a channel.
#[derive(Debug, Default)]
struct Channel {
    clients: BTreeMap<ConnId, Arc<str>>,
    /// Whether there are too many members to announce joins and leaves.
    is_unannounced: bool,
}

/// Outcome of a join or leave for the members of its channel.
#[derive(Debug)]
pub(crate) enum Announced {
    /// The message of the event, for all but the client.
    Event(Frame),
    /// Joins and leaves are no longer announced, or announced again (`is_announced`); the joining
    /// or leaving client also gets this message.
    Switch { frame: Frame, is_announced: bool },
}

impl Announced {
    /// Returns whether joins and leaves are announced in a channel whose members get this message.
    pub(crate) fn is_announced(&self) -> bool {
        match self {
            Self::Event(_) => true,
            Self::Switch { is_announced, .. } => *is_announced,
        }
    }
}

type Stripe = HashMap<Arc<str>, Channel>;

/// Clients of all channels with presence.
#[derive(Debug)]
pub(crate) struct Presences {
    pub(crate) rules: PresenceRules,
    stripes: [Mutex<Stripe>; STRIPES],
    hasher: RandomState,
    max_bytes: usize,
    bytes: AtomicUsize,
    /// The maximum since the last reading.
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
        let found = stripe.get_mut(channel);
        if found.as_ref().is_some_and(|found| found.clients.contains_key(&client)) {
            return false;
        }
        let of_channel = if found.is_some() { 0 } else { CHANNEL + channel.len() };
        let cost = CLIENT + info.len() + of_channel;
        // The comparison includes bytes that other threads add at the same time.
        if self.bytes.fetch_add(cost, Ordering::Relaxed) + cost > self.max_bytes {
            self.bytes.fetch_sub(cost, Ordering::Relaxed);
            self.unlisted.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        match found {
            Some(found) => drop(found.clients.insert(client, info.into())),
            None => {
                self.channels.fetch_add(1, Ordering::Relaxed);
                let clients = BTreeMap::from([(client, info.into())]);
                stripe.insert(channel.into(), Channel { clients, is_unannounced: false });
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
        let clients = &mut stripe.get_mut(channel)?.clients;
        let info = clients.remove(&client)?;
        let mut cost = CLIENT + info.len();
        if clients.is_empty() {
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

    /// Returns the message that members of a channel get for a join or leave that is already in the
    /// lists. `count` returns the number of members; if several shards decide, the last of them
    /// counts all members. Calls functions of the program.
    pub(crate) fn announced(
        &self,
        event: &PresenceEvent<'_>,
        count: impl FnOnce() -> usize,
    ) -> Option<Announced> {
        let rule = self.rules.of(event.channel).filter(|rule| rule.announces())?;
        let channel = event.channel;
        let mut stripe = self.stripe(channel);
        let members = count();
        let (is_switched, is_announced) = match stripe.get_mut(channel) {
            Some(found) => {
                let is_announced = rule.is_announced(members, !found.is_unannounced);
                let was_unannounced = std::mem::replace(&mut found.is_unannounced, !is_announced);
                (was_unannounced == is_announced, is_announced)
            }
            // None of its members is listed.
            None => (false, rule.is_announced(members, true)),
        };
        drop(stripe);
        if is_switched {
            let switch = PresenceSwitch { channel, members, is_announced };
            let frame = rule.switch_frame(&switch)?;
            return Some(Announced::Switch { frame, is_announced });
        }
        // Joins and leaves of a client are the values of one key.
        let keyed = |frame: Frame| frame.keyed(("presence", event.node, event.client));
        let frame = if is_announced { rule.frame(event).map(keyed) } else { None };
        frame.map(Announced::Event)
    }

    /// Returns whether joins and leaves are announced in a channel.
    pub(crate) fn is_announced(&self, channel: &str) -> bool {
        self.stripe(channel).get(channel).is_none_or(|found| !found.is_unannounced)
    }

    /// Returns the message that joins and leaves are announced or no longer announced in a channel
    /// of this many members, for a member that knows `known_announced`; `None` if this has not
    /// changed. Calls functions of the program.
    pub(crate) fn changed_since(
        &self,
        channel: &str,
        members: usize,
        known_announced: bool,
    ) -> Option<Frame> {
        let rule = self.rules.of(channel).filter(|rule| rule.announces())?;
        let is_announced = !self.stripe(channel).get(channel)?.is_unannounced;
        let switch = PresenceSwitch { channel, members, is_announced };
        if is_announced == known_announced { None } else { rule.switch_frame(&switch) }
    }

    /// Returns up to `most` clients of a channel, in the order of their ids.
    pub(crate) fn list(&self, channel: &str, most: usize) -> Vec<Present> {
        let stripe = self.stripe(channel);
        let found = stripe.get(channel);
        let members = found.into_iter().flat_map(|found| &found.clients).take(most);
        members.map(|(client, info)| Present { client: *client, info: Arc::clone(info) }).collect()
    }

    /// Returns the number of clients of a channel.
    pub(crate) fn count(&self, channel: &str) -> usize {
        self.stripe(channel).get(channel).map_or(0, |found| found.clients.len())
    }

    /// Returns the current memory, and the maximum since the last call.
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
    use crate::outbox::about::PresenceChange;

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

    #[test]
    fn a_channel_is_unannounced_for_as_long_as_it_has_members() {
        let mut rules = PresenceRules::default();
        rules.add("a", Some(Presence::new().join_leave(true).max_announced(1))).unwrap();
        let presences = Presences::new(rules, 1 << 20);
        let join = |slot, members| {
            let client = ConnId::new(0, slot, 1);
            assert!(presences.join("a", client, ""));
            let (change, client) = (PresenceChange::Join, client.to_bits());
            let event = PresenceEvent { change, channel: "a", node: None, client, info: "" };
            presences.announced(&event, || members)
        };
        let leave = |slot, members| {
            let client = ConnId::new(0, slot, 1);
            assert!(presences.leave("a", client).is_some());
            let (change, client) = (PresenceChange::Leave, client.to_bits());
            let event = PresenceEvent { change, channel: "a", node: None, client, info: "" };
            presences.announced(&event, || members)
        };
        let text = |frame: Option<Frame>| frame.map(|frame| frame.payload().to_vec());
        for _ in 0..2 {
            assert!(matches!(join(1, 1), Some(Announced::Event(_))));
            assert_eq!(text(presences.changed_since("a", 1, true)), None);
            assert!(matches!(join(2, 2), Some(Announced::Switch { is_announced: false, .. })));
            assert!(join(3, 3).is_none());
            let given = br#"{"members":3,"announced":false}"#;
            assert_eq!(text(presences.changed_since("a", 3, true)).as_deref(), Some(&given[..]));
            assert_eq!(text(presences.changed_since("a", 3, false)), None);
            // It changes while a member gets that.
            assert!(leave(3, 2).is_none());
            assert!(matches!(leave(2, 0), Some(Announced::Switch { is_announced: true, .. })));
            let given = br#"{"members":1,"announced":true}"#;
            assert_eq!(text(presences.changed_since("a", 1, false)).as_deref(), Some(&given[..]));
            drop(presences.leave("a", ConnId::new(0, 1, 1)));
            assert_eq!(text(presences.changed_since("a", 0, false)), None);
        }
    }
}
