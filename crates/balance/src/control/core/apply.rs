//! Reloads: the configuration's list of backends and its settings.

use std::net::SocketAddr;

use throng_io::Instant;

use super::ControlCore;
use super::names::Listed;
use crate::backend::State;
use crate::config::{BackendConfig, Config, MAX_BACKENDS, NamedBackend};
use crate::control::error::Error;
use crate::registry::{DesiredState, Entry};
use crate::settings::Removed;
use crate::status::{Changes, RemovedBackend};

impl ControlCore {
    /// Applies the list and the settings of `config`. Values that are unchanged in the file stay as
    /// operators changed them.
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
        config.check()?;
        let (backends, names) = self.backends_of(&config);
        let files = self.listed(&backends, &names);
        for Listed { file, .. } in &files {
            self.check_address(file.address)?;
        }
        self.check_result(&files)?;
        if config.names_backends() {
            self.listed.clone_from(&backends);
        }
        let mut changes = self.take_settings(config);
        self.names = names;
        self.forget_lookups();
        (self.is_changed, self.names_changed) = (true, true);
        for listed in &files {
            self.apply_backend(listed, now, &mut changes);
        }
        tell(self);
        for at in 0..self.entries.len() {
            let entry = &mut self.entries[at];
            let address = entry.backend.address();
            let listed = files.iter().any(|of| of.file.address == address);
            if !listed && entry.desired.file.take().is_some() && entry.is_being_removed() {
                entry.desired.name = None;
                let tunnels = entry.backend.tunnels();
                self.leave(at, self.settings.removed == Removed::Drain, now);
                let rate = self.closes(at);
                changes.removed.push(RemovedBackend { address, tunnels, rate });
            }
        }
        Ok(changes)
    }

    /// Returns the backends that a reload with `config` results in: its own, or, if it does not
    /// name any, the backends of the last one.
    pub(crate) fn backends_of(&self, config: &Config) -> (Vec<BackendConfig>, Vec<NamedBackend>) {
        if config.names_backends() {
            return (config.backends.clone(), config.names.clone());
        }
        let listed = self.entries.iter().filter(|entry| entry.desired.name.is_none());
        let files = listed.filter_map(|entry| entry.desired.file.clone());
        (files.collect(), self.names.clone())
    }

    /// Checks that the backends of `files`, with the remaining others, are not too many, and that
    /// one of them is up if one is up now.
    fn check_result(&self, files: &[Listed]) -> Result<(), Error> {
        let is_listed =
            |entry: &Entry| files.iter().any(|of| of.file.address == entry.backend.address());
        let (mut staying, mut is_up) = (files.len(), false);
        for entry in &self.entries {
            if !is_listed(entry) && (entry.desired.api || entry.desired.ttl.is_some()) {
                staying += 1;
                is_up |= entry.state() == State::Up;
            }
        }
        if staying > MAX_BACKENDS {
            return Err(Error::TooMany { most: MAX_BACKENDS });
        }
        is_up |= files.iter().any(|of| match self.position(of.file.address) {
            Some(at) if !self.entries[at].is_being_removed() => {
                self.entries[at].state() == State::Up
            }
            _ => true,
        });
        if !is_up && self.entries.iter().any(|entry| entry.state() == State::Up) {
            return Err(Error::NoneUp);
        }
        Ok(())
    }

    /// Applies the settings of `config`. Returns whether they differ from the ones in force.
    fn take_settings(&mut self, config: Config) -> Changes {
        let changes = Changes {
            needs_restart: self.needs_restart(&config),
            settings: self.settings != config.settings
                || self.register != config.register
                || self.lookup_interval != config.lookup_interval
                || self.sites.0 != config.sites
                || self.security != (config.tls.clone(), config.backend_tls.clone()),
            ..Changes::default()
        };
        // Which pools there are also depends on the rest.
        let sites = config.compiled_sites().unwrap_or_default();
        self.sites = (config.sites, sites);
        self.settings = config.settings;
        self.register = config.register;
        self.lookup_interval = config.lookup_interval;
        self.security = (config.tls, config.backend_tls);
        changes
    }

    pub(super) fn apply_backend(
        &mut self,
        Listed { file, name }: &Listed,
        now: Instant,
        changes: &mut Changes,
    ) {
        let &BackendConfig { address, weight, .. } = file;
        let Some(at) = self.position(address).filter(|&at| !self.entries[at].is_being_removed())
        else {
            changes.added.push(address);
            let desired = DesiredState {
                file: Some(file.clone()),
                name: name.clone(),
                ..DesiredState::default()
            };
            self.enlist(file.clone(), desired, now);
            return;
        };
        let entry = &mut self.entries[at];
        entry.desired.name.clone_from(name);
        if entry.desired.file.replace(file.clone()).as_ref() == Some(file) {
            return;
        }
        let is_modified = (entry.send_proxy, entry.tls) != (file.send_proxy, file.tls)
            || entry.tls_name != file.tls_name
            || entry.passthrough != file.passthrough;
        if is_modified {
            changes.modified.push(address);
        }
        (entry.send_proxy, entry.tls) = (file.send_proxy, file.tls);
        entry.tls_name.clone_from(&file.tls_name);
        entry.passthrough.clone_from(&file.passthrough);
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
fn listen_of(config: &Config) -> Option<&[SocketAddr]> {
    config.tls.as_ref().map(|tls| tls.listen.as_slice())
}
