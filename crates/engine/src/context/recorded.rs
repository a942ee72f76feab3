//! Publications of channels with history, and members that join at an exact place.

use std::sync::Arc;

use throng_io::{ConnId, Instant};

use crate::backpressure::ClassIndex;
use crate::conn::stage::{Stage, flag};
use crate::connections::dialect::Delivered;
use crate::connections::send::Published;
use crate::context::{Core, PubSub};
use crate::outbox::sent::Sent;
use crate::pubsub::delivery::{Delivery, Receipt};
use crate::pubsub::history::{Joined, Publication, Recorded, Recovery, Since};
use crate::pubsub::publishing::Publishing;
use crate::remote::Command;
use crate::remote::losses::Receivers;

impl Core {
    /// Adds a publication to the history of its channel, and sends it to every member but `except`.
    /// The shards with members are found under the lock that orders publications, so that members
    /// that join from now on get it from the history, and all others as a command.
    pub(super) fn record(&mut self, publishing: &Publishing<'_>, rule: u16) -> (Receipt, Delivery) {
        let Publishing { channel, except, began, .. } = *publishing;
        let remote = self.remote.clone();
        let (kept, now) = (publishing.frame.bare(), self.conns.now());
        let mut stripe = remote.order_of(channel);
        let recorded = remote.record(&mut stripe, publishing, rule, kept, now);
        self.find_homes(channel);
        let receivers = Receivers::Channel(Arc::clone(&recorded.channel), except);
        let position = Some(recorded.position());
        let (receipt, mut slots) = remote.receipt(self.pubsub.homes.len(), began, position);
        let command = || {
            let (recorded, ack) = (Arc::clone(&recorded), slots.take_one());
            Command::Recorded { recorded, except, ack }
        };
        // Commands before this message were put into this shard's queue under the same lock, or
        // were lost and recorded there, which ends the members that miss them.
        let is_next = !self.has_commands() && !self.mail.has_losses();
        if is_next {
            let here = self.shard;
            self.pubsub.homes.retain(|home| usize::from(*home) != here);
        }
        let posting =
            remote.post_to(&self.pubsub.homes, &receivers, command, &mut self.pubsub.crowded);
        drop(stripe);
        self.count_commands(posting);
        if !is_next {
            self.hold_sender(&receivers);
        }
        let mut delivery = Delivery::default();
        if is_next {
            delivery = self.deliver_recorded(&recorded, except, began);
            if let Some(ack) = slots.next() {
                ack.count(delivery);
            }
        }
        delivery.unreached = posting.lost;
        (receipt, delivery)
    }

    /// Sends a publication to the members of this shard that have not got it from the history.
    pub(crate) fn deliver_recorded(
        &mut self,
        recorded: &Recorded,
        except: Option<ConnId>,
        began: Option<Instant>,
    ) -> Delivery {
        if let Some(began) = began {
            self.clocks.samples().record_publication(began);
        }
        let mut delivery = Delivery::default();
        let Recorded { channel, class, frame, .. } = recorded;
        let of = Published { channel, class: Some(*class) };
        let new = self.too_new(channel);
        if self.conns.have_views() {
            let position = Some(recorded.position());
            let delivered = Delivered { channel, frame, position };
            return self.deliver_seen((&delivered, Some(recorded)), of, |recent, id| {
                Some(id) == except
                    || !recent.is_empty() && recent.has_got(id, channel, recorded.position())
                    || new.binary_search(&id).is_ok()
            });
        }
        let Self { conns: connections, pubsub: PubSub { channels, recent, .. }, .. } = self;
        channels.matching(channel, |slot| {
            let Some(id) = connections.at_slot(slot) else { return };
            if Some(id) == except
                || !recent.is_empty() && recent.has_got(id, channel, recorded.position())
                || !new.is_empty() && new.binary_search(&id).is_ok()
            {
                return;
            }
            let frame = connections.plain_form(id, recorded);
            delivery.count(connections.deliver_to(id, frame, of));
        });
        delivery
    }

    /// Adds a connection to a channel at an exact place.
    pub(super) fn join_at(&mut self, id: ConnId, channel: &str, since: Since) -> Recovery {
        let (slot, now) = (id.slot() as u32, self.conns.now());
        let Some(rule) = self.remote.history_rule(channel) else {
            self.begin_join(id, channel, false);
            let joined = self.pubsub.channels.subscribe(slot, channel);
            return Recovery { joined, ..Recovery::default() };
        };
        if self.remote.relay_of(channel).is_some() {
            return self.join_followed(id, (channel, rule), since);
        }
        // A member is registered under the lock, so each later publication is posted here.
        let Self { pubsub: PubSub { channels, .. }, remote, .. } = &mut *self;
        let join = || channels.subscribe(slot, channel);
        let Some(place) = remote.join_at((channel, rule), since, now, join) else {
            return Recovery::default();
        };
        // Publications up to the position may be among the commands that wait.
        if self.has_commands() {
            self.pubsub.recent.add(id, channel.into(), place.position);
        }
        self.finish_join(id, rule, &place, since)
    }

    /// Completes a join: returns the part of the history for a member that has joined at `place`.
    pub(super) fn finish_join(
        &self,
        id: ConnId,
        rule: u16,
        place: &Joined,
        since: Since,
    ) -> Recovery {
        let class = self.remote.history_class(rule);
        let mut missed = place.missed();
        let fits = self.fits(id, class, &missed);
        let recovered = place.recovered && fits;
        if !fits {
            missed.clear();
        }
        if since.position().is_some() {
            self.remote.count_return(recovered);
        }
        let position = Some(place.position);
        let class = Some(class);
        let too_large = !fits;
        let pending = false;
        Recovery { joined: true, pending, position, recovered, missed, too_large, class }
    }

    /// Returns whether publications fit into the queue of a connection. Messages do, since a
    /// channel keeps no more than that; events may be several times as large.
    fn fits(&self, id: ConnId, class: ClassIndex, missed: &[Publication]) -> bool {
        if self.conns.stage(id) != Stage::Events {
            return true;
        }
        let max = self.conns.rules().class(class).max_backlog;
        let room = max.saturating_sub(self.conns.backlog(id));
        let add = |sum: usize, missed: &Publication| {
            Some(sum + missed.frame().event_len()).filter(|sum| *sum <= room)
        };
        missed.iter().try_fold(0, add).is_some()
    }

    /// Sends the missed publications of a connection, by the rules of the channel.
    pub(super) fn send_missed(&mut self, id: ConnId, recovery: &Recovery) -> Sent {
        let of = Published { channel: "", class: recovery.class };
        let with_offset = self.conns.has(id, flag::OFFSETS);
        let mut sent = Sent::Accepted;
        let have_views = self.conns.have_views();
        for missed in &recovery.missed {
            let mut unread = Delivery::default();
            if have_views && !self.conns.is_wanted(id, missed.frame(), of, &mut unread) {
                continue;
            }
            sent = match with_offset {
                true => self.conns.send_frame(id, &missed.with_offset(), of),
                false => self.conns.send_frame(id, missed.frame(), of),
            };
            if matches!(sent, Sent::Dropped | Sent::Closed) {
                break;
            }
        }
        sent
    }
}
