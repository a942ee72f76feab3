//! The driver contract: the rules an engine may rely on, for every kernel interface.
//!
//! The rules are numbered, because each has tests named after it that run on every driver and on
//! the simulator (`dev/testkit/src/contract/`):
//!
//! * **C1** Lent bytes live until the next call to [`Driver::next_event`] or [`Driver::wait`]; no
//!   other call moves or changes them. [`Driver::lent`] returns them again, and
//!   [`Segment::Lent`](crate::Segment::Lent) refers to them, in any send of that time.
//! * **C2** Per connection, bytes arrive in order and once.
//! * **C3** At most one send is in flight per connection, and its batch is returned exactly once:
//!   in [`SendOutcome::Done`], or in [`Event::Sent`], with bytes left in it if the connection
//!   closed first. [`Driver::try_send`] leaves nothing in flight.
//! * **C4** [`Event::Closed`] comes exactly once for each id that [`Driver::adopt`] or
//!   [`Driver::connect`] returned, and no event for the id comes after it.
//! * **C5** Every event carries the id, generation included, that it belongs to. Calls with an id
//!   of a closed connection do nothing; a send with one returns its batch as `Done`.
//! * **C6** [`Driver::wait`] returns by its deadline, sleeps when there is nothing to do, and
//!   returns at once when there is.
//! * **C7** When receive memory or descriptors run out, the driver stops reading or accepting and
//!   reports it; it does not fail, grow or spin.
//! * **C8** Reading can be paused and resumed. A paused connection delivers no input and loses
//!   none, and still reports a reset.
//! * **C9** The peer's end of stream, its reset and our own close are distinguished
//!   ([`Event::Finished`], [`Closed::Reset`], [`Closed::Local`]). A reset does not discard earlier
//!   input: bytes that the kernel holds when a send fails, or when the reset is noticed, are
//!   delivered before `Closed`, unless reading is paused. A client that is still sending its
//!   request therefore learns that the request was refused. In the meantime sends do nothing and
//!   return their batch as `Done`; the batch in flight is returned at the end. See "Input after a
//!   reset" below.
//! * **C10** Only the [`Waker`] may be used from other threads. One or more wakes before a wait end
//!   that wait.
//! * **C11** Memory that the kernel may still write outlives the operation.
//! * **C12** An accepted socket carries its listener ([`Event::Incoming`]). Where a driver secures
//!   connections with TLS, [`Event::Secured`] comes at most once for each of them, before its first
//!   [`Event::Received`] and, on a connection that we started, before [`Event::Connected`]; and
//!   [`Driver::was_truncated`] distinguishes a stream that its peer ended from a cut stream. A
//!   connection whose TLS is not ended here has [`Event::PassedThrough`] instead.
//! * **C13** A connection that [`Driver::release`] has returned no longer belongs to this driver:
//!   its id acts like the id of a closed connection, without [`Event::Closed`]. Another driver of
//!   the same kind may adopt the socket, and gets the input that was not received before.
//! * **C14** [`Driver::park`] takes a connection out of the poll without ending it;
//!   [`Event::Parked`] is its next and last event. From then on nothing is received, sent or
//!   reported for it, and other calls do nothing with its id, as with the id of a closed
//!   connection, until [`Driver::unpark`]: here, or at a driver of another process that holds a
//!   duplicate of its descriptor ([`Driver::adopt_at`]). It goes on there under the same id: the
//!   rest of the batch in flight leaves first and is returned in [`Event::Sent`]; input arrives
//!   once and in order, and the end or the reset that came in the meantime after it.
//!   [`Driver::surrender`] closes this side's descriptor, which its peer does not notice as long as
//!   a duplicate is open. What a parked connection has apart from its descriptor is its record,
//!   which exists once: [`Driver::take_record`] moves it out. No id names two connections:
//!   [`Driver::give_slots`] passes on the free slots, and the generations of all.
//!
//! # Input after a reset
//!
//! When a reset arrives, Linux keeps all input that came in order before it and returns that input
//! from `recv` before the error: whether or not a FIN preceded the reset, whether or not a send
//! failed in between, and whether or not `SO_ERROR` was read. It drops our unsent output. Only
//! bytes that never reached the receive queue are lost: bytes that the peer's kernel still had to
//! send or to retransmit when it reset. Other systems, such as Windows, may drop the receive queue;
//! there the bytes may be lost. The first failed send consumes the error: EPIPE if a FIN came
//! before the reset, ECONNRESET if not. After it, `recv` ends in both cases with an end of stream.

use std::any::Any;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use crate::batch::Batch;
use crate::clock::Clock;
use crate::id::{ConnId, Slots};
use crate::peer::PeerAddress;
use crate::time::Instant;
use crate::tls_info::{PassedThrough, SessionFailure, TlsFailure, TlsInfo};

/// An event that the kernel, or the simulator, reports to the engine.
///
/// Received bytes are lent, not given.
pub type Event<'a, S> = EventOf<&'a mut [u8], S>;

/// An [`Event`] with bytes of the form `B`: an event without its bytes has `()`.
#[derive(Debug)]
pub enum EventOf<B, S> {
    /// A listener accepted a connection; it has no id until [`Driver::adopt`].
    ///
    /// Another shard's driver may adopt it. Dropping it closes it. The listener is one of the
    /// driver that reports it. The peer of a Unix socket has no address.
    Incoming(S, Option<SocketAddr>, ListenerId),
    /// Accepting failed for lack of descriptors or memory, and has stopped until
    /// [`Driver::resume_accept`].
    AcceptStopped(io::ErrorKind),
    /// A connection started with [`Driver::connect`] is established.
    Connected(ConnId),
    /// The TLS handshake of a connection is complete (C12).
    Secured(ConnId, Box<TlsInfo>),
    /// The ClientHello of a connection selects a route whose TLS is not ended here. From now on it
    /// is a connection without TLS; its input so far is returned here (C12).
    PassedThrough(ConnId, Box<PassedThrough>),
    /// Bytes were received. The slice is never empty.
    Received(ConnId, B),
    /// The peer will send no more (FIN); we still may.
    Finished(ConnId),
    /// The batch that [`SendOutcome::Pending`] kept is returned. Bytes left in it were not sent
    /// because the connection closed.
    Sent(ConnId, Box<Batch>),
    /// The connection is parked (C14). Comes only after [`Driver::park`].
    Parked(ConnId),
    /// The connection has ended, and with it this id.
    Closed(ConnId, Closed),
}

impl<B, S> EventOf<B, S> {
    /// Converts the bytes.
    #[inline]
    pub fn map_bytes<C>(self, convert: impl FnOnce(B) -> C) -> EventOf<C, S> {
        self.map(convert, |socket, _, _| socket)
    }

    /// Converts the accepted socket, with its peer and its listener.
    #[inline]
    pub fn map_socket<T>(
        self,
        convert: impl FnOnce(S, Option<SocketAddr>, ListenerId) -> T,
    ) -> EventOf<B, T> {
        self.map(|bytes| bytes, convert)
    }

    #[inline(always)]
    fn map<C, T>(
        self,
        to_bytes: impl FnOnce(B) -> C,
        to_socket: impl FnOnce(S, Option<SocketAddr>, ListenerId) -> T,
    ) -> EventOf<C, T> {
        match self {
            Self::Received(id, bytes) => EventOf::Received(id, to_bytes(bytes)),
            Self::Sent(id, batch) => EventOf::Sent(id, batch),
            Self::Finished(id) => EventOf::Finished(id),
            Self::Parked(id) => EventOf::Parked(id),
            Self::Closed(id, why) => EventOf::Closed(id, why),
            Self::Connected(id) => EventOf::Connected(id),
            Self::Secured(id, info) => EventOf::Secured(id, info),
            Self::PassedThrough(id, passed) => EventOf::PassedThrough(id, passed),
            Self::Incoming(socket, peer, listener) => {
                EventOf::Incoming(to_socket(socket, peer, listener), peer, listener)
            }
            Self::AcceptStopped(why) => EventOf::AcceptStopped(why),
        }
    }
}

/// A listener of one driver: its number, in the order in which listeners were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub u16);

/// The reason why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// We called [`Driver::close`] or [`Driver::abort`].
    Local,
    /// The peer reset it, or the network gave up on it (timed out, unreachable).
    Reset,
    /// [`Driver::connect`] did not succeed.
    Refused,
    /// [`Driver::connect_secured`] did not succeed: the TLS handshake failed, or the peer ended the
    /// session with an alert later. In TLS 1.3 a server refuses our certificate only then.
    Insecure(TlsFailure),
}

impl Closed {
    /// Returns why the TLS session of an established connection failed: of all failures, only an
    /// alert of the peer closes a connection.
    #[must_use]
    pub fn session_failure(self) -> Option<SessionFailure> {
        match self {
            Self::Insecure(TlsFailure::Alert(alert)) => Some(SessionFailure::PeerAlert(alert)),
            _ => None,
        }
    }
}

/// The result of a send.
#[derive(Debug)]
pub enum SendOutcome {
    /// All bytes were sent, or the connection is gone: here is the batch for reuse.
    Done(Box<Batch>),
    /// The kernel took only some of the bytes, perhaps none; [`Event::Sent`] returns the batch.
    Pending,
}

/// The bytes that a connection has carried, without headers of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes received.
    pub received: u64,
    /// Bytes sent, each counted once.
    pub sent: u64,
}

/// The state of a parked connection, apart from its descriptor and from TLS.
#[derive(Debug, Default)]
pub struct SocketRecord {
    /// The rest of the batch in flight, if there is one.
    pub unsent: Option<Box<Batch>>,
    /// Whether reading is paused (C8).
    pub is_paused: bool,
    /// Whether the bytes are counted at the end ([`Driver::count_traffic`]).
    pub is_counted: bool,
}

throng_carry::carried! {
    SocketRecord {
        required { 1 is_paused }
        optional { 2 is_counted }
        // Without these bytes the stream would have a gap.
        if_any { 3 unsent }
        rebuilt { }
    }
}

/// One shard's interface to the kernel; the [module documentation](self) is its contract.
pub trait Driver {
    /// An accepted socket that no driver has adopted yet.
    type Socket: Send + 'static;

    /// The descriptor of a connection, without any state of this driver; dropping it closes it.
    type Descriptor: Send + 'static;

    /// The state of a parked connection apart from its descriptor. Not `Clone`, since a TLS session
    /// must not exist twice.
    type Record: Send + 'static;

    /// Returns the time at the end of the last [`Driver::wait`], which a turn uses as the current
    /// time.
    ///
    /// Free of cost.
    fn now(&self) -> Instant;

    /// Returns the clock of [`Driver::now`], to be read within a turn.
    fn clock(&self) -> Clock;

    /// Sleeps until there is something to do, the waker is used, or `deadline` has passed (C6).
    ///
    /// # Errors
    /// The poll itself failed, which makes the shard unusable. No other error is reported.
    fn wait(&mut self, deadline: Option<Instant>) -> io::Result<()>;

    /// Returns the next event since the last wait; `None` ends the turn. Bounded: one connection
    /// with much input cannot fill a turn.
    fn next_event(&mut self) -> Option<Event<'_, Self::Socket>>;

    /// Returns the bytes of the last event once more if it was [`Event::Received`], else none (C1).
    fn lent(&mut self) -> &mut [u8];

    /// Makes a socket for [`adopt`](Self::adopt) from a connection that another part of the program
    /// has accepted. It gets the options of accepted connections, and no TLS.
    ///
    /// # Errors
    /// The system's error; a driver without sockets of the system cannot do it.
    fn socket(&mut self, stream: TcpStream) -> io::Result<Self::Socket> {
        drop(stream);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Takes over an accepted socket. The id belongs to this driver's shard.
    ///
    /// # Errors
    /// The socket could not be registered, or every slot is in use; the socket is closed.
    fn adopt(&mut self, socket: Self::Socket) -> io::Result<ConnId>;

    /// Gives up an accepted connection, so that the driver of another thread can
    /// [adopt](Self::adopt) it (C13). Costs a system call where the connection was registered.
    ///
    /// # Errors
    /// The connection stays: a send is in flight, its TLS handshake is not complete, its stream has
    /// ended, or this driver cannot do it.
    fn release(&mut self, conn: ConnId) -> io::Result<Self::Socket> {
        let _ = conn;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Takes a connection out of the poll, to move it to another process (C14). [`Event::Parked`]
    /// follows. Costs a system call.
    ///
    /// # Errors
    /// The connection stays as it is, and may be parked later: `ResourceBusy` if it is not
    /// connected yet, its TLS handshake is not complete, a send has failed, or its peer's stream
    /// has ended; with TLS also if our side of the stream has ended. `NotConnected` if it has
    /// ended, even if its end was not reported yet. `Unsupported` if this driver cannot do it.
    fn park(&mut self, conn: ConnId) -> io::Result<()> {
        let _ = conn;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Moves out the record of a parked connection, once [`Event::Parked`] was reported. `None` if
    /// it was moved out before, or the connection is not parked.
    fn take_record(&mut self, conn: ConnId) -> Option<Self::Record> {
        let _ = conn;
        None
    }

    /// Returns the descriptor of a parked connection, to be duplicated in another process.
    fn descriptor(&self, conn: ConnId) -> Option<&Self::Descriptor> {
        let _ = conn;
        None
    }

    /// Continues a parked connection with its record: it is polled again, and all that the system
    /// has for it is reported. Does nothing if it is not parked. If the system refuses to poll it,
    /// [`Event::Closed`] follows.
    fn unpark(&mut self, conn: ConnId, record: Self::Record) {
        let _ = (conn, record);
    }

    /// Closes the descriptor of a parked connection and frees its slot, without an event. No FIN,
    /// reset or alert is sent, unless this was the only descriptor of the connection. If it was
    /// [adopted](Self::adopt_at) and never continued here, it goes on in the predecessor, and its
    /// slot is reserved again.
    fn surrender(&mut self, conn: ConnId) {
        let _ = conn;
    }

    /// Enters a duplicate of the descriptor of a connection that another driver has parked, under
    /// its id there: it is parked here also, and polled in silence.
    ///
    /// # Errors
    /// The system refuses to poll it, for lack of memory or of watches (ENOSPC), or the slot is
    /// not [reserved](Self::begin_with) for it. The duplicate is closed.
    fn adopt_at(&mut self, conn: ConnId, descriptor: Self::Descriptor) -> io::Result<()> {
        let _ = (conn, descriptor);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Gives the free slots to the driver of a successor, except `kept` of them, for which more
    /// are made if there are not so many. From now on this driver has only those: another slot is
    /// not used again once its connection has ended or is surrendered.
    ///
    /// # Errors
    /// This driver cannot do it, or it was called before.
    fn give_slots(&mut self, kept: usize) -> io::Result<Slots> {
        let _ = kept;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Takes back all slots after [`Driver::give_slots`], as no successor has them any longer. The
    /// new generations are beyond all that it may have used.
    fn take_slots_back(&mut self) {}

    /// Begins with the slots of a predecessor. Slots that are not free are reserved until
    /// [`Driver::adopt_at`] or [`Driver::vacate`].
    ///
    /// # Errors
    /// The driver has had a connection before, the list contradicts itself, or this driver cannot
    /// do it.
    fn begin_with(&mut self, slots: &Slots) -> io::Result<()> {
        let _ = slots;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Frees a reserved slot: `conn`, the last connection in it, has ended in the predecessor.
    fn vacate(&mut self, conn: ConnId) {
        let _ = conn;
    }

    /// Starts a connection, from `local` if given, which a Unix socket ignores.
    /// [`Event::Connected`] or [`Event::Closed`] follows.
    ///
    /// # Errors
    /// The connect could not be started: no descriptor, or no free port on `local`. A Unix socket
    /// that does not exist, on which nothing listens, or whose queue is full, is an error of the
    /// kind `ConnectionRefused`; `Unsupported` on a system without Unix sockets.
    fn connect(&mut self, peer: PeerAddress, local: Option<SocketAddr>) -> io::Result<ConnId>;

    /// Starts a connection that is secured with TLS, after `preface` was sent without it (a PROXY
    /// header, for example). Otherwise like [`Driver::connect`].
    ///
    /// # Errors
    /// The errors of [`Driver::connect`]; a driver without TLS does not support this call.
    fn connect_secured(
        &mut self,
        peer: PeerAddress,
        local: Option<SocketAddr>,
        tls: &ClientTls,
        preface: &[u8],
    ) -> io::Result<ConnId> {
        let _ = (peer, local, tls, preface);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Secures an accepted connection from here on: `received` is its input that no one has used.
    /// `peer` is the client's address, if it has one. Returns false if this driver has no TLS.
    fn secure_accepted(
        &mut self,
        conn: ConnId,
        tls: &ServerTls,
        peer: Option<SocketAddr>,
        received: &[u8],
    ) -> bool {
        let _ = (conn, tls, peer, received);
        false
    }

    /// Sends `batch`, which is not empty, on a connection with no send in flight (C3).
    fn send(&mut self, conn: ConnId, batch: Box<Batch>) -> SendOutcome;

    /// Sends as much of `bytes` as the kernel takes at once, and returns how many bytes that was.
    ///
    /// For a message to many connections, only a few of them with a [`Batch`]. Nothing is in flight
    /// before or after (C3), so the rest, if there is any, is [sent](Driver::send) next. A driver
    /// that cannot send at once, or not on this connection, takes nothing.
    fn try_send(&mut self, conn: ConnId, bytes: &[u8]) -> usize {
        let _ = (conn, bytes);
        0
    }

    /// Returns the unsent bytes of the batch in flight, 0 if there is none: shows the progress of a
    /// slow reader.
    fn unsent(&self, conn: ConnId) -> usize;

    /// Returns an estimate of the memory of the batch in flight, see [`Batch::memory`], and of all
    /// other memory that the driver uses for this connection's output.
    fn output_memory(&self, conn: ConnId) -> usize;

    /// Returns an estimate of the memory of all output, batches in flight included: it becomes free
    /// once slow readers have read it, or have gone.
    fn held_output(&self) -> usize {
        0
    }

    /// Returns how much memory for [`Driver::input_holders`] was taken since the last call,
    /// including memory that was freed again.
    fn take_growth(&mut self) -> usize {
        0
    }

    /// Returns the connections for which the driver uses memory without a batch in flight: for
    /// incomplete input, or for a TLS handshake.
    fn input_holders(&self) -> Vec<ConnId> {
        Vec::new()
    }

    /// Returns whether the connection's TLS handshake is not complete.
    fn is_handshaking(&self, conn: ConnId) -> bool {
        let _ = conn;
        false
    }

    /// Returns whether a stream whose end was reported ([`Event::Finished`]) was cut: its peer did
    /// not mark it as complete, as TLS requires (RFC 8446 section 6.1).
    ///
    /// A body that lasts to the end of the stream is then incomplete (RFC 9112 section 9.8).
    /// Without TLS the answer is false, since a peer can only end the stream.
    fn was_truncated(&self, conn: ConnId) -> bool {
        let _ = conn;
        false
    }

    /// Returns why the TLS session failed on a connection whose end was reported
    /// ([`Event::Finished`]); `None` if its peer has just ended the stream. For a closed
    /// connection, use [`Closed::session_failure`].
    fn session_failure(&self, conn: ConnId) -> Option<SessionFailure> {
        let _ = conn;
        None
    }

    /// Returns whether the peer has ended the stream, although there may be input before that end:
    /// the only way to learn of it on a paused connection (C8).
    ///
    /// Costs a system call. False if the system does not report it, or the connection is gone.
    fn has_peer_finished(&self, conn: ConnId) -> bool {
        let _ = conn;
        false
    }

    /// Returns the bytes that a connection has carried so far, as its system counted them. The
    /// connection is open, or the one of the last [`Event::Closed`] if [`Driver::count_traffic`]
    /// was called.
    ///
    /// Costs a system call, so it is for the end of a connection. `None` if the system does not
    /// count, or the connection is gone.
    fn traffic(&self, conn: ConnId) -> Option<Traffic> {
        let _ = conn;
        None
    }

    /// Reads the bytes that this connection has carried when it ends, whichever side ends it, so
    /// that [`Driver::traffic`] returns them while [`Event::Closed`] is handled.
    fn count_traffic(&mut self, conn: ConnId) {
        let _ = conn;
    }

    /// Returns the address of the other end, as the system knows it: `None` for a Unix socket, and
    /// for a connection that is gone or that its peer has reset.
    ///
    /// Costs a system call, so that a connection need not keep the address.
    fn peer(&self, conn: ConnId) -> Option<SocketAddr> {
        let _ = conn;
        None
    }

    /// Pauses reading (C8).
    fn pause(&mut self, conn: ConnId);

    /// Resumes reading after [`Driver::pause`].
    fn resume(&mut self, conn: ConnId);

    /// Ends our side of the stream (FIN) and keeps reading. No send is in flight, and none follows.
    fn finish(&mut self, conn: ConnId);

    /// Closes the connection; bytes that the kernel has accepted are still sent. [`Event::Closed`]
    /// follows, after the batch in flight is returned. With TLS it comes when the close_notify has
    /// left, for which a full socket has half a minute. No close_notify is sent if bytes of the
    /// batch are unsent: their loss must not look like an orderly end.
    fn close(&mut self, conn: ConnId);

    /// Returns whether a connection that was [closed](Driver::close) still waits for its last bytes
    /// to leave.
    fn is_closing(&self, conn: ConnId) -> bool {
        let _ = conn;
        false
    }

    /// Ends the wait of a connection that [is closing](Driver::is_closing): without those bytes,
    /// but not with a reset.
    fn close_now(&mut self, conn: ConnId) {
        let _ = conn;
    }

    /// Resets the connection: for peers that do not read, and for clients that must not leave their
    /// port in TIME_WAIT. Otherwise like [`Driver::close`], except that nothing has to leave
    /// before.
    fn abort(&mut self, conn: ConnId);

    /// Resumes accepting after [`Event::AcceptStopped`].
    fn resume_accept(&mut self);

    /// Closes the listeners; connections stay open.
    fn stop_listening(&mut self);

    /// Returns a handle that ends this driver's wait from any thread (C10).
    fn waker(&self) -> Waker;
}

/// The TLS configuration of a connection that we start. Only the driver that secures it knows its
/// type, so that this crate needs no TLS library.
pub type ClientTls = Arc<dyn Any + Send + Sync>;

/// The TLS configuration of a connection that we accepted; only the driver knows its type.
pub type ServerTls = Arc<dyn Any + Send + Sync>;

/// A handle that ends a driver's wait; shared by every thread that sends commands to the shard.
pub type Waker = Arc<dyn Wake>;

/// The method behind a [`Waker`].
pub trait Wake: Send + Sync {
    /// Makes the current wait, or else the next one, return at once. Cheap if repeated.
    fn wake(&self);
}
