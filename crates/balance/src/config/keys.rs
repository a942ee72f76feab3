//! The keys of a balancer's configuration. To add one, add a row here and read it in `read.rs`.

use std::time::Duration;

use throng_config::{
    Defaults, Fields, Key, Kind, Records, Table, joined_keys, log, number_of_keys, server_keys,
    tls, upgrade,
};

use super::limits::LIMITS;
use super::listeners::{LISTENERS, NETWORKS, UNIX_MODE};
use super::policy;
use super::sites::SITES;
use super::sources;
use crate::backend::MAX_WEIGHT;

/// The largest number of event loops, more than any machine has CPUs.
pub(crate) const MAX_SHARDS: usize = 1024;

/// The table of `throng balance`.
pub(super) static TABLE: Table = Table { program: "balance", keys: &KEYS };

static BACKENDS: Records = Records {
    alias: None,
    fields: &BACKEND_KEYS,
    is_first_required: true,
    parse: Some(backend),
    defaults: Defaults::new(),
    example: BACKEND,
};

/// The backends of a pool, which connections are not passed through to by their own setting.
static POOL_BACKENDS: Records = Records {
    alias: None,
    fields: &COMMON,
    is_first_required: true,
    parse: Some(backend),
    defaults: Defaults::new(),
    example: BACKEND,
};

const BACKEND: &str = "an address such as \"127.0.0.1:9001\", or { address = \
                       \"127.0.0.1:9001\", weight = 2 }";

const COMMON: [Key; 7] = [
    Key::new("address", Kind::Peer, "", "IP address or name, and port; or unix:PATH, a socket"),
    Key::new("weight", Kind::count(1, MAX_WEIGHT as u64), "1", "share of the load"),
    Key::new("send_proxy", Kind::Switch, "false", "begin connections with a PROXY v2 header"),
    Key::new(
        "tls",
        Kind::Or("auto", &Kind::Switch),
        "auto",
        "secure connections with TLS; auto = if [backend_tls] is set",
    ),
    Key::new("tls_name", SERVER_NAME, "", "name in its certificate, before backend_tls.name"),
    Key::new(
        "max_connections",
        Kind::Or("auto", &Kind::COUNT),
        "auto",
        "its requests and tunnels at a time; 0 = no limit; auto = max_connections of its pool",
    ),
    Key::new("backup", Kind::Switch, "false", "it serves only while no other of its pool is up"),
];

static BACKEND_KEYS: [Key; 8] = joined_keys(&[
    &COMMON,
    &[Key::new(
        "passthrough",
        Kind::List(&Kind::Text("a server name such as \"db.example.com\" or \"*.example.com\"")),
        "",
        "server names (SNI) of clients whose TLS it ends itself: their connections are passed \
         through, and it serves no others",
    )],
]);

static POOLS: Records = Records {
    alias: Some("pool"),
    fields: &POOL_KEYS,
    is_first_required: true,
    parse: None,
    defaults: Defaults::new(),
    example: "a pool such as { name = \"chat\", backends = [\"127.0.0.1:9001\"] }",
};

static POOL_KEYS: [Key; number_of_keys(OF_POOLS)] = joined_keys(OF_POOLS);

#[rustfmt::skip]
const OF_POOLS: &[&[Key]] = &[
    &[
    Key::new("name", Kind::Text("a name such as \"chat\""), "",
        "name; default = the pool of backends outside of pools"),
    Key::new("backends", Kind::Records(&POOL_BACKENDS), "", "a backend, as in backends"),
    Key::new("fallback", Kind::Text("the name of a pool such as \"default\""), "",
        "pool that serves while no backend of this one is up, backups included"),
    Key::new("max_connections", Kind::COUNT, "0",
        "requests and tunnels of each backend at a time; 0 = no limit; more wait"),
    PICK, STICKY_BY, MAX_HANDSHAKES, MAX_QUEUE, KEEP_ALIVE, SLOW_START, CLOSE_RATE, REMOVED,
    SOURCES, CONNECT, QUEUE,
    ],
    &HEALTH,
    &[
    Key::new("tls.ca", Kind::Path, "", "as backend_tls.ca"),
    Key::new("tls.verify", Kind::Switch, "true", "as backend_tls.verify"),
    Key::new("tls.name", SERVER_NAME, "", "as backend_tls.name"),
    Key::new("tls.cert", Kind::Path, "", "as backend_tls.cert"),
    Key::new("tls.key", Kind::Path, "", "as backend_tls.key"),
    ],
];

const SERVER_NAME: Kind = Kind::Text("a name such as \"app.internal\"");
const ADDRESSES: Kind = Kind::List(&Kind::Listener);
const HEAD: Kind = Kind::size(1 << 10, 1 << 20);
const FIELD_LINES: Kind = Kind::count(8, 4096);
const ONE_OR_MORE: Kind = Kind::count(1, u32::MAX as u64);
const TIMEOUT: Kind = Kind::POSITIVE_DURATION;
const LOOKUP: Kind = Kind::duration(Duration::from_secs(1), Duration::from_secs(24 * 3600));
const PICKS: Kind = Kind::Word(&[
    "power_of_two",
    "least_connections",
    "round_robin",
    "rendezvous",
    "random",
    "ip_hash",
]);
const STICKY: Kind = Kind::Tagged { words: &["none", "ip"], tags: &["cookie", "header", "query"] };

// Keys of the whole file and of pools.

#[rustfmt::skip]
const PICK: Key =
    Key::new("pick", PICKS, "power_of_two", "load-balancing algorithm")
        .flag("--pick", "PICK");
#[rustfmt::skip]
const STICKY_BY: Key =
    Key::new("sticky", STICKY, "none",
        "session affinity of clients to backends: none, ip, cookie:NAME, header:NAME or query:NAME")
        .flag("--sticky", "BY");
#[rustfmt::skip]
const MAX_HANDSHAKES: Key =
    Key::new("max_handshakes", Kind::COUNT, "128",
        "connects and handshakes under way to one backend; 0 = no limit");
#[rustfmt::skip]
const MAX_QUEUE: Key =
    Key::new("max_queue", Kind::COUNT, "0",
        "requests that wait for the backends of a pool; more get 503; 0 = no limit");
#[rustfmt::skip]
const QUEUE: Key =
    Key::new("timeouts.queue", TIMEOUT, "10s",
        "wait for a backend below max_handshakes and its max_connections; 503");
#[rustfmt::skip]
const KEEP_ALIVE: Key =
    Key::new("keep_alive", Kind::COUNT, "32",
        "idle connections that each event loop keeps to each backend");
#[rustfmt::skip]
const SLOW_START: Key =
    Key::new("slow_start", Kind::DURATION, "0s",
        "time in which the share of a backend that came up grows to its weight");
#[rustfmt::skip]
const CLOSE_RATE: Key =
    Key::new("close_rate", ONE_OR_MORE, "200",
        "tunnels of dead or drained backends that are closed per second");
#[rustfmt::skip]
const REMOVED: Key =
    Key::new("removed", Kind::Word(&["keep", "drain"]), "keep",
        "tunnels of a backend that is no longer in the list: keep = they stay, drain = they are \
         closed at close_rate");
#[rustfmt::skip]
const SOURCES: Key =
    Key::new("sources", Kind::List(&Kind::Text(sources::WANTED)), "",
        "address of this machine for connections to backends, or a network of at most 256 of them \
         such as 10.0.0.16/28")
        .details("used in turn; each address allows about 28,000 connections per backend");
#[rustfmt::skip]
const CONNECT: Key =
    Key::new("timeouts.connect", TIMEOUT, "5s", "until a connection to a backend is made");

#[rustfmt::skip]
const HEALTH: [Key; 11] = [
    Key::new("health.observe", Kind::Word(&["connections", "answers"]), "connections",
        "what passive checks count: failed connections, or failed answers, too"),
    Key::new("health.failures", Kind::COUNT, "3",
        "failures that take a backend down; 0 = no passive checks"),
    Key::new("health.within", TIMEOUT, "10s", "time in which health.failures count"),
    Key::new("health.down_for", TIMEOUT, "10s",
        "time that a backend stays down without active checks"),
    Key::new("health.check.kind", Kind::Word(&["none", "tcp", "http", "websocket"]), "",
        "active check: tcp, http or websocket; none = no check, for a pool in a file with checks"),
    Key::new("health.check.path", Kind::Text("a path such as \"/healthz\""), "",
        "path that checks of kind http and websocket ask for; if not set, /"),
    Key::new("health.check.host", Kind::Text("a host such as \"app.example.com\""), "",
        "Host that checks of kind http and websocket ask for; if not set, the backend's address"),
    Key::new("health.check.interval", TIMEOUT, "2s", "time between two checks"),
    Key::new("health.check.timeout", TIMEOUT, "1s",
        "for one check; at most 60s and health.check.interval"),
    Key::new("health.check.rise", ONE_OR_MORE, "2",
        "passed checks in a row that bring a backend up"),
    Key::new("health.check.fall", ONE_OR_MORE, "3",
        "failed checks in a row that take a backend down"),
];

static KEYS: [Key; number_of_keys(LISTS)] = joined_keys(LISTS);

#[rustfmt::skip]
const LISTS: &[&[Key]] = &[
    &[
    Key::new("listen", ADDRESSES, "127.0.0.1:8080",
        "address and port where clients connect")
        .details("port 0 takes a free one; [::]:80 is IPv6 alone; unix:PATH is a Unix socket")
        .flag("--listen", "HOST:PORT").at_start(),
    Key::new("listeners", Kind::Records(&LISTENERS), "",
        "a listener with rules of its own, which sites may name")
        .details("[[listener]] tables with address; with some of them, listen has no default")
        .at_start(),
    Key::new("share_port", Kind::Switch, "false",
        "let other processes of this user listen on the same ports, each with a share of the \
         clients (Linux)")
        .at_start(),
    Key::new("unix_mode", UNIX_MODE, "660",
        "permissions of the files of Unix sockets in listen; to connect, a process must be able to \
         write to one").at_start(),
    Key::new("shards", Kind::count(0, MAX_SHARDS as u64), "0",
        "event loops; 0 = one per usable CPU")
        .advanced_flag("--shards", "N").at_start(),
    server_keys::PIN,
    Key::new("descriptors", Kind::Word(&["auto", "shared", "per-shard"]), "auto",
        "descriptor table of an event loop: shared = that of the process, per-shard = its own, so \
         that the descriptor limit counts for each (Linux 5.9); auto = its own if \
         max_connections needs it").at_start(),
    Key::new("strict_start", Kind::Switch, "false",
        "do not start while a limit of the machine or a setting is worth a warning")
        .details("the checks are the ones of `throng doctor`; the log and /status.json have their \
                  warnings")
        .advanced_flag("--strict-start", "true").at_start(),
    Key::new("backends", Kind::Records(&BACKENDS), "",
        "a backend")
        .details("ADDRESS:PORT, and after commas: weight=N, 1 to 1000, its share of the load; \
                  max_connections=N, its requests and tunnels at a time; backup, to serve \
                  only while no other is up; send_proxy, to send it the client's address in a \
                  PROXY v2 header; tls, to \
                  connect with TLS; tls_name=NAME; passthrough=NAME, to give it the TLS of clients \
                  that ask for NAME (SNI) as it is; several with ; or [[backends]] tables")
        .flag("--backend", "BACKEND"),
    Key::new("pools", Kind::Records(&POOLS), "",
        "a pool of backends besides the pool default, which has backends")
        .details("[[pool]] tables with name and backends; pick, sticky, max_handshakes, max_queue, \
                  keep_alive, slow_start, close_rate, removed, sources, timeouts.connect, \
                  timeouts.queue, health and health.check are the ones of the whole file if it \
                  omits them; tls has the keys of backend_tls"),
    Key::new("sites", Kind::Records(&SITES), "",
        "a site: what happens to requests for its hosts, by routes among their paths")
        .details("[[site]] tables with [[site.route]] tables; with sites, other hosts go to the \
                  backends of backends, or are answered with 404"),
    Key::new("limits", Kind::Records(&LIMITS), "",
        "a limit of a rate, which sites and routes choose by its name")
        .details("[[limit]] tables with name and rate"),
    Key::new("tls.listen", ADDRESSES, "",
        "addresses of clients with TLS, beside those in listen; if empty, all in listen")
        .at_start(),
    ],
    &tls::KEYS,
    &[
    Key::new("backend_tls.ca", Kind::Path, "",
        "authorities that certify backends, in PEM; if not set, the system's"),
    Key::new("backend_tls.verify", Kind::Switch, "true",
        "whether certificates of backends are verified"),
    Key::new("backend_tls.name", SERVER_NAME, "",
        "name in the certificates of backends; if not set, each one's own name or address"),
    Key::new("backend_tls.cert", Kind::Path, "",
        "the balancer's own certificate for backends, in PEM"),
    Key::new("backend_tls.key", Kind::Path, "", "its private key"),
    Key::new("lookup_interval", LOOKUP, "10s",
        "time between two lookups of a backend's name; each of its addresses is a backend"),
    PICK,
    STICKY_BY,
    Key::new("cookie_secret", Kind::Secret, "",
        "key of sticky cookies, and of the hashes of sticky headers, parameters and addresses; if \
         not set, drawn at the start for cookies, and none for hashes"),
    Key::new("cookie_secret_file", Kind::Path, "", "file whose first line is cookie_secret"),
    Key::new("cookie_same_site", Kind::Word(&["lax", "strict", "none"]), "lax",
        "SameSite of sticky cookies; none = also with requests of other sites, and always Secure"),
    Key::new("trusted_proxies", NETWORKS, "",
        "network whose X-Forwarded-*, Forwarded and PROXY headers are trusted; unix: = peers on \
         Unix sockets")
        .flag("--trusted-proxy", "NETWORK"),
    Key::new("request_ids", Kind::Switch, "false",
        "give a request without X-Request-ID one, for its backend and the log"),
    Key::new("drop_headers", Kind::List(&Kind::Text("a header name such as \"X-Client-IP\"")),
        "True-Client-IP,CF-Connecting-IP,X-Client-IP,Client-IP,Forwarded-For,X-Cluster-\
         Client-IP,Fastly-Client-IP,X-Envoy-External-Address,X-Azure-ClientIP,X-Appengi\
         ne-User-IP,X-ProxyUser-IP,X-Original-URL,X-Original-Host,X-Rewrite-URL,X-Host,\
         Remote-User,X-Remote-User,Front-End-Https,X-ARR-SSL,X-Client-Cert,SSL-Client-C\
         ert,X-SSL-Cert,X-SSL-Client-Cert,SSL-Client-Verify,X-SSL-Client-Verify,X-ARR-C\
         lientCert",
        "request headers that are dropped unless a trusted proxy sent them"),
    Key::new("loop_id", Kind::Text("a token such as \"edge-1\""), "",
        "id in CDN-Loop of forwarded requests; one that has it already is answered 508; if not \
         set, drawn at the start"),
    policy::REQUEST_SET, policy::REQUEST_ADD, policy::REQUEST_REMOVE,
    policy::RESPONSE_SET, policy::RESPONSE_ADD, policy::RESPONSE_REMOVE, policy::HOST,
    policy::REQUEST_ID, policy::ERROR_PAGES,
    Key::new("accept_proxy", Kind::Switch, "false",
        "connections begin with a PROXY header (v1 or v2), and only trusted_proxies may connect"),
    MAX_HANDSHAKES,
    MAX_QUEUE,
    Key::new("retries", Kind::count(0, 255), "2",
        "other backends that an unanswered request is tried on"),
    KEEP_ALIVE,
    Key::new("max_connections", Kind::COUNT, "0",
        "client connections; 0 = as many as descriptors allow"),
    Key::new("max_connections_per_address", Kind::Or("auto", &Kind::COUNT), "auto",
        "of an IPv4 address or IPv6 /64, with accept_proxy that of the header; auto = a quarter, \
         loopback without limit; 0 = no limit; at it, one without a request for 1s makes room, on \
         the same event loop"),
    Key::new("max_tls_memory", Kind::SIZE, "0",
        "of TLS handshakes in progress and incomplete records; 0 = a quarter of the machine's"),
    Key::new("max_header_bytes", HEAD, "16KiB", "size of a request's head; larger get 431"),
    Key::new("max_headers", FIELD_LINES, "100", "header lines of a request; more get 431"),
    Key::new("max_response_header_bytes", HEAD, "64KiB",
        "size of a response's head; larger get 502"),
    Key::new("max_response_headers", FIELD_LINES, "500",
        "header lines of a response; more get 502"),
    Key::new("max_body", Kind::Or("unlimited", &Kind::SIZE), "unlimited",
        "size of a request's body; larger get 413"),
    Key::new("min_body_rate", Kind::SIZE, "1KiB",
        "least bytes per second of a request's body, or 408; 0 = any progress"),
    Key::new("min_response_rate", Kind::SIZE, "256B",
        "least bytes per second of a response with a length; 0 = any progress"),
    SOURCES.advanced_flag("--source", "ADDRESS"),
    SLOW_START,
    CLOSE_RATE,
    REMOVED,
    CONNECT,
    Key::new("timeouts.response", TIMEOUT, "60s",
        "from the end of a request to the head of its response; 504"),
    Key::new("timeouts.upgrade", TIMEOUT, "10s",
        "from a WebSocket handshake to its response; 504; also to the first byte of a backend that \
         connections are passed through to"),
    Key::new("timeouts.body", TIMEOUT, "60s", "between two bytes of a body"),
    Key::new("timeouts.head", TIMEOUT, "10s",
        "to a complete head of a request: from the accept for the first, from its first byte for \
         later ones; 408, or a close if nothing has come"),
    Key::new("timeouts.keep_alive", TIMEOUT, "75s", "idle time between two requests of a client"),
    Key::new("timeouts.tunnel", TIMEOUT, "1h", "silence of a tunnel in both directions"),
    Key::new("timeouts.half_closed", TIMEOUT, "60s",
        "for a tunnel of which one side has ended its stream"),
    Key::new("timeouts.close", TIMEOUT, "5s", "wait for the client's Close frame"),
    QUEUE,
    ],
    &HEALTH,
    &[
    Key::new("register.token", Kind::Secret, "", "token of backends that register themselves"),
    Key::new("register.token_file", Kind::Path, "",
        "file whose first line is the token of backends that register themselves")
        .advanced_flag("--register-token-file", "FILE"),
    Key::new("register.time_to_live", TIMEOUT, "10s",
        "time without a heartbeat after which a registered backend gets no new clients"),
    Key::new("register.networks", NETWORKS, "",
        "networks that backends may register from; if empty, all but metadata services of clouds"),
    Key::new("admin.listen", Kind::Address, "",
        "address of the admin API, the status page and metrics; if not set, there is none")
        .details("without a token, a loopback address")
        .flag("--admin", "HOST:PORT").at_start(),
    Key::new("admin.token", Kind::Secret, "",
        "token of the admin API; required unless admin.listen is a loopback address"),
    Key::new("admin.token_file", Kind::Path, "",
        "file whose first line is the token of the admin API")
        .advanced_flag("--admin-token-file", "FILE"),
    Key::new("shutdown.delay", Kind::Or("auto", &Kind::DURATION), "auto",
        "from /readyz of the admin API turning to 503 to the first close; auto = 5s in \
         Kubernetes, else 0s"),
    Key::new("shutdown.window", Kind::DURATION, "10s", "spreads the closes of a shutdown"),
    Key::new("shutdown.deadline", Kind::DURATION, "30s",
        "from the first close to a reset of connections that are left"),
    ],
    upgrade::KEYS,
    &log::keys("errors"),
];

/// Converts a backend such as `127.0.0.1:9002,weight=2,send_proxy` to fields.
fn backend(text: &str) -> Result<Fields, String> {
    let mut parts = text.split(',').map(str::trim);
    let mut fields = vec![("address", parts.next().unwrap_or_default().to_owned())];
    let mut names = Vec::new();
    for part in parts {
        if let Some(("passthrough", name)) = part.split_once('=') {
            names.push(name);
            continue;
        }
        fields.push(match part.split_once('=') {
            None if part == "tls" => ("tls", "true".to_owned()),
            Some(("tls", value)) => ("tls", value.to_owned()),
            Some(("tls_name", name)) => ("tls_name", name.to_owned()),
            None if part == "send_proxy" => ("send_proxy", "true".to_owned()),
            None if part == "backup" => ("backup", "true".to_owned()),
            Some(("backup", value)) => ("backup", value.to_owned()),
            Some(("send_proxy", value)) => ("send_proxy", value.to_owned()),
            Some(("weight", weight)) => ("weight", weight.to_owned()),
            Some(("max_connections", most)) => ("max_connections", most.to_owned()),
            _ => {
                return Err("after the address come weight=N, max_connections=N, backup, \
                            send_proxy, tls, tls_name=NAME and passthrough=NAME, for \
                            example 127.0.0.1:9001,weight=2; give \
                            --backend once for each backend, and in the environment write ; \
                            between two"
                    .to_owned());
            }
        });
    }
    if !names.is_empty() {
        fields.push(("passthrough", names.join(",")));
    }
    Ok(fields)
}
