//! A connection: its socket, and the operation that reports its input.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::mem::ManuallyDrop;
use std::net::{Shutdown, SocketAddr};
use std::os::windows::io::{AsSocket, BorrowedSocket, FromRawSocket, IntoRawSocket, RawSocket};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::{SockRef, Socket};
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::Networking::WinSock::{SOCKET, WSA_IO_PENDING, WSABUF, WSARecv};
use windows_sys::Win32::System::IO::CancelIoEx;

use super::connect_ex;
use super::operation::{END, Header, Kind, OWN, Operation, Owned};
use super::port::Port;
use super::watch::{CHANGES, SPACE, Watch};
use crate::readiness::poller::{ERROR, READ, WRITE};

/// The state of a connection's operation: of its connect, and from then on of a receive of zero
/// bytes, which ends when there is input. So an idle connection locks no memory of the process.
#[repr(C)]
pub(super) struct Connection {
    header: Header,
    token: Cell<u64>,
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

/// That state by the number of the socket, which no other socket has as long as it is open.
static EXTRAS: Mutex<BTreeMap<u32, Extra>> = Mutex::new(BTreeMap::new());

/// The connect is in flight.
const CONNECTING: u32 = OWN;
/// The connection has failed or was reset.
const FAILED: u32 = OWN << 1;
/// The connection has a state in [`EXTRAS`].
const HAS_EXTRA: u32 = OWN << 2;
/// The watch takes the place of the receive: the socket belongs to the port of another poller.
const FOREIGN: u32 = OWN << 3;
/// It was registered before.
const RETURNS: u32 = OWN << 4;

const _: () = assert!(RETURNS < END);

/// A socket and its operation.
pub struct IocpSocket(Owned<Connection>);

impl Connection {
    fn new() -> Self {
        Self { header: Header::of::<Self>(), token: Cell::new(0) }
    }

    fn has(&self, flag: u32) -> bool {
        self.header.has(flag)
    }

    fn set(&self, flag: u32) {
        self.header.set(flag, true);
    }

    pub(super) fn token(&self) -> u64 {
        self.token.get()
    }

    /// Returns the handle of the socket.
    pub(super) fn socket(&self) -> RawSocket {
        self.header.socket.get().into()
    }

    /// Records that the connection was reset.
    pub(super) fn fail(&self) {
        self.set(FAILED);
    }

    /// Handles the end of its operation. Returns what to report.
    pub(super) fn complete(&self, succeeded: bool) -> u8 {
        let connected = self.has(CONNECTING);
        self.header.set(CONNECTING, false);
        if !succeeded {
            self.fail();
        }
        let bits = if connected { READ | WRITE } else { READ };
        if succeeded { bits } else { bits | ERROR }
    }

    fn add_extra(&self, extra: Extra) {
        extras().insert(self.header.socket.get(), extra);
        self.set(HAS_EXTRA);
    }

    fn take_extra(&self) -> Option<Extra> {
        if !self.has(HAS_EXTRA) {
            return None;
        }
        self.header.set(HAS_EXTRA, false);
        extras().remove(&self.header.socket.get())
    }
}

fn extras() -> MutexGuard<'static, BTreeMap<u32, Extra>> {
    EXTRAS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl IocpSocket {
    /// Takes over a socket that does not block.
    pub(super) fn new(socket: Socket) -> Self {
        let connection = Owned::new(Connection::new());
        let number = u32::try_from(socket.into_raw_socket());
        connection.header.socket.set(number.expect("handles of Windows have 32 bits"));
        Self(connection)
    }

    /// Takes over a bound socket that is not connected.
    pub(super) fn connecting(socket: Socket, peer: SocketAddr) -> Self {
        let socket = Self::new(socket);
        socket.0.add_extra(Extra::Peer(peer));
        socket
    }

    #[allow(unsafe_code)]
    fn socket(&self) -> ManuallyDrop<Socket> {
        // SAFETY: the socket is open as long as this, and is not closed by what is returned.
        ManuallyDrop::new(unsafe { Socket::from_raw_socket(self.0.socket()) })
    }

    /// Makes its events come to `port` as `token`, and starts its connect or its receive. Returns
    /// what to report at once.
    pub(super) fn enter(&self, port: &Arc<Port>, token: u64) -> io::Result<u8> {
        let connection = &*self.0;
        connection.token.set(token);
        let returns = connection.has(RETURNS);
        connection.set(RETURNS);
        if !self.belongs_to(port)? {
            connection.set(FOREIGN);
            self.watch(port, CHANGES)?;
            return Ok(READ | WRITE);
        }
        if let Some(Extra::Peer(peer)) = connection.take_extra() {
            return self.connect(peer);
        }
        let bits = if returns { READ | WRITE } else { 0 };
        match self.arm() {
            Ok(Armed::Pending) => Ok(bits),
            Ok(Armed::HasInput) => Ok(bits | READ),
            Err(_) => {
                connection.fail();
                Ok(bits | READ | ERROR)
            }
        }
    }

    /// Returns whether its packets come to this port. The port of a socket never changes.
    fn belongs_to(&self, port: &Port) -> io::Result<bool> {
        let header = &self.0.header;
        if header.port() != 0 {
            return Ok(header.port() == port.number());
        }
        match port.associate(SockRef::from(&*self.socket())) {
            Ok(()) => {
                header.set_port(port.number());
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
        drop(self.0.take_extra());
        let next = Connection::new();
        next.set(RETURNS);
        next.header.set(FAILED, self.0.has(FAILED));
        next.header.set_port(self.0.header.port());
        next.header.socket.set(self.0.header.socket.get());
        let last = std::mem::replace(&mut self.0, Owned::new(next));
        if let Some(overlapped) = last.header.in_flight() {
            // SAFETY: the socket is open, and the address only names an operation.
            unsafe { CancelIoEx(last.socket() as HANDLE, overlapped) };
        }
    }

    fn connect(&self, peer: SocketAddr) -> io::Result<u8> {
        let connection = &*self.0;
        if connect_ex::start(&self.socket(), peer, connection.header.overlapped())? {
            connection.set(CONNECTING);
            connection.header.set_pending();
            return Ok(0);
        }
        Ok(READ | WRITE)
    }

    /// Returns whether the connect has succeeded; `None` while it is in flight.
    pub(super) fn connected(&self) -> Option<bool> {
        if self.0.has(CONNECTING) {
            return None;
        }
        Some(!self.0.has(FAILED) && connect_ex::finish(&self.socket()).is_ok())
    }

    /// Receives. Without input it starts an operation that ends when there is some.
    pub(super) fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let connection = &*self.0;
        // The second time, input came in between.
        for _ in 0..2 {
            match (&*self.socket()).read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The report of the reset has used up the socket's error.
                Ok(0) if connection.has(FAILED) => return Err(ErrorKind::ConnectionReset.into()),
                received => return received,
            }
            if connection.has(FAILED) {
                return Err(ErrorKind::ConnectionReset.into());
            }
            if connection.has(FOREIGN) || connection.header.is_pending() {
                return Err(ErrorKind::WouldBlock.into());
            }
            if let Armed::Pending = self.arm()? {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
        // Input was reported and is not there: look once more at the next wait.
        if let Some(port) = Port::of_number(connection.header.port()) {
            port.post(connection.token(), READ);
        }
        Err(ErrorKind::WouldBlock.into())
    }

    /// Starts a receive of zero bytes.
    #[allow(unsafe_code)]
    fn arm(&self) -> io::Result<Armed> {
        let header = &self.0.header;
        let mut byte = 0u8;
        let buffer = WSABUF { len: 0, buf: &raw mut byte };
        let mut flags = 0;
        // SAFETY: the system reads the description of the buffer and the flags during the call, and
        // writes to the operation's memory until its packet comes; that memory lives as long. It
        // writes nothing to a buffer of zero bytes.
        let result = unsafe {
            WSARecv(
                self.0.socket() as SOCKET,
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
        self.or_watch((&*self.socket()).write(bytes))
    }

    /// Sends a prefix of `slices`, as [`Self::send`].
    pub(super) fn send_gathered(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.or_watch((&*self.socket()).write_vectored(slices))
    }

    /// Watches a full socket for space.
    fn or_watch(&self, sent: io::Result<usize>) -> io::Result<usize> {
        if let Err(error) = &sent
            && error.kind() == ErrorKind::WouldBlock
            && !self.0.has(HAS_EXTRA)
            && let Some(port) = Port::of_number(self.0.header.port())
        {
            self.watch(&port, SPACE)?;
        }
        sent
    }

    #[cold]
    fn watch(&self, port: &Arc<Port>, events: u32) -> io::Result<()> {
        let watch = Watch::new(&self.socket(), Arc::clone(port), self.0.token(), events)?;
        self.0.add_extra(Extra::Watch(watch));
        Ok(())
    }

    pub(super) fn finish(&self) {
        let _ = self.socket().shutdown(Shutdown::Write);
    }

    pub(super) fn reset_on_drop(&self) {
        let _ = self.socket().set_linger(Some(Duration::ZERO));
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.socket().peer_addr().ok()?.as_socket()
    }

    pub(super) fn take_error(&self) -> bool {
        self.0.has(FAILED) || !matches!(self.socket().take_error(), Ok(None))
    }
}

impl Drop for IocpSocket {
    fn drop(&mut self) {
        // Before the socket: it names the socket by its number.
        drop(self.0.take_extra());
        drop(ManuallyDrop::into_inner(self.socket()));
    }
}

impl AsSocket for IocpSocket {
    #[allow(unsafe_code)]
    fn as_socket(&self) -> BorrowedSocket<'_> {
        // SAFETY: the socket is open as long as this.
        unsafe { BorrowedSocket::borrow_raw(self.0.socket()) }
    }
}

/// The state of a receive that was started.
enum Armed {
    /// Its packet comes when there is input.
    Pending,
    /// There is input already, and no packet comes.
    HasInput,
}
