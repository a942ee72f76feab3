//! A descriptor that can be polled and that any thread can make readable.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// An eventfd, one descriptor (Linux).
#[cfg(target_os = "linux")]
pub(crate) struct Bell(std::os::fd::OwnedFd);

#[cfg(target_os = "linux")]
impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn ring(&self) {
        // Fails only after 2^64 signals.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

#[cfg(target_os = "linux")]
impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A pair of sockets (systems without eventfd).
#[cfg(not(target_os = "linux"))]
pub(crate) struct Bell {
    heard: std::os::unix::net::UnixStream,
    rung: std::os::unix::net::UnixStream,
}

#[cfg(not(target_os = "linux"))]
impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let (heard, rung) = std::os::unix::net::UnixStream::pair()?;
        heard.set_nonblocking(true)?;
        rung.set_nonblocking(true)?;
        Ok(Self { heard, rung })
    }

    pub(crate) fn ring(&self) {
        // A full socket is readable already.
        let _ = io::Write::write(&mut &self.rung, &[1]);
    }

    pub(crate) fn silence(&self) {
        let mut heard = [0; 64];
        while io::Read::read(&mut &self.heard, &mut heard).is_ok_and(|n| n == heard.len()) {}
    }
}

#[cfg(not(target_os = "linux"))]
impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.heard.as_raw_fd()
    }
}
