//! Command from other threads: a bounded queue with coalesced wake-ups.
//!
//! A sender that can wait does not have to be refused: [`Mailbox::send_within`] says when the queue is *crowded*, which
//! is well before it is full, and [`Mailbox::await_room`] wakes the sender when it is not any more. Registration and
//! check are one step under the queue's lock, and so are taking the commands and the list of those who wait, so no
//! wake-up is lost. The owner never waits for a sender: two shards that wait for room with each other both still take
//! their commands, so they cannot block each other for good.
//!
//! Off the hot path by construction: a shard that has no command reads one flag a turn and takes no lock.

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

/// Commands that refer to more memory than this are not taken in until the shard has looked: a publisher that is
/// faster than another shard's receivers would else fill the process's memory, 65,536 large messages at a time.
pub const MAX_BYTES: usize = 64 << 20;

/// A queue is crowded when it holds this part of its capacity, or of [`MAX_BYTES`]: what is left is for senders that find
/// it crowded, one message each, before they wait.
const CROWDED_PART: usize = 4;

struct Queue<T> {
    commands: Vec<T>,
    /// What they refer to, as their senders said.
    bytes: usize,
    /// To be woken when the commands are taken, by the number that each gave; only while the queue is crowded.
    waiting: Vec<(usize, Waker)>,
}

impl<T> Queue<T> {
    fn is_crowded(&self, mark: usize) -> bool {
        self.commands.len() > mark || self.bytes > MAX_BYTES / CROWDED_PART
    }
}

/// How full a queue is after a command was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// There is room for many more.
    Room,
    /// A sender that can wait should send no more until there is room; see [`Mailbox::await_room`].
    Crowded,
}

struct Inner<T> {
    /// `None` once the owner is gone.
    queue: Mutex<Option<Queue<T>>>,
    has_commands: AtomicBool,
    capacity: usize,
    /// With more commands than this the queue is crowded.
    mark: usize,
    waker: Waker,
}

/// A mailbox for at most `capacity` commands, whose owner `waker` wakes.
pub fn mailbox<T>(capacity: usize, waker: Waker) -> (Mailbox<T>, Inbox<T>) {
    mailbox_with_mark(capacity, capacity / CROWDED_PART, waker)
}

/// The same, crowded with more than `mark` commands.
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
    /// Whether the [`Inbox`] are gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        lock(&self.inner.queue).is_none()
    }

    /// Wakes the owner, who looks at what else there is.
    pub fn wake(&self) {
        self.inner.waker.wake();
    }

    /// Queues a command and wakes the shard if it was the first. Inbox of one sender arrive in order.
    ///
    /// When the [`Inbox`] are gone, a command is taken and dropped: nobody is there any more, as with an id of the
    /// past, and no sender can wait for room that will never come.
    ///
    /// # Errors
    /// Gives the command back when the mailbox is full: the shard is behind by `capacity` commands.
    pub fn send(&self, command: T) -> Result<(), T> {
        self.send_with(command, 0)
    }

    /// The same for a command that keeps `bytes` of memory alive.
    ///
    /// # Errors
    /// Gives the command back when the mailbox is full: so many commands are in it, or [`MAX_BYTES`] besides this one's.
    pub fn send_with(&self, command: T, bytes: usize) -> Result<(), T> {
        self.put(command, bytes, 1).map(drop)
    }

    /// Queues a command of a sender that waits when it is told that the queue is crowded: it gets `times` the room that
    /// others have.
    ///
    /// # Errors
    /// Gives the command back when that room is used up, too.
    pub fn send_within(&self, command: T, bytes: usize, times: usize) -> Result<Fill, T> {
        self.put(command, bytes, times)
    }

    /// The same, however full the mailbox is: for commands whose number is bounded by something else.
    pub fn send_always(&self, command: T) {
        // It can only be taken.
        drop(self.put(command, 0, usize::MAX));
    }

    /// Has `waker` woken when the commands are taken, if the queue is crowded now; false if it is not. `sender` tells the
    /// callers apart: one that waits already is not listed again.
    pub fn await_room(&self, sender: usize, waker: &Waker) -> bool {
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

    fn put(&self, command: T, bytes: usize, times: usize) -> Result<Fill, T> {
        let (first, fill) = {
            let mut queue = lock(&self.inner.queue);
            // The command is dropped after the lock is let go.
            let Some(queue) = queue.as_mut() else { return Ok(Fill::Room) };
            let capacity = self.inner.capacity;
            if queue.commands.len() >= capacity.saturating_mul(times)
                || queue.bytes > MAX_BYTES.saturating_mul(times)
            {
                return Err(command);
            }
            queue.commands.push(command);
            queue.bytes += bytes;
            // Set under the lock, so that a flag seen without commands is the only possible disagreement.
            self.inner.has_commands.store(true, Ordering::Release);
            let fill = if queue.is_crowded(self.inner.mark) { Fill::Crowded } else { Fill::Room };
            (queue.commands.len() == 1, fill)
        };
        if first {
            self.inner.waker.wake();
        }
        Ok(fill)
    }
}

impl<T> Inbox<T> {
    /// Whether there are commands that [`Inbox::drain`] has not given yet.
    #[must_use]
    pub fn has_commands(&self) -> bool {
        self.inner.has_commands.load(Ordering::Acquire)
    }

    /// All commands so far, oldest first; without a lock when there are none.
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

/// Closes the mailbox: what is queued is dropped, and so is all that follows.
impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        let queued = lock(&self.inner.queue).take();
        // Only now that the lock is let go: a command may hold anything, a sender of this mailbox too.
        let waiting = queued.map(|queue| queue.waiting).unwrap_or_default();
        waiting.iter().for_each(|(_, waker)| waker.wake());
    }
}

/// A sender that panicked between two pushes leaves a whole queue behind, so poison means nothing here.
#[cfg(not(loom))]
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(loom)]
fn lock<T>(mutex: &Mutex<T>) -> loom::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics in a loom model")
}
