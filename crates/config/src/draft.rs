//! Values while a program converts and checks them.

use std::cell::RefCell;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use throng_io::may_pass;

use crate::entry::{RecordValue, Value, ValueEntry};
use crate::error::{ConfigError, ConfigErrors};
use crate::key::Key;
use crate::token::read_first_line;
use crate::values::{FromValue, Values};

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

    /// Returns the whole file as a record.
    #[must_use]
    pub fn top(&self) -> Record<'_> {
        Record { draft: self, entry: None, outer: None }
    }

    /// Returns the value of `key`.
    ///
    /// # Panics
    /// If the table has no such key, or it is of another type than `T`.
    #[must_use]
    pub fn get<T: FromValue>(&self, key: &str) -> T {
        self.top().get(key)
    }

    /// Parses the text of `key`; `None` if it is not set or has a mistake, which is added.
    #[must_use]
    pub fn parse<T: FromStr<Err: Display>>(&self, key: &str) -> Option<T> {
        self.top().parse(key)
    }

    /// Parses each item of the list `key`, and skips items with mistakes.
    #[must_use]
    pub fn parse_list<T: FromStr<Err: Display>>(&self, key: &str) -> Vec<T> {
        self.top().parse_list(key)
    }

    fn parse_entry<T: FromStr<Err: Display>>(&self, entry: &ValueEntry) -> Option<T> {
        let Value::Text(text) = &entry.value else { return None };
        let parsed = text.parse();
        parsed.map_err(|remedy| self.wrong_at(entry, &entry.key, &remedy)).ok()
    }

    /// Returns the path `key`; in a file, it is relative to the file's folder.
    #[must_use]
    pub fn path(&self, key: &str) -> Option<PathBuf> {
        self.top().path(key)
    }

    /// Returns the paths of the list `key`.
    #[must_use]
    pub fn paths(&self, key: &str) -> Vec<PathBuf> {
        self.top().paths(key)
    }

    /// Returns the tables of the list `key`.
    #[must_use]
    pub fn records(&self, key: &str) -> Vec<Record<'_>> {
        self.top().records(key)
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
            return match parse(own.text()) {
                Ok(secret) => Some(secret),
                Err(remedy) => {
                    let what = format!("{key} is refused: {remedy}");
                    self.add(ConfigError::without_value(key, own.origin.clone(), what));
                    None
                }
            };
        }
        self.secret_in(from_file, file_key, parse)
    }

    /// Returns the secret in the first line of the file that `entry` names.
    fn secret_in<T>(
        &self,
        entry: &ValueEntry,
        key: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        if matches!(entry.value, Value::Unset) {
            return None;
        }
        let path = entry.path();
        let (line, warning) = match read_first_line(&path) {
            Ok(read) => read,
            Err(error) => {
                let remedy = format!("{} {error}", path.display());
                self.fails_at(entry, key, &remedy, error.may_pass());
                return None;
            }
        };
        if let Some(warning) = warning {
            self.warn(warning);
        }
        parse(&line).map_err(|remedy| self.wrong_at(entry, key, &remedy)).ok()
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
        let value: &dyn Display = match &entry.value {
            Value::List(items) if items.is_empty() => &"empty",
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
        let has_one = errors.iter().any(|other| {
            !other.key.is_empty()
                && (is_around(&other.key, &error.key) || is_around(&error.key, &other.key))
        });
        if !has_one {
            errors.push(error);
        }
    }

    /// Returns whether `key`, or an item or a field of it, has a mistake: then its value is not the
    /// written one.
    #[must_use]
    pub fn has_mistake(&self, key: &str) -> bool {
        self.errors.borrow().iter().any(|error| is_around(key, &error.key))
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

/// Returns whether `inner` is the key `outer`, or an item or a field of it.
fn is_around(outer: &str, inner: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['[', '.']))
}

/// A table of a list, or the whole file.
#[derive(Clone, Copy)]
pub struct Record<'d> {
    draft: &'d Draft,
    /// `None`: the whole file.
    entry: Option<&'d ValueEntry>,
    outer: Option<&'d Self>,
}

impl<'d> Record<'d> {
    /// Returns the record with `outer` around it: a field that is not written has the value of the
    /// field of the same name there, if `outer` has such a field.
    #[must_use]
    pub fn within(self, outer: &'d Self) -> Self {
        Self { outer: Some(outer), ..self }
    }

    /// Returns its key: `pools[0]`; empty for the whole file.
    #[must_use]
    pub fn key(&self) -> &'d str {
        self.entry.map_or("", ValueEntry::key)
    }

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

    /// Returns the field as [`Draft::parse_list`] does.
    #[must_use]
    pub fn parse_list<T: FromStr<Err: Display>>(&self, field: &str) -> Vec<T> {
        self.items(field).iter().filter_map(|item| self.draft.parse_entry(item)).collect()
    }

    /// Returns the field as [`Draft::path`] does.
    #[must_use]
    pub fn path(&self, field: &str) -> Option<PathBuf> {
        let entry = self.field(field);
        (!matches!(entry.value, Value::Unset)).then(|| entry.path())
    }

    /// Returns the secret in the first line of the file that the field names, or adds an error.
    #[must_use]
    pub fn secret_file<T>(
        &self,
        field: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let entry = self.field(field);
        self.draft.secret_in(entry, &entry.key, parse)
    }

    /// Returns the field as [`Draft::paths`] does.
    #[must_use]
    pub fn paths(&self, field: &str) -> Vec<PathBuf> {
        self.items(field).iter().map(ValueEntry::path).collect()
    }

    /// Returns the paths of the map `field` by their names, as [`Draft::path`] does.
    #[must_use]
    pub fn path_map(&self, field: &str) -> Vec<(&'d str, PathBuf)> {
        match &self.field(field).value {
            Value::Map(pairs) => {
                pairs.iter().map(|(name, entry)| (name.as_str(), entry.path())).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the tables of the list `field`.
    #[must_use]
    pub fn records(&self, field: &str) -> Vec<Self> {
        let record = |entry| Self { draft: self.draft, entry: Some(entry), outer: None };
        self.items(field).iter().map(record).collect()
    }

    /// Returns whether the table itself has the field.
    #[must_use]
    pub fn is_set(&self, field: &str) -> bool {
        match self.fields() {
            Some(fields) => fields.field(field).is_some(),
            None => self.draft.values.is_set(field),
        }
    }

    /// Returns whether the table itself has one of these fields, or a table of one of their names.
    #[must_use]
    pub fn has_any(&self, keys: &[Key]) -> bool {
        let Some(fields) = self.fields() else {
            return keys.iter().any(|key| self.draft.values.is_set(key.name));
        };
        let mut written = fields.written();
        written.any(|(name, _)| keys.iter().any(|key| key.name.starts_with(name)))
    }

    /// Returns whether the table, or one around it, has the table `name` or one of its fields.
    #[must_use]
    pub fn has_section(&self, name: &str) -> bool {
        match self.fields() {
            Some(fields) if fields.has(name) => true,
            Some(_) => self.outer.is_some_and(|outer| outer.has_section(name)),
            None => self.draft.values.has_section(name),
        }
    }

    /// Adds an error about the whole table.
    pub fn wrong(&self, remedy: impl Display) {
        self.draft.wrong(self.key(), remedy);
    }

    /// Adds an error about a field, or about a table in this table.
    pub fn wrong_field(&self, field: &str, remedy: impl Display) {
        match self.key() {
            "" => self.draft.wrong(field, remedy),
            key => self.draft.wrong(&format!("{key}.{field}"), remedy),
        }
    }

    fn items(&self, field: &str) -> &'d [ValueEntry] {
        match &self.field(field).value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    fn fields(&self) -> Option<&'d RecordValue> {
        match &self.entry?.value {
            Value::Record(fields) => Some(fields),
            _ => panic!("{} is not a table", self.key()),
        }
    }

    fn field(&self, field: &str) -> &'d ValueEntry {
        match self.find(field) {
            Some(entry) => entry,
            None => panic!("the field {field} is missing in the table of keys"),
        }
    }

    fn find(&self, field: &str) -> Option<&'d ValueEntry> {
        let Some(fields) = self.fields() else { return self.draft.values.entry(field) };
        let outer = || self.outer.and_then(|outer| outer.find(field));
        fields.field(field).or_else(outer).or_else(|| fields.default(field))
    }
}

#[cfg(test)]
mod tests;
