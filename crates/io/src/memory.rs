//! Memory that the process may use, and memory that the allocator holds free.

/// Returns the bytes of memory that the process may use: the least of the machine's memory, the
/// limits of its cgroups (`memory.max`, or `memory.limit_in_bytes` of version 1) and its own limits
/// (`RLIMIT_AS`, `RLIMIT_DATA`). `None` where the system has none of them.
#[must_use]
pub fn available() -> Option<u64> {
    let limits = [of_machine(), of_cgroups(), of_process()];
    limits.into_iter().flatten().min()
}

fn of_machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the lowest limit from the process's cgroup up to the root.
fn of_cgroups() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let limits = groups.lines().filter_map(|line| {
        // "0::/path" in version 2, "4:memory:/path" in version 1.
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => return None,
        };
        lowest_limit(std::path::Path::new(root), path.trim_start_matches('/'), file)
    });
    limits.min()
}

/// Returns the lowest number in `file` of the folder `path` below `root` and of those above it. In
/// a container the path is the host's and does not exist; the root is the container's own.
fn lowest_limit(root: &std::path::Path, path: &str, file: &str) -> Option<u64> {
    let own = root.join(path);
    let limit = |at: &std::path::Path| {
        std::fs::read_to_string(at.join(file)).ok()?.trim().parse::<u64>().ok()
    };
    own.ancestors().take_while(|at| at.starts_with(root)).filter_map(limit).min()
}

#[cfg(unix)]
fn of_process() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    let limits = [getrlimit(Resource::As).current, getrlimit(Resource::Data).current];
    limits.into_iter().flatten().min()
}

#[cfg(not(unix))]
fn of_process() -> Option<u64> {
    None
}

/// Blocks of this many bytes or more are returned to the system when they are freed.
const MAP_FROM: i32 = 256 << 10;

/// Free memory at the end of a heap is returned when it is this many bytes or more.
const TRIM_FROM: i32 = 512 << 10;

/// Makes the allocator (glibc) return the memory of a burst of large messages. Call it when the
/// program starts.
///
/// By default glibc maps large blocks one by one only until the first of them is freed: from then
/// on blocks of up to that size, 32 MiB at most, come from heaps that shrink only from their end,
/// and hundreds of megabytes stay resident. Setting both thresholds fixes them.
pub fn return_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        set(libc::M_MMAP_THRESHOLD, MAP_FROM);
        set(libc::M_TRIM_THRESHOLD, TRIM_FROM);
    }
}

/// Sets a parameter of the allocator, which keeps its default if it refuses.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
fn set(parameter: i32, value: i32) {
    // SAFETY: `mallopt` takes no pointers, and locks the allocator's state itself.
    unsafe {
        libc::mallopt(parameter, value);
    }
}

/// Returns free memory of the allocator to the system, if the allocator supports it (glibc).
///
/// glibc returns memory only from the end of its heap. After a burst of new connections, each of
/// which allocated a few blocks for its handshake alone, the freed blocks lie between blocks that
/// stay in use. This call walks the whole heap, which takes milliseconds for tens of megabytes:
/// call it after a burst, not for each connection.
#[allow(unsafe_code)]
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no memory of ours, and may be called by any thread at any time (glibc documents
    // it as MT-Safe).
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_of_the_cgroups_counts() {
        let root = std::env::temp_dir().join(format!("throng-cgroup-{}", std::process::id()));
        let own = root.join("system.slice/throng.service");
        std::fs::create_dir_all(&own).unwrap();
        let write = |folder: &std::path::Path, text: &str| {
            std::fs::write(folder.join("memory.max"), text).unwrap();
        };
        write(&own, "max\n");
        assert_eq!(lowest_limit(&root, "system.slice/throng.service", "memory.max"), None);
        write(&root.join("system.slice"), "1073741824\n");
        write(&root, "8589934592\n");
        let limit = lowest_limit(&root, "system.slice/throng.service", "memory.max");
        assert_eq!(limit, Some(1 << 30));
        let of_a_container = lowest_limit(&root, "kubepods/pod1", "memory.max");
        assert_eq!(of_a_container, Some(8 << 30));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_machine_has_memory() {
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
