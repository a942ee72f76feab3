//! The trait that hides the differences between readiness APIs.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::time::Duration;

use crate::driver::Traffic;
use crate::listener::Listener;
use crate::options::Options;
use crate::peer::PeerAddress;

// The bits are the same as epoll's, so that its events need no translation.

/// Input or the peer's end of stream: a bit of [`Ready::bits`].
pub const READ: u8 = 1;
/// Room for output, or a finished connect: a bit of [`Ready::bits`].
pub const WRITE: u8 = 1 << 2;
/// An error is pending on the socket: a bit of [`Ready::bits`].
pub const ERROR: u8 = 1 << 3;
/// Both directions have ended: a bit of [`Ready::bits`].
pub const HANG_UP: u8 = 1 << 4;

/// One event of a poll.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The token given at registration.
    pub token: u64,
    /// A set of [`READ`], [`WRITE`], [`ERROR`], [`HANG_UP`].
    pub bits: u8,
}

/// The events that a level-triggered poller reports. Errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Input.
    pub read: bool,
    /// Room for output.
    pub write: bool,
    /// Whether to report only changes, for a hang-up that would be reported again and again.
    pub muted: bool,
}

/// Ends a poller's wait, from any thread.
pub trait Signal: Send + Sync + 'static {
    /// Makes the wait return. Failure is ignored: it means that a signal is pending already.
    fn signal(&self);
}

/// A readiness API of the operating system, and the operations on its sockets.
///
/// Every operation on a socket is non-blocking; `WouldBlock` and `Interrupted` are ordinary
/// results.
#[allow(clippy::missing_errors_doc)] // each passes the operating system's error on
pub trait Poller: Sized + Send {
    /// A connection; dropping it closes it.
    type Socket: Send + 'static;
    /// A listener; dropping it closes it.
    type Listener: Send;
    /// Ends this poller's wait.
    type Signal: Signal;

    /// True if level-triggered: readiness is reported as long as it lasts, and [`Interest`] is
    /// used. False if edge-triggered: readiness is reported when it begins, in both directions, and
    /// the driver must continue until `WouldBlock`.
    const LEVEL: bool;

    /// Whether to defer registration. Level-triggered only.
    ///
    /// An accepted socket is then read at once, and registered before the next wait if it is still
    /// open. A connection with a single request is never registered at all.
    const DEFERS_REGISTRATION: bool;

    /// Creates a poller for `max_events` events per wait, and the signal, which is reported as
    /// `wake_token`.
    fn new(max_events: usize, wake_token: u64) -> io::Result<(Self, Self::Signal)>;

    /// Waits at least for `timeout` unless something happens; returns the number of events. An
    /// interrupted wait returns 0.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize>;

    /// Returns an event of the last wait, if there were more than `index`.
    fn ready(&self, index: usize) -> Option<Ready>;

    /// Registers a connection as `token`.
    fn register(&self, socket: &mut Self::Socket, token: u64, interest: Interest)
    -> io::Result<()>;

    /// Changes the interest. Level-triggered only.
    fn modify(&self, socket: &Self::Socket, token: u64, interest: Interest) -> io::Result<()>;

    /// Deregisters a socket that is about to be dropped.
    fn deregister(&self, socket: &mut Self::Socket);

    /// Deregisters a socket that another poller will register.
    fn release(&self, socket: &mut Self::Socket) {
        self.deregister(socket);
    }

    /// Takes over a non-blocking listener and sets the options that its connections inherit.
    fn listener(listener: Listener, options: &Options) -> io::Result<Self::Listener>;

    /// Registers a listener as `token`.
    fn register_listener(&self, listener: &mut Self::Listener, token: u64) -> io::Result<()>;

    /// Deregisters a listener.
    fn deregister_listener(&self, listener: &mut Self::Listener) -> io::Result<()>;

    /// Accepts the next connection. The peer of a Unix socket has no address.
    fn accept(
        listener: &Self::Listener,
        options: &Options,
    ) -> io::Result<(Self::Socket, Option<SocketAddr>)>;

    /// Starts a connect, from `local` if given. Registering the socket follows.
    #[inline]
    fn start_connect(
        peer: PeerAddress,
        local: Option<SocketAddr>,
        options: &Options,
    ) -> io::Result<Self::Socket> {
        crate::connect::start_connect(peer, local, options).map(Self::from_connecting)
    }

    /// Takes over a non-blocking socket that is connected, or whose connect was started.
    fn from_connecting(socket: socket2::Socket) -> Self::Socket;

    /// Returns whether a connect succeeded, for a socket reported with `bits`; `None` if it is
    /// still in progress.
    fn connected(socket: &Self::Socket, bits: u8) -> Option<bool>;

    /// Receives into the start of `buffer`; 0 is the peer's end of stream.
    fn recv(socket: &Self::Socket, buffer: &mut [u8]) -> io::Result<usize>;

    /// Sends a prefix of `bytes`. Never raises SIGPIPE.
    fn send(socket: &Self::Socket, bytes: &[u8]) -> io::Result<usize>;

    /// Sends a prefix of `slices`. Never raises SIGPIPE.
    fn send_gathered(socket: &Self::Socket, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Ends our side of the stream.
    fn finish(socket: &Self::Socket);

    /// Makes the drop that follows reset the connection.
    fn reset_on_drop(socket: &Self::Socket);

    /// Returns the address of the other end; a Unix socket has none.
    fn peer(socket: &Self::Socket) -> Option<SocketAddr>;

    /// Returns the bytes that the socket has carried, if the system counts them.
    fn traffic(socket: &Self::Socket) -> Option<Traffic> {
        let _ = socket;
        None
    }

    /// Returns whether the peer has ended the stream, if the system reports it while there is
    /// input.
    fn has_peer_finished(socket: &Self::Socket) -> bool {
        let _ = socket;
        false
    }

    /// Returns whether an error is pending on the socket, and clears it.
    fn take_error(socket: &Self::Socket) -> bool;
}
