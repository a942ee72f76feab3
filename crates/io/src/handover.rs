//! The connection between a process and its successor: its start, and messages with descriptors.
//!
//! * Duty: give a successor its connection to this process, and send and receive on it.
//! * Not its duty: what the bytes mean.
//! * Start reading at: [`take_handover`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::descriptors::{self, MAX_DESCRIPTORS, PeerProcess};
pub use crate::descriptors::{ProcessWatch, try_send};
use crate::id::Slots;

/// The most descriptors that are sent at once.
pub const MAX_AT_ONCE: usize = 64;

/// The variable with the number of the process that has started this one as its successor. It has
/// no prefix, so that it is not read as a setting.
pub const HANDOVER_VARIABLE: &str = "HANDOVER_PID";

/// A part of a shard that moves to the shard of a successor with the same number.
#[derive(Debug)]
pub struct Passage {
    /// The slots of its driver.
    pub slots: Slots,
    /// The successor's end of the link between the two.
    pub link: UnixStream,
}

/// Takes the connection to the predecessor that has started this process, if one has:
/// [`HANDOVER_VARIABLE`] has the number of its process. The predecessor passes the connection as
/// standard input, which becomes empty. Child processes inherit the variable, and ignore it, since
/// their standard input is not this connection.
///
/// # Errors
/// Standard input cannot be taken.
pub fn take_handover() -> io::Result<Option<UnixStream>> {
    let Some(predecessor) = std::env::var_os(HANDOVER_VARIABLE) else { return Ok(None) };
    let input = io::stdin();
    if !predecessor.to_str().is_some_and(|number| is_from(&input, number)) {
        return Ok(None);
    }
    let taken = input.as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(Some(taken.into()))
}

const _: () = assert!(MAX_AT_ONCE <= MAX_DESCRIPTORS);

/// Returns whether this is a socket whose other end was made by the process of this number.
fn is_from(socket: &impl AsFd, number: &str) -> bool {
    let peer = PeerProcess::of(socket);
    peer.is_ok_and(|peer| peer.pid != 0 && peer.pid.to_string() == number)
}

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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_a_socket_of_the_predecessor_is_taken() {
        let (own, _other) = UnixStream::pair().unwrap();
        let number = std::process::id().to_string();
        assert!(is_from(&own, &number));
        assert!(!is_from(&own, "1"));
        assert!(!is_from(&own, ""));
        assert!(!is_from(&std::fs::File::open("/dev/null").unwrap(), &number));
    }

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
