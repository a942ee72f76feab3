//! Pushes and answers from the broker, and their delivery to members.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use redis::{PushInfo, PushKind, RedisError, Value};

use super::super::calls::{self, Answered, Question};
use super::Node;
use crate::envelope::{Placed, decode, split_place};
use crate::sequencer::{SequenceAction, Sequencer};

/// The wait before the broker is asked again about a channel without an answer.
const ASK_AGAIN: u64 = 1_000;

impl Node {
    pub(super) fn push(&mut self, PushInfo { kind, data }: PushInfo) {
        self.link.last_heard_at = self.clock.now();
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
            // No command of this node unsubscribes from its probe channel.
            (PushKind::SUnsubscribe, _)
                if name == self.target.names.probe(self.link.generation) =>
            {
                self.moved("its slot was moved");
            }
            _ => {}
        }
    }

    pub(super) fn acknowledged(&mut self, name: &str) {
        let Some(channel) = self.target.names.channel_of(name) else { return };
        if self.interest.acknowledge(channel)
            && let Some((channel, _)) = self.channels.get_key_value(channel)
        {
            let channel = Arc::clone(channel);
            self.with_sequence(&channel, |sequence, actions| sequence.subscribed(actions));
            let followed = self.channels.get_mut(&channel);
            if followed.is_some_and(|followed| std::mem::take(&mut followed.is_cut)) {
                self.miss(&channel);
            }
        }
    }

    /// Reports to members of a channel without history that they may have missed messages.
    fn miss(&mut self, channel: &Arc<str>) {
        self.own.counters().gaps.fetch_add(1, Ordering::Relaxed);
        self.members.borrow_mut().missed(channel);
    }

    pub(super) fn message(&mut self, name: &str, mut bytes: Vec<u8>) {
        let Some(channel) = self.target.names.channel_of(name) else {
            if name == self.target.names.probe(self.link.generation) {
                self.probe_came();
            } else {
                self.take_control(name, &bytes);
            }
            return;
        };
        let counters = self.own.counters();
        counters.received.fetch_add(1, Ordering::Relaxed);
        let (placed, start) = match split_place(&bytes) {
            Ok((placed, rest)) => (placed, bytes.len() - rest.len()),
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
                // A publication of a later release has a place: the channel's members learn of the
                // gap.
                if placed.is_none() {
                    if let Some((channel, _)) = self.channels.get_key_value(channel) {
                        let channel = Arc::clone(channel);
                        self.miss(&channel);
                    }
                    return;
                }
            }
        }
        let Some((channel, followed)) = self.channels.get_key_value(channel) else { return };
        let channel = Arc::clone(channel);
        let keep = followed.sequence.as_ref().map(|(keep, _)| *keep);
        if placed.is_some() != keep.is_some() {
            // The publishing node has another rule for the channel.
            self.own.counters().other_rules.fetch_add(1, Ordering::Relaxed);
        }
        bytes.drain(..start);
        match (placed, keep) {
            (None, None) => self.members.borrow_mut().publish(&channel, &bytes),
            (None, Some(keep)) => self.adopt(&channel, keep, bytes),
            (Some(Placed { is_adopted: true, .. }), None) => {}
            (Some(_), None) => self.members.borrow_mut().publish(&channel, &bytes),
            (Some(Placed { place, .. }), Some(_)) => {
                let length = bytes.len();
                self.with_sequence(&channel, |sequence, actions| {
                    sequence.publication(place, (bytes, length), actions);
                });
            }
        }
    }

    /// Passes an event to a channel's sequence, and executes the resulting actions.
    pub(super) fn with_sequence(
        &mut self,
        name: &Arc<str>,
        event: impl FnOnce(&mut Sequencer<Vec<u8>>, &mut Vec<SequenceAction<Vec<u8>>>),
    ) {
        let now = self.clock.now();
        let mut actions = std::mem::take(&mut self.actions);
        let Some(channel) = self.channels.get_mut(name) else { return };
        channel.heard = now;
        let Some((keep, sequence)) = &mut channel.sequence else { return };
        let keep = *keep;
        event(sequence, &mut actions);
        for action in actions.drain(..) {
            match action {
                SequenceAction::Ask { number, after } => {
                    let (channel, epoch) = (Arc::clone(name), self.clock.draw());
                    let (data, was_late) = (self.presence.data(), false);
                    let question = Question { channel, keep, number, after, epoch, data, was_late };
                    self.requests.questions.push_back(question);
                }
                SequenceAction::Begin { tail, is_loss } => {
                    if is_loss {
                        self.own.counters().lost.fetch_add(1, Ordering::Relaxed);
                    }
                    self.members.borrow_mut().begin(name, tail, is_loss);
                }
                SequenceAction::Deliver { place, publication } => {
                    self.members.borrow_mut().deliver(name, place, &publication);
                }
                SequenceAction::Refill(tail) => self.members.borrow_mut().refill(name, tail),
                SequenceAction::Live => self.members.borrow_mut().live(name),
            }
        }
        self.actions = actions;
    }

    pub(super) fn answered(
        &mut self,
        questions: Vec<Question>,
        answers: Result<Vec<Answered>, RedisError>,
    ) {
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
                    let now = self.clock.now();
                    if let Some(channel) = self.channels.get_mut(&question.channel) {
                        channel.answered = Some(now);
                    }
                    self.with_sequence(&question.channel, |sequence, actions| {
                        sequence.answer(question.number, answer, actions);
                    });
                }
                Err(error) if calls::is_fatal(&error) => return self.broken_by(&error),
                // An error of this channel or of the disk: other channels continue.
                Ok(None) | Err(_) => {
                    self.own.counters().failed_reads.fetch_add(1, Ordering::Relaxed);
                    self.requests.unanswered.push_back((self.clock.now() + ASK_AGAIN, question));
                }
            }
        }
    }

    /// Postpones questions whose answers take too long, perhaps because of one channel. If the
    /// connection is the cause, a probe does not come back.
    pub(super) fn answered_too_late(&mut self, questions: Vec<Question>) {
        let count = questions.len() as u64;
        self.own.counters().failed_reads.fetch_add(count, Ordering::Relaxed);
        let due = self.clock.now() + ASK_AGAIN;
        let late = questions.into_iter().map(|question| Question { was_late: true, ..question });
        self.requests.unanswered.extend(late.map(|question| (due, question)));
        if self.link.probe.is_none() {
            self.send_probe();
        }
    }

    pub(super) fn awaits(&self, Question { channel, number, .. }: &Question) -> bool {
        let sequence = self.channels.get(channel).and_then(|channel| channel.sequence.as_ref());
        sequence.is_some_and(|(_, sequence)| sequence.awaits(*number))
    }
}

/// Returns the time of day, which only the lag figure uses.
fn micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_micros() as u64
}
