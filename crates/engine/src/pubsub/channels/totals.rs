//! Subscribers of each channel over all shards, right at any moment and from any thread; and which
//! shards they are on.
//!
//! A shard registers a channel when its first member joins and unregisters it when its last member
//! leaves; only these two steps take a lock, on one stripe. In between the shard keeps the
//! channel's counter, and a subscription is one atomic addition. A channel that no shard has
//! registered is forgotten.
//!
//! **Which shards are posted to.** A publication goes to the shards that have registered its name,
//! or a pattern that matches it, when it is published. A shard registers before `subscribe`
//! returns. So a publication sees every subscription that *happens before* it: an acknowledgement
//! that the subscriber sent, and that reached the publisher's thread by any path (a socket, a
//! queue, a lock), orders the two. If nothing orders a subscription and a publication, either may
//! be first.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};

#[cfg(loom)]
use loom::sync::{
    Arc as Shared, Mutex, MutexGuard, RwLock,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::{
    Arc as Shared, Mutex, MutexGuard, RwLock,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use super::ChannelIndex;
use super::trie::{Scratch, Trie};
use super::wildcard;
use crate::pubsub::relay::Relay;

/// Shards that create and remove different channels at a time rarely meet at a lock. A power of
/// two. One under loom: which stripe a name falls into is random, and a model must take the same
/// steps each time.
const STRIPES: usize = if cfg!(loom) { 1 } else { 64 };

/// Subscribers of every channel of a server, shared by its shards.
///
/// A pattern counts separately: a subscriber of `news.*` counts there and not at `news.eu`. Each
/// channel in use takes memory: about 150 bytes and the name.
#[derive(Debug)]
pub struct Totals {
    stripes: Box<[Stripe]>,
    hasher: RandomState,
    patterns: Patterns,
    /// Is notified of the first and the last member of each channel.
    relay: Option<Arc<dyn Relay>>,
}

type Stripe = Mutex<Registry>;

#[derive(Debug, Default)]
struct Registry {
    names: HashMap<Arc<str>, Registered>,
    patterns: HashMap<Arc<str>, Registered>,
}

impl Registry {
    fn by_text(&mut self, is_pattern: bool) -> &mut HashMap<Arc<str>, Registered> {
        if is_pattern { &mut self.patterns } else { &mut self.names }
    }

    fn all(&self) -> impl Iterator<Item = (&Arc<str>, &Registered)> {
        self.names.iter().chain(&self.patterns)
    }
}

#[derive(Debug)]
struct Registered {
    counter: Shared<Counter>,
    /// Tallies in use. This is counted under the lock, and not by the reference count of the
    /// counter, so that the thread that reaches zero knows that no other thread can be taking a
    /// tally.
    shards: usize,
    /// The shards of tallies that gave their shard number, once for each tally.
    homes: Vec<u16>,
}

#[derive(Debug)]
struct Counter {
    subscribers: AtomicUsize,
    /// A bit for each of the first 63 shards that is in [`Registered::homes`]; [`FAR`] shows that
    /// there are others. Written under the stripe's lock, read without.
    homes: AtomicU64,
}

/// Bit in a mask of shards: shards above 62 are in the list, which takes a lock to read.
const FAR: u64 = 1 << 63;

fn bit_of(shard: u16) -> u64 {
    1 << shard.min(63)
}

impl Registered {
    fn new() -> Self {
        let counter = Counter { subscribers: AtomicUsize::new(0), homes: AtomicU64::new(0) };
        Self { counter: Shared::new(counter), shards: 0, homes: Vec::new() }
    }

    fn enter(&mut self, home: Option<u16>) {
        self.shards += 1;
        if let Some(home) = home {
            self.homes.push(home);
            // Relaxed, as in `Tally::add_one`.
            self.counter.homes.fetch_or(bit_of(home), Ordering::Relaxed);
        }
    }

    fn leave(&mut self, home: Option<u16>) {
        self.shards -= 1;
        let Some(home) = home else { return };
        if let Some(at) = self.homes.iter().position(|other| *other == home) {
            self.homes.swap_remove(at);
        }
        if !self.homes.iter().any(|other| bit_of(*other) == bit_of(home)) {
            self.counter.homes.fetch_and(!bit_of(home), Ordering::Relaxed);
        }
    }
}

/// The patterns of all shards, for publishers.
#[derive(Debug, Default)]
struct Patterns {
    /// Registrations in the index: one for each pattern and shard.
    registered: AtomicUsize,
    index: RwLock<PatternIndex>,
}

#[derive(Debug, Default)]
struct PatternIndex {
    trie: Trie,
    by_name: HashMap<Arc<str>, ChannelIndex>,
    /// Indexed by the index in the trie: shards that have the pattern, once for each registration.
    homes: Vec<Vec<u16>>,
    free: Vec<ChannelIndex>,
}

impl PatternIndex {
    fn enter(&mut self, name: &Arc<str>, home: u16) {
        if let Some(&index) = self.by_name.get(name) {
            return self.homes[index as usize].push(home);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.homes.push(Vec::new());
                self.homes.len() as ChannelIndex - 1
            }
        };
        self.homes[index as usize].push(home);
        self.trie.insert(name, index);
        self.by_name.insert(Arc::clone(name), index);
    }

    fn leave(&mut self, name: &str, home: u16) {
        let Some(&index) = self.by_name.get(name) else { return };
        let homes = &mut self.homes[index as usize];
        if let Some(at) = homes.iter().position(|other| *other == home) {
            homes.swap_remove(at);
        }
        if homes.is_empty() {
            *homes = Vec::new();
            self.trie.remove(name);
            self.by_name.remove(name);
            self.free.push(index);
        }
        if self.by_name.is_empty() {
            // Free the memory that the maximum number of patterns took.
            *self = Self::default();
        }
    }
}

/// Memory of [`Totals::homes`], kept from one call to the next.
#[derive(Debug, Default)]
pub(crate) struct HomesScratch {
    trie: Scratch,
    matched: Vec<ChannelIndex>,
}

/// One shard's part of a channel's count; [`Totals::leave`] subtracts it.
#[derive(Debug)]
pub struct Tally {
    name: Arc<str>,
    counter: Shared<Counter>,
    home: Option<u16>,
    is_pattern: bool,
}

impl Tally {
    /// Returns whether it was registered as a pattern.
    pub(super) fn is_pattern(&self) -> bool {
        self.is_pattern
    }

    /// The channel's name; the process has one copy of it.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Counts a subscriber.
    pub fn add_one(&self) {
        // Relaxed, here and below: a thread that was notified of a subscription sees it counted,
        // because the notification orders the two; nothing else depends on the number.
        self.counter.subscribers.fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts `count` subscribers that were counted through this tally.
    pub fn subtract(&self, count: usize) {
        self.counter.subscribers.fetch_sub(count, Ordering::Relaxed);
    }
}

/// Keeps publications to a channel coming to a shard; see
/// [`Remote::announce`](crate::Remote::announce).
#[derive(Debug)]
pub struct Interest {
    totals: Arc<Totals>,
    tally: Option<Tally>,
}

impl Interest {
    pub(crate) fn new(totals: &Arc<Totals>, shard: u16, channel: &str) -> Self {
        Self { totals: Arc::clone(totals), tally: Some(totals.enter_from(channel, Some(shard))) }
    }

    pub(crate) fn in_pattern(totals: &Arc<Totals>, shard: u16, pattern: &str) -> Self {
        let tally = match wildcard::check(pattern) {
            Ok(true) => totals.enter_pattern(pattern, Some(shard)),
            _ => totals.enter_from(pattern, Some(shard)),
        };
        Self { totals: Arc::clone(totals), tally: Some(tally) }
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        if let Some(tally) = self.tally.take() {
            self.totals.leave(tally);
        }
    }
}

impl Default for Totals {
    fn default() -> Self {
        let stripes = (0..STRIPES).map(|_| Mutex::new(Registry::default())).collect();
        Self { stripes, hasher: RandomState::new(), patterns: Patterns::default(), relay: None }
    }
}

impl Totals {
    pub(crate) fn with_relay(relay: Option<Arc<dyn Relay>>) -> Self {
        Self { relay, ..Self::default() }
    }

    pub(crate) fn relay(&self) -> Option<&Arc<dyn Relay>> {
        self.relay.as_ref()
    }

    /// Subscribers of the channel and of the pattern of exactly this text, on all shards together.
    /// Takes one lock for one look-up.
    #[must_use]
    pub fn count(&self, name: &str) -> usize {
        let stripe = lock(self.stripe(name));
        let both = [stripe.names.get(name), stripe.patterns.get(name)];
        let count = |channel: &Registered| channel.counter.subscribers.load(Ordering::Relaxed);
        both.into_iter().flatten().map(count).sum()
    }

    /// Channels and patterns with a subscriber on any shard.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.stripes.iter().map(|stripe| lock(stripe).all().count()).sum()
    }

    /// Returns every channel and pattern with its subscribers, unordered. Each count was right at
    /// some moment of the call, not all at the same one. Takes each lock for as long as its part of
    /// the list takes.
    #[must_use]
    pub fn list(&self) -> Vec<(Arc<str>, usize)> {
        let mut list = Vec::new();
        for stripe in &self.stripes {
            let stripe = lock(stripe);
            let counts = stripe
                .all()
                .map(|(name, channel)| (name, channel.counter.subscribers.load(Ordering::Relaxed)));
            // A count is zero for the moment between a shard's taking a tally and its counting the
            // first member, or the reverse.
            list.extend(
                counts.filter(|(_, count)| *count > 0).map(|(name, n)| (Arc::clone(name), n)),
            );
        }
        list
    }

    /// Registers a shard's interest in a channel. The tally must come back through
    /// [`Totals::leave`].
    #[must_use]
    pub fn enter(&self, name: &str) -> Tally {
        self.enter_from(name, None)
    }

    /// Registers the interest of the shard with this number, to which publications are then posted.
    #[must_use]
    pub fn enter_from(&self, name: &str, home: Option<u16>) -> Tally {
        self.register(name, home, false)
    }

    /// Registers the interest of a shard in the channels that match a pattern.
    #[must_use]
    pub fn enter_pattern(&self, pattern: &str, home: Option<u16>) -> Tally {
        let tally = self.register(pattern, home, true);
        if let Some(home) = home {
            self.patterns.registered.fetch_add(1, Ordering::Relaxed);
            write(&self.patterns.index).enter(&tally.name, home);
        }
        tally
    }

    fn register(&self, name: &str, home: Option<u16>, is_pattern: bool) -> Tally {
        let mut stripe = lock(self.stripe(name));
        let stripe = stripe.by_text(is_pattern);
        // The name is looked for before it is copied: on the other shards it is there.
        let name = match stripe.get_key_value(name) {
            Some((name, _)) => Arc::clone(name),
            None => Arc::from(name),
        };
        let channel = stripe.entry(Arc::clone(&name)).or_insert_with(Registered::new);
        // Under the lock, so that the first member and the last never change places.
        if let Some(relay) = &self.relay
            && channel.shards == 0
            && !is_pattern
        {
            relay.enter(&name);
        }
        channel.enter(home);
        Tally { name, counter: Shared::clone(&channel.counter), home, is_pattern }
    }

    /// Appends the shards with a member of this channel, or of a pattern that matches it, to
    /// `homes`, each shard once, and only shards that gave their number. `known`: the channel's
    /// tally, which saves looking for it. `own_patterns`: number of patterns that the asking shard
    /// has registered; it does not ask for itself.
    pub(crate) fn homes(
        &self,
        name: &str,
        known: Option<&Tally>,
        own_patterns: usize,
        scratch: &mut HomesScratch,
        homes: &mut Vec<u16>,
    ) {
        homes.clear();
        let mut mask = known.map_or(0, |tally| tally.counter.homes.load(Ordering::Relaxed));
        if known.is_none() || mask & FAR != 0 {
            let stripe = lock(self.stripe(name));
            if let Some(channel) = stripe.names.get(name) {
                mask = channel.counter.homes.load(Ordering::Relaxed);
                if mask & FAR != 0 {
                    homes.extend(channel.homes.iter().filter(|home| **home >= 63));
                }
            }
        }
        mask &= !FAR;
        if self.patterns.registered.load(Ordering::Relaxed) > own_patterns {
            let HomesScratch { trie, matched } = scratch;
            matched.clear();
            let index = read(&self.patterns.index);
            index.trie.matching(name, trie, matched);
            let found = matched.iter().flat_map(|pattern| &index.homes[*pattern as usize]);
            for &home in found {
                match home < 63 {
                    true => mask |= bit_of(home),
                    false => homes.push(home),
                }
            }
        }
        if !homes.is_empty() {
            homes.sort_unstable();
            homes.dedup();
        }
        while mask != 0 {
            homes.push(mask.trailing_zeros() as u16);
            mask &= mask - 1;
        }
    }

    /// Returns the shards with a member of this channel or of a pattern that matches it, if they
    /// gave their number. `known`: the channel's tally, which saves looking for it.
    #[must_use]
    pub fn homes_of(&self, name: &str, known: Option<&Tally>) -> Vec<u16> {
        let mut homes = Vec::new();
        self.homes(name, known, 0, &mut HomesScratch::default(), &mut homes);
        homes
    }

    /// Ends a shard's interest. The caller has subtracted its counts.
    pub fn leave(&self, tally: Tally) {
        if let (true, Some(home)) = (tally.is_pattern, tally.home) {
            write(&self.patterns.index).leave(&tally.name, home);
            self.patterns.registered.fetch_sub(1, Ordering::Relaxed);
        }
        let mut stripe = lock(self.stripe(&tally.name));
        let stripe = stripe.by_text(tally.is_pattern);
        if let Entry::Occupied(mut channel) = stripe.entry(tally.name) {
            channel.get_mut().leave(tally.home);
            if channel.get().shards == 0 {
                if let Some(relay) = self.relay.as_ref().filter(|_| !tally.is_pattern) {
                    relay.leave(channel.key());
                }
                debug_assert_eq!(channel.get().counter.subscribers.load(Ordering::Relaxed), 0);
                channel.remove();
            }
        }
        // A map never shrinks by itself. Halving at a quarter full leaves as many removals until
        // the next time.
        if stripe.capacity() > 64 && stripe.len() < stripe.capacity() / 4 {
            let keep = stripe.len() * 2;
            stripe.shrink_to(keep);
        }
    }

    fn stripe(&self, name: &str) -> &Stripe {
        &self.stripes[self.hasher.hash_one(name) as usize % STRIPES]
    }
}

/// Nothing but a failed allocation panics under a lock, so poison means nothing here.
#[cfg(not(loom))]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(not(loom))]
fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(not(loom))]
fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(loom)]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics in a loom model")
}

#[cfg(loom)]
fn read<T>(lock: &RwLock<T>) -> loom::sync::RwLockReadGuard<'_, T> {
    lock.read().expect("no thread panics in a loom model")
}

#[cfg(loom)]
fn write<T>(lock: &RwLock<T>) -> loom::sync::RwLockWriteGuard<'_, T> {
    lock.write().expect("no thread panics in a loom model")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_counts_over_all_shards_and_is_forgotten_with_the_last() {
        let totals = Totals::default();
        let (one, two) = (totals.enter("news"), totals.enter("news"));
        assert!(Arc::ptr_eq(one.name(), two.name()), "one copy of the name");
        assert_eq!((totals.count("news"), totals.channels(), totals.list()), (0, 1, vec![]));
        one.add_one();
        two.add_one();
        two.add_one();
        assert_eq!((totals.count("news"), totals.count("new")), (3, 0));
        assert_eq!(totals.list(), [("news".into(), 3)]);
        one.subtract(1);
        totals.leave(one);
        assert_eq!((totals.count("news"), totals.channels()), (2, 1));
        two.subtract(2);
        totals.leave(two);
        assert_eq!((totals.count("news"), totals.channels()), (0, 0));
    }

    fn homes(totals: &Totals, name: &str) -> Vec<u16> {
        totals.homes_of(name, None)
    }

    #[test]
    fn a_publication_is_posted_to_the_shards_with_a_member_each_once() {
        let totals = Totals::default();
        let enter = |name: &str, shard| match wildcard::check(name) {
            Ok(true) => totals.enter_pattern(name, Some(shard)),
            _ => totals.enter_from(name, Some(shard)),
        };
        let eu = [enter("news.eu", 2), enter("news.eu", 0), enter("news.eu", 2)];
        let patterns = [enter("news.*", 0), enter("news.*", 5), enter(">", 70), enter("a.*", 9)];
        assert_eq!(homes(&totals, "news.eu"), [70, 0, 2, 5]);
        assert_eq!(homes(&totals, "news.us"), [70, 0, 5]);
        let mut known = Vec::new();
        totals.homes("news.eu", Some(&eu[0]), 4, &mut HomesScratch::default(), &mut known);
        assert_eq!(known, [0, 2], "all patterns are the asking shard's own");
        let [first, second, third] = eu;
        totals.leave(first);
        assert_eq!(homes(&totals, "news.eu"), [70, 0, 2, 5], "shard 2 has another member");
        totals.leave(third);
        assert_eq!(homes(&totals, "news.eu"), [70, 0, 5]);
        totals.leave(second);
        patterns.into_iter().for_each(|tally| totals.leave(tally));
        assert!(homes(&totals, "news.eu").is_empty());
        let far: Vec<Tally> = (60..70).map(|shard| enter("far", shard)).collect();
        assert_eq!(homes(&totals, "far"), [63, 64, 65, 66, 67, 68, 69, 60, 61, 62]);
        far.into_iter().for_each(|tally| totals.leave(tally));
        assert_eq!((homes(&totals, "far"), totals.channels()), (vec![], 0));
    }

    #[test]
    fn memory_of_many_channels_is_returned() {
        let totals = Totals::default();
        let tallies: Vec<_> = (0..50_000).map(|n| totals.enter(&format!("c{n}"))).collect();
        assert_eq!(totals.channels(), 50_000);
        tallies.into_iter().for_each(|tally| totals.leave(tally));
        assert_eq!(totals.channels(), 0);
        let kept: usize = totals.stripes.iter().map(|stripe| lock(stripe).names.capacity()).sum();
        assert!(kept <= STRIPES * 128, "room for {kept} names is kept");
    }

    /// Threads as shards: each creates and removes the same few channels all the time, and checks
    /// the facts that it knows for certain while it is in one.
    #[test]
    fn shards_that_come_and_go_at_the_same_time_lose_no_count() {
        const SHARDS: usize = 4;
        let totals = Totals::default();
        std::thread::scope(|scope| {
            for shard in 0..SHARDS {
                let totals = &totals;
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let name = ["a", "b", "c"][(round * (shard + 1)) % 3];
                        let tally = totals.enter(name);
                        let mine = 1 + round % 3;
                        (0..mine).for_each(|_| tally.add_one());
                        let count = totals.count(name);
                        assert!((mine..=3 * SHARDS).contains(&count), "{count} of {mine}");
                        tally.subtract(mine);
                        totals.leave(tally);
                    }
                });
            }
        });
        assert_eq!((totals.channels(), totals.list()), (0, vec![]));
    }
}
