//! Mail from other threads: a bounded queue with coalesced wake-ups.
//!
//! Off the hot path by construction: a shard that has no mail reads one flag a turn and takes no lock.

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
pub struct Letters<T> {
    inner: Arc<Inner<T>>,
    /// Swapped with the shared vector, so that both keep their memory.
    drained: Vec<T>,
}

/// Letters that refer to more memory than this are not taken in until the shard has looked: a publisher that is
/// faster than another shard's receivers would else fill the process's memory, 65,536 large messages at a time.
pub const MAX_BYTES: usize = 64 << 20;

struct Queue<T> {
    letters: Vec<T>,
    /// What they refer to, as their senders said.
    bytes: usize,
}

struct Inner<T> {
    /// `None` once the owner is gone.
    queue: Mutex<Option<Queue<T>>>,
    has_mail: AtomicBool,
    capacity: usize,
    waker: Waker,
}

/// A mailbox for at most `capacity` letters, whose owner `waker` wakes.
pub fn mailbox<T>(capacity: usize, waker: Waker) -> (Mailbox<T>, Letters<T>) {
    let inner = Arc::new(Inner {
        queue: Mutex::new(Some(Queue { letters: Vec::new(), bytes: 0 })),
        has_mail: AtomicBool::new(false),
        capacity,
        waker,
    });
    (Mailbox { inner: Arc::clone(&inner) }, Letters { inner, drained: Vec::new() })
}

impl<T> Mailbox<T> {
    /// Whether the [`Letters`] are gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        lock(&self.inner.queue).is_none()
    }

    /// Queues a letter and wakes the shard if it was the first. Letters of one sender arrive in order.
    ///
    /// When the [`Letters`] are gone, a letter is taken and dropped: nobody is there any more, as with an id of the
    /// past, and no sender can wait for room that will never come.
    ///
    /// # Errors
    /// Gives the letter back when the mailbox is full: the shard is behind by `capacity` letters.
    pub fn send(&self, letter: T) -> Result<(), T> {
        self.send_with(letter, 0)
    }

    /// The same for a letter that keeps `bytes` of memory alive.
    ///
    /// # Errors
    /// Gives the letter back when the mailbox is full: so many letters are in it, or [`MAX_BYTES`] besides this one's.
    pub fn send_with(&self, letter: T, bytes: usize) -> Result<(), T> {
        self.put(letter, bytes, self.inner.capacity)
    }

    /// The same, however full the mailbox is: for letters whose number is bounded by something else.
    pub fn send_always(&self, letter: T) {
        // It can only be taken.
        drop(self.put(letter, 0, usize::MAX));
    }

    fn put(&self, letter: T, bytes: usize, capacity: usize) -> Result<(), T> {
        let first = {
            let mut queue = lock(&self.inner.queue);
            // The letter is dropped after the lock is let go.
            let Some(queue) = queue.as_mut() else { return Ok(()) };
            let is_bounded = capacity < usize::MAX;
            if queue.letters.len() >= capacity || (is_bounded && queue.bytes > MAX_BYTES) {
                return Err(letter);
            }
            queue.letters.push(letter);
            queue.bytes += bytes;
            // Set under the lock, so that a flag seen without letters is the only possible disagreement.
            self.inner.has_mail.store(true, Ordering::Release);
            queue.letters.len() == 1
        };
        if first {
            self.inner.waker.wake();
        }
        Ok(())
    }
}

impl<T> Letters<T> {
    /// Whether there are letters that [`Letters::drain`] has not given yet.
    #[must_use]
    pub fn has_mail(&self) -> bool {
        self.inner.has_mail.load(Ordering::Acquire)
    }

    /// All letters so far, oldest first; without a lock when there are none.
    pub fn drain(&mut self) -> std::vec::Drain<'_, T> {
        if self.has_mail() {
            let mut queue = lock(&self.inner.queue);
            self.inner.has_mail.store(false, Ordering::Release);
            if let Some(queue) = queue.as_mut() {
                std::mem::swap(&mut queue.letters, &mut self.drained);
                queue.bytes = 0;
            }
        }
        self.drained.drain(..)
    }
}

/// Closes the mailbox: what is queued is dropped, and so is all that follows.
impl<T> Drop for Letters<T> {
    fn drop(&mut self) {
        let queued = lock(&self.inner.queue).take();
        // Only now that the lock is let go: a letter may hold anything, a sender of this mailbox too.
        drop(queued);
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
