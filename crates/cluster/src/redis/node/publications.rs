//! Accepted publications of a part, until they have an outcome.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::RedisError;

use super::super::KeepRule;
use super::super::calls::{CallOutcome, NumberedPublication, REFRESHES, Refusal};
use super::super::pool::Reserved;
use super::{Node, Outgoing};
use crate::envelope::{Envelope, decode};
use crate::outbox::{Pending, WhileDown};
use crate::outcome::{PublishOutcome, Ticket};

/// The wait of refused publications before they are sent again.
const PUBLISH_AGAIN: u64 = 250;

/// Maximum channels whose last expiry update is remembered.
const MAX_REFRESHED: usize = 4_096;

/// The first retry interval while a slot is migrating to another master, and the time after which
/// the broker counts as away.
const MOVING_AGAIN: u64 = 20;
const MAX_MOVING: u64 = 30_000;

impl Node {
    /// Returns the number of the publication; `None`: only members of this node get it.
    pub(in crate::redis) fn publish(
        &mut self,
        outgoing: Outgoing,
        reserved: Reserved,
        ticket: Ticket,
    ) -> Option<u64> {
        self.publish_marked(outgoing, reserved, ticket, None)
    }

    /// Gives a place to a publication that a node without a history of the channel has published
    /// without one. Each node with a history tries this; one succeeds.
    pub(super) fn adopt(&mut self, channel: &Arc<str>, keep: KeepRule, envelope: Vec<u8>) {
        let Ok((_, Envelope { origin, published, .. })) = decode(&envelope) else { return };
        let mark = Some(self.target.names.mark(origin, published));
        let (channel, envelope) = (Arc::clone(channel), envelope.into());
        let while_down = WhileDown::Buffer;
        let outgoing = Outgoing { channel, envelope, keep: Some(keep), while_down };
        match self.own.pool.reserve(self.own.part, super::cost_of(&outgoing), None) {
            Some((_, reserved)) => {
                self.publish_marked(outgoing, reserved, Ticket::default(), mark);
            }
            None => self.own.status.count_refused(),
        }
    }

    fn publish_marked(
        &mut self,
        outgoing: Outgoing,
        reserved: Reserved,
        ticket: Ticket,
        mark: Option<String>,
    ) -> Option<u64> {
        let bytes = reserved.bytes();
        // A part that is about to connect, or is migrating to another master, is not down:
        // publications wait for it, instead of staying on this node.
        let while_down = if self.is_up() { WhileDown::Buffer } else { outgoing.while_down };
        let is_repeatable = outgoing.keep.is_some();
        // Members of this node must get later publications, so the subscriptions to their channels
        // come first.
        self.sender.number += 1;
        let (tag, number, after) = (self.clock.draw_tag(), self.sender.number, self.follows.asked);
        let refreshes = self.refreshes(&outgoing);
        let item =
            NumberedPublication { outgoing, reserved, tag, number, refreshes, mark, after, ticket };
        let pending =
            Pending { item, bytes, since: self.clock.now(), is_repeatable, is_retry: false };
        if let Some(local) = self.sender.outbox.offer(pending, while_down) {
            self.publish_here(local.item);
            return None;
        }
        Some(number)
    }

    /// Returns whether a publication renews the expiry of its channel's history: on this connection
    /// no publication has done so, or only too long ago.
    fn refreshes(&mut self, outgoing: &Outgoing) -> bool {
        let Some(keep) = outgoing.keep else { return false };
        let (now, lasts) = (self.clock.now(), (keep.age / REFRESHES).as_millis() as u64);
        if self.sender.refreshed.get(&outgoing.channel).is_some_and(|at| now < at + lasts) {
            return false;
        }
        if self.sender.refreshed.len() >= MAX_REFRESHED {
            self.sender.refreshed.clear();
        }
        self.sender.refreshed.insert(Arc::clone(&outgoing.channel), now);
        true
    }

    /// Delivers a publication only to members of this node.
    pub(super) fn publish_here(&mut self, mut item: NumberedPublication) {
        self.survey.forget(item.number);
        let Outgoing { channel, envelope, .. } = &item.outgoing;
        self.members.borrow_mut().publish(channel, envelope);
        self.own.pool.release(item.reserved);
        item.ticket.settle(PublishOutcome::Taken);
    }

    pub(super) fn published(&mut self, done: Result<Vec<CallOutcome>, RedisError>) {
        let outcomes = match done {
            Ok(outcomes) => outcomes,
            Err(error) => return self.broken_by(&error),
        };
        let (mut refused, mut moving, mut fatal) = (0, 0, None);
        let mut why: Option<RedisError> = None;
        let mut is_recorded = false;
        for outcome in outcomes {
            let (outcome, refusal) = match outcome {
                CallOutcome::Published => (PublishOutcome::Taken, None),
                CallOutcome::Refused(refusal) => (PublishOutcome::Refused, refusal),
                CallOutcome::Unknown(refusal) => (PublishOutcome::Unknown, Some(refusal)),
                CallOutcome::NotNow(error) => {
                    refused += 1;
                    why.get_or_insert(error);
                    self.sender.outbox.postpone();
                    continue;
                }
                CallOutcome::LeftOut | CallOutcome::OnTheWay => {
                    moving += u64::from(outcome == CallOutcome::OnTheWay);
                    self.sender.outbox.postpone();
                    continue;
                }
                CallOutcome::Moved(error) | CallOutcome::Fatal(error) => {
                    fatal = Some(error);
                    self.sender.outbox.postpone();
                    continue;
                }
                CallOutcome::Broken(error) => {
                    fatal = Some(error);
                    break;
                }
            };
            if let Some(pending) = self.sender.outbox.acknowledge() {
                let is_kept = pending.is_repeatable;
                if let Some(Refusal { error, concerns_all }) = refusal {
                    // Before it is counted: the log names the cause of what was counted.
                    if !std::mem::replace(&mut is_recorded, true) {
                        let refusal = self.refusal_of(&pending.item.outgoing, &error);
                        self.own.status.set_refusal(Some(refusal));
                    }
                    why = why.or(concerns_all.then_some(error));
                }
                self.settle_one(pending, outcome);
                if is_kept && outcome == PublishOutcome::Taken {
                    self.caught_up();
                }
            }
        }
        self.tell_losses();
        let now = self.clock.now();
        if refused + moving > 0 {
            let postponed = &self.own.counters().postponed;
            postponed.fetch_add(refused + moving, Ordering::Relaxed);
            // The longer a slot has been migrating, the less often the node tries.
            let moved_for = self.sender.moving_since.map_or(0, |since| now - since);
            let moving_again = (moved_for / 4).clamp(MOVING_AGAIN, PUBLISH_AGAIN);
            self.sender.next_publish_at =
                now + if refused > 0 { PUBLISH_AGAIN } else { moving_again };
        }
        self.sender.moving_since = (moving > 0).then(|| self.sender.moving_since.unwrap_or(now));
        let takes_too_long = self.sender.moving_since.is_some_and(|since| now > since + MAX_MOVING);
        match fatal {
            // Postponed publications go back to the waiting ones before any is delivered on this
            // node alone.
            Some(error) => self.broken_by(&error),
            None => {
                self.sender.outbox.answered(refused > 0 || takes_too_long, now);
                if let Some(error) = why {
                    self.fallen_behind(&error.to_string());
                } else if takes_too_long {
                    self.fallen_behind("a slot is on its way to another master");
                }
            }
        }
    }

    /// Returns the broker's error for a publication, with the names that the broker may refuse.
    fn refusal_of(&self, outgoing: &Outgoing, error: &RedisError) -> String {
        let (names, channel) = (&self.target.names, &outgoing.channel);
        let of = match outgoing.keep {
            Some(_) => format!("the keys {}", names.keys(channel).join(" and ")),
            None => format!("the channel {}", names.channel(channel)),
        };
        format!("{} answers: {error}, for a publication to {of}", self.target.shown())
    }

    /// Records that the broker accepts no publications, or none of channels with history.
    pub(in crate::redis) fn fallen_behind(&self, why: &str) {
        let why = format!("{} does not take what is published: {why}", self.target.shown());
        self.own.status.set_behind(self.own.part, Some(&why));
    }

    /// Records that the broker accepts publications.
    pub(in crate::redis) fn caught_up(&self) {
        self.own.status.set_behind(self.own.part, None);
    }

    /// Counts a publication that has an outcome, frees its memory, and informs the listeners. Call
    /// [`tell_losses`](Self::tell_losses) afterwards.
    fn settle_one(&mut self, mut pending: Pending<NumberedPublication>, outcome: PublishOutcome) {
        let counters = self.own.counters();
        let counter = match outcome {
            PublishOutcome::Taken => &counters.published,
            PublishOutcome::Refused => &counters.refused,
            PublishOutcome::Unknown => &counters.unknown,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let NumberedPublication { reserved, number, ticket, .. } = &mut pending.item;
        self.own.pool.release(*reserved);
        self.sender.losses.add(ticket.publisher, outcome);
        ticket.settle(outcome);
        if self.awaits_receivers() {
            self.count_receivers(*number, outcome);
        }
    }

    /// Reports losses to their publishers.
    fn tell_losses(&mut self) {
        for (publisher, lost) in self.sender.losses.take() {
            self.members.borrow_mut().unpublished(publisher, lost);
        }
    }

    /// Settles publications whose outcome is unknown.
    pub(super) fn settle_unknown(&mut self, unknown: Vec<Pending<NumberedPublication>>) {
        if !unknown.is_empty() {
            self.own.status.set_refusal(None);
        }
        unknown.into_iter().for_each(|one| self.settle_one(one, PublishOutcome::Unknown));
        self.tell_losses();
    }

    /// Settles publications that have waited for too long. If a publication was sent before the
    /// connection was lost, its outcome is unknown.
    pub(super) fn settle_expired(&mut self, expired: Vec<Pending<NumberedPublication>>) {
        if !expired.is_empty() {
            self.own.status.set_refusal(None);
        }
        for pending in expired {
            let outcome = match pending.is_retry {
                true => PublishOutcome::Unknown,
                false => PublishOutcome::Refused,
            };
            self.settle_one(pending, outcome);
        }
        self.tell_losses();
    }

    pub(super) fn settle_the_rest(mut self) {
        let unknown = self.sender.outbox.broken(self.clock.now());
        self.settle_unknown(unknown);
        let rest = self.sender.outbox.take_rest();
        self.settle_expired(rest);
    }
}
