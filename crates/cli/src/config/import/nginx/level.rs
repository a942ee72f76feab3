//! Directives that a level inherits: `http`, `server`, `location`.

use std::collections::BTreeSet;

use super::super::Left;
use super::super::output::{Table, quoted};
use super::super::parse::Directive;
use super::super::value::{duration, size, template};
use super::limits::Zones;

/// The directives in force at a level. A list of an inner level replaces the outer one's.
#[derive(Clone, Default)]
pub(super) struct Level {
    /// Variables with the value of Connection for an upgrade.
    pub(super) upgrade_variables: BTreeSet<String>,
    /// Keys of routes and sites whose meaning is the same.
    keys: Vec<(&'static str, String)>,
    access: Vec<(bool, String)>,
    limits: Vec<String>,
    limit_status: Option<u16>,
    request_headers: Vec<(String, String)>,
    host: Option<String>,
    response_headers: Vec<(String, String)>,
    hidden: Vec<String>,
    /// The time until a connection to a backend is made, which belongs to the pool.
    pub(super) connect: Option<String>,
    /// Restrictions that are not translated.
    pub(super) closed: Vec<Left>,
}

/// Directives without a counterpart that change no answer, or that are built in.
const WITHOUT_EFFECT: &[&str] = &[
    "access_log",
    "aio",
    "charset",
    "client_body_buffer_size",
    "client_body_timeout",
    "client_header_buffer_size",
    "default_type",
    "error_log",
    "etag",
    "gzip_buffers",
    "gzip_comp_level",
    "gzip_disable",
    "gzip_http_version",
    "gzip_min_length",
    "gzip_proxied",
    "gzip_types",
    "gzip_vary",
    "keepalive_requests",
    "large_client_header_buffers",
    "limit_req_log_level",
    "listen",
    "log_format",
    "log_not_found",
    "proxy_buffer_size",
    "proxy_buffering",
    "proxy_buffers",
    "proxy_busy_buffers_size",
    "proxy_cache_bypass",
    "proxy_headers_hash_bucket_size",
    "proxy_headers_hash_max_size",
    "proxy_http_version",
    "proxy_max_temp_file_size",
    "proxy_no_cache",
    "proxy_redirect",
    "proxy_request_buffering",
    "proxy_socket_keepalive",
    "proxy_ssl_server_name",
    "proxy_temp_file_write_size",
    "reset_timedout_connection",
    "resolver",
    "resolver_timeout",
    "sendfile",
    "sendfile_max_chunk",
    "send_timeout",
    "server_name",
    "server_names_hash_bucket_size",
    "server_names_hash_max_size",
    "server_tokens",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_ciphers",
    "ssl_dhparam",
    "ssl_ecdh_curve",
    "ssl_prefer_server_ciphers",
    "ssl_session_cache",
    "ssl_session_tickets",
    "ssl_session_timeout",
    "ssl_stapling",
    "ssl_stapling_verify",
    "ssl_trusted_certificate",
    "tcp_nodelay",
    "tcp_nopush",
    "types",
    "types_hash_bucket_size",
    "types_hash_max_size",
    "underscores_in_headers",
];

/// Directives that may restrict who gets what. Without a translation their location is closed.
fn restricts(name: &str) -> bool {
    let beginnings = ["allow", "deny", "auth_", "limit_", "satisfy", "if", "ssl_verify", "set"];
    let others = [
        "include",
        "internal",
        "rewrite",
        "secure_link",
        "valid_referers",
        "ssl_client_certificate",
        "ssl_crl",
        "geo",
        "js_access",
        "access_by_lua_file",
        "access_by_lua_block",
        "referer",
    ];
    beginnings.iter().any(|it| name.starts_with(it)) || others.contains(&name)
}

impl Level {
    /// Returns nginx's defaults that differ.
    pub(super) fn of_nginx() -> Self {
        Self { keys: vec![("max_body", "1MiB".to_owned())], ..Self::default() }
    }

    /// Reads the directives of a level, in place of inherited ones.
    pub(super) fn read<'d>(
        &mut self,
        directives: impl Iterator<Item = &'d Directive>,
        zones: &Zones,
        left: &mut Vec<Left>,
    ) {
        let all: Vec<&Directive> = directives.collect();
        let has = |names: &[&str]| all.iter().any(|one| names.contains(&one.name.as_str()));
        if has(&["allow", "deny"]) {
            self.access.clear();
        }
        if has(&["proxy_set_header"]) {
            (self.request_headers, self.host) = (Vec::new(), None);
        }
        if has(&["add_header"]) {
            self.response_headers.clear();
        }
        if has(&["limit_req"]) {
            self.limits.clear();
        }
        let status = all.iter().find(|one| one.name == "limit_req_status");
        if let Some(status) = status.and_then(|one| one.arg().parse().ok()) {
            self.limit_status = Some(status);
        }
        all.iter().for_each(|one| self.directive(one, zones, left));
        if self.allow_and_deny().is_none()
            && let Some(one) = all.iter().find(|one| matches!(one.name.as_str(), "allow" | "deny"))
        {
            self.closed.push(one.left(
                "here deny comes before allow: write networks for which the order does not matter",
            ));
        }
    }

    fn directive(&mut self, one: &Directive, zones: &Zones, left: &mut Vec<Left>) {
        let arg = one.arg();
        let mut key = |key, value: Option<String>| match value {
            Some(value) => {
                self.keys.retain(|(own, _)| *own != key);
                self.keys.push((key, value));
            }
            None => left.push(one.left("its value has another form here")),
        };
        match one.name.as_str() {
            "client_max_body_size" if arg == "0" => key("max_body", Some("unlimited".to_owned())),
            "client_max_body_size" => key("max_body", size(arg)),
            "proxy_read_timeout" => {
                key("timeouts.response", duration(arg));
                key("timeouts.tunnel", duration(arg));
            }
            "proxy_connect_timeout" => match duration(arg) {
                Some(time) => self.connect = Some(time),
                None => left.push(one.left("its value has another form here")),
            },
            "proxy_send_timeout" => key("timeouts.body", duration(arg)),
            "proxy_next_upstream_tries" if arg.parse::<u8>().is_ok_and(|tries| tries > 0) => {
                key("retries", arg.parse::<u8>().ok().map(|tries| (tries - 1).to_string()));
            }
            "allow" | "deny" => match network(arg) {
                Some(network) => self.access.push((one.name == "allow", network)),
                None => self.closed.push(one.left("a rule has networks alone")),
            },
            "limit_req" => match zones.limit(one, self.limit_status.unwrap_or(503)) {
                Ok(limit) => self.limits.push(limit),
                Err(problem) => self.closed.push(problem),
            },
            "limit_req_status" => {}
            "proxy_set_header" => self.request_header(one, left),
            "add_header" => match (one.args.get(1).and_then(|value| template(value)), arg) {
                (Some(value), name) => self.response_headers.push((name.to_owned(), value)),
                (None, _) => left.push(one.left("a variable has no counterpart")),
            },
            "proxy_hide_header" => self.hidden.push(arg.to_owned()),
            "satisfy" if arg == "all" => {}
            "gzip" if arg == "off" => {}
            "gzip" => left.push(one.left("let the pool compress its answers")),
            "client_header_timeout" | "keepalive_timeout" => {
                left.push(one.left("the whole file has one such time: timeouts"));
            }
            // They have their own places.
            "return" | "proxy_pass" | "location" | "server" => {}
            name if restricts(name) => {
                let why = "what it restricts is not translated, so its place answers with 503";
                self.closed.push(one.left(why));
            }
            name if WITHOUT_EFFECT.contains(&name) => {}
            _ => left.push(one.left("it has no counterpart")),
        }
    }

    fn request_header(&mut self, one: &Directive, left: &mut Vec<Left>) {
        let (name, value) = (one.arg(), one.args.get(1).map_or("", String::as_str));
        let is_built_in = match name.to_ascii_lowercase().as_str() {
            "host" => {
                self.host = Some(value.to_owned());
                return;
            }
            "upgrade" => value == "$http_upgrade",
            "connection" => {
                self.upgrade_variables.contains(value)
                    || ["", "upgrade", "Upgrade", "$http_connection", "keep-alive"].contains(&value)
            }
            "x-forwarded-for" => ["$proxy_add_x_forwarded_for", "$remote_addr"].contains(&value),
            "x-forwarded-proto" => value == "$scheme",
            "x-forwarded-host" => ["$host", "$http_host"].contains(&value),
            _ => false,
        };
        if is_built_in {
            return;
        }
        match template(value) {
            Some(value) => self.request_headers.push((name.to_owned(), value)),
            None => left.push(one.left("a variable has no counterpart")),
        }
    }

    /// Returns the networks of `allow` and `deny`; `None` if the order of the rules matters.
    fn allow_and_deny(&self) -> Option<(Vec<String>, Vec<String>)> {
        let mut rules = &self.access[..];
        let ends_with_deny = match rules.last() {
            Some((is_allow, network)) if network == "all" => {
                rules = &rules[..rules.len() - 1];
                !is_allow
            }
            _ => false,
        };
        let first_allow = rules.iter().position(|(is_allow, _)| *is_allow);
        let (deny, allow) = rules.split_at(first_allow.unwrap_or(rules.len()));
        let is_in_order = allow.iter().all(|(is_allow, _)| *is_allow)
            && rules.iter().all(|(_, network)| network != "all");
        // Without a final `deny all`, those that no rule names get through.
        if !is_in_order || (!allow.is_empty() && !ends_with_deny && !deny.is_empty()) {
            return None;
        }
        let networks = |rules: &[(bool, String)]| rules.iter().map(|(_, it)| it.clone()).collect();
        let (mut allow, mut deny): (Vec<String>, Vec<String>) = (networks(allow), networks(deny));
        if !ends_with_deny {
            allow.clear();
        } else if allow.is_empty() {
            deny = vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()];
        }
        Some((allow, deny))
    }

    /// Writes all that a route has. `host` is the name of the backends.
    pub(super) fn write(&self, host: Option<&str>, left: &mut Vec<Left>, table: &mut Table) {
        for (key, value) in &self.keys {
            match *key {
                "retries" => table.set(*key, value),
                _ => table.text(*key, value),
            }
        }
        if let Some((allow, deny)) = self.allow_and_deny() {
            for (key, networks) in [("allow", allow), ("deny", deny)] {
                if !networks.is_empty() {
                    table.list(key, &networks);
                }
            }
        }
        if !self.limits.is_empty() {
            table.list("limits", &self.limits);
        }
        if let Some(proxied) = host {
            self.write_host(proxied, left, table);
            write_map("request_headers.set", &self.request_headers, table);
        }
        write_map("response_headers.add", &self.response_headers, table);
        if !self.hidden.is_empty() {
            table.list("response_headers.remove", &self.hidden);
        }
    }

    /// Without `proxy_set_header Host`, a backend gets the name in `proxy_pass`.
    fn write_host(&self, proxied: &str, left: &mut Vec<Left>, table: &mut Table) {
        match self.host.as_deref() {
            Some("$host" | "$http_host" | "$host:$server_port") => {}
            Some("$proxy_host") | None if proxied.starts_with("unix:") => {
                table.text("host", "localhost");
            }
            Some("$proxy_host") | None => table.text("host", proxied),
            Some(name) if !name.contains('$') => table.text("host", name),
            Some(name) => left.push(Left {
                place: "proxy_set_header Host".to_owned(),
                directive: name.to_owned(),
                why: "a variable has no counterpart: the host of the client is sent".to_owned(),
            }),
        }
    }
}

fn write_map(key: &str, headers: &[(String, String)], table: &mut Table) {
    let pair = |(name, value): &(String, String)| format!("{} = {}", quoted(name), quoted(value));
    if !headers.is_empty() {
        let pairs: Vec<String> = headers.iter().map(pair).collect();
        table.set(key, format!("{{ {} }}", pairs.join(", ")));
    }
}

/// Returns a network, or `all`; `None` for what is neither.
fn network(text: &str) -> Option<String> {
    let is_one = text == "all" || text.parse::<throng_http::Network>().is_ok();
    is_one.then(|| text.to_owned())
}
