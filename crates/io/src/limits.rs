//! Descriptors: how many this process may have, and has.

use std::io;

/// Raises the soft limit on descriptors to the hard one, and returns it; `u64::MAX` where there is none.
///
/// # Errors
/// The system does not let the soft limit be raised to the hard one; containers that do so exist.
#[cfg(unix)]
pub fn raise_descriptors() -> io::Result<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

/// The same where the number of sockets has no such limit.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn raise_descriptors() -> io::Result<u64> {
    Ok(u64::MAX)
}

/// Descriptors open now; 0 where the system does not list them.
#[must_use]
pub fn descriptors_in_use() -> usize {
    // The listing holds one itself.
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1))
}
