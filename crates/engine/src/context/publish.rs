//! Publications and broadcasts: receivers on this shard, and one command to each other shard with
//! receivers.

use std::cell::RefCell;
use std::sync::Arc;

use throng_io::{ConnId, Instant};

use crate::conn::record::Conn;
use crate::conn::stage::Stage;

use crate::connections::Connections;
use crate::connections::send::Published;
use crate::context::Core;
use crate::message::EndReason;
use crate::outbox::frame::Frame;
use crate::outbox::sent::Sent;
use crate::pubsub::delivery::{AckSlot, Delivery, Receipt};
use crate::pubsub::filter::Filter;
use crate::pubsub::presence::Announced;
use crate::remote::losses::{Lost, Receivers};
use crate::remote::{Command, Posting, PublishPath, shards_of};
use crate::samples::is_sampled;

impl Core {
    /// Sends to every member of `channel` but `except`, by one command to each shard with members.
    /// All members get these publications, from any shard or other threads, in one order.
    ///
    /// The members of this shard get it now, unless commands of other threads wait here: those come
    /// first.
    #[inline]
    pub fn publish(&mut self, channel: &str, frame: &Frame, except: Option<ConnId>) -> Receipt {
        self.connections.stats.publishes += 1;
        let began = is_sampled(self.connections.stats.publishes).then(|| self.clock.read());
        match self.remote.publish_path() {
            PublishPath::Alone if !self.has_commands() => {
                Receipt::known(self.publish_here(channel, frame, except, began))
            }
            PublishPath::Histories | PublishPath::Relayed => {
                self.publish_by_rule(channel, frame, except, began)
            }
            PublishPath::Alone | PublishPath::Shards => {
                self.publish_in_order(channel, frame, except, began, None)
            }
        }
    }

    /// Publishes as [`Core::publish`] does, for no connection that could be held back.
    pub fn publish_unheld(&mut self, channel: &str, frame: &Frame) -> Receipt {
        let receipt = self.publish(channel, frame, None);
        self.crowded.clear();
        receipt
    }

    /// Publishes where some channels have a history, or a broker carries some.
    #[inline(never)]
    fn publish_by_rule(
        &mut self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
        began: Option<Instant>,
    ) -> Receipt {
        let publisher = self.publisher.map(|id| (id, &mut self.crowded));
        if let Some(receipt) = self.remote.relay(channel, frame, except, publisher) {
            return receipt;
        }
        match self.remote.history_rule(channel) {
            Some(rule) => self.publish_recorded((channel, rule), frame, except, began).0,
            None => self.publish_in_order(channel, frame, except, began, None),
        }
    }

    /// Returns whether commands of other threads wait for this shard.
    #[must_use]
    #[inline]
    pub fn has_commands(&self) -> bool {
        !self.commands.is_empty() || self.queue.has_commands()
    }

    /// Publishes in the order of the channel; an `announced` message only if it is still current
    /// when its turn has come. Where all members are on this shard, and no commands wait for it,
    /// nothing of other shards can come before it.
    #[inline(never)]
    pub(super) fn publish_in_order(
        &mut self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
        began: Option<Instant>,
        announced: Option<&Announced>,
    ) -> Receipt {
        let name = self.find_homes(channel);
        if !self.has_commands() && self.has_receivers_here_only() {
            return Receipt::known(self.publish_here(channel, frame, except, began));
        }
        let name = name.unwrap_or_else(|| channel.into());
        let receivers = Receivers::Channel(Arc::clone(&name), except);
        let command = |ack| {
            let (channel, frame) = (Arc::clone(&name), frame.clone());
            Command::Publish { channel, frame, except, ack }
        };
        let order = Some((channel, announced));
        let (receipt, here) = self.post_in_order(order, &receivers, began, command);
        if let Some(ack) = here {
            ack.count(self.publish_here(channel, frame, except, began));
        }
        receipt
    }

    /// Lists the shards with members of `channel`, this one included: patterns of this shard alone
    /// are not looked for there. Returns the channel's name if it has members of its own.
    pub(super) fn find_homes(&mut self, channel: &str) -> Option<Arc<str>> {
        let own = self.shard as u16;
        let name = self.channels.homes(channel, &mut self.homes).map(Arc::clone);
        if !self.homes.contains(&own) {
            self.homes.push(own);
        }
        name
    }

    fn has_receivers_here_only(&self) -> bool {
        self.homes.iter().all(|home| usize::from(*home) == self.shard)
    }

    /// Posts a command to each shard that `homes` lists, in the order of a channel, if its
    /// announced message is still current, or in the order of all channels. If nothing waits for
    /// this shard, it gets no command, and its slot is returned: the receivers here are next.
    fn post_in_order(
        &mut self,
        channel: Option<(&str, Option<&Announced>)>,
        receivers: &Receivers,
        began: Option<Instant>,
        command: impl Fn(AckSlot) -> Command,
    ) -> (Receipt, Option<AckSlot>) {
        let Self { homes, shard, crowded, remote, commands, queue, .. } = self;
        let (receipt, mut acks) = Receipt::new(homes.len(), began);
        if remote.registry().is_some() {
            acks = acks.into_iter().map(AckSlot::of_one).collect();
        }
        let acks = RefCell::new(acks);
        let command = || command(acks.borrow_mut().pop().unwrap_or_else(AckSlot::unclaimed));
        let one = channel.map(|(channel, _)| remote.order_of(channel));
        let all = channel.is_none().then(|| remote.order_of_all());
        if let Some((channel, Some(announced))) = channel
            && !remote.is_current(channel, announced)
        {
            return (Receipt::known(Delivery::default()), None);
        }
        // Commands before this message were put into this shard's queue under the same lock.
        let here = commands.is_empty() && !queue.has_commands();
        let but = here.then_some(*shard);
        let posting = remote.post_to_others(but, Some(&homes[..]), receivers, command, crowded);
        drop((one, all));
        let is_home = homes.iter().any(|home| usize::from(*home) == *shard);
        self.count_commands(posting);
        if !here && is_home {
            self.hold_sender(receivers);
        }
        (receipt, acks.into_inner().pop().filter(|_| here && is_home))
    }

    /// Holds back further output to the sender, if it is a receiver: a publication waits in this
    /// shard's queue.
    #[cold]
    pub(super) fn hold_sender(&mut self, receivers: &Receivers) {
        let Some(id) = self.publisher else {
            self.waits_here = true;
            return;
        };
        let is_receiver = match receivers {
            Receivers::Channel(channel, except) => {
                *except != Some(id) && self.channels.gets(id.slot() as u32, channel)
            }
            Receivers::Filter(filter) => {
                let Self { channels, connections, .. } = self;
                let wanted = filter.subprotocol.as_deref();
                !filter.excludes(id)
                    && filter.include.as_ref().is_none_or(|ids| ids.binary_search(&id).is_ok())
                    && wanted.is_none_or(|name| connections.table.subprotocol(id) == Some(name))
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

    /// Holds back a session's output until the shard has carried out all commands that wait now.
    pub(super) fn hold_behind(&mut self, id: ConnId) {
        if self.connections.hold_behind(id) {
            self.queue.put_always(Command::Behind { of: id });
        }
    }

    /// Returns the members that joined after this publication was queued, in order.
    #[inline]
    pub(super) fn too_new(&mut self, channel: &str) -> Vec<ConnId> {
        if self.joining.is_empty() { Vec::new() } else { self.too_new_for(channel) }
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
        self.connections.stats.publishes += 1;
        let unreached = match self.remote.publish_path() {
            PublishPath::Alone => 0,
            PublishPath::Shards => self.publish_elsewhere(channel, frame, except),
            PublishPath::Histories | PublishPath::Relayed => {
                let publisher = self.publisher.map(|id| (id, &mut self.crowded));
                if let Some(receipt) = self.remote.relay(channel, frame, except, publisher) {
                    return receipt.total().unwrap_or_default();
                }
                if let Some(rule) = self.remote.history_rule(channel) {
                    return self.publish_recorded((channel, rule), frame, except, None).1;
                }
                self.publish_elsewhere(channel, frame, except)
            }
        };
        Delivery { unreached, ..self.publish_here(channel, frame, except, None) }
    }

    /// Sends to every connection that `filter` selects, by one command to each shard that may have
    /// some. It takes part in the order of all channels: see [`Core::publish`].
    pub fn broadcast(&mut self, filter: &Arc<Filter>, frame: &Frame) -> Receipt {
        self.connections.stats.publishes += 1;
        if self.remote.is_alone() && !self.has_commands() {
            return Receipt::known(self.broadcast_here(filter, frame));
        }
        self.broadcast_in_order(filter, frame)
    }

    #[inline(never)]
    fn broadcast_in_order(&mut self, filter: &Arc<Filter>, frame: &Frame) -> Receipt {
        match (&filter.include, &filter.channel) {
            (Some(ids), _) => self.homes = shards_of(ids),
            (None, Some(channel)) => drop(self.find_homes(channel)),
            (None, None) => self.homes = self.remote.numbers(),
        }
        if !self.has_commands() && self.has_receivers_here_only() {
            return Receipt::known(self.broadcast_here(filter, frame));
        }
        let receivers = Receivers::Filter(Arc::clone(filter));
        let command = |ack| {
            let (filter, frame) = (Arc::clone(filter), frame.clone());
            Command::Broadcast { filter, frame, ack }
        };
        let (receipt, here) = self.post_in_order(None, &receivers, None, command);
        if let Some(ack) = here {
            ack.count(self.broadcast_here(filter, frame));
        }
        receipt
    }

    #[inline(never)]
    fn publish_elsewhere(&mut self, channel: &str, frame: &Frame, except: Option<ConnId>) -> u64 {
        let Self { channels, homes, shard, crowded, .. } = self;
        let name = channels.homes(channel, homes);
        if homes.iter().all(|home| usize::from(*home) == *shard) {
            return 0;
        }
        let name = name.map_or_else(|| channel.into(), Arc::clone);
        let receivers = Receivers::Channel(Arc::clone(&name), except);
        let command = || {
            let (channel, frame) = (Arc::clone(&name), frame.clone());
            Command::Publish { channel, frame, except, ack: AckSlot::unclaimed() }
        };
        let homes = Some(&homes[..]);
        let posting = self.remote.post_to_others(Some(*shard), homes, &receivers, command, crowded);
        self.count_commands(posting)
    }

    /// Counts a publication's commands against the turn's budget; returns how many were lost.
    pub(super) fn count_commands(&mut self, posting: Posting) -> u64 {
        self.connections.outbox.record_commands(posting.posted);
        self.connections.stats.commands_dropped += posting.lost;
        posting.lost
    }

    /// Sends to the members of this shard, and measures that if the publication `began` at a known
    /// time.
    pub(crate) fn publish_here(
        &mut self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
        began: Option<Instant>,
    ) -> Delivery {
        self.publish_to_members(channel, frame, except, began, &[])
    }

    /// Sends a publication that has waited in this shard's queue to the members when it was queued.
    pub(crate) fn publish_queued(
        &mut self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
        began: Option<Instant>,
    ) -> Delivery {
        let new = self.too_new(channel);
        self.publish_to_members(channel, frame, except, began, &new)
    }

    fn publish_to_members(
        &mut self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
        began: Option<Instant>,
        new: &[ConnId],
    ) -> Delivery {
        if let Some(began) = began {
            self.samples.publish(began);
        }
        let mut delivery = Delivery::default();
        let of = Published { channel, class: self.connections.outbox.rules().of_channel(channel) };
        let Self { connections, channels, recent, .. } = self;
        // A member that waits for its place in the channel's history gets that before anything
        // else.
        let waiting = recent.waiting_for(channel);
        channels.matching(channel, |slot| {
            let Some(id) = connections.table.in_slot(slot) else { return };
            if Some(id) != except
                && waiting.is_none_or(|waiting| !waiting.contains_key(&id))
                && (new.is_empty() || new.binary_search(&id).is_err())
            {
                delivery.count(connections.publish_to(id, frame, of));
            }
        });
        delivery
    }

    /// Sends to receivers on this shard that the filter selects; each shard finds its own.
    pub(crate) fn broadcast_here(&mut self, filter: &Filter, frame: &Frame) -> Delivery {
        let mut delivery = Delivery::default();
        let new = filter.channel.as_deref().map(|channel| self.too_new(channel));
        let new = new.unwrap_or_default();
        self.each_receiver(filter, |connections, id, of| {
            if new.is_empty() || new.binary_search(&id).is_err() {
                delivery.count(connections.publish_to(id, frame, of));
            }
        });
        delivery
    }

    /// Begins the closing handshake with the connections of this shard that the filter selects, and
    /// counts them: those that are closing already are [`closed`](Delivery::closed).
    pub(crate) fn close_here(&mut self, filter: &Filter, code: u16, reason: &str) -> Delivery {
        let mut delivery = Delivery::default();
        self.each_receiver(filter, |connections, id, _| {
            let is_open = matches!(connections.table.stage(id), Stage::Open | Stage::Events);
            connections.close(id, code, reason);
            delivery.count(if is_open { Sent::Accepted } else { Sent::Closed });
        });
        delivery
    }

    /// Returns the sessions and event streams of this shard that the filter selects.
    pub(crate) fn selected(&mut self, filter: &Filter) -> Vec<ConnId> {
        let mut selected = Vec::new();
        self.each_receiver(filter, |connections, id, _| {
            if matches!(connections.table.stage(id), Stage::Open | Stage::Events) {
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
        let Self { connections, channels, shard, .. } = self;
        let channel = filter.channel.as_deref();
        let of = Published {
            channel: channel.unwrap_or_default(),
            class: channel.and_then(|channel| connections.outbox.rules().of_channel(channel)),
        };
        let mut offer = |connections: &mut Connections, id: ConnId| {
            let excluded = filter.excludes(id);
            let wanted = filter.subprotocol.as_deref();
            if !excluded
                && wanted.is_none_or(|name| connections.table.subprotocol(id) == Some(name))
            {
                each(connections, id, of);
            }
        };
        match (&filter.include, channel) {
            (included, Some(channel)) => channels.matching(channel, |slot| {
                if let Some(id) = connections.table.in_slot(slot)
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
                for slot in 0..connections.table.slots() {
                    if let Some(id) = connections.table.listener_in(slot) {
                        offer(connections, id);
                    }
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
                let rules = self.connections.outbox.rules();
                let class = match self.remote.history_rule(channel) {
                    Some(rule) => Some(rules.histories().rule(rule).class),
                    None => rules.of_channel(channel),
                };
                let of = Published { channel, class };
                let connections = &mut self.connections;
                self.channels.matching(channel, |slot| {
                    if let Some(id) = connections.table.in_slot(slot)
                        && Some(id) != *except
                    {
                        connections.miss(id, of, count);
                    }
                });
            }
            Receivers::Hole(channel) => {
                let connections = &mut self.connections;
                self.channels.matching(channel, |slot| {
                    if let Some(id) = connections.table.in_slot(slot)
                        && matches!(connections.table.stage(id), Stage::Open | Stage::Events)
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
                let history = self.connections.outbox.rules().histories().first_class();
                self.each_receiver(&Filter::default(), |connections, id, of| {
                    let class = history.or(of.class);
                    connections.miss(id, Published { class, ..of }, count);
                });
            }
        }
    }

    /// Holds the connection `by` if its last publication found a queue crowded.
    #[inline]
    pub(crate) fn hold_publisher(&mut self, by: ConnId) {
        self.publisher = None;
        if !self.crowded.is_empty() {
            let crowded = std::mem::take(&mut self.crowded);
            self.connections.hold_publisher(by, crowded);
        }
    }

    /// Returns whether publications have used up their part of the turn.
    #[inline]
    pub(crate) fn has_published_enough(&self) -> bool {
        self.connections.outbox.has_published_enough()
    }

    /// Returns whether a session's next message can be decoded: checks in one access to its record
    /// what [`Core::must_yield`] checks in several. False only means that those must be checked.
    #[inline(always)]
    pub(crate) fn can_continue(&self, id: ConnId) -> bool {
        let Connections { table, outbox, .. } = &self.connections;
        table.conn(id).is_some_and(|conn| outbox.is_free(conn))
            && !outbox.has_published_enough()
            && !outbox.has_worked_enough()
    }

    /// Returns whether decoding must pause for this connection: its output is congested, or others
    /// wait.
    pub(crate) fn must_yield(&self, id: ConnId) -> bool {
        self.has_published_enough()
            || self.connections.outbox.has_worked_enough()
            || self.connections.kept_backlog(id) > self.connections.outbox.high_water()
            || self.connections.table.conn(id).is_some_and(Conn::is_stopped)
            || self.connections.awaits_capacity(id)
    }
}
