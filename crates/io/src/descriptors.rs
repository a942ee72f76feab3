//! Descriptors that go from one process, or from one descriptor table, to another (Linux).
//!
//! * Duty: send and receive descriptors over a Unix socket; the identity of its other end.
//! * Not its duty: what the bytes beside them mean, and when to send.
//! * Start reading at: [`send`].
//!
//! The kernel installs a descriptor in the table of the thread that receives it. Where shards have
//! [tables of their own](crate::tables), a socket pair is therefore the only way for a descriptor
//! from one thread to another: one end is [kept](crate::tables::Tables::give) in the shard's table.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Maximum descriptors of one message.
///
/// The kernel allows 253, and limits how many of a user are under way to the limit of descriptors.
pub const MAX_DESCRIPTORS: usize = 64;

/// Sends bytes and descriptors over a Unix socket. The sender keeps its descriptors: the receiver
/// gets duplicates of them.
///
/// Returns how many bytes were sent. All descriptors go with the first one, so the rest of the
/// bytes is sent without them.
///
/// # Errors
/// No byte and no descriptor was sent: `InvalidInput` without bytes, or with more than
/// [`MAX_DESCRIPTORS`]; `WouldBlock` if a socket that does not block is full; or the system's
/// error, such as ETOOMANYREFS.
pub fn send(socket: &impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send_with(socket, bytes, descriptors, SendFlags::empty())
}

/// Does the same as [`send`] without waiting for space in the socket.
///
/// # Errors
/// As for [`send`]; `WouldBlock` if the socket is full, also if it blocks.
pub fn try_send(
    socket: &impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    send_with(socket, bytes, descriptors, SendFlags::DONTWAIT)
}

fn send_with(
    socket: &impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    if bytes.is_empty() || descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // An empty list would be an invalid message for the kernel.
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        debug_assert!(fits, "the space is for the largest message");
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | flags)?)
}

/// Receives bytes and the descriptors that came with them: of one message at most. Child processes
/// do not get the descriptors.
///
/// Returns how many bytes came; 0 is the end of the stream.
///
/// # Errors
/// `InvalidData` if not all of the message was received, because it has more bytes than `bytes`
/// holds (not for streams), or more than [`MAX_DESCRIPTORS`], or more descriptors than this process
/// may open: those that came are closed. Otherwise the system's error, `WouldBlock` for example.
pub fn receive(socket: &impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let slices = &mut [IoSliceMut::new(bytes)];
    let received = recvmsg(socket, slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(owned) = message {
            descriptors.extend(owned);
        }
    }
    // The space is rounded up, so that one or two more may fit.
    let are_too_many = descriptors.len() > MAX_DESCRIPTORS;
    if are_too_many || received.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC) {
        // Dropped here, the descriptors are closed.
        let why = "a message with descriptors was cut";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok((received.bytes, descriptors))
}

/// A process at the other end of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    /// Its number, 0 if this process cannot see it (another PID namespace).
    pub pid: u32,
    /// The user that it ran as when it connected, listened or made the pair.
    pub user: u32,
}

impl PeerProcess {
    /// Returns the process at the other end of a Unix socket; for a socket pair, the process that
    /// made it.
    ///
    /// # Errors
    /// The system's error.
    #[allow(unsafe_code)]
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        // rustix has this call too, but its type of process numbers cannot be 0.
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the descriptor is borrowed, and the kernel writes at most `len` bytes to `peer`,
        // which may have any content.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &raw mut len,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { pid: u32::try_from(peer.pid).unwrap_or(0), user: peer.uid })
    }

    /// Returns whether it ran as the user of this process, or as root: it could read the memory of
    /// this process.
    #[must_use]
    pub fn is_trusted(self) -> bool {
        self.user == 0 || self.user == rustix::process::geteuid().as_raw()
    }
}

/// A descriptor of another process, which reports its end (pidfd).
#[derive(Debug)]
pub struct ProcessWatch(OwnedFd);

impl ProcessWatch {
    /// Watches the process at the other end of a Unix socket, see [`PeerProcess::of`].
    ///
    /// # Errors
    /// It has ended, this process cannot see it, or the system's error.
    pub fn of_peer(socket: &impl AsFd) -> io::Result<Self> {
        let PeerProcess { pid, .. } = PeerProcess::of(socket)?;
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Waits until the process has ended, with all its threads and descriptors.
    ///
    /// # Errors
    /// The system's error.
    pub fn wait(&self) -> io::Result<()> {
        loop {
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None) {
                Err(Errno::INTR) | Ok(0) => {}
                waited => return waited.map(drop).map_err(io::Error::from),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use rustix::io::{FdFlags, fcntl_getfd};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::tables::{Tables, check_support};

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn a_descriptor_is_the_same_connection_at_the_other_end() {
        let (door, inside) = UnixStream::pair().unwrap();
        let (mut client, server) = connected();
        assert_eq!(send(&door, b"one", &[server.as_fd()]).unwrap(), 3);
        assert_eq!(send(&door, b"none", &[]).unwrap(), 4);
        drop(server);
        let mut bytes = [0; 16];
        let (len, mut descriptors) = receive(&inside, &mut bytes).unwrap();
        assert_eq!((&bytes[..len], descriptors.len()), (&b"one"[..], 1));
        let flags = fcntl_getfd(&descriptors[0]).unwrap();
        assert!(flags.contains(FdFlags::CLOEXEC), "child processes must not get it");
        let (len, none) = receive(&inside, &mut bytes).unwrap();
        assert_eq!((&bytes[..len], none.len()), (&b"none"[..], 0));
        TcpStream::from(descriptors.remove(0)).write_all(b"hi").unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hi", "the sender's end is closed, so the stream ends");
        drop(door);
        assert_eq!(receive(&inside, &mut bytes).unwrap().0, 0);
    }

    #[test]
    fn a_message_that_is_too_large_is_refused_and_no_descriptor_is_kept() {
        let (door, inside) = UnixStream::pair().unwrap();
        let (mut client, server) = connected();
        let many = [server.as_fd(); 2 * MAX_DESCRIPTORS];
        for (bytes, descriptors) in [(&b"x"[..], &many[..MAX_DESCRIPTORS + 1]), (b"", &many[..1])] {
            let error = send(&door, bytes, descriptors).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        // The most that may be sent arrives.
        send(&door, b"x", &many[..MAX_DESCRIPTORS]).unwrap();
        let mut byte = [0];
        assert_eq!(receive(&inside, &mut byte).unwrap().1.len(), MAX_DESCRIPTORS);
        // Another program is not bound by this limit.
        for count in [MAX_DESCRIPTORS + 1, 2 * MAX_DESCRIPTORS] {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2 * MAX_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&many[..count])));
            sendmsg(&door, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
            let error = receive(&inside, &mut byte).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{count} descriptors");
        }
        drop(server);
        // No duplicate is left, so the client sees the end.
        assert_eq!(client.read(&mut byte).unwrap(), 0);
    }

    #[test]
    fn a_cut_packet_closes_what_came_with_it() {
        let flags = SocketFlags::CLOEXEC;
        let (door, inside) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let (mut client, server) = connected();
        send(&door, b"four", &[server.as_fd()]).unwrap();
        drop(server);
        let mut bytes = [0; 3];
        let error = receive(&inside, &mut bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(client.read(&mut bytes).unwrap(), 0, "the connection is closed");
    }

    #[test]
    fn a_shard_with_a_table_of_its_own_gets_a_connection_through_its_door() {
        check_support().unwrap();
        let (door, inside) = UnixStream::pair().unwrap();
        let mut tables = Tables::new(1);
        tables.give(0, &inside);
        let (client, server) = connected();
        std::thread::scope(|scope| {
            // The thread ends with its table, and so closes its descriptors.
            let shard = scope.spawn(|| {
                let table = tables.enter(0).unwrap();
                let mut byte = [0];
                let (_, mut descriptors) = receive(&inside, &mut byte).unwrap();
                let mut stream = TcpStream::from(descriptors.remove(0));
                stream.write_all(b"from the shard").unwrap();
                drop(stream);
                drop(table);
            });
            send(&door, b"x", &[server.as_fd()]).unwrap();
            drop(server);
            shard.join().unwrap();
        });
        let mut text = String::new();
        (&client).read_to_string(&mut text).unwrap();
        assert_eq!(text, "from the shard");
    }

    #[test]
    fn the_other_end_is_known_by_its_process_and_user() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = PeerProcess::of(&one).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert!(peer.is_trusted());
        let own = rustix::process::geteuid().as_raw();
        assert!(PeerProcess { pid: 1, user: 0 }.is_trusted());
        let stranger = if own == u32::MAX - 1 { 1 } else { own + 1 };
        assert!(!PeerProcess { pid: 1, user: stranger }.is_trusted());
    }
}
