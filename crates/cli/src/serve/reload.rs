//! Reloads of the settings, on SIGHUP or by the admin API.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng::channel::History;
use throng::server::Running;
use throng_config::Values;

use super::requests::Reloaded;
use super::rights::LiveRights;
use super::settings::Members;
use super::{REGISTER, SettingFlags, Settings, check_log, site};
use crate::changes::{Changes, NO_FILE, log_reload};
use crate::failure::Failure;
use crate::hosts::LiveHosts;
use crate::log::{Log, events};

/// The settings of a running server, and where they come from.
pub(super) struct Reloader {
    flags: SettingFlags,
    /// Overrides the defaults of the table, because of `--register`.
    defaults: &'static [(&'static str, &'static str)],
    started: Values,
    /// The rules of the start: a history cannot change.
    histories: Vec<(String, Option<History>)>,
    /// The presence rules of the start: they cannot change either.
    presences: Vec<(String, Option<Members>)>,
    /// The hosts that the running server allows.
    hosts: LiveHosts,
    /// The rights of the running server.
    rights: LiveRights,
    current: Mutex<(Arc<Settings>, Values)>,
}

impl Reloader {
    /// Reads the settings for the first time.
    pub(super) fn new(
        flags: SettingFlags,
        defaults: &'static [(&'static str, &'static str)],
    ) -> Result<Self, Failure> {
        let draft = flags.draft(REGISTER, defaults)?;
        let values = draft.values().clone();
        let settings = Arc::new(Settings::from_draft(draft)?);
        let (hosts, histories) = (settings.hosts.clone(), settings.histories());
        let (presences, rights) = (settings.presences(), settings.rights.clone());
        let current = Mutex::new((settings, values.clone()));
        Ok(Self { flags, defaults, started: values, histories, presences, hosts, rights, current })
    }

    /// Returns the settings in force.
    pub(super) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.current().0)
    }

    fn current(&self) -> MutexGuard<'_, (Arc<Settings>, Values)> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads everything again, and applies all changes that it can. Logs the outcome, including an
    /// error: the watch of certificates does not report it again.
    ///
    /// # Errors
    /// The mistake and its place. Then no setting changes; but renewed certificates may be in use,
    /// which has its own event.
    pub(super) fn reload(&self, running: &Running, log: &Log) -> Result<Reloaded, String> {
        let outcome = match self.has_files(running) {
            true => self.read_again(running, log),
            false => Err(NO_FILE.to_owned()),
        };
        log_reload(log, outcome.as_ref().map(Reloaded::in_words));
        outcome
    }

    /// Does the same for SIGHUP, which does not count as a mistake if there is nothing to read
    /// again.
    pub(super) fn reload_on_hangup(&self, running: &Running, log: &Log) {
        match self.has_files(running) {
            // The error is logged.
            true => drop(self.reload(running, log)),
            false => log.event(&events::RELOADED, NO_FILE, []),
        }
    }

    fn has_files(&self, running: &Running) -> bool {
        self.flags.file().is_some() || has_tls(running)
    }

    fn read_again(&self, running: &Running, log: &Log) -> Result<Reloaded, String> {
        let draft =
            self.flags.draft_in_use(REGISTER, self.defaults).map_err(|failure| failure.message)?;
        let values = draft.values().clone();
        let settings = Settings::from_draft(draft).map_err(|errors| errors.to_string())?;
        log_warnings(&settings, log);
        // Reloads come here one at a time. The lock is not held while files are read: a drain needs
        // the settings.
        let current = self.current().clone();
        let mut changes = Changes::between(&self.started, &current.1, &values);
        if settings.histories() != self.histories {
            changes.needs_restart.push("history of channels");
        }
        if settings.presences() != self.presences {
            changes.needs_restart.push("presence in channels");
        }
        if settings.scopes() != current.0.scopes() {
            changes.needs_restart.push("scope of channels");
        }
        let server = site::server(&settings, Some(log));
        server.check().map_err(|error| error.to_string())?;
        // Otherwise the next start would fail, long after the change.
        if !changes.needs_restart.is_empty() {
            site::check_start(&settings).map_err(|error| error.to_string())?;
            check_log(&settings.log).map_err(|failure| failure.message)?;
        }
        let certificates = reload_certificates(running, log)?;
        running.reconfigure(&server).map_err(|error| error.to_string())?;
        // If unchanged, `auto` keeps the meaning from the start, which depends on `listen`.
        if changes.changed.contains(&"allowed_hosts") {
            self.hosts.replace(&settings.hosts);
        }
        self.rights.replace(&settings.rights);
        self.rights.start(log).map_err(|failure| failure.message)?;
        log.configure(&settings.log);
        *self.current() = (Arc::new(settings), values);
        Ok(Reloaded { changes, certificates })
    }
}

/// Logs settings that are valid but probably unintended.
pub(super) fn log_warnings(settings: &Settings, log: &Log) {
    for warning in &settings.warnings {
        log.event(&events::WARNING, warning, []);
    }
}

#[cfg(feature = "tls")]
fn has_tls(running: &Running) -> bool {
    running.has_tls()
}

#[cfg(not(feature = "tls"))]
fn has_tls(_: &Running) -> bool {
    false
}

/// Reads the certificates again; returns whether their files had changed.
#[cfg(feature = "tls")]
fn reload_certificates(running: &Running, log: &Log) -> Result<bool, String> {
    // The next step finds mistakes in them again.
    let changed = running.reload_tls_if_changed().is_ok_and(|it| it);
    if changed {
        log.event(&events::CERTIFICATE_RELOADED, "", []);
    }
    running.reload_tls().map_err(|error| error.to_string())?;
    Ok(changed)
}

#[cfg(not(feature = "tls"))]
fn reload_certificates(_: &Running, _: &Log) -> Result<bool, String> {
    Ok(false)
}
