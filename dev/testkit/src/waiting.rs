//! Waiting in tests: the only place where a test's thread sleeps.
//!
//! A test that must wait for another thread or process polls for what it waits for, and fails after
//! [`TIMEOUT`]. What can run in virtual time belongs into the simulator instead.

use std::time::{Duration, Instant};

use crate::TIMEOUT;

/// Time between two looks: the waiting thread is not to take the processor from what it waits for.
const PAUSE: Duration = Duration::from_millis(1);

/// Looks in a row at which a figure must be the same for it to be [settled], which take half a
/// second at least: a busy machine takes a tenth from any thread by itself.
const SAME: u32 = 500;

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

/// Waits until a figure changes no more, and returns it.
///
/// # Panics
/// It still changes after [`TIMEOUT`].
pub fn settled<T: PartialEq>(what: &str, mut look: impl FnMut() -> T) -> T {
    let (mut last, mut same) = (look(), 0);
    poll(what, || {
        let now = look();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        (same == SAME).then_some(())
    });
    last
}

/// Holds up the calling thread, as a handler under test does that is slow on purpose. No test waits
/// with it for something to happen.
pub fn hold_up(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_settled_when_it_has_stopped_changing() {
        let mut looks = 0;
        let figure = settled("it stops at 30", || {
            looks += 1;
            looks.min(30)
        });
        assert_eq!((figure, looks), (30, 30 + SAME));
    }
}
