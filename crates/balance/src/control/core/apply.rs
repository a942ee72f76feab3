//! Reloads: the configuration's list of backends and its settings.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use throng_io::{Instant, PeerAddress};

use super::names::Listed;
use super::{ControlCore, KnownPool};
use crate::backend::State;
use crate::config::{BackendConfig, BackendSide, Config, MAX_BACKENDS, NamedBackend};
use crate::control::error::Error;
use crate::limit::RateLimits;
use crate::pool::{DEFAULT_POOL, PoolSettings};
use crate::registry::{DesiredState, Entry, PoolRules};
use crate::settings::Removed;
use crate::site::SiteCounters;
use crate::status::{Changes, RemovedBackend};

impl ControlCore {
    /// Applies the list and the settings of `config`, which was checked. Values that are unchanged
    /// in the file stay as operators changed them.
    ///
    /// `tell` is called when the new backends are in the list and before the old ones are removed:
    /// shards see at once that a backend must not be picked, but get new ones only in their
    /// configuration.
    pub(crate) fn apply(
        &mut self,
        config: Config,
        now: Instant,
        tell: impl FnOnce(&mut Self),
    ) -> Result<Changes, Error> {
        self.must_live()?;
        let mut pools = self.pools_of(&config);
        let files = self.listed(&pools);
        for Listed { file, .. } in &files {
            self.check_address(file.address)?;
        }
        let listed = self.assign(&files);
        self.check_result(&files, &listed)?;
        if !config.names_backends() {
            pools[0].listed = std::mem::take(&mut self.pools[0].listed);
        }
        let mut changes = self.take_settings(config, pools);
        for (entry, &file) in self.entries.iter_mut().zip(&listed) {
            let known = || self.pools.iter().find(|pool| entry.is_in(&pool.rules.name));
            let pool = file.map(|at: usize| &files[at].pool);
            if let Some(pool) = pool.or_else(|| known().map(|pool| &pool.rules)) {
                entry.pool = Arc::clone(pool);
            }
        }
        self.forget_lookups();
        (self.is_changed, self.names_changed) = (true, true);
        for listed in &files {
            self.apply_backend(listed, now, &mut changes);
        }
        tell(self);
        let addresses: HashSet<_> = files.iter().map(|listed| listed.file.address).collect();
        for (at, file) in listed.iter().enumerate() {
            let entry = &mut self.entries[at];
            if file.is_some() || entry.desired.file.take().is_none() || !entry.is_being_removed() {
                continue;
            }
            entry.desired.name = None;
            let (address, tunnels) = (entry.backend.address(), entry.backend.tunnels());
            // Its clients are on a backend that another pool has, still.
            let is_elsewhere = addresses.contains(&address);
            let drains = entry.pool.settings.removed == Removed::Drain && !is_elsewhere;
            self.leave(at, drains, now);
            let rate = self.closes(at);
            changes.removed.push(RemovedBackend { address, tunnels, rate });
        }
        Ok(changes)
    }

    /// Returns the pools that a reload with `config` results in.
    pub(super) fn pools_of(&self, config: &Config) -> Vec<KnownPool> {
        let (listed, names) = self.backends_of(config);
        let rules = |name: &Arc<str>, settings: PoolSettings, tls: &Option<BackendSide>| {
            Arc::new(PoolRules { name: Arc::clone(name), settings, tls: tls.clone() })
        };
        let rules_of_default =
            rules(&DEFAULT_POOL.into(), config.settings.pool(), &config.backend_tls);
        let load = |name: &str| {
            let known = self.pools.iter().find(|known| *known.rules.name == *name);
            known.map(|known| Arc::clone(&known.load)).unwrap_or_default()
        };
        let load_of_default = load(DEFAULT_POOL);
        let default = KnownPool { rules: rules_of_default, load: load_of_default, listed, names };
        let others = config.pools.iter().map(|pool| KnownPool {
            load: load(&pool.name),
            rules: rules(&pool.name, pool.settings.clone(), &pool.tls),
            listed: pool.backends.clone(),
            names: pool.names.clone(),
        });
        std::iter::once(default).chain(others).collect()
    }

    /// Returns for each backend the index of its file: of its pool and address, or else of its
    /// address and TLS alone. So a pool that is renamed, split or merged keeps its backends.
    fn assign(&self, files: &[Listed]) -> Vec<Option<usize>> {
        let mut places: HashMap<(&str, PeerAddress), usize> = HashMap::new();
        for (at, listed) in files.iter().enumerate() {
            places.entry((&listed.pool.name, listed.file.address)).or_insert(at);
        }
        let mut assigned = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            assigned.push(places.remove(&(&*entry.pool.name, entry.backend.address())));
        }
        let mut rest: HashMap<PeerAddress, BTreeSet<usize>> = HashMap::new();
        for ((_, address), at) in places {
            rest.entry(address).or_default().insert(at);
        }
        // Those in a list first, then those that have only tunnels left; of these the most.
        let is_free = |at: &usize| {
            let DesiredState { api, ttl, .. } = &self.entries[*at].desired;
            assigned[*at].is_none() && !api && ttl.is_none()
        };
        let mut free: Vec<usize> = (0..self.entries.len()).filter(is_free).collect();
        free.sort_by_key(|&at| {
            let entry = &self.entries[at];
            (entry.desired.file.is_none(), Reverse(entry.backend.tunnels()))
        });
        for at in free {
            let entry = &self.entries[at];
            let Some(of_address) = rest.get_mut(&entry.backend.address()) else { continue };
            let is_its = |file: &&usize| entry.has_tls_of(&files[**file].pool, &files[**file].file);
            if let Some(&file) = of_address.iter().find(is_its) {
                of_address.remove(&file);
                assigned[at] = Some(file);
            }
        }
        assigned
    }

    /// Returns the backends of the default pool that a reload with `config` results in: its own,
    /// or, if it does not name any, the backends of the last one.
    pub(crate) fn backends_of(&self, config: &Config) -> (Vec<BackendConfig>, Vec<NamedBackend>) {
        if config.names_backends() {
            return (config.backends.clone(), config.names.clone());
        }
        let names = self.pools.first().map_or_else(Vec::new, |pool| pool.names.clone());
        (self.explicit(DEFAULT_POOL), names)
    }

    /// Returns the present backends of a pool that the file has by address.
    pub(super) fn explicit(&self, pool: &str) -> Vec<BackendConfig> {
        let is_it = |entry: &&Entry| entry.is_in(pool) && entry.desired.name.is_none();
        let listed = self.entries.iter().filter(is_it);
        listed.filter_map(|entry| entry.desired.file.clone()).collect()
    }

    /// Checks that the backends of `files`, with the remaining others, are not too many, and that
    /// one of them is up if one is up now.
    fn check_result(&self, files: &[Listed], assigned: &[Option<usize>]) -> Result<(), Error> {
        let in_default = |listed: &&Listed| *listed.pool.name == *DEFAULT_POOL;
        let mut staying = files.iter().filter(in_default).count();
        let (mut is_new, mut is_up) = (vec![true; files.len()], false);
        for (entry, file) in self.entries.iter().zip(assigned) {
            match *file {
                Some(file) if !entry.is_being_removed() => {
                    is_new[file] = false;
                    is_up |= entry.state() == State::Up;
                }
                None if entry.desired.api || entry.desired.ttl.is_some() => {
                    staying += 1;
                    is_up |= entry.state() == State::Up;
                }
                _ => {}
            }
        }
        if staying > MAX_BACKENDS {
            return Err(Error::TooMany { most: MAX_BACKENDS });
        }
        is_up |= is_new.contains(&true);
        if !is_up && self.entries.iter().any(|entry| entry.state() == State::Up) {
            return Err(Error::NoneUp);
        }
        Ok(())
    }

    /// Applies the settings of `config`. Returns whether they differ from the ones in force.
    fn take_settings(&mut self, config: Config, pools: Vec<KnownPool>) -> Changes {
        let rules = |pools: &[KnownPool]| -> Vec<_> {
            pools.iter().map(|pool| Arc::clone(&pool.rules)).collect()
        };
        let changes = Changes {
            needs_restart: self.needs_restart(&config),
            settings: self.settings != config.settings
                || self.register != config.register
                || self.lookup_interval != config.lookup_interval
                || self.sites.0 != config.sites
                || self.limits.0 != config.limits
                || self.policy.0 != config.policy
                || rules(&self.pools) != rules(&pools)
                || self.security != (config.tls.clone(), config.backend_tls.clone()),
            ..Changes::default()
        };
        // Which pools there are also depends on the rest.
        let limits = RateLimits::new(&config.limits, &self.limits.1);
        let sites = config.compiled_sites().unwrap_or_default();
        self.counters = SiteCounters::new(sites.as_deref(), &self.counters);
        self.set_weights.apply_to(sites.as_deref());
        self.policy.1 = config.compiled_policy().unwrap_or_default();
        self.policy.0 = config.policy;
        let before = std::mem::replace(&mut self.sites, (config.sites, sites));
        self.keep_maintenance(before.1.as_deref());
        self.take_classes();
        self.limits = (config.limits, limits);
        self.settings = config.settings;
        self.pools = pools;
        self.register = config.register;
        self.lookup_interval = config.lookup_interval;
        self.security = (config.tls, config.backend_tls);
        changes
    }

    pub(super) fn apply_backend(
        &mut self,
        Listed { pool, file, name }: &Listed,
        now: Instant,
        changes: &mut Changes,
    ) {
        let &BackendConfig { address, weight, .. } = file;
        let at = self.position(&pool.name, address);
        let Some(at) = at.filter(|&at| !self.entries[at].is_being_removed()) else {
            changes.added.push(address);
            let desired = DesiredState {
                file: Some(file.clone()),
                name: name.clone(),
                ..DesiredState::default()
            };
            self.enlist(pool, file.clone(), desired, now);
            return;
        };
        let entry = &mut self.entries[at];
        entry.desired.name.clone_from(name);
        if entry.desired.file.replace(file.clone()).as_ref() == Some(file) {
            return;
        }
        let is_modified = (entry.send_proxy, entry.tls) != (file.send_proxy, file.tls)
            || (entry.max_connections, entry.backup) != (file.max_connections, file.backup)
            || entry.tls_name != file.tls_name
            || entry.passthrough != file.passthrough;
        if is_modified {
            changes.modified.push(address);
        }
        entry.connect_as(file);
        self.names_changed = true;
        if entry.backend.weight() != weight {
            changes.reweighted.push(address);
            self.weigh(at, weight, now);
        }
    }

    fn needs_restart(&self, config: &Config) -> Vec<&'static str> {
        let started = &self.started;
        let differ = [
            ("listen", started.listen != config.listen),
            ("listeners", started.listeners != config.listeners),
            ("share_port", started.share_port != config.share_port),
            ("unix_mode", started.unix_mode != config.unix_mode),
            ("pin", started.is_pinned != config.is_pinned),
            ("shards", started.shards != config.shards),
            ("descriptors", started.descriptors != config.descriptors),
            ("tls", listen_of(started) != listen_of(config)),
            ("admin.listen", started.admin != config.admin),
            ("log.file", started.log.file != config.log.file),
            ("log.format", started.log.format != config.log.format),
        ];
        differ.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }
}

/// Returns the addresses with TLS, if there is TLS.
fn listen_of(config: &Config) -> Option<&[PeerAddress]> {
    config.tls.as_ref().map(|tls| tls.listen.as_slice())
}
