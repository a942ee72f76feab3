//! Channels of one shard, and their members.
//!
//! A channel's members are a dense vector, so a publish is a linear walk. A membership costs 12
//! bytes: 4 in the channel (`Member`) and 8 at the connection (`Sub`, in `table.rs`), which knows
//! its place among the members, so that leaving is a swap-remove. The connection that is moved
//! finds the channel among its own: it needs no reference to it, which would be 4 bytes more.
//! Vectors grow by an eighth and shrink, so that the slack is small too.
//!
//! A pattern has members like a channel, and is also in a trie (`trie.rs`) that finds it. It is a
//! pattern because it was subscribed to as one: the channel called `news.*` and the pattern
//! `news.*` are two.

mod subs;
mod table;
mod totals;
mod trie;
mod wildcard;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use subs::{MAX_CHANNELS, Subs};
use table::Sub;
use totals::HomesScratch;
use trie::{Scratch, Trie};

pub use totals::{Interest, Tally, Totals};
pub use wildcard::{MAX_PATTERN_TOKENS, PatternError, check as check_pattern, is_channel_token};

/// Index of a channel in its shard, valid while the channel has members.
type ChannelIndex = u32;

const NONE: u32 = u32::MAX;

/// One member of a channel.
#[derive(Clone, Copy, Debug)]
struct Member {
    slot: u32,
}

#[derive(Debug)]
struct Channel {
    members: Vec<Member>,
    /// Name of the channel and its count over all shards; `None` while the index is free.
    tally: Option<Tally>,
}

/// Channels of one shard.
#[derive(Debug)]
pub(crate) struct Channels {
    by_name: HashMap<Arc<str>, ChannelIndex>,
    by_pattern: HashMap<Arc<str>, ChannelIndex>,
    channels: Vec<Channel>,
    free: Vec<ChannelIndex>,
    subs: Subs,
    memberships: usize,
    totals: Arc<Totals>,
    /// This shard's number, if other shards send their publications to it.
    home: Option<u16>,
    patterns: Trie,
    /// Channels that match the name published now; kept for its memory, as are the next.
    matched: Vec<ChannelIndex>,
    scratch: Scratch,
    homes: HomesScratch,
    leaving: Vec<Sub>,
    visited: Visited,
}

#[cfg(test)]
impl Default for Channels {
    /// Channels of a server with one shard.
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl Channels {
    /// Channels of a shard of the server that `totals` counts for.
    pub(crate) fn new(totals: Arc<Totals>) -> Self {
        Self {
            by_name: HashMap::new(),
            by_pattern: HashMap::new(),
            channels: Vec::new(),
            free: Vec::new(),
            subs: Subs::new(RandomState::new().hash_one(0u8) | 1),
            memberships: 0,
            totals,
            home: None,
            patterns: Trie::default(),
            matched: Vec::new(),
            scratch: Scratch::default(),
            homes: HomesScratch::default(),
            leaving: Vec::new(),
            visited: Visited::default(),
        }
    }

    /// Sets the shard's number: from now on other shards send it publications to channels with
    /// members here.
    pub(crate) fn set_home(&mut self, shard: u16) {
        self.home = Some(shard);
    }

    /// Writes the shards with members of a channel, and perhaps this one, to `homes`; returns the
    /// channel's name if it has members here.
    pub(crate) fn homes(&mut self, name: &str, homes: &mut Vec<u16>) -> Option<&Arc<str>> {
        let index = self.by_name.get(name);
        let known = index.map(|&channel| self.channels[channel as usize].tally());
        self.totals.homes(name, known, self.patterns.len(), &mut self.homes, homes);
        known.map(Tally::name)
    }

    /// Channels and patterns with at least one member here.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len() + self.by_pattern.len()
    }

    /// The counts over all shards.
    pub(crate) fn totals(&self) -> &Arc<Totals> {
        &self.totals
    }

    /// Memberships of all connections together.
    pub(crate) fn memberships(&self) -> usize {
        self.memberships
    }

    /// Members of the channel, or else of the pattern, of exactly this text.
    #[cfg(test)]
    fn members(&self, name: &str) -> &[Member] {
        let index = self.by_name.get(name).or_else(|| self.by_pattern.get(name));
        index.map_or(&[], |&c| &self.channels[c as usize].members)
    }

    /// Calls `each` with the slot of every connection that gets publications to `name`, once per
    /// connection even if several of its subscriptions match. `name` is literal: see `wildcard.rs`.
    pub(crate) fn matching(&mut self, name: &str, mut each: impl FnMut(u32)) {
        let exact = self.by_name.get(name).copied();
        let members = |channel: ChannelIndex| self.channels[channel as usize].members.iter();
        let only = if self.patterns.is_empty() {
            exact
        } else {
            self.matched.clear();
            self.patterns.matching(name, &mut self.scratch, &mut self.matched);
            self.matched.extend(exact);
            if self.matched.len() > 1 {
                self.visited.begin(self.subs.slots());
                for member in self.matched.iter().copied().flat_map(members) {
                    if self.visited.is_first(member.slot) {
                        each(member.slot);
                    }
                }
                return;
            }
            self.matched.first().copied()
        };
        only.into_iter().flat_map(members).for_each(|member| each(member.slot));
    }

    /// Returns whether the connection in `slot` is in the channel, or in the pattern, of exactly
    /// this text. Without wildcards a pattern is the channel of that name.
    pub(crate) fn is_in(&self, slot: u32, text: &str, is_pattern: bool) -> bool {
        let is_pattern = is_pattern && wildcard::check(text) == Ok(true);
        let channel = self.by_text(is_pattern).get(text);
        channel.is_some_and(|&channel| self.subs.contains(slot, channel))
    }

    /// Returns whether the connection in `slot` gets publications to `name`.
    pub(crate) fn gets(&mut self, slot: u32, name: &str) -> bool {
        self.gets_by(slot, name, |_, _| true)
    }

    /// Returns whether the connection gets publications by a subscription that `counts` accepts,
    /// given its text and whether it is a pattern.
    pub(crate) fn gets_by(
        &mut self,
        slot: u32,
        name: &str,
        counts: impl Fn(&str, bool) -> bool,
    ) -> bool {
        let Self { by_name, channels, subs, patterns, matched, scratch, .. } = self;
        let exact = by_name.get(name);
        if exact.is_some_and(|&channel| subs.contains(slot, channel)) && counts(name, false) {
            return true;
        }
        matched.clear();
        if !patterns.is_empty() {
            patterns.matching(name, scratch, matched);
        }
        matched.iter().any(|&channel| {
            let text = || channels[channel as usize].tally().name();
            subs.contains(slot, channel) && counts(text(), true)
        })
    }

    /// Adds the connection in `slot` to the channel of exactly this name; returns false if it was a
    /// member.
    pub(crate) fn subscribe(&mut self, slot: u32, name: &str) -> bool {
        self.join(slot, name, false)
    }

    /// Adds the connection in `slot` to all channels that match `pattern`; returns false if it was
    /// a member. Without wildcards it is the channel of that name.
    ///
    /// # Errors
    /// The pattern is malformed.
    pub(crate) fn subscribe_pattern(
        &mut self,
        slot: u32,
        pattern: &str,
    ) -> Result<bool, PatternError> {
        let is_pattern = wildcard::check(pattern)?;
        Ok(self.join(slot, pattern, is_pattern))
    }

    fn by_text(&self, is_pattern: bool) -> &HashMap<Arc<str>, ChannelIndex> {
        if is_pattern { &self.by_pattern } else { &self.by_name }
    }

    fn join(&mut self, slot: u32, name: &str, is_pattern: bool) -> bool {
        let index = match self.by_text(is_pattern).get(name) {
            Some(&channel) if self.subs.contains(slot, channel) => return false,
            Some(&channel) => channel,
            None => self.create(name, is_pattern),
        };
        let channel = &mut self.channels[index as usize];
        let sub = Sub { channel: index, position: channel.members.len() as u32 };
        grow(&mut channel.members, 1);
        channel.members.push(Member { slot });
        channel.tally().add_one();
        self.memberships += 1;
        let channels = &self.channels;
        self.subs.add(slot, sub, |sub| owner(channels, sub));
        true
    }

    /// Removes a membership; returns false if there was none.
    pub(crate) fn unsubscribe(&mut self, slot: u32, name: &str) -> bool {
        self.part(slot, name, false)
    }

    /// Removes a membership of [`Channels::subscribe_pattern`]; returns false if there was none.
    pub(crate) fn unsubscribe_pattern(&mut self, slot: u32, pattern: &str) -> bool {
        self.part(slot, pattern, wildcard::check(pattern) == Ok(true))
    }

    fn part(&mut self, slot: u32, name: &str, is_pattern: bool) -> bool {
        let Some(&channel) = self.by_text(is_pattern).get(name) else { return false };
        let channels = &self.channels;
        match self.subs.remove(slot, channel, |sub| owner(channels, sub)) {
            Some(position) => {
                self.leave(Sub { channel, position });
                true
            }
            None => false,
        }
    }

    /// Removes all memberships of the connection in `slot`; returns how many.
    pub(crate) fn unsubscribe_all(&mut self, slot: u32) -> usize {
        let mut leaving = std::mem::take(&mut self.leaving);
        let channels = &self.channels;
        self.subs.take(slot, |sub| owner(channels, sub), &mut leaving);
        let ended = leaving.len();
        leaving.drain(..).for_each(|sub| self.leave(sub));
        trim(&mut leaving);
        self.leaving = leaving;
        ended
    }

    /// Names of the channels and patterns the connection in `slot` is a member of, in no order.
    pub(crate) fn subscriptions(&self, slot: u32) -> impl Iterator<Item = &Arc<str>> {
        self.subs.iter(slot).map(|sub| self.channels[sub.channel as usize].tally().name())
    }

    fn create(&mut self, name: &str, is_pattern: bool) -> ChannelIndex {
        let tally = match is_pattern {
            true => self.totals.enter_pattern(name, self.home),
            false => self.totals.enter_from(name, self.home),
        };
        let name = Arc::clone(tally.name());
        let channel = Channel { members: Vec::new(), tally: Some(tally) };
        let index = match self.free.pop() {
            Some(index) => {
                self.channels[index as usize] = channel;
                index
            }
            None => {
                debug_assert!(self.channels.len() < MAX_CHANNELS);
                self.channels.push(channel);
                self.channels.len() as u32 - 1
            }
        };
        if is_pattern {
            self.patterns.insert(&name, index);
            self.by_pattern.insert(name, index);
        } else {
            self.by_name.insert(name, index);
        }
        index
    }

    /// Removes the channel's side of a membership that its connection no longer has.
    fn leave(&mut self, Sub { channel: index, position }: Sub) {
        self.memberships -= 1;
        let channel = &mut self.channels[index as usize];
        channel.tally().subtract(1);
        channel.members.swap_remove(position as usize);
        trim(&mut channel.members);
        if let Some(moved) = channel.members.get(position as usize) {
            self.subs.set_position(moved.slot, index, position);
        } else if channel.members.is_empty() {
            self.remove(index);
        }
    }

    /// Removes a channel without members.
    fn remove(&mut self, index: ChannelIndex) {
        let channel = &mut self.channels[index as usize];
        channel.members = Vec::new();
        let tally = channel.tally.take().expect("a channel in use has a tally");
        if tally.is_pattern() {
            self.patterns.remove(tally.name());
            self.by_pattern.remove(tally.name());
            shrink(&mut self.by_pattern);
        } else {
            self.by_name.remove(tally.name());
            shrink(&mut self.by_name);
        }
        self.totals.leave(tally);
        self.free.push(index);
        if self.len() == 0 {
            // Free the memory that the maximum number of channels took, if it was much.
            self.free.clear();
            self.channels.clear();
            trim(&mut self.free);
            trim(&mut self.channels);
        }
    }
}

/// A shard that ends removes its members from the counts.
impl Drop for Channels {
    fn drop(&mut self) {
        for channel in &mut self.channels {
            if let Some(tally) = channel.tally.take() {
                tally.subtract(channel.members.len());
                self.totals.leave(tally);
            }
        }
    }
}

impl Channel {
    fn tally(&self) -> &Tally {
        self.tally.as_ref().expect("a channel in use has a tally")
    }
}

/// Returns the connection of a membership.
fn owner(channels: &[Channel], sub: Sub) -> u32 {
    channels[sub.channel as usize].members[sub.position as usize].slot
}

/// Marks of the connections that one publish has reached. A slot is marked with the publish's
/// number, so that nothing has to be cleared before the next.
#[derive(Debug, Default)]
struct Visited {
    marks: Vec<u32>,
    now: u32,
}

impl Visited {
    fn begin(&mut self, slots: usize) {
        if self.marks.len() < slots {
            self.marks.resize(slots, 0);
        }
        self.now = self.now.wrapping_add(1);
        if self.now == 0 {
            self.marks.fill(0);
            self.now = 1;
        }
    }

    fn is_first(&mut self, slot: u32) -> bool {
        std::mem::replace(&mut self.marks[slot as usize], self.now) != self.now
    }
}

/// Reserves capacity for `more`, with an eighth to spare instead of the usual doubling: still a
/// constant number of moves for each element, and half a byte of slack for a `Member` instead of
/// four.
fn grow<T>(vec: &mut Vec<T>, more: usize) {
    if vec.capacity() - vec.len() < more {
        vec.reserve_exact((vec.len() / 8).max(more).max(4));
    }
}

/// Frees memory of a map that is mostly empty.
fn shrink(map: &mut HashMap<Arc<str>, ChannelIndex>) {
    if map.capacity() > 64 && map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}

/// Frees memory when more than half of it is unused.
fn trim<T>(vec: &mut Vec<T>) {
    if vec.capacity() > 64 && vec.len() < vec.capacity() / 2 {
        vec.shrink_to(vec.len() * 9 / 8);
    }
}
