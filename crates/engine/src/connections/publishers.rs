//! Publishers that are faster than another shard: their connections are not read until its queue
//! has room.
//!
//! A connection whose publication finds queues crowded is *delayed*: the rest of its input is not
//! pulled, and the driver does not read it. Each connection discovers this by itself, at most once
//! per message, so the queue's reserve (see `RESERVE` in `remote/mod.rs`) is enough for one message
//! of each of very many connections. Other connections of the shard continue. The shard that takes
//! its commands wakes the connections that wait for it. A shard never waits itself, so two shards
//! whose connections wait for each other cannot block each other: both take their commands in their
//! next turn.
//!
//! The queue to a broker works in the same way: the relay reports when it is crowded, and wakes the
//! shards when it has space.

use std::collections::BTreeMap;

use throng_io::ConnId;

use crate::backpressure::SlowPolicy;
use crate::conn::stage::Stage;
use crate::connections::Connections;
use crate::connections::send::Published;

/// Publishers of a shard that wait for room in the queues of others.
#[derive(Debug, Default)]
pub(crate) struct Publishers {
    /// Connections that found crowded queues in this turn; their reading is still to be paused.
    new: Vec<Publisher>,
    /// Delayed publishers, by the shard whose queue is crowded, or [`crate::remote::BROKER`].
    /// Connections that have gone since, or no longer need to wait, may still be listed.
    held: BTreeMap<usize, Vec<Publisher>>,
}

#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) id: ConnId,
    /// Other shards with crowded queues, or the broker. The publisher resumes after each of these
    /// queues has had space once: otherwise a stuck shard would get another message each time that
    /// a quick shard has space.
    others: Vec<usize>,
}

impl Connections {
    /// Delays a publisher that has found these queues crowded.
    #[cold]
    pub(crate) fn delay(&mut self, id: ConnId, crowded: Vec<usize>) {
        // The rest of this event's input is held; the next flush restores the budget for other
        // connections.
        self.outbox.use_up_budget();
        if !matches!(self.table.stage(id), Stage::Http | Stage::Serving | Stage::Open) {
            return;
        }
        if let Some(cold) = self.table.cold_mut(id)
            && !std::mem::replace(&mut cold.awaits_capacity, true)
        {
            self.stats.publishers_held += 1;
            self.publishers.new.push(Publisher { id, others: crowded });
        }
    }

    /// Returns whether the connection is a delayed publisher.
    pub(crate) fn awaits_capacity(&self, id: ConnId) -> bool {
        self.table.cold(id).is_some_and(|cold| cold.awaits_capacity)
    }

    /// Returns whether publishers were delayed whose reading is still to be paused.
    #[inline]
    pub(crate) fn has_newly_delayed(&self) -> bool {
        !self.publishers.new.is_empty()
    }

    /// Returns the publishers whose reading is still to be paused, and forgets that.
    pub(crate) fn take_newly_delayed(&mut self) -> Vec<Publisher> {
        std::mem::take(&mut self.publishers.new)
    }

    /// Lists a publisher under the first of its shards whose queue is still crowded, or resumes it.
    pub(crate) fn await_capacity(
        &mut self,
        mut publisher: Publisher,
        is_crowded: impl Fn(usize) -> bool,
    ) {
        while let Some(shard) = publisher.others.pop() {
            if !is_crowded(shard) {
                continue;
            }
            let mut held = self.publishers.held.remove(&shard).unwrap_or_default();
            if held.len() > self.table.slots() {
                held.retain(|publisher| self.awaits_capacity(publisher.id));
            }
            held.push(publisher);
            self.publishers.held.insert(shard, held);
            return;
        }
        self.end_delay(publisher.id);
    }

    /// Returns whether publishers wait for queues.
    #[inline]
    pub(crate) fn has_delayed(&self) -> bool {
        !self.publishers.held.is_empty()
    }

    /// Resumes publishers that wait for queues that are no longer crowded.
    #[cold]
    pub(crate) fn end_delays(&mut self, is_crowded: impl Fn(usize) -> bool) {
        let mut free = Vec::new();
        self.publishers.held.retain(|&shard, held| {
            let is_crowded = is_crowded(shard);
            if !is_crowded {
                free.append(held);
            }
            is_crowded
        });
        for publisher in free {
            if self.awaits_capacity(publisher.id) {
                self.await_capacity(publisher, &is_crowded);
            }
        }
    }

    /// Releases a publisher that no longer has to wait.
    pub(crate) fn end_delay(&mut self, id: ConnId) {
        if !self.awaits_capacity(id) {
            return;
        }
        if let Some(cold) = self.table.cold_mut(id) {
            cold.awaits_capacity = false;
        }
        self.table.shed_cold(id);
        self.mark_drained(id);
    }

    /// Applies the receiver's policy for this many publications that were lost in transit to this
    /// shard.
    pub(crate) fn miss(&mut self, id: ConnId, of: Published<'_>, count: u64) {
        if !matches!(self.table.stage(id), Stage::Open | Stage::Events) {
            return;
        }
        let class = of.class.unwrap_or_else(|| self.class_of(id));
        match self.outbox.rules().class(class).policy {
            SlowPolicy::Close => self.close_slow(id, class),
            _ => {
                self.stats.messages_dropped += count;
                self.outbox.counters_mut()[usize::from(class)].lost += count;
            }
        }
    }
}
