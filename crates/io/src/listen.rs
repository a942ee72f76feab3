//! Listening sockets: one for each shard, on one port.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::Socket;

use crate::connect::new_socket;

/// Options of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Connections that the kernel queues until they are accepted, capped at `net.core.somaxconn`
    /// (4096 by default). Default 4096.
    pub backlog: i32,
    /// Whether several listeners share one port, with connections spread over them by hash (Linux).
    /// Default false: a second server on the port is an error instead of a silent sharing.
    pub reuse_port: bool,
    /// Whether an IPv6 listener accepts IPv4 connections as well. Default false.
    pub dual_stack: bool,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { backlog: 4096, reuse_port: false, dual_stack: false }
    }
}

/// Opens a non-blocking listener on `address`, and returns it with its address. With port 0 the
/// kernel chooses a port.
///
/// SO_REUSEADDR is set on Unix, so that a server can restart while old connections linger.
///
/// # Errors
/// The system's error, with its kind: `AddrInUse` if the port is taken, `PermissionDenied` for a
/// port below 1024, `AddrNotAvailable` if this machine does not have the address.
pub fn listen(
    address: SocketAddr,
    options: ListenOptions,
) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = bind(address, options)?;
    socket.listen(options.backlog)?;
    let listener = TcpListener::from(socket);
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

fn bind(address: SocketAddr, options: ListenOptions) -> io::Result<Socket> {
    let socket = new_socket(address)?;
    if address.is_ipv6() {
        socket.set_only_v6(!options.dual_stack)?;
    }
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    #[cfg(unix)]
    if options.reuse_port {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Keeps all other sockets from a port that listeners share among themselves, while it exists.
///
/// SO_REUSEPORT lets any process of the same user listen on the port, too, unless one socket of the
/// port does not have the option: this one, which has no other use.
#[derive(Debug)]
pub struct PortGuard {
    /// Bound, and never listening.
    _socket: Socket,
}

impl PortGuard {
    #[cfg(target_os = "linux")]
    fn new(bound: SocketAddr, options: ListenOptions) -> io::Result<Self> {
        let socket = bind(bound, options)?;
        socket.set_reuse_port(false)?;
        Ok(Self { _socket: socket })
    }
}

/// Listeners on one port.
#[derive(Debug)]
pub struct Listeners {
    /// One for each shard.
    pub all: Vec<TcpListener>,
    /// The address of all.
    pub address: SocketAddr,
    /// Present where they share a port that is not to be shared with others. To be dropped when the
    /// listeners close, or a successor cannot listen; and at once where each shard has a descriptor
    /// table of its own, since each copy of the table would keep it.
    pub guard: Option<PortGuard>,
}

/// Opens `count` listeners on the same port, one for each shard.
///
/// More than one share the port (`reuse_port` is set), after a trial without that option has shown
/// that the port is free: SO_REUSEPORT alone would silently share it with another server of the
/// same user. A guard keeps it from servers that come later.
///
/// # Errors
/// As for [`listen`]; `Unsupported` for more than one where a port cannot be shared.
pub fn listen_many(
    address: SocketAddr,
    options: ListenOptions,
    count: usize,
) -> io::Result<Listeners> {
    if count > 1 && !cfg!(target_os = "linux") {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let is_exclusive = count > 1 && !options.reuse_port;
    let mut options = options;
    let mut bound = address;
    if is_exclusive {
        if address.port() != 0 {
            drop(listen(address, options)?);
        }
        options.reuse_port = true;
    }
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let (listener, address) = listen(bound, options)?;
        bound = address;
        all.push(listener);
    }
    #[cfg(target_os = "linux")]
    let guard = is_exclusive.then(|| PortGuard::new(bound, options)).transpose()?;
    #[cfg(not(target_os = "linux"))]
    let guard = None;
    Ok(Listeners { all, address: bound, guard })
}
