//! A descriptor that can be polled and that any thread can make readable.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// An eventfd, one descriptor (Linux).
#[cfg(target_os = "linux")]
pub(crate) struct WakeFd(std::os::fd::OwnedFd);

#[cfg(target_os = "linux")]
impl WakeFd {
    pub(crate) fn new() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn signal(&self) {
        // Fails only after 2^64 signals.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

#[cfg(target_os = "linux")]
impl AsRawFd for WakeFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A pair of sockets (systems without eventfd).
#[cfg(not(target_os = "linux"))]
pub(crate) struct WakeFd {
    receiver: std::os::unix::net::UnixStream,
    sender: std::os::unix::net::UnixStream,
}

#[cfg(not(target_os = "linux"))]
impl WakeFd {
    pub(crate) fn new() -> io::Result<Self> {
        let (receiver, sender) = std::os::unix::net::UnixStream::pair()?;
        receiver.set_nonblocking(true)?;
        sender.set_nonblocking(true)?;
        Ok(Self { receiver, sender })
    }

    pub(crate) fn signal(&self) {
        // A full socket is readable already.
        let _ = io::Write::write(&mut &self.sender, &[1]);
    }

    pub(crate) fn clear(&self) {
        let mut bytes = [0; 64];
        while io::Read::read(&mut &self.receiver, &mut bytes).is_ok_and(|n| n == bytes.len()) {}
    }
}

#[cfg(not(target_os = "linux"))]
impl AsRawFd for WakeFd {
    fn as_raw_fd(&self) -> RawFd {
        self.receiver.as_raw_fd()
    }
}
