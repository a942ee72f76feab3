//! Members that joined while publications waited for this shard. Those publications were made
//! before the join, so the members must not get them. A mark in the shard's queue shows where each
//! membership begins.

use std::collections::HashMap;
use std::sync::Arc;

use throng_io::ConnId;

use crate::context::{Core, PubSub};
use crate::remote::Command;

/// Subscriptions whose mark is still in the queue, with the number of marks.
#[derive(Debug, Default)]
pub(crate) struct Joining {
    by_channel: HashMap<Arc<str>, HashMap<ConnId, u32>>,
    by_pattern: HashMap<ConnId, HashMap<Arc<str>, u32>>,
}

impl Joining {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_channel.is_empty() && self.by_pattern.is_empty()
    }

    fn add(&mut self, id: ConnId, name: &Arc<str>, is_pattern: bool) {
        let marks = match is_pattern {
            true => self.by_pattern.entry(id).or_default().entry(Arc::clone(name)).or_default(),
            false => self.by_channel.entry(Arc::clone(name)).or_default().entry(id).or_default(),
        };
        *marks += 1;
    }

    /// Records that a mark was reached.
    pub(crate) fn reach(&mut self, id: ConnId, name: &Arc<str>, is_pattern: bool) {
        match is_pattern {
            true => remove_mark(&mut self.by_pattern, &id, name),
            false => remove_mark(&mut self.by_channel, name, &id),
        }
    }

    fn has(&self, id: ConnId, name: &str, is_pattern: bool) -> bool {
        match is_pattern {
            true => self.by_pattern.get(&id).is_some_and(|names| names.contains_key(name)),
            false => self.by_channel.get(name).is_some_and(|ids| ids.contains_key(&id)),
        }
    }

    /// Returns whether a membership of this connection that matches `channel` may have a mark.
    fn may_have(&self, id: ConnId, channel: &str) -> bool {
        self.by_pattern.contains_key(&id) || self.has(id, channel, false)
    }
}

fn remove_mark<A, B>(all: &mut HashMap<A, HashMap<B, u32>>, outer: &A, inner: &B)
where
    A: std::hash::Hash + Eq,
    B: std::hash::Hash + Eq,
{
    let Some(of_outer) = all.get_mut(outer) else { return };
    if let Some(marks) = of_outer.get_mut(inner) {
        *marks -= 1;
        if *marks == 0 {
            of_outer.remove(inner);
        }
    }
    if of_outer.is_empty() {
        all.remove(outer);
    }
}

impl Core {
    /// Makes a membership that is about to begin exclude the publications that wait for this shard
    /// now. The mark comes first: a publisher that sees the subscription counted publishes behind
    /// the mark.
    #[inline]
    pub(super) fn begin_join(&mut self, id: ConnId, name: &str, is_pattern: bool) {
        if self.has_commands() {
            self.mark_join(id, name, is_pattern);
        }
    }

    #[cold]
    fn mark_join(&mut self, id: ConnId, name: &str, is_pattern: bool) {
        if self.pubsub.channels.is_in(id.slot() as u32, name, is_pattern) {
            return;
        }
        let name: Arc<str> = name.into();
        self.pubsub.joining.add(id, &name, is_pattern);
        self.mail.put(Command::Joined { id, name, is_pattern });
    }

    /// Returns the members of this shard to whom a publication that is delivered now was published
    /// before they joined.
    #[cold]
    pub(super) fn too_new_for(&mut self, channel: &str) -> Vec<ConnId> {
        let Self { conns: connections, pubsub: PubSub { channels, joining, .. }, .. } = self;
        let mut new = Vec::new();
        channels.matching(channel, |slot| {
            if let Some(id) = connections.at_slot(slot)
                && joining.may_have(id, channel)
            {
                new.push(id);
            }
        });
        new.retain(|&id| {
            let is_old = |name: &str, is_pattern| !joining.has(id, name, is_pattern);
            !channels.gets_by(id.slot() as u32, channel, is_old)
        });
        new.sort_unstable();
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_membership_begins_at_its_last_mark() {
        let (mut joining, id) = (Joining::default(), ConnId::from_bits(1));
        let (room, all) = (Arc::from("room"), Arc::from(">"));
        joining.add(id, &room, false);
        joining.add(id, &room, false);
        joining.add(id, &all, true);
        assert!(joining.has(id, "room", false) && joining.has(id, ">", true));
        assert!(!joining.has(id, "room", true) && !joining.has(id, "other", false));
        assert!(joining.may_have(id, "other"), "by its pattern");
        joining.reach(id, &room, false);
        assert!(joining.has(id, "room", false), "it left and joined again");
        joining.reach(id, &all, true);
        assert!(!joining.may_have(id, "other"));
        joining.reach(id, &room, false);
        assert!(joining.is_empty());
        joining.reach(id, &room, false);
        assert!(joining.is_empty());
    }
}
