//! The start of a thread: its parameters, its driver, and its descriptor table.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use throng_io::tables::{OwnTable, Tables};
use throng_io::{Driver, Options};

use super::PoolShared;
use crate::clock::Clock;
use crate::error::Error;
use crate::sources::Sources;
use crate::tls::{Sockets, TlsClient, sockets};

/// Connections to read from in one turn. Turns are short, because an open loop sends its due
/// messages at the end of a turn.
pub const MAX_EVENTS: usize = 64;

/// Parameters of a thread's start.
pub struct ThreadStart {
    pub shared: Arc<PoolShared>,
    pub clock: Clock,
    /// The number of this thread.
    pub thread: usize,
    pub peer: SocketAddr,
    /// The TLS client configuration of the connections.
    pub tls: Option<Arc<TlsClient>>,
    pub sources: Sources,
    /// The connections of this thread.
    pub connections: usize,
    /// The connections of all threads.
    pub wanted: usize,
    /// The number of this thread's first connection in the sequence of all connections. It
    /// determines the source address.
    pub first: usize,
    /// Maximum connections in progress on this thread. Default 100.
    pub window: usize,
    /// Time over which connections are set up. Default zero.
    pub ramp: Duration,
    /// Whether to wake exactly at deadlines instead of up to 50 us later. Default false.
    pub exact: bool,
    /// The thread's driver, from [`open_driver`].
    pub driver: Sockets,
    /// The descriptor tables of the threads, if each thread has its own.
    pub tables: Option<Arc<Tables>>,
}

impl ThreadStart {
    /// Returns the parameters of a run's only thread, with all defaults.
    #[must_use]
    pub fn single(
        shared: &Arc<PoolShared>,
        peer: SocketAddr,
        sources: Sources,
        connections: usize,
        driver: Sockets,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            clock: Clock,
            thread: 0,
            peer,
            tls: None,
            sources,
            connections,
            wanted: connections,
            first: 0,
            window: 100,
            ramp: Duration::ZERO,
            exact: false,
            driver,
            tables: None,
        }
    }

    /// Prepares the calling thread: enters its own descriptor table, if it has one, and makes it
    /// possible to wake the thread.
    pub(crate) fn enter(&self) -> Result<Option<OwnTable>, Error> {
        if self.exact {
            wake_exactly();
        }
        let table = self.tables.as_ref().map(|tables| tables.enter(self.thread)).transpose();
        self.shared.lane(self.thread).open(self.driver.waker());
        table.map_err(|error| Error::io("start the event loop", error))
    }
}

/// Opens the driver of a thread with `connections` connections and answers of up to `size` bytes.
///
/// # Errors
/// There are too few descriptors, or there is too little memory, for the poll.
pub fn open_driver(
    connections: usize,
    size: usize,
    tls: Option<&Arc<TlsClient>>,
) -> Result<Sockets, Error> {
    let options = Options {
        // A large answer then needs few reads. Only the used pages cost memory.
        receive_buffer: (2 * size).clamp(256 << 10, 4 << 20),
        max_events: MAX_EVENTS,
        max_connections: connections + 16,
        ..Options::default()
    };
    sockets(options, tls).map_err(|error| Error::io("start the event loop", error))
}

/// Returns the descriptor tables of threads with these drivers. Each keeps its own poll and all
/// wake-up descriptors, so that every thread can wake every other thread. Other descriptors of a
/// run belong to the threads that stay in the table of the process. The polls also stay open in the
/// process's table until it ends.
#[cfg(target_os = "linux")]
pub(crate) fn tables_of(drivers: &mut [Sockets]) -> io::Result<Tables> {
    let mut tables = Tables::new(drivers.len());
    for (thread, driver) in drivers.iter_mut().enumerate() {
        crate::tls::below(driver).enlist(thread, &mut tables);
    }
    Ok(tables)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn tables_of(_: &mut [Sockets]) -> io::Result<Tables> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Sets exact timers: by default the kernel may delay a timer by 50 us to combine wake-ups, and a
/// schedule needs exact times.
#[cfg(target_os = "linux")]
fn wake_exactly() {
    // Only unusual sandboxes refuse this. Messages then leave up to 50 us late, and the report
    // shows it.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

#[cfg(not(target_os = "linux"))]
fn wake_exactly() {}
