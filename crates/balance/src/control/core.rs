//! The list of backends and all operations that change it. It has no thread, socket or clock: time
//! comes with each call, and changes for shards are collected in [`ControlCore::take_commands`] and
//! [`ControlCore::take_configuration`].

mod apply;
pub(crate) mod carried;
pub(crate) mod counts;
mod health;
mod maintenance;
mod names;
mod rebalance;
mod register;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use throng_io::{Instant, PeerAddress};
use throng_proto::http1::Request;

use self::names::{Found, Listed};
use super::error::Error;
use super::key::BackendKey;
use crate::backend::{Backend, MAX_WEIGHT, State};
use crate::blocks::Blocks;
use crate::classes::TunnelClasses;
use crate::clients::Clients;
use crate::config::{
    BackendConfig, BackendSide, ClientSide, Config, MAX_BACKENDS, Mistake, NamedBackend, Register,
    check_backend, check_passthrough,
};
use crate::configuration::{Configuration, drawn_loop_id};
use crate::limit::{LimitConfig, LimitRow, RateLimits};
use crate::listener::ListenAt;
use crate::pool::{DEFAULT_POOL, Pool, Pools};
use crate::queue::PoolLoad;
use crate::registry::{DesiredState, Drain, Entry, PoolRules};
use crate::report::Failure;
use crate::settings::{Check, CheckKind, CloseOrder, Closing, Removed, Settings, Target};
use crate::site::{
    Asked, Explanation, HostPolicies, Policy, PolicyConfig, SetWeights, SiteConfig, SiteCounters,
    SiteRow, SiteSummary, Sites, SplitMistake, SplitShare, passed_hosts,
};
use crate::status::{
    DrainProgress, Draining, LastFailure, PoolDraining, PoolRow, Removal, Row, RowTotals, share_of,
};
use throng_proto::ws::CloseCode;
use throng_tls::Challenges;

/// The code of Close frames that make clients reconnect to another backend.
const SERVICE_RESTART: u16 = CloseCode::SERVICE_RESTART.get();

/// A command for all shards.
#[derive(Debug)]
pub(crate) enum ControlCommand {
    /// Close tunnels of this backend: this many, or all.
    Close(Arc<Backend>, Closing, Option<u32>),
    /// Stop closing tunnels of this backend.
    Keep(Arc<Backend>),
}

/// A pool, and its backends in the file.
#[derive(Debug)]
struct KnownPool {
    rules: Arc<PoolRules>,
    load: Arc<PoolLoad>,
    /// The backends of the last list in the file, including backends that operators have removed
    /// since.
    listed: Vec<BackendConfig>,
    /// The backends that have names.
    names: Vec<NamedBackend>,
}

/// The TLS configurations of connections to backends, by the name of the pool.
pub(crate) type PoolClients = HashMap<Arc<str>, Clients>;

/// The list of backends and their health.
#[derive(Debug)]
pub(crate) struct ControlCore {
    entries: Vec<Entry>,
    /// Removed backends that connections may still use. A backend that comes back before they end
    /// is the same one.
    gone: Vec<(Arc<str>, Weak<Backend>)>,
    settings: Settings,
    register: Option<Register>,
    /// The sites as they are configured, and compiled.
    sites: (Arc<[SiteConfig]>, Option<Arc<Sites>>),
    /// The treatment of all requests as it is configured, and of those that no site has.
    policy: (PolicyConfig, Arc<Policy>),
    /// The sites for which operators have switched maintenance.
    maintenance: Arc<BTreeMap<Arc<str>, bool>>,
    /// The classes of tunnels of this process.
    classes: TunnelClasses,
    /// The limits as they are configured, and in force.
    limits: (Vec<LimitConfig>, RateLimits),
    counters: SiteCounters,
    blocks: Arc<Blocks>,
    /// The weights of splits that operators have set.
    set_weights: SetWeights,
    /// The pools, first the default.
    pools: Vec<KnownPool>,
    /// The outcome of their lookups.
    found: BTreeMap<Arc<str>, Found>,
    /// The time between two lookups of a name.
    lookup_interval: Duration,
    /// The last failure of the balancer itself, with the backend it could not connect to.
    own_failure: Option<(PeerAddress, Failure, SystemTime)>,
    /// The TLS configurations of connections to backends.
    clients: PoolClients,
    /// Challenges of the authority that issues a certificate, if one does.
    challenges: Option<Arc<Challenges>>,
    /// As it was last read.
    security: (Option<ClientSide>, Option<BackendSide>),
    /// The configuration at the start: changes of some of its keys need a restart.
    started: Config,
    /// The bound addresses of clients, and the operators' address.
    addresses: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
    /// The balancer's id where the settings have none.
    drawn_loop_id: Arc<str>,
    commands: Vec<ControlCommand>,
    /// Whether fewer than half of the backends are up; and how often that has begun.
    panic: (bool, u64),
    is_changed: bool,
    /// Whether [`ControlCore::passthrough`] may have changed.
    names_changed: bool,
    has_ended: bool,
}

impl ControlCore {
    /// Creates the list with the backends of `config`, which was checked. All are up and at their
    /// whole share.
    pub(crate) fn new(config: Config) -> Self {
        let limits = RateLimits::new(&config.limits, &RateLimits::default());
        // Mistakes were reported by the check.
        let sites = config.compiled_sites().unwrap_or_default();
        let mut core = Self {
            entries: Vec::new(),
            gone: Vec::new(),
            settings: config.settings.clone(),
            register: config.register.clone(),
            counters: SiteCounters::new(sites.as_deref(), &SiteCounters::default()),
            blocks: Arc::default(),
            set_weights: SetWeights::default(),
            sites: (Arc::clone(&config.sites), sites),
            policy: (config.policy.clone(), config.compiled_policy().unwrap_or_default()),
            classes: TunnelClasses::default(),
            maintenance: Arc::default(),
            limits: (config.limits.clone(), limits),
            pools: Vec::new(),
            found: BTreeMap::new(),
            lookup_interval: config.lookup_interval,
            own_failure: None,
            clients: PoolClients::new(),
            challenges: None,
            security: (config.tls.clone(), config.backend_tls.clone()),
            addresses: Vec::new(),
            admin: config.admin,
            drawn_loop_id: drawn_loop_id(),
            commands: Vec::new(),
            panic: (false, 0),
            is_changed: true,
            names_changed: true,
            has_ended: false,
            started: config,
        };
        core.pools = core.pools_of(&core.started);
        core.take_classes();
        for Listed { pool, file, .. } in core.listed(&core.pools) {
            let mut entry = Entry::new(pool, Arc::new(Backend::new(file.address, file.weight)));
            entry.connect_as(&file);
            entry.desired.file = Some(file);
            core.entries.push(entry);
        }
        core
    }

    /// Gives the classes of the present sites their numbers and timeouts.
    fn take_classes(&mut self) {
        if let Some(sites) = &self.sites.1 {
            self.classes = self.classes.with(sites.classes());
        }
    }

    /// Sets the challenges that are answered to clients without TLS.
    pub(crate) fn set_challenges(&mut self, challenges: Option<Arc<Challenges>>) {
        self.challenges = challenges;
    }

    /// Sets the bound addresses of clients.
    pub(crate) fn set_addresses(&mut self, addresses: &[SocketAddr]) {
        self.addresses = addresses.to_vec();
    }

    /// Sets the bound address of the API for operators.
    pub(crate) fn set_admin_address(&mut self, address: SocketAddr) {
        self.admin = Some(address);
    }

    /// Refuses every operation from now on.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn register_config(&self) -> Option<&Register> {
        self.register.as_ref()
    }

    /// Returns the time between two lookups of a name.
    pub(crate) fn lookup_interval(&self) -> Duration {
        self.lookup_interval
    }

    /// Returns all backends in the list.
    #[cfg(test)]
    pub(crate) fn backends(&self) -> impl Iterator<Item = (&Arc<Backend>, bool)> {
        self.entries.iter().map(|entry| (&entry.backend, entry.send_proxy))
    }

    /// Returns the backends to check, with whether a PROXY header is due and with their check: as
    /// configured, and at least a connection for a backend whose heartbeats have ended.
    pub(crate) fn checks(&self) -> impl Iterator<Item = (Target, Check, Arc<[IpAddr]>)> {
        let passed = self.sites.0.iter().filter_map(|site| site.tls.passthrough.as_deref());
        let passed: BTreeSet<&str> = passed.collect();
        self.entries.iter().filter(|entry| !entry.is_removed).filter_map(move |entry| {
            let asked = || entry.expired.then(|| Check::new(CheckKind::Tcp));
            let configured = entry.pool.settings.health.check.clone();
            let mut check = configured.or_else(asked)?;
            if !entry.passthrough.is_empty() || passed.contains(&*entry.pool.name) {
                // Its protocol is not known, and its TLS is for others.
                check.kind = CheckKind::Tcp;
            }
            Some((self.target(entry), check, Arc::clone(&entry.pool.settings.sources)))
        })
    }

    /// Returns the configuration for shards, if it changed since the last call.
    pub(crate) fn take_configuration(&mut self) -> Option<Arc<Configuration>> {
        if !std::mem::take(&mut self.is_changed) {
            return None;
        }
        let mut targets: HashMap<&str, Vec<Target>> = HashMap::new();
        // Clients never come to a removed backend.
        for entry in self.entries.iter().filter(|entry| !entry.is_removed) {
            targets.entry(&entry.pool.name).or_default().push(self.target(entry));
        }
        let mut pools = self.pools.iter().map(|KnownPool { rules, load, .. }| {
            let targets = targets.remove(&*rules.name).unwrap_or_default();
            let pool = Pool::new(Arc::clone(&rules.name), rules.settings.clone(), targets);
            pool.with_load(Arc::clone(load))
        });
        let default = pools.next()?;
        let passed = self.sites.0.iter().flat_map(|site| {
            let pool = site.tls.passthrough.as_deref().unwrap_or_default();
            passed_hosts(site).map(move |host| (host, pool))
        });
        let pools = Pools::new(default, pools.collect()).with_patterns(passed);
        let https = self.security.0.as_ref().map(ClientSide::policy).unwrap_or_default();
        let own = self.security.0.as_ref().map(|tls| &tls.server);
        let policies = own.and_then(|own| HostPolicies::new(&self.sites.0, own)).map(Arc::new);
        let (settings, challenges) = (self.settings.clone(), self.challenges.clone());
        let (sites, limits) = (self.sites.1.clone(), self.limits.1.clone());
        let policy = Arc::clone(&self.policy.1);
        let (counters, blocks) = (self.counters.clone(), Arc::clone(&self.blocks));
        let loop_id = self
            .settings
            .loop_id
            .as_deref()
            .map_or_else(|| Arc::clone(&self.drawn_loop_id), Arc::from);
        Some(Arc::new(Configuration {
            settings,
            pools,
            sites,
            policy,
            classes: self.classes.clone(),
            maintenance: Arc::clone(&self.maintenance),
            limits,
            counters,
            blocks,
            https,
            policies,
            challenges,
            loop_id,
        }))
    }

    fn target(&self, entry: &Entry) -> Target {
        let address = entry.backend.address();
        let most = entry.max_connections.unwrap_or(entry.pool.settings.max_connections);
        entry.backend.set_max_connections(most);
        entry.backend.set_backup(entry.backup);
        let is_passthrough = !entry.passthrough.is_empty();
        let is_secured = !is_passthrough && entry.tls.unwrap_or(entry.pool.tls.is_some());
        let clients = self.clients.get(&entry.pool.name).filter(|_| is_secured);
        Target {
            backend: Arc::clone(&entry.backend),
            send_proxy: entry.send_proxy,
            passthrough: Arc::clone(&entry.passthrough),
            name: entry.desired.name.clone(),
            tls: clients.map(|clients| {
                clients.of(address, entry.tls_name.as_deref(), entry.desired.name.as_deref())
            }),
        }
    }

    /// Returns the server names whose connections are passed through, in order: the names in the
    /// file, even if operators have removed their backends, and the names of backends outside the
    /// file.
    pub(crate) fn passthrough(&self) -> Vec<Box<str>> {
        let listed = self.pools.iter().flat_map(|pool| &pool.listed).map(|file| &file.passthrough);
        let named = self.names().map(|named| &named.passthrough);
        let entries = self.entries.iter().filter(|entry| entry.is_offered());
        let all = listed.chain(named).chain(entries.map(|entry| &entry.passthrough));
        let of_sites = self.sites.0.iter().flat_map(passed_hosts);
        let names: BTreeSet<_> =
            all.flat_map(|names| names.iter().cloned()).chain(of_sites).collect();
        names.into_iter().collect()
    }

    /// Returns those names, if they may have changed since the last call.
    pub(crate) fn take_passthrough(&mut self) -> Option<Vec<Box<str>>> {
        std::mem::take(&mut self.names_changed).then(|| self.passthrough())
    }

    /// Sets TLS for backend connections; a backend can opt out. Returns the previous one.
    pub(crate) fn replace_clients(&mut self, clients: PoolClients) -> PoolClients {
        self.is_changed = true;
        std::mem::replace(&mut self.clients, clients)
    }

    /// Returns the TLS of connections to backends.
    pub(crate) fn clients(&self) -> &PoolClients {
        &self.clients
    }

    /// Returns the commands for shards, in order, to be sent after the configuration.
    pub(crate) fn take_commands(&mut self) -> Vec<ControlCommand> {
        std::mem::take(&mut self.commands)
    }

    // Operations of operators and backends.

    /// Adds a backend, or restores a backend that is being removed, with its tunnels. The file's
    /// other settings of its address apply: its TLS, and, unless server names are given here, the
    /// connections passed through to it. All other state is reset, even while tunnels remain.
    pub(crate) fn add(&mut self, backend: BackendConfig, now: Instant) -> Result<(), Error> {
        self.add_to(DEFAULT_POOL, backend, now)
    }

    /// Does the same for a backend of this pool.
    pub(crate) fn add_to(
        &mut self,
        pool: &str,
        backend: BackendConfig,
        now: Instant,
    ) -> Result<(), Error> {
        let BackendConfig { address, weight, send_proxy, ref passthrough, .. } = backend;
        self.must_live()?;
        check_weight(weight)?;
        let of_pool = self.pool_at(pool)?;
        if of_pool > 0 && !passthrough.is_empty() {
            let (setting, value) = ("passthrough".to_owned(), format!("{:?}", passthrough[0]));
            let remedy = "only backends of the pool default have server names".to_owned();
            return Err(Error::Passthrough { setting, value, remedy });
        }
        let at = self.position(pool, address);
        if let Some(at) = at.filter(|&at| !self.entries[at].is_being_removed()) {
            return Err(Error::Exists { address, source: self.entries[at].desired.source() });
        }
        self.check_room(pool, address)?;
        let passthrough = Arc::clone(passthrough);
        let known = self.known(of_pool, address).unwrap_or(backend);
        let mut added = BackendConfig { weight, send_proxy, ..known };
        if !passthrough.is_empty() {
            // Settings that need a restart are as at the start: whether there is TLS, and the
            // ordered certificates.
            check_passthrough(&passthrough, added.tls, self.started.tls.as_ref()).map_err(
                |Mistake { key, value, remedy }| Error::Passthrough { setting: key, value, remedy },
            )?;
            added.passthrough = passthrough;
        }
        let desired = DesiredState { api: true, ..DesiredState::default() };
        self.enlist(&Arc::clone(&self.pools[of_pool].rules), added, desired, now);
        Ok(())
    }

    /// Returns the file's settings of an address in the pool at this index.
    fn known(&self, pool: usize, address: PeerAddress) -> Option<BackendConfig> {
        let listed = self.listed(&self.pools[pool..=pool]).into_iter();
        listed.map(|listed| listed.file).find(|file| file.address == address)
    }

    /// Sets the weight and returns the previous one.
    pub(crate) fn set_weight<'p>(
        &mut self,
        backend: impl Into<BackendKey<'p>>,
        weight: u32,
        now: Instant,
    ) -> Result<u32, Error> {
        check_weight(weight)?;
        let at = self.find(backend)?;
        let before = self.entries[at].backend.weight();
        self.weigh(at, weight, now);
        Ok(before)
    }

    /// Drains it: its tunnels are closed within `window`.
    pub(crate) fn drain<'p>(
        &mut self,
        backend: impl Into<BackendKey<'p>>,
        window: Option<Duration>,
    ) -> Result<Draining, Error> {
        let at = self.find(backend)?;
        self.start_drain(at, window);
        Ok(self.draining(at))
    }

    /// Drains all backends of a pool, which may have left the file.
    pub(crate) fn drain_pool(
        &mut self,
        pool: &str,
        window: Option<Duration>,
    ) -> Result<PoolDraining, Error> {
        self.must_live()?;
        let is_in = |at: &usize| self.entries[*at].is_in(pool);
        let places: Vec<usize> = (0..self.entries.len()).filter(is_in).collect();
        if places.is_empty() {
            self.pool_at(pool)?;
        }
        let mut all = PoolDraining::default();
        for at in places {
            self.start_drain(at, window);
            let Draining { tunnels, rate, .. } = self.draining(at);
            all.backends += 1;
            all.tunnels += u64::from(tunnels);
            all.rate += u64::from(rate);
        }
        Ok(all)
    }

    /// Sets the weights of pools in a split; others keep theirs. Returns the shares.
    pub(crate) fn set_split(
        &mut self,
        site: &str,
        route: Option<&str>,
        weights: &BTreeMap<String, u32>,
    ) -> Result<Vec<SplitShare>, Error> {
        self.must_live()?;
        let set = self.set_weights.set(self.sites.1.as_deref(), (site, route), weights);
        set.map_err(|mistake| match mistake {
            SplitMistake::Unknown(why) => Error::UnknownSplit(why),
            SplitMistake::Weights(why) => Error::Split(why),
        })
    }

    /// Ends a drain: the remaining tunnels stay, and it gets clients again.
    pub(crate) fn undrain<'p>(
        &mut self,
        backend: impl Into<BackendKey<'p>>,
        now: Instant,
    ) -> Result<(), Error> {
        let at = self.find(backend)?;
        let address = self.entries[at].backend.address();
        let entry = &mut self.entries[at];
        if entry.is_being_removed() {
            return Err(Error::BeingRemoved { address });
        }
        if entry.drain.take().is_none() {
            return Err(Error::NotDraining { address, state: entry.state().word() });
        }
        self.settle(at, now);
        Ok(())
    }

    /// Sends it no more clients; it leaves the list when its last tunnel is gone. `drain`: whether
    /// its tunnels are closed, in place of the setting.
    pub(crate) fn remove<'p>(
        &mut self,
        backend: impl Into<BackendKey<'p>>,
        drain: Option<bool>,
        now: Instant,
    ) -> Result<Removal, Error> {
        let at = self.find(backend)?;
        let address = self.entries[at].backend.address();
        let entry = &mut self.entries[at];
        if entry.desired.ttl.is_some() {
            return Err(Error::RegistersItself { address });
        }
        entry.desired = DesiredState::default();
        let drains = entry.pool.settings.removed == Removed::Drain;
        self.leave(at, drain.unwrap_or(drains), now);
        let Draining { tunnels, last, .. } = self.draining(at);
        Ok(Removal { tunnels, rate: self.closes(at), last })
    }

    /// Removes a backend that no source wants.
    pub(super) fn leave(&mut self, at: usize, drains: bool, now: Instant) {
        self.names_changed = true;
        // A drain in progress keeps its rate.
        if self.entries[at].drain.is_some() {
            return;
        }
        if drains {
            return self.start_drain(at, None);
        }
        self.entries[at].is_removed = true;
        self.settle(at, now);
    }

    /// Returns the tunnels of a removed backend that are closed a second; `None`: they stay.
    pub(super) fn closes(&self, at: usize) -> Option<u32> {
        self.entries[at].drain.map(|drain| at_most(drain.rate))
    }

    /// Returns the status of all backends.
    pub(crate) fn rows(&self, now: Instant) -> Vec<Row> {
        self.entries.iter().map(|entry| row(entry, now)).collect()
    }

    /// Returns whether fewer than half of the backends are up, and how often that has begun.
    pub(crate) fn panic(&self) -> (bool, u64) {
        self.panic
    }

    pub(crate) fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    pub(crate) fn limit_rows(&self) -> Vec<LimitRow> {
        self.limits.1.rows()
    }

    /// Returns the sites as they are configured, from this index, and their number.
    pub(crate) fn site_summaries(&self, from: usize, most: usize) -> (Vec<SiteSummary>, usize) {
        let (configured, Some(sites)) = (&self.sites.0, &self.sites.1) else {
            return (Vec::new(), 0);
        };
        let all = sites.summaries(configured);
        (all.skip(from).take(most).collect(), configured.len())
    }

    /// Returns the listeners that were opened at the start.
    pub(crate) fn started_listeners(&self) -> Vec<ListenAt> {
        self.started.all_listeners()
    }

    /// Explains what would happen to a request.
    pub(crate) fn explain(
        &self,
        request: &Request<'_>,
        (peer, is_secure): (SocketAddr, bool),
        listener: Option<&str>,
    ) -> Result<Explanation, String> {
        let sites = (self.sites.1.as_deref(), &*self.policy.1);
        let listener = self.started.listener(listener, is_secure)?.rules;
        let asked = Asked { request, peer, is_secure, listener: &listener };
        Ok(asked.explain(sites, &self.settings, &self.limits.0))
    }

    pub(crate) fn site_rows(&self) -> Vec<SiteRow> {
        self.counters.rows()
    }

    /// Returns the status of all pools.
    pub(crate) fn pool_rows(&self) -> Vec<PoolRow> {
        let row = |KnownPool { rules, load, .. }: &KnownPool| PoolRow {
            name: rules.name.to_string(),
            pick: rules.settings.pick.word(),
            backends: 0,
            up: 0,
            tunnels: 0,
            requests: 0,
            queued: load.queued(),
            fallback: rules.settings.fallback.as_deref().map(str::to_owned),
            statuses: [0; 5],
        };
        let mut rows: Vec<_> = self.pools.iter().map(row).collect();
        let by_name = self.pools.iter().enumerate().map(|(at, pool)| (&*pool.rules.name, at));
        let by_name: HashMap<&str, usize> = by_name.collect();
        for entry in &self.entries {
            // The tunnels of a pool that is gone count for none.
            let Some(&at) = by_name.get(&*entry.pool.name) else { continue };
            let (row, backend) = (&mut rows[at], &entry.backend);
            row.backends += 1;
            row.up += usize::from(backend.state() == State::Up);
            row.tunnels += u64::from(backend.tunnels());
            row.requests += u64::from(backend.requests());
            for (sum, count) in row.statuses.iter_mut().zip(RowTotals::of(backend).statuses) {
                *sum += count;
            }
        }
        rows
    }

    /// Returns the last failure of the balancer itself, with a remedy.
    pub(crate) fn own_failure(&self) -> Option<LastFailure> {
        let (address, failure, at) = self.own_failure?;
        let remedy = failure.remedy().unwrap_or_default();
        Some(LastFailure::new(format!("{address}: {failure}: {remedy}"), at))
    }

    // Implementation.

    /// Adds a backend to the list, or keeps the one with that address that is being removed or
    /// still in use.
    fn enlist(
        &mut self,
        pool: &Arc<PoolRules>,
        file: BackendConfig,
        desired: DesiredState,
        now: Instant,
    ) {
        let BackendConfig { address, weight, .. } = file;
        let at = self.position(&pool.name, address).unwrap_or_else(|| {
            let of_pool = self.gone.iter().filter(|(name, _)| *name == pool.name);
            let mut held = of_pool.filter_map(|(_, backend)| backend.upgrade());
            let backend = held
                .find(|backend| backend.address() == address)
                .unwrap_or_else(|| Arc::new(Backend::new(address, weight)));
            self.entries.push(Entry::new(Arc::clone(pool), backend));
            self.entries.len() - 1
        });
        let entry = &mut self.entries[at];
        entry.revive();
        entry.desired = desired;
        entry.connect_as(&file);
        self.names_changed = true;
        entry.rising = Some(now);
        self.weigh(at, weight, now);
        self.settle(at, now);
    }

    fn weigh(&mut self, at: usize, weight: u32, now: Instant) {
        let entry = &mut self.entries[at];
        entry.backend.set_weight(weight);
        entry.grow(now);
        self.is_changed = true;
    }

    /// Begins a drain, or changes the rate of one.
    fn start_drain(&mut self, at: usize, window: Option<Duration>) {
        let entry = &mut self.entries[at];
        let backend = &entry.backend;
        // A window of 0 is an infinite rate.
        let within = |window: Duration| f64::from(backend.tunnels().max(1)) / window.as_secs_f64();
        let rate = window.map_or(entry.pool.settings.close_rate.into(), within);
        let closed_before = entry
            .drain
            .map_or_else(|| RowTotals::of(backend).closed, |earlier| earlier.closed_before);
        entry.drain = Some(Drain { rate, closed_before });
        entry.rising = None;
        entry.keeps_tunnels = false;
        backend.set_state(State::Draining);
        (self.is_changed, self.names_changed) = (true, true);
        let closing = Closing {
            code: SERVICE_RESTART,
            rate: at_most(rate),
            order: CloseOrder::Shuffled,
            deadline: window,
            later: true,
        };
        self.commands.push(ControlCommand::Close(Arc::clone(backend), closing, None));
    }

    /// Sets the backend's state from its entry, with all consequences for its tunnels.
    fn settle(&mut self, at: usize, now: Instant) {
        let entry = &mut self.entries[at];
        let (backend, state) = (&entry.backend, entry.state());
        let before = backend.state();
        if before == state {
            return;
        }
        backend.set_state(state);
        self.is_changed = true;
        match state {
            State::Up => {
                entry.keeps_tunnels = false;
                self.commands.push(ControlCommand::Keep(Arc::clone(backend)));
                entry.rising = Some(now);
                entry.grow(now);
            }
            State::Down => {
                entry.rising = None;
                let closes = self.entries[at].is_dead(self.fall(at)) && self.may_close(at);
                let entry = &mut self.entries[at];
                entry.keeps_tunnels = !closes;
                if closes {
                    self.close_all_of_dead(at);
                } else if before == State::Draining {
                    // The drain has ended, and its close job with it.
                    self.commands.push(ControlCommand::Keep(Arc::clone(&entry.backend)));
                }
            }
            // A drain has its own close job, see `start_drain`.
            State::Draining => {}
            State::Removed => {
                entry.rising = None;
                let closes = before == State::Down && !entry.keeps_tunnels;
                entry.keeps_tunnels = true;
                if closes {
                    self.commands.push(ControlCommand::Keep(Arc::clone(&entry.backend)));
                }
            }
        }
    }

    /// Closes a dead backend's tunnels, spread out.
    fn close_all_of_dead(&mut self, at: usize) {
        let entry = &self.entries[at];
        let backend = Arc::clone(&entry.backend);
        let closing = Closing {
            code: SERVICE_RESTART,
            rate: entry.pool.settings.close_rate,
            order: CloseOrder::Shuffled,
            deadline: None,
            // If no backend is up, clients come back to it: they are not closed again.
            later: false,
        };
        self.commands.push(ControlCommand::Close(backend, closing, None));
    }

    fn draining(&self, at: usize) -> Draining {
        let entry = &self.entries[at];
        let mut others = self.entries.iter().enumerate();
        let is_other_up = |(other, of): (usize, &Entry)| {
            other != at && of.is_in(&entry.pool.name) && of.backend.state() == State::Up
        };
        Draining {
            tunnels: entry.backend.tunnels(),
            rate: entry.drain.map_or(entry.pool.settings.close_rate, |drain| at_most(drain.rate)),
            last: !others.any(is_other_up),
        }
    }

    fn must_live(&self) -> Result<(), Error> {
        if self.has_ended { Err(Error::ShuttingDown) } else { Ok(()) }
    }

    fn position(&self, pool: &str, address: PeerAddress) -> Option<usize> {
        let is_it = |entry: &Entry| entry.backend.address() == address && entry.is_in(pool);
        self.entries.iter().position(is_it)
    }

    /// Returns the index of this backend itself, not of another one with its address.
    fn place(&self, backend: &Arc<Backend>) -> Option<usize> {
        self.entries.iter().position(|entry| Arc::ptr_eq(&entry.backend, backend))
    }

    /// Returns the index of a pool of the file.
    fn pool_at(&self, pool: &str) -> Result<usize, Error> {
        let names = || self.pools.iter().map(|known| &known.rules.name);
        names().position(|name| **name == *pool).ok_or_else(|| {
            let known = names().map(Arc::clone).collect();
            Error::UnknownPool { pool: pool.to_owned(), known }
        })
    }

    fn find<'p>(&self, backend: impl Into<BackendKey<'p>>) -> Result<usize, Error> {
        let BackendKey { pool, address } = backend.into();
        self.must_live()?;
        if let Some(pool) = pool {
            // A pool that has left the file may have tunnels still.
            let of_pool = || self.entries.iter().filter(|entry| entry.is_in(pool));
            if of_pool().next().is_none() {
                self.pool_at(pool)?;
            }
            let known = || of_pool().map(|entry| entry.backend.address()).collect();
            let at = self.position(pool, address);
            return at.ok_or_else(|| Error::Unknown { address, known: known() });
        }
        if let Some(at) = self.position(DEFAULT_POOL, address) {
            return Ok(at);
        }
        // A pool that has given the address to another one may still have tunnels there.
        let mut all: Vec<usize> = (0..self.entries.len()).collect();
        all.retain(|&at| self.entries[at].backend.address() == address);
        if all.iter().any(|&at| !self.entries[at].is_being_removed()) {
            all.retain(|&at| !self.entries[at].is_being_removed());
        }
        match *all {
            [at] => Ok(at),
            [] => {
                let known = self.entries.iter().map(|entry| entry.backend.address()).collect();
                Err(Error::Unknown { address, known })
            }
            _ => {
                let pools = all.iter().map(|&at| Arc::clone(&self.entries[at].pool.name));
                Err(Error::InSeveralPools { address, pools: pools.collect() })
            }
        }
    }

    fn check_address(&self, address: PeerAddress) -> Result<(), Error> {
        let own: Vec<_> = self.addresses.iter().copied().chain(self.admin).collect();
        check_backend(address, &own).map_err(|remedy| Error::Address { address, remedy })
    }

    /// Checks that a backend at `address` can be added to the list.
    fn check_room(&self, pool: &str, address: PeerAddress) -> Result<(), Error> {
        self.check_address(address)?;
        // Backends that only have tunnels left must not keep others out.
        let is_listed = |entry: &&Entry| entry.is_in(pool) && !entry.is_being_removed();
        let listed = self.entries.iter().filter(is_listed).count();
        if self.position(pool, address).is_none() && listed >= MAX_BACKENDS {
            return Err(Error::TooMany { most: MAX_BACKENDS });
        }
        Ok(())
    }
}

fn check_weight(weight: u32) -> Result<(), Error> {
    if (1..=MAX_WEIGHT).contains(&weight) { Ok(()) } else { Err(Error::Weight { weight }) }
}

/// Returns a rate in whole tunnels; the largest number for an infinite one.
fn at_most(rate: f64) -> u32 {
    rate.ceil() as u32
}

fn row(entry: &Entry, now: Instant) -> Row {
    let backend = &entry.backend;
    let totals = RowTotals::of(backend);
    let tunnels = backend.tunnels();
    Row {
        address: backend.address(),
        pool: entry.pool.name.to_string(),
        state: backend.state().word(),
        name: entry.desired.name.as_deref().map(str::to_owned),
        source: entry.desired.source(),
        weight: backend.weight(),
        share: share_of(backend),
        send_proxy: entry.send_proxy,
        passthrough: entry.passthrough.iter().map(ToString::to_string).collect(),
        tunnels,
        requests: backend.requests(),
        handshakes: backend.handshakes(),
        max_connections: backend.max_connections(),
        backup: backend.is_backup(),
        totals,
        handshake_p99_ms: backend.handshake_p99_micros() as f64 / 1000.0,
        drain: entry.drain.map(|drain| DrainProgress {
            left: tunnels,
            closed: totals.closed - drain.closed_before,
            seconds_left: (f64::from(tunnels) / drain.rate).ceil() as u32,
        }),
        expires_in_seconds: entry
            .desired
            .ttl
            .map(|ttl| ttl.expires.0.saturating_sub(now.0) as f64 / 1e9),
        keeps_tunnels: entry.keeps_tunnels,
        last_failure: entry
            .last_failure
            .as_ref()
            .map(|(cause, at)| LastFailure::new(cause.to_string(), *at)),
    }
}

#[cfg(test)]
mod tests;
