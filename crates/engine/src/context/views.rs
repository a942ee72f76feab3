//! Publications to members, some with a filter or a dialect.

use throng_io::ConnId;

use crate::conn::stage::{Stage, flag};
use crate::connections::Connections;
use crate::connections::dialect::{Delivered, Forms, Seen};
use crate::connections::send::Published;
use crate::context::recent::RecentJoins;
use crate::context::{Core, PubSub};
use crate::outbox::frame::Frame;
use crate::pubsub::delivery::Delivery;
use crate::pubsub::history::Recorded;

impl Core {
    /// Closes a connection for another thread.
    pub(crate) fn close_from_others(&mut self, id: ConnId, code: u16, reason: &str) {
        self.conns.close_from_others(id, code, reason);
    }

    /// Sends to the members of this shard, except those that `is_left_out` names. A publication of
    /// a channel with history is `recorded`.
    #[inline(never)]
    pub(super) fn deliver_seen(
        &mut self,
        (delivered, recorded): (&Delivered<'_>, Option<&Recorded>),
        of: Published<'_>,
        is_left_out: impl Fn(&RecentJoins, ConnId) -> bool,
    ) -> Delivery {
        let (mut delivery, mut forms) = (Delivery::default(), Forms::default());
        let Self { conns: connections, pubsub: PubSub { channels, recent, .. }, .. } = self;
        channels.matching(of.channel, |slot| {
            if let Some(id) = connections.at_slot(slot)
                && !is_left_out(recent, id)
            {
                let plain = recorded
                    .map_or(delivered.frame, |recorded| connections.plain_form(id, recorded));
                connections.deliver_seen(id, (delivered, plain), of, (&mut forms, &mut delivery));
            }
        });
        delivery
    }
}

impl Connections {
    /// Returns the form of a publication with a position for a member without a dialect.
    #[inline]
    pub(super) fn plain_form<'r>(&self, id: ConnId, recorded: &'r Recorded) -> &'r Frame {
        match self.stage(id) {
            Stage::Events => recorded.event(),
            _ if self.has(id, flag::OFFSETS) => recorded.with_offset(),
            _ => &recorded.frame,
        }
    }

    /// Sends a message to a receiver that may have a filter or a dialect; without a dialect it gets
    /// the `plain` form.
    pub(super) fn deliver_seen(
        &mut self,
        id: ConnId,
        (delivered, plain): (&Delivered<'_>, &Frame),
        of: Published<'_>,
        (forms, delivery): (&mut Forms, &mut Delivery),
    ) {
        if !self.is_wanted(id, delivered.frame, of, delivery) {
            return;
        }
        match self.seen(id, delivered, forms) {
            Seen::Plain => delivery.count(self.deliver_to(id, plain, of)),
            Seen::Form(form) => delivery.count(self.deliver_to(id, form, of)),
            Seen::Nothing => {}
        }
    }
}
