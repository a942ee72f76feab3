//! The configuration of a balancer from files and flags. Each mistake is reported with its location
//! and a remedy.

mod check;
mod check_listeners;
mod check_sites;
mod keys;
mod limits;
mod listeners;
mod mistakes;
mod policy;
mod read;
mod site_tls;
mod sites;
mod sources;
mod tls;
mod warn;
mod words;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use throng_io::PeerAddress;

use throng_config::{
    ConfigError, ConfigErrors, Draft, LogSettings, Sources, Table, UpgradeSettings, Values,
};
use throng_io::tables::DescriptorTables;

use crate::limit::LimitConfig;
use crate::pool::{DEFAULT_POOL, PoolSettings};
use crate::settings::Settings;
use crate::site::with_sites;
use crate::site::{
    Asked, Explanation, Names, Policy, PolicyConfig, SiteConfig, SiteMistake, Sites, passed_hosts,
};
pub(crate) use check::{MAX_BACKENDS, canonical, check_backend, check_passthrough};
pub(crate) use keys::MAX_SHARDS;
pub use listeners::ListenerConfig;
pub(crate) use mistakes::Mistake;
pub use throng_config::Token;
use throng_http::Network;
use throng_proto::http1::Request;
use throng_tls::TlsConfig;
pub use tls::{BackendSide, ClientSide};

/// The configuration of a balancer. Read a file with [`Config::parse`], several sources with
/// [`Sources`] and [`Config::from_draft`], or begin with the default and set fields.
///
/// ```
/// use throng_balance::Config;
///
/// let text = "
///     listen = \"127.0.0.1:8080\"
///     backends = [\"127.0.0.1:9001\", { address = \"127.0.0.1:9002\", weight = 2 }]
///     [timeouts]
///     connect = \"2s\"
/// ";
/// let config = Config::parse(text, "balance.toml").unwrap();
/// assert_eq!(config.backends[1].weight, 2);
/// let error = Config::parse("backends = [\"127.0.0.1\"]", "balance.toml").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "balance.toml:1:13: backends[0] is \"127.0.0.1\": a port is missing: \
///      write \"127.0.0.1:9001\""
/// );
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// The addresses where clients connect: `listen = "127.0.0.1:8080"`, `"unix:/run/lb.sock"`, or
    /// a list. Default 127.0.0.1:8080. A change needs a restart.
    pub listen: Vec<PeerAddress>,
    /// The listeners with rules of their own: `[[listener]]`. With some of them, `listen` has no
    /// default in a file. A change needs a restart.
    pub listeners: Vec<ListenerConfig>,
    /// Whether other processes of the user may also listen on the ports (Linux): `share_port`.
    /// Default false. A change needs a restart.
    pub share_port: bool,
    /// The permissions of the files of Unix sockets in `listen`: `unix_mode`. Default 660. A change
    /// needs a restart.
    pub unix_mode: u32,
    /// The number of event loops: `shards`. 0, the default: one for each usable CPU. A change needs
    /// a restart.
    pub shards: usize,
    /// Whether each event loop is pinned to a CPU of its own (Linux): `pin = "cores"`. Default
    /// false. A change needs a restart.
    pub is_pinned: bool,
    /// The descriptor table of an event loop: `descriptors`. A configuration that is read has
    /// `auto` by default, which gives each loop its own table if
    /// [`max_connections`](crate::Settings::max_connections) needs more than one; a configuration
    /// built in code has [`Shared`](DescriptorTables::Shared). With separate tables, an
    /// [`AccessLog`](crate::AccessLog) must neither use nor drop descriptors that other threads
    /// have opened. A change needs a restart.
    pub descriptors: DescriptorTables,
    /// The backends: `backends`, a list of addresses or of tables `{ address, weight, send_proxy
    /// }`. None are needed if they register themselves. When a configuration without the key is
    /// [applied](crate::Balancer::apply), the backends of the last one stay; only `backends = []`
    /// removes them.
    pub backends: Vec<BackendConfig>,
    /// TLS of clients: `[tls]`. Default: none.
    pub tls: Option<ClientSide>,
    /// TLS to backends: `[backend_tls]`. Default: only to backends that request it.
    pub backend_tls: Option<BackendSide>,
    /// The backends that have names instead of addresses, in the same list: each address of a name
    /// is a backend. Names are looked up at the start and then periodically.
    pub names: Vec<NamedBackend>,
    /// The pools of backends besides the pool `default`, which has `backends`: `[[pool]]`.
    pub pools: Vec<PoolConfig>,
    /// The time between two lookups of a name: `lookup_interval`. Default 10 s, at least 1 s.
    pub lookup_interval: Duration,
    /// The sites, by the hosts and paths of requests: `[[site]]` with `[[site.route]]`. Default:
    /// none, and [`backends`](Self::backends) serve all requests. With sites, requests for other
    /// hosts go to these backends if there are any, and are otherwise answered with 404.
    pub sites: Arc<[SiteConfig]>,
    /// The treatment of all requests and answers, to which sites and routes add theirs.
    pub policy: PolicyConfig,
    /// Limits of rates, which sites and routes choose by their names: `[[limit]]`.
    pub limits: Vec<LimitConfig>,
    /// The settings, each by its own name; `[timeouts]`, `[health]` and `[health.check]` are
    /// tables.
    pub settings: Settings,
    /// Registration of backends: `[register]`. Default: they do not register themselves.
    pub register: Option<Register>,
    /// The address of the API for operators: `[admin]` with `listen`. Default: none. A change needs
    /// a restart.
    pub admin: Option<SocketAddr>,
    /// The token of operators: `token`, or the first line of `token_file`, in `[admin]`. Without it
    /// `listen` there must be a loopback address. Default: none.
    pub admin_token: Option<Token>,
    /// The shutdown: `[shutdown]`.
    pub shutdown: Shutdown,
    /// The upgrades of the program: `[upgrade]`. The balancer itself begins none.
    pub upgrade: UpgradeSettings,
    /// Whether the program refuses to start while a limit of the machine or a setting is worth a
    /// warning: `strict_start`. The balancer itself does not check them. Default: no.
    pub strict_start: bool,
    /// The log of the program: `[log]`. The balancer itself writes none.
    pub log: LogSettings,
    /// Warnings: valid values that are probably unintended.
    warnings: Vec<String>,
    /// The index of each of `backends` in the list of the file; names have the others.
    places: Vec<usize>,
    /// The values that it was read from.
    values: Option<Arc<Values>>,
    /// The sites when they were compiled.
    compiled: OnceLock<CompiledSites>,
}

/// Compiled sites with their source.
#[derive(Clone, Debug)]
struct CompiledSites {
    from: Arc<[SiteConfig]>,
    /// The names of all pools.
    pools: Vec<Arc<str>>,
    /// The names of all limits.
    limits: Vec<String>,
    /// The names of all listeners.
    listeners: Vec<Arc<str>>,
    policy: PolicyConfig,
    sites: Arc<Sites>,
}

/// A configured backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendConfig {
    /// Its address, or the path of its Unix socket: `"unix:/run/app.sock"`.
    pub address: PeerAddress,
    /// Its weight, 1 to [`MAX_WEIGHT`](crate::MAX_WEIGHT). Default 1.
    pub weight: u32,
    /// Begin each connection with a PROXY v2 header. Default false.
    pub send_proxy: bool,
    /// Secure each connection with TLS. Default: if there is a table `[backend_tls]`.
    pub tls: Option<bool>,
    /// The name that its certificate has, and that it is asked for (SNI). Default:
    /// [`BackendSide::name`].
    pub tls_name: Option<Arc<str>>,
    /// Server names whose connections are passed through to it without ending their TLS: names,
    /// `*.` and a domain for its subdomains of one more label, or `*` for all other names and
    /// clients without one. Default: none, and it serves requests.
    pub passthrough: Arc<[Box<str>]>,
    /// Its requests under way and tunnels together, at most; 0: no limit. Default: as its pool
    /// says.
    pub max_connections: Option<u32>,
    /// Whether it gets clients only while no other backend of its pool is up. Default false.
    pub backup: bool,
}

/// Converts server names to the form in which they are compared.
pub(crate) fn server_names(names: Vec<String>) -> Arc<[Box<str>]> {
    names.into_iter().map(|name| name.to_ascii_lowercase().into()).collect()
}

impl BackendConfig {
    /// Creates a backend of weight 1, without a PROXY header.
    #[must_use]
    pub fn new(address: impl Into<PeerAddress>) -> Self {
        Self {
            address: address.into(),
            weight: 1,
            send_proxy: false,
            tls: None,
            tls_name: None,
            passthrough: Arc::default(),
            max_connections: None,
            backup: false,
        }
    }
}

/// A configured backend that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedBackend {
    /// Its name and port: `app.internal:8080`.
    pub name: Arc<str>,
    /// The weight of each of its addresses, 1 to [`MAX_WEIGHT`](crate::MAX_WEIGHT).
    pub weight: u32,
    /// Begin each connection with a PROXY v2 header.
    pub send_proxy: bool,
    /// Secure connections with TLS, as [`BackendConfig::tls`] says.
    pub tls: Option<bool>,
    /// The name that the certificates of its addresses have, and that they are asked for (SNI).
    /// Default: [`BackendSide::name`], or else its own name.
    pub tls_name: Option<Arc<str>>,
    /// Server names whose connections are passed through, as [`BackendConfig::passthrough`] says.
    pub passthrough: Arc<[Box<str>]>,
    /// Requests under way and tunnels of each of its addresses, as
    /// [`BackendConfig::max_connections`] says.
    pub max_connections: Option<u32>,
    /// Whether its addresses get clients only while no others of the pool are up.
    pub backup: bool,
}

impl NamedBackend {
    /// Returns one of its addresses as a backend.
    pub(crate) fn at(&self, address: PeerAddress) -> BackendConfig {
        BackendConfig {
            address,
            weight: self.weight,
            send_proxy: self.send_proxy,
            tls: self.tls,
            tls_name: self.tls_name.clone(),
            passthrough: Arc::clone(&self.passthrough),
            max_connections: self.max_connections,
            backup: self.backup,
        }
    }
}

/// A configured pool of backends: a table `[[pool]]`. Values that it omits are the ones of the
/// whole configuration.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Its name: `name`.
    pub name: Arc<str>,
    /// Its backends: `backends`, as in [`Config::backends`].
    pub backends: Vec<BackendConfig>,
    /// The backends in the same list that have names instead of addresses.
    pub names: Vec<NamedBackend>,
    /// Its settings, each by its own name.
    pub settings: PoolSettings,
    /// TLS to its backends: `[pool.tls]`. Default: `[backend_tls]`.
    pub tls: Option<BackendSide>,
    /// Its index in the list of the file, and the indices of `backends` in its list.
    place: usize,
    places: Vec<usize>,
}

impl PoolConfig {
    /// Creates a pool without TLS.
    #[must_use]
    pub fn new(name: &str, backends: Vec<BackendConfig>, settings: PoolSettings) -> Self {
        let (names, places) = (Vec::new(), Vec::new());
        Self { name: name.into(), backends, names, settings, tls: None, place: 0, places }
    }
}

/// The registration of backends: `[register]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// The token of backends: `token`, or the first line of `token_file`, a path relative to the
    /// configuration's file.
    pub token: Token,
    /// The time that a backend gets new clients without a heartbeat, if it does not specify one.
    /// Default 10 s.
    pub time_to_live: Duration,
    /// The networks that backends may be in: `networks`. Default: all except link-local addresses
    /// and others where clouds have services that provide credentials.
    pub networks: Vec<Network>,
}

impl Register {
    /// Returns whether a backend may be at `address`.
    pub(crate) fn admits(&self, address: IpAddr) -> bool {
        match self.networks.is_empty() {
            true => !may_provide_credentials(address),
            false => self.networks.iter().any(|network| network.contains(address)),
        }
    }
}

/// Returns whether services for machines in a cloud are at an address: at a link-local one, or at
/// that which a cloud has chosen. Such a service answers the machine alone with its credentials; a
/// backend at its address would show them to all clients.
fn may_provide_credentials(address: IpAddr) -> bool {
    /// Azure, Alibaba Cloud, Oracle Cloud.
    const V4: [Ipv4Addr; 3] = [
        Ipv4Addr::new(168, 63, 129, 16),
        Ipv4Addr::new(100, 100, 100, 200),
        Ipv4Addr::new(192, 0, 0, 192),
    ];
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local() || V4.contains(&address),
        IpAddr::V6(address) => match address.segments() {
            // AWS and Google Cloud.
            [0xfd00, 0xec2, ..] | [0xfd20, 0xce, ..] => true,
            // An IPv4 address behind a translator (RFC 6052 section 2.1).
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                let bits = u32::from(high) << 16 | u32::from(low);
                may_provide_credentials(Ipv4Addr::from(bits).into())
            }
            _ => address.is_unicast_link_local(),
        },
    }
}

/// The shutdown of a balancer: `[shutdown]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// The time before the first close, in which readiness is off. Default 5 s in Kubernetes, else
    /// none.
    pub delay: Duration,
    /// The time over which tunnels are closed. Default 10 s.
    pub window: Duration,
    /// The time after which remaining connections are reset. Default 30 s.
    pub deadline: Duration,
}

/// The defaults of the table, with one descriptor table for all event loops.
impl Default for Config {
    fn default() -> Self {
        Self { descriptors: DescriptorTables::Shared, ..read::read(&defaults()) }
    }
}

/// Returns the values of a configuration without any source.
fn defaults() -> Draft {
    Sources::new(&keys::TABLE).finish()
}

impl Config {
    /// Returns the table of all keys.
    #[must_use]
    pub fn table() -> &'static Table {
        &keys::TABLE
    }

    /// Parses the whole configuration from the TOML `text`; `file_name` is for errors, and relative
    /// paths start at its folder.
    ///
    /// # Errors
    /// All mistakes: unknown keys, wrong types, values out of their range, and values that
    /// contradict each other.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, ConfigErrors> {
        let mut sources = Sources::new(&keys::TABLE);
        sources.file(file_name, text);
        Self::from_draft(sources.finish())
    }

    /// Converts and checks values of [`Config::table`].
    ///
    /// # Errors
    /// As for [`Config::parse`].
    pub fn from_draft(draft: Draft) -> Result<Self, ConfigErrors> {
        let config = read::read(&draft);
        let (backends, names) = (config.backends.clone(), config.names.clone());
        let mut config = config.with_passthrough(&backends, &names);
        // With a mistake in the pools, sites do not find them.
        let has_pools = !draft.has_mistake("pools");
        for Mistake { key, value, remedy } in check::mistakes(&config) {
            if !has_pools && key.starts_with("sites") && key.ends_with(".pool") {
                continue;
            }
            draft.add(draft.values().error(&key, value, remedy));
        }
        for name in config.unused_limits() {
            draft.warn(format!(
                "limit {name} counts nothing: write its name into limits of a site or route"
            ));
        }
        warn::warnings(&config).into_iter().for_each(|warning| draft.warn(warning));
        config.warnings = draft.take_warnings();
        config.values = Some(Arc::new(draft.finish()?));
        Ok(config)
    }

    /// Returns the names of limits that no site and no route has.
    fn unused_limits(&self) -> impl Iterator<Item = &str> {
        let of_site = |site: &SiteConfig, name: &String| {
            site.limits.contains(name) || site.routes.iter().any(|it| it.limits.contains(name))
        };
        let names = self.limits.iter().map(|limit| &limit.name);
        let unused = names.filter(move |name| !self.sites.iter().any(|site| of_site(site, name)));
        unused.map(String::as_str)
    }

    /// Returns warnings about valid values that are probably unintended, one line each: for example
    /// a token that others may read.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the values that it was read from, with their origins; `None` if code built it.
    #[must_use]
    pub fn values(&self) -> Option<&Values> {
        self.values.as_deref()
    }

    /// Returns the TLS of connections to backends of each pool with backends that use it.
    pub(crate) fn backend_sides(&self) -> impl Iterator<Item = (Arc<str>, BackendSide)> {
        let side =
            |tls: &Option<BackendSide>, backends: &[BackendConfig], names: &[NamedBackend]| {
                let asks = backends.iter().any(|backend| backend.tls == Some(true))
                    || names.iter().any(|named| named.tls == Some(true));
                tls.clone().or_else(|| asks.then(BackendSide::default))
            };
        let default = side(&self.backend_tls, &self.backends, &self.names);
        let default = default.map(|side| (DEFAULT_POOL.into(), side));
        let others = self.pools.iter().filter_map(move |pool| {
            let side = side(&pool.tls, &pool.backends, &pool.names)?;
            Some((Arc::clone(&pool.name), side))
        });
        default.into_iter().chain(others)
    }

    /// Returns the TLS of clients with the certificates and rules of the sites.
    pub(crate) fn server_tls(&self, tls: &ClientSide) -> TlsConfig {
        with_sites(tls.server.clone(), &self.sites)
    }

    /// Returns the backends of all pools that have addresses.
    pub fn all_backends(&self) -> impl Iterator<Item = &BackendConfig> {
        self.backends.iter().chain(self.pools.iter().flat_map(|pool| &pool.backends))
    }

    /// Returns the backends of all pools that have names.
    pub fn all_names(&self) -> impl Iterator<Item = &NamedBackend> {
        self.names.iter().chain(self.pools.iter().flat_map(|pool| &pool.names))
    }

    /// Returns it with the TLS of clients that these backends need, for the server names whose
    /// connections are passed through to them.
    pub(crate) fn with_passthrough(
        mut self,
        backends: &[BackendConfig],
        names: &[NamedBackend],
    ) -> Self {
        let own = backends.iter().map(|backend| &backend.passthrough);
        let named = names.iter().map(|named| &named.passthrough);
        let of_sites = self.sites.iter().flat_map(passed_hosts);
        let own = own.chain(named).flat_map(|all| all.iter().cloned());
        let mut patterns: Vec<_> = own.chain(of_sites).collect();
        patterns.sort_unstable();
        patterns.dedup();
        if !patterns.is_empty() && self.tls.is_none() {
            self.tls = Some(ClientSide::without_certificate());
        }
        if let Some(tls) = &mut self.tls {
            tls.server.passthrough = patterns;
        }
        self
    }

    /// Returns the IP addresses where clients connect.
    pub fn listen_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.all_addresses().into_iter().filter_map(|(address, _)| address.socket_addr())
    }

    /// Returns the addresses to listen at, each with whether it has TLS.
    pub(crate) fn all_addresses(&self) -> Vec<(PeerAddress, bool)> {
        self.all_listeners().into_iter().map(|it| (it.address, it.has_tls)).collect()
    }

    /// Returns all addresses that the process listens at, for clients and for operators.
    pub(crate) fn own_addresses(&self) -> Vec<SocketAddr> {
        let all = self.all_addresses().into_iter();
        let clients = all.filter_map(|(address, _)| address.socket_addr());
        clients.chain(self.admin).collect()
    }

    /// Explains what would happen to a request from `peer`, with TLS or without, by the sites.
    /// Rules of TLS, such as a redirection to https, come before them and are not applied.
    /// `listener`: the name of the listener; `None`: the first one with TLS, or without it.
    ///
    /// # Errors
    /// A sentence with the unknown name and the remedy.
    pub fn explain(
        &self,
        request: &Request<'_>,
        (peer, is_secure): (SocketAddr, bool),
        listener: Option<&str>,
    ) -> Result<Explanation, String> {
        let sites = self.compiled_sites().unwrap_or_default();
        let policy = self.compiled_policy().unwrap_or_default();
        let listener = self.listener(listener, is_secure)?.rules;
        let asked = Asked { request, peer, is_secure, listener: &listener };
        Ok(asked.explain((sites.as_deref(), &policy), &self.settings, &self.limits))
    }

    /// Compiles the treatment of requests that no site has.
    pub(crate) fn compiled_policy(&self) -> Result<Arc<Policy>, Vec<SiteMistake>> {
        Policy::of_all(&self.policy).map_err(|mistakes| {
            let mistake = |(key, value, remedy)| SiteMistake { key, value, remedy };
            mistakes.into_iter().map(mistake).collect()
        })
    }

    /// Compiles the sites, if there are any: once for a file, which is checked and then applied.
    pub(crate) fn compiled_sites(&self) -> Result<Option<Arc<Sites>>, Vec<SiteMistake>> {
        if self.sites.is_empty() {
            return Ok(None);
        }
        let has_backends = self.has_default_pool();
        let others = self.pools.iter().map(|pool| Arc::clone(&pool.name));
        let default = has_backends.then(|| DEFAULT_POOL.into());
        let pools: Vec<_> = default.into_iter().chain(others).collect();
        let limits: Vec<_> = self.limits.iter().map(|limit| limit.name.clone()).collect();
        let listeners = self.listener_names();
        if let Some(known) = self.compiled.get()
            && Arc::ptr_eq(&known.from, &self.sites)
            && known.pools == pools
            && known.limits == limits
            && known.listeners == listeners
            && known.policy == self.policy
        {
            return Ok(Some(Arc::clone(&known.sites)));
        }
        let known = Names { pools: &pools, limits: &limits, listeners: &listeners };
        let sites = Arc::new(Sites::compile(&self.sites, known, &self.policy, has_backends)?);
        let (from, policy) = (Arc::clone(&self.sites), self.policy.clone());
        // Of changed sites, the first remain.
        let compiled =
            CompiledSites { from, pools, limits, listeners, policy, sites: Arc::clone(&sites) };
        let _ = self.compiled.set(compiled);
        Ok(Some(sites))
    }

    /// Returns whether it names the backends.
    pub(crate) fn names_backends(&self) -> bool {
        self.names_default() || !self.pools.is_empty()
    }

    /// Returns whether the default pool has backends, or may get some.
    fn has_default_pool(&self) -> bool {
        self.names_default() || self.register.is_some()
    }

    /// Returns whether it names the backends of the default pool.
    fn names_default(&self) -> bool {
        self.values().is_some_and(|values| values.is_set("backends"))
            || !self.backends.is_empty()
            || !self.names.is_empty()
    }

    /// Checks that it is complete and free of contradictions.
    ///
    /// # Errors
    /// All mistakes, with their location if the value came from a file.
    pub fn check(&self) -> Result<(), ConfigErrors> {
        let error = |Mistake { key, value, remedy }: Mistake| match self.values() {
            Some(values) => values.error(&key, value, remedy),
            None => ConfigError::message(format_args!("{key} is {value}: {remedy}")),
        };
        match ConfigErrors::of(check::mistakes(self).into_iter().map(error).collect()) {
            Some(errors) => Err(errors),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
