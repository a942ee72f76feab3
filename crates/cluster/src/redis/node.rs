//! The events of a node's part, handled one after the other on the node's thread.

mod connect;
pub(super) mod control;
mod parts;
pub(super) mod presence;
mod publications;
mod receive;
mod send;
pub(super) mod survey;
#[cfg(test)]
mod tests;
mod time;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use redis::RedisError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use self::parts::{Follows, LinkState, NodeClock, NodeRequests, PublishSender};
use super::calls::{Answered, CallOutcome, Question};
use super::link::{Link, RedisTarget};
use super::pool::{Reserved, SendBudget};
use super::signals::{Signal, Signals};
use super::status::{Counters, Status};
use super::{KeepRule, Members, Outgoing, STOP_LIMIT, StartError, task};
use crate::held::Budget;
use crate::interest::Interest;
use crate::outcome::Ticket;
use crate::sequencer::{SequenceAction, Sequencer};

/// Time for which publications wait while the broker is away.
const MAX_WAIT: u64 = 5_000;

/// The time for which a channel without members is still followed.
const LINGER: u64 = 5_000;

/// Maximum events that are handled before their output is sent.
const EVENTS: usize = 1_024;

/// Memory of a publication besides its name and its bytes.
const OVERHEAD: usize = 128;

/// A channel whose publications make the publishing task panic. For tests.
#[cfg(test)]
pub(super) const PANICS: &str = "panics";

/// Returns the memory of a publication.
pub(super) fn cost_of(outgoing: &Outgoing) -> usize {
    outgoing.channel.len() + outgoing.envelope.len() + OVERHEAD
}

/// An input of a node. Numbers are the generations of connections.
#[derive(Debug)]
pub(super) enum NodeEvent {
    Follow(Arc<str>, Option<KeepRule>),
    Unfollow(Arc<str>),
    Check(Arc<str>),
    Fetch(Arc<str>),
    Publish(Outgoing, Reserved, Ticket),
    /// The sender is dropped when the node has ended.
    Stop(mpsc::Sender<()>),
    Linked(u64, Result<Link, StartError>),
    Signal(u64, Signal),
    Subscribed(u64, Result<(), RedisError>),
    Published(u64, Result<Vec<CallOutcome>, RedisError>),
    Answered(u64, Vec<Question>, Result<Vec<Answered>, RedisError>),
    Probed(u64, Result<(), RedisError>),
    Panicked(u64),
    /// The first event of a partition that is used from the start.
    Begin,
    Presence(presence::PresenceInput),
    Control(control::ControlInput),
    Survey(survey::SurveyInput),
}

impl NodeEvent {
    /// Returns whether it is a command or a question that fails without a connection.
    fn wants_connection(&self) -> bool {
        match self {
            Self::Control(event) => matches!(event, control::ControlInput::Send(..)),
            Self::Survey(event) => {
                matches!(event, survey::SurveyInput::Ask(..) | survey::SurveyInput::Own(..))
            }
            _ => false,
        }
    }

    /// Returns when a question times out.
    fn due(&self) -> Option<Instant> {
        match self {
            Self::Survey(
                survey::SurveyInput::Ask(_, due, _) | survey::SurveyInput::Own(_, due, _),
            ) => Some(*due),
            _ => None,
        }
    }
}

pub(super) struct Channel {
    /// The sequence of a channel with history.
    sequence: Option<(KeepRule, Sequencer<Vec<u8>>)>,
    /// When the channel's state was last known.
    heard: u64,
    /// When the broker last answered a question about the channel.
    answered: Option<u64>,
    /// Whether the channel must be checked again a second later.
    is_check_due: bool,
    /// Whether the broker no longer delivers the channel. Without a history, members of this node
    /// lose messages that are published until delivery resumes.
    is_cut: bool,
}

/// A part's access to the rest of its node.
#[derive(Clone)]
pub(super) struct PartContext {
    pub(super) part: u16,
    pub(super) events: UnboundedSender<NodeEvent>,
    pub(super) status: Arc<Status>,
    pub(super) pool: Arc<SendBudget>,
}

impl PartContext {
    pub(super) fn counters(&self) -> &Counters {
        &self.status.counters
    }
}

/// A node's part at one server, or for one partition of a Redis Cluster.
pub(super) struct Node {
    pub(super) target: RedisTarget,
    pub(super) own: PartContext,
    /// The members of all parts. Behind a pointer, so that the node is compiled in this crate, and
    /// once.
    pub(super) members: Rc<RefCell<Box<dyn Members>>>,
    presence: presence::PresenceState,
    survey: survey::SurveyState,
    interest: Interest,
    pub(super) channels: HashMap<Arc<str>, Channel>,
    /// Memory of publications that the channels hold.
    budget: Budget,
    clock: NodeClock,
    link: LinkState,
    follows: Follows,
    requests: NodeRequests,
    sender: PublishSender,
    actions: Vec<SequenceAction<Vec<u8>>>,
    /// The deadline of the node's end, and the threads that wait for it.
    stop: Option<(u64, Vec<mpsc::Sender<()>>)>,
}

impl Node {
    /// Connects for the first time; returns the reason if this fails. [`run`](Self::run) tries
    /// again.
    pub(super) async fn connect(&mut self) -> Result<(), StartError> {
        self.link.is_linking = true;
        let rules = self.members.borrow().rules();
        let link = first_link(self.target.clone(), rules, self.signals()).await;
        let failed = link.as_ref().map(drop).map_err(Clone::clone);
        if failed.is_ok() {
            self.own.status.set_up(self.own.part);
        }
        self.linked(link);
        failed
    }

    /// Records that another part has checked the rights at the server.
    pub(super) fn skip_checks(&mut self) {
        self.link.checks_rights = false;
    }

    /// Creates a node without a connection.
    pub(super) fn new(
        target: RedisTarget,
        own: PartContext,
        members: Rc<RefCell<Box<dyn Members>>>,
        budget: Budget,
    ) -> Self {
        Self {
            target,
            own,
            members,
            presence: presence::PresenceState::default(),
            survey: survey::SurveyState::default(),
            interest: Interest::default(),
            channels: HashMap::new(),
            budget,
            clock: NodeClock::new(),
            link: LinkState::new(),
            follows: Follows::default(),
            requests: NodeRequests::default(),
            sender: PublishSender::new(),
            actions: Vec::new(),
            stop: None,
        }
    }

    /// Runs until it is stopped. A partition connects at its first event.
    pub(super) async fn run(mut self, mut events: UnboundedReceiver<NodeEvent>) {
        if self.target.masters().is_some() {
            let Some(first) = events.recv().await else { return };
            if matches!(first, NodeEvent::Stop(_)) {
                return;
            }
            self.own.status.set_used(self.own.part);
            self.link.disconnected_at = self.clock.now();
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
                // Tasks of the connections also run on this thread.
                tokio::task::yield_now().await;
            } else if self.has_ended() {
                self.take_leave().await;
                return self.settle_the_rest();
            }
        }
    }

    pub(super) fn handle(&mut self, event: NodeEvent) {
        if event.wants_connection() && self.is_about_to_connect() {
            return self.link.before.push(event);
        }
        match event {
            NodeEvent::Follow(channel, keep) => self.follow(&channel, keep),
            NodeEvent::Unfollow(channel) => {
                let spread = self.clock.draw() % LINGER;
                self.interest.leave(&channel, self.clock.now() + LINGER + spread);
            }
            NodeEvent::Check(channel) => self.check(channel),
            NodeEvent::Fetch(channel) => {
                self.with_sequence(&channel, |sequence, actions| sequence.fetch(actions));
            }
            NodeEvent::Publish(outgoing, reserved, ticket) => {
                self.publish(outgoing, reserved, ticket);
            }
            NodeEvent::Stop(ended) => {
                let latest = self.clock.now() + STOP_LIMIT.as_millis() as u64;
                self.stop.get_or_insert((latest, Vec::new())).1.push(ended);
            }
            NodeEvent::Linked(generation, link) if generation == self.link.generation => {
                self.linked(link)
            }
            NodeEvent::Signal(generation, signal) if generation == self.link.generation => {
                match signal {
                    Signal::Push(push) => self.push(push),
                    Signal::Lost => self.broken("the connection was closed"),
                    Signal::Switched => self.broken("the sentinels name another master"),
                }
            }
            NodeEvent::Subscribed(generation, done) if generation == self.link.generation => {
                self.follows.is_subscribing = false;
                match done {
                    Ok(()) => self.subscribed(self.follows.sent),
                    Err(error) => self.broken_by(&error),
                }
            }
            NodeEvent::Published(generation, done) if generation == self.link.generation => {
                self.sender.is_publishing = false;
                self.published(done);
            }
            NodeEvent::Answered(generation, questions, answers)
                if generation == self.link.generation =>
            {
                self.requests.is_asking = false;
                self.answered(questions, answers);
            }
            NodeEvent::Probed(generation, done) if generation == self.link.generation => {
                self.check_call(done);
            }
            NodeEvent::Panicked(generation) if generation == self.link.generation => {
                self.broken("a task of the cluster's thread panicked");
            }
            NodeEvent::Presence(event) => self.on_presence(event),
            NodeEvent::Control(event) => self.on_control(event),
            NodeEvent::Survey(event) => self.on_survey(event),
            // The event only makes the partition connect.
            NodeEvent::Begin => {}
            // Events of replaced connections.
            _ => {}
        }
    }

    fn follow(&mut self, channel: &Arc<str>, keep: Option<KeepRule>) {
        self.follows.asked += 1;
        self.interest.enter(channel);
        if self.channels.contains_key(channel) {
            return;
        }
        let budget = self.budget.clone();
        let sequence = keep.map(|keep| (keep, Sequencer::new(self.follows.asked << 32, budget)));
        let (heard, answered, is_check_due) = (self.clock.now(), None, false);
        let followed = Channel { sequence, heard, answered, is_check_due, is_cut: false };
        self.channels.insert(Arc::clone(channel), followed);
        // The channel is still subscribed if it was dropped without an unsubscribe command: no
        // acknowledgement will follow.
        if self.interest.is_subscribed(channel) {
            self.with_sequence(channel, |sequence, actions| sequence.subscribed(actions));
        }
    }

    /// Returns whether the node was stopped and has no work left.
    fn has_ended(&self) -> bool {
        self.stop.as_ref().is_some_and(|(latest, _)| self.is_done() || self.clock.now() >= *latest)
    }

    /// Returns whether the broker has received everything that it can accept.
    fn is_done(&self) -> bool {
        let is_settled = !self.link.is_open() || self.presence.is_settled();
        self.sender.outbox.is_empty()
            && self.link.before.is_empty()
            && self.requests.controls == 0
            && is_settled
    }

    /// Records that the broker has acknowledged the subscriptions of the first `follows` events.
    fn subscribed(&mut self, follows: u64) {
        self.follows.taken = follows;
        self.sender.outbox.connected();
        self.settle();
    }

    fn check_call(&mut self, done: Result<(), RedisError>) {
        if let Err(error) = done {
            self.broken_by(&error);
        }
    }

    pub(super) fn start(&self, task: impl Future<Output = NodeEvent> + Send + 'static) {
        task::start(&self.own.events, NodeEvent::Panicked(self.link.generation), task);
    }

    fn probe_came(&mut self) {
        self.link.probe = None;
        self.settle();
    }
}

/// Connects, and checks that the server supports everything that a node needs.
async fn first_link(target: RedisTarget, rules: u64, signals: Signals) -> Result<Link, StartError> {
    let link = target.link(None, signals).await?;
    link.check_rights(&target.names).await?;
    presence::begin(&link, &target.names, rules).await?;
    Ok(link)
}
