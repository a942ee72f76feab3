//! Outgoing connections, and the options that every socket gets.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::options::Options;

/// Starts a non-blocking connect.
///
/// With a `local` of port 0 the kernel picks the port together with the peer's address, so that one
/// source address serves about 28,000 connections to *each* peer.
pub(crate) fn start_connect(
    peer: SocketAddr,
    local: Option<SocketAddr>,
    options: &Options,
) -> io::Result<Socket> {
    let socket = bound_socket(peer, local, options)?;
    match socket.connect(&peer.into()) {
        Ok(()) => Ok(socket),
        Err(error) if in_progress(&error) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Creates the socket of [`start_connect`], which is bound to `local` if given.
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

/// Connects, from `local` if given, and blocks for at most `timeout`.
///
/// For callers with one connection and no driver, such as a health check. Port 0 of `local` is
/// chosen as in [`Driver::connect`](crate::Driver::connect).
///
/// # Errors
/// [`TimedOut`](io::ErrorKind::TimedOut), or the system's error, for example if no port is left on
/// `local`.
pub fn connect_timeout(
    peer: SocketAddr,
    local: Option<SocketAddr>,
    timeout: Duration,
) -> io::Result<TcpStream> {
    let socket = new_socket(peer)?;
    bind(&socket, local)?;
    // This call leaves the socket in blocking mode.
    socket.connect_timeout(&peer.into(), timeout)?;
    Ok(socket.into())
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
