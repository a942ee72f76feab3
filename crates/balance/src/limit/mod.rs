//! Limits: how many requests or handshakes of a key pass in a time, and how many of its tunnels are
//! open.
//!
//! A limit has one table of keys for all shards, which a reload keeps as long as its key stays the
//! same.

mod carried;
mod config;
mod table;
mod tunnels;

use std::borrow::Cow;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use throng_http::percent;
use throng_io::Instant;
use throng_proto::http1::Request;

pub(crate) use carried::CarriedLimit;
pub use config::{LimitConfig, LimitKey, LimitedEvent, Refusal};
use table::{Pace, RateTable};
use tunnels::TunnelCounts;
pub(crate) use tunnels::{TunnelPlace, TunnelPlaces};

use crate::cookie::cookies;
use crate::host::{MAX_HOST, fold_host};

/// The most limits.
pub(crate) const MAX_LIMITS: usize = 1_000;

/// The most bytes for the keys of all limits together.
pub(crate) const MAX_MEMORY: usize = 1 << 30;

/// The name of the limit of requests with a wrong key, by address. The name of a limit of the file
/// has no space.
const WRONG_KEYS: &str = "wrong keys";

/// All limits, in the order of the file; the last is the limit of requests with a wrong key.
#[derive(Clone, Debug, Default)]
pub struct RateLimits(Arc<[Arc<RateLimit>]>);

/// A limit in force.
#[derive(Debug)]
pub(crate) struct RateLimit {
    config: LimitConfig,
    pace: Pace,
    state: Arc<LimitState>,
}

/// The part of a limit that outlives a reload.
#[derive(Debug)]
struct LimitState {
    /// Made by the first request, so that a check of the configuration takes no memory.
    table: OnceLock<RateTable>,
    /// Open tunnels.
    tunnels: TunnelCounts,
    /// Hashes of keys depend on it: clients cannot choose keys that share an entry.
    secret: (u64, u64),
    passed: AtomicU64,
    refused: AtomicU64,
}

/// The request that a limit counts.
#[derive(Clone, Copy)]
pub(crate) struct Counted<'r> {
    pub(crate) request: &'r Request<'r>,
    /// The client, past trusted proxies.
    pub(crate) client: IpAddr,
    pub(crate) site: &'r str,
    pub(crate) route: &'r str,
    /// The client's certificate.
    pub(crate) certificate: Option<&'r [u8]>,
    pub(crate) now: Instant,
}

/// A request that a limit refuses.
#[derive(Debug)]
pub(crate) struct BeyondLimit<'l> {
    pub(crate) limit: &'l LimitConfig,
    /// When the next one may come, with up to half of the time more: clients that were refused
    /// together do not come back together.
    pub(crate) retry_after: Duration,
}

/// A limit in [`Status`](crate::Status).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct LimitRow {
    /// Its name.
    pub name: String,
    /// Tunnels that it counts now, handshakes under way included.
    pub tunnels: u64,
    /// Requests or handshakes that it has counted and let pass.
    pub passed: u64,
    /// Requests or handshakes that it has refused, or would have refused if it only counts.
    pub refused: u64,
    /// Keys that it has forgotten before their time, since its memory was full.
    pub forgotten_keys: u64,
}

impl LimitRow {
    /// Adds the counts of a predecessor.
    pub(crate) fn count_on(&mut self, before: &Self) {
        self.passed += before.passed;
        self.refused += before.refused;
        self.forgotten_keys += before.forgotten_keys;
    }
}

impl RateLimits {
    /// Puts limits into force, which were checked. The counts of `before` go on for limits with the
    /// same name, key and memory.
    pub(crate) fn new(configured: &[LimitConfig], before: &Self) -> Self {
        let limit = |config: &LimitConfig| {
            let goes_on = |limit: &&Arc<RateLimit>| limit.config.counts_like(config);
            let state = match before.0.iter().find(goes_on) {
                Some(limit) => Arc::clone(&limit.state),
                None => Arc::new(LimitState::new()),
            };
            Arc::new(RateLimit { pace: config.pace(), config: config.clone(), state })
        };
        Self(configured.iter().chain([&LimitConfig::of_wrong_keys()]).map(limit).collect())
    }

    /// Returns the limit at an index of the file's list.
    pub(crate) fn at(&self, index: u16) -> Option<&RateLimit> {
        self.0.get(usize::from(index)).map(|limit| &**limit)
    }

    /// Counts a request with a wrong key.
    ///
    /// # Errors
    /// There are too many from its address.
    pub(crate) fn count_wrong_key(&self, counted: Counted<'_>) -> Result<(), BeyondLimit<'_>> {
        let limit = self.0.last();
        limit.map_or(Ok(()), |limit| limit.check(counted, &mut TunnelPlaces::default()))
    }

    /// Returns the name of a place's limit, and its key; `None` if a reload has removed that.
    pub(crate) fn name_of(&self, place: &TunnelPlace) -> Option<(&str, u64)> {
        let limit = self.0.iter().find(|limit| place.is_of(&limit.state))?;
        Some((&limit.config.name, place.key()))
    }

    /// Counts a tunnel of a predecessor in the limit of this name, also beyond it.
    pub(crate) fn adopt(&self, name: &str, key: u64) -> Option<TunnelPlace> {
        let is_it = |limit: &&Arc<RateLimit>| {
            limit.config.name == name && limit.config.on == LimitedEvent::Tunnels
        };
        TunnelPlace::take(&self.0.iter().find(is_it)?.state, key, u32::MAX)
    }

    pub(crate) fn rows(&self) -> Vec<LimitRow> {
        let row = |limit: &Arc<RateLimit>| LimitRow {
            name: limit.config.name.clone(),
            tunnels: limit.state.tunnels.all(),
            passed: limit.state.passed.load(Relaxed),
            refused: limit.state.refused.load(Relaxed),
            forgotten_keys: limit.state.table.get().map_or(0, RateTable::forgotten),
        };
        let is_shown = |row: &LimitRow| row.name != WRONG_KEYS || row.passed > 0 || row.refused > 0;
        self.0.iter().map(row).filter(is_shown).collect()
    }
}

impl LimitState {
    fn new() -> Self {
        let drawn = RandomState::new();
        Self {
            table: OnceLock::new(),
            tunnels: TunnelCounts::default(),
            secret: (drawn.hash_one(0), drawn.hash_one(1)),
            passed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }
}

impl LimitKey {
    /// Returns the value of a header, cookie or parameter; `None` if it is missing, empty or not
    /// the only one of its name, and for other parts of keys.
    pub(crate) fn value<'r>(&self, request: &Request<'r>) -> Option<Cow<'r, [u8]>> {
        let value = match self {
            Self::Header(name) => only(request.lines().all_bytes(name)).map(Cow::Borrowed),
            Self::Cookie(name) => {
                let named = cookies(request).filter(|(cookie, _)| *cookie == name.as_bytes());
                only(named).map(|(_, value)| Cow::Borrowed(value))
            }
            Self::Query(name) => {
                let pairs = percent::query_pairs(request.query().unwrap_or_default());
                let named = pairs.filter(|(key, _)| percent::decode_query(key) == *name);
                let value = only(named).map(|(_, value)| percent::decode_query(value));
                value.map(|value| Cow::Owned(value.into_owned().into_bytes()))
            }
            _ => None,
        };
        value.filter(|value| !value.is_empty())
    }
}

/// Returns the value if it is the only one: backends differ in which of several they take, so
/// another one beside it must not give a client another key.
fn only<T>(mut values: impl Iterator<Item = T>) -> Option<T> {
    values.next().filter(|_| values.next().is_none())
}

impl RateLimit {
    /// Counts a request, if it is one of those that the limit is for. In a limit of tunnels, a
    /// handshake takes a place.
    ///
    /// # Errors
    /// There are too many of its key.
    pub(crate) fn check(
        &self,
        counted: Counted<'_>,
        places: &mut TunnelPlaces,
    ) -> Result<(), BeyondLimit<'_>> {
        let config = &self.config;
        if config.on != LimitedEvent::Requests && !counted.request.wants_websocket() {
            return Ok(());
        }
        if config.on == LimitedEvent::Tunnels {
            let place = self.take_place(counted)?;
            places.push(place);
            return Ok(());
        }
        let state = &self.state;
        let now = counted.now.0 / 1_000;
        let key = self.key(counted);
        let table = state.table.get_or_init(|| RateTable::new(config.memory));
        let Err(wait) = table.take(key, now, self.pace) else {
            state.passed.fetch_add(1, Relaxed);
            return Ok(());
        };
        state.refused.fetch_add(1, Relaxed);
        if config.dry_run {
            return Ok(());
        }
        let more = wait / 2048 * ((key.rotate_left(32) ^ now) % 1024);
        Err(BeyondLimit { limit: config, retry_after: Duration::from_micros(wait + more) })
    }

    fn take_place(&self, counted: Counted<'_>) -> Result<TunnelPlace, BeyondLimit<'_>> {
        let (config, state) = (&self.config, &self.state);
        let key = self.key(counted);
        if let Some(place) = TunnelPlace::take(state, key, config.max) {
            state.passed.fetch_add(1, Relaxed);
            return Ok(place);
        }
        state.refused.fetch_add(1, Relaxed);
        let beyond = config.dry_run.then(|| TunnelPlace::take(state, key, u32::MAX)).flatten();
        // When one ends is not known.
        let retry_after = Duration::from_millis(10_000 + (key ^ counted.now.0) % 5_000);
        beyond.ok_or(BeyondLimit { limit: config, retry_after })
    }

    /// Returns the hash of a request's key.
    fn key(&self, counted: Counted<'_>) -> u64 {
        let Counted { request, client, site, route, certificate, .. } = counted;
        let (one, other) = self.state.secret;
        let mut hasher = SipHasher13::new_with_keys(one, other);
        let mut add = |part: &[u8]| {
            hasher.write_usize(part.len());
            hasher.write(part);
        };
        for key in &self.config.key {
            let value: Option<Cow<'_, [u8]>> = match key {
                LimitKey::Address => None,
                LimitKey::Site => {
                    add(site.as_bytes());
                    continue;
                }
                LimitKey::Route => {
                    add(site.as_bytes());
                    add(route.as_bytes());
                    continue;
                }
                LimitKey::Host => {
                    // As sites compare it: neither port nor final dot gets around the limit.
                    let mut buffer = [0; MAX_HOST];
                    add(request.host().and_then(|it| fold_host(it, &mut buffer)).unwrap_or(b""));
                    continue;
                }
                LimitKey::Certificate => certificate.map(Cow::Borrowed),
                _ => key.value(request),
            };
            match value.filter(|value| !value.is_empty()) {
                Some(value) => add(&value),
                // Who leaves it out does not get around the limit.
                None => {
                    // No value is empty: none stands for an address.
                    add(b"");
                    match client.to_canonical() {
                        IpAddr::V4(ip) => add(&ip.octets()),
                        // A client has a whole network of 64 bits.
                        IpAddr::V6(ip) => add(&ip.octets()[..8]),
                    }
                }
            }
        }
        hasher.finish()
    }
}
