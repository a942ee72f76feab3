//! The connections' side: for each connection, the channels that it is a member of, and its index
//! among their members.
//!
//! A connection has 8 bytes in a table by slot, which hold a single membership. 2 to [`MAX_LIST`]
//! memberships lie in a block of exactly that length. All blocks of a length lie in one vector
//! without gaps: the last block fills the place of a freed block. The owner of a block is not
//! stored, because each membership in it leads to its channel, and the channel knows its members:
//! callers pass the owner as `owner`. With more memberships, a connection has a [`Table`].

use super::table::{NO_SUB, Sub, Table};
use super::{ChannelIndex, NONE, grow, trim};

/// Memberships that are looked through one by one: four cache lines.
const MAX_LIST: usize = 32;

/// A table with fewer becomes a list again: apart from [`MAX_LIST`], so that one more and one less
/// is cheap there.
const MIN_TABLE: usize = MAX_LIST * 3 / 4;

/// Memberships of a connection. As `Head` it takes 8 bytes.
enum Held {
    Nothing,
    One(Sub),
    List { len: usize, block: usize },
    Table(usize),
}

/// [`Held`], packed: the tag is a channel's number (at most `MAX_CHANNELS`) or one of those below.
#[derive(Clone, Copy, Debug)]
struct Head {
    tag: u32,
    at: u32,
}

const NOTHING: Head = Head { tag: NONE, at: 0 };
const TABLE: u32 = NONE - 1;
const LIST: u32 = 1 << 31;

/// Maximum channels of a shard; channel numbers must not collide with the other tags.
pub(super) const MAX_CHANNELS: usize = LIST as usize;

impl Head {
    fn one(sub: Sub) -> Self {
        Self { tag: sub.channel, at: sub.position }
    }

    fn held(self) -> Held {
        match self.tag {
            NONE => Held::Nothing,
            TABLE => Held::Table(self.at as usize),
            channel if channel < LIST => Held::One(Sub { channel, position: self.at }),
            list => Held::List { len: (list & !LIST) as usize, block: self.at as usize },
        }
    }
}

/// Memberships of the connections of a shard.
#[derive(Debug)]
pub(super) struct Subs {
    heads: Vec<Head>,
    /// Indexed by length; the first two stay empty.
    blocks: [Vec<Sub>; MAX_LIST + 1],
    tables: Vec<Table>,
    multiplier: u64,
}

impl Subs {
    /// Creates an empty table. `multiplier` spreads the channels in hash tables; it is odd, and
    /// peers must not know it.
    pub(super) fn new(multiplier: u64) -> Self {
        let blocks = [const { Vec::new() }; MAX_LIST + 1];
        Self { heads: Vec::new(), blocks, tables: Vec::new(), multiplier }
    }

    /// Slots up to the highest that ever had a membership.
    pub(super) fn slots(&self) -> usize {
        self.heads.len()
    }

    fn held(&self, slot: u32) -> Held {
        self.heads.get(slot as usize).map_or(Held::Nothing, |head| head.held())
    }

    /// Memberships of the connection in `slot`.
    pub(super) fn iter(&self, slot: u32) -> impl Iterator<Item = Sub> {
        let (one, many): (Option<Sub>, &[Sub]) = match self.held(slot) {
            Held::Nothing => (None, &[]),
            Held::One(sub) => (Some(sub), &[]),
            Held::List { len, block } => (None, self.block(len, block)),
            Held::Table(table) => (None, self.tables[table].places()),
        };
        one.into_iter().chain(many.iter().copied().filter(|&sub| sub != NO_SUB))
    }

    pub(super) fn contains(&self, slot: u32, channel: ChannelIndex) -> bool {
        match self.held(slot) {
            Held::Nothing => false,
            Held::One(sub) => sub.channel == channel,
            Held::List { len, block } => {
                self.block(len, block).iter().any(|sub| sub.channel == channel)
            }
            Held::Table(table) => self.tables[table].position(channel, self.multiplier).is_some(),
        }
    }

    /// Adds a membership that is not there.
    pub(super) fn add(&mut self, slot: u32, sub: Sub, owner: impl Fn(Sub) -> u32) {
        if self.heads.len() <= slot as usize {
            let more = slot as usize + 1 - self.heads.len();
            grow(&mut self.heads, more);
            self.heads.resize(slot as usize + 1, NOTHING);
        }
        match self.held(slot) {
            Held::Nothing => self.heads[slot as usize] = Head::one(sub),
            Held::One(first) => self.put(slot, &[first, sub]),
            Held::List { len, block } => {
                let mut list = [NO_SUB; MAX_LIST + 1];
                list[..len].copy_from_slice(self.block(len, block));
                list[len] = sub;
                self.free(len, block, owner);
                self.put(slot, &list[..=len]);
            }
            Held::Table(table) => self.tables[table].insert(sub, self.multiplier),
        }
    }

    /// Removes a membership; returns which of the channel's members it was.
    pub(super) fn remove(
        &mut self,
        slot: u32,
        channel: ChannelIndex,
        owner: impl Fn(Sub) -> u32,
    ) -> Option<u32> {
        match self.held(slot) {
            Held::One(sub) if sub.channel == channel => {
                self.heads[slot as usize] = NOTHING;
                Some(sub.position)
            }
            Held::Nothing | Held::One(_) => None,
            Held::List { len, block } => {
                let held = self.block(len, block);
                let at = held.iter().position(|sub| sub.channel == channel)?;
                let mut list = [NO_SUB; MAX_LIST];
                list[..len].copy_from_slice(held);
                let removed = list[at];
                list[at] = list[len - 1];
                self.free(len, block, owner);
                self.put(slot, &list[..len - 1]);
                Some(removed.position)
            }
            Held::Table(table) => {
                let position = self.tables[table].remove(channel, self.multiplier)?;
                if self.tables[table].len() < MIN_TABLE {
                    let mut list = Vec::with_capacity(MIN_TABLE);
                    self.take(slot, owner, &mut list);
                    self.put(slot, &list);
                }
                Some(position)
            }
        }
    }

    /// Removes all memberships of the connection in `slot` and appends them to `into`.
    pub(super) fn take(&mut self, slot: u32, owner: impl Fn(Sub) -> u32, into: &mut Vec<Sub>) {
        into.extend(self.iter(slot));
        match self.held(slot) {
            Held::Nothing => return,
            Held::One(_) => {}
            Held::List { len, block } => self.free(len, block, owner),
            Held::Table(table) => {
                self.tables.swap_remove(table);
                if let Some(moved) = self.tables.get(table) {
                    self.heads[moved.slot() as usize].at = table as u32;
                }
                trim(&mut self.tables);
            }
        }
        self.heads[slot as usize] = NOTHING;
    }

    /// Updates a membership whose channel moved its member to `position`.
    pub(super) fn set_position(&mut self, slot: u32, channel: ChannelIndex, position: u32) {
        let at = match self.held(slot) {
            Held::Nothing => None,
            Held::One(_) => {
                self.heads[slot as usize].at = position;
                return;
            }
            Held::List { len, block } => {
                let list = &mut self.blocks[len][block * len..][..len];
                list.iter_mut().find(|sub| sub.channel == channel).map(|sub| &mut sub.position)
            }
            Held::Table(table) => self.tables[table].position_mut(channel, self.multiplier),
        };
        *at.expect("a channel's member has the membership") = position;
    }

    fn block(&self, len: usize, block: usize) -> &[Sub] {
        &self.blocks[len][block * len..][..len]
    }

    /// Replaces the list of a connection with `list`. The previous one was taken or freed.
    fn put(&mut self, slot: u32, list: &[Sub]) {
        let len = list.len();
        self.heads[slot as usize] = match *list {
            [one] => Head::one(one),
            _ if len <= MAX_LIST => {
                let blocks = &mut self.blocks[len];
                let at = (blocks.len() / len) as u32;
                grow(blocks, len);
                blocks.extend_from_slice(list);
                Head { tag: LIST | len as u32, at }
            }
            _ => {
                grow(&mut self.tables, 1);
                self.tables.push(Table::new(slot, list, self.multiplier));
                Head { tag: TABLE, at: self.tables.len() as u32 - 1 }
            }
        };
    }

    /// Frees a block; the last of its length takes its place.
    fn free(&mut self, len: usize, block: usize, owner: impl Fn(Sub) -> u32) {
        let blocks = &mut self.blocks[len];
        let last = blocks.len() - len;
        if last != block * len {
            let moved = owner(blocks[last]);
            blocks.copy_within(last.., block * len);
            self.heads[moved as usize].at = block as u32;
        }
        blocks.truncate(last);
        trim(blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_memberships_are_a_table_and_few_a_list_with_room_between() {
        let mut subs = Subs::new(1);
        let owner = |_| 0;
        let add = |subs: &mut Subs, channel| subs.add(0, Sub { channel, position: 0 }, owner);
        (0..MAX_LIST as u32).for_each(|channel| add(&mut subs, channel));
        assert!(matches!(subs.held(0), Held::List { len: MAX_LIST, .. }));
        add(&mut subs, 100);
        assert!(matches!(subs.held(0), Held::Table(0)));
        assert!(subs.blocks.iter().all(Vec::is_empty));
        for channel in 0..(MAX_LIST + 1 - MIN_TABLE) as u32 {
            assert!(matches!(subs.held(0), Held::Table(0)), "{channel}");
            assert_eq!(subs.remove(0, channel, owner), Some(0));
        }
        assert!(matches!(subs.held(0), Held::Table(0)));
        assert_eq!(subs.remove(0, 100, owner), Some(0));
        assert!(matches!(subs.held(0), Held::List { block: 0, .. }));
        assert_eq!((subs.iter(0).count(), subs.tables.len()), (MIN_TABLE - 1, 0));
        subs.take(0, owner, &mut Vec::new());
        assert!(matches!(subs.held(0), Held::Nothing));
        assert!(subs.blocks.iter().all(Vec::is_empty));
    }
}
