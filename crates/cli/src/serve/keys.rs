//! The settings of `throng serve`. To add one, add a row here and read it in `settings.rs`.

use std::time::Duration;

use throng_config::server_keys::{self, LEVEL, WINDOW_BITS};
use throng_config::units::LARGEST;
use throng_config::{
    Defaults, Fields, Key, Kind, Records, Table, all_at_start, joined_keys, log, number_of_keys,
    tls, upgrade,
};
use throng_proto::escape::Escaped;

use super::rights::WHO;

/// The table of `throng serve`.
pub static TABLE: Table = Table { program: "serve", keys: &KEYS };

/// An example of a rule for channels, for messages.
const EXAMPLE: &str = "prices.*=latest,max_backlog=64KiB,max_age=5s";

#[rustfmt::skip]
static CHANNELS: Records = Records {
    alias: Some("channel"),
    fields: &[
        Key::new("name", Kind::Text("a pattern such as \"prices.*\""), "", "the pattern"),
        Key::new("slow_policy", POLICY, "", "as the setting; if not set, that"),
        Key::new("max_backlog", SOME, "", "as the setting; if not set, that"),
        Key::new("max_age", MAX_AGE, "", "as the setting; if not set, that"),
        Key::new("history", Kind::Text("a count and an age such as \"100/5m\""), "",
            "publications kept for clients that come back, and how long"),
        Key::new("scope", Kind::Word(&["cluster", "local"]), "",
            "with cluster.url: whether other servers have the channel, too"),
        Key::new("while_down", Kind::Word(&["refuse", "buffer", "local"]), "",
            "of messages while the cluster's server is away: not taken, held back, or for members \
             here"),
        Key::new("recovery", Kind::Word(&["stream", "cache"]), "",
            "what a client that comes back gets: all that it missed, or the newest only"),
        Key::new("presence", Kind::Switch, "false",
            "list the members at /presence/{channel} of the admin server"),
        Key::new("join_leave", Kind::Switch, "false",
            "send members the joins and leaves of others, with presence"),
        Key::new("max_announced", Kind::COUNT, "1000",
            "with join_leave: maximum members on a server that get joins and leaves"),
        Key::new("may_join", Kind::Word(WHO), "",
            "clients that may join: anyone; token = with a valid token; claim = whose token names \
             the channel; user = whose user ID the channel's name ends with; none; if not set, \
             see open"),
        Key::new("may_publish", Kind::Word(WHO), "", "clients whose messages are published"),
        Key::new("may_read_history", Kind::Word(WHO), "",
            "clients that get what came before they joined"),
    ],
    is_first_required: true,
    parse: Some(rule),
    defaults: Defaults::new(),
    example: "a rule such as \"prices.*=latest,max_age=5s\"",
};

#[rustfmt::skip]
static TOKEN_KEYS: Records = Records {
    alias: Some("token_key"),
    fields: &[
        Key::new("algorithm", Kind::Word(ALGORITHMS), "",
            "the only algorithm of tokens by this key"),
        Key::new("secret_file", Kind::Path, "",
            "file whose first line is the secret, for HS256, HS384 and HS512"),
        Key::new("public_key_file", Kind::Path, "",
            "file of the public key in PEM, for the others"),
        Key::new("id", Kind::Text("an ID such as \"2026-11\""), "",
            "tokens with a key ID (kid) must have this one; if not set, any"),
    ],
    is_first_required: true,
    parse: None,
    defaults: Defaults::new(),
    example: "a table such as { algorithm = \"HS256\", secret_file = \"/etc/throng/token.key\" }",
};

const ALGORITHMS: &[&str] = &[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256",
    "ES384", "EdDSA",
];

const ORIGINS: Kind = Kind::List(&Kind::Text("an origin such as \"https://example.com\""));
const HOSTS: Kind = Kind::List(&Kind::Text("a host's name such as \"example.com\""));
const MEDIA_TYPES: Kind = Kind::List(&Kind::Text("a pair such as \"glb=model/gltf-binary\""));
const SUBPROTOCOLS: Kind = Kind::List(&Kind::Text("a name such as \"chat.v1\""));
const NETWORKS: Kind = Kind::List(&Kind::Text("a network such as \"10.0.0.0/8\""));
const POLICY: Kind = Kind::Word(&["close", "drop_newest", "drop_oldest", "latest"]);
const OR_AUTO: Kind = Kind::Or("auto", &Kind::COUNT);
const SOME: Kind = Kind::size(1, LARGEST);
/// A browser's upgrade request has some hundred bytes in about ten lines.
const HEAD: Kind = Kind::size(1 << 10, LARGEST);
const FIELD_LINES: Kind = Kind::count(8, u32::MAX as u64);
/// The longest timeout of a connection.
const LONGEST: Duration = Duration::from_secs(18 * 3600);
const TIMEOUT: Kind = Kind::duration(Duration::from_secs(1), LONGEST);
const OR_NEVER: Kind = Kind::duration(Duration::ZERO, LONGEST);
const MAX_AGE: Kind = Kind::duration(Duration::ZERO, Duration::from_secs(24 * 3600));

static KEYS: [Key; number_of_keys(LISTS)] = joined_keys(LISTS);

#[rustfmt::skip]
const LISTS: &[&[Key]] = &[
    &[
    Key::new("listen", Kind::List(&Kind::Listener), "127.0.0.1:9001",
        "address and port where clients connect")
        .details("port 0 takes a free one; [::]:80 is IPv6 alone; unix:/run/app.sock = a Unix \
                  socket; systemd = all sockets that were passed on, fd:3 = one of them")
        .flag("--listen", "HOST:PORT").at_start(),
    Key::new("unix_mode", Kind::Text("permissions in octal such as \"660\""), "660",
        "permissions of Unix sockets that it makes: who may write may connect").at_start(),
    server_keys::SHARDS.advanced_flag("--shards", "N"),
    Key::new("descriptors", Kind::Word(&["auto", "shared", "per-shard"]), "auto",
        "descriptor table of an event loop: shared = that of the process, per-shard = its own, so \
         that the descriptor limit counts for each (Linux 5.9); auto = its own if \
         max_connections needs it")
        .advanced_flag("--descriptors", "TABLES").at_start(),
    server_keys::IO.advanced_flag("--io", "IO"),
    Key::new("thread_stack", Kind::SIZE, "256KiB",
        "stack of a connection's thread with io = threads").at_start(),
    server_keys::PIN,
    Key::new("stall_warning", Kind::DURATION, "50ms",
        "report and count handlers that hold their event loop for so long; 0s = never").at_start(),
    Key::new("strict_start", Kind::Switch, "false",
        "do not start while a limit of the machine or a setting is worth a warning")
        .details("the checks are the ones of `throng doctor`; the log and /stats.json have their \
                  warnings")
        .advanced_flag("--strict-start", "true").at_start(),
    Key::new("backlog", Kind::count(1, i32::MAX as u64), "4096",
        "connections the kernel queues until they are accepted, at least 1").at_start(),
    Key::new("dir", Kind::Path, "",
        "serve the files of this directory, at every path without another meaning")
        .flag("--dir", "PATH").at_start(),
    Key::new("media_types", MEDIA_TYPES, "",
        "media types of files in dir by their extension, beside and before the known ones: \
         EXTENSION=TYPE, comma-separated").at_start(),
    Key::new("cache_control", Kind::Text("a value such as \"public, max-age=3600\""), "",
        "Cache-Control of the files in dir, such as max-age=3600; if not set, browsers guess by \
         the age of a file").at_start(),
    Key::new("precompressed", Kind::Switch, "false",
        "send app.js.br or app.js.gz in dir in place of app.js to clients that accept it, if it is \
         as new").at_start(),
    Key::new("subprotocols", SUBPROTOCOLS, "",
        "WebSocket subprotocols that clients may choose from, in their order; a client that offers \
         none of them gets none").at_start(),
    Key::new("share_port", Kind::Switch, "false",
        "listen also on a port that other processes listen on (SO_REUSEPORT); false = a port in \
         use is an error, but with several event loops a process of the same user that shares \
         ports can still join").at_start(),
    ],
    &all_at_start(tls::KEYS),
    &[
    Key::new("allowed_origins", ORIGINS, "",
        "web pages that may connect, such as https://example.com or https://*.example.com for \
         subdomains, null or file://; empty = same host, * = any"),
    Key::new("allowed_hosts", Kind::Or("auto", &HOSTS), "auto",
        "names in Host besides addresses and localhost, *.example.com = all subdomains; *=any; \
         auto=any unless on loopback alone"),
    Key::new("trusted_proxies", NETWORKS, "",
        "networks whose X-Forwarded-For, Forwarded and PROXY headers are trusted").at_start(),
    Key::new("proxy_protocol", Kind::Switch, "false",
        "connections begin with a PROXY header (v1 or v2), and only trusted_proxies may connect")
        .at_start(),
    Key::new("max_connections", Kind::COUNT, "0",
        "open connections; 0 = as many as descriptors allow")
        .flag("--max-connections", "N").at_start(),
    Key::new("max_pending_handshakes", OR_AUTO, "auto",
        "connections before their first request; auto = half of max_connections; 0 = no limit"),
    Key::new("max_connections_per_address", OR_AUTO, "auto",
        "of an IPv4 address or IPv6 /64; auto = a quarter, loopback without limit; 0 = no limit; \
         at it, one without a request for 1s makes room, on the same event loop"),
    Key::new("max_message_size", SOME, "4MiB",
        "message size; larger close with 1009; raises max_frame_size unless that is set")
        .advanced_flag("--max-message-size", "SIZE"),
    Key::new("max_upload_size", Kind::SIZE, "1GiB",
        "size of messages to /upload, which are not buffered; larger close with 1009"),
    Key::new("max_frame_size", SOME, "4MiB",
        "frame size; larger close with 1009; rises with max_message_size unless it is set")
        .advanced_flag("--max-frame-size", "SIZE"),
    Key::new("max_header_bytes", HEAD, "16KiB", "size of a request's head; larger get 431"),
    Key::new("max_headers", FIELD_LINES, "100", "header lines of a request; more get 431"),
    Key::new("max_body", Kind::SIZE, "1MiB",
        "size of a request's body; larger get 413; 0 = only empty ones"),
    Key::new("max_backlog", SOME, "1MiB",
        "output queued for a connection before slow_policy applies"),
    Key::new("slow_policy", POLICY, "close",
        "for slow receivers: close (1008), drop_newest, drop_oldest or latest (per channel)"),
    Key::new("max_age", MAX_AGE, "0s",
        "queued messages older than this are dropped; 0s = no limit"),
    Key::new("channels", Kind::Records(&CHANNELS), "",
        "rules of the channels that match: slow receivers, history, presence")
        .details("PATTERN=POLICY, and after commas max_backlog=SIZE, max_age=TIME, \
                  history=COUNT/AGE, recovery=cache, presence=true, join_leave=true and \
                  max_announced=N, for example 'prices.*=latest,max_backlog=64KiB,max_age=5s'; \
                  the first rule that matches applies; several with ; or [[channel]] tables; \
                  history and presence need a restart")
        .flag("--channel", "RULE"),
    Key::new("open", Kind::Or("auto", &Kind::Switch), "auto",
        "clients without a token may do all in channels without a rule about it")
        .details("auto = on loopback alone, without trusted_proxies, allowed_hosts and --register; \
                  otherwise a client needs a token that names the channel, or a rule of the \
                  channel with may_join, may_publish and may_read_history")
        .advanced_flag("--open", "true"),
    Key::new("token_keys", Kind::Records(&TOKEN_KEYS), "",
        "keys that verify the tokens (JWT) of clients; while keys change, old and new ones"),
    Key::new("token_jwks", Kind::List(&Kind::Text("a URL such as \"https://example.com/keys\"")),
        "",
        "sets of public keys (JWKS) that verify tokens, fetched at the start, every hour, and soon \
         after a token with an unknown key"),
    Key::new("token_jwks_ca", Kind::Path, "",
        "authorities that certify the servers of token_jwks, in PEM; if not set, the system's"),
    Key::new("token_audience", Kind::Text("a name such as \"chat\""), "",
        "audience (aud) that each token must have; if not set, any"),
    Key::new("token_issuer", Kind::Text("a name such as \"https://example.com\""), "",
        "issuer (iss) that each token must have; if not set, any"),
    Key::new("api_keys_file", Kind::Path, "",
        "file of NAME:HASH lines: an application that sends a key with this SHA-256 as X-API-Key \
         may use /api/ at listen; if not set, only the admin server has it").at_start(),
    Key::new("request_ids", Kind::Switch, "false",
        "give each request without a valid X-Request-ID one; the response and the log have it")
        .at_start(),
    Key::new("wildcards", Kind::Switch, "false",
        "let /ws/news.* and /sse/news.> subscribe to all that match").at_start(),
    server_keys::FRAGMENT_THRESHOLD,
    server_keys::FRAGMENT_SIZE,
    Key::new("max_messages_per_second", Kind::COUNT, "0",
        "messages received from one session; more close it with 1008; 0 = no limit"),
    Key::new("max_bytes_per_second", Kind::SIZE, "0",
        "bytes received from one session; more close it with 1008; 0 = no limit"),
    Key::new("max_lifetime", OR_NEVER, "0s",
        "age at which sessions are closed with 1001; 0s = no limit"),
    Key::new("handshake_timeout", TIMEOUT, "10s",
        "to a complete head of a request, at least 1s: from the accept for the first, from its \
         first byte for later ones; 408, or a close if nothing has come"),
    Key::new("min_body_rate", Kind::SIZE, "1KiB",
        "least bytes per second of a request's body, or 408; 0 = within handshake_timeout"),
    Key::new("max_body_memory", Kind::SIZE, "256MiB",
        "request bodies being received, of all connections together; more get 503"),
    Key::new("max_memory", Kind::SIZE, "0",
        "memory of all connections: queues, partial messages, bodies; the largest go with 1008 \
         or 503; 0 = a quarter of the machine's or cgroup's"),
    Key::new("max_history_memory", Kind::SIZE, "64MiB",
        "memory of the histories of all channels; the least used channels are forgotten")
        .at_start(),
    Key::new("max_presence_memory", Kind::SIZE, "16MiB",
        "memory of presence in all channels; clients beyond are members, and not listed")
        .at_start(),
    Key::new("min_response_rate", Kind::SIZE, "256B",
        "least bytes per second that a client must read of a response; 0 = any progress"),
    Key::new("keep_alive_timeout", TIMEOUT, "75s", "idle time between two requests, at least 1s"),
    Key::new("reassembly_timeout", TIMEOUT, "60s",
        "from a message's first byte to its last, at least 1s; 1008"),
    Key::new("write_timeout", TIMEOUT, "30s",
        "queued output without progress, at least 1s; then a reset").at_start(),
    Key::new("close_timeout", TIMEOUT, "5s",
        "wait for the peer's Close frame, at least 1s; then a reset"),
    server_keys::DEFLATE_ENABLED
        .details("--deflate shared = each message by itself, window:BITS = with the last 2^BITS \
                  bytes as context, 9 to 15, off = not")
        .expanded_flag("--deflate", "shared|window:BITS|off", deflate),
    server_keys::DEFLATE_MODE,
    server_keys::DEFLATE_WINDOW_BITS,
    server_keys::DEFLATE_LEVEL,
    Key::new("deflate.mem_level", LEVEL, "5", "1 to 9; memory per event loop, not per connection")
        .at_start(),
    server_keys::DEFLATE_THRESHOLD,
    Key::new("deflate.max_size", Kind::SIZE, "4MiB",
        "longer messages are not compressed: they would hold up all others").at_start(),
    Key::new("deflate.server_max_window_bits", WINDOW_BITS, "15",
        "largest window for messages to clients; 9 to 15").at_start(),
    Key::new("deflate.client_max_window_bits", WINDOW_BITS, "15",
        "largest window of clients; 9 to 15").at_start(),
    Key::new("deflate.server_no_context_takeover", Kind::Or("auto", &Kind::Switch), "auto",
        "true, false; auto = true in mode shared").at_start(),
    Key::new("deflate.client_no_context_takeover", Kind::Or("auto", &Kind::Switch), "auto",
        "true, false; auto = true in mode shared").at_start(),
    Key::new("heartbeat.interval", OR_NEVER, "25s", "idle time before a ping; 0s = no pings"),
    Key::new("heartbeat.timeout", TIMEOUT, "60s", "wait for an answer to a ping, at least 1s"),
    Key::new("heartbeat.always", Kind::Switch, "false", "ping connections that are not idle, too"),
    Key::new("drain.delay", Kind::Or("auto", &Kind::DURATION), "auto",
        "from /readyz turning to 503 to the first close of a shutdown; auto = 5s in Kubernetes, \
         else 0s"),
    Key::new("drain.window", Kind::DURATION, "10s",
        "spreads the closes of a shutdown; 0s = at once"),
    Key::new("drain.grace", Kind::DURATION, "5s",
        "from the end of drain.window to a reset; 0s = at once"),
    Key::new("cluster.url", Kind::Secret, "",
        "Redis or Valkey server that carries channels to other servers; if not set, channels end \
         here")
        .details("for example redis://10.0.0.5:6379, or with a user \
                  redis://[user[:password]@]host[:port][/database]; or the one that sentinels \
                  name: redis-sentinel://host[:port][,host[:port]...]/master[/database]; several \
                  of these with commas between them share the channels out; or a Redis Cluster: \
                  redis-cluster://host[:port][,host[:port]...]; rediss in place of redis = with \
                  TLS")
        .flag("--cluster", "URL").at_start(),
    Key::new("cluster.prefix", Kind::Text("a name such as \"throng\""), "throng",
        "beginning of all names there: letters, digits, - and _; other applications have others")
        .at_start(),
    Key::new("cluster.unready_after", OR_NEVER, "0s",
        "time for which the cluster's server is away, or behind, after which /readyz answers 503 \
         instead of 200 with the reason; 0s = never").at_start(),
    Key::new("cluster.require_at_start", Kind::Switch, "false",
        "fail at the start while the cluster's server cannot be reached, instead of starting with \
         503 at /readyz until it can").at_start(),
    Key::new("cluster.tls_ca", Kind::Path, "",
        "authorities that certify the cluster's servers, in PEM; if not set, the system's")
        .at_start(),
    Key::new("cluster.tls_cert", Kind::Path, "",
        "certificate for cluster's servers that demand one of their clients, in PEM").at_start(),
    Key::new("cluster.tls_key", Kind::Path, "", "its private key").at_start(),
    Key::new("cluster.tls_name", Kind::Text("a name such as \"redis.internal\""), "",
        "name in the certificates of all of the cluster's servers; if not set, each one's own name \
         or address").at_start(),
    Key::new("admin.listen", Kind::Address, "",
        "address where operators get metrics and statistics, and clients then do not; if not set, \
         there is none")
        .details("/metrics, /stats.json, /livez, /readyz, /api/, POST /reload and POST /upgrade")
        .flag("--admin", "HOST:PORT").at_start(),
    Key::new("admin.token", Kind::Secret, "",
        "token for /metrics, /stats.json and /reload there; required unless it is a loopback \
         address")
        .at_start(),
    Key::new("admin.token_file", Kind::Path, "", "file whose first line is admin.token")
        .at_start(),
    Key::new("public_metrics", Kind::Or("auto", &Kind::Switch), "auto",
        "/metrics and /stats.json are at `listen`, for every client; auto = without admin.listen, \
         and on loopback alone").at_start(),
    ],
    upgrade::KEYS,
    // The data of a record would cost an allocation for each request.
    &log::keys("off"),
];

/// Converts a rule such as `prices.*=latest,max_backlog=64KiB` to fields.
fn rule(text: &str) -> Result<Fields, String> {
    let example = || format!("write for example {EXAMPLE}");
    let Some((pattern, rest)) = text.split_once('=') else {
        return Err(format!("it names no policy; {}", example()));
    };
    let pattern = pattern.trim();
    if pattern.is_empty() {
        return Err(format!("it names no channels; {}", example()));
    }
    let mut fields = vec![("name", pattern.to_owned())];
    for (at, part) in rest.split(',').map(str::trim).enumerate() {
        let (key, value) = match part.split_once('=') {
            Some((key, value)) => (key.trim(), value.trim()),
            // The policy needs no name at the front.
            None if at == 0 => ("slow_policy", part),
            None => return Err(format!("{part:?} is no KEY=VALUE; {}", example())),
        };
        let known = CHANNELS.fields[1..].iter().map(|field| field.name);
        match known.clone().find(|known| *known == key) {
            Some(key) => fields.push((key, value.to_owned())),
            None => return Err(unknown(key, known)),
        }
    }
    Ok(fields)
}

fn unknown(key: &str, known: impl Iterator<Item = &'static str>) -> String {
    let hint = throng_config::units::did_you_mean(key, known).unwrap_or_else(|| {
        "a rule has slow_policy, max_backlog, max_age, history, recovery, presence, join_leave and \
         max_announced"
            .to_owned()
    });
    format!("unknown key `{}`: {hint}", Escaped(key))
}

/// Converts a value of `--deflate` to the values of the three settings that it stands for.
fn deflate(text: &str) -> Result<Fields, String> {
    let (mode, bits) = match text.trim().split_once(':') {
        None if text == "off" => return Ok(vec![("deflate.enabled", "false".to_owned())]),
        None if text == "shared" => (text, None),
        Some(("window", bits)) => ("window", Some(bits)),
        _ => return Err("write shared, window:BITS with 9 to 15 bits, or off".to_owned()),
    };
    let mut fields = vec![("deflate.enabled", "true".to_owned())];
    fields.push(("deflate.mode", mode.to_owned()));
    fields.extend(bits.map(|bits| ("deflate.window_bits", bits.to_owned())));
    Ok(fields)
}
