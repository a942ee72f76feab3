//! The tables of sites and their routes.

use std::collections::BTreeMap;
use std::sync::Arc;

use throng_config::{Defaults, Draft, Key, Kind, Record, Records, joined_keys, number_of_keys};

use super::policy::{self, Pages};
use super::site_tls;
use crate::site::{
    GuardConfig, Matchers, PolicyConfig, RouteAction, RouteConfig, Secrets, SiteConfig,
    SplitConfig, Template, ValuePattern,
};

/// The action of a request, of sites and routes alike.
const POOL: Key = Key::new(
    "pool",
    Kind::Text("the name of a pool such as \"default\""),
    "",
    "pool whose backends answer",
);
const SPLIT_BY: Key = Key::new(
    "split_by",
    Kind::Text("a source such as \"client\""),
    "random",
    "what splits: random (each request), client (its address), header:NAME, cookie:NAME, \
     query:NAME (without it, the address), or sticky:NAME, a cookie of the balancer",
);
const REDIRECT_TO: Key = Key::new(
    "redirect.to",
    Kind::Text("a URL such as \"https://${host}${uri}\""),
    "",
    "where clients are sent; with ${scheme}, ${host}, ${path}, ${query} and ${uri} of the request",
);
const REDIRECT_STATUS: Key =
    Key::new("redirect.status", Kind::COUNT, "308", "301, 302, 303, 307 or 308");
const RESPOND_STATUS: Key =
    Key::new("respond.status", Kind::COUNT, "200", "status of the balancer's own answer");
const RESPOND_TEXT: Key = Key::new(
    "respond.text",
    Kind::Text("a text such as \"ok\""),
    "",
    "its text, with the variables of redirect.to",
);
const LIMITS: Key = Key::new(
    "limits",
    Kind::List(&Kind::Text("the name of a limit such as \"dial\"")),
    "",
    "names of limits; a site's count all its requests, with or without limits of the route",
);
const NETWORKS: Kind = Kind::List(&Kind::Text("a network such as \"10.0.0.0/8\""));
const ALLOW: Key = Key::new(
    "allow",
    NETWORKS,
    "",
    "the only networks of clients, past trusted proxies; others get 403; if empty, all; a route \
     has the members of its site as well",
);
const DENY: Key =
    Key::new("deny", NETWORKS, "", "networks of clients that get 403, also with allow");
const ALLOWED_ORIGINS: Key = Key::new(
    "allowed_origins",
    Kind::List(&Kind::Text("an origin such as \"https://app.example.com\"")),
    "",
    "the only pages, by their Origin, or same-host; others get 403; if empty, all",
);
const SECRETS: Key = Key::new(
    "secrets",
    Kind::List(&Kind::Path),
    "",
    "files of NAME:HASH lines, as `throng balance secret` prints them: a client needs a key, as a \
     Bearer token or as the Basic password of its name; others get 401",
);
const ACCESS: Key = Key::new(
    "access",
    Kind::Word(&["off", "errors", "all"]),
    "",
    "requests that are logged, in place of log.access and log.sample; a tunnel whose backend is \
     lost is logged by log.access unless this is all; a route without it has its site's",
);
const PATHS: Kind = Kind::Word(&["strict", "raw"]);
const NAME: Kind = Kind::Text("a name such as \"shop\"");
const PATH: Kind = Kind::List(&Kind::Text("a path such as \"/ws\""));
const VALUES: Kind = Kind::Map(&Kind::Text("a value such as \"v2*\""));

static SITE_KEYS: [Key; number_of_keys(OF_SITES)] = joined_keys(OF_SITES);

const OF_SITES: &[&[Key]] = &[
    &[
        Key::new(
            "hosts",
            Kind::List(&Kind::Text("a host such as \"app.example.com\"")),
            "",
            "its hosts: names; *.example.com for names with one label more, **.example.com with \
             any number; * for all that no other site has",
        ),
        Key::new("name", NAME, "", "its name in the log; if not set, its first host"),
        Key::new(
            "listeners",
            Kind::List(&Kind::Text("the name of a listener such as \"edge\"")),
            "",
            "names of the only listeners where it has these hosts: listen and tls.listen for the \
             addresses of those settings, or of [[listener]]; if empty, all",
        ),
        POOL,
        split_key(),
        SPLIT_BY,
        REDIRECT_TO,
        REDIRECT_STATUS,
        RESPOND_STATUS,
        RESPOND_TEXT,
        policy::RESPOND_FILE,
        Key::new(
            "paths",
            PATHS,
            "strict",
            "paths that backends read in several ways: strict = 400 unless all readings lead to \
             one route, raw = only the path as sent counts",
        ),
        LIMITS,
        ALLOW,
        DENY,
        ALLOWED_ORIGINS,
        SECRETS,
        ACCESS,
    ],
    policy::KEYS,
    &[
        policy::MAINTENANCE,
        policy::MAINTENANCE_EXCEPT,
        site_tls::CERT,
        site_tls::KEY,
        site_tls::ACME,
        site_tls::MIN_VERSION,
        site_tls::HSTS,
        site_tls::HSTS_SUBDOMAINS,
        site_tls::PASSTHROUGH,
        site_tls::CLIENT_CA,
        site_tls::CLIENT_CRL,
        site_tls::CLIENT_AUTH,
        Key::new("routes", Kind::Records(&ROUTES), "", "a route"),
    ],
];

pub(super) static SITES: Records = Records {
    alias: Some("site"),
    fields: &SITE_KEYS,
    is_first_required: true,
    parse: None,
    defaults: Defaults::new(),
    example: "a table such as { hosts = [\"app.example.com\"], pool = \"default\" }",
};

static ROUTE_KEYS: [Key; number_of_keys(OF_ROUTES)] = joined_keys(OF_ROUTES);

const OF_ROUTES: &[&[Key]] = &[
    &[
        Key::new(
            "path",
            PATH,
            "",
            "its paths; a segment may be {name}, for any one, or at the end {*rest}, for the rest",
        ),
        Key::new(
            "prefix",
            PATH,
            "",
            "beginnings of its paths by whole segments: /api is for /api, /api/ and all below; \
             without path and prefix, all paths",
        ),
        Key::new("name", NAME, "", "its name in the log; if not set, its first path or prefix"),
        Key::new(
            "methods",
            Kind::List(&Kind::Text("a method such as \"GET\"")),
            "",
            "its methods; GET includes HEAD; if empty, all",
        ),
        Key::new("websocket", Kind::Switch, "", "only WebSocket handshakes, or only others"),
        Key::new(
            "header",
            VALUES,
            "",
            "headers that it needs: a value, v2* for a beginning, * for any, empty for none",
        ),
        Key::new("cookie", VALUES, "", "cookies that it needs, as header"),
        Key::new("query", VALUES, "", "parameters of the query that it needs, as header"),
        Key::new(
            "from",
            Kind::List(&Kind::Text("a network such as \"10.0.0.0/8\"")),
            "",
            "networks of its clients; if empty, all",
        ),
        POOL,
        split_key(),
        SPLIT_BY,
        REDIRECT_TO,
        REDIRECT_STATUS,
        RESPOND_STATUS,
        RESPOND_TEXT,
        policy::RESPOND_FILE,
        Key::new("paths", PATHS, "", "as of its site; if not set, the site's"),
        LIMITS,
        ALLOW,
        DENY,
        ALLOWED_ORIGINS,
        SECRETS,
        ACCESS,
        Key::new("metrics", Kind::Switch, "false", "metrics of its own, besides those of its site"),
    ],
    policy::KEYS,
];

static ROUTES: Records = Records {
    alias: Some("route"),
    fields: &ROUTE_KEYS,
    is_first_required: false,
    parse: None,
    defaults: Defaults::new(),
    example: "a table such as { path = \"/ws\", pool = \"default\" }",
};

/// Returns the key of a split. A constant cannot name the tables.
const fn split_key() -> Key {
    let help = "pools whose backends answer, each for a part of the clients by its weight";
    Key::new("split", Kind::Records(&SHARES), "", help)
}

static SHARES: Records = Records {
    alias: None,
    fields: &[
        POOL,
        Key::new("weight", Kind::COUNT, "1", "its part; 0 = no client; at most 65536 in all"),
    ],
    is_first_required: true,
    parse: None,
    defaults: Defaults::new(),
    example: "a table such as { pool = \"default\", weight = 95 }",
};

/// Reads all sites.
pub(super) fn sites(draft: &Draft, pages: &Pages) -> Arc<[SiteConfig]> {
    let site = |record: &Record<'_>| SiteConfig {
        name: record.get("name"),
        hosts: record.get("hosts"),
        listeners: record.get("listeners"),
        routes: record.records("routes").iter().map(|it| route(it, pages)).collect(),
        action: action(record, pages),
        paths: record.parse("paths").unwrap_or_default(),
        limits: record.get("limits"),
        guard: guard(record),
        access: record.parse("access"),
        policy: PolicyConfig { hsts: site_tls::hsts(record), ..policy::of_site(record, pages) },
        maintenance: pages.of_field(record, "maintenance"),
        maintenance_except: record.parse_list("maintenance_except"),
        tls: site_tls::site_tls(record),
    };
    draft.records("sites").iter().map(site).collect()
}

fn route(record: &Record<'_>, pages: &Pages) -> RouteConfig {
    let values = |field| {
        let values: BTreeMap<String, String> = record.get(field);
        let pair = |(name, value): (_, String)| (name, ValuePattern::from(value.as_str()));
        values.into_iter().map(pair).collect()
    };
    RouteConfig {
        name: record.get("name"),
        path: record.get("path"),
        prefix: record.get("prefix"),
        matchers: Matchers {
            methods: record.get("methods"),
            websocket: record.get("websocket"),
            header: values("header"),
            cookie: values("cookie"),
            query: values("query"),
            from: record.parse_list("from"),
        },
        action: action(record, pages),
        paths: record.parse("paths"),
        limits: record.get("limits"),
        guard: guard(record),
        access: record.parse("access"),
        metrics: record.get("metrics"),
        policy: policy::of_site(record, pages),
    }
}

fn guard(record: &Record<'_>) -> GuardConfig {
    GuardConfig {
        allow: record.parse_list("allow"),
        deny: record.parse_list("deny"),
        allowed_origins: record.get("allowed_origins"),
        secrets: secrets(record),
    }
}

/// Reads the keys of clients. Mistakes are added.
fn secrets(record: &Record<'_>) -> Secrets {
    let mut all = Secrets::default();
    for (at, path) in record.paths("secrets").iter().enumerate() {
        match Secrets::read(path) {
            Ok(read) => all = read.within(&all),
            Err(remedy) => record.wrong_field(&format!("secrets[{at}]"), remedy),
        }
    }
    all
}

/// Reads what happens to the requests of a site or route.
fn action(record: &Record<'_>, pages: &Pages) -> Option<RouteAction> {
    let names = ["pool", "split", "redirect", "respond"];
    let is_there = names.map(|name| record.has_section(name));
    if record.is_set("split_by") && !record.has_section("split") {
        record.wrong_field("split_by", "it is for split: add split, or drop it");
    }
    let status = |field| u16::try_from(record.get::<u32>(field)).unwrap_or(u16::MAX);
    match is_there {
        [true, false, false, false] => Some(RouteAction::Pool(record.get("pool"))),
        [false, true, false, false] => {
            let share = |share: Record<'_>| (share.get("pool"), share.get("weight"));
            let shares = record.records("split").into_iter().map(share).collect();
            Some(RouteAction::Split(SplitConfig { shares, by: record.parse("split_by")? }))
        }
        [false, false, true, false] => {
            if !record.is_set("redirect.to") {
                let remedy = "its target is missing: add to = \"https://${host}${uri}\"";
                record.wrong_field("redirect", remedy);
            }
            let to = record.parse("redirect.to")?;
            Some(RouteAction::Redirect { to, status: status("redirect.status") })
        }
        [false, false, false, true] => {
            if record.is_set("respond.file") {
                if record.is_set("respond.text") {
                    record.wrong_field("respond.file", "there is a text, too: drop one of the two");
                }
                let page = pages.of_field(record, "respond.file")?;
                return Some(RouteAction::File { status: status("respond.status"), page });
            }
            let text: Option<Template> = record.parse("respond.text");
            let text = text.unwrap_or_default();
            Some(RouteAction::Respond { status: status("respond.status"), text })
        }
        [false, false, false, false] => None,
        _ => {
            record.wrong("it has one of pool, split, redirect and respond: drop the others");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use throng_config::AccessDetail;

    use crate::Config;
    use crate::site::{
        GuardConfig, Matchers, Paths, PolicyConfig, RouteAction, RouteConfig, SiteConfig, SiteTls,
        ValuePattern,
    };

    /// The message for `text` in a file with backends.
    fn message(text: &str) -> String {
        let text = format!("backends = [\"127.0.0.1:9001\"]\n{text}");
        Config::parse(&text, "b.toml").unwrap_err().to_string()
    }

    #[test]
    fn sites_are_read_from_tables_and_lists() {
        let tables = "[[site]]\nhosts = [\"a.example\", \"*.a.example\"]\nname = \"a\"\n\
                      pool = \"default\"\npaths = \"raw\"\naccess = \"errors\"\n\
                      [[site.route]]\npath = \"/ws\"\n\
                      methods = \"GET\"\nwebsocket = true\ncookie = { beta = \"\" }\n\
                      query.v = \"2*\"\nfrom = [\"10.0.0.0/8\"]\n[site.route.header]\nX-A = \"1\"\n\
                      [[site.route]]\nprefix = [\"/old\", \"/older\"]\nredirect.to = \"/new\"\n\
                      redirect.status = 301\n[[site.route]]\nrespond.text = \"no\"\n\
                      respond.status = 403\npaths = \"strict\"\n";
        let lists = "sites = [{ hosts = [\"a.example\", \"*.a.example\"], name = \"a\", pool = \
                     \"default\", paths = \"raw\", access = \"errors\", routes = [{ \
                     path = [\"/ws\"], methods = \
                     [\"GET\"], websocket = true, header = { X-A = \"1\" }, cookie.beta = \"\", \
                     query = { v = \"2*\" }, from = \"10.0.0.0/8\" }, { prefix = [\"/old\", \
                     \"/older\"], redirect = { to = \"/new\", status = 301 } }, { respond = { text \
                     = \"no\", status = 403 }, paths = \"strict\" }] }]\n";
        let value = |name: &str, text: &str| vec![(name.to_owned(), ValuePattern::from(text))];
        let texts = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let expected = SiteConfig {
            name: Some("a".to_owned()),
            hosts: texts(&["a.example", "*.a.example"]),
            listeners: Vec::new(),
            action: Some(RouteAction::Pool("default".to_owned())),
            paths: Paths::Raw,
            limits: Vec::new(),
            guard: GuardConfig::default(),
            access: Some(AccessDetail::Errors),
            policy: PolicyConfig::default(),
            maintenance: None,
            maintenance_except: Vec::new(),
            tls: SiteTls::default(),
            routes: vec![
                RouteConfig {
                    path: texts(&["/ws"]),
                    matchers: Matchers {
                        methods: texts(&["GET"]),
                        websocket: Some(true),
                        header: value("X-A", "1"),
                        cookie: value("beta", ""),
                        query: value("v", "2*"),
                        from: vec!["10.0.0.0/8".parse().unwrap()],
                    },
                    ..RouteConfig::default()
                },
                RouteConfig {
                    prefix: texts(&["/old", "/older"]),
                    action: Some(RouteAction::Redirect {
                        to: "/new".parse().unwrap(),
                        status: 301,
                    }),
                    ..RouteConfig::default()
                },
                RouteConfig {
                    action: Some(RouteAction::Respond { text: "no".parse().unwrap(), status: 403 }),
                    paths: Some(Paths::Strict),
                    ..RouteConfig::default()
                },
            ],
        };
        for text in [tables, lists] {
            let text = format!("backends = [\"127.0.0.1:9001\"]\n{text}");
            let config = Config::parse(&text, "b.toml").unwrap();
            assert_eq!(*config.sites, *std::slice::from_ref(&expected), "{text}");
        }
        assert!(
            Config::parse("backends = [\"127.0.0.1:9001\"]", "b.toml").unwrap().sites.is_empty()
        );
    }

    #[test]
    fn sites_are_compiled_once_for_each_list_and_each_set_of_pools() {
        let text = "backends = [\"127.0.0.1:9001\"]\n[[site]]\nhosts = \"a\"\n";
        let config = Config::parse(text, "b.toml").unwrap();
        let sites = |config: &Config| config.compiled_sites().unwrap().unwrap();
        let first = sites(&config);
        assert!(Arc::ptr_eq(&first, &sites(&config.clone())));
        let mut other = config.clone();
        other.sites = vec![config.sites[0].clone()].into();
        assert!(!Arc::ptr_eq(&first, &sites(&other)));
        let mut none = config;
        none.backends.clear();
        none.values = None;
        let mistakes = none.compiled_sites();
        assert!(mistakes.is_ok_and(|sites| !Arc::ptr_eq(&first, &sites.unwrap())));
    }

    #[test]
    fn mistakes_have_their_place() {
        for (text, expected) in [
            ("[[site]]\n", "b.toml:2:1: sites[0] is [[site]]: its hosts is missing"),
            ("[[site]]\nhosts = [\"a b\"]\n", "b.toml:3:10: sites[0].hosts[0] is \"a b\": several"),
            (
                "[[site]]\nhosts = \"a\"\n[[site]]\nhosts = [\"b\", \"A\"]\n",
                "b.toml:5:15: sites[1].hosts[1] is \"A\": sites[0] has it already",
            ),
            (
                "[[site]]\nhosts = \"a\"\nname = \"a b\"\n",
                "b.toml:4:8: sites[0].name is \"a b\": write 1 to 64 letters, digits, -, _ and .",
            ),
            (
                "[[site]]\nhosts = \"a\"\n[[site.route]]\nheader = { X-A = \"a*b\" }\n",
                "sites[0].routes[0].header is X-A = \"a*b\": a * is only at the end, for values \
                 that begin with the text before it: write \"a*\"",
            ),
            (
                "[[site]]\nhosts = \"a\"\n[[site.route]]\ncookie.c = \"**\"\n",
                "sites[0].routes[0].cookie is c = \"**\": a * is only at the end",
            ),
            (
                "[[site]]\nhosts = \"a\"\npool = \"b\"\n",
                "b.toml:4:8: sites[0].pool is \"b\": no pool has this name: write one of \
                 default",
            ),
            (
                "[[site]]\nhosts = \"a\"\npool = \"default\"\nredirect.to = \"/\"\n",
                "it has one of pool, split, redirect and respond",
            ),
            (
                "[[site]]\nhosts = \"a\"\nsplit = [{ pool = \"default\" }, { pool = \"b\" }]\n",
                "sites[0].split[1].pool is \"b\": no pool has this name: write one of",
            ),
            (
                "[[site]]\nhosts = \"a\"\nsplit = [{ pool = \"default\", weight = 0 }]\n",
                "sites[0].split is a sum of 0: write weights with a sum of 1 to 65536",
            ),
            (
                "[[site]]\nhosts = \"a\"\n[[site.route]]\nsplit = [{ pool = \"default\", weight = \
                 4294967295 }, { pool = \"default\", weight = 2 }]\n",
                "sites[0].routes[0].split is a sum of 4294967297: write weights",
            ),
            ("[[site]]\nhosts = \"a\"\nsplit = [{ weight = 1 }]\n", "sites[0].split[0]"),
            ("[[site]]\nhosts = \"a\"\nsplit = []\n", "sites[0].split"),
            (
                "[[site]]\nhosts = \"a\"\nsplit = [{ pool = \"default\" }]\nsplit_by = \"ip\"\n",
                "b.toml:5:12: sites[0].split_by is \"ip\": write random, client, header:NAME",
            ),
            (
                "sticky.cookie = \"lb\"\n[[site]]\nhosts = \"a\"\nsplit = [{ pool = \"default\" \
                 }]\nsplit_by = \"sticky:lb\"\n",
                "b.toml:6:12: sites[0].split_by is \"sticky:lb\": a pool has this name in sticky",
            ),
            (
                "[[site]]\nhosts = \"a\"\nsplit_by = \"client\"\n",
                "b.toml:4:12: sites[0].split_by is \"client\": it is for split",
            ),
            (
                "[[site]]\nhosts = \"a\"\npool = \"default\"\nsplit = [{ pool = \"default\" }]\n",
                "it has one of pool, split, redirect and respond",
            ),
            (
                "[[site]]\nhosts = \"a\"\nredirect = { status = 301 }\n",
                "sites[0].redirect is 301: its target is missing",
            ),
            (
                "[[site]]\nhosts = \"a\"\nredirect.to = \"b\"\n",
                "b.toml:4:15: sites[0].redirect.to is \"b\": begin with https://",
            ),
            (
                "[[site]]\nhosts = \"a\"\nrespond.status = 99\n",
                "b.toml:4:18: sites[0].respond.status is 99: write 200 to 599",
            ),
            (
                "[[site]]\nhosts = \"a\"\n[[site.route]]\nprefix = \"/a/\"\n",
                "b.toml:5:10: sites[0].routes[0].prefix[0] is \"/a/\": a prefix is for whole \
                 segments: write \"/a\"",
            ),
            (
                "[[site]]\nhosts = \"a\"\n[[site.route]]\nfrom = \"all\"\n",
                "sites[0].routes[0].from[0] is \"all\": 'all' is not a network",
            ),
            (
                "[[site]]\nhosts = \"a\"\ndeny = \"all\"\n",
                "b.toml:4:8: sites[0].deny[0] is \"all\": 'all' is not a network",
            ),
            (
                "[[site]]\nhosts = \"a\"\n[[site.route]]\nallowed_origins = [\"a.example\"]\n",
                "sites[0].routes[0].allowed_origins[0] is \"a.example\": a browser sends the \
                 scheme, too: write \"https://a.example\", or \"same-host\"",
            ),
            (
                "[[site]]\nhosts = \"a\"\n[[site.route]]\npth = \"/\"\n",
                "sites[0].routes[0].pth is an unknown key: did you mean path?",
            ),
        ] {
            let message = message(text);
            assert!(message.contains(expected), "{text}: {message}");
        }
        let none = "[[site]]\nhosts = \"a\"\n[[site.route]]\npath = \"/\"\n";
        let message = Config::parse(none, "b.toml").unwrap_err().to_string();
        assert!(message.contains("sites[0].routes[0]"), "{message}");
        let own = "[[site]]\nhosts = \"a\"\nrespond.text = \"a\"\n";
        assert!(Config::parse(own, "b.toml").is_ok());
    }
}
