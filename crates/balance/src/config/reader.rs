//! TOML tables and values with the location of each, so that every mistake is reported where it was
//! made.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Location};
use super::units;

/// A document that is being read.
pub(super) struct Document<'t> {
    name: &'t str,
    text: &'t str,
    /// Where each key that was asked for stands.
    locations: RefCell<BTreeMap<String, Location>>,
}

impl<'t> Document<'t> {
    pub(super) fn new(name: &'t str, text: &'t str) -> Self {
        Self { name, text, locations: RefCell::default() }
    }

    /// Parses the whole as TOML.
    pub(super) fn parse(&self) -> Result<DeTable<'t>, ConfigError> {
        DeTable::parse(self.text).map(toml::Spanned::into_inner).map_err(|error| ConfigError {
            location: Some(self.location(error.span().unwrap_or(0..0))),
            what: error.message().replace('\n', "; "),
        })
    }

    pub(super) fn into_locations(self) -> BTreeMap<String, Location> {
        self.locations.into_inner()
    }

    fn location(&self, span: Range<usize>) -> Location {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Location {
            file: self.name.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

/// A table, whose keys are taken one by one; a key that is left is a mistake.
pub(super) struct Table<'d> {
    document: &'d Document<'d>,
    /// The prefix of its keys, with its dot: `timeouts.`, or empty.
    prefix: String,
    table: &'d DeTable<'d>,
    asked: RefCell<Vec<&'static str>>,
}

impl<'d> Table<'d> {
    pub(super) fn root(document: &'d Document<'d>, table: &'d DeTable<'d>) -> Self {
        Self { document, prefix: String::new(), table, asked: RefCell::default() }
    }

    /// Takes the value of `key`, if it is there.
    pub(super) fn take(&self, key: &'static str) -> Option<Value<'d>> {
        self.asked.borrow_mut().push(key);
        let (_, value) = self.table.iter().find(|(name, _)| name.get_ref() == key)?;
        Some(Value::new(self.document, format!("{}{key}", self.prefix), value))
    }

    /// Reads the value of `key` with `read` into `into`, if the key is there.
    pub(super) fn put<T>(
        &self,
        key: &'static str,
        into: &mut T,
        read: impl FnOnce(&Value<'d>) -> Result<T, ConfigError>,
    ) -> Result<(), ConfigError> {
        if let Some(value) = self.take(key) {
            *into = read(&value)?;
        }
        Ok(())
    }

    /// Returns an error if there is a key that was not taken.
    pub(super) fn finish(self) -> Result<(), ConfigError> {
        let known = self.asked.into_inner();
        let unknown = self.table.iter().find(|(key, _)| !known.contains(&key.get_ref().as_ref()));
        let Some((key, _)) = unknown else { return Ok(()) };
        let remedy = units::did_you_mean(key.get_ref(), &known)
            .unwrap_or_else(|| format!("the keys here are {}", known.join(", ")));
        Err(ConfigError {
            location: Some(self.document.location(key.span())),
            // Without its value: the value of a mistyped token is a secret.
            what: format!("{}{} is an unknown key: {remedy}", self.prefix, key.get_ref()),
        })
    }
}

/// A value with its location and its key.
pub(super) struct Value<'d> {
    document: &'d Document<'d>,
    pub(super) key: String,
    span: Range<usize>,
    value: &'d DeValue<'d>,
}

impl<'d> Value<'d> {
    fn new(document: &'d Document<'d>, key: String, value: &'d toml::Spanned<DeValue<'d>>) -> Self {
        document.locations.borrow_mut().insert(key.clone(), document.location(value.span()));
        Self { document, key, span: value.span(), value: value.get_ref() }
    }

    /// Returns an error with key, value, location and `remedy`.
    pub(super) fn wrong(&self, remedy: impl Display) -> ConfigError {
        ConfigError {
            location: Some(self.document.location(self.span.clone())),
            what: format!(
                "{} is {}: {remedy}",
                self.key,
                written(self.document, self.span.clone())
            ),
        }
    }

    /// Returns the error of [`Value::wrong`] without the value.
    pub(super) fn wrong_secret(&self, remedy: impl Display) -> ConfigError {
        ConfigError {
            location: Some(self.document.location(self.span.clone())),
            what: format!("{} is refused: {remedy}", self.key),
        }
    }

    pub(super) fn text(&self, example: &str) -> Result<&'d str, ConfigError> {
        self.value.as_str().ok_or_else(|| self.wrong(format_args!("write {example}")))
    }

    pub(super) fn is_text(&self) -> bool {
        self.value.is_str()
    }

    pub(super) fn switch(&self) -> Result<bool, ConfigError> {
        self.value.as_bool().ok_or_else(|| self.wrong("write true or false"))
    }

    /// Reads a whole number of 0 to `most`.
    pub(super) fn number(&self, most: u64) -> Result<u64, ConfigError> {
        self.value
            .as_integer()
            .and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok())
            .filter(|&number| number <= most)
            .ok_or_else(|| self.wrong(format_args!("write a whole number from 0 to {most}")))
    }

    pub(super) fn duration(&self) -> Result<Duration, ConfigError> {
        if let Some(number) = self.value.as_integer() {
            let number = number.as_str();
            return Err(self.wrong(format_args!("write it with a unit, for example \"{number}s\"")));
        }
        let text = self.text("a duration such as \"5s\"")?;
        units::duration(text).map_err(|remedy| self.wrong(remedy))
    }

    pub(super) fn size(&self) -> Result<u64, ConfigError> {
        if self.value.is_integer() {
            return self.number(1 << 53);
        }
        let text = self.text("a size such as \"16KiB\"")?;
        units::size(text).map_err(|remedy| self.wrong(remedy))
    }

    pub(super) fn address(&self) -> Result<SocketAddr, ConfigError> {
        let port = self.value.as_integer().map(|number| number.as_str());
        let text = match port {
            Some(port) => port,
            None => self.text("an address such as \"127.0.0.1:9001\"")?,
        };
        if let Ok(address) = text.parse() {
            return Ok(address);
        }
        if let Ok(port) = text.parse::<u16>() {
            let all = match self.key.starts_with("listen") {
                true => format!(" for this machine, or \"0.0.0.0:{port}\" for all that reach it"),
                false => String::new(),
            };
            let remedy = format!("it is a port alone: write \"127.0.0.1:{port}\"{all}");
            return Err(self.wrong(remedy));
        }
        if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
            return Ok(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
        }
        let remedy = match (text.parse::<IpAddr>(), text.rsplit_once(':')) {
            (Ok(IpAddr::V6(ip)), _) => format!("a port is missing: write \"[{ip}]:9001\""),
            (Ok(ip), _) => format!("a port is missing: write \"{ip}:9001\""),
            (_, Some((host, port)))
                if port.parse::<u16>().is_ok() && host.contains(|c: char| c.is_alphabetic()) =>
            {
                "names are not looked up: write the IP address and the port, for example \
                 \"127.0.0.1:9001\""
                    .to_owned()
            }
            _ => "write an IP address and a port, for example \"127.0.0.1:9001\" or \"[::1]:9001\""
                .to_owned(),
        };
        Err(self.wrong(remedy))
    }

    /// Returns each item of an array; a text or a number alone is an array of one.
    pub(super) fn list(&self, example: &str) -> Result<Vec<Self>, ConfigError> {
        if self.is_text() || self.value.is_integer() {
            let Self { document, span, value, .. } = self;
            let key = format!("{}[0]", self.key);
            document.locations.borrow_mut().insert(key.clone(), document.location(span.clone()));
            return Ok(vec![Self { document, key, span: span.clone(), value }]);
        }
        let items =
            self.value.as_array().ok_or_else(|| self.wrong(format_args!("write {example}")))?;
        let named = |(at, item)| Self::new(self.document, format!("{}[{at}]", self.key), item);
        Ok(items.iter().enumerate().map(named).collect())
    }

    pub(super) fn table(&self, example: &str) -> Result<Table<'d>, ConfigError> {
        let table =
            self.value.as_table().ok_or_else(|| self.wrong(format_args!("write {example}")))?;
        Ok(Table {
            document: self.document,
            prefix: format!("{}.", self.key),
            table,
            asked: RefCell::default(),
        })
    }
}

/// Returns the text of the file, on one line and not too long.
fn written(document: &Document<'_>, span: Range<usize>) -> String {
    let text = document.text.get(span).unwrap_or_default();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(60) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line,
    }
}
