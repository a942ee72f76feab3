//! The driver of the thread-per-connection family.
//!
//! * Duty: let one thread sleep on one connection, until bytes, room, a deadline or mail come; say how many such
//!   threads the system allows.
//! * Not its duty: starting threads and naming their seats (the engine), accepting policy, limits.
//! * Start reading at: [`Threads`], then [`PollPoller`].
//!
//! **The shape.** Each connection has a thread, and on it a whole shard, whose driver has this one connection and a
//! wake-up. Handlers of different connections run in parallel, and may block: what waits is their own connection.
//! Every other shape was worse. A thread that blocks in `recv` and hands its bytes to a common shard runs handlers
//! one after another; a lock around a common shard does so too, with contention on top.
//!
//! **Not a blocking `recv`, but a poll(2) of two descriptors.** A `recv` cannot be ended by a publication, a deadline
//! or a shutdown but through signals, which a library has no right to; and a blocking `send` to a slow reader would
//! hold up the thread that must hear the reader's Close. So the socket does not block, and the thread does: in
//! poll(2), on the socket and the bell, without a timeout unless something is due. An idle thread uses no CPU.
//! poll(2) takes a list, so that neither select's wall of 1,024 descriptors exists nor a third descriptor is needed,
//! as for an epoll of two.
//!
//! **The same driver.** What differs from epoll is how one learns about readiness, so this is the
//! [`ReadinessDriver`] over another [`Poller`](crate::readiness::poller::Poller): the same
//! sends, pauses, ends and errors. poll(2) is right for any number of sockets and costs in proportion. The contract
//! suite therefore runs on it with as many connections as its tests want, the acceptor's thread polls its listeners
//! with it, and a connection's thread adopts one.
//!
//! **The price.** Two descriptors, a stack and a receive buffer for each connection, one more system call an echo
//! than a blocking `recv`, a start of a thread for each connect. Names: the shard in a [`ConnId`] is the
//! connection's seat, so [`ConnId::MAX_SHARDS`] is the ceiling, if [`most_threads`] is not lower. A seat is used
//! again; [`Options::first_generation`] keeps the ids of its former connections apart (C5).

mod bell;
mod ceiling;
mod poller;

pub use self::ceiling::{Ceiling, most_threads};
pub use self::poller::{PollPoller, Ring};

use crate::{ConnId, Options, ReadinessDriver};

/// The driver of one connection's thread, and of the thread that accepts. See the [module](self).
pub type Threads = ReadinessDriver<PollPoller>;

/// Bytes of a connection's receive buffer where [`Options::receive_buffer`] is not chosen for it: 16 KiB. The 512 KiB
/// of a shard would be paid by each connection, once its peer sent as much.
pub const RECEIVE_BUFFER: usize = 16 * 1024;

/// Descriptors that a connection takes: its socket and its bell.
pub const DESCRIPTORS: usize = if cfg!(target_os = "linux") { 2 } else { 3 };

/// Options of a connection's own driver, on `seat`, which had `generation` connections before; sockets are as `base`
/// says.
#[must_use]
pub fn seat_options(base: &Options, seat: u16, generation: u32) -> Options {
    Options {
        shard: seat,
        first_generation: generation & ConnId::MAX_GENERATION,
        receive_buffer: RECEIVE_BUFFER,
        max_events: 1,
        max_connections: 1,
        ..base.clone()
    }
}
