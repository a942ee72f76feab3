//! Starts a server: checks routes and settings, listens, and builds the shards.

#[cfg(target_os = "linux")]
use std::cell::RefCell;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fmt, io};

use throng_engine::workers::{WorkerSettings, Workers};
use throng_engine::{
    Admission, BuildOptions, Classes, Limits, Remote, RouteOptions, SettingError, Snapshot,
    TrustedProxies,
};
use throng_http::{Network, param_names};
#[cfg(target_os = "linux")]
use throng_io::Epoll;
use throng_io::capacity::{Division, Needs};
#[cfg(target_os = "linux")]
use throng_io::tables::Tables;
use throng_io::{
    Driver, ListenOptions, Listener, ListenerId, Options, Portable, listen_many, may_pass,
};
use throng_proto::ws::deflate::{self, Settings as Deflate};

use super::Server;
use super::tables::MAX_SHARDS;
use crate::app::{AppRoute, RouteAction};
use crate::cluster::{Guard, Unconnected};
use crate::error::{Error, Result};
use crate::hub::Hub;
use crate::io_backend::IoBackend;
use crate::live::{Live, LiveOrigins};
#[cfg(feature = "metrics")]
use crate::observe::Observer;
use crate::panic_notice::Reporter;
use crate::running::{Addresses, Bound, Capacity, Serving, ShardThreads};
use crate::service::{BoundRoute, RouteShared, ShardService};
use crate::shard::ShardContext;
use crate::stalls::Stalls;
use crate::ticks;
use crate::tls::{Secured, Security, wrap};
use crate::workers::{RouteContext, WorkerPool};
use crate::ws::SessionMail;
use throng_io::placement::Placement;

/// The idle time after which the kernel sends TCP keep-alive probes. Heartbeats find a dead peer
/// sooner; this is for programs that turned them off, and for connections that are not WebSockets.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// The time that the kernel's user timeout is later than the shard's write timeout, so that the
/// shard closes the connection first and counts the reason.
const KERNEL_LATER: Duration = Duration::from_secs(5);

/// Bytes of unsent output that the kernel may hold per connection (`TCP_NOTSENT_LOWAT`). More would
/// be memory outside every limit, up to 4 MB per client that does not read; less would make a fast
/// client wait.
const UNSENT_LOW_WATER: u32 = 128 << 10;

/// The low-water mark where rules drop old messages, since bytes in the kernel cannot be dropped.
const FRESH_LOW_WATER: u32 = 16 << 10;

/// The kernel's send buffer where rules drop old messages, on systems without a low-water mark. It
/// bounds the throughput over long distances too, so that other connections keep the kernel's size.
const FRESH_SEND_BUFFER: usize = 64 << 10;

impl Server {
    /// Checks the routes and settings, as [`bind`](Self::bind) does before it listens.
    ///
    /// # Errors
    /// [`Error::Setting`] names the setting, the value and the remedy.
    pub fn check(&self) -> Result<()> {
        if let Some(mistake) = &self.mistake {
            return Err(Error::Setting(mistake.clone()));
        }
        self.app.router()?;
        crate::threads::check_stack(self.shards.thread_stack)?;
        self.tls.check()?;
        self.cluster.check()?;
        self.workers.check().map_err(Error::of_workers)?;
        if self.observe.stall_warning == Some(Duration::ZERO) {
            let message = "stall_warning is 0; give for example 50 ms, or None to turn it off";
            return Err(Error::setting("stall_warning", message));
        }
        if self.sockets.unsent_limit == Some(0) {
            let message = "unsent_limit is 0, which the kernel takes for no limit; give for \
                           example 16384 for 16 KiB";
            return Err(Error::setting("unsent_limit", message));
        }
        if self.proxies.proxy_protocol && self.proxies.trusted.is_empty() {
            let message = "proxy_protocol is on, and trusted_proxies is empty: any client could \
                           claim any address; name the proxies, for example [\"10.0.0.0/8\"]";
            return Err(Error::setting("proxy_protocol", message));
        }
        self.origins.check().map_err(|remedy| Error::setting("origins", remedy))?;
        self.check_shards()?;
        self.limits.check()?;
        Ok(self.classes().check(&self.limits)?)
    }

    /// Does everything that [`bind`](Self::bind) does except listen and connect. Beyond
    /// [`check`](Self::check), which a running server can also call, it checks whether descriptors,
    /// CPUs and files allow a start of this process. It removes everything that it creates for the
    /// check.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    pub fn check_start(&self) -> Result<()> {
        let plan = self.plan(false)?;
        self.cluster.clone().prepare(plan.has_own_tables()).map(drop)
    }

    /// Decides the settings of a start before the server listens. `inherited`: the sockets were
    /// passed on by another process.
    fn plan(&self, inherited: bool) -> Result<StartPlan> {
        self.check()?;
        let mut shards = self.shard_count()?;
        let tables = self.plan_tables(shards, inherited)?;
        let (max_connections, capacity) = match &tables {
            Division::PerShard(plan) => {
                shards = plan.shards;
                (plan.max_connections, Some(plan.to_string()))
            }
            Division::Shared { .. } => {
                let addresses = self.more_addresses.len() + usize::from(!inherited);
                let listeners = self.listener_descriptors(shards * addresses);
                (self.max_connections(shards, listeners)?, None)
            }
        };
        let plan = StartPlan { shards, tables, max_connections, capacity, placement: None };
        if let (Some(path), true) = (self.placed_route(), plan.has_own_tables()) {
            let message = format!(
                "the sessions of {path} are placed by key (Ws::place_by), \
                 and each event loop has a descriptor table of its own, so that no connection can \
                 move to another; keep one table for all"
            );
            return Err(Error::setting("place_by", message));
        }
        let placement = self.shards.pin.place(self.shards.io, shards, plan.has_own_tables())?;
        Ok(StartPlan { placement, ..plan })
    }

    /// Refuses settings that need several connections per event loop where each connection has its
    /// own event loop.
    fn check_shards(&self) -> Result<()> {
        if self.shards.io != IoBackend::Threads {
            return Ok(());
        }
        let remedy = "io is threads, where each connection has a thread of its own; take io auto";
        let refused =
            |setting, what| Err(Error::setting(setting, format!("{what} is used, and {remedy}")));
        match (self.placed_route(), self.shard_ticks.is_empty()) {
            (Some(_), _) => refused("place_by", "Ws::place_by"),
            (None, false) => refused("every_on_shard", "every_on_shard"),
            (None, true) => Ok(()),
        }
    }

    /// Returns the path of a route whose sessions are placed by key, if there is one.
    fn placed_route(&self) -> Option<&str> {
        let is_placed = |route: &&AppRoute| match &route.action {
            RouteAction::Ws(ws) => ws.options.is_placed,
            _ => false,
        };
        self.app.routes.iter().find(is_placed).map(|route| route.path.as_str())
    }

    /// Listens on `address`; port 0 takes a free port, which [`Bound::local_addr`] returns.
    /// Connections wait in the kernel's queue until the server runs.
    ///
    /// # Errors
    /// [`Error::Setting`] for a route or setting that cannot work, [`Error::Bind`] for an address
    /// that cannot be listened on, [`Error::Shard`] if the system refuses resources for the event
    /// loops.
    pub fn bind(self, address: impl ToSocketAddrs + fmt::Debug) -> Result<Bound> {
        let plan = self.plan(false)?;
        let address = resolve(address)?;
        let (listeners, bound) = self.listen(address, plan.shards)?;
        self.build(listeners, bound, plan)
    }

    /// Accepts connections on sockets that already listen: sockets of a service manager
    /// ([`inherited_listeners`](crate::server::inherited_listeners)), a socket bound by a test, or
    /// a Unix socket ([`UnixSocket`](crate::server::UnixSocket)). The server also listens on the
    /// addresses of [`bind_also`](Self::bind_also).
    ///
    /// Clients on a Unix socket have no address: no cap by address applies to them, unless a proxy
    /// there is trusted (`unix:` in [`Proxies::trusted`](super::Proxies::trusted)) and names it.
    ///
    /// Each socket belongs to one event loop, which hands connections over to others that have
    /// fewer.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind); [`Error::Setting`] if there is no listener.
    pub fn listen_on<L: Into<Listener>>(
        self,
        listeners: impl IntoIterator<Item = L>,
    ) -> Result<Bound> {
        let plan = self.plan(true)?;
        let count = plan.shards;
        let mut of_shards: Vec<Vec<Listener>> = (0..count).map(|_| Vec::new()).collect();
        let mut bound = Addresses::default();
        for (at, listener) in listeners.into_iter().enumerate() {
            let listener = listener.into();
            listener.set_nonblocking().map_err(Error::Shard)?;
            bound.add(&listener)?;
            of_shards[at % count].push(listener);
        }
        if bound.is_empty() {
            let message = "no listener was given; pass at least one, or use Server::bind";
            return Err(Error::setting("listeners", message));
        }
        self.listen_besides(&mut of_shards, &mut bound.tcp)?;
        self.build(of_shards, bound, plan)
    }

    /// Builds a server that does not listen, for connections from the program:
    /// [`Hub::adopt`](Hub::adopt).
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    pub fn without_listener(self) -> Result<Bound> {
        let plan = self.plan(true)?;
        let mut of_shards: Vec<Vec<Listener>> = (0..plan.shards).map(|_| Vec::new()).collect();
        let mut bound = Addresses::default();
        self.listen_besides(&mut of_shards, &mut bound.tcp)?;
        self.build(of_shards, bound, plan)
    }

    /// Builds the shards, each with its listeners.
    fn build(
        self,
        listeners: Vec<Vec<Listener>>,
        bound: Addresses,
        plan: StartPlan,
    ) -> Result<Bound> {
        let StartPlan { shards: count, tables, max_connections, capacity, placement } = plan;
        let own_tables = match &tables {
            Division::PerShard(plan) => Some(plan.of_a_table),
            Division::Shared { .. } => None,
        };
        let security = self.load_tls(count)?;
        let starts_workers = self.starts_workers || self.app.uses_workers();
        let drivers = Drivers {
            io: self.shards.io,
            thread_stack: self.shards.thread_stack,
            base: Options {
                unsent_low_water: Some(self.unsent_low_water()),
                socket_send_buffer: self.send_buffer(),
                ..driver_options(own_tables.unwrap_or(max_connections), &self.limits)
            },
            security: security.clone(),
            own_tables: own_tables.is_some(),
        };
        // A worker started by a shard would share the shard's table.
        let starts_workers = starts_workers || own_tables.is_some();
        let prepared = self.prepare(max_connections, own_tables, security)?;
        let origins = prepared.shared.origins.clone();
        let shards = drivers.build(listeners, &prepared.options, prepared.service())?;
        let parts = (shards.remote(), shards.snapshots(), shards.admission());
        let finished = prepared.finish(parts)?;
        let ShardThreads { starts, tables: own_tables, hub, snapshots, admission, configurator } =
            shards;
        let capacity = Capacity {
            connections: max_connections,
            reason: capacity,
            tables_refused: match tables {
                Division::Shared { refused: reason, .. } => reason,
                Division::PerShard(_) => None,
            },
        };
        let serving = Serving {
            addresses: bound,
            hub,
            snapshots,
            admission,
            placement,
            stalls: finished.stalls,
            pool: finished.pool,
            security: finished.security,
            live: Live { configurator, origins },
            capacity,
            #[cfg(feature = "metrics")]
            observer: finished.observer,
        };
        Ok(Bound { serving, starts, tables: own_tables, starts_workers })
    }

    /// Builds the only shard of a server on the caller's driver. The caller runs it.
    #[cfg(feature = "test")]
    pub(crate) fn build_local<D: Driver>(
        self,
        driver: D,
    ) -> Result<(throng_engine::Shard<D, ShardService>, Hub)> {
        const CONNECTIONS: usize = 10_000;
        self.check()?;
        let security = self.load_tls(1)?;
        let prepared = self.prepare(CONNECTIONS, None, security)?;
        let service = prepared.service();
        let make = |_, admission: &Arc<Admission>, _: &Remote| service(admission);
        let built = throng_engine::build(vec![driver], &prepared.options, make)?;
        prepared.finish((&built.remote, &built.snapshots, &built.admission))?;
        let hub = Hub::of(built.remote);
        let shard = built.shards.into_iter().next();
        shard.map(|shard| (shard, hub)).ok_or(Error::ShardPanicked)
    }

    fn load_tls(&self, shards: usize) -> Result<Security> {
        let security = self.tls.load(shards)?.reporting_to(self.observe.events.clone());
        Ok(if self.proxies.proxy_protocol { security.after_proxy_header() } else { security })
    }

    /// Prepares everything that the shards share.
    fn prepare(
        self,
        max_connections: usize,
        own_tables: Option<usize>,
        security: Security,
    ) -> Result<Prepared> {
        let paths = self.app.routes.iter().map(|route| route.path.as_str());
        let cluster = self.cluster.clone().prepare(own_tables.is_some())?;
        let stalls =
            Arc::new(Stalls::new(self.observe.stall_warning, self.observe.events.clone(), paths));
        let options = BuildOptions {
            limits: self.limits.clone(),
            classes: self.classes(),
            presences: self.channels.presences.clone(),
            routes: self.route_options(),
            max_connections,
            own_tables,
            watching: Some(stalls.watching()),
            mailbox_mark: None,
            mailbox_capacity: None,
            handover_capacity: None,
            trusted_proxies: trusted_proxies(&self.proxies.trusted),
            proxy_protocol: self.proxies.proxy_protocol.then(|| security.proxy_protocol()),
            relay: cluster.relay(),
            seed: None,
        };
        #[cfg(feature = "metrics")]
        let (build, warnings) = (self.observe.build, Arc::clone(&self.observe.warnings));
        let (workers, pool) = (self.workers, WorkerPool::default());
        let hub = self.hub.clone();
        let shared = self.into_shared(Arc::clone(&stalls), pool.clone(), security.clone())?;
        Ok(Prepared {
            options,
            shared: Arc::new(shared),
            stalls,
            pool,
            workers,
            security,
            cluster,
            hub,
            #[cfg(feature = "metrics")]
            build,
            #[cfg(feature = "metrics")]
            warnings,
        })
    }

    /// Returns the limits that each route has for its sessions.
    pub(super) fn route_options(&self) -> Arc<[RouteOptions]> {
        self.app.routes.iter().map(route_options).collect()
    }

    /// Returns how many bytes of unsent output the kernel may buffer for a connection.
    fn unsent_low_water(&self) -> u32 {
        match self.sockets.unsent_limit {
            Some(bytes) => u32::try_from(bytes).unwrap_or(u32::MAX),
            None if self.classes().drop_stale() => FRESH_LOW_WATER,
            None => UNSENT_LOW_WATER,
        }
    }

    /// Returns the size of the kernel's send buffer of a connection; `None`: the kernel decides.
    fn send_buffer(&self) -> Option<usize> {
        // Where the unsent part has no limit of its own, the buffer is the limit.
        let is_limit = cfg!(not(target_os = "linux")) && self.classes().drop_stale();
        self.sockets.send_buffer.or(is_limit.then_some(FRESH_SEND_BUFFER))
    }

    /// Returns the back-pressure rules of the server, its channels and its routes.
    pub(super) fn classes(&self) -> Classes {
        let mut classes = self.channels.classes.clone();
        classes.set_default(self.backpressure);
        for (index, route) in (0..).zip(&self.app.routes) {
            if let RouteAction::Ws(ws) = &route.action
                && let Some(rules) = ws.options.backpressure
            {
                classes.add_route(index, &route.path, rules);
            }
        }
        classes
    }

    /// Returns the listeners of each shard, and the addresses bound.
    fn listen(
        &self,
        address: SocketAddr,
        shards: usize,
    ) -> Result<(Vec<Vec<Listener>>, Addresses)> {
        let mut of_shards: Vec<Vec<Listener>> = (0..shards).map(|_| Vec::new()).collect();
        let mut tcp = vec![self.open(address, &mut of_shards)?];
        self.listen_besides(&mut of_shards, &mut tcp)?;
        Ok((of_shards, Addresses { tcp, ..Addresses::default() }))
    }

    /// Listens on the further addresses, in the order given; port 0 stands for the first address's
    /// port.
    fn listen_besides(
        &self,
        of_shards: &mut [Vec<Listener>],
        bound: &mut Vec<SocketAddr>,
    ) -> Result<()> {
        for mut address in self.more_addresses.iter().copied() {
            if let (0, Some(first)) = (address.port(), bound.first()) {
                address.set_port(first.port());
            }
            let got = self.open(address, of_shards)?;
            bound.push(got);
        }
        Ok(())
    }

    /// Opens the listeners of one address, at least one for each shard; returns the address.
    ///
    /// Only Linux spreads the connections of a port over several listeners. Elsewhere one shard
    /// accepts, another one for each address, and hands connections over to the others.
    fn open(&self, address: SocketAddr, of_shards: &mut [Vec<Listener>]) -> Result<SocketAddr> {
        let (options, shards) = (self.listen_options(), of_shards.len());
        let count = if cfg!(target_os = "linux") { shards } else { 1 };
        let (listeners, got) = match &self.held {
            Some((held, purpose)) => held.listen_many(*purpose, address, options, count),
            None => listen_many(address, options, count),
        }
        .map_err(|source| Error::bind(&address, source))?;
        let first = if count == 1 { of_shards.iter().map(Vec::len).sum() } else { 0 };
        for (at, listener) in listeners.into_iter().enumerate() {
            of_shards[(first + at) % shards].push(listener.into());
        }
        Ok(got)
    }

    /// Returns the descriptors that this many listeners need besides those that are open already,
    /// since a predecessor has passed them on. The second ones for a successor are of the reserve.
    pub(super) fn listener_descriptors(&self, listeners: usize) -> usize {
        let open = self.held.as_ref().map_or(0, |(held, _)| held.unused());
        listeners.saturating_sub(open)
    }

    fn listen_options(&self) -> ListenOptions {
        ListenOptions {
            backlog: self.sockets.backlog,
            reuse_port: self.sockets.reuse_port,
            ..ListenOptions::default()
        }
    }

    fn into_shared(
        self,
        stalls: Arc<Stalls>,
        pool: WorkerPool,
        security: Security,
    ) -> Result<RouteShared> {
        let router = self.app.router()?;
        let usual = self.compression;
        let bind = |route: AppRoute| {
            let path: Arc<str> = route.path.as_str().into();
            let events = self.observe.events.clone();
            Ok(BoundRoute {
                names: param_names(&route.path)
                    .map_err(|error| Error::setting("route", error.to_string()))?
                    .into(),
                context: Arc::new(RouteContext {
                    path: Arc::clone(&path),
                    pool: pool.clone(),
                    reporter: Arc::new(Reporter { path, events }),
                }),
                compression: compression(&route, usual)?,
                route,
            })
        };
        Ok(RouteShared {
            routes: self.app.routes.into_iter().map(bind).collect::<Result<_>>()?,
            router,
            layers: self.app.layers,
            refusals: self.app.refusals,
            origins: LiveOrigins::new(self.origins),
            trusted_proxies: self.proxies.trusted.into(),
            pool: pool.clone(),
            shards: ShardContext::new(pool, self.observe.events.clone()),
            events: self.observe.events,
            access: self.observe.access,
            stalls,
            security,
            ticks: ticks::Waiting::new(self.ticks, self.shard_ticks),
            cluster: OnceLock::new(),
            #[cfg(feature = "metrics")]
            observer: OnceLock::new(),
        })
    }

    fn shard_count(&self) -> Result<usize> {
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        match self.shards.count {
            _ if self.shards.io == IoBackend::Threads => Ok(1),
            None => Ok(usable),
            Some(n) if (1..=MAX_SHARDS).contains(&n) => Ok(n),
            Some(n) => Err(Error::setting(
                "shards",
                format!("shards is {n}; give 1 to {MAX_SHARDS}, or leave it out for one per CPU"),
            )),
        }
    }
}

/// The decisions of a start, before it listens.
struct StartPlan {
    shards: usize,
    tables: Division,
    max_connections: usize,
    /// The reason for this number.
    capacity: Option<String>,
    placement: Option<Placement>,
}

impl StartPlan {
    fn has_own_tables(&self) -> bool {
        matches!(self.tables, Division::PerShard(_))
    }
}

/// Everything that the shards of a server share, before they are built.
struct Prepared {
    options: BuildOptions,
    shared: Arc<RouteShared>,
    stalls: Arc<Stalls>,
    pool: WorkerPool,
    workers: WorkerSettings,
    security: Security,
    cluster: Unconnected,
    hub: Option<Hub>,
    #[cfg(feature = "metrics")]
    build: &'static [(&'static str, &'static str)],
    #[cfg(feature = "metrics")]
    warnings: Arc<[String]>,
}

/// The parts of a server that outlive its start.
struct RunningParts {
    stalls: Arc<Stalls>,
    pool: WorkerPool,
    security: Security,
    #[cfg(feature = "metrics")]
    observer: Observer,
}

impl Prepared {
    /// Returns the function that makes the service of each shard.
    fn service(&self) -> impl Fn(&Arc<Admission>) -> ShardService + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move |admission| ShardService::new(Arc::clone(&shared), Arc::clone(admission))
    }

    /// Gives the services the parts that exist only after the shards.
    fn finish(
        self,
        (remote, snapshots, admission): (&Remote, &Arc<[Arc<Snapshot>]>, &Arc<Admission>),
    ) -> Result<RunningParts> {
        #[cfg(not(feature = "metrics"))]
        let _ = (snapshots, admission);
        if self.hub.is_some_and(|hub| !hub.connect(remote)) {
            let reason = "hub is that of another server; make one by Hub::new() for each server";
            return Err(Error::setting("hub", reason));
        }
        let node = self.cluster.start(remote, &self.shared.events)?;
        let _ = self.shared.cluster.set(Guard(node.clone()));
        #[cfg(feature = "metrics")]
        let observer = Observer {
            snapshots: Arc::clone(snapshots),
            admission: Arc::clone(admission),
            remote: remote.clone(),
            pool: self.pool.clone(),
            stalls: Arc::clone(&self.stalls),
            security: self.security.clone(),
            node,
            build: self.build,
            warnings: self.warnings,
            earlier: Arc::default(),
        };
        #[cfg(feature = "metrics")]
        let _ = self.shared.observer.set(observer.clone());
        let remote = remote.clone();
        let on_capacity = move |id| remote.post(id, Box::new(SessionMail::QueueCapacity));
        self.pool.set(Workers::new(self.workers, on_capacity).map_err(Error::of_workers)?);
        Ok(RunningParts {
            stalls: self.stalls,
            pool: self.pool,
            security: self.security,
            #[cfg(feature = "metrics")]
            observer,
        })
    }
}

/// The configuration of the shards' drivers.
struct Drivers {
    io: IoBackend,
    thread_stack: usize,
    base: Options,
    security: Security,
    /// Each shard gets a descriptor table of its own.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has them"))]
    own_tables: bool,
}

impl Drivers {
    /// Builds the shards, each with its listeners and a driver of the backend chosen.
    fn build(
        self,
        listeners: Vec<Vec<Listener>>,
        options: &BuildOptions,
        service: impl Fn(&Arc<Admission>) -> ShardService + Send + Sync + 'static,
    ) -> Result<ShardThreads> {
        let (base, security) = (self.base, self.security);
        match self.io {
            #[cfg(target_os = "linux")]
            IoBackend::Auto | IoBackend::Epoll => {
                let tables = self.own_tables.then(|| Tables::new(listeners.len()));
                let tables = RefCell::new(tables);
                let new = |options| {
                    let driver = Epoll::new(options)?;
                    let shard = driver.shard();
                    tables.borrow_mut().iter_mut().for_each(|all| driver.enlist(shard, all));
                    Ok(driver)
                };
                let add = |driver: &mut Epoll, listener: Listener| {
                    let shard = driver.shard();
                    tables.borrow_mut().iter_mut().for_each(|all| all.give(shard, &listener));
                    driver.add_listener(listener)
                };
                let shards = if security.is_on() {
                    let drivers = each_secured(base, &security, listeners, new, add)?;
                    ShardThreads::build(drivers, options, service)?
                } else {
                    let add = |driver: &mut Epoll, listener| add(driver, listener).map(drop);
                    let drivers = each_listening(base, listeners, new, add)?;
                    ShardThreads::build(drivers, options, service)?
                };
                Ok(shards.in_tables(tables.into_inner()))
            }
            #[cfg(not(target_os = "linux"))]
            IoBackend::Epoll => {
                let message = "io is epoll, which only Linux has; use auto or portable";
                Err(Error::setting("io", message))
            }
            IoBackend::Threads => {
                let listeners = listeners.into_iter().flatten();
                let stack = self.thread_stack;
                crate::threads::build(listeners, base, &security, stack, options, service)
            }
            #[cfg(windows)]
            IoBackend::Auto | IoBackend::Iocp => {
                let add = throng_io::Iocp::add_listener;
                let drivers = each_secured(base, &security, listeners, throng_io::Iocp::new, add)?;
                ShardThreads::build(drivers, options, service)
            }
            #[cfg(not(windows))]
            IoBackend::Iocp => {
                let message = "io is iocp, which only Windows has; use auto or portable";
                Err(Error::setting("io", message))
            }
            #[allow(unreachable_patterns, reason = "Auto is epoll on Linux, iocp on Windows")]
            IoBackend::Auto | IoBackend::Portable => {
                let add = Portable::add_listener;
                let drivers = each_secured(base, &security, listeners, Portable::new, add)?;
                ShardThreads::build(drivers, options, service)
            }
        }
    }
}

/// Creates one driver per shard, with that shard's listeners.
fn each_listening<D: Driver>(
    base: Options,
    listeners: Vec<Vec<Listener>>,
    new: impl Fn(Options) -> io::Result<D>,
    add_listener: impl Fn(&mut D, Listener) -> io::Result<()>,
) -> Result<Vec<D>> {
    let driver = |(shard, listeners): (usize, Vec<Listener>)| {
        let mut driver = new(Options { shard: shard as u16, ..base.clone() })?;
        for listener in listeners {
            add_listener(&mut driver, listener)?;
        }
        Ok(driver)
    };
    listeners.into_iter().enumerate().map(driver).collect::<io::Result<_>>().map_err(Error::Shard)
}

/// Creates one driver per shard whose listeners may have TLS.
///
/// Under epoll a server without TLS has the plain driver, since a layer in between costs 70
/// instructions a message. Other backends always use this driver, so that the engine is compiled
/// only once for each of them.
fn each_secured<D: Driver>(
    base: Options,
    security: &Security,
    listeners: Vec<Vec<Listener>>,
    new: impl Fn(Options) -> io::Result<D>,
    add_listener: impl Fn(&mut D, Listener) -> io::Result<ListenerId>,
) -> Result<Vec<Secured<D>>> {
    let new = |options| new(options).map(wrap);
    each_listening(base, listeners, new, |driver, listener| {
        crate::tls::listen(driver, security, |inner| add_listener(inner, listener))
    })
}

/// Selects the networks of trusted proxies, whose connections belong to many clients.
fn trusted_proxies(proxies: &[Network]) -> Option<TrustedProxies> {
    let proxies = proxies.to_vec();
    let is_proxy = move |peer| proxies.iter().any(|network| network.includes(peer));
    Some(TrustedProxies(Arc::new(is_proxy)))
}

/// Returns the options of the drivers of all shards.
fn driver_options(max_connections: usize, limits: &Limits) -> Options {
    let defaults = Options::default();
    Options {
        // Connections over the limit have a reserve: the slot of an evicted connection is not free
        // at once.
        max_connections: max_connections + Needs::RESERVED_BY_SERVERS + defaults.accepts_per_turn,
        // Both are set on the listener, and accepted sockets inherit them: no system call each.
        keepalive: Some(KEEP_ALIVE),
        // The engine cannot see output the kernel has taken; this timeout covers it.
        user_timeout: Some(limits.write_timeout + KERNEL_LATER),
        ..defaults
    }
}

/// Returns the limits that a route has for its sessions.
fn route_options(route: &AppRoute) -> RouteOptions {
    let RouteAction::Ws(ws) = &route.action else { return RouteOptions::default() };
    ws.options.limits
}

/// Returns the compression that a route negotiates with clients that offer it.
fn compression(route: &AppRoute, usual: Deflate) -> Result<Option<deflate::Policy>> {
    let RouteAction::Ws(ws) = &route.action else { return Ok(None) };
    let settings = ws.options.compression.unwrap_or(usual);
    let policy =
        settings.check().map_err(|error| Error::setting("compression", error.to_string()))?;
    // Messages of a streaming route are passed on in chunks as they come, never decompressed.
    Ok(policy.filter(|_| !ws.options.limits.streams))
}

pub(super) fn resolve(
    address: impl ToSocketAddrs + fmt::Debug,
) -> std::result::Result<SocketAddr, SettingError> {
    let wrong = |why: String| {
        let remedy = "write HOST:PORT, for example 127.0.0.1:9001 or [::1]:0";
        SettingError::new("address", format!("the address {address:?} {why}; {remedy}"))
    };
    let mut addresses = address.to_socket_addrs().map_err(|error| {
        wrong(format!("cannot be resolved ({error})")).passing_if(may_pass(&error))
    })?;
    addresses.next().ok_or_else(|| wrong("has no host".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The driver's own test shows that accepted sockets inherit both options
    /// (`accepted_sockets_inherit_their_options`).
    #[test]
    fn the_kernel_also_times_out_vanished_peers() {
        let options = driver_options(100, &Limits::default());
        assert_eq!(options.keepalive, Some(Duration::from_secs(60)));
        assert_eq!(options.user_timeout, Some(Limits::default().write_timeout + KERNEL_LATER));
        assert_eq!(options.max_connections, 164 + options.accepts_per_turn);
    }
}
