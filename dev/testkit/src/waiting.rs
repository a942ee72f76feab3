//! Waiting in tests: the only place where a test's thread sleeps.
//!
//! A test that must wait for another thread or process polls for its condition, and fails after
//! [`TIMEOUT`]. Tests that can run in virtual time belong in the simulator instead.

use std::time::{Duration, Instant};

use crate::wire::TIMEOUT;

/// Time between two polls: the waiting thread must not take the CPU from the thread that it waits
/// for.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until `condition` holds.
///
/// # Panics
/// It does not hold for [`TIMEOUT`].
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    poll(what, || condition().then_some(()));
}

/// Waits until `look` returns a value, and returns that value.
///
/// # Panics
/// It returns no value for [`TIMEOUT`].
pub fn poll<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = look() {
            return value;
        }
        assert!(Instant::now() < until, "never came true: {what}");
        std::thread::sleep(PAUSE);
    }
}

/// Blocks the calling thread, as a deliberately slow handler under test does. No test waits with it
/// for an event.
pub fn hold_up(time: Duration) {
    std::thread::sleep(time);
}
