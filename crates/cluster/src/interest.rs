//! The channels that a node is subscribed to at the broker, and the commands that keep them up to
//! date.
//!
//! A channel is wanted from its first member on, and for a while after its last member has left, so
//! that reloading a page costs the broker nothing. Changes are gathered into commands of up to
//! [`BATCH`] names. A channel is in at most one of the commands that one call returns, and the
//! caller sends them in order on one connection, so two changes of a channel are never reordered.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Maximum names in a command.
pub const BATCH: usize = 512;

/// The verb of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Begin delivery.
    Subscribe,
    /// End delivery.
    Unsubscribe,
}

/// A command for the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The verb.
    pub verb: Verb,
    /// The channels.
    pub names: Vec<Arc<str>>,
}

#[derive(Debug, Default)]
struct Channel {
    is_wanted: bool,
    /// When the channel is dropped, unless a member joins before.
    expires: Option<u64>,
    /// Whether the last command about the channel was to subscribe.
    is_asked_for: bool,
    /// Subscribe commands that the broker has not acknowledged.
    unacknowledged: u32,
}

/// The channels of a node: which the members want, and which the broker has.
#[derive(Debug, Default)]
pub struct Interest {
    channels: HashMap<Arc<str>, Channel>,
    /// Channels that may need a command.
    changed: HashSet<Arc<str>>,
    /// Channels without members, by the time at which they will be dropped.
    leaving: BTreeSet<(u64, Arc<str>)>,
}

impl Interest {
    /// Records that a channel has a member; returns whether the channel is new.
    pub fn enter(&mut self, name: &Arc<str>) -> bool {
        let is_new = !self.channels.contains_key(name);
        let channel = self.channels.entry(Arc::clone(name)).or_default();
        channel.is_wanted = true;
        if let Some(at) = channel.expires.take() {
            self.leaving.remove(&(at, Arc::clone(name)));
        }
        self.changed.insert(Arc::clone(name));
        is_new
    }

    /// Records that a channel has no member; it is dropped at `expires`.
    pub fn leave(&mut self, name: &Arc<str>, expires: u64) {
        let Some(channel) = self.channels.get_mut(name) else { return };
        if let Some(at) = channel.expires.replace(expires) {
            self.leaving.remove(&(at, Arc::clone(name)));
        }
        self.leaving.insert((expires, Arc::clone(name)));
    }

    /// Returns the time at which the next channel must be dropped.
    #[must_use]
    pub fn next_expiry(&self) -> Option<u64> {
        self.leaving.first().map(|(at, _)| *at)
    }

    /// Removes the channels whose expiry has passed, and returns them.
    pub fn expire(&mut self, now: u64) -> Vec<Arc<str>> {
        let mut gone = Vec::new();
        while self.leaving.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, name)) = self.leaving.pop_first() else { break };
            if let Some(channel) = self.channels.get_mut(&name) {
                (channel.is_wanted, channel.expires) = (false, None);
            }
            // While the broker is away, no command follows that would remove the channel.
            if self.forget_if_done(&name) {
                self.changed.remove(&name);
            } else {
                self.changed.insert(Arc::clone(&name));
            }
            gone.push(name);
        }
        gone
    }

    /// Returns the commands that bring the broker up to date. The caller sends no other command in
    /// between.
    pub fn commands(&mut self) -> Vec<Batch> {
        let (mut wanted, mut unwanted) = (Vec::new(), Vec::new());
        for name in std::mem::take(&mut self.changed) {
            let Some(channel) = self.channels.get_mut(&name) else { continue };
            match (channel.is_wanted, channel.is_asked_for) {
                (true, false) => {
                    channel.is_asked_for = true;
                    channel.unacknowledged += 1;
                    wanted.push(name);
                }
                (false, true) => {
                    channel.is_asked_for = false;
                    self.forget_if_done(&name);
                    unwanted.push(name);
                }
                (false, false) => {
                    self.forget_if_done(&name);
                }
                (true, true) => {}
            }
        }
        let batches = |verb, names: Vec<Arc<str>>| {
            let batch = move |names: &[Arc<str>]| Batch { verb, names: names.to_vec() };
            names.chunks(BATCH).map(batch).collect::<Vec<_>>()
        };
        let mut commands = batches(Verb::Subscribe, wanted);
        commands.extend(batches(Verb::Unsubscribe, unwanted));
        commands
    }

    /// Returns whether the channel was removed.
    fn forget_if_done(&mut self, name: &Arc<str>) -> bool {
        let is_done = |channel: &Channel| {
            !channel.is_wanted && !channel.is_asked_for && channel.unacknowledged == 0
        };
        self.channels.get(name).is_some_and(is_done) && self.channels.remove(name).is_some()
    }

    /// Records that the broker has acknowledged a subscription. Returns whether the channel is now
    /// subscribed: if not, a later command withdraws or repeats the subscription.
    pub fn acknowledge(&mut self, name: &str) -> bool {
        let Some((name, _)) = self.channels.get_key_value(name) else { return false };
        let name = Arc::clone(name);
        let Some(channel) = self.channels.get_mut(&name) else { return false };
        channel.unacknowledged = channel.unacknowledged.saturating_sub(1);
        self.forget_if_done(&name);
        self.is_subscribed(&name)
    }

    /// Returns whether the broker has acknowledged a subscription that no command has withdrawn.
    #[must_use]
    pub fn is_subscribed(&self, name: &str) -> bool {
        let is_subscribed = |channel: &Channel| channel.is_asked_for && channel.unacknowledged == 0;
        self.channels.get(name).is_some_and(is_subscribed)
    }

    /// Records that the connection was lost: the broker has dropped all subscriptions.
    pub fn broken(&mut self) {
        self.channels.retain(|_, channel| channel.is_wanted);
        self.changed = self.channels.keys().cloned().collect();
        for channel in self.channels.values_mut() {
            (channel.is_asked_for, channel.unacknowledged) = (false, 0);
        }
    }

    /// Returns the number of channels that are wanted or not yet removed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.channels.len()
    }

    /// Returns whether there is no channel.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use throng_testkit::Random;

    use super::*;

    fn name(n: usize) -> Arc<str> {
        format!("c{n}").into()
    }

    #[test]
    fn many_channels_need_few_commands_and_a_lost_connection_the_same_again() {
        let mut interest = Interest::default();
        assert!((0..1_300).all(|n| interest.enter(&name(n))));
        for _ in 0..2 {
            let commands = interest.commands();
            let sizes: Vec<_> = commands.iter().map(|batch| batch.names.len()).collect();
            assert_eq!(sizes, [512, 512, 276]);
            assert!(commands.iter().all(|batch| batch.verb == Verb::Subscribe));
            assert!(interest.commands().is_empty());
            interest.broken();
        }
    }

    #[test]
    fn a_channel_that_is_joined_again_in_time_is_not_let_go_of() {
        let mut interest = Interest::default();
        assert!(interest.enter(&name(1)));
        assert_eq!(interest.commands().len(), 1);
        interest.leave(&name(1), 50);
        assert_eq!(interest.next_expiry(), Some(50));
        assert!(!interest.enter(&name(1)));
        assert!(interest.expire(1_000).is_empty());
        interest.leave(&name(1), 60);
        assert!(interest.expire(59).is_empty());
        assert_eq!(interest.expire(60), [name(1)]);
        let last = interest.commands();
        assert_eq!(last, [Batch { verb: Verb::Unsubscribe, names: vec![name(1)] }]);
        assert!(!interest.acknowledge("c1"));
        assert!(interest.is_empty());
    }

    #[test]
    fn channels_that_come_and_go_while_the_broker_is_away_leave_nothing_behind() {
        let mut interest = Interest::default();
        interest.enter(&name(0));
        for n in 1..1_000 {
            interest.enter(&name(n));
            interest.leave(&name(n), 50);
            assert_eq!(interest.expire(50), [name(n)]);
            assert_eq!((interest.len(), interest.changed.len()), (1, 1));
        }
        let names = vec![name(0)];
        assert_eq!(interest.commands(), [Batch { verb: Verb::Subscribe, names }]);
    }

    #[test]
    fn a_channel_that_is_wanted_again_before_the_command_to_let_go_of_it_stays_subscribed() {
        let mut interest = Interest::default();
        interest.enter(&name(1));
        assert_eq!((interest.commands().len(), interest.is_subscribed("c1")), (1, false));
        assert!(interest.acknowledge("c1"));
        interest.leave(&name(1), 50);
        assert_eq!(interest.expire(50), [name(1)]);
        interest.enter(&name(1));
        assert!(interest.commands().is_empty() && interest.is_subscribed("c1"));
        interest.broken();
        assert!(!interest.is_subscribed("c1"));
    }

    /// Compares the broker's subscriptions with what members want, under any sequence of joins,
    /// leaves, late acknowledgements and lost connections.
    #[test]
    fn the_broker_has_what_members_want_in_any_interleaving() {
        for seed in 0..3_000 {
            let mut random = Random::new(seed * 7 + 1);
            let mut interest = Interest::default();
            let (mut wanted, mut subscribed) = (HashSet::new(), HashSet::new());
            let mut sent = VecDeque::new();
            let mut acks = VecDeque::new();
            for now in 0..60 {
                let name = name(random.below(4));
                match random.below(7) {
                    0 | 1 => {
                        interest.enter(&name);
                        wanted.insert(name);
                    }
                    2 if wanted.remove(&name) => interest.leave(&name, now),
                    3 => {
                        interest.expire(now);
                        sent.extend(interest.commands());
                    }
                    4 => {
                        if let Some(Batch { verb, names }) = sent.pop_front() {
                            for name in names {
                                if verb == Verb::Subscribe {
                                    subscribed.insert(Arc::clone(&name));
                                    acks.push_back(name);
                                } else {
                                    subscribed.remove(&name);
                                }
                            }
                        }
                    }
                    5 => {
                        if let Some(name) = acks.pop_front()
                            && interest.acknowledge(&name)
                        {
                            let unsent = sent.iter().any(|batch| batch.names.contains(&name));
                            assert!(unsent || subscribed.contains(&name), "seed {seed}");
                        }
                    }
                    6 if random.below(8) == 0 => {
                        interest.broken();
                        (sent, acks) = (VecDeque::new(), VecDeque::new());
                        subscribed.clear();
                    }
                    _ => {}
                }
            }
            interest.expire(60);
            sent.extend(interest.commands());
            for Batch { verb, names } in sent {
                for name in names {
                    match verb {
                        Verb::Subscribe => subscribed.insert(name),
                        Verb::Unsubscribe => subscribed.remove(&name),
                    };
                }
            }
            assert_eq!(subscribed, wanted, "seed {seed}");
        }
    }
}
