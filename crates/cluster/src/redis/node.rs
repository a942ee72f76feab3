//! The events of a node's part, handled one after the other on the node's thread.

mod connect;
mod send;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::calls::{self, Answered, Outcome, Question, Tagged};
use super::link::{Connection, LIMIT, Link, Target};
use super::pool::{Pool, Reserved};
use super::status::{Counters, Status};
use super::{Keep, Members, Outgoing, STOP_LIMIT, StartError, control, presence, survey, task};
use crate::{Action, Budget, Interest, Outbox, Pending, Sequencer, WhileDown, decode, split_place};

/// Time for which publications wait while the broker is away.
const MAX_WAIT: u64 = 5_000;

/// Time for which a channel without members is followed further.
const LINGER: u64 = 5_000;

/// Time without a publication after which delivery is probed, and time after which it is in any
/// case: what is delivered may come from another server than the one that is published to.
const PROBE_AFTER: u64 = 5_000;
const PROBE_EVERY: u64 = 8_000;

/// Time after which the broker is asked whether a silent channel is where the node believes it is.
const CHECK_AFTER: u64 = 40_000;

/// Most events that are handled before what follows from them is sent.
const EVENTS: usize = 1_024;

/// Time after which the broker is asked again what it could not answer.
const ASK_AGAIN: u64 = 1_000;

/// Time after which publications are sent again that the broker has refused for now.
const PUBLISH_AGAIN: u64 = 250;

/// That time while a slot is on its way to another master, at first, and the time after which
/// publications wait for it no longer than for a broker that is away.
const MOVING_AGAIN: u64 = 20;
const MAX_MOVING: u64 = 30_000;

/// Time after which a partition that is to connect to another master is not up.
const MAX_UNLINKED: u64 = 1_000;

/// Memory of a publication besides its name and its bytes.
const OVERHEAD: usize = 128;

/// A channel whose publications make their task panic.
#[cfg(test)]
pub(super) const PANICS: &str = "panics";

/// Returns the memory of a publication.
pub(super) fn cost_of(outgoing: &Outgoing) -> usize {
    outgoing.channel.len() + outgoing.envelope.len() + OVERHEAD
}

/// Something that a node reacts to. Numbers are those of the connections it is about.
#[derive(Debug)]
pub(super) enum Event {
    Follow(Arc<str>, Option<Keep>),
    Unfollow(Arc<str>),
    Check(Arc<str>),
    Fetch(Arc<str>),
    Publish(Outgoing, Reserved),
    /// The channel is closed when the node has ended.
    Stop(mpsc::Sender<()>),
    Linked(u64, Result<Link, StartError>),
    Push(u64, PushInfo),
    Lost(u64),
    Switched(u64),
    Subscribed(u64, Result<(), RedisError>),
    Published(u64, Result<Vec<Outcome>, RedisError>),
    Answered(u64, Vec<Question>, Result<Vec<Answered>, RedisError>),
    Probed(u64, Result<(), RedisError>),
    Panicked(u64),
    /// The first one of a partition that is used from the start.
    Begin,
    Presence(presence::Event),
    Control(control::Event),
    Survey(survey::Event),
}

impl Event {
    /// Returns whether it is a command or a question that fails without a connection.
    fn wants_connection(&self) -> bool {
        match self {
            Self::Control(event) => matches!(event, control::Event::Send(..)),
            Self::Survey(event) => {
                matches!(event, survey::Event::Ask(..) | survey::Event::Own(..))
            }
            _ => false,
        }
    }
}

pub(super) struct Channel {
    /// Of a channel with history.
    sequence: Option<(Keep, Sequencer<Vec<u8>>)>,
    /// When something was last known of it.
    heard: u64,
}

/// The ways of a part to the rest of its node.
#[derive(Clone)]
pub(super) struct Own {
    pub(super) part: u16,
    pub(super) events: UnboundedSender<Event>,
    pub(super) status: Arc<Status>,
    pub(super) pool: Arc<Pool>,
}

impl Own {
    pub(super) fn counters(&self) -> &Counters {
        &self.status.counters
    }
}

/// A node's part at one server, or for one partition of a Redis Cluster.
pub(super) struct Node<M> {
    pub(super) target: Target,
    pub(super) own: Own,
    /// Of all parts.
    pub(super) members: Rc<RefCell<M>>,
    pub(super) presence: presence::State,
    pub(super) survey: survey::State,
    interest: Interest,
    pub(super) channels: HashMap<Arc<str>, Channel>,
    outbox: Outbox<Tagged>,
    /// For what the channels hold.
    budget: Budget,
    questions: VecDeque<Question>,
    /// Those that the broker could not answer, with the time to ask again.
    unanswered: VecDeque<(u64, Question)>,
    /// Number of the connections in use.
    pub(super) generation: u64,
    pub(super) link: Option<Link>,
    /// When there was no connection any more.
    left: u64,
    /// The last connection for commands.
    last: Option<Connection>,
    is_linking: bool,
    /// Commands and questions that came while the part was about to connect. Their number is
    /// bounded by that of all questions.
    early: Vec<Event>,
    /// When to connect again, and how often that was tried without success.
    retry: (u64, u32),
    is_subscribing: bool,
    is_publishing: bool,
    /// When to publish again what the broker has refused for now.
    next_publish: u64,
    /// Since when publications find the partition on its way to another master.
    moving_since: Option<u64>,
    is_asking: bool,
    /// Events that said which channels to follow, and how many of them the broker has taken.
    pub(super) follows: u64,
    follows_sent: u64,
    pub(super) follows_taken: u64,
    heard: u64,
    /// When the last probe was sent that has not come back.
    probe: Option<u64>,
    /// When the last one was sent.
    probed: u64,
    checked: u64,
    began: Instant,
    random: RandomState,
    drawn: u64,
    /// Publications so far.
    number: u64,
    actions: Vec<Action<Vec<u8>>>,
    /// When the node ends at the latest, and who waits for it.
    stop: Option<(u64, Vec<mpsc::Sender<()>>)>,
}

impl<M: Members> Node<M> {
    /// Connects for the first time.
    pub(super) async fn connect(&mut self) -> Result<(), StartError> {
        let events = self.own.events.clone();
        let link = self.target.link(self.generation, None, events).await?;
        link.check_rights(&self.target).await?;
        presence::begin(&link, &self.target).await?;
        self.linked(Ok(link));
        Ok(())
    }

    /// Creates one without a connection.
    pub(super) fn new(target: Target, own: Own, members: Rc<RefCell<M>>, budget: Budget) -> Self {
        own.status.set_up(own.part);
        Self {
            target,
            own,
            members,
            presence: presence::State::default(),
            survey: survey::State::default(),
            interest: Interest::default(),
            channels: HashMap::new(),
            outbox: Outbox::new(MAX_WAIT),
            budget,
            questions: VecDeque::new(),
            unanswered: VecDeque::new(),
            generation: 1,
            link: None,
            left: 0,
            last: None,
            is_linking: false,
            early: Vec::new(),
            retry: (0, 0),
            is_subscribing: false,
            is_publishing: false,
            next_publish: 0,
            moving_since: None,
            is_asking: false,
            follows: 0,
            follows_sent: 0,
            follows_taken: 0,
            heard: 0,
            probe: None,
            probed: 0,
            checked: 0,
            began: Instant::now(),
            random: RandomState::new(),
            drawn: 0,
            number: 0,
            actions: Vec::new(),
            stop: None,
        }
    }

    /// Returns the time in milliseconds since the node began. All that a node decides by time it
    /// decides by this clock, which no one sets: the time of day, which machines have different and
    /// which jumps, is only in a figure ([`micros`]). Signs of life and histories expire by the
    /// clock of the server alone.
    pub(super) fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.random.hash_one(self.drawn)
    }

    /// Runs until it is stopped. That of a partition connects from the first event on.
    pub(super) async fn run(mut self, mut events: UnboundedReceiver<Event>) {
        if self.link.is_none() {
            let Some(first) = events.recv().await else { return };
            if matches!(first, Event::Stop(_)) {
                return;
            }
            self.left = self.now();
            self.handle(first);
        }
        loop {
            let next = tokio::time::timeout(self.rest(), events.recv()).await;
            let mut event = match next {
                Ok(Some(event)) => Some(event),
                Ok(None) => return,
                Err(_) => None,
            };
            let mut handled = 0;
            while let Some(taken) = event {
                self.handle(taken);
                handled += 1;
                event = if handled < EVENTS { events.try_recv().ok() } else { None };
            }
            self.on_time();
            self.send();
            if handled == EVENTS {
                // The connections' tasks are on this thread, too.
                tokio::task::yield_now().await;
            } else if self.has_ended() {
                self.take_leave().await;
                return self.count_the_rest();
            }
        }
    }

    /// Returns the time until something is due: at most a second, in which probes and checks are
    /// looked after.
    fn rest(&self) -> Duration {
        let now = self.now();
        let retry = (self.link.is_none() && !self.is_linking).then_some(self.retry.0);
        let down = self.is_about_to_connect().then_some(self.left + MAX_UNLINKED + 1);
        let stop = self.stop.as_ref().map(|(at, _)| *at);
        let publish = Some(self.next_publish).filter(|at| *at > now);
        let beat = self.link.as_ref().and_then(|_| self.presence.next_beat());
        let due = [
            retry,
            down,
            stop,
            beat,
            publish,
            self.presence.next_list().filter(|at| *at > now),
            self.survey.next_due(),
            self.interest.next_expiry(),
            Some(now + 1_000),
        ];
        let next = due.into_iter().flatten().min().unwrap_or(now);
        Duration::from_millis(next.saturating_sub(now).min(1_000))
    }

    pub(super) fn handle(&mut self, event: Event) {
        if event.wants_connection() && self.is_about_to_connect() {
            return self.early.push(event);
        }
        match event {
            Event::Follow(channel, keep) => self.follow(&channel, keep),
            Event::Unfollow(channel) => {
                let spread = self.draw() % LINGER;
                self.interest.leave(&channel, self.now() + LINGER + spread);
            }
            Event::Check(channel) => {
                self.with_sequence(&channel, |sequence, actions| sequence.check(actions));
            }
            Event::Fetch(channel) => {
                self.with_sequence(&channel, |sequence, actions| sequence.fetch(actions));
            }
            Event::Publish(outgoing, reserved) => drop(self.publish(outgoing, reserved)),
            Event::Stop(ended) => {
                let latest = self.now() + STOP_LIMIT.as_millis() as u64;
                self.stop.get_or_insert((latest, Vec::new())).1.push(ended);
            }
            Event::Linked(generation, link) if generation == self.generation => self.linked(link),
            Event::Push(generation, push) if generation == self.generation => self.push(push),
            Event::Lost(generation) if generation == self.generation => {
                self.broken("the connection was closed");
            }
            Event::Switched(generation) if generation == self.generation => {
                self.broken("the sentinels name another master");
            }
            Event::Subscribed(generation, done) if generation == self.generation => {
                self.is_subscribing = false;
                match done {
                    Ok(()) => self.subscribed(self.follows_sent),
                    Err(error) => self.broken_by(&error),
                }
            }
            Event::Published(generation, done) if generation == self.generation => {
                self.is_publishing = false;
                self.published(done);
            }
            Event::Answered(generation, questions, answers) if generation == self.generation => {
                self.is_asking = false;
                self.answered(questions, answers);
            }
            Event::Probed(generation, done) if generation == self.generation => {
                self.check_call(done);
            }
            Event::Panicked(generation) if generation == self.generation => {
                self.broken("a task of the cluster's thread panicked");
            }
            Event::Presence(event) => self.on_presence(event),
            Event::Control(event) => self.on_control(event),
            Event::Survey(event) => self.on_survey(event),
            // That it has come is all.
            Event::Begin => {}
            // Of connections that were replaced.
            _ => {}
        }
    }

    fn follow(&mut self, channel: &Arc<str>, keep: Option<Keep>) {
        self.follows += 1;
        self.interest.enter(channel);
        if self.channels.contains_key(channel) {
            return;
        }
        let budget = self.budget.clone();
        let sequence = keep.map(|keep| (keep, Sequencer::new(self.follows << 32, budget)));
        self.channels.insert(Arc::clone(channel), Channel { sequence, heard: self.now() });
        // It was let go of, but the command for that was not sent: there is none to acknowledge.
        if self.interest.is_subscribed(channel) {
            self.with_sequence(channel, |sequence, actions| sequence.subscribed(actions));
        }
    }

    /// Returns the number of the publication; `None`: only members of this node get it.
    pub(super) fn publish(&mut self, outgoing: Outgoing, reserved: Reserved) -> Option<u64> {
        let bytes = reserved.bytes();
        // One that is about to connect, or on its way to another master, is not down: what is
        // published waits for that, instead of staying on this node.
        let while_down = if self.is_up() { WhileDown::Buffer } else { outgoing.while_down };
        let is_repeatable = outgoing.keep.is_some();
        // Members of this node get what is published after they came: their channels come first.
        self.number += 1;
        let (tag, number) = (self.draw(), self.number);
        let item = Tagged { outgoing, reserved, tag, number, after: self.follows };
        let pending = Pending { item, bytes, since: self.now(), is_repeatable, is_retry: false };
        if let Some(local) = self.outbox.offer(pending, while_down) {
            self.publish_here(local.item);
            return None;
        }
        Some(number)
    }

    /// Gives a publication to members of this node alone.
    fn publish_here(&mut self, Tagged { outgoing, reserved, number, .. }: Tagged) {
        self.survey.forget(number);
        self.members.borrow_mut().publish(&outgoing.channel, &outgoing.envelope);
        self.own.pool.release(reserved);
    }

    /// Returns whether the node was stopped and has nothing more to do.
    fn has_ended(&self) -> bool {
        self.stop.as_ref().is_some_and(|(latest, _)| self.is_done() || self.now() >= *latest)
    }

    /// Returns whether the broker has all that it can have.
    fn is_done(&self) -> bool {
        self.outbox.is_empty() && (self.link.is_none() || self.presence.is_settled())
    }

    fn count_the_rest(mut self) {
        let unknown = self.outbox.broken(self.now());
        self.count(&unknown, |counters| &counters.unknown);
        let refused = self.outbox.expire(u64::MAX);
        self.count(&refused, |counters| &counters.refused);
    }

    /// Counts publications that have an outcome, and frees their memory.
    fn count(&mut self, done: &[Pending<Tagged>], outcome: fn(&Counters) -> &AtomicU64) {
        outcome(self.own.counters()).fetch_add(done.len() as u64, Ordering::Relaxed);
        if self.awaits_receivers() {
            let numbers: Vec<_> = done.iter().map(|one| (one.item.number, false)).collect();
            self.count_receivers(&numbers);
        }
        done.iter().for_each(|pending| self.own.pool.release(pending.item.reserved));
    }

    /// Notes that the broker has taken what the first `follows` events asked for.
    fn subscribed(&mut self, follows: u64) {
        self.follows_taken = follows;
        self.outbox.connected();
        self.settle();
    }

    fn push(&mut self, PushInfo { kind, data }: PushInfo) {
        self.heard = self.now();
        let mut data = data.into_iter();
        let Some(Value::BulkString(name)) = data.next() else {
            if kind == PushKind::Disconnection {
                self.broken("the connection was closed");
            }
            return;
        };
        let Ok(name) = String::from_utf8(name) else { return };
        match (kind, data.next()) {
            (PushKind::Subscribe | PushKind::SSubscribe, _) => self.acknowledged(&name),
            (PushKind::Message | PushKind::SMessage, Some(Value::BulkString(bytes))) => {
                self.message(&name, bytes);
            }
            // No command asks for that.
            (PushKind::SUnsubscribe, _) if name == self.target.probe(self.generation) => {
                self.moved("its slot was moved");
            }
            _ => {}
        }
    }

    fn acknowledged(&mut self, name: &str) {
        let Some(channel) = self.target.channel_of(name) else { return };
        if self.interest.acknowledge(channel)
            && let Some((channel, _)) = self.channels.get_key_value(channel)
        {
            let channel = Arc::clone(channel);
            self.with_sequence(&channel, |sequence, actions| sequence.subscribed(actions));
        }
    }

    fn message(&mut self, name: &str, mut bytes: Vec<u8>) {
        let Some(channel) = self.target.channel_of(name) else {
            if name == self.target.probe(self.generation) {
                self.probe_came();
            } else {
                self.take_control(name, &bytes);
            }
            return;
        };
        let counters = self.own.counters();
        counters.received.fetch_add(1, Ordering::Relaxed);
        let (place, start) = match split_place(&bytes) {
            Ok((place, rest)) => (place, bytes.len() - rest.len()),
            Err(_) => (None, 0),
        };
        match decode(&bytes) {
            Ok((_, envelope)) => {
                let lag = micros().saturating_sub(envelope.published);
                counters.lag_micros.store(lag, Ordering::Relaxed);
            }
            Err(_) if self.take_announcement(channel, &bytes) => return,
            Err(_) => {
                self.own.counters().malformed.fetch_add(1, Ordering::Relaxed);
                // One of a later release has its place: its members learn that they miss it.
                if place.is_none() {
                    return;
                }
            }
        }
        let Some((channel, _)) = self.channels.get_key_value(channel) else { return };
        let channel = Arc::clone(channel);
        match place {
            None => self.members.borrow_mut().publish(&channel, &bytes),
            Some(place) => {
                bytes.drain(..start);
                let length = bytes.len();
                self.with_sequence(&channel, |sequence, actions| {
                    sequence.publication(place, (bytes, length), actions);
                });
            }
        }
    }

    /// Gives an event to a channel's sequence, and takes the steps that follow.
    fn with_sequence(
        &mut self,
        name: &Arc<str>,
        event: impl FnOnce(&mut Sequencer<Vec<u8>>, &mut Vec<Action<Vec<u8>>>),
    ) {
        let now = self.now();
        let mut actions = std::mem::take(&mut self.actions);
        let Some(channel) = self.channels.get_mut(name) else { return };
        channel.heard = now;
        let Some((keep, sequence)) = &mut channel.sequence else { return };
        let keep = *keep;
        event(sequence, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Ask { number, after } => {
                    let (channel, epoch) = (Arc::clone(name), self.draw());
                    let question =
                        Question { channel, keep, number, after, epoch, was_late: false };
                    self.questions.push_back(question);
                }
                Action::Begin { place, entries, is_loss } => {
                    if is_loss {
                        self.own.counters().lost.fetch_add(1, Ordering::Relaxed);
                    }
                    self.members.borrow_mut().begin(name, place, entries, is_loss);
                }
                Action::Deliver { place, publication } => {
                    self.members.borrow_mut().deliver(name, place, &publication);
                }
                Action::Refill { place, entries } => {
                    self.members.borrow_mut().refill(name, place, entries)
                }
                Action::Live => self.members.borrow_mut().live(name),
            }
        }
        self.actions = actions;
    }

    fn answered(&mut self, questions: Vec<Question>, answers: Result<Vec<Answered>, RedisError>) {
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) if error.is_timeout() => return self.answered_too_late(questions),
            Err(error) => return self.broken_by(&error),
        };
        for (question, answer) in questions.into_iter().zip(answers) {
            match answer {
                Ok(Some(answer)) => {
                    if question.after.is_some() && answer.continues && !answer.entries.is_empty() {
                        self.own.counters().filled.fetch_add(1, Ordering::Relaxed);
                    }
                    self.with_sequence(&question.channel, |sequence, actions| {
                        sequence.answer(question.number, answer, actions);
                    });
                }
                Err(error) if calls::is_fatal(&error) => return self.broken_by(&error),
                // The channel's own fault, or that of a disk: others go on.
                Ok(None) | Err(_) => {
                    self.own.counters().failed_reads.fetch_add(1, Ordering::Relaxed);
                    self.unanswered.push_back((self.now() + ASK_AGAIN, question));
                }
            }
        }
    }

    /// Puts questions off whose answers take too long, which may be the fault of one channel. If it
    /// is that of the connection, a probe does not come back.
    fn answered_too_late(&mut self, questions: Vec<Question>) {
        let count = questions.len() as u64;
        self.own.counters().failed_reads.fetch_add(count, Ordering::Relaxed);
        let due = self.now() + ASK_AGAIN;
        let late = questions.into_iter().map(|question| Question { was_late: true, ..question });
        self.unanswered.extend(late.map(|question| (due, question)));
        if self.probe.is_none() {
            self.send_probe();
        }
    }

    fn awaits(&self, Question { channel, number, .. }: &Question) -> bool {
        let sequence = self.channels.get(channel).and_then(|channel| channel.sequence.as_ref());
        sequence.is_some_and(|(_, sequence)| sequence.awaits(*number))
    }

    fn published(&mut self, done: Result<Vec<Outcome>, RedisError>) {
        let outcomes = match done {
            Ok(outcomes) => outcomes,
            Err(error) => return self.broken_by(&error),
        };
        let status = Arc::clone(&self.own.status);
        let counters = &status.counters;
        let (mut again, mut refused, mut moving, mut fatal) = (Vec::new(), 0, 0, None);
        let (counts, mut done) = (self.awaits_receivers(), Vec::new());
        for outcome in outcomes {
            let is_published = outcome == Outcome::Published;
            let counter = match outcome {
                Outcome::Published => &counters.published,
                Outcome::Refused => &counters.refused,
                Outcome::NotNow | Outcome::LeftOut | Outcome::OnTheWay => {
                    refused += u64::from(outcome == Outcome::NotNow);
                    moving += u64::from(outcome == Outcome::OnTheWay);
                    again.extend(self.outbox.acknowledge());
                    continue;
                }
                Outcome::Moved(error) => {
                    fatal = Some(error);
                    again.extend(self.outbox.acknowledge());
                    continue;
                }
                Outcome::Fatal(error) => {
                    fatal = Some(error);
                    break;
                }
            };
            counter.fetch_add(1, Ordering::Relaxed);
            if let Some(pending) = self.outbox.acknowledge() {
                self.own.pool.release(pending.item.reserved);
                done.extend(counts.then_some((pending.item.number, is_published)));
            }
        }
        self.count_receivers(&done);
        if let Some(error) = fatal {
            self.broken_by(&error);
        }
        let now = self.now();
        if refused + moving > 0 {
            counters.postponed.fetch_add(refused + moving, Ordering::Relaxed);
            // A slot that takes long to move is asked for less and less often.
            let moved_for = self.moving_since.map_or(0, |since| now - since);
            let moving_again = (moved_for / 4).clamp(MOVING_AGAIN, PUBLISH_AGAIN);
            self.next_publish = now + if refused > 0 { PUBLISH_AGAIN } else { moving_again };
        }
        self.moving_since = (moving > 0).then(|| self.moving_since.unwrap_or(now));
        let takes_too_long = self.moving_since.is_some_and(|since| now > since + MAX_MOVING);
        self.outbox.answered(again, refused > 0 || takes_too_long, now);
    }

    fn check_call(&mut self, done: Result<(), RedisError>) {
        if let Err(error) = done {
            self.broken_by(&error);
        }
    }

    fn on_time(&mut self) {
        let now = self.now();
        for name in self.interest.expire(now) {
            if self.members.borrow_mut().end(&name) {
                self.channels.remove(&name);
                self.presence.unfollowed(&name);
            } else {
                self.interest.enter(&name);
            }
        }
        let expired = self.outbox.expire(now);
        self.count(&expired, |counters| &counters.refused);
        while let Some((due, _)) = self.unanswered.front()
            && *due <= now
        {
            let question = self.unanswered.pop_front().map(|(_, question)| question);
            // The channel may have been let go of meanwhile.
            self.questions.extend(question.filter(|question| self.awaits(question)));
        }
        self.on_presence_time(now);
        self.survey.expire(now);
        if self.link.is_none() {
            if self.is_up() && now > self.left + MAX_UNLINKED {
                self.set_down("the partition is not connected to its master yet");
            }
            if !self.is_linking && now >= self.retry.0 {
                self.relink();
            }
            return;
        }
        match self.probe {
            Some(sent) if now > sent + LIMIT.as_millis() as u64 => {
                self.own.counters().probe_failures.fetch_add(1, Ordering::Relaxed);
                self.broken("publications do not come back from the server");
            }
            None if now > (self.heard + PROBE_AFTER).min(self.probed + PROBE_EVERY) => {
                self.send_probe();
            }
            _ => {}
        }
        if now > self.checked + CHECK_AFTER / 8 {
            self.checked = now;
            let is_silent = |channel: &Channel| now > channel.heard + CHECK_AFTER;
            let silent = self.channels.iter().filter(|(_, channel)| is_silent(channel));
            let silent: Vec<_> = silent.map(|(name, _)| Arc::clone(name)).collect();
            for name in silent {
                self.with_sequence(&name, |sequence, actions| sequence.check(actions));
            }
        }
    }

    pub(super) fn start(&self, task: impl Future<Output = Event> + Send + 'static) {
        task::start(&self.own.events, self.generation, task);
    }

    fn probe_came(&mut self) {
        self.probe = None;
        self.settle();
    }
}

/// Returns the time of day, for the figure of the lag alone.
fn micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_micros() as u64
}
