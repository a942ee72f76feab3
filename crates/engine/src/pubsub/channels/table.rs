//! Memberships of a connection that has many: a hash table that is nearly full.
//!
//! The standard map has a power of two of places and is between 7/8 and 7/16 full: up to 20 bytes
//! for 8. This one grows by an eighth, which keeps it between 7/8 and 7/9 full: 9.2 to 10.3 bytes,
//! for a few steps more on the way.

use super::{ChannelIndex, NONE};

/// One membership of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sub {
    pub(super) channel: ChannelIndex,
    /// Which of the channel's members it is.
    pub(super) position: u32,
}

/// A free place.
pub(super) const NO_SUB: Sub = Sub { channel: NONE, position: NONE };

/// Hash table of one connection's memberships. Linear probing; removal moves later entries up, so
/// there are no tombstones.
#[derive(Debug)]
pub(super) struct Table {
    places: Box<[Sub]>,
    len: u32,
    slot: u32,
}

impl Table {
    /// The memberships of the connection in `slot`, each channel once.
    pub(super) fn new(slot: u32, subs: &[Sub], multiplier: u64) -> Self {
        let mut table = Self { places: Box::default(), len: 0, slot };
        table.rebuild(subs.len(), subs, multiplier);
        table
    }

    pub(super) fn slot(&self) -> u32 {
        self.slot
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// All places, including free ones ([`NO_SUB`]).
    pub(super) fn places(&self) -> &[Sub] {
        &self.places
    }

    pub(super) fn position(&self, channel: ChannelIndex, multiplier: u64) -> Option<u32> {
        let sub = self.places[self.find(channel, multiplier)];
        (sub.channel == channel).then_some(sub.position)
    }

    pub(super) fn position_mut(
        &mut self,
        channel: ChannelIndex,
        multiplier: u64,
    ) -> Option<&mut u32> {
        let sub = &mut self.places[self.find(channel, multiplier)];
        (sub.channel == channel).then_some(&mut sub.position)
    }

    /// Adds a membership that is not there.
    pub(super) fn insert(&mut self, sub: Sub, multiplier: u64) {
        if (self.len() + 1) * 8 > self.places.len() * 7 {
            let before = std::mem::take(&mut self.places);
            self.rebuild(before.len() * 7 / 8 * 9 / 8 + 1, &before, multiplier);
        }
        let at = self.find(sub.channel, multiplier);
        self.places[at] = sub;
        self.len += 1;
    }

    /// Removes a membership; returns which of the channel's members it was.
    pub(super) fn remove(&mut self, channel: ChannelIndex, multiplier: u64) -> Option<u32> {
        let mut hole = self.find(channel, multiplier);
        let removed = self.places[hole];
        if removed.channel != channel {
            return None;
        }
        // The entries that follow without a gap move forward, except entries that would move before
        // their home slot.
        let places = self.places.len();
        let mut at = hole;
        loop {
            at = if at + 1 == places { 0 } else { at + 1 };
            let sub = self.places[at];
            if sub == NO_SUB {
                break;
            }
            let home = self.home(sub.channel, multiplier);
            if (at + places - home) % places >= (at + places - hole) % places {
                self.places[hole] = sub;
                hole = at;
            }
        }
        self.places[hole] = NO_SUB;
        self.len -= 1;
        if self.len() * 2 < places {
            let before = std::mem::take(&mut self.places);
            self.rebuild(self.len() * 9 / 8, &before, multiplier);
        }
        Some(removed.position)
    }

    /// Resizes the table for `capacity` memberships, and inserts the existing ones.
    fn rebuild(&mut self, capacity: usize, subs: &[Sub], multiplier: u64) {
        // One place more than can be used: it ends every search.
        self.places = vec![NO_SUB; (capacity * 8).div_ceil(7) + 1].into();
        self.len = 0;
        for &sub in subs.iter().filter(|&&sub| sub != NO_SUB) {
            let at = self.find(sub.channel, multiplier);
            self.places[at] = sub;
            self.len += 1;
        }
    }

    /// Finds the position of the channel, or the free one where it would be.
    fn find(&self, channel: ChannelIndex, multiplier: u64) -> usize {
        let mut at = self.home(channel, multiplier);
        while self.places[at].channel != channel && self.places[at].channel != NONE {
            at = if at + 1 == self.places.len() { 0 } else { at + 1 };
        }
        at
    }

    /// Multiply-shift hashing: for an attacker who does not know the multiplier, collisions are as
    /// rare as by chance.
    fn home(&self, channel: ChannelIndex, multiplier: u64) -> usize {
        let hash = u64::from(channel).wrapping_mul(multiplier) >> 32;
        ((hash * self.places.len() as u64) >> 32) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Also with a multiplier that puts all channels into one place.
    #[test]
    fn churn_agrees_with_a_map_and_the_table_stays_nearly_full() {
        for multiplier in [0x9e37_79b9_7f4a_7c15, 1] {
            let mut model = BTreeMap::new();
            let mut table = Table::new(7, &[], multiplier);
            let mut random = crate::random::Random::new(1);
            let mut below = |n: u64| random.below(n);
            for step in 0..30_000u32 {
                // Waves: it grows to hundreds and shrinks to a few.
                let growing = step / 3000 % 2 == 0;
                let channel = below(600) as u32;
                if model.contains_key(&channel) == growing {
                    *table.position_mut(channel, multiplier).into_iter().next().unwrap_or(&mut 0) =
                        step;
                    model.entry(channel).and_modify(|position| *position = step);
                } else if growing {
                    table.insert(Sub { channel, position: step }, multiplier);
                    model.insert(channel, step);
                } else {
                    assert_eq!(table.remove(channel, multiplier), model.remove(&channel));
                    assert_eq!(table.remove(channel, multiplier), None);
                }
                assert_eq!(table.position(channel, multiplier), model.get(&channel).copied());
                assert_eq!(table.len(), model.len());
                assert!(table.places.len() <= model.len() * 2 + 2);
                if step % 64 == 0 {
                    let subs = table.places().iter().filter(|&&sub| sub != NO_SUB);
                    let found: BTreeMap<_, _> =
                        subs.map(|sub| (sub.channel, sub.position)).collect();
                    assert_eq!(found, model);
                }
            }
        }
    }

    #[test]
    fn growing_costs_little_more_than_what_is_in_it() {
        let multiplier = 0x9e37_79b9_7f4a_7c15;
        let mut table = Table::new(0, &[], multiplier);
        for channel in 0..10_000u32 {
            table.insert(Sub { channel, position: 0 }, multiplier);
            let most = (channel as usize + 1) * 9 / 7 + 6;
            assert!(table.places().len() <= most, "{} for {channel}", table.places().len());
        }
    }
}
