//! Publications that come from a broker.

use std::sync::Arc;

use throng_io::ConnId;

use super::{BROKER, Command, Remote};
use crate::backpressure::history::History;
use crate::outbox::frame::Frame;
use crate::pubsub::delivery::{AckSlot, Delivery, Receipt};
use crate::pubsub::history::{HistoryTail, Joined, Position, Since, Stripe};
use crate::pubsub::publishing::{PublishRoute, Publishing};
use crate::pubsub::relay::{Question, Relay, RelayFill};
use crate::remote::losses::Receivers;

impl Remote {
    /// Returns the broker that carries a channel, if one does.
    pub(crate) fn relay_of(&self, channel: &str) -> Option<&Arc<dyn Relay>> {
        self.order.relay.as_ref().filter(|relay| relay.carries(channel))
    }

    /// Returns whether the broker that carries a channel, if any, has been connected at any time
    /// since the start. Until then no member is admitted.
    #[must_use]
    pub fn was_linked(&self, channel: &str) -> bool {
        self.relay_of(channel).is_none_or(|relay| relay.was_linked(channel))
    }

    /// Returns the route of a publication where some channels have a history or a broker.
    #[inline(never)]
    pub(super) fn route_by_rule(
        &self,
        publishing: &Publishing<'_>,
        by: Option<ConnId>,
    ) -> PublishRoute {
        let Publishing { channel, frame, except, .. } = *publishing;
        let Some(relay) = self.relay_of(channel) else {
            return self.history_rule(channel).map_or(PublishRoute::Shards, PublishRoute::History);
        };
        let Some((fill, carried)) = relay.publish(channel, frame, except, by) else {
            let receipt = Receipt::known(Delivery { unreached: 1, ..Delivery::default() });
            return PublishRoute::Broker { receipt, crowded: None };
        };
        let crowded = match fill {
            RelayFill::Crowded(part) => Some(BROKER + usize::from(part)),
            RelayFill::Available => None,
        };
        PublishRoute::Broker { receipt: Receipt::carried(carried), crowded }
    }

    /// Returns the history that a channel has by its rule, with the bytes that it keeps.
    #[must_use]
    pub fn history_of(&self, channel: &str) -> Option<History> {
        let rule = self.history_rule(channel)?;
        let rule = self.order.histories.rule(rule);
        Some(rule.history.max_bytes(rule.max_bytes))
    }

    /// Sends a publication that a broker has delivered to the members of a channel without history.
    pub fn publish_followed(&self, channel: &str, frame: &Frame, except: Option<ConnId>) {
        let channel: Arc<str> = channel.into();
        let homes = self.totals.homes_of(&channel, None);
        let receivers = Receivers::Channel(Arc::clone(&channel), except);
        let _order = (homes.len() > 1).then(|| self.order_of(&channel));
        let command = || {
            let (channel, frame) = (Arc::clone(&channel), frame.clone());
            Command::Publish { channel, frame, except, ack: AckSlot::unclaimed() }
        };
        self.post_to(&homes, &receivers, command, &mut Vec::new());
    }

    /// Begins the sequence of a channel with history. After a loss its members are closed like slow
    /// members, and reconnect.
    pub fn begin_followed(&self, channel: &Arc<str>, tail: HistoryTail<'_>, is_loss: bool) {
        let Some(rule) = self.history_rule(channel) else { return };
        let mut stripe = self.order_of(channel);
        let histories = &self.order.histories;
        stripe.begin_followed(histories, (channel, rule), tail, self.clock.read());
        self.make_room(&mut stripe);
        if is_loss {
            self.end_members(channel);
        }
    }

    /// Closes the members of a channel, who miss messages: they reconnect.
    pub fn end_members(&self, channel: &Arc<str>) {
        self.each_queue(&self.totals.homes_of(channel, None), |_, queue| {
            queue.losses.add_hole(channel);
            queue.mailbox.wake();
        });
    }

    /// Keeps publications that the broker was asked for: the last publications up to the members'
    /// position.
    pub fn refill_followed(&self, channel: &Arc<str>, tail: HistoryTail<'_>) {
        let mut stripe = self.order_of(channel);
        let now = self.clock.read();
        stripe.refill_followed(&self.order.histories, channel, tail, now);
        self.make_room(&mut stripe);
    }

    fn make_room(&self, stripe: &mut Stripe) {
        if self.order.histories.is_over() {
            self.order.histories.make_room(stripe, &self.order.stripes);
        }
    }

    /// Sends the next publication of a sequence to the members of its channel.
    pub fn deliver_followed(
        &self,
        channel: &Arc<str>,
        position: Position,
        frame: &Frame,
        except: Option<ConnId>,
    ) {
        let mut stripe = self.order_of(channel);
        let (histories, now) = (&self.order.histories, self.clock.read());
        let recorded = stripe.append_followed(histories, channel, position, frame, now);
        self.make_room(&mut stripe);
        let Some(recorded) = recorded.map(Arc::new) else { return };
        let receivers = Receivers::Channel(Arc::clone(channel), except);
        let command = || {
            let (recorded, ack) = (Arc::clone(&recorded), AckSlot::unclaimed());
            Command::Recorded { recorded, except, ack }
        };
        let homes = self.totals.homes_of(channel, None);
        self.post_to(&homes, &receivers, command, &mut Vec::new());
    }

    /// Lets the members join that wait for a channel's position.
    pub fn admit_to_followed(&self, channel: &Arc<str>) {
        let mut stripe = self.order_of(channel);
        stripe.open_followed(channel, self.clock.read());
        self.each_queue(&self.totals.homes_of(channel, None), |_, queue| {
            let channel = Arc::clone(channel);
            queue.put_always(Command::Admit { channel, members: None });
        });
    }

    /// Forgets a sequence, unless its channel has members; returns whether it did.
    #[must_use]
    pub fn end_followed(&self, channel: &str) -> bool {
        let mut stripe = self.order_of(channel);
        let has_members = !self.totals.homes_of(channel, None).is_empty();
        if !has_members {
            stripe.end_followed(&self.order.histories, channel);
        }
        !has_members
    }

    /// Calls `join` under the lock of a channel's publications, and returns the place at which a
    /// member joins. `Err`: it waits, and the broker must be asked if there is a question, unless
    /// it was (`is_asked`); `Ok(None)`: it did not join.
    pub(crate) fn join_followed(
        &self,
        channel: &str,
        since: Since,
        is_asked: bool,
        join: impl FnOnce() -> bool,
    ) -> Result<Option<Joined>, Option<Question>> {
        let mut stripe = self.order_of(channel);
        if !join() {
            return Ok(None);
        }
        let (histories, now) = (&self.order.histories, self.clock.read());
        stripe.join_followed(histories, channel, since, (now, is_asked)).map(Some)
    }
}
