//! Waits in tests. Only this module makes a test's thread sleep.
//!
//! A test that must wait for another thread or process polls for its condition, and fails after
//! [`TIMEOUT`]. Tests that can run in virtual time belong in the simulator instead.

use std::time::{Duration, Instant};

use crate::wire::TIMEOUT;

/// The time between two polls. The waiting thread must not take the CPU from the awaited thread.
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
/// `look` returns no value for [`TIMEOUT`].
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

/// Blocks the calling thread, as a deliberately slow handler under test does. Tests must not use it
/// to wait for an event.
pub fn hold_up(time: Duration) {
    std::thread::sleep(time);
}
