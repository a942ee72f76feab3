//! Who sits where, in the family of one thread for each connection.
//!
//! There a shard has one connection, comes with it and goes with it. Its number is that of a thread; registry are made as
//! they are needed, and used again. Number 0 is the acceptor's, who has no session.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use throng_io::{ConnId, Waker};

use crate::remote::ShardQueue;
use crate::stalls::SharedProgress;

/// The mailboxes of all registry that are taken. Read by every publication, written when a connection comes or goes.
pub(crate) struct ThreadRegistry {
    rows: RwLock<Rows>,
    /// Connections that missed the deadline of a drain.
    forced: AtomicUsize,
    acceptor: Waker,
}

/// ThreadSlot 1 is the first.
#[derive(Default)]
struct Rows {
    slots: Vec<ThreadSlot>,
    free: Vec<u16>,
}

#[derive(Default)]
struct ThreadSlot {
    queue: Option<ShardQueue>,
    progress: Option<Arc<SharedProgress>>,
    /// Connections that sat here before.
    generation: u32,
}

impl ThreadRegistry {
    pub(crate) fn new(acceptor: Waker) -> Self {
        let (rows, forced) = (RwLock::default(), AtomicUsize::new(0));
        Self { rows, forced, acceptor }
    }

    /// A thread of its own, and how many connections sat there before; `None` when there is no number left.
    pub(crate) fn reserve(&self) -> Option<(u16, u32)> {
        let rows = &mut *self.rows.write().unwrap_or_else(PoisonError::into_inner);
        let number = match rows.free.pop() {
            Some(number) => number,
            None => {
                let next = rows.slots.len() + 1;
                let number = u16::try_from(next).ok().filter(|_| next < ConnId::MAX_SHARDS)?;
                rows.slots.push(ThreadSlot::default());
                number
            }
        };
        Some((number, rows.slots[usize::from(number) - 1].generation))
    }

    /// From now on command for the thread goes there.
    pub(crate) fn occupy(&self, number: u16, queue: ShardQueue, progress: Arc<SharedProgress>) {
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        let thread = &mut rows.slots[usize::from(number) - 1];
        (thread.queue, thread.progress) = (Some(queue), Some(progress));
    }

    /// The connection is gone, of which `forced` had to be reset.
    pub(crate) fn vacate(&self, number: u16, forced: usize) {
        self.forced.fetch_add(forced, Ordering::Relaxed);
        let queue = {
            let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
            let thread = &mut rows.slots[usize::from(number) - 1];
            thread.generation = thread.generation.wrapping_add(1) & ConnId::MAX_GENERATION;
            let queue = thread.queue.take();
            thread.progress = None;
            rows.free.push(number);
            queue
        };
        // Only now that the lock is let go: commands are dropped with it, and they may hold anything.
        drop(queue);
    }

    /// The acceptor is to look whether anybody is still here.
    pub(crate) fn wake_acceptor(&self) {
        self.acceptor.wake();
    }

    /// The connections of all registry that are taken.
    pub(crate) fn taken(&self) -> Vec<ConnId> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        let numbered = rows.slots.iter().zip(1u16..);
        let taken = numbered.filter(|(thread, _)| thread.queue.is_some());
        taken.map(|(thread, number)| ConnId::new(number, 0, thread.generation)).collect()
    }

    /// The registry whose connection is in a callback at this moment, and of which route.
    pub(crate) fn in_callbacks(&self) -> Vec<(usize, u32)> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        let route = |thread: &ThreadSlot| thread.progress.as_ref()?.read().route;
        let numbered = rows.slots.iter().zip(1usize..);
        numbered.filter_map(|(thread, number)| Some((number, route(thread)?))).collect()
    }

    /// How many registry are taken.
    pub(crate) fn count(&self) -> usize {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        rows.slots.len() - rows.free.len()
    }

    pub(crate) fn forced(&self) -> usize {
        self.forced.load(Ordering::Relaxed)
    }

    /// The queue of a thread, if it is taken. A copy, here and below: no command is posted, and none dropped, under
    /// the lock.
    pub(crate) fn queue(&self, number: usize) -> Option<ShardQueue> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        rows.slots.get(number.checked_sub(1)?)?.queue.clone()
    }

    /// The queues of the registry with these numbers, or of all, but that of thread `except`. A publication to the three members
    /// of a room then wakes three threads and not five thousand.
    pub(crate) fn queues(&self, numbers: Option<&[u16]>, except: Option<usize>) -> Vec<ShardQueue> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        let queue = |number: usize| {
            let thread = rows.slots.get(number.checked_sub(1)?)?;
            thread.queue.clone().filter(|_| Some(number) != except)
        };
        match numbers {
            Some(numbers) => {
                numbers.iter().map(|number| usize::from(*number)).filter_map(queue).collect()
            }
            None => (1..=rows.slots.len()).filter_map(queue).collect(),
        }
    }
}

impl std::fmt::Debug for ThreadRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ThreadRegistry({} taken)", self.count())
    }
}
