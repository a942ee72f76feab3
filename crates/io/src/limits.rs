//! File descriptors: limits, use, and preallocation.

use std::io;

/// Returns the soft and the hard limit on open descriptors (RLIMIT_NOFILE).
///
/// Every connection is one descriptor. A process may raise its soft limit up to the hard one.
/// Windows has no such limit; 131,072 takes its place there, because tables for connections get
/// their memory at the start on Windows, and not on demand.
#[must_use]
pub fn descriptor_limits() -> (u64, u64) {
    #[cfg(unix)]
    return limits_of(Limited::Descriptors);
    #[cfg(not(unix))]
    (1 << 17, 1 << 17)
}

/// A resource that the system limits for a process.
#[cfg(unix)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limited {
    Descriptors,
    AddressSpace,
    Data,
    #[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
    Processes,
}

/// Returns the soft and the hard limit of the process; `u64::MAX` for none.
///
/// From a file where there is one: a sandbox may forbid the system call, and rustix panics then.
#[cfg(unix)]
pub(crate) fn limits_of(what: Limited) -> (u64, u64) {
    use rustix::process::{Resource, getrlimit};
    let listed = std::fs::read_to_string("/proc/self/limits");
    if let Some(limits) = listed.ok().and_then(|text| listed_limits(&text, what)) {
        return limits;
    }
    let limit = getrlimit(match what {
        Limited::Descriptors => Resource::Nofile,
        Limited::AddressSpace => Resource::As,
        Limited::Data => Resource::Data,
        #[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
        Limited::Processes => Resource::Nproc,
    });
    (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX))
}

/// Returns the limits from the text of `/proc/self/limits`.
#[cfg(unix)]
fn listed_limits(text: &str, what: Limited) -> Option<(u64, u64)> {
    let name = match what {
        Limited::Descriptors => "Max open files",
        Limited::AddressSpace => "Max address space",
        Limited::Data => "Max data size",
        #[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
        Limited::Processes => "Max processes",
    };
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let mut values = line.split_whitespace().map(|value| match value {
        "unlimited" => Some(u64::MAX),
        value => value.parse().ok(),
    });
    Some((values.next()??, values.next()??))
}

/// Returns the way to a limit on open descriptors of `wanted`.
#[must_use]
pub fn raise_remedy(wanted: usize) -> String {
    match cfg!(unix) {
        true => format!("raise it with `ulimit -n {wanted}` (or LimitNOFILE= in the systemd unit)"),
        false => "it cannot be raised on this system: start several processes".to_owned(),
    }
}

/// Adds the remedy to the error of a thread that could not be started.
#[must_use]
pub fn thread_not_started(error: &io::Error) -> io::Error {
    let remedy = match cfg!(windows) {
        true => "free memory, or use io = auto if it is threads",
        false => {
            "raise the limit on threads: ulimit -u, TasksMax= of systemd, pids.max of a cgroup"
        }
    };
    io::Error::new(error.kind(), format!("a thread could not be started: {error}; {remedy}"))
}

/// Raises the soft limit on descriptors to the hard one, and returns it; `u64::MAX` where there is
/// none.
///
/// # Errors
/// The system does not allow the soft limit to reach the hard one: macOS above
/// `kern.maxfilesperproc`, and some containers. The old limit stays in force.
pub fn raise_descriptors() -> io::Result<u64> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let (soft, hard) = descriptor_limits();
        if soft != hard {
            let hard = Some(hard).filter(|&hard| hard != u64::MAX);
            setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard })?;
        }
    }
    Ok(descriptor_limits().0)
}

/// Returns the number of open descriptors, in all [tables](crate::tables) of the process; 0 where
/// the system does not list them.
///
/// Costs a system call for each table; before Linux 6.2, where the size of the list was not known,
/// it reads a directory: cheap enough once a second, not once per connection.
#[must_use]
pub fn descriptors_in_use() -> usize {
    descriptors_by_table().into_iter().sum()
}

/// Returns the number of open descriptors of each [table](crate::tables) of the process: of
/// its own table first, then of each thread's that has one. The limit on open descriptors applies
/// to each. On Windows the process has one table, of its handles. Costs as [`descriptors_in_use`]
/// does.
#[must_use]
pub fn descriptors_by_table() -> Vec<usize> {
    #[cfg(windows)]
    {
        let own = crate::processes::WatchedProcess::open(std::process::id());
        vec![own.and_then(|own| own.handles()).unwrap_or(0)]
    }
    #[cfg(not(windows))]
    descriptors_of_unix()
}

#[cfg(not(windows))]
fn descriptors_of_unix() -> Vec<usize> {
    if !cfg!(target_os = "linux") {
        return vec![listed("/dev/fd")];
    }
    let of_thread = |thread| in_table(&format!("/proc/self/task/{thread}/fd"));
    let of_threads = crate::tables::thread_ids().into_iter().map(of_thread);
    std::iter::once(in_table("/proc/self/fd")).chain(of_threads).collect()
}

/// Returns the number of descriptors in a table of Linux.
#[cfg(not(windows))]
fn in_table(list: &str) -> usize {
    match std::fs::metadata(list).map(|list| list.len()) {
        Ok(open) if open > 0 => usize::try_from(open).unwrap_or(usize::MAX),
        _ => listed(list),
    }
}

/// Counts the entries of a directory; one of them belongs to the directory itself.
#[cfg(not(windows))]
fn listed(list: &str) -> usize {
    std::fs::read_dir(list).map_or(0, |entries| entries.count().saturating_sub(1))
}

/// Returns the number of files that all processes of the machine may open together
/// (`fs.file-max`); `None` where the system has no such limit.
#[must_use]
pub fn open_file_limit() -> Option<u64> {
    crate::kernel_text::read("/proc/sys/fs/file-max")?.trim().parse().ok()
}

/// Makes the kernel grow the process's descriptor table to `count` descriptors now.
///
/// Call it before starting threads: when threads share a table, Linux waits for an RCU grace period
/// of milliseconds at each doubling, in the middle of an accept. Costs 8 bytes of kernel memory per
/// descriptor. The number is capped at the soft limit.
///
/// # Errors
/// No descriptor or memory is left.
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

    #[cfg(target_os = "linux")]
    #[test]
    fn the_list_of_limits_says_what_the_system_call_says() {
        use rustix::process::{Resource, getrlimit};
        let process = getrlimit(Resource::Nproc);
        let expected = (process.current.unwrap_or(u64::MAX), process.maximum.unwrap_or(u64::MAX));
        assert_eq!(limits_of(Limited::Processes), expected);
        let text = "Max open files            1024                 unlimited            files\n";
        assert_eq!(listed_limits(text, Limited::Descriptors), Some((1024, u64::MAX)));
        assert_eq!(listed_limits("", Limited::Descriptors), None);
    }

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
