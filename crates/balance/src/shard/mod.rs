//! One thread's clients, backend connections and tunnels, over any driver.
//!
//! A turn is short: wait, take each event, run its actions, then commands, timeouts and closings.
//! Received bytes are lent, and the driver is borrowed while they are, so the consequences of an
//! event are queued as an [`ConnAction`] and run after it; only the bytes of a tunnel are forwarded at
//! once, from where they lie.
//!
//! * `records` of connections; `time` of the turn.
//! * A client: `accept`, and its `places` at the limits.
//! * A request: decode its `client` bytes event by event in `request`,
//!   `dispatch` by `choice`, or keep it `waiting` for a permit; its response in `answer`, the end
//!   of that in `complete`, or another try after a `failure`.
//! * A connection that is passed through: `passthrough`, then as a request until it is a tunnel.
//! * A tunnel: `open`, then `pump`, then `closing` with a Close frame, paced and on time.
//! * For all: `actions`, `commands`, `output`, `sweep` for timeouts, `memory` for that of TLS.

mod accept;
mod access;
mod actions;
mod admission;
mod answer;
mod audit;
mod choice;
mod client;
mod closing;
mod commands;
mod complete;
mod dispatch;
mod failure;
mod memory;
mod open;
mod output;
mod passthrough;
mod places;
mod pool;
mod pump;
mod records;
mod request;
mod sweep;
mod time;
mod waiting;

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng_engine::mailbox::Inbox;
use throng_engine::{BurstDetector, ConnMap, KeyBySlot, Peak, Spares, TokenBucket};
use throng_http::{LiveDate, RequestIdSource};
use throng_io::memory::Trim;
use throng_io::{
    Batch, Closed, ConnId, Driver, Event, Instant, ServerTls, SessionFailure, TlsFailure, TlsInfo,
};
use throng_proto::http1;

use self::actions::ConnAction;
pub use self::admission::Admission;
pub use self::audit::{Audit, Holdings};
use self::closing::{CloseJob, Orphans};
use self::commands::{limits_of, most_connections, response_limits_of};
use self::records::{BalanceRecord, BalanceRecords, EighthTick, LogEntry, Phase, Upstream};
use self::memory::Measurements;
use self::places::Places;
pub(crate) use self::places::RESERVE;
use self::pool::IdlePool;
use self::time::Time;
use self::waiting::Waiting;
use crate::access::{AccessLog, EndReason};
use crate::command::BalanceCommand;
use crate::pick::Picker;
use crate::report::{Failure, Metrics, Report};
use crate::settings::Configuration;

/// One shard. Its thread only calls `turn`.
pub struct Shard<D: Driver> {
    driver: D,
    state: BalanceParts,
}

/// Everything but the driver.
struct BalanceParts {
    records: BalanceRecords,
    time: Time,
    configuration: Arc<Configuration>,
    /// Limits of requests, and of responses.
    limits: http1::Limits,
    response_limits: http1::Limits,
    picker: Picker,
    pool: IdlePool,
    actions: VecDeque<ConnAction>,
    /// Clients whose requests wait for a permit at a backend.
    waiting: Waiting,
    /// Data queued behind the send in flight of a tunnel's side.
    queued: ConnMap<Box<Batch>>,
    /// The log of requests and tunnels, and the entries of tunnels, by their clients.
    access: Option<Arc<dyn AccessLog>>,
    entries: ConnMap<Box<LogEntry>>,
    close_jobs: Vec<CloseJob>,
    orphans: Orphans,
    spares: Spares,
    commands: Inbox<BalanceCommand>,
    reports: Sender<Report>,
    published: Arc<Mutex<Metrics>>,
    metrics: Metrics,
    /// The number of this shard among `shards`: rates for all shards are divided by them.
    shard: u32,
    shards: u32,
    /// The limit of client connections of all shards, as configured...
    most_connections: usize,
    /// ...and by the number of descriptors.
    descriptors_for: usize,
    admission: Arc<Admission>,
    counted: KeyBySlot,
    /// The clients that make room for others.
    places: Places,
    /// Ids of requests that come without one, where that is asked for.
    ids: RequestIdSource,
    /// The index of the next of `settings.sources`.
    source: usize,
    burst: BurstDetector,
    trim: Trim,
    /// Memory of handshakes and incomplete records.
    peak: Peak,
    accept_stopped: bool,
    /// TLS of clients, by listener.
    tls: Vec<Option<ServerTls>>,
    memory: Measurements,
    shutdown: Option<ShutdownState>,
}

/// The state of a shutdown.
#[derive(Debug)]
struct ShutdownState {
    deadline: Instant,
}

/// The parameters of a new shard.
pub struct BalanceStart {
    /// The settings and the backends.
    pub configuration: Arc<Configuration>,
    /// The commands of other threads.
    pub commands: Inbox<BalanceCommand>,
    /// The channel for reports of failures.
    pub reports: Sender<Report>,
    /// The place where it publishes its metrics, about once a second.
    pub published: Arc<Mutex<Metrics>>,
    /// Its number, from 0.
    pub shard: u32,
    /// The number of shards: rates are divided by it.
    pub shards: u32,
    /// The number of client connections of all shards that descriptors allow, whatever is
    /// configured.
    pub descriptors_for: usize,
    /// The shared count of client connections.
    pub admission: Arc<Admission>,
    /// TLS of clients, by listener; missing ones have none.
    pub tls: Vec<Option<ServerTls>>,
    /// The seed of its random numbers.
    pub seed: u64,
    /// The log of requests and tunnels.
    pub access: Option<Arc<dyn AccessLog>>,
    /// The date of answers without one: of the system's clock, but in a simulation.
    pub date: LiveDate,
}

/// Maximum bytes of a client's certificate, which each request to a backend has in base64. Common
/// ones have 1 to 2 KB, and common servers take 8 KB of headers.
const MAX_CERTIFICATE: usize = 4 << 10;

/// The number of bytes read at a time, from any connection: a tunnel forwards at most this much in
/// a turn, and holds at most this much while its receiver is behind. A message of 64 KiB fits, with
/// its header.
pub(crate) const RECEIVE_BUFFER: usize = 65 << 10;

/// The interval of sweeps while there are requests under way; tunnels alone need one a second.
const SWEEP: Duration = Duration::from_millis(250);

impl<D: Driver> Shard<D> {
    /// Creates a shard without connections, on a driver that has its listeners.
    #[must_use]
    pub fn new(driver: D, start: BalanceStart) -> Self {
        let BalanceStart {
            configuration,
            commands,
            reports,
            published,
            shard,
            shards,
            descriptors_for,
            admission,
            tls,
            seed,
            access,
            date,
        } = start;
        let now = driver.now();
        let rate = configuration.settings.close_rate;
        let state = BalanceParts {
            records: BalanceRecords::new(EighthTick::of(now)),
            time: Time::new(now, date),
            limits: limits_of(&configuration),
            response_limits: response_limits_of(&configuration),
            picker: Picker::new(seed),
            pool: IdlePool::default(),
            actions: VecDeque::new(),
            waiting: Waiting::default(),
            queued: ConnMap::default(),
            access,
            entries: ConnMap::default(),
            close_jobs: Vec::new(),
            orphans: Orphans::new(rate, TokenBucket::share(rate, shard, shards)),
            spares: Spares::small(64),
            commands,
            reports,
            published,
            metrics: Metrics::default(),
            shard,
            shards,
            most_connections: most_connections(&configuration, descriptors_for),
            descriptors_for,
            admission,
            counted: KeyBySlot::default(),
            places: Places::default(),
            configuration,
            ids: RequestIdSource::default(),
            source: 0,
            burst: BurstDetector::default(),
            trim: Trim::default(),
            peak: Peak::default(),
            accept_stopped: false,
            tls,
            memory: Measurements::default(),
            shutdown: None,
        };
        Self { driver, state }
    }

    /// Runs one turn. Returns false once a shutdown is complete.
    ///
    /// # Errors
    /// The poll failed; the shard is of no more use.
    pub fn turn(&mut self) -> io::Result<bool> {
        let Self { driver, state } = self;
        driver.wait(state.next_deadline())?;
        state.time.advance(driver.now());
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
                Event::Incoming(socket, address, listener) => {
                    // Its listeners are of TCP, so that each client has an address.
                    if let Some(address) = address {
                        state.accept(driver, socket, address, listener);
                    }
                }
                Event::Secured(id, info) => state.on_secured(id, *info),
                Event::PassedThrough(id, passed) => {
                    state.on_passed_through(id, *passed);
                    // A name is in force as soon as its backend is on its way here, and the client
                    // is dispatched next.
                    state.run_commands(driver);
                }
                Event::AcceptStopped(_) => state.accept_stopped = true,
            }
            // A tunnel's bytes queue none, and the call would be a twentieth of the cost of
            // forwarding them.
            if !state.actions.is_empty() {
                state.perform(driver);
            }
        }
        state.run_commands(driver);
        state.expire(driver);
        state.close_what_is_due(driver);
        state.serve_waiting(driver);
        state.check_memory(driver);
        state.perform(driver);
        Ok(state.shutdown.is_none() || state.metrics.connections > 0)
    }

    /// Publishes the final metrics when a shard ends.
    pub fn publish(&mut self) {
        self.state.publish();
    }

    /// Returns when the next turn is due, if no event comes before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.state.next_deadline()
    }

    /// Returns its driver for inspection.
    #[must_use]
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// Returns its driver, to advance its kernel.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }
}

/// Returns whether a failure of TLS means that the two do not trust each other. When the handshake
/// is complete, that is only the backend's refusal of our certificate, on its first use; whatever
/// else comes then breaks the connection off, as a reset does.
fn is_untrusted(why: TlsFailure, upstream: &Upstream) -> bool {
    !upstream.is_connected || !upstream.is_reused && why.refuses_certificate()
}

impl BalanceParts {
    /// Handles bytes of any kind of connection. Those of a tunnel are returned, to be sent to its
    /// other side at once.
    #[inline]
    fn on_received(&mut self, id: ConnId, bytes: &mut [u8]) -> Option<(ConnId, Box<Batch>)> {
        match self.records.entry(id)? {
            BalanceRecord::Tunnel(_) => return self.tunnel_received(id, bytes),
            BalanceRecord::Client(_) => self.client_received(id, bytes),
            BalanceRecord::Upstream(_) => self.upstream_received(id, bytes),
            BalanceRecord::Vacant | BalanceRecord::Closing => {}
        }
        None
    }

    fn on_sent<D: Driver>(&mut self, driver: &mut D, id: ConnId, batch: Box<Batch>) {
        self.spares.give(batch);
        match self.records.entry(id) {
            Some(BalanceRecord::Tunnel(_)) => self.tunnel_sent(driver, id),
            Some(BalanceRecord::Client(client)) => {
                client.http.sending = false;
                self.flush(driver, id);
            }
            Some(BalanceRecord::Upstream(upstream)) => {
                upstream.http.sending = false;
                self.flush(driver, id);
            }
            Some(BalanceRecord::Vacant | BalanceRecord::Closing) | None => {}
        }
    }

    fn on_secured(&mut self, id: ConnId, info: TlsInfo) {
        if let Some(client) = self.records.client(id) {
            client.is_secure = true;
            let certificate = info.peer_certificates.into_iter().next();
            if certificate.as_ref().is_some_and(|it| it.len() > MAX_CERTIFICATE) {
                return self.answer_error(id, 431, "the client's certificate is too long");
            }
            client.certificate = certificate;
            client.server_name =
                info.server_name.filter(|_| self.configuration.https.is_host_bound);
        }
    }

    fn on_finished<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        if let Some(why) = driver.session_failure(id) {
            self.report_tls(driver, id, why);
        }
        match self.records.entry(id) {
            Some(BalanceRecord::Tunnel(_)) => self.tunnel_finished(driver, id),
            Some(BalanceRecord::Client(_)) => self.client_finished(id),
            Some(BalanceRecord::Upstream(_)) => {
                let failure = driver.session_failure(id);
                self.upstream_finished(id, driver.was_truncated(id), failure);
            }
            Some(BalanceRecord::Vacant | BalanceRecord::Closing) | None => {}
        }
    }

    fn on_closed<D: Driver>(&mut self, driver: &mut D, id: ConnId, why: Closed) {
        if let Some(why) = why.session_failure() {
            self.report_tls(driver, id, why);
        }
        match self.records.take(id) {
            BalanceRecord::Tunnel(tunnel) => {
                self.tunnel_closed(driver, id, tunnel, why, why.session_failure());
            }
            BalanceRecord::Client(client) => {
                self.client_closed(id, *client);
                self.release_admission(id);
            }
            BalanceRecord::Upstream(upstream) => {
                let failure = match why {
                    Closed::Insecure(why) if is_untrusted(why, &upstream) => Failure::Insecure(why),
                    _ if upstream.is_connected => Failure::of_closed(why),
                    _ => Failure::Refused,
                };
                self.upstream_closed(id, *upstream, failure);
            }
            BalanceRecord::Vacant | BalanceRecord::Closing if self.records.end_closing(id) => {
                self.release_admission(id)
            }
            BalanceRecord::Vacant | BalanceRecord::Closing => {}
        }
    }

    /// Reports that the TLS session of a client failed. Those of backends are failures of theirs.
    #[cold]
    fn report_tls<D: Driver>(&mut self, driver: &D, id: ConnId, why: SessionFailure) {
        let subject = match self.records.entry(id) {
            Some(BalanceRecord::Client(client)) => client.subject(),
            Some(BalanceRecord::Tunnel(tunnel)) if tunnel.count.is_none() => self.tunnel_subject(driver, id),
            _ => return,
        };
        self.report_end(&subject, None, EndReason::Tls(why));
    }

    fn on_connected<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let timeouts = &self.configuration.settings.timeouts;
        let Some(upstream) = self.records.upstream(id) else { return };
        let deadline = self.time.after(upstream.answer_timeout(timeouts));
        upstream.is_connected = true;
        upstream.backend.note_connection();
        let client = upstream.client;
        let passed = client.filter(|_| upstream.is_passthrough);
        self.records.set_deadline(id, deadline);
        if let Some(exchange) =
            client.and_then(|client| self.records.client(client)?.exchange.as_mut())
        {
            // A handshake keeps its permit until its 101; other requests need it only for the
            // connection.
            if exchange.key.is_none() {
                exchange.permit = None;
            }
        }
        self.flush(driver, id);
        if let Some(client) = passed {
            self.actions.push_back(ConnAction::Open { client, upstream: id });
        }
    }

    /// Returns the bytes of a body that must come within `timeouts.body`, at `rate` a second.
    fn enough(&self, rate: u64) -> u64 {
        let millis = self.configuration.settings.timeouts.body.as_millis();
        u64::try_from(u128::from(rate) * millis / 1000).unwrap_or(u64::MAX)
    }

    /// Returns the token bucket for this shard's part of a rate for all.
    fn bucket(&self, rate: u32) -> TokenBucket {
        TokenBucket::share(rate, self.shard, self.shards)
    }

    fn publish(&mut self) {
        let records = &self.records;
        self.waiting.retain(|id| match records.at(id.slot()) {
            Some((at, BalanceRecord::Client(client))) => at == id && client.phase == Phase::Queued,
            _ => false,
        });
        self.metrics.queued = self.waiting.len() as u64;
        self.places.retain(records);
        self.metrics.idle_backends = self.pool.len() as u64;
        self.metrics.sweeps += 1;
        if let Ok(mut published) = self.published.lock() {
            *published = self.metrics;
        }
    }
}
