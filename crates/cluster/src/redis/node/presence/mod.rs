//! Presence in channels on all nodes: each node writes its own members, reads those of others, and
//! removes those of nodes that have died.
//!
//! Once in three seconds a node sends a heartbeat, which says that it lives for ten. A node that
//! finds another one dead removes it: a script removes its members and publishes their leaves at
//! once, so that no member has two. A node that was taken for dead finds so at its next heartbeat,
//! and writes its members again: those that were removed join. While the broker was away no node
//! could send a heartbeat: each one removes others only when it has lived for ten seconds itself.

mod calls;
mod question;
mod repair;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{RedisError, Value};

use super::super::calls::{is_fatal, is_for_now, is_read_on_the_way};
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
use calls::{Answer, Found, Heartbeat, LIFE, Scripts};

use question::Question;
pub use question::{Listed, RemoteMember};

/// Time between two signs of life, and until something is tried again.
const HEARTBEAT_INTERVAL: u64 = 3_000;
const AGAIN: u64 = 1_000;

/// Time until members are listed again whose slot is on its way to another master: the few keys of
/// a channel move within that.
const MOVING_AGAIN: u64 = 50;

/// Most updates in a pipeline, and bytes of their information.
const PIPELINE: usize = 256;
const PIPELINE_BYTES: usize = 1 << 20;

/// Questions in one pipeline: with the bytes of one answer, the bound of what a node reads at once.
const QUESTIONS: usize = 16;

/// Time for which a node that ends waits for the end of its registration.
const UNREGISTER: Duration = Duration::from_millis(500);

/// Most members that a question lists.
pub(super) const MAX_LISTED: usize = 10_000;

/// Something that concerns presence; with the generation of the connection it came by.
#[derive(Debug)]
pub(crate) enum Event {
    Join { channel: Arc<str>, client: u64, info: Arc<str>, announces: bool },
    Leave { channel: Arc<str>, client: u64 },
    Watch(Arc<str>),
    Ask(Question),
    HeartbeatDone(u64, Result<(Scripts, Heartbeat), RedisError>),
    Written(u64, u64, Vec<Update>, Result<Vec<Result<Value, RedisError>>, RedisError>),
    Listed(u64, Vec<Question>, Result<Vec<Result<Answer, RedisError>>, RedisError>),
    Viewed(u64, Vec<Arc<str>>, Result<Vec<Result<Answer, RedisError>>, RedisError>),
    Audited(u64, Result<Vec<Found>, RedisError>),
    DeadRemoved(u64, Result<(), RedisError>),
}

/// A node's part of presence.
#[derive(Debug, Default)]
pub(super) struct State {
    roster: Roster,
    /// Scripts of the server in use.
    scripts: Option<Scripts>,
    /// Number of the server's data; empty before the first sign of life.
    epoch: String,
    /// Whether this node has shown a sign of life by this connection, and may write.
    is_synced: bool,
    /// Since when it has lived without a break, by this connection.
    lives_since: Option<u64>,
    /// Number of times that everything was written again.
    round: u64,
    /// When to compare the server's members of this node with those it has.
    audit: Option<u64>,
    is_sending_heartbeat: bool,
    is_writing: bool,
    is_listing: bool,
    is_removing_dead: bool,
    /// When to send a heartbeat, and when to write again, after what the server refused.
    next_heartbeat: u64,
    next_write: u64,
    questions: VecDeque<Question>,
    /// When to ask again, after questions about a slot that is on its way to another master.
    next_list: u64,
    /// The members as clients know them.
    view: View,
    is_viewing: bool,
    /// Whether all members of this node are written, and from when on those of others are.
    is_rewritten: bool,
    view_from: u64,
}

impl State {
    /// Notes that the connections were lost, after so many subscriptions.
    pub(super) fn broken(&mut self, follows: u64) {
        self.view.restart(follows);
        self.round += 1;
        (self.is_synced, self.scripts, self.next_heartbeat) = (false, None, 0);
        self.lives_since = None;
        (self.is_sending_heartbeat, self.is_writing) = (false, false);
        (self.is_listing, self.is_removing_dead, self.is_viewing) = (false, false, false);
    }

    /// Returns the number of the server's data; empty before the first sign of life.
    pub(super) fn data(&self) -> String {
        self.epoch.clone()
    }

    /// Notes that a channel is not followed any more.
    pub(super) fn unfollowed(&mut self, channel: &str) {
        self.view.forget(channel);
    }

    /// Returns when a sign of life is due.
    pub(super) fn next_heartbeat(&self) -> Option<u64> {
        (!self.is_sending_heartbeat).then_some(self.next_heartbeat)
    }

    /// Returns when questions are asked again.
    pub(super) fn next_list(&self) -> Option<u64> {
        (!self.questions.is_empty()).then_some(self.next_list)
    }

    /// Returns whether the broker knows all members, and no heartbeat is in flight: after the node
    /// has left it would register the node again.
    pub(super) fn is_settled(&self) -> bool {
        !self.is_sending_heartbeat && self.roster.is_settled()
    }

    fn forget_scripts(&mut self) {
        (self.scripts, self.is_synced, self.next_heartbeat) = (None, false, 0);
    }
}

impl Bus {
    /// Notes that a client has joined a channel with presence; `announces`: members get joins and
    /// leaves.
    pub fn enter(&self, channel: Arc<str>, client: u64, info: Arc<str>, announces: bool) {
        let part = self.part_of(&channel);
        self.send_presence(part, Event::Join { channel, client, info, announces });
    }

    /// Notes that a client has left a channel with presence.
    pub fn exit(&self, channel: Arc<str>, client: u64) {
        self.send_presence(self.part_of(&channel), Event::Leave { channel, client });
    }

    /// Notes that the members of a channel that is followed get joins and leaves: after the
    /// connection was lost, [`Members::presence`](super::super::Members::presence) has those that
    /// were missed.
    pub fn watch(&self, channel: Arc<str>) {
        self.send_presence(self.part_of(&channel), Event::Watch(channel));
    }

    /// Lists up to `most` members of a channel on other nodes, 10,000 and a mebibyte at most.
    /// Changes that are not in the answer come to
    /// [`Members::presence`](super::super::Members::presence) after it, if the channel is followed.
    pub fn presence(&self, channel: Arc<str>, most: usize) -> Reply<Listed> {
        let most = most.min(MAX_LISTED);
        let (reply, waiting) = Waiting::begin(&self.asks);
        if let Some(waiting) = waiting {
            let part = self.part_of(&channel);
            let question = Question { channel, most, waiting, due: 0, after: 0 };
            self.send_presence(part, Event::Ask(question));
        }
        reply
    }

    fn send_presence(&self, part: u16, event: Event) {
        let _ = self.events.send(part, node::Event::Presence(event));
    }
}

/// Shows the first sign of life, for which the node must have all rights.
pub(super) async fn begin(link: &Link, names: &Names, rules: u64) -> Result<(), StartError> {
    let mut commands = link.commands.clone();
    let begun = async {
        let scripts = Scripts::load(&mut commands, names).await?;
        calls::send_heartbeat(&mut commands, &scripts, names, (names.node, rules)).await
    };
    begun.await.map(drop).map_err(|error| explain(&link.shown, &error))
}

impl Node {
    pub(super) fn on_presence(&mut self, event: Event) {
        let current = self.generation;
        self.presence.roster.follow(self.follows);
        match event {
            Event::Watch(channel) => self.presence.view.watch(&channel, self.follows),
            Event::Join { channel, client, info, announces } => {
                self.presence.roster.join(&channel, client, info, announces);
            }
            Event::Leave { channel, client } => self.presence.roster.leave(&channel, client),
            Event::Ask(mut question) => {
                question.due = self.now() + LIMIT.as_millis() as u64;
                question.after = self.follows;
                self.presence.questions.push_back(question);
            }
            Event::HeartbeatDone(generation, done) if generation == current => {
                self.on_heartbeat(done)
            }
            Event::Written(generation, round, updates, done) if generation == current => {
                self.written(round, &updates, done);
            }
            Event::Listed(generation, questions, done) if generation == current => {
                self.listed(questions, done);
            }
            Event::Viewed(generation, channels, done) if generation == current => {
                self.viewed(&channels, done);
            }
            Event::Audited(generation, done) if generation == current => self.audited(done),
            Event::DeadRemoved(generation, done) if generation == current => {
                self.presence.is_removing_dead = false;
                if let Err(error) = done {
                    self.failed(&error);
                }
            }
            // Of connections that were replaced.
            _ => {}
        }
    }

    /// Handles an error: that of a connection is one of the node.
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
        let now = self.now();
        let state = &mut self.presence;
        (state.is_sending_heartbeat, state.next_heartbeat) = (false, now + AGAIN);
        let (scripts, Heartbeat { has_lived, epoch, rest, dead, differing }) = match done {
            Ok(done) => done,
            Err(error) => {
                if is_for_now(&error) {
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
                // Others have the time to come back, and to write their members.
                state.view_from = now + LIFE;
                state.view.restart(self.follows);
            }
        }
        (state.is_synced, state.epoch) = (true, epoch);
        // Just after another node may have died.
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
        let Some(link) = &self.link else { return };
        self.presence.is_removing_dead = true;
        let (mut connection, names) = (link.commands.clone(), self.target.names.clone());
        let generation = self.generation;
        self.start(async move {
            let done = calls::remove_dead(&mut connection, &scripts, &names, &dead).await;
            node::Event::Presence(Event::DeadRemoved(generation, done))
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
            self.presence.next_write = self.now() + AGAIN;
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
                self.presence.audit = Some(self.now() + AGAIN);
                self.failed(&error);
            }
        }
    }

    fn listed(
        &mut self,
        questions: Vec<Question>,
        done: Result<Vec<Result<Answer, RedisError>>, RedisError>,
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
                    self.presence.next_list = self.now() + MOVING_AGAIN;
                }
                again.into_iter().rev().for_each(|one| self.presence.questions.push_front(one));
            }
            Err(error) => self.broken_by(&error),
        }
    }

    /// Gives a join or leave to the members of its channel; returns false if it is none.
    pub(super) fn take_announcement(&mut self, channel: &str, bytes: &[u8]) -> bool {
        let Ok(announcement) = Announcement::decode(bytes) else { return false };
        let is_followed = self.channels.contains_key(channel);
        if is_followed && self.presence.view.announce(channel, &announcement) {
            self.members.borrow_mut().presence(channel, announcement);
        }
        true
    }

    /// Shows a sign of life, and gives up questions, when it is time.
    pub(super) fn on_presence_time(&mut self, now: u64) {
        let questions = &mut self.presence.questions;
        while questions.front().is_some_and(|question| question.due <= now) {
            questions.pop_front();
        }
        let state = &mut self.presence;
        if state.is_sending_heartbeat || now < state.next_heartbeat {
            return;
        }
        let Some(link) = &self.link else { return };
        state.is_sending_heartbeat = true;
        let (mut connection, names) = (link.commands.clone(), self.target.names.clone());
        let (scripts, generation) = (state.scripts.clone(), self.generation);
        let fresh = (self.draw(), self.members.borrow().rules());
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
            node::Event::Presence(Event::HeartbeatDone(generation, done.await))
        });
    }

    /// Sends what is waiting.
    pub(super) fn send_presence(&mut self, link: &Link) {
        let now = self.now();
        let state = &mut self.presence;
        let has_updates = state.audit.is_some() || state.roster.has_changes();
        let may_write = has_updates && state.is_synced && !state.is_writing;
        let may_list = !state.is_listing && state.next_list().is_some_and(|at| at <= now);
        state.is_rewritten |= state.is_synced && !state.is_writing && state.roster.is_rewritten();
        let may_view = state.may_view();
        // This is called for each turn of publications, too.
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
        let (now, taken) = (self.now(), self.follows_taken);
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
        let generation = self.generation;
        if !updates.is_empty() {
            state.is_writing = true;
            let (round, scripts, epoch) = (state.round, scripts.clone(), state.epoch.clone());
            self.start(async move {
                let done = calls::write(&mut connection, &scripts, &names, &epoch, &updates).await;
                node::Event::Presence(Event::Written(generation, round, updates, done))
            });
        } else if state.audit.is_some_and(|at| at <= now) && state.roster.is_settled() {
            state.audit = None;
            self.start(async move {
                let done = calls::audit(&mut connection, &names).await;
                node::Event::Presence(Event::Audited(generation, done))
            });
        }
    }

    fn send_list_questions(&mut self, link: &Link, scripts: Scripts) {
        let taken = self.follows_taken;
        let state = &mut self.presence;
        // Members get what changes after the answer: their channels come first.
        let may_go = |question: &&Question| question.after <= taken;
        let count = state.questions.iter().take(QUESTIONS).take_while(may_go).count();
        let questions: Vec<_> = state.questions.drain(..count).collect();
        if questions.is_empty() {
            return;
        }
        state.is_listing = true;
        let (mut connection, names) = (link.commands.clone(), self.target.names.clone());
        let generation = self.generation;
        self.start(async move {
            let asked: Vec<_> = questions.iter().map(Question::asked).collect();
            let except = Some(names.node);
            let done = calls::list(&mut connection, &scripts, &names, except, &asked).await;
            node::Event::Presence(Event::Listed(generation, questions, done))
        });
    }

    /// Takes leave of the other nodes, if no member is left.
    pub(super) async fn take_leave(&self) {
        if let Some(link) = &self.link
            && self.presence.roster.is_empty()
        {
            let mut connection = link.commands.clone();
            let unregister = calls::unregister(&mut connection, &self.target.names);
            let _ = tokio::time::timeout(UNREGISTER, unregister).await;
        }
    }
}
