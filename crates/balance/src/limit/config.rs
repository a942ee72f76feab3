//! Limits as they are configured.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use throng_config::Rate;
use throng_proto::ws::handshake::is_token;

use super::table::Pace;
use crate::pool::{LABEL, is_label};

/// The highest rate: a table counts in microseconds.
pub(crate) const MAX_PER_SECOND: u64 = 100_000;

/// The most events of a burst.
pub(crate) const MAX_BURST: u64 = 1_000_000;

/// The longest time in microseconds that the events of a burst may cost, a year: a table counts to
/// eight.
const MAX_AHEAD: u64 = 365 * 86_400 * 1_000_000;

/// A limit of a rate, or of open tunnels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitConfig {
    /// The name by which sites and routes choose it.
    pub name: String,
    /// The events that it counts.
    pub on: LimitedEvent,
    /// The parts of the key: events with the same ones are counted together.
    pub key: Vec<LimitKey>,
    /// The events of a key that pass; without meaning for tunnels.
    pub rate: Rate,
    /// The tunnels of a key that may be open; without meaning for others.
    pub max: u32,
    /// The events that may come at once beyond the first one. Default: as many as pass in a second,
    /// and at least one.
    pub burst: Option<u64>,
    /// The form of a refusal.
    pub refuse: Refusal,
    /// The status of a refusal.
    pub status: u16,
    /// Only count, and refuse nothing.
    pub dry_run: bool,
    /// The bytes for keys, 16 each. With more keys than there is memory for, the one whose time
    /// comes first is forgotten.
    pub memory: usize,
}

/// The events that a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitedEvent {
    /// Requests, handshakes included.
    #[default]
    Requests,
    /// WebSocket handshakes.
    Handshakes,
    /// Open WebSockets, each from its handshake to its end.
    Tunnels,
}

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitKey {
    /// The client's address, past trusted proxies; the network of 64 bits of an IPv6 address.
    Address,
    /// The site.
    Site,
    /// The route.
    Route,
    /// The host of the request.
    Host,
    /// The client's certificate, or the address without one.
    Certificate,
    /// A header, or the address if the request has none or several of the name.
    Header(String),
    /// A cookie, or the address if the request has none or several of the name.
    Cookie(String),
    /// A parameter of the query, or the address if the request has none or several of the name.
    Query(String),
}

/// The form of a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refusal {
    /// A response with a status.
    #[default]
    Status,
    /// A WebSocket is accepted and closed with 1013: browsers do not show pages the status of a
    /// failed handshake. Other requests get a response.
    Close,
}

impl LimitConfig {
    /// The limit of requests with a wrong key: a client may mistype a few, and not try many.
    pub(super) fn of_wrong_keys() -> Self {
        Self {
            name: super::WRONG_KEYS.to_owned(),
            on: LimitedEvent::Requests,
            key: vec![LimitKey::Address],
            rate: Rate { events: 10, time: Duration::from_secs(60) },
            max: 0,
            burst: Some(9),
            refuse: Refusal::Status,
            status: 429,
            dry_run: false,
            memory: 64 << 10,
        }
    }

    pub(super) fn pace(&self) -> Pace {
        let step = self.step();
        Pace { step, slack: step.saturating_mul(self.burst.unwrap_or_else(|| self.one_second())) }
    }

    /// Returns the microseconds that an event costs.
    fn step(&self) -> u64 {
        let Rate { events, time } = self.rate;
        (time.as_micros() as u64).div_ceil(events.max(1).into()).max(1)
    }

    fn one_second(&self) -> u64 {
        (u64::from(self.rate.events) / self.rate.time.as_secs().max(1)).max(1)
    }

    /// Returns whether the keys of another limit mean the same.
    pub(super) fn counts_like(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.name.clone(), it.on, it.key.clone(), it.memory);
        of(self) == of(other)
    }

    /// Returns its name, and its rate or maximum.
    pub(crate) fn in_words(&self) -> String {
        if self.on == LimitedEvent::Tunnels {
            return format!("the limit {} of {} tunnels", self.name, self.max);
        }
        let unit = match self.rate.time.as_secs() {
            1 => "s",
            60 => "m",
            _ => "h",
        };
        format!("the limit {} of {}/{unit}", self.name, self.rate.events)
    }

    /// Returns the key of a setting with a mistake, its value and the remedy.
    pub(crate) fn mistakes(&self) -> Vec<(&'static str, String, String)> {
        let mut mistakes = Vec::new();
        let mut add = |key, value: String, remedy: &str| {
            mistakes.push((key, value, remedy.to_owned()));
        };
        if !is_label(&self.name) {
            add("name", format!("{:?}", self.name), LABEL);
        }
        if self.key.is_empty() {
            add("key", "empty".to_owned(), "write what is counted together, such as \"address\"");
        }
        let per_second = u64::from(self.rate.events) / self.rate.time.as_secs().max(1);
        if per_second > MAX_PER_SECOND {
            add("rate", format!("{per_second}/s"), "write at most \"100k/s\"");
        }
        if let Some(burst) = self.burst.filter(|burst| *burst > MAX_BURST) {
            add("burst", burst.to_string(), "write at most 1000000");
        }
        let most = MAX_AHEAD / self.step();
        if let Some(burst) = self.burst.filter(|burst| (most + 1..=MAX_BURST).contains(burst)) {
            let remedy = format!("a year's events at this rate are the most: write at most {most}");
            add("burst", burst.to_string(), &remedy);
        }
        if !(400..600).contains(&self.status) {
            add("status", self.status.to_string(), "write 400 to 599");
        }
        mistakes
    }
}

impl FromStr for LimitKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let named = |name: &str| match is_token(name) {
            true => Ok(name.to_owned()),
            false => Err("write the name behind the colon, for example \"header:X-Api-Key\""),
        };
        match text.split_once(':') {
            Some(("header", name)) => named(name).map(Self::Header),
            Some(("cookie", name)) => named(name).map(Self::Cookie),
            Some(("query", name)) => named(name).map(Self::Query),
            None if text == "address" => Ok(Self::Address),
            None if text == "site" => Ok(Self::Site),
            None if text == "route" => Ok(Self::Route),
            None if text == "host" => Ok(Self::Host),
            None if text == "certificate" => Ok(Self::Certificate),
            _ => Err("write address, site, route, host, certificate, header:NAME, cookie:NAME or \
                      query:NAME"),
        }
    }
}

impl fmt::Display for LimitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => f.write_str("address"),
            Self::Site => f.write_str("site"),
            Self::Route => f.write_str("route"),
            Self::Host => f.write_str("host"),
            Self::Certificate => f.write_str("certificate"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
        }
    }
}
