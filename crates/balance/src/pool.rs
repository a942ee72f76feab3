//! Pools: lists of backends that serve the same requests, each with its settings.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use throng_io::PeerAddress;

use crate::backend::{Backend, State};
use crate::cookie::CookieKey;
use crate::queue::{PoolLoad, RetryPermit};
use crate::settings::{Health, Pick, Removed, Settings, Sticky, Target};

/// The name of the pool of the backends outside of other pools.
pub const DEFAULT_POOL: &str = "default";

/// The remedy of a name that is not valid, see [`is_label`].
pub(crate) const LABEL: &str = "write 1 to 64 letters, digits, -, _ and .";

/// Returns whether a text may be the name of a pool, site or limit, which is a label of metrics.
pub(crate) fn is_label(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=64).contains(&name.len()) && name.bytes().all(is_plain)
}

/// The settings of a pool, as in [`Settings`].
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSettings {
    /// The algorithm that picks a backend.
    pub pick: Pick,
    /// The binding of clients to backends.
    pub sticky: Sticky,
    /// The key of sticky cookies, which all pools share.
    pub cookie_key: CookieKey,
    /// The limit of connects and handshakes in progress to one backend.
    pub max_handshakes: u32,
    /// The limit of requests under way and tunnels of each backend together; 0: none.
    pub max_connections: u32,
    /// The limit of requests that wait for a backend; 0: none.
    pub max_queue: u32,
    /// The time that they wait.
    pub queue: Duration,
    /// The number of idle connections that each shard keeps to each backend.
    pub keep_alive: usize,
    /// The name of the pool that serves while no backend of this one is up. Its own fallback does
    /// not.
    pub fallback: Option<Arc<str>>,
    /// The time in which the share of a backend that came up grows to its whole weight.
    pub slow_start: Duration,
    /// Maximum tunnels of a dead, drained or crowded backend that are closed in a second.
    pub close_rate: u32,
    /// The fate of the tunnels of a removed backend.
    pub removed: Removed,
    /// The addresses of this machine to connect from in turn; empty: as the system chooses.
    pub sources: Arc<[IpAddr]>,
    /// The timeout of connects.
    pub connect: Duration,
    /// The conditions under which a backend counts as dead.
    pub health: Health,
}

impl Settings {
    /// Returns the settings of the pool `default`.
    #[must_use]
    pub fn pool(&self) -> PoolSettings {
        PoolSettings {
            pick: self.pick,
            sticky: self.sticky.clone(),
            cookie_key: self.cookie_key.clone(),
            max_handshakes: self.max_handshakes,
            max_connections: self.max_backend_connections,
            max_queue: self.max_queue,
            queue: self.timeouts.queue,
            keep_alive: self.keep_alive,
            fallback: self.fallback.clone(),
            slow_start: self.slow_start,
            close_rate: self.close_rate,
            removed: self.removed,
            sources: Arc::clone(&self.sources),
            connect: self.timeouts.connect,
            health: self.health.clone(),
        }
    }
}

impl Settings {
    /// Sets the settings of the pool `default`.
    pub(crate) fn set_pool(&mut self, pool: PoolSettings) {
        self.pick = pool.pick;
        self.sticky = pool.sticky;
        self.max_handshakes = pool.max_handshakes;
        self.max_backend_connections = pool.max_connections;
        self.max_queue = pool.max_queue;
        self.timeouts.queue = pool.queue;
        self.keep_alive = pool.keep_alive;
        self.fallback = pool.fallback;
        self.slow_start = pool.slow_start;
        self.close_rate = pool.close_rate;
        self.removed = pool.removed;
        self.sources = pool.sources;
        self.timeouts.connect = pool.connect;
        self.health = pool.health;
    }
}

/// Backends that serve the same requests.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Its settings.
    pub settings: PoolSettings,
    /// Its backends, in the order they were configured.
    pub targets: Vec<Target>,
    name: Arc<str>,
    load: Arc<PoolLoad>,
    has_backups: bool,
    /// Its index among all pools.
    index: usize,
}

impl Pool {
    /// Creates a pool.
    #[must_use]
    pub fn new(name: Arc<str>, settings: PoolSettings, targets: Vec<Target>) -> Self {
        let has_backups = targets.iter().any(|target| target.backend.is_backup());
        Self { settings, targets, name, load: Arc::default(), has_backups, index: 0 }
    }

    /// Returns it with the counts of the same pool in other configurations.
    pub(crate) fn with_load(self, load: Arc<PoolLoad>) -> Self {
        Self { load, ..self }
    }

    /// Returns what is counted of it over all shards.
    pub(crate) fn load(&self) -> &Arc<PoolLoad> {
        &self.load
    }

    /// Creates the pool of a pattern of server names whose connections are passed through.
    fn of_pattern(pattern: &str, settings: PoolSettings, targets: Vec<Target>) -> Self {
        // Other pools serve requests.
        let settings = PoolSettings { fallback: None, ..settings };
        // No name in a file has a colon.
        Self::new(format!("passthrough:{pattern}").into(), settings, targets)
    }

    /// Returns its name: [`DEFAULT_POOL`] for the backends outside of other pools.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns its index among all pools of its configuration.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Returns the index of the backend at `address`.
    #[must_use]
    pub fn position(&self, address: impl Into<PeerAddress>) -> Option<usize> {
        let address = address.into();
        self.targets.iter().position(|target| target.backend.address() == address)
    }

    /// Returns the tag of sticky cookies for the backend at `address`.
    #[must_use]
    pub fn tag(&self, address: PeerAddress) -> u64 {
        let pool = if *self.name == *DEFAULT_POOL { "" } else { &*self.name };
        self.settings.cookie_key.tag_in(pool, address)
    }

    /// Takes the permit of a request to be tried again, if its requests have one left.
    pub(crate) fn take_retry(&self) -> Option<RetryPermit> {
        let under_way = self.targets.iter().map(|target| target.backend.requests());
        let open = under_way.fold(self.load.queued(), u32::saturating_add);
        RetryPermit::take(&self.load, open)
    }

    /// Returns whether it has backups.
    pub(crate) fn has_backups(&self) -> bool {
        self.has_backups
    }

    /// Returns whether the backend has free permits for a request.
    pub(crate) fn has_permits(&self, backend: &Backend) -> bool {
        backend.has_free_permits(self.settings.max_handshakes)
    }

    /// Returns whether there is a backend that requests may wait for, and all of them are full: the
    /// ones that are up, backups only without others, or the removed ones of a pool that has no
    /// others.
    pub(crate) fn is_full(&self) -> bool {
        let all_of = |is_one: &dyn Fn(&Backend) -> bool| {
            let backends = self.targets.iter().map(|target| &*target.backend);
            let mut ones = backends.filter(|backend| is_one(backend)).peekable();
            ones.peek().is_some().then(|| ones.all(|it| !self.has_permits(it)))
        };
        let up = |is_backup| {
            all_of(&|it: &Backend| it.state() == State::Up && it.is_backup() == is_backup)
        };
        let removed = || all_of(&|it: &Backend| it.state() == State::Removed);
        up(false).or_else(|| up(true)).or_else(removed).unwrap_or(false)
    }
}

/// The pools of a configuration.
#[derive(Clone, Debug)]
pub struct Pools {
    /// The first is the pool `default`.
    all: Vec<Arc<Pool>>,
    by_name: HashMap<Arc<str>, usize>,
    /// The pools of the patterns of server names whose connections are passed through.
    by_pattern: HashMap<Box<str>, usize>,
}

impl Pools {
    /// Creates the list of these pools. Backends of the pool `default` for connections that are
    /// passed through serve nothing else: each pattern of server names has a pool of its own.
    #[must_use]
    pub fn new(mut default: Pool, others: Vec<Pool>) -> Self {
        let mut patterns: BTreeMap<Box<str>, Vec<Target>> = BTreeMap::new();
        default.targets.retain(|target| {
            for pattern in target.passthrough.iter() {
                let of_pattern = patterns.entry(pattern.clone()).or_default();
                if of_pattern.iter().all(|other| !Arc::ptr_eq(&other.backend, &target.backend)) {
                    of_pattern.push(target.clone());
                }
            }
            target.passthrough.is_empty()
        });
        let settings = default.settings.clone();
        let mut all: Vec<Pool> = std::iter::once(default).chain(others).collect();
        let mut by_pattern = HashMap::new();
        for (pattern, targets) in patterns {
            all.push(Pool::of_pattern(&pattern, settings.clone(), targets));
            by_pattern.insert(pattern, all.len() - 1);
        }
        let indexed = all.into_iter().enumerate();
        let all: Vec<_> = indexed.map(|(index, pool)| Arc::new(Pool { index, ..pool })).collect();
        let named = all.iter().enumerate().map(|(at, pool)| (Arc::clone(&pool.name), at));
        Self { by_name: named.collect(), by_pattern, all }
    }

    /// Returns it with the pools of more patterns of server names, each with the pool's name.
    pub(crate) fn with_patterns<'p>(
        mut self,
        patterns: impl IntoIterator<Item = (Box<str>, &'p str)>,
    ) -> Self {
        for (pattern, pool) in patterns {
            if let Some(&at) = self.by_name.get(pool) {
                self.by_pattern.entry(pattern).or_insert(at);
            }
        }
        self
    }

    /// Returns all pools.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.all.iter()
    }

    /// Returns the pool `default`.
    #[must_use]
    pub fn first(&self) -> &Arc<Pool> {
        &self.all[0]
    }

    /// Returns the pool of that name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Arc<Pool>> {
        self.by_name.get(name).map(|&at| &self.all[at])
    }

    /// Returns the pool of that name, which mostly has this place: then nothing is hashed.
    pub(crate) fn named_at(&self, place: u16, name: &str) -> Option<&Arc<Pool>> {
        match self.all.get(usize::from(place)) {
            Some(pool) if *pool.name == *name => Some(pool),
            _ => self.named(name),
        }
    }

    /// Returns the backend at `address` in the pool of this name, or in another pool if that one
    /// does not have it.
    pub(crate) fn backend(
        &self,
        pool: Option<&str>,
        address: PeerAddress,
    ) -> Option<&Arc<Backend>> {
        let named = pool.and_then(|name| self.named(name));
        let mut pools = named.into_iter().chain(&self.all);
        pools.find_map(|pool| Some(&pool.targets[pool.position(address)?].backend))
    }

    /// Returns the name of the pool with this backend, unless it is the default.
    pub(crate) fn name_of(&self, backend: &Arc<Backend>) -> Option<&str> {
        let mut others = self.all[1..].iter();
        let has = |pool: &&Arc<Pool>| {
            pool.targets.iter().any(|target| Arc::ptr_eq(&target.backend, backend))
        };
        others.find(has).map(|pool| &*pool.name)
    }

    /// Returns the pool of that pattern of server names, without backends if none has the pattern
    /// yet.
    pub(crate) fn passthrough(&self, pattern: &str) -> Arc<Pool> {
        match self.by_pattern.get(pattern) {
            Some(&at) => Arc::clone(&self.all[at]),
            None => {
                let settings = self.first().settings.clone();
                Arc::new(Pool::of_pattern(pattern, settings, Vec::new()))
            }
        }
    }

    /// Returns the present state of a pool of an earlier configuration: the pool of its name, or
    /// the pool itself if it is gone.
    pub(crate) fn current<'p>(&'p self, held: &'p Arc<Pool>) -> &'p Arc<Pool> {
        match self.all.get(held.index) {
            Some(same) if Arc::ptr_eq(same, held) => same,
            _ => self.named(&held.name).unwrap_or(held),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn target(port: u16, patterns: &[&str]) -> Target {
        Target {
            backend: Arc::new(Backend::new(SocketAddr::from(([127, 0, 0, 1], port)), 1)),
            send_proxy: false,
            tls: None,
            passthrough: patterns.iter().map(|pattern| Box::from(*pattern)).collect(),
            name: None,
        }
    }

    fn pool(name: &str, targets: Vec<Target>) -> Pool {
        Pool::new(name.into(), Settings::default().pool(), targets)
    }

    #[test]
    fn patterns_of_server_names_have_pools_of_their_own() {
        let targets = vec![target(1, &[]), target(2, &["a.b", "*.b", "a.b"]), target(3, &["a.b"])];
        let pools = Pools::new(pool(DEFAULT_POOL, targets), vec![pool("x", vec![target(1, &[])])]);
        let ports = |pool: &Pool| -> Vec<u16> {
            pool.targets.iter().map(|target| target.backend.address().port()).collect()
        };
        assert_eq!(ports(pools.first()), [1]);
        assert_eq!(ports(pools.named("x").unwrap()), [1]);
        assert_eq!(ports(&pools.passthrough("a.b")), [2, 3]);
        assert_eq!(ports(&pools.passthrough("*.b")), [2]);
        assert!(pools.passthrough("c").targets.is_empty());
        assert!(pools.iter().enumerate().all(|(at, pool)| pool.index() == at));
    }

    #[test]
    fn a_pool_is_found_by_name_in_a_later_configuration() {
        let earlier = Pools::new(pool(DEFAULT_POOL, vec![]), vec![pool("a", vec![])]);
        let (a, none) = (earlier.named("a").unwrap(), earlier.passthrough("p"));
        let of = |number| vec![target(number, &[])];
        let others = vec![pool("b", of(1)), pool("a", of(2))];
        let later = Pools::new(pool(DEFAULT_POOL, vec![target(3, &["p"])]), others);
        assert_eq!(later.current(a).targets.len(), 1);
        assert_eq!(later.current(a).targets[0].backend.address().port(), 2);
        assert_eq!(later.current(&none).targets.len(), 1);
        assert!(Arc::ptr_eq(earlier.current(a), a));
        // A place that another pool has by now decides nothing.
        for (place, name) in [(0, "default"), (1, "b"), (1, "a"), (2, "a"), (9, "a"), (0, "b")] {
            assert_eq!(*later.named_at(place, name).unwrap().name, *name, "at {place}");
        }
        assert!(later.named_at(1, "c").is_none());
        let gone = later.named("b").unwrap();
        assert!(Arc::ptr_eq(earlier.current(gone), gone));
    }

    #[test]
    fn a_tunnel_of_a_predecessor_finds_its_backend_by_pool_or_by_address() {
        let others = vec![pool("a", vec![target(1, &[])]), pool("b", vec![target(2, &[])])];
        let pools = Pools::new(pool(DEFAULT_POOL, vec![target(1, &[]), target(3, &["p"])]), others);
        let port = |port: u16| PeerAddress::from(([127, 0, 0, 1], port));
        let id = |pool, at| pools.backend(pool, port(at)).map(|backend| backend.id());
        let of = |name: &str| pools.named(name).unwrap().targets[0].backend.id();
        assert_eq!((id(None, 1), id(Some("a"), 1)), (Some(of(DEFAULT_POOL)), Some(of("a"))));
        // A pool that has another name here, and one of a pattern.
        assert_eq!((id(Some("gone"), 2), id(None, 3)), (Some(of("b")), Some(of("passthrough:p"))));
        assert_eq!(id(Some("a"), 9), None);
        for (name, expected) in [(DEFAULT_POOL, None), ("a", Some("a")), ("b", Some("b"))] {
            let backend = &pools.named(name).unwrap().targets[0].backend;
            assert_eq!(pools.name_of(backend), expected);
        }
    }

    #[test]
    fn tags_of_the_default_pool_are_those_of_the_address_and_others_differ() {
        let address = "127.0.0.1:9001".parse().unwrap();
        let (default, other) = (pool(DEFAULT_POOL, vec![]), pool("a", vec![]));
        assert_eq!(default.tag(address), default.settings.cookie_key.tag(address));
        assert_ne!(default.tag(address), other.tag(address));
        assert_ne!(pool("b", vec![]).tag(address), other.tag(address));
    }
}
