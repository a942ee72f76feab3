//! Ending a wait from another thread, with as few system calls as possible.

use std::sync::atomic::{AtomicU8, Ordering};

use super::poller::Signal;
use crate::driver::Wake;

/// The loop is running and will check its commands before it sleeps.
const AWAKE: u8 = 0;
/// The loop is in the kernel, or about to enter it, and must be signalled.
const ASLEEP: u8 = 1;
/// The loop has been woken already.
const WOKEN: u8 = 2;

/// The state shared by the driver and its wakers.
///
/// Only a wake that finds the loop asleep makes a system call: waking a busy shard costs one atomic
/// exchange. No wake is lost: a sender stores its command before it exchanges to `WOKEN`, and the
/// loop checks its commands after it exchanged to `AWAKE` and before it exchanges to `ASLEEP`;
/// whichever exchange comes second sees the other.
#[derive(Debug)]
pub(crate) struct Wakeup<S> {
    state: AtomicU8,
    signal: S,
}

impl<S: Signal> Wakeup<S> {
    pub(crate) fn new(signal: S) -> Self {
        Self { state: AtomicU8::new(AWAKE), signal }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn signal(&self) -> &S {
        &self.signal
    }

    /// Prepares to sleep. Returns false if a wake came first: do not sleep.
    pub(crate) fn may_sleep(&self) -> bool {
        self.state.swap(ASLEEP, Ordering::AcqRel) != WOKEN
    }

    /// Marks the loop as awake, after the wait and before it checks its commands.
    pub(crate) fn awake(&self) {
        self.state.swap(AWAKE, Ordering::AcqRel);
    }
}

impl<S: Signal> Wake for Wakeup<S> {
    fn wake(&self) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            self.signal.signal();
        }
    }
}
