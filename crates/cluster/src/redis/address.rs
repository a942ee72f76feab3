//! The value of `cluster.url`: the address of a server, of its sentinels, or of several servers of
//! a Redis Cluster.

use std::net::IpAddr;
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, RedisError};

use super::StartError;
use super::endpoint::Endpoint;
use super::masters::Masters;
use super::sentinel::{Sentinel, Sentinels};
use super::tls::{Security, Tls};

const SENTINELS: &str = "redis-sentinel://";
const CLUSTER: &str = "redis-cluster://";

/// The prefix of schemes that use TLS on all connections, including `rediss://`.
const SECURED: &str = "rediss";

/// The port of a sentinel unless it is given.
const SENTINEL_PORT: u16 = 26379;

/// The location of the server.
#[derive(Clone)]
pub(super) enum Address {
    Server(Endpoint),
    Sentinels(Sentinels),
    Cluster(Arc<Masters>),
}

impl Address {
    /// Parses one or more URLs, separated by commas; also returns the printable form of each.
    pub(super) fn parse_all(urls: &str, tls: &Tls) -> Result<Vec<(Self, String)>, StartError> {
        // A URL parser would drop the rest after a `#`, including the host.
        if urls.contains('#') {
            return Err(StartError::lasting(
                "cluster.url has a #, which ends a URL: in a password write it as %23, / as %2F, \
                 ? as %3F and @ as %40"
                    .to_owned(),
            ));
        }
        if !has_whole_escapes(urls) {
            return Err(StartError::lasting(
                "cluster.url has a % without two hexadecimal digits after it: in a password write \
                 % as %25"
                    .to_owned(),
            ));
        }
        let mut all: Vec<(Self, String)> = Vec::new();
        let mut security = None;
        for url in split(urls) {
            let (address, shown) = Self::parse(url, tls, &mut security)?;
            if all.iter().any(|(_, other)| *other == shown) {
                return Err(StartError::lasting(format!(
                    "cluster.url names {shown} twice: each server of a list has a part of the \
                     channels; take one out"
                )));
            }
            all.push((address, shown));
        }
        if all.len() > 1 && all.iter().any(|(address, _)| matches!(address, Self::Cluster(_))) {
            return Err(StartError::lasting(
                "cluster.url has a Redis Cluster among several servers: write its own servers \
                 behind one redis-cluster://, as in redis-cluster://host:port,host:port"
                    .to_owned(),
            ));
        }
        if security.is_none()
            && let Some(setting) = tls.first()
        {
            return Err(StartError::lasting(format!(
                "{setting} is set, and cluster.url has no TLS: write rediss://, \
                 rediss-sentinel:// or rediss-cluster://, or take the setting out"
            )));
        }
        Ok(all)
    }

    /// Parses the URL of one server. The first URL with TLS reads the files of `tls`.
    fn parse(
        url: &str,
        tls: &Tls,
        security: &mut Option<Arc<Security>>,
    ) -> Result<(Self, String), StartError> {
        let secured = url.strip_prefix(SECURED).map(|rest| format!("redis{rest}"));
        let (url, security) = match &secured {
            None => (url, None),
            Some(url) => {
                let shared = match security {
                    Some(shared) => Arc::clone(shared),
                    None => Arc::clone(security.insert(Security::load(tls)?)),
                };
                (&**url, Some(shared))
            }
        };
        if let Some(rest) = url.strip_prefix(SENTINELS) {
            let sentinels = sentinels(rest, security).map_err(|why| {
                StartError::lasting(format!(
                    "cluster.url does not name the sentinels of a Redis server: {why}; write \
                     redis-sentinel://[user[:password]@]host[:port][,host[:port]...]/master\
                     [/database][?sentinel_user=USER&sentinel_password=PASSWORD]"
                ))
            })?;
            let shown = sentinels.to_string();
            return Ok((Self::Sentinels(sentinels), shown));
        }
        if let Some(rest) = url.strip_prefix(CLUSTER) {
            return cluster(rest, security).map_err(|why| {
                StartError::lasting(format!(
                    "cluster.url does not name the servers of a Redis Cluster: {why}; write \
                     redis-cluster://[user[:password]@]host[:port][,host[:port]...]"
                ))
            });
        }
        let wrong = |why: &str| {
            StartError::lasting(format!(
                "cluster.url is not the address of a Redis server: {why}; write \
                 redis://[user[:password]@]host[:port][/database], redis-cluster://..., or \
                 redis-sentinel://...; with TLS, rediss://, rediss-cluster:// or \
                 rediss-sentinel://"
            ))
        };
        let is_local = security.is_none() && url.starts_with("redis+unix://");
        if !url.starts_with("redis://") && !is_local {
            return Err(wrong("it does not begin with redis://"));
        }
        check_parameters(url, is_local).map_err(|why| wrong(&why))?;
        let server = Endpoint::parse(url, security).map_err(|error| wrong(&error.to_string()))?;
        if matches!(server.info().addr(), ConnectionAddr::Tcp(host, _) if host.contains(',')) {
            return Err(wrong("each server of a list begins with redis:// or rediss://"));
        }
        check_address(server.info().addr()).map_err(|why| wrong(&why))?;
        check_database(server.info()).map_err(|why| wrong(&why))?;
        let shown = server.info().addr().to_string();
        Ok((Self::Server(server), shown))
    }
}

/// Splits a list of URLs. Commas also separate the sentinels of one URL.
fn split(urls: &str) -> Vec<&str> {
    let mut starts = vec![0];
    for (at, _) in urls.match_indices(',') {
        let next = urls[at + 1..].split("://").next().unwrap_or_default();
        // In a password a slash is escaped.
        let is_scheme = urls[at + 1 + next.len()..].starts_with("://")
            && next.bytes().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'+' | b'-'));
        if is_scheme {
            starts.push(at + 1);
        }
    }
    starts.push(urls.len() + 1);
    starts.windows(2).map(|two| &urls[two[0]..two[1] - 1]).collect()
}

/// Parses the part after `redis-sentinel://`.
fn sentinels(rest: &str, security: Option<Arc<Security>>) -> Result<Sentinels, String> {
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (master, database) = path.split_once('/').unwrap_or((path, ""));
    if master.is_empty() {
        return Err("the name of the master is missing".to_owned());
    }
    let is_part = |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | '-' | '_');
    if !master.chars().all(is_part) {
        // The error omits the name: after an unescaped slash it would be a part of the password.
        return Err("the name of a master has letters, digits, and . - _ only; in a password \
                    write / as %2F, ? as %3F and @ as %40"
            .to_owned());
    }
    let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let user_at = |user: &str| if user.is_empty() { String::new() } else { format!("{user}@") };
    let of_sentinels = user_at(&user_of_sentinels(query)?);
    let sentinel = |host: &str| {
        let wrong = |error: RedisError| format!("{host:?} is not an address: {error}");
        let url = format!("redis://{of_sentinels}{}", with_port(host));
        let endpoint = Endpoint::parse(&url, security.clone()).map_err(wrong)?;
        check_address(endpoint.info().addr())?;
        let shown = endpoint.info().addr().to_string();
        Ok::<_, String>(Sentinel { endpoint, shown })
    };
    let all = hosts.split(',').map(sentinel).collect::<Result<_, _>>()?;
    // The sentinels name the host.
    let server = format!("redis://{}localhost/{database}", user_at(user));
    let server = Endpoint::parse(&server, security.clone()).map_err(|error| error.to_string())?;
    check_database(server.info())?;
    Ok(Sentinels { all, master: master.to_owned(), server })
}

/// Parses the part after `redis-cluster://`.
fn cluster(rest: &str, security: Option<Arc<Security>>) -> Result<(Address, String), String> {
    let (user, hosts) = rest.rsplit_once('@').unwrap_or(("", rest));
    let hosts = hosts.trim_end_matches('/');
    if [user, hosts].iter().any(|part| part.contains(['/', '?'])) {
        // The error omits the value: after an unescaped slash it would be a part of the password.
        return Err(
            "it has no database and no parameters; in a password write / as %2F, ? as %3F \
                    and @ as %40"
                .to_owned(),
        );
    }
    let user = if user.is_empty() { String::new() } else { format!("{user}@") };
    let seed = |host: &str| {
        let wrong = |error: RedisError| format!("{host:?} is not an address: {error}");
        let endpoint = Endpoint::parse(&format!("redis://{host}"), None).map_err(wrong)?;
        check_address(endpoint.info().addr())?;
        match endpoint.info().addr() {
            ConnectionAddr::Tcp(host, port) => Ok((host.clone(), *port)),
            other => Err(format!("{other} is not an address")),
        }
    };
    let seeds = hosts.split(',').map(seed).collect::<Result<Vec<_>, _>>()?;
    let like = Endpoint::parse(&format!("redis://{user}localhost"), security)
        .map_err(|error| error.to_string())?;
    let shown: Vec<_> = seeds.iter().map(|(host, port)| format!("{host}:{port}")).collect();
    let shown = format!("the Redis Cluster of {}", shown.join(", "));
    Ok((Address::Cluster(Arc::new(Masters::new(seeds, like))), shown))
}

/// Returns whether each % begins an escape: a URL parser would keep the others as they are.
fn has_whole_escapes(urls: &str) -> bool {
    let is_hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    urls.match_indices('%').all(|(at, _)| {
        let digits = &urls.as_bytes()[at + 1..];
        is_hex(digits.first()) && is_hex(digits.get(1))
    })
}

/// Refuses parameters that a URL parser would ignore.
fn check_parameters(url: &str, is_local: bool) -> Result<(), String> {
    // The errors omit the value, which may be a part of the password.
    let Some((_, query)) = url.split_once('?') else { return Ok(()) };
    if !is_local {
        return Err("it has no parameters; write the database as in redis://host/1, and a ? in a \
                    password as %3F"
            .to_owned());
    }
    let is_known = |pair: &str| ["db=", "user=", "pass="].iter().any(|name| pair.starts_with(name));
    match query.split('&').all(is_known) {
        true => Ok(()),
        false => Err("the parameters of redis+unix:// are db, user and pass".to_owned()),
    }
}

/// Refuses an address to which no connection is possible.
fn check_address(address: &ConnectionAddr) -> Result<(), String> {
    match address {
        ConnectionAddr::Tcp(host, 0) => Err(format!("port 0 of {host} cannot be connected to")),
        ConnectionAddr::Tcp(host, _) if !is_host(host) => Err(format!(
            "{host:?} is neither an address nor a host name: the parts of a name have letters, \
             digits, - and _, with a dot between them"
        )),
        _ => Ok(()),
    }
}

/// Returns whether this is an address or a host name (RFC 1123 section 2.1, with the underscores
/// of service names).
fn is_host(host: &str) -> bool {
    let is_label = |label: &str| {
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (1..=63).contains(&label.len()) && label.bytes().all(is_inner)
    };
    // The last dot ends a full name.
    let name = host.strip_suffix('.').unwrap_or(host);
    host.parse::<IpAddr>().is_ok() || (name.len() <= 253 && name.split('.').all(is_label))
}

/// Refuses a number that no database has.
fn check_database(info: &ConnectionInfo) -> Result<(), String> {
    match info.redis_settings().db() {
        0.. => Ok(()),
        negative => Err(format!("{negative} is not a database: they are counted from 0")),
    }
}

/// Returns a sentinel's address with its port.
fn with_port(host: &str) -> String {
    let after = host.rsplit(']').next().unwrap_or_default();
    match after.contains(':') {
        true => host.to_owned(),
        false => format!("{host}:{SENTINEL_PORT}"),
    }
}

/// Reads the user and password of the sentinels, which differ from the server's.
fn user_of_sentinels(query: &str) -> Result<String, String> {
    let (mut user, mut password) = ("", None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sentinel_user", value)) => user = value,
            Some(("sentinel_password", value)) => password = Some(value),
            // Its value may be a secret.
            other => {
                let name = other.map_or("it", |(name, _)| name);
                return Err(format!("{name:?} is not a parameter of it"));
            }
        }
    }
    match password {
        Some(password) => Ok(format!("{user}:{password}")),
        None if user.is_empty() => Ok(String::new()),
        None => Err("sentinel_user needs a sentinel_password".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use redis::ProtocolVersion;

    use super::*;

    fn parsed(url: &str) -> Sentinels {
        match Address::parse(url, &Tls::default(), &mut None).unwrap() {
            (Address::Sentinels(sentinels), _) => sentinels,
            (_, shown) => panic!("{shown} has none"),
        }
    }

    #[test]
    fn sentinels_have_addresses_and_the_master_a_name_a_user_and_a_database() {
        let all = "redis-sentinel://throng:s%40cret@a,b:1234,[::1]:5,[::1]/my.master-1/3\
                   ?sentinel_user=watch&sentinel_password=w%40tch";
        let sentinels = parsed(all);
        let shown: Vec<_> = sentinels.all.iter().map(|one| one.shown.as_str()).collect();
        assert_eq!(shown, ["a:26379", "b:1234", "::1:5", "::1:26379"]);
        assert_eq!(sentinels.master, "my.master-1");
        let settings = sentinels.server.info().redis_settings();
        assert_eq!((settings.username(), settings.password()), (Some("throng"), Some("s@cret")));
        assert_eq!((settings.db(), settings.protocol()), (3, ProtocolVersion::RESP3));
        let asked = sentinels.all[0].endpoint.info().redis_settings().clone();
        assert_eq!((asked.username(), asked.password()), (Some("watch"), Some("w@tch")));
        let server = sentinels.server.at(("10.0.0.5".to_owned(), 6379));
        assert_eq!(server.info().addr().to_string(), "10.0.0.5:6379");
        assert_eq!(server.info().redis_settings().password(), Some("s@cret"));
    }

    #[test]
    fn a_list_has_the_addresses_of_independent_servers() {
        let sentinels = "redis-sentinel://a,b/one,redis-sentinel://a,b/two,redis://c";
        let (one, two) =
            ("the master one of a:26379, b:26379", "the master two of a:26379, b:26379");
        for (urls, expected) in [
            ("redis://a", &["a:6379"][..]),
            ("redis://a,redis://:p@b:1/2", &["a:6379", "b:1"]),
            ("redis-cluster://u:p@a,b:1,[::1]:5", &["the Redis Cluster of a:6379, b:1, ::1:5"]),
            (sentinels, &[one, two, "c:6379"]),
        ] {
            let all = Address::parse_all(urls, &Tls::default()).unwrap();
            let shown: Vec<_> = all.iter().map(|(_, shown)| shown.as_str()).collect();
            assert_eq!(shown, expected, "{urls}");
        }
        for (urls, part) in [
            ("redis://a,redis://:hidden@a:6379/1", "names a:6379 twice"),
            ("redis://a,", "each server of a list"),
            ("redis://:hidden@a,b", "each server of a list"),
            ("redis://a,http://:hidden@b", "does not begin with redis://"),
            ("redis://a,redis-cluster://:hidden@b", "behind one redis-cluster://"),
            ("redis://:hidden%ZZ@a", "write % as %25"),
            ("redis-cluster://:hidden%@a", "write % as %25"),
            ("redis-sentinel://:hidden%4@a/mymaster", "write % as %25"),
        ] {
            let Err(error) = Address::parse_all(urls, &Tls::default()) else { panic!("{urls}") };
            let error = error.to_string();
            assert!(error.contains(part) && error.contains("cluster.url"), "{urls}: {error}");
            assert!(!error.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn names_with_underscores_and_a_last_dot_and_parameters_of_a_unix_socket_are_accepted() {
        for urls in [
            "redis://:p%25@my_redis.internal.:1/15",
            "redis://[::1]",
            "redis-cluster://node-1.a,10.0.0.1:7",
            "redis+unix:///run/redis.sock?db=1&user=u&pass=p",
        ] {
            assert!(Address::parse_all(urls, &Tls::default()).is_ok(), "{urls}");
        }
    }

    #[test]
    fn an_address_without_a_user_has_none() {
        let sentinels = parsed("redis-sentinel://a/mymaster");
        let settings = sentinels.server.info().redis_settings();
        assert_eq!((settings.username(), settings.password(), settings.db()), (None, None, 0));
        let asked = sentinels.all[0].endpoint.info().redis_settings().clone();
        assert_eq!((asked.username(), asked.password()), (None, None));
    }

    #[test]
    fn a_wrong_url_is_named_without_its_password() {
        for (url, part) in [
            ("redis-sentinel://:hidden@a", "master is missing"),
            ("redis-sentinel://:hidden@a/", "master is missing"),
            ("redis-sentinel://:hidden@a/my master", "the name of a master has"),
            ("redis-sentinel://:x/hidden@a/mymaster", "%2F"),
            ("redis-sentinel://:x?hidden@a/mymaster", "master is missing"),
            ("redis-sentinel://:hidden@a,/mymaster", "\"\""),
            ("redis-sentinel://:hidden@a:port/mymaster", "\"a:port\""),
            ("redis-sentinel://:hidden@a/mymaster/db", "atabase"),
            ("redis-sentinel://:hidden@a/mymaster?password=hidden", "\"password\""),
            ("redis-sentinel://a/mymaster?sentinel_user=x", "sentinel_password"),
            ("redis-cluster://:hidden@", "\"\""),
            ("redis-cluster://:hidden@a,b:port", "\"b:port\""),
            ("redis-cluster://:hidden@a/1", "no database"),
            ("redis-cluster://:x/hidden@a", "%2F"),
            ("redis-ring://:hidden@a", "redis-sentinel://"),
            ("redis://:hidden@a:0", "port 0 of a"),
            ("redis-sentinel://:hidden@a,b:0/mymaster", "port 0 of b"),
            ("redis-cluster://:hidden@a,b:0", "port 0 of b"),
            ("redis://:hidden@a/-1", "-1 is not a database"),
            ("redis-sentinel://:hidden@a/mymaster/-1", "-1 is not a database"),
            ("redis+unix:///run/redis.sock?db=-1&pass=hidden", "-1 is not a database"),
            ("redis+unix:///run/redis.sock?password=hidden", "are db, user and pass"),
            ("redis://:hidden@a?db=1", "as in redis://host/1"),
            ("redis://:hidden@a/1?protocol=resp2", "it has no parameters"),
            ("redis://:hidden@a..b", "\"a..b\" is neither"),
            ("redis://:hidden@.a", "\".a\" is neither"),
            ("redis://:hidden@a%20b", "\"a%20b\" is neither"),
            ("redis-sentinel://:hidden@a,b..c/mymaster", "\"b..c\" is neither"),
            ("redis-cluster://:hidden@a,b..c", "\"b..c\" is neither"),
        ] {
            let Err(error) = Address::parse(url, &Tls::default(), &mut None) else {
                panic!("{url}")
            };
            let error = error.to_string();
            assert!(error.contains(part) && error.contains("cluster.url"), "{url}: {error}");
            assert!(!error.contains("hidden"), "{error}");
        }
    }
}
