//! Signals that a C library does not let a program ignore.

use std::io;

/// The kernel's `struct sigaction`, without a function to call.
#[cfg(target_os = "linux")]
#[repr(C)]
struct SignalAction {
    handler: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// Ignores a signal, in all threads.
///
/// musl keeps SIGRTMIN (34) for itself and refuses a handler for it, so that it ends a process that
/// does not ask the kernel to ignore it.
///
/// # Errors
/// There is no such signal, or it cannot be ignored; or this is not Linux.
#[allow(unsafe_code)]
pub fn ignore(signal: i32) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let action = SignalAction { handler: libc::SIG_IGN, flags: 0, restorer: 0, mask: 0 };
        // SAFETY: the kernel reads a `struct sigaction`, which `action` is, and writes no old one.
        // No function is registered.
        let result = unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const action,
                std::ptr::null_mut::<SignalAction>(),
                size_of::<u64>(),
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = signal;
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    #[allow(unsafe_code)]
    fn a_signal_that_is_ignored_ends_no_process() {
        const SIGRTMIN: i32 = 34;
        ignore(SIGRTMIN).unwrap();
        let own = std::process::id() as libc::pid_t;
        // SAFETY: a plain system call.
        let sent = unsafe { libc::kill(own, SIGRTMIN) };
        assert_eq!(sent, 0);
        assert!(ignore(libc::SIGKILL).is_err() && ignore(65).is_err());
    }
}
