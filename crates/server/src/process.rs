//! What the operating system says about this process.

/// Memory of this process that is in RAM, in bytes; 0 where the system does not tell in the way of Linux.
#[must_use]
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    // /proc counts in pages of 4 KiB on the systems this is measured on.
    pages * 4096
}
