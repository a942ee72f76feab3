//! A connection: its socket, and the operation that reports its input.

use std::cell::{Cell, OnceCell};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::windows::io::{AsRawSocket, AsSocket, BorrowedSocket, RawSocket};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, Socket};
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::Networking::WinSock::{SOCKET, WSA_IO_PENDING, WSABUF, WSARecv};
use windows_sys::Win32::System::IO::CancelIoEx;

use super::connect_ex;
use super::operation::{Header, Kind, Operation, Owned};
use super::port::Port;
use super::watch::{CHANGES, ROOM, Watch};
use crate::readiness::poller::{ERROR, READ, WRITE};

/// The state of a connection's operation: of its connect, and from then on of a receive of zero
/// bytes, which ends when there is input. So an idle connection locks no memory of the process.
#[repr(C)]
pub(super) struct Connection {
    header: Header,
    /// For the poller's list of unread connections.
    socket: Cell<RawSocket>,
    token: Cell<u64>,
    /// The port that the socket belongs to, if it is known.
    port: OnceCell<Arc<Port>>,
    extra: Cell<Option<Box<Extra>>>,
}

// SAFETY: it is `repr(C)` and begins with a header, and only it has this kind.
#[allow(unsafe_code)]
unsafe impl Operation for Connection {
    const KIND: Kind = Kind::Connection;

    fn header(&self) -> &Header {
        &self.header
    }
}

/// The state that few connections have.
enum Extra {
    /// The address to connect to.
    Peer(SocketAddr),
    /// It is held for its end alone.
    Watch(#[allow(dead_code, reason = "for its drop")] Watch),
}

/// The connect is in flight.
const CONNECTING: u8 = 1;
/// The connection has failed or was reset.
const FAILED: u8 = 1 << 1;
/// A watch reports changes.
const WATCHED: u8 = 1 << 2;
/// The watch takes the place of the receive: the socket belongs to the port of another poller.
const FOREIGN: u8 = 1 << 3;
/// It was registered before.
const RETURNS: u8 = 1 << 4;

/// A socket and its operation.
pub struct IocpSocket {
    socket: Socket,
    operation: Owned<Connection>,
}

impl Connection {
    fn new() -> Self {
        Self {
            header: Header::of::<Self>(),
            socket: Cell::new(0),
            token: Cell::new(0),
            port: OnceCell::new(),
            extra: Cell::new(None),
        }
    }

    fn has(&self, flag: u8) -> bool {
        self.header.own.get() & flag != 0
    }

    fn set(&self, flag: u8) {
        self.header.own.set(self.header.own.get() | flag);
    }

    pub(super) fn token(&self) -> u64 {
        self.token.get()
    }

    pub(super) fn socket(&self) -> RawSocket {
        self.socket.get()
    }

    /// Records that the connection was reset.
    pub(super) fn fail(&self) {
        self.set(FAILED);
    }

    /// Handles the end of its operation. Returns what to report.
    pub(super) fn complete(&self, succeeded: bool) -> u8 {
        let connected = self.has(CONNECTING);
        self.header.own.set(self.header.own.get() & !CONNECTING);
        if !succeeded {
            self.fail();
        }
        let bits = if connected { READ | WRITE } else { READ };
        if succeeded { bits } else { bits | ERROR }
    }
}

impl IocpSocket {
    /// Takes over a socket that does not block.
    pub(super) fn new(socket: Socket) -> Self {
        Self { socket, operation: Owned::new(Connection::new()) }
    }

    /// Takes over a bound socket that is not connected.
    pub(super) fn connecting(socket: Socket, peer: SocketAddr) -> Self {
        let socket = Self::new(socket);
        socket.operation.extra.set(Some(Box::new(Extra::Peer(peer))));
        socket
    }

    /// Makes its events come to `port` as `token`, and starts its connect or its receive. Returns
    /// what to report at once.
    pub(super) fn enter(&self, port: &Arc<Port>, token: u64) -> io::Result<u8> {
        let operation = &*self.operation;
        operation.token.set(token);
        operation.socket.set(self.socket.as_raw_socket());
        let returns = operation.has(RETURNS);
        operation.set(RETURNS);
        if !self.belongs_to(port)? {
            operation.set(FOREIGN);
            self.watch(port, CHANGES)?;
            return Ok(READ | WRITE);
        }
        if let Some(extra) = operation.extra.take()
            && let Extra::Peer(peer) = *extra
        {
            return self.connect(peer);
        }
        let bits = if returns { READ | WRITE } else { 0 };
        match self.arm() {
            Ok(Armed::Pending) => Ok(bits),
            Ok(Armed::HasInput) => Ok(bits | READ),
            Err(_) => {
                operation.fail();
                Ok(bits | READ | ERROR)
            }
        }
    }

    /// Returns whether its packets come to this port. The port of a socket never changes.
    fn belongs_to(&self, port: &Arc<Port>) -> io::Result<bool> {
        if let Some(known) = self.operation.port.get() {
            return Ok(Arc::ptr_eq(known, port));
        }
        match port.associate(SockRef::from(&self.socket)) {
            Ok(()) => {
                let _ = self.operation.port.set(Arc::clone(port));
                Ok(true)
            }
            // A duplicate of a socket that another poller has.
            Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Ends what `enter` has begun: the socket may enter at another port. An operation in flight
    /// keeps its memory until its packet comes; the connection gets new memory.
    #[allow(unsafe_code)]
    pub(super) fn leave(&mut self) {
        let next = Connection::new();
        next.set(RETURNS | self.operation.header.own.get() & FAILED);
        if let Some(port) = self.operation.port.get() {
            let _ = next.port.set(Arc::clone(port));
        }
        let last = std::mem::replace(&mut self.operation, Owned::new(next));
        drop(last.extra.take());
        if let Some(overlapped) = last.header.in_flight() {
            // SAFETY: the socket is open, and the address only names an operation.
            unsafe { CancelIoEx(self.socket.as_raw_socket() as HANDLE, overlapped) };
        }
    }

    fn connect(&self, peer: SocketAddr) -> io::Result<u8> {
        let operation = &*self.operation;
        if connect_ex::start(&self.socket, peer, operation.header.overlapped())? {
            operation.set(CONNECTING);
            operation.header.set_pending();
            return Ok(0);
        }
        Ok(READ | WRITE)
    }

    /// Returns whether the connect has succeeded; `None` while it is in flight.
    pub(super) fn connected(&self) -> Option<bool> {
        if self.operation.has(CONNECTING) {
            return None;
        }
        Some(!self.operation.has(FAILED) && connect_ex::finish(&self.socket).is_ok())
    }

    /// Receives. Without input it starts an operation that ends when there is some.
    pub(super) fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let operation = &*self.operation;
        // The second time, input came in between.
        for _ in 0..2 {
            match (&self.socket).read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The report of the reset has used up the socket's error.
                Ok(0) if operation.has(FAILED) => return Err(ErrorKind::ConnectionReset.into()),
                received => return received,
            }
            if operation.has(FAILED) {
                return Err(ErrorKind::ConnectionReset.into());
            }
            if operation.has(FOREIGN) || operation.header.is_pending() {
                return Err(ErrorKind::WouldBlock.into());
            }
            if let Armed::Pending = self.arm()? {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
        // Input was reported and is not there: look once more at the next wait.
        if let Some(port) = operation.port.get() {
            port.post(operation.token.get(), READ);
        }
        Err(ErrorKind::WouldBlock.into())
    }

    /// Starts a receive of zero bytes.
    #[allow(unsafe_code)]
    fn arm(&self) -> io::Result<Armed> {
        let header = &self.operation.header;
        let mut byte = 0u8;
        let buffer = WSABUF { len: 0, buf: &raw mut byte };
        let mut flags = 0;
        // SAFETY: the system reads the description of the buffer and the flags during the call, and
        // writes to the operation's memory until its packet comes; that memory lives as long. It
        // writes nothing to a buffer of zero bytes.
        let result = unsafe {
            WSARecv(
                self.socket.as_raw_socket() as SOCKET,
                &raw const buffer,
                1,
                null_mut(),
                &raw mut flags,
                header.overlapped(),
                None,
            )
        };
        if result == 0 {
            return Ok(Armed::HasInput);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(WSA_IO_PENDING) {
            return Err(error);
        }
        header.set_pending();
        Ok(Armed::Pending)
    }

    /// Sends a prefix of `bytes`. What does not fit makes the poller report when it would.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.or_watch((&self.socket).write(bytes))
    }

    /// Sends a prefix of `slices`, as [`Self::send`].
    pub(super) fn send_gathered(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.or_watch((&self.socket).write_vectored(slices))
    }

    /// Watches a full socket for space.
    fn or_watch(&self, sent: io::Result<usize>) -> io::Result<usize> {
        if let Err(error) = &sent
            && error.kind() == ErrorKind::WouldBlock
            && !self.operation.has(WATCHED)
            && let Some(port) = self.operation.port.get()
        {
            self.watch(port, ROOM)?;
        }
        sent
    }

    #[cold]
    fn watch(&self, port: &Arc<Port>, events: u32) -> io::Result<()> {
        let token = self.operation.token.get();
        let watch = Watch::new(&self.socket, Arc::clone(port), token, events)?;
        self.operation.extra.set(Some(Box::new(Extra::Watch(watch))));
        self.operation.set(WATCHED);
        Ok(())
    }

    pub(super) fn finish(&self) {
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    pub(super) fn reset_on_drop(&self) {
        let _ = self.socket.set_linger(Some(Duration::ZERO));
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.socket.peer_addr().ok()?.as_socket()
    }

    pub(super) fn take_error(&self) -> bool {
        self.operation.has(FAILED) || !matches!(self.socket.take_error(), Ok(None))
    }
}

impl Drop for IocpSocket {
    fn drop(&mut self) {
        // Before the socket: it names the socket by its number.
        drop(self.operation.extra.take());
    }
}

impl AsSocket for IocpSocket {
    fn as_socket(&self) -> BorrowedSocket<'_> {
        self.socket.as_socket()
    }
}

/// The state of a receive that was started.
enum Armed {
    /// Its packet comes when there is input.
    Pending,
    /// There is input already, and no packet comes.
    HasInput,
}
