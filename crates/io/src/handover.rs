//! The connection between a process and its successor: its start, and messages with descriptors.
//!
//! * Duty: give a successor its connection to this process, and send and receive on it.
//! * Not its duty: what the bytes mean.
//! * Start reading at: [`take_handover`].

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The most descriptors that are sent at once.
pub const MAX_AT_ONCE: usize = 64;

/// The variable that names the descriptor of the connection to a successor's predecessor.
pub const HANDOVER_VARIABLE: &str = "THRONG_HANDOVER_FD";

/// Takes the connection to the predecessor that has started this process, if one has: the number of
/// its descriptor is in [`HANDOVER_VARIABLE`], which is removed so that child processes do not take
/// it for theirs. The predecessor passes it as standard input, which becomes empty.
///
/// It must be called before the process has a second thread.
///
/// # Errors
/// The variable does not name a Unix socket.
pub fn take_handover() -> io::Result<Option<UnixStream>> {
    let Some(number) = std::env::var_os(HANDOVER_VARIABLE) else { return Ok(None) };
    remove_variable();
    if number != "0" {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let stream = UnixStream::from(take_standard_input()?);
    // Fails if it is not such a socket.
    stream.local_addr()?;
    Ok(Some(stream))
}

/// Removes [`HANDOVER_VARIABLE`] from the environment.
#[allow(unsafe_code)]
fn remove_variable() {
    // SAFETY: the caller of `take_handover` has no second thread that could read the environment.
    unsafe { std::env::remove_var(HANDOVER_VARIABLE) };
}

/// Moves standard input to another number, and puts an empty file in its place.
fn take_standard_input() -> io::Result<OwnedFd> {
    use std::os::fd::AsFd;
    let taken = io::stdin().as_fd().try_clone_to_owned()?;
    let empty = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&empty)?;
    Ok(taken)
}

#[cfg(target_os = "linux")]
pub use linux::{check_peer, receive, send};

#[cfg(target_os = "linux")]
mod linux {
    use super::{BorrowedFd, MAX_AT_ONCE, OwnedFd, UnixStream, io};
    use crate::descriptors::{self, MAX_DESCRIPTORS, PeerProcess};

    const _: () = assert!(MAX_AT_ONCE <= MAX_DESCRIPTORS);

    /// Checks that the process at the other end is of the same user, or of root.
    ///
    /// # Errors
    /// `PermissionDenied` if it is of another user, or the system's error.
    pub fn check_peer(stream: &UnixStream) -> io::Result<()> {
        let peer = PeerProcess::of(stream)?;
        if peer.is_trusted() {
            return Ok(());
        }
        let PeerProcess { pid, user } = peer;
        let message = format!("process {pid} is of user {user}, not of this one or of root");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
    }

    /// Sends all bytes, the first of them with `descriptors`: at most [`MAX_AT_ONCE`].
    ///
    /// # Errors
    /// The system's error; too many descriptors.
    pub fn send(
        stream: &UnixStream,
        bytes: &[u8],
        mut descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match descriptors::send(stream, rest, descriptors) {
                Ok(sent) => {
                    rest = &rest[sent..];
                    descriptors = &[];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives some bytes into `buffer`, and returns their number and the descriptors that came
    /// with them; 0 bytes are the end of the stream.
    ///
    /// # Errors
    /// The system's error; `InvalidData` if descriptors were lost.
    pub fn receive(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        loop {
            match descriptors::receive(stream, buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                received => return received,
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub use other::{check_peer, receive, send};

#[cfg(not(target_os = "linux"))]
mod other {
    use super::{BorrowedFd, OwnedFd, UnixStream, io};

    /// Fails: only Linux is supported.
    ///
    /// # Errors
    /// Always.
    pub fn check_peer(_: &UnixStream) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Fails: only Linux is supported.
    ///
    /// # Errors
    /// Always.
    pub fn send(_: &UnixStream, _: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Fails: only Linux is supported.
    ///
    /// # Errors
    /// Always.
    pub fn receive(_: &UnixStream, _: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn descriptors_arrive_with_the_first_byte_of_their_bytes() {
        let (own, other) = UnixStream::pair().unwrap();
        check_peer(&own).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        send(&own, b"first", &[]).unwrap();
        send(&own, b"second", &[listener.as_fd(), listener.as_fd()]).unwrap();
        let (mut bytes, mut passed) = (Vec::new(), Vec::new());
        while bytes.len() < 11 {
            let mut buffer = [0; 100];
            let (count, more) = receive(&other, &mut buffer).unwrap();
            bytes.extend_from_slice(&buffer[..count]);
            passed.extend(more);
        }
        assert_eq!(bytes, b"firstsecond");
        assert_eq!(passed.len(), 2);
        for socket in passed {
            let same = TcpListener::from(socket);
            assert_eq!(same.local_addr().unwrap(), listener.local_addr().unwrap());
        }
    }
}
