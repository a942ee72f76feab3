//! Reading of written values as the types of their keys.

use std::borrow::Cow;

use crate::address::{address, check_socket_path, host};
use crate::entry::{RecordValue, Value, ValueEntry};
use crate::error::{ConfigError, Origin};
use crate::foreign;
use crate::key::{Key, Kind, Records, joined};
use crate::listen::check_tcp;
use crate::raw::{Pair, Raw, RawNode};
use crate::units;

/// Reads `raw` as the value of `key`. All mistakes are added to `errors`; without a value there is
/// at least one.
pub(crate) fn read(
    key: &str,
    kind: &Kind,
    raw: &Raw,
    errors: &mut Vec<ConfigError>,
) -> Option<ValueEntry> {
    let value = match (kind, &raw.node) {
        (Kind::List(item), RawNode::List(items)) => list(key, item, items, errors)?,
        (Kind::List(item), RawNode::Scalar(text)) => {
            list(key, item, &as_items(raw, &list_parts(item, text)), errors)?
        }
        (Kind::List(item), RawNode::Switch(_)) => {
            list(key, item, std::slice::from_ref(raw), errors)?
        }
        (Kind::Switch, RawNode::Switch(text)) => Value::Switch(text == "true"),
        (Kind::Records(records), RawNode::List(items)) => {
            self::records(key, records, items, errors)?
        }
        (Kind::Records(records), RawNode::Scalar(text)) => {
            let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
            self::records(key, records, &as_items(raw, &parts.collect::<Vec<_>>()), errors)?
        }
        (Kind::Map(item), RawNode::Table(pairs)) => map(key, item, pairs, errors)?,
        (Kind::Map(_), RawNode::Scalar(text)) if text.is_empty() => Value::Map(Vec::new()),
        (Kind::Tagged { tags, .. }, RawNode::Table(pairs)) => {
            return tagged(key, kind, tags, raw, pairs, errors);
        }
        (Kind::Or(word, _), RawNode::Scalar(text)) if text.trim() == *word => Value::Unset,
        (Kind::Or(word, inner), _) => {
            let before = errors.len();
            let entry = read(key, inner, raw, errors);
            for error in &mut errors[before..] {
                error.what.push_str(&format!(", or \"{word}\""));
            }
            return entry;
        }
        (_, RawNode::Scalar(text)) => match scalar(key, kind, text.trim()) {
            Ok(value) => value,
            Err(remedy) => {
                errors.push(wrong(key, kind, raw, &remedy));
                return None;
            }
        },
        _ => {
            errors.push(wrong(key, kind, raw, &format!("write {}", kind.wanted())));
            return None;
        }
    };
    Some(entry(key, raw, value, matches!(kind, Kind::Secret)))
}

fn entry(key: &str, raw: &Raw, value: Value, is_secret: bool) -> ValueEntry {
    let text = match &raw.node {
        RawNode::Scalar(text) | RawNode::Switch(text) => text.trim().to_owned(),
        _ => String::new(),
    };
    ValueEntry {
        key: key.to_owned(),
        origin: raw.origin.clone(),
        written: raw.written.clone(),
        text,
        value,
        is_secret,
    }
}

fn wrong(key: &str, kind: &Kind, raw: &Raw, remedy: &str) -> ConfigError {
    match kind {
        Kind::Secret => {
            let what = format!("{key} is refused: {remedy}");
            ConfigError::without_value(key, raw.origin.clone(), what)
        }
        _ => ConfigError::new(key, raw.origin.clone(), &raw.written, remedy),
    }
}

/// Returns the parts of a list of `kind` that is written as one text.
fn list_parts<'a>(kind: &Kind, text: &'a str) -> Vec<&'a str> {
    let may_be_empty = matches!(kind, Kind::Path | Kind::Text(_));
    let parts = text.split(',').map(str::trim);
    match text.trim() {
        "" => Vec::new(),
        _ => parts.filter(|part| !may_be_empty || !part.is_empty()).collect(),
    }
}

/// The parts of a text as the items of a list. A text that is one item keeps its form.
fn as_items(raw: &Raw, parts: &[&str]) -> Vec<Raw> {
    match parts {
        [_] => vec![raw.clone()],
        _ => parts.iter().map(|part| Raw::text(part, raw.origin.clone())).collect(),
    }
}

fn list(key: &str, kind: &Kind, items: &[Raw], errors: &mut Vec<ConfigError>) -> Option<Value> {
    let before = errors.len();
    let named = items.iter().enumerate();
    let entries = named.filter_map(|(at, item)| {
        if matches!(item.node, RawNode::List(_)) {
            errors.push(wrong(
                &format!("{key}[{at}]"),
                kind,
                item,
                &format!("write {}", kind.wanted()),
            ));
            return None;
        }
        read(&format!("{key}[{at}]"), kind, item, errors)
    });
    let entries = entries.collect();
    (errors.len() == before).then_some(Value::List(entries))
}

fn map(key: &str, kind: &Kind, pairs: &[Pair], errors: &mut Vec<ConfigError>) -> Option<Value> {
    let before = errors.len();
    let entry = |Pair { name, value, .. }: &Pair| {
        Some((name.clone(), read(&format!("{key}.{name}"), kind, value, errors)?))
    };
    let entries = pairs.iter().filter_map(entry).collect();
    (errors.len() == before).then_some(Value::Map(entries))
}

fn records(
    key: &str,
    records: &'static Records,
    items: &[Raw],
    errors: &mut Vec<ConfigError>,
) -> Option<Value> {
    let before = errors.len();
    let entries = items
        .iter()
        .enumerate()
        .filter_map(|(at, item)| record(&format!("{key}[{at}]"), records, item, errors));
    let entries = entries.collect();
    (errors.len() == before).then_some(Value::List(entries))
}

fn record(
    key: &str,
    records: &'static Records,
    raw: &Raw,
    errors: &mut Vec<ConfigError>,
) -> Option<ValueEntry> {
    let pairs = match record_pairs(records, raw) {
        Ok(pairs) => pairs,
        Err(remedy) => {
            errors.push(ConfigError::new(key, raw.origin.clone(), &raw.written, remedy));
            return None;
        }
    };
    let before = errors.len();
    // A text may stand for an item with only its first field; messages then name the item.
    let is_text = matches!(raw.node, RawNode::Scalar(_)) && pairs.len() == 1;
    let mut reader = FieldReader { key, records, is_text, set: Vec::new(), errors };
    reader.read_all("", &pairs);
    let mut set = reader.set;
    set.sort_by_key(|(at, ..)| *at);
    if let [first, ..] = records.fields
        && records.is_first_required
        && !pairs.iter().any(|pair| records.position(&pair.name) == Some(0))
    {
        let name = first.name;
        let remedy = format!("its {name} is missing: add {name} = {}", first.kind.example());
        errors.push(ConfigError::new(key, raw.origin.clone(), &raw.written, remedy));
    }
    let set = set.into_iter().map(|(_, name, entry)| (name, entry)).collect();
    let value = RecordValue { set, defaults: defaults(records) };
    let entry = |value| ValueEntry { text: String::new(), ..entry(key, raw, value, false) };
    (errors.len() == before).then(|| entry(Value::Record(value)))
}

/// Returns the values of fields that are not written.
fn defaults(records: &'static Records) -> &'static [(&'static str, ValueEntry)] {
    let entry = |key: &Key| (key.name, default(key.name, &key.kind, key.default));
    records.defaults.0.get_or_init(|| records.fields.iter().map(entry).collect())
}

/// Returns the fields of a record as they are written. The error is the remedy.
fn record_pairs<'r>(records: &Records, raw: &'r Raw) -> Result<Cow<'r, [Pair]>, String> {
    match (&raw.node, records.parse) {
        (RawNode::Table(pairs), _) => Ok(Cow::Borrowed(pairs)),
        (RawNode::Scalar(text), Some(parse)) => {
            let fields = parse(text.trim())?;
            Ok(fields.into_iter().map(|(name, text)| field(raw, name, text)).collect())
        }
        _ => Err(format!("write {}", records.example)),
    }
}

/// Reads the fields of a record, and of the tables in it.
struct FieldReader<'r> {
    /// The key of the record.
    key: &'r str,
    records: &'static Records,
    is_text: bool,
    /// The fields with their indices and names.
    set: Vec<(usize, &'static str, ValueEntry)>,
    errors: &'r mut Vec<ConfigError>,
}

impl FieldReader<'_> {
    fn read_all(&mut self, prefix: &str, pairs: &[Pair]) {
        for pair in pairs {
            let name = match prefix {
                "" => Cow::Borrowed(pair.name.as_str()),
                _ => Cow::Owned(format!("{prefix}{}", pair.name)),
            };
            match self.records.position(&name) {
                Some(at) => self.read_field(at, pair),
                None => self.read_table(&name, pair),
            }
        }
    }

    fn read_field(&mut self, at: usize, pair: &Pair) {
        let Key { name, kind, .. } = &self.records.fields[at];
        if self.set.iter().any(|(other, ..)| *other == at) {
            let remedy = format!("{name} is there, too: write one of the two");
            return self.errors.push(ConfigError::new(
                &format!("{}.{}", self.key, pair.name),
                pair.origin.clone(),
                &pair.value.written,
                remedy,
            ));
        }
        let path = match (self.is_text, at) {
            (true, 0) => self.key.to_owned(),
            _ => format!("{}.{name}", self.key),
        };
        self.set.extend(read(&path, kind, &pair.value, self.errors).map(|mut entry| {
            if self.is_text {
                entry.key = format!("{}.{name}", self.key);
            }
            (at, *name, entry)
        }));
    }

    /// Reads a table in a record. Refuses what is not a table of it.
    fn read_table(&mut self, name: &str, pair: &Pair) {
        let is_in = |key: &&Key| key.name.strip_prefix(name).is_some_and(|s| s.starts_with('.'));
        let first = self.records.fields.iter().enumerate().find(|(_, key)| is_in(key));
        let path = || format!("{}.{name}", self.key);
        match (first, &pair.value.node) {
            (Some((at, key)), RawNode::Table(inner)) if inner.is_empty() => {
                let value = RecordValue { set: Vec::new(), defaults: &[] };
                let entry = entry(&path(), &pair.value, Value::Record(value), false);
                self.set.push((at, &key.name[..name.len()], entry));
            }
            (Some(_), RawNode::Table(inner)) => self.read_all(&format!("{name}."), inner),
            (Some((_, key)), _) => {
                let remedy = format!("write {name} = {{ {} }}", key.example());
                let Raw { origin, written, .. } = &pair.value;
                self.errors.push(ConfigError::new(&path(), origin.clone(), written, remedy));
            }
            (None, _) => {
                let what = format!("{} is an unknown key: {}", path(), self.unknown(name));
                let error = ConfigError::without_value(&path(), pair.origin.clone(), what);
                self.errors.push(error);
            }
        }
    }

    /// Returns the remedy for a field that records do not have.
    fn unknown(&self, name: &str) -> String {
        let names = || self.records.fields.iter().map(|field| field.name);
        let has = |name: &str| names().any(|known| known == name);
        foreign::field_hint(self.key, name, has)
            .or_else(|| units::did_you_mean(name, names()))
            .unwrap_or_else(|| {
                format!("the keys here are {}", names().collect::<Vec<_>>().join(", "))
            })
    }
}

fn field(item: &Raw, name: &str, text: String) -> Pair {
    let is_whole = matches!(&item.node, RawNode::Scalar(whole) if *whole == text);
    let value = match is_whole {
        // As it was written, for messages.
        true => Raw { node: RawNode::Scalar(text), ..item.clone() },
        false => Raw::text(&text, item.origin.clone()),
    };
    Pair { name: name.to_owned(), origin: item.origin.clone(), value }
}

/// Returns the entry of a default, which is not set if it is empty.
pub(crate) fn default(key: &str, kind: &Kind, text: &str) -> ValueEntry {
    let raw = Raw::text(text, Origin::Default);
    let mut errors = Vec::new();
    let is_list = matches!(kind, Kind::List(_) | Kind::Records(_) | Kind::Map(_));
    let unset = ValueEntry {
        key: key.to_owned(),
        origin: Origin::Default,
        written: raw.written.clone(),
        text: String::new(),
        value: Value::Unset,
        is_secret: matches!(kind, Kind::Secret),
    };
    match text {
        "" if !is_list => unset,
        _ => read(key, kind, &raw, &mut errors).unwrap_or(unset),
    }
}

fn tagged(
    key: &str,
    kind: &Kind,
    tags: &[&str],
    raw: &Raw,
    pairs: &[Pair],
    errors: &mut Vec<ConfigError>,
) -> Option<ValueEntry> {
    let remedy = match pairs {
        [Pair { name, value: Raw { node: RawNode::Scalar(text), .. }, .. }]
            if tags.contains(&name.as_str()) =>
        {
            let text = format!("{name}:{text}");
            return Some(ValueEntry {
                key: key.to_owned(),
                origin: pairs[0].value.origin.clone(),
                written: pairs[0].value.written.clone(),
                text: text.clone(),
                value: Value::Text(text),
                is_secret: false,
            });
        }
        [_, _, ..] if pairs.iter().all(|pair| tags.contains(&pair.name.as_str())) => {
            format!("keep one of {}", joined(tags, "and"))
        }
        _ => format!("write {}", kind.wanted()),
    };
    errors.push(wrong(key, kind, raw, &remedy));
    None
}

/// Reads a scalar. The error is the remedy.
fn scalar(key: &str, kind: &Kind, text: &str) -> Result<Value, String> {
    let wanted = || format!("write {}", kind.wanted());
    match kind {
        Kind::Switch => text.parse().map(Value::Switch).map_err(|_| wanted()),
        Kind::Count { .. } => {
            let number = units::parse_count(text).map_err(|_| wanted())? as u64;
            kind.check_number(number).map(|()| Value::Number(number))
        }
        Kind::Size { .. } => {
            let number = units::parse_size(text)? as u64;
            kind.check_number(number).map(|()| Value::Number(number))
        }
        Kind::Duration { .. } => {
            let duration = units::parse_duration(text)?;
            kind.check_duration(duration).map(|()| Value::Duration(duration))
        }
        Kind::Word(words) => match words.contains(&text) {
            true => Ok(Value::Text(text.to_owned())),
            // A few are all named.
            false if words.len() <= 3 => Err(wanted()),
            false => Err(match foreign::word(text, words) {
                Some(word) => format!("here it is {word}"),
                None => units::did_you_mean(text, words.iter().copied()).unwrap_or_else(wanted),
            }),
        },
        Kind::Tagged { words, tags } => {
            let has_tag = text.split_once(':').is_some_and(|(tag, _)| tags.contains(&tag));
            match words.contains(&text) || has_tag {
                true => Ok(Value::Text(text.to_owned())),
                false => Err(format!("{}, or \"{}:NAME\"", wanted(), tags.join(":NAME\", \""))),
            }
        }
        Kind::Text(_) | Kind::Secret | Kind::Path if text.is_empty() => Ok(Value::Unset),
        Kind::Text(_) | Kind::Secret | Kind::Path => Ok(Value::Text(text.to_owned())),
        Kind::Address if text.is_empty() => Ok(Value::Unset),
        Kind::Address => address(key, text).map(Value::Address),
        Kind::Listener if text == "systemd" => Ok(Value::Text(text.to_owned())),
        Kind::Listener if text == "unix:" => {
            Err("a path is missing: write \"unix:/run/app.sock\"".to_owned())
        }
        Kind::Listener if text.starts_with("unix:") => {
            check_socket_path(&text["unix:".len()..])?;
            Ok(Value::Text(text.to_owned()))
        }
        Kind::Host if key.contains("listen") => {
            check_tcp(text)?;
            host(key, text).map(Value::Text)
        }
        Kind::Host | Kind::Listener => host(key, text).map(Value::Text),
        Kind::Rate => text.parse().map(Value::Rate),
        Kind::List(_) | Kind::Or(..) | Kind::Records(_) | Kind::Map(_) => Err(wanted()),
    }
}
