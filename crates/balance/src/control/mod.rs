//! A running balancer and its operations.
//!
//! It has three threads that sleep while there is no work: one handles the reports of shards, one
//! the answers of lookups, one executes timed actions. None of them, and no operation, is on the
//! path of a message.

mod core;
mod error;
mod key;
mod operations;

use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};
use std::{fmt, io};

use throng_acme::AcmeSettings;
use throng_carry::Secret;
use throng_config::ConfigError;
use throng_http::PlainHttp;
use throng_io::placement::Placement;
use throng_io::{HeldListeners, Instant, PeerAddress};
use throng_tls::{TlsConfig, TlsServer};

pub use self::core::carried::CarriedState;
pub use self::core::counts::CarriedCounts;
use self::core::{ControlCommand, ControlCore, PoolClients};
use crate::access::AccessLog;
use crate::checks::Checks;
use crate::clients::Clients;
use crate::config::{BackendConfig, BackendSide, ClientSide, Config, server_names};
use crate::descriptors::divide;
use crate::issuer::{CertificateEvent, Issuer};
use crate::listener::ListenerRules;
use crate::lookups::{self, LookupAnswer, Lookups, Resolver};
use crate::moves::{Moves, Passage};
use crate::moving::MovedTunnels;
use crate::pool::DEFAULT_POOL;
use crate::report::{BackendReport, Metrics};
use crate::shards::{Launch, OnBound, Shards, placement};
use crate::status::{Changes, Draining, Rebalance, Removal, Status, TlsStatus};

pub use error::Error;
pub use key::BackendKey;

/// The longest wait for the first lookups of names, at the start and in a reload. They continue
/// after it.
const FIRST_LOOKUP: Duration = Duration::from_secs(5);

/// A running balancer. Clones refer to the same balancer. It runs until
/// [`shut_down`](Balancer::shut_down) is called; dropping the last handle does not end it.
///
/// Every operation takes effect before it returns, for all clients that connect later. An operation
/// affects no tunnels except those that it closes.
#[derive(Clone)]
pub struct Balancer {
    inner: Arc<Inner>,
}

struct Inner {
    core: Mutex<ControlCore>,
    /// Notified when something changed that may be due earlier.
    changed: Condvar,
    shards: Shards,
    checks: Checks,
    /// TLS of clients.
    server: Option<Arc<TlsServer>>,
    /// Its certificate, if an authority issues it.
    issuer: Issuer,
    /// Whether the shards can have TLS at all.
    uses_tls: bool,
    lookups: Lookups,
    began: std::time::Instant,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The moves to a successor, while they are under way.
    moves: Mutex<Option<Moves>>,
    /// The counters of the predecessors of this process.
    counted_before: OnceLock<CarriedCounts>,
}

impl Balancer {
    /// Binds the addresses and starts shards and control threads.
    ///
    /// # Errors
    /// [`Error::Config`] if [`Config::check`] finds a mistake; [`Error::Start`] if an address
    /// cannot be bound, or there is no descriptor or thread. Then nothing is running.
    pub fn start(config: Config) -> Result<Self, Error> {
        Self::start_with_resolver(config, Arc::new(lookups::system))
    }

    /// Does the same as [`start`](Balancer::start), and records requests and tunnels in `access`.
    ///
    /// # Errors
    /// As for [`start`](Balancer::start).
    pub fn start_with_access_log(
        config: Config,
        access: Arc<dyn AccessLog>,
    ) -> Result<Self, Error> {
        let resolver = Arc::new(lookups::system);
        Self::start_with(config, resolver, With { access: Some(access), ..With::default() })
    }

    /// Does the same with the listening sockets of a list that a successor of this process gets,
    /// and with the sockets, backends and ticket keys of a predecessor. `on_bound` is called before
    /// the first client is accepted, with the number of event loops if tunnels can move to them; it
    /// returns the predecessor's part of each, or nothing, and its error ends the start. The list
    /// must be released when the balancer shuts down.
    ///
    /// # Errors
    /// As for [`start`](Balancer::start), or the error of `on_bound`.
    #[doc(hidden)]
    pub fn start_on(
        config: Config,
        access: Arc<dyn AccessLog>,
        held: HeldListeners,
        carried: (CarriedState, Secret),
        on_bound: impl FnOnce(Option<usize>) -> io::Result<Vec<Passage>> + Send + 'static,
    ) -> Result<Self, Error> {
        let on_bound = Some(OnBound(Box::new(on_bound)));
        let (carried, ticket_keys) = carried;
        let with = With { access: Some(access), held, carried, ticket_keys, on_bound };
        Self::start_with(config, Arc::new(lookups::system), with)
    }

    /// Does the same as [`start`](Balancer::start), with `resolver` instead of the system's for the
    /// names of backends. It is called on threads where it may block.
    ///
    /// # Errors
    /// As for [`start`](Balancer::start).
    pub fn start_with_resolver(config: Config, resolver: Arc<Resolver>) -> Result<Self, Error> {
        Self::start_with(config, resolver, With::default())
    }

    /// Does everything that [`start`](Balancer::start) does except listen, connect and look up
    /// names: it reads the files of the configuration, and checks whether descriptors allow a start
    /// of this process. It removes everything that it creates for the check.
    ///
    /// # Errors
    /// As for [`start`](Balancer::start).
    pub fn check_start(config: Config) -> Result<(), Error> {
        Parts::read(config, Issuer::check).map(drop)
    }

    fn start_with(config: Config, resolver: Arc<Resolver>, with: With) -> Result<Self, Error> {
        let With { access, held, carried, ticket_keys, on_bound } = with;
        let Parts { config, issuer, server, clients } = Parts::read(config, Issuer::open)?;
        if let Some(server) = &server {
            server.take_ticket_keys(&ticket_keys);
        }
        let listen = config.all_listeners();
        let config_addresses: Vec<_> = config.listen_addresses().collect();
        let count = config.shards;
        let (descriptors, is_pinned) = (config.descriptors, config.is_pinned);
        let handshakes_per_second = config.tls.as_ref().map_or(0, |tls| tls.handshakes_per_second);
        let uses_tls = server.is_some() || !clients.is_empty();
        let (answers, answered) = mpsc::channel();
        let lookups = Lookups::new(resolver, answers);
        lookups.set(config.all_names(), config.lookup_interval);
        let mut core = ControlCore::new(config);
        core.replace_clients(clients);
        core.set_challenges(issuer.managed().map(|managed| managed.challenges));
        // Addresses that are bound later; no name could lead to a port 0.
        core.set_addresses(&config_addresses);
        first_lookups(&mut core, &answered);
        core.take_over(carried, Instant(0));
        let configuration = core.take_configuration().unwrap_or_default();
        let (reports, received) = mpsc::channel();
        if let (Some(server), Some(log)) = (&server, &access) {
            let log = Arc::clone(log);
            server.on_failure(move |client, why| log.tls_refused(client, why));
        }
        let tls = server.clone();
        let launch = Launch {
            listen,
            shards: count,
            is_pinned,
            descriptors,
            configuration,
            reports,
            tls,
            handshakes_per_second,
            uses_tls,
            access,
            held,
            on_bound,
        };
        let shards = Shards::start(launch).map_err(|error| {
            lookups.end();
            Error::Start(error)
        })?;
        core.set_addresses(shards.addresses());
        let balancer = Self::of(core, shards, lookups, (server, issuer), uses_tls);
        match balancer.start_threads(received, answered) {
            Ok(()) => {
                let core = balancer.inner.lock();
                balancer.inner.set_checks(&core);
                drop(core);
                Ok(balancer)
            }
            Err(error) => {
                let _ = balancer.shut_down(Duration::ZERO, Duration::ZERO);
                Err(Error::Start(error))
            }
        }
    }

    /// Assembles the parts. Its threads are started afterwards.
    fn of(
        core: ControlCore,
        shards: Shards,
        lookups: Lookups,
        (server, issuer): (Option<Arc<TlsServer>>, Issuer),
        uses_tls: bool,
    ) -> Self {
        // Checks report to the balancer, which does not exist yet.
        let listener: Arc<OnceLock<Weak<Inner>>> = Arc::default();
        let tell = Arc::clone(&listener);
        let checks = Checks::new(move |backend, outcome| {
            if let Some(inner) = tell.get().and_then(Weak::upgrade) {
                inner.change(|core, now| {
                    core.handle_check(backend, outcome, now, SystemTime::now());
                });
            }
        });
        let inner = Arc::new(Inner {
            core: Mutex::new(core),
            changed: Condvar::new(),
            shards,
            checks,
            server,
            issuer,
            uses_tls,
            lookups,
            began: std::time::Instant::now(),
            threads: Mutex::default(),
            moves: Mutex::default(),
            counted_before: OnceLock::new(),
        });
        let _ = listener.set(Arc::downgrade(&inner));
        Self { inner }
    }

    fn start_threads(
        &self,
        reports: Receiver<BackendReport>,
        answers: Receiver<Option<LookupAnswer>>,
    ) -> io::Result<()> {
        let start = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = thread::Builder::new().name(name.to_owned()).stack_size(256 << 10);
            thread.spawn(run).map_err(|error| throng_io::limits::thread_not_started(&error))
        };
        let (taker, clock) = (Arc::clone(&self.inner), Arc::clone(&self.inner));
        let taker = start("balance-reports", Box::new(move || taker.take_reports(&reports)))?;
        self.inner.threads().push(taker);
        let inner = Arc::clone(&self.inner);
        let names = start("balance-names", Box::new(move || inner.take_answers(&answers)))?;
        self.inner.threads().push(names);
        let clock = start("balance-control", Box::new(move || clock.keep_time()))?;
        self.inner.threads().push(clock);
        self.inner.issuer.start(self.inner.server.as_ref())
    }

    /// Returns where it listens, each with whether clients use TLS there.
    pub fn listening(&self) -> impl Iterator<Item = (PeerAddress, bool)> {
        self.inner.shards.listening().iter().copied()
    }

    /// Returns the names of its listeners, in the order of [`listening`](Self::listening).
    #[must_use]
    pub fn listener_names(&self) -> Vec<Arc<str>> {
        let listeners = self.inner.lock().started_listeners();
        listeners.into_iter().map(|listener| listener.rules.name).collect()
    }

    /// Returns its IP addresses in the order of [`Config::listen`]; a port 0 is replaced by the
    /// bound one.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        self.inner.shards.addresses()
    }

    /// Sets the address of the program's API for operators, as it was bound: no backend may have
    /// it, or its clients would be operators.
    pub fn set_admin_address(&self, address: SocketAddr) {
        self.inner.lock().set_admin_address(address);
    }

    /// Returns for how many client connections there are descriptors, and the reason for the number
    /// if each event loop has a [separate descriptor table](Config::descriptors).
    #[must_use]
    pub fn capacity(&self) -> (usize, Option<String>) {
        self.inner.shards.capacity()
    }

    /// Returns the CPUs of the event loops, if they are [pinned](Config::is_pinned).
    #[must_use]
    pub fn placement(&self) -> Option<&Placement> {
        self.inner.shards.placement()
    }

    /// Returns why event loops share a descriptor table although
    /// [`descriptors`](Config::descriptors) asked for something else.
    #[must_use]
    pub fn tables_refused(&self) -> Option<&str> {
        self.inner.shards.tables_refused()
    }

    /// Applies the backends and settings of `config`: a reload. A backend that stays keeps its
    /// counts and tunnels; a backend that has left the file is [removed](Self::remove), unless it
    /// also registered itself or was added by [`add`](Balancer::add).
    ///
    /// A weight that an operator set, and a drain that an operator began, stay as long as the
    /// file's values for that backend do not change. A backend that was [removed](Balancer::remove)
    /// comes back if the file has it.
    ///
    /// The certificate of an authority is ordered or renewed if that is due.
    ///
    /// New names of backends are looked up first, which takes up to five seconds.
    ///
    /// # Errors
    /// [`Error::Config`], or an error that names the unusable backend. Then nothing changes.
    pub fn apply(&self, config: Config) -> Result<Changes, Error> {
        config.check()?;
        let inner = &self.inner;
        // Without a list, the present backends stay, with the connections passed through to them.
        let (backends, names) = inner.lock().backends_of(&config);
        let config = config.with_passthrough(&backends, &names);
        inner.issuer.check_now();
        let clients = load_clients(&config)?;
        if !clients.is_empty() && !inner.uses_tls {
            let why = "backend_tls: the balancer was started without TLS; restart it";
            return Err(Error::Tls(why.to_owned()));
        }
        let prepared = match (&inner.server, &config.tls) {
            (Some(server), Some(tls)) => {
                let prepared = server.prepare(&with_certificate(&config, tls, &inner.issuer));
                let own = inner.shards.listeners().all_rules().any(ListenerRules::accepts_plain);
                Some((server, prepared, own || accepts_plain(tls, &inner.issuer)))
            }
            _ => None,
        };
        inner.look_up(&config);
        let applied = inner.change(|core, now| {
            let prepared = match prepared {
                Some((server, Ok(prepared), plain)) => Some((server, prepared, plain)),
                Some((_, Err(error), _)) => return Err(Error::Tls(format!("tls: {error}"))),
                None => None,
            };
            // New backends must not be connected to without TLS.
            let before = core.replace_clients(clients);
            let changes = core.apply(config, now, |core| inner.tell(core));
            match (&changes, prepared) {
                (Ok(_), Some((server, next, accepts_plain))) => {
                    server.install(next.passing_through(core.passthrough()));
                    server.accept_plain(accepts_plain);
                }
                (Ok(_), None) => {}
                (Err(_), _) => drop(core.replace_clients(before)),
            }
            changes
        });
        let core = inner.lock();
        inner.lookups.set(core.names(), core.lookup_interval());
        applied
    }

    /// Reads the files of `[tls]` again if they have changed, otherwise the files of
    /// `[backend_tls]` if they have changed, for later connections. Returns whether any have. Call
    /// it about every second: if the files of both have changed, the second call reads the others.
    ///
    /// # Errors
    /// [`Error::Tls`]; the table's files stay in use as they are until a file changes again, or
    /// until a certificate that is not valid yet is valid.
    pub fn reload_certificates_if_changed(&self) -> Result<bool, Error> {
        // With one call for both, a mistake in one table would hide that the other's files are in
        // use.
        if let Some(server) = &self.inner.server
            && server.reload_if_changed().map_err(|error| Error::Tls(format!("tls: {error}")))?
        {
            return Ok(true);
        }
        let backends = self.inner.lock().clients().clone();
        for (pool, clients) in &backends {
            match clients.reload_if_changed() {
                Ok(false) => {}
                Ok(true) => return Ok(true),
                Err(error) => return Err(Error::Tls(format!("{}: {error}", tls_key(pool)))),
            }
        }
        Ok(false)
    }

    /// Returns the attempts to obtain a certificate (`[tls.acme]`) since the last call, at most the
    /// last 64.
    #[must_use]
    pub fn take_certificate_events(&self) -> Vec<CertificateEvent> {
        self.inner.issuer.take_events()
    }

    /// Returns the certificates of `[tls]`: the name of each, and its expiry in seconds since 1970.
    #[must_use]
    pub fn certificates(&self) -> Vec<(String, i64)> {
        let served = self.inner.server.iter().flat_map(|server| server.certificates());
        served.map(|it| (it.name, it.expires)).collect()
    }

    /// Returns whether clients of the address at that index of [`Balancer::addresses`] use TLS.
    #[must_use]
    pub fn has_tls(&self, place: usize) -> bool {
        self.inner.shards.has_tls(place)
    }

    /// Adds a backend, which stays over reloads. A removed backend with tunnels left keeps them;
    /// everything else is as given here. If the file has its address, the file's TLS and server
    /// names apply to it.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::Weight`], [`Error::Address`] or [`Error::TooMany`].
    pub fn add(
        &self,
        address: impl Into<PeerAddress>,
        weight: u32,
        send_proxy: bool,
    ) -> Result<(), Error> {
        self.add_passthrough(address, weight, send_proxy, Vec::new())
    }

    /// Does the same as [`add`](Balancer::add), and passes connections of clients that ask for one
    /// of `names` through to the backend, as
    /// [`BackendConfig::passthrough`](crate::BackendConfig::passthrough) describes. The names
    /// replace the file's, until the backend is removed, a reload has its address, or the lookup of
    /// a name in the file finds it. When it is removed, connections for names that no other backend
    /// has are no longer passed through. Without names it is the same as `add`.
    ///
    /// # Errors
    /// As for `add`, and [`Error::Passthrough`]: the configuration would also refuse the names, or
    /// the balancer was started without TLS of clients.
    pub fn add_passthrough(
        &self,
        address: impl Into<PeerAddress>,
        weight: u32,
        send_proxy: bool,
        names: Vec<String>,
    ) -> Result<(), Error> {
        let passthrough = server_names(names);
        let backend =
            BackendConfig { weight, send_proxy, passthrough, ..BackendConfig::new(address.into()) };
        self.inner.change(|core, now| core.add(backend, now))
    }

    /// Changes a weight and returns the previous one.
    ///
    /// # Errors
    /// [`Error::Unknown`] or [`Error::Weight`].
    pub fn set_weight<'p>(
        &self,
        backend: impl Into<BackendKey<'p>>,
        weight: u32,
    ) -> Result<u32, Error> {
        self.inner.change(|core, now| core.set_weight(backend, weight, now))
    }

    /// Drains a backend: it gets no new clients, and its tunnels are closed with 1012 at
    /// [`close_rate`](crate::Settings::close_rate), or faster if `window` is too short for that
    /// rate; tunnels left at the window's end are closed at once. A second drain replaces the
    /// first.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn drain<'p>(
        &self,
        backend: impl Into<BackendKey<'p>>,
        window: Option<Duration>,
    ) -> Result<Draining, Error> {
        self.inner.change(|core, _| core.drain(backend, window))
    }

    /// Switches the maintenance of a site on or off; `None`: as the configuration has it. In
    /// maintenance its requests are answered with 503, and open tunnels go on. This stays over
    /// reloads, until the file changes in this respect. Returns whether it is on.
    ///
    /// # Errors
    /// [`Error::UnknownSite`].
    pub fn set_maintenance(&self, site: &str, on: Option<bool>) -> Result<bool, Error> {
        self.inner.change(|core, _| core.set_maintenance(site, on))
    }

    /// Returns whether a site is under maintenance.
    ///
    /// # Errors
    /// [`Error::UnknownSite`].
    pub fn is_in_maintenance(&self, site: &str) -> Result<bool, Error> {
        self.inner.lock().is_in_maintenance(site)
    }

    /// Ends a drain: the remaining tunnels stay, and the backend is picked again.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::NotDraining`], or [`Error::BeingRemoved`] for a removed
    /// backend.
    pub fn undrain<'p>(&self, backend: impl Into<BackendKey<'p>>) -> Result<(), Error> {
        self.inner.change(|core, now| core.undrain(backend, now))
    }

    /// Sends a backend no more clients, and removes it from the list when its last tunnel is gone.
    /// Its tunnels stay, or are closed as in a [drain](Self::drain), by `drain`, or if that is
    /// `None` by [`Settings::removed`](crate::Settings::removed); a drain in progress continues. It
    /// may be the last backend: [`Removal::last`] reports that.
    ///
    /// # Errors
    /// [`Error::Unknown`], or [`Error::RegistersItself`].
    pub fn remove<'p>(
        &self,
        backend: impl Into<BackendKey<'p>>,
        drain: Option<bool>,
    ) -> Result<Removal, Error> {
        self.inner.change(|core, now| core.remove(backend, drain, now))
    }

    /// Closes the surplus tunnels of backends that have more than their share, with 1012, at `rate`
    /// tunnels a second in total (default: [`close_rate`](crate::Settings::close_rate)), beginning
    /// with the longest silent ones. With `dry_run` it only reports the plan.
    ///
    /// # Errors
    /// [`Error::PickIgnoresLoad`] or [`Error::StickyIgnoresLoad`] if clients would not reconnect to
    /// backends with fewer tunnels, also with `dry_run`; [`Error::Rate`].
    pub fn rebalance(&self, dry_run: bool, rate: Option<u32>) -> Result<Rebalance, Error> {
        self.inner.change(|core, _| core.rebalance(dry_run, rate))
    }

    /// Checks that `token` is the token of `[register]`, in a time that does not reveal how much of
    /// it was right.
    ///
    /// # Errors
    /// [`Error::Token`] or [`Error::RegistrationIsOff`].
    pub fn check_token(&self, token: &[u8]) -> Result<(), Error> {
        let core = self.inner.lock();
        let register = core.register_config().ok_or(Error::RegistrationIsOff)?;
        if register.token.matches(token) { Ok(()) } else { Err(Error::Token) }
    }

    /// Registers a backend, or renews its registration. It stays while its heartbeats come; check
    /// its token first. A backend that is also in the file keeps the file's weight. `time_to_live`:
    /// 1 s to 1 h, `None` for the value of `[register]`; the value in force is returned.
    ///
    /// # Errors
    /// [`Error::RegistrationIsOff`], [`Error::Weight`], [`Error::Address`], [`Error::TimeToLive`]
    /// or [`Error::TooMany`].
    pub fn register(
        &self,
        address: impl Into<PeerAddress>,
        weight: u32,
        time_to_live: Option<Duration>,
    ) -> Result<Duration, Error> {
        self.inner.change(|core, now| core.register(address.into(), weight, time_to_live, now))
    }

    /// Records a heartbeat of a registered backend.
    ///
    /// # Errors
    /// [`Error::NotRegistered`]: register again. [`Error::RegistrationIsOff`].
    pub fn heartbeat(&self, address: impl Into<PeerAddress>) -> Result<(), Error> {
        self.inner.change(|core, now| core.heartbeat(address.into(), now))
    }

    /// Returns the keys of session tickets, for a successor.
    #[doc(hidden)]
    #[must_use]
    pub fn ticket_keys(&self) -> Secret {
        self.inner.server.as_ref().map(|server| server.ticket_keys()).unwrap_or_default()
    }

    /// Returns the state that a successor takes over.
    #[doc(hidden)]
    #[must_use]
    pub fn carried(&self) -> CarriedState {
        let now = throng_io::Clock::System.read();
        self.inner.lock().carried(now)
    }

    /// Returns the number of event loops if their tunnels can move to a successor.
    #[doc(hidden)]
    #[must_use]
    pub fn movable(&self) -> Option<usize> {
        self.inner.shards.movable()
    }

    /// Begins to move tunnels to a successor that has as many event loops. Returns the successor's
    /// part of each.
    ///
    /// # Errors
    /// No descriptor or thread is left. [`abandon_moves`](Self::abandon_moves) must follow.
    #[doc(hidden)]
    pub fn begin_moves(&self) -> io::Result<Vec<Passage>> {
        let (moves, passages) = self.inner.shards.begin_moves();
        *self.inner.moves() = moves;
        passages
    }

    /// Moves the tunnels to the successor, which accepts, at most until `until`. `is_alive` returns
    /// whether it lives.
    ///
    /// # Errors
    /// The successor must be ended, if it has not: then [`abandon_moves`](Self::abandon_moves) must
    /// follow.
    #[doc(hidden)]
    pub fn move_tunnels(
        &self,
        until: std::time::Instant,
        is_alive: &mut dyn FnMut() -> bool,
    ) -> Result<MovedTunnels, String> {
        let moves = self.inner.moves();
        moves.as_ref().map_or_else(|| Ok(MovedTunnels::default()), |it| it.run(until, is_alive))
    }

    /// Takes the tunnels back that a successor, which has ended, has not taken. Returns how many
    /// were the successor's, and ended with it.
    #[doc(hidden)]
    pub fn abandon_moves(&self) -> u64 {
        self.inner.moves().take().map_or(0, |moves| moves.abandon())
    }

    /// Ends the moves to a successor, which has all.
    #[doc(hidden)]
    pub fn end_moves(&self) {
        if let Some(moves) = self.inner.moves().take() {
            moves.end();
        }
    }

    /// Ends a registration: the backend is drained and removed from the list with its last tunnel.
    ///
    /// # Errors
    /// [`Error::NotRegistered`].
    pub fn deregister(&self, address: impl Into<PeerAddress>) -> Result<(), Error> {
        self.inner.change(|core, _| core.deregister(address.into()))
    }

    /// Returns the status of all backends and the sums of all shards.
    #[must_use]
    pub fn status(&self) -> Status {
        let metrics = self.inner.shards.metrics();
        let core = self.inner.lock();
        let mut status = Status {
            uptime_seconds: self.inner.began.elapsed().as_secs_f64(),
            pick: core.settings().pick.word(),
            backends: core.rows(self.inner.now()),
            names: core.name_rows(),
            panic: core.panic().0,
            panics: core.panic().1,
            metrics,
            own_failure: core.own_failure(),
            listeners: self.inner.shards.listeners().rows(),
            limits: core.limit_rows(),
            pools: core.pool_rows(),
            sites: core.site_rows(),
            tls: self.inner.server.as_deref().map(TlsStatus::of),
        };
        drop(core);
        if let Some(before) = self.inner.counted_before.get() {
            before.add_to(&mut status);
        }
        status
    }

    /// Returns what this process has counted, and its predecessors, for a successor to count on.
    #[doc(hidden)]
    #[must_use]
    pub fn counts(&self) -> CarriedCounts {
        let status = self.status();
        self.inner.lock().counts(&status)
    }

    /// Counts on from the counters of a predecessor. Only the first call has an effect.
    #[doc(hidden)]
    pub fn count_on(&self, counts: CarriedCounts) {
        let mut core = self.inner.lock();
        if self.inner.counted_before.get().is_none() {
            core.count_on(&counts);
            let _ = self.inner.counted_before.set(counts);
        }
    }

    /// Returns the metrics of each shard, at most a second old.
    #[must_use]
    pub fn metrics_of_each_shard(&self) -> Vec<Metrics> {
        self.inner.shards.metrics_of_each()
    }

    /// Shuts down: stops accepting, closes all tunnels with 1001 spread over `window`, resets
    /// connections left at `deadline`, and waits for the end of all threads. A second call waits
    /// for the same end.
    ///
    /// # Errors
    /// A shard had failed: its poll, or a panic, which is a bug in this crate.
    pub fn shut_down(&self, window: Duration, deadline: Duration) -> io::Result<()> {
        self.end(window, deadline, None::<fn()>)
    }

    /// Does the same while a successor accepts from the same sockets: clients that have connected
    /// and not sent a request yet are answered before they are closed. `on_begun` is called when
    /// the shards have the order to stop accepting.
    ///
    /// # Errors
    /// As for [`shut_down`](Balancer::shut_down).
    #[doc(hidden)]
    pub fn hand_over(
        &self,
        window: Duration,
        deadline: Duration,
        on_begun: impl FnOnce(),
    ) -> io::Result<()> {
        self.end(window, deadline, Some(on_begun))
    }

    fn end(
        &self,
        window: Duration,
        deadline: Duration,
        hand_over: Option<impl FnOnce()>,
    ) -> io::Result<()> {
        self.inner.lock().end();
        self.inner.changed.notify_all();
        self.inner.checks.end();
        self.inner.lookups.end();
        self.inner.issuer.end();
        self.inner.shards.shut_down(window, deadline, hand_over.is_some());
        if let Some(on_begun) = hand_over {
            on_begun();
        }
        let ended = self.inner.shards.join();
        // Reports end when the shards that send them end.
        let threads = std::mem::take(&mut *self.inner.threads());
        let joined = threads.into_iter().map(JoinHandle::join).filter(Result::is_err).count();
        debug_assert_eq!(joined, 0, "a control thread panicked");
        ended
    }
}

/// Additions of a program to a start.
#[derive(Default)]
struct With {
    access: Option<Arc<dyn AccessLog>>,
    held: HeldListeners,
    /// The backends of a predecessor.
    carried: CarriedState,
    /// Its keys of session tickets.
    ticket_keys: Secret,
    on_bound: Option<OnBound>,
}

/// The parts that a start needs before it listens.
struct Parts {
    config: Config,
    issuer: Issuer,
    server: Option<Arc<TlsServer>>,
    clients: PoolClients,
}

impl Parts {
    /// Checks the configuration, and reads its files.
    fn read(
        config: Config,
        open: impl FnOnce(Option<&AcmeSettings>) -> Result<Issuer, throng_tls::ConfigError>,
    ) -> Result<Self, Error> {
        config.check()?;
        let (backends, names) = (config.backends.clone(), config.names.clone());
        let config = config.with_passthrough(&backends, &names);
        let issuer = open(config.tls.as_ref().and_then(|tls| tls.acme.as_ref()));
        let issuer = issuer.map_err(|error| Error::of_files("tls", &error))?;
        let server = config.tls.as_ref().map(|tls| load_server(&config, tls, &issuer));
        let server = server.transpose()?;
        let clients = load_clients(&config)?;
        check_descriptors(&config)?;
        Ok(Self { config, issuer, server, clients })
    }
}

/// Checks that there are descriptors for the requested connections, and CPUs for pinned event
/// loops.
fn check_descriptors(config: &Config) -> Result<(), Error> {
    let (most, listeners) = (config.settings.max_connections, config.all_addresses().len());
    let divided = divide(config.descriptors, most, config.shards, listeners);
    let wrong = |key: &str, value: &dyn fmt::Display, why: &dyn fmt::Display| {
        let error = match config.values() {
            Some(values) => values.error(key, value, why),
            None => ConfigError::message(format_args!("{key} is {value}: {why}")),
        };
        Error::Config(error.into())
    };
    let division = divided.map_err(|why| wrong("max_connections", &most, &why))?;
    let placement = placement(config.is_pinned, config.shards, division.shards);
    placement.map(drop).map_err(|why| wrong("pin", &"\"cores\"", &why))
}

/// Reads the files of TLS with clients.
fn load_server(
    config: &Config,
    tls: &ClientSide,
    issuer: &Issuer,
) -> Result<Arc<TlsServer>, Error> {
    let server = TlsServer::load(with_certificate(config, tls, issuer));
    let server = server.map_err(|error| Error::of_files("tls", &error))?;
    let own = config.listeners.iter().any(|listener| listener.rules.accepts_plain());
    server.accept_plain(own || accepts_plain(tls, issuer));
    Ok(server)
}

/// Adds the certificate of the authority, and the certificates and rules of sites.
fn with_certificate(config: &Config, tls: &ClientSide, issuer: &Issuer) -> TlsConfig {
    TlsConfig { managed: issuer.managed(), ..config.server_tls(tls) }
}

fn accepts_plain(tls: &ClientSide, issuer: &Issuer) -> bool {
    tls.plain != PlainHttp::Refuse || issuer.is_http_01()
}

/// Reads the files of TLS to backends, for each pool with such backends.
fn load_clients(config: &Config) -> Result<PoolClients, Error> {
    let load = |(name, side): (Arc<str>, BackendSide)| match Clients::load(side) {
        Ok(clients) => Ok((name, clients)),
        Err(error) => Err(Error::of_files(&tls_key(&name), &error)),
    };
    config.backend_sides().map(load).collect()
}

/// Returns the table of the TLS of a pool.
fn tls_key(pool: &str) -> String {
    match pool {
        DEFAULT_POOL => "backend_tls".to_owned(),
        pool => format!("tls of the pool {pool}"),
    }
}

impl fmt::Debug for Balancer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balancer").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, ControlCore> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moves(&self) -> MutexGuard<'_, Option<Moves>> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        Instant::default().after(self.began.elapsed())
    }

    /// Runs an operation on the list and passes its effects on to shards and checks.
    fn change<T>(&self, operation: impl FnOnce(&mut ControlCore, Instant) -> T) -> T {
        let mut core = self.lock();
        let now = self.now();
        let outcome = operation(&mut core, now);
        core.expire(now, SystemTime::now());
        self.tell(&mut core);
        drop(core);
        self.changed.notify_all();
        outcome
    }

    /// Passes changes on to shards and checks, under the lock, so that changes arrive in their
    /// order.
    fn tell(&self, core: &mut ControlCore) {
        if core.has_ended() {
            return;
        }
        if let Some(configuration) = core.take_configuration() {
            self.shards.configure(&configuration);
            self.set_checks(core);
        }
        for command in core.take_commands() {
            match command {
                ControlCommand::Close(backend, closing, most) => {
                    self.shards.close_tunnels(&backend, &closing, most);
                }
                ControlCommand::Keep(backend) => self.shards.keep_tunnels(&backend),
            }
        }
        // After the backends, so that a new name has one: a shard handles its commands before it
        // looks for the backend of a name. A removed backend gets no clients from the moment its
        // state is set, so clients that ask for its last name before this call are closed.
        if let Some(names) = core.take_passthrough()
            && let Some(server) = &self.server
        {
            server.pass_through(&names);
        }
    }

    fn set_checks(&self, core: &ControlCore) {
        self.checks.set(core.checks());
    }

    /// Runs a thread: handles the reports of shards until they have ended.
    fn take_reports(&self, reports: &Receiver<BackendReport>) {
        while let Ok(first) = reports.recv() {
            // A burst of failures is one change.
            self.change(|core, now| {
                for report in std::iter::once(first).chain(reports.try_iter()) {
                    let BackendReport::Failed { backend, failure, spares_health } = report;
                    core.handle_failure(&backend, failure, spares_health, now, SystemTime::now());
                }
            });
        }
    }

    /// Waits until the names in `config` that are new have been looked up.
    fn look_up(&self, config: &Config) {
        let mut core = self.lock();
        core.forget_lookups();
        let wanted = config.all_names().chain(core.names());
        self.lookups.set(wanted, core.lookup_interval());
        let is_waiting = |core: &mut ControlCore| {
            !core.has_ended() && !config.all_names().all(|named| core.has_looked_up(&named.name))
        };
        drop(self.changed.wait_timeout_while(core, FIRST_LOOKUP, is_waiting));
    }

    /// Runs a thread: handles the answers of lookups until they end.
    fn take_answers(&self, answers: &Receiver<Option<LookupAnswer>>) {
        while let Ok(Some(LookupAnswer { name, outcome })) = answers.recv() {
            self.change(|core, now| {
                let wall = SystemTime::now();
                core.handle_lookup(&name, outcome, now, wall, |core| self.tell(core));
            });
        }
    }

    /// Runs a thread: executes timed actions.
    fn keep_time(&self) {
        let mut core = self.lock();
        while !core.has_ended() {
            let now = self.now();
            let next = core.expire(now, SystemTime::now());
            self.tell(&mut core);
            core = match next {
                Some(next) => {
                    let waited = self.changed.wait_timeout(core, next.since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(core).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// Handles the first answers for all names, so that clients find backends from the beginning.
fn first_lookups(core: &mut ControlCore, answers: &Receiver<Option<LookupAnswer>>) {
    let until = std::time::Instant::now() + FIRST_LOOKUP;
    while !core.names().all(|named| core.has_looked_up(&named.name)) {
        let left = until.saturating_duration_since(std::time::Instant::now());
        let Ok(Some(LookupAnswer { name, outcome })) = answers.recv_timeout(left) else { return };
        core.handle_lookup(&name, outcome, Instant::default(), SystemTime::now(), |_| {});
    }
}

#[cfg(test)]
mod tests;
