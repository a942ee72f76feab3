//! Descriptors: how many the process may have, has, and is prepared for.

use std::io;

/// The soft limit on open descriptors (RLIMIT_NOFILE), every connection being one, and the hard one, up to which a
/// process may raise it by itself. Where there is no such limit (Windows) both are `u64::MAX`.
#[must_use]
pub fn descriptor_limits() -> (u64, u64) {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit};
        let limit = getrlimit(Resource::Nofile);
        (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX))
    }
    #[cfg(not(unix))]
    (u64::MAX, u64::MAX)
}

/// Raises the soft limit on descriptors to the hard one, and returns it; `u64::MAX` where there is none.
///
/// # Errors
/// The system does not let the soft limit be raised to the hard one: macOS above `kern.maxfilesperproc`, and some
/// containers. The old limit holds on.
pub fn raise_descriptors() -> io::Result<u64> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        if limit.current != limit.maximum {
            setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
        }
    }
    Ok(descriptor_limits().0)
}

/// Descriptors open now; 0 where the system does not list them. Reads a directory: once a second is fine,
/// once a connection is not.
#[must_use]
pub fn descriptors_in_use() -> usize {
    let list = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    // One of them is the directory's own.
    std::fs::read_dir(list).map_or(0, |entries| entries.count().saturating_sub(1))
}

/// Has the kernel make the process' descriptor table large enough for `count` descriptors now.
///
/// To be called before threads start: when threads share a table, Linux waits for an RCU grace period, milliseconds
/// long, at each doubling, in the middle of an accept. Costs 8 bytes of kernel memory each. The number is cut at the
/// soft limit.
///
/// # Errors
/// No descriptor or memory.
pub fn prepare_descriptors(count: usize) -> io::Result<()> {
    #[cfg(unix)]
    {
        let most = usize::try_from(descriptor_limits().0).unwrap_or(usize::MAX);
        let last = count.min(most).saturating_sub(1);
        let any = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
        // A descriptor at the far end, closed at once. The table keeps its size.
        rustix::io::fcntl_dupfd_cloexec(&any, i32::try_from(last).unwrap_or(i32::MAX))?;
    }
    #[cfg(not(unix))]
    let _ = count;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raising_reaches_the_hard_limit_and_preparing_leaves_nothing_open() {
        let limit = raise_descriptors().unwrap();
        assert_eq!(descriptor_limits(), (limit, limit));
        prepare_descriptors(10_000).unwrap();
        prepare_descriptors(0).unwrap();
        if cfg!(target_os = "linux") {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
            assert!(size.trim().parse::<u64>().unwrap() >= limit.min(10_000));
            assert!(descriptors_in_use() > 0);
        }
    }
}
