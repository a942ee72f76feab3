//! The keys of the whole file, of sites and of routes for what happens to requests and answers.

use std::collections::BTreeMap;

use throng_config::{Key, Kind, Record};

use crate::site::{HeaderRulesConfig, PathChange, PolicyConfig};

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
    "path for backends, with ${path}, ${query}, ${uri} and ${param.NAME}; the query stays unless it \
     has one",
);

/// Reads the keys of a site or a route.
pub(super) fn of_site(record: &Record<'_>) -> PolicyConfig {
    let text = |field| record.get::<Option<String>>(field);
    let path = match (text("strip_prefix"), text("rewrite")) {
        (Some(_), Some(_)) => {
            record.wrong_field("rewrite", "there is strip_prefix, too: keep one of the two");
            None
        }
        (Some(prefix), None) => Some(PathChange::Strip(prefix)),
        (None, to) => to.map(PathChange::Rewrite),
    };
    PolicyConfig { path, ..policy(record) }
}

/// Reads the keys of the whole file, a site or a route.
pub(super) fn policy(record: &Record<'_>) -> PolicyConfig {
    PolicyConfig {
        request_headers: headers(record, ["set", "add", "remove"].map(|it| ("request", it))),
        response_headers: headers(record, ["set", "add", "remove"].map(|it| ("response", it))),
        request_id: record.parse("request_id"),
        host: record.get("host"),
        path: None,
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
