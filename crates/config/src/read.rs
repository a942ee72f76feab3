//! Reading of written values as the types of their keys.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use crate::error::{ConfigError, Origin};
use crate::foreign;
use crate::key::{Kind, Records, joined};
use crate::listen::check_tcp;
use crate::raw::{Pair, Raw, RawNode};
use crate::units;
use crate::values::{Value, ValueEntry};

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
    let text = match &raw.node {
        RawNode::Scalar(text) | RawNode::Switch(text) => text.trim().to_owned(),
        _ => String::new(),
    };
    Some(ValueEntry {
        key: key.to_owned(),
        origin: raw.origin.clone(),
        written: raw.written.clone(),
        text,
        value,
        is_secret: matches!(kind, Kind::Secret),
    })
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

fn records(
    key: &str,
    records: &Records,
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
    records: &Records,
    raw: &Raw,
    errors: &mut Vec<ConfigError>,
) -> Option<ValueEntry> {
    let fields = match record_fields(records, raw) {
        Ok(fields) => fields,
        Err(remedy) => {
            errors.push(ConfigError::new(key, raw.origin.clone(), &raw.written, remedy));
            return None;
        }
    };
    let before = errors.len();
    refuse_unknown(key, records, &fields, errors);
    let mut entries = Vec::new();
    for (at, known) in records.fields.iter().enumerate() {
        let written = fields.iter().find(|pair| pair.name == known.name);
        if at == 0 && written.is_none() {
            let remedy = format!(
                "its {} is missing: add {} = {}",
                known.name,
                known.name,
                known.kind.example()
            );
            errors.push(ConfigError::new(key, raw.origin.clone(), &raw.written, remedy));
        }
        let path = match (&raw.node, at) {
            // A text may stand for an item with only its first field; messages then name the item.
            (RawNode::Scalar(_), 0) if fields.len() == 1 => key.to_owned(),
            _ => format!("{key}.{}", known.name),
        };
        let entry = match written {
            Some(pair) => read(&path, &known.kind, &pair.value, errors),
            None => Some(default(&path, &known.kind, known.default)),
        };
        // The entry names the item for messages; its key names the field for programs.
        entries.extend(
            entry.map(|entry| ValueEntry { key: format!("{key}.{}", known.name), ..entry }),
        );
    }
    (errors.len() == before).then(|| ValueEntry {
        key: key.to_owned(),
        origin: raw.origin.clone(),
        written: raw.written.clone(),
        text: String::new(),
        value: Value::Record(entries),
        is_secret: false,
    })
}

/// Returns the fields of a record as they are written. The error is the remedy.
fn record_fields(records: &Records, raw: &Raw) -> Result<Vec<Pair>, String> {
    match &raw.node {
        RawNode::Table(pairs) => Ok(pairs.clone()),
        RawNode::Scalar(text) => {
            let fields = (records.parse)(text.trim())?;
            Ok(fields.into_iter().map(|(name, text)| field(raw, name, text)).collect())
        }
        RawNode::List(_) | RawNode::Switch(_) => Err(format!("write {}", records.example)),
    }
}

/// Refuses fields that a record does not have.
fn refuse_unknown(key: &str, records: &Records, fields: &[Pair], errors: &mut Vec<ConfigError>) {
    let names = || records.fields.iter().map(|field| field.name);
    for pair in fields {
        if !names().any(|name| name == pair.name) {
            let has = |name: &str| names().any(|known| known == name);
            let hint = foreign::field_hint(key, &pair.name, has);
            let hint = hint.or_else(|| units::did_you_mean(&pair.name, names()));
            let remedy = hint.unwrap_or_else(|| {
                format!("the keys here are {}", names().collect::<Vec<_>>().join(", "))
            });
            let name = format!("{key}.{}", pair.name);
            let what = format!("{name} is an unknown key: {remedy}");
            errors.push(ConfigError::without_value(&name, pair.origin.clone(), what));
        }
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
    let is_list = matches!(kind, Kind::List(_) | Kind::Records(_));
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
        Kind::List(_) | Kind::Or(..) | Kind::Records(_) => Err(wanted()),
    }
}

/// Refuses a path that the system does not accept for a socket.
fn check_socket_path(path: &str) -> Result<(), String> {
    #[cfg(unix)]
    if std::os::unix::net::SocketAddr::from_pathname(path).is_err() {
        let length = path.len();
        return Err(format!(
            "a path of {length} bytes is too long for a socket: write a shorter one, such as \
             \"unix:/run/app.sock\""
        ));
    }
    let _ = path;
    Ok(())
}

/// Parses an IP address and a port.
fn address(key: &str, text: &str) -> Result<SocketAddr, String> {
    let host = host(key, text)?;
    host.parse().map_err(|_| {
        "names are not looked up here: write the IP address and the port, for example \
         \"127.0.0.1:9001\""
            .to_owned()
    })
}

/// Checks the form of a name or an IP address with a port. Returns an IPv6 zone as a number, and an
/// IPv4 address in IPv6 as IPv4, because all systems treat these forms alike.
fn host(key: &str, text: &str) -> Result<String, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(match (address, address.ip().to_canonical()) {
            (SocketAddr::V6(_), ip @ IpAddr::V4(_)) => {
                SocketAddr::new(ip, address.port()).to_string()
            }
            _ => text.to_owned(),
        });
    }
    if let Some(zoned) = with_zone(text) {
        return zoned;
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        let rest = rest.split('/').next().unwrap_or_default();
        return Err(format!("an address has no scheme such as {scheme}://: write {rest:?}"));
    }
    if let Ok(port) = text.parse::<u16>() {
        let all = match key.starts_with("listen") {
            true => format!(" for this machine, or \"0.0.0.0:{port}\" for all that reach it"),
            false => String::new(),
        };
        return Err(format!("it is a port alone: write \"127.0.0.1:{port}\"{all}"));
    }
    if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse::<u16>().ok()) {
        return Ok(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).to_string());
    }
    if let Some((ip, port)) = text.rsplit_once(':')
        && let (Ok(ip), Ok(port)) = (ip.parse::<Ipv6Addr>(), port.parse::<u16>())
    {
        return Err(format!("an IPv6 address is in brackets: write \"[{ip}]:{port}\""));
    }
    match (text.parse::<IpAddr>(), text.rsplit_once(':')) {
        (Ok(IpAddr::V6(ip)), _) => Err(format!("a port is missing: write \"[{ip}]:9001\"")),
        (Ok(ip), _) => Err(format!("a port is missing: write \"{ip}:9001\"")),
        (_, Some((name, port))) if port.parse::<u16>().is_ok() && is_name(name) => {
            Ok(text.to_owned())
        }
        (_, None) if is_name(text) => Err(format!("a port is missing: write \"{text}:9001\"")),
        _ => Err("write HOST:PORT, an IP address or a name and a port, for example \
                  \"127.0.0.1:9001\" or \"[::1]:9001\""
            .to_owned()),
    }
}

/// Converts the zone of an IPv6 address from an interface's name to its number:
/// `[fe80::1%eth0]:80`. Returns `None` if the text is not such an address.
fn with_zone(text: &str) -> Option<Result<String, String>> {
    let (address, port) = text.strip_prefix('[')?.rsplit_once("]:")?;
    let (ip, zone) = address.split_once('%')?;
    let (ip, port) = (ip.parse::<Ipv6Addr>().ok()?, port.parse::<u16>().ok()?);
    if !ip.is_unicast_link_local() && !ip.is_multicast() {
        return Some(Err(format!(
            "only a link-local address such as fe80::1 has a zone: write \"[{ip}]:{port}\""
        )));
    }
    let found = (address, port).to_socket_addrs().ok().and_then(|mut all| all.next());
    Some(found.map(|found| found.to_string()).ok_or_else(|| {
        format!("this machine has no interface {zone:?}: `ip link` lists those that it has")
    }))
}

/// Returns whether the text has the form of a host's name (RFC 1123 section 2.1), with the
/// underscores that container networks use.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let text = text.strip_suffix('.').unwrap_or(text);
    text.len() <= 253
        && text.split('.').all(is_label)
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
}
