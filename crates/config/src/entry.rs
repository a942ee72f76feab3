//! Values with their types and origins.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::Origin;
use crate::raw::Written;
use crate::units::Rate;

/// A value, its key and its origin.
#[derive(Clone)]
pub struct ValueEntry {
    pub(crate) key: String,
    pub(crate) origin: Origin,
    pub(crate) written: Written,
    /// Empty if the value is the same text.
    pub(crate) text: String,
    pub(crate) value: Value,
    pub(crate) is_secret: bool,
}

/// The value of a [`ValueEntry`].
#[derive(Clone)]
pub enum Value {
    /// Not set, or the word of a [`Kind::Or`](crate::Kind::Or).
    Unset,
    /// A text of any kind.
    Text(String),
    /// True or false.
    Switch(bool),
    /// A count or a size.
    Number(u64),
    /// A duration.
    Duration(Duration),
    /// An address.
    Address(SocketAddr),
    /// The items of a list.
    List(Vec<ValueEntry>),
    /// A rate.
    Rate(Rate),
    /// A table in a list.
    Record(RecordValue),
    /// The names of a table and their values.
    Map(Vec<(String, ValueEntry)>),
}

/// The fields of a table in a list. Only those that are written take memory.
#[derive(Clone)]
pub struct RecordValue {
    /// In the order of the table of keys, by their names such as `health.check.path`.
    pub(crate) set: Vec<(&'static str, ValueEntry)>,
    /// In the order of their names.
    pub(crate) defaults: &'static [(&'static str, ValueEntry)],
}

impl RecordValue {
    /// Returns the fields that are written, with their names such as `health.check.path`. A table
    /// without fields is an empty record.
    pub fn written(&self) -> impl Iterator<Item = (&'static str, &ValueEntry)> {
        self.set.iter().map(|(name, entry)| (*name, entry))
    }

    /// Returns whether the table has a field of that name, or a table of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.set.iter().any(|(field, _)| {
            field.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    }

    pub(crate) fn field(&self, name: &str) -> Option<&ValueEntry> {
        self.set.iter().find(|(field, _)| *field == name).map(|(_, entry)| entry)
    }

    pub(crate) fn default(&self, name: &str) -> Option<&'static ValueEntry> {
        let at = self.defaults.binary_search_by_key(&name, |(field, _)| *field).ok()?;
        Some(&self.defaults[at].1)
    }
}

impl ValueEntry {
    /// Returns the key: `backends[0].weight`.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the origin.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns the value.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Returns the text of a scalar.
    #[must_use]
    pub fn text(&self) -> &str {
        match &self.value {
            Value::Text(text) if self.text.is_empty() => text,
            _ => &self.text,
        }
    }

    /// Returns whether the value must not be shown.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.is_secret
    }

    /// Returns the entry at `path` among the items of a list and the fields of a record, or the
    /// nearest one around it; for a table of fields, the first that is written.
    pub(crate) fn find(&self, path: &str) -> &Self {
        let is_within = |path: &str, key: &str| {
            path.strip_prefix(key)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let children: Vec<&Self> = match &self.value {
            Value::List(items) => items.iter().collect(),
            Value::Record(record) => record.set.iter().map(|(_, entry)| entry).collect(),
            Value::Map(pairs) => pairs.iter().map(|(_, entry)| entry).collect(),
            _ => Vec::new(),
        };
        let below = children.iter().find(|child| is_within(path, &child.key));
        let first = || children.iter().find(|child| is_within(&child.key, path));
        match (below, self.key == path) {
            (Some(child), _) => child.find(path),
            (None, true) => self,
            (None, false) => first().map_or(self, |child| child),
        }
    }

    /// Returns the value as it is written in a file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let quoted = |text: &str| toml::Value::from(text).to_string();
        match &self.value {
            Value::Unset if self.is_secret => quoted(""),
            _ if self.is_secret => quoted("(secret)"),
            Value::Switch(_) => self.text.clone(),
            Value::Number(_) if self.text.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.text.clone()
            }
            Value::List(items) => {
                let items: Vec<String> = items.iter().map(Self::to_toml).collect();
                format!("[{}]", items.join(", "))
            }
            Value::Record(record) => {
                let pair = |(name, entry): (_, &Self)| format!("{name} = {}", entry.to_toml());
                format!("{{ {} }}", record.written().map(pair).collect::<Vec<_>>().join(", "))
            }
            Value::Map(pairs) => {
                let pair = |(name, entry): &(String, Self)| {
                    format!("{} = {}", quoted(name), entry.to_toml())
                };
                format!("{{ {} }}", pairs.iter().map(pair).collect::<Vec<_>>().join(", "))
            }
            _ => quoted(self.text()),
        }
    }

    /// Returns the path in `text`, relative to the folder of the file that has it.
    pub(crate) fn path(&self) -> PathBuf {
        match &self.origin {
            Origin::File(location) => {
                Path::new(location.file()).parent().unwrap_or(Path::new("")).join(self.text())
            }
            _ => PathBuf::from(self.text()),
        }
    }
}
