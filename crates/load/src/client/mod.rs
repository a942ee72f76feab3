//! The client side of a run: connections that dial, upgrade, and then serve a [`Work`].

mod handshake;
mod json;
mod payload;
mod worker;

use std::sync::Arc;

use throng_engine::{Answer, Close, Core, Cx, Fault, Message, Refusal, Sent, Service};
use throng_io::{Closed, ConnId, Instant, SessionFailure};
use throng_proto::http1::{Request, Response};
use throng_proto::ws::CloseCode;
use throng_proto::ws::handshake::{BadResponse, Key};

pub use self::handshake::{Handshake, check_tokens, fields, template};
pub use self::json::JSON_SMALLEST;
pub use self::payload::Payload;
pub use self::worker::{WsStart, run};
use crate::error::Error;
pub use crate::pool::{
    ConnPool, Lane, MAX_EVENTS, PoolShared, Protocol, Setup, ThreadStart, Timeline, Traffic,
    open_driver,
};

/// Behaviour of a mode on its connections. Indices count this thread's connections from 0.
pub trait Work {
    /// Measurements of the mode on one thread.
    type Outcome: Send
    where
        Self: Sized;

    /// Returns the request target of a connection; empty, the default, for the plan's target.
    fn resource(&self, index: usize) -> &str {
        let _ = index;
        ""
    }

    /// Returns whether the work makes connections only with [`ClientPool::redial`], without a limit
    /// on connections in progress.
    fn dials_itself(&self) -> bool {
        false
    }

    /// A connection is open.
    fn on_open(&mut self, pool: &mut ClientPool, cx: &mut Cx<'_>, index: usize, now: Instant) {
        let _ = (pool, cx, index, now);
    }

    /// Handles a received message. `now` is the time of its read.
    fn on_message(
        &mut self,
        pool: &mut ClientPool,
        cx: &mut Cx<'_>,
        index: usize,
        message: Message<'_>,
        now: Instant,
    );

    /// An open connection has ended.
    fn on_close(&mut self, pool: &mut ClientPool, index: usize, close: Close<'_>) {
        pool.note_lost(index, close);
    }

    /// A connection could not be made. By default that ends the run.
    fn on_failed(&mut self, pool: &mut ClientPool, index: usize, error: Error) {
        let _ = index;
        pool.shared.fail(error);
    }

    /// Begins the run: [`Timeline::start`] has been reached.
    fn on_start(&mut self, pool: &mut ClientPool, core: &mut Core, timeline: Timeline) {
        let _ = (pool, core, timeline);
    }

    /// Returns the time for the next call of [`Work::on_deadline`], after the start.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Handles the requested time, which has been reached.
    fn on_deadline(&mut self, pool: &mut ClientPool, core: &mut Core, now: Instant) {
        let _ = (pool, core, now);
    }

    /// Ends the run: returns the final counts and the result.
    fn finish(&mut self, pool: &mut ClientPool, now: Instant) -> Self::Outcome
    where
        Self: Sized;
}

/// The state of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WsPhase {
    Out,
    Connecting,
    Upgrading,
    Open,
}

/// One connection.
#[derive(Clone, Copy, Debug)]
pub struct ClientConn {
    id: ConnId,
    step: WsPhase,
    dialled: Instant,
    tcp: Option<Instant>,
    connected: Instant,
    opened: Instant,
    /// The number of the dial, from which the upgrade key is derived.
    nonce: u64,
    /// Earlier dials of this connection, from which its own values are derived.
    redials: u32,
    /// Why its TLS session failed, if it did.
    failure: Option<SessionFailure>,
}

/// The times of a connection's steps.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub dialled: Instant,
    /// When the TCP connection was established, if a TLS handshake followed.
    pub tcp: Option<Instant>,
    pub connected: Instant,
    pub opened: Instant,
}

/// The state of a thread's WebSocket connections.
#[derive(Debug)]
pub struct Ws {
    handshake: Arc<Handshake>,
    seed: u64,
    nonce: u64,
    read_serial: u64,
    read_at: Instant,
    /// Whether the run is over and its connections are closing: nothing counts from now on.
    is_ending: bool,
}

impl Protocol for Ws {
    type Conn = ClientConn;
}

/// The WebSocket connections of one thread.
pub type ClientPool = ConnPool<Ws>;

impl ClientPool {
    /// Returns the connection's id. A send to a closed connection reports that it is closed.
    #[inline]
    pub fn id(&self, index: usize) -> ConnId {
        self.conns[index].id
    }

    pub fn is_open(&self, index: usize) -> bool {
        self.conns[index].step == WsPhase::Open
    }

    pub fn times(&self, index: usize) -> Times {
        let ClientConn { dialled, tcp, connected, opened, .. } = self.conns[index];
        Times { dialled, tcp, connected, opened }
    }

    /// Returns why the TLS session of an ended connection failed; `None` if it did not fail.
    pub fn session_failure(&self, index: usize) -> Option<SessionFailure> {
        self.conns[index].failure
    }

    /// Returns the plan's request target.
    pub fn resource(&self) -> &str {
        self.protocol.handshake.resource()
    }

    /// Dials this connection again.
    pub fn redial(&mut self, index: usize) {
        self.dialler.again(index);
    }

    /// Counts the outcome of a send.
    #[inline]
    pub fn note_sent(&mut self, sent: Sent) {
        match sent {
            Sent::Accepted | Sent::Queued => {}
            Sent::Dropped => {
                self.errors.sends_refused += 1;
                self.errors.note(|| {
                    "the server does not read: the backlog of a connection is full".to_owned()
                });
            }
            // The event of the end counts it.
            Sent::Closed => {}
        }
    }

    #[cold]
    pub fn note_wrong(&mut self, what: impl FnOnce() -> String) {
        self.errors.wrong_answers += 1;
        self.errors.note(what);
    }

    #[cold]
    pub fn note_lost(&mut self, index: usize, close: Close<'_>) {
        if self.shared.is_finishing() {
            return;
        }
        let reason = self.describe_close(index, close);
        if self.shared.timeline().is_none() {
            return self.shared.fail(self.lost(reason));
        }
        self.count_lost(index, || reason);
    }

    /// Counts a connection that ended while it was needed.
    #[cold]
    pub fn count_lost(&mut self, index: usize, reason: impl FnOnce() -> String) {
        self.errors.connections_lost += 1;
        self.errors.tls_failures.count(self.conns[index].failure);
        self.errors.note(reason);
    }

    /// Describes how a connection was closed.
    pub fn describe_close(&self, index: usize, close: Close<'_>) -> String {
        describe_close(index, close, self.conns[index].failure)
    }

    /// Returns the time of the current read, with one clock read for all of its messages. The
    /// shard's byte count distinguishes one read from the next.
    #[inline]
    fn read_time(&mut self, core: &Core) -> Instant {
        let serial = core.stats().bytes_in;
        if serial != self.protocol.read_serial {
            self.protocol.read_serial = serial;
            self.protocol.read_at = self.clock.now();
        }
        self.protocol.read_at
    }

    fn key(&self, nonce: u64) -> Key {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.protocol.seed.to_ne_bytes());
        bytes[8..].copy_from_slice(&nonce.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes());
        Key::new(bytes)
    }
}

/// Describes why an upgrade failed, with a remedy if the status suggests a remedy.
#[cold]
fn describe_refusal(bad: BadResponse) -> String {
    let remedy = match bad {
        BadResponse::Status(404) => {
            "; is the path right? `throng serve` echoes at /echo and has channels at /ws/{channel}"
        }
        BadResponse::Status(401 | 403) => {
            "; does it want credentials or an Origin? Give --token, --tokens, --cookie or --header"
        }
        BadResponse::Status(400) => "; does it want a --subprotocol, or a --header?",
        BadResponse::Subprotocol => "; --subprotocol offers others",
        _ => "",
    };
    format!("{bad}{remedy}")
}

fn describe_close(index: usize, close: Close<'_>, failure: Option<SessionFailure>) -> String {
    match (close.code, close.reason) {
        (CloseCode::ABNORMAL, "") => match failure {
            Some(why) => format!("connection {index} was cut off by the server: {why}"),
            None => format!("connection {index} was cut off by the server"),
        },
        (CloseCode::NO_STATUS, _) => {
            format!("connection {index} was closed by the server without a code")
        }
        (code, "") => format!("connection {index} was closed with {}", code.get()),
        (code, reason) => {
            format!("connection {index} was closed with {} ({reason})", code.get())
        }
    }
}

/// The engine's view of a pool with its work. It is not generic over the work, so that the engine
/// is compiled once for all modes; a virtual call per message is negligible beside the system calls
/// of its read.
struct WsService<'w> {
    pool: &'w mut ClientPool,
    work: &'w mut dyn Work,
}

impl WsService<'_> {
    fn index(&self, cx: &Cx<'_>) -> usize {
        cx.data() as usize
    }

    /// Returns the request target of a connection.
    fn resource(&self, index: usize) -> &str {
        match self.work.resource(index) {
            "" => self.pool.resource(),
            own => own,
        }
    }

    fn no_answer(&self, index: usize, why: Closed) -> Error {
        let resource = self.resource(index).to_owned();
        let silent =
            "it ended the connection, or was silent, instead of answering the upgrade request";
        let reason = match (why, self.pool.conns[index].failure) {
            (Closed::Insecure(why), _) => why.to_string(),
            (_, Some(why)) => format!("{silent}: {why}"),
            _ => silent.to_owned(),
        };
        Error::Upgrade { resource, reason }
    }

    fn failed(&mut self, index: usize, error: Error) {
        self.pool.conns[index].step = WsPhase::Out;
        self.pool.dialler.settle();
        if !self.pool.shared.is_finishing() {
            self.work.on_failed(self.pool, index, error);
        }
    }
}

impl Service for WsService<'_> {
    /// No listener, no requests.
    fn on_request(&mut self, _: &mut Cx<'_>, _: &Request<'_>) -> Answer {
        Answer::Done { keep_alive: false }
    }

    fn on_bad_request(&mut self, _: &mut Cx<'_>, _: u16, _: &str) {}

    fn on_refused(&mut self, _: &mut Cx<'_>, _: Refusal) {}

    fn on_connected(&mut self, cx: &mut Cx<'_>) {
        let index = self.index(cx);
        let now = self.pool.clock.now();
        let conn = &mut self.pool.conns[index];
        conn.step = WsPhase::Upgrading;
        conn.connected = now;
        conn.tcp = cx.tls().and_then(|tls| tls.connected);
        if let Some(tls) = cx.tls() {
            self.pool.setup.negotiated.add(tls);
        }
        let (nonce, redials) = (conn.nonce, u64::from(conn.redials));
        let (key, resource) = (self.pool.key(nonce), self.resource(index));
        let client = (self.pool.first + index) as u64;
        let mut written = Ok(());
        cx.write(|out| {
            written = self.pool.protocol.handshake.write(client, redials, resource, &key, out);
        });
        if let Err(unsendable) = written {
            self.pool
                .shared
                .fail(Error::Usage(format!("cannot ask for {resource:?}: {unsendable}")));
        }
    }

    fn on_response(&mut self, cx: &mut Cx<'_>, response: &Response<'_>) -> Answer {
        let index = self.index(cx);
        let ClientConn { nonce, redials, .. } = self.pool.conns[index];
        let (key, client) = (self.pool.key(nonce), (self.pool.first + index) as u64);
        let handshake = &self.pool.protocol.handshake;
        match handshake.check(client, u64::from(redials), response, &key) {
            Ok(accepted) => {
                self.pool.setup.subprotocols += u64::from(accepted.subprotocol);
                if let Some((policy, agreed)) = handshake.deflate().zip(accepted.deflate) {
                    // Client policy and server can agree on a handful of variants, and the engine
                    // allows thousands.
                    self.pool.setup.traffic.agreed += u64::from(cx.set_deflate(policy, agreed));
                }
                Answer::Upgraded
            }
            Err(bad) => {
                let reason = describe_refusal(bad);
                let resource = self.resource(index).to_owned();
                self.failed(index, Error::Upgrade { resource, reason });
                Answer::Done { keep_alive: false }
            }
        }
    }

    fn on_failed(&mut self, cx: &mut Cx<'_>, why: Closed) {
        if self.pool.protocol.is_ending {
            return;
        }
        let index = self.index(cx);
        let error = match self.pool.conns[index].step {
            WsPhase::Connecting => self.pool.explain_refusal(why),
            WsPhase::Upgrading => {
                let failure = &mut self.pool.conns[index].failure;
                *failure = failure.or(why.session_failure());
                self.no_answer(index, why)
            }
            // The failure was already reported.
            WsPhase::Out | WsPhase::Open => return,
        };
        self.failed(index, error);
    }

    fn on_open(&mut self, cx: &mut Cx<'_>) {
        let index = self.index(cx);
        let now = self.pool.clock.now();
        let conn = &mut self.pool.conns[index];
        conn.step = WsPhase::Open;
        conn.opened = now;
        let ClientConn { dialled, tcp, connected, .. } = *conn;
        self.pool.add_steps(dialled, tcp, connected);
        self.pool.setup.upgrade.add(now.since(connected).as_nanos() as u64);
        self.pool.dialler.settle();
        self.pool.set_ready(1);
        self.work.on_open(self.pool, cx, index, now);
    }

    #[inline]
    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        let now = self.pool.read_time(cx.core_ref());
        let index = self.index(cx);
        self.work.on_message(self.pool, cx, index, message, now);
    }

    fn on_drain(&mut self, _: &mut Cx<'_>) {}

    /// Keeps the reason for a failed TLS session until the end of its connection, which follows.
    fn on_fault(&mut self, cx: &mut Cx<'_>, fault: Fault) {
        let index = self.index(cx);
        let conn = &mut self.pool.conns[index];
        // Another connection may already have replaced it.
        if let Fault::Tls(why) = fault
            && conn.id == cx.id()
        {
            conn.failure = Some(why);
        }
    }

    fn on_close(&mut self, cx: &mut Cx<'_>, close: Close<'_>) {
        if self.pool.protocol.is_ending {
            return;
        }
        let index = self.index(cx);
        self.pool.conns[index].step = WsPhase::Out;
        self.pool.set_ready(-1);
        self.work.on_close(self.pool, index, close);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let work = match self.pool.shared.timeline() {
            _ if self.pool.protocol.is_ending => return None,
            Some(timeline) if self.pool.started.is_none() => Some(timeline.start),
            Some(_) => self.work.next_deadline(),
            None => None,
        };
        [work, self.pool.dialler.next_at()].into_iter().flatten().min()
    }

    fn on_deadline(&mut self, core: &mut Core, now: Instant) {
        // The work's times are compared with the current clock, which must not be earlier than the
        // clock that woke the thread.
        let now = now.max(self.pool.clock.now());
        let Some(&timeline) = self.pool.shared.timeline() else { return };
        if self.pool.started.is_none() && timeline.start <= now {
            self.pool.started = Some(timeline);
            self.work.on_start(self.pool, core, timeline);
        }
        if self.pool.started.is_some() && self.work.next_deadline().is_some_and(|at| at <= now) {
            self.work.on_deadline(self.pool, core, now);
        }
    }
}
