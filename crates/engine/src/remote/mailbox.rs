//! Commands from other threads: a bounded queue with coalesced wake-ups.
//!
//! A sender that can wait need not be refused: [`Mailbox::send_within`] reports when the queue is
//! *crowded*, which is well before it is full, and [`Mailbox::await_capacity`] wakes the sender
//! when it is no longer crowded. Registration and check are one step under the queue's lock, and so
//! are taking the commands and the list of waiting senders, so no wake-up is lost. The owner never
//! waits for a sender: two shards that wait for space in each other's queue still take their
//! commands, so they cannot deadlock.
//!
//! Not on the hot path: a shard without commands reads one flag a turn and takes no lock.

#[cfg(loom)]
use loom::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use throng_io::Waker;

pub use crate::backpressure::fill::Fill;

/// The sending half; clone it freely.
pub struct Mailbox<T> {
    inner: Arc<Inner<T>>,
}

impl<T> std::fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mailbox(at most {})", self.inner.capacity)
    }
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

/// The receiving half; the shard owns it.
pub struct Inbox<T> {
    inner: Arc<Inner<T>>,
    /// Swapped with the shared vector, so that both keep their memory.
    drained: Vec<T>,
}

/// Bytes of referenced memory above which no command is accepted until the shard has taken some: a
/// publisher that is faster than another shard's receivers would otherwise fill the process's
/// memory, 65,536 large messages at a time.
pub const MAX_BYTES: usize = 64 << 20;

/// A queue is crowded when it holds this part of its capacity, or of [`MAX_BYTES`]: the rest is for
/// senders that find it crowded, one message each, before they wait.
const CROWDED_PART: usize = 4;

struct Queue<T> {
    commands: Vec<T>,
    /// Memory the commands refer to, in bytes, as given by their senders.
    bytes: usize,
    /// Wakers of waiting senders, with the number that each gave; empty unless the queue is
    /// crowded.
    waiting: Vec<(usize, Waker)>,
}

impl<T> Queue<T> {
    fn is_crowded(&self, mark: usize) -> bool {
        self.commands.len() > mark || self.bytes > MAX_BYTES / CROWDED_PART
    }
}

/// A command that was not queued.
enum Unsent<T> {
    Full(T),
    Gone(T),
}

struct Inner<T> {
    /// `None` once the owner is gone.
    queue: Mutex<Option<Queue<T>>>,
    has_commands: AtomicBool,
    capacity: usize,
    /// Number of commands above which the queue is crowded.
    mark: usize,
    waker: Waker,
}

/// Creates a mailbox for at most `capacity` commands, whose owner `waker` wakes.
pub fn mailbox<T>(capacity: usize, waker: Waker) -> (Mailbox<T>, Inbox<T>) {
    mailbox_with_mark(capacity, capacity / CROWDED_PART, waker)
}

/// Creates a mailbox that is crowded with more than `mark` commands.
pub fn mailbox_with_mark<T>(capacity: usize, mark: usize, waker: Waker) -> (Mailbox<T>, Inbox<T>) {
    let inner = Arc::new(Inner {
        queue: Mutex::new(Some(Queue { commands: Vec::new(), bytes: 0, waiting: Vec::new() })),
        has_commands: AtomicBool::new(false),
        capacity,
        mark,
        waker,
    });
    (Mailbox { inner: Arc::clone(&inner) }, Inbox { inner, drained: Vec::new() })
}

impl<T> Mailbox<T> {
    /// Returns whether the [`Inbox`] is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        lock(&self.inner.queue).is_none()
    }

    /// Returns whether there are commands that [`Inbox::drain`] has not returned yet. The result
    /// includes all commands sent earlier by any thread that this thread has synchronized with.
    #[must_use]
    pub fn has_commands(&self) -> bool {
        self.inner.has_commands.load(Ordering::Acquire)
    }

    /// Wakes the owner, which checks for other work too.
    pub fn wake(&self) {
        self.inner.waker.wake();
    }

    /// Queues a command and wakes the shard if it is the first. Commands of one sender arrive in
    /// order.
    ///
    /// When the [`Inbox`] is gone, a command is accepted and dropped: it has no owner, like the id
    /// of a closed connection, and no sender waits for space that never comes.
    ///
    /// # Errors
    /// Returns the command when the mailbox is full: the shard is behind by `capacity` commands.
    pub fn send(&self, command: T) -> Result<(), T> {
        self.send_with(command, 0)
    }

    /// Queues a command that keeps `bytes` of memory alive; see [`Mailbox::send`].
    ///
    /// # Errors
    /// Returns the command when the mailbox is full: it holds its capacity of commands, or
    /// [`MAX_BYTES`] besides this one's.
    pub fn send_with(&self, command: T, bytes: usize) -> Result<(), T> {
        self.put_or_drop(command, bytes, 1).map(drop)
    }

    /// Queues a command that keeps `bytes` of memory alive, unless its owner has gone.
    ///
    /// # Errors
    /// Returns the command when the mailbox is full, or the [`Inbox`] is gone.
    pub fn send_to_owner(&self, command: T, bytes: usize) -> Result<(), T> {
        match self.put(command, bytes, 1) {
            Ok(_) => Ok(()),
            Err(Unsent::Full(command) | Unsent::Gone(command)) => Err(command),
        }
    }

    /// Queues a command of a sender that waits when the queue is crowded: such a sender has `times`
    /// the capacity of other senders.
    ///
    /// # Errors
    /// Returns the command when that capacity is also used up.
    pub fn send_within(&self, command: T, bytes: usize, times: usize) -> Result<Fill, T> {
        self.put_or_drop(command, bytes, times)
    }

    /// Queues a command even if the mailbox is full. Use this only for commands whose number is
    /// bounded elsewhere.
    pub fn send_always(&self, command: T) {
        // Without a limit the command is always accepted.
        drop(self.put_or_drop(command, 0, usize::MAX));
    }

    /// Registers `waker` to be woken when the commands are taken, if the queue is crowded now;
    /// otherwise returns false. `sender` identifies the caller: a sender that already waits is not
    /// listed again.
    pub fn await_capacity(&self, sender: usize, waker: &Waker) -> bool {
        let mut queue = lock(&self.inner.queue);
        let Some(queue) = queue.as_mut() else { return false };
        if !queue.is_crowded(self.inner.mark) {
            return false;
        }
        if queue.waiting.iter().all(|(other, _)| *other != sender) {
            queue.waiting.push((sender, Waker::clone(waker)));
        }
        true
    }

    /// Returns whether a command that [`Mailbox::send`] queues now would fit.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let queue = lock(&self.inner.queue);
        let fits = |queue: &Queue<T>| {
            queue.commands.len() < self.inner.capacity && queue.bytes <= MAX_BYTES
        };
        queue.as_ref().is_none_or(fits)
    }

    fn put_or_drop(&self, command: T, bytes: usize, times: usize) -> Result<Fill, T> {
        match self.put(command, bytes, times) {
            Ok(fill) => Ok(fill),
            Err(Unsent::Full(command)) => Err(command),
            Err(Unsent::Gone(_)) => Ok(Fill::Available),
        }
    }

    fn put(&self, command: T, bytes: usize, times: usize) -> Result<Fill, Unsent<T>> {
        let (first, fill) = {
            let mut queue = lock(&self.inner.queue);
            // A rejected command is dropped after the lock is released.
            let Some(queue) = queue.as_mut() else { return Err(Unsent::Gone(command)) };
            let capacity = self.inner.capacity;
            if queue.commands.len() >= capacity.saturating_mul(times)
                || queue.bytes > MAX_BYTES.saturating_mul(times)
            {
                return Err(Unsent::Full(command));
            }
            queue.commands.push(command);
            queue.bytes += bytes;
            // Set under the lock, so that a flag seen without commands is the only possible
            // disagreement.
            self.inner.has_commands.store(true, Ordering::Release);
            let fill =
                if queue.is_crowded(self.inner.mark) { Fill::Crowded } else { Fill::Available };
            (queue.commands.len() == 1, fill)
        };
        if first {
            self.inner.waker.wake();
        }
        Ok(fill)
    }
}

impl<T> Inbox<T> {
    /// Returns whether there are commands that [`Inbox::drain`] has not returned yet.
    #[must_use]
    pub fn has_commands(&self) -> bool {
        self.inner.has_commands.load(Ordering::Acquire)
    }

    /// Closes the mailbox if it holds no commands: it then has no owner. Returns whether it is
    /// closed.
    pub fn close_if_empty(&mut self) -> bool {
        let mut queue = lock(&self.inner.queue);
        if queue.as_ref().is_some_and(|queue| !queue.commands.is_empty()) {
            return false;
        }
        let waiting = queue.take().map(|queue| queue.waiting).unwrap_or_default();
        drop(queue);
        waiting.iter().for_each(|(_, waker)| waker.wake());
        true
    }

    /// Takes all commands so far, oldest first; without a lock when there are none.
    pub fn drain(&mut self) -> std::vec::Drain<'_, T> {
        if self.has_commands() {
            let mut waiting = Vec::new();
            let mut queue = lock(&self.inner.queue);
            self.inner.has_commands.store(false, Ordering::Release);
            if let Some(queue) = queue.as_mut() {
                std::mem::swap(&mut queue.commands, &mut self.drained);
                queue.bytes = 0;
                waiting = std::mem::take(&mut queue.waiting);
            }
            drop(queue);
            waiting.iter().for_each(|(_, waker)| waker.wake());
        }
        self.drained.drain(..)
    }
}

/// Closes the mailbox: queued commands are dropped, and so are all that follow.
impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        let queued = lock(&self.inner.queue).take();
        // Must run after the lock is released: a command may hold anything, even a sender of this
        // mailbox.
        let waiting = queued.map(|queue| queue.waiting).unwrap_or_default();
        waiting.iter().for_each(|(_, waker)| waker.wake());
    }
}

/// A sender that panicked between two pushes leaves a whole queue behind, so poison means nothing
/// here.
#[cfg(not(loom))]
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(loom)]
fn lock<T>(mutex: &Mutex<T>) -> loom::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics in a loom model")
}
