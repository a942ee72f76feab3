//! One thread of the generator: a shard of client connections and its loop.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use throng_engine::{BuildOptions, Limits, Shard, build};
use throng_io::tables::OwnTable;
use throng_io::{ConnId, Instant};
use throng_proto::ws::CloseCode;

use super::{
    ClientConn, ClientPool, Handshake, PoolShared, Setup, ThreadStart, Traffic, Work, Ws, WsPhase,
    WsService,
};
use crate::error::Error;
use crate::merge::Merge;
use crate::pool::ConnPool;
use crate::tls::Sockets;

/// Parameters of a thread of WebSocket connections.
pub struct WsStart {
    /// The upgrade request.
    pub handshake: Arc<Handshake>,
    pub setup_timeout: Duration,
    /// Maximum length of an answer.
    pub size: usize,
    /// Bytes that may be queued for one connection.
    pub backlog: usize,
}

/// Runs the connections of one thread until the run is finished, closes the remaining connections,
/// and returns the results. Must be called on that thread.
///
/// # Errors
/// The thread has too few descriptors or too little memory for the poll, a connection could not
/// even be started, or the poll failed.
pub fn run<W: Work>(
    start: ThreadStart,
    ws: &WsStart,
    mut work: W,
) -> Result<(Setup, W::Outcome), Error> {
    let at_start = if work.dials_itself() { 0 } else { start.connections };
    let protocol = Ws {
        handshake: Arc::clone(&ws.handshake),
        seed: RandomState::new().hash_one(start.thread),
        nonce: 0,
        read_serial: u64::MAX,
        read_at: Instant(0),
        is_ending: false,
    };
    let mut pool = ConnPool::new(&start, at_start, || OUT, protocol);
    let (ended, traffic) = Worker::new(start, ws, &mut pool, &mut work)?.run()?;
    let outcome = work.finish(&mut pool, ended);
    pool.setup.traffic.merge(traffic);
    Ok((pool.into_setup(), outcome))
}

/// The shard of one thread.
struct Worker<'w> {
    shard: Shard<Sockets, WsService<'w>>,
    shared: Arc<PoolShared>,
    /// The thread's own descriptor table, if it has one.
    _table: Option<OwnTable>,
}

impl<'w> Worker<'w> {
    fn new(
        start: ThreadStart,
        ws: &WsStart,
        pool: &'w mut ClientPool,
        work: &'w mut dyn Work,
    ) -> Result<Self, Error> {
        let table = start.enter()?;
        let options = BuildOptions {
            limits: limits(ws),
            max_connections: start.connections,
            ..BuildOptions::default()
        };
        let mut client = Some(WsService { pool, work });
        let built = build(vec![start.driver], &options, |_, _, _| {
            client.take().expect("one driver makes one shard")
        });
        let cannot = |error| Error::io("start the event loop", io::Error::other(error));
        let shard = built.map_err(cannot)?.shards.pop().expect("one driver makes one shard");
        Ok(Self { shard, shared: start.shared, _table: table })
    }

    /// Runs until the end; returns the time of the end, and the traffic until then.
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

    /// Starts all connections that are due.
    fn dial(&mut self) -> Result<(), Error> {
        loop {
            let pool = &mut self.shard.service().pool;
            let now = pool.clock.now();
            let Some(index) = pool.dialler.next(now) else { return Ok(()) };
            pool.protocol.nonce += 1;
            let nonce = pool.protocol.nonce;
            let (peer, local) = (pool.peer, pool.local(index));
            let connected = self.shard.connect(peer, local, index as u32);
            let pool = &mut self.shard.service().pool;
            let id = connected.map_err(|reason| pool.no_connection(reason))?;
            let conns = &mut pool.conns;
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

    /// Closes the remaining connections with a closing handshake. The server must end the TCP
    /// connection (RFC 6455 section 7.1.1), so that none of this machine's ports stays in
    /// TIME_WAIT. If the server does not answer in time, resets the connection.
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
        pool.protocol.is_ending = true;
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

/// The time for servers to answer the last Close frames.
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

fn limits(ws: &WsStart) -> Limits {
    let mut limits = Limits::default();
    limits.ws.max_frame_size = limits.ws.max_frame_size.max(ws.size + 1024);
    limits.ws.max_message_size = limits.ws.max_message_size.max(ws.size + 1024);
    limits.max_backlog = ws.backlog;
    limits.handshake_timeout = ws.setup_timeout;
    limits.write_timeout = Duration::from_secs(60);
    // A heartbeat ping would be unrequested work for the server, and traffic in the idle mode.
    limits.heartbeat_interval = None;
    limits
}
