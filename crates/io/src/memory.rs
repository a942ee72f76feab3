//! Memory that the allocator keeps for itself.

/// Gives the system what the allocator holds free, where the allocator lets itself be told (glibc).
///
/// glibc returns memory only from the end of its heap. After many connections began at one moment, each with a few blocks
/// that it needed for its handshake alone, what they left lies between blocks that stay. This walks the whole heap,
/// milliseconds for tens of megabytes: for the calm after a storm, not for each connection.
#[allow(unsafe_code)]
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no memory of ours, and may be called by any thread at any time (glibc says MT-Safe).
    unsafe {
        libc::malloc_trim(0);
    }
}
