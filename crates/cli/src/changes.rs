//! The settings that a reload has changed, and those that it cannot change.

use throng_config::{Key, ValueEntry, Values};

use crate::log::{Log, events};

/// The reason why nothing is read again.
pub(crate) const NO_FILE: &str = "there is no file to read again; start with --config FILE";

/// The part of [`in_words`] for changed certificates.
pub(crate) const CERTIFICATES: &str = "certificates renewed";

/// Names of settings that differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Settings that have taken effect.
    pub(crate) changed: Vec<&'static str>,
    /// Settings that take effect with the next start.
    pub(crate) needs_restart: Vec<&'static str>,
}

impl Changes {
    /// Compares the values `now` with the values `before`. Settings that need a restart are
    /// compared with the start's, so that they are reported until the restart.
    pub(crate) fn between(started: &Values, before: &Values, now: &Values) -> Self {
        let text = |values: &Values, key: &Key| values.entry(key.name).map(ValueEntry::to_toml);
        let mut changes = Self::default();
        for (key, _) in now.iter() {
            let (list, before) = match key.at_start {
                true => (&mut changes.needs_restart, started),
                false => (&mut changes.changed, before),
            };
            if text(before, key) != text(now, key) {
                list.push(key.name);
            }
        }
        changes
    }
}

/// Logs the outcome of a reload: the changes, as text, or the mistake.
pub(crate) fn log_reload(log: &Log, outcome: Result<String, &String>) {
    match outcome {
        Ok(changes) => log.event(&events::RELOADED, changes, []),
        Err(reason) => {
            let fields = [("reason", reason.as_str().into())];
            log.event(&events::RELOAD_FAILED, "no setting was changed", fields);
        }
    }
}

/// Returns the changes on one line: `parts`, then these settings.
pub(crate) fn in_words(mut parts: Vec<String>, changed: &[&str], needs_restart: &[&str]) -> String {
    if !changed.is_empty() {
        parts.push(format!("changed {}", changed.join(", ")));
    }
    if !needs_restart.is_empty() {
        let keys = needs_restart.join(", ");
        parts.push(format!("{keys} changed, which takes effect with the next start"));
    }
    match parts.is_empty() {
        true => "nothing changed".to_owned(),
        false => parts.join("; "),
    }
}
