//! Reloads of the configuration, by a signal or the admin API.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};
use throng_balance::{Balancer, Changes, Config, ConfigErrors, Error, Location, Shutdown, Token};

use throng_config::{LogSettings, UpgradeSettings, Values};

use super::args::Flags;
use super::sentences::removed_in_words;
use crate::changes::{self, CERTIFICATES, Changes as ChangedKeys, NO_FILE, log_reload};
use crate::log::{Log, events};

/// Everything that a reload needs.
pub(super) struct Reloader {
    flags: Flags,
    balancer: Balancer,
    /// One reload at a time: two would mix their settings.
    turn: Mutex<()>,
    started: Values,
    values: Mutex<Values>,
    own: Mutex<Own>,
    /// Whether other machines can reach the admin API; fixed until the next start.
    is_exposed: bool,
    /// The thread that handles certificates has not noticed it yet.
    has_reloaded: AtomicBool,
    log: Log,
}

/// Settings that do not belong to the balancer itself.
#[derive(Clone, PartialEq, Eq)]
struct Own {
    shutdown: Shutdown,
    upgrade: UpgradeSettings,
    admin_token: Option<Token>,
    log: LogSettings,
}

impl Own {
    fn of(config: &Config) -> Self {
        let log = LogSettings { file: None, ..config.log.clone() };
        Self {
            shutdown: config.shutdown,
            upgrade: config.upgrade,
            admin_token: config.admin_token.clone(),
            log,
        }
    }
}

impl Reloader {
    /// Creates the reloader of a balancer that runs with `config`, read from `flags`.
    pub(super) fn new(
        flags: Flags,
        balancer: Balancer,
        (config, started): (&Config, Values),
        log: Log,
    ) -> Self {
        let is_exposed = config.admin.is_some_and(|own| !own.ip().to_canonical().is_loopback());
        let own = Mutex::new(Own::of(config));
        let (turn, values) = (Mutex::default(), Mutex::new(started.clone()));
        let has_reloaded = AtomicBool::new(false);
        Self { flags, balancer, turn, started, values, own, is_exposed, has_reloaded, log }
    }

    /// Reads everything again, and applies it. Logs the outcome, including an error: the watch of
    /// certificates does not report it again.
    ///
    /// # Errors
    /// The mistake and its place. Then no setting changes; but renewed certificates may be in use,
    /// which has its own event.
    pub(super) fn reload(&self) -> Result<Reloaded, ReloadFailure> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = match self.has_files() {
            true => self.read_again(),
            false => Err(ReloadFailure::from(NO_FILE.to_owned())),
        };
        log_reload(&self.log, outcome.as_ref().map(in_words).map_err(|failure| &failure.text));
        self.has_reloaded.store(true, Relaxed);
        outcome
    }

    /// Does the same for SIGHUP, which does not count as a mistake if there is nothing to read
    /// again.
    pub(super) fn reload_on_hangup(&self) {
        match self.has_files() {
            // The error is logged.
            true => drop(self.reload()),
            false => self.log.event(&events::RELOADED, NO_FILE, []),
        }
    }

    /// Returns whether there was a reload since the last call.
    pub(super) fn take_reloaded(&self) -> bool {
        self.has_reloaded.swap(false, Relaxed)
    }

    fn read_again(&self) -> Result<Reloaded, ReloadFailure> {
        let (config, values) = self.flags.config_again()?;
        let own = Own::of(&config);
        // The file may be right for the next address of the API; but it still listens at the old
        // one.
        if self.is_exposed && own.admin_token.is_none() {
            return Err(
                "admin.token is missing, but the admin API listens on an address that is no \
                        loopback's until the next start: keep the token until then"
                    .to_owned()
                    .into(),
            );
        }
        // The next step finds mistakes in the certificates again, and may fail for another reason:
        // then renewed certificates are in use, as they would be within a second without a reload.
        let certificates = self.balancer.reload_certificates_if_changed().is_ok_and(|it| it);
        if certificates {
            self.log.event(&events::CERTIFICATE_RELOADED, "", []);
        }
        let mut changes = self.balancer.apply(config)?;
        changes.settings |= own != *self.own();
        self.log.configure(&own.log);
        *self.own() = own;
        let mut before = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = ChangedKeys::between(&self.started, &before, &values);
        *before = values;
        Ok(Reloaded { certificates, ..Reloaded::new(changes, keys) })
    }

    fn has_files(&self) -> bool {
        // A reload also checks the certificate of an authority.
        let has_issuer = self.started.is_set("tls.acme.domains");
        self.flags.file().is_some() || self.flags.has("tls.cert") || has_issuer
    }

    /// Returns the settings of the shutdown.
    pub(super) fn shutdown(&self) -> Shutdown {
        self.own().shutdown
    }

    /// Returns the settings of upgrades.
    pub(super) fn upgrade(&self) -> UpgradeSettings {
        self.own().upgrade
    }

    /// Returns the token of the admin API.
    pub(super) fn admin_token(&self) -> Option<Token> {
        self.own().admin_token.clone()
    }

    /// Returns the values in force.
    pub(super) fn values(&self) -> Values {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reason why a reload has changed nothing.
#[derive(Debug)]
pub(super) struct ReloadFailure {
    pub(super) text: String,
    /// The line of the file with the first mistake.
    pub(super) line: Option<usize>,
}

impl From<String> for ReloadFailure {
    fn from(text: String) -> Self {
        Self { text, line: None }
    }
}

impl From<ConfigErrors> for ReloadFailure {
    fn from(errors: ConfigErrors) -> Self {
        let line = errors.first().location().map(Location::line);
        Self { text: errors.to_string(), line }
    }
}

impl From<Error> for ReloadFailure {
    fn from(error: Error) -> Self {
        match error {
            Error::Config(errors) => errors.into(),
            error => error.to_string().into(),
        }
    }
}

/// The outcome of a reload.
#[derive(Debug, Default, Serialize)]
pub(super) struct Reloaded {
    #[serde(flatten)]
    changes: Changes,
    /// The settings that changed, except the list of backends.
    changed: Vec<&'static str>,
    /// Whether files of certificates had changed.
    certificates: bool,
}

impl Reloaded {
    fn new(mut changes: Changes, keys: ChangedKeys) -> Self {
        let ChangedKeys { mut changed, needs_restart } = keys;
        changed.retain(|key| *key != "backends");
        changes.needs_restart.extend(needs_restart);
        changes.needs_restart.sort_unstable();
        changes.needs_restart.dedup();
        Self { changes, changed, certificates: false }
    }
}

/// Returns the changes on one line.
pub(super) fn in_words(reloaded: &Reloaded) -> String {
    json_in_words(&json!(reloaded))
}

/// Returns the changes for the admin API's answer.
pub(super) fn json_in_words(changes: &Value) -> String {
    let list = |name: &str| -> Vec<&str> {
        changes[name].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let mut parts = Vec::new();
    let removed = || {
        let backends = changes["removed"].as_array().into_iter().flatten();
        let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        let one = |backend: &Value| {
            let tunnels = number(&backend["tunnels"]).unwrap_or_default();
            let address = backend["address"].as_str().unwrap_or_default();
            match tunnels {
                0 => address.to_owned(),
                _ => format!("{address} ({})", removed_in_words(tunnels, number(&backend["rate"]))),
            }
        };
        backends.map(one).collect::<Vec<_>>()
    };
    for what in ["added", "removed", "reweighted", "modified"] {
        let backends = match what {
            "removed" => removed(),
            _ => list(what).into_iter().map(str::to_owned).collect(),
        };
        if !backends.is_empty() {
            let mut part = what.to_owned();
            for (at, backend) in backends.iter().enumerate().take(8) {
                let _ = write!(part, "{} {backend}", if at > 0 { "," } else { "" });
            }
            if backends.len() > 8 {
                let _ = write!(part, " and {} more", backends.len() - 8);
            }
            parts.push(part);
        }
    }
    if changes["certificates"] == true {
        parts.push(CERTIFICATES.to_owned());
    }
    let changed = list("changed");
    // A file named by a setting has changed.
    if changes["settings"] == true && changed.is_empty() {
        parts.push("settings changed".to_owned());
    }
    changes::in_words(parts, &changed, &list("needs_restart"))
}

#[cfg(test)]
mod tests {
    use throng_balance::RemovedBackend;

    use super::*;

    #[test]
    fn changes_are_one_line() {
        assert_eq!(in_words(&Reloaded::default()), "nothing changed");
        let all: Vec<_> = (1..=10).map(|port| ([127, 0, 0, 1], port).into()).collect();
        let changes = Changes {
            added: all.clone(),
            removed: vec![
                RemovedBackend { address: all[0], tunnels: 7, rate: None },
                RemovedBackend { address: all[1], tunnels: 9, rate: Some(200) },
                RemovedBackend { address: all[2], tunnels: 0, rate: None },
            ],
            modified: vec![all[3]],
            settings: true,
            needs_restart: vec!["listen", "shards"],
            ..Changes::default()
        };
        let changed = vec!["pick", "retries"];
        let text = in_words(&Reloaded { changes, changed, certificates: false });
        assert!(text.starts_with("added 127.0.0.1:1, 127.0.0.1:2, "), "{text}");
        assert!(
            text.contains(
                " and 2 more; removed 127.0.0.1:1 (7 tunnels stay), 127.0.0.1:2 (9 tunnels are \
                 closed, at most 200 a second), 127.0.0.1:3; modified 127.0.0.1:4; changed pick, \
                 retries; "
            ),
            "{text}"
        );
        assert!(text.ends_with("listen, shards changed, which takes effect with the next start"));
    }
}
