//! The keys of the whole file, of sites and of routes for what happens to requests and answers.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use throng_config::{Key, Kind, Record};

use crate::meter::TunnelRates;
use crate::site::{
    HeaderRulesConfig, MAX_PAGES, Page, PathChange, PolicyConfig, RouteTimes, TunnelTimes,
};

/// The keys that sites and routes have alike.
pub(super) const KEYS: &[Key] = &[
    REQUEST_SET,
    REQUEST_ADD,
    REQUEST_REMOVE,
    RESPONSE_SET,
    RESPONSE_ADD,
    RESPONSE_REMOVE,
    HOST,
    REQUEST_ID,
    ERROR_PAGES,
    STRIP_PREFIX,
    REWRITE,
    RESPONSE,
    UPGRADE,
    BODY,
    TUNNEL,
    HALF_CLOSED,
    MESSAGES,
    MESSAGES_BURST,
    BYTES,
    BYTES_BURST,
    OVER,
    MAX_LIFETIME,
    RETRIES,
    MAX_BODY,
    MIN_BODY_RATE,
    MIN_RESPONSE_RATE,
];

const VALUES: Kind = Kind::Map(&Kind::Text("a value such as \"${client}\""));
const NAMES: Kind = Kind::List(&Kind::Text("the name of a header such as \"Server\""));

pub(super) const REQUEST_SET: Key = Key::new(
    "request_headers.set",
    VALUES,
    "",
    "headers that requests for backends have, in place of those of the client; with variables; an \
     empty one is not sent",
);
pub(super) const REQUEST_ADD: Key =
    Key::new("request_headers.add", VALUES, "", "headers that requests have besides");
pub(super) const REQUEST_REMOVE: Key =
    Key::new("request_headers.remove", NAMES, "", "headers of clients that requests do not have");
pub(super) const RESPONSE_SET: Key = Key::new(
    "response_headers.set",
    VALUES,
    "",
    "headers that answers have, in place of those of the backend; with variables; an empty one is \
     not sent",
);
pub(super) const RESPONSE_ADD: Key =
    Key::new("response_headers.add", VALUES, "", "headers that answers have besides");
pub(super) const RESPONSE_REMOVE: Key =
    Key::new("response_headers.remove", NAMES, "", "headers of backends that answers do not have");
pub(super) const HOST: Key = Key::new(
    "host",
    Kind::Text("a host such as \"app.internal\""),
    "",
    "Host of requests for backends; ${backend} = the backend's own; if not set, the client's",
);

pub(super) const REQUEST_ID: Key = Key::new(
    "request_id",
    Kind::Word(&["pass", "add", "replace"]),
    "",
    "X-Request-ID: pass = the client's, or request_ids; add = a trusted proxy's stays, others are \
     replaced; replace = all are replaced; if not set, pass",
);

pub(super) const STRIP_PREFIX: Key = Key::new(
    "strip_prefix",
    Kind::Text("the beginning of a path such as \"/api\""),
    "",
    "beginning that is taken off the path for backends, which get it in X-Forwarded-Prefix",
);
pub(super) const REWRITE: Key = Key::new(
    "rewrite",
    Kind::Text("a path such as \"/v2/${param.rest}\""),
    "",
    "path for backends, with ${path}, ${query}, ${uri} and ${param.NAME}; the query stays unless \
     it has one",
);

const TIMEOUT: Kind = Kind::POSITIVE_DURATION;

pub(super) const RESPONSE: Key =
    Key::new("timeouts.response", TIMEOUT, "", "as of the whole file, for these requests");
pub(super) const UPGRADE: Key =
    Key::new("timeouts.upgrade", TIMEOUT, "", "as of the whole file, for these handshakes");
pub(super) const BODY: Key =
    Key::new("timeouts.body", TIMEOUT, "", "as of the whole file, for these requests");
pub(super) const RETRIES: Key =
    Key::new("retries", Kind::count(0, 255), "", "as of the whole file, for these requests");
pub(super) const MAX_BODY: Key = Key::new(
    "max_body",
    Kind::Or("unlimited", &Kind::SIZE),
    "",
    "as of the whole file, for these requests",
);
pub(super) const MIN_BODY_RATE: Key =
    Key::new("min_body_rate", Kind::SIZE, "", "as of the whole file, for these requests");
pub(super) const MIN_RESPONSE_RATE: Key =
    Key::new("min_response_rate", Kind::SIZE, "", "as of the whole file, for these answers");

pub(super) const TUNNEL: Key = Key::new(
    "timeouts.tunnel",
    TIMEOUT,
    "",
    "as of the whole file, for these tunnels, also for open ones",
);
pub(super) const HALF_CLOSED: Key = Key::new(
    "timeouts.half_closed",
    TIMEOUT,
    "",
    "as of the whole file, for these tunnels, also for open ones",
);

fn tunnel(record: &Record<'_>) -> TunnelTimes {
    TunnelTimes {
        tunnel: record.get("timeouts.tunnel"),
        half_closed: record.get("timeouts.half_closed"),
        rates: rates(record),
    }
}

const RATE: Kind = Kind::count(1, u32::MAX as u64);
const BYTE_RATE: Kind = Kind::size(1 << 10, 1 << 40);

pub(super) const MESSAGES: Key = Key::new(
    "tunnel.messages_per_second",
    RATE,
    "",
    "messages of a client in a tunnel, pings included; if not set, any number",
);
pub(super) const MESSAGES_BURST: Key = Key::new(
    "tunnel.messages_burst",
    RATE,
    "",
    "messages at once; if not set, as many as in a second",
);
pub(super) const BYTES: Key = Key::new(
    "tunnel.bytes_per_second",
    BYTE_RATE,
    "",
    "bytes of a client in a tunnel; if not set, any number",
);
pub(super) const BYTES_BURST: Key = Key::new(
    "tunnel.bytes_burst",
    BYTE_RATE,
    "",
    "bytes at once; if not set, as many as in a second",
);
pub(super) const OVER: Key = Key::new(
    "tunnel.over",
    Kind::Word(&["throttle", "close"]),
    "throttle",
    "beyond a rate: throttle = the client is not read until it is within it, close = also Close \
     1008",
);
pub(super) const MAX_LIFETIME: Key = Key::new(
    "tunnel.max_lifetime",
    TIMEOUT,
    "",
    "time after which a tunnel gets Close 1001, 10 % less or more; if not set, none",
);

fn rates(record: &Record<'_>) -> TunnelRates {
    let rates = TunnelRates {
        messages_per_second: record.get("tunnel.messages_per_second"),
        messages_burst: record.get("tunnel.messages_burst"),
        bytes_per_second: record.get("tunnel.bytes_per_second"),
        bytes_burst: record.get("tunnel.bytes_burst"),
        over: if record.is_set("tunnel.over") { record.parse("tunnel.over") } else { None },
        max_lifetime: record.get("tunnel.max_lifetime"),
    };
    let is_missing = [
        ("tunnel.messages_burst", "messages_per_second", rates.messages_per_second.is_none()),
        ("tunnel.bytes_burst", "bytes_per_second", rates.bytes_per_second.is_none()),
    ];
    for (field, rate, is_missing) in is_missing {
        if is_missing && record.is_set(field) {
            record.wrong_field(field, format!("it is the burst of a rate: add tunnel.{rate}"));
        }
    }
    rates
}

pub(super) const ERROR_PAGES: Key = Key::new(
    "error_pages",
    Kind::Map(&Kind::Path),
    "",
    "files that the balancer answers with instead of a line of text, by status: 502 = \
     \"down.html\"; at most 64KiB each; backends' own errors pass",
);
pub(super) const MAINTENANCE: Key = Key::new(
    "maintenance",
    Kind::Path,
    "",
    "file that all its requests are answered with, and 503; open tunnels go on",
);
pub(super) const MAINTENANCE_EXCEPT: Key = Key::new(
    "maintenance_except",
    Kind::List(&Kind::Text("a network such as \"10.0.0.0/8\"")),
    "",
    "networks of clients that it serves in maintenance",
);
pub(super) const RESPOND_FILE: Key = Key::new(
    "respond.file",
    Kind::Path,
    "",
    "file that is answered, read when the configuration is loaded; at most 64KiB",
);

/// The files of a configuration, each read once.
#[derive(Default)]
pub(super) struct Pages(RefCell<HashMap<PathBuf, Option<Page>>>);

impl Pages {
    /// Reads a file that a field names; `None` if it has a mistake, which is added.
    pub(super) fn read(&self, record: &Record<'_>, field: &str, path: PathBuf) -> Option<Page> {
        if let Some(known) = self.0.borrow().get(&path) {
            return known.clone();
        }
        let read = Page::read(&path);
        let mut known = self.0.borrow_mut();
        let sum: usize = known.values().flatten().map(Page::len).sum();
        let page = match read {
            Ok(page) if sum + page.len() <= MAX_PAGES => Some(page),
            Ok(_) => {
                let remedy = "all files of answers together have at most 4MiB: let a backend serve \
                              it, for example `throng serve --dir`";
                record.wrong_field(field, remedy);
                None
            }
            Err(remedy) => {
                record.wrong_field(field, remedy);
                None
            }
        };
        known.insert(path, page.clone());
        page
    }

    /// Reads the file of a field, if it is set.
    pub(super) fn of_field(&self, record: &Record<'_>, field: &str) -> Option<Page> {
        self.read(record, field, record.path(field)?)
    }
}

fn error_pages(record: &Record<'_>, pages: &Pages) -> Vec<(u16, Page)> {
    let mut all = Vec::new();
    for (name, path) in record.path_map("error_pages") {
        let field = format!("error_pages.{name}");
        match name.parse::<u16>() {
            Ok(status @ 400..=599) => {
                all.extend(pages.read(record, &field, path).map(|page| (status, page)));
            }
            _ => record.wrong_field(&field, "write a status of 400 to 599, for example 502"),
        }
    }
    all
}

fn times(record: &Record<'_>) -> RouteTimes {
    // `unlimited` has no number either.
    let is_limited = record.is_set("max_body");
    RouteTimes {
        response: record.get("timeouts.response"),
        upgrade: record.get("timeouts.upgrade"),
        body: record.get("timeouts.body"),
        retries: record.get("retries"),
        max_body: is_limited.then(|| record.get::<Option<u64>>("max_body").unwrap_or(u64::MAX)),
        min_body_rate: record.get("min_body_rate"),
        min_response_rate: record.get("min_response_rate"),
    }
}

/// Reads the keys of a site or a route.
pub(super) fn of_site(record: &Record<'_>, pages: &Pages) -> PolicyConfig {
    // Most routes of large files have none of them.
    if !record.has_any(KEYS) {
        return PolicyConfig::default();
    }
    let text = |field| record.get::<Option<String>>(field);
    let path = match (text("strip_prefix"), text("rewrite")) {
        (Some(_), Some(_)) => {
            record.wrong_field("rewrite", "there is strip_prefix, too: keep one of the two");
            None
        }
        (Some(prefix), None) => Some(PathChange::Strip(prefix)),
        (None, to) => to.map(PathChange::Rewrite),
    };
    PolicyConfig { path, times: times(record), tunnel: tunnel(record), ..policy(record, pages) }
}

/// Reads the keys of the whole file, a site or a route.
pub(super) fn policy(record: &Record<'_>, pages: &Pages) -> PolicyConfig {
    PolicyConfig {
        request_headers: headers(record, ["set", "add", "remove"].map(|it| ("request", it))),
        response_headers: headers(record, ["set", "add", "remove"].map(|it| ("response", it))),
        request_id: record.parse("request_id"),
        host: record.get("host"),
        path: None,
        error_pages: error_pages(record, pages),
        hsts: None,
        times: RouteTimes::default(),
        tunnel: TunnelTimes::default(),
    }
}

fn headers(record: &Record<'_>, [set, add, remove]: [(&str, &str); 3]) -> HeaderRulesConfig {
    let key = |(side, kind)| format!("{side}_headers.{kind}");
    let pairs = |of| {
        let values: BTreeMap<String, String> = record.get(&key(of));
        values.into_iter().collect()
    };
    HeaderRulesConfig { set: pairs(set), add: pairs(add), remove: record.get(&key(remove)) }
}
