//! Splits of the requests of a route among pools, by points of clients.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use serde::{Deserialize, Serialize};
use throng_engine::random::Random;
use throng_proto::http1::Request;
use throng_proto::ws::handshake::is_token;

use super::RuleNames;
use crate::cookie::CookieKey;
use crate::forward;
use crate::limit::LimitKey;
use crate::pick::client_key;

/// The number of points: also the highest sum of weights, so that each weight has a point.
pub(super) const POINTS: u32 = 1 << 16;

/// A split of requests among pools, as it is configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitConfig {
    /// The names of the pools with their weights. A client has a point in 0 to 65,535; each pool
    /// has a range of points in proportion to its weight, in this order. So a change of weights
    /// moves only clients whose point is in another range now.
    pub shares: Vec<(String, u32)>,
    /// The source of the point.
    pub by: SplitBy,
}

/// The source of a client's point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SplitBy {
    /// Each request has another one.
    #[default]
    Random,
    /// A hash of the client's address, or of this header, cookie or parameter; of the address
    /// without it, and with another key.
    Hash(LimitKey),
    /// A cookie of the balancer with this name, which a client without it gets with a random point.
    /// A client can choose its point.
    Sticky(String),
}

/// A split in the form in which pools are looked up.
#[derive(Debug)]
pub(crate) struct Split {
    by: SplitBy,
    /// In ascending order.
    ranges: Box<[PoolRange]>,
}

/// The range of points of a pool.
#[derive(Debug)]
struct PoolRange {
    /// The point after its last one. It may change while requests are looked up.
    end: AtomicU32,
    /// The names of the route and the pool.
    names: Arc<RuleNames>,
    /// The weight in the file, and in force.
    configured: u32,
    weight: AtomicU32,
}

/// A client whose pool a split chooses.
#[derive(Clone, Copy)]
pub(crate) struct Splitting<'r> {
    pub(crate) request: &'r Request<'r>,
    /// The client, past trusted proxies.
    pub(crate) client: IpAddr,
    /// Hashes depend on it, if it comes from a secret.
    pub(crate) key: &'r CookieKey,
}

/// The choice of a split.
#[derive(Clone, Copy)]
pub(crate) struct Chosen<'s> {
    /// The names with the pool.
    pub(crate) names: &'s Arc<RuleNames>,
    /// The client's point.
    pub(crate) point: Option<u16>,
    /// The cookie that the client gets, with its point.
    pub(crate) cookie: Option<(&'s str, u16)>,
}

/// The part of a pool in a split.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct SplitShare {
    /// The pool.
    pub pool: String,
    /// Its weight.
    pub weight: u32,
    /// The first of its points.
    pub from: u32,
    /// The point after its last one; `from` if it has none.
    pub to: u32,
}

impl Split {
    /// Creates a split. The weights must have a sum of 1 to [`POINTS`].
    /// `places`: of its pools.
    pub(super) fn new(config: &SplitConfig, places: &[u16], names: &RuleNames) -> Self {
        let range = |((pool, weight), place): (&(String, u32), &u16)| PoolRange {
            end: AtomicU32::new(POINTS),
            names: Arc::new(RuleNames {
                pool: pool.as_str().into(),
                pool_at: *place,
                ..names.clone()
            }),
            configured: *weight,
            weight: AtomicU32::new(*weight),
        };
        let ranges = config.shares.iter().zip(places).map(range);
        let split = Self { ranges: ranges.collect(), by: config.by.clone() };
        split.set_ends();
        split
    }

    /// Computes the ranges by the weights. A request that is looked up at this moment may see some
    /// of the new ends only, and still gets one of the pools: the last end never changes.
    fn set_ends(&self) {
        let weight = |range: &PoolRange| u64::from(range.weight.load(Relaxed));
        let total = self.ranges.iter().map(weight).sum::<u64>().max(1);
        let mut sum = 0;
        for range in &self.ranges {
            sum += weight(range);
            range.end.store((sum * u64::from(POINTS) / total) as u32, Relaxed);
        }
    }

    /// Returns the pools with their weights in the file.
    pub(super) fn configured(&self) -> Vec<(String, u32)> {
        let share = |range: &PoolRange| (range.names.pool.to_string(), range.configured);
        self.ranges.iter().map(share).collect()
    }

    /// Sets the weights of pools; others keep theirs.
    ///
    /// # Errors
    /// The mistake and its remedy. Then no weight changes.
    pub(super) fn set_weights(&self, weights: &BTreeMap<String, u32>) -> Result<(), String> {
        let has = |pool: &str| self.ranges.iter().any(|range| *range.names.pool == *pool);
        if let Some(pool) = weights.keys().find(|pool| !has(pool)) {
            let known: Vec<_> = self.ranges.iter().map(|range| &*range.names.pool).collect();
            return Err(format!("the split has no pool {pool}: write one of {}", known.join(", ")));
        }
        let new = |range: &PoolRange| {
            let set = weights.get(&*range.names.pool).copied();
            set.unwrap_or_else(|| range.weight.load(Relaxed))
        };
        let sum: u64 = self.ranges.iter().map(|range| u64::from(new(range))).sum();
        if !(1..=u64::from(POINTS)).contains(&sum) {
            return Err(format!("the sum of the weights is {sum}: write 1 to {POINTS}"));
        }
        for range in &self.ranges {
            range.weight.store(new(range), Relaxed);
        }
        self.set_ends();
        Ok(())
    }

    /// Returns the pool of a request.
    pub(crate) fn choose(&self, of: Splitting<'_>, random: &mut Random) -> Chosen<'_> {
        let known = self.point(of);
        let point = known.unwrap_or_else(|| random.below(POINTS.into()) as u16);
        let cookie = match &self.by {
            SplitBy::Sticky(name) if known.is_none() => Some((name.as_str(), point)),
            _ => None,
        };
        Chosen { names: self.at(point), point: Some(point), cookie }
    }

    /// Returns the names with the pool of a point.
    pub(super) fn at(&self, point: u16) -> &Arc<RuleNames> {
        let at = self.ranges.partition_point(|range| range.end.load(Relaxed) <= point.into());
        // The last range ends behind all points.
        &self.ranges[at].names
    }

    /// Returns the point of a client, the same in every process with the secret of sticky cookies;
    /// `None` if it is random, or the client has no cookie yet.
    pub(super) fn point(&self, of: Splitting<'_>) -> Option<u16> {
        let key = match &self.by {
            SplitBy::Random => return None,
            SplitBy::Sticky(name) => return forward::point_in_cookie(of.request, name),
            SplitBy::Hash(key) => key,
        };
        let hash = match key.value(of.request) {
            Some(value) => forward::hash_value(of.key, &value),
            None => forward::hash_value(of.key, &client_key(of.key, of.client).to_be_bytes()),
        };
        Some((hash >> 48) as u16)
    }

    pub(super) fn by(&self) -> &SplitBy {
        &self.by
    }

    pub(super) fn shares(&self) -> Vec<SplitShare> {
        let mut from = 0;
        let share = |range: &PoolRange| {
            let (to, weight) = (range.end.load(Relaxed), range.weight.load(Relaxed));
            let share = SplitShare { pool: range.names.pool.to_string(), weight, from, to };
            from = to;
            share
        };
        self.ranges.iter().map(share).collect()
    }
}

impl FromStr for SplitBy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.split_once(':') {
            None if text == "random" => Ok(Self::Random),
            None if text == "client" => Ok(Self::Hash(LimitKey::Address)),
            Some(("header" | "cookie" | "query", _)) => text.parse().map(Self::Hash),
            Some(("sticky", name)) => match is_token(name) && !name.starts_with("__") {
                true => Ok(Self::Sticky(name.to_owned())),
                false => Err("write the cookie's name behind the colon, without a prefix such as \
                              __Host-, for example \"sticky:track\""),
            },
            _ => Err("write random, client, header:NAME, cookie:NAME, query:NAME or sticky:NAME"),
        }
    }
}

impl fmt::Display for SplitBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random => f.write_str("random"),
            Self::Hash(LimitKey::Address) => f.write_str("client"),
            Self::Hash(key) => key.fmt(f),
            Self::Sticky(name) => write!(f, "sticky:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{get, with_request};
    use super::*;

    fn split(weights: &[u32], by: &str) -> Split {
        let share = |(at, weight): (usize, &u32)| (at.to_string(), *weight);
        let shares = weights.iter().enumerate().map(share).collect();
        let places = vec![0; weights.len()];
        Split::new(&SplitConfig { shares, by: by.parse().unwrap() }, &places, &RuleNames::default())
    }

    fn pool(split: &Split, point: u16) -> usize {
        split.at(point).pool.parse().unwrap()
    }

    proptest! {
        /// Weight that moves between two neighbours moves only clients between them, in that
        /// direction.
        #[test]
        fn a_change_of_weights_moves_only_clients_between_the_two_pools(
            weights in proptest::collection::vec(1u32..1000, 2..6),
            at in 0usize..5,
            moved in 1u32..1000,
            back in any::<bool>(),
        ) {
            let at = at % (weights.len() - 1);
            let (from, to) = if back { (at + 1, at) } else { (at, at + 1) };
            let mut after = weights.clone();
            let moved = moved.min(after[from]);
            after[from] -= moved;
            after[to] += moved;
            let (before, after) = (split(&weights, "random"), split(&after, "random"));
            for point in 0..=u16::MAX {
                let (one, other) = (pool(&before, point), pool(&after, point));
                prop_assert!(one == other || (one, other) == (from, to), "{point}: {one} {other}");
            }
        }

        /// The pool of two whose part grows loses no client, with any sums of weights.
        #[test]
        fn a_part_that_grows_loses_no_client(
            one in (1u32..30_000, 0u32..30_000),
            other in (1u32..30_000, 0u32..30_000),
        ) {
            let is_more = |(a, b): (u32, u32), (c, d): (u32, u32)| {
                u64::from(b) * u64::from(c + d) >= u64::from(d) * u64::from(a + b)
            };
            let (more, less) = if is_more(one, other) { (one, other) } else { (other, one) };
            let [more, less] = [more, less].map(|(a, b)| split(&[a, b], "random"));
            for point in 0..=u16::MAX {
                prop_assert!(pool(&more, point) >= pool(&less, point), "{point}");
            }
        }

        #[test]
        fn each_weight_has_its_part_of_the_points(
            weights in proptest::collection::vec(0u32..9000, 1..8),
        ) {
            let total: u32 = weights.iter().sum();
            prop_assume!(total > 0);
            let shares = split(&weights, "random").shares();
            prop_assert_eq!(shares.last().unwrap().to, POINTS);
            for (share, weight) in shares.iter().zip(&weights) {
                let exact = f64::from(*weight) * f64::from(POINTS) / f64::from(total);
                let points = share.to - share.from;
                prop_assert!((f64::from(points) - exact).abs() <= 1.0, "{points} {exact}");
                prop_assert_eq!(*weight > 0, points > 0);
            }
        }
    }

    /// The numbers of 10,000 clients by pool differ from the weights by less than chance does once
    /// in ten thousand times, also for sequential addresses and values.
    #[test]
    fn clients_are_spread_by_weight() {
        let secret = CookieKey::of(&throng_config::Token::new("0123456789abcdef").unwrap());
        let drawn = CookieKey::default();
        let weights = [90, 5, 4, 1];
        for (by, key) in [
            ("random", &drawn),
            ("sticky:track", &drawn),
            ("client", &drawn),
            ("client", &secret),
            ("header:X-User", &drawn),
            ("header:X-User", &secret),
        ] {
            let (split, mut random) = (split(&weights, by), Random::new(7));
            let mut counts = [0f64; 4];
            for client in 0u32..10_000 {
                let head = format!("{}\nX-User: user-{client}", get("a", "/"));
                let address = IpAddr::V4((0x0a00_0000 + client).into());
                counts[with_request(&head, |request| {
                    let of = Splitting { request, client: address, key };
                    let chosen = split.choose(of, &mut random);
                    chosen.names.pool.parse::<usize>().unwrap()
                })] += 1.0;
            }
            let expected = weights.map(|weight| f64::from(weight) * 100.0);
            let parts = counts.iter().zip(expected);
            let chi_square: f64 = parts.map(|(count, it)| (count - it).powi(2) / it).sum();
            // Three degrees of freedom.
            assert!(chi_square < 21.1, "{by}: {counts:?}, {chi_square}");
        }
    }

    #[test]
    fn a_client_keeps_its_point_and_leaving_a_value_out_is_its_address() {
        let key = CookieKey::of(&throng_config::Token::new("0123456789abcdef").unwrap());
        let point = |by: &str, client: &str, more: &str| {
            let head = format!("{}{more}", get("a", "/?u=1"));
            let client = client.parse().unwrap();
            let split = split(&[1, 1], by);
            with_request(&head, |request| split.point(Splitting { request, client, key: &key }))
        };
        let near = point("client", "10.0.0.1", "");
        assert!(near.is_some());
        assert_ne!(near, point("client", "10.0.0.2", ""));
        assert_eq!(near, point("client", "::ffff:10.0.0.1", ""));
        assert_eq!(point("client", "2001:db8::1", ""), point("client", "2001:db8::2", ""));
        assert_eq!(near, point("header:X-A", "10.0.0.1", ""));
        assert_eq!(near, point("header:X-A", "10.0.0.1", "\nX-A:"));
        let value = point("header:X-A", "10.0.0.1", "\nX-A: 1");
        assert_ne!(near, value);
        assert_eq!(value, point("header:x-a", "10.0.0.2", "\nX-A: 1"));
        assert_eq!(value, point("cookie:a", "10.0.0.3", "\nCookie: b=2; a=1"));
        assert_eq!(value, point("query:u", "10.0.0.4", ""));
        assert_eq!(point("random", "10.0.0.1", ""), None);
    }

    /// Only a cookie of the balancer's own form has a point; a client with another one gets one.
    #[test]
    fn a_cookie_has_the_point_that_was_drawn() {
        let (split, key) = (split(&[1, 1], "sticky:track"), CookieKey::default());
        let mut random = Random::new(7);
        let mut choose = |cookie: &str| {
            let head = format!("{}\nCookie: {cookie}", get("a", "/"));
            with_request(&head, |request| {
                let client = IpAddr::V4(0x0a00_0001.into());
                let chosen = split.choose(Splitting { request, client, key: &key }, &mut random);
                (chosen.names.pool.to_string(), chosen.cookie.map(|(_, point)| point))
            })
        };
        for point in [0, 0x7fff, 0x8000, u16::MAX] {
            let pool = u16::from(point >= 0x8000).to_string();
            assert_eq!(choose(&format!("track={point:016x}")), (pool.clone(), None));
            assert_eq!(choose(&format!("track=x; track={point:016x}")), (pool, None));
        }
        for other in
            ["a=1", "track=", "track=1", "track=0000000000010000", "Track=0000000000000001"]
        {
            let (pool, point) = choose(other);
            assert_eq!(pool, u16::from(point.unwrap() >= 0x8000).to_string(), "{other}");
        }
    }

    #[test]
    fn sources_of_points_are_read_and_printed() {
        for text in ["random", "client", "header:X-A", "cookie:a", "query:q", "sticky:track"] {
            assert_eq!(text.parse::<SplitBy>().unwrap().to_string(), text);
        }
        for text in ["", "address", "site", "header", "ip:a"] {
            let remedy = text.parse::<SplitBy>().unwrap_err();
            assert!(remedy.starts_with("write random, client"), "{text}: {remedy}");
        }
        for text in ["sticky:", "sticky:a b", "sticky:__Host-a"] {
            assert!(text.parse::<SplitBy>().unwrap_err().contains("sticky:track"), "{text}");
        }
        assert!("cookie:".parse::<SplitBy>().unwrap_err().contains("behind the colon"));
    }
}
