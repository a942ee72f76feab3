//! The keys of [`Settings`] and the words for their choices.

use std::str::FromStr;

use super::error::ConfigError;
use super::reader::{Table, Value};
use super::units::did_you_mean;
use crate::Network;
use crate::settings::{Check, CheckKind, Health, Observe, Pick, Settings, Sticky, Timeouts};

pub(super) fn read(root: &Table<'_>, settings: &mut Settings) -> Result<(), ConfigError> {
    root.put("pick", &mut settings.pick, |value| {
        value.text(&one_of_picks())?.parse().map_err(|why: String| value.wrong(why))
    })?;
    root.put("sticky", &mut settings.sticky, sticky)?;
    root.put("trusted_proxies", &mut settings.trusted_proxies, networks)?;
    root.put("drop_headers", &mut settings.drop_headers, |value| {
        let names = value.list("a list of header names such as [\"X-Client-IP\"]")?;
        let name = |value: &Value<'_>| value.text("a header name").map(str::to_owned);
        names.iter().map(name).collect()
    })?;
    root.put("accept_proxy", &mut settings.accept_proxy, Value::switch)?;
    root.put("max_handshakes", &mut settings.max_handshakes, number32)?;
    root.put("retries", &mut settings.retries, |value| Ok(value.number(255)? as u8))?;
    root.put("keep_alive", &mut settings.keep_alive, count)?;
    root.put("max_connections", &mut settings.max_connections, count)?;
    let per_address = &mut settings.max_connections_per_address;
    root.put("max_connections_per_address", per_address, |value| count(value).map(Some))?;
    root.put("max_header_bytes", &mut settings.max_header_bytes, |v| Ok(v.size()? as usize))?;
    root.put("max_headers", &mut settings.max_headers, count)?;
    root.put("max_response_header_bytes", &mut settings.max_response_header_bytes, |value| {
        Ok(value.size()? as usize)
    })?;
    root.put("max_response_headers", &mut settings.max_response_headers, count)?;
    root.put("max_body", &mut settings.max_body, |value| match value.text("") {
        Ok("unlimited") => Ok(u64::MAX),
        _ => value.size(),
    })?;
    root.put("min_body_rate", &mut settings.min_body_rate, Value::size)?;
    root.put("min_response_rate", &mut settings.min_response_rate, Value::size)?;
    root.put("sources", &mut settings.sources, |value| {
        let addresses =
            value.list("a list of this machine's addresses, such as [\"127.0.0.2\"]")?;
        let source = |value: &Value<'_>| {
            let remedy = "an IP address of this machine, such as \"127.0.0.2\"";
            let text = value.text(remedy)?;
            text.parse().map_err(|_| value.wrong(format_args!("write {remedy}")))
        };
        addresses.iter().map(source).collect()
    })?;
    root.put("slow_start", &mut settings.slow_start, Value::duration)?;
    root.put("close_rate", &mut settings.close_rate, number32)?;
    if let Some(value) = root.take("timeouts") {
        let table = value.table("[timeouts], and below it connect = \"5s\"")?;
        timeouts(&table, &mut settings.timeouts)?;
        table.finish()?;
    }
    if let Some(value) = root.take("health") {
        let table = value.table("[health], and below it failures = 3")?;
        health(&table, &mut settings.health)?;
        table.finish()?;
    }
    Ok(())
}

pub(super) fn networks(value: &Value<'_>) -> Result<Vec<Network>, ConfigError> {
    let networks = value.list("a list of networks such as [\"10.0.0.0/8\"]")?;
    let network = |value: &Value<'_>| {
        let text = value.text("a network such as \"10.0.0.0/8\"")?;
        text.parse().map_err(|why: String| value.wrong(why))
    };
    networks.iter().map(network).collect()
}

fn timeouts(table: &Table<'_>, timeouts: &mut Timeouts) -> Result<(), ConfigError> {
    for (key, into) in named(timeouts) {
        table.put(key, into, Value::duration)?;
    }
    Ok(())
}

/// Each timeout by its key.
pub(super) fn named(timeouts: &mut Timeouts) -> [(&'static str, &mut std::time::Duration); 10] {
    let Timeouts {
        connect,
        response,
        upgrade,
        body,
        head,
        keep_alive,
        tunnel,
        half_closed,
        close,
        queue,
    } = timeouts;
    [
        ("connect", connect),
        ("response", response),
        ("upgrade", upgrade),
        ("body", body),
        ("head", head),
        ("keep_alive", keep_alive),
        ("tunnel", tunnel),
        ("half_closed", half_closed),
        ("close", close),
        ("queue", queue),
    ]
}

fn health(table: &Table<'_>, health: &mut Health) -> Result<(), ConfigError> {
    table.put("observe", &mut health.observe, |value| {
        let remedy = "write \"connections\" or \"answers\"";
        match value.text("\"connections\" or \"answers\"")? {
            "connections" => Ok(Observe::Connections),
            "answers" => Ok(Observe::Answers),
            _ => Err(value.wrong(remedy)),
        }
    })?;
    table.put("failures", &mut health.failures, number32)?;
    table.put("within", &mut health.within, Value::duration)?;
    table.put("down_for", &mut health.down_for, Value::duration)?;
    let before = health.check.clone();
    table.put("check", &mut health.check, |value| check(value, before).map(Some))
}

/// Reads a check; keys that it does not have stay as `before`.
fn check(value: &Value<'_>, before: Option<Check>) -> Result<Check, ConfigError> {
    let example = "[health.check], and below it kind = \"http\" and path = \"/healthz\"";
    let table = value.table(example)?;
    let kind = table.take("kind");
    let path = table.take("path");
    let (word_before, path_before) = match before.as_ref().map(|check| &check.kind) {
        None => (None, "/"),
        Some(CheckKind::Tcp) => (Some("tcp"), "/"),
        Some(CheckKind::Http(path)) => (Some("http"), path.as_str()),
        Some(CheckKind::WebSocket(path)) => (Some("websocket"), path.as_str()),
    };
    let path_text = match &path {
        Some(path) => path.text("a path such as \"/healthz\"")?,
        None => path_before,
    };
    let word = match (&kind, word_before) {
        (Some(kind), _) => kind.text("\"tcp\", \"http\" or \"websocket\"")?,
        (None, Some(word)) => word,
        (None, None) => {
            let remedy = "what is tried is missing: add kind = \"tcp\", \"http\" or \"websocket\"";
            return Err(value.wrong(remedy));
        }
    };
    let what = match (word, &path) {
        ("tcp", None) => CheckKind::Tcp,
        ("tcp", Some(path)) => {
            return Err(path.wrong(
                "a check of kind \"tcp\" has no path: drop it, or write kind = \"http\" or \
                 \"websocket\"",
            ));
        }
        ("http", _) => CheckKind::Http(path_text.to_owned()),
        ("websocket", _) => CheckKind::WebSocket(path_text.to_owned()),
        _ => {
            let said = kind.as_ref().unwrap_or(value);
            return Err(said.wrong("write \"tcp\", \"http\" or \"websocket\""));
        }
    };
    let mut check = match before {
        Some(before) => Check { kind: what, ..before },
        None => Check::new(what),
    };
    table.put("interval", &mut check.interval, Value::duration)?;
    table.put("timeout", &mut check.timeout, Value::duration)?;
    table.put("rise", &mut check.rise, number32)?;
    table.put("fall", &mut check.fall, number32)?;
    table.finish()?;
    Ok(check)
}

fn sticky(value: &Value<'_>) -> Result<Sticky, ConfigError> {
    let remedy =
        "\"none\", \"ip\", { cookie = \"NAME\" }, { header = \"NAME\" } or { query = \"NAME\" }";
    if value.is_text() {
        return match value.text(remedy)? {
            "none" => Ok(Sticky::None),
            "ip" => Ok(Sticky::Ip),
            _ => Err(value.wrong(format_args!("write {remedy}"))),
        };
    }
    let table = value.table(remedy)?;
    let name = |value: Value<'_>| value.text("a name in quotes").map(str::to_owned);
    let cookie = table.take("cookie").map(name).transpose()?.map(Sticky::Cookie);
    let header = table.take("header").map(name).transpose()?.map(Sticky::Header);
    let query = table.take("query").map(name).transpose()?.map(Sticky::Query);
    table.finish()?;
    let mut given = [cookie, header, query].into_iter().flatten();
    match (given.next(), given.next()) {
        (Some(sticky), None) => Ok(sticky),
        (None, _) => Err(value.wrong(format_args!("write {remedy}"))),
        (Some(_), Some(_)) => Err(value.wrong("keep one of cookie, header and query")),
    }
}

fn number32(value: &Value<'_>) -> Result<u32, ConfigError> {
    Ok(value.number(u32::MAX.into())? as u32)
}

fn count(value: &Value<'_>) -> Result<usize, ConfigError> {
    Ok(value.number(u32::MAX.into())? as usize)
}

/// All picks with their words.
const PICKS: [(&str, Pick); 6] = [
    ("power_of_two", Pick::PowerOfTwo),
    ("least_connections", Pick::LeastConnections),
    ("round_robin", Pick::RoundRobin),
    ("rendezvous", Pick::Rendezvous),
    ("random", Pick::Random),
    ("ip_hash", Pick::IpHash),
];

fn one_of_picks() -> String {
    format!("one of {}", PICKS.map(|(word, _)| word).join(", "))
}

impl Pick {
    /// Returns its word in files, flags and the API.
    #[must_use]
    pub fn word(self) -> &'static str {
        PICKS.iter().find(|(_, pick)| *pick == self).map_or("", |(word, _)| word)
    }
}

impl FromStr for Pick {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = PICKS.map(|(word, _)| word);
        PICKS.iter().find(|(word, _)| *word == text).map(|(_, pick)| *pick).ok_or_else(|| {
            did_you_mean(text, &words).unwrap_or_else(|| format!("write {}", one_of_picks()))
        })
    }
}
