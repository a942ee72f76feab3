//! The number of threads that the system allows.

/// The lowest of the system's limits on threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLimit {
    /// Maximum threads of this process, including its present threads.
    pub threads: usize,
    /// The limit's usual name, for advice on raising it.
    pub limit: &'static str,
    /// Units of the limit that one thread takes: the limit for `n` threads is `n * each`.
    pub each: usize,
}

/// Memory maps that a thread takes: its stack, the stack on which the handler of a stack overflow
/// runs, a guard page for each, and one spare for the allocator and for large messages. A process
/// that is out of maps is not always refused a thread: the thread may start, fail to get its second
/// stack, and abort the process.
const MAPS_PER_THREAD: usize = 5;

/// Returns the lowest limit that the system reports, if it reports any: Linux's `/proc` and the
/// process's cgroup.
///
/// Threads of other processes are counted as free, so starting a thread can fail below the limit;
/// such a connection is then refused.
#[must_use]
pub fn thread_limit() -> Option<ThreadLimit> {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    lowest([
        (number("/proc/sys/kernel/threads-max"), "kernel.threads-max", 1),
        (number("/proc/sys/kernel/pid_max"), "kernel.pid_max", 1),
        (number("/proc/sys/vm/max_map_count"), "vm.max_map_count", MAPS_PER_THREAD),
        (user_process_limit(), "ulimit -u", 1),
        (crate::cgroup::lowest("pids.max", None), "pids.max of the cgroup", 1),
    ])
}

fn lowest<const N: usize>(limits: [(Option<u64>, &'static str, usize); N]) -> Option<ThreadLimit> {
    let known = limits.into_iter().filter_map(|(most, limit, each)| {
        let threads = usize::try_from(most?).unwrap_or(usize::MAX) / each;
        Some(ThreadLimit { threads, limit, each })
    });
    known.min_by_key(|limit| limit.threads)
}

/// Returns RLIMIT_NPROC; root is exempt from it.
fn user_process_limit() -> Option<u64> {
    if rustix::process::geteuid().is_root() {
        return None;
    }
    #[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
    {
        use crate::limits::{Limited, limits_of};
        Some(limits_of(Limited::Processes).0).filter(|&limit| limit != u64::MAX)
    }
    #[cfg(not(any(target_os = "linux", target_os = "macos", target_os = "freebsd")))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_is_named() {
        let found =
            lowest([(Some(9), "a", 1), (None, "b", 1), (Some(36), "c", 5), (Some(8), "d", 1)]);
        assert_eq!(found, Some(ThreadLimit { threads: 7, limit: "c", each: 5 }));
        assert_eq!(lowest([(None, "a", 1)]), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_takes_no_more_maps_than_assumed() {
        const THREADS: usize = 200;
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let before = maps();
        let all = std::sync::Barrier::new(THREADS + 1);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let builder = std::thread::Builder::new().stack_size(256 * 1024);
                let run = || {
                    all.wait();
                    all.wait();
                };
                builder.spawn_scoped(scope, run).unwrap();
            }
            all.wait();
            let taken = maps() - before;
            all.wait();
            assert!(taken <= THREADS * MAPS_PER_THREAD, "{taken} of {THREADS}");
        });
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_reports_a_limit() {
        let ThreadLimit { threads, limit, .. } = thread_limit().unwrap();
        assert!(threads > 1, "{limit} is {threads}");
    }
}
