//! What differs between one way of learning about readiness and another.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::{Instant, Options};

// The bits are epoll's own, so that what it reports needs no translation.

/// Input, or the peer's end of stream: a bit of [`Ready::bits`].
pub const READ: u8 = 1;
/// Room for output, or a connect that finished: a bit of [`Ready::bits`].
pub const WRITE: u8 = 1 << 2;
/// An error is pending on the socket: a bit of [`Ready::bits`].
pub const ERROR: u8 = 1 << 3;
/// Both directions have ended: a bit of [`Ready::bits`].
pub const HANG_UP: u8 = 1 << 4;

/// One event of a poll.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// As given at registration.
    pub token: u64,
    /// [`READ`], [`WRITE`], [`ERROR`], [`HANG_UP`].
    pub bits: u8,
}

/// What a level-triggered poller shall report. Errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Input.
    pub read: bool,
    /// Room for output.
    pub write: bool,
    /// Report only changes: for a hang-up that nobody wants to hear of again and again.
    pub muted: bool,
}

/// Ends a poller's wait, from any thread.
pub trait Signal: Send + Sync + 'static {
    /// Makes the wait return. Failure is ignored: it means that a signal is pending already.
    fn signal(&self);
}

/// A poll of the operating system, and the operations on the sockets that it knows.
///
/// Every operation on a socket is non-blocking; `WouldBlock` and `Interrupted` are ordinary answers.
#[allow(clippy::missing_errors_doc)] // each passes the operating system's error on
pub trait Poller: Sized + Send {
    /// A connection; dropping it closes it.
    type Socket: Send + 'static;
    /// A listener; dropping it closes it.
    type Listener: Send;
    /// Ends this poller's wait.
    type Signal: Signal;

    /// True: readiness is reported as long as it lasts, and [`Interest`] counts. False: readiness is reported when
    /// it begins, in both directions, and whoever has seen it goes on until `WouldBlock`.
    const LEVEL: bool;

    /// Level-triggered only: an accepted socket is read at once, and registered before the next wait if it is still there. A
    /// connection with a single request is then never registered at all.
    const LATE: bool;

    /// A poller for `max_events` events a wait, and the signal, which is reported as `wake_token`.
    fn new(max_events: usize, wake_token: u64) -> io::Result<(Self, Self::Signal)>;

    /// The time.
    fn clock() -> Instant;

    /// Waits, no shorter than `timeout` unless something happens; returns how many events came. An interrupted wait
    /// is one without events.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize>;

    /// All events of the last wait; `index` is below the number it returned.
    fn ready(&self, index: usize) -> Ready;

    /// Begins to report a connection as `token`.
    fn register(&self, socket: &mut Self::Socket, token: u64, interest: Interest)
    -> io::Result<()>;

    /// Changes what is reported. Level-triggered only.
    fn modify(&self, socket: &Self::Socket, token: u64, interest: Interest) -> io::Result<()>;

    /// To be called before a socket is dropped.
    fn forget(&self, socket: &mut Self::Socket);

    /// Takes a non-blocking listener and sets what its connections inherit.
    fn listener(listener: TcpListener, options: &Options) -> io::Result<Self::Listener>;

    /// Begins to report a listener as `token`.
    fn register_listener(&self, listener: &mut Self::Listener, token: u64) -> io::Result<()>;

    /// Ends the reports.
    fn forget_listener(&self, listener: &mut Self::Listener) -> io::Result<()>;

    /// The next connection.
    fn accept(
        listener: &Self::Listener,
        options: &Options,
    ) -> io::Result<(Self::Socket, SocketAddr)>;

    /// Takes over a non-blocking socket whose connect was begun.
    fn dialled(socket: socket2::Socket) -> Self::Socket;

    /// Whether a connect succeeded, when the socket was reported with `bits`; `None`: not decided yet.
    fn connected(socket: &Self::Socket, bits: u8) -> Option<bool>;

    /// Receives into the start of `buffer`; 0 is the peer's end of stream.
    fn recv(socket: &Self::Socket, buffer: &mut [u8]) -> io::Result<usize>;

    /// Sends the start of `bytes`. Never raises SIGPIPE.
    fn send(socket: &Self::Socket, bytes: &[u8]) -> io::Result<usize>;

    /// Sends the start of `slices`. Never raises SIGPIPE.
    fn send_gathered(socket: &Self::Socket, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Ends our side of the stream.
    fn finish(socket: &Self::Socket);

    /// The drop that follows shall reset the connection.
    fn reset_on_drop(socket: &Self::Socket);

    /// True if an error is pending on the socket; it is pending no more.
    fn take_error(socket: &Self::Socket) -> bool;
}
