//! The start of a thread: its parameters, its driver, and its descriptor table.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use throng_io::tables::{OwnTable, Tables};
use throng_io::{Driver, Options};

use super::Shared;
use crate::clock::Clock;
use crate::error::Error;
use crate::sources::Sources;
use crate::tls::{Sockets, TlsClient, below, sockets};

/// Connections to read from in one turn. Turns are short, since an open loop sends its due messages
/// at the end of one.
pub const MOST_EVENTS: usize = 64;

/// Parameters of a thread's start.
pub struct ThreadStart {
    pub shared: Arc<Shared>,
    pub clock: Clock,
    /// Number of this thread.
    pub thread: usize,
    pub peer: SocketAddr,
    /// TLS of its connections.
    pub tls: Option<Arc<TlsClient>>,
    pub sources: Sources,
    /// Connections of this thread.
    pub connections: usize,
    /// Connections of all threads.
    pub wanted: usize,
    /// Number of this thread's first connection in the sequence of all: the source address depends
    /// on it.
    pub first: usize,
    /// Connections in progress at a time, on this thread. Default 100.
    pub window: usize,
    /// Time over which they are set up. Default zero.
    pub ramp: Duration,
    /// Wake exactly at deadlines instead of up to 50 us later. Default false.
    pub exact: bool,
    /// The thread's driver, from [`open_driver`].
    pub driver: Sockets,
    /// Gives the thread a descriptor table of its own.
    pub tables: Option<Arc<Tables>>,
}

impl ThreadStart {
    /// The only thread of a run, with all defaults.
    #[must_use]
    pub fn single(
        shared: &Arc<Shared>,
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

    /// Begins on the thread, which gets its descriptor table, if it has its own, and can be woken
    /// from now on.
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
/// No descriptor or memory for the poll.
pub fn open_driver(
    connections: usize,
    size: usize,
    tls: Option<&Arc<TlsClient>>,
) -> Result<Sockets, Error> {
    let options = Options {
        // A large answer needs few reads; only the used pages cost memory.
        receive_buffer: (2 * size).clamp(256 << 10, 4 << 20),
        max_events: MOST_EVENTS,
        max_connections: connections + 16,
        ..Options::default()
    };
    sockets(options, tls).map_err(|error| Error::io("start the event loop", error))
}

/// Returns the tables of threads with these drivers: each keeps its own poll, and all wake-up
/// descriptors, so that every thread can wake every other one. Other descriptors of a run belong to
/// the threads that stay in the table of the process. The polls also stay open in the process's
/// table until it ends.
#[cfg(target_os = "linux")]
pub(crate) fn tables_of(drivers: &mut [Sockets]) -> io::Result<Tables> {
    let mut tables = Tables::new(drivers.len());
    for (thread, driver) in drivers.iter_mut().enumerate() {
        below(driver).enlist(thread, &mut tables);
    }
    Ok(tables)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn tables_of(_: &mut [Sockets]) -> io::Result<Tables> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The kernel may delay a timer by 50 us to combine wake-ups; a schedule needs exact times.
#[cfg(target_os = "linux")]
fn wake_exactly() {
    // Refused only by unusual sandboxes; then messages leave up to 50 us late, and the report shows
    // it.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

#[cfg(not(target_os = "linux"))]
fn wake_exactly() {}
