//! The driver's time, read afresh at any moment.
//!
//! A shard reads the clock once a turn, which is right for a server. A latency needs the time of
//! the very read that brought the answer: in a turn of a thousand events the last is handled
//! milliseconds after the first.

use std::time::Duration;

use throng_io::{Driver, Instant};

/// Reads the time on the scale of the drivers of this process.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: std::time::Instant,
    at: Instant,
}

impl Clock {
    /// A clock that agrees with `driver` to well below a microsecond.
    ///
    /// # Errors
    /// The driver's wait failed.
    pub fn of(driver: &mut impl Driver) -> std::io::Result<Self> {
        // A wait that does not sleep: it makes the driver read the time, just before we do.
        driver.wait(Some(Instant(0)))?;
        Ok(Self { base: std::time::Instant::now(), at: driver.now() })
    }

    /// Now.
    #[inline]
    pub fn now(&self) -> Instant {
        self.at.after(self.base.elapsed())
    }

    /// Returns the time until `then`; zero if it has passed.
    pub fn until(&self, then: Instant) -> Duration {
        then.since(self.now())
    }
}

/// Nanoseconds that all processes of this machine agree on, to compare a time of one with a time of
/// another.
#[cfg(unix)]
#[must_use]
pub fn machine_now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds that all processes of this machine agree on, to compare a time of one with a time of
/// another.
#[cfg(not(unix))]
#[must_use]
pub fn machine_now_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}
