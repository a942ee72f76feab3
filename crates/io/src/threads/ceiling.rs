//! How many threads the system allows.

/// The lowest of the system's limits on threads, and which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceiling {
    /// Threads that this process may have, those it has included.
    pub threads: usize,
    /// The limit's name, as people know it: what to raise.
    pub limit: &'static str,
}

/// Maps that a thread's stack takes: itself and its guard.
const MAPS_A_THREAD: u64 = 2;

/// The lowest of what the system says about itself, if it says anything: Linux' `/proc` and the process' cgroup. It
/// counts what others use as free, so a start can fail below it, and is then refused one by one.
#[must_use]
pub fn most_threads() -> Option<Ceiling> {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let maps = number("/proc/sys/vm/max_map_count").map(|maps| maps / MAPS_A_THREAD);
    lowest([
        (number("/proc/sys/kernel/threads-max"), "kernel.threads-max"),
        (number("/proc/sys/kernel/pid_max"), "kernel.pid_max"),
        (maps, "vm.max_map_count (two for each thread)"),
        (processes_of_the_user(), "ulimit -u"),
        (pids_of_the_cgroup(), "pids.max of the cgroup"),
    ])
}

fn lowest<const N: usize>(limits: [(Option<u64>, &'static str); N]) -> Option<Ceiling> {
    let known = limits.into_iter().filter_map(|(most, limit)| Some((most?, limit)));
    let (most, limit) = known.min_by_key(|(most, _)| *most)?;
    Some(Ceiling { threads: usize::try_from(most).unwrap_or(usize::MAX), limit })
}

/// RLIMIT_NPROC; root is not held to it.
fn processes_of_the_user() -> Option<u64> {
    if rustix::process::geteuid().is_root() {
        return None;
    }
    #[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
    return rustix::process::getrlimit(rustix::process::Resource::Nproc).current;
    #[cfg(not(any(target_os = "linux", target_os = "macos", target_os = "freebsd")))]
    None
}

/// The lowest `pids.max` from the process' cgroup (version 2) up to the root.
fn pids_of_the_cgroup() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = std::path::Path::new("/sys/fs/cgroup");
    let path = root.join(own);
    let most = |at: &std::path::Path| {
        std::fs::read_to_string(at.join("pids.max")).ok()?.trim().parse::<u64>().ok()
    };
    path.ancestors().take_while(|at| at.starts_with(root)).filter_map(most).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_is_named() {
        let found = lowest([(Some(9), "a"), (None, "b"), (Some(7), "c"), (Some(8), "d")]);
        assert_eq!(found, Some(Ceiling { threads: 7, limit: "c" }));
        assert_eq!(lowest([(None, "a")]), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_tells() {
        let Ceiling { threads, limit } = most_threads().unwrap();
        assert!(threads > 1, "{limit} is {threads}");
    }
}
