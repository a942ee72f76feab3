//! Registry of connection threads in thread-per-connection mode.
//!
//! In this mode a shard has one connection, starts with it and ends with it. Its number is its
//! thread's number; numbers are created as they are needed, and used again. Number 0 is the
//! acceptor, which has no session.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use throng_io::{ConnId, Waker};

use crate::remote::ShardQueue;
use crate::stalls::SharedProgress;

/// The mailboxes of all threads that have a connection. Read by every publication, written when a
/// connection opens or closes.
pub(crate) struct ThreadRegistry {
    rows: RwLock<Rows>,
    /// Connections that missed the deadline of a drain.
    forced: AtomicUsize,
    acceptor: Waker,
}

/// Slots of threads; the first belongs to thread 1.
#[derive(Default)]
struct Rows {
    slots: Vec<ThreadSlot>,
    /// Used again in the order in which they became free, so that a stale id names another
    /// connection as late as possible.
    free: VecDeque<u16>,
}

#[derive(Default)]
struct ThreadSlot {
    queue: Option<ShardQueue>,
    progress: Option<Arc<SharedProgress>>,
    /// Connections that the thread's number had before.
    generation: u32,
}

impl ThreadRegistry {
    pub(crate) fn new(acceptor: Waker) -> Self {
        let (rows, forced) = (RwLock::default(), AtomicUsize::new(0));
        Self { rows, forced, acceptor }
    }

    /// Reserves a thread's number. Returns it with the number of connections it had before, or
    /// `None` when no number is left.
    pub(crate) fn reserve(&self) -> Option<(u16, u32)> {
        let rows = &mut *self.rows.write().unwrap_or_else(PoisonError::into_inner);
        let number = match rows.free.pop_front() {
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

    /// Sets the queue for commands to the thread.
    pub(crate) fn occupy(&self, number: u16, queue: ShardQueue, progress: Arc<SharedProgress>) {
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        let thread = &mut rows.slots[usize::from(number) - 1];
        (thread.queue, thread.progress) = (Some(queue), Some(progress));
    }

    /// Frees the number of a connection that is gone; `forced` connections had to be reset.
    pub(crate) fn vacate(&self, number: u16, forced: usize) {
        self.forced.fetch_add(forced, Ordering::Relaxed);
        let queue = {
            let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
            let thread = &mut rows.slots[usize::from(number) - 1];
            thread.generation = thread.generation.wrapping_add(1) & ConnId::MAX_GENERATION;
            let queue = thread.queue.take();
            thread.progress = None;
            rows.free.push_back(number);
            queue
        };
        // After the lock is released: commands are dropped with the queue, and they may hold
        // anything.
        drop(queue);
    }

    /// Wakes the acceptor, which checks whether any connection is left.
    pub(crate) fn wake_acceptor(&self) {
        self.acceptor.wake();
    }

    /// Returns the numbers of the threads that have a connection.
    pub(crate) fn numbers(&self) -> Vec<u16> {
        self.taken().iter().map(|id| id.shard() as u16).collect()
    }

    /// Returns the connections of all threads.
    pub(crate) fn taken(&self) -> Vec<ConnId> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        let numbered = rows.slots.iter().zip(1u16..);
        let taken = numbered.filter(|(thread, _)| thread.queue.is_some());
        taken.map(|(thread, number)| ConnId::new(number, 0, thread.generation)).collect()
    }

    /// Returns the threads whose connection is in a callback at this moment, with its route.
    pub(crate) fn in_callbacks(&self) -> Vec<(usize, u32)> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        let route = |thread: &ThreadSlot| thread.progress.as_ref()?.read().route;
        let numbered = rows.slots.iter().zip(1usize..);
        numbered.filter_map(|(thread, number)| Some((number, route(thread)?))).collect()
    }

    /// Returns the number of threads that have a connection.
    pub(crate) fn count(&self) -> usize {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        rows.slots.len() - rows.free.len()
    }

    pub(crate) fn forced(&self) -> usize {
        self.forced.load(Ordering::Relaxed)
    }

    /// Returns the queue of a thread, if it has a connection. A copy, here and below: no command is
    /// posted or dropped under the lock.
    pub(crate) fn queue(&self, number: usize) -> Option<ShardQueue> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        rows.slots.get(number.checked_sub(1)?)?.queue.clone()
    }

    /// Returns the queues of the threads with these numbers, or of all. So a publication to a
    /// channel of three members wakes three threads and not five thousand.
    pub(crate) fn queues(&self, numbers: Option<&[u16]>) -> Vec<ShardQueue> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        let queue = |number: usize| rows.slots.get(number.checked_sub(1)?)?.queue.clone();
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
