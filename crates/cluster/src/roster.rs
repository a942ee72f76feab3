//! The members of this node in channels with presence, and the broker's knowledge of them.
//!
//! Joins and leaves become [updates](Update) for the broker, one at a time for each client and
//! channel. Further changes while an update is in flight, or while the broker is away, need at most
//! one later update. After a lost connection everything is written again. Each update waits for the
//! earlier subscriptions of this node, because the node's members must get joins and leaves.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Knowledge of the broker about a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    /// The client's join or leave was sent, but not acknowledged.
    Maybe,
    Join,
}

#[derive(Debug)]
struct RosterMember {
    /// The information that the broker has, or that is in flight to it.
    info: Arc<str>,
    /// Information of the member; `None`: it has left.
    wanted: Option<Arc<str>>,
    known: Known,
    /// Whether the record must be written again.
    is_stale: bool,
    /// Whether the broker has lost its data since the last update.
    is_lost: bool,
    /// The client's position in the list of clients that may need an update.
    place: Option<u64>,
    is_sent: bool,
}

#[derive(Debug, Default)]
struct Channel {
    announces: bool,
    clients: HashMap<u64, RosterMember>,
}

/// A command for the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The channel.
    pub channel: Arc<str>,
    /// The connection.
    pub client: u64,
    /// Its information.
    pub info: Arc<str>,
    /// Whether members of the channel get joins and leaves.
    pub announces: bool,
    /// The change.
    pub change: Change,
}

/// The change that an [`Update`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The client is a member.
    Join,
    /// The client is no longer a member. `is_lost`: the broker may have lost the record, so the
    /// leave is announced in any case.
    Leave {
        /// Whether the broker may have lost the record.
        is_lost: bool,
    },
}

/// A client that may need an update.
#[derive(Debug)]
struct Changed {
    channel: Arc<str>,
    client: u64,
    /// The number of subscriptions that must come before the update.
    after: u64,
}

/// The members of a node.
#[derive(Debug, Default)]
pub struct Roster {
    channels: HashMap<Arc<str>, Channel>,
    /// Clients that may need an update, in the order of their changes.
    changed: BTreeMap<u64, Changed>,
    /// The next position in the list, and the first position after the last restart.
    next: u64,
    restarted: u64,
    /// Subscriptions requested so far.
    follows: u64,
    /// Updates in flight.
    sent: usize,
}

impl RosterMember {
    fn is_settled(&self) -> bool {
        match &self.wanted {
            Some(wanted) => self.known == Known::Join && !self.is_stale && *wanted == self.info,
            None => self.known == Known::Nothing,
        }
    }

    fn next(&mut self) -> Option<Change> {
        if self.is_sent || self.is_settled() {
            return None;
        }
        self.is_sent = true;
        match &self.wanted {
            Some(wanted) if self.known == Known::Nothing || *wanted == self.info => {
                self.info = Arc::clone(wanted);
                if self.known == Known::Nothing {
                    self.known = Known::Maybe;
                }
                Some(Change::Join)
            }
            // The client's information has changed: other members see it leave and join.
            _ => {
                self.known = Known::Maybe;
                Some(Change::Leave { is_lost: self.is_lost })
            }
        }
    }
}

impl Roster {
    /// Records the number of subscriptions requested so far. Later changes wait for them.
    pub fn follow(&mut self, follows: u64) {
        self.follows = follows;
    }

    /// Records that a client has joined a channel. `announces`: members get its joins and leaves.
    pub fn join(&mut self, channel: &Arc<str>, client: u64, info: Arc<str>, announces: bool) {
        let of = self.channels.entry(Arc::clone(channel)).or_default();
        of.announces = announces;
        let entry = of.clients.entry(client).or_insert_with(|| RosterMember {
            info: Arc::clone(&info),
            wanted: None,
            known: Known::Nothing,
            is_stale: false,
            is_lost: false,
            place: None,
            is_sent: false,
        });
        entry.wanted = Some(info);
        self.list(channel, client);
    }

    /// Records that a client has left a channel.
    pub fn leave(&mut self, channel: &Arc<str>, client: u64) {
        if let Some(entry) = self.client(channel, client) {
            entry.wanted = None;
            self.list(channel, client);
        }
    }

    /// Records a client that the broker lists for this node. `announces`: members of the channel
    /// have received its join.
    pub fn found(&mut self, channel: &Arc<str>, client: u64, announces: bool) {
        if self.client(channel, client).is_some() {
            return;
        }
        let announces = self.channels.get(channel).map_or(announces, |of| of.announces);
        self.join(channel, client, "".into(), announces);
        if let Some(entry) = self.client(channel, client) {
            (entry.wanted, entry.known) = (None, Known::Join);
        }
    }

    fn client(&mut self, channel: &str, client: u64) -> Option<&mut RosterMember> {
        self.channels.get_mut(channel)?.clients.get_mut(&client)
    }

    /// Lists a client for an update, or removes it.
    fn list(&mut self, channel: &Arc<str>, client: u64) {
        let Some(of) = self.channels.get_mut(channel) else { return };
        let Some(entry) = of.clients.get_mut(&client) else { return };
        if entry.is_sent {
            return;
        }
        if !entry.is_settled() {
            if entry.place.is_none() {
                entry.place = Some(self.next);
                let (channel, after) = (Arc::clone(channel), self.follows);
                self.changed.insert(self.next, Changed { channel, client, after });
                self.next += 1;
            }
            return;
        }
        if let Some(place) = entry.place.take() {
            self.changed.remove(&place);
        }
        if entry.wanted.is_none() {
            of.clients.remove(&client);
            if of.clients.is_empty() {
                self.channels.remove(channel);
            }
        }
    }

    /// Returns the next update for a broker that has acknowledged the first `taken` subscriptions.
    /// Call [`acknowledge`](Self::acknowledge) or [`refuse`](Self::refuse) afterwards.
    pub fn next_update(&mut self, taken: u64) -> Option<Update> {
        loop {
            self.changed.first_key_value().filter(|(_, changed)| changed.after <= taken)?;
            let (_, Changed { channel, client, .. }) = self.changed.pop_first()?;
            let Some(of) = self.channels.get_mut(&channel) else { continue };
            let announces = of.announces;
            let Some(entry) = of.clients.get_mut(&client) else { continue };
            entry.place = None;
            match entry.next() {
                Some(change) => {
                    self.sent += 1;
                    let info = Arc::clone(&entry.info);
                    return Some(Update { channel, client, info, announces, change });
                }
                None => self.list(&channel, client),
            }
        }
    }

    /// Records that the broker has executed an update.
    pub fn acknowledge(&mut self, update: &Update) {
        self.done(update, |entry| {
            (entry.is_stale, entry.is_lost) = (false, false);
            entry.known = match update.change {
                Change::Join => Known::Join,
                Change::Leave { .. } => Known::Nothing,
            };
        });
    }

    /// Records that the broker has refused an update, which will be sent again.
    pub fn refuse(&mut self, update: &Update) {
        self.done(update, |_| ());
    }

    fn done(&mut self, update: &Update, outcome: impl FnOnce(&mut RosterMember)) {
        let Update { channel, client, .. } = update;
        self.sent = self.sent.saturating_sub(1);
        if let Some(entry) = self.client(channel, *client) {
            entry.is_sent = false;
            outcome(entry);
            self.list(channel, *client);
        }
    }

    /// Writes everything again: the lost connection leaves the outcome of updates in flight
    /// unknown, or the broker may have lost data. `is_lost`: it has lost all data.
    pub fn restart(&mut self, is_lost: bool) {
        self.sent = 0;
        self.changed.clear();
        for (channel, of) in &mut self.channels {
            for (client, entry) in &mut of.clients {
                (entry.is_sent, entry.is_stale, entry.place) = (false, true, Some(self.next));
                entry.is_lost |= is_lost && entry.known != Known::Nothing;
                let (channel, after) = (Arc::clone(channel), self.follows);
                self.changed.insert(self.next, Changed { channel, client: *client, after });
                self.next += 1;
            }
        }
        self.restarted = self.next;
    }

    /// Returns whether each member had an update since the last restart, or waits for a retry.
    #[must_use]
    pub fn is_rewritten(&self) -> bool {
        self.changed.first_key_value().is_none_or(|(place, _)| *place >= self.restarted)
    }

    /// Returns whether some clients may need an update.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Returns whether the broker knows all members, and no others.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.sent == 0 && self.changed.is_empty()
    }

    /// Returns whether there are no members, and the broker has recorded that.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use throng_testkit::Random;

    use super::*;

    /// The broker's scripts, and the joins and leaves that members of other nodes have received.
    #[derive(Default)]
    struct Broker {
        entries: BTreeMap<u64, Arc<str>>,
        announced: Vec<(u64, bool, Arc<str>)>,
        is_lost: bool,
    }

    impl Broker {
        fn take(&mut self, update: &Update) {
            let Update { client, info, change, .. } = update;
            let is_new = match change {
                Change::Join => self.entries.insert(*client, Arc::clone(info)).is_none(),
                Change::Leave { .. } => self.entries.remove(client).is_some(),
            };
            match change {
                Change::Join if is_new => {
                    self.announced.push((*client, true, Arc::clone(info)));
                }
                Change::Leave { is_lost } if is_new || *is_lost || self.is_lost => {
                    self.announced.push((*client, false, Arc::clone(info)));
                }
                _ => {}
            }
        }

        /// Another node takes this one for dead.
        fn remove_node(&mut self) {
            let leaves = std::mem::take(&mut self.entries).into_iter();
            self.announced.extend(leaves.map(|(client, info)| (client, false, info)));
        }
    }

    fn settle(roster: &mut Roster, broker: &mut Broker) {
        while let Some(update) = roster.next_update(0) {
            broker.take(&update);
            roster.acknowledge(&update);
        }
        assert!(roster.is_settled());
    }

    #[test]
    fn a_stay_that_is_over_before_it_was_sent_is_never_sent() {
        let (mut roster, channel) = (Roster::default(), "a".into());
        roster.join(&channel, 1, "".into(), true);
        roster.leave(&channel, 1);
        assert_eq!((roster.next_update(0), roster.is_empty()), (None, true));
    }

    #[test]
    fn clients_that_come_and_go_while_the_broker_is_away_leave_nothing_behind() {
        let (mut roster, channel) = (Roster::default(), "a".into());
        let mut broker = Broker::default();
        roster.join(&channel, 0, "".into(), true);
        settle(&mut roster, &mut broker);
        for client in 1..1_000 {
            roster.join(&channel, client, "".into(), true);
            // A client that leaves and returns needs no update.
            roster.leave(&channel, 0);
            roster.join(&channel, 0, "".into(), true);
            roster.leave(&channel, client);
            assert_eq!((roster.channels["a"].clients.len(), roster.changed.len()), (1, 0));
            roster.join(&"b".into(), client, "".into(), true);
            roster.leave(&"b".into(), client);
            assert_eq!((roster.channels.len(), roster.changed.len()), (1, 0));
        }
        assert_eq!(roster.next_update(0), None);
    }

    #[test]
    fn updates_come_after_the_subscriptions_before_them() {
        let (mut roster, channel) = (Roster::default(), "a".into());
        roster.follow(3);
        roster.join(&channel, 1, "".into(), true);
        roster.follow(4);
        roster.join(&channel, 2, "".into(), true);
        let next = |roster: &mut Roster, taken| Some(roster.next_update(taken)?.client);
        assert_eq!(
            [2, 3, 3, 4].map(|taken| next(&mut roster, taken)),
            [None, Some(1), None, Some(2)]
        );
        roster.restart(false);
        assert_eq!((next(&mut roster, 3), roster.is_rewritten()), (None, false));
        let updates = [4, 4].map(|taken| roster.next_update(taken).unwrap());
        assert!(roster.is_rewritten());
        // The update of a refused client is sent again, and does not delay others.
        updates.iter().for_each(|update| roster.refuse(update));
        assert!(roster.is_rewritten() && roster.has_changes());
    }

    #[test]
    fn a_client_that_comes_back_as_another_one_leaves_and_joins_for_others() {
        let (mut roster, channel) = (Roster::default(), "a".into());
        let mut broker = Broker::default();
        roster.join(&channel, 1, "ann".into(), true);
        settle(&mut roster, &mut broker);
        roster.leave(&channel, 1);
        roster.join(&channel, 1, "bob".into(), true);
        settle(&mut roster, &mut broker);
        let announced: Vec<_> =
            broker.announced.iter().map(|(_, join, info)| (*join, &**info)).collect();
        assert_eq!(announced, [(true, "ann"), (false, "ann"), (true, "bob")]);
    }

    #[test]
    fn members_that_a_broker_finds_and_that_are_none_leave() {
        let (mut roster, channel) = (Roster::default(), "a".into());
        let mut broker = Broker::default();
        roster.join(&channel, 1, "ann".into(), true);
        settle(&mut roster, &mut broker);
        broker.entries.insert(2, "old".into());
        roster.found(&channel, 1, true);
        roster.found(&channel, 2, true);
        settle(&mut roster, &mut broker);
        assert_eq!(broker.entries.keys().collect::<Vec<_>>(), [&1]);
        assert_eq!(broker.announced.len(), 2);
    }

    #[test]
    fn a_member_that_a_broker_finds_leaves_as_it_joined() {
        let mut roster = Roster::default();
        let (quiet, loud): (Arc<str>, Arc<str>) = ("quiet".into(), "loud".into());
        roster.join(&quiet, 1, "".into(), false);
        let joined = roster.next_update(0).unwrap();
        // The channel's rule has changed since the client joined.
        roster.found(&quiet, 2, true);
        roster.found(&loud, 2, true);
        roster.acknowledge(&joined);
        let announces = |update: Update| (update.channel, update.announces);
        let left: Vec<_> = std::iter::from_fn(|| roster.next_update(0)).map(announces).collect();
        assert_eq!(left, [(quiet, false), (loud, true)]);
    }

    /// Under any sequence of joins, leaves, lost connections and removals, the broker ends with the
    /// right members, and other members get each join and leave in turn. If the broker loses its
    /// data, they may get a join or leave more than once, but the last one is right.
    #[test]
    fn others_get_each_join_and_its_leave_in_any_interleaving() {
        for seed in 0..4_000 {
            let loses = seed % 2 == 1;
            let mut random = Random::new(seed * 11 + 3);
            let (mut roster, channel) = (Roster::default(), Arc::from("a"));
            let (mut broker, mut members) = (Broker::default(), BTreeMap::new());
            let mut sent = VecDeque::new();
            for _ in 0..60 {
                let client = random.below(3) as u64;
                match random.below(9) {
                    0..=2 if !members.contains_key(&client) => {
                        let info: Arc<str> = ["x", "y"][random.below(2)].into();
                        members.insert(client, Arc::clone(&info));
                        roster.join(&channel, client, info, true);
                    }
                    3 | 4 if members.remove(&client).is_some() => roster.leave(&channel, client),
                    5 => sent.extend(roster.next_update(0)),
                    6 => {
                        if let Some(update) = sent.pop_front() {
                            broker.take(&update);
                            roster.acknowledge(&update);
                        }
                    }
                    7 => {
                        // The connection is lost: the broker has executed some of the updates in
                        // flight.
                        let taken = random.below(sent.len() + 1);
                        sent.drain(..).take(taken).for_each(|update| broker.take(&update));
                        roster.restart(std::mem::take(&mut broker.is_lost));
                    }
                    8 if sent.is_empty() && random.below(3) == 0 => {
                        if loses {
                            broker.entries.clear();
                            broker.is_lost = true;
                        } else {
                            broker.remove_node();
                            roster.restart(false);
                        }
                    }
                    _ => {}
                }
            }
            for update in sent {
                broker.take(&update);
                roster.acknowledge(&update);
            }
            if loses {
                roster.restart(broker.is_lost);
                broker.is_lost = false;
            }
            settle(&mut roster, &mut broker);
            assert_eq!(broker.entries, members, "seed {seed}");
            for client in 0..3 {
                let announced = broker.announced.iter().filter(|(other, ..)| *other == client);
                let announced: Vec<_> = announced.map(|(_, join, info)| (*join, info)).collect();
                let is_last = announced.last().is_some_and(|(join, _)| *join);
                assert_eq!(is_last, members.contains_key(&client), "seed {seed}: {announced:?}");
                if !loses {
                    let is_in_turn = |pair: &[(bool, _)]| pair[0].0 != pair[1].0;
                    assert!(announced.windows(2).all(is_in_turn), "seed {seed}: {announced:?}");
                    assert!(
                        announced.first().is_none_or(|(join, _)| *join),
                        "seed {seed}: {announced:?}"
                    );
                }
            }
        }
    }
}
