//! One thread's clients, backends' connections and tunnels, over any driver.
//!
//! A turn is short: wait, take each event, do what it asked for, then mail, time and closings. Received bytes are
//! lent, and the driver is borrowed while they are, so what an event leads to is noted as an [`Action`] and done after it;
//! only the bytes of a tunnel go on at once, from where they lie.
//!
//! * `conn`: what is known of a connection. * `client`: requests. * `input`: those that came early.
//! * `dispatch`: a backend for each, and another when it fails. * `waiting`: those without a place.
//! * `answer`: responses. * `pump`: tunnels. * `closing`: Close frames, in order and in time. *
//!   `sweep`: time.

mod admission;
mod answer;
mod audit;
mod burst;
mod client;
mod closing;
mod conn;
mod dispatch;
mod input;
mod output;
mod pool;
mod pump;
mod sweep;
mod waiting;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng_engine::ConnMap;
use throng_engine::mailbox::Letters;
use throng_io::{Batch, Closed, ConnId, Driver, Event, Instant};
use throng_proto::http1;

pub use self::admission::Admission;
use self::admission::{Counted, CountedBySlot, Full};
pub use self::audit::{Audit, Holdings};
use self::burst::BurstDetector;
use self::closing::{CloseJob, Orphans};
use self::conn::{Client, Conn, Conns, HttpSide, Phase, Tick};
use self::input::PendingInput;
use self::pool::Pool;
use self::waiting::Waiting;
use crate::command::Command;
use crate::pick::Picker;
use crate::token_bucket::TokenBucket;
use crate::{Configuration, Failure, Metrics, Report};

/// What an event asked for, to be done when its bytes are no longer lent.
#[derive(Debug)]
enum Action {
    /// Find this client's request a backend.
    Dispatch(ConnId),
    /// Send what is in its outbox.
    Flush(ConnId),
    /// Go on with the bytes it has held back.
    Proceed(ConnId),
    /// Read it no more until it is resumed.
    Pause(ConnId),
    /// The backend's side failed.
    Fail(ConnId, Failure),
    /// The answer to this client is whole.
    Complete(ConnId),
    /// Client and backend have agreed on WebSocket.
    Open { client: ConnId, upstream: ConnId },
    /// A tunnel's client has answered our Close frame.
    Answered(ConnId),
    /// Close it.
    Close(ConnId),
    /// The same with a reset: what it was sent is not whole, and must not look so.
    Cut(ConnId),
}

/// See the module. `turn` is all that its thread does.
pub struct Shard<D: Driver> {
    driver: D,
    state: State,
}

/// Everything but the driver.
struct State {
    conns: Conns,
    configuration: Arc<Configuration>,
    /// Of requests, and of responses.
    limits: http1::Limits,
    response_limits: http1::Limits,
    picker: Picker,
    pool: Pool,
    actions: VecDeque<Action>,
    /// Clients whose requests wait for a place at a backend.
    waiting: Waiting,
    /// What waits behind the send in flight of a tunnel's side.
    queued: ConnMap<Box<Batch>>,
    close_jobs: Vec<CloseJob>,
    orphans: Orphans,
    #[allow(clippy::vec_box, reason = "the driver takes and returns boxes: nothing is boxed anew")]
    spares: Vec<Box<Batch>>,
    commands: Letters<Command>,
    reports: Sender<Report>,
    published: Arc<Mutex<Metrics>>,
    metrics: Metrics,
    /// Which of `shards` it is: rates that are given for all are divided by them.
    shard: u32,
    shards: u32,
    /// Client connections of all shards at a time, as configured...
    most_connections: usize,
    /// ...and as there are descriptors for.
    descriptors_for: usize,
    admission: Arc<Admission>,
    counted: CountedBySlot,
    /// Clients that have not sent a whole request yet, the oldest first; and some that have, or
    /// have gone.
    new_clients: VecDeque<ConnId>,
    /// The next of `settings.sources`.
    source: usize,
    now: Instant,
    tick: Tick,
    swept: Tick,
    burst: BurstDetector,
    accept_stopped: bool,
    shutdown: Option<ShutdownState>,
}

/// The end of a shard that was told to shut down.
#[derive(Debug)]
struct ShutdownState {
    deadline: Instant,
}

/// What a shard starts with.
pub struct Start {
    /// How, and among whom.
    pub configuration: Arc<Configuration>,
    /// What other threads ask of it.
    pub commands: Letters<Command>,
    /// Where it tells of failures.
    pub reports: Sender<Report>,
    /// Where it puts its metrics, about once a second.
    pub published: Arc<Mutex<Metrics>>,
    /// Which of them it is, from 0.
    pub shard: u32,
    /// Shards in all: rates are divided by it.
    pub shards: u32,
    /// Client connections of all shards at a time that there are descriptors for, whatever is configured.
    pub descriptors_for: usize,
    /// Where all shards count their client connections.
    pub admission: Arc<Admission>,
    /// Of what it does by chance.
    pub seed: u64,
}

/// Sweeps come this often while there are requests under way; tunnels alone need one a second.
const SWEEP: Duration = Duration::from_millis(250);

impl<D: Driver> Shard<D> {
    /// A shard without connections, on a driver that has its listeners.
    #[must_use]
    pub fn new(driver: D, start: Start) -> Self {
        let Start {
            configuration,
            commands,
            reports,
            published,
            shard,
            shards,
            descriptors_for,
            admission,
            seed,
        } = start;
        let now = driver.now();
        let rate = configuration.settings.close_rate;
        let state = State {
            conns: Conns::default(),
            limits: limits_of(&configuration),
            response_limits: response_limits_of(&configuration),
            picker: Picker::new(seed),
            pool: Pool::default(),
            actions: VecDeque::new(),
            waiting: Waiting::default(),
            queued: ConnMap::default(),
            close_jobs: Vec::new(),
            orphans: Orphans::new(rate, TokenBucket::share(rate, shard, shards)),
            spares: Vec::new(),
            commands,
            reports,
            published,
            metrics: Metrics::default(),
            shard,
            shards,
            most_connections: most_connections(&configuration, descriptors_for),
            descriptors_for,
            admission,
            counted: CountedBySlot::default(),
            new_clients: VecDeque::new(),
            configuration,
            source: 0,
            now,
            tick: Tick::of(now),
            swept: Tick::of(now),
            burst: BurstDetector::default(),
            accept_stopped: false,
            shutdown: None,
        };
        Self { driver, state }
    }

    /// One turn. False: the shard was told to end, and has nothing left.
    ///
    /// # Errors
    /// The poll failed; the shard is of no more use.
    pub fn turn(&mut self) -> io::Result<bool> {
        let Self { driver, state } = self;
        driver.wait(state.next_deadline())?;
        state.now = driver.now();
        state.tick = Tick::of(state.now);
        while let Some(event) = driver.next_event() {
            match event {
                Event::Received(id, bytes) => {
                    if let Some((to, batch)) = state.on_received(id, bytes) {
                        state.send_tunnelled(driver, id, to, batch);
                    }
                }
                Event::Sent(id, batch) => state.on_sent(driver, id, batch),
                Event::Finished(id) => state.on_finished(driver, id),
                Event::Closed(id, why) => state.on_closed(driver, id, why),
                Event::Connected(id) => state.on_connected(driver, id),
                Event::Incoming(socket, address) => state.accept(driver, socket, address),
                Event::AcceptStopped(_) => state.accept_stopped = true,
            }
            // A tunnel's bytes leave none, and the call would be a twentieth of what passing them on costs.
            if !state.actions.is_empty() {
                state.perform(driver);
            }
        }
        state.run_commands(driver);
        state.expire(driver);
        state.close_what_is_due(driver);
        state.serve_waiting(driver);
        state.perform(driver);
        Ok(state.shutdown.is_none() || state.metrics.connections > 0)
    }

    /// For the metrics that are left when a shard ends.
    pub fn publish(&mut self) {
        self.state.publish();
    }

    /// When the next turn is due, if no event comes before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.state.next_deadline()
    }

    /// Its driver, to look at.
    #[must_use]
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// Its driver, to let its kernel go on.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }
}

impl State {
    /// Bytes of whatever kind of connection. Those of a tunnel come back, to be sent to its other side at once.
    #[inline]
    fn on_received(&mut self, id: ConnId, bytes: &mut [u8]) -> Option<(ConnId, Box<Batch>)> {
        match self.conns.entry(id)? {
            Conn::Tunnel(_) => return self.tunnel_received(id, bytes),
            Conn::Client(_) => self.client_received(id, bytes),
            Conn::Upstream(_) => self.upstream_received(id, bytes),
            Conn::Vacant => {}
        }
        None
    }

    fn on_sent<D: Driver>(&mut self, driver: &mut D, id: ConnId, batch: Box<Batch>) {
        self.spare(batch);
        match self.conns.entry(id) {
            Some(Conn::Tunnel(_)) => self.tunnel_sent(driver, id),
            Some(Conn::Client(client)) => {
                client.http.sending = false;
                self.flush(driver, id);
            }
            Some(Conn::Upstream(upstream)) => {
                upstream.http.sending = false;
                self.flush(driver, id);
            }
            Some(Conn::Vacant) | None => {}
        }
    }

    fn on_finished<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        match self.conns.entry(id) {
            Some(Conn::Tunnel(_)) => self.tunnel_finished(driver, id),
            Some(Conn::Client(_)) => self.client_finished(id),
            Some(Conn::Upstream(_)) => self.upstream_finished(id),
            Some(Conn::Vacant) | None => {}
        }
    }

    fn on_closed<D: Driver>(&mut self, driver: &mut D, id: ConnId, why: Closed) {
        match self.conns.take(id) {
            Conn::Tunnel(tunnel) => self.tunnel_closed(driver, id, tunnel, why),
            Conn::Client(client) => self.client_closed(id, *client),
            Conn::Upstream(upstream) => {
                let failure = if upstream.is_connected { Failure::Reset } else { Failure::Refused };
                self.upstream_closed(id, *upstream, failure);
            }
            Conn::Vacant => {}
        }
    }

    fn on_connected<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let timeouts = &self.configuration.settings.timeouts;
        let Some(upstream) = self.conns.upstream(id) else { return };
        let deadline = self.tick.after(upstream.answer_timeout(timeouts));
        upstream.is_connected = true;
        upstream.backend.note_connection();
        upstream.deadline = deadline;
        let client = upstream.client;
        if let Some(exchange) =
            client.and_then(|client| self.conns.client(client)?.exchange.as_mut())
        {
            // A handshake keeps its place until its 101; for others the connection was all.
            if exchange.key.is_none() {
                exchange.permit = None;
            }
        }
        self.flush(driver, id);
    }

    fn accept<D: Driver>(&mut self, driver: &mut D, socket: D::Socket, address: SocketAddr) {
        let configuration = Arc::clone(&self.configuration);
        let settings = &configuration.settings;
        let is_proxy =
            settings.trusted_proxies.iter().any(|network| network.contains(address.ip()));
        let counted = match settings.accept_proxy && !is_proxy {
            true => Err(Full::Address),
            false => self.admit(driver, address, is_proxy),
        };
        let Ok(counted) = counted else {
            self.metrics.refused += 1;
            return;
        };
        let phase = if settings.accept_proxy { Phase::Proxy } else { Phase::Head };
        let deadline = self.tick.after(settings.timeouts.head);
        let Ok(id) = driver.adopt(socket) else {
            self.admission.leave(counted);
            self.metrics.refused += 1;
            return;
        };
        self.counted.insert(id.slot(), counted);
        self.new_clients.push_back(id);
        self.metrics.accepted += 1;
        self.metrics.connections += 1;
        let client = Client {
            http: HttpSide::default(),
            decoder: http1::Decoder::new(),
            address,
            phase,
            exchange: None,
            has_asked: false,
            held: PendingInput::default(),
            deadline,
        };
        self.conns.insert(id, Conn::Client(Box::new(client)));
    }

    /// Counts one more client in. Where there are as many as may be, the oldest that has not sent a
    /// whole request goes.
    fn admit<D: Driver>(
        &mut self,
        driver: &mut D,
        address: SocketAddr,
        is_proxy: bool,
    ) -> Result<Counted, Full> {
        let most = self.most_connections;
        let of_address = match self.configuration.settings.max_connections_per_address {
            _ if is_proxy => None,
            Some(0) => None,
            Some(most) => Some(most),
            // Clients of this machine, such as a proxy before us, are not strangers.
            None if address.ip().to_canonical().is_loopback() => None,
            None => Some((most / 4).max(1)),
        };
        let admission = Arc::clone(&self.admission);
        match admission.enter(most, address.ip(), of_address) {
            Err(Full::All) if self.make_room(driver) => {
                admission.enter(most, address.ip(), of_address)
            }
            outcome => outcome,
        }
    }

    /// Closes the oldest client that has not sent a whole request. False: there is none.
    fn make_room<D: Driver>(&mut self, driver: &mut D) -> bool {
        while let Some(id) = self.new_clients.pop_front() {
            if self.conns.client(id).is_some_and(|client| client.is_new()) {
                self.metrics.refused += 1;
                self.close(driver, id);
                return true;
            }
        }
        false
    }

    /// The client connection `id` has ended.
    fn give_room_back(&mut self, id: ConnId) {
        self.metrics.connections -= 1;
        let counted = self.counted.take(id.slot());
        self.admission.leave(counted);
    }

    fn perform<D: Driver>(&mut self, driver: &mut D) {
        while let Some(action) = self.actions.pop_front() {
            match action {
                Action::Dispatch(id) => self.dispatch(driver, id),
                Action::Flush(id) => self.flush(driver, id),
                Action::Proceed(id) => self.proceed(driver, id),
                Action::Pause(id) => self.pause(driver, id),
                Action::Fail(id, failure) => {
                    if let Conn::Upstream(upstream) = self.conns.take(id) {
                        driver.abort(id);
                        self.upstream_closed(id, *upstream, failure);
                    }
                }
                Action::Complete(id) => self.complete(driver, id),
                Action::Open { client, upstream } => self.open_tunnel(driver, client, upstream),
                Action::Answered(id) => self.close_answered(driver, id),
                Action::Close(id) => self.close(driver, id),
                Action::Cut(id) => {
                    driver.abort(id);
                    self.close(driver, id);
                }
            }
        }
    }

    fn run_commands<D: Driver>(&mut self, driver: &mut D) {
        let commands: Vec<Command> = self.commands.drain().collect();
        for command in commands {
            match command {
                Command::Configure(configuration) => {
                    self.limits = limits_of(&configuration);
                    self.response_limits = response_limits_of(&configuration);
                    self.most_connections = most_connections(&configuration, self.descriptors_for);
                    let rate = configuration.settings.close_rate;
                    let bucket = self.bucket(rate);
                    self.orphans.set_rate(rate, bucket);
                    self.configuration = configuration;
                    self.waiting.unbind();
                }
                Command::CloseTunnels { backend, closing, most } => {
                    self.begin_close_job(backend, &closing, most);
                }
                Command::KeepTunnels(backend) => {
                    self.close_jobs.retain(|job| !job.is_of(&backend));
                }
                Command::ShutDown { window, deadline } => {
                    self.begin_shutdown(driver, window, deadline)
                }
            }
        }
    }

    /// This shard's part of a rate for all.
    fn bucket(&self, rate: u32) -> TokenBucket {
        TokenBucket::share(rate, self.shard, self.shards)
    }

    /// An empty batch.
    #[inline]
    fn batch(&mut self) -> Box<Batch> {
        self.spares.pop().unwrap_or_default()
    }

    /// Keeps a batch for the next use, but neither many nor large ones.
    #[inline]
    fn spare(&mut self, mut batch: Box<Batch>) {
        batch.clear();
        if batch.spare_capacity() <= 16 << 10 && self.spares.len() < 64 {
            self.spares.push(batch);
        }
    }

    /// Ends a connection of ours that nobody else refers to. Bytes that the kernel took still leave.
    fn close<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        match self.conns.take(id) {
            Conn::Client(client) => self.client_closed(id, *client),
            Conn::Tunnel(tunnel) => return self.end_tunnel(driver, id, tunnel),
            Conn::Upstream(upstream) if upstream.client.is_none() => {
                self.pool.remove(upstream.backend.address(), id);
            }
            Conn::Upstream(_) | Conn::Vacant => {}
        }
        driver.close(id);
    }

    fn publish(&mut self) {
        let conns = &self.conns;
        self.waiting.retain(|id| match conns.at(id.slot()) {
            Some((at, Conn::Client(client))) => at == id && client.phase == Phase::Queued,
            _ => false,
        });
        self.metrics.queued = self.waiting.len() as u64;
        self.new_clients.retain(|id| match conns.at(id.slot()) {
            Some((at, Conn::Client(client))) => at == *id && client.is_new(),
            _ => false,
        });
        self.metrics.idle_backends = self.pool.len() as u64;
        if let Ok(mut published) = self.published.lock() {
            *published = self.metrics;
        }
    }
}

/// `max_connections`, as far as there are descriptors.
fn most_connections(configuration: &Configuration, descriptors_for: usize) -> usize {
    match configuration.settings.max_connections {
        0 => descriptors_for,
        asked => asked.min(descriptors_for),
    }
}

fn limits_of(configuration: &Configuration) -> http1::Limits {
    let settings = &configuration.settings;
    http1::Limits {
        max_header_bytes: settings.max_header_bytes,
        max_headers: settings.max_headers,
        max_body: settings.max_body,
    }
}

/// Clients are limited, not backends: a body is passed on as it is taken, however long.
fn response_limits_of(configuration: &Configuration) -> http1::Limits {
    let settings = &configuration.settings;
    http1::Limits {
        max_header_bytes: settings.max_response_header_bytes,
        max_headers: settings.max_response_headers,
        max_body: u64::MAX,
    }
}
