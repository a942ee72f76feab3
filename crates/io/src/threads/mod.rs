//! The driver of the thread-per-connection mode.
//!
//! * Duty: let one thread sleep on one connection, until bytes, room, a deadline or a command come;
//!   report how many such threads the system allows.
//! * Not its duty: starting threads and numbering them (the engine), accept policy, limits.
//! * Start reading at: [`Threads`], then its poller.
//!
//! **Structure.** Each connection has a thread, and on it a whole shard, whose driver has this one
//! connection and a wake descriptor. Handlers of different connections run in parallel and may
//! block: they delay only their own connection. The alternatives were worse. A thread that blocks
//! in `recv` and hands its bytes to a common shard runs handlers one after another; a lock around a
//! common shard does so too, with contention on top.
//!
//! **poll(2) of two descriptors instead of a blocking `recv`.** A publication, a deadline or a
//! shutdown can end a `recv` only through signals, which a library must not use; and a blocking
//! `send` to a slow reader would hold up the thread that must receive the reader's Close. So the
//! socket does not block, and the thread does: in poll(2), on the socket and the wake descriptor,
//! without a timeout unless a deadline is pending. An idle thread uses no CPU. poll(2) takes a
//! list, so that neither select's limit of 1,024 descriptors applies nor a third descriptor is
//! needed, as for an epoll of two.
//!
//! **The same driver.** The only difference from epoll is the readiness API, so this is the
//! [`ReadinessDriver`] over another [`Poller`](crate::readiness::poller::Poller), with the same
//! sends, pauses, ends and errors. poll(2) works for any number of sockets at a proportional cost.
//! The contract suite therefore runs on it with as many connections as its tests need, the
//! acceptor's thread polls its listeners with it, and a connection's thread adopts one.
//!
//! **Windows.** A connection's thread sleeps on a completion port of its own, by the driver of an
//! event loop there: a wake is a packet, where WSAPoll would need a pair of sockets. An accepted
//! socket belongs to no port before its thread adopts it. The end of an operation comes by a
//! packet, which the driver awaits when it is dropped.
//!
//! **Cost.** Two descriptors, a stack and a receive buffer for each connection, one more system
//! call per echo than a blocking `recv`, and a thread start for each accept. The shard number in a
//! [`ConnId`] is the number of the connection's thread, so the maximum is [`ConnId::MAX_SHARDS`],
//! or [`thread_limit`] if that is lower. Numbers are reused; [`Options::first_generation`]
//! distinguishes the ids of successive connections (C5).

#[cfg(unix)]
mod poller;
mod thread_limit;
#[cfg(unix)]
mod wake_fd;

#[cfg(unix)]
pub use self::poller::{PollPoller, WakeSignal};
pub use self::thread_limit::thread_limit;

use crate::id::ConnId;
use crate::options::Options;
#[cfg(unix)]
use crate::readiness::ReadinessDriver;

/// The driver of one connection's thread, and of the acceptor's thread; [the module](self) explains
/// its structure.
#[cfg(unix)]
pub type Threads = ReadinessDriver<PollPoller>;

/// The driver of one connection's thread, and of the acceptor's thread; [the module](self) explains
/// its structure.
#[cfg(windows)]
pub type Threads = crate::Iocp;

/// Default size of a connection's receive buffer: 16 KiB.
///
/// With the 512 KiB of a shard, each connection would use that much once its peer has sent as much.
pub const RECEIVE_BUFFER: usize = 16 * 1024;

/// Descriptors that a connection takes: its socket, and its wake descriptor or completion port.
pub const DESCRIPTORS: usize = crate::capacity::Needs::THREADED_SERVER.each;

/// Returns the options of the driver of one connection: of the shard `shard`, which had
/// `generation` connections before. Socket options are taken from `base`.
#[must_use]
pub fn connection_options(base: &Options, shard: u16, generation: u32) -> Options {
    Options {
        shard,
        first_generation: generation & ConnId::MAX_GENERATION,
        receive_buffer: RECEIVE_BUFFER,
        max_events: 1,
        max_connections: 1,
        ..base.clone()
    }
}
