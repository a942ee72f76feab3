//! A pool of clients on one thread: each has a tunnel, sends questions and checks answers, and
//! reconnects when it is closed with 1012.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use throng_io::{Batch, Closed, ConnId, Driver, Event as Io, Instant, Options, SendOutcome};
use throng_proto::Input;
use throng_proto::ws::{
    Decoder, Event, Limits, Opcode, Role, encode_close, encode_masked, handshake,
};
use throng_testkit::Random;

use super::numbers::{Order, Tunnel};

#[cfg(target_os = "linux")]
type Sockets = throng_io::Epoll;
#[cfg(not(target_os = "linux"))]
type Sockets = throng_io::Portable;

/// The interval at which clients check whether something is due.
const TICK: Duration = Duration::from_millis(10);

/// A client that was closed or refused reconnects within this time, at random.
pub(crate) const JITTER: Duration = Duration::from_secs(1);

/// An answer after this time is late.
const LATE: Duration = Duration::from_millis(50);

const LIMITS: Limits = Limits { max_frame_size: 1 << 20, max_message_size: 1 << 20 };
const SERVICE_RESTART: u16 = 1012;

/// The desired behavior of the clients, until it is changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Desired {
    /// The number of connected clients, the first ones. The others send a Close frame, or (`reset`)
    /// reset their connection.
    pub(crate) clients: usize,
    pub(crate) reset: bool,
    /// The interval between two questions of a client; `None`: it does not ask.
    pub(crate) ask_every: Option<Duration>,
}

/// Counts of all clients, at this moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Tunnels that are open.
    pub(crate) open: usize,
    /// Clients with a connection, in any state.
    pub(crate) connected: usize,
    /// Answers that have not come.
    pub(crate) missing: u64,
    pub(crate) asked: u64,
    pub(crate) answered: u64,
    /// Answers that were skipped.
    pub(crate) lost: u64,
    /// Answers in the wrong order, twice, or damaged.
    pub(crate) wrong: u64,
    /// Total tunnels opened.
    pub(crate) opened: u64,
    /// Tunnels closed with 1012.
    pub(crate) sent_away: u64,
    /// Tunnels that ended in any way that the test did not cause.
    pub(crate) unplanned: u64,
    /// Handshakes that were not answered with 101.
    pub(crate) refused: u64,
    /// The longest time from a question without earlier ones under way to its answer.
    pub(crate) slowest: Duration,
    /// These times above 50 ms.
    pub(crate) late: u64,
    /// The first failures.
    pub(crate) problems: Vec<String>,
}

pub(crate) struct Clients {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    desired: Mutex<Desired>,
    counts: Mutex<Counts>,
    ends: AtomicBool,
}

impl Clients {
    /// Returns a pool of at most `most` clients of `address`; none connects before
    /// [`desire`](Self::desire).
    pub(crate) fn new(address: SocketAddr, most: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let thread = std::thread::spawn(move || Loop::new(address, most, own).run());
        Self { shared, thread: Some(thread) }
    }

    /// Sets the behavior from now on.
    pub(crate) fn desire(&self, desired: Desired) {
        *lock(&self.shared.desired) = desired;
    }

    pub(crate) fn counts(&self) -> Counts {
        lock(&self.shared.counts).clone()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.shared.ends.store(true, Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the clients' thread panicked");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// No connection until then.
    Away(Instant),
    Dialing,
    /// Its handshake was sent.
    Opening,
    Open,
    /// A Close frame was sent.
    Leaving,
}

struct Client {
    stage: Stage,
    conn: Option<ConnId>,
    decoder: Decoder,
    /// Received, but incomplete.
    received: Vec<u8>,
    tunnel: Tunnel,
    asks_at: Instant,
    /// When it asked the question whose answer is timed.
    asked_at: Option<Instant>,
    /// Its last send is in flight.
    is_sending: bool,
}

struct Loop {
    driver: Sockets,
    address: SocketAddr,
    handshake: Vec<u8>,
    clients: Vec<Client>,
    /// The client of each slot of the driver.
    owners: Vec<usize>,
    random: Random,
    desired: Desired,
    counts: Counts,
    shared: Arc<Shared>,
}

impl Loop {
    fn new(address: SocketAddr, most: usize, shared: Arc<Shared>) -> Self {
        let driver = Sockets::new(Options::default()).unwrap();
        let mut request = Vec::new();
        let key = handshake::Key::new(*b"0123456789abcdef");
        handshake::encode_request("localhost", "/count", &key, &[], &[], &mut request).unwrap();
        let client = |_| Client {
            stage: Stage::Away(Instant::default()),
            conn: None,
            decoder: Decoder::new(Role::Client),
            received: Vec::new(),
            tunnel: Tunnel::default(),
            asks_at: Instant::default(),
            asked_at: None,
            is_sending: false,
        };
        Self {
            driver,
            address,
            handshake: request,
            clients: (0..most).map(client).collect(),
            owners: Vec::new(),
            random: Random::new(0x9e37_79b9_7f4a_7c15),
            desired: Desired::default(),
            counts: Counts::default(),
            shared,
        }
    }

    fn run(mut self) {
        let mut due = Instant::default();
        while !self.shared.ends.load(Relaxed) {
            self.driver.wait(Some(due)).unwrap();
            self.handle_events();
            let now = self.driver.now();
            if now >= due {
                due = now.after(TICK);
                self.tick(now);
            }
        }
    }

    /// A length below `most`.
    fn random(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.random.bits() % most.as_nanos().max(1) as u64)
    }

    fn tick(&mut self, now: Instant) {
        let before = std::mem::replace(&mut self.desired, *lock(&self.shared.desired));
        if before.ask_every != self.desired.ask_every
            && let Some(every) = self.desired.ask_every
        {
            for at in 0..self.clients.len() {
                self.clients[at].asks_at = now.after(self.random(every));
            }
        }
        for at in 0..self.clients.len() {
            let is_wanted = at < self.desired.clients;
            let client = &mut self.clients[at];
            match client.stage {
                Stage::Away(until) if is_wanted && until <= now => self.dial(at),
                Stage::Open if !is_wanted => self.leave(at),
                Stage::Open if !client.is_sending => {
                    let Some(every) = self.desired.ask_every else { continue };
                    if client.asks_at <= now {
                        client.asks_at = client.asks_at.max(now).after(every);
                        if client.tunnel.missing() == 0 {
                            client.asked_at = Some(now);
                        }
                        let mut frame = Vec::new();
                        let question = client.tunnel.ask();
                        encode_masked(Opcode::Binary, &question, [1, 2, 3, 4], &mut frame);
                        self.counts.asked += 1;
                        self.send(at, &frame);
                    }
                }
                _ => {}
            }
        }
        let count =
            |is: fn(&Client) -> bool| self.clients.iter().filter(|client| is(client)).count();
        self.counts.open = count(|client| client.stage == Stage::Open);
        self.counts.connected = count(|client| client.conn.is_some());
        let open = self.clients.iter().filter(|client| client.stage == Stage::Open);
        self.counts.missing = open.map(|client| client.tunnel.missing()).sum();
        *lock(&self.shared.counts) = self.counts.clone();
    }

    fn dial(&mut self, at: usize) {
        let Ok(conn) = self.driver.connect(self.address.into(), None) else {
            return self.go_away(at);
        };
        if self.owners.len() <= conn.slot() {
            self.owners.resize(conn.slot() + 1, usize::MAX);
        }
        self.owners[conn.slot()] = at;
        let client = &mut self.clients[at];
        client.conn = Some(conn);
        client.stage = Stage::Dialing;
        client.decoder = Decoder::new(Role::Client);
        client.received = Vec::new();
        client.tunnel = Tunnel::default();
        client.is_sending = false;
        client.asked_at = None;
    }

    fn go_away(&mut self, at: usize) {
        let until = self.driver.now().after(self.random(JITTER));
        self.clients[at].conn = None;
        self.clients[at].stage = Stage::Away(until);
    }

    fn leave(&mut self, at: usize) {
        if self.desired.reset {
            self.clients[at].stage = Stage::Leaving;
            return self.driver.abort(self.clients[at].conn.unwrap());
        }
        self.send_close(at, 1000);
    }

    /// Sends a Close frame whose reason is the number of questions before it.
    fn send_close(&mut self, at: usize, code: u16) {
        let client = &mut self.clients[at];
        client.stage = Stage::Leaving;
        let mut frame = Vec::new();
        encode_close(code, &client.tunnel.questions().to_string(), Some([9, 8, 7, 6]), &mut frame);
        self.send(at, &frame);
    }

    /// Sends bytes. A client sends rarely and little, so at most the message before a Close frame
    /// can still be in flight.
    fn send(&mut self, at: usize, bytes: &[u8]) {
        let client = &mut self.clients[at];
        let conn = client.conn.unwrap();
        if client.is_sending {
            // Its Close frame, while a question has not left. This is rare, and counted separately.
            self.note(format!("client {at} could not send {} bytes at once", bytes.len()));
            self.counts.unplanned += 1;
            return self.driver.abort(conn);
        }
        let mut batch = Box::<Batch>::default();
        batch.append(|own| own.extend_from_slice(bytes));
        client.is_sending = matches!(self.driver.send(conn, batch), SendOutcome::Pending);
    }

    fn note(&mut self, problem: String) {
        if self.counts.problems.len() < 10 {
            self.counts.problems.push(problem);
        }
    }

    /// Returns the client of a connection, unless the client has another connection by now.
    fn owner(&self, conn: ConnId) -> Option<usize> {
        let at = *self.owners.get(conn.slot())?;
        (self.clients.get(at)?.conn == Some(conn)).then_some(at)
    }

    fn handle_events(&mut self) {
        loop {
            let Some(event) = self.driver.next_event() else { return };
            match event {
                Io::Connected(conn) => {
                    if let Some(at) = self.owner(conn) {
                        self.clients[at].stage = Stage::Opening;
                        let handshake = self.handshake.clone();
                        self.send(at, &handshake);
                    }
                }
                Io::Received(conn, bytes) => {
                    let at = self.owners[conn.slot()];
                    if self.clients[at].conn == Some(conn) {
                        self.clients[at].received.extend_from_slice(bytes);
                        self.handle_received(at);
                    }
                }
                Io::Finished(conn) => {
                    if let Some(at) = self.owner(conn) {
                        if self.clients[at].stage == Stage::Open {
                            self.note(format!("client {at}: its stream ended without a word"));
                            self.counts.unplanned += 1;
                            self.clients[at].stage = Stage::Leaving;
                        }
                        // With a reset, so that no port waits for two minutes.
                        self.driver.abort(conn);
                    }
                }
                Io::Sent(conn, _) => {
                    if let Some(at) = self.owner(conn) {
                        self.clients[at].is_sending = false;
                    }
                }
                Io::Closed(conn, how) => {
                    if let Some(at) = self.owner(conn) {
                        self.closed(at, how);
                    }
                }
                Io::Incoming(..)
                | Io::AcceptStopped(_)
                | Io::Secured(..)
                | Io::Parked(_)
                | Io::PassedThrough(..) => {}
            }
        }
    }

    fn closed(&mut self, at: usize, how: Closed) {
        match self.clients[at].stage {
            Stage::Open => {
                self.note(format!("client {at}: its tunnel broke: {how:?}"));
                self.counts.unplanned += 1;
            }
            Stage::Dialing | Stage::Opening if how != Closed::Local => {
                self.note(format!("client {at}: no handshake: {how:?}"));
                self.counts.refused += 1;
            }
            _ => {}
        }
        self.go_away(at);
    }

    fn handle_received(&mut self, at: usize) {
        if self.clients[at].stage == Stage::Opening && !self.handle_head(at) {
            return;
        }
        let mut received = std::mem::take(&mut self.clients[at].received);
        let len = received.len();
        let mut input = Input::new(&mut received);
        // Bytes after a Close frame do not count.
        while self.clients[at].stage == Stage::Open {
            let client = &mut self.clients[at];
            match client.decoder.next_event(&mut input, &LIMITS) {
                Ok(None) => break,
                Ok(Some(Event::Binary(bytes))) => match client.tunnel.handle_answer(bytes) {
                    Order::Next => {
                        self.counts.answered += 1;
                        if let Some(asked_at) = client.asked_at.take() {
                            let time = self.driver.now().since(asked_at);
                            self.counts.slowest = self.counts.slowest.max(time);
                            self.counts.late += u64::from(time > LATE);
                        }
                    }
                    Order::Gap(lost) => {
                        self.counts.answered += 1;
                        self.counts.lost += lost;
                        self.note(format!("client {at}: {lost} answers are missing"));
                    }
                    Order::Wrong => {
                        self.counts.wrong += 1;
                        self.note(format!("client {at}: a wrong answer"));
                    }
                },
                Ok(Some(Event::Close(close))) => {
                    let code = close.map_or(1005, |close| close.code);
                    if code == SERVICE_RESTART {
                        self.counts.sent_away += 1;
                    } else {
                        let close = format!("client {at}: closed with {close:?}");
                        self.counts.unplanned += 1;
                        self.note(close);
                    }
                    self.send_close(at, if code == 1005 { 1000 } else { code });
                }
                Ok(Some(_)) => {}
                Err(error) => {
                    self.note(format!("client {at}: not a WebSocket's bytes: {error}"));
                    self.counts.wrong += 1;
                    self.driver.abort(self.clients[at].conn.unwrap());
                    break;
                }
            }
        }
        let left = input.len();
        received.drain(..len - left);
        if !received.is_empty() {
            self.clients[at].received = received;
        }
    }

    /// Handles the response's head; returns true if the tunnel is open.
    fn handle_head(&mut self, at: usize) -> bool {
        let client = &mut self.clients[at];
        let end = client.received.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = end else { return false };
        if client.received.starts_with(b"HTTP/1.1 101 ") {
            client.received.drain(..end + 4);
            client.stage = Stage::Open;
            self.counts.opened += 1;
            if let Some(every) = self.desired.ask_every {
                self.clients[at].asks_at = self.driver.now().after(self.random(every));
            }
            return true;
        }
        let answer = String::from_utf8_lossy(&client.received).into_owned();
        let conn = client.conn.unwrap();
        self.counts.refused += 1;
        self.note(format!("client {at} was refused: {answer:?}"));
        self.driver.abort(conn);
        false
    }
}
