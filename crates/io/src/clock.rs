//! The clock of a driver: the system's, shared by all shards of a process, or a simulator's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::time::Instant;

/// A driver's clock, which can be read while the driver is borrowed.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The monotonic clock of the system.
    System,
    /// Nanoseconds that a simulator advances.
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    /// Reads the clock: about 20 ns for the system's, so not for each message.
    #[must_use]
    pub fn read(&self) -> Instant {
        match self {
            Self::System => monotonic(),
            Self::Virtual(nanos) => Instant(nanos.load(Ordering::Relaxed)),
        }
    }
}

/// Returns the nanoseconds since the system started.
///
/// rustix's clock is not used because it looks the vDSO up by itself and crashes under valgrind,
/// which hides the vDSO. std's clock is not used because its arithmetic costs three times as many
/// instructions as reading the clock.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(crate) fn monotonic() -> Instant {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel, or its vDSO, writes one timespec, which `now` is. It cannot fail: the
    // clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Instant(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Returns the nanoseconds since the first call of the process.
#[cfg(not(target_os = "linux"))]
pub(crate) fn monotonic() -> Instant {
    static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    Instant(0).after(ORIGIN.get_or_init(std::time::Instant::now).elapsed())
}
