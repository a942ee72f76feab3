//! Publications that a part has accepted, until they have an outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::RedisError;

use super::super::Keep;
use super::super::calls::{Outcome, REFRESHES, Tagged};
use super::super::pool::Reserved;
use super::super::status::Counters;
use super::{Node, Outgoing};
use crate::{Envelope, Pending, WhileDown, decode};

/// Time after which publications are sent again that the broker has refused for now.
const PUBLISH_AGAIN: u64 = 250;

/// Most channels of which is known when the time of their history began.
const MAX_REFRESHED: usize = 4_096;

/// That time while a slot is on its way to another master, at first, and the time after which
/// publications wait for it no longer than for a broker that is away.
const MOVING_AGAIN: u64 = 20;
const MAX_MOVING: u64 = 30_000;

impl Node {
    /// Returns the number of the publication; `None`: only members of this node get it.
    pub(in crate::redis) fn publish(
        &mut self,
        outgoing: Outgoing,
        reserved: Reserved,
    ) -> Option<u64> {
        self.publish_marked(outgoing, reserved, None)
    }

    /// Gives a place to a publication that has come without one, from a node at which the channel
    /// has no history. Each node that has one tries to, and one of them does.
    pub(super) fn adopt(&mut self, channel: &Arc<str>, keep: Keep, envelope: Vec<u8>) {
        let Ok((_, Envelope { origin, published, .. })) = decode(&envelope) else { return };
        let mark = Some(self.target.names.mark(origin, published));
        let (channel, envelope) = (Arc::clone(channel), envelope.into());
        let while_down = WhileDown::Buffer;
        let outgoing = Outgoing { channel, envelope, keep: Some(keep), while_down };
        match self.own.pool.reserve(self.own.part, super::cost_of(&outgoing), None) {
            Some((_, reserved)) => drop(self.publish_marked(outgoing, reserved, mark)),
            None => drop(self.own.counters().refused.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn publish_marked(
        &mut self,
        outgoing: Outgoing,
        reserved: Reserved,
        mark: Option<String>,
    ) -> Option<u64> {
        let bytes = reserved.bytes();
        // One that is about to connect, or on its way to another master, is not down: what is
        // published waits for that, instead of staying on this node.
        let while_down = if self.is_up() { WhileDown::Buffer } else { outgoing.while_down };
        let is_repeatable = outgoing.keep.is_some();
        // Members of this node get what is published after they came: their channels come first.
        self.number += 1;
        let (tag, number, after) = (self.draw_tag(), self.number, self.follows);
        let refreshes = self.refreshes(&outgoing);
        let item = Tagged { outgoing, reserved, tag, number, refreshes, mark, after };
        let pending = Pending { item, bytes, since: self.now(), is_repeatable, is_retry: false };
        if let Some(local) = self.outbox.offer(pending, while_down) {
            self.publish_here(local.item);
            return None;
        }
        Some(number)
    }

    /// Returns whether a publication begins the time of its channel's history again: it was not
    /// begun by this connection yet, or too long ago.
    fn refreshes(&mut self, outgoing: &Outgoing) -> bool {
        let Some(keep) = outgoing.keep else { return false };
        let (now, lasts) = (self.now(), (keep.age / REFRESHES).as_millis() as u64);
        if self.refreshed.get(&outgoing.channel).is_some_and(|at| now < at + lasts) {
            return false;
        }
        if self.refreshed.len() >= MAX_REFRESHED {
            self.refreshed.clear();
        }
        self.refreshed.insert(Arc::clone(&outgoing.channel), now);
        true
    }

    /// Gives a publication to members of this node alone.
    pub(super) fn publish_here(&mut self, Tagged { outgoing, reserved, number, .. }: Tagged) {
        self.survey.forget(number);
        self.members.borrow_mut().publish(&outgoing.channel, &outgoing.envelope);
        self.own.pool.release(reserved);
    }

    pub(super) fn published(&mut self, done: Result<Vec<Outcome>, RedisError>) {
        let outcomes = match done {
            Ok(outcomes) => outcomes,
            Err(error) => return self.broken_by(&error),
        };
        let status = Arc::clone(&self.own.status);
        let counters = &status.counters;
        let (mut refused, mut moving, mut fatal) = (0, 0, None);
        let (counts, mut done) = (self.awaits_receivers(), Vec::new());
        for outcome in outcomes {
            let is_published = outcome == Outcome::Published;
            let counter = match outcome {
                Outcome::Published => &counters.published,
                Outcome::Refused => &counters.refused,
                Outcome::NotNow | Outcome::LeftOut | Outcome::OnTheWay => {
                    refused += u64::from(outcome == Outcome::NotNow);
                    moving += u64::from(outcome == Outcome::OnTheWay);
                    self.outbox.postpone();
                    continue;
                }
                Outcome::Moved(error) => {
                    fatal = Some(error);
                    self.outbox.postpone();
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
        match fatal {
            // What was postponed goes back among those that wait, before any are given to members
            // of this node.
            Some(error) => self.broken_by(&error),
            None => self.outbox.answered(refused > 0 || takes_too_long, now),
        }
    }

    /// Counts publications that have an outcome, and frees their memory.
    pub(super) fn count(&mut self, done: &[Pending<Tagged>], outcome: fn(&Counters) -> &AtomicU64) {
        outcome(self.own.counters()).fetch_add(done.len() as u64, Ordering::Relaxed);
        if self.awaits_receivers() {
            let numbers: Vec<_> = done.iter().map(|one| (one.item.number, false)).collect();
            self.count_receivers(&numbers);
        }
        done.iter().for_each(|pending| self.own.pool.release(pending.item.reserved));
    }

    pub(super) fn count_the_rest(mut self) {
        let unknown = self.outbox.broken(self.now());
        self.count(&unknown, |counters| &counters.unknown);
        let refused = self.outbox.expire(u64::MAX);
        self.count(&refused, |counters| &counters.refused);
    }
}
