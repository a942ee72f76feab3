//! Conversion of values to a [`Config`].

use std::sync::{Arc, OnceLock};

use throng_config::listen::listen_addresses;
use throng_config::{Draft, LogSettings, Record, UpgradeSettings, drain_delay};

use super::{
    BackendConfig, Config, NamedBackend, PoolConfig, Register, Shutdown, defaults, limits,
    listeners, policy, server_names, site_tls, sites, sources, tls,
};
use crate::config::Token;
use crate::cookie::CookieKey;
use crate::pool::{DEFAULT_POOL, PoolSettings};
use crate::settings::{Check, CheckKind, Health, Settings, Timeouts};

pub(super) fn read(draft: &Draft) -> Config {
    let top = draft.top();
    let (backends, names, places) = backends(&top);
    let mut passthrough = backends.iter().map(|backend| &backend.passthrough);
    let passes_through = passthrough.any(|names| !names.is_empty())
        || names.iter().any(|named| !named.passthrough.is_empty());
    let (unix_mode, share_port) = (unix_mode(draft), draft.get("share_port"));
    let listeners = listeners::listeners(draft, unix_mode, share_port);
    let has_listen = listeners.is_empty() || draft.values().is_set("listen");
    let listen = if has_listen { listen_addresses(draft, "listen") } else { Vec::new() };
    let pages = policy::Pages::default();
    let sites = sites::sites(draft, &pages);
    let of_sites = site_tls::of_sites(draft, &sites);
    let mut config = Config {
        listen,
        listeners,
        share_port,
        unix_mode,
        shards: draft.get("shards"),
        is_pinned: draft.get::<String>("pin") == "cores",
        descriptors: draft.parse("descriptors").unwrap_or_default(),
        backends,
        tls: tls::client_side(draft, passes_through, of_sites),
        backend_tls: tls::backend_side(&top, "backend_tls"),
        names,
        pools: Vec::new(),
        lookup_interval: draft.get("lookup_interval"),
        sites,
        limits: limits::limits(draft),
        policy: policy::policy(&draft.top(), &pages),
        settings: settings(draft),
        register: register(draft),
        admin: draft.get("admin.listen"),
        admin_token: draft.secret("admin.token", "admin.token_file", Token::new),
        shutdown: Shutdown {
            delay: draft.get::<Option<_>>("shutdown.delay").unwrap_or_else(drain_delay),
            window: draft.get("shutdown.window"),
            deadline: draft.get("shutdown.deadline"),
        },
        upgrade: UpgradeSettings::from_draft(draft),
        strict_start: draft.get("strict_start"),
        log: LogSettings::from_draft(draft),
        warnings: Vec::new(),
        places,
        values: None,
        compiled: OnceLock::new(),
    };
    for (place, record) in draft.records("pools").into_iter().enumerate() {
        let pool = pool(&record, &top, place, &config);
        if *pool.name == *DEFAULT_POOL && !draft.values().is_set("backends") {
            config.settings.set_pool(pool.settings);
            (config.backends, config.names, config.places) =
                (pool.backends, pool.names, pool.places);
            config.backend_tls = pool.tls;
        } else {
            config.pools.push(pool);
        }
    }
    config
}

/// Reads the permissions of the files of Unix sockets.
fn unix_mode(draft: &Draft) -> u32 {
    let text: Option<String> = draft.get("unix_mode");
    text.map_or(Some(0o660), |text| listeners::octal(&text)).unwrap_or_else(|| {
        draft.wrong("unix_mode", listeners::OCTAL);
        0o660
    })
}

/// Reads the list `backends` of a pool. Returns those with addresses, those with names, and the
/// places of the first in the list.
fn backends(record: &Record<'_>) -> (Vec<BackendConfig>, Vec<NamedBackend>, Vec<usize>) {
    let (mut backends, mut places, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let is_default = record.key().is_empty();
    for (at, record) in record.records("backends").into_iter().enumerate() {
        let (weight, send_proxy) = (record.get("weight"), record.get("send_proxy"));
        let (max_connections, backup) = (record.get("max_connections"), record.get("backup"));
        let tls = record.get("tls");
        let tls_name = record.get::<Option<String>>("tls_name").map(Arc::from);
        let passthrough = if is_default { record.get("passthrough") } else { Vec::new() };
        let passthrough = server_names(passthrough);
        let host: String = record.get("address");
        match host.parse() {
            Ok(address) => {
                backends.push(BackendConfig {
                    address,
                    weight,
                    send_proxy,
                    tls,
                    tls_name,
                    passthrough,
                    max_connections,
                    backup,
                });
                places.push(at);
            }
            Err(_) => names.push(NamedBackend {
                name: host.into(),
                weight,
                send_proxy,
                tls,
                tls_name,
                passthrough,
                max_connections,
                backup,
            }),
        }
    }
    (backends, names, places)
}

/// Reads a pool. Values that it omits are the ones of the whole file.
fn pool(own: &Record<'_>, top: &Record<'_>, place: usize, config: &Config) -> PoolConfig {
    let (backends, names, places) = backends(own);
    let record = own.within(top);
    let settings = PoolSettings {
        pick: record.parse("pick").unwrap_or_default(),
        sticky: record.parse("sticky").unwrap_or_default(),
        cookie_key: config.settings.cookie_key.clone(),
        max_handshakes: record.get("max_handshakes"),
        // Of the whole file it is the limit of clients.
        max_connections: own.get("max_connections"),
        max_queue: record.get("max_queue"),
        queue: record.get("timeouts.queue"),
        keep_alive: record.get("keep_alive"),
        fallback: own.get::<Option<String>>("fallback").map(Arc::from),
        slow_start: record.get("slow_start"),
        close_rate: record.get("close_rate"),
        removed: record.parse("removed").unwrap_or_default(),
        // The whole file's are parsed once.
        sources: match own.is_set("sources") {
            true => sources::unite(own.parse_list("sources")).into(),
            false => Arc::clone(&config.settings.sources),
        },
        connect: record.get("timeouts.connect"),
        health: health(&record),
    };
    // Certificates and authorities belong together: a table is not completed from another one.
    let tls = match own.has_section("tls") {
        true => tls::backend_side(own, "tls"),
        false => config.backend_tls.clone(),
    };
    PoolConfig {
        name: own.get::<String>("name").into(),
        backends,
        names,
        settings,
        tls,
        place,
        places,
    }
}

/// The defaults of the table.
impl Default for Settings {
    fn default() -> Self {
        settings(&defaults())
    }
}

/// The defaults of the table.
impl Default for Timeouts {
    fn default() -> Self {
        timeouts(&defaults())
    }
}

/// The defaults of the table.
impl Default for Health {
    fn default() -> Self {
        health(&defaults().top())
    }
}

fn settings(draft: &Draft) -> Settings {
    let secret = draft.secret("cookie_secret", "cookie_secret_file", Token::new);
    Settings {
        pick: draft.parse("pick").unwrap_or_default(),
        sticky: draft.parse("sticky").unwrap_or_default(),
        cookie_key: secret.as_ref().map(CookieKey::of).unwrap_or_default(),
        cookie_same_site: draft.parse("cookie_same_site").unwrap_or_default(),
        trusted_proxies: draft.parse_list("trusted_proxies"),
        drop_headers: draft.get("drop_headers"),
        request_ids: draft.get("request_ids"),
        loop_id: draft.get("loop_id"),
        accept_proxy: draft.get("accept_proxy"),
        timeouts: timeouts(draft),
        max_handshakes: draft.get("max_handshakes"),
        max_backend_connections: 0,
        max_queue: draft.get("max_queue"),
        retries: draft.get("retries"),
        keep_alive: draft.get("keep_alive"),
        fallback: None,
        max_connections: draft.get("max_connections"),
        max_connections_per_address: draft.get("max_connections_per_address"),
        max_tls_memory: draft.get("max_tls_memory"),
        max_header_bytes: draft.get("max_header_bytes"),
        max_headers: draft.get("max_headers"),
        max_response_header_bytes: draft.get("max_response_header_bytes"),
        max_response_headers: draft.get("max_response_headers"),
        max_body: draft.get::<Option<u64>>("max_body").unwrap_or(u64::MAX),
        min_body_rate: draft.get("min_body_rate"),
        min_response_rate: draft.get("min_response_rate"),
        sources: sources::unite(draft.parse_list("sources")).into(),
        slow_start: draft.get("slow_start"),
        close_rate: draft.get("close_rate"),
        removed: draft.parse("removed").unwrap_or_default(),
        health: health(&draft.top()),
    }
}

fn health(record: &Record<'_>) -> Health {
    Health {
        observe: record.parse("health.observe").unwrap_or_default(),
        failures: record.get("health.failures"),
        within: record.get("health.within"),
        down_for: record.get("health.down_for"),
        check: check(record),
    }
}

fn timeouts(draft: &Draft) -> Timeouts {
    Timeouts {
        connect: draft.get("timeouts.connect"),
        response: draft.get("timeouts.response"),
        upgrade: draft.get("timeouts.upgrade"),
        body: draft.get("timeouts.body"),
        head: draft.get("timeouts.head"),
        keep_alive: draft.get("timeouts.keep_alive"),
        tunnel: draft.get("timeouts.tunnel"),
        half_closed: draft.get("timeouts.half_closed"),
        close: draft.get("timeouts.close"),
        queue: draft.get("timeouts.queue"),
    }
}

fn check(record: &Record<'_>) -> Option<Check> {
    if !record.has_section("health.check") {
        return None;
    }
    let path =
        || record.get::<Option<String>>("health.check.path").unwrap_or_else(|| "/".to_owned());
    let kind = match record.get::<String>("health.check.kind").as_str() {
        "none" => return None,
        "tcp" => CheckKind::Tcp,
        "http" => CheckKind::Http(path()),
        "websocket" => CheckKind::WebSocket(path()),
        _ => {
            record.wrong_field(
                "health.check",
                "the kind of check is missing: add kind = \"tcp\", \"http\" or \"websocket\"",
            );
            return None;
        }
    };
    for (key, what) in [("health.check.path", "path"), ("health.check.host", "host")] {
        if kind == CheckKind::Tcp && record.is_set(key) {
            let remedy = format!(
                "a check of kind \"tcp\" has no {what}: drop it, or write kind = \"http\" or \
                 \"websocket\""
            );
            record.wrong_field(key, remedy);
        }
    }
    Some(Check {
        kind,
        host: record.get("health.check.host"),
        interval: record.get("health.check.interval"),
        timeout: record.get("health.check.timeout"),
        rise: record.get("health.check.rise"),
        fall: record.get("health.check.fall"),
    })
}

fn register(draft: &Draft) -> Option<Register> {
    if !draft.values().has_section("register") {
        return None;
    }
    let Some(token) = draft.secret("register.token", "register.token_file", Token::new) else {
        let remedy =
            "the token that backends send is missing: add token_file = \"token\", or token";
        draft.wrong("register", remedy);
        return None;
    };
    Some(Register {
        token,
        time_to_live: draft.get("register.time_to_live"),
        networks: draft.parse_list("register.networks"),
    })
}
