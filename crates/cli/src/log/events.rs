//! The table of events: every line of the log is one of these.

use throng_config::LogLevel;

/// A kind of event.
#[derive(Debug)]
pub(crate) struct LogEvent {
    /// Its name, which stays from release to release.
    pub(crate) name: &'static str,
    pub(crate) level: LogLevel,
    /// All fields that it can have, in their order.
    pub(crate) fields: &'static [&'static str],
    /// The meaning, for the document.
    #[cfg_attr(not(all(test, feature = "balance")), allow(dead_code, reason = "for the document"))]
    pub(crate) help: &'static str,
    /// Clients cause it, so its rate and its part of the queue are limited.
    pub(crate) is_limited: bool,
    /// Its index in the table.
    pub(crate) number: usize,
}

macro_rules! events {
    ($($name:ident = $text:literal, $level:ident, $from:ident, [$($field:literal),*],
       $help:literal;)+) => {
        $(
            #[doc = $help]
            #[cfg_attr(
                not(all(
                    target_os = "linux",
                    feature = "balance",
                    feature = "redis",
                    feature = "tls"
                )),
                allow(dead_code, reason = "the table does not depend on systems and features")
            )]
            pub(crate) static $name: LogEvent = LogEvent {
                name: $text,
                level: LogLevel::$level,
                fields: &[$($field),*],
                help: $help,
                is_limited: events!(@ $from),
                number: Number::$name as usize,
            };
        )+

        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "named as the events")]
        #[derive(Clone, Copy)]
        enum Number { $($name),+ }

        /// Number of kinds of events.
        pub(super) const KINDS: usize = [$(Number::$name),+].len();

        /// All events, in the order of the document.
        #[cfg(test)]
        pub(crate) static ALL: &[&LogEvent] = &[$(&$name),+];
    };
    (@ clients) => { true };
    (@ process) => { false };
}

events! {
    LISTENING = "listening", Info, process, ["address", "max_connections", "listener"],
        "the process accepts connections at these addresses";
    CHANNELS = "channels", Info, process, [],
        "who may use channels without a rule about it";
    TOKEN_KEYS = "token_keys", Info, process, ["url", "keys"],
        "a set of keys for tokens was fetched, and is new";
    TOKEN_KEYS_FAILED = "token_keys.failed", Warn, process, ["url", "reason"],
        "a set of keys for tokens could not be fetched";
    ADMIN = "admin", Info, process, ["address"],
        "the admin API is at this address";
    BACKENDS = "backends", Info, process, [],
        "the backends and the load-balancing algorithm at the start";
    PLACEMENT = "placement", Info, process, [],
        "the CPUs of the event loops";
    PLACEMENT_FAILED = "placement.failed", Warn, process, [],
        "an event loop could not be bound to its CPU";
    WARNING = "warning", Warn, process, [],
        "a setting that is valid and hardly intended";
    CHECK = "check", Warn, process, ["rule", "status"],
        "a limit of the machine, or a setting, that will fail or lose clients, at the start; \
         `throng doctor --explain RULE` has the reason, and strict_start refuses to start";
    RELOADED = "reloaded", Info, process, [],
        "the configuration was read again, with these changes";
    RELOAD_FAILED = "reload.failed", Error, process, ["reason"],
        "a reload met a mistake, and no setting was changed; certificates that were renewed \
         without one are used all the same (`certificate.reloaded`)";
    CERTIFICATE_RELOADED = "certificate.reloaded", Info, process, [],
        "renewed certificates serve new connections";
    CERTIFICATE_FAILED = "certificate.failed", Error, process, ["reason"],
        "renewed certificates cannot be used; the old ones stay in use";
    CERTIFICATE_EXPIRES = "certificate.expires", Warn, process, [],
        "a certificate expires soon, or has expired";
    CERTIFICATE_ISSUED = "certificate.issued", Info, process, ["names", "expires", "renewal"],
        "an authority has issued a certificate (tls.acme), which serves new connections";
    CERTIFICATE_NOT_ISSUED = "certificate.not_issued", Error, process, ["reason", "retry_in"],
        "an authority has not issued a certificate (tls.acme); the old one stays in use";
    CERTIFICATE_UNWRITTEN = "certificate.unwritten", Error, process, ["reason", "retry_in"],
        "a certificate that an authority has issued (tls.acme) is served, but cannot be written, \
         and would be lost with the process";
    UPGRADE = "upgrade", Info, process,
        ["from", "to", "process", "moved", "pause", "connections", "duration"],
        "another process accepts from the same sockets; this one drains its connections";
    UPGRADE_FAILED = "upgrade.failed", Error, process, ["reason", "lost"],
        "another process did not take over, and this one goes on; tunnels that had moved to the \
         other one have ended with it";
    STATUS = "status", Info, process,
        ["uptime", "connections", "max_connections", "accepted", "refused", "sessions", "channels",
         "tunnels", "requests", "backends_up", "backends", "lost", "memory_bytes", "descriptors",
         "log_dropped"],
        "the state of the process, on SIGUSR1";
    LOG_DROPPED = "log.dropped", Warn, process, ["lines", "reason"],
        "lines that are missing here: there were more than log.max_rate, or the reader of the log \
         was too slow";
    LOG_FAILED = "log.failed", Error, process, ["reason"],
        "log.file could not be opened again; the log goes on in the old file";
    DRAIN = "drain", Info, process, ["connections", "window", "grace"],
        "a shutdown began: connections are closed over the window, and reset after the grace";
    DRAIN_FORCED = "drain.forced", Warn, process, ["connections"],
        "connections that missed the deadline of the shutdown and were reset";
    DRAIN_STUCK = "drain.stuck", Warn, process, ["route", "shard", "duration"],
        "a handler did not return before the end of the shutdown";
    STOPPED = "stopped", Info, process, [],
        "the process ends; every connection was closed cleanly";
    SIGNAL = "signal", Info, process, ["signal"],
        "a signal that has no effect";
    REQUEST = "request", Info, clients,
        ["session", "client", "peer", "client_certificate", "method", "path", "status", "site",
         "route", "pool", "split", "limit", "backend", "attempts", "bytes_in", "bytes_out",
         "duration", "queued", "queue_length", "reason", "request_id", "traceparent", "host",
         "user_agent", "tls", "server_name"],
        "a request was answered; with a backend by that, without one by this process, for the \
         reason given";
    REQUEST_FAILED = "request.failed", Warn, clients,
        ["session", "client", "peer", "client_certificate", "method", "path", "status", "site",
         "route", "pool", "split", "limit", "backend", "attempts", "bytes_in", "bytes_out",
         "duration", "queued", "queue_length", "reason", "request_id", "traceparent", "host",
         "user_agent", "tls", "server_name"],
        "a request was answered with a status of 500 or more, or its response was cut";
    SESSION = "session", Info, clients,
        ["session", "client", "peer", "client_certificate", "path", "server_name", "code",
         "site", "route", "pool", "split", "backend", "bytes_in", "bytes_out", "duration", "queued",
         "queue_length", "reason", "request_id", "traceparent", "host", "user_agent", "tls"],
        "a WebSocket, or a connection that was passed through, ended; bytes are those of its \
         connection; behind a balancer, the code is the one that the balancer closed it with, if \
         it did";
    SESSION_LOST = "session.lost", Warn, clients,
        ["session", "client", "peer", "client_certificate", "path", "server_name", "code",
         "site", "route", "pool", "split", "backend", "bytes_in", "bytes_out", "duration", "queued",
         "queue_length", "reason", "request_id", "traceparent", "host", "user_agent", "tls"],
        "a WebSocket ended because its backend did, without a Close frame";
    REFUSED = "refused", Info, clients,
        ["session", "client", "peer", "route", "status", "reason"],
        "a connection, a request or an upgrade was refused";
    PROXY_REFUSED = "proxy_refused", Warn, clients, ["session", "client", "peer", "reason"],
        "a connection was closed: no trusted proxy, or its PROXY header was wrong or late";
    TLS_REFUSED = "tls_refused", Info, clients, ["session", "client", "peer", "reason"],
        "the TLS handshake of a client failed, and its connection was closed";
    TLS_SESSION_FAILED = "tls_session_failed", Info, clients,
        ["session", "client", "peer", "backend", "reason"],
        "the TLS session of a client failed after its handshake, and its connection was closed";
    PROTOCOL_ERROR = "protocol_error", Info, clients,
        ["session", "client", "peer", "route", "code", "reason"],
        "a client broke the WebSocket protocol, and its session was closed";
    SLOW_CONSUMER = "slow_consumer", Warn, clients,
        ["session", "client", "peer", "route", "reason"],
        "a session was closed with 1008: its client reads too slowly";
    MESSAGES_DROPPED = "messages.dropped", Warn, process, ["messages", "reason"],
        "so many messages were not sent to receivers that were too slow, since the last such line";
    ENDED = "session.ended", Info, clients,
        ["session", "client", "peer", "route", "code", "backend", "reason"],
        "a session, a stream of events, a tunnel, a response that was being sent, or a connection \
         without a request was ended by a rule or limit of the server, for the reason given, which \
         names the setting";
    RESPONSE_FAILED = "response.failed", Warn, clients,
        ["session", "client", "peer", "route", "reason"],
        "the source of a response's body failed, or its length was wrong; the connection was \
         closed before the end of the body";
    PANIC = "panic", Error, clients, ["session", "client", "peer", "route"],
        "a handler panicked; its connection was closed, or its request answered with 500";
    TICK_PANIC = "panic.tick", Error, process, ["period", "shard"],
        "a function that is called again and again panicked; it goes on";
    CALLBACK_PANIC = "panic.callback", Error, process, ["callback"],
        "a function that belongs to no connection panicked; the server goes on";
    STALL = "stall", Warn, clients, ["route", "shard", "duration"],
        "a handler held up its event loop";
    CLUSTER_REFUSED = "cluster.refused", Warn, process, ["messages", "reason"],
        "so many messages were refused, or have waited for the cluster for too long, since the \
         last such line: no member gets them, and their publishers learn it";
    CLUSTER_UNKNOWN = "cluster.unknown", Warn, process, ["messages", "reason"],
        "so many messages were sent to the cluster, which has not answered, since the last such \
         line: members have got them or not";
    CLUSTER_GAP = "cluster.gap", Warn, process, ["channels", "reason"],
        "members of so many channels without history may have missed messages since the last such \
         line: the broker did not deliver for a moment";
    CLUSTER_DEGRADED = "cluster.degraded", Warn, process, ["duration", "reason"],
        "the cluster's server, or a part of it, is away, or does not take messages: its channels \
         are not served";
    CLUSTER_UP = "cluster.up", Info, process, ["duration"],
        "the cluster serves all channels again, after so long";
    CLUSTER_RULES = "cluster.rules", Warn, process, ["servers"],
        "these servers of the cluster have other rules for channels than this one, or none has";
    LIMIT_REACHED = "limit.reached", Warn, process, ["connections", "reason"],
        "so many connections were refused, or ended without a request to make room for others, \
         since the last such line";
    REGISTERED = "registered", Info, process, ["balancer", "address", "weight"],
        "this backend is registered at a balancer";
    REGISTER_FAILED = "register.failed", Warn, process, ["balancer", "reason"],
        "a balancer cannot be reached or refuses this backend";
    DEREGISTERED = "deregistered", Info, process, ["balancer"],
        "a balancer no longer sends clients to this backend";
    BACKEND_UP = "backend.up", Info, process, ["backend"],
        "a backend gets new clients again";
    BACKEND_DOWN = "backend.down", Warn, process, ["backend", "tunnels", "reason"],
        "a backend gets no new clients, for the reason given";
    BACKEND_REMOVED = "backend.removed", Info, process, ["backend", "tunnels"],
        "a backend that is no longer in the list has so many tunnels, which stay";
    BACKENDS_PANIC = "backends.panic", Warn, process, ["up", "backends"],
        "fewer than half of the backends are up: no tunnel of theirs is closed";
    LOOKUP = "lookup", Info, process, ["name", "addresses"],
        "a name of backends has these addresses";
    LOOKUP_FAILED = "lookup.failed", Warn, process, ["name", "addresses", "reason"],
        "a name of backends could not be looked up; it keeps its addresses";
    OPERATOR = "operator", Info, process, [],
        "a change by the admin API";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_and_fields_are_words_of_their_own() {
        let names: BTreeSet<&str> = ALL.iter().map(|event| event.name).collect();
        assert_eq!(names.len(), ALL.len());
        for event in ALL {
            let is_word = |text: &str| {
                text.bytes().all(|byte| byte.is_ascii_lowercase() || b"._".contains(&byte))
            };
            assert!(is_word(event.name), "{}", event.name);
            let fields: BTreeSet<&str> = event.fields.iter().copied().collect();
            assert_eq!(fields.len(), event.fields.len(), "{}", event.name);
            for field in fields {
                let is_common = ["time", "level", "event", "message"].contains(&field);
                assert!(is_word(field) && !is_common, "{}: {field}", event.name);
            }
        }
    }
}
