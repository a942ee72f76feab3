//! Converts the settings of `throng serve` for the library.

use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use throng::channel::{Backpressure, Channels, History, HistoryMode, SlowPolicy};
#[cfg(feature = "redis")]
use throng::cluster::{Cluster, WhileDown};
use throng::http::{Files, Origins};
use throng::server::{DrainPlan, Limit, Proxies, Shards, SocketOptions};
#[cfg(feature = "tls")]
use throng::tls::Tls;
use throng::ws::{Deflate, DeflateMode};
use throng::{App, Limits, Server};
use throng_config::listen::{overlap, without_address};
#[cfg(not(feature = "tls"))]
use throng_config::tls;
use throng_config::{
    ConfigError, ConfigErrors, Draft, Listen, LogSettings, Record, Token, UpgradeSettings,
    drain_delay, units,
};
use throng_io::tables::DescriptorTables;
use throng_proto::ws::handshake::is_token;

use super::admin::Admin;
use super::checks;
use super::rights::{self, ApiKeys, Granting, LiveRights, Right};
use crate::hosts::{AllowedHosts, ListedHost, LiveHosts, is_loopback};

/// The settings of a server.
#[derive(Debug)]
pub struct Settings {
    pub(crate) listen: Vec<String>,
    pub(crate) shards: Shards,
    pub(crate) descriptors: DescriptorTables,
    pub(crate) sockets: SocketOptions,
    pub(crate) unix_mode: FileMode,
    pub(crate) stall_warning: Option<Duration>,
    /// `None`: a page of the program's own.
    pub(crate) files: Option<Files>,
    pub(crate) subprotocols: Vec<String>,
    pub(crate) origins: Origins,
    pub(crate) hosts: LiveHosts,
    pub(crate) proxies: Proxies,
    pub(crate) limits: Limits,
    /// Schedule by which a shutdown closes the connections.
    pub drain: DrainPlan,
    /// For channels without rules.
    pub(crate) backpressure: Backpressure,
    /// In order: the first that matches applies.
    pub(crate) channels: Vec<Rule>,
    pub(crate) rights: LiveRights,
    /// `None`: the API is on the server for operators alone.
    pub(crate) api_keys: Option<ApiKeys>,
    pub(crate) wildcards: bool,
    pub(crate) request_ids: bool,
    pub(crate) cluster: Option<Cluster>,
    pub(crate) deflate: Deflate,
    /// `None`: connections are not secured.
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
    pub(crate) max_upload_size: usize,
    pub(crate) admin: Option<Admin>,
    /// Metrics and statistics are served at `listen`.
    pub(crate) public_metrics: bool,
    pub(crate) log: LogSettings,
    pub(crate) upgrade: UpgradeSettings,
    /// A start fails while a check warns.
    pub(crate) strict_start: bool,
    /// The settings that the checks need.
    pub(crate) checked: throng_doctor::Settings,
    /// Warnings about settings that are valid but probably unintended.
    pub(crate) warnings: Vec<String>,
}

/// A cluster is refused in this build.
#[cfg(not(feature = "redis"))]
type Cluster = std::convert::Infallible;

/// A pattern and the rules for the channels that match it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) pattern: String,
    pub(crate) rules: Backpressure,
    pub(crate) history: Option<History>,
    pub(crate) presence: Option<Members>,
    /// The scope of a channel in a cluster.
    pub(crate) scope: Option<Scope>,
    /// The rights of clients there.
    pub(crate) rights: Granting,
}

/// Presence of a channel's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Members {
    /// Members get each other's joins and leaves.
    pub(crate) join_leave: bool,
    /// Maximum members up to which they do.
    pub(crate) max_announced: usize,
}

/// The receivers of a channel's messages in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// To members of this process.
    Local,
    /// All members, with the name of the rule for messages while the broker is away.
    Cluster(&'static str),
}

/// Returns whether another process accepts connections while this one drains: with a shared port,
/// or from a socket that the service manager keeps open.
fn hands_over(draft: &Draft, listen: &[String]) -> bool {
    draft.get("share_port") || listen.iter().any(|text| Listen::parse(text).is_inherited())
}

impl Settings {
    /// Returns the channels with their own scope.
    pub(super) fn scopes(&self) -> Vec<(String, Option<Scope>)> {
        let rules = self.channels.iter().filter(|rule| rule.scope.is_some());
        rules.map(|rule| (rule.pattern.clone(), rule.scope)).collect()
    }

    /// Returns the channels with a history: the rules up to the last one with a history, since the
    /// first that matches applies.
    pub(super) fn histories(&self) -> Vec<(String, Option<History>)> {
        let last = self.channels.iter().rposition(|rule| rule.history.is_some());
        let rules = &self.channels[..last.map_or(0, |last| last + 1)];
        rules.iter().map(|rule| (rule.pattern.clone(), rule.history)).collect()
    }

    /// Returns the channels with presence, as [`Settings::histories`] does.
    pub(super) fn presences(&self) -> Vec<(String, Option<Members>)> {
        let last = self.channels.iter().rposition(|rule| rule.presence.is_some());
        let rules = &self.channels[..last.map_or(0, |last| last + 1)];
        rules.iter().map(|rule| (rule.pattern.clone(), rule.presence)).collect()
    }

    /// Converts and checks the values of a [`TABLE`](super::TABLE).
    ///
    /// # Errors
    /// All mistakes, with their place and remedy.
    pub fn from_draft(draft: Draft) -> Result<Self, ConfigErrors> {
        let listen = addresses(&draft);
        let drain = drain(&draft, &listen);
        let backpressure = Backpressure::new(draft.parse("slow_policy").unwrap_or_default())
            .max_age(unless_zero(draft.get("max_age")));
        #[cfg(not(feature = "tls"))]
        refuse_tls(&draft);
        let hosts = draft.parse_list::<ListedHost>("allowed_hosts");
        let hosts = draft.get::<Option<Vec<String>>>("allowed_hosts").map(|_| hosts);
        let admin = admin(&draft, &listen);
        let is_local = listen.iter().all(|address| is_loopback(address));
        let channels = channels(&draft, backpressure);
        let rights = rights::rights(&draft, &listen, &channels);
        let mut settings = Self {
            proxies: proxies(&draft),
            hosts: LiveHosts::new(
                // Clients request the names in its certificate.
                AllowedHosts::new(hosts.as_deref(), &listen).and(draft.get("tls.acme.domains")),
            ),
            public_metrics: draft
                .get::<Option<bool>>("public_metrics")
                .unwrap_or(admin.is_none() && is_local),
            admin,
            listen,
            shards: Shards::new()
                .count(unless_0(&draft, "shards"))
                .io(draft.parse("io").unwrap_or_default())
                .thread_stack(draft.get("thread_stack"))
                .pin(draft.parse("pin").unwrap_or_default()),
            descriptors: draft.parse("descriptors").unwrap_or_default(),
            sockets: SocketOptions::new()
                .backlog(draft.get("backlog"))
                .reuse_port(draft.get("share_port")),
            unix_mode: draft.parse("unix_mode").unwrap_or_default(),
            stall_warning: unless_zero(draft.get("stall_warning")),
            files: files(&draft),
            subprotocols: subprotocols(&draft),
            origins: origins(&draft),
            limits: limits(&draft),
            drain,
            backpressure,
            rights: LiveRights::new(rights),
            api_keys: rights::api_keys(&draft),
            wildcards: draft.get("wildcards"),
            request_ids: draft.get("request_ids"),
            cluster: cluster(&draft, &channels),
            channels,
            deflate: deflate(&draft),
            #[cfg(feature = "tls")]
            tls: super::tls::read(&draft),
            max_upload_size: draft.get("max_upload_size"),
            log: LogSettings::from_draft(&draft),
            upgrade: UpgradeSettings::from_draft(&draft),
            strict_start: draft.get("strict_start"),
            checked: throng_doctor::Settings::default(),
            warnings: Vec::new(),
        };
        settings.checked = throng_doctor::Settings {
            files: settings.files.as_ref().map_or(0, Files::open_limit) as u64,
            #[cfg(feature = "tls")]
            tls: settings.tls.is_some(),
            shutdown: settings.drain.delay + settings.drain.window + settings.drain.grace,
            public_metrics: settings.public_metrics,
            ..checks::settings(&draft, &settings.listen)
        };
        if let Err(error) = settings.limits.check() {
            draft.add(ConfigError::message(error));
        }
        warn_of_limits(&draft);
        settings.warnings = draft.take_warnings();
        draft.finish().map(|_| settings)
    }
}

/// Permissions of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileMode(pub(crate) u32);

impl FromStr for FileMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
        let remedy = "write permissions in octal, for example \"660\" for user and group";
        mode.map(Self).ok_or_else(|| remedy.to_owned())
    }
}

/// Reads the settings of files; `None` without `dir`.
fn files(draft: &Draft) -> Option<Files> {
    let dir = draft.path("dir");
    let mut files = Files::new(dir.as_deref().unwrap_or(Path::new("")))
        .precompressed(draft.get("precompressed"));
    if let Some(value) = draft.get::<Option<String>>("cache_control") {
        match files.clone().cache_control(value) {
            Ok(with) => files = with,
            Err(error) => draft.wrong("cache_control", error),
        }
    }
    for (at, text) in draft.get::<Vec<String>>("media_types").iter().enumerate() {
        let (extension, media_type) = text.split_once('=').unwrap_or((text, ""));
        match files.clone().media_type(extension.trim(), media_type.trim()) {
            Ok(with) => files = with,
            Err(error) => draft.wrong(
                &format!("media_types[{at}]"),
                format_args!(
                    "{error}: write an extension and a media type, for example \
                     \"glb=model/gltf-binary\""
                ),
            ),
        }
    }
    dir.is_some().then_some(files)
}

/// Reads the subprotocols.
fn subprotocols(draft: &Draft) -> Vec<String> {
    let names: Vec<String> = draft.get("subprotocols");
    for (at, name) in names.iter().enumerate() {
        if !is_token(name) {
            let remedy = "write a name of letters, digits, - . and _, for example \"chat.v1\"";
            draft.wrong(&format!("subprotocols[{at}]"), remedy);
        }
    }
    names
}

/// A network of [`Proxies::trusted`], which is checked.
struct ProxyNetwork(String);

impl AsRef<str> for ProxyNetwork {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for ProxyNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let checked = Server::new(App::new()).proxies(Proxies::new().trusted([text])).check();
        checked.map(|()| Self(text.to_owned())).map_err(|error| error.to_string())
    }
}

/// Reads the addresses to listen on, and looks up the names among them.
fn addresses(draft: &Draft) -> Vec<String> {
    let listen: Vec<String> = draft.get("listen");
    if listen.is_empty() {
        draft.wrong("listen", "write HOST:PORT, for example \"127.0.0.1:9001\"");
    }
    let mut taken: Vec<SocketAddr> = Vec::new();
    for (at, text) in listen.iter().enumerate() {
        let key = format!("listen[{at}]");
        match Listen::parse(text).address() {
            Some(Ok(address)) => {
                let conflicts = |first: &&SocketAddr| match draft.get("share_port") {
                    true => **first == address && address.port() != 0,
                    false => overlap(**first, address),
                };
                if let Some(first) = taken.iter().find(conflicts) {
                    let remedy = match *first == address {
                        true => "it is there already: give it once".to_owned(),
                        false => format!("{first} has its connections: take one of the two out"),
                    };
                    draft.wrong(&key, remedy);
                }
                taken.push(address);
            }
            Some(Err(error)) => draft.fails(&key, &error, without_address(&error)),
            None if listen[..at].contains(text) => {
                draft.wrong(&key, "it is there already: give it once");
            }
            None => {}
        }
    }
    listen
}

/// Reads the settings `drain.*`.
fn drain(draft: &Draft, listen: &[String]) -> DrainPlan {
    DrainPlan::default()
        .delay(draft.get::<Option<_>>("drain.delay").unwrap_or_else(drain_delay))
        .window(draft.get("drain.window"))
        .grace(draft.get("drain.grace"))
        .hand_over(hands_over(draft, listen))
}

/// Refuses settings of TLS, which this build does not have.
#[cfg(not(feature = "tls"))]
fn refuse_tls(draft: &Draft) {
    for key in tls::KEYS.iter().filter(|key| draft.values().is_set(key.name)) {
        draft.wrong(key.name, crate::NO_TLS);
    }
}

/// Reads the trusted proxies, and whether their connections begin with a PROXY header.
fn proxies(draft: &Draft) -> Proxies {
    let trusted: Vec<ProxyNetwork> = draft.parse_list("trusted_proxies");
    let proxy_protocol = draft.get("proxy_protocol");
    if proxy_protocol && trusted.is_empty() {
        let remedy = "any client could claim any address: name the proxies in trusted_proxies, \
                      for example [\"10.0.0.0/8\"]";
        draft.wrong("proxy_protocol", remedy);
    }
    Proxies::new().trusted(trusted).proxy_protocol(proxy_protocol)
}

fn origins(draft: &Draft) -> Origins {
    // Reports each mistake at its list member.
    let _: Vec<ListedOrigin> = draft.parse_list("allowed_origins");
    match draft.get::<Vec<String>>("allowed_origins") {
        list if list.is_empty() => Origins::SameHost,
        list => Origins::list(list),
    }
}

/// A member of the list of origins, which is checked.
struct ListedOrigin;

impl FromStr for ListedOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Origins::check_member(text).map(|()| Self)
    }
}

/// Reads the settings `admin.*`.
fn admin(draft: &Draft, listen: &[String]) -> Option<Admin> {
    let token = draft.secret("admin.token", "admin.token_file", Token::new);
    let address: SocketAddr = draft.get::<Option<SocketAddr>>("admin.listen")?;
    if !address.ip().to_canonical().is_loopback() && token.is_none() {
        let remedy = "every client that reaches it can read the metrics: write a loopback address \
                      such as \"127.0.0.1:9101\", or set admin.token_file";
        draft.wrong("admin.listen", remedy);
    }
    let is_taken = |text: &String| match Listen::parse(text).address() {
        Some(Ok(own)) => overlap(own, address),
        _ => false,
    };
    if listen.iter().any(is_taken) {
        draft.wrong("admin.listen", "clients connect there (listen): take another port");
    }
    Some(Admin { address, token })
}

fn limits(draft: &Draft) -> Limits {
    Limits::default()
        .max_message_size(draft.get("max_message_size"))
        .max_frame_size(draft.get("max_frame_size"))
        .max_header_bytes(draft.get("max_header_bytes"))
        .max_headers(draft.get("max_headers"))
        .max_body(draft.get::<u64>("max_body"))
        .max_connections(unless_0(draft, "max_connections"))
        .max_pending_handshakes(cap(draft, "max_pending_handshakes"))
        .max_connections_per_address(cap(draft, "max_connections_per_address"))
        .max_backlog(draft.get("max_backlog"))
        .fragment_threshold(draft.get::<usize>("fragment_threshold"))
        .fragment_size(draft.get("fragment_size"))
        .max_messages_per_second(unless_0(draft, "max_messages_per_second").map(|most| most as u64))
        .max_bytes_per_second(unless_0(draft, "max_bytes_per_second").map(|most| most as u64))
        .max_lifetime(unless_zero(draft.get("max_lifetime")))
        .handshake_timeout(draft.get("handshake_timeout"))
        .min_body_rate(unless_0(draft, "min_body_rate"))
        .max_body_memory(draft.get("max_body_memory"))
        .max_history_memory(draft.get("max_history_memory"))
        .max_presence_memory(draft.get("max_presence_memory"))
        .max_memory(match draft.get("max_memory") {
            0 => Limit::Auto,
            usize::MAX => Limit::Unlimited,
            bytes => Limit::AtMost(bytes),
        })
        .min_response_rate(unless_0(draft, "min_response_rate"))
        .keep_alive_timeout(draft.get("keep_alive_timeout"))
        .reassembly_timeout(draft.get("reassembly_timeout"))
        .write_timeout(draft.get("write_timeout"))
        .close_timeout(draft.get("close_timeout"))
        .heartbeat_interval(unless_zero(draft.get("heartbeat.interval")))
        .heartbeat_timeout(draft.get("heartbeat.timeout"))
        .heartbeat_always(draft.get("heartbeat.always"))
}

/// Warns of limits that another limit makes useless.
fn warn_of_limits(draft: &Draft) {
    let size = |key| match draft.get::<u64>(key) {
        // The engine's default of max_memory.
        0 => throng_io::memory::available().map_or(u64::MAX, |bytes| bytes / 4),
        bytes => bytes,
    };
    for (key, other) in [
        ("max_frame_size", "max_message_size"),
        ("max_message_size", "max_memory"),
        ("max_backlog", "max_memory"),
        ("max_body", "max_memory"),
        ("max_body", "max_body_memory"),
    ] {
        let (larger, most) = (size(key), size(other));
        // Other limits follow max_message_size.
        let is_set = |key: &str| key != "max_message_size" && draft.values().is_set(key);
        let is_set = draft.values().is_set(key) || is_set(other);
        if is_set && larger > most {
            let [larger, most] = [larger, most].map(units::show_size);
            draft.warn(format!("{key} is {larger}, and {other} only {most}, which comes first"));
        }
    }
}

fn unless_0(draft: &Draft, key: &str) -> Option<usize> {
    Some(draft.get(key)).filter(|&number| number > 0)
}

fn unless_zero(time: Duration) -> Option<Duration> {
    Some(time).filter(|time| !time.is_zero())
}

/// Returns a cap whose default, `auto`, depends on others; 0 means unlimited.
fn cap(draft: &Draft, key: &str) -> Limit {
    match draft.get::<Option<usize>>(key) {
        None => Limit::Auto,
        Some(0) => Limit::Unlimited,
        Some(most) => Limit::AtMost(most),
    }
}

/// Reads the rules for channels. Values that a rule omits come from `general`.
fn channels(draft: &Draft, general: Backpressure) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    let mut valid = Channels::new();
    for record in draft.records("channels") {
        let pattern: String = record.get("name");
        if pattern.trim() != pattern || pattern.contains(['=', ';']) {
            record.wrong(
                "a name has no spaces around it and no = or ; in it; * stands for any token \
                 between dots, > for all that follow",
            );
        }
        let fields =
            ["slow_policy", "max_backlog", "max_age", "history", "presence", "scope", "while_down"];
        let rights = Right::ALL.map(Right::field);
        if !fields.iter().chain(&rights).any(|field| record.is_set(field)) {
            record.wrong("it has no rules: write for example slow_policy = \"latest\"");
        }
        let mut rule = general;
        rule.policy = record.parse("slow_policy").unwrap_or(rule.policy);
        rule.max_backlog = record.get::<Option<_>>("max_backlog").or(rule.max_backlog);
        if let Some(age) = record.get::<Option<_>>("max_age") {
            rule.max_age = unless_zero(age);
        }
        let with_it = valid.clone().backpressure(&pattern, rule);
        match Server::new(App::new()).channels(with_it.clone()).check() {
            Ok(()) => valid = with_it,
            Err(error) => record.wrong(error),
        }
        let (history, presence) = (history(&record, rule), presence(&record));
        let scope = scope(&record, history.is_some());
        let rights = rights::rule(&record);
        rules.push(Rule { pattern, rules: rule, history, presence, scope, rights });
    }
    rules
}

/// Reads the settings `cluster.*`; `rules` have the scopes of channels.
#[cfg(feature = "redis")]
fn cluster(draft: &Draft, rules: &[Rule]) -> Option<Cluster> {
    let Some(url) = draft.get::<Option<String>>("cluster.url") else {
        check_unused(draft);
        return None;
    };
    if draft.get("wildcards") {
        let problem = "with a cluster, a pattern would miss the channels that only other servers \
                       have: take wildcards out";
        draft.wrong("wildcards", problem);
    }
    let mut cluster = Cluster::redis(url)
        .prefix(draft.get::<String>("cluster.prefix"))
        .unready_after(draft.get("cluster.unready_after"))
        .require_at_start(draft.get("cluster.require_at_start"));
    if let Some(authorities) = draft.path("cluster.tls_ca") {
        cluster = cluster.tls_ca(authorities);
    }
    match (draft.path("cluster.tls_cert"), draft.path("cluster.tls_key")) {
        (None, None) => {}
        (Some(chain), Some(key)) => cluster = cluster.tls_certificate(chain, key),
        (Some(_), None) => {
            draft.wrong("cluster.tls_cert", "it needs its private key: write cluster.tls_key");
        }
        (None, Some(_)) => {
            draft.wrong("cluster.tls_key", "it needs its certificate: write cluster.tls_cert");
        }
    }
    if let Some(name) = draft.get::<Option<String>>("cluster.tls_name") {
        cluster = cluster.tls_name(name);
    }
    Some(rules.iter().fold(cluster, |cluster, Rule { pattern, scope, .. }| match scope {
        Some(Scope::Local) => cluster.local(pattern),
        Some(Scope::Cluster("buffer")) => cluster.while_down(pattern, WhileDown::Buffer),
        Some(Scope::Cluster("local")) => cluster.while_down(pattern, WhileDown::Local),
        // Later rules do not apply to its channels.
        Some(Scope::Cluster(_)) | None => cluster.while_down(pattern, WhileDown::Refuse),
    }))
}

/// Refuses the settings of TLS with a cluster that there is not, and warns of the others, which a
/// file may have for servers whose cluster.url is in their environment.
#[cfg(feature = "redis")]
fn check_unused(draft: &Draft) {
    let keys = draft.values().table().keys.iter().map(|key| key.name);
    let set = keys.filter(|key| key.starts_with("cluster.") && draft.values().is_set(key));
    for key in set {
        match key.starts_with("cluster.tls_") {
            true => draft.wrong(key, "it needs a cluster: write cluster.url, with rediss://"),
            false => draft.warn(format!("{key} has no effect without cluster.url")),
        }
    }
}

/// Refuses a cluster, which this build does not have.
#[cfg(not(feature = "redis"))]
fn cluster(draft: &Draft, _: &[Rule]) -> Option<Cluster> {
    draft.get::<Option<String>>("cluster.url")?;
    draft.wrong("cluster.url", "this build has no clusters: build it with the feature redis");
    None
}

/// Reads the scope of a channel's rule.
fn scope(record: &Record<'_>, has_history: bool) -> Option<Scope> {
    let while_down = record.get::<Option<String>>("while_down");
    if record.get::<Option<String>>("scope").as_deref() == Some("local") {
        if while_down.is_some() {
            record.wrong("a channel of scope local does not need the cluster: take while_down out");
        }
        return Some(Scope::Local);
    }
    let while_down = match while_down.as_deref() {
        Some("buffer") => "buffer",
        Some("local") if has_history => {
            record.wrong(
                "the history is the cluster's, so while_down = \"local\" cannot add to it: \
                          write \"refuse\" or \"buffer\"",
            );
            "refuse"
        }
        Some("local") => "local",
        Some(_) => "refuse",
        None => return record.is_set("scope").then_some(Scope::Cluster("refuse")),
    };
    Some(Scope::Cluster(while_down))
}

/// Reads the history of a channel's rule, whose back-pressure is `rule`.
fn history(record: &Record<'_>, rule: Backpressure) -> Option<History> {
    let Some(HistoryText(history)) = record.parse("history") else {
        if record.is_set("recovery") && !record.is_set("history") {
            record.wrong("recovery needs a history: write for example history = \"100/5m\"");
        }
        return None;
    };
    if rule.policy != SlowPolicy::Close || rule.max_age.is_some() {
        record.wrong(
            "with a history no message may be dropped: write slow_policy = \"close\" and max_age = \
             \"0s\" in this rule, so that a slow client is closed, comes back, and gets the rest",
        );
    }
    if record.is_set("max_backlog") {
        record.wrong(
            "with a history the rule has no max_backlog of its own: leave it out, and the setting \
             max_backlog applies",
        );
    }
    let is_cache = record.get::<Option<String>>("recovery").as_deref() == Some("cache");
    Some(history.mode(if is_cache { HistoryMode::Cache } else { HistoryMode::Stream }))
}

/// Reads the presence of a channel's rule.
fn presence(record: &Record<'_>) -> Option<Members> {
    let join_leave = record.get("join_leave");
    let is_on: bool = record.get("presence");
    if join_leave && !is_on {
        record.wrong("join_leave needs presence: write presence = true beside it");
    }
    if record.is_set("max_announced") && !join_leave {
        record.wrong("max_announced needs join_leave: write join_leave = true beside it");
    }
    is_on.then(|| Members { join_leave, max_announced: record.get("max_announced") })
}

/// The text of a history: `100/5m`.
struct HistoryText(History);

impl FromStr for HistoryText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let remedy = || "write COUNT/AGE, for example \"100/5m\"".to_owned();
        let (count, age) = text.split_once('/').ok_or_else(remedy)?;
        let count = units::parse_count(count.trim()).map_err(|_| remedy())?;
        let age = units::parse_duration(age.trim()).map_err(|_| remedy())?;
        if count == 0 || age.is_zero() || age > MAX_HISTORY {
            return Err("write at least 1 publication, and an age of up to 168h".to_owned());
        }
        Ok(Self(History::new(count, age)))
    }
}

/// The longest age of a history.
const MAX_HISTORY: Duration = Duration::from_secs(7 * 24 * 3600);

fn deflate(draft: &Draft) -> Deflate {
    let bits = draft.get("deflate.window_bits");
    let window = DeflateMode::Window { bits };
    let is_window = draft.get::<String>("deflate.mode") == "window";
    let deflate = Deflate::new(if is_window { window } else { DeflateMode::Shared })
        .enabled(draft.get("deflate.enabled"))
        .level(draft.get("deflate.level"))
        .mem_level(draft.get("deflate.mem_level"))
        .threshold(draft.get::<Option<_>>("deflate.threshold"))
        .max_size(draft.get("deflate.max_size"))
        .server_max_window_bits(draft.get("deflate.server_max_window_bits"))
        .client_max_window_bits(draft.get("deflate.client_max_window_bits"))
        .server_no_context_takeover(draft.get::<Option<_>>("deflate.server_no_context_takeover"))
        .client_no_context_takeover(draft.get::<Option<_>>("deflate.client_no_context_takeover"));
    if let Err(error) = deflate.check() {
        draft.wrong(&format!("deflate.{}", error.setting), error.remedy);
    }
    deflate
}
