//! Publications and broadcasts: who gets them on this shard, and one letter to each other shard.

use std::sync::Arc;

use throng_io::ConnId;

use crate::conn::{Conn, Stage, flag};
use crate::connections::Connections;
use crate::core::Core;
use crate::delivery::Delivery;
use crate::filter::Filter;
use crate::frame::Frame;
use crate::sending::Published;

/// Publications of one turn may count this much (`fanout::COST` each, or what they put into queues) before all are
/// flushed, and before a publisher's further messages wait for the next turn: one packet of tiny messages to thousands
/// of members would else take gigabytes, and seconds in which nobody else is served. Large enough that a burst to 15,000
/// members still leaves in few sends.
const PUBLISH_BUDGET: usize = 32 << 20;

impl Core {
    /// Sends to every member of `channel` but `except`, on this shard now and on the others by one letter each.
    /// The counts are this shard's.
    pub fn publish(&mut self, channel: &str, frame: &Frame, except: Option<ConnId>) -> Delivery {
        let unreached = self.remote.publish_from(self.shard, channel, frame, except);
        self.count_letters(unreached);
        Delivery { unreached, ..self.publish_here(channel, frame, except) }
    }

    /// Sends to everyone that `filter` lets through, on this shard now and on the others by one letter each. The
    /// counts are this shard's.
    pub fn broadcast(&mut self, filter: &Arc<Filter>, frame: &Frame) -> Delivery {
        let unreached = self.remote.broadcast_from(self.shard, filter, frame);
        self.count_letters(unreached);
        Delivery { unreached, ..self.broadcast_here(filter, frame) }
    }

    fn count_letters(&mut self, unreached: u64) {
        self.connections.stats.publishes += 1;
        self.connections.stats.letters_dropped += unreached;
    }

    pub(crate) fn publish_here(
        &mut self,
        channel: &str,
        frame: &Frame,
        except: Option<ConnId>,
    ) -> Delivery {
        let mut delivery = Delivery::default();
        let of = Published { channel, class: self.connections.rules.of_channel(channel) };
        let connections = &mut self.connections;
        self.channels.matching(channel, |slot| {
            let Some(id) = connections.in_slot(slot) else { return };
            if Some(id) != except {
                delivery.count(connections.publish_to(id, frame, of));
            }
        });
        delivery
    }

    /// One letter a shard; each finds its own receivers.
    pub(crate) fn broadcast_here(&mut self, filter: &Filter, frame: &Frame) -> Delivery {
        let mut delivery = Delivery::default();
        let Self { connections, channels, shard, .. } = self;
        let channel = filter.channel.as_deref();
        let of = Published {
            channel: channel.unwrap_or_default(),
            class: channel.and_then(|channel| connections.rules.of_channel(channel)),
        };
        let mut offer = |connections: &mut Connections, id: ConnId| {
            let excluded = filter.excludes(id);
            let wanted = filter.subprotocol.as_deref();
            if !excluded && wanted.is_none_or(|name| connections.subprotocol(id) == Some(name)) {
                delivery.count(connections.publish_to(id, frame, of));
            }
        };
        match (&filter.include, channel) {
            (included, Some(channel)) => channels.matching(channel, |slot| {
                if let Some(id) = connections.in_slot(slot)
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
                for slot in 0..connections.slots() {
                    if let Some(id) = connections.listener_in(slot) {
                        offer(connections, id);
                    }
                }
            }
        }
        delivery
    }

    /// Publications have used up their share of the turn.
    #[inline]
    pub(crate) fn has_published_enough(&self) -> bool {
        self.connections.published > PUBLISH_BUDGET
    }

    /// Nothing speaks against pulling a session's next message: in one look at its record what [`Core::must_yield`]
    /// asks in several. False says only that those are to be asked.
    #[inline(always)]
    pub(crate) fn goes_on(&self, id: ConnId) -> bool {
        let connections = &self.connections;
        connections.conns.get(id.slot()).is_some_and(|conn| {
            conn.id == id
                && conn.stage == Stage::Open
                && !conn.has(flag::NOT_PLAIN_TO_GO_ON)
                && conn.out.as_ref().is_none_or(|out| out.len() <= connections.high_water())
        }) && !self.has_published_enough()
            && !connections.compression.has_worked_enough()
    }

    /// No more messages are to be pulled for this connection now: its answers wait, or others do.
    pub(crate) fn must_yield(&self, id: ConnId) -> bool {
        self.has_published_enough()
            || self.connections.compression.has_worked_enough()
            || self.connections.kept_backlog(id) > self.connections.high_water()
            || self.connections.conn(id).is_some_and(Conn::is_stopped)
    }
}
