//! The values of a table of keys, and the types that programs convert them to.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::entry::{Value, ValueEntry};
use crate::error::{ConfigError, Origin};
use crate::key::{Key, Table};
use crate::raw::Written;
use crate::units::Rate;

/// The values of all keys of a table. Its `Debug` text does not have them: some are secrets.
#[derive(Clone)]
pub struct Values {
    pub(crate) table: &'static Table,
    /// In the order of the table. Copies share them: a file may have tens of thousands.
    pub(crate) entries: Arc<Vec<ValueEntry>>,
    /// The tables that sources have, even empty ones.
    pub(crate) sections: BTreeMap<String, (Origin, Written)>,
}

impl Values {
    /// Returns the table of keys.
    #[must_use]
    pub fn table(&self) -> &'static Table {
        self.table
    }

    /// Returns each key with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Key, &ValueEntry)> {
        self.table.keys.iter().zip(&*self.entries)
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
        let name = &path[..end];
        // A name that a file has chosen in a map follows the name of the key.
        let outer = name.rmatch_indices('.').map(|(dot, _)| &name[..dot]);
        let mut names = std::iter::once(name).chain(outer);
        Some(names.find_map(|name| self.entry(name))?.find(path))
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

impl FromValue for Rate {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Rate(rate) = value { Some(*rate) } else { None }
    }
}

impl<T: FromValue> FromValue for BTreeMap<String, T> {
    fn from_value(value: &Value) -> Option<Self> {
        let Value::Map(pairs) = value else { return None };
        let pair = |(name, entry): &(String, ValueEntry)| {
            Some((name.clone(), T::from_value(&entry.value)?))
        };
        pairs.iter().map(pair).collect()
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
