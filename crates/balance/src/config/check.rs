//! Rules for a whole configuration, wherever its values came from.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use throng_proto::ws::handshake::is_token;

use super::Config;
use super::settings::named;
use crate::backend::MAX_WEIGHT;
use crate::settings::{Check, CheckKind, Settings, Sticky};

/// The largest number of backends: their shares still add up within 32 bits.
pub(crate) const MAX_BACKENDS: usize = 4096;

/// The largest number of event loops, more than any machine has CPUs.
const MAX_SHARDS: usize = 1024;

/// A mistake in the value of a key.
pub(super) struct Wrong {
    pub(super) key: String,
    value: String,
    remedy: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}: {}", self.key, self.value, self.remedy)
    }
}

fn wrong(key: impl Into<String>, value: impl fmt::Display, remedy: impl Into<String>) -> Wrong {
    Wrong { key: key.into(), value: value.to_string(), remedy: remedy.into() }
}

/// Returns an error unless `holds`.
fn must(holds: bool, wrong: impl FnOnce() -> Wrong) -> Result<(), Wrong> {
    if holds { Ok(()) } else { Err(wrong()) }
}

pub(super) fn check(config: &Config) -> Result<(), Wrong> {
    listen(config)?;
    must(config.shards <= MAX_SHARDS, || {
        wrong("shards", config.shards, "write at most 1024; 0 is one for each CPU")
    })?;
    backends(config)?;
    settings(&config.settings)?;
    sources(config)?;
    if let Some(register) = &config.register {
        positive("register.time_to_live", register.time_to_live)?;
    }
    if let Some(admin) = config.admin {
        must(admin.ip().to_canonical().is_loopback() || config.admin_token.is_some(), || {
            let remedy = "every client that reaches it can change everything: write a loopback \
                          address such as \"127.0.0.1:8081\", or set admin.token_file";
            wrong("admin.listen", quoted(admin), remedy)
        })?;
        must(admin.port() == 0 || !config.listen.contains(&admin), || {
            wrong(
                "admin.listen",
                quoted(admin),
                "clients connect there (listen): take another port",
            )
        })?;
    }
    let shutdown = config.shutdown;
    must(shutdown.deadline >= shutdown.window, || {
        wrong(
            "shutdown.deadline",
            format_args!("{:?}", shutdown.deadline),
            format!("it is at least shutdown.window, which is {:?}", shutdown.window),
        )
    })
}

fn listen(config: &Config) -> Result<(), Wrong> {
    must(!config.listen.is_empty(), || {
        wrong("listen", "empty", "write where clients connect, for example \"127.0.0.1:8080\"")
    })?;
    for (at, address) in config.listen.iter().enumerate() {
        let first = config.listen.iter().position(|other| other == address);
        must(address.port() == 0 || first == Some(at), || {
            wrong(format!("listen[{at}]"), quoted(*address), "it is there already: give it once")
        })?;
    }
    Ok(())
}

fn backends(config: &Config) -> Result<(), Wrong> {
    let backends = &config.backends;
    must(!backends.is_empty() || config.register.is_some(), || {
        let remedy = "write for example backends = [\"127.0.0.1:9001\"], or a [register] table so \
                      that backends register themselves";
        wrong("backends", "empty", remedy)
    })?;
    must(backends.len() <= MAX_BACKENDS, || {
        wrong("backends", format_args!("a list of {}", backends.len()), "4096 are the most")
    })?;
    let mut places = HashMap::new();
    for (at, backend) in backends.iter().enumerate() {
        let address = backend.address;
        // Written as a text or as a table, its location is that of the item.
        let key = format!("backends[{at}]");
        // ::ffff:127.0.0.1 is another form of 127.0.0.1.
        let canonical = (address.ip().to_canonical(), address.port());
        if let Some(first) = places.insert(canonical, at) {
            let remedy = format!(
                "backends[{first}] has this address already: give each once, and more of the load \
                 by weight"
            );
            return Err(wrong(key, quoted(address), remedy));
        }
        if let Err(remedy) = check_backend(address, &config.listen) {
            return Err(wrong(key, quoted(address), remedy));
        }
        must((1..=MAX_WEIGHT).contains(&backend.weight), || {
            wrong(format!("{key}.weight"), backend.weight, weight_remedy(backend.weight))
        })?;
    }
    Ok(())
}

/// Checks that connections to `address` can lead to a backend, and not back to the balancer. The
/// error is the remedy.
pub(crate) fn check_backend(address: SocketAddr, listen: &[SocketAddr]) -> Result<(), String> {
    let ip = address.ip().to_canonical();
    if address.port() == 0 {
        return Err("port 0 cannot be connected to: write the backend's".to_owned());
    }
    if ip.is_unspecified() || ip.is_multicast() {
        return Err("it is not the address of one machine: write the backend's own, for example \
                    \"127.0.0.1:9001\""
            .to_owned());
    }
    let is_own = |own: &&SocketAddr| {
        let everywhere = own.ip().is_unspecified() && ip.is_loopback();
        own.port() == address.port() && (own.ip().to_canonical() == ip || everywhere)
    };
    match listen.iter().find(is_own) {
        Some(own) => Err(format!(
            "the balancer itself listens on {own}: write the address of a backend, or listen \
             elsewhere"
        )),
        None => Ok(()),
    }
}

/// Returns a remedy for the weight `weight`.
fn weight_remedy(weight: u32) -> String {
    match weight {
        0 => format!("write 1 to {MAX_WEIGHT}; to send a backend nothing, drain or remove it"),
        _ => format!("write 1 to {MAX_WEIGHT}"),
    }
}

fn settings(settings: &Settings) -> Result<(), Wrong> {
    must(!settings.accept_proxy || !settings.trusted_proxies.is_empty(), || {
        let remedy = "any client could claim any address: name the trusted ones in \
                      trusted_proxies, for example [\"10.0.0.0/8\"]";
        wrong("accept_proxy", true, remedy)
    })?;
    sticky(&settings.sticky)?;
    for (at, name) in settings.drop_headers.iter().enumerate() {
        must(is_token(name), || {
            let remedy = "write a header's name, for example \"X-Client-IP\"";
            wrong(format!("drop_headers[{at}]"), format_args!("{name:?}"), remedy)
        })?;
    }
    let mut timeouts = settings.timeouts;
    for (key, timeout) in named(&mut timeouts) {
        positive(&format!("timeouts.{key}"), *timeout)?;
    }
    for (key, bytes) in [
        ("max_header_bytes", settings.max_header_bytes),
        ("max_response_header_bytes", settings.max_response_header_bytes),
    ] {
        must((1024..=1 << 20).contains(&bytes), || {
            wrong(key, bytes, "write \"1KiB\" to \"1MiB\"")
        })?;
    }
    for (key, lines) in [
        ("max_headers", settings.max_headers),
        ("max_response_headers", settings.max_response_headers),
    ] {
        must((8..=4096).contains(&lines), || wrong(key, lines, "write 8 to 4096"))?;
    }
    must(settings.close_rate > 0, || {
        let remedy = "no tunnel of a dead or drained backend would ever be closed: write 1 or more";
        wrong("close_rate", 0, remedy)
    })?;
    let health = &settings.health;
    positive("health.within", health.within)?;
    positive("health.down_for", health.down_for)?;
    health.check.as_ref().map_or(Ok(()), active)
}

fn active(check: &Check) -> Result<(), Wrong> {
    positive("health.check.interval", check.interval)?;
    positive("health.check.timeout", check.timeout)?;
    must(check.timeout <= Duration::from_secs(60), || {
        let remedy = "a check ends within \"60s\": write that, or less";
        wrong("health.check.timeout", format_args!("{:?}", check.timeout), remedy)
    })?;
    must(check.timeout <= check.interval, || {
        wrong(
            "health.check.timeout",
            format_args!("{:?}", check.timeout),
            format!(
                "one check ends before the next begins: write at most health.check.interval, which \
                 is {:?}",
                check.interval
            ),
        )
    })?;
    at_least_one("health.check.rise", check.rise)?;
    at_least_one("health.check.fall", check.fall)?;
    let (CheckKind::Http(path) | CheckKind::WebSocket(path)) = &check.kind else { return Ok(()) };
    let sendable = path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
    must(sendable, || {
        let remedy = "write a path as it stands in a request, for example \"/healthz\"";
        wrong("health.check.path", format_args!("{path:?}"), remedy)
    })
}

fn sticky(sticky: &Sticky) -> Result<(), Wrong> {
    let (key, name, holds) = match sticky {
        Sticky::None | Sticky::Ip => return Ok(()),
        Sticky::Cookie(name) => ("sticky.cookie", name, is_token(name)),
        Sticky::Header(name) => ("sticky.header", name, is_token(name)),
        Sticky::Query(name) => {
            let plain = |b: u8| b.is_ascii_graphic() && !b"&=#?+%".contains(&b);
            ("sticky.query", name, !name.is_empty() && name.bytes().all(plain))
        }
    };
    must(holds, || wrong(key, format_args!("{name:?}"), "write a name of letters, digits, - and _"))
}

fn sources(config: &Config) -> Result<(), Wrong> {
    let sources = &config.settings.sources;
    for (at, source) in sources.iter().enumerate() {
        let key = || format!("sources[{at}]");
        must(sources.iter().position(|other| other == source) == Some(at), || {
            wrong(key(), format_args!("\"{source}\""), "it is there already: give it once")
        })?;
        must(!source.is_unspecified() && !source.is_multicast(), || {
            wrong(key(), format_args!("\"{source}\""), "write an address of this machine")
        })?;
    }
    let reached = |address: &SocketAddr| {
        sources.is_empty() || sources.iter().any(|source| source.is_ipv4() == address.is_ipv4())
    };
    match config.backends.iter().find(|backend| !reached(&backend.address)) {
        None => Ok(()),
        Some(backend) => {
            let list: Vec<String> = sources.iter().map(|source| format!("\"{source}\"")).collect();
            let kind = if backend.address.is_ipv4() { "an IPv4" } else { "an IPv6" };
            let remedy = format!(
                "from none of these {} can be reached: add {kind} address",
                backend.address
            );
            Err(wrong("sources", format_args!("[{}]", list.join(", ")), remedy))
        }
    }
}

fn positive(key: &str, duration: Duration) -> Result<(), Wrong> {
    must(!duration.is_zero(), || wrong(key, "0", "write more than nothing, for example \"5s\""))
}

fn at_least_one(key: &str, number: u32) -> Result<(), Wrong> {
    must(number > 0, || wrong(key, number, "write 1 or more"))
}

fn quoted(address: SocketAddr) -> String {
    format!("\"{address}\"")
}
