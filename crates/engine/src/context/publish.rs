//! Publications and broadcasts: receivers on this shard, and one command to each other shard with
//! receivers.

use std::sync::Arc;

use throng_io::ConnId;

use crate::conn::stage::Stage;
use crate::connections::Connections;
use crate::connections::dialect::{Delivered, Forms};
use crate::connections::send::Published;
use crate::context::{Core, PubSub};
use crate::message::EndReason;
use crate::outbox::frame::Frame;
use crate::outbox::sent::Sent;
use crate::pubsub::delivery::{AckSlot, Delivery, Receipt};
use crate::pubsub::filter::Filter;
use crate::pubsub::publishing::{PublishRoute, Publishing};
use crate::remote::losses::{Lost, Receivers};
use crate::remote::{Command, Posting, shards_of};
use crate::samples::is_sampled;

impl Core {
    /// Sends to every member of `channel` but `except`, by one command to each shard with members.
    /// All members get these publications, from any shard or other threads, in one order.
    ///
    /// The members of this shard get it now, unless commands of other threads wait here: these
    /// commands come first.
    #[inline]
    pub fn publish(&mut self, channel: &str, frame: &Frame, except: Option<ConnId>) -> Receipt {
        self.conns.count(|stats| stats.publishes += 1);
        let began = is_sampled(self.conns.stats().publishes).then(|| self.clocks.read());
        let publishing = Publishing { began, ..Publishing::new(channel, frame, except) };
        match self.remote.route(&publishing, self.pubsub.publisher) {
            PublishRoute::Here if !self.has_commands() => {
                Receipt::known(self.deliver_here(&publishing, &[]))
            }
            PublishRoute::Here | PublishRoute::Shards => self.post_to_members(&publishing),
            PublishRoute::History(rule) => self.record(&publishing, rule).0,
            PublishRoute::Broker { receipt, crowded } => {
                self.note_crowded(crowded);
                receipt
            }
        }
    }

    /// Publishes as [`Core::publish`] does, for no connection that could be held back.
    pub fn publish_unheld(&mut self, channel: &str, frame: &Frame) -> Receipt {
        let receipt = self.publish(channel, frame, None);
        self.pubsub.crowded.clear();
        receipt
    }

    /// Records that the queue to the broker is crowded, for the connection that publishes.
    fn note_crowded(&mut self, part: Option<usize>) {
        if let Some(part) = part
            && self.pubsub.publisher.is_some()
            && !self.pubsub.crowded.contains(&part)
        {
            self.pubsub.crowded.push(part);
        }
    }

    /// Returns whether commands of other threads wait for this shard.
    #[must_use]
    #[inline]
    pub fn has_commands(&self) -> bool {
        self.mail.has_commands()
    }

    /// Publishes in the order of the channel; a message about presence is sent only if it is still
    /// current at its turn. Where all members are on this shard and no commands wait for it, no
    /// publication of another shard can come first.
    #[inline(never)]
    pub(super) fn post_to_members(&mut self, publishing: &Publishing<'_>) -> Receipt {
        let Publishing { channel, frame, except, .. } = *publishing;
        let name = self.find_homes(channel);
        if !self.has_commands() && self.has_receivers_here_only() {
            return Receipt::known(self.deliver_here(publishing, &[]));
        }
        let name = name.unwrap_or_else(|| channel.into());
        let receivers = Receivers::Channel(Arc::clone(&name), except);
        let command = |ack| {
            let (channel, frame) = (Arc::clone(&name), frame.clone());
            Command::Publish { channel, frame, except, ack }
        };
        let (receipt, here) = self.post_in_order(Some(publishing), &receivers, command);
        if let Some(ack) = here {
            ack.count(self.deliver_here(publishing, &[]));
        }
        receipt
    }

    /// Lists the shards with members of `channel`, this one included: patterns of this shard alone
    /// are not looked for there. Returns the channel's name if it has members of its own.
    pub(super) fn find_homes(&mut self, channel: &str) -> Option<Arc<str>> {
        let own = self.shard as u16;
        let name = self.pubsub.channels.homes(channel, &mut self.pubsub.homes).map(Arc::clone);
        if !self.pubsub.homes.contains(&own) {
            self.pubsub.homes.push(own);
        }
        name
    }

    fn has_receivers_here_only(&self) -> bool {
        self.pubsub.homes.iter().all(|home| usize::from(*home) == self.shard)
    }

    /// Posts a command to each shard that `homes` lists: a publication to a channel in the order of
    /// its channel, any other in the order of all channels. If no commands wait for this shard, it
    /// gets no command and its slot is returned: the receivers here are served next.
    fn post_in_order(
        &mut self,
        publishing: Option<&Publishing<'_>>,
        receivers: &Receivers,
        command: impl Fn(AckSlot) -> Command,
    ) -> (Receipt, Option<AckSlot>) {
        let Self { pubsub: PubSub { homes, crowded, .. }, shard, remote, mail, .. } = self;
        let began = publishing.and_then(|publishing| publishing.began);
        let (receipt, mut slots) = remote.receipt(homes.len(), began, None);
        let is_home = homes.iter().any(|home| usize::from(*home) == *shard);
        let (posting, is_next) = {
            let _channel = publishing.map(|publishing| remote.order_of(publishing.channel));
            let _all = publishing.is_none().then(|| remote.order_of_all());
            if publishing.is_some_and(|publishing| !remote.is_current(publishing)) {
                return (Receipt::known(Delivery::default()), None);
            }
            // Commands before this message were put into this shard's queue under the same lock.
            let is_next = !mail.has_commands();
            if is_next {
                homes.retain(|home| usize::from(*home) != *shard);
            }
            let command = || command(slots.take_one());
            (remote.post_to(homes, receivers, command, crowded), is_next)
        };
        self.count_commands(posting);
        if !is_next && is_home {
            self.hold_sender(receivers);
        }
        (receipt, slots.next().filter(|_| is_next && is_home))
    }

    /// Holds back further output to the sender, if it is a receiver: a publication waits in this
    /// shard's queue.
    #[cold]
    pub(super) fn hold_sender(&mut self, receivers: &Receivers) {
        let Some(id) = self.pubsub.publisher else {
            self.pubsub.waits_here = true;
            return;
        };
        let is_receiver = match receivers {
            Receivers::Channel(channel, except) => {
                *except != Some(id) && self.pubsub.channels.gets(id.slot() as u32, channel)
            }
            Receivers::Filter(filter) => {
                let Self { pubsub: PubSub { channels, .. }, conns: connections, .. } = self;
                let wanted = filter.subprotocol.as_deref();
                !filter.excludes(id)
                    && filter.include.as_ref().is_none_or(|ids| ids.binary_search(&id).is_ok())
                    && wanted.is_none_or(|name| connections.subprotocol(id) == Some(name))
                    && filter
                        .channel
                        .as_deref()
                        .is_none_or(|channel| channels.gets(id.slot() as u32, channel))
            }
            // It is closed.
            Receivers::Hole(_) => false,
            Receivers::Any => true,
        };
        if is_receiver {
            self.hold_behind(id);
        }
    }

    /// Keeps a session's output back until the shard has carried out all commands that wait now.
    pub(super) fn hold_behind(&mut self, id: ConnId) {
        if self.conns.hold_behind(id) {
            self.mail.put(Command::Behind { of: id });
        }
    }

    /// Returns the members that joined after this publication was queued, in order.
    #[inline]
    pub(crate) fn too_new(&mut self, channel: &str) -> Vec<ConnId> {
        if self.pubsub.joining.is_empty() { Vec::new() } else { self.too_new_for(channel) }
    }

    /// Sends to every member of `channel` but `except`, on this shard now, and by one command each
    /// on the others that have members: members of different shards may see different orders,
    /// unless the channel has a history. The counts are this shard's.
    pub fn publish_unordered(
        &mut self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
    ) -> Delivery {
        self.conns.count(|stats| stats.publishes += 1);
        let publishing = Publishing::new(channel, frame, except);
        let unreached = match self.remote.route(&publishing, self.pubsub.publisher) {
            PublishRoute::Here => 0,
            PublishRoute::Shards => self.post_elsewhere(&publishing),
            PublishRoute::History(rule) => return self.record(&publishing, rule).1,
            PublishRoute::Broker { receipt, crowded } => {
                self.note_crowded(crowded);
                return receipt.total().unwrap_or_default();
            }
        };
        Delivery { unreached, ..self.deliver_here(&publishing, &[]) }
    }

    /// Sends to every connection that `filter` selects, by one command to each shard that may have
    /// some. It takes part in the order of all channels: see [`Core::publish`].
    pub fn broadcast(&mut self, filter: &Arc<Filter>, frame: &Frame) -> Receipt {
        self.conns.count(|stats| stats.publishes += 1);
        if self.remote.is_alone() && !self.has_commands() {
            return Receipt::known(self.broadcast_here(filter, frame));
        }
        self.broadcast_in_order(filter, frame)
    }

    #[inline(never)]
    fn broadcast_in_order(&mut self, filter: &Arc<Filter>, frame: &Frame) -> Receipt {
        match (&filter.include, &filter.channel) {
            (Some(ids), _) => self.pubsub.homes = shards_of(ids),
            (None, Some(channel)) => drop(self.find_homes(channel)),
            (None, None) => self.pubsub.homes = self.remote.numbers(),
        }
        if !self.has_commands() && self.has_receivers_here_only() {
            return Receipt::known(self.broadcast_here(filter, frame));
        }
        let receivers = Receivers::Filter(Arc::clone(filter));
        let command = |ack| {
            let (filter, frame) = (Arc::clone(filter), frame.clone());
            Command::Broadcast { filter, frame, ack }
        };
        let (receipt, here) = self.post_in_order(None, &receivers, command);
        if let Some(ack) = here {
            ack.count(self.broadcast_here(filter, frame));
        }
        receipt
    }

    #[inline(never)]
    fn post_elsewhere(&mut self, publishing: &Publishing<'_>) -> u64 {
        let Publishing { channel, frame, except, .. } = *publishing;
        let Self { pubsub: PubSub { channels, homes, crowded, .. }, shard, .. } = self;
        let name = channels.homes(channel, homes);
        homes.retain(|home| usize::from(*home) != *shard);
        if homes.is_empty() {
            return 0;
        }
        let name = name.map_or_else(|| channel.into(), Arc::clone);
        let receivers = Receivers::Channel(Arc::clone(&name), except);
        let command = || {
            let (channel, frame) = (Arc::clone(&name), frame.clone());
            Command::Publish { channel, frame, except, ack: AckSlot::unclaimed() }
        };
        let posting = self.remote.post_to(homes, &receivers, command, crowded);
        self.count_commands(posting)
    }

    /// Counts a publication's commands against the turn's budget; returns how many were lost.
    pub(super) fn count_commands(&mut self, posting: Posting) -> u64 {
        self.conns.record_commands(posting.posted);
        self.conns.count(|stats| stats.commands_dropped += posting.lost);
        posting.lost
    }

    /// Sends to the members of this shard, except members in `new`, which joined after the
    /// publication was queued. Measures the duration if the start time is known.
    pub(crate) fn deliver_here(&mut self, publishing: &Publishing<'_>, new: &[ConnId]) -> Delivery {
        let Publishing { channel, frame, except, .. } = *publishing;
        if let Some(began) = publishing.began {
            self.clocks.samples().record_publication(began);
        }
        let mut delivery = Delivery::default();
        let of = Published { channel, class: self.conns.rules().of_channel(channel) };
        if self.conns.have_views() {
            let delivered = Delivered { channel, frame, position: None };
            return self.deliver_seen((&delivered, None), of, |recent, id| {
                let waiting = recent.waiting_for(channel);
                Some(id) == except
                    || waiting.is_some_and(|waiting| waiting.contains_key(&id))
                    || new.binary_search(&id).is_ok()
            });
        }
        let Self { conns: connections, pubsub: PubSub { channels, recent, .. }, .. } = self;
        // A member that waits for its place in the channel's history gets that before anything
        // else.
        let waiting = recent.waiting_for(channel);
        channels.matching(channel, |slot| {
            let Some(id) = connections.at_slot(slot) else { return };
            if Some(id) != except
                && waiting.is_none_or(|waiting| !waiting.contains_key(&id))
                && (new.is_empty() || new.binary_search(&id).is_err())
            {
                delivery.count(connections.deliver_to(id, frame, of));
            }
        });
        delivery
    }

    /// Sends to receivers on this shard that the filter selects; each shard finds its own.
    pub(crate) fn broadcast_here(&mut self, filter: &Filter, frame: &Frame) -> Delivery {
        let mut delivery = Delivery::default();
        let new = filter.channel.as_deref().map(|channel| self.too_new(channel));
        let new = new.unwrap_or_default();
        let have_views = self.conns.have_views();
        let channel = filter.channel.as_deref().unwrap_or_default();
        let (message, mut forms) = (Delivered { channel, frame, position: None }, Forms::default());
        self.each_receiver(filter, |connections, id, of| {
            if new.is_empty() || new.binary_search(&id).is_err() {
                match have_views {
                    true => {
                        let both = (&mut forms, &mut delivery);
                        connections.deliver_seen(id, (&message, frame), of, both);
                    }
                    false => delivery.count(connections.deliver_to(id, frame, of)),
                }
            }
        });
        delivery
    }

    /// Begins the closing handshake with the connections of this shard that the filter selects, and
    /// counts them: those that are closing already are [`closed`](Delivery::closed).
    pub(crate) fn close_here(&mut self, filter: &Filter, code: u16, reason: &str) -> Delivery {
        let mut delivery = Delivery::default();
        self.each_receiver(filter, |connections, id, _| {
            let is_open = matches!(connections.stage(id), Stage::Open | Stage::Events);
            connections.close_from_others(id, code, reason);
            delivery.count(if is_open { Sent::Accepted } else { Sent::Closed });
        });
        delivery
    }

    /// Returns the sessions and event streams of this shard that the filter selects.
    pub(crate) fn selected(&mut self, filter: &Filter) -> Vec<ConnId> {
        let mut selected = Vec::new();
        self.each_receiver(filter, |connections, id, _| {
            if matches!(connections.stage(id), Stage::Open | Stage::Events) {
                selected.push(id);
            }
        });
        selected
    }

    /// Calls `each` with every connection of this shard that `filter` selects.
    fn each_receiver(
        &mut self,
        filter: &Filter,
        mut each: impl FnMut(&mut Connections, ConnId, Published<'_>),
    ) {
        let Self { conns: connections, pubsub: PubSub { channels, .. }, shard, .. } = self;
        let channel = filter.channel.as_deref();
        let of = Published {
            channel: channel.unwrap_or_default(),
            class: channel.and_then(|channel| connections.rules().of_channel(channel)),
        };
        let mut offer = |connections: &mut Connections, id: ConnId| {
            let excluded = filter.excludes(id);
            let wanted = filter.subprotocol.as_deref();
            if !excluded && wanted.is_none_or(|name| connections.subprotocol(id) == Some(name)) {
                each(connections, id, of);
            }
        };
        match (&filter.include, channel) {
            (included, Some(channel)) => channels.matching(channel, |slot| {
                if let Some(id) = connections.at_slot(slot)
                    && included.as_ref().is_none_or(|ids| ids.binary_search(&id).is_ok())
                {
                    offer(connections, id);
                }
            }),
            (Some(included), None) => {
                for &id in included.iter().filter(|id| id.shard() == *shard) {
                    offer(connections, id);
                }
            }
            (None, None) => {
                let mut next = 0;
                while let Some(id) = connections.next_listener(&mut next) {
                    offer(connections, id);
                }
            }
        }
    }

    /// Applies the policy of each receiver that misses publications because this shard's queue was
    /// full.
    #[cold]
    pub(crate) fn make_good(&mut self, lost: &Lost) {
        let count = lost.count;
        match &lost.receivers {
            Receivers::Channel(channel, except) => {
                let rules = self.conns.rules();
                let class = match self.remote.history_rule(channel) {
                    Some(rule) => Some(rules.histories().rule(rule).class),
                    None => rules.of_channel(channel),
                };
                let of = Published { channel, class };
                let connections = &mut self.conns;
                self.pubsub.channels.matching(channel, |slot| {
                    if let Some(id) = connections.at_slot(slot)
                        && Some(id) != *except
                    {
                        connections.miss(id, of, count);
                    }
                });
            }
            Receivers::Hole(channel) => {
                let connections = &mut self.conns;
                self.pubsub.channels.matching(channel, |slot| {
                    if let Some(id) = connections.at_slot(slot)
                        && matches!(connections.stage(id), Stage::Open | Stage::Events)
                    {
                        connections.fail_for(id, EndReason::Loss);
                    }
                });
            }
            Receivers::Filter(filter) => {
                self.each_receiver(filter, |connections, id, of| connections.miss(id, of, count));
            }
            Receivers::Any => {
                // Each may be a member of a channel with history, which must not miss anything.
                let history = self.conns.rules().histories().first_class();
                self.each_receiver(&Filter::default(), |connections, id, of| {
                    let class = history.or(of.class);
                    connections.miss(id, Published { class, ..of }, count);
                });
            }
        }
    }

    /// Delays the connection `by` if its last publication found a queue crowded.
    #[inline]
    pub(crate) fn delay_if_crowded(&mut self, by: ConnId) {
        self.pubsub.publisher = None;
        if !self.pubsub.crowded.is_empty() {
            let crowded = std::mem::take(&mut self.pubsub.crowded);
            self.conns.delay(by, crowded);
        }
    }
}
