//! The driver's time, read again at any moment.
//!
//! A shard reads the clock once per turn, which is right for a server. A latency needs the time of
//! the read that received the answer: in a turn of a thousand events the last event is handled
//! milliseconds after the first.

use std::time::Duration;

use throng_io::Instant;

/// The clock that the drivers of this process read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Clock {
    /// Now.
    #[inline]
    pub fn now(&self) -> Instant {
        throng_io::Clock::System.read()
    }

    /// Returns the time until `then`; zero if it has passed.
    pub fn until(&self, then: Instant) -> Duration {
        then.since(self.now())
    }
}

/// Returns the nanoseconds of a clock that all processes of this machine share, to compare times of
/// different processes.
#[cfg(unix)]
#[must_use]
pub fn machine_now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the nanoseconds of a clock that all processes of this machine share, to compare times of
/// different processes.
#[cfg(not(unix))]
#[must_use]
pub fn machine_now_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}
