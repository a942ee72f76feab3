//! Upstreams, and the addresses of `proxy_pass`, as pools.

use std::collections::BTreeMap;

use super::super::Left;
use super::super::output::{Table, quoted};
use super::super::parse::Directive;
use super::Names;

/// The pools, by the name in nginx, whether backends have TLS, and the name of the host.
#[derive(Default)]
pub(super) struct Pools {
    upstreams: BTreeMap<String, Table>,
    /// By `SCHEME://HOST`.
    used: BTreeMap<String, (String, Table)>,
    names: Names,
}

/// The backend of a `proxy_pass`.
pub(super) struct Target<'d> {
    is_tls: bool,
    pub(super) host: &'d str,
    /// The path, if there is one: it takes the place of what a location matches.
    pub(super) uri: Option<&'d str>,
}

impl<'d> Target<'d> {
    pub(super) fn parse(url: &'d str) -> Option<Self> {
        let (is_tls, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return None,
        };
        if let Some(path) = rest.strip_prefix("unix:") {
            let (host, uri) = match path.split_once(':') {
                Some((path, "")) => (path, None),
                Some((path, uri)) => (path, Some(uri)),
                None => (path, None),
            };
            let host = &rest[..host.len() + "unix:".len()];
            return Some(Self { is_tls, host, uri });
        }
        let (host, uri) = match rest.find('/') {
            Some(at) => (&rest[..at], Some(&rest[at..])),
            None => (rest, None),
        };
        let is_literal = !host.is_empty() && !url.contains('$');
        is_literal.then_some(Self { is_tls, host, uri })
    }
}

impl Pools {
    /// Reads `upstream NAME { ... }`.
    pub(super) fn upstream(&mut self, directive: &Directive, left: &mut Vec<Left>) {
        let name = directive.arg().to_owned();
        let mut table = Table::new("[[pool]]", format!("{}: upstream {name}", directive.place()));
        table.set("name", "\"\"");
        table.set("backends", "[]");
        table.text("pick", "round_robin");
        let mut backends = Vec::new();
        let (mut failures, mut down_for) = (None, None);
        for inner in directive.block.iter().flatten() {
            match (inner.name.as_str(), inner.arg()) {
                ("server", _) => {
                    if let Some(backend) = backend(inner, left, &mut failures, &mut down_for) {
                        backends.push(backend);
                    }
                }
                ("least_conn", _) => table.text("pick", "least_connections"),
                ("ip_hash", _) | ("hash", "$remote_addr" | "$binary_remote_addr") => {
                    table.text("sticky", "ip");
                }
                ("random", _) => table.text("pick", "random"),
                ("keepalive", number) if number.parse::<u32>().is_ok() => {
                    table.set("keep_alive", number);
                }
                ("hash", key) => match sticky(key) {
                    Some(sticky) => table.text("sticky", &sticky),
                    None => left.push(inner.left("choose a header, cookie or parameter: sticky")),
                },
                ("zone" | "keepalive_timeout" | "keepalive_requests" | "keepalive_time", _) => {}
                _ => left.push(inner.left("a pool has no such setting")),
            }
        }
        table.set("backends", format!("[{}]", backends.join(", ")));
        if let Some(failures) = failures.filter(|failures| *failures > 0) {
            table.set("health.failures", failures.to_string());
        }
        if let Some(time) = down_for {
            table.text("health.within", &time);
            table.text("health.down_for", &time);
        }
        self.upstreams.insert(name, table);
    }

    /// Returns the name of the pool of a target.
    pub(super) fn pool(
        &mut self,
        target: &Target<'_>,
        directive: &Directive,
        connect: Option<&str>,
    ) -> String {
        let scheme = if target.is_tls { "https" } else { "http" };
        let key = format!("{scheme}://{}", target.host);
        if let Some((name, _)) = self.used.get(&key) {
            return name.clone();
        }
        let name = self.names.unused(target.host.trim_start_matches("unix:"));
        let mut table = match self.upstreams.get(target.host) {
            Some(upstream) => upstream.clone(),
            None => {
                let place = format!("{}: {}", directive.place(), directive.written());
                let mut table = Table::new("[[pool]]", place);
                let port = if target.is_tls { 443 } else { 80 };
                table.set("name", "\"\"");
                table.list("backends", &[with_port(target.host, port)]);
                table
            }
        };
        table.text("name", &name);
        if let Some(time) = connect {
            table.text("timeouts.connect", time);
        }
        if target.is_tls {
            // As nginx, unless proxy_ssl_verify is on.
            table.set("tls.verify", "false");
        }
        self.used.insert(key, (name.clone(), table));
        name
    }

    pub(super) fn tables(&self) -> Vec<&Table> {
        self.used.values().map(|(_, table)| table).collect()
    }
}

/// Reads a `server` of an upstream, as TOML.
fn backend(
    server: &Directive,
    left: &mut Vec<Left>,
    failures: &mut Option<u32>,
    down_for: &mut Option<String>,
) -> Option<String> {
    let mut fields = vec![format!("address = {}", quoted(&with_port(server.arg(), 80)))];
    for arg in server.args.iter().skip(1) {
        match arg.split_once('=') {
            None if arg == "down" => return None,
            None if arg == "backup" => fields.push("backup = true".to_owned()),
            Some(("weight", weight)) if is_number(weight) => {
                fields.push(format!("weight = {weight}"));
            }
            Some(("max_conns", most)) if is_number(most) => {
                fields.push(format!("max_connections = {most}"));
            }
            Some(("max_fails", number)) => *failures = number.parse().ok(),
            Some(("fail_timeout", time)) => *down_for = super::super::value::duration(time),
            None if arg == "resolve" => {}
            _ => left.push(server.left(format!("a backend has no {arg}"))),
        }
    }
    Some(match &fields[..] {
        [_] => quoted(&with_port(server.arg(), 80)),
        _ => format!("{{ {} }}", fields.join(", ")),
    })
}

fn is_number(text: &str) -> bool {
    text.parse::<u32>().is_ok()
}

/// Returns an address with a port, unless it has one or is a path.
fn with_port(host: &str, port: u16) -> String {
    let after_address = host.rsplit(']').next().unwrap_or(host);
    match host.starts_with("unix:") || after_address.contains(':') {
        true => host.to_owned(),
        false => format!("{host}:{port}"),
    }
}

fn sticky(key: &str) -> Option<String> {
    let kinds = [("$http_", "header:"), ("$cookie_", "cookie:"), ("$arg_", "query:")];
    let (kind, name) = kinds.iter().find_map(|(is, kind)| Some((*kind, key.strip_prefix(is)?)))?;
    // A cookie of the application is not the balancer's own.
    let is_plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_plain && kind != "cookie:").then(|| format!("{kind}{}", name.replace('_', "-")))
}
