//! The clock of drivers that run in real time, shared by all shards of a process.

use crate::Instant;

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
