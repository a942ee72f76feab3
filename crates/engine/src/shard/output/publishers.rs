//! Publishers that found the queue of another shard crowded: their reading is paused, and resumed
//! when it has room.

use throng_io::Driver;

use crate::context::Core;
use crate::service::Service;
use crate::shard::Shard;

impl<D: Driver, S: Service> Shard<D, S> {
    /// Stops reading the publishers that have found a queue crowded since this was called last.
    #[inline]
    pub(crate) fn pause_publishers(&mut self) {
        if self.parts.core.conns.has_newly_delayed() {
            self.pause_new();
        }
    }

    #[cold]
    fn pause_new(&mut self) {
        let Core { remote, conns, shard, .. } = &mut self.parts.core;
        let waker = self.driver.waker();
        for publisher in conns.take_newly_delayed() {
            let id = publisher.id;
            // If not, it is closing already.
            if conns.awaits_capacity(id) {
                if conns.pause(id) {
                    self.driver.pause(id);
                }
                let is_crowded = |other| remote.await_capacity(other, *shard, &waker);
                conns.await_capacity(publisher, is_crowded);
            }
        }
    }

    /// Resumes publishers that wait for queues that have space again.
    #[inline]
    pub(crate) fn resume_publishers(&mut self) {
        let Core { remote, conns, shard, .. } = &mut self.parts.core;
        if conns.has_delayed() {
            let waker = self.driver.waker();
            conns.end_delays(|other| remote.await_capacity(other, *shard, &waker));
        }
    }
}
