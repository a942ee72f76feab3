//! Subscribers of each channel over all shards, right at any moment and from any thread.
//!
//! A shard registers a channel when its first member comes and lets go when the last one leaves; only then is a
//! lock taken, that of one stripe. In between it holds the channel's counter, and a subscription is one atomic
//! addition. A channel that no shard has is forgotten.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};

#[cfg(loom)]
use loom::sync::{
    Arc as Shared, Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering},
};
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::{
    Arc as Shared, Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering},
};

/// Shards that create and remove different channels at a time rarely meet at a lock. A power of two. One under
/// loom: which stripe a name falls into is random, and a model must take the same steps each time.
const STRIPES: usize = if cfg!(loom) { 1 } else { 64 };

/// Subscribers of every channel of a server, shared by its shards.
///
/// A channel is a name as it was subscribed to: with wildcards `news.*` is a channel of its own, and a subscriber of
/// it counts there and not at `news.eu`. The memory is that of the channels in use: about 100 bytes and the name.
#[derive(Debug)]
pub struct Totals {
    stripes: Box<[Stripe]>,
    hasher: RandomState,
}

type Stripe = Mutex<HashMap<Arc<str>, Registered>>;

#[derive(Debug)]
struct Registered {
    subscribers: Shared<AtomicUsize>,
    /// Tallies given out. Counted here, under the lock, rather than by the counter's own reference count, so that
    /// whoever brings it to zero knows that nobody can be taking another.
    shards: usize,
    /// Those that gave their number.
    homes: Vec<u16>,
}

/// One shard's share in a channel's count; [`Totals::leave`] takes it back.
#[derive(Debug)]
pub struct Tally {
    name: Arc<str>,
    subscribers: Shared<AtomicUsize>,
    home: Option<u16>,
}

impl Tally {
    /// The channel's name, of which the process has one copy.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Counts a subscriber.
    pub fn add_one(&self) {
        // Relaxed, here and below: a thread that was told of a subscription sees it counted, because telling orders
        // the two; nothing else hangs on the number.
        self.subscribers.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes back `count` subscribers of those that were counted through this tally.
    pub fn subtract(&self, count: usize) {
        self.subscribers.fetch_sub(count, Ordering::Relaxed);
    }
}

impl Default for Totals {
    fn default() -> Self {
        let stripes = (0..STRIPES).map(|_| Mutex::new(HashMap::new())).collect();
        Self { stripes, hasher: RandomState::new() }
    }
}

impl Totals {
    /// Subscribers of the channel, or of the pattern of exactly this text, on all shards together. Takes one lock
    /// for one look-up.
    #[must_use]
    pub fn count(&self, name: &str) -> usize {
        let stripe = lock(self.stripe(name));
        stripe.get(name).map_or(0, |channel| channel.subscribers.load(Ordering::Relaxed))
    }

    /// Channels and patterns with a subscriber on any shard.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.stripes.iter().map(|stripe| lock(stripe).len()).sum()
    }

    /// Every channel and pattern with its subscribers, in no order. Each count was right at some moment of the call,
    /// not all at the same one. Takes each lock for as long as its part of the list takes.
    #[must_use]
    pub fn list(&self) -> Vec<(Arc<str>, usize)> {
        let mut list = Vec::new();
        for stripe in &self.stripes {
            let stripe = lock(stripe);
            let counts = stripe
                .iter()
                .map(|(name, channel)| (name, channel.subscribers.load(Ordering::Relaxed)));
            // Zero for the moment between a shard's taking a tally and its counting the first, or the reverse.
            list.extend(
                counts.filter(|(_, count)| *count > 0).map(|(name, n)| (Arc::clone(name), n)),
            );
        }
        list
    }

    /// Registers a shard's interest in a channel. The tally must come back through [`Totals::leave`].
    #[must_use]
    pub fn enter(&self, name: &str) -> Tally {
        self.enter_from(name, None)
    }

    /// The same for a shard whose number [`Totals::homes`] is to tell.
    pub(crate) fn enter_from(&self, name: &str, home: Option<u16>) -> Tally {
        let mut stripe = lock(self.stripe(name));
        // The name is looked for before it is copied: on the other shards it is there.
        if let Some((name, _)) = stripe.get_key_value(name) {
            let name = Arc::clone(name);
            let channel = stripe.get_mut(&name).expect("it was just found");
            channel.shards += 1;
            channel.homes.extend(home);
            return Tally { name, subscribers: Shared::clone(&channel.subscribers), home };
        }
        let (name, subscribers) = (Arc::<str>::from(name), Shared::new(AtomicUsize::new(0)));
        let homes = home.into_iter().collect();
        let channel = Registered { subscribers: Shared::clone(&subscribers), shards: 1, homes };
        stripe.insert(Arc::clone(&name), channel);
        Tally { name, subscribers, home }
    }

    /// The shards with a member of exactly this channel, of those that gave their number.
    pub(crate) fn homes(&self, name: &str) -> Vec<u16> {
        lock(self.stripe(name)).get(name).map_or_else(Vec::new, |channel| channel.homes.clone())
    }

    /// Ends a shard's interest. What it counted it has taken back before.
    pub fn leave(&self, tally: Tally) {
        let mut stripe = lock(self.stripe(&tally.name));
        if let Entry::Occupied(mut channel) = stripe.entry(tally.name) {
            channel.get_mut().shards -= 1;
            let homes = &mut channel.get_mut().homes;
            if let Some(at) = homes.iter().position(|home| Some(*home) == tally.home) {
                homes.swap_remove(at);
            }
            if channel.get().shards == 0 {
                debug_assert_eq!(channel.get().subscribers.load(Ordering::Relaxed), 0);
                channel.remove();
            }
        }
        // A map never shrinks by itself. Halving at a quarter full leaves as many removals until the next time.
        if stripe.capacity() > 64 && stripe.len() < stripe.capacity() / 4 {
            let keep = stripe.len() * 2;
            stripe.shrink_to(keep);
        }
    }

    fn stripe(&self, name: &str) -> &Stripe {
        &self.stripes[self.hasher.hash_one(name) as usize % STRIPES]
    }
}

/// Nothing panics while it holds the lock but for want of memory, so poison means nothing here.
#[cfg(not(loom))]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(loom)]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics in a loom model")
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

    #[test]
    fn what_many_channels_took_is_given_back() {
        let totals = Totals::default();
        let tallies: Vec<_> = (0..50_000).map(|n| totals.enter(&format!("c{n}"))).collect();
        assert_eq!(totals.channels(), 50_000);
        tallies.into_iter().for_each(|tally| totals.leave(tally));
        assert_eq!(totals.channels(), 0);
        let kept: usize = totals.stripes.iter().map(|stripe| lock(stripe).capacity()).sum();
        assert!(kept <= STRIPES * 128, "room for {kept} names is kept");
    }

    /// Threads as shards: each creates and removes the same few channels all the time, and checks what it knows for
    /// certain while it is in one.
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
