//! The balancer's output: changes of state, and on a terminal a status line.

use std::collections::BTreeMap;
use std::io::stdout;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use throng_balance::{Balancer, Metrics, NameRow, Row, Status};
use throng_io::PeerAddress;
use throng_load::units::grouped;

use crate::log::{Log, LogEvent, Value, events};
use crate::terminal;

/// The shortest time between two events of limits.
const BETWEEN_LIMITS: Duration = Duration::from_secs(10);

pub(super) struct Watch {
    states: BTreeMap<(String, PeerAddress), &'static str>,
    /// The last message about each name.
    names: BTreeMap<String, Change>,
    on_terminal: bool,
    /// The line is on the screen.
    shown: bool,
    looked: Instant,
    /// Total tunnels and other requests at the last look.
    before: (u64, u64),
    limits: Limits,
    /// The times at which too few backends were up.
    panics: u64,
}

impl Watch {
    pub(super) fn new(balancer: &Balancer) -> Self {
        let status = balancer.status();
        Self {
            // All start as up, so that a backend which fails before the first look is reported.
            states: status.backends.iter().map(|row| (key(row), "up")).collect(),
            names: BTreeMap::new(),
            on_terminal: terminal::is_replaceable(&stdout()),
            shown: false,
            looked: Instant::now(),
            before: ever(&status),
            limits: Limits::default(),
            panics: 0,
        }
    }

    /// Logs what has changed since the last look.
    pub(super) fn look(&mut self, balancer: &Balancer, log: &Log) {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.looked);
        self.looked = now;
        let status = balancer.status();
        let mut changes = self.changes(&status);
        changes.extend(self.limits.look(&status.metrics, now));
        for Change { event, message, fields } in changes {
            log.event(event, message, fields);
        }
        let ever = ever(&status);
        let rate = |new: u64, old: u64| {
            grouped((new.saturating_sub(old) as f64 / passed.as_secs_f64()).round() as u64)
        };
        if self.on_terminal {
            let line = format!(
                "{} of {} backends up  |  {:>7} tunnels  |  {:>6} new/s  {:>7} requests/s",
                status.backends.iter().filter(|row| row.state == "up").count(),
                status.backends.len(),
                grouped(status.metrics.tunnels),
                rate(ever.0, self.before.0),
                rate(ever.1, self.before.1),
            );
            terminal::text_as_is(format_args!("\r\x1b[2K{}", terminal::fitting(&stdout(), &line)));
            self.shown = true;
        }
        self.before = ever;
    }

    /// Returns the changes of backends since the last call.
    fn changes(&mut self, status: &Status) -> Vec<Change> {
        let changed = |row: &&Row| match (self.states.get(&key(row)), row.state) {
            // New backends and drains are already logged by the commands that cause them.
            (Some(&before), state @ ("up" | "down")) => {
                before != state && !matches!(before, "draining" | "removed")
            }
            (Some(&before), state @ "removed") => before != state && row.tunnels > 0,
            _ => false,
        };
        let mut changes: Vec<Change> = status.backends.iter().filter(changed).map(change).collect();
        if status.panics > self.panics {
            self.panics = status.panics;
            changes.push(panic(status));
        }
        for row in &status.names {
            let lookup = lookup(row);
            if self.names.get(&row.name) != Some(&lookup) {
                changes.push(lookup.clone());
                self.names.insert(row.name.clone(), lookup);
            }
        }
        self.names.retain(|name, _| status.names.iter().any(|row| row.name == *name));
        self.states = status.backends.iter().map(|row| (key(row), row.state)).collect();
        changes
    }

    /// Clears the status line, before another line is written.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            terminal::text_as_is("\r\x1b[2K");
        }
    }
}

/// Connections that were refused at a limit.
#[derive(Default)]
struct Limits {
    /// The metrics at the last event.
    logged: Metrics,
    last: Option<Instant>,
}

impl Limits {
    /// Returns an event if the counts have grown and the last event is old enough.
    fn look(&mut self, metrics: &Metrics, now: Instant) -> Option<Change> {
        let full = metrics.refused_full - self.logged.refused_full;
        let of_address = metrics.refused_full_address - self.logged.refused_full_address;
        let is_recent = self.last.is_some_and(|last| now.duration_since(last) < BETWEEN_LIMITS);
        if full + of_address == 0 || is_recent {
            return None;
        }
        (self.logged, self.last) = (*metrics, Some(now));
        let (reason, message) = if full > 0 {
            // Some may have gone since.
            let now = grouped(metrics.connections);
            let reason = format!("all places were taken; {now} clients are connected now");
            (reason, "raise max_connections, or the limit of open files (ulimit -n)")
        } else {
            let reason = "an address has as many connections as it may".to_owned();
            (
                reason,
                "name a proxy of many clients in trusted_proxies, or raise \
                 max_connections_per_address",
            )
        };
        let connections = ("connections", (full + of_address).into());
        Some(Change {
            event: &events::LIMIT_REACHED,
            message: message.to_owned(),
            fields: vec![connections, ("reason", reason.into())],
        })
    }
}

fn ever(status: &Status) -> (u64, u64) {
    let (tunnels, all) = (status.metrics.tunnels_opened, status.metrics.requests);
    (tunnels, all.saturating_sub(tunnels))
}

/// An event about a backend or a name.
#[derive(Clone, Debug)]
struct Change {
    event: &'static LogEvent,
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl PartialEq for Change {
    fn eq(&self, other: &Self) -> bool {
        let key = |of: &Self| (of.event.name, of.message.clone());
        key(self) == key(other) && self.fields == other.fields
    }
}

/// Returns the identity of a backend.
fn key(row: &Row) -> (String, PeerAddress) {
    (row.pool.clone(), row.address)
}

fn change(row: &Row) -> Change {
    let reason = row.last_failure.as_ref().map(|failure| failure.text.clone());
    let backend = ("backend", row.address.into());
    if row.state == "removed" {
        return Change {
            event: &events::BACKEND_REMOVED,
            message: "it gets no new clients; its tunnels stay".to_owned(),
            fields: vec![backend, ("tunnels", row.tunnels.into())],
        };
    }
    if row.state != "down" {
        return Change {
            event: &events::BACKEND_UP,
            message: String::new(),
            fields: vec![backend],
        };
    }
    let message = match (row.tunnels, row.keeps_tunnels) {
        (0, _) => "",
        (_, true) => "its tunnels stay",
        (_, false) => "its tunnels are closed",
    };
    Change {
        event: &events::BACKEND_DOWN,
        message: message.to_owned(),
        fields: vec![backend, ("tunnels", row.tunnels.into()), ("reason", reason.into())],
    }
}

/// Returns the event of fewer than half of the backends being up.
fn panic(status: &Status) -> Change {
    let rows = || status.backends.iter().filter(|row| matches!(row.state, "up" | "down"));
    let (up, all) = (rows().filter(|row| row.state == "up").count(), rows().count());
    let message = "tunnels of backends that fail stay; where none is up, new clients are sent to \
                   those that are down";
    Change {
        event: &events::BACKENDS_PANIC,
        message: message.to_owned(),
        fields: vec![("up", up.into()), ("backends", all.into())],
    }
}

/// Returns the result of the last lookup of a name.
fn lookup(row: &NameRow) -> Change {
    let addresses: Vec<String> = row.addresses.iter().map(SocketAddr::to_string).collect();
    let list = match addresses.len() {
        ..=8 => addresses.join(", "),
        more => format!("{} and {} more", addresses[..8].join(", "), more - 8),
    };
    let name = ("name", row.name.as_str().into());
    let list = ("addresses", Some(list).filter(|list| !list.is_empty()).into());
    let (event, message, fields) = match &row.last_failure {
        None if addresses.is_empty() => (&events::LOOKUP, "under way", vec![name]),
        None => (&events::LOOKUP, "", vec![name, list]),
        Some(failure) => {
            let reason = ("reason", failure.text.as_str().into());
            let is_none = addresses.is_empty();
            let message = if is_none { "it is not a backend" } else { "it keeps its addresses" };
            (&events::LOOKUP_FAILED, message, vec![name, list, reason])
        }
    };
    Change { event, message: message.to_owned(), fields }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use throng_balance::{Config, LastFailure};
    use throng_testkit::eventually;

    use super::*;

    fn field(change: &Change, name: &str) -> Value {
        let found = change.fields.iter().find(|(field, _)| *field == name);
        found.map_or(Value::None, |(_, value)| value.clone())
    }

    #[test]
    fn connections_beyond_a_limit_are_one_event_in_ten_seconds() {
        let mut limits = Limits::default();
        let start = Instant::now();
        let mut metrics = Metrics { connections: 1_000, refused: 3, ..Metrics::default() };
        let mut look = |metrics: &Metrics, second| {
            limits.look(metrics, start + Duration::from_secs(second)).map(|change| {
                assert_eq!(change.event.name, "limit.reached");
                (field(&change, "connections"), field(&change, "reason"), change.message)
            })
        };
        assert_eq!(look(&metrics, 0), None, "none of these was refused at a limit");
        metrics.refused_full = 2;
        let (connections, reason, message) = look(&metrics, 1).unwrap();
        let expected = "all places were taken; 1,000 clients are connected now";
        assert_eq!((connections, reason), (2_u64.into(), expected.into()));
        assert!(message.contains("max_connections,") && message.contains("ulimit"), "{message}");
        metrics.refused_full_address = 5;
        assert_eq!(look(&metrics, 10), None, "too early for another one");
        let (connections, _, message) = look(&metrics, 11).unwrap();
        assert_eq!(connections, 5_u64.into());
        assert!(message.contains("max_connections_per_address"), "{message}");
        assert_eq!(look(&metrics, 30), None);
    }

    #[test]
    fn each_outcome_of_a_lookup_is_one_event() {
        let mut row = NameRow {
            name: "app.internal:80".to_owned(),
            addresses: Vec::new(),
            failures: 0,
            last_failure: None,
        };
        let what = |row: &NameRow| {
            let change = lookup(row);
            assert_eq!(field(&change, "name"), "app.internal:80".into());
            (change.event.name, change.message.clone(), field(&change, "addresses"))
        };
        assert_eq!(what(&row), ("lookup", "under way".to_owned(), Value::None));
        let failure = LastFailure { text: "no such name".to_owned(), unix_seconds: 1 };
        row.last_failure = Some(failure);
        assert_eq!(what(&row), ("lookup.failed", "it is not a backend".to_owned(), Value::None));
        assert_eq!(field(&lookup(&row), "reason"), "no such name".into());
        row.addresses = (1..=10).map(|last| ([10, 0, 0, last], 80).into()).collect();
        let (event, message, addresses) = what(&row);
        assert_eq!((event, message.as_str()), ("lookup.failed", "it keeps its addresses"));
        let Value::Text(addresses) = addresses else { panic!("no addresses") };
        assert!(addresses.starts_with("10.0.0.1:80, "), "{addresses}");
        assert!(addresses.ends_with(" and 2 more"), "{addresses}");
        row.last_failure = None;
        row.addresses.truncate(1);
        assert_eq!(what(&row), ("lookup", String::new(), "10.0.0.1:80".into()));
    }

    #[test]
    fn a_backend_that_went_down_before_the_first_look_is_logged() {
        let nowhere = "127.0.0.1:1";
        let text =
            format!("listen = \"127.0.0.1:0\"\nbackends = [\"{nowhere}\"]\n[health]\nfailures = 1");
        let balancer = Balancer::start(Config::parse(&text, "test.toml").unwrap()).unwrap();
        let mut client = TcpStream::connect(balancer.addresses()[0]).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        client.read_to_end(&mut Vec::new()).unwrap();
        eventually("it is down", || balancer.status().backends[0].state == "down");
        let mut watch = Watch::new(&balancer);
        let status = balancer.status();
        let changes = watch.changes(&status);
        let [down, panic] = changes.as_slice() else { panic!("{changes:?}") };
        assert_eq!((down.event.name, down.message.as_str()), ("backend.down", ""));
        assert_eq!(panic.event.name, "backends.panic");
        assert_eq!(field(down, "backend"), nowhere.into());
        assert_eq!(field(down, "reason"), "the backend refused the connection".into());
        // Tunnels stay while a backend only refuses new connections.
        let mut row = status.backends[0].clone();
        row.tunnels = 2001;
        assert_eq!(change(&row).message, "its tunnels stay");
        row.keeps_tunnels = false;
        assert_eq!(change(&row).message, "its tunnels are closed");
        assert_eq!(field(&change(&row), "tunnels"), 2001u32.into());
        assert!(watch.changes(&balancer.status()).is_empty());
        balancer.shut_down(Duration::ZERO, Duration::ZERO).unwrap();
    }
}
