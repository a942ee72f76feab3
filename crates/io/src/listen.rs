//! Listening sockets: one for each shard, on one port.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

use crate::connect::new_socket;

/// Options of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Connections that the kernel queues until they are accepted, capped at `net.core.somaxconn`
    /// (4096 by default). Default 4096.
    pub backlog: i32,
    /// Whether several listeners share one port, with connections spread over them by hash (Linux).
    /// Default false: if another program has the port, that is an error instead of a silent
    /// sharing. It does not keep others away: see [`listen_many`].
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
/// kernel chooses a port. An IPv4 address in IPv6 (`::ffff:127.0.0.1`) is opened as IPv4: the other
/// socket would have to accept both.
///
/// SO_REUSEADDR is set on Unix, so that a server can restart while old connections linger. On
/// Windows SO_EXCLUSIVEADDRUSE keeps other processes from the port.
///
/// # Errors
/// The system's error, with its kind: `AddrInUse` if the port is taken, `PermissionDenied` for a
/// port below 1024, `AddrNotAvailable` if this machine does not have the address.
pub fn listen(
    address: SocketAddr,
    options: ListenOptions,
) -> io::Result<(TcpListener, SocketAddr)> {
    let address = match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::from((ip, address.port())),
        IpAddr::V6(_) => address,
    };
    let socket = new_socket(address)?;
    if address.is_ipv6() {
        socket.set_only_v6(!options.dual_stack)?;
    }
    #[cfg(windows)]
    crate::exclusive::set_exclusive(&socket)?;
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    #[cfg(unix)]
    if options.reuse_port {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(options.backlog)?;
    let listener = TcpListener::from(socket);
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

/// Opens `count` listeners on the same port, one for each shard.
///
/// More than one share the port (`reuse_port` is set), after a trial without that option has shown
/// that the port is free: SO_REUSEPORT alone would silently share it with another server of the
/// same user.
///
/// The trial protects the port of others from this process, and not the other way: while several
/// listeners share the port, Linux lets each process of the same user join them that sets
/// SO_REUSEPORT without such a trial. A guard is not possible: a socket without the option
/// conflicts with listeners of the same address, and clearing the option of a listener either has
/// no effect on the kernel's check, which remembers the option of the port, or takes the listener
/// out of the spreading.
/// One listener alone is never shared.
///
/// # Errors
/// As for [`listen`]; `Unsupported` for more than one where a port cannot be shared.
pub fn listen_many(
    address: SocketAddr,
    options: ListenOptions,
    count: usize,
) -> io::Result<(Vec<TcpListener>, SocketAddr)> {
    if count > 1 && !cfg!(target_os = "linux") {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut options = options;
    let mut bound = address;
    if count > 1 && !options.reuse_port {
        if address.port() != 0 {
            drop(listen(address, options)?);
        }
        options.reuse_port = true;
    }
    let mut listeners = Vec::with_capacity(count);
    for _ in 0..count {
        let (listener, address) = listen(bound, options)?;
        bound = address;
        listeners.push(listener);
    }
    Ok((listeners, bound))
}
