//! A poller for few sockets: poll(2), which takes the whole list at each call.

use std::cell::RefCell;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;

use super::wake_fd::WakeFd;
use crate::listener::Listener;
use crate::options::Options;
use crate::readiness::poller::{ERROR, HANG_UP, Interest, Poller, READ, Ready, Signal, WRITE};

/// The poller of [`Threads`](crate::Threads): level-triggered, without a descriptor of its own.
///
/// It works for any number of sockets, at a cost that grows with their number, which is one here.
pub struct PollPoller {
    watched: RefCell<Watched>,
    /// The events of the last wait.
    ready: Vec<Ready>,
    wake_fd: Arc<WakeFd>,
}

/// The arguments of poll(2), and the token of each. The wake descriptor comes first.
struct Watched {
    polled: Vec<libc::pollfd>,
    tokens: Vec<u64>,
}

/// Ends the wait of a [`PollPoller`].
pub struct WakeSignal(Arc<WakeFd>);

impl Signal for WakeSignal {
    fn signal(&self) {
        self.0.signal();
    }
}

impl Poller for PollPoller {
    type Socket = TcpStream;
    type Listener = Listener;
    type Signal = WakeSignal;

    const LEVEL: bool = true;
    const DEFERS_REGISTRATION: bool = false;

    fn new(_: usize, wake_token: u64) -> io::Result<(Self, WakeSignal)> {
        let wake_fd = Arc::new(WakeFd::new()?);
        // Room for the wake descriptor and one connection, all that a connection's thread has.
        let mut watched = Watched { polled: Vec::with_capacity(2), tokens: Vec::with_capacity(2) };
        watched.add(wake_fd.as_raw_fd(), wake_token, libc::POLLIN);
        let ready = Vec::with_capacity(1);
        let signal = WakeSignal(Arc::clone(&wake_fd));
        Ok((Self { watched: RefCell::new(watched), ready, wake_fd }, signal))
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        self.ready.clear();
        let Watched { polled, tokens } = self.watched.get_mut();
        match poll(polled, timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(0),
            Err(error) => return Err(error),
        }
        if polled[0].revents != 0 {
            self.wake_fd.clear();
        }
        for (entry, &token) in polled.iter().zip(&*tokens).skip(1) {
            let bit = |event: i16, bit: u8| if entry.revents & event != 0 { bit } else { 0 };
            let bits = bit(libc::POLLIN, READ)
                | bit(libc::POLLOUT, WRITE)
                | bit(libc::POLLERR, ERROR)
                | bit(libc::POLLHUP, HANG_UP);
            if bits != 0 {
                self.ready.push(Ready { token, bits });
            }
        }
        Ok(self.ready.len())
    }

    #[inline]
    fn ready(&self, index: usize) -> Option<Ready> {
        self.ready.get(index).copied()
    }

    fn register(&self, socket: &mut TcpStream, token: u64, interest: Interest) -> io::Result<()> {
        // A negative descriptor is skipped, see `modify`.
        let fd = socket.as_raw_fd();
        let fd = if interest.muted { !fd } else { fd };
        self.watched.borrow_mut().add(fd, token, events(interest));
        Ok(())
    }

    fn modify(&self, _: &TcpStream, token: u64, interest: Interest) -> io::Result<()> {
        let mut watched = self.watched.borrow_mut();
        if let Some(at) = watched.position(token) {
            let entry = &mut watched.polled[at];
            entry.events = events(interest);
            // poll(2) cannot mask a hang-up and has no edge trigger. After a hang-up no event
            // follows that the engine must know while it does not read, so the entry is skipped:
            // poll(2) ignores negative descriptors.
            if (entry.fd < 0) != interest.muted {
                entry.fd = !entry.fd;
            }
        }
        Ok(())
    }

    fn deregister(&self, socket: &mut TcpStream) {
        self.watched.borrow_mut().remove(socket.as_raw_fd());
    }

    fn listener(listener: Listener, options: &Options) -> io::Result<Listener> {
        listener.apply(options)?;
        Ok(listener)
    }

    fn register_listener(&self, listener: &mut Listener, token: u64) -> io::Result<()> {
        self.watched.borrow_mut().add(listener.as_raw_fd(), token, libc::POLLIN);
        Ok(())
    }

    fn deregister_listener(&self, listener: &mut Listener) -> io::Result<()> {
        self.watched.borrow_mut().remove(listener.as_raw_fd());
        Ok(())
    }

    fn accept(
        listener: &Listener,
        options: &Options,
    ) -> io::Result<(TcpStream, Option<SocketAddr>)> {
        let (socket, peer) = match listener {
            Listener::Tcp(listener) => listener.accept()?,
            Listener::Unix(socket) => return Ok((socket.accept(options)?, None)),
        };
        socket.set_nonblocking(true)?;
        // Linux applies the listener's options to accepted sockets; other systems guarantee
        // nothing.
        if !cfg!(target_os = "linux") {
            let _ = socket.set_nodelay(true);
            let _ = crate::connect::apply_options(SockRef::from(&socket), options);
        }
        Ok((socket, Some(peer)))
    }

    fn from_connecting(socket: socket2::Socket) -> TcpStream {
        socket.into()
    }

    fn connected(_: &TcpStream, bits: u8) -> Option<bool> {
        match bits {
            _ if bits & (ERROR | HANG_UP) != 0 => Some(false),
            _ if bits & WRITE != 0 => Some(true),
            _ => None,
        }
    }

    #[inline]
    fn recv(mut socket: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        socket.read(buffer)
    }

    #[inline]
    fn send(mut socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        // std sends with MSG_NOSIGNAL, or sets SO_NOSIGPIPE, where there is a SIGPIPE.
        socket.write(bytes)
    }

    fn send_gathered(socket: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        // std's vectored write is a writev, which raises SIGPIPE.
        SockRef::from(socket).send_vectored_with_flags(slices, NO_SIGNAL)
    }

    fn finish(socket: &TcpStream) {
        // Fails only if the connection is gone, which the poll reports.
        let _ = socket.shutdown(Shutdown::Write);
    }

    fn reset_on_drop(socket: &TcpStream) {
        let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
    }

    fn peer(socket: &TcpStream) -> Option<SocketAddr> {
        SockRef::from(socket).peer_addr().ok()?.as_socket()
    }

    #[cfg(target_os = "linux")]
    fn traffic(socket: &TcpStream) -> Option<crate::Traffic> {
        crate::connect::traffic(socket.as_raw_fd())
    }

    #[cfg(target_os = "linux")]
    fn has_peer_finished(socket: &TcpStream) -> bool {
        crate::connect::has_peer_finished(socket)
    }

    fn take_error(socket: &TcpStream) -> bool {
        !matches!(socket.take_error(), Ok(None))
    }
}

impl Watched {
    fn add(&mut self, fd: RawFd, token: u64, events: i16) {
        self.polled.push(libc::pollfd { fd, events, revents: 0 });
        self.tokens.push(token);
    }

    /// Finds an entry by its token. Tokens are unique: they contain slot and generation.
    fn position(&self, token: u64) -> Option<usize> {
        self.tokens.iter().position(|other| *other == token)
    }

    fn remove(&mut self, fd: RawFd) {
        if let Some(at) = self.polled.iter().position(|entry| entry.fd == fd || entry.fd == !fd) {
            self.polled.swap_remove(at);
            self.tokens.swap_remove(at);
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
const NO_SIGNAL: i32 = libc::MSG_NOSIGNAL;
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
const NO_SIGNAL: i32 = 0;

/// Converts the interest. Errors and hang-ups are always reported.
fn events(interest: Interest) -> i16 {
    let input = if interest.read { libc::POLLIN } else { 0 };
    let room = if interest.write { libc::POLLOUT } else { 0 };
    input | room
}

/// Calls ppoll(2), with a timeout in nanoseconds (Linux).
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn poll(polled: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i32::MAX.into()),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the kernel reads and writes `len` entries of `polled`, which are that many in its own
    // layout, and reads the timeout, if there is one; both outlive the call. There is no signal
    // mask.
    let count = unsafe {
        let len = polled.len() as libc::nfds_t;
        libc::ppoll(polled.as_mut_ptr(), len, timeout, std::ptr::null())
    };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Calls poll(2), with a timeout in milliseconds. It is rounded up: a wait that ends before its
/// deadline would be repeated at once.
#[cfg(not(target_os = "linux"))]
#[allow(unsafe_code)]
fn poll(polled: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let millis = timeout.map_or(-1, |timeout| {
        let millis = timeout.as_nanos().div_ceil(1_000_000);
        libc::c_int::try_from(millis).unwrap_or(libc::c_int::MAX)
    });
    // SAFETY: the kernel reads and writes `len` entries of `polled`, which are that many in its own
    // layout and outlive the call.
    let count = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, millis) };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
