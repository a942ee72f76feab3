//! Reloads of the settings on SIGHUP.

use std::sync::{Arc, Mutex, PoisonError};

use throng::{History, Running};
use throng_config::Values;

use super::settings::Members;
use super::{SettingFlags, Settings, site};
use crate::Failure;
use crate::changes::{Changes, in_words};
use crate::hosts::LiveHosts;
use crate::log::{Log, events};

/// The settings of a running server, and where they come from.
pub(super) struct Reloader<'a> {
    flags: &'a SettingFlags,
    /// Overrides the defaults of the table, because of `--register`.
    defaults: &'static [(&'static str, &'static str)],
    started: Values,
    /// The rules of the start: a history cannot change.
    histories: Vec<(String, Option<History>)>,
    /// Nor can presence.
    presences: Vec<(String, Option<Members>)>,
    /// The hosts that the running server allows.
    hosts: LiveHosts,
    current: Mutex<(Arc<Settings>, Values)>,
}

impl<'a> Reloader<'a> {
    /// Reads the settings for the first time.
    pub(super) fn new(flags: &'a SettingFlags, is_registered: bool) -> Result<Self, Failure> {
        // The clients of a registered server ask for the name of the balancer.
        let defaults: &[_] = if is_registered { &[("allowed_hosts", "*")] } else { &[] };
        let draft = flags.draft("--register", defaults)?;
        let values = draft.values().clone();
        let settings = Arc::new(Settings::from_draft(draft)?);
        let (hosts, histories) = (settings.hosts.clone(), settings.histories());
        let presences = settings.presences();
        let current = Mutex::new((settings, values.clone()));
        Ok(Self { flags, defaults, started: values, histories, presences, hosts, current })
    }

    /// Returns the settings in force.
    pub(super) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Reads everything again, changes what can change, and logs it.
    pub(super) fn reload(&self, running: &Running, log: &Log) {
        if self.flags.file().is_none() && !has_tls(running) {
            let message = "there is no file to read again; start with --config FILE";
            return log.event(&events::RELOADED, message, []);
        }
        match self.read_again(running, log) {
            Ok(changes) => {
                let Changes { changed, needs_restart } = changes;
                let message = in_words(Vec::new(), &changed, &needs_restart);
                log.event(&events::RELOADED, message, []);
            }
            Err(reason) => {
                let fields = [("reason", reason.into())];
                log.event(&events::RELOAD_FAILED, "nothing was changed", fields);
            }
        }
    }

    fn read_again(&self, running: &Running, log: &Log) -> Result<Changes, String> {
        let draft = self
            .flags
            .draft_in_use("--register", self.defaults)
            .map_err(|failure| failure.message)?;
        let values = draft.values().clone();
        let settings = Settings::from_draft(draft).map_err(|errors| errors.to_string())?;
        log_warnings(&settings, log);
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
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
        let server = site::server(&settings);
        server.check().map_err(|error| error.to_string())?;
        reload_certificates(running)?;
        running.reconfigure(&server).map_err(|error| error.to_string())?;
        // Unchanged, `auto` keeps the meaning that `listen` gave it at the start.
        if changes.changed.contains(&"allowed_hosts") {
            self.hosts.replace(&settings.hosts);
        }
        log.configure(&settings.log);
        *current = (Arc::new(settings), values);
        Ok(changes)
    }
}

/// Logs what is valid and hardly intended.
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

#[cfg(feature = "tls")]
fn reload_certificates(running: &Running) -> Result<(), String> {
    running.reload_tls().map_err(|error| error.to_string())
}

#[cfg(not(feature = "tls"))]
fn reload_certificates(_: &Running) -> Result<(), String> {
    Ok(())
}
