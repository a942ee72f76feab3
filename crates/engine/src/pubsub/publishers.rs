//! Publishers that are faster than another shard: their connections are not read until its queue
//! has room.
//!
//! A connection whose publication finds queues crowded is *held*: the rest of its input is not
//! pulled, and the driver does not read it. Each finds that out by itself and at most once a
//! message, so the queue's remaining room (see `RESERVE` in `remote/mod.rs`) is one message's
//! worth for each of very many connections; others of the shard go on. The shard that takes its
//! commands wakes those who wait for it. It never waits itself, so shards that wait for each other
//! go on: both take their commands in their next turn, whatever they wait for.

use std::collections::BTreeMap;

use throng_io::{ConnId, Driver};

use crate::conn::stage::{Stage, flag};
use crate::conn::table::Connections;
use crate::context::Core;
use crate::outbox::send::Published;
use crate::pubsub::backpressure::SlowPolicy;
use crate::pubsub::publish::PUBLISH_BUDGET;
use crate::service::Service;
use crate::shard::Shard;

/// Publishers of a shard that wait for room in the queues of others.
#[derive(Debug, Default)]
pub(crate) struct Publishers {
    /// Connections that found crowded queues in this turn; their reading is still to be paused.
    new: Vec<Publisher>,
    /// Held publishers, indexed by the shard whose queue is crowded. Some that have gone since, or
    /// need not wait any more, may still be listed.
    held: BTreeMap<usize, Vec<Publisher>>,
}

#[derive(Debug)]
struct Publisher {
    id: ConnId,
    /// Other shards whose queues it found crowded. It resumes when each had room once: one shard
    /// that is stuck would otherwise get another message each time that a quick one has room.
    others: Vec<usize>,
}

impl Core {
    /// Holds the connection `by` if what it published last found a queue crowded.
    #[inline]
    pub(crate) fn hold_publisher(&mut self, by: ConnId) {
        if !self.crowded.is_empty() {
            let crowded = std::mem::take(&mut self.crowded);
            self.connections.hold_publisher(by, crowded);
        }
    }
}

impl Connections {
    #[cold]
    fn hold_publisher(&mut self, id: ConnId, crowded: Vec<usize>) {
        // Whatever this event still brings is held; the next flush takes that back for the others.
        self.published = self.published.max(PUBLISH_BUDGET + 1);
        if !matches!(self.stage(id), Stage::Http | Stage::Serving | Stage::Open) {
            return;
        }
        if let Some(cold) = self.cold_mut(id)
            && !std::mem::replace(&mut cold.awaits_room, true)
        {
            self.stats.publishers_held += 1;
            self.publishers.new.push(Publisher { id, others: crowded });
        }
    }

    /// Returns whether the connection is a publisher that is held.
    pub(crate) fn awaits_room(&self, id: ConnId) -> bool {
        self.cold(id).is_some_and(|cold| cold.awaits_room)
    }

    /// Releases a publisher that does not have to wait any more.
    pub(crate) fn release_publisher(&mut self, id: ConnId) {
        if !self.awaits_room(id) {
            return;
        }
        if let Some(cold) = self.cold_mut(id) {
            cold.awaits_room = false;
        }
        self.shed_cold(id);
        self.mark_drained(id);
    }

    /// Applies its policy to a receiver that misses so many publications, which were lost on their
    /// way to this shard.
    pub(crate) fn miss(&mut self, id: ConnId, of: Published<'_>, count: u64) {
        if !matches!(self.stage(id), Stage::Open | Stage::Events) {
            return;
        }
        let class = of.class.unwrap_or_else(|| self.class_of(id));
        match self.rules.class(class).policy {
            SlowPolicy::Close => self.close_slow(id, class),
            _ => {
                self.stats.messages_dropped += count;
                self.counters[usize::from(class)].lost += count;
            }
        }
    }
}

impl<D: Driver, S: Service> Shard<D, S> {
    /// Stops reading the publishers that have found a queue crowded since this was called last.
    #[inline]
    pub(crate) fn hold_publishers(&mut self) {
        if !self.state.core.connections.publishers.new.is_empty() {
            self.hold_new_publishers();
        }
    }

    #[cold]
    fn hold_new_publishers(&mut self) {
        for publisher in std::mem::take(&mut self.state.core.connections.publishers.new) {
            let connections = &mut self.state.core.connections;
            let id = publisher.id;
            if !connections.awaits_room(id) {
                // It is closing already.
                continue;
            }
            let Some(conn) = connections.conn_mut(id) else { continue };
            if !conn.has(flag::PAUSED) {
                conn.set(flag::PAUSED, true);
                self.driver.pause(id);
            }
            self.await_room(publisher);
        }
    }

    /// Lists a publisher under the first of its shards whose queue is still crowded, or resumes it.
    fn await_room(&mut self, mut publisher: Publisher) {
        let Core { remote, connections, shard: own, .. } = &mut self.state.core;
        let waker = self.driver.waker();
        while let Some(shard) = publisher.others.pop() {
            if !remote.await_room(shard, *own, &waker) {
                continue;
            }
            let mut held = connections.publishers.held.remove(&shard).unwrap_or_default();
            if held.len() > connections.slots() {
                held.retain(|publisher| connections.awaits_room(publisher.id));
            }
            held.push(publisher);
            connections.publishers.held.insert(shard, held);
            return;
        }
        connections.release_publisher(publisher.id);
    }

    /// Resumes publishers that wait for queues that have room again.
    #[inline]
    pub(crate) fn release_publishers(&mut self) {
        if !self.state.core.connections.publishers.held.is_empty() {
            self.release_held_publishers();
        }
    }

    #[cold]
    fn release_held_publishers(&mut self) {
        let Core { remote, connections, shard: own, .. } = &mut self.state.core;
        let waker = self.driver.waker();
        let mut free = Vec::new();
        connections.publishers.held.retain(|&shard, held| {
            let is_crowded = remote.await_room(shard, *own, &waker);
            if !is_crowded {
                free.append(held);
            }
            is_crowded
        });
        for publisher in free {
            if self.state.core.connections.awaits_room(publisher.id) {
                self.await_room(publisher);
            }
        }
    }
}
