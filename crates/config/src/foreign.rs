//! Hints for settings that other servers have under other names.

/// A setting of other servers: sgcWebSockets, nginx, HAProxy, ws and uWebSockets.
#[derive(Debug)]
pub struct Foreign {
    /// The names that other servers use. Case, `_`, `-` and spaces do not matter.
    pub names: &'static [&'static str],
    /// The settings that correspond to it, each with a value if only that value corresponds; may be
    /// empty. A program's hint names the first setting that it has.
    pub keys: &'static [&'static str],
    /// A difference, or the closest setting; may be empty if there are keys.
    pub note: &'static str,
}

const fn foreign(
    names: &'static [&'static str],
    keys: &'static [&'static str],
    note: &'static str,
) -> Foreign {
    Foreign { names, keys, note }
}

const POOL: &str = "the pool belongs to programs on the library: WorkerSettings::pool_size and \
                    queue_size; the program throng runs no handlers that block";
const NO_RATE: &str = "there is no limit on requests a second: serve has max_messages_per_second, \
                       and both have tls.handshakes_per_second";

/// All settings with hints; `docs/moving.md` lists them for readers.
pub static ALL: &[Foreign] = &[
    // sgcWebSockets
    foreign(&["ThreadPool", "ThreadPool.PoolSize", "PoolSize"], &[], POOL),
    foreign(&["ThreadPool.QueueSize", "QueueSize"], &[], POOL),
    foreign(&["MaxConnections", "maxconn"], &["max_connections"], ""),
    foreign(&["Port"], &["listen"], "ADDRESS:PORT"),
    foreign(&["IOHandlerType"], &["io"], ""),
    foreign(&["iohEPOLL"], &["io=epoll"], "the default on Linux"),
    foreign(&["iohIOCP", "IOCP", "IOCPThreads"], &[], "there is no driver for Windows"),
    foreign(&["EPOLLThreads", "worker_processes", "nbthread"], &["shards"], ""),
    foreign(&["WorkOpThreads"], &[], "a connection always stays on one event loop"),
    foreign(
        &["PerMessage_Deflate.Enabled", "PerMessage_Deflate"],
        &["deflate.enabled"],
        "--deflate sets the mode as well",
    ),
    foreign(
        &["ServerMaxWindow"],
        &["deflate.window_bits"],
        "of deflate.mode = \"window\"; deflate.server_max_window_bits is a cap",
    ),
    foreign(&["MemLevel"], &["deflate.mem_level"], ""),
    foreign(&["Threshold"], &["deflate.threshold"], ""),
    foreign(&["FragmentEnabled"], &["fragment_threshold"], ""),
    foreign(&["FragmentSize"], &["fragment_size"], ""),
    foreign(&["MaxFrameSize"], &["max_frame_size"], ""),
    foreign(&["HeartBeat.Interval"], &["heartbeat.interval"], ""),
    foreign(&["HeartBeat.Timeout"], &["heartbeat.timeout"], "it counts from the ping"),
    foreign(
        &["HeartBeat.Enabled", "sendPingsAutomatically"],
        &["heartbeat.interval"],
        "0s turns pings off",
    ),
    // nginx
    foreign(&["worker_connections"], &["max_connections"], "of clients, not sockets"),
    foreign(&["worker_rlimit_nofile"], &["descriptors"], "the soft limit is raised anyway"),
    foreign(&["worker_cpu_affinity"], &["pin"], ""),
    foreign(&["reuseport"], &["share_port"], "event loops share the port anyway"),
    foreign(&["upstream"], &["pools", "backends"], "[[pool]] tables; backends is the default"),
    foreign(&["least_conn", "leastconn"], &["pick=least_connections"], ""),
    foreign(&["ip_hash"], &["pick=ip_hash"], "or sticky=ip"),
    foreign(
        &["max_conns"],
        &[],
        "a backend has no limit of connections: max_handshakes limits its handshakes, \
         max_connections of throng serve there the rest",
    ),
    foreign(&["backup"], &[], "all backends share the load: give this one a low weight"),
    foreign(&["max_fails"], &["health.failures"], ""),
    foreign(&["fail_timeout"], &["health.within"], "and health.down_for"),
    foreign(&["health_check"], &["health.check.kind"], ""),
    foreign(&["keepalive"], &["keep_alive"], ""),
    foreign(&["resolver"], &["lookup_interval"], "of the system's resolver"),
    foreign(&["proxy_connect_timeout", "timeout connect"], &["timeouts.connect"], ""),
    foreign(
        &["proxy_read_timeout", "timeout tunnel"],
        &["timeouts.tunnel"],
        "for WebSockets; timeouts.response for answers",
    ),
    foreign(&["proxy_send_timeout"], &["timeouts.body"], ""),
    foreign(&["proxy_next_upstream_tries"], &["retries"], ""),
    foreign(&["proxy_bind"], &["sources"], ""),
    foreign(&["set_real_ip_from", "real_ip_header"], &["trusted_proxies"], ""),
    foreign(&["proxy_protocol", "accept-proxy"], &["proxy_protocol", "accept_proxy"], ""),
    foreign(&["limit_conn"], &["max_connections_per_address"], ""),
    foreign(&["limit_req", "stick-table"], &[], NO_RATE),
    foreign(&["client_max_body_size"], &["max_body"], ""),
    foreign(
        &["client_header_timeout", "timeout http-request"],
        &["handshake_timeout", "timeouts.head"],
        "",
    ),
    foreign(&["keepalive_timeout"], &["keep_alive_timeout", "timeouts.keep_alive"], ""),
    foreign(&["large_client_header_buffers"], &["max_header_bytes"], ""),
    foreign(&["ssl_certificate"], &["tls.cert"], ""),
    foreign(&["ssl_certificate_key"], &["tls.key"], ""),
    foreign(&["ssl_session_ticket_key"], &["tls.ticket_keys"], ""),
    foreign(&["ssl_stapling"], &[], "there is no OCSP stapling: Let's Encrypt has ended OCSP"),
    foreign(&["ssl_preread"], &[], "write passthrough=NAME at a backend"),
    foreign(
        &["server_name", "location"],
        &["sites"],
        "[[site]] with hosts, and [[site.route]] with path or prefix",
    ),
    foreign(&["access_log"], &["log.access"], "and log.file"),
    foreign(&["error_log"], &["log.file"], "and log.level"),
    // HAProxy
    foreign(&["balance"], &["pick"], ""),
    foreign(&["roundrobin"], &["pick=round_robin"], ""),
    foreign(&["cookie"], &["sticky"], "cookie:NAME"),
    foreign(&["timeout client-fin"], &["timeouts.half_closed"], ""),
    foreign(&["timeout queue"], &["timeouts.queue"], ""),
    foreign(&["timeout check"], &["health.check.timeout"], ""),
    foreign(&["httpchk"], &["health.check.kind"], "http"),
    foreign(&["inter"], &["health.check.interval"], ""),
    foreign(&["forwardfor"], &[], "backends always get X-Forwarded-For"),
    foreign(&["send-proxy-v2"], &[], "write send_proxy at a backend"),
    foreign(&["slowstart"], &["slow_start"], ""),
    // ws and uWebSockets
    foreign(&["maxPayload", "maxPayloadLength"], &["max_message_size"], ""),
    foreign(
        &["idleTimeout"],
        &["heartbeat.interval", "timeouts.tunnel"],
        "of silence; then heartbeat.timeout for the answer to a ping",
    ),
    foreign(&["maxBackpressure"], &["max_backlog"], ""),
    foreign(&["closeOnBackpressureLimit"], &["slow_policy=close"], "the default"),
    foreign(&["maxLifetime"], &["max_lifetime"], ""),
    foreign(&["verifyClient"], &["allowed_origins"], "or Ws::from_request in a program"),
    foreign(&["handleProtocols"], &["subprotocols"], ""),
];

/// Returns the hint for a name unknown to a program. `has` returns whether the program has a key;
/// `has_section` returns whether it has keys that begin with a name and a dot.
pub(crate) fn hint(
    program: &str,
    name: &str,
    has: impl Fn(&str) -> bool,
    has_section: impl Fn(&str) -> bool,
) -> Option<String> {
    // Other servers may put a section such as `ThreadPool` before the name.
    let last = || match name.rsplit_once('.') {
        Some((section, last)) if !has_section(section) => find(last),
        _ => None,
    };
    let found = find(name).or_else(last)?;
    let other = if program == "serve" { "balance" } else { "serve" };
    Some(found.hint(has, |key| format!("`throng {other}` has {key}")))
}

/// Returns the hint for a name that is not a field of the list `key`.
pub(crate) fn field_hint(key: &str, name: &str, has: impl Fn(&str) -> bool) -> Option<String> {
    let list = key.split('[').next().unwrap_or_default();
    Some(find(name)?.hint(has, |key| format!("for all {list} it is {key}")))
}

/// Returns the entry of `words` that corresponds to another server's word.
pub(crate) fn word(text: &str, words: &[&'static str]) -> Option<&'static str> {
    let keys = find(text)?.keys.iter();
    let mut values = keys.filter_map(|key| key.split_once('=')).map(|(_, value)| value);
    values.find(|value| words.contains(value))
}

impl Foreign {
    fn hint(&self, has: impl Fn(&str) -> bool, elsewhere: impl Fn(&str) -> String) -> String {
        let setting = |key: &str| key.split('=').next().is_some_and(&has);
        let name = match (self.keys.iter().find(|key| setting(key)), self.keys.first()) {
            (Some(key), _) => format!("here it is {key}"),
            (None, Some(key)) => elsewhere(key),
            (None, None) => return self.note.to_owned(),
        };
        match self.note {
            "" => name,
            note => format!("{name} ({note})"),
        }
    }
}

fn find(name: &str) -> Option<&'static Foreign> {
    let name = plain(name);
    ALL.iter().find(|foreign| foreign.names.iter().any(|known| plain(known) == name))
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| !"_- ".contains(*c)).collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVE: &[&str] = &["max_connections", "handshake_timeout", "heartbeat.interval"];
    const BALANCE: &[&str] = &["listen", "pick", "timeouts.head", "admin.listen"];

    fn hint_of(program: &str, name: &str) -> Option<String> {
        let keys = if program == "serve" { SERVE } else { BALANCE };
        let has_section = |name: &str| keys.iter().any(|key| key.starts_with(&format!("{name}.")));
        hint(program, name, |key| keys.contains(&key), has_section)
    }

    #[test]
    fn names_of_others_have_hints() {
        for (program, name, expected) in [
            ("serve", "ThreadPool.MaxConnections", "here it is max_connections"),
            ("serve", "worker_connections", "here it is max_connections (of clients, not sockets)"),
            ("serve", "HeartBeat.Interval", "here it is heartbeat.interval"),
            ("serve", "ThreadPool.PoolSize", POOL),
            ("serve", "pool_size", POOL),
            ("serve", "workers.pool_size", POOL),
            ("serve", "least_conn", "`throng balance` has pick=least_connections"),
            ("serve", "client_header_timeout", "here it is handshake_timeout"),
            ("balance", "client_header_timeout", "here it is timeouts.head"),
            ("balance", "LEASTCONN", "here it is pick=least_connections"),
            ("balance", "maxPayload", "`throng serve` has max_message_size"),
            ("balance", "limit-req", NO_RATE),
        ] {
            assert_eq!(hint_of(program, name).as_deref(), Some(expected), "{name}");
        }
        // A mistake within a section of the program.
        assert_eq!(hint_of("balance", "admin.port"), None);
        assert_eq!(hint_of("balance", "zzzzzz"), None);
    }

    #[test]
    fn fields_and_words_of_others_have_hints() {
        let hint = |name| field_hint("backends[2]", name, |key| key == "weight").unwrap();
        assert!(hint("max_conns").contains("max_handshakes"));
        assert_eq!(hint("max_fails"), "for all backends it is health.failures");
        assert_eq!(word("leastconn", &["random", "least_connections"]), Some("least_connections"));
        assert_eq!(word("leastconn", &["random"]), None);
        assert_eq!(word("max_conns", &["random"]), None);
    }

    #[test]
    fn each_name_has_one_row_and_each_row_has_a_hint() {
        for foreign in ALL {
            assert!(!foreign.keys.is_empty() || !foreign.note.is_empty(), "{foreign:?}");
            for name in foreign.names {
                assert!(std::ptr::eq(find(name).unwrap(), foreign), "{name} is in two rows");
            }
        }
    }
}
