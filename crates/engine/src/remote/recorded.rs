//! Publications of channels with history, by threads outside of the shards.

use std::sync::Arc;
use std::time::Instant;

use super::shard_queue::RETRY;
use super::{Command, QueueFull, Remote};
use crate::backpressure::ClassIndex;
use crate::outbox::frame::Frame;
use crate::pubsub::delivery::{Delivery, Receipt};
use crate::pubsub::history::{
    HistoryCounts, Joined, Position, Publication, Recorded, Since, Stripe, numbered, try_lock,
};
use crate::pubsub::publishing::Publishing;
use crate::remote::losses::Receivers;

impl Remote {
    /// Returns the number of the rule for a channel's history, if it has one.
    pub(crate) fn history_rule(&self, channel: &str) -> Option<u16> {
        self.order.histories.rules.of(channel)
    }

    fn has_histories(&self) -> bool {
        !self.order.histories.rules.is_empty()
    }

    /// Adds a publication to the history of its channel, whose `stripe` is locked. `kept` is the
    /// [`Frame::bare`] of its frame, made before.
    pub(crate) fn record(
        &self,
        stripe: &mut Stripe,
        publishing: &Publishing<'_>,
        rule: u16,
        kept: Frame,
        now: throng_io::Instant,
    ) -> Arc<Recorded> {
        let (histories, of) = (&self.order.histories, (publishing.channel, rule));
        let (recorded, is_over) = stripe.append(histories, of, (publishing.frame, kept), now);
        if is_over {
            histories.make_room(stripe, &self.order.stripes);
        }
        Arc::new(recorded)
    }

    /// Calls `join` under the lock of a channel's publications, with the place at which a member
    /// joins, whether it continues from `since`, and the publications that it has missed.
    pub(crate) fn join_at(
        &self,
        of: (&str, u16),
        since: Since,
        now: throng_io::Instant,
        join: impl FnOnce() -> bool,
    ) -> Option<Joined> {
        let mut stripe = self.order_of(of.0);
        join().then(|| stripe.join(&self.order.histories, of, since, now))
    }

    /// Returns the class of the publications of channels with this rule.
    pub(crate) fn history_class(&self, rule: u16) -> ClassIndex {
        self.order.histories.rule(rule).class
    }

    /// Counts a client that came back with a position.
    pub(crate) fn count_return(&self, recovered: bool) {
        self.order.histories.count_return(recovered);
    }

    /// Returns the last `most` publications of a channel's history that are kept, and the place
    /// behind the last one; `None`: the channel has no history, or a broker carries it and this
    /// process does not follow it, because it has no member here.
    #[must_use]
    pub fn history(&self, channel: &str, most: usize) -> Option<(Position, Vec<Publication>)> {
        self.history_rule(channel)?;
        let now = self.clock.read();
        let (position, kept) = match self.relay_of(channel) {
            Some(_) => {
                self.order_of(channel).last_followed(&self.order.histories, channel, most, now)?
            }
            None => self.order_of(channel).last(&self.order.histories, channel, most, now),
        };
        Some((position, numbered(position.epoch, &kept)))
    }

    /// Returns the rules for histories as text, in their order.
    #[must_use]
    pub fn history_rules(&self) -> Vec<String> {
        self.order.histories.rules.words()
    }

    /// Returns the figures of all histories; `None`: no channel has one.
    #[must_use]
    pub fn history_counts(&self) -> Option<HistoryCounts> {
        self.has_histories().then(|| self.order.histories.counts())
    }

    /// Removes expired publications from the histories of one stripe, a different stripe each
    /// second of each shard.
    pub(crate) fn expire_histories(&self, shard: usize, second: u64, now: throng_io::Instant) {
        // Threads of connections leave this to the accepting thread.
        if !self.has_histories() || self.registry.is_some() && shard != 0 {
            return;
        }
        let number = second as usize * self.shards.len() + shard;
        let stripe = &self.order.stripes[number % self.order.stripes.len()];
        // The thread that holds the stripe removes the expired publications of its channel.
        if let Some(mut stripe) = try_lock(stripe) {
            stripe.expire(&self.order.histories, now);
        }
    }

    /// Publishes to a channel with history. While a queue is full, waits for room until `deadline`
    /// and publishes nothing: members that miss a publication would have to come back.
    pub(super) fn put_recorded(
        &self,
        publishing: &Publishing<'_>,
        rule: u16,
        deadline: Option<Instant>,
    ) -> Result<Receipt, QueueFull> {
        let kept = publishing.frame.bare();
        loop {
            let mut stripe = self.order_of(publishing.channel);
            let homes = self.totals.homes_of(publishing.channel, None);
            if self.have_room(&homes) {
                let now = self.clock.read();
                let recorded = self.record(&mut stripe, publishing, rule, kept, now);
                return Ok(self.post_recorded(&homes, &recorded, publishing));
            }
            drop(stripe);
            if deadline.is_none_or(|deadline| Instant::now() >= deadline) {
                self.count_refused();
                return Err(QueueFull { receipt: None });
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Returns whether the queues of these shards have space. The queue of a connection's own
    /// thread is its backlog, for which no other waits.
    fn have_room(&self, homes: &[u16]) -> bool {
        let queues = homes.iter().filter_map(|home| self.shards.get(usize::from(*home)));
        self.registry.is_some() || queues.into_iter().all(|queue| queue.mailbox.has_room())
    }

    /// Posts a publication to the shards with members. A shard that cannot take it closes its
    /// members, which come back.
    fn post_recorded(
        &self,
        homes: &[u16],
        recorded: &Arc<Recorded>,
        &Publishing { except, began, .. }: &Publishing<'_>,
    ) -> Receipt {
        let receivers = Receivers::Channel(Arc::clone(&recorded.channel), except);
        let position = Some(recorded.position());
        let (receipt, mut slots) = self.receipt(homes.len() + 1, began, position);
        // One slot reports that the shard with the history has no receivers to count.
        slots.take_one().count(Delivery::default());
        let command = || {
            let (recorded, ack) = (Arc::clone(recorded), slots.take_one());
            Command::Recorded { recorded, except, ack }
        };
        self.post_to(homes, &receivers, command, &mut Vec::new());
        receipt
    }
}
