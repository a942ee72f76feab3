//! Connecting by an overlapped operation.

use std::io;
use std::net::SocketAddr;
use std::os::windows::io::AsRawSocket;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use socket2::{SockAddr, Socket};
use windows_sys::Win32::Networking::WinSock::{
    LPFN_CONNECTEX, SIO_GET_EXTENSION_FUNCTION_POINTER, SO_UPDATE_CONNECT_CONTEXT, SOCKET,
    SOCKET_ERROR, SOL_SOCKET, WSA_IO_PENDING, WSAID_CONNECTEX, WSAIoctl, setsockopt,
};
use windows_sys::Win32::System::IO::OVERLAPPED;

/// Starts a connect of a bound socket, whose memory lives until its packet comes. Returns false if
/// it has succeeded already, and no packet comes.
#[allow(unsafe_code)]
pub(super) fn start(
    socket: &Socket,
    peer: SocketAddr,
    overlapped: *mut OVERLAPPED,
) -> io::Result<bool> {
    let connect = function(socket)?.ok_or(io::ErrorKind::Unsupported)?;
    let peer = SockAddr::from(peer);
    // SAFETY: the system reads the address during the call, and sends nothing. It writes to the
    // operation until its packet comes, as the caller guarantees.
    let succeeded = unsafe {
        connect(
            socket.as_raw_socket() as SOCKET,
            peer.as_ptr().cast(),
            peer.len(),
            null(),
            0,
            null_mut(),
            overlapped,
        )
    };
    if succeeded != 0 {
        return Ok(false);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(WSA_IO_PENDING) { Ok(true) } else { Err(error) }
}

/// Makes a socket that has connected this way like any other.
#[allow(unsafe_code)]
pub(super) fn finish(socket: &Socket) -> io::Result<()> {
    let socket = socket.as_raw_socket() as SOCKET;
    // SAFETY: the socket is open. The option has no value.
    let result = unsafe { setsockopt(socket, SOL_SOCKET, SO_UPDATE_CONNECT_CONTEXT, null(), 0) };
    if result == SOCKET_ERROR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the address of ConnectEx, which only a socket knows.
#[allow(unsafe_code)]
fn function(socket: &Socket) -> io::Result<LPFN_CONNECTEX> {
    static FOUND: OnceLock<LPFN_CONNECTEX> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(*found);
    }
    let (name, mut found, mut written) = (WSAID_CONNECTEX, LPFN_CONNECTEX::None, 0);
    // SAFETY: the system reads the name and writes the address, each of the length that is given,
    // and the number of bytes written; all outlive the call.
    let result = unsafe {
        WSAIoctl(
            socket.as_raw_socket() as SOCKET,
            SIO_GET_EXTENSION_FUNCTION_POINTER,
            (&raw const name).cast(),
            size_of_val(&name) as u32,
            (&raw mut found).cast(),
            size_of_val(&found) as u32,
            &raw mut written,
            null_mut(),
            None,
        )
    };
    match result {
        0 => Ok(*FOUND.get_or_init(|| found)),
        _ => Err(io::Error::last_os_error()),
    }
}
