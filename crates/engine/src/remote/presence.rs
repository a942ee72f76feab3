//! Presence, by any thread.

use super::Remote;
use crate::outbox::frame::Frame;
use crate::pubsub::presence::{PresenceCounts, PresenceEvent, Presences, Present};

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

    /// Returns what members get of a join or leave.
    pub(crate) fn presence_frame(&self, event: &PresenceEvent<'_>) -> Option<Frame> {
        self.order.presences.as_ref()?.rules.of(event.channel)?.frame(event)
    }

    /// Returns up to `most` clients that are members of a channel; `None`: it has no presence.
    #[must_use]
    pub fn presence(&self, channel: &str, most: usize) -> Option<Vec<Present>> {
        Some(self.presence_of(channel)?.list(channel, most))
    }

    /// Returns the figures of presence; `None`: no channel has it.
    #[must_use]
    pub fn presence_counts(&self) -> Option<PresenceCounts> {
        self.order.presences.as_ref().map(|presences| presences.counts())
    }
}
