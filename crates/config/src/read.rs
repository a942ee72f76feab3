//! Reading of written values as the types of their keys.

use throng_io::PeerAddress;

use crate::address::{address, check_socket_path, host};
use crate::entry::{RecordValue, Value, ValueEntry};
use crate::error::{ConfigError, Origin};
use crate::foreign;
use crate::key::{Key, Kind, Records, joined};
use crate::listen::check_tcp;
use crate::raw::{Pair, Raw, RawNode, Written};
use crate::units;

/// Reads `raw` as the value of `key`. All mistakes are added to `errors`; without a value there is
/// at least one.
pub(crate) fn read(
    key: String,
    kind: &Kind,
    raw: Raw,
    errors: &mut Vec<ConfigError>,
) -> Option<ValueEntry> {
    let Raw { origin, written, node } = raw;
    let (value, text) = match (kind, node) {
        (Kind::Or(word, _), RawNode::Scalar(text)) if text.trim() == *word => (Value::Unset, text),
        (Kind::Or(word, inner), node) => {
            let before = errors.len();
            let entry = read(key, inner, Raw { origin, written, node }, errors);
            for error in &mut errors[before..] {
                error.what.push_str(&format!(", or \"{word}\""));
            }
            return entry;
        }
        (Kind::List(item), RawNode::List(items)) => {
            (list(&key, item, items, errors)?, String::new())
        }
        (Kind::List(item), RawNode::Scalar(text)) => {
            let raw =
                Raw { origin: origin.clone(), written: written.clone(), node: scalar_node(&text) };
            (list(&key, item, as_items(raw, &list_parts(item, &text)), errors)?, text)
        }
        (Kind::List(item), RawNode::Switch(text)) => {
            let node = RawNode::Switch(text.clone());
            let raw = Raw { origin: origin.clone(), written: written.clone(), node };
            (list(&key, item, vec![raw], errors)?, text)
        }
        (Kind::Switch, RawNode::Switch(text)) => (Value::Switch(text == "true"), text),
        (Kind::Records(of), RawNode::List(items)) => {
            (records(&key, of, items, errors)?, String::new())
        }
        (Kind::Records(of), RawNode::Scalar(text)) => {
            let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
            let parts: Vec<_> = parts.collect();
            let raw =
                Raw { origin: origin.clone(), written: written.clone(), node: scalar_node(&text) };
            (records(&key, of, as_items(raw, &parts), errors)?, text)
        }
        (Kind::Map(item), RawNode::Table(pairs)) => {
            (map(&key, item, pairs, errors)?, String::new())
        }
        (Kind::Map(_), RawNode::Scalar(text)) if text.is_empty() => (Value::Map(Vec::new()), text),
        (Kind::Tagged { tags, .. }, RawNode::Table(pairs)) => {
            let (value, at) = match tagged(kind, tags, pairs) {
                Ok(tagged) => tagged,
                Err(remedy) => {
                    errors.push(wrong(&key, kind, origin, &written, &remedy));
                    return None;
                }
            };
            let Raw { origin, written, .. } = at;
            let text = String::new();
            return Some(ValueEntry { key, origin, written, text, value, is_secret: false });
        }
        // Spaces and line ends belong to a text in a file.
        (Kind::Text(_), RawNode::Scalar(text))
            if matches!(origin, Origin::File(_)) && !text.trim().is_empty() =>
        {
            (Value::Text(text.clone()), text)
        }
        (_, RawNode::Scalar(text)) => match scalar(&key, kind, text.trim()) {
            Ok(value) => (value, text),
            Err(remedy) => {
                errors.push(wrong(&key, kind, origin, &written, &remedy));
                return None;
            }
        },
        _ => {
            let remedy = format!("write {}", kind.wanted());
            errors.push(wrong(&key, kind, origin, &written, &remedy));
            return None;
        }
    };
    let text = match &value {
        Value::Text(same) if *same == text => String::new(),
        _ if text.trim().len() == text.len() => text,
        _ => text.trim().to_owned(),
    };
    let is_secret = matches!(kind, Kind::Secret);
    Some(ValueEntry { key, origin, written, text, value, is_secret })
}

fn scalar_node(text: &str) -> RawNode {
    RawNode::Scalar(text.to_owned())
}

fn wrong(key: &str, kind: &Kind, origin: Origin, written: &Written, remedy: &str) -> ConfigError {
    match kind {
        Kind::Secret => {
            ConfigError::without_value(key, origin, format!("{key} is refused: {remedy}"))
        }
        _ => ConfigError::new(key, origin, written, remedy),
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
fn as_items(raw: Raw, parts: &[&str]) -> Vec<Raw> {
    match parts {
        [_] => vec![raw],
        _ => parts.iter().map(|part| Raw::text(part, raw.origin.clone())).collect(),
    }
}

fn list(key: &str, kind: &Kind, items: Vec<Raw>, errors: &mut Vec<ConfigError>) -> Option<Value> {
    let before = errors.len();
    let named = items.into_iter().enumerate();
    let entries = named.filter_map(|(at, item)| {
        let key = item_key(key, at);
        if matches!(item.node, RawNode::List(_)) {
            let remedy = format!("write {}", kind.wanted());
            errors.push(wrong(&key, kind, item.origin, &item.written, &remedy));
            return None;
        }
        read(key, kind, item, errors)
    });
    let entries = entries.collect();
    (errors.len() == before).then_some(Value::List(entries))
}

/// Returns the key of an item: `backends[0]`.
fn item_key(key: &str, at: usize) -> String {
    [key, "[", &at.to_string(), "]"].concat()
}

fn map(key: &str, kind: &Kind, pairs: Vec<Pair>, errors: &mut Vec<ConfigError>) -> Option<Value> {
    let before = errors.len();
    let entry = |Pair { name, value, .. }: Pair| {
        let entry = read(format!("{key}.{name}"), kind, value, errors)?;
        Some((name, entry))
    };
    let entries = pairs.into_iter().filter_map(entry).collect();
    (errors.len() == before).then_some(Value::Map(entries))
}

fn records(
    key: &str,
    records: &'static Records,
    items: Vec<Raw>,
    errors: &mut Vec<ConfigError>,
) -> Option<Value> {
    let before = errors.len();
    let entries = items
        .into_iter()
        .enumerate()
        .filter_map(|(at, item)| record(item_key(key, at), records, item, errors));
    let entries = entries.collect();
    (errors.len() == before).then_some(Value::List(entries))
}

fn record(
    key: String,
    records: &'static Records,
    raw: Raw,
    errors: &mut Vec<ConfigError>,
) -> Option<ValueEntry> {
    let before = errors.len();
    let Raw { origin, written, node } = raw;
    let is_scalar = matches!(node, RawNode::Scalar(_));
    let pairs = match (node, records.parse) {
        (RawNode::Table(pairs), _) => Ok(pairs),
        (RawNode::Scalar(text), Some(parse)) => parse(text.trim()).map(|fields| {
            let field = |(name, value)| field(&origin, &written, &text, name, value);
            fields.into_iter().map(field).collect()
        }),
        _ => Err(format!("write {}", records.example)),
    };
    let pairs = match pairs {
        Ok(pairs) => pairs,
        Err(remedy) => {
            errors.push(ConfigError::new(&key, origin, &written, remedy));
            return None;
        }
    };
    if let [first, ..] = records.fields
        && records.is_first_required
        && !pairs.iter().any(|pair| records.position(&pair.name) == Some(0))
    {
        let name = first.name;
        let remedy = format!("its {name} is missing: add {name} = {}", first.kind.example());
        errors.push(ConfigError::new(&key, origin.clone(), &written, remedy));
    }
    // A text may stand for an item with only its first field; messages then name the item.
    let is_text = is_scalar && pairs.len() == 1;
    let set = Vec::with_capacity(pairs.len());
    let mut reader = FieldReader { key: &key, records, is_text, set, errors };
    reader.read_all("", pairs);
    let mut set = reader.set;
    set.sort_by_key(|(at, ..)| *at);
    if errors.len() > before {
        return None;
    }
    let set = set.into_iter().map(|(_, name, entry)| (name, entry)).collect();
    let value = Value::Record(RecordValue { set, defaults: defaults(records) });
    Some(ValueEntry { key, origin, written, text: String::new(), value, is_secret: false })
}

/// Returns the values of fields that are not written.
fn defaults(records: &'static Records) -> &'static [(&'static str, ValueEntry)] {
    let entry = |key: &Key| (key.name, default(key.name, &key.kind, key.default));
    records.defaults.0.get_or_init(|| {
        let mut entries: Vec<_> = records.fields.iter().map(entry).collect();
        entries.sort_by_key(|(name, _)| *name);
        entries.into()
    })
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
    fn read_all(&mut self, prefix: &str, pairs: Vec<Pair>) {
        for Pair { name, origin, value } in pairs {
            let name = match prefix {
                "" => name,
                _ => format!("{prefix}{name}"),
            };
            match self.records.position(&name) {
                Some(at) => self.read_field(at, &name, origin, value),
                None => self.read_table(&name, origin, value),
            }
        }
    }

    fn read_field(&mut self, at: usize, written_as: &str, origin: Origin, value: Raw) {
        let Key { name, kind, .. } = &self.records.fields[at];
        if self.set.iter().any(|(other, ..)| *other == at) {
            let path = format!("{}.{written_as}", self.key);
            let remedy = format!("{name} is there, too: write one of the two");
            return self.errors.push(ConfigError::new(&path, origin, value.written, remedy));
        }
        let path = match (self.is_text, at) {
            (true, 0) => self.key.to_owned(),
            _ => [self.key, ".", name].concat(),
        };
        let Some(mut entry) = read(path, kind, value, self.errors) else { return };
        if self.is_text {
            entry.key = format!("{}.{name}", self.key);
        }
        self.set.push((at, *name, entry));
    }

    /// Reads a table in a record. Refuses what is not a table of it.
    fn read_table(&mut self, name: &str, origin: Origin, value: Raw) {
        let is_in = |key: &&Key| key.name.strip_prefix(name).is_some_and(|s| s.starts_with('.'));
        let first = self.records.fields.iter().enumerate().find(|(_, key)| is_in(key));
        let key = format!("{}.{name}", self.key);
        match (first, value.node) {
            (Some((at, first)), RawNode::Table(inner)) if inner.is_empty() => {
                let (origin, written) = (value.origin, value.written);
                let value = Value::Record(RecordValue { set: Vec::new(), defaults: &[] });
                let text = String::new();
                let entry = ValueEntry { key, origin, written, text, value, is_secret: false };
                self.set.push((at, &first.name[..name.len()], entry));
            }
            (Some(_), RawNode::Table(inner)) => self.read_all(&format!("{name}."), inner),
            (Some((_, first)), _) => {
                let remedy = format!("write {name} = {{ {} }}", first.example());
                self.errors.push(ConfigError::new(&key, value.origin, value.written, remedy));
            }
            (None, _) => {
                let what = format!("{key} is an unknown key: {}", self.unknown(name));
                self.errors.push(ConfigError::without_value(&key, origin, what));
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

/// Returns a field of an item that is written as `whole`.
fn field(origin: &Origin, written: &Written, whole: &str, name: &str, text: String) -> Pair {
    let value = match whole == text {
        // As it was written, for messages.
        true => {
            Raw { origin: origin.clone(), written: written.clone(), node: RawNode::Scalar(text) }
        }
        false => Raw::text(&text, origin.clone()),
    };
    Pair { name: name.to_owned(), origin: origin.clone(), value }
}

/// Returns the entry of a default, which is not set if it is empty.
pub(crate) fn default(key: &str, kind: &Kind, text: &str) -> ValueEntry {
    let raw = Raw::text(text, Origin::Default);
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
        _ => read(key.to_owned(), kind, raw, &mut Vec::new()).unwrap_or(unset),
    }
}

/// Reads a table with one tag. Returns the value and its written form. The error is the
/// remedy.
fn tagged(kind: &Kind, tags: &[&str], mut pairs: Vec<Pair>) -> Result<(Value, Raw), String> {
    let is_tag = |pair: &Pair| tags.contains(&pair.name.as_str());
    if let [pair @ Pair { name, value: Raw { node: RawNode::Scalar(text), .. }, .. }] = &*pairs
        && is_tag(pair)
    {
        let value = Value::Text(format!("{name}:{text}"));
        return Ok((value, pairs.remove(0).value));
    }
    match pairs.len() > 1 && pairs.iter().all(is_tag) {
        true => Err(format!("keep one of {}", joined(tags, "and"))),
        false => Err(format!("write {}", kind.wanted())),
    }
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
        Kind::Peer if text.starts_with("unix:") => match text.parse::<PeerAddress>() {
            Ok(_) => Ok(Value::Text(text.to_owned())),
            Err(remedy) => Err(remedy.to_string()),
        },
        Kind::Host | Kind::Listener | Kind::Peer => host(key, text).map(Value::Text),
        Kind::Rate => text.parse().map(Value::Rate),
        Kind::List(_) | Kind::Or(..) | Kind::Records(_) | Kind::Map(_) => Err(wanted()),
    }
}
