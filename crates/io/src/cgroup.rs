//! Limits of the control groups that the process belongs to.

use std::path::Path;

/// Returns the lowest number in `file` of the process's cgroup (version 2) and of the cgroups above
/// it, or in the file of a controller of version 1. `None`: there is no limit.
pub(crate) fn lowest(file: &str, version_1: Option<(&str, &str)>) -> Option<u64> {
    let groups = crate::kernel_text::read("/proc/self/cgroup")?;
    let limits = groups.lines().filter_map(|line| {
        // "0::/path" in version 2, "4:memory:/path" in version 1.
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let path = path.trim_start_matches('/');
        match version_1 {
            _ if controllers.is_empty() => lowest_limit(Path::new("/sys/fs/cgroup"), path, file),
            Some((controller, file)) if controllers == controller => {
                lowest_limit(&Path::new("/sys/fs/cgroup").join(controller), path, file)
            }
            _ => None,
        }
    });
    limits.min()
}

/// Returns the lowest number in `file` of the folder `path` below `root` and of its parent folders.
/// In a container the path belongs to the host and does not exist, but the root is the container's.
fn lowest_limit(root: &Path, path: &str, file: &str) -> Option<u64> {
    let own = root.join(path);
    let limit = |at: &Path| std::fs::read_to_string(at.join(file)).ok()?.trim().parse::<u64>().ok();
    own.ancestors().take_while(|at| at.starts_with(root)).filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_of_the_cgroups_counts() {
        let root = throng_testkit::TempFolder::new("cgroup");
        let own = root.join("system.slice/throng.service");
        std::fs::create_dir_all(&own).unwrap();
        let write = |folder: &Path, text: &str| {
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
    }
}
