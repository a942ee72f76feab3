//! Joins and leaves of channels with presence.

use std::sync::Arc;

use throng_io::ConnId;

use crate::context::{Core, PubSub};
use crate::outbox::about::PresenceChange;
use crate::pubsub::channels::check_pattern;
use crate::pubsub::presence::{Announced, PresenceEvent};
use crate::pubsub::publishing::Publishing;
use crate::pubsub::relay::CarriedPresence;
use crate::remote::presence::Panicked;

impl Core {
    /// Adds a connection that has joined a channel to its presence, if the channel has presence.
    #[inline]
    pub(super) fn enter(&mut self, id: ConnId, channel: &str, info: &str) {
        if self.remote.has_presence() {
            self.enter_listed(id, channel, info);
        }
    }

    #[inline(never)]
    fn enter_listed(&mut self, id: ConnId, channel: &str, info: &str) {
        let presences = self.remote.presence_of(channel);
        if presences.is_some_and(|presences| presences.join(channel, id, info)) {
            // A client that waits for its position in the channel's history gets that history
            // first.
            if self
                .pubsub
                .recent
                .waiting_for(channel)
                .is_none_or(|waiting| !waiting.contains_key(&id))
            {
                self.tell_if_unannounced(id, channel);
            }
            self.distribute(id, channel, info, PresenceChange::Join);
        }
    }

    /// Sends a notice to a client that has joined a channel without announcements of joins and
    /// leaves, behind its handler's current output.
    pub(crate) fn tell_if_unannounced(&mut self, id: ConnId, channel: &str) {
        if !self.remote.announces(channel) {
            return;
        }
        let mut known_announced = true;
        loop {
            match self.remote.changed_frame(channel, known_announced) {
                Ok(Some(frame)) => self.remote.send_always(id, frame),
                Ok(None) => return,
                Err(Panicked) => {
                    self.conns.count(|stats| stats.handler_panics += 1);
                    return;
                }
            }
            // Another shard may have changed it and queued its message first.
            known_announced = !known_announced;
        }
    }

    /// Removes a connection that has left a channel from its presence.
    #[inline]
    pub(super) fn exit(&mut self, id: ConnId, channel: &str) {
        if self.remote.has_presence() {
            self.exit_listed(id, channel);
        }
    }

    #[inline(never)]
    fn exit_listed(&mut self, id: ConnId, channel: &str) {
        let presences = self.remote.presence_of(channel);
        if let Some(info) = presences.and_then(|presences| presences.leave(channel, id)) {
            self.distribute(id, channel, &info, PresenceChange::Leave);
        }
    }

    /// Adds the member of a pattern without wildcards, which is the channel of that name.
    pub(super) fn enter_pattern(&mut self, id: ConnId, pattern: &str) {
        if self.remote.has_presence() && check_pattern(pattern) == Ok(false) {
            self.enter_listed(id, pattern, "");
        }
    }

    /// Removes the member of a pattern without wildcards.
    pub(super) fn exit_pattern(&mut self, id: ConnId, pattern: &str) {
        if self.remote.has_presence() && check_pattern(pattern) == Ok(false) {
            self.exit_listed(id, pattern);
        }
    }

    /// Ends all subscriptions of a connection.
    pub(crate) fn unsubscribe_all(&mut self, id: ConnId) {
        let slot = id.slot() as u32;
        if self.pubsub.recent.are_waiting() {
            let PubSub { channels, recent, .. } = &mut self.pubsub;
            channels.subscriptions(slot).for_each(|channel| recent.stop_waiting(id, channel));
        }
        if !self.remote.has_presence() {
            self.pubsub.channels.unsubscribe_all(slot);
            return;
        }
        let channels: Vec<_> = self.pubsub.channels.subscriptions(slot).map(Arc::clone).collect();
        self.pubsub.channels.unsubscribe_all(slot);
        channels.iter().for_each(|channel| self.exit_listed(id, channel));
    }

    /// Gives a join or leave to the broker that carries its channel, or else to the other members.
    fn distribute(&mut self, client: ConnId, channel: &str, info: &str, change: PresenceChange) {
        match self.remote.relay_of(channel) {
            Some(relay) => {
                let announces = self.remote.announces(channel);
                relay.present(CarriedPresence { change, channel, client, info, announces });
            }
            None => self.announce(client, channel, info, change),
        }
    }

    /// Sends a join or leave to the other members of its channel, or the notice to all members that
    /// announcements end. The message does not enter the channel's history.
    fn announce(&mut self, id: ConnId, channel: &str, info: &str, change: PresenceChange) {
        let event = PresenceEvent { change, channel, node: None, client: id.to_bits(), info };
        match self.remote.presence_frame(&event) {
            Ok(Some(announced)) => {
                let (frame, except) = match &announced {
                    Announced::Event(frame) => (frame, Some(id)),
                    Announced::Switch { frame, .. } => (frame, None),
                };
                // The message was made without the order's lock, under which functions of the
                // program must not be called. It is not sent if another shard has switched first.
                let announced = Some(&announced);
                let publishing =
                    Publishing { announced, ..Publishing::new(channel, frame, except) };
                self.post_to_members(&publishing);
                self.delay_if_crowded(id);
            }
            Ok(None) => {}
            Err(Panicked) => self.conns.count(|stats| stats.handler_panics += 1),
        }
    }
}
