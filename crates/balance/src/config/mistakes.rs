//! Mistakes in a configuration, with their settings.

use std::fmt;
use std::time::Duration;

use super::keys;

/// A mistake in the value of a key.
pub(crate) struct Mistake {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) remedy: String,
}

/// Collects mistakes.
#[derive(Default)]
pub(super) struct Mistakes(pub(super) Vec<Mistake>);

impl Mistakes {
    pub(super) fn add(
        &mut self,
        key: impl Into<String>,
        value: impl fmt::Display,
        remedy: impl Into<String>,
    ) {
        self.0.push(Mistake { key: key.into(), value: value.to_string(), remedy: remedy.into() });
    }

    /// Adds a mistake unless `holds`.
    pub(super) fn must(
        &mut self,
        holds: bool,
        key: impl Into<String>,
        value: impl fmt::Display,
        remedy: impl Into<String>,
    ) {
        if !holds {
            self.add(key, value, remedy);
        }
    }

    /// Checks a number against the bounds in the table of keys.
    pub(super) fn number(&mut self, key: &str, number: u64) {
        let checked = keys::TABLE.key(key).map_or(Ok(()), |key| key.kind.check_number(number));
        checked.unwrap_or_else(|remedy| self.add(key, number, remedy));
    }

    /// Checks a duration against the bounds in the table of keys.
    pub(super) fn duration(&mut self, key: &str, duration: Duration) {
        let checked = keys::TABLE.key(key).map_or(Ok(()), |key| key.kind.check_duration(duration));
        checked.unwrap_or_else(|remedy| self.add(key, format_args!("{duration:?}"), remedy));
    }
}

pub(super) fn quoted(address: impl fmt::Display) -> String {
    format!("\"{address}\"")
}
