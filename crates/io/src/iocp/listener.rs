//! A listener with accepts in flight.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::windows::io::AsRawSocket;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::Networking::WinSock::{
    AcceptEx, SO_UPDATE_ACCEPT_CONTEXT, SOCKADDR_IN6, SOCKET, SOCKET_ERROR, SOL_SOCKET,
    WSA_IO_PENDING, WSAEMFILE, WSAENOBUFS, WSAGetOverlappedResult, setsockopt,
};
use windows_sys::Win32::System::IO::CancelIoEx;

use super::connection::IocpSocket;
use super::operation::{Header, Kind, OWN, Operation, Owned};
use super::port::Port;
use crate::options::Options;

/// The connection of an accept is there, or it has failed.
const DONE: u32 = OWN;

/// Accepts in flight. More connections wait in the backlog of the listener.
pub(super) const ACCEPTS: usize = 64;

/// Length of an address in the memory of AcceptEx, which requires 16 bytes more than the longest.
const ADDRESS: usize = size_of::<SOCKADDR_IN6>() + 16;

/// A listener of the poller.
pub struct IocpListener {
    listener: TcpListener,
    domain: Domain,
    accepts: Vec<Owned<Accept>>,
    is_associated: bool,
    /// The reason why an accept could not be started again.
    failure: Cell<Option<io::Error>>,
}

/// An accept, and the socket for its connection.
#[repr(C)]
pub(super) struct Accept {
    header: Header,
    token: Cell<u64>,
    socket: RefCell<Option<Socket>>,
    /// Written with both addresses, which are asked for later.
    addresses: UnsafeCell<[u8; 2 * ADDRESS]>,
}

// SAFETY: it is `repr(C)` and begins with a header, and only it has this kind.
#[allow(unsafe_code)]
unsafe impl Operation for Accept {
    const KIND: Kind = Kind::Accept;

    fn header(&self) -> &Header {
        &self.header
    }
}

impl IocpListener {
    pub(super) fn new(listener: TcpListener) -> io::Result<Self> {
        let domain = Domain::for_address(listener.local_addr()?);
        let accepts = (0..ACCEPTS).map(|_| Owned::new(Accept::new())).collect();
        Ok(Self { listener, domain, accepts, is_associated: false, failure: Cell::new(None) })
    }

    pub(super) fn socket(&self) -> SockRef<'_> {
        SockRef::from(&self.listener)
    }

    /// Starts accepting. Returns whether connections are there already.
    pub(super) fn start(&mut self, port: &Port, token: u64) -> io::Result<bool> {
        if !self.is_associated {
            port.associate(self.socket())?;
            self.is_associated = true;
        }
        for accept in &self.accepts {
            accept.token.set(token);
            if !accept.is_done() && !accept.header.is_pending() {
                accept.start(&self.listener, self.domain)?;
            }
        }
        Ok(self.accepts.iter().any(|accept| accept.is_done()))
    }

    /// Takes a connection, and starts its accept again.
    pub(super) fn accept(&self, options: &Options) -> io::Result<(IocpSocket, Option<SocketAddr>)> {
        let Some(accept) = self.accepts.iter().find(|accept| accept.is_done()) else {
            return Err(self.failure.take().unwrap_or_else(|| ErrorKind::WouldBlock.into()));
        };
        let accepted = accept.take(&self.listener);
        if let Err(error) = accept.start(&self.listener, self.domain) {
            self.failure.set(Some(error));
        }
        // Any failure from here on is the connection's: its peer has gone already.
        let gone = |_| io::Error::from(ErrorKind::ConnectionAborted);
        let socket = accepted.map_err(gone)?;
        socket.set_nonblocking(true).map_err(gone)?;
        // They were set on the listener without an error; a connection is served even without them.
        let _ = socket.set_tcp_nodelay(true);
        let _ = crate::connect::apply_options(SockRef::from(&socket), options);
        let peer = socket.peer_addr().map_err(gone)?.as_socket();
        Ok((IocpSocket::new(socket), peer))
    }
}

impl Drop for IocpListener {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let listener = self.listener.as_raw_socket() as HANDLE;
        for accept in &self.accepts {
            if let Some(overlapped) = accept.header.in_flight() {
                // A duplicate may keep the socket open, and connections must be left to it.
                // SAFETY: the listener is open, and the address only names an operation.
                unsafe { CancelIoEx(listener, overlapped) };
            }
            // The operation's memory stays until its packet has come.
            drop(accept.socket.take());
        }
    }
}

#[allow(unsafe_code)]
impl Accept {
    fn new() -> Self {
        Self {
            header: Header::of::<Self>(),
            token: Cell::new(0),
            socket: RefCell::new(None),
            addresses: UnsafeCell::new([0; 2 * ADDRESS]),
        }
    }

    pub(super) fn token(&self) -> u64 {
        self.token.get()
    }

    fn is_done(&self) -> bool {
        self.header.has(DONE)
    }

    /// Records that its packet has come.
    pub(super) fn complete(&self) {
        self.header.set(DONE, true);
    }

    fn start(&self, listener: &TcpListener, domain: Domain) -> io::Result<()> {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP)).map_err(exhausted)?;
        let accepted = socket.as_raw_socket() as SOCKET;
        self.socket.replace(Some(socket));
        let mut received = 0;
        // SAFETY: both sockets are open. The system writes both addresses, of the length that is
        // given, and to the operation, until its packet comes; that memory lives as long.
        let succeeded = unsafe {
            AcceptEx(
                listener.as_raw_socket() as SOCKET,
                accepted,
                self.addresses.get().cast(),
                0,
                ADDRESS as u32,
                ADDRESS as u32,
                &raw mut received,
                self.header.overlapped(),
            )
        };
        if succeeded != 0 {
            self.header.set(DONE, true);
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(WSA_IO_PENDING) {
            return Err(exhausted(error));
        }
        self.header.set_pending();
        Ok(())
    }

    /// Returns the connection of an accept that is done.
    fn take(&self, listener: &TcpListener) -> io::Result<Socket> {
        self.header.set(DONE, false);
        let socket = self.socket.take().ok_or(ErrorKind::ConnectionAborted)?;
        let listener = listener.as_raw_socket() as SOCKET;
        let (mut received, mut flags) = (0, 0);
        let overlapped = self.header.overlapped();
        // SAFETY: the operation has ended. The call reads its result, and writes two numbers.
        let succeeded = unsafe {
            WSAGetOverlappedResult(listener, overlapped, &raw mut received, 0, &raw mut flags)
        };
        if succeeded == 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the sockets are open, and the option's value is the number of the listener.
        let result = unsafe {
            setsockopt(
                socket.as_raw_socket() as SOCKET,
                SOL_SOCKET,
                SO_UPDATE_ACCEPT_CONTEXT,
                (&raw const listener).cast(),
                size_of::<SOCKET>() as i32,
            )
        };
        if result == SOCKET_ERROR { Err(io::Error::last_os_error()) } else { Ok(socket) }
    }
}

/// Maps what std has no kind for.
fn exhausted(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(WSAEMFILE) => ErrorKind::QuotaExceeded.into(),
        Some(WSAENOBUFS) => ErrorKind::OutOfMemory.into(),
        _ => error,
    }
}
