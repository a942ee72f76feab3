//! Limits and timeouts of connections.

use std::sync::Arc;
use std::time::Duration;

use throng_proto::{SettingError, http1, ws};

use crate::conn::route_limits::{RateLimits, RouteLimits};
use crate::conn::timers;

/// Limits and timeouts of connections. The defaults are safe on the open Internet.
///
/// Durations are kept in whole seconds, rounded up; the maximum is 18 hours. A timeout of 0, or a
/// limit that would admit nothing, is an error: 0 has no special meaning. A value that may be
/// unlimited or off is an [`Option`] or a [`Limit`].
///
/// ```
/// # use throng_engine::{Limit, Limits};
/// # use std::time::Duration;
/// let limits = Limits::default()
///     .max_message_size(64 << 10)
///     .max_connections(50_000)
///     .max_connections_per_address(Limit::Unlimited)
///     .heartbeat_interval(Duration::from_secs(15));
/// # assert!(limits.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Limits {
    /// Frame and message sizes. Default 4 MiB each; a larger message is closed with 1009. Memory
    /// grows with the bytes received, never with the declared length.
    #[doc(hidden)]
    pub ws: ws::Limits,
    /// Request head and body sizes. Default 16 KiB, 100 header lines, 1 MiB. A `max_body` of 0 lets
    /// only empty bodies in.
    #[doc(hidden)]
    pub http: http1::Limits,
    /// Messages of more bytes than this are sent in fragments (RFC 6455 section 5.4), between which
    /// control frames may be sent. Default 1 MiB; `None` for never, 0 for all that are not empty.
    /// Compressed messages are sent whole: some clients cannot read them in fragments.
    pub fragment_threshold: Option<usize>,
    /// The size of such a fragment in bytes. Default 64 KiB.
    pub fragment_size: usize,
    /// Connections per process. Default `None`: as many as the descriptor limit allows, less a
    /// reserve.
    pub max_connections: Option<usize>,
    /// Connections that have not sent a whole request head yet. Default [`Limit::Auto`]: half of
    /// [`Limits::max_connections`], and at least 16. Where it or `max_connections` is reached, the
    /// oldest of them is closed for a new one (not with a thread for each connection).
    pub max_pending_handshakes: Limit,
    /// Connections of one IPv4 address, or of one IPv6 /64 network. Default [`Limit::Auto`]: a
    /// quarter of [`Limits::max_connections`], without a cap for loopback addresses, which are
    /// clients of this machine, such as a proxy in front. A number caps every address. A proxy on
    /// another machine needs [`Limit::Unlimited`]. At the cap, a new connection closes the oldest
    /// connection of its address that is on the same event loop and has been without a whole
    /// request head for a second; if there is none, the new one is refused with 429.
    pub max_connections_per_address: Limit,
    /// Time from accept to a whole request head. Default 10 s; answered with 408 if a part of one
    /// has come.
    pub handshake_timeout: Duration,
    /// Slowest rate of a request's body, in bytes a second, measured over each
    /// [`Limits::handshake_timeout`]. Default 1 KiB/s; a slower one is answered with 408.
    /// `None` allows one such timeout for the whole body.
    pub min_body_rate: Option<usize>,
    /// Bytes of incomplete request bodies that a process buffers for handlers that take whole
    /// bodies. Default 256 MiB. Event loops share it in equal parts, connections with their own
    /// threads as they need it. A body that would exceed it ends, with 408, the bodies that have
    /// arrived slowest lately for their size; if there are none, or each connection has a thread,
    /// the body is answered with 503. 0 = no such bodies.
    pub max_body_memory: usize,
    /// Maximum bytes of memory that all connections of the process may cause together: output that
    /// peers do not take, input that is incomplete or waits, request bodies, compression contexts.
    /// Above it the connections that use the most are ended, sessions with 1008 and requests with
    /// 503 (a peer that does not read is reset), until seven eighths remain; new connections are
    /// served. Default [`Limit::Auto`]: a quarter of the memory that the machine, the cgroup or the
    /// process's own limits allow. It is a measure, not a reservation: up to an eighth more may be
    /// in use for moments, and the allocator's overhead is not counted.
    pub max_memory: Limit,
    /// Memory of the histories of all channels together, in bytes; see [`History`](crate::History).
    /// Default 64 MiB. This memory is a part of `max_memory`, at most a quarter, and is reserved
    /// only if a channel has a history. When it is used up, whole channels are forgotten, the least
    /// recently published first.
    pub max_history_memory: usize,
    /// Memory of presence in all channels together, in bytes; see [`Presence`](crate::Presence).
    /// Default 16 MiB. This memory is a part of `max_memory`, at most a quarter, and is reserved
    /// only if a channel has presence. When it is used up, clients that join become members but are
    /// not listed.
    pub max_presence_memory: usize,
    /// Slowest rate at which a client takes a response that the kernel could not take at once, in
    /// bytes a second, measured over each [`Limits::write_timeout`]; a slower client is reset.
    /// Default 256 B/s. With `None` one byte is progress enough, as it is for sessions.
    pub min_response_rate: Option<usize>,
    /// Longest silence between two requests on a kept-alive connection. Default 75 s.
    pub keep_alive_timeout: Duration,
    /// Time from a message's first byte to its last. Default 60 s; closed with 1008.
    pub reassembly_timeout: Duration,
    /// Time that output may be pending without a byte leaving. Default 30 s; the connection is
    /// reset. A server's sockets also have it, plus five seconds, as their `TCP_USER_TIMEOUT`
    /// (Linux), for output that the kernel holds and the peer's host does not take.
    pub write_timeout: Duration,
    /// Time from our Close frame to the peer's. Default 5 s; the connection is reset.
    pub close_timeout: Duration,
    /// Silence after which a ping is sent. Default 25 s, below the 60 s after which common proxies
    /// cut an idle connection; `None` for no pings. Each connection's clock runs up to a quarter
    /// earlier, by slot, so that connections made together are not pinged together.
    pub heartbeat_interval: Option<Duration>,
    /// Time from an unanswered ping to the end of the connection. Default 60 s. Any byte from the
    /// peer is an answer.
    pub heartbeat_timeout: Duration,
    /// Whether connections that are not silent are pinged too. Default false.
    pub heartbeat_always: bool,
    /// Bytes queued for one connection, and not taken by its peer, before the slow-consumer policy
    /// applies. Default 1 MiB. A message is accepted while the queue is shorter than this, so the
    /// queue can exceed the limit by at most one message. Messages that one callback sends to one
    /// connection, before the kernel can be asked whether its peer takes them, may reach 16 times
    /// as much; they have no limit where the policy drops messages. Above half of this value the
    /// connection is not read and its further messages wait. The rest of a message that leaves in
    /// fragments does not count: its peer is read during it, and its pings are answered.
    pub max_backlog: usize,
    /// Messages that one connection may send in a second. Default `None`: no limit. More are closed
    /// with 1008.
    pub max_messages_per_second: Option<u64>,
    /// Bytes that one connection may send in a second. Default `None`: no limit. More are closed
    /// with 1008.
    pub max_bytes_per_second: Option<u64>,
    /// Lifetime of a session, after which it is closed with 1001. Default `None`: unlimited.
    pub max_lifetime: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ws: ws::Limits { max_frame_size: 4 << 20, max_message_size: 4 << 20 },
            http: http1::Limits::default(),
            fragment_threshold: Some(1 << 20),
            fragment_size: 64 << 10,
            max_connections: None,
            max_pending_handshakes: Limit::Auto,
            max_connections_per_address: Limit::Auto,
            handshake_timeout: Duration::from_secs(10),
            min_body_rate: Some(1024),
            max_body_memory: 256 << 20,
            max_memory: Limit::Auto,
            max_history_memory: 64 << 20,
            max_presence_memory: 16 << 20,
            min_response_rate: Some(256),
            keep_alive_timeout: Duration::from_secs(75),
            reassembly_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(5),
            heartbeat_interval: Some(Duration::from_secs(25)),
            heartbeat_timeout: Duration::from_secs(60),
            heartbeat_always: false,
            max_backlog: 1 << 20,
            max_messages_per_second: None,
            max_bytes_per_second: None,
            max_lifetime: None,
        }
    }
}

/// A limit that may be absent, or left to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Derived from other limits or from the machine; the documentation of each setting states how.
    #[default]
    Auto,
    /// No limit.
    Unlimited,
    /// This number, which is at least 1.
    AtMost(usize),
}

impl Limit {
    /// Returns the number; `auto` computes the value of [`Limit::Auto`], and no limit is
    /// `usize::MAX`.
    pub(crate) fn or_else(self, auto: impl FnOnce() -> usize) -> usize {
        match self {
            Self::Auto => auto(),
            Self::Unlimited => usize::MAX,
            Self::AtMost(number) => number,
        }
    }
}

impl From<usize> for Limit {
    fn from(number: usize) -> Self {
        Self::AtMost(number)
    }
}

/// Defines setters of the same names as their fields.
macro_rules! setters {
    ($type:ident: $($field:ident: $value:ty,)+; $($into:ident: $target:ty,)*) => {
        impl $type {
            $(
                #[doc = concat!(
                    "Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), ")."
                )]
                pub const fn $field(mut self, $field: $value) -> Self {
                    self.$field = $field;
                    self
                }
            )+
            $(
                #[doc = concat!(
                    "Sets [`", stringify!($into), "`](Self#structfield.", stringify!($into), ")."
                )]
                pub fn $into(mut self, $into: impl Into<$target>) -> Self {
                    self.$into = $into.into();
                    self
                }
            )*
        }
    };
}
pub(crate) use setters;

setters! { Limits:
    fragment_size: usize,
    handshake_timeout: Duration,
    max_body_memory: usize,
    keep_alive_timeout: Duration,
    reassembly_timeout: Duration,
    write_timeout: Duration,
    close_timeout: Duration,
    heartbeat_timeout: Duration,
    heartbeat_always: bool,
    max_backlog: usize,
    max_history_memory: usize,
    max_presence_memory: usize,
    ;
    fragment_threshold: Option<usize>,
    min_body_rate: Option<usize>,
    min_response_rate: Option<usize>,
    max_connections: Option<usize>,
    max_pending_handshakes: Limit,
    max_connections_per_address: Limit,
    max_memory: Limit,
    heartbeat_interval: Option<Duration>,
    max_messages_per_second: Option<u64>,
    max_bytes_per_second: Option<u64>,
    max_lifetime: Option<Duration>,
}

impl Limits {
    /// Sets the maximum payload of a message in bytes, reassembled and, if it is compressed,
    /// inflated; frames may be as large. A larger message is closed with 1009. Default 4 MiB.
    /// Memory grows with the bytes received, never with the declared length.
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.ws = ws::Limits { max_frame_size: bytes, max_message_size: bytes };
        self
    }

    /// Sets the maximum payload of one frame in bytes, where it must be smaller than the maximum
    /// message. A larger frame closes the session with 1009. Default: the maximum of a message.
    pub fn max_frame_size(mut self, bytes: usize) -> Self {
        self.ws.max_frame_size = bytes;
        self
    }

    /// Sets the maximum bytes of a request's head, and of a trailer section; more is answered with
    /// 431, or 414 if the request line alone is longer. Default 16 KiB.
    pub fn max_header_bytes(mut self, bytes: usize) -> Self {
        self.http.max_header_bytes = bytes;
        self
    }

    /// Sets the maximum number of field lines in a head or a trailer section; more is answered with
    /// 431. Default 100.
    pub fn max_headers(mut self, lines: usize) -> Self {
        self.http.max_headers = lines;
        self
    }

    /// Sets the maximum body of a request in bytes, where its route has no limit of its own; a
    /// larger one is answered with 413. Default 1 MiB; 0 lets only empty bodies in.
    pub fn max_body(mut self, bytes: u64) -> Self {
        self.http.max_body = bytes;
        self
    }
}

/// [`Limits`], checked, with timeouts as ticks.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    /// Limits of sessions on routes without their own limits.
    pub(crate) route: RouteLimits,
    /// Limits by route number; routes beyond the end have the limits in `route`.
    pub(crate) routes: Arc<[RouteLimits]>,
    pub(crate) http: http1::Limits,
    pub(crate) handshake: u16,
    pub(crate) keep_alive: u16,
    /// Never 0.
    pub(crate) min_body_rate: usize,
    pub(crate) max_body_memory: usize,
    pub(crate) min_response_rate: usize,
    pub(crate) reassembly: u16,
    pub(crate) write: u16,
    pub(crate) close: u16,
    pub(crate) heartbeat_always: bool,
    pub(crate) max_backlog: usize,
    pub(crate) fragment_threshold: usize,
    pub(crate) fragment_size: usize,
}

impl Checked {
    /// Returns the limits of a route's sessions.
    #[inline]
    pub(crate) fn of_route(&self, route: u16) -> &RouteLimits {
        self.routes.get(usize::from(route)).unwrap_or(&self.route)
    }

    /// Returns the limits on a route's messages, and whether they are passed on in chunks.
    pub(crate) fn messages_of(&self, route: u16) -> (ws::Limits, bool) {
        let limits = self.of_route(route);
        (limits.ws, limits.streams)
    }

    /// Returns the limits of routes without their own limits, then the limits of each route.
    pub(crate) fn each_route(&self) -> impl Iterator<Item = &RouteLimits> + Clone {
        [&self.route].into_iter().chain(self.routes.iter())
    }

    /// Returns whether any route limits the input of a second.
    pub(crate) fn limit_rates(&self) -> bool {
        self.each_route().any(|route| route.rates.are_set())
    }
}

impl Limits {
    /// Checks these limits.
    ///
    /// # Errors
    /// The caller's mistake, naming the setting, the value and the remedy.
    pub fn check(&self) -> Result<(), SettingError> {
        self.checked().map(drop)
    }

    /// Returns the limits for connections with their own threads: the accepting thread cannot evict
    /// such connections.
    pub(crate) fn with_threads(&self) -> Self {
        let mut limits = self.clone();
        if limits.max_pending_handshakes == Limit::Auto {
            limits.max_pending_handshakes = Limit::Unlimited;
        }
        limits
    }

    pub(crate) fn checked(&self) -> Result<Checked, SettingError> {
        for (name, size) in [
            ("max_frame_size", self.ws.max_frame_size),
            ("max_message_size", self.ws.max_message_size),
            ("max_header_bytes", self.http.max_header_bytes),
            ("max_headers", self.http.max_headers),
            ("max_backlog", self.max_backlog),
            ("fragment_size", self.fragment_size),
        ] {
            if size == 0 {
                return Err(SettingError::new(name, format!("{name} is 0; give at least 1")));
            }
        }
        let (messages, bytes) = (self.max_messages_per_second, self.max_bytes_per_second);
        for (name, is_zero) in [
            ("max_connections", self.max_connections == Some(0)),
            ("max_pending_handshakes", self.max_pending_handshakes == Limit::AtMost(0)),
            ("max_connections_per_address", self.max_connections_per_address == Limit::AtMost(0)),
            ("max_memory", self.max_memory == Limit::AtMost(0)),
            ("min_body_rate", self.min_body_rate == Some(0)),
            ("min_response_rate", self.min_response_rate == Some(0)),
            ("max_messages_per_second", messages == Some(0)),
            ("max_bytes_per_second", bytes == Some(0)),
        ] {
            if is_zero {
                let message =
                    "is 0, which would refuse everything; give at least 1, or leave it out";
                return Err(SettingError::new(name, format!("{name} {message}")));
            }
        }
        Ok(Checked {
            route: self.route_limits()?,
            routes: Arc::default(),
            http: self.http,
            handshake: secs("handshake_timeout", self.handshake_timeout)?,
            // Multiplied by a timeout in seconds.
            min_body_rate: self.min_body_rate.unwrap_or(usize::MAX).min(usize::MAX >> 16),
            max_body_memory: self.max_body_memory,
            min_response_rate: self.min_response_rate.unwrap_or(0),
            keep_alive: secs("keep_alive_timeout", self.keep_alive_timeout)?,
            reassembly: secs("reassembly_timeout", self.reassembly_timeout)?,
            write: secs("write_timeout", self.write_timeout)?,
            close: secs("close_timeout", self.close_timeout)?,
            heartbeat_always: self.heartbeat_always,
            max_backlog: self.max_backlog,
            fragment_threshold: self.fragment_threshold.unwrap_or(usize::MAX),
            fragment_size: self.fragment_size,
        })
    }

    /// Returns the limits of sessions on routes without their own limits.
    fn route_limits(&self) -> Result<RouteLimits, SettingError> {
        Ok(RouteLimits {
            ws: self.ws,
            streams: false,
            heartbeat_interval: or_0(self.heartbeat_interval, "heartbeat_interval")?,
            heartbeat_timeout: secs("heartbeat_timeout", self.heartbeat_timeout)?,
            lifetime: or_0(self.max_lifetime, "max_lifetime")?,
            rates: RateLimits {
                max_messages: self.max_messages_per_second.unwrap_or(u64::MAX),
                max_bytes: self.max_bytes_per_second.unwrap_or(u64::MAX),
            },
        })
    }
}

/// Returns the seconds of a timeout; 0 if it is off.
pub(crate) fn or_0(timeout: Option<Duration>, name: &'static str) -> Result<u16, SettingError> {
    match timeout {
        None => Ok(0),
        Some(Duration::ZERO) => {
            let message = format!("{name} is 0; give at least 1s, or leave it out");
            Err(SettingError::new(name, message))
        }
        Some(timeout) => secs(name, timeout),
    }
}

pub(crate) fn secs(name: &'static str, timeout: Duration) -> Result<u16, SettingError> {
    let secs = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
    if secs == 0 {
        let message = "is 0, which would end every connection at once; give at least 1s";
        return Err(SettingError::new(name, format!("{name} {message}")));
    }
    // One tick of slack, so that a deadline never lands a whole cycle away.
    match u16::try_from(secs) {
        Ok(secs) if secs < timers::MAX_SECS => Ok(secs),
        _ => {
            let message = format!("{name} is {secs}s; the longest timeout is 18h");
            Err(SettingError::new(name, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_pass_and_nonsense_is_named() {
        let usual = Limits::default;
        assert!(usual().check().is_ok());
        let zero = Duration::ZERO;
        for (limits, name) in [
            (usual().max_backlog(0), "max_backlog"),
            (usual().min_body_rate(0), "min_body_rate"),
            (usual().max_message_size(0), "max_frame_size"),
            (usual().max_connections(0), "max_connections"),
            (usual().max_pending_handshakes(0), "max_pending_handshakes"),
            (usual().max_connections_per_address(0), "max_connections_per_address"),
            (usual().max_memory(0), "max_memory"),
            (usual().max_messages_per_second(0), "max_messages_per_second"),
            (usual().max_bytes_per_second(0), "max_bytes_per_second"),
            (usual().write_timeout(zero), "write_timeout"),
            (usual().heartbeat_interval(zero), "heartbeat_interval"),
            (usual().max_lifetime(zero), "max_lifetime"),
        ] {
            let error = limits.check().unwrap_err();
            assert_eq!(error.setting(), name);
            let error = error.to_string();
            assert!(error.starts_with(&format!("{name} is 0")), "{error}");
        }
        assert_eq!(usual().heartbeat_interval(None).checked().unwrap().route.heartbeat_interval, 0);
        let long = usual().close_timeout(Duration::from_secs(86_400));
        assert!(long.check().unwrap_err().to_string().contains("18h"));
        let fraction = usual().close_timeout(Duration::from_millis(1100));
        assert_eq!(fraction.checked().unwrap().close, 2);
    }

    #[test]
    fn a_limit_is_automatic_absent_or_a_number() {
        assert_eq!(Limit::Auto.or_else(|| 5), 5);
        assert_eq!(Limit::Unlimited.or_else(|| 5), usize::MAX);
        assert_eq!(Limit::from(7).or_else(|| 5), 7);
    }
}
