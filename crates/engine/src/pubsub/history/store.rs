//! The histories of all channels, in stripes. Each stripe lies under the lock that orders the
//! publications of its channels.
//!
//! All stripes share one budget of bytes. A publication that exceeds the budget removes whole
//! channels, the least recently published first, from each stripe in turn.
//!
//! **Positions without memory.** The epoch is the server's. Forgotten channels leave one number per
//! stripe: the greatest offset of any forgotten channel, at which new channels begin. So a client
//! that waits for the first publication of a channel costs no memory, and a client that returns
//! with at least that offset has missed no forgotten publication.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use throng_io::Instant;

use super::followed::Followed;
use super::ring::{Freed, Ring};
use super::{Joined, Kept, Position, Recorded, Since};
use crate::backpressure::history::{HistoryMode, HistoryRule, HistoryRules};
use crate::outbox::frame::Frame;

/// Memory of a channel besides its publications and its name.
const CHANNEL: usize = 256;

/// Time for which a channel is remembered after its last publication has expired. Clients that
/// return within it are informed that they have missed nothing.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// Figures of all histories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryCounts {
    /// Channels that the store remembers.
    pub channels: u64,
    /// Publications kept.
    pub publications: u64,
    /// Memory of both, in bytes.
    pub bytes: u64,
    /// Maximum memory.
    pub max_bytes: u64,
    /// Publications removed because the memory of all channels was used up.
    pub evicted: u64,
    /// Clients that came back with a position and got all that they had missed.
    pub recovered: u64,
    /// Clients that came back with a position from which they could not continue.
    pub unrecovered: u64,
}

/// Rules, budget and figures of all stripes.
#[derive(Debug, Default)]
pub(crate) struct Histories {
    pub(crate) rules: HistoryRules,
    epoch: u64,
    max_bytes: usize,
    bytes: AtomicUsize,
    channels: AtomicUsize,
    publications: AtomicUsize,
    evicted: AtomicU64,
    recovered: AtomicU64,
    unrecovered: AtomicU64,
    /// The stripe that frees memory next.
    turn: AtomicUsize,
}

/// The channels whose publications one lock orders.
#[derive(Debug, Default)]
pub(crate) struct Stripe {
    rings: HashMap<Arc<str>, Ring>,
    /// Channels whose publications a broker orders.
    pub(super) followed: HashMap<Arc<str>, Followed>,
    /// The channel that was published to least recently comes first.
    pub(super) by_use: BTreeMap<u64, Arc<str>>,
    pub(super) uses: u64,
    /// Greatest offset of a channel that is forgotten.
    floor: u64,
}

impl Histories {
    pub(crate) fn new(rules: HistoryRules, max_bytes: usize, epoch: u64) -> Self {
        Self {
            rules,
            epoch,
            max_bytes,
            bytes: AtomicUsize::new(0),
            channels: AtomicUsize::new(0),
            publications: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            unrecovered: AtomicU64::new(0),
            turn: AtomicUsize::new(0),
        }
    }

    pub(crate) fn rule(&self, number: u16) -> &HistoryRule {
        self.rules.rule(number)
    }

    pub(crate) fn counts(&self) -> HistoryCounts {
        HistoryCounts {
            channels: self.channels.load(Ordering::Relaxed) as u64,
            publications: self.publications.load(Ordering::Relaxed) as u64,
            bytes: self.bytes.load(Ordering::Relaxed) as u64,
            max_bytes: self.max_bytes as u64,
            evicted: self.evicted.load(Ordering::Relaxed),
            recovered: self.recovered.load(Ordering::Relaxed),
            unrecovered: self.unrecovered.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn memory(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts a client that came back.
    pub(crate) fn count_return(&self, recovered: bool) {
        let counter = if recovered { &self.recovered } else { &self.unrecovered };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.max_bytes
    }

    /// Counts a publication that is kept.
    pub(super) fn add(&self, cost: usize) {
        self.bytes.fetch_add(cost, Ordering::Relaxed);
        self.publications.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one followed channel more or fewer.
    pub(super) fn count_followed(&self, change: isize) {
        self.channels.fetch_add(change.cast_unsigned(), Ordering::Relaxed);
    }

    /// Counts publications that were removed early.
    pub(super) fn free_evicted(&self, freed: Freed) {
        self.evicted.fetch_add(freed.publications as u64, Ordering::Relaxed);
        self.free(freed);
    }

    pub(super) fn free(&self, freed: Freed) {
        self.bytes.fetch_sub(freed.bytes, Ordering::Relaxed);
        self.publications.fetch_sub(freed.publications, Ordering::Relaxed);
    }

    /// Removes channels until the budget holds: from `own`, which is locked, and in turn from each
    /// of `others` that is not held.
    #[cold]
    pub(crate) fn make_room(&self, own: &mut Stripe, others: &[Mutex<Stripe>]) {
        while self.is_over() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            for other in 0..others.len() {
                if !self.is_over() {
                    return;
                }
                if let Some(mut stripe) = try_lock(&others[(turn + other) % others.len()]) {
                    stripe.evict_least_used(self);
                }
            }
            // All other stripes are empty or locked: the threads that hold them also free memory.
            if self.is_over() && !own.evict_least_used(self) {
                return;
            }
        }
    }
}

impl Stripe {
    /// Adds a publication; `kept` is its [`Frame::bare`]. If this returns true,
    /// [`Histories::make_room`] must follow.
    pub(crate) fn append(
        &mut self,
        all: &Histories,
        (channel, rule): (&str, u16),
        (frame, kept): (&Frame, Frame),
        now: Instant,
    ) -> (Recorded, bool) {
        let name = match self.rings.get_key_value(channel) {
            Some((name, _)) => Arc::clone(name),
            None => self.create(all, channel, rule),
        };
        self.uses += 1;
        let Some(ring) = self.rings.get_mut(&name) else { unreachable!("it was there") };
        if let Some(listed) = self.by_use.remove(&ring.used) {
            self.by_use.insert(self.uses, listed);
        }
        ring.used = self.uses;
        let position = Position::own(all.epoch, ring.top() + 1);
        let (_, cost) = ring.push(kept, position.tag.unwrap_or_default(), now);
        all.add(cost);
        all.free(ring.trim(all.rule(rule), now));
        let recorded = Recorded::new(name, all.rule(rule).class, position, frame.clone());
        (recorded, all.is_over())
    }

    fn create(&mut self, all: &Histories, channel: &str, rule: u16) -> Arc<str> {
        let name: Arc<str> = channel.into();
        let mut ring = Ring::new((self.floor, self.own_floor(all).tag), rule);
        self.uses += 1;
        ring.used = self.uses;
        self.by_use.insert(self.uses, Arc::clone(&name));
        self.rings.insert(Arc::clone(&name), ring);
        all.bytes.fetch_add(cost_of(&name), Ordering::Relaxed);
        all.channels.fetch_add(1, Ordering::Relaxed);
        name
    }

    /// Returns the position at which unknown channels begin.
    fn own_floor(&self, all: &Histories) -> Position {
        Position::own(all.epoch, self.floor)
    }

    /// Forgets a channel.
    fn forget(&mut self, all: &Histories, name: &str) -> Freed {
        let Some(ring) = self.rings.remove(name) else { return Freed::default() };
        self.by_use.remove(&ring.used);
        self.floor = self.floor.max(ring.top());
        let freed = Freed { publications: ring.len(), bytes: ring.bytes() + cost_of(name) };
        all.free(freed);
        all.channels.fetch_sub(1, Ordering::Relaxed);
        if self.rings.len() < self.rings.capacity() / 4 {
            self.rings.shrink_to(self.rings.len() * 2);
        }
        freed
    }

    /// Forgets the least recently published channel, or only its publications if a broker orders
    /// it. Returns false if there is no channel.
    fn evict_least_used(&mut self, all: &Histories) -> bool {
        let Some((_, name)) = self.by_use.pop_first() else { return false };
        if let Some(followed) = self.followed.get_mut(&name) {
            all.free_evicted(followed.cut());
            return true;
        }
        let freed = self.forget(all, &name);
        all.evicted.fetch_add(freed.publications as u64, Ordering::Relaxed);
        true
    }

    /// Removes publications that are too old, and channels that have been empty for a long time.
    pub(crate) fn expire(&mut self, all: &Histories, now: Instant) {
        let mut idle = Vec::new();
        for followed in self.followed.values_mut() {
            let ring = &mut followed.ring;
            all.free(ring.trim(all.rule(ring.rule), now));
        }
        for (name, ring) in &mut self.rings {
            let rule = all.rule(ring.rule);
            all.free(ring.trim(rule, now));
            if ring.len() == 0 && now.since(ring.at()) > rule.history.age + REMEMBERED {
                idle.push(Arc::clone(name));
            }
        }
        for name in idle {
            self.forget(all, &name);
        }
    }

    /// Returns the position at which a member joins now, whether it continues from `since`, and the
    /// publications that it has missed.
    pub(crate) fn join(
        &mut self,
        all: &Histories,
        (channel, _): (&str, u16),
        since: Since,
        now: Instant,
    ) -> Joined {
        let Some(ring) = self.rings.get_mut(channel) else {
            let position = self.own_floor(all);
            let recovered = since == Since::Position(position);
            return Joined { position, recovered, missed: Vec::new() };
        };
        all.free(ring.trim(all.rule(ring.rule), now));
        answer_join(all, ring, all.epoch, since)
    }

    /// Returns the position behind the last publication, and the last `most` kept publications with
    /// their offsets.
    pub(crate) fn last(
        &mut self,
        all: &Histories,
        channel: &str,
        most: usize,
        now: Instant,
    ) -> (Position, Vec<Kept>) {
        let Some(ring) = self.rings.get_mut(channel) else {
            return (self.own_floor(all), Vec::new());
        };
        all.free(ring.trim(all.rule(ring.rule), now));
        let skipped = ring.len().saturating_sub(most);
        (ring.position(all.epoch), ring.iter().skip(skipped).map(shared).collect())
    }
}

/// Returns the position at the end of a history, whether a member continues there from `since`, and
/// the publications that it has missed.
pub(super) fn answer_join(all: &Histories, ring: &Ring, epoch: u64, since: Since) -> Joined {
    let position = ring.position(epoch);
    if all.rule(ring.rule).history.mode == HistoryMode::Cache {
        let is_at = since.position().is_some_and(|since| since.is_at(position));
        let has_all = is_at || since == Since::Last(0);
        let newest = ring.iter().next_back().filter(|_| !has_all).map(shared);
        let recovered = since != Since::Last(0) && (has_all || newest.is_some());
        return Joined { position, recovered, missed: newest.into_iter().collect() };
    }
    if let Since::Last(most) = since {
        let missed = ring.iter().skip(ring.len().saturating_sub(most)).map(shared).collect();
        return Joined { position, recovered: false, missed };
    }
    let since = since.position().filter(|since| since.epoch == epoch);
    let missed = since.and_then(|since| Some(ring.since(since)?.map(shared).collect()));
    let recovered = missed.is_some();
    Joined { position, recovered, missed: missed.unwrap_or_default() }
}

pub(super) fn shared((offset, tag, frame): (u64, u64, &Frame)) -> Kept {
    (offset, tag, frame.clone())
}

fn cost_of(name: &str) -> usize {
    CHANNEL + name.len()
}

/// Locks a stripe unless it is held. A panic of another holder does not matter.
pub(crate) fn try_lock(stripe: &Mutex<Stripe>) -> Option<MutexGuard<'_, Stripe>> {
    match stripe.try_lock() {
        Ok(stripe) => Some(stripe),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests;
