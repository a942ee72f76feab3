//! Values with their types and origins.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{ConfigError, Origin};
use crate::key::{Key, Table};

/// A value, its key and its origin.
#[derive(Clone)]
pub struct ValueEntry {
    pub(crate) key: String,
    pub(crate) origin: Origin,
    pub(crate) written: String,
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
    /// The fields of a table in a list.
    Record(Vec<ValueEntry>),
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
        &self.text
    }

    /// Returns whether the value must not be shown.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.is_secret
    }

    /// Returns the field of that name of a record, or the item at that index of a list.
    fn child(&self, name: &str) -> Option<&Self> {
        let (Value::List(entries) | Value::Record(entries)) = &self.value else { return None };
        entries.iter().find(|entry| {
            entry.key.strip_prefix(self.key.as_str()).is_some_and(|rest| rest == name)
        })
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
            Value::Record(fields) => {
                let name = |field: &Self| field.key[self.key.len() + 1..].to_owned();
                let fields: Vec<String> = fields
                    .iter()
                    .filter(|field| field.origin.is_set())
                    .map(|field| format!("{} = {}", name(field), field.to_toml()))
                    .collect();
                format!("{{ {} }}", fields.join(", "))
            }
            _ => quoted(&self.text),
        }
    }

    /// Returns the path in `text`, relative to the folder of the file that has it.
    pub(crate) fn path(&self) -> PathBuf {
        match &self.origin {
            Origin::File(location) => {
                Path::new(&*location.file).parent().unwrap_or(Path::new("")).join(&self.text)
            }
            _ => PathBuf::from(&self.text),
        }
    }
}

/// The values of all keys of a table. Its `Debug` text does not have them: some are secrets.
#[derive(Clone)]
pub struct Values {
    pub(crate) table: &'static Table,
    /// In the order of the table.
    pub(crate) entries: Vec<ValueEntry>,
    /// The tables that sources have, even empty ones.
    pub(crate) sections: BTreeMap<String, (Origin, String)>,
}

impl Values {
    /// Returns the table of keys.
    #[must_use]
    pub fn table(&self) -> &'static Table {
        self.table
    }

    /// Returns each key with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Key, &ValueEntry)> {
        self.table.keys.iter().zip(&self.entries)
    }

    /// Returns the value of a key of the table.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<&ValueEntry> {
        self.table.position(key).map(|at| &self.entries[at])
    }

    /// Returns whether a source sets the key.
    #[must_use]
    pub fn is_set(&self, key: &str) -> bool {
        self.entry(key).is_some_and(|entry| entry.origin.is_set())
    }

    /// Returns whether a source has the table `name`, or one of its keys.
    #[must_use]
    pub fn has_section(&self, name: &str) -> bool {
        self.sections.contains_key(name)
            || self.table.in_section(name).any(|key| self.is_set(key.name))
    }

    /// Returns the error "`key` is `value`: `remedy`" at the place where `key` is set; for a key of
    /// an item such as `backends[1].weight` that is not written, at the item's place.
    #[must_use]
    pub fn error(
        &self,
        key: &str,
        value: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> ConfigError {
        ConfigError::new(key, self.origin_of(key), value, remedy)
    }

    fn origin_of(&self, key: &str) -> Origin {
        if let Some((origin, _)) = self.sections.get(key) {
            return origin.clone();
        }
        self.find(key).map_or_else(Origin::default, |entry| entry.origin.clone())
    }

    /// Returns the entry at a path such as `backends[1].weight`, or the nearest one around it.
    pub(crate) fn find(&self, path: &str) -> Option<&ValueEntry> {
        let end = path.find('[').unwrap_or(path.len());
        let mut entry = self.entry(&path[..end])?;
        let mut rest = &path[end..];
        while !rest.is_empty() {
            let end = rest[1..].find(['[', '.']).map_or(rest.len(), |at| at + 1);
            match entry.child(&rest[..end]) {
                Some(child) if child.origin.is_set() => entry = child,
                _ => break,
            }
            rest = &rest[end..];
        }
        Some(entry)
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").field("program", &self.table.program).finish_non_exhaustive()
    }
}

/// A type that values are converted to.
pub trait FromValue: Sized {
    /// Converts the value; `None` if it is of another type.
    fn from_value(value: &Value) -> Option<Self>;
}

impl FromValue for bool {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Switch(value) = value { Some(*value) } else { None }
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl FromValue for $number {
            /// The bounds of the key's kind lie within the bounds of the type.
            fn from_value(value: &Value) -> Option<Self> {
                let Value::Number(number) = value else { return None };
                Some(Self::try_from(*number).unwrap_or(Self::MAX))
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, usize, i32);

impl FromValue for Duration {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Duration(value) = value { Some(*value) } else { None }
    }
}

impl FromValue for SocketAddr {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Address(address) = value { Some(*address) } else { None }
    }
}

impl FromValue for IpAddr {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Text(text) = value { text.parse().ok() } else { None }
    }
}

/// Not set: empty.
impl FromValue for String {
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Text(text) => Some(text.clone()),
            Value::Unset => Some(Self::new()),
            _ => None,
        }
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Unset => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}

impl<T: FromValue> FromValue for Vec<T> {
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::List(items) => items.iter().map(|item| T::from_value(&item.value)).collect(),
            _ => None,
        }
    }
}
