//! Waiting for an outcome: by a thread, or by a future.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

/// The tasks and threads that wait for one outcome: usually none, since most receipts are dropped.
#[derive(Debug, Default)]
pub struct Waiting {
    wakers: Vec<Waker>,
}

impl Waiting {
    /// Adds a task or thread, unless it waits already.
    pub fn add(&mut self, waker: &Waker) {
        if !self.wakers.iter().any(|other| other.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }

    /// Wakes all. Call it without a lock: wakers are foreign code.
    pub fn wake(self) {
        self.wakers.into_iter().for_each(Waker::wake);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// One waker for all waits of a thread, so that a repeated wait does not add another.
    static UNPARK: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

/// Blocks the thread until `poll` returns a value, or until `deadline`; without a deadline, without
/// limit. `poll` is repeated each time its waker is called.
pub(crate) fn block_until<T>(
    deadline: Option<Instant>,
    mut poll: impl FnMut(&Waker) -> Option<T>,
) -> Option<T> {
    let waker = UNPARK.with(Waker::clone);
    loop {
        if let Some(value) = poll(&waker) {
            return Some(value);
        }
        match deadline {
            Some(deadline) => {
                thread::park_timeout(deadline.checked_duration_since(Instant::now())?);
            }
            None => thread::park(),
        }
    }
}

#[cfg(test)]
pub(crate) fn count_wakes() -> Wakes {
    let count = Arc::new(Count::default());
    Wakes { waker: Waker::from(Arc::clone(&count)), count }
}

/// A waker that counts its calls.
#[cfg(test)]
pub(crate) struct Wakes {
    pub(crate) waker: Waker,
    count: Arc<Count>,
}

#[cfg(test)]
impl Wakes {
    pub(crate) fn wakes(&self) -> usize {
        self.count.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

#[cfg(test)]
#[derive(Default)]
struct Count(std::sync::atomic::AtomicUsize);

#[cfg(test)]
impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}
