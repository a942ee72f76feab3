//! What the operating system says about this process.

/// Memory of this process that is in RAM, in bytes; 0 where the system does not tell in the way of Linux.
#[must_use]
pub fn resident_bytes() -> u64 {
    let rollup = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
}

/// Descriptors open now; 0 where the system does not list them.
#[must_use]
pub fn descriptors_in_use() -> usize {
    throng_io::limits::descriptors_in_use()
}

/// Descriptors this process may have, after raising its soft limit to the hard one.
#[must_use]
pub fn descriptor_limit() -> usize {
    throng_io::limits::raise_descriptors()
        .map_or(1024, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}
