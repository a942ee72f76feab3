//! Resources of this process, as the operating system reports them.

/// Returns this process's resident memory in bytes; 0 on systems without Linux's `/proc`.
#[must_use]
pub fn resident_bytes() -> u64 {
    let rollup = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
}

/// Returns the number of open descriptors; 0 where the system does not list them.
#[must_use]
pub fn descriptors_in_use() -> usize {
    throng_io::limits::descriptors_in_use()
}

/// Raises this process's soft limit on descriptors to the hard limit, and returns it.
#[must_use]
pub fn descriptor_limit() -> usize {
    throng_io::limits::raise_descriptors()
        .map_or(1024, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}
