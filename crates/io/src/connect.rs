//! Outgoing connections, and the options that every socket gets.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

#[cfg(unix)]
use socket2::SockAddr;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::options::Options;
use crate::peer::{PeerAddress, UnixPath};

/// Starts a non-blocking connect.
pub(crate) fn start_connect(
    peer: PeerAddress,
    local: Option<SocketAddr>,
    options: &Options,
) -> io::Result<Socket> {
    match peer {
        PeerAddress::Ip(peer) => start_tcp(peer, local, options),
        PeerAddress::Unix(path) => connect_unix(path, options),
    }
}

/// Starts a non-blocking connect to an IP address.
///
/// With a `local` of port 0 the kernel picks the port together with the peer's address, so that one
/// source address serves about 28,000 connections to *each* peer.
fn start_tcp(peer: SocketAddr, local: Option<SocketAddr>, options: &Options) -> io::Result<Socket> {
    let socket = bound_socket(peer, local, options)?;
    match socket.connect(&peer.into()) {
        Ok(()) => Ok(socket),
        Err(error) if in_progress(&error) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Creates the socket of [`start_tcp`], which is bound to `local` if given.
pub(crate) fn bound_socket(
    peer: SocketAddr,
    local: Option<SocketAddr>,
    options: &Options,
) -> io::Result<Socket> {
    let socket = new_socket(peer)?;
    socket.set_tcp_nodelay(true)?;
    apply_options(SockRef::from(&socket), options)?;
    bind(&socket, local)?;
    Ok(socket)
}

/// Connects to a Unix socket, without blocking: the kernel answers at once.
#[cfg(unix)]
fn connect_unix(path: UnixPath, options: &Options) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    apply_buffers(&SockRef::from(&socket), options)?;
    let address = SockAddr::unix(path.as_path())?;
    match socket.connect(&address) {
        Ok(()) => Ok(socket),
        Err(error) => Err(refused_by_unix(error)),
    }
}

#[cfg(not(unix))]
fn connect_unix(_: UnixPath, _: &Options) -> io::Result<Socket> {
    Err(no_unix_sockets())
}

/// Returns the error of a connect to a Unix socket on a system that has none.
#[cfg(not(unix))]
pub(crate) fn no_unix_sockets() -> io::Error {
    let why = "this system has no Unix sockets: connect to an IP address";
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// Returns the error of a connect that the other side has caused: a missing file, or a full queue
/// (`EAGAIN`), which no event would follow.
#[cfg(unix)]
fn refused_by_unix(error: io::Error) -> io::Error {
    use io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
    let why = match error.kind() {
        NotFound => "the socket does not exist",
        WouldBlock => "the socket's queue is full",
        _ => return error,
    };
    io::Error::new(ConnectionRefused, why)
}

/// Connects, from `local` if given, and blocks for at most `timeout`.
///
/// For callers with one connection and no driver, such as a health check. A Unix socket is
/// connected or refused at once. Port 0 of `local` is
/// chosen as in [`Driver::connect`](crate::Driver::connect).
///
/// # Errors
/// [`TimedOut`](io::ErrorKind::TimedOut), or the system's error, for example if no port is left on
/// `local`.
pub fn connect_timeout(
    peer: PeerAddress,
    local: Option<SocketAddr>,
    timeout: Duration,
) -> io::Result<TcpStream> {
    let peer = match peer {
        PeerAddress::Ip(peer) => peer,
        PeerAddress::Unix(path) => return connect_unix_timeout(path),
    };
    let socket = new_socket(peer)?;
    bind(&socket, local)?;
    // This call leaves the socket in blocking mode.
    socket.connect_timeout(&peer.into(), timeout)?;
    Ok(socket.into())
}

/// Connects to a Unix socket, whose system answers at once. The socket has the type of TCP, as in
/// drivers: it is only read, written and ended.
#[cfg(unix)]
fn connect_unix_timeout(path: UnixPath) -> io::Result<TcpStream> {
    let socket = connect_unix(path, &Options::default())?;
    socket.set_nonblocking(false)?;
    Ok(socket.into())
}

#[cfg(not(unix))]
fn connect_unix_timeout(path: UnixPath) -> io::Result<TcpStream> {
    connect_unix(path, &Options::default()).map(Into::into)
}

fn bind(socket: &Socket, local: Option<SocketAddr>) -> io::Result<()> {
    let Some(local) = local else { return Ok(()) };
    if local.port() == 0 {
        bind_address_no_port(socket);
    }
    socket.bind(&local.into())
}

/// Returns whether the outcome of a connect that was just started will be reported later.
fn in_progress(error: &io::Error) -> bool {
    #[cfg(unix)]
    if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) {
        return true;
    }
    error.kind() == io::ErrorKind::WouldBlock
}

/// Creates a non-blocking TCP socket of the address's family.
pub(crate) fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    let kind = Type::STREAM;
    #[cfg(any(target_os = "linux", target_os = "freebsd"))]
    let kind = kind.nonblocking();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    #[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Applies [`Options`] to a socket; the defaults change nothing. Accepted sockets inherit these
/// options from their listener.
pub(crate) fn apply_options(socket: SockRef<'_>, options: &Options) -> io::Result<()> {
    if let Some(idle) = options.keepalive {
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle))?;
    }
    #[cfg(target_os = "linux")]
    if options.user_timeout.is_some() {
        socket.set_tcp_user_timeout(options.user_timeout)?;
    }
    #[cfg(target_os = "linux")]
    if let Some(bytes) = options.unsent_low_water {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        set(&socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes)?;
    }
    apply_buffers(&socket, options)
}

/// Prepares a connection that was accepted elsewhere like one accepted here.
pub(crate) fn prepare_accepted(socket: &Socket, options: &Options) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    match socket.local_addr()?.as_socket() {
        Some(_) => {
            socket.set_tcp_nodelay(true)?;
            apply_options(SockRef::from(socket), options)
        }
        // A Unix socket.
        None => apply_buffers(&SockRef::from(socket), options),
    }
}

/// Applies the sizes of the kernel's buffers, the only options that every kind of socket has.
pub(crate) fn apply_buffers(socket: &SockRef<'_>, options: &Options) -> io::Result<()> {
    if let Some(bytes) = options.socket_send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.socket_receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    Ok(())
}

/// Sets `IP_BIND_ADDRESS_NO_PORT`. Without it (an old kernel) fewer connections fit, which is not
/// an error.
#[cfg(target_os = "linux")]
fn bind_address_no_port(socket: &Socket) {
    let _ = set(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
}

/// Sets an option that socket2 does not support.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn set(socket: &Socket, level: i32, option: i32, value: libc::c_int) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: setsockopt reads `length` bytes at the address given, and `value` is that long and
    // outlives the call.
    let failed = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length)
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the kernel's counts for a socket (`TCP_INFO`, since Linux 4.19).
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(crate) fn traffic(socket: std::os::fd::RawFd) -> Option<crate::Traffic> {
    // SAFETY: every field is an integer, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    let to = (&raw mut info).cast();
    // SAFETY: getsockopt writes at most `length` bytes at the address given, and `info` is that
    // long and outlives the call.
    let failed =
        unsafe { libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut length) };
    let has_sent = std::mem::offset_of!(libc::tcp_info, tcpi_bytes_retrans) + size_of::<u64>();
    let traffic = crate::Traffic {
        received: info.tcpi_bytes_received,
        sent: info.tcpi_bytes_sent.saturating_sub(info.tcpi_bytes_retrans),
    };
    (failed == 0 && length as usize >= has_sent).then_some(traffic)
}

/// Returns whether the peer has ended the stream, even while there is input before that end.
#[cfg(target_os = "linux")]
pub(crate) fn has_peer_finished(socket: &impl std::os::fd::AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    let _ = poll(&mut polled, Some(&at_once));
    polled[0].revents().contains(PollFlags::RDHUP)
}

#[cfg(not(target_os = "linux"))]
fn bind_address_no_port(_: &Socket) {}
