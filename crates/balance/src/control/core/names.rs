//! Backends with names: each address that a lookup finds is a backend.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use throng_io::Instant;

use super::ControlCore;
use crate::config::{BackendConfig, MAX_BACKENDS, NamedBackend};
use crate::settings::Removed;
use crate::status::{Changes, LastFailure, NameRow};

/// A backend of the configuration's list, with its name if it has one.
pub(super) struct Listed {
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
    /// Returns the names to look up.
    pub(crate) fn names(&self) -> &[NamedBackend] {
        &self.names
    }

    /// Drops the lookups of names that no backend has.
    pub(crate) fn forget_lookups(&mut self) {
        self.found.retain(|name, _| self.names.iter().any(|known| known.name == *name));
    }

    /// Returns whether a lookup of `name` has ended.
    pub(crate) fn has_looked_up(&self, name: &str) -> bool {
        self.found.contains_key(name)
    }

    /// Returns the list of backends: `backends`, and all addresses of `names`. Each address is in
    /// it once, with the settings of the first of the two that has it.
    pub(super) fn listed(&self, backends: &[BackendConfig], names: &[NamedBackend]) -> Vec<Listed> {
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        for file in backends {
            seen.insert(canonical(file.address));
            all.push(Listed { file: file.clone(), name: None });
        }
        for named in names {
            let addresses = self.found.get(&named.name).map(|found| found.addresses.as_slice());
            for &address in addresses.unwrap_or_default() {
                let NamedBackend { name, weight, send_proxy, tls, tls_name, passthrough } =
                    named.clone();
                if all.len() < MAX_BACKENDS && seen.insert(canonical(address)) {
                    let file =
                        BackendConfig { address, weight, send_proxy, tls, tls_name, passthrough };
                    all.push(Listed { file, name: Some(name) });
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
        if before == addresses || !self.names.iter().any(|known| known.name == *name) {
            return;
        }
        let explicit = self.entries.iter().filter(|entry| entry.desired.name.is_none());
        let explicit: Vec<_> = explicit.filter_map(|entry| entry.desired.file.clone()).collect();
        let files = self.listed(&explicit, &self.names);
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
            let Listed { file: BackendConfig { address, .. }, name: of } = listed;
            // A known address without a backend: an operator removed it.
            let is_new = of.as_ref() == Some(name) && !before.contains(address);
            let is_known = || {
                self.position(*address).is_some_and(|at| self.entries[at].desired.file.is_some())
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
            if !is_of_name || files.iter().any(|listed| listed.file.address == address) {
                continue;
            }
            entry.desired.file = None;
            entry.desired.name = None;
            if entry.is_being_removed() {
                self.leave(at, self.settings.removed == Removed::Drain, now);
            }
        }
    }

    /// Sorts addresses, and omits those that cannot lead to a backend.
    fn usable(&self, mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
        addresses.retain(|&address| self.check_address(address).is_ok());
        addresses.sort_unstable();
        addresses.dedup_by_key(|address| canonical(*address));
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
        self.names.iter().map(row).collect()
    }
}

/// ::ffff:127.0.0.1 is another form of 127.0.0.1.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests;
