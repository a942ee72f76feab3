//! Values of settings by their keys.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// Values of settings by their keys, such as `deflate.level`, as they are written after `--set`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Assignment(BTreeMap<String, String>);

impl Assignment {
    /// Returns these values.
    #[must_use]
    pub fn of<K: ToString, V: ToString>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        Self(pairs.into_iter().map(|(key, value)| (key.to_string(), value.to_string())).collect())
    }

    /// Returns these values, replaced by the ones of `other` where it has them.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.0.extend(other.0.clone());
        all
    }

    /// Returns whether `other` has all of these values.
    #[must_use]
    pub fn is_part_of(&self, other: &Self) -> bool {
        self.0.iter().all(|(key, value)| other.get(key) == Some(value))
    }

    /// Returns the value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Returns whether there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the keys with their values, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Returns the lines of a file that sets them.
    #[must_use]
    pub fn to_toml(&self) -> String {
        self.iter().map(|(key, value)| format!("{key} = {}\n", toml_value(value))).collect()
    }
}

/// Returns a value as a file has it: numbers and switches as they are, other texts in quotes.
pub(super) fn toml_value(value: &str) -> String {
    let is_plain = matches!(value, "true" | "false")
        || !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { value.to_owned() } else { format!("{value:?}") }
}

/// The form of a list: `deflate.level=2, shards=1`.
impl fmt::Display for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (key, value)) in self.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_values_replace_earlier_ones() {
        let first = Assignment::of([("a", "1"), ("b", "x")]);
        let both = first.with(&Assignment::of([("b", "64KiB"), ("c.d", "true")]));
        assert_eq!(both.to_string(), "a=1, b=64KiB, c.d=true");
        assert_eq!(both.to_toml(), "a = 1\nb = \"64KiB\"\nc.d = true\n");
        assert!(Assignment::of([("a", "1")]).is_part_of(&both) && !first.is_part_of(&both));
        assert!(Assignment::default().is_empty() && both.get("e").is_none());
    }
}
