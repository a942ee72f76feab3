//! The driver contract: what an engine may rely on, whichever way the kernel is spoken to.
//!
//! Numbered, because each rule has a test of that name that runs on every driver and on the simulator
//! (`contract/`):
//!
//! * **C1** Lent bytes live until the next call to the driver. [`Segment::Lent`](crate::Segment::Lent) refers to
//!   them, and only in a send that is that very next call.
//! * **C2** Per connection, bytes arrive in order and once.
//! * **C3** At most one send is in flight per connection, and its batch comes home exactly once: in
//!   [`SendOutcome::Done`], or in [`Event::Sent`], with bytes left in it if the connection closed first.
//!   [`Driver::try_send`] leaves nothing in flight.
//! * **C4** [`Event::Closed`] comes exactly once for each id that [`Driver::adopt`] or [`Driver::connect`] gave,
//!   and nothing comes after it.
//! * **C5** Every event carries the id, generation included, that it belongs to. Calls with an id of the past
//!   do nothing; a send with one gives its batch home as `Done`.
//! * **C6** [`Driver::wait`] returns by its deadline, sleeps when there is nothing to do, and returns at once
//!   when there is.
//! * **C7** When receive memory or descriptors run out the driver stops reading or accepting and says so; it
//!   neither fails, nor grows, nor spins.
//! * **C8** Reading can be paused and resumed; a paused connection delivers nothing and loses nothing, and
//!   still reports a reset.
//! * **C9** The peer's end of stream, its reset and our own close are told apart ([`Event::Finished`],
//!   [`Closed::Reset`], [`Closed::Local`]). A reset does not take back what the peer said: what the kernel has of it when
//!   a send fails, or when the reset is seen, is told before `Closed`, unless reading is paused. So who still
//!   sends a request hears that it was refused. Sends do nothing meanwhile and give their batch home as `Done`; the
//!   batch in flight comes home at the end. See "What a reset leaves" below.
//! * **C10** Only the [`Waker`] may be used from other threads. One wake, or many, before a wait end that wait.
//! * **C11** Memory that the kernel may still write outlives the operation.
//!
//! # What a reset leaves
//!
//! When a reset arrives, Linux keeps all that came in order before it and gives it to `recv` before the error: whether the
//! reset came behind a FIN or without one, whether a send failed in between, and whether `SO_ERROR` was asked for. It drops
//! what we had not sent. Lost are only bytes that never came into the receive queue: what the peer's kernel still had to
//! send, or to send again, when it reset. Other systems may drop the queue, as Windows does; there the bytes may be lost.
//! The first failure of a send takes the error away: EPIPE if FIN had come before the reset, ECONNRESET if not. After it
//! `recv` ends in either case like a stream.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::{Batch, ConnId, Instant};

/// What the kernel, or the simulator, tells the engine. Received bytes are lent, not given.
#[derive(Debug)]
pub enum Event<'a, S> {
    /// A listener took a connection; it has no id until [`Driver::adopt`]. It may be adopted by another shard's
    /// driver, or dropped, which closes it.
    Incoming(S, SocketAddr),
    /// Accepting failed for want of descriptors or memory, and has stopped until [`Driver::resume_accept`].
    AcceptStopped(io::ErrorKind),
    /// A connection begun with [`Driver::connect`] is established.
    Connected(ConnId),
    /// Bytes came. The slice is never empty.
    Received(ConnId, &'a mut [u8]),
    /// The peer will send no more (FIN); we still may.
    Finished(ConnId),
    /// The batch that [`SendOutcome::Pending`] kept comes home. Bytes left in it were cut off by a close.
    Sent(ConnId, Box<Batch>),
    /// The end of this id.
    Closed(ConnId, Closed),
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// We called [`Driver::close`].
    Local,
    /// The peer reset it, or the network gave up on it (timed out, unreachable).
    Reset,
    /// [`Driver::connect`] did not succeed.
    Refused,
}

/// What became of a send.
#[derive(Debug)]
pub enum SendOutcome {
    /// All of it left, or the connection is gone: here is the batch for reuse.
    Done(Box<Batch>),
    /// The kernel took part of it, perhaps none; [`Event::Sent`] brings the batch home.
    Pending,
}

/// One shard's connection to the kernel. The contract is this module's documentation.
pub trait Driver {
    /// An accepted socket that no driver has adopted yet.
    type Socket: Send + 'static;

    /// The time at the end of the last [`Driver::wait`]: what a turn takes for now. It costs nothing.
    fn now(&self) -> Instant;

    /// The time now. A reading of the clock, so not for each message: the engine reads it at a turn's end.
    fn clock(&self) -> Instant;

    /// Sleeps until there is something to do, the waker is used, or `deadline` has come (C6).
    ///
    /// # Errors
    /// Only what makes the shard unusable: the poll itself failed.
    fn wait(&mut self, deadline: Option<Instant>) -> io::Result<()>;

    /// What came since, one at a time; `None` ends the turn. Bounded: one loud connection cannot fill a turn.
    fn next_event(&mut self) -> Option<Event<'_, Self::Socket>>;

    /// Takes an accepted socket in. The id is of this driver's shard.
    ///
    /// # Errors
    /// The socket could not be registered, or every slot is taken; it is closed.
    fn adopt(&mut self, socket: Self::Socket) -> io::Result<ConnId>;

    /// Begins a connection from `local`, if given. [`Event::Connected`] or [`Event::Closed`] follows.
    ///
    /// # Errors
    /// It could not even be begun: no descriptor, no free port on `local`.
    fn connect(&mut self, peer: SocketAddr, local: Option<SocketAddr>) -> io::Result<ConnId>;

    /// Sends `batch`, which is not empty, on a connection with no send in flight (C3).
    fn send(&mut self, conn: ConnId, batch: Box<Batch>) -> SendOutcome;

    /// Sends as much of `bytes` as the kernel takes at once, and tells how much that was: for a message that many
    /// connections get, and few need a [`Batch`] for. Nothing is in flight before or after (C3), so the rest, if there
    /// is any, is [sent](Driver::send) next. A driver that cannot send at once, or not on this connection, takes nothing.
    fn try_send(&mut self, conn: ConnId, bytes: &[u8]) -> usize {
        let _ = (conn, bytes);
        0
    }

    /// Bytes of the batch in flight that have not left, 0 if none is: how progress of a slow reader shows.
    fn unsent(&self, conn: ConnId) -> usize;

    /// Stops reading (C8).
    fn pause(&mut self, conn: ConnId);

    /// Reads again after [`Driver::pause`].
    fn resume(&mut self, conn: ConnId);

    /// Ends our side of the stream (FIN) and keeps reading. No send is in flight, none follows.
    fn finish(&mut self, conn: ConnId);

    /// Ends the connection; bytes that the kernel has taken still leave. [`Event::Closed`] follows, after the
    /// batch in flight came home.
    fn close(&mut self, conn: ConnId);

    /// Ends the connection with a reset: for peers that do not read, and for clients that must not leave their
    /// port in TIME_WAIT. Otherwise like [`Driver::close`].
    fn abort(&mut self, conn: ConnId);

    /// Accepts again after [`Event::AcceptStopped`].
    fn resume_accept(&mut self);

    /// Closes the listeners; connections stay.
    fn stop_listening(&mut self);

    /// A handle that ends this driver's wait from any thread (C10).
    fn waker(&self) -> Waker;
}

/// Ends a driver's wait; shared by every thread that has mail for the shard.
pub type Waker = Arc<dyn Wake>;

/// See [`Waker`].
pub trait Wake: Send + Sync {
    /// Makes the current wait, or else the next, return at once. Cheap when done twice.
    fn wake(&self);
}
