//! The portable backend: mio on epoll, kqueue or Windows.
//!
//! Edge-triggered, so each event costs one more system call than on [`epoll`](crate::epoll): only
//! `WouldBlock` shows that there is no more.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
#[cfg(unix)]
use std::os::fd::AsRawFd;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
#[cfg(unix)]
use mio::unix::SourceFd;
use socket2::SockRef;

use crate::listener::Listener;
#[cfg(unix)]
use crate::listener::UnixSocket;
use crate::options::Options;
use crate::readiness::poller::{ERROR, HANG_UP, Interest, Poller, READ, Ready, Signal, WRITE};

#[cfg(not(target_pointer_width = "64"))]
compile_error!("mio's token is a usize, and a ConnId has 64 bits");

/// The poller of [`Portable`](crate::Portable).
#[derive(Debug)]
pub struct MioPoller {
    poll: mio::Poll,
    events: mio::Events,
    ready: Vec<Ready>,
}

/// A listener of [`MioPoller`].
#[derive(Debug)]
pub enum MioListener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A Unix socket.
    #[cfg(unix)]
    Unix(UnixSocket),
}

impl Signal for mio::Waker {
    fn signal(&self) {
        let _ = self.wake();
    }
}

impl Poller for MioPoller {
    type Socket = TcpStream;
    type Listener = MioListener;
    type Signal = mio::Waker;

    const LEVEL: bool = false;
    const DEFERS_REGISTRATION: bool = false;

    fn new(max_events: usize, wake_token: u64) -> io::Result<(Self, mio::Waker)> {
        let poll = mio::Poll::new()?;
        let waker = mio::Waker::new(poll.registry(), token(wake_token))?;
        let events = mio::Events::with_capacity(max_events);
        Ok((Self { poll, events, ready: Vec::with_capacity(max_events) }, waker))
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        self.ready.clear();
        match self.poll.poll(&mut self.events, timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(0),
            Err(error) => return Err(error),
        }
        self.ready.extend(self.events.iter().map(|event| {
            let bit = |is: bool, bit: u8| if is { bit } else { 0 };
            let both = event.is_read_closed() && event.is_write_closed();
            let bits = bit(event.is_readable() || event.is_read_closed(), READ)
                | bit(event.is_writable() || event.is_write_closed(), WRITE)
                | bit(event.is_error(), ERROR)
                | bit(both, HANG_UP);
            Ready { token: event.token().0 as u64, bits }
        }));
        Ok(self.ready.len())
    }

    fn ready(&self, index: usize) -> Option<Ready> {
        self.ready.get(index).copied()
    }

    fn register(&self, socket: &mut TcpStream, id: u64, _: Interest) -> io::Result<()> {
        let both = mio::Interest::READABLE | mio::Interest::WRITABLE;
        self.poll.registry().register(socket, token(id), both)
    }

    fn modify(&self, _: &TcpStream, _: u64, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn deregister(&self, socket: &mut TcpStream) {
        let _ = self.poll.registry().deregister(socket);
    }

    fn listener(listener: Listener, options: &Options) -> io::Result<MioListener> {
        #[cfg(unix)]
        listener.apply(options)?;
        Ok(match listener {
            Listener::Tcp(listener) => {
                #[cfg(not(unix))]
                tune(SockRef::from(&listener), options)?;
                MioListener::Tcp(TcpListener::from_std(listener))
            }
            #[cfg(unix)]
            Listener::Unix(socket) => MioListener::Unix(socket),
        })
    }

    fn register_listener(&self, listener: &mut MioListener, id: u64) -> io::Result<()> {
        let (registry, id, interest) = (self.poll.registry(), token(id), mio::Interest::READABLE);
        match listener {
            MioListener::Tcp(listener) => registry.register(listener, id, interest),
            #[cfg(unix)]
            MioListener::Unix(socket) => {
                registry.register(&mut SourceFd(&socket.as_raw_fd()), id, interest)
            }
        }
    }

    fn deregister_listener(&self, listener: &mut MioListener) -> io::Result<()> {
        match listener {
            MioListener::Tcp(listener) => self.poll.registry().deregister(listener),
            #[cfg(unix)]
            MioListener::Unix(socket) => {
                self.poll.registry().deregister(&mut SourceFd(&socket.as_raw_fd()))
            }
        }
    }

    fn accept(
        listener: &MioListener,
        options: &Options,
    ) -> io::Result<(TcpStream, Option<SocketAddr>)> {
        let (socket, peer) = match listener {
            MioListener::Tcp(listener) => listener.accept()?,
            #[cfg(unix)]
            MioListener::Unix(socket) => {
                return Ok((TcpStream::from_std(socket.accept(options)?), None));
            }
        };
        // Linux applies the listener's options to accepted sockets; other systems guarantee
        // nothing.
        if !cfg!(target_os = "linux") {
            let _ = tune(SockRef::from(&socket), options);
        }
        Ok((socket, Some(peer)))
    }

    fn from_connecting(socket: socket2::Socket) -> TcpStream {
        TcpStream::from_std(socket.into())
    }

    fn connected(socket: &TcpStream, bits: u8) -> Option<bool> {
        // In the order that mio's documentation prescribes.
        if Self::take_error(socket) {
            return Some(false);
        }
        match SockRef::from(socket).peer_addr() {
            Ok(_) => Some(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                (bits & ERROR != 0).then_some(false)
            }
            Err(_) => Some(false),
        }
    }

    fn recv(mut socket: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        socket.read(buffer)
    }

    fn send(mut socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        // std sends with MSG_NOSIGNAL, or sets SO_NOSIGPIPE, where there is a SIGPIPE.
        socket.write(bytes)
    }

    fn send_gathered(socket: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        // std's vectored write is a writev, which raises SIGPIPE.
        socket.try_io(|| SockRef::from(socket).send_vectored_with_flags(slices, NO_SIGNAL))
    }

    fn finish(socket: &TcpStream) {
        let _ = socket.shutdown(Shutdown::Write);
    }

    fn reset_on_drop(socket: &TcpStream) {
        let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
    }

    fn peer(socket: &TcpStream) -> Option<SocketAddr> {
        SockRef::from(socket).peer_addr().ok()?.as_socket()
    }

    #[cfg(target_os = "linux")]
    fn has_peer_finished(socket: &TcpStream) -> bool {
        crate::connect::has_peer_finished(socket)
    }

    #[cfg(target_os = "linux")]
    fn traffic(socket: &TcpStream) -> Option<crate::Traffic> {
        crate::connect::traffic(socket.as_raw_fd())
    }

    fn take_error(socket: &TcpStream) -> bool {
        !matches!(socket.take_error(), Ok(None))
    }
}

#[cfg(any(target_os = "linux", target_os = "freebsd"))]
const NO_SIGNAL: i32 = rustix::net::SendFlags::NOSIGNAL.bits() as i32;
#[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
const NO_SIGNAL: i32 = 0;

fn tune(socket: SockRef<'_>, options: &Options) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    crate::connect::apply_options(socket, options)
}

fn token(id: u64) -> mio::Token {
    mio::Token(id as usize)
}
