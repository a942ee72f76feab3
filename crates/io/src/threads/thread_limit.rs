//! The number of threads that the system allows.

use crate::capacity::{ThreadLimit, ThreadLimits};
use crate::kernel_text;

/// Returns the lowest limit that the system reports, if it reports any: Linux's `/proc` and the
/// process's cgroup. Windows reports none.
///
/// Threads of other processes are counted as free, so starting a thread can fail below the limit;
/// such a connection is then refused.
#[must_use]
pub fn thread_limit() -> Option<ThreadLimit> {
    let number = |path| kernel_text::read(path)?.trim().parse::<u64>().ok();
    let limits = ThreadLimits {
        threads_max: number("/proc/sys/kernel/threads-max"),
        pid_max: number("/proc/sys/kernel/pid_max"),
        max_map_count: number("/proc/sys/vm/max_map_count"),
        user_processes: user_process_limit(),
        cgroup_pids: crate::cgroup::lowest("pids.max", None),
    };
    limits.lowest()
}

/// Returns RLIMIT_NPROC; root is exempt from it.
fn user_process_limit() -> Option<u64> {
    #[cfg(unix)]
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

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
            assert!(taken <= THREADS * ThreadLimits::MAPS_PER_THREAD, "{taken} of {THREADS}");
        });
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_reports_a_limit() {
        let ThreadLimit { threads, limit, .. } = thread_limit().unwrap();
        assert!(threads > 1, "{limit} is {threads}");
    }
}
