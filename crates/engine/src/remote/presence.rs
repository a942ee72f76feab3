//! Presence, by any thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::Remote;
use crate::outbox::frame::Frame;
use crate::pubsub::presence::{
    Announced, Presence, PresenceCounts, PresenceEvent, Presences, Present,
};
use crate::pubsub::publishing::Publishing;
use crate::pubsub::relay::{CarriedPresence, Relay};

/// Error of a program's function that panicked.
pub(crate) struct Panicked;

impl Remote {
    /// Returns whether some channel has presence.
    #[inline]
    pub(crate) fn has_presence(&self) -> bool {
        self.order.presences.is_some()
    }

    /// Returns the presence of all channels, if this one has it.
    pub(crate) fn presence_of(&self, channel: &str) -> Option<&Presences> {
        self.order.presences.as_ref().filter(|presences| presences.rules.of(channel).is_some())
    }

    /// Returns the message that members get for a join or leave, which the program may make. In a
    /// channel of too many members there is no message, or the notice that announcements end.
    pub(crate) fn presence_frame(
        &self,
        event: &PresenceEvent<'_>,
    ) -> Result<Option<Announced>, Panicked> {
        self.made(|presences| presences.announced(event, || self.subscribers(event.channel)))
    }

    /// Returns the message for a member that knows whether joins and leaves were announced in a
    /// channel, if that has changed.
    pub(crate) fn changed_frame(
        &self,
        channel: &str,
        known_announced: bool,
    ) -> Result<Option<Frame>, Panicked> {
        let members = self.subscribers(channel);
        self.made(|presences| presences.changed_since(channel, members, known_announced))
    }

    /// Calls functions of the program and returns their result.
    fn made<T>(&self, make: impl FnOnce(&Presences) -> Option<T>) -> Result<Option<T>, Panicked> {
        let made = catch_unwind(AssertUnwindSafe(|| self.order.presences.as_ref().and_then(make)));
        made.map_err(|panic| {
            // The panic hook has reported it. Leak the payload: its `Drop` could panic.
            std::mem::forget(panic);
            Panicked
        })
    }

    /// Returns whether members of a channel get joins and leaves.
    #[must_use]
    pub fn announces(&self, channel: &str) -> bool {
        let presences = self.order.presences.as_ref();
        let rule = presences.and_then(|presences| presences.rules.of(channel));
        rule.is_some_and(Presence::announces)
    }

    /// Returns the rules for presence as text, in their order.
    #[must_use]
    pub fn presence_rules(&self) -> Vec<String> {
        self.order.presences.as_ref().map_or_else(Vec::new, |presences| presences.rules.words())
    }

    /// Returns whether members of a channel must still get this message. A message about presence
    /// is obsolete if another shard has switched announcements since it was made.
    pub(crate) fn is_current(&self, publishing: &Publishing<'_>) -> bool {
        let Publishing { channel, announced: Some(announced), .. } = *publishing else {
            return true;
        };
        let presences = self.order.presences.as_ref();
        presences.is_some_and(|all| all.is_announced(channel) == announced.is_announced())
    }

    /// Sends a join or leave that a broker has delivered to the members of its channel, except the
    /// client itself, if it belongs to this process (`is_own`).
    pub fn announce_followed(&self, node: u64, is_own: bool, presence: &CarriedPresence<'_>) {
        let CarriedPresence { change, channel, client, info, .. } = *presence;
        let event =
            PresenceEvent { change, channel, node: Some(node), client: client.to_bits(), info };
        match self.presence_frame(&event) {
            Ok(Some(Announced::Event(frame))) => {
                self.publish_followed(channel, &frame, is_own.then_some(client));
            }
            Ok(Some(Announced::Switch { frame, .. })) => {
                self.publish_followed(channel, &frame, None);
            }
            Ok(None) | Err(Panicked) => {}
        }
    }

    /// Returns the number of clients that are members of a channel; `None`: it has no presence.
    #[must_use]
    pub fn present(&self, channel: &str) -> Option<usize> {
        Some(self.presence_of(channel)?.count(channel))
    }

    /// Returns the number of subscriptions to exactly this channel, or pattern, on all shards.
    #[must_use]
    pub fn subscribers(&self, channel: &str) -> usize {
        self.totals.count(channel)
    }

    /// Returns the broker, if there is one.
    #[must_use]
    pub fn broker(&self) -> Option<&Arc<dyn Relay>> {
        self.order.relay.as_ref()
    }

    /// Returns up to `most` clients that are members of a channel; `None`: it has no presence.
    #[must_use]
    pub fn presence(&self, channel: &str, most: usize) -> Option<Vec<Present>> {
        Some(self.presence_of(channel)?.list(channel, most))
    }

    /// Returns the memory of histories and presence in all channels: now, and with presence at its
    /// maximum since the last call.
    pub(crate) fn kept_memory(&self) -> (usize, usize) {
        let of_histories = self.order.histories.memory();
        let (now, most) = self.order.presences.as_ref().map_or((0, 0), Presences::memory);
        (of_histories + now, of_histories + most)
    }

    /// Returns the figures of presence; `None`: no channel has it.
    #[must_use]
    pub fn presence_counts(&self) -> Option<PresenceCounts> {
        self.order.presences.as_ref().map(|presences| presences.counts())
    }
}
