//! Settings of a balancer. All of them can change while it runs.

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;
use throng_io::PeerAddress;

use throng_tls::TlsClient;

use crate::backend::Backend;
use crate::cookie::CookieKey;
use throng_http::Network;
use throng_proto::url::without_zone;

/// A backend in the list that picks choose from.
#[derive(Clone, Debug)]
pub struct Target {
    /// The backend.
    pub backend: Arc<Backend>,
    /// Whether each connection to it begins with a PROXY v2 header that names the client; such
    /// connections are not reused.
    pub send_proxy: bool,
    /// The TLS of connections to it; `None`: they use none.
    pub tls: Option<Arc<TlsClient>>,
    /// The patterns of server names whose connections are passed through to it; if there is one, it
    /// serves nothing else.
    pub passthrough: Arc<[Box<str>]>,
    /// The name and port that it was found by, if the list has a name instead of its address.
    pub name: Option<Arc<str>>,
}

impl Target {
    /// Appends the Host of a request without one: the backend's name, otherwise its address.
    pub(crate) fn write_host(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"Host: ");
        // Writing to a vector cannot fail.
        drop(match &self.name {
            Some(name) => out.write_all(name.as_bytes()),
            None => out.write_all(host_of(self.backend.address()).as_bytes()),
        });
        out.extend_from_slice(b"\r\n");
    }
}

/// Returns the Host of requests to a backend that has no name. A Unix socket has none either: its
/// clients commonly send this one.
pub(crate) fn host_of(address: PeerAddress) -> String {
    match address {
        PeerAddress::Ip(address) => without_zone(address).to_string(),
        PeerAddress::Unix(_) => "localhost".to_owned(),
    }
}

/// The settings of a balancer.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The algorithm that picks a backend.
    pub pick: Pick,
    /// The binding of clients to backends.
    pub sticky: Sticky,
    /// The key of sticky cookies, and if it comes from a secret, of the hashes by which headers,
    /// parameters and addresses bind clients. Default: drawn when the process begins. For balancers
    /// in parallel, or for cookies that outlive a restart, use a key from a secret.
    pub cookie_key: CookieKey,
    /// `SameSite` of sticky cookies. Default: [`SameSite::Lax`].
    pub cookie_same_site: SameSite,
    /// The proxies whose X-Forwarded-*, Forwarded and PROXY headers are trusted. Default: none.
    pub trusted_proxies: Vec<Network>,
    /// Header fields of requests that are dropped, unless a trusted proxy sent them, in any case
    /// and with `_` for `-`: backends trust them as written by a proxy. Default:
    /// [`DROPPED_HEADERS`]. Fields that the balancer writes itself (X-Forwarded-For and similar
    /// ones) need not be listed.
    pub drop_headers: Vec<String>,
    /// Whether a request without X-Request-ID gets one, of 128 random bits, for its backend and the
    /// log.
    pub request_ids: bool,
    /// The id that the balancer adds to CDN-Loop of each request (RFC 8586): a token. A request
    /// that already has it has looped and is answered 508. Balancers that pass requests to each
    /// other need different ids; parallel ones may share one, so that a loop through several of
    /// them ends at the second. Default: drawn by each balancer at its start.
    pub loop_id: Option<String>,
    /// Whether connections begin with a PROXY v2 header; a connection without it is closed. Only
    /// [`Settings::trusted_proxies`] may then connect. Default false.
    pub accept_proxy: bool,
    /// The timeouts.
    pub timeouts: Timeouts,
    /// The limit of connects and handshakes in progress to one backend, over all shards; more wait,
    /// see [`Timeouts::queue`]. 0: no limit. Default 128.
    pub max_handshakes: u32,
    /// The limit of requests under way and tunnels of each backend together, over all shards, for
    /// backends without a limit of their own; more requests wait. 0 (default): no limit. Idle
    /// connections do not count. In a file it is `max_connections` of a `[[pool]]`.
    pub max_backend_connections: u32,
    /// The limit of requests that wait for the backends of a pool, over all shards; 503 beyond it.
    /// 0 (default): no limit.
    pub max_queue: u32,
    /// The number of other backends that a request is tried on, if no byte of it has been answered.
    /// Default 2.
    pub retries: u8,
    /// The number of idle connections that each shard keeps to each backend. Default 32.
    pub keep_alive: usize,
    /// The name of the pool that serves requests while no backend of the pool `default` is up, see
    /// [`PoolSettings::fallback`](crate::PoolSettings::fallback). Default: none.
    pub fallback: Option<Arc<str>>,
    /// The limit of client connections at a time, over all shards. 0 (default): as many as the
    /// descriptor limit allows. At the limit, a client of the same shard makes room that is between
    /// two requests, that has not sent a whole one, or that ended its stream 5 s ago, in this
    /// order. If there is none, the request of the new client is answered with 503.
    pub max_connections: usize,
    /// The limit of client connections from one IPv4 address or IPv6 /64 network, except trusted
    /// proxies; with [`accept_proxy`](Self::accept_proxy), of the address in the PROXY header.
    /// `Some(0)`: no limit. Default (`None`): a quarter of all, and no limit for addresses of this
    /// machine. At the limit, a client of the address makes room in the same order, without a whole
    /// request after a second; if there is none, the answer is 429.
    pub max_connections_per_address: Option<usize>,
    /// Memory of TLS handshakes in progress and of incomplete records, all shards together. Above
    /// it handshakes are ended first. 0: a quarter of the process's memory limit.
    pub max_tls_memory: usize,
    /// The limit of a request's head, in bytes. Default 16 KiB.
    pub max_header_bytes: usize,
    /// The limit of field lines of a request's head. Default 100.
    pub max_headers: usize,
    /// The limit of a response's head, in bytes; 502 above it. Its default is larger than a
    /// request's, since redirects and cookies repeat text of the request. Default 64 KiB.
    pub max_response_header_bytes: usize,
    /// The limit of field lines of a response's head. Default 500.
    pub max_response_headers: usize,
    /// The limit of a request's body, in bytes; 413 above it. A body is forwarded as it comes, so
    /// this costs no memory. Answers have no such limit. Default: no limit (`u64::MAX`).
    pub max_body: u64,
    /// The slowest rate of a request's body, in bytes a second, measured over each
    /// [`Timeouts::body`] in which the client is read; 408 below it. 0: one byte in that time is
    /// enough. Default 1 KiB.
    pub min_body_rate: u64,
    /// The slowest rate at which a backend sends the body of an answer with a Content-Length, in
    /// bytes a second, measured over each [`Timeouts::body`] in which its client reads; below it
    /// the answer is cut. Answers without a length, such as streams of events, only have
    /// [`Timeouts::body`] between two bytes. 0: so do all. Default 256.
    pub min_response_rate: u64,
    /// The local addresses of connections to backends, including active checks, in turn: one serves
    /// about 28,000 connections to one backend. Default: none, the system's choice.
    pub sources: Arc<[IpAddr]>,
    /// The time in which the share of a backend that came up grows to its whole weight. Default 0:
    /// at once.
    pub slow_start: Duration,
    /// Maximum tunnels of a dead, drained or crowded backend that are closed in a second, over all
    /// shards. Each shard closes its own at an equal part of the rate: if one shard has them all,
    /// closing is slower by that factor. Default 200.
    pub close_rate: u32,
    /// The fate of the tunnels of a backend that has left the file, was removed by an operator, or
    /// whose address a name no longer has. Default: they stay.
    pub removed: Removed,
    /// The conditions under which a backend counts as dead.
    pub health: Health,
}

/// Treatment of the tunnels of a removed backend, which gets no new clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Removed {
    /// They stay until their clients or the backend end them.
    #[default]
    Keep,
    /// They are closed at [`Settings::close_rate`].
    Drain,
}

/// Names that some proxy, framework or CDN reads a client's address, its user or a request's
/// target from.
pub const DROPPED_HEADERS: [&str; 26] = [
    "True-Client-IP",
    "CF-Connecting-IP",
    "X-Client-IP",
    "Client-IP",
    "Forwarded-For",
    "X-Cluster-Client-IP",
    "Fastly-Client-IP",
    "X-Envoy-External-Address",
    "X-Azure-ClientIP",
    "X-Appengine-User-IP",
    "X-ProxyUser-IP",
    "X-Original-URL",
    "X-Original-Host",
    "X-Rewrite-URL",
    "X-Host",
    "Remote-User",
    "X-Remote-User",
    "Front-End-Https",
    "X-ARR-SSL",
    "X-Client-Cert",
    "SSL-Client-Cert",
    "X-SSL-Cert",
    "X-SSL-Client-Cert",
    "SSL-Client-Verify",
    "X-SSL-Client-Verify",
    "X-ARR-ClientCert",
];

/// Returns the local address of the next connection to `backend`: the next of `sources` that
/// [reaches] it, if there is one. `turn` is the last used index.
pub(crate) fn next_source(
    sources: &[IpAddr],
    turn: &mut usize,
    backend: PeerAddress,
) -> Option<SocketAddr> {
    let backend = backend.socket_addr()?;
    (0..sources.len()).find_map(|_| {
        *turn = (*turn + 1) % sources.len();
        let source = sources[*turn];
        reaches(source, backend).then(|| match (source, backend) {
            // Both ends of a link-local connection have the same zone.
            (IpAddr::V6(source), SocketAddr::V6(backend)) if source.is_unicast_link_local() => {
                SocketAddrV6::new(source, 0, 0, backend.scope_id()).into()
            }
            _ => (source, 0).into(),
        })
    })
}

/// Returns whether connections from `source` can lead to `backend`: both are of one family, and a
/// link-local address reaches only others of its link.
pub(crate) fn reaches(source: IpAddr, backend: SocketAddr) -> bool {
    match (source, backend) {
        (IpAddr::V4(_), SocketAddr::V4(_)) => true,
        (IpAddr::V6(source), SocketAddr::V6(backend)) => {
            !source.is_unicast_link_local() || backend.ip().is_unicast_link_local()
        }
        _ => false,
    }
}

/// The algorithm of [`Settings::pick`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pick {
    /// Two at random, and the one of them with the lower load per weight; backends more than a
    /// sixteenth above their part are not drawn. The default: nearly as even as
    /// [`Pick::LeastConnections`], and many balancers that pick at once do not all choose the same
    /// backend.
    #[default]
    PowerOfTwo,
    /// The one with the lowest load per weight.
    LeastConnections,
    /// In turn, by weight, interleaved smoothly.
    RoundRobin,
    /// By the sticky key (or the client's address): rendezvous hashing, so that a backend that
    /// leaves moves only its own clients.
    Rendezvous,
    /// At random, by weight.
    Random,
    /// By the client's address.
    IpHash,
}

/// The binding of [`Settings::sticky`]. A client whose backend is gone or down gets another pick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sticky {
    /// No binding.
    #[default]
    None,
    /// A cookie of this name, which the balancer sets in the answer.
    Cookie(String),
    /// The value of this request header.
    Header(String),
    /// The value of this parameter in the query.
    Query(String),
    /// The client's address.
    Ip,
}

/// The requests of other sites with which browsers send a sticky cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameSite {
    /// Requests by which the user comes to this site, but not requests of frames and scripts of
    /// other sites.
    #[default]
    Lax,
    /// None.
    Strict,
    /// All. The cookie then has `Secure`, without which browsers reject it.
    None,
}

impl Pick {
    /// Returns whether clients go to the backends with the fewest connections: only then does a
    /// rebalance have an effect.
    #[must_use]
    pub const fn looks_at_load(self) -> bool {
        matches!(self, Self::PowerOfTwo | Self::LeastConnections)
    }
}

/// Writes the binding as in a file.
impl fmt::Display for Sticky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("\"none\""),
            Self::Cookie(name) => write!(f, "{{ cookie = {name:?} }}"),
            Self::Header(name) => write!(f, "{{ header = {name:?} }}"),
            Self::Query(name) => write!(f, "{{ query = {name:?} }}"),
            Self::Ip => f.write_str("\"ip\""),
        }
    }
}

/// The timeouts of [`Settings::timeouts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until a backend's TCP connection is established. Default 5 s.
    pub connect: Duration,
    /// From the request's last byte to the head of the answer. 504 after it. Default 60 s.
    pub response: Duration,
    /// From a WebSocket handshake to the head of its answer, 504 after it; and from the beginning
    /// of a tunnel that is passed through to the first byte of its backend. Default 10 s.
    pub upgrade: Duration,
    /// Between two bytes of a body, either way. Default 60 s.
    pub body: Duration,
    /// To a request's whole head: from the accept for the first, from its first byte for later
    /// ones. 408 after it, or a close if nothing has arrived. Default 10 s.
    pub head: Duration,
    /// Silence between two requests of a client. Default 75 s.
    pub keep_alive: Duration,
    /// Silence of a tunnel, over both directions. Default 1 h.
    pub tunnel: Duration,
    /// For a tunnel with one ended direction. Default 60 s.
    pub half_closed: Duration,
    /// From our Close frame to the client's. Default 5 s.
    pub close: Duration,
    /// For a backend below [`Settings::max_handshakes`] and its limit of connections. 503 after it.
    /// Default 10 s.
    pub queue: Duration,
}

/// The health checks of [`Settings::health`].
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// The events that passive checks count. Default: only connections.
    pub observe: Observe,
    /// The number of failures over all shards... 0: no passive checks. Default 3.
    pub failures: u32,
    /// ...that take a backend [`Down`](crate::State::Down) within this time. Default 10 s.
    pub within: Duration,
    /// The time that a backend stays down without active checks before a first client may try it
    /// again. Default 10 s.
    pub down_for: Duration,
    /// The active checks. Default: none.
    pub check: Option<Check>,
}

/// The events of [`Health::observe`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Observe {
    /// Connections to the backend that are refused or time out. No client can cause one.
    #[default]
    Connections,
    /// Also answers: a backend is also down if [`Health::failures`] requests failed and at most as
    /// many succeeded. Clients influence which requests fail, so such verdicts are ignored if fewer
    /// than half of the backends would be up.
    Answers,
}

/// An active check of every backend.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// The kind of check.
    pub kind: CheckKind,
    /// The Host of checks over HTTP and WebSocket. Default: the backend's address.
    pub host: Option<String>,
    /// The interval between checks. Default 2 s.
    pub interval: Duration,
    /// The timeout of one check. Default 1 s.
    pub timeout: Duration,
    /// Successes in a row that bring a backend up. Default 2.
    pub rise: u32,
    /// Failures in a row that take it down. Default 3.
    pub fall: u32,
}

/// The kind of [`Check::kind`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// A TCP connection.
    Tcp,
    /// A GET of this path that is answered with 2xx or 3xx.
    Http(String),
    /// A WebSocket at this path that opens and answers a ping.
    WebSocket(String),
}

/// The way in which tunnels of a backend are closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closing {
    /// The Close frame's code: 1001 or 1012.
    pub code: u16,
    /// Tunnels a second, over all shards. Ignored if there is a deadline.
    pub rate: u32,
    /// The order.
    pub order: CloseOrder,
    /// Tunnels are closed spread over this time; tunnels left after it are closed at once.
    pub deadline: Option<Duration>,
    /// Whether tunnels that open later are also closed: tunnels of handshakes in progress.
    pub later: bool,
}

/// The order of [`Closing::order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseOrder {
    /// A random order.
    Shuffled,
    /// First the longest silent tunnel, then the oldest.
    IdleAndOldest,
}

impl Check {
    /// Creates a check of this kind with the default times.
    #[must_use]
    pub fn new(kind: CheckKind) -> Self {
        let (interval, timeout) = (Duration::from_secs(2), Duration::from_secs(1));
        Self { kind, host: None, interval, timeout, rise: 2, fall: 3 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_request_without_one_has_no_zone() {
        for (address, host) in
            [("[fe80::1%7]:80", "[fe80::1]:80"), ("127.0.0.1:80", "127.0.0.1:80")]
        {
            let target = Target {
                backend: Arc::new(Backend::new(address.parse::<PeerAddress>().unwrap(), 1)),
                send_proxy: false,
                tls: None,
                passthrough: Arc::default(),
                name: None,
            };
            let mut out = Vec::new();
            target.write_host(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), format!("Host: {host}\r\n"));
        }
    }

    #[test]
    fn a_link_local_source_has_the_zone_of_the_backend_and_reaches_no_other() {
        let sources: [IpAddr; 3] =
            ["fe80::1", "2001:db8::1", "10.0.0.1"].map(|text| text.parse().unwrap());
        let mut turn = 0;
        let mut next = |backend: &str| {
            let source = next_source(&sources, &mut turn, backend.parse().unwrap());
            source.map(|source| source.to_string())
        };
        let on_link = "[fe80::2%7]:80";
        let found = [next(on_link), next(on_link)].map(Option::unwrap);
        assert_eq!(found, ["[2001:db8::1]:0", "[fe80::1%7]:0"]);
        for _ in 0..2 {
            assert_eq!(next("[2001:db8::2]:80").unwrap(), "[2001:db8::1]:0");
        }
        assert_eq!(next("10.0.0.2:80").unwrap(), "10.0.0.1:0");
        assert_eq!(next_source(&sources[..1], &mut 0, "[2001:db8::2]:80".parse().unwrap()), None);
    }
}
