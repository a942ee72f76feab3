//! Rules for a whole configuration, wherever its values came from.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use throng_io::PeerAddress;

use throng_config::listen::overlap;
use throng_proto::ws::handshake::is_token;

use throng_tls::{TlsClient, is_server_name_pattern};

use super::mistakes::{Mistake, Mistakes, quoted};
use super::{
    BackendConfig, ClientSide, Config, NamedBackend, PoolConfig, check_listeners, check_sites,
};
use crate::backend::MAX_WEIGHT;
use crate::limit::{MAX_LIMITS, MAX_MEMORY};
use crate::machine::Machine;
use crate::pool::{DEFAULT_POOL, LABEL, is_label};
use crate::settings::{Check, CheckKind, SameSite, Settings, Sticky, Timeouts, reaches};
use crate::site::SiteMistake;

/// The largest number of backends: their shares still add up within 32 bits.
pub(crate) const MAX_BACKENDS: usize = 4096;

/// The largest number of pools, and of their backends in all.
const MAX_POOLS: usize = 4096;
const MAX_OF_ALL_POOLS: usize = 16384;

/// The largest number of names of backends.
const MAX_NAMES: usize = 4096;

/// Returns all mistakes in a configuration.
pub(super) fn mistakes(config: &Config) -> Vec<Mistake> {
    let mut mistakes = Mistakes::default();
    check_listeners::check(config, &mut mistakes);
    mistakes.number("shards", config.shards as u64);
    backends(config, &mut mistakes);
    pools(config, &mut mistakes);
    limits(config, &mut mistakes);
    let of_all = config.compiled_policy().err().unwrap_or_default();
    let of_sites = config.compiled_sites().err().unwrap_or_default();
    for SiteMistake { key, value, remedy } in of_all.into_iter().chain(of_sites) {
        mistakes.add(key, value, remedy);
    }
    check_sites::split_cookies(config, &mut mistakes);
    check_sites::passed_sites(config, &mut mistakes);
    settings(&config.settings, &mut mistakes);
    prefixed_cookie(config, "", &config.settings.sticky, &mut mistakes);
    if let Some(register) = &config.register {
        mistakes.duration("register.time_to_live", register.time_to_live);
    }
    if let Some(admin) = config.admin {
        mistakes.must(
            admin.ip().to_canonical().is_loopback() || config.admin_token.is_some(),
            "admin.listen",
            quoted(admin),
            "every client that reaches it can change everything: write a loopback address such as \
             \"127.0.0.1:8081\", or set admin.token_file",
        );
        mistakes.must(
            !config.listen_addresses().any(|own| overlap(own, admin)),
            "admin.listen",
            quoted(admin),
            "clients connect there (listen): take another port",
        );
    }
    let name = config.backend_tls.as_ref().and_then(|tls| tls.name.as_deref());
    server_name(&mut mistakes, "backend_tls.name".to_owned(), name);
    let shutdown = config.shutdown;
    mistakes.must(
        shutdown.deadline >= shutdown.window,
        "shutdown.deadline",
        format_args!("{:?}", shutdown.deadline),
        format!("it is at least shutdown.window, which is {:?}", shutdown.window),
    );
    mistakes.0
}

/// A list of backends, and the key of its pool in messages.
struct List<'c> {
    /// Empty for the backends outside of pools, else `pools[0].`.
    prefix: String,
    backends: &'c [BackendConfig],
    names: &'c [NamedBackend],
    /// The index of each of `backends` in the file.
    places: &'c [usize],
}

fn backends(config: &Config, mistakes: &mut Mistakes) {
    let Config { backends, names, places, .. } = config;
    let has_some = !backends.is_empty() || !names.is_empty() || config.register.is_some();
    mistakes.must(
        has_some || !config.pools.is_empty() || !config.sites.is_empty(),
        "backends",
        "empty",
        "write for example backends = [\"127.0.0.1:9001\"], or a [register] table so that \
         backends register themselves",
    );
    mistakes.duration("lookup_interval", config.lookup_interval);
    let all = config.all_names().count();
    mistakes.must(
        all <= MAX_NAMES,
        "backends",
        format_args!("a list with {all} names"),
        format!("{MAX_NAMES} are the most"),
    );
    let of_default = List { prefix: String::new(), backends, names, places };
    list(config, &of_default, mistakes);
    sources(&of_default, &config.settings.sources, mistakes);
    for pool in &config.pools {
        let PoolConfig { backends, names, places, .. } = pool;
        let prefix = format!("pools[{}].", pool.place);
        let of_pool = List { prefix, backends, names, places };
        list(config, &of_pool, mistakes);
        sources(&of_pool, &pool.settings.sources, mistakes);
    }
}

fn list(config: &Config, list: &List<'_>, mistakes: &mut Mistakes) {
    named_backends(config, list, mistakes);
    mistakes.must(
        list.backends.len() <= MAX_BACKENDS,
        format!("{}backends", list.prefix),
        format_args!("a list of {}", list.backends.len()),
        "4096 are the most",
    );
    let own = config.own_addresses();
    let mut places = HashMap::new();
    for (index, backend) in list.backends.iter().enumerate() {
        let at = list.places.get(index).copied().unwrap_or(index);
        let first = places.insert(canonical(backend.address), at);
        let key = format!("{}backends[{at}]", list.prefix);
        if let Some(first) = first {
            let remedy = format!(
                "{}backends[{first}] has this address already: give each once, and more of the \
                 load by weight",
                list.prefix
            );
            mistakes.add(&key, quoted(backend.address), remedy);
        } else if let Err(remedy) = check_backend(backend.address, &own) {
            mistakes.add(&key, quoted(backend.address), remedy);
        }
        check_listed(config, backend, &key, mistakes);
    }
}

/// Checks the backends whose addresses are looked up.
fn named_backends(config: &Config, list: &List<'_>, mistakes: &mut Mistakes) {
    let key = format!("{}backends", list.prefix);
    for (at, named) in list.names.iter().enumerate() {
        let value = format_args!("\"{}\"", named.name);
        let is_first = list.names[..at].iter().all(|other| other.name != named.name);
        mistakes.must(is_first, &key, value, "it is there twice: give it once");
        let has_port = named.name.rsplit_once(':').is_some_and(|(_, port)| port != "0");
        mistakes.must(has_port, &key, value, "port 0 cannot be connected to: write its own");
        server_name(mistakes, key.clone(), named.tls_name.as_deref());
        let tls = config.tls.as_ref();
        passthrough(mistakes, &format!("{key}."), &named.passthrough, named.tls, tls);
        let is_weight = (1..=MAX_WEIGHT).contains(&named.weight);
        mistakes.must(is_weight, &key, value, format!("its weight is 1 to {MAX_WEIGHT}"));
    }
}

/// Checks the settings of a backend in a list. `key` is its key; as a string or as a table, it has
/// the item's location.
fn check_listed(config: &Config, backend: &BackendConfig, key: &str, mistakes: &mut Mistakes) {
    server_name(mistakes, format!("{key}.tls_name"), backend.tls_name.as_deref());
    let tls = config.tls.as_ref();
    passthrough(mistakes, &format!("{key}."), &backend.passthrough, backend.tls, tls);
    mistakes.must(
        (1..=MAX_WEIGHT).contains(&backend.weight),
        format!("{key}.weight"),
        backend.weight,
        format!("write 1 to {MAX_WEIGHT}; to send a backend nothing, drain or remove it"),
    );
}

/// Checks the limits of rates.
fn limits(config: &Config, mistakes: &mut Mistakes) {
    let count = config.limits.len();
    let remedy = format!("{MAX_LIMITS} are the most");
    mistakes.must(count <= MAX_LIMITS, "limits", format_args!("a list of {count}"), remedy);
    let memory = config.limits.iter().fold(0, |sum: usize, it| sum.saturating_add(it.memory));
    let remedy = "all limits together take at most 1GiB: lower their memory";
    let value = format_args!("a list with {memory} bytes of memory");
    mistakes.must(memory <= MAX_MEMORY, "limits", value, remedy);
    let mut names = HashSet::new();
    for (at, limit) in config.limits.iter().enumerate() {
        for (key, value, remedy) in limit.mistakes() {
            mistakes.add(format!("limits[{at}].{key}"), value, remedy);
        }
        let (key, value) = (format!("limits[{at}].name"), format_args!("{:?}", limit.name));
        let remedy = "another limit has it: write another name";
        mistakes.must(names.insert(&limit.name), &key, value, remedy);
    }
}

/// Checks what is special to pools: their names, and settings that the table of keys does not
/// check.
fn pools(config: &Config, mistakes: &mut Mistakes) {
    mistakes.must(
        config.pools.len() <= MAX_POOLS,
        "pools",
        format_args!("a list of {}", config.pools.len()),
        format!("{MAX_POOLS} are the most"),
    );
    let all = config.all_backends().count();
    let remedy = format!("all pools together have at most {MAX_OF_ALL_POOLS}");
    mistakes.must(
        all <= MAX_OF_ALL_POOLS,
        "pools",
        format_args!("a list of {all} backends"),
        remedy,
    );
    if let Some(fallback) = &config.settings.fallback {
        // From a table of the name `default`.
        check_fallback(config, DEFAULT_POOL, fallback, "fallback".to_owned(), mistakes);
    }
    let mut names = HashSet::new();
    for pool in &config.pools {
        let prefix = format!("pools[{}].", pool.place);
        let (key, value) = (format!("{prefix}name"), format_args!("{:?}", pool.name));
        let is_free = *pool.name != *DEFAULT_POOL;
        let remedy = "that is the pool of backends outside of pools: write another name, or move \
                      those into this one";
        mistakes.must(is_free, &key, value, remedy);
        mistakes.must(
            names.insert(&pool.name),
            &key,
            value,
            "another pool has it: write one of its own",
        );
        mistakes.must(is_label(&pool.name), &key, value, LABEL);
        let has_some = !pool.backends.is_empty() || !pool.names.is_empty();
        let remedy = "write for example backends = [\"127.0.0.1:9001\"]";
        mistakes.must(has_some, format!("{prefix}backends"), "empty", remedy);
        if let Some(fallback) = &pool.settings.fallback {
            let key = format!("{prefix}fallback");
            check_fallback(config, &pool.name, fallback, key, mistakes);
        }
        sticky(&prefix, &pool.settings.sticky, mistakes);
        prefixed_cookie(config, &prefix, &pool.settings.sticky, mistakes);
        if let Some(check) = &pool.settings.health.check {
            active(&prefix, check, mistakes);
        }
        let name = pool.tls.as_ref().and_then(|tls| tls.name.as_deref());
        server_name(mistakes, format!("{prefix}tls.name"), name);
    }
}

/// Checks the pool that serves while no backend of the pool `of` is up.
fn check_fallback(config: &Config, of: &str, name: &str, key: String, mistakes: &mut Mistakes) {
    let others = config.pools.iter().map(|pool| &*pool.name);
    let default = config.has_default_pool().then_some(DEFAULT_POOL);
    let known: Vec<_> = default.into_iter().chain(others).filter(|other| *other != of).collect();
    let remedy = match known.is_empty() {
        true => "the file has no other pool: drop it, or add a [[pool]]".to_owned(),
        false => {
            format!("write the name of another pool: {}", known[..known.len().min(20)].join(", "))
        }
    };
    mistakes.must(known.contains(&name), key, format_args!("{name:?}"), remedy);
}

/// Checks the name in the certificate of a backend.
fn server_name(mistakes: &mut Mistakes, key: String, name: Option<&str>) {
    let Some(name) = name else { return };
    let remedy =
        "it is neither a host name nor an IP address: write a name such as \"app.internal\"";
    mistakes.must(TlsClient::check_name(name).is_ok(), key, format_args!("{name:?}"), remedy);
}

/// Checks the server names whose connections are passed through to a backend: their form, that the
/// balancer does not use TLS to it, by its `tls`, and that `clients` orders no certificate for
/// them. `prefix` comes before the names of settings.
fn passthrough(
    mistakes: &mut Mistakes,
    prefix: &str,
    patterns: &[Box<str>],
    tls: Option<bool>,
    clients: Option<&ClientSide>,
) {
    let key = format!("{prefix}passthrough");
    for pattern in patterns {
        let remedy = "write a name such as \"db.example.com\", \"*.example.com\" for all of one \
                      label more, or \"*\" for all names that nothing else is for";
        let value = format_args!("{pattern:?}");
        mistakes.must(is_server_name_pattern(pattern), &key, value, remedy);
    }
    let is_secured = tls == Some(true) && !patterns.is_empty();
    let remedy = "its clients' TLS is passed through to it: drop tls, or passthrough";
    mistakes.must(!is_secured, format!("{prefix}tls"), "true", remedy);
    let acme = clients.and_then(|clients| clients.acme.as_ref());
    let domains = acme.map_or(&[][..], |acme| &acme.domains);
    for pattern in patterns {
        let is_ordered = domains.iter().any(|domain| domain.eq_ignore_ascii_case(pattern));
        let remedy = "a certificate is ordered for it, with which its TLS is ended here: drop it \
                      here, or from tls.acme.domains";
        mistakes.must(!is_ordered, &key, format_args!("{pattern:?}"), remedy);
    }
}

/// Checks the server names whose connections must be passed through to a backend added while the
/// balancer runs with `clients`; `tls` is the backend's setting in the file.
pub(crate) fn check_passthrough(
    patterns: &[Box<str>],
    tls: Option<bool>,
    clients: Option<&ClientSide>,
) -> Result<(), Mistake> {
    let mut mistakes = Mistakes::default();
    passthrough(&mut mistakes, "", patterns, tls, clients);
    let remedy = "the balancer was started without TLS of clients: restart it with a table [tls], \
                  or with a backend in the file that has passthrough";
    mistakes.must(clients.is_some(), "passthrough", format_args!("{patterns:?}"), remedy);
    mistakes.0.into_iter().next().map_or(Ok(()), Err)
}

/// Checks that connections to `address` can lead to a backend, and not back to this process, which
/// listens at `own`: for clients and for operators. The error is the remedy.
pub(crate) fn check_backend(address: PeerAddress, own: &[SocketAddr]) -> Result<(), String> {
    match address {
        PeerAddress::Ip(address) => check_backend_on(&Machine::now(), address, own),
        PeerAddress::Unix(_) if cfg!(unix) => Ok(()),
        PeerAddress::Unix(_) => {
            Err("this system has no Unix sockets: write an address such as \"127.0.0.1:9001\""
                .to_owned())
        }
    }
}

/// Returns the form in which addresses are compared: `::ffff:127.0.0.1` is another form of
/// `127.0.0.1`.
pub(crate) fn canonical(address: PeerAddress) -> PeerAddress {
    match address {
        PeerAddress::Ip(address) => {
            SocketAddr::new(address.ip().to_canonical(), address.port()).into()
        }
        PeerAddress::Unix(_) => address,
    }
}

fn check_backend_on(
    machine: &Machine,
    address: SocketAddr,
    own: &[SocketAddr],
) -> Result<(), String> {
    let ip = address.ip().to_canonical();
    if address.port() == 0 {
        return Err("port 0 cannot be connected to: write the backend's".to_owned());
    }
    if ip.is_unspecified() || ip.is_multicast() || machine.is_broadcast(ip) || is_reserved(ip) {
        return Err("it is not the address of one machine: write the backend's own, for example \
                    \"127.0.0.1:9001\""
            .to_owned());
    }
    if let SocketAddr::V6(address) = address
        && address.ip().is_unicast_link_local()
        && address.scope_id() == 0
    {
        return Err(format!(
            "a link-local address needs its interface: write for example \"[{ip}%eth0]:{}\"",
            address.port()
        ));
    }
    let is_own = |own: &&SocketAddr| {
        // In this order: usually the port decides, and the interfaces are not queried.
        own.port() == address.port()
            && (own.ip().to_canonical() == ip
                || own.ip().to_canonical().is_unspecified() && machine.has(ip))
    };
    match own.iter().find(is_own) {
        Some(own) => Err(format!(
            "the balancer itself listens on {own}: write the address of a backend, or listen \
             elsewhere"
        )),
        None => Ok(()),
    }
}

/// Returns whether no machine has the address: 0.0.0.0/8 and 240.0.0.0/4 (RFC 6890 section 2.2.2).
fn is_reserved(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 0 || ip.octets()[0] >= 240)
}

fn settings(settings: &Settings, mistakes: &mut Mistakes) {
    mistakes.must(
        !settings.accept_proxy || !settings.trusted_proxies.is_empty(),
        "accept_proxy",
        true,
        "any client could claim any address: name the trusted ones in trusted_proxies, for example \
         [\"10.0.0.0/8\"]",
    );
    sticky("", &settings.sticky, mistakes);
    for (at, name) in settings.drop_headers.iter().enumerate() {
        // `*` is a valid character of names, but no header contains it.
        let remedy = "write a header's whole name, for example \"X-Client-IP\"";
        mistakes.must(
            is_token(name) && !name.contains('*'),
            format!("drop_headers[{at}]"),
            format_args!("{name:?}"),
            remedy,
        );
        let remedy = "no request can do without it, or the balancer writes it itself: take it out";
        let key = format!("drop_headers[{at}]");
        mistakes.must(!is_indispensable(name), key, format_args!("{name:?}"), remedy);
    }
    if let Some(id) = &settings.loop_id {
        let remedy = "write a name of letters, digits, - and _, for example \"edge-1\"";
        mistakes.must(is_token(id), "loop_id", format_args!("{id:?}"), remedy);
    }
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
    } = settings.timeouts;
    for (key, timeout) in [
        ("timeouts.connect", connect),
        ("timeouts.response", response),
        ("timeouts.upgrade", upgrade),
        ("timeouts.body", body),
        ("timeouts.head", head),
        ("timeouts.keep_alive", keep_alive),
        ("timeouts.tunnel", tunnel),
        ("timeouts.half_closed", half_closed),
        ("timeouts.close", close),
        ("timeouts.queue", queue),
        ("health.within", settings.health.within),
        ("health.down_for", settings.health.down_for),
    ] {
        mistakes.duration(key, timeout);
    }
    for (key, number) in [
        ("max_header_bytes", settings.max_header_bytes),
        ("max_response_header_bytes", settings.max_response_header_bytes),
        ("max_headers", settings.max_headers),
        ("max_response_headers", settings.max_response_headers),
        ("close_rate", settings.close_rate as usize),
    ] {
        mistakes.number(key, number as u64);
    }
    if let Some(check) = &settings.health.check {
        active("", check, mistakes);
    }
}

/// Returns whether a request needs the header, or the balancer writes it in any case. Others of a
/// handshake may be dropped: without Sec-WebSocket-Extensions, a backend does not compress.
fn is_indispensable(name: &str) -> bool {
    [
        "cdn-loop",
        "connection",
        "content-length",
        "host",
        "sec-websocket-key",
        "sec-websocket-version",
        "transfer-encoding",
        "upgrade",
    ]
    // A server that drops headers treats `_` as `-`.
    .contains(&&*name.replace('_', "-").to_ascii_lowercase())
}

fn active(prefix: &str, check: &Check, mistakes: &mut Mistakes) {
    let key = |name: &str| format!("{prefix}health.check.{name}");
    mistakes.duration("health.check.interval", check.interval);
    mistakes.duration("health.check.timeout", check.timeout);
    let (timeout, interval) = (check.timeout, check.interval);
    mistakes.must(
        timeout <= Duration::from_secs(60),
        key("timeout"),
        format_args!("{timeout:?}"),
        "a check ends within \"60s\": write that, or less",
    );
    mistakes.must(
        timeout <= interval,
        key("timeout"),
        format_args!("{timeout:?}"),
        format!(
            "one check ends before the next begins: write at most health.check.interval, which is \
             {interval:?}"
        ),
    );
    mistakes.number("health.check.rise", check.rise.into());
    mistakes.number("health.check.fall", check.fall.into());
    if let CheckKind::Http(path) | CheckKind::WebSocket(path) = &check.kind {
        let sendable =
            path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
        let remedy = "write a path as it stands in a request, for example \"/healthz\"";
        mistakes.must(sendable, key("path"), format_args!("{path:?}"), remedy);
    }
    if let Some(host) = &check.host {
        let remedy = "write a host as it stands in a request, for example \"app.example.com\" or \
                      \"app.example.com:8080\"";
        mistakes.must(is_host(host), key("host"), format_args!("{host:?}"), remedy);
    }
}

/// Returns whether the text is a host, with a port or without (RFC 9110 section 7.2).
fn is_host(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(None) => return false,
        Some(Some((address, rest))) if address.parse::<Ipv6Addr>().is_ok() => match rest {
            "" => return true,
            rest => ("", rest.strip_prefix(':')),
        },
        Some(Some(_)) => return false,
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, Some("80")),
        },
    };
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    let has_host = text.starts_with('[') || !host.is_empty() && host.bytes().all(is_name);
    let is_port =
        |port: &str| !port.starts_with('+') && port.parse().is_ok_and(|port: u16| port > 0);
    has_host && port.is_some_and(is_port)
}

/// Checks that browsers keep the cookie: its prefix demands `Secure`, which it has if clients come
/// by https, to the balancer or to a proxy that says so (RFC 6265bis section 4.1.3).
fn prefixed_cookie(config: &Config, prefix: &str, sticky: &Sticky, mistakes: &mut Mistakes) {
    let Sticky::Cookie(name) = sticky else { return };
    let lower = name.to_ascii_lowercase();
    let has_prefix = ["__host-", "__secure-"].iter().any(|prefix| lower.starts_with(prefix));
    let of_site = config.sites.iter().any(|site| !site.tls.certificates.is_empty());
    let has_tls = config.tls.as_ref().is_some_and(|tls| of_site || tls.has_certificate())
        || !config.settings.trusted_proxies.is_empty()
        || config.settings.cookie_same_site == SameSite::None;
    let remedy = "browsers drop a cookie with this prefix that has not come by https: set tls.cert \
                  and tls.key, name the proxy in front that has TLS in trusted_proxies, or write \
                  another name";
    let key = format!("{prefix}sticky");
    mistakes.must(!has_prefix || has_tls, key, format_args!("{name:?}"), remedy);
}

fn sticky(prefix: &str, sticky: &Sticky, mistakes: &mut Mistakes) {
    let (name, holds) = match sticky {
        Sticky::None | Sticky::Ip => return,
        Sticky::Cookie(name) | Sticky::Header(name) => (name, is_token(name)),
        Sticky::Query(name) => {
            let plain = |b: u8| b.is_ascii_graphic() && !b"&=#?+%".contains(&b);
            (name, !name.is_empty() && name.bytes().all(plain))
        }
    };
    let remedy = "write a name of letters, digits, - and _";
    mistakes.must(holds, format!("{prefix}sticky"), format_args!("{name:?}"), remedy);
}

/// Checks that each backend of a pool can be reached from one of its sources.
fn sources(list: &List<'_>, sources: &[IpAddr], mistakes: &mut Mistakes) {
    let reached = |address: &SocketAddr| {
        sources.is_empty() || sources.iter().any(|source| reaches(*source, *address))
    };
    let mut addresses = list.backends.iter().filter_map(|backend| backend.address.socket_addr());
    if let Some(address) = addresses.find(|address| !reached(address)) {
        let all: Vec<String> = sources.iter().map(|source| format!("\"{source}\"")).collect();
        let kind = if address.is_ipv4() { "an IPv4" } else { "an IPv6" };
        let remedy = format!("from none of these {address} can be reached: add {kind} address");
        mistakes.add(
            format!("{}sources", list.prefix),
            format_args!("[{}]", all.join(", ")),
            remedy,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_backend_is_at_an_address_that_leads_back_or_to_more_than_one_machine() {
        let own = ["0.0.0.0:80", "[::]:81", "10.0.0.1:82", "127.0.0.1:83"];
        let own = own.map(|address| address.parse().unwrap());
        for machine in [
            Machine::with(Some(&["127.0.0.1", "::1", "10.0.0.1", "2001:db8::1"]), &["10.0.0.255"]),
            // The addresses are not listed: one of them is tried.
            Machine::with(None, &["10.0.0.255"]),
        ] {
            let check = |address: &str| check_backend_on(&machine, address.parse().unwrap(), &own);
            for address in [
                "127.0.0.1:80",
                "127.0.0.9:80",
                "[::ffff:127.0.0.1]:80",
                "[::1]:81",
                "127.0.0.1:81",
                "10.0.0.1:82",
                "[::ffff:10.0.0.1]:82",
                "127.0.0.1:83",
            ] {
                let remedy = check(address).unwrap_err();
                assert!(remedy.contains("the balancer itself listens on"), "{address}: {remedy}");
            }
            for address in [
                "0.0.0.0:9",
                "[::]:9",
                "[::ffff:0.0.0.0]:9",
                "224.0.0.1:9",
                "[ff02::1]:9",
                "255.255.255.255:9",
                "[::ffff:255.255.255.255]:9",
                "10.0.0.255:9",
                "127.0.0.1:0",
                "0.1.2.3:9",
                "240.0.0.1:9",
                "[::ffff:240.0.0.1]:9",
                "[fe80::1]:9",
            ] {
                assert!(check(address).is_err(), "{address}");
            }
            // Other ports of the machine, other machines, other loopback addresses.
            for address in [
                "127.0.0.1:84",
                "10.0.0.1:84",
                "203.0.113.7:80",
                "10.0.0.2:82",
                "127.0.0.2:83",
                "10.0.0.254:9",
                "127.255.255.254:9",
                "[fe80::1%2]:9",
                "1.0.0.0:9",
                "223.255.255.255:9",
            ] {
                assert_eq!(check(address), Ok(()), "{address}");
            }
        }
        let listed = Machine::with(Some(&["10.0.0.1", "2001:db8::1"]), &[]);
        for address in ["10.0.0.1:80", "[::ffff:10.0.0.1]:80", "[2001:db8::1]:81"] {
            assert!(
                check_backend_on(&listed, address.parse().unwrap(), &own).is_err(),
                "{address}"
            );
        }
    }

    #[test]
    fn a_host_has_a_name_or_an_address_and_may_have_a_port() {
        for host in ["a", "app.example.com", "a_b:1", "a:65535", "10.0.0.1:80", "[::1]", "[::1]:80"]
        {
            assert!(is_host(host), "{host}");
        }
        for host in [
            "", ":80", "a:", "a:0", "a:99999", "a:+1", "a:x", "a:1:2", "::1", "[::1", "[::1]80",
            "[::1]:", "[::1]:0", "[x]:80", "a b", "a/", "[]",
        ] {
            assert!(!is_host(host), "{host}");
        }
    }

    #[test]
    fn the_address_of_operators_and_those_with_tls_are_no_backends() {
        let text = "backends = [\"127.0.0.1:8081\", \"127.0.0.1:8443\"]\n\
                    [admin]\nlisten = \"127.0.0.1:8081\"\n";
        let mut config = Config::parse("backends = [\"127.0.0.1:1\"]", "balance.toml").unwrap();
        config.admin = Some("127.0.0.1:8081".parse().unwrap());
        config.backends =
            vec![BackendConfig::new("127.0.0.1:8081".parse::<PeerAddress>().unwrap())];
        assert!(config.check().unwrap_err().to_string().contains("itself listens on"));
        let errors = Config::parse(text, "balance.toml").unwrap_err().to_string();
        assert!(errors.contains("listens on 127.0.0.1:8081"), "{errors}");
        let listed = ClientSide {
            listen: vec!["127.0.0.1:8443".parse().unwrap()],
            ..ClientSide::without_certificate()
        };
        config.tls = Some(listed);
        config.backends =
            vec![BackendConfig::new("127.0.0.1:8443".parse::<PeerAddress>().unwrap())];
        assert!(config.check().unwrap_err().to_string().contains("itself listens on"));
    }
}
