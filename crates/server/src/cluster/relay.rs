//! The relay between the shards and the node of the cluster.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task;
use std::time::{SystemTime, UNIX_EPOCH};

use throng_cluster::redis::{Bus, Fill, KeepRule, Members, Outgoing, ReceiverCount};
use throng_cluster::{
    Announcement, Await, Control, Envelope, NodeCommand, Place, PublishOutcome, Tail, Target,
    Ticket, WhileDown, decode, encode,
};
use throng_engine::{
    Carried, CarriedOutcome, CarriedPresence, ChannelPattern, Frame, FrameParts, HistoryTail,
    Position, PresenceChange, Question, Relay, RelayFill, Remote, Waiting,
};
use throng_io::{ConnId, Waker};

use super::{ChannelRule, SurveyFn};
use crate::events::Events;
use crate::filter::Filter;
use crate::handle::Handle;
use crate::hub::SessionNotice;
use crate::panics::Callback;
use crate::ws::SessionMail;
use crate::ws::Unpublished;

/// Returns a number at random.
pub(super) fn random_number() -> u64 {
    RandomState::new().hash_one(0u8)
}

/// Carries publications and memberships from the shards to the broker.
#[derive(Debug)]
pub(super) struct ClusterRelay {
    pub(super) bus: Bus,
    pub(super) node: u64,
    rules: Vec<(ChannelPattern, ChannelRule)>,
    /// Set before the first connection.
    remote: OnceLock<Remote>,
    /// Time of the last publication.
    published: AtomicU64,
}

impl ClusterRelay {
    pub(super) fn new(bus: Bus, node: u64, rules: Vec<(ChannelPattern, ChannelRule)>) -> Self {
        Self { bus, node, rules, remote: OnceLock::new(), published: AtomicU64::new(0) }
    }

    pub(super) fn set_remote(&self, remote: &Remote) {
        let _ = self.remote.set(remote.clone());
    }

    fn rule(&self, channel: &str) -> ChannelRule {
        let matching = self.rules.iter().find(|(pattern, _)| pattern.matches(channel));
        matching.map_or(ChannelRule::WhileDown(WhileDown::Refuse), |(_, rule)| *rule)
    }

    fn keep(&self, channel: &str) -> Option<KeepRule> {
        let history = self.remote.get()?.history_of(channel)?;
        let (count, age, bytes) = (history.count, history.age, history.max_bytes?);
        Some(KeepRule { count, bytes, age })
    }

    /// Returns the time in microseconds, different at each call: together with the node, it
    /// identifies a publication that other nodes number.
    fn publication_time(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = now.as_micros() as u64;
        let next = |last: u64| Some(now.max(last + 1));
        match self.published.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(last) | Err(last) => now.max(last + 1),
        }
    }

    /// Returns the rules for channels that concern other servers, as text.
    pub(super) fn rules(&self) -> Vec<String> {
        let is_usual = |rule: &_| matches!(rule, ChannelRule::WhileDown(WhileDown::Refuse));
        let own = ChannelPattern::effective(&self.rules, is_usual).map(|(pattern, rule)| {
            let rule = match rule {
                ChannelRule::Local => "scope=local",
                ChannelRule::WhileDown(WhileDown::Refuse) => "while_down=refuse",
                ChannelRule::WhileDown(WhileDown::Buffer) => "while_down=buffer",
                ChannelRule::WhileDown(WhileDown::Local) => "while_down=local",
            };
            format!("{} {rule}", pattern.as_str())
        });
        let remote = self.remote.get();
        let histories = remote.map(Remote::history_rules).unwrap_or_default();
        let presences = remote.map(Remote::presence_rules).unwrap_or_default();
        own.chain(histories).chain(presences).collect()
    }

    /// Returns a hash of the rules. The hash is FNV-1a because it must be the same in all releases.
    fn rules_hash(&self) -> u64 {
        let add = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        self.rules().join("\n").bytes().fold(0xcbf2_9ce4_8422_2325, add)
    }

    /// Encodes a publication; `None`: the cluster does not carry its channel.
    pub(super) fn outgoing(
        &self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
    ) -> Option<Outgoing> {
        let keep = self.keep(channel);
        let while_down = match self.rule(channel) {
            ChannelRule::WhileDown(WhileDown::Local) if keep.is_some() => WhileDown::Refuse,
            ChannelRule::WhileDown(while_down) => while_down,
            ChannelRule::Local => return None,
        };
        let envelope = self.envelope(frame, except).into();
        Some(Outgoing { channel: channel.into(), envelope, keep, while_down })
    }

    /// Encodes a message for all servers.
    pub(super) fn envelope(&self, frame: &Frame, except: Option<ConnId>) -> Vec<u8> {
        let FrameParts { is_text, is_incompressible, key, name, id, publisher, payload } =
            frame.parts();
        let mut envelope = Vec::with_capacity(payload.len() + 64);
        let parts = Envelope {
            is_text,
            is_incompressible,
            origin: self.node,
            published: self.publication_time(),
            except: except.map(ConnId::to_bits),
            key,
            name,
            id,
            publisher,
            payload,
        };
        encode(&parts, &mut envelope);
        envelope
    }
}

impl Relay for ClusterRelay {
    fn carries(&self, channel: &str) -> bool {
        matches!(self.rule(channel), ChannelRule::WhileDown(_))
    }

    fn publish(
        &self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
        publisher: Option<ConnId>,
    ) -> Option<(RelayFill, Arc<dyn Carried>)> {
        let outgoing = self.outgoing(channel, frame, except)?;
        let (carried, publisher) = (Arc::new(Way::default()), publisher.map(ConnId::to_bits));
        let ticket = Ticket::new(publisher, Arc::clone(&carried) as _);
        let fill = match self.bus.publish_by(outgoing, publisher, ticket)? {
            Fill::Available => RelayFill::Available,
            Fill::Crowded(part) => RelayFill::Crowded(part),
        };
        Some((fill, carried))
    }

    fn was_linked(&self, channel: &str) -> bool {
        self.bus.was_linked(channel)
    }

    fn await_capacity(&self, part: u16, sender: usize, waker: &Waker) -> bool {
        let waker = Arc::clone(waker);
        self.bus.await_capacity(part, sender, move || waker.wake())
    }

    fn enter(&self, channel: &Arc<str>) {
        if self.carries(channel) {
            self.bus.follow(Arc::clone(channel), self.keep(channel));
            if self.remote.get().is_some_and(|remote| remote.announces(channel)) {
                self.bus.watch(Arc::clone(channel));
            }
        }
    }

    fn leave(&self, channel: &Arc<str>) {
        if self.carries(channel) {
            self.bus.unfollow(Arc::clone(channel));
        }
    }

    fn ask(&self, channel: &Arc<str>, question: Question) {
        match question {
            Question::New => self.bus.check(Arc::clone(channel)),
            Question::All => self.bus.fetch(Arc::clone(channel)),
        }
    }

    fn present(&self, presence: CarriedPresence<'_>) {
        let CarriedPresence { change, channel, client, info, announces } = presence;
        let (channel, client) = (channel.into(), client.to_bits());
        match change {
            PresenceChange::Join => self.bus.enter(channel, client, info.into(), announces),
            PresenceChange::Leave => self.bus.exit(channel, client),
        }
    }
}

/// A publication to the broker that is in flight, with its outcome.
#[derive(Debug, Default)]
struct Way {
    state: Mutex<(Option<CarriedOutcome>, Waiting)>,
}

impl Way {
    /// Locks the outcome and the list of its waiters, and returns both.
    fn lock(&self) -> MutexGuard<'_, (Option<CarriedOutcome>, Waiting)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Await for Way {
    fn settle(&self, outcome: PublishOutcome) {
        let mut state = self.lock();
        state.0 = Some(match outcome {
            PublishOutcome::Taken => CarriedOutcome::Taken,
            PublishOutcome::Refused => CarriedOutcome::Refused,
            PublishOutcome::Unknown => CarriedOutcome::Unknown,
        });
        let waiting = std::mem::take(&mut state.1);
        drop(state);
        waiting.wake();
    }
}

impl Carried for Way {
    fn outcome(&self) -> Option<CarriedOutcome> {
        self.lock().0
    }

    fn poll_outcome(&self, waker: &task::Waker) -> Option<CarriedOutcome> {
        let (outcome, waiting) = &mut *self.lock();
        if outcome.is_none() {
            waiting.add(waker);
        }
        *outcome
    }
}

/// Carries publications from the broker to the shards.
pub(super) struct ToShards {
    remote: Remote,
    node: u64,
    answer: Option<SurveyFn>,
    rules: u64,
    events: Events,
}

impl ToShards {
    /// Creates the publisher to the shards. The relay must already have its [`Remote`].
    pub(super) fn new(
        relay: &ClusterRelay,
        remote: &Remote,
        answer: Option<SurveyFn>,
        events: Events,
    ) -> Self {
        let (node, rules) = (relay.node, relay.rules_hash());
        Self { remote: remote.clone(), node, answer, rules, events }
    }

    /// Encodes a publication once for all members; also returns the member of this process that
    /// must not get it.
    fn frame(&self, envelope: &[u8]) -> Option<(Frame, Option<ConnId>)> {
        let (_, envelope) = decode(envelope).ok()?;
        let Envelope {
            is_text,
            is_incompressible,
            origin,
            except,
            key,
            name,
            id,
            publisher,
            payload,
            ..
        } = envelope;
        let parts = FrameParts { is_text, is_incompressible, key, name, id, publisher, payload };
        let except = except.filter(|_| origin == self.node).map(ConnId::from_bits);
        Some((Frame::from_parts(&parts), except))
    }

    /// Calls `take` with the last publications, encoded. A publication in an unknown format ends
    /// the tail for a client that returns.
    fn with_tail(&self, tail: &Tail<Vec<u8>>, take: impl FnOnce(HistoryTail<'_>)) {
        let newest = tail.entries.iter().rev();
        let frame = |(tag, envelope): &(u64, Vec<u8>)| Some((*tag, self.frame(envelope)?.0));
        let mut entries: Vec<_> = newest.map_while(frame).collect();
        entries.reverse();
        let before = tail.before.filter(|_| entries.len() == tail.entries.len());
        take(HistoryTail { position: position(tail.place), before, entries: &entries });
    }
}

fn position(Place { epoch, offset, tag }: Place) -> Position {
    Position { epoch, offset, tag: Some(tag) }
}

impl Members for ToShards {
    fn begin(&mut self, channel: &Arc<str>, tail: Tail<Vec<u8>>, is_loss: bool) {
        self.with_tail(&tail, |tail| self.remote.begin_followed(channel, tail, is_loss));
    }

    fn refill(&mut self, channel: &Arc<str>, tail: Tail<Vec<u8>>) {
        self.with_tail(&tail, |tail| self.remote.refill_followed(channel, tail));
    }

    fn deliver(&mut self, channel: &Arc<str>, place: Place, envelope: &[u8]) {
        match self.frame(envelope) {
            Some((frame, except)) => {
                self.remote.deliver_followed(channel, position(place), &frame, except);
            }
            // Members cannot get the message, and are notified of the gap.
            None => {
                let tail = HistoryTail { position: position(place), before: None, entries: &[] };
                self.remote.begin_followed(channel, tail, true);
                self.remote.admit_to_followed(channel);
            }
        }
    }

    fn live(&mut self, channel: &Arc<str>) {
        self.remote.admit_to_followed(channel);
    }

    fn publish(&mut self, channel: &str, envelope: &[u8]) {
        if let Some((frame, except)) = self.frame(envelope) {
            self.remote.publish_followed(channel, &frame, except);
        }
    }

    fn missed(&mut self, channel: &Arc<str>) {
        let filter = Filter::new().channel(channel);
        let notice = SessionNotice::Missed(Arc::clone(channel)).into();
        if self.remote.notify_all(filter.inner(), &notice).is_err() {
            self.remote.end_members(channel);
        }
    }

    fn end(&mut self, channel: &Arc<str>) -> bool {
        self.remote.end_followed(channel)
    }

    fn presence(&mut self, channel: &str, announcement: Announcement<'_>) {
        let Announcement { is_join, node, client, info } = announcement;
        let change = if is_join { PresenceChange::Join } else { PresenceChange::Leave };
        let client = ConnId::from_bits(client);
        let presence = CarriedPresence { change, channel, client, info, announces: true };
        self.remote.announce_followed(node, node == self.node, &presence);
    }

    fn unpublished(&mut self, publisher: u64, lost: throng_cluster::Unpublished) {
        let lost = Unpublished { refused: lost.refused, unknown: lost.unknown };
        let event = SessionMail::Unpublished(lost);
        self.remote.post(ConnId::from_bits(publisher), Box::new(event));
    }

    fn subscribers(&mut self, channel: &str) -> u64 {
        self.remote.subscribers(channel) as u64
    }

    fn control(&mut self, Control { target, command }: Control<'_>) {
        let filter = match target {
            Target::Client(client) => Filter::new().include([Handle::from_bits(client)]),
            Target::Members(channel) => Filter::new().channel(channel),
        };
        let filter = filter.inner();
        // A shard whose queue is full ignores the command: the sender sees that the client stays.
        let _ = match command {
            NodeCommand::Close { code, reason } => self.remote.close_all(filter, code, reason),
            NodeCommand::Unsubscribe { channel } => {
                self.remote.notify_all(filter, &SessionNotice::Unsubscribe(channel.into()).into())
            }
            NodeCommand::Refresh { data } => {
                self.remote.notify_all(filter, &SessionNotice::Refresh(data.into()).into())
            }
        };
    }

    fn rules(&self) -> u64 {
        self.rules
    }

    fn broadcast(&mut self, envelope: &[u8]) -> Option<ReceiverCount> {
        let (frame, _) = self.frame(envelope)?;
        let sent = self.remote.broadcast(Filter::new().inner(), &frame);
        let receipt = sent.map_or_else(|full| full.receipt, Some);
        Some(Box::pin(async move {
            let counts = receipt?.await;
            (counts.unreached == 0).then_some(counts.delivered + counts.queued)
        }))
    }

    fn answer(&mut self, question: &[u8]) -> Option<Vec<u8>> {
        let answer = self.answer.as_ref()?;
        self.events.guard(Callback::Answer, || answer(question))
    }
}
