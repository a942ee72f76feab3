//! The record of the test service's callbacks, shared by all shards of a run, and checked as it
//! grows.
//!
//! It contains the messages that the engine was asked to send, and their receivers, in the order of
//! the requests at each shard: an [`Offer`] for each receiver. At the end the offers are compared
//! with the messages that the receiver got.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use throng_engine::{Delivery, Receipt};
use throng_io::ConnId;

use crate::lifecycle::LifecycleCheck;
use crate::moves::Moves;
use crate::net::SharedNet;
use crate::reader::Received;
use crate::rules::{Rules, matches};

/// The record of one run.
pub type SharedRecord = Rc<RefCell<Record>>;

/// A message that the engine was asked to send to one receiver.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The message as its receiver sees it.
    pub what: Received,
    /// The class of back-pressure that applies to the message.
    pub class: usize,
    /// The key under which a newer value replaces the message, if values replace each other.
    pub key: String,
    /// The time of the offer in nanoseconds.
    pub at: u64,
}

/// One WebSocket session, or stream of events.
#[derive(Debug)]
pub struct SimSession {
    /// Its connection.
    pub id: ConnId,
    /// A stream of server-sent events: the engine calls back neither at its beginning nor at its
    /// end.
    pub stream: bool,
    /// Its route.
    pub route: u16,
    /// The negotiated subprotocol.
    pub subprotocol: Option<&'static str>,
    /// The code that `on_close` reported; 0 for a stream that has ended.
    pub closed: Option<u16>,
    /// Whether the server was asked to end the stream: earlier offers are due, later ones are not.
    pub dismissed: bool,
    /// Hashes of the received messages, in order.
    pub handled: Vec<u64>,
    /// The messages that must be sent to the session, in order.
    pub offers: Vec<Offer>,
    /// Whether a send returned `Queued` or `Dropped`, and `on_drain` has not followed since.
    pub behind: bool,
    /// Whether the session's messages are not wanted for now.
    pub stopped: bool,
}

impl SimSession {
    /// A new session.
    #[must_use]
    pub fn new(id: ConnId, route: u16, stream: bool) -> Self {
        Self {
            id,
            stream,
            route,
            subprotocol: None,
            closed: None,
            dismissed: false,
            handled: Vec::new(),
            offers: Vec::new(),
            behind: false,
            stopped: false,
        }
    }
}

/// Audience of a broadcast, by the numbers of peers.
#[derive(Clone, Debug, Default)]
pub struct Audience {
    /// Selects only members that a publication to this channel would reach.
    pub channel: Option<String>,
    /// Selects only sessions with this subprotocol.
    pub subprotocol: Option<String>,
    /// Only these peers.
    pub include: Option<BTreeSet<u32>>,
    /// Always excluded.
    pub exclude: BTreeSet<u32>,
}

/// A command to a shard.
#[derive(Clone, Debug)]
pub enum SentCommand {
    /// Sending to all members of a channel except one.
    Publish {
        /// The channel.
        channel: String,
        /// The value's key; empty for none.
        key: String,
        /// A peer that must not receive the message.
        except: Option<u32>,
        /// The message.
        what: Received,
    },
    /// Sending to an audience.
    Broadcast {
        /// The receivers.
        audience: Audience,
        /// The message.
        what: Received,
    },
    /// Sending to one receiver.
    Send {
        /// The receiver.
        to: u32,
        /// The message.
        what: Received,
    },
    /// Ending a stream.
    Dismiss(u32),
    /// Beginning a membership that was requested while commands were waiting.
    Joined {
        /// The member.
        peer: u32,
        /// The channel or pattern.
        name: String,
    },
    /// Sending messages that wait after a publication of the receiver.
    Behind {
        /// The receiver.
        peer: u32,
        /// The messages, and the keys of their values.
        items: Vec<(Received, &'static str)>,
    },
}

/// A command that its shard has not taken yet.
#[derive(Clone, Debug)]
pub struct PendingCommand {
    /// The shard.
    pub shard: usize,
    /// The command.
    pub command: SentCommand,
    /// The receipt in the record that receives the counts.
    pub receipt: Option<usize>,
    /// Whether a connection sent the command. The connection is then delayed if the queue is
    /// crowded.
    pub held_back: bool,
}

/// A receipt, and its required counts.
#[derive(Debug)]
pub struct Expected {
    /// The engine's receipt.
    pub receipt: Receipt,
    /// Minimum and maximum number of receivers.
    pub receivers: (u64, u64),
}

/// Outcomes of one class's publications, as far as the record knows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Minimum number of receivers of publications and broadcasts.
    pub least: u64,
    /// Maximum number of receivers.
    pub most: u64,
    /// Messages to one receiver that were refused with an error to the sender.
    pub refused: u64,
    /// Messages to one receiver whose sender got no outcome.
    pub unreported: u64,
}

/// An event of another thread for the service of one connection, about one of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// The connection.
    pub to: ConnId,
    /// The request.
    pub number: u32,
    /// The event of the request.
    pub what: ServiceAction,
}

/// See [`Note`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceAction {
    /// The answer is ready.
    Answer,
    /// More of the request's body is wanted.
    Room,
    /// There is more of its answer's body.
    More,
}

/// The record of one run.
#[derive(Default)]
pub struct Record {
    /// Sessions and streams by peer number.
    pub sessions: BTreeMap<u32, SimSession>,
    /// Every broken rule.
    pub violations: Vec<String>,
    /// Panics that the service was asked for.
    pub planned_panics: u64,
    /// Members of each channel or pattern of each shard, as they should be.
    pub members: BTreeMap<(usize, String), BTreeSet<u32>>,
    /// Members whose membership has not yet begun, with the number of memberships that must still
    /// begin.
    pub joining: BTreeMap<(usize, String), BTreeMap<u32, u32>>,
    /// Commands that the shards have not taken yet.
    pub commands: Vec<PendingCommand>,
    /// Receipts of what was published from outside.
    pub receipts: Vec<Expected>,
    /// Messages made by each peer.
    pub made: BTreeMap<u32, u32>,
    /// Publications that are too large for streams of events, by peer and number.
    pub too_large: BTreeSet<(u32, u32)>,
    /// By class.
    pub attempts: Vec<Attempts>,
    /// Outcomes that publishers got, all together.
    pub outcomes: Delivery,
    /// The plan's rules.
    pub rules: Rules,
    /// Whether subscriptions may be patterns.
    pub wildcards: bool,
    /// Hash of all events.
    pub trace: crate::rng::Trace,
    /// Requests that were refused on acceptance.
    pub refused: u64,
    /// Sessions opened.
    pub opened: u64,
    /// Sessions closed.
    pub closed: u64,
    /// Whether to print the callbacks to standard error.
    pub log: bool,
    /// The clock, and the connections that have ended.
    pub net: Option<SharedNet>,
    /// The check of each connection's outcome.
    pub lifecycle: LifecycleCheck,
    /// Nanoseconds that each `on_open` takes.
    pub opening_takes: u64,
    /// Outcomes of upgrades that move to another shard.
    pub moves: Moves,
    /// Events that other threads will send to connections, by time in nanoseconds and order.
    pub deliveries: BTreeMap<(u64, u64), Note>,
    /// Deliveries made.
    pub delivered: u64,
    /// The plan's limit on pending output for one connection.
    pub max_backlog: usize,
}

impl Record {
    /// Records a broken rule.
    pub fn violation(&mut self, what: String) {
        if self.violations.len() < 20 {
            self.violations.push(what);
        }
    }

    /// The open session of a peer; a violation if there is none.
    pub fn session(&mut self, peer: u32, id: ConnId, call: &str) -> Option<&mut SimSession> {
        self.trace.mix_bytes(call.as_bytes());
        self.trace.mix(id.to_bits());
        self.say(call, id);
        let fault = match self.sessions.get(&peer) {
            None => Some("before on_open"),
            Some(session) if session.id != id => Some("for another connection"),
            Some(session) if session.closed.is_some() => Some("after on_close"),
            Some(session) if session.stream => Some("of a stream of events"),
            Some(_) => None,
        };
        if let Some(fault) = fault {
            self.violation(format!("{call} of peer {peer} {fault}"));
            return None;
        }
        self.sessions.get_mut(&peer)
    }

    /// Logs a callback.
    pub fn say(&self, call: &str, id: ConnId) {
        if self.log {
            eprintln!("{:>15}  {call} {id:?}", "");
        }
    }

    /// Schedules an event that another thread will send to a connection.
    pub fn deliver_at(&mut self, at: u64, note: Note) {
        self.delivered += 1;
        self.deliveries.insert((at, self.delivered), note);
    }

    /// The number of a new message of this peer's.
    pub fn next_of(&mut self, by: u32) -> u32 {
        let made = self.made.entry(by).or_default();
        *made += 1;
        *made
    }

    /// Removes a peer from every channel of its shard.
    pub fn forget_member(&mut self, shard: usize, peer: u32) {
        for ((at, _), members) in &mut self.members {
            if *at == shard {
                members.remove(&peer);
            }
        }
    }

    /// Records the streams whose connections have ended, as the driver reports them.
    pub fn note_ended_streams(&mut self) {
        let Some(net) = self.net.clone() else { return };
        let ended = std::mem::take(&mut net.borrow_mut().ended);
        for id in ended {
            self.lifecycle.end(id);
            let mut streams = self.sessions.iter_mut().filter(|(_, session)| session.stream);
            let Some((&peer, session)) = streams.find(|(_, session)| session.id == id) else {
                continue;
            };
            session.closed = Some(0);
            self.forget_member(id.shard(), peer);
        }
    }

    /// Returns the peers that a publish to `channel` reaches on a shard.
    #[must_use]
    pub fn members_of(&self, shard: usize, channel: &str) -> BTreeSet<u32> {
        let reaches = |name: &str| match self.wildcards {
            true => matches(name, channel),
            false => name == channel,
        };
        let subscriptions =
            self.members.iter().filter(|((at, name), _)| *at == shard && reaches(name));
        subscriptions.flat_map(|(_, members)| members.iter().copied()).collect()
    }

    /// Returns the peers that were already members when the current command was published.
    fn old_members_of(&self, shard: usize, channel: &str) -> BTreeSet<u32> {
        let mut old = BTreeSet::new();
        for (key, members) in &self.members {
            let reaches = match self.wildcards {
                true => matches(&key.1, channel),
                false => key.1 == channel,
            };
            if key.0 == shard && reaches {
                let new = self.joining.get(key);
                let is_old = |peer: &&u32| new.is_none_or(|new| !new.contains_key(peer));
                old.extend(members.iter().filter(is_old));
            }
        }
        old
    }

    /// Records that a peer joins a channel or pattern, after the commands that wait for its shard.
    pub fn join_behind(&mut self, shard: usize, name: &str, peer: u32) {
        *self.joining.entry((shard, name.to_owned())).or_default().entry(peer).or_default() += 1;
        let command = SentCommand::Joined { peer, name: name.to_owned() };
        self.commands.push(PendingCommand { shard, command, receipt: None, held_back: false });
    }

    /// Records that a message was accepted for one session. It follows the session's own waiting
    /// publications.
    pub fn offer_in_order(&mut self, to: u32, what: Received, key: &'static str) {
        let behind =
            self.commands.iter_mut().rev().find_map(|pending| match &mut pending.command {
                SentCommand::Behind { peer, items } if *peer == to => Some(items),
                _ => None,
            });
        match behind {
            Some(items) => items.push((what, key)),
            None => self.offer(to, what, None, key),
        }
    }

    /// Subscriptions to exactly this channel or pattern, on all shards.
    #[must_use]
    pub fn subscribers(&self, name: &str) -> usize {
        let same = self.members.iter().filter(|((_, known), _)| known == name);
        same.map(|(_, members)| members.len()).sum()
    }

    /// Records that a message was accepted for one receiver.
    pub fn offer(&mut self, to: u32, what: Received, channel: Option<&str>, key: &str) {
        let at = self.net.as_ref().map_or(0, |net| net.borrow().now());
        let Some(session) = self.sessions.get_mut(&to) else { return };
        if session.dismissed {
            return;
        }
        let class = self.rules.class_of(channel, session.route);
        let key = format!("{}|{key}", channel.unwrap_or_default());
        session.offers.push(Offer { what, class, key, at });
    }

    /// Returns whether a stream of events reports a loss instead of this message.
    #[must_use]
    pub fn is_too_large(&self, what: &Received) -> bool {
        let Received::Published { by, sequence, .. } = what else { return false };
        self.too_large.contains(&(*by, *sequence))
    }

    /// Records that a message to one receiver was refused.
    pub fn refuse(&mut self, to: u32) {
        let class = self.class_alone(to);
        self.attempts[class].refused += 1;
    }

    fn class_alone(&self, to: u32) -> usize {
        let route = self.sessions.get(&to).map_or(0, |session| session.route);
        self.rules.class_of(None, route)
    }

    /// Records that a shard publishes; returns the number of receivers.
    pub fn publish(
        &mut self,
        shard: usize,
        channel: &str,
        key: &str,
        except: Option<u32>,
        what: &Received,
    ) -> u64 {
        self.note_ended_streams();
        let members = self.members_of(shard, channel);
        self.publish_to(members, channel, key, except, what)
    }

    fn publish_to(
        &mut self,
        mut members: BTreeSet<u32>,
        channel: &str,
        key: &str,
        except: Option<u32>,
        what: &Received,
    ) -> u64 {
        if let Some(except) = except {
            members.remove(&except);
        }
        for &to in &members {
            self.attempt(Some(channel), to, true);
            self.offer(to, what.clone(), Some(channel), key);
        }
        members.len() as u64
    }

    /// Records that a shard broadcasts; returns the minimum and maximum number of receivers.
    pub fn broadcast(&mut self, shard: usize, audience: &Audience, what: &Received) -> (u64, u64) {
        self.note_ended_streams();
        let channel = audience.channel.as_deref();
        let here = |session: &SimSession| session.id.shard() == shard;
        // A peer that has left may still be closing in the engine's table, and a present peer may
        // also be closing; only membership is certain.
        let alive = |session: &SimSession| session.closed.is_none();
        let mut receivers: BTreeSet<u32> = match (channel, &audience.include) {
            // A session cannot join between a broadcast and its delivery on one shard.
            (Some(channel), _) => self.old_members_of(shard, channel),
            (None, Some(included)) => included.clone(),
            (None, None) => self
                .sessions
                .iter()
                .filter(|(_, session)| alive(session))
                .map(|(peer, _)| *peer)
                .collect(),
        };
        receivers.retain(|peer| {
            let Some(session) = self.sessions.get(peer).filter(|session| here(session)) else {
                return false;
            };
            let included = audience.include.as_ref().is_none_or(|ids| ids.contains(peer));
            let excluded = audience.exclude.contains(peer);
            let speaks = audience.subprotocol.as_deref();
            included && !excluded && speaks.is_none_or(|name| session.subprotocol == Some(name))
        });
        let most = receivers.len() as u64;
        let certain = match (channel, &audience.include) {
            (Some(_), _) => true,
            // Each named receiver is counted, present or not; its subprotocol is known only while
            // it is present.
            (None, Some(_)) => audience.subprotocol.is_none(),
            (None, None) => false,
        };
        for &to in &receivers {
            let there = self.sessions.get(&to).is_some_and(alive);
            self.attempt(channel, to, certain && there);
            if there {
                self.offer(to, what.clone(), channel, "");
            }
        }
        if certain { (most, most) } else { (0, most) }
    }

    fn attempt(&mut self, channel: Option<&str>, to: u32, certain: bool) {
        let Some(session) = self.sessions.get(&to) else { return };
        let class = self.rules.class_of(channel, session.route);
        match session.closed {
            // The slot may now belong to another session with another route.
            Some(_) => self.attempts.iter_mut().for_each(|attempts| attempts.most += 1),
            None => {
                self.attempts[class].most += 1;
                self.attempts[class].least += u64::from(certain);
            }
        }
    }

    /// Lets a shard take all its commands, the oldest first.
    pub fn take_commands(&mut self, shard: usize) {
        let commands = std::mem::take(&mut self.commands);
        let (mine, others): (Vec<_>, _) =
            commands.into_iter().partition(|command| command.shard == shard);
        self.commands = others;
        for PendingCommand { command, receipt, .. } in mine {
            let (least, most) = match command {
                SentCommand::Publish { channel, key, except, what } => {
                    self.note_ended_streams();
                    let members = self.old_members_of(shard, &channel);
                    let receivers = self.publish_to(members, &channel, &key, except, &what);
                    (receivers, receivers)
                }
                SentCommand::Broadcast { audience, what } => {
                    self.broadcast(shard, &audience, &what)
                }
                SentCommand::Send { to, what } => {
                    let class = self.class_alone(to);
                    self.attempts[class].unreported += 1;
                    if self.sessions.get(&to).is_some_and(|session| session.closed.is_none()) {
                        self.offer(to, what, None, "");
                    }
                    (0, 0)
                }
                SentCommand::Dismiss(peer) => {
                    self.dismiss(peer);
                    (0, 0)
                }
                SentCommand::Joined { peer, name } => {
                    self.begin_membership((shard, name), peer);
                    (0, 0)
                }
                SentCommand::Behind { peer, items } => {
                    let is_open =
                        self.sessions.get(&peer).is_some_and(|session| session.closed.is_none());
                    for (what, key) in items.into_iter().filter(|_| is_open) {
                        self.offer(peer, what, None, key);
                    }
                    (0, 0)
                }
            };
            if let Some(expected) = receipt.and_then(|at| self.receipts.get_mut(at)) {
                expected.receivers.0 += least;
                expected.receivers.1 += most;
            }
        }
    }

    fn begin_membership(&mut self, key: (usize, String), peer: u32) {
        let Some(new) = self.joining.get_mut(&key) else { return };
        if let Some(left) = new.get_mut(&peer) {
            *left -= 1;
            if *left == 0 {
                new.remove(&peer);
            }
        }
        if new.is_empty() {
            self.joining.remove(&key);
        }
    }

    /// Publications and broadcasts of connections that a shard has not taken yet.
    #[must_use]
    pub fn publications_for(&self, shard: usize) -> usize {
        let publication = |command: &SentCommand| {
            matches!(command, SentCommand::Publish { .. } | SentCommand::Broadcast { .. })
        };
        let waits = self.commands.iter().filter(|command| command.shard == shard);
        waits.filter(|it| it.held_back && publication(&it.command)).count()
    }

    /// Records that the server is asked to end a stream.
    pub fn dismiss(&mut self, peer: u32) {
        self.note_ended_streams();
        if let Some(session) = self.sessions.get_mut(&peer)
            && session.stream
        {
            session.dismissed |= session.closed.is_none();
        }
    }

    /// Returns whether a shard gets this command, because it has receivers now or may have some.
    fn concerns(&self, shard: usize, command: &SentCommand) -> bool {
        match command {
            SentCommand::Publish { channel, .. } => !self.members_of(shard, channel).is_empty(),
            SentCommand::Broadcast { audience, .. } => match (&audience.include, &audience.channel)
            {
                (Some(peers), _) => peers.iter().any(|peer| {
                    self.sessions.get(peer).is_some_and(|session| session.id.shard() == shard)
                }),
                (None, Some(channel)) => !self.members_of(shard, channel).is_empty(),
                (None, None) => true,
            },
            SentCommand::Send { .. }
            | SentCommand::Dismiss(_)
            | SentCommand::Joined { .. }
            | SentCommand::Behind { .. } => true,
        }
    }

    /// Adds commands to every shard that has receivers, except the sender's.
    pub fn send_to_others(&mut self, from: usize, shards: usize, command: &SentCommand) {
        let others = (0..shards).filter(|shard| *shard != from);
        self.send_to(others, command, None, true);
    }

    /// Adds commands to every shard that has receivers. `receipt` gets their counts.
    pub fn send_to_all(&mut self, shards: usize, command: &SentCommand, receipt: Receipt) {
        self.receipts.push(Expected { receipt, receivers: (0, 0) });
        self.send_to(0..shards, command, Some(self.receipts.len() - 1), false);
    }

    /// Records a broadcast by a connection, in the order of all channels. The receivers on its own
    /// shard get it now, unless commands wait for them.
    pub fn broadcast_in_order(
        &mut self,
        (shard, shards): (usize, usize),
        waits: bool,
        (by, audience, what): (u32, Audience, Received),
        receipt: Receipt,
    ) {
        let mut receivers = (0, 0);
        if !waits {
            receivers = self.broadcast(shard, &audience, &what);
        }
        self.receipts.push(Expected { receipt, receivers });
        let meant = (0..shards).filter(|to| waits || *to != shard);
        let is_receiver = self.is_in(shard, &audience, by);
        let command = SentCommand::Broadcast { audience, what };
        self.send_to(meant, &command, Some(self.receipts.len() - 1), true);
        if waits && is_receiver {
            let command = SentCommand::Behind { peer: by, items: Vec::new() };
            self.commands.push(PendingCommand { shard, command, receipt: None, held_back: false });
        }
    }

    /// Returns whether a session of this shard belongs to an audience.
    fn is_in(&self, shard: usize, audience: &Audience, peer: u32) -> bool {
        let Audience { channel, subprotocol, include, exclude } = audience;
        let speaks = self.sessions.get(&peer).and_then(|session| session.subprotocol);
        !exclude.contains(&peer)
            && include.as_ref().is_none_or(|peers| peers.contains(&peer))
            && subprotocol.as_deref().is_none_or(|name| speaks == Some(name))
            && channel.as_ref().is_none_or(|name| self.members_of(shard, name).contains(&peer))
    }

    fn send_to(
        &mut self,
        shards: impl Iterator<Item = usize>,
        command: &SentCommand,
        receipt: Option<usize>,
        held_back: bool,
    ) {
        self.note_ended_streams();
        for shard in shards {
            if self.concerns(shard, command) {
                let command = command.clone();
                self.commands.push(PendingCommand { shard, command, receipt, held_back });
            }
        }
    }

    /// Checks the outcome that a publisher got.
    pub fn check_delivery(&mut self, delivery: Delivery, (least, most): (u64, u64)) {
        let count = delivery.receivers();
        if count < least || count > most || delivery.unreached > 0 {
            self.violation(format!(
                "a publish to {least} to {most} receivers counted {delivery:?}"
            ));
        }
        self.outcomes.delivered += delivery.delivered;
        self.outcomes.queued += delivery.queued;
        self.outcomes.dropped += delivery.dropped;
        self.outcomes.closed += delivery.closed;
    }
}
