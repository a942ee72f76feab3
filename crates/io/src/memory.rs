//! Memory that the allocator holds free.

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
