//! Channels of one shard: who gets what is published.
//!
//! A channel's members are a dense vector, so a publish is a linear walk. A membership costs 16 bytes: 8 in the
//! channel (`Member`) and 8 at the connection (`Sub`), each pointing at the other, so that leaving is a
//! swap-remove on both sides. A connection's first membership lies in a dense array by slot; only connections
//! with more than one own a list.

use std::collections::HashMap;
use std::sync::Arc;

/// Index of a channel in its shard, valid while the channel has members.
pub(crate) type ChannelIndex = u32;

const NONE: u32 = u32::MAX;

/// One member of a channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) slot: u32,
    /// Which of the connection's memberships this is; 0 is the one in `first`.
    at: u32,
}

/// One membership of a connection.
#[derive(Clone, Copy, Debug)]
struct Sub {
    channel: ChannelIndex,
    position: u32,
}

const NO_SUB: Sub = Sub { channel: NONE, position: NONE };

#[derive(Debug)]
struct Channel {
    name: Arc<str>,
    members: Vec<Member>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    by_name: HashMap<Arc<str>, ChannelIndex>,
    channels: Vec<Channel>,
    free: Vec<ChannelIndex>,
    first: Vec<Sub>,
    more: HashMap<u32, Vec<Sub>>,
    memberships: usize,
}

impl Channels {
    /// Channels with at least one member here.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Memberships of all connections together.
    pub(crate) fn memberships(&self) -> usize {
        self.memberships
    }

    /// Members of `name`; empty if nobody here listens.
    pub(crate) fn members(&self, name: &str) -> &[Member] {
        self.by_name.get(name).map_or(&[], |&c| &self.channels[c as usize].members)
    }

    /// Makes the connection in `slot` a member; false if it was one.
    pub(crate) fn subscribe(&mut self, slot: u32, name: &str) -> bool {
        let channel = match self.by_name.get(name) {
            Some(&channel) => {
                if self.find(slot, channel).is_some() {
                    return false;
                }
                channel
            }
            None => self.create(name),
        };
        let members = &mut self.channels[channel as usize].members;
        let sub = Sub { channel, position: members.len() as u32 };
        let at = add_sub(&mut self.first, &mut self.more, slot, sub);
        members.push(Member { slot, at });
        self.memberships += 1;
        true
    }

    /// Ends a membership; false if there was none.
    pub(crate) fn unsubscribe(&mut self, slot: u32, name: &str) -> bool {
        let Some(&channel) = self.by_name.get(name) else { return false };
        let Some(at) = self.find(slot, channel) else { return false };
        self.remove(slot, at);
        true
    }

    /// Ends all memberships of the connection in `slot`; returns how many.
    pub(crate) fn unsubscribe_all(&mut self, slot: u32) -> usize {
        let mut ended = 0;
        while self.first.get(slot as usize).is_some_and(|sub| sub.channel != NONE) {
            // From the end, so that nothing moves.
            let at = self.more.get(&slot).map_or(0, |more| more.len() as u32);
            self.remove(slot, at);
            ended += 1;
        }
        ended
    }

    /// Names of the channels the connection in `slot` is a member of.
    pub(crate) fn subscriptions(&self, slot: u32) -> impl Iterator<Item = &Arc<str>> {
        let first = self.first.get(slot as usize).filter(|sub| sub.channel != NONE);
        let more = self.more.get(&slot).into_iter().flatten();
        first.into_iter().chain(more).map(|sub| &self.channels[sub.channel as usize].name)
    }

    fn create(&mut self, name: &str) -> ChannelIndex {
        let name: Arc<str> = name.into();
        let channel = Channel { name: Arc::clone(&name), members: Vec::new() };
        let index = match self.free.pop() {
            Some(index) => {
                self.channels[index as usize] = channel;
                index
            }
            None => {
                self.channels.push(channel);
                self.channels.len() as u32 - 1
            }
        };
        self.by_name.insert(name, index);
        index
    }

    fn find(&self, slot: u32, channel: ChannelIndex) -> Option<u32> {
        let first = self.first.get(slot as usize)?;
        if first.channel == channel {
            return Some(0);
        }
        let more = self.more.get(&slot)?;
        more.iter().position(|sub| sub.channel == channel).map(|i| i as u32 + 1)
    }

    fn sub_mut(&mut self, slot: u32, at: u32) -> &mut Sub {
        if at == 0 {
            return &mut self.first[slot as usize];
        }
        let more = self.more.get_mut(&slot).expect("a membership beyond the first has a list");
        &mut more[at as usize - 1]
    }

    fn remove(&mut self, slot: u32, at: u32) {
        self.memberships -= 1;
        let Sub { channel, position } = *self.sub_mut(slot, at);
        // The channel's side: the last member takes the place, and its connection learns where it is now.
        let members = &mut self.channels[channel as usize].members;
        members.swap_remove(position as usize);
        let emptied = members.is_empty();
        if let Some(&moved) = members.get(position as usize) {
            self.sub_mut(moved.slot, moved.at).position = position;
        }
        if emptied {
            let gone = &mut self.channels[channel as usize];
            gone.members = Vec::new();
            self.by_name.remove(&gone.name);
            self.free.push(channel);
        }
        // The connection's side, likewise.
        let last = match self.more.get_mut(&slot) {
            Some(more) => {
                let last = more.pop().expect("lists are removed when they become empty");
                let last_at = more.len() as u32 + 1;
                if more.is_empty() {
                    self.more.remove(&slot);
                }
                (last_at != at).then_some(last)
            }
            None => {
                self.first[slot as usize] = NO_SUB;
                None
            }
        };
        if let Some(last) = last {
            *self.sub_mut(slot, at) = last;
            self.channels[last.channel as usize].members[last.position as usize].at = at;
        }
    }
}

/// Adds to the connection's side; returns where.
fn add_sub(first: &mut Vec<Sub>, more: &mut HashMap<u32, Vec<Sub>>, slot: u32, sub: Sub) -> u32 {
    if first.len() <= slot as usize {
        first.resize(slot as usize + 1, NO_SUB);
    }
    if first[slot as usize].channel == NONE {
        first[slot as usize] = sub;
        return 0;
    }
    let list = more.entry(slot).or_default();
    list.push(sub);
    list.len() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn a_membership_costs_sixteen_bytes() {
        assert_eq!(size_of::<Member>() + size_of::<Sub>(), 16);
    }

    /// Against a plain map of sets, over random churn.
    #[test]
    fn churn_agrees_with_the_obvious_model() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut below = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let (mut channels, mut model) =
            (Channels::default(), BTreeMap::<String, BTreeSet<u32>>::new());
        for _ in 0..20_000 {
            let (slot, name) = (below(20) as u32, format!("c{}", below(12)));
            match below(8) {
                0..4 => {
                    let new = model.entry(name.clone()).or_default().insert(slot);
                    assert_eq!(channels.subscribe(slot, &name), new);
                }
                4..7 => {
                    let had = model.get_mut(&name).is_some_and(|set| set.remove(&slot));
                    assert_eq!(channels.unsubscribe(slot, &name), had);
                }
                _ => {
                    let had = model.values_mut().filter_map(|set| set.remove(&slot).then_some(()));
                    assert_eq!(channels.unsubscribe_all(slot), had.count());
                }
            }
            model.retain(|_, set| !set.is_empty());
            assert_eq!(channels.len(), model.len());
            assert_eq!(channels.memberships(), model.values().map(BTreeSet::len).sum::<usize>());
            for (name, set) in &model {
                let members: BTreeSet<u32> =
                    channels.members(name).iter().map(|member| member.slot).collect();
                assert_eq!((&members, members.len()), (set, channels.members(name).len()));
            }
            let names: BTreeSet<&str> = channels.subscriptions(slot).map(|name| &**name).collect();
            let expected: BTreeSet<&str> =
                model.iter().filter(|(_, set)| set.contains(&slot)).map(|(n, _)| &**n).collect();
            assert_eq!(names, expected);
        }
    }
}
