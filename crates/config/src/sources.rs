//! The sources of values, in the order of their precedence: later ones override earlier ones.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::draft::Draft;
use crate::entry::Value;
use crate::environment::{self, Found};
use crate::error::{ConfigError, Origin};
use crate::key::{Flag, Key, Kind, Records, Table};
use crate::raw::{self, Pair, Raw, RawNode};
use crate::read;
use crate::values::Values;

/// Collects the values of a program's settings. Read the file first, then the file of tuned
/// settings, then the environment, then flags, then `--set`. Mistakes are kept until
/// [`Draft::finish`], so that all are reported together.
#[derive(Debug)]
pub struct Sources {
    values: Values,
    errors: Vec<ConfigError>,
    warnings: Vec<String>,
}

impl Sources {
    /// Creates sources that contain only the defaults of the table.
    ///
    /// # Panics
    /// In debug builds, if a default is not a valid value of its key.
    #[must_use]
    pub fn new(table: &'static Table) -> Self {
        let default = |key: &Key| {
            let entry = read::default(key.name, &key.kind, key.default);
            let is_word = matches!(key.kind, Kind::Or(word, _) if word == key.default);
            let is_set = !matches!(entry.value, Value::Unset);
            debug_assert!(is_set || is_word || key.default.is_empty(), "default of {}", key.name);
            entry
        };
        let entries = table.keys.iter().map(default).collect();
        let values = Values { table, entries: Arc::new(entries), sections: BTreeMap::new() };
        Self { values, errors: Vec::new(), warnings: Vec::new() }
    }

    /// Returns the path of the configuration file: from the flag, otherwise from `THRONG_CONFIG`.
    #[must_use]
    pub fn path(flag: Option<&Path>) -> Option<PathBuf> {
        let named = || std::env::var_os(environment::FILE).filter(|path| !path.is_empty());
        flag.map(Path::to_owned).or_else(|| named().map(PathBuf::from))
    }

    /// Returns the path of the file of tuned settings, from `THRONG_TUNED`. It overrides the
    /// configuration file; variables and flags override it.
    #[must_use]
    pub fn tuned_path() -> Option<PathBuf> {
        std::env::var_os(environment::TUNED).filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    /// Reads the TOML `text` of the file `name`.
    pub fn file(&mut self, name: &str, text: &str) {
        match raw::parse(name, text) {
            Ok(pairs) => self.pairs("", pairs),
            Err(errors) => self.errors.extend(errors),
        }
    }

    fn pairs(&mut self, prefix: &str, pairs: Vec<Pair>) {
        let table = self.values.table;
        let mut found = vec![false; table.keys.len()];
        for Pair { name, origin, value } in pairs {
            let name = format!("{prefix}{name}");
            let is_alias =
                |key: &Key| matches!(key.kind, Kind::Records(of) if of.alias == Some(&*name));
            let at = table.position(&name).or_else(|| table.keys.iter().position(is_alias));
            if let Some(at) = at {
                self.pair(at, &name, value, std::mem::replace(&mut found[at], true));
            } else if !table.is_section(&name) {
                let what = format!("{name} is an unknown key: {}", table.unknown(&name));
                // Omits the value: if the key of a token is mistyped, the value is a secret.
                self.errors.push(ConfigError::without_value(&name, origin, what));
            } else if let RawNode::Table(inner) = value.node {
                self.values.sections.insert(name.clone(), (value.origin, value.written));
                self.pairs(&format!("{name}."), inner);
            } else {
                let example = table.in_section(&name).next().map(Key::example);
                let remedy =
                    format!("write [{name}], and below it {}", example.unwrap_or_default());
                self.errors.push(ConfigError::new(&name, value.origin, value.written, remedy));
            }
        }
    }

    /// Reads the value of the key at this index, perhaps under its other name. `again`:
    /// the same tables have the key under another name already.
    fn pair(&mut self, at: usize, name: &str, value: Raw, again: bool) {
        let key = &self.values.table.keys[at];
        let is_table = |item: &Raw| matches!(item.node, RawNode::Table(_));
        let remedy = match (&key.kind, &value.node) {
            _ if again => format!("{} is there, too: write one of the two", key.name),
            _ if name == key.name => return self.put(at, value),
            (_, RawNode::List(items)) if items.iter().all(is_table) => return self.put(at, value),
            (Kind::Records(Records { fields: [first, ..], .. }), _) => {
                format!("write [[{name}]], and below it {}", first.example())
            }
            _ => return,
        };
        self.errors.push(ConfigError::new(name, value.origin, value.written, remedy));
    }

    fn put(&mut self, at: usize, raw: Raw) {
        let key = &self.values.table.keys[at];
        if let Some(entry) = read::read(key.name.to_owned(), &key.kind, raw, &mut self.errors) {
            Arc::make_mut(&mut self.values.entries)[at] = entry;
        }
    }

    /// Reads the variables that begin with `THRONG_`. A variable that does not name a setting
    /// causes a warning. Variables that Kubernetes sets for a service called throng are ignored.
    pub fn environment(&mut self, variables: impl IntoIterator<Item = (OsString, OsString)>) {
        let mut variables: Vec<_> = variables.into_iter().collect();
        variables.sort();
        for (name, value) in variables {
            match environment::find(self.values.table, &name, value) {
                None => {}
                Some(Found::Unknown(warning)) => self.warnings.push(warning),
                Some(Found::Setting { at, variable, value: Ok(text) }) => {
                    self.text(at, &text, Origin::Environment(variable));
                }
                Some(Found::Setting { at, variable, value: Err(value) }) => {
                    let key = self.values.table.keys[at].name;
                    let remedy = "it is not UTF-8: set it to UTF-8 text, or unset it";
                    let origin = Origin::Environment(variable);
                    self.errors.push(ConfigError::new(key, origin, format!("{value:?}"), remedy));
                }
            }
        }
    }

    /// Sets `key` to the text of a flag.
    pub fn flag(&mut self, flag: &str, key: &str, text: &str) {
        self.set_text(key, text, Origin::Flag(flag.to_owned()));
    }

    /// Sets `key` to the texts given with its flag.
    pub fn given(&mut self, key: &Key, texts: &[String]) {
        let Some(Flag { name, expand, .. }) = key.flag.filter(|_| !texts.is_empty()) else {
            return;
        };
        let text = texts.join(if let Kind::Records(_) = key.kind { ";" } else { "," });
        match expand.map(|expand| expand(&text)) {
            None => self.flag(name, key.name, &text),
            Some(Ok(fields)) => fields.iter().for_each(|(key, text)| self.flag(name, key, text)),
            Some(Err(remedy)) => {
                let what = format!("it is {text:?}: {remedy}");
                let origin = Origin::Flag(name.to_owned());
                self.errors.push(ConfigError::without_value(key.name, origin, what));
            }
        }
    }

    /// Sets `key=value` as given to `--set`. The value is text, or written as in a file.
    pub fn set(&mut self, pair: &str) {
        let origin = Origin::Flag("--set".to_owned());
        match pair.split_once('=').filter(|(key, _)| !key.trim().is_empty()) {
            Some((key, value)) => self.set_text(key.trim(), value.trim(), origin),
            None => self.errors.push(ConfigError {
                may_pass: false,
                key: String::new(),
                origin,
                what: format!("{pair:?} has no key: write key=value, for example --set shards=2"),
                is_secret: false,
            }),
        }
    }

    fn set_text(&mut self, key: &str, text: &str, origin: Origin) {
        match self.values.table.position(key) {
            Some(at) => self.text(at, text, origin),
            None if self.values.table.is_section(key) && self.toml(key, text, &origin) => {}
            None => {
                let name = key.escape_debug().to_string();
                let what = format!("{name} is an unknown key: {}", self.values.table.unknown(key));
                self.errors.push(ConfigError::without_value(&name, origin, what));
            }
        }
    }

    fn text(&mut self, at: usize, text: &str, origin: Origin) {
        let key = &self.values.table.keys[at];
        let is_toml = text.trim_start().starts_with(['[', '{', '"', '\'']);
        if !is_toml || !self.toml(key.name, text, &origin) {
            self.put(at, Raw::text(text, origin));
        }
    }

    /// Parses `text` as a file value; returns false if it is not valid.
    fn toml(&mut self, key: &str, text: &str, origin: &Origin) -> bool {
        let Ok(mut pairs) = raw::parse("", &format!("{key} = {text}")) else { return false };
        raw::set_origin(&mut pairs, origin);
        self.pairs("", pairs);
        true
    }

    /// Sets the value of a key that no source sets, because of `reason`.
    pub fn default_to(&mut self, key: &str, text: &str, reason: &'static str) {
        if !self.values.is_set(key) {
            self.set_text(key, text, Origin::Follows(reason));
        }
    }

    /// Raises the number `key` to the number `other`, unless a source sets `key`.
    pub fn raise(&mut self, key: &str, other: &'static str) {
        let number = |key: &str| match self.values.entry(key).map(|entry| &entry.value) {
            Some(Value::Number(number)) => *number,
            _ => 0,
        };
        if number(other) > number(key) {
            let text =
                self.values.entry(other).map_or_else(String::new, |entry| entry.text().to_owned());
            self.default_to(key, &text, other);
        }
    }

    /// Returns the values to be converted by the program.
    #[must_use]
    pub fn finish(self) -> Draft {
        Draft::new(self.values, self.errors, self.warnings)
    }
}
