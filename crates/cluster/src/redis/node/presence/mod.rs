//! Presence in channels on all nodes: each node writes its own members, reads the members of
//! others, and removes the members of dead nodes.
//!
//! Every three seconds a node sends a heartbeat, with which it lives for ten seconds. A node that
//! finds another one dead removes it: a script removes its members and publishes their leaves in
//! one step, so that each member has only one leave. A live node that was removed notices at its
//! next heartbeat and writes its members again, so that they join again. While the broker was away,
//! no node could send a heartbeat; so a node removes others only after it has lived for ten seconds
//! itself.

mod calls;
mod question;
mod repair;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{RedisError, Value};

use super::super::calls::{is_fatal, is_for_now, is_read_on_the_way, lacks_right};
use super::super::explain::explain;
use super::super::link::Link;
use super::super::names::Names;
use super::super::open::LIMIT;
use super::super::reply::{AskError, Reply, Waiting};
use super::super::{Bus, StartError};
use crate::announcement::Announcement;
use crate::redis::node::{self, Node};
use crate::roster::{Roster, Update};
use crate::view::View;
use calls::{Found, Heartbeat, LIFE, PresenceListing, Scripts};

use question::Question;
pub use question::{Listed, RemoteMember};

/// The time between two heartbeats, and before a retry.
const HEARTBEAT_INTERVAL: u64 = 3_000;
const AGAIN: u64 = 1_000;

/// Delay before retrying a list whose slot is migrating. The few keys of a channel move within that
/// time.
const MOVING_AGAIN: u64 = 50;

/// Maximum updates in a pipeline, and maximum bytes of their information.
const PIPELINE: usize = 256;
const PIPELINE_BYTES: usize = 1 << 20;

/// Questions in one pipeline. With the byte limit of an answer, this bounds the input that a node
/// reads at once.
const QUESTIONS: usize = 16;

/// Maximum wait of an ending node for its unregistration.
const UNREGISTER: Duration = Duration::from_millis(500);

/// Maximum members in the answer to a question.
pub(super) const MAX_LISTED: usize = 10_000;

/// An event of presence, with the generation of its connection.
#[derive(Debug)]
pub(crate) enum PresenceInput {
    Join { channel: Arc<str>, client: u64, info: Arc<str>, announces: bool },
    Leave { channel: Arc<str>, client: u64 },
    Watch(Arc<str>),
    Ask(Question),
    HeartbeatDone(u64, Result<(Scripts, Heartbeat), RedisError>),
    Written(u64, u64, Vec<Update>, Result<Vec<Result<Value, RedisError>>, RedisError>),
    Listed(u64, Vec<Question>, Result<Vec<Result<PresenceListing, RedisError>>, RedisError>),
    Viewed(u64, Vec<Arc<str>>, Result<Vec<Result<PresenceListing, RedisError>>, RedisError>),
    Audited(u64, Result<Vec<Found>, RedisError>),
    DeadRemoved(u64, Result<(), RedisError>),
}

/// A node's part of presence.
#[derive(Debug, Default)]
pub(super) struct PresenceState {
    roster: Roster,
    /// Scripts of the server in use.
    scripts: Option<Scripts>,
    /// The identity of the server's data; empty before the first heartbeat.
    epoch: String,
    /// Whether this node has sent a heartbeat on this connection, and may write.
    is_synced: bool,
    /// When the current unbroken series of heartbeats on this connection began.
    lives_since: Option<u64>,
    /// The number of times that all members were written again.
    round: u64,
    /// When to compare the server's list of this node's members with the actual members.
    audit: Option<u64>,
    is_sending_heartbeat: bool,
    is_writing: bool,
    is_listing: bool,
    is_removing_dead: bool,
    /// When to send a heartbeat, and when to write again after a refusal.
    next_heartbeat: u64,
    next_write: u64,
    questions: VecDeque<Question>,
    /// When to ask again after an answer that a slot is migrating.
    next_list: u64,
    /// The members as clients know them.
    view: View,
    is_viewing: bool,
    /// Whether all members of this node are written, and the time from which the lists of other
    /// nodes' members are complete.
    is_rewritten: bool,
    view_from: u64,
}

impl PresenceState {
    /// Records that the connections were lost, after `follows` subscriptions.
    pub(super) fn broken(&mut self, follows: u64) {
        self.view.restart(follows);
        self.round += 1;
        (self.is_synced, self.scripts, self.next_heartbeat) = (false, None, 0);
        self.lives_since = None;
        (self.is_sending_heartbeat, self.is_writing) = (false, false);
        (self.is_listing, self.is_removing_dead, self.is_viewing) = (false, false, false);
    }

    /// Returns the identity of the server's data; empty before the first heartbeat.
    pub(super) fn data(&self) -> String {
        self.epoch.clone()
    }

    /// Records that a channel is no longer followed.
    pub(super) fn unfollowed(&mut self, channel: &str) {
        self.view.forget(channel);
    }

    /// Returns when a heartbeat is due.
    pub(super) fn next_heartbeat(&self) -> Option<u64> {
        (!self.is_sending_heartbeat).then_some(self.next_heartbeat)
    }

    /// Returns when questions are asked again.
    pub(super) fn next_list(&self) -> Option<u64> {
        (!self.questions.is_empty()).then_some(self.next_list)
    }

    /// Returns whether the broker knows all members, and no heartbeat is in flight: a late
    /// heartbeat would register an unregistered node again.
    pub(super) fn is_settled(&self) -> bool {
        !self.is_sending_heartbeat && self.roster.is_settled()
    }

    fn forget_scripts(&mut self) {
        (self.scripts, self.is_synced, self.next_heartbeat) = (None, false, 0);
    }
}

impl Bus {
    /// Records that a client has joined a channel with presence. `announces`: members get joins and
    /// leaves.
    pub fn enter(&self, channel: Arc<str>, client: u64, info: Arc<str>, announces: bool) {
        let part = self.part_of(&channel);
        self.send_presence(part, PresenceInput::Join { channel, client, info, announces });
    }

    /// Records that a client has left a channel with presence.
    pub fn exit(&self, channel: Arc<str>, client: u64) {
        self.send_presence(self.part_of(&channel), PresenceInput::Leave { channel, client });
    }

    /// Records that the members of a followed channel get joins and leaves. After a lost
    /// connection, [`Members::presence`](super::super::Members::presence) reports the joins and
    /// leaves that they missed.
    pub fn watch(&self, channel: Arc<str>) {
        self.send_presence(self.part_of(&channel), PresenceInput::Watch(channel));
    }

    /// Lists up to `most` members of a channel on other nodes, but at most 10,000 members and one
    /// mebibyte. Changes that are not in the answer are passed to
    /// [`Members::presence`](super::super::Members::presence) afterwards, if the channel is
    /// followed.
    pub fn presence(&self, channel: Arc<str>, most: usize) -> Reply<Listed> {
        let most = most.min(MAX_LISTED);
        let (reply, waiting) = Waiting::begin(&self.asks);
        if let Some(waiting) = waiting {
            let part = self.part_of(&channel);
            let question = Question { channel, most, waiting, due: 0, after: 0 };
            self.send_presence(part, PresenceInput::Ask(question));
        }
        reply
    }

    fn send_presence(&self, part: u16, event: PresenceInput) {
        let _ = self.events.send(part, node::NodeEvent::Presence(event));
    }
}

/// Sends the first heartbeat, for which the node needs all rights.
pub(super) async fn begin(link: &Link, names: &Names, rules: u64) -> Result<(), StartError> {
    let mut commands = link.commands.clone();
    let begun = async {
        let scripts = Scripts::load(&mut commands, names).await?;
        calls::send_heartbeat(&mut commands, &scripts, names, (names.node, rules)).await
    };
    begun.await.map(drop).map_err(|error| explain(&link.shown, &error))
}

impl Node {
    pub(super) fn on_presence(&mut self, event: PresenceInput) {
        let current = self.link.generation;
        self.presence.roster.follow(self.follows.asked);
        match event {
            PresenceInput::Watch(channel) => self.presence.view.watch(&channel, self.follows.asked),
            PresenceInput::Join { channel, client, info, announces } => {
                self.presence.roster.join(&channel, client, info, announces);
            }
            PresenceInput::Leave { channel, client } => {
                self.presence.roster.leave(&channel, client)
            }
            PresenceInput::Ask(mut question) => {
                question.due = self.clock.now() + LIMIT.as_millis() as u64;
                question.after = self.follows.asked;
                self.presence.questions.push_back(question);
            }
            PresenceInput::HeartbeatDone(generation, done) if generation == current => {
                self.on_heartbeat(done)
            }
            PresenceInput::Written(generation, round, updates, done) if generation == current => {
                self.written(round, &updates, done);
            }
            PresenceInput::Listed(generation, questions, done) if generation == current => {
                self.listed(questions, done);
            }
            PresenceInput::Viewed(generation, channels, done) if generation == current => {
                self.viewed(&channels, done);
            }
            PresenceInput::Audited(generation, done) if generation == current => self.audited(done),
            PresenceInput::DeadRemoved(generation, done) if generation == current => {
                self.presence.is_removing_dead = false;
                if let Err(error) = done {
                    self.failed(&error);
                }
            }
            // Events of replaced connections.
            _ => {}
        }
    }

    /// Handles an error. If the connection has failed, the whole node reconnects.
    pub(in crate::redis) fn failed(&mut self, error: &RedisError) {
        if calls::is_forgotten(error) {
            self.presence.forget_scripts();
        } else if is_fatal(error) {
            self.broken_by(error);
        } else {
            self.own.counters().failed_presence.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn on_heartbeat(&mut self, done: Result<(Scripts, Heartbeat), RedisError>) {
        let now = self.clock.now();
        let state = &mut self.presence;
        (state.is_sending_heartbeat, state.next_heartbeat) = (false, now + AGAIN);
        let (scripts, Heartbeat { has_lived, epoch, rest, dead, differing }) = match done {
            Ok(done) => done,
            Err(error) => {
                // The heartbeat's keys belong to no channel: without a right to them, no channel
                // has one.
                if is_for_now(&error) || lacks_right(&error) {
                    self.fallen_behind(&error.to_string());
                }
                return self.failed(&error);
            }
        };
        self.own.status.set_differing(self.own.part, differing);
        self.own.status.set_behind(self.own.part, None);
        if !has_lived {
            state.lives_since = None;
        }
        let removes_dead_from = *state.lives_since.get_or_insert(now) + LIFE;
        let is_other = state.epoch != epoch;
        if !state.is_synced || !has_lived || is_other {
            let is_lost = is_other && !state.epoch.is_empty();
            state.audit = (!state.epoch.is_empty()).then_some(now);
            state.round += 1;
            (state.is_writing, state.is_rewritten) = (false, false);
            state.roster.restart(is_lost);
            if is_lost {
                // Other nodes get time to return and write their members again.
                state.view_from = now + LIFE;
                state.view.restart(self.follows.asked);
            }
        }
        (state.is_synced, state.epoch) = (true, epoch);
        // Shortly after another node may have died.
        state.next_heartbeat = now + HEARTBEAT_INTERVAL.min(rest + 20);
        state.scripts = Some(scripts.clone());
        if dead.is_empty() || state.is_removing_dead {
            return;
        }
        if now < removes_dead_from {
            state.next_heartbeat = state.next_heartbeat.min(removes_dead_from);
        } else {
            self.remove_dead(scripts, dead);
        }
    }

    fn remove_dead(&mut self, scripts: Scripts, dead: Vec<String>) {
        let Some(link) = &self.link.open else { return };
        self.presence.is_removing_dead = true;
        let (mut connection, names) = (link.commands.clone(), self.target.names.clone());
        let generation = self.link.generation;
        self.start(async move {
            let done = calls::remove_dead(&mut connection, &scripts, &names, &dead).await;
            node::NodeEvent::Presence(PresenceInput::DeadRemoved(generation, done))
        });
    }

    fn written(
        &mut self,
        round: u64,
        updates: &[Update],
        done: Result<Vec<Result<Value, RedisError>>, RedisError>,
    ) {
        if round != self.presence.round {
            return;
        }
        self.presence.is_writing = false;
        let results = match done {
            Ok(results) => results,
            Err(error) => return self.broken_by(&error),
        };
        for (update, result) in updates.iter().zip(results) {
            let Err(error) = result else {
                self.presence.roster.acknowledge(update);
                continue;
            };
            self.presence.roster.refuse(update);
            self.presence.next_write = self.clock.now() + AGAIN;
            self.failed(&error);
        }
    }

    fn audited(&mut self, done: Result<Vec<Found>, RedisError>) {
        match done {
            Ok(found) => {
                let roster = &mut self.presence.roster;
                for Found { channel, client, announces } in &found {
                    roster.found(channel, *client, *announces);
                }
            }
            Err(error) => {
                self.presence.audit = Some(self.clock.now() + AGAIN);
                self.failed(&error);
            }
        }
    }

    fn listed(
        &mut self,
        questions: Vec<Question>,
        done: Result<Vec<Result<PresenceListing, RedisError>>, RedisError>,
    ) {
        self.presence.is_listing = false;
        match done {
            Ok(answers) => {
                let mut again = Vec::new();
                for (question, answer) in questions.into_iter().zip(answers) {
                    // `ASK` is not followed: the other master does not know the scripts, and the
                    // keys that a script finds by name may be at either.
                    if answer.as_ref().is_err_and(is_read_on_the_way) {
                        again.push(question);
                        continue;
                    }
                    if let Err(error) = &answer {
                        self.failed(error);
                    }
                    let answer = answer.map(|answer| answer.listed);
                    question.answer(answer.map_err(|error| AskError::Failed(error.to_string())));
                }
                if !again.is_empty() {
                    self.presence.next_list = self.clock.now() + MOVING_AGAIN;
                }
                again.into_iter().rev().for_each(|one| self.presence.questions.push_front(one));
            }
            Err(error) => self.broken_by(&error),
        }
    }

    /// Delivers a join or leave to the channel's members; returns false for any other message.
    pub(super) fn take_announcement(&mut self, channel: &str, bytes: &[u8]) -> bool {
        let Ok(announcement) = Announcement::decode(bytes) else { return false };
        let is_followed = self.channels.contains_key(channel);
        if is_followed && self.presence.view.announce(channel, &announcement) {
            self.members.borrow_mut().presence(channel, announcement);
        }
        true
    }

    /// Sends a heartbeat, and ends questions, when they are due.
    pub(super) fn on_presence_time(&mut self, now: u64) {
        let questions = &mut self.presence.questions;
        while questions.front().is_some_and(|question| question.due <= now) {
            questions.pop_front();
        }
        let state = &mut self.presence;
        if state.is_sending_heartbeat || now < state.next_heartbeat {
            return;
        }
        let Some(link) = &self.link.open else { return };
        state.is_sending_heartbeat = true;
        let (mut connection, names) = (link.commands.clone(), self.target.names.clone());
        let (scripts, generation) = (state.scripts.clone(), self.link.generation);
        let fresh = (self.clock.draw(), self.members.borrow().rules());
        self.start(async move {
            let done = async {
                let scripts = match scripts {
                    Some(scripts) => scripts,
                    None => Scripts::load(&mut connection, &names).await?,
                };
                let heartbeat =
                    calls::send_heartbeat(&mut connection, &scripts, &names, fresh).await?;
                Ok((scripts, heartbeat))
            };
            node::NodeEvent::Presence(PresenceInput::HeartbeatDone(generation, done.await))
        });
    }

    /// Sends all waiting presence commands.
    pub(super) fn send_presence(&mut self, link: &Link) {
        let now = self.clock.now();
        let state = &mut self.presence;
        let has_updates = state.audit.is_some() || state.roster.has_changes();
        let may_write = has_updates && state.is_synced && !state.is_writing;
        let may_list = !state.is_listing && state.next_list().is_some_and(|at| at <= now);
        state.is_rewritten |= state.is_synced && !state.is_writing && state.roster.is_rewritten();
        let may_view = state.may_view();
        // Also runs for each round of publications, so it returns early.
        if !may_write && !may_list && !may_view {
            return;
        }
        let Some(scripts) = state.scripts.clone() else { return };
        if may_write {
            self.send_updates(link, &scripts);
        }
        if may_view {
            self.send_view_questions(link, &scripts);
        }
        if may_list {
            self.send_list_questions(link, scripts);
        }
    }

    fn send_updates(&mut self, link: &Link, scripts: &Scripts) {
        let (now, taken) = (self.clock.now(), self.follows.taken);
        let state = &mut self.presence;
        if now < state.next_write {
            return;
        }
        let (mut updates, mut bytes) = (Vec::new(), 0);
        while updates.len() < PIPELINE
            && bytes < PIPELINE_BYTES
            && let Some(update) = state.roster.next_update(taken)
        {
            bytes += update.info.len();
            updates.push(update);
        }
        let (mut connection, names) = (link.commands.clone(), self.target.names.clone());
        let generation = self.link.generation;
        if !updates.is_empty() {
            state.is_writing = true;
            let (round, scripts, epoch) = (state.round, scripts.clone(), state.epoch.clone());
            self.start(async move {
                let done = calls::write(&mut connection, &scripts, &names, &epoch, &updates).await;
                node::NodeEvent::Presence(PresenceInput::Written(generation, round, updates, done))
            });
        } else if state.audit.is_some_and(|at| at <= now) && state.roster.is_settled() {
            state.audit = None;
            self.start(async move {
                let done = calls::audit(&mut connection, &names).await;
                node::NodeEvent::Presence(PresenceInput::Audited(generation, done))
            });
        }
    }

    fn send_list_questions(&mut self, link: &Link, scripts: Scripts) {
        let taken = self.follows.taken;
        let state = &mut self.presence;
        // Members must get the changes that follow the answer, so the subscriptions to their
        // channels come first.
        let may_go = |question: &&Question| question.after <= taken;
        let count = state.questions.iter().take(QUESTIONS).take_while(may_go).count();
        let questions: Vec<_> = state.questions.drain(..count).collect();
        if questions.is_empty() {
            return;
        }
        state.is_listing = true;
        let (mut connection, names) = (link.commands.clone(), self.target.names.clone());
        let generation = self.link.generation;
        self.start(async move {
            let asked: Vec<_> = questions.iter().map(Question::asked).collect();
            let except = Some(names.node);
            let done = calls::list(&mut connection, &scripts, &names, except, &asked).await;
            node::NodeEvent::Presence(PresenceInput::Listed(generation, questions, done))
        });
    }

    /// Announces to the other nodes that this node ends, if it has no members left.
    pub(super) async fn take_leave(&self) {
        if let Some(link) = &self.link.open
            && self.presence.roster.is_empty()
        {
            let mut connection = link.commands.clone();
            let unregister = calls::unregister(&mut connection, &self.target.names);
            let _ = tokio::time::timeout(UNREGISTER, unregister).await;
        }
    }
}
