//! One thread's clients, backend connections and tunnels, over any driver.
//!
//! A turn is short: wait, handle each event, run its actions, then commands, timeouts and closings.
//! Received bytes are lent, and the driver is borrowed until they are released, so the consequences
//! of an event are queued as a [`ConnAction`] and run after it; only the bytes of a tunnel are
//! forwarded at once, from their place in the buffer.
//!
//! A part has private fields, and takes at most two other parts as arguments:
//!
//! * `records` of connections, `time` of the turn, `rules` of the configuration.
//! * `clients`: admission at the limits, and which clients make room.
//! * `dispatch`: the choice of a backend, and the requests that wait for one; `upstreams`: idle
//!   connections.
//! * `tunnels`: their bytes, and the order and the rate in which they are closed.
//! * `request_log`, `actions`, `mail` of other threads, `upkeep` of metrics and memory.
//!
//! Code that needs three or more parts is in `roads`: a `request` from a client's bytes to an
//! exchange, each `attempt` at a backend, its `answer`, a `tunnel`, a `sweep`.

mod actions;
mod audit;
mod clients;
mod dispatch;
mod handover;
mod mail;
mod placing;
mod records;
mod request_log;
mod roads;
mod rules;
mod time;
mod tunnels;
mod upkeep;
mod upstreams;

use std::io;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use throng_engine::mailbox::Inbox;
use throng_http::LiveDate;
use throng_io::{Batch, Closed, ConnId, Driver, Event, Instant, ServerTls, TlsInfo};

use self::actions::{ActionQueue, ConnAction};
pub use self::audit::{Audit, Holdings};
pub use self::clients::Admission;
use self::clients::{ClientGate, Full};
use self::dispatch::Dispatch;
use self::handover::Handover;
pub use self::handover::Walk;
use self::mail::BalanceMail;
pub use self::placing::Placing;
use self::records::{BalanceRecord, BalanceRecords, EighthTick, Phase};
use self::request_log::RequestLog;
use self::rules::BalanceRules;
use self::time::Time;
use self::tunnels::{CloseJob, Tunnels, load};
use self::upkeep::Meters;
use self::upstreams::IdlePool;
use crate::access::{AccessLog, EndReason, Subject};
use crate::command::BalanceCommand;
use crate::configuration::Configuration;
use crate::listener::Listeners;
use crate::report::{BackendReport, Metrics};
use crate::unix_peer::UNIX_PEER;

/// One shard. Its thread only calls `turn`.
pub struct Shard<D: Driver> {
    driver: D,
    parts: BalanceParts,
    handover: Handover<D>,
    /// Where one shard accepts for all.
    placing: Option<Placing<D::Socket>>,
}

/// Everything except the driver. Each part has its own state, which only it changes; operations on
/// several parts are roads.
struct BalanceParts {
    records: BalanceRecords,
    time: Time,
    rules: BalanceRules,
    clients: ClientGate,
    dispatch: Dispatch,
    idle: IdlePool,
    tunnels: Tunnels,
    log: RequestLog,
    actions: ActionQueue,
    mail: BalanceMail,
    meters: Meters,
    /// Memory for readings of ambiguous paths.
    scratch: Vec<u8>,
}

/// The parameters of a new shard.
pub struct BalanceStart {
    /// The settings and the backends.
    pub configuration: Arc<Configuration>,
    /// The commands of other threads.
    pub commands: Inbox<BalanceCommand>,
    /// The channel for reports of failures.
    pub reports: Sender<BackendReport>,
    /// The place where it publishes its metrics, about once a second.
    pub published: Arc<Mutex<Metrics>>,
    /// Its number, from 0.
    pub shard: u32,
    /// The number of shards: rates are divided by it.
    pub shards: u32,
    /// Maximum client connections of all shards by their descriptors, for any configuration.
    pub descriptors_for: usize,
    /// The shared count of client connections.
    pub admission: Arc<Admission>,
    /// TLS of clients, by listener; missing ones have none.
    pub tls: Vec<Option<ServerTls>>,
    /// The listeners.
    pub listeners: Listeners,
    /// The seed of its random numbers.
    pub seed: u64,
    /// The log of requests and tunnels.
    pub access: Option<Arc<dyn AccessLog>>,
    /// The date of answers without one: from the system's clock, except in a simulation.
    pub date: LiveDate,
}

/// Maximum bytes of a client's certificate, which each request to a backend has in base64. Common
/// ones have 1 to 2 KB, and common servers take 8 KB of headers.
const MAX_CERTIFICATE: usize = 4 << 10;

/// The number of bytes read at a time, from any connection: a tunnel forwards at most this much in
/// a turn, and holds at most this much while its receiver is behind. A message of 64 KiB fits, with
/// its header.
pub(crate) const RECEIVE_BUFFER: usize = 65 << 10;

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
            listeners,
            seed,
            access,
            date,
        } = start;
        let now = driver.now();
        let rate = configuration.settings.close_rate;
        let meters = Meters::new(published, shard, shards);
        let parts = BalanceParts {
            records: BalanceRecords::new(EighthTick::of(now)),
            time: Time::new(now, date),
            rules: BalanceRules::new(configuration, listeners.clone()),
            clients: ClientGate::new(admission, descriptors_for, tls, listeners),
            dispatch: Dispatch::new(seed),
            idle: IdlePool::default(),
            tunnels: Tunnels::new(rate, meters.bucket(rate)),
            log: RequestLog::new(access),
            actions: ActionQueue::new(),
            mail: BalanceMail::new(commands, reports),
            meters,
            scratch: Vec::new(),
        };
        Self { driver, parts, handover: Handover::None, placing: None }
    }

    /// Runs one turn. Returns false once a shutdown is complete.
    ///
    /// # Errors
    /// The poll failed; the shard is unusable.
    pub fn turn(&mut self) -> io::Result<bool> {
        let Self { driver, parts, handover, placing } = self;
        driver.wait(parts.next_deadline())?;
        parts.time.advance(driver.now());
        while let Some(event) = driver.next_event() {
            match event {
                Event::Received(id, bytes) => {
                    if let Some((to, batch)) = parts.on_received(id, bytes) {
                        parts.send_tunnelled(driver, id, to, batch);
                    }
                }
                Event::Sent(id, batch) => parts.on_sent(driver, id, batch),
                Event::Finished(id) => parts.on_finished(driver, id),
                Event::Closed(id, why) => parts.on_closed(driver, id, why),
                Event::Connected(id) => parts.on_connected(driver, id),
                Event::Incoming(socket, address, listener) => {
                    let address = address.unwrap_or(UNIX_PEER);
                    let kept = match placing {
                        Some(placing) => placing.give(socket, address, listener),
                        None => Some(socket),
                    };
                    if let Some(socket) = kept {
                        parts.accept(driver, socket, address, listener);
                    }
                }
                Event::Secured(id, info) => parts.on_secured(id, *info),
                Event::PassedThrough(id, passed) => {
                    parts.on_passed_through(id, *passed);
                    // A name is in force as soon as its backend's command is queued here, and the
                    // client is dispatched next.
                    parts.run_commands(driver);
                }
                Event::AcceptStopped(_) => parts.clients.stop_accepting(),
                Event::Parked(id) => handover.on_parked(driver, parts, id),
            }
            // A tunnel's bytes queue no action, and the call would be a twentieth of the cost of
            // forwarding them.
            if !parts.actions.is_empty() {
                parts.perform(driver);
            }
        }
        parts.run_commands(driver);
        if let Some(placing) = placing {
            parts.take_placed(driver, placing);
        }
        parts.expire(driver);
        parts.read_within_rate(driver);
        parts.close_due(driver);
        parts.serve_waiting(driver);
        parts.check_memory(driver);
        parts.perform(driver);
        let is_used = parts.meters.metrics().connections > 0 || handover.is_busy();
        let goes_on = !parts.tunnels.is_ending() || is_used;
        // A socket in transit would be lost, so that one takes another turn.
        Ok(goes_on || placing.as_mut().is_some_and(|placing| !placing.close_if_empty()))
    }

    /// Publishes the final metrics when a shard ends.
    pub fn publish(&mut self) {
        self.parts.publish();
    }

    /// Returns when the next turn is due, if no event comes before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.parts.next_deadline()
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

impl BalanceParts {
    /// Takes the clients that another shard has accepted for this one; while it ends, none.
    fn take_placed<D: Driver>(&mut self, driver: &mut D, placing: &mut Placing<D::Socket>) {
        placing.take(|socket, address, listener| {
            if !self.tunnels.is_ending() {
                self.accept(driver, socket, address, listener);
            }
        });
    }

    /// Handles bytes of any kind of connection. A tunnel's bytes are returned, to be sent to its
    /// other side at once.
    #[inline]
    fn on_received(&mut self, id: ConnId, bytes: &mut [u8]) -> Option<(ConnId, Box<Batch>)> {
        match self.records.entry(id)? {
            BalanceRecord::Tunnel(tunnel) => {
                self.meters.count_tunnelled(tunnel.is_backend(), bytes.len());
                if tunnel.is_direct(self.time.tick()) {
                    tunnel.boundary().advance(bytes);
                    return Some((tunnel.peer(), load(self.actions.batch(), bytes)));
                }
                return self.tunnel_received_slow(id, bytes);
            }
            BalanceRecord::Client(_) => self.client_received(id, bytes),
            BalanceRecord::Upstream(_) => self.upstream_received(id, bytes),
            BalanceRecord::Vacant | BalanceRecord::Closing => {}
        }
        None
    }

    fn on_sent<D: Driver>(&mut self, driver: &mut D, id: ConnId, batch: Box<Batch>) {
        self.actions.reuse(batch);
        match self.records.entry(id) {
            Some(BalanceRecord::Tunnel(_)) => self.tunnel_sent(driver, id),
            Some(BalanceRecord::Client(client)) => {
                client.http.set_sending(false);
                self.flush(driver, id);
            }
            Some(BalanceRecord::Upstream(upstream)) => {
                upstream.http.set_sending(false);
                self.flush(driver, id);
            }
            Some(BalanceRecord::Vacant | BalanceRecord::Closing) | None => {}
        }
    }

    fn on_secured(&mut self, id: ConnId, info: TlsInfo) {
        if let Some(client) = self.records.client(id) {
            let certificate = info.peer_certificates.into_iter().next();
            let is_too_long = certificate.as_ref().is_some_and(|it| it.len() > MAX_CERTIFICATE);
            let is_host_bound = self.rules.configuration().https.is_host_bound;
            let asked = (info.version, info.server_name);
            client.origin.set_policy(info.policy);
            client.origin.secure(certificate.filter(|_| !is_too_long), asked, is_host_bound);
            if is_too_long {
                self.refuse(id, 431, "the client's certificate is too long");
            }
        }
    }

    fn on_finished<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let failure = driver.session_failure(id);
        if let Some(why) = failure {
            self.report_end(driver, id, EndReason::Tls(why));
        }
        match self.records.entry(id) {
            Some(BalanceRecord::Tunnel(_)) => self.tunnel_finished(driver, id),
            Some(BalanceRecord::Client(_)) => self.client_finished(id),
            Some(BalanceRecord::Upstream(_)) => {
                self.upstream_finished(id, driver.was_truncated(id), failure);
            }
            Some(BalanceRecord::Vacant | BalanceRecord::Closing) | None => {}
        }
    }

    fn on_closed<D: Driver>(&mut self, driver: &mut D, id: ConnId, why: Closed) {
        let failure = why.session_failure();
        if let Some(why) = failure {
            self.report_end(driver, id, EndReason::Tls(why));
        }
        match self.records.remove(id) {
            BalanceRecord::Tunnel(tunnel) => self.tunnel_closed(driver, id, tunnel, why, failure),
            BalanceRecord::Client(client) => {
                self.client_closed(id, *client);
                self.release_client(id);
            }
            BalanceRecord::Upstream(upstream) => {
                let failure = upstream.failure_of_end(why);
                self.upstream_closed(id, *upstream, failure);
            }
            BalanceRecord::Vacant | BalanceRecord::Closing => {
                if self.records.end_closing(id) {
                    self.release_client(id);
                }
            }
        }
    }

    /// Reports the end of a client. Failures of backends are reported as such.
    #[cold]
    fn report_end<D: Driver>(&mut self, driver: &D, id: ConnId, reason: EndReason) {
        if let Some(subject) = self.subject(driver, id) {
            self.log.ended(&subject, None, reason);
        }
    }

    /// Reports a client that must leave its place, unless it has had its last answer.
    #[cold]
    fn report_evicted<D: Driver>(&mut self, driver: &D, id: ConnId, full: Full) {
        let is_served = self
            .records
            .client(id)
            .is_some_and(|client| matches!(client.phase, Phase::Leaving | Phase::Lingering));
        if !is_served {
            self.report_end(driver, id, full.end_reason());
        }
    }

    /// Returns a client's subject, from its record and its socket; `None` for any other connection.
    fn subject<D: Driver>(&mut self, driver: &D, id: ConnId) -> Option<Subject> {
        match self.records.entry(id)? {
            BalanceRecord::Client(client) => Some(client.origin.subject()),
            BalanceRecord::Tunnel(tunnel) if !tunnel.is_backend() => {
                Some(self.log.tunnel_subject(driver, &self.rules, id))
            }
            _ => None,
        }
    }

    /// Runs the commands of other threads.
    fn run_commands<D: Driver>(&mut self, driver: &mut D) {
        for command in self.mail.take() {
            match command {
                BalanceCommand::Configure(configuration) => self.configure(configuration),
                BalanceCommand::CloseTunnels { backend, closing, most } => {
                    self.tunnels.end_job(&backend);
                    let bucket = self.meters.bucket(closing.rate);
                    let job = CloseJob::new(backend, &closing, most, bucket, self.time.now());
                    let opened = self.meters.metrics().tunnels_opened;
                    self.tunnels.begin_job(job, &self.records, opened, self.dispatch.random());
                }
                BalanceCommand::KeepTunnels(backend) => self.tunnels.end_job(&backend),
                BalanceCommand::Move(order) => self.mail.keep_order(order),
                BalanceCommand::Publish(published) => {
                    self.publish();
                    // The caller may have stopped waiting.
                    let _ = published.send(());
                }
                BalanceCommand::ShutDown { window, deadline, hand_over } => {
                    self.begin_shutdown(driver, window, deadline, hand_over);
                }
            }
        }
    }

    fn configure(&mut self, configuration: Arc<Configuration>) {
        let rate = configuration.settings.close_rate;
        self.tunnels.set_rate(rate, self.meters.bucket(rate));
        let has_same = self.rules.configuration().classes.is_same(&configuration.classes);
        if !has_same || self.rules.timeouts().tunnel != configuration.settings.timeouts.tunnel {
            let next = self.time.after(std::time::Duration::ZERO);
            self.records.look_at_all_tunnels(next);
        }
        let listeners = self.rules.listeners().clone();
        self.rules = BalanceRules::new(configuration, listeners);
        self.meters.forget_limit();
        self.dispatch.unbind(&mut self.records, &self.rules);
    }

    /// Executes the consequences of the last event, and their own consequences.
    fn perform<D: Driver>(&mut self, driver: &mut D) {
        while let Some(action) = self.actions.next() {
            match action {
                ConnAction::Dispatch(id) => self.dispatch(driver, id),
                ConnAction::Flush(id) => self.flush(driver, id),
                ConnAction::Secure(id) => self.begin_tls(driver, id),
                ConnAction::Proceed(id) => self.proceed(driver, id),
                ConnAction::Pause(id) => self.pause(driver, id),
                ConnAction::Fail(id, failure) => {
                    if let Some(upstream) = self.records.remove_upstream(id) {
                        driver.abort(id);
                        self.upstream_closed(id, *upstream, failure);
                    }
                }
                ConnAction::Complete(id) => self.complete(driver, id),
                ConnAction::Open { client, upstream } => self.open_tunnel(driver, client, upstream),
                ConnAction::Answered(id) => self.close_answered(driver, id),
                ConnAction::Close(id) => self.close(driver, id),
                ConnAction::Evict(id, full) => {
                    self.report_evicted(driver, id, full);
                    self.close(driver, id);
                }
                ConnAction::Throttle(id, until, closes) => {
                    self.throttle(driver, id, (until, closes));
                }
                ConnAction::Cut(id) => {
                    driver.abort(id);
                    self.close(driver, id);
                }
            }
        }
    }

    /// Closes a connection that no other record refers to. Bytes that the kernel took are still
    /// sent.
    fn close<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        match self.records.remove(id) {
            BalanceRecord::Client(client) => {
                self.client_closed(id, *client);
                return self.close_counted(driver, id);
            }
            BalanceRecord::Tunnel(tunnel) => return self.end_tunnel(driver, id, tunnel),
            BalanceRecord::Upstream(upstream) if upstream.client().is_none() => {
                self.idle.remove(upstream.backend().id(), id);
            }
            BalanceRecord::Upstream(_) | BalanceRecord::Vacant | BalanceRecord::Closing => {}
        }
        driver.close(id);
    }

    /// Closes the connection of a client whose record was taken out. It counts until it has ended.
    fn close_counted<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        driver.close(id);
        if driver.is_closing(id) {
            self.records.enter(id, BalanceRecord::Closing);
        } else {
            self.release_client(id);
        }
    }

    /// Closes a connection at once, so that another one can have its place.
    fn close_for_another<D: Driver>(&mut self, driver: &mut D, id: ConnId, full: Full) {
        self.report_evicted(driver, id, full);
        self.close(driver, id);
        driver.close_now(id);
        if self.records.end_closing(id) {
            self.release_client(id);
        }
    }

    /// Uncounts a client connection that has ended.
    fn release_client(&mut self, id: ConnId) {
        self.meters.count(|it| it.connections -= 1);
        self.clients.leave_shard();
        self.clients.release(id);
    }
}
