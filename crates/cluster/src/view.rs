//! The members of channels, on all nodes, as the clients of this node know them from joins and
//! leaves.
//!
//! Joins and leaves that are published while a node is not subscribed are lost. So a node keeps the
//! members that its clients know in each channel. After it has subscribed again, it lists the
//! members at the broker, and sends its clients the differences. It drops duplicates.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::mem;
use std::sync::Arc;

use crate::announcement::Announcement;

/// Memory of a member besides its information, and the memory limit for all members.
const MEMBER: usize = 150;
const MAX_BYTES: usize = 64 << 20;

/// A client of any node: the node, and the connection there.
type Id = (u64, u64);

/// A join or leave that the clients of this node have missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed {
    /// Whether it joined.
    pub is_join: bool,
    /// The node that it is connected to.
    pub node: u64,
    /// The connection.
    pub client: u64,
    /// Its information.
    pub info: Arc<str>,
}

/// The node's knowledge of a channel's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    /// Only changes since the watch began: clients have listed the earlier members themselves.
    Begun,
    /// Changes since the watch began, except during an interruption.
    Broken,
    /// All members that clients know.
    Complete,
    /// Nothing, because there are too many members.
    None,
}

/// The state of the list of a channel's members.
#[derive(Debug)]
enum List {
    /// The list will be requested after the broker has acknowledged this many subscriptions.
    Wanted(u64),
    /// The list was requested. Contains the clients that have joined or left since.
    Asked(HashSet<Id>),
    Taken,
}

#[derive(Debug)]
struct Channel {
    members: HashMap<Id, Arc<str>>,
    knowledge: Knowledge,
    list: List,
}

/// The members of channels as the clients of this node know them.
#[derive(Debug)]
pub struct View {
    channels: HashMap<Arc<str>, Channel>,
    /// Channels whose list is wanted, by the number of subscriptions that must precede it.
    wanted: BTreeSet<(u64, Arc<str>)>,
    /// Memory of all members, and its limit.
    bytes: usize,
    max_bytes: usize,
}

fn cost(info: &str) -> usize {
    MEMBER + info.len()
}

impl Channel {
    fn insert(&mut self, bytes: &mut usize, id: Id, info: Arc<str>) {
        *bytes += cost(&info);
        if let Some(before) = self.members.insert(id, info) {
            *bytes -= cost(&before);
        }
    }

    fn remove(&mut self, bytes: &mut usize, id: Id) -> Option<Arc<str>> {
        let info = self.members.remove(&id)?;
        *bytes -= cost(&info);
        Some(info)
    }

    fn clear(&mut self, bytes: &mut usize) {
        *bytes -= self.members.values().map(|info| cost(info)).sum::<usize>();
        self.members = HashMap::new();
    }

    /// Stops tracking: passes on all changes, and repairs none.
    fn give_up(&mut self, bytes: &mut usize) {
        self.clear(bytes);
        (self.knowledge, self.list) = (Knowledge::None, List::Taken);
    }
}

impl Default for View {
    fn default() -> Self {
        let (channels, wanted) = (HashMap::new(), BTreeSet::new());
        Self { channels, wanted, bytes: 0, max_bytes: MAX_BYTES }
    }
}

impl View {
    /// Begins to track the members of a channel, whose clients get joins and leaves from now on.
    /// Its subscription is among the first `after`.
    pub fn watch(&mut self, channel: &Arc<str>, after: u64) {
        if !self.channels.contains_key(channel) {
            let (members, knowledge, list) =
                (HashMap::new(), Knowledge::Begun, List::Wanted(after));
            self.channels.insert(Arc::clone(channel), Channel { members, knowledge, list });
            self.wanted.insert((after, Arc::clone(channel)));
        }
    }

    /// Stops tracking a channel.
    pub fn forget(&mut self, channel: &str) {
        if let Some((name, mut of)) = self.channels.remove_entry(channel) {
            of.clear(&mut self.bytes);
            if let List::Wanted(after) = of.list {
                self.wanted.remove(&(after, name));
            }
        }
    }

    /// Requests the lists of members of all channels, after the first `after` subscriptions: the
    /// node may have missed changes, or the broker may have lost data.
    pub fn restart(&mut self, after: u64) {
        self.wanted = self.channels.keys().map(|channel| (after, Arc::clone(channel))).collect();
        for of in self.channels.values_mut() {
            of.list = List::Wanted(after);
            of.knowledge = match of.knowledge {
                Knowledge::Begun | Knowledge::Broken => Knowledge::Broken,
                Knowledge::Complete => Knowledge::Complete,
                Knowledge::None => Knowledge::Begun,
            };
        }
    }

    /// Returns whether a list is wanted.
    #[must_use]
    pub fn has_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Returns a channel whose members the broker must list on all nodes, including this one.
    /// `taken` is the number of subscriptions that the broker has acknowledged. Call
    /// [`listed`](Self::listed) or [`refuse`](Self::refuse) afterwards.
    pub fn next_wanted(&mut self, taken: u64) -> Option<Arc<str>> {
        self.wanted.first().filter(|(after, _)| *after <= taken)?;
        let (_, channel) = self.wanted.pop_first()?;
        self.channels.get_mut(&channel)?.list = List::Asked(HashSet::new());
        Some(channel)
    }

    /// Records that the broker has not listed the members of a channel.
    pub fn refuse(&mut self, channel: &Arc<str>) {
        if let Some(of) = self.channels.get_mut(channel)
            && matches!(of.list, List::Asked(_))
        {
            of.list = List::Wanted(0);
            self.wanted.insert((0, Arc::clone(channel)));
        }
    }

    /// Records a join or leave that the broker has published; returns whether clients must get it.
    pub fn announce(&mut self, channel: &str, announcement: &Announcement<'_>) -> bool {
        let Some(of) = self.channels.get_mut(channel) else { return true };
        let Announcement { is_join, node, client, info } = *announcement;
        let id = (node, client);
        if of.knowledge == Knowledge::None {
            return true;
        }
        if let List::Asked(changed) = &mut of.list {
            changed.insert(id);
        }
        // After the list, a change that does not match is older than the list, which already
        // includes it.
        let may_not_fit = !matches!(of.list, List::Taken);
        let is_new = match of.members.get(&id) {
            Some(known) if is_join => **known != *info && may_not_fit,
            Some(known) => **known == *info || may_not_fit,
            None => is_join,
        };
        if is_new && is_join {
            of.insert(&mut self.bytes, id, info.into());
        } else if is_new {
            of.remove(&mut self.bytes, id);
        }
        // Clients may have listed any member that is not yet known.
        let is_given = is_new || of.knowledge != Knowledge::Complete;
        if self.bytes > self.max_bytes {
            of.give_up(&mut self.bytes);
        }
        is_given
    }

    /// Records the members of a channel as the broker has listed them, or `None` if there are too
    /// many. Returns the changes that clients have missed.
    pub fn listed(
        &mut self,
        channel: &str,
        members: Option<Vec<(u64, u64, Arc<str>)>>,
    ) -> Vec<Missed> {
        let Some(of) = self.channels.get_mut(channel) else { return Vec::new() };
        let List::Asked(changed) = mem::replace(&mut of.list, List::Taken) else {
            return Vec::new();
        };
        let Some(members) = members else {
            of.give_up(&mut self.bytes);
            return Vec::new();
        };
        // For clients that have since joined or left, the list is outdated.
        let members = members.into_iter().map(|(node, client, info)| ((node, client), info));
        let members: HashMap<_, _> = members.filter(|(id, _)| !changed.contains(id)).collect();
        let is_left = |(id, info): &(&Id, &Arc<str>)| {
            !changed.contains(id) && members.get(id).is_none_or(|listed| listed != *info)
        };
        let left: Vec<_> = of.members.iter().filter(is_left).map(|(id, _)| *id).collect();
        let mut missed = Vec::new();
        let mut note = |is_join, (node, client): Id, info| {
            missed.push(Missed { is_join, node, client, info });
        };
        for id in left {
            if let Some(info) = of.remove(&mut self.bytes, id) {
                note(false, id, info);
            }
        }
        // Clients have listed the earlier members themselves.
        let are_known = of.knowledge == Knowledge::Begun;
        for (id, info) in members {
            if !of.members.contains_key(&id) {
                if !are_known {
                    note(true, id, Arc::clone(&info));
                }
                of.insert(&mut self.bytes, id, info);
            }
        }
        of.knowledge = Knowledge::Complete;
        if self.bytes > self.max_bytes {
            of.give_up(&mut self.bytes);
        }
        missed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use throng_testkit::Random;

    use super::*;

    fn view(max_bytes: usize) -> (View, Arc<str>) {
        let (mut view, channel) = (View { max_bytes, ..View::default() }, Arc::from("a"));
        view.watch(&channel, 0);
        (view, channel)
    }

    fn announce(view: &mut View, is_join: bool, client: u64, info: &str) -> bool {
        view.announce("a", &Announcement { is_join, node: 1, client, info })
    }

    fn list(view: &mut View, clients: &[(u64, &str)]) -> Vec<(bool, u64, String)> {
        assert_eq!(view.next_wanted(9).as_deref(), Some("a"));
        let members = clients.iter().map(|(client, info)| (1, *client, Arc::from(*info))).collect();
        let missed = view.listed("a", Some(members)).into_iter();
        missed.map(|missed| (missed.is_join, missed.client, missed.info.to_string())).collect()
    }

    #[test]
    fn clients_get_what_they_have_missed_and_nothing_twice() {
        let (mut view, _) = view(MAX_BYTES);
        assert_eq!(list(&mut view, &[(1, "ann"), (2, "bob")]), [], "they have listed them");
        assert!(announce(&mut view, true, 3, "cid") && !announce(&mut view, true, 3, "cid"));
        view.restart(0);
        let missed = list(&mut view, &[(1, "ann"), (3, "Cid"), (4, "dan")]);
        assert_eq!(missed.len(), 4);
        for one in [(false, 2, "bob"), (false, 3, "cid"), (true, 3, "Cid"), (true, 4, "dan")] {
            assert!(missed.contains(&(one.0, one.1, one.2.to_owned())), "{one:?}");
        }
        assert!(!announce(&mut view, false, 2, "bob") && !announce(&mut view, true, 4, "dan"));
        assert!(!announce(&mut view, false, 3, "cid") && !announce(&mut view, true, 3, "Cid"));
        assert!(announce(&mut view, false, 4, "dan"));
    }

    #[test]
    fn a_list_comes_after_the_channel_s_subscription() {
        let (mut view, channel) = view(MAX_BYTES);
        view.restart(7);
        assert_eq!((view.next_wanted(6), view.has_wanted()), (None, true));
        view.forget(&channel);
        assert!(!view.has_wanted());
        view.watch(&channel, 8);
        assert_eq!((view.next_wanted(7), view.next_wanted(8)), (None, Some(channel.clone())));
        view.refuse(&channel);
        assert_eq!(view.next_wanted(8), Some(channel));
    }

    #[test]
    fn a_channel_with_too_many_members_is_passed_on_as_it_comes() {
        let (mut view, channel) = view(10 * cost(""));
        assert_eq!(list(&mut view, &[(1, "")]), []);
        assert!((2..20).all(|client| announce(&mut view, true, client, "")));
        assert_eq!((view.bytes, view.channels["a"].members.len()), (0, 0));
        assert!(announce(&mut view, true, 1, "") && announce(&mut view, false, 99, ""));
        view.restart(0);
        assert_eq!(list(&mut view, &[(1, "")]), [], "clients have listed them");
        view.restart(0);
        assert!(view.next_wanted(0).is_some());
        assert_eq!(view.listed("a", None), []);
        assert!(announce(&mut view, true, 1, ""));
        view.forget(&channel);
        assert_eq!((view.bytes, view.channels.len()), (0, 0));
    }

    /// A broker with one channel. Its publications arrive late but in order; lists also arrive
    /// late.
    #[derive(Default)]
    struct Broker {
        members: BTreeMap<u64, Arc<str>>,
        published: VecDeque<(bool, u64, Arc<str>)>,
        listed: Option<Vec<(u64, u64, Arc<str>)>>,
        is_subscribed: bool,
    }

    impl Broker {
        fn change(&mut self, client: u64, info: &Arc<str>) {
            let left = self.members.remove(&client);
            let is_join = left.is_none();
            if is_join {
                self.members.insert(client, Arc::clone(info));
            }
            if self.is_subscribed {
                self.published.push_back((is_join, client, left.unwrap_or(Arc::clone(info))));
            }
        }

        fn list(&self) -> Vec<(u64, u64, Arc<str>)> {
            self.members.iter().map(|(client, info)| (1, *client, Arc::clone(info))).collect()
        }
    }

    /// Clients that follow a channel from its first member on finally know its members, and get
    /// each join and leave in turn, despite any changes while the node was away.
    #[test]
    fn clients_know_the_members_in_any_interleaving() {
        for seed in 0..4_000 {
            let mut random = Random::new(seed * 13 + 5);
            let (mut view, channel) = view(MAX_BYTES);
            let mut broker = Broker { is_subscribed: true, ..Broker::default() };
            let mut given: Vec<(bool, u64, Arc<str>)> = Vec::new();
            assert_eq!(list(&mut view, &[]), []);
            for step in 0..100 {
                let is_end = step >= 90;
                match if is_end { 4 + step % 4 } else { random.below(9) } {
                    0..=3 => {
                        let info: Arc<str> = ["x", "y"][random.below(2)].into();
                        broker.change(random.below(3) as u64, &info);
                    }
                    4 if !broker.is_subscribed => {
                        broker.is_subscribed = true;
                        view.restart(0);
                    }
                    5 => {
                        let published = broker.published.len();
                        let count = if is_end { published } else { random.below(published + 1) };
                        for (is_join, client, info) in broker.published.drain(..count) {
                            if announce(&mut view, is_join, client, &info) {
                                given.push((is_join, client, info));
                            }
                        }
                    }
                    6 if broker.is_subscribed && view.next_wanted(0).is_some() => {
                        broker.listed = Some(broker.list());
                    }
                    7 => {
                        if let Some(listed) = broker.listed.take() {
                            let missed = view.listed(&channel, Some(listed)).into_iter();
                            given.extend(missed.map(|one| (one.is_join, one.client, one.info)));
                        }
                    }
                    8 if random.below(4) == 0 => {
                        // The connection is lost, and everything in flight with it.
                        broker.is_subscribed = false;
                        (broker.published, broker.listed) = (VecDeque::new(), None);
                    }
                    _ => {}
                }
            }
            assert!(broker.published.is_empty() && !view.has_wanted(), "seed {seed}");
            for client in 0..3 {
                let of: Vec<_> = given.iter().filter(|(_, other, _)| *other == client).collect();
                // Before the list arrives, a join with other information replaces an earlier join.
                let is_in_turn = |pair: &[&(bool, _, Arc<str>)]| {
                    pair[0].0 != pair[1].0 || (pair[1].0 && pair[0].2 != pair[1].2)
                };
                assert!(of.windows(2).all(is_in_turn), "seed {seed}: {of:?}");
                assert!(of.first().is_none_or(|(is_join, ..)| *is_join), "seed {seed}: {of:?}");
                let last = of.last().filter(|(is_join, ..)| *is_join).map(|(.., info)| info);
                assert_eq!(last, broker.members.get(&client), "seed {seed}: {of:?}");
            }
        }
    }
}
