//! Ending a wait from another thread, with as few system calls as possible.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::Wake;
use crate::readiness::poller::Signal;

/// The loop is running and will look at its mail before it sleeps.
const AWAKE: u8 = 0;
/// The loop is in, or on its way into, the kernel: it must be signalled.
const ASLEEP: u8 = 1;
/// Somebody has woken the loop already.
const WOKEN: u8 = 2;

/// The driver's and the wakers' common state.
///
/// Only a wake that finds the loop asleep pays for a system call: a busy shard gets mail for one atomic exchange.
/// Nothing is lost: a sender stores its mail before it exchanges to `WOKEN`, and the loop looks at its mail after
/// it exchanged to `AWAKE` and before it exchanges to `ASLEEP`; whichever exchange comes second sees the other.
#[derive(Debug)]
pub(crate) struct Wakeup<S> {
    state: AtomicU8,
    signal: S,
}

impl<S: Signal> Wakeup<S> {
    pub(crate) fn new(signal: S) -> Self {
        Self { state: AtomicU8::new(AWAKE), signal }
    }

    /// To be called before a sleep. False: somebody woke us, do not sleep.
    pub(crate) fn may_sleep(&self) -> bool {
        self.state.swap(ASLEEP, Ordering::AcqRel) != WOKEN
    }

    /// To be called after the wait, before looking at any mail.
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
