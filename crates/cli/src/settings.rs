//! The settings of `throng serve`: one table, four sources, one precedence.
//!
//! Flags win over `THRONG_*` variables, those over the configuration file, that over the defaults.
//! Each value keeps its origin, for error messages and `throng config show`.

mod channels;
mod deflate;
mod environment;
mod file;
mod tls;
mod workers;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use throng::{
    Backpressure, CpuAffinity, Deflate, DrainPlan, IoBackend, Limits, Origins, Tls, WorkerSettings,
};
use throng_load::units::{parse_duration, parse_size};

use crate::hosts::AllowedHosts;

pub(crate) use channels::Rule;

/// One setting.
pub(crate) struct Setting {
    /// The key in the configuration file and after `--set`.
    pub(crate) key: &'static str,
    /// The default value, as text.
    pub(crate) default: &'static str,
    /// The meaning, on one line.
    pub(crate) help: &'static str,
}

/// All settings, in the order of `throng config show`.
pub(crate) const SETTINGS: &[Setting] = &[
    setting(
        "listen",
        "127.0.0.1:9001",
        "address and port, or several with commas; port 0 takes a free one",
    ),
    setting("shards", "0", "event loops; 0 = one per usable CPU"),
    setting("io", "auto", "I/O backend: auto, epoll, portable, or threads (one per connection)"),
    setting("thread_stack", "256KiB", "stack of a connection's thread with io = threads"),
    setting("pin", "none", "cores: each event loop on a CPU of its own (Linux); or none"),
    setting(
        "stall_warning",
        "50ms",
        "report and count handlers that hold their event loop for so long; 0s = never",
    ),
    setting("backlog", "4096", "connections the kernel queues until they are accepted, at least 1"),
    setting("dir", "", "serve the files of this directory, at every path without another meaning"),
    setting("share_port", "false", "let other processes listen on the port, too (SO_REUSEPORT)"),
    setting(
        "tls.cert",
        "",
        "certificate in PEM, then those that lead to a root; several with commas; empty = no TLS",
    ),
    setting("tls.key", "", "private key in PEM of each certificate, in the same order"),
    setting("tls.min_version", "1.2", "lowest TLS version that is accepted: 1.2 or 1.3"),
    setting(
        "allowed_origins",
        "",
        "web pages that may connect, comma-separated; empty = same host, * = any",
    ),
    setting(
        "allowed_hosts",
        "auto",
        "names in Host besides addresses and localhost; *=any; auto=any unless on loopback alone",
    ),
    setting("max_connections", "0", "open connections; 0 = as many as descriptors allow"),
    setting(
        "max_pending_handshakes",
        "auto",
        "connections before their first request; auto = half of max_connections; 0 = no limit",
    ),
    setting(
        "max_connections_per_address",
        "auto",
        "of an IPv4 address or IPv6 /64; auto = a quarter, loopback without limit; 0 = no limit",
    ),
    setting(
        "max_message_size",
        "4MiB",
        "message size; larger close with 1009; raises max_frame_size unless that is set",
    ),
    setting(
        "max_upload_size",
        "1GiB",
        "size of messages to /upload, which are not buffered; larger close with 1009",
    ),
    setting("max_frame_size", "4MiB", "frame size; larger close with 1009"),
    setting("max_header_bytes", "16KiB", "size of a request's head; larger get 431"),
    setting("max_headers", "100", "header lines of a request; more get 431"),
    setting("max_body", "1MiB", "size of a request's body; larger get 413; 0 = only empty ones"),
    setting("max_backlog", "1MiB", "output queued for a connection before slow_policy applies"),
    setting(
        "slow_policy",
        "close",
        "for slow receivers: close (1008), drop_newest, drop_oldest or latest (per channel)",
    ),
    setting("max_age", "0s", "queued messages older than this are dropped; 0s = no limit"),
    setting(
        "channels",
        "",
        "rules by channel, first match wins: prices.*=latest,max_backlog=64KiB,max_age=5s; ...",
    ),
    setting("wildcards", "false", "let /ws/news.* and /sse/news.> subscribe to all that match"),
    setting(
        "fragment_threshold",
        "1MiB",
        "longer messages are sent in fragments, unless compressed",
    ),
    setting("fragment_size", "64KiB", "the size of a fragment"),
    setting(
        "max_messages_per_second",
        "0",
        "messages received from one session; more close it with 1008; 0 = no limit",
    ),
    setting(
        "max_bytes_per_second",
        "0",
        "bytes received from one session; more close it with 1008; 0 = no limit",
    ),
    setting("max_lifetime", "0s", "age at which sessions are closed with 1001; 0s = no limit"),
    setting("handshake_timeout", "10s", "from accept to a complete request, at least 1s; 408"),
    setting(
        "min_body_rate",
        "1KiB",
        "least bytes per second of a request's body, or 408; 0 = within handshake_timeout",
    ),
    setting(
        "max_body_memory",
        "256MiB",
        "request bodies being received, of all connections together; more get 503",
    ),
    setting(
        "max_memory",
        "0",
        "memory of all connections: queues, partial messages, bodies; the largest go with 1008 or 503; 0 = a quarter of the machine's or cgroup's",
    ),
    setting(
        "min_response_rate",
        "256B",
        "least bytes per second that a client must read of a response; 0 = any progress",
    ),
    setting("keep_alive_timeout", "75s", "idle time between two requests, at least 1s"),
    setting(
        "reassembly_timeout",
        "60s",
        "from a message's first byte to its last, at least 1s; 1008",
    ),
    setting("write_timeout", "30s", "queued output without progress, at least 1s; then a reset"),
    setting("close_timeout", "5s", "wait for the peer's Close frame, at least 1s; then a reset"),
    setting(
        "deflate.enabled",
        "false",
        "compress messages for clients that offer permessage-deflate",
    ),
    setting(
        "deflate.mode",
        "shared",
        "shared: each message by itself; window: with earlier messages as context",
    ),
    setting(
        "deflate.window_bits",
        "10",
        "for mode window: 2^bits bytes of context per connection; 9 to 15",
    ),
    setting("deflate.level", "1", "1 (fastest) to 9 (smallest)"),
    setting("deflate.mem_level", "5", "1 to 9; memory per event loop, not per connection"),
    setting(
        "deflate.threshold",
        "auto",
        "shorter messages are not compressed; auto = 256, or 0 with context",
    ),
    setting(
        "deflate.max_size",
        "4MiB",
        "longer messages are not compressed: they would hold up all others",
    ),
    setting(
        "deflate.server_max_window_bits",
        "15",
        "largest window for messages to clients; 9 to 15",
    ),
    setting("deflate.client_max_window_bits", "15", "largest window of clients; 9 to 15"),
    setting(
        "deflate.server_no_context_takeover",
        "auto",
        "true, false; auto = true in mode shared",
    ),
    setting(
        "deflate.client_no_context_takeover",
        "auto",
        "true, false; auto = true in mode shared",
    ),
    setting("workers.pool_size", "0", "threads for handlers that block; 0 = one per usable CPU"),
    setting("workers.queue_size", "4096", "jobs that may wait for a worker thread, at least 1"),
    setting("workers.affinity", "false", "each connection always on the same worker"),
    setting(
        "workers.overload",
        "pause",
        "when the queue is full: pause (connections wait) or close (1013, 503)",
    ),
    setting("heartbeat.interval", "25s", "idle time before a ping; 0s = no pings"),
    setting("heartbeat.timeout", "60s", "wait for an answer to a ping, at least 1s"),
    setting("heartbeat.always", "false", "ping connections that are not idle, too"),
    setting("drain.delay", "0s", "from /readyz turning to 503 to the first close of a shutdown"),
    setting("drain.window", "10s", "spreads the closes of a shutdown; 0s = at once"),
    setting("drain.grace", "5s", "from the end of drain.window to a reset; 0s = at once"),
];

const fn setting(key: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { key, default, help }
}

fn default_of(key: &str) -> &'static str {
    SETTINGS.iter().find(|setting| setting.key == key).map_or("", |setting| setting.default)
}

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File {
        path: String,
        line: usize,
    },
    Environment(String),
    Flag(String),
    /// Not set, but raised by another setting.
    Follows(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{path}:{line}"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
            Self::Follows(key) => write!(f, "follows {key}"),
        }
    }
}

/// The effective values, as text, with their origins.
#[derive(Clone, Debug)]
pub struct Settings {
    values: BTreeMap<&'static str, (String, Origin)>,
}

impl Settings {
    pub(crate) fn new() -> Self {
        let values = SETTINGS
            .iter()
            .map(|setting| (setting.key, (setting.default.to_owned(), Origin::Default)))
            .collect();
        Self { values }
    }

    /// Reads the configuration file.
    pub(crate) fn read_file(&mut self, path: &Path) -> Result<(), String> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            format!(
                "cannot read the configuration file {name}: {error}; check the path after --config"
            )
        })?;
        self.read_toml(&name, &text)
    }

    fn read_toml(&mut self, name: &str, text: &str) -> Result<(), String> {
        for found in file::read(name, text)? {
            let origin = Origin::File { path: name.to_owned(), line: found.line };
            self.set(&found.key, found.value, origin)?;
        }
        Ok(())
    }

    /// Reads `THRONG_*`: `THRONG_MAX_BACKLOG`, `THRONG_HEARTBEAT_INTERVAL`.
    pub(crate) fn read_environment(
        &mut self,
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<(), String> {
        for (name, value) in variables {
            if let Some(found) = environment::read(name, value)? {
                self.set(&found.key, found.value, Origin::Environment(found.variable))?;
            }
        }
        Ok(())
    }

    /// Takes `key=value` as given to `--set`.
    pub(crate) fn set_pair(&mut self, pair: &str) -> Result<(), String> {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(format!(
                "--set {pair}: write it as key=value, for example --set max_backlog=2MiB"
            ));
        };
        self.set(key.trim(), value.trim().to_owned(), Origin::Flag("--set".to_owned()))
    }

    pub(crate) fn set(&mut self, key: &str, value: String, origin: Origin) -> Result<(), String> {
        let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) else {
            let hint = did_you_mean(key, SETTINGS.iter().map(|setting| setting.key))
                .unwrap_or_else(|| "; `throng config show` lists all settings".to_owned());
            return Err(format!("unknown key `{}` ({origin}){hint}", key.escape_debug()));
        };
        self.values.insert(setting.key, (value, origin));
        if setting.key == "max_message_size" {
            self.raise_max_frame_size();
        }
        Ok(())
    }

    /// Changes the default of a setting, because of the flag `origin`.
    pub fn set_default(
        &mut self,
        key: &str,
        value: &str,
        origin: &'static str,
    ) -> Result<(), String> {
        match self.values.get(key) {
            Some((_, Origin::Default)) => self.set(key, value.to_owned(), Origin::Follows(origin)),
            _ => Ok(()),
        }
    }

    /// Raises max_frame_size to max_message_size, since a message may come in a single frame.
    fn raise_max_frame_size(&mut self) {
        let default = default_of("max_frame_size");
        if !matches!(self.values["max_frame_size"].1, Origin::Default | Origin::Follows(_)) {
            return;
        }
        let message = &self.values["max_message_size"].0;
        let raised = match (parse_size(message.trim()), parse_size(default)) {
            (Ok(message_size), Ok(usual)) if message_size > usual => {
                (message.clone(), Origin::Follows("max_message_size"))
            }
            _ => (default.to_owned(), Origin::Default),
        };
        self.values.insert("max_frame_size", raised);
    }

    /// Returns key, value and origin of every setting, in the order of the table.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&Setting, &str, &Origin)> {
        SETTINGS.iter().map(|setting| {
            let (value, origin) = &self.values[setting.key];
            (setting, value.as_str(), origin)
        })
    }

    /// Converts the values to the library's types.
    pub fn checked(&self) -> Result<Checked, String> {
        let Limits { mut ws, mut http, .. } = Limits::default();
        ws.max_message_size = self.size("max_message_size")?;
        ws.max_frame_size = self.size("max_frame_size")?;
        http.max_header_bytes = self.size("max_header_bytes")?;
        http.max_headers = self.count("max_headers")?;
        http.max_body = self.size("max_body")? as u64;
        // All fields, so that a limit without a setting does not compile.
        let limits = Limits {
            ws,
            http,
            max_connections: self.count("max_connections")?,
            max_pending_handshakes: self.cap("max_pending_handshakes")?,
            max_connections_per_address: self.cap("max_connections_per_address")?,
            max_backlog: self.size("max_backlog")?,
            fragment_threshold: self.size("fragment_threshold")?,
            fragment_size: self.size("fragment_size")?,
            max_messages_per_second: self.count("max_messages_per_second")? as u64,
            max_bytes_per_second: self.size("max_bytes_per_second")? as u64,
            max_lifetime: self.duration("max_lifetime")?,
            handshake_timeout: self.duration("handshake_timeout")?,
            min_body_rate: self.size("min_body_rate")?,
            max_body_memory: self.size("max_body_memory")?,
            max_memory: self.size("max_memory")?,
            min_response_rate: self.size("min_response_rate")?,
            keep_alive_timeout: self.duration("keep_alive_timeout")?,
            reassembly_timeout: self.duration("reassembly_timeout")?,
            write_timeout: self.duration("write_timeout")?,
            close_timeout: self.duration("close_timeout")?,
            heartbeat_interval: self.duration("heartbeat.interval")?,
            heartbeat_timeout: self.duration("heartbeat.timeout")?,
            heartbeat_always: self.switch("heartbeat.always")?,
        };
        limits.check().map_err(|error| error.to_string())?;
        let drain = DrainPlan {
            delay: self.duration("drain.delay")?,
            window: self.duration("drain.window")?,
            grace: self.duration("drain.grace")?,
            ..DrainPlan::default()
        };
        let origins = match self.values["allowed_origins"].0.trim() {
            "" => Origins::SameHost,
            list => Origins::list(list.split(',').map(str::trim)),
        };
        let backlog = self.parse("backlog", |text| match text.parse::<i32>() {
            Ok(backlog) if backlog > 0 => Ok(backlog),
            _ => Err("write a number of at least 1, for example 4096".to_owned()),
        })?;
        let dir = Some(self.values["dir"].0.trim()).filter(|dir| !dir.is_empty());
        let share_port = self.switch("share_port")?;
        let backpressure = Backpressure::new(self.parse("slow_policy", channels::policy)?)
            .max_age(self.duration("max_age")?);
        let channels = self.parse("channels", |text| channels::parse(text, backpressure))?;
        let wildcards = self.switch("wildcards")?;
        let io = self.parse("io", str::parse::<IoBackend>)?;
        let thread_stack = self.size("thread_stack")?;
        let pin = self.parse("pin", str::parse::<CpuAffinity>)?;
        let stall_warning = self.duration("stall_warning")?;
        let mut addresses = self.parse("listen", |text| {
            text.split(',').map(str::trim).map(address).collect::<Result<Vec<_>, _>>()
        })?;
        let hosts =
            self.parse("allowed_hosts", |text| Ok(AllowedHosts::parse(text, &addresses)))?;
        let listen = addresses.remove(0);
        let shards = self.count("shards")?;
        let deflate = self.deflate()?;
        let workers = self.workers()?;
        let tls = self.tls()?;
        Ok(Checked {
            listen,
            listen_also: addresses,
            shards,
            io,
            thread_stack,
            pin,
            stall_warning,
            backlog,
            dir: dir.map(PathBuf::from),
            share_port,
            origins,
            hosts,
            limits,
            drain,
            backpressure,
            channels,
            wildcards,
            deflate,
            workers,
            tls,
            max_upload_size: self.size("max_upload_size")?,
        })
    }

    fn parse<T>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, String> {
        let (value, origin) = &self.values[key];
        parse(value.trim()).map_err(|why| format!("{key} is {value:?} ({origin}): {why}"))
    }

    fn count(&self, key: &'static str) -> Result<usize, String> {
        self.parse(key, |text| {
            text.replace('_', "")
                .parse()
                .map_err(|_| "write a whole number, for example 1000".to_owned())
        })
    }

    /// Returns a cap whose default depends on others; `None` for `auto`.
    fn cap(&self, key: &'static str) -> Result<Option<usize>, String> {
        match self.values[key].0.trim() {
            "auto" => Ok(None),
            _ => self.count(key).map(Some).map_err(|why| why + ", or auto"),
        }
    }

    fn size(&self, key: &'static str) -> Result<usize, String> {
        self.parse(key, parse_size)
    }

    fn duration(&self, key: &'static str) -> Result<Duration, String> {
        self.parse(key, duration)
    }

    fn switch(&self, key: &'static str) -> Result<bool, String> {
        self.parse(key, |text| text.parse().map_err(|_| "write true or false".to_owned()))
    }
}

/// `HOST:PORT`, or `:PORT` for all IPv4 addresses.
fn address(text: &str) -> Result<String, String> {
    let text = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    match std::net::ToSocketAddrs::to_socket_addrs(&text) {
        Ok(_) => Ok(text),
        Err(_) => Err("write HOST:PORT, for example 127.0.0.1:9001 or [::1]:0".to_owned()),
    }
}

/// A duration; nothing needs no unit.
fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { parse_duration(text) }
}

/// [`Settings`] as the library takes them.
#[derive(Debug)]
pub struct Checked {
    pub(crate) listen: String,
    pub(crate) listen_also: Vec<String>,
    pub(crate) shards: usize,
    pub(crate) io: IoBackend,
    pub(crate) thread_stack: usize,
    pub(crate) pin: CpuAffinity,
    pub(crate) stall_warning: Duration,
    pub(crate) backlog: i32,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) share_port: bool,
    pub(crate) origins: Origins,
    pub(crate) hosts: AllowedHosts,
    pub(crate) limits: Limits,
    /// How a shutdown closes the connections.
    pub drain: DrainPlan,
    /// For what no channel has rules for.
    pub(crate) backpressure: Backpressure,
    /// In order: the first that matches rules.
    pub(crate) channels: Vec<Rule>,
    pub(crate) wildcards: bool,
    pub(crate) deflate: Deflate,
    /// The pool of workers.
    pub workers: WorkerSettings,
    /// `None`: connections are not secured.
    pub(crate) tls: Option<Tls>,
    pub(crate) max_upload_size: usize,
}

/// The word of `known` that is closest to `word`, as a hint, if it is close enough for a typing
/// mistake.
fn did_you_mean<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<String> {
    let (far, near) =
        known.into_iter().map(|near| (strsim::levenshtein(word, near), near)).min()?;
    (far <= 1 + word.len() / 4).then(|| format!("; did you mean {near}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[&str]) -> Result<Checked, String> {
        let mut settings = Settings::new();
        for pair in pairs {
            settings.set_pair(pair)?;
        }
        settings.checked()
    }

    #[test]
    fn the_table_says_what_the_library_does() {
        let checked = Settings::new().checked().unwrap();
        assert_eq!(format!("{:?}", checked.limits), format!("{:?}", Limits::default()));
        assert_eq!(format!("{:?}", checked.drain), format!("{:?}", DrainPlan::default()));
    }

    #[test]
    fn later_sources_win_and_are_named() {
        let mut settings = Settings::new();
        settings
            .read_toml(
                "t.toml",
                "max_backlog = \"2MiB\"\nshards = 3\n[heartbeat]\ninterval = \"9s\"\n",
            )
            .unwrap();
        let variables =
            [("THRONG_HEARTBEAT_INTERVAL", "8s"), ("THRONG_SHARDS", "2"), ("HOME", "/")];
        settings.read_environment(variables.iter().map(|(k, v)| (k.into(), v.into()))).unwrap();
        settings.set_pair("shards=1").unwrap();
        let checked = settings.checked().unwrap();
        assert_eq!((checked.limits.max_backlog, checked.shards), (2 << 20, 1));
        assert_eq!(checked.limits.heartbeat_interval, Duration::from_secs(8));
        let origins: BTreeMap<_, _> =
            settings.each().map(|(s, _, origin)| (s.key, origin.to_string())).collect();
        assert_eq!(origins["max_backlog"], "t.toml:1");
        assert_eq!(origins["heartbeat.interval"], "environment THRONG_HEARTBEAT_INTERVAL");
        assert_eq!((origins["shards"].as_str(), origins["io"].as_str()), ("flag --set", "default"));
    }

    #[test]
    fn larger_messages_mean_larger_frames_unless_those_are_set() {
        let sizes = |pairs: &[&str]| {
            let ws = with(pairs).unwrap().limits.ws;
            (ws.max_message_size >> 20, ws.max_frame_size >> 20)
        };
        assert_eq!(sizes(&["max_message_size=8MiB"]), (8, 8));
        assert_eq!(sizes(&["max_message_size=8MiB", "max_message_size=1MiB"]), (1, 4));
        assert_eq!(sizes(&["max_frame_size=2MiB", "max_message_size=8MiB"]), (8, 2));
        assert_eq!(sizes(&["max_message_size=8MiB", "max_frame_size=4MiB"]), (8, 4));
        let mut settings = Settings::new();
        settings.set_pair("max_message_size=8MiB").unwrap();
        let (_, value, origin) = settings.each().find(|(s, ..)| s.key == "max_frame_size").unwrap();
        assert_eq!((value, origin.to_string().as_str()), ("8MiB", "follows max_message_size"));
    }

    #[test]
    fn several_addresses_have_commas_between_them() {
        let addresses = |text: &str| {
            let checked = with(&[&format!("listen={text}")])?;
            Ok::<_, String>((checked.listen, checked.listen_also))
        };
        assert_eq!(addresses(":80").unwrap(), ("0.0.0.0:80".to_owned(), vec![]));
        let more = vec!["[::1]:80".to_owned(), "0.0.0.0:81".to_owned()];
        assert_eq!(addresses("127.0.0.1:80, [::1]:80,:81").unwrap(), ("127.0.0.1:80".into(), more));
        for text in ["", "127.0.0.1:80,", ",", "127.0.0.1:80 [::1]:80"] {
            assert!(addresses(text).unwrap_err().contains("HOST:PORT"), "{text}");
        }
    }

    #[test]
    fn what_a_flag_makes_the_default_yields_to_what_was_set() {
        let mut settings = Settings::new();
        settings.set_pair("listen=127.0.0.1:5").unwrap();
        settings.set_default("listen", "127.0.0.1:1234", "--netbench").unwrap();
        settings.set_default("max_backlog", "2MiB", "--probe").unwrap();
        let checked = settings.checked().unwrap();
        assert_eq!((checked.listen.as_str(), checked.limits.max_backlog), ("127.0.0.1:5", 2 << 20));
    }

    #[test]
    fn rates_and_lifetimes_are_passed_on() {
        let checked = with(&[
            "max_messages_per_second=50",
            "max_bytes_per_second=1MiB",
            "max_lifetime=2h",
            "drain.delay=3s",
            "stall_warning=20ms",
            "pin=cores",
        ])
        .unwrap();
        assert_eq!(
            (checked.stall_warning, checked.pin),
            (Duration::from_millis(20), CpuAffinity::Cores)
        );
        let usual = with(&[]).unwrap();
        assert_eq!(
            (usual.stall_warning, usual.pin),
            (Duration::from_millis(50), CpuAffinity::None)
        );
        assert_eq!(checked.limits.max_messages_per_second, 50);
        assert_eq!(checked.limits.max_bytes_per_second, 1 << 20);
        assert_eq!(checked.limits.max_lifetime, Duration::from_secs(7200));
        assert_eq!(checked.drain.delay, Duration::from_secs(3));
    }

    #[test]
    fn mistakes_name_the_setting_the_value_the_place_and_the_remedy() {
        for (pairs, parts) in [
            (&["max_backlog=lots"][..], &["max_backlog", "lots", "--set", "4KiB"][..]),
            (&["handshake_timeout=10"], &["handshake_timeout", "10", "10s"]),
            (&["handshake_timeout=0s"], &["handshake_timeout", "0", "1s"]),
            (&["max_mesage_size=1"], &["max_mesage_size", "did you mean max_message_size?"]),
            (&["zzz=1"], &["zzz", "config show"]),
            (&["shards"], &["key=value"]),
            (&["io=kqueue"], &["io", "kqueue", "epoll"]),
            (&["pin=sockets"], &["pin", "sockets", "cores or none"]),
            (&["stall_warning=50"], &["stall_warning", "50", "50s"]),
            (&["listen=9001"], &["listen", "9001", "HOST:PORT"]),
            (&["heartbeat.always=maybe"], &["heartbeat.always", "true or false"]),
            (&["max_message_size=0"], &["max_message_size is 0"]),
            (&["slow_policy=lates"], &["slow_policy", "--set", "did you mean latest?"]),
            (&["channels=news"], &["channels", "\"news\"", "--set", "prices.*=latest"]),
            (&["channel=news=close"], &["did you mean channels?"]),
            (&["wildcards=maybe"], &["wildcards", "true or false"]),
        ] {
            let message = with(pairs).unwrap_err();
            for part in parts {
                assert!(message.contains(part), "{message:?} does not say {part:?}");
            }
            assert!(!message.contains('\n'), "{message:?} is not one line");
        }
    }

    #[test]
    fn mistakes_say_setting_and_value_once() {
        for pair in ["io=foo", "pin=foo", "workers.overload=foo"] {
            let message = with(&[pair]).unwrap_err();
            let key = pair.split('=').next().unwrap();
            for part in [key, "foo"] {
                assert_eq!(message.matches(part).count(), 1, "{part:?} in {message:?}");
            }
        }
    }

    #[test]
    fn channels_have_rules_from_every_source_and_the_last_source_has_them_all() {
        let mut settings = Settings::new();
        let text = "slow_policy = \"drop_oldest\"\nmax_age = \"2s\"\nwildcards = true\n\
                    [[channel]]\nname = \"prices.*\"\nslow_policy = \"latest\"\n";
        settings.read_toml("t.toml", text).unwrap();
        let checked = settings.checked().unwrap();
        assert!(checked.wildcards);
        let general =
            Backpressure::new(throng::SlowPolicy::DropOldest).max_age(Duration::from_secs(2));
        assert_eq!(checked.backpressure, general);
        let latest = Backpressure { policy: throng::SlowPolicy::Latest, ..general };
        assert_eq!(checked.channels, [Rule { pattern: "prices.*".to_owned(), rules: latest }]);
        let origin = |settings: &Settings| {
            let (.., origin) = settings.each().find(|(s, ..)| s.key == "channels").unwrap();
            origin.to_string()
        };
        assert_eq!(origin(&settings), "t.toml:4");
        let variable = ("THRONG_CHANNELS".into(), "a.*=close;b=drop_newest".into());
        settings.read_environment([variable].into_iter()).unwrap();
        let patterns: Vec<String> =
            settings.checked().unwrap().channels.into_iter().map(|rule| rule.pattern).collect();
        assert_eq!(patterns, ["a.*", "b"]);
        assert_eq!(origin(&settings), "environment THRONG_CHANNELS");
        settings.set_pair("channels=").unwrap();
        assert!(settings.checked().unwrap().channels.is_empty());
    }

    #[test]
    fn a_bad_file_is_told_with_its_line() {
        let mut settings = Settings::new();
        let message = settings.read_toml("t.toml", "shards = 1\nmax_backlog = \n").unwrap_err();
        assert!(message.starts_with("t.toml:2: "), "{message:?}");
        let message = settings.read_toml("t.toml", "\n[heartbeat]\nintervall = 1\n").unwrap_err();
        assert!(
            message.contains("t.toml:3") && message.contains("heartbeat.interval?"),
            "{message}"
        );
    }
}
