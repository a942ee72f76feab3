//! Ports that no other process can share, on Windows.

use std::io;
use std::os::windows::io::AsRawSocket;

use socket2::Socket;
use windows_sys::Win32::Networking::WinSock::{
    SO_EXCLUSIVEADDRUSE, SOCKET, SOCKET_ERROR, SOL_SOCKET, setsockopt,
};

/// Keeps other sockets from the port of `socket`, which is not yet bound. Without this, a process
/// that sets SO_REUSEADDR could take the port's connections.
#[allow(unsafe_code)]
pub(crate) fn set_exclusive(socket: &Socket) -> io::Result<()> {
    let on = 1i32;
    // SAFETY: the option has four bytes, which `on` are, and the socket is open.
    let result = unsafe {
        setsockopt(
            socket.as_raw_socket() as SOCKET,
            SOL_SOCKET,
            SO_EXCLUSIVEADDRUSE,
            (&raw const on).cast(),
            size_of::<i32>() as i32,
        )
    };
    if result == SOCKET_ERROR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use socket2::{Domain, Type};

    use crate::listen::{ListenOptions, listen};

    #[test]
    fn another_socket_cannot_share_the_port_of_a_listener() {
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let (_listener, address) = listen(any, ListenOptions::default()).unwrap();
        let other = super::Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        other.set_reuse_address(true).unwrap();
        assert!(other.bind(&address.into()).is_err());
    }
}
