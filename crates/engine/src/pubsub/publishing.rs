//! A publication from its call to its receivers, and the route that it takes.

use throng_io::{ConnId, Instant};

use crate::outbox::frame::Frame;
use crate::pubsub::delivery::Receipt;
use crate::pubsub::presence::Announced;

/// A publication, made once by the call that publishes and lent to each later step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Publishing<'p> {
    pub(crate) channel: &'p str,
    pub(crate) frame: &'p Frame,
    /// The member that does not get the publication, usually the publisher.
    pub(crate) except: Option<ConnId>,
    /// When the publication began, if it is measured.
    pub(crate) began: Option<Instant>,
    /// Set for a message about presence, which is not sent if it is no longer current at its turn.
    pub(crate) announced: Option<&'p Announced>,
}

impl<'p> Publishing<'p> {
    pub(crate) fn new(channel: &'p str, frame: &'p Frame, except: Option<ConnId>) -> Self {
        Self { channel, frame, except, began: None, announced: None }
    }
}

/// The route of a publication.
pub(crate) enum PublishRoute {
    /// Only one shard exists.
    Here,
    /// Several shards may have members.
    Shards,
    /// The channel has a history, by the rule with this number.
    History(u16),
    /// A broker carries the channel, and has the publication.
    Broker {
        receipt: Receipt,
        /// The number of the queue to the broker, as in `crowded` of a shard, if that queue is
        /// crowded.
        crowded: Option<usize>,
    },
}
