//! Waiting in tests: the only place where a test's thread sleeps.
//!
//! A test that must wait for another thread or process polls for what it waits for, and fails after
//! [`TIMEOUT`]. What can run in virtual time belongs into the simulator instead.

use std::time::{Duration, Instant};

use crate::wire::TIMEOUT;

/// Time between two looks: the waiting thread is not to take the processor from what it waits for.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until `condition` holds.
///
/// # Panics
/// It does not hold for [`TIMEOUT`].
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    poll(what, || condition().then_some(()));
}

/// Waits until `look` returns a value, and returns it.
///
/// # Panics
/// It returns none for [`TIMEOUT`].
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

/// Holds up the calling thread, as a handler under test does that is slow on purpose. No test waits
/// with it for something to happen.
pub fn hold_up(time: Duration) {
    std::thread::sleep(time);
}
