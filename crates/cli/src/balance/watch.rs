//! The balancer's output: changes of state, and on a terminal a status line.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use throng_balance::{Balancer, NameRow, Row, Status};
use throng_load::units::grouped;

use crate::say;

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Watch {
    states: BTreeMap<SocketAddr, &'static str>,
    /// The last message about each name.
    names: BTreeMap<String, String>,
    on_terminal: bool,
    /// The line is on the screen.
    shown: bool,
    looked: Instant,
    /// Tunnels and other requests ever, then.
    before: (u64, u64),
}

impl Watch {
    pub(super) fn new(balancer: &Balancer) -> Self {
        let status = balancer.status();
        Self {
            // All start as up, so that a backend which failed before the first look is reported.
            states: status.backends.iter().map(|row| (row.address, "up")).collect(),
            names: BTreeMap::new(),
            on_terminal: std::io::stdout().is_terminal(),
            shown: false,
            looked: Instant::now(),
            before: ever(&status),
        }
    }

    /// Looks, if it is time to.
    pub(super) fn look(&mut self, balancer: &Balancer) {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.looked);
        if passed < INTERVAL {
            return;
        }
        self.looked = now;
        let status = balancer.status();
        for change in self.changes(&status) {
            self.clear();
            say::line(change);
        }
        let ever = ever(&status);
        let rate = |new: u64, old: u64| {
            grouped((new.saturating_sub(old) as f64 / passed.as_secs_f64()).round() as u64)
        };
        if self.on_terminal {
            say::text_as_is(format_args!(
                "\r\x1b[2K{} of {} backends up  |  {:>7} tunnels  |  {:>6} new/s  {:>7} requests/s",
                status.backends.iter().filter(|row| row.state == "up").count(),
                status.backends.len(),
                grouped(status.metrics.tunnels),
                rate(ever.0, self.before.0),
                rate(ever.1, self.before.1),
            ));
            self.shown = true;
        }
        self.before = ever;
    }

    /// Returns the changes of backends since the last call.
    fn changes(&mut self, status: &Status) -> Vec<String> {
        let changed = |row: &&Row| match (self.states.get(&row.address), row.state) {
            // Of a backend that is new, or that an operator drains, others tell.
            (Some(&before), state @ ("up" | "down")) => before != state && before != "draining",
            _ => false,
        };
        let mut changes: Vec<String> = status.backends.iter().filter(changed).map(change).collect();
        for row in &status.names {
            let lookup = lookup(row);
            if self.names.get(&row.name) != Some(&lookup) {
                changes.push(lookup.clone());
                self.names.insert(row.name.clone(), lookup);
            }
        }
        self.names.retain(|name, _| status.names.iter().any(|row| row.name == *name));
        self.states = status.backends.iter().map(|row| (row.address, row.state)).collect();
        changes
    }

    /// Clears the status line, before another line is written.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            say::text_as_is("\r\x1b[2K");
        }
    }
}

fn ever(status: &Status) -> (u64, u64) {
    let (tunnels, all) = (status.metrics.tunnels_opened, status.metrics.requests);
    (tunnels, all.saturating_sub(tunnels))
}

fn change(row: &Row) -> String {
    let why = match &row.last_failure {
        Some(failure) if row.state == "down" => format!(": {}", failure.text),
        _ => String::new(),
    };
    let tunnels = match (row.state, row.tunnels) {
        ("down", tunnels @ 1..) => {
            let what = if row.keeps_tunnels { "stay" } else { "are closed" };
            format!("; its {} tunnels {what}", grouped(tunnels.into()))
        }
        _ => String::new(),
    };
    format!("{} is {}{why}{tunnels}", row.address, row.state)
}

/// Says what the last lookup of a name found.
fn lookup(row: &NameRow) -> String {
    let addresses: Vec<String> = row.addresses.iter().map(SocketAddr::to_string).collect();
    let list = match addresses.len() {
        ..=8 => addresses.join(", "),
        more => format!("{} and {} more", addresses[..8].join(", "), more - 8),
    };
    match &row.last_failure {
        None if addresses.is_empty() => format!("{} is being looked up", row.name),
        None => format!("{} has the addresses {list}", row.name),
        Some(failure) if addresses.is_empty() => {
            format!("{} is no backend: its lookup failed: {}", row.name, failure.text)
        }
        Some(failure) => {
            format!("{} keeps the addresses {list}: its lookup failed: {}", row.name, failure.text)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use throng_balance::{Config, LastFailure};

    use super::*;

    #[test]
    fn each_outcome_of_a_lookup_is_one_line() {
        let mut row = NameRow {
            name: "app.internal:80".to_owned(),
            addresses: Vec::new(),
            failures: 0,
            last_failure: None,
        };
        assert_eq!(lookup(&row), "app.internal:80 is being looked up");
        let failure = LastFailure { text: "no such name".to_owned(), unix_seconds: 1 };
        row.last_failure = Some(failure);
        let expected = "app.internal:80 is no backend: its lookup failed: no such name";
        assert_eq!(lookup(&row), expected);
        row.addresses = (1..=10).map(|last| ([10, 0, 0, last], 80).into()).collect();
        let line = lookup(&row);
        assert!(line.starts_with("app.internal:80 keeps the addresses 10.0.0.1:80, "), "{line}");
        assert!(line.ends_with(" and 2 more: its lookup failed: no such name"), "{line}");
        row.last_failure = None;
        row.addresses.truncate(1);
        assert_eq!(lookup(&row), "app.internal:80 has the addresses 10.0.0.1:80");
    }

    #[test]
    fn a_backend_that_went_down_before_the_first_look_is_told_of() {
        let nowhere = "127.0.0.1:1";
        let text =
            format!("listen = \"127.0.0.1:0\"\nbackends = [\"{nowhere}\"]\n[health]\nfailures = 1");
        let balancer = Balancer::start(Config::parse(&text, "test.toml").unwrap()).unwrap();
        let mut client = TcpStream::connect(balancer.addresses()[0]).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        client.read_to_end(&mut Vec::new()).unwrap();
        while balancer.status().backends[0].state != "down" {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut watch = Watch::new(&balancer);
        let told = format!("{nowhere} is down: the backend refused the connection");
        let status = balancer.status();
        assert_eq!(watch.changes(&status), std::slice::from_ref(&told));
        // Tunnels of a backend that only takes no new connections stay.
        let mut row = status.backends[0].clone();
        row.tunnels = 2001;
        assert_eq!(change(&row), format!("{told}; its 2,001 tunnels stay"));
        row.keeps_tunnels = false;
        assert_eq!(change(&row), format!("{told}; its 2,001 tunnels are closed"));
        assert!(watch.changes(&balancer.status()).is_empty());
        balancer.shut_down(Duration::ZERO, Duration::ZERO).unwrap();
    }
}
