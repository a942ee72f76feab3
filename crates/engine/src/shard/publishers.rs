//! Publishers that found the queue of another shard crowded: their reading is paused, and resumed
//! when it has room.

use throng_io::Driver;

use crate::conn::stage::flag;
use crate::connections::publishers::Publisher;
use crate::context::Core;
use crate::service::Service;
use crate::shard::Shard;

impl<D: Driver, S: Service> Shard<D, S> {
    /// Stops reading the publishers that have found a queue crowded since this was called last.
    #[inline]
    pub(crate) fn delay_new(&mut self) {
        if !self.state.core.connections.publishers.new.is_empty() {
            self.pause_new();
        }
    }

    #[cold]
    fn pause_new(&mut self) {
        for publisher in std::mem::take(&mut self.state.core.connections.publishers.new) {
            let connections = &mut self.state.core.connections;
            let id = publisher.id;
            if !connections.awaits_capacity(id) {
                // It is closing already.
                continue;
            }
            let Some(conn) = connections.table.conn_mut(id) else { continue };
            if !conn.has(flag::PAUSED) {
                conn.set(flag::PAUSED, true);
                self.driver.pause(id);
            }
            self.await_capacity(publisher);
        }
    }

    /// Lists a publisher under the first of its shards whose queue is still crowded, or resumes it.
    fn await_capacity(&mut self, mut publisher: Publisher) {
        let Core { remote, connections, shard: own, .. } = &mut self.state.core;
        let waker = self.driver.waker();
        while let Some(shard) = publisher.others.pop() {
            if !remote.await_capacity(shard, *own, &waker) {
                continue;
            }
            let mut held = connections.publishers.held.remove(&shard).unwrap_or_default();
            if held.len() > connections.table.slots() {
                held.retain(|publisher| connections.awaits_capacity(publisher.id));
            }
            held.push(publisher);
            connections.publishers.held.insert(shard, held);
            return;
        }
        connections.end_delay(publisher.id);
    }

    /// Resumes publishers that wait for queues that have room again.
    #[inline]
    pub(crate) fn end_delays(&mut self) {
        if !self.state.core.connections.publishers.held.is_empty() {
            self.end_due_delays();
        }
    }

    #[cold]
    fn end_due_delays(&mut self) {
        let Core { remote, connections, shard: own, .. } = &mut self.state.core;
        let waker = self.driver.waker();
        let mut free = Vec::new();
        connections.publishers.held.retain(|&shard, held| {
            let is_crowded = remote.await_capacity(shard, *own, &waker);
            if !is_crowded {
                free.append(held);
            }
            is_crowded
        });
        for publisher in free {
            if self.state.core.connections.awaits_capacity(publisher.id) {
                self.await_capacity(publisher);
            }
        }
    }
}
