//! Conversion of values to a [`Config`].

use std::sync::Arc;

use throng_config::listen::tcp_addresses;
use throng_config::{Draft, LogSettings, UpgradeSettings, drain_delay};

use super::{
    BackendConfig, Config, NamedBackend, Register, Shutdown, defaults, server_names, sites,
    sources, tls,
};
use crate::config::Token;
use crate::cookie::CookieKey;
use crate::settings::{Check, CheckKind, Health, Settings, Timeouts};

pub(super) fn read(draft: &Draft) -> Config {
    let (mut backends, mut places, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let mut passes_through = false;
    for (at, record) in draft.records("backends").into_iter().enumerate() {
        let (weight, send_proxy) = (record.get("weight"), record.get("send_proxy"));
        let tls = record.get("tls");
        let tls_name = record.get::<Option<String>>("tls_name").map(Arc::from);
        let passthrough = server_names(record.get("passthrough"));
        passes_through |= !passthrough.is_empty();
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
            }),
        }
    }
    Config {
        listen: tcp_addresses(draft, "listen"),
        shards: draft.get("shards"),
        descriptors: draft.parse("descriptors").unwrap_or_default(),
        backends,
        tls: tls::client_side(draft, passes_through),
        backend_tls: tls::backend_side(draft),
        names,
        lookup_interval: draft.get("lookup_interval"),
        sites: sites::sites(draft),
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
        health(&defaults())
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
        retries: draft.get("retries"),
        keep_alive: draft.get("keep_alive"),
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
        sources: sources::unite(draft.parse_list("sources")),
        slow_start: draft.get("slow_start"),
        close_rate: draft.get("close_rate"),
        removed: draft.parse("removed").unwrap_or_default(),
        health: health(draft),
    }
}

fn health(draft: &Draft) -> Health {
    Health {
        observe: draft.parse("health.observe").unwrap_or_default(),
        failures: draft.get("health.failures"),
        within: draft.get("health.within"),
        down_for: draft.get("health.down_for"),
        check: check(draft),
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

fn check(draft: &Draft) -> Option<Check> {
    if !draft.values().has_section("health.check") {
        return None;
    }
    let path =
        || draft.get::<Option<String>>("health.check.path").unwrap_or_else(|| "/".to_owned());
    let kind = match draft.get::<String>("health.check.kind").as_str() {
        "tcp" => CheckKind::Tcp,
        "http" => CheckKind::Http(path()),
        "websocket" => CheckKind::WebSocket(path()),
        _ => {
            draft.wrong(
                "health.check",
                "the kind of check is missing: add kind = \"tcp\", \"http\" or \"websocket\"",
            );
            return None;
        }
    };
    for (key, what) in [("health.check.path", "path"), ("health.check.host", "host")] {
        if kind == CheckKind::Tcp && draft.values().is_set(key) {
            let remedy = format!(
                "a check of kind \"tcp\" has no {what}: drop it, or write kind = \"http\" or \
                 \"websocket\""
            );
            draft.wrong(key, remedy);
        }
    }
    Some(Check {
        kind,
        host: draft.get("health.check.host"),
        interval: draft.get("health.check.interval"),
        timeout: draft.get("health.check.timeout"),
        rise: draft.get("health.check.rise"),
        fall: draft.get("health.check.fall"),
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
