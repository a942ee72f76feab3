//! One thread of the generator: a shard of client connections and its loop.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use throng_engine::{BuildOptions, Limits, Shard, build};
use throng_io::tables::{OwnTable, Tables};
use throng_io::{ConnId, Driver, Instant, Options};
use throng_proto::ws::CloseCode;

use super::dial::Dialler;
use super::{
    ClientConn, ClientPool, Handshake, Setup, Shared, Traffic, Work, WsPhase, WsService,
};
use crate::clock::Clock;
use crate::error::Error;
use crate::errors::Errors;
use crate::merge::Merge;
use crate::sources::Sources;
use crate::tls::{Sockets, TlsClient, below, sockets};

/// Connections to read from in one turn. Turns are short, since an open loop sends its due messages
/// at the end of one.
pub const MOST_EVENTS: usize = 64;

/// Parameters of a thread's start.
pub struct Start {
    pub shared: Arc<Shared>,
    pub clock: Clock,
    /// Number of this thread.
    pub thread: usize,
    pub peer: SocketAddr,
    /// TLS of its connections.
    pub tls: Option<Arc<TlsClient>>,
    /// The upgrade request.
    pub handshake: Arc<Handshake>,
    /// Connections of this thread.
    pub connections: usize,
    /// Connections of all threads.
    pub wanted: usize,
    /// Number of this thread's first connection in the sequence of all: the source address depends
    /// on it.
    pub first: usize,
    pub sources: Sources,
    /// Connections in progress at a time, on this thread.
    pub window: usize,
    pub ramp: Duration,
    pub setup_timeout: Duration,
    /// Maximum length of an answer.
    pub size: usize,
    /// Bytes that may be queued for one connection.
    pub backlog: usize,
    /// Wake exactly at deadlines instead of up to 50 us later.
    pub exact: bool,
    /// The thread's driver, from [`open_driver`].
    pub driver: Sockets,
    /// Gives the thread a descriptor table of its own.
    pub tables: Option<Arc<Tables>>,
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
pub fn tables_of(drivers: &mut [Sockets]) -> io::Result<Tables> {
    let mut tables = Tables::new(drivers.len());
    for (thread, driver) in drivers.iter_mut().enumerate() {
        below(driver).enlist(thread, &mut tables);
    }
    Ok(tables)
}

#[cfg(not(target_os = "linux"))]
pub fn tables_of(_: &mut [Sockets]) -> io::Result<Tables> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Runs the connections of one thread until the run is finished, closes the remaining ones, and
/// returns the results. Must be called on that thread.
///
/// # Errors
/// No descriptor or memory for the poll, a connection could not even be started, or the poll
/// failed.
pub fn run<W: Work>(start: Start, mut work: W) -> Result<(Setup, W::Outcome), Error> {
    let at_start = if work.dials_itself() { 0 } else { start.connections };
    let mut pool = ClientPool {
        clock: start.clock,
        shared: Arc::clone(&start.shared),
        thread: start.thread,
        started: None,
        errors: Errors::default(),
        setup: Setup::default(),
        peer: start.peer,
        tls: start.tls.clone(),
        handshake: Arc::clone(&start.handshake),
        first: start.first,
        conns: vec![OUT; start.connections],
        dialler: Dialler::new(at_start, start.window, start.ramp, start.clock.now()),
        wanted: start.wanted,
        seed: RandomState::new().hash_one(start.thread),
        nonce: 0,
        done: 0,
        read_serial: u64::MAX,
        read_at: Instant(0),
        refusal: None,
        is_ending: false,
    };
    let (ended, traffic) = Worker::new(start, &mut pool, &mut work)?.run()?;
    let outcome = work.finish(&mut pool, ended);
    pool.setup.traffic.merge(traffic);
    Ok((Setup { errors: pool.errors, ..pool.setup }, outcome))
}

/// The shard of a thread, and the source of its connections.
struct Worker<'w> {
    shard: Shard<Sockets, WsService<'w>>,
    shared: Arc<Shared>,
    peer: SocketAddr,
    sources: Sources,
    first: usize,
    /// The descriptor table of the thread, if it has its own.
    _table: Option<OwnTable>,
}

impl<'w> Worker<'w> {
    fn new(start: Start, pool: &'w mut ClientPool, work: &'w mut dyn Work) -> Result<Self, Error> {
        let cannot = |error| Error::io("start the event loop", error);
        if start.exact {
            wake_exactly();
        }
        let table = match &start.tables {
            Some(tables) => Some(tables.enter(start.thread).map_err(cannot)?),
            None => None,
        };
        start.shared.lane(start.thread).open(start.driver.waker());
        let options = BuildOptions {
            limits: limits(&start),
            max_connections: start.connections,
            ..BuildOptions::default()
        };
        let mut client = Some(WsService { pool, work });
        let built = build(vec![start.driver], &options, |_, _, _| {
            client.take().expect("one driver makes one shard")
        });
        let mut shards = built.map_err(|error| cannot(io::Error::other(error)))?.shards;
        let shard = shards.pop().expect("one driver makes one shard");
        Ok(Self {
            shard,
            shared: start.shared,
            peer: start.peer,
            sources: start.sources,
            first: start.first,
            _table: table,
        })
    }

    /// Runs to the end; returns the time of the end, and the traffic until then.
    fn run(mut self) -> Result<(Instant, Traffic), Error> {
        while !self.shared.is_finishing() {
            self.dial()?;
            self.turn()?;
        }
        let ended = self.shard.service().pool.clock.now();
        Ok((ended, self.end()?))
    }

    /// One turn of the shard.
    fn turn(&mut self) -> Result<(), Error> {
        self.shard.turn().map(drop).map_err(|error| Error::io("wait for events", error))
    }

    /// Starts every connection that is due.
    fn dial(&mut self) -> Result<(), Error> {
        loop {
            let pool = &mut self.shard.service().pool;
            let now = pool.clock.now();
            let Some(index) = pool.dialler.next(now) else { return Ok(()) };
            pool.nonce += 1;
            let nonce = pool.nonce;
            let local = self.sources.local(self.first + index);
            let id = self.shard.connect(self.peer, local, index as u32).map_err(|reason| {
                let ready = self.shared.sum(|lane| &lane.ready) as usize;
                Error::Connect { peer: self.peer, reason, ready }
            })?;
            let conns = &mut self.shard.service().pool.conns;
            conns[index] = ClientConn {
                id,
                step: WsPhase::Connecting,
                dialled: now,
                tcp: None,
                connected: now,
                opened: now,
                nonce,
                redials: conns[index].redials.wrapping_add(u32::from(conns[index].nonce > 0)),
                failure: None,
            };
        }
    }

    /// Closes the remaining connections with a closing handshake that the server ends (RFC 6455
    /// section 7.1.1), so that none of this machine's ports is left in TIME_WAIT. A connection
    /// whose server does not answer in time is reset.
    fn end(mut self) -> Result<Traffic, Error> {
        let (WsService { pool, .. }, core) = self.shard.service_and_core();
        let stats = core.stats();
        let traffic = Traffic {
            agreed: 0,
            messages_out: stats.messages_out,
            messages_in: stats.messages_in,
            deflate_input_bytes: stats.deflate_input_bytes,
            deflate_output_bytes: stats.deflate_output_bytes,
            inflate_input_bytes: stats.inflate_input_bytes,
            inflate_output_bytes: stats.inflate_output_bytes,
        };
        pool.is_ending = true;
        let until = pool.clock.now().after(CLOSING);
        for conn in pool.conns.iter().filter(|conn| conn.step != WsPhase::Out) {
            match conn.step {
                WsPhase::Open => core.close(conn.id, CloseCode::NORMAL.get(), ""),
                _ => core.abort(conn.id),
            }
        }
        self.shard.flush_all();
        while self.shard.core().stats().sessions > 0
            && self.shard.service().pool.clock.now() < until
        {
            self.turn()?;
        }
        let (WsService { pool, .. }, core) = self.shard.service_and_core();
        for conn in pool.conns.iter().filter(|conn| conn.step != WsPhase::Out) {
            core.abort(conn.id);
        }
        self.shard.flush_all();
        Ok(traffic)
    }
}

/// The time that servers have to answer the last Close frames.
const CLOSING: Duration = Duration::from_secs(1);

const OUT: ClientConn = ClientConn {
    id: ConnId::new(0, 0, 0),
    step: WsPhase::Out,
    dialled: Instant(0),
    tcp: None,
    connected: Instant(0),
    opened: Instant(0),
    nonce: 0,
    redials: 0,
    failure: None,
};

fn limits(start: &Start) -> Limits {
    let mut limits = Limits::default();
    limits.ws.max_frame_size = limits.ws.max_frame_size.max(start.size + 1024);
    limits.ws.max_message_size = limits.ws.max_message_size.max(start.size + 1024);
    limits.max_backlog = start.backlog;
    limits.handshake_timeout = start.setup_timeout;
    limits.write_timeout = Duration::from_secs(60);
    // A heartbeat ping would be unrequested work for the server, and traffic in the idle mode.
    limits.heartbeat_interval = None;
    limits
}

/// The kernel may delay a timer by 50 us to combine wake-ups; a schedule needs exact times.
#[cfg(target_os = "linux")]
pub fn wake_exactly() {
    // Refused only by unusual sandboxes; then messages leave up to 50 us late, and the report shows
    // it.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

#[cfg(not(target_os = "linux"))]
pub fn wake_exactly() {}
