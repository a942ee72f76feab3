//! Values while a program converts and checks them.

use std::cell::RefCell;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use throng_io::may_pass;

use crate::error::{ConfigError, ConfigErrors, Origin};
use crate::token::read_first_line;
use crate::values::{FromValue, Value, ValueEntry, Values};

/// Values that a program converts to its own types. It adds the mistakes that it finds to the
/// mistakes of the sources; a value with a mistake keeps the previous value.
#[derive(Debug)]
pub struct Draft {
    values: Values,
    errors: RefCell<Vec<ConfigError>>,
    warnings: RefCell<Vec<String>>,
}

impl Draft {
    pub(crate) fn new(values: Values, errors: Vec<ConfigError>, warnings: Vec<String>) -> Self {
        Self { values, errors: RefCell::new(errors), warnings: RefCell::new(warnings) }
    }

    /// Returns the values.
    #[must_use]
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Returns the value of `key`.
    ///
    /// # Panics
    /// If the table has no such key, or it is of another type than `T`.
    #[must_use]
    pub fn get<T: FromValue>(&self, key: &str) -> T {
        let entry = self.entry(key);
        match T::from_value(&entry.value) {
            Some(value) => value,
            None => panic!("the setting {key} has another type in the table of keys"),
        }
    }

    /// Parses the text of `key`; `None` if it is not set or has a mistake, which is added.
    #[must_use]
    pub fn parse<T: FromStr<Err: Display>>(&self, key: &str) -> Option<T> {
        self.parse_entry(self.entry(key))
    }

    /// Parses each item of the list `key`, and skips items with mistakes.
    #[must_use]
    pub fn parse_list<T: FromStr<Err: Display>>(&self, key: &str) -> Vec<T> {
        self.items(key).iter().filter_map(|item| self.parse_entry(item)).collect()
    }

    fn parse_entry<T: FromStr<Err: Display>>(&self, entry: &ValueEntry) -> Option<T> {
        let Value::Text(text) = &entry.value else { return None };
        let parsed = text.parse();
        parsed.map_err(|remedy| self.wrong_at(entry, &entry.key, &remedy)).ok()
    }

    /// Returns the path `key`; in a file, it is relative to the file's folder.
    #[must_use]
    pub fn path(&self, key: &str) -> Option<PathBuf> {
        let entry = self.entry(key);
        (!matches!(entry.value, Value::Unset)).then(|| entry.path())
    }

    /// Returns the paths of the list `key`.
    #[must_use]
    pub fn paths(&self, key: &str) -> Vec<PathBuf> {
        self.items(key).iter().map(ValueEntry::path).collect()
    }

    /// Returns the tables of the list `key`.
    #[must_use]
    pub fn records(&self, key: &str) -> Vec<Record<'_>> {
        self.items(key).iter().map(|entry| Record { draft: self, entry }).collect()
    }

    fn items(&self, key: &str) -> &[ValueEntry] {
        match &self.entry(key).value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// Returns the secret in `key`, or in the first line of the file that `file_key` names. The
    /// source of higher precedence counts; one source must not have both.
    #[must_use]
    pub fn secret<T>(
        &self,
        key: &str,
        file_key: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let (own, from_file) = (self.entry(key), self.entry(file_key));
        let (own_rank, file_rank) = (own.origin.rank(), from_file.origin.rank());
        if own_rank == file_rank && own_rank > 0 {
            let remedy = format!("there is a {key}, too: keep one of the two");
            self.wrong_at(from_file, file_key, &remedy);
            return None;
        }
        if own_rank > file_rank {
            return match parse(&own.text) {
                Ok(secret) => Some(secret),
                Err(remedy) => {
                    let what = format!("{key} is refused: {remedy}");
                    self.add(ConfigError::without_value(key, own.origin.clone(), what));
                    None
                }
            };
        }
        let path = self.path(file_key)?;
        let (line, warning) = match read_first_line(&path) {
            Ok(read) => read,
            Err(error) => {
                let remedy = format!("{} {error}", path.display());
                self.fails_at(from_file, file_key, &remedy, error.may_pass());
                return None;
            }
        };
        if let Some(warning) = warning {
            self.warn(warning);
        }
        parse(&line).map_err(|remedy| self.wrong_at(from_file, file_key, &remedy)).ok()
    }

    /// Adds the error of [`Draft::wrong`] for a system error that may not occur at another start
    /// with the same value.
    pub fn fails(&self, key: &str, error: &std::io::Error, remedy: impl Display) {
        match self.values.find(key) {
            Some(entry) => self.fails_at(entry, key, &remedy, may_pass(error)),
            None => self.wrong(key, remedy),
        }
    }

    /// Adds the error "`key` is (what was written): `remedy`". Only the first mistake of a key
    /// counts: others may follow from it.
    pub fn wrong(&self, key: &str, remedy: impl Display) {
        if let Some((origin, written)) = self.values.sections.get(key) {
            return self.add(ConfigError::new(key, origin.clone(), written, remedy));
        }
        if let Some(entry) = self.values.find(key) {
            return self.wrong_at(entry, key, &remedy);
        }
        let set = self.values.table.in_section(key).find(|key| self.values.is_set(key.name));
        let origin = set.and_then(|key| self.values.entry(key.name)).map(|entry| &entry.origin);
        let origin = origin.cloned().unwrap_or_default();
        self.add(ConfigError::new(key, origin, "incomplete", remedy));
    }

    fn wrong_at(&self, entry: &ValueEntry, key: &str, remedy: &impl Display) {
        self.fails_at(entry, key, remedy, false);
    }

    /// Adds the error. `may_pass`: another start with the same value may succeed.
    fn fails_at(&self, entry: &ValueEntry, key: &str, remedy: &impl Display, may_pass: bool) {
        let value = match &entry.value {
            Value::List(items) if items.is_empty() => "empty",
            _ => &entry.written,
        };
        let error = ConfigError::new(key, entry.origin.clone(), value, remedy);
        self.add(error.passing_if(may_pass));
    }

    /// Adds an error, unless its key already has one. Drops the error of a missing value if there
    /// are other errors, or a mistake in the syntax: these may be the reason why the value is
    /// missing.
    pub fn add(&self, error: ConfigError) {
        let mut errors = self.errors.borrow_mut();
        if errors.iter().any(|other| other.key.is_empty() || !error.origin.is_set()) {
            return;
        }
        let is_around = |outer: &str, inner: &str| {
            inner
                .strip_prefix(outer)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['[', '.']))
        };
        let has_one = errors.iter().any(|other| {
            !other.key.is_empty()
                && (is_around(&other.key, &error.key) || is_around(&error.key, &other.key))
        });
        if !has_one {
            errors.push(error);
        }
    }

    /// Adds a warning: a valid value that is hardly intended.
    pub fn warn(&self, text: String) {
        self.warnings.borrow_mut().push(text);
    }

    /// Takes the warnings.
    #[must_use]
    pub fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }

    /// Returns the values.
    ///
    /// # Errors
    /// All mistakes that were found.
    pub fn finish(self) -> Result<Values, ConfigErrors> {
        match ConfigErrors::of(self.errors.into_inner()) {
            Some(errors) => Err(errors),
            None => Ok(self.values),
        }
    }

    fn entry(&self, key: &str) -> &ValueEntry {
        match self.values.entry(key) {
            Some(entry) => entry,
            None => panic!("the setting {key} is missing in the table of keys"),
        }
    }
}

/// A table of a list.
#[derive(Clone, Copy)]
pub struct Record<'d> {
    draft: &'d Draft,
    entry: &'d ValueEntry,
}

impl Record<'_> {
    /// Returns the value of a field.
    ///
    /// # Panics
    /// If the tables have no such field, or it is of another type than `T`.
    #[must_use]
    pub fn get<T: FromValue>(&self, field: &str) -> T {
        match T::from_value(&self.field(field).value) {
            Some(value) => value,
            None => panic!("the field {field} has another type in the table of keys"),
        }
    }

    /// Returns the field as [`Draft::parse`] does.
    #[must_use]
    pub fn parse<T: FromStr<Err: Display>>(&self, field: &str) -> Option<T> {
        self.draft.parse_entry(self.field(field))
    }

    /// Returns whether the table has the field.
    #[must_use]
    pub fn is_set(&self, field: &str) -> bool {
        self.field(field).origin != Origin::Default
    }

    /// Adds an error about the whole table.
    pub fn wrong(&self, remedy: impl Display) {
        self.draft.wrong_at(self.entry, &self.entry.key, &remedy);
    }

    fn field(&self, field: &str) -> &ValueEntry {
        let Value::Record(fields) = &self.entry.value else {
            panic!("{} is not a table", self.entry.key)
        };
        let is_it = |entry: &&ValueEntry| entry.key.rsplit('.').next() == Some(field);
        match fields.iter().find(is_it) {
            Some(entry) => entry,
            None => panic!("the field {field} is missing in the table of keys"),
        }
    }
}
