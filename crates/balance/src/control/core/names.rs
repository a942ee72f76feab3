//! Backends with names: each address that a lookup finds is a backend.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use throng_io::Instant;

use super::{ControlCore, KnownPool};
use crate::config::{BackendConfig, MAX_BACKENDS, NamedBackend, canonical};
use crate::registry::PoolRules;
use crate::settings::Removed;
use crate::status::{Changes, LastFailure, NameRow};

/// A backend of the configuration's list, with its name if it has one.
pub(super) struct Listed {
    pub(super) pool: Arc<PoolRules>,
    pub(super) file: BackendConfig,
    pub(super) name: Option<Arc<str>>,
}

/// The outcome of the lookups of a name.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Addresses of the last lookup that succeeded, sorted.
    addresses: Vec<SocketAddr>,
    failures: u64,
    /// The last failure, unless a lookup succeeded since.
    failure: Option<(String, SystemTime)>,
}

impl ControlCore {
    /// Returns the names to look up. Several pools may have one name.
    pub(crate) fn names(&self) -> impl Iterator<Item = &NamedBackend> {
        self.pools.iter().flat_map(|pool| &pool.names)
    }

    /// Drops the lookups of names that no backend has.
    pub(crate) fn forget_lookups(&mut self) {
        let mut found = std::mem::take(&mut self.found);
        let known: HashSet<_> = self.names().map(|known| &known.name).collect();
        found.retain(|name, _| known.contains(name));
        self.found = found;
    }

    /// Returns whether a lookup of `name` has ended.
    pub(crate) fn has_looked_up(&self, name: &str) -> bool {
        self.found.contains_key(name)
    }

    /// Returns the backends of all pools, with all addresses of their names. A pool has each
    /// address once, with the settings of the first of the two that has it.
    pub(super) fn listed(&self, pools: &[KnownPool]) -> Vec<Listed> {
        pools.iter().flat_map(|pool| self.listed_of(pool)).collect()
    }

    fn listed_of(&self, KnownPool { rules: pool, listed, names, .. }: &KnownPool) -> Vec<Listed> {
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        for file in listed {
            seen.insert(canonical(file.address));
            all.push(Listed { pool: Arc::clone(pool), file: file.clone(), name: None });
        }
        for named in names {
            let addresses = self.found.get(&named.name).map(|found| found.addresses.as_slice());
            for &address in addresses.unwrap_or_default() {
                let address = address.into();
                if all.len() < MAX_BACKENDS && seen.insert(canonical(address)) {
                    let (file, name) = (named.at(address), Some(Arc::clone(&named.name)));
                    all.push(Listed { pool: Arc::clone(pool), file, name });
                }
            }
        }
        all
    }

    /// Applies the outcome of a lookup of `name`. New addresses become backends; backends whose
    /// address is gone get no new clients, and leave with their last tunnel. After a failure, the
    /// last addresses stay. `tell` is called as by [`ControlCore::apply`].
    pub(crate) fn handle_lookup(
        &mut self,
        name: &Arc<str>,
        outcome: Result<Vec<SocketAddr>, String>,
        now: Instant,
        wall: SystemTime,
        tell: impl FnOnce(&mut Self),
    ) {
        let outcome = outcome.map(|addresses| self.usable(addresses)).and_then(|addresses| {
            match addresses.is_empty() {
                true => Err("it has no address that can be connected to".to_owned()),
                false => Ok(addresses),
            }
        });
        let found = self.found.entry(Arc::clone(name)).or_default();
        let addresses = match outcome {
            Err(why) => {
                found.failures += 1;
                found.failure = Some((why, wall));
                return;
            }
            Ok(addresses) => addresses,
        };
        found.failure = None;
        let before = std::mem::replace(&mut found.addresses, addresses.clone());
        if before == addresses || !self.names().any(|known| known.name == *name) {
            return;
        }
        let explicit = self.pools.iter().map(|KnownPool { rules, load, names, .. }| KnownPool {
            load: Arc::clone(load),
            rules: Arc::clone(rules),
            listed: self.explicit(&rules.name),
            names: names.clone(),
        });
        let files = self.listed(&explicit.collect::<Vec<_>>());
        self.add_found(name, &files, &before, now);
        tell(self);
        self.remove_vanished(name, &files, now);
    }

    /// Creates backends for the addresses of `name` that were not there `before`, and applies the
    /// list's settings to the known ones.
    fn add_found(
        &mut self,
        name: &Arc<str>,
        files: &[Listed],
        before: &[SocketAddr],
        now: Instant,
    ) {
        for listed in files {
            let Listed { pool, file: BackendConfig { address, .. }, name: of } = listed;
            // A known address without a backend: an operator removed it.
            let is_before = address.socket_addr().is_some_and(|it| before.contains(&it));
            let is_new = of.as_ref() == Some(name) && !is_before;
            let is_known = || {
                self.position(&pool.name, *address)
                    .is_some_and(|at| self.entries[at].desired.file.is_some())
            };
            if is_new || is_known() {
                self.apply_backend(listed, now, &mut Changes::default());
            }
        }
    }

    /// Removes backends whose address `name` no longer has.
    fn remove_vanished(&mut self, name: &Arc<str>, files: &[Listed], now: Instant) {
        for at in 0..self.entries.len() {
            let entry = &mut self.entries[at];
            let address = entry.backend.address();
            let is_of_name = entry.desired.name.as_ref() == Some(name);
            let is_it = |of: &Listed| of.file.address == address && entry.is_in(&of.pool.name);
            if !is_of_name || files.iter().any(is_it) {
                continue;
            }
            entry.desired.file = None;
            entry.desired.name = None;
            if entry.is_being_removed() {
                let drains = entry.pool.settings.removed == Removed::Drain;
                self.leave(at, drains, now);
            }
        }
    }

    /// Sorts addresses, and omits those that cannot lead to a backend.
    fn usable(&self, mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
        addresses.retain(|&address| self.check_address(address.into()).is_ok());
        addresses.sort_unstable();
        addresses.dedup_by_key(|address| canonical((*address).into()));
        addresses
    }

    /// Returns the status of all names.
    pub(crate) fn name_rows(&self) -> Vec<NameRow> {
        let row = |named: &NamedBackend| {
            let found = self.found.get(&named.name);
            let failure = found.and_then(|found| found.failure.clone());
            NameRow {
                name: named.name.to_string(),
                addresses: found.map_or_else(Vec::new, |found| found.addresses.clone()),
                failures: found.map_or(0, |found| found.failures),
                last_failure: failure.map(|(text, at)| LastFailure::new(text, at)),
            }
        };
        let mut seen = HashSet::new();
        self.names().filter(|named| seen.insert(&named.name)).map(row).collect()
    }
}

#[cfg(test)]
mod tests;
