//! The driver for Windows: a completion port.
//!
//! * Duty: report to the loop in [`readiness`](crate::readiness), edge-triggered, what completion
//!   packets tell.
//! * An idle connection has a receive of zero bytes in flight, so the kernel locks no memory of the
//!   process. Its packet reports input, which is then received without blocking into the buffer
//!   of the shard until there is no more; the receive that finds none starts the next operation.
//! * Sends do not block. A socket that is full reports space by an event object ([`watch`]).
//! * Accepts and connects are operations in flight.
//! * Start reading at: [`operation`], who owns the memory that the kernel writes to.

mod connect_ex;
mod connection;
mod listener;
mod operation;
mod port;
#[cfg(test)]
mod tests;
mod watch;

use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::windows::io::{AsRawSocket, AsSocket, BorrowedSocket, RawSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::SockRef;
use windows_sys::Win32::Networking::WinSock::{
    POLLERR, POLLHUP, POLLWRNORM, SOCKET, WSAPOLLFD, WSAPoll,
};
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;

use self::connection::Connection;
pub use self::connection::IocpSocket;
use self::listener::Accept;
pub use self::listener::IocpListener;
use self::operation::{Operation, Reference, has_orphans};
use self::port::Port;
use crate::listener::Listener;
use crate::options::Options;
use crate::peer::PeerAddress;
use crate::readiness::poller::{ERROR, Interest, Poller, READ, Ready, Signal};

#[cfg(not(target_pointer_width = "64"))]
compile_error!("a packet's key is a usize, and a ConnId has 64 bits");

/// Maximum packets taken by one wait.
const MAX_PACKETS: usize = 256;

/// Time after which a connection whose input is not read is looked at for a reset: it has no
/// operation in flight that would report one (C8).
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Maximum milliseconds that a drop waits for the next packet of an operation whose owner is gone.
/// A thread for each connection would leak its operation otherwise.
const LAST_PACKETS: u32 = 100;

/// The poller of [`Iocp`](crate::Iocp).
pub struct IocpPoller {
    port: Arc<Port>,
    wake_token: u64,
    packets: Vec<OVERLAPPED_ENTRY>,
    /// The events of the last wait.
    ready: Vec<Ready>,
    /// Events of our own calls, for the next wait.
    early: RefCell<Vec<Ready>>,
    /// Connections whose receive has ended; most have started another one since.
    unread: Vec<Reference>,
    look_at: Instant,
    /// Memory for a look, which allocates nothing.
    polled: Vec<WSAPOLLFD>,
}

// SAFETY: the memory that `unread` refers to is used by the thread of its owner and by the thread
// of this poller, which are one thread: a driver has both.
#[allow(unsafe_code)]
unsafe impl Send for IocpPoller {}

/// Ends the wait of an [`IocpPoller`].
pub struct IocpSignal {
    port: Arc<Port>,
    token: u64,
}

impl Signal for IocpSignal {
    fn signal(&self) {
        self.port.post(self.token, 0);
    }
}

impl IocpPoller {
    /// Takes the events of the packets. Returns whether a wake was among them.
    #[allow(unsafe_code)]
    fn take_packets(&mut self) -> bool {
        let mut is_woken = false;
        for packet in &self.packets {
            if packet.lpOverlapped.is_null() {
                let token = packet.lpCompletionKey as u64;
                is_woken |= token == self.wake_token;
                let bits = packet.dwNumberOfBytesTransferred as u8;
                if bits != 0 {
                    self.ready.push(Ready { token, bits });
                }
                continue;
            }
            // SAFETY: packets with an address come only from operations that we have started, one
            // each.
            let Some(reference) = (unsafe { Reference::of_packet(packet.lpOverlapped) }) else {
                continue;
            };
            if let Some(accept) = reference.get::<Accept>() {
                accept.complete();
                self.ready.push(Ready { token: accept.token(), bits: READ });
            }
            if let Some(connection) = reference.get::<Connection>() {
                // The status has 32 bits; the others may be anything.
                let bits = connection.complete(packet.Internal as u32 == 0);
                self.ready.push(Ready { token: connection.token(), bits });
                if reference.list() {
                    if self.unread.is_empty() {
                        self.look_at = Instant::now() + LOOK_EVERY;
                    }
                    self.unread.push(reference);
                }
            }
        }
        is_woken
    }

    /// Looks for resets of connections that are not read.
    #[cold]
    fn look_at_unread(&mut self) {
        self.look_at = Instant::now() + LOOK_EVERY;
        let Self { unread, polled, ready, .. } = self;
        polled.clear();
        unread.retain(|reference| {
            let connection = reference.get::<Connection>().filter(|it| is_unread(it.header()));
            match connection {
                Some(connection) => polled.push(entry(connection.socket())),
                None => reference.unlist(),
            }
            connection.is_some()
        });
        poll(polled);
        let mut polled = polled.iter();
        unread.retain(|reference| {
            let (connection, entry) = (reference.get::<Connection>(), polled.next());
            let Some((connection, entry)) = connection.zip(entry) else { return true };
            if has_failed(entry) {
                connection.fail();
                ready.push(Ready { token: connection.token(), bits: READ | ERROR });
                reference.unlist();
                return false;
            }
            true
        });
    }

    fn report(&self, token: u64, bits: u8) {
        if bits != 0 {
            self.early.borrow_mut().push(Ready { token, bits });
        }
    }
}

impl Poller for IocpPoller {
    type Socket = IocpSocket;
    type Listener = IocpListener;
    type Signal = IocpSignal;

    const LEVEL: bool = false;
    const DEFERS_REGISTRATION: bool = false;

    fn new(max_events: usize, wake_token: u64) -> io::Result<(Self, IocpSignal)> {
        let port = Port::new()?;
        let signal = IocpSignal { port: Arc::clone(&port), token: wake_token };
        let poller = Self {
            port,
            wake_token,
            packets: Vec::with_capacity(max_events.min(MAX_PACKETS)),
            ready: Vec::new(),
            early: RefCell::new(Vec::new()),
            unread: Vec::new(),
            look_at: Instant::now(),
            polled: Vec::new(),
        };
        Ok((poller, signal))
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        self.ready.clear();
        self.ready.append(self.early.get_mut());
        let at_once = !self.ready.is_empty() || timeout == Some(Duration::ZERO);
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let mut until = deadline;
            if !self.unread.is_empty() {
                until = Some(until.map_or(self.look_at, |until| until.min(self.look_at)));
            }
            let millis = match until {
                _ if at_once => 0,
                Some(until) => millis(until.saturating_duration_since(Instant::now())),
                None => u32::MAX,
            };
            self.port.wait(&mut self.packets, millis)?;
            let is_woken = self.take_packets();
            if !self.unread.is_empty() && Instant::now() >= self.look_at {
                self.look_at_unread();
            }
            let is_over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if at_once || is_woken || !self.ready.is_empty() || is_over() {
                return Ok(self.ready.len());
            }
        }
    }

    fn ready(&self, index: usize) -> Option<Ready> {
        self.ready.get(index).copied()
    }

    fn register(&self, socket: &mut IocpSocket, token: u64, interest: Interest) -> io::Result<()> {
        // Another process may own it until it goes on here: it stays as it is.
        if !interest.muted {
            self.report(token, socket.enter(&self.port, token)?);
        }
        Ok(())
    }

    fn modify(&self, _: &IocpSocket, _: u64, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn deregister(&self, _: &mut IocpSocket) {
        // Closing the socket ends its operation.
    }

    fn release(&self, socket: &mut IocpSocket) {
        socket.leave();
    }

    fn listener(listener: Listener, options: &Options) -> io::Result<IocpListener> {
        let Listener::Tcp(listener) = listener;
        let listener = IocpListener::new(listener)?;
        listener.socket().set_tcp_nodelay(true)?;
        crate::connect::apply_options(listener.socket(), options)?;
        Ok(listener)
    }

    fn register_listener(&self, listener: &mut IocpListener, token: u64) -> io::Result<()> {
        if listener.start(&self.port, token)? {
            self.report(token, READ);
        }
        Ok(())
    }

    fn deregister_listener(&self, _: &mut IocpListener) -> io::Result<()> {
        // The accepts in flight are like the backlog of the listener.
        Ok(())
    }

    fn accept(
        listener: &IocpListener,
        options: &Options,
    ) -> io::Result<(IocpSocket, Option<SocketAddr>)> {
        listener.accept(options)
    }

    fn start_connect(
        peer: PeerAddress,
        local: Option<SocketAddr>,
        options: &Options,
    ) -> io::Result<IocpSocket> {
        let peer = peer.socket_addr().ok_or_else(crate::connect::no_unix_sockets)?;
        // ConnectEx requires a bound socket.
        let any = match peer.ip() {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let local = local.unwrap_or(SocketAddr::new(any, 0));
        let socket = crate::connect::bound_socket(peer, Some(local), options)?;
        Ok(IocpSocket::connecting(socket, peer))
    }

    fn from_connecting(socket: socket2::Socket) -> IocpSocket {
        IocpSocket::new(socket)
    }

    fn connected(socket: &IocpSocket, _: u8) -> Option<bool> {
        socket.connected()
    }

    fn recv(socket: &IocpSocket, buffer: &mut [u8]) -> io::Result<usize> {
        socket.recv(buffer)
    }

    fn send(socket: &IocpSocket, bytes: &[u8]) -> io::Result<usize> {
        socket.send(bytes)
    }

    fn send_gathered(socket: &IocpSocket, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        socket.send_gathered(slices)
    }

    fn finish(socket: &IocpSocket) {
        socket.finish();
    }

    fn reset_on_drop(socket: &IocpSocket) {
        socket.reset_on_drop();
    }

    fn peer(socket: &IocpSocket) -> Option<SocketAddr> {
        socket.peer()
    }

    fn has_peer_finished(socket: &IocpSocket) -> bool {
        // A look at the next byte reports it if there is no input before it, a poll perhaps also if
        // there is.
        let next = SockRef::from(socket).peek(&mut [MaybeUninit::uninit()]);
        let mut polled = [entry(socket.as_socket().as_raw_socket())];
        poll(&mut polled);
        matches!(next, Ok(0)) || polled[0].revents & POLLHUP != 0
    }

    fn take_error(socket: &IocpSocket) -> bool {
        socket.take_error()
    }
}

impl Drop for IocpPoller {
    fn drop(&mut self) {
        loop {
            std::mem::take(&mut self.unread).into_iter().for_each(Reference::unlist);
            // Operations of connections that were closed end soon. What comes later keeps its
            // memory: it is the kernel's.
            let millis = if has_orphans() { LAST_PACKETS } else { 0 };
            let taken = self.port.wait(&mut self.packets, millis);
            if taken.is_err() || self.packets.is_empty() {
                return;
            }
            self.take_packets();
        }
    }
}

/// Returns whether neither a receive is in flight nor the connection has gone.
fn is_unread(header: &operation::Header) -> bool {
    !header.is_pending() && !header.is_orphaned()
}

/// Rounds up: a wait that ends before its deadline would be repeated at once.
fn millis(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX - 1).min(u32::MAX - 1)
}

fn entry(socket: RawSocket) -> WSAPOLLFD {
    WSAPOLLFD { fd: socket as SOCKET, events: POLLWRNORM, revents: 0 }
}

/// Returns whether the connection of a polled socket was reset.
fn has_failed(polled: &WSAPOLLFD) -> bool {
    let has = |bit| polled.revents & bit != 0;
    has(POLLERR) || has(POLLHUP) && is_reset(polled.fd as RawSocket)
}

/// Polls sockets without waiting.
#[allow(unsafe_code)]
fn poll(polled: &mut [WSAPOLLFD]) {
    if !polled.is_empty() {
        // SAFETY: the system reads and writes `len` entries of `polled`, which outlive the call.
        unsafe { WSAPoll(polled.as_mut_ptr(), polled.len() as u32, 0) };
    }
}

/// Looks at the next byte, since a hang-up may be the peer's end of stream.
#[allow(unsafe_code)]
fn is_reset(socket: RawSocket) -> bool {
    // SAFETY: the connection has not gone, so its socket is open.
    let socket = unsafe { BorrowedSocket::borrow_raw(socket) };
    match SockRef::from(&socket).peek(&mut [MaybeUninit::uninit()]) {
        Ok(_) => false,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}
