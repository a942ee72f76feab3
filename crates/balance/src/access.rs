//! Records of requests and tunnels, for a log.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub use throng_config::AccessDetail;
use throng_io::{PeerAddress, SessionFailure, TlsFailure};

/// Receives the record of each request and tunnel, called by shards: it must not block.
pub trait AccessLog: Send + Sync + fmt::Debug {
    /// Returns whether the log wants a request that begins: never, only if it fails, or always.
    /// Tunnels are recorded if it is always, and otherwise, unless it is never, if their backend
    /// was lost.
    fn detail(&self) -> AccessDetail;

    /// Takes the record of a request or tunnel that has ended.
    fn record(&self, access: &Access<'_>);

    /// Records the end of a connection that the balancer ended by a rule, for any detail of
    /// requests and tunnels. `backend` is a tunnel's backend.
    fn ended(&self, subject: &Subject, backend: Option<PeerAddress>, reason: EndReason) {
        let _ = (subject, backend, reason);
    }

    /// Takes the failure of a client's TLS handshake. Of an IPv6 address the first 64 bits are
    /// known.
    fn tls_refused(&self, client: Option<IpAddr>, why: TlsFailure) {
        let _ = (client, why);
    }
}

/// The cause of a record: a client's connection, and its known addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The number of its connection, the same in all of its records; `None` if the connection was
    /// closed before it was served.
    pub session: Option<u64>,
    /// The other end of its socket, which may be a proxy's; `None` if it has reset the connection.
    pub peer: Option<SocketAddr>,
    /// The client's address, past trusted proxies; `None` if only such a proxy's address is known.
    pub client: Option<IpAddr>,
}

/// The reason why the balancer ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// All places were taken, and another client needed this one.
    Place,
    /// All places of its address were taken, and another client needed this one.
    PlaceOfAddress,
    /// The client has sent no request.
    Unasked,
    /// A tunnel was silent for `timeouts.tunnel`.
    Silent,
    /// The backend of a connection that is passed through has sent nothing.
    NoAnswer,
    /// A connection to be passed through has come from this balancer, again and again.
    Circle,
    /// One side of a tunnel had ended its stream, and the other did not in time.
    HalfClosed,
    /// A tunnel has reached its `tunnel.max_lifetime`.
    Lifetime,
    /// The client did not take its response in time.
    Unread,
    /// TLS needed more memory than `max_tls_memory`.
    Memory,
    /// With `accept_proxy`, the peer is not in `trusted_proxies`.
    UntrustedProxy,
    /// The PROXY header is not valid.
    BadProxyHeader,
    /// The PROXY header did not come in time.
    LateProxyHeader,
    /// The TLS session failed after its handshake.
    Tls(SessionFailure),
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Place => "the balancer is full, and others needed the place; max_connections",
            Self::PlaceOfAddress => {
                "others of its address needed the place; max_connections_per_address"
            }
            Self::Unasked => "no request came within timeouts.head",
            Self::Silent => "the tunnel was silent for timeouts.tunnel",
            Self::NoAnswer => "the backend sent nothing within timeouts.upgrade",
            Self::Circle => {
                "its ClientHello has passed through this balancer before: a backend of its server \
                 name, or one behind it, leads back to it"
            }
            Self::HalfClosed => {
                "one side had ended its stream, and the other did not within timeouts.half_closed"
            }
            Self::Lifetime => "the tunnel was open for tunnel.max_lifetime",
            Self::Unread => "the client did not read its response within timeouts.body",
            Self::Memory => "TLS needed more memory than max_tls_memory",
            Self::UntrustedProxy => "with accept_proxy, only trusted_proxies may connect",
            Self::BadProxyHeader => "its PROXY header is not valid",
            Self::LateProxyHeader => "no complete PROXY header came within timeouts.head",
            Self::Tls(why) => return why.fmt(f),
        })
    }
}

/// A request or a tunnel that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access<'a> {
    /// The sender.
    pub subject: Subject,
    /// The method; `None` if the request could not be read, or of a connection that was passed
    /// through.
    pub method: Option<&'a str>,
    /// The path without the query, of 512 bytes at most.
    pub path: Option<&'a str>,
    /// The host name that the client has asked for in TLS (SNI).
    pub server_name: Option<&'a str>,
    /// Whether it was a tunnel, or a connection that was passed through.
    pub is_tunnel: bool,
    /// Whether it failed: the client got a status of 500 or more or half a response, a tunnel's
    /// backend ended without a Close frame, or no backend accepted a connection to be passed
    /// through.
    pub is_failure: bool,
    /// The status of the response; of a tunnel, 101. `None` if the client did not wait for it, or
    /// of a connection that was passed through.
    pub status: Option<u16>,
    /// The code of the Close frame that the balancer sent into a tunnel.
    pub code: Option<u16>,
    /// The name of the site of its host, if there are sites.
    pub site: Option<&'a str>,
    /// The name of its route; `None` for the site's own.
    pub route: Option<&'a str>,
    /// The pool of the route; `None` if the balancer answers.
    pub pool: Option<&'a str>,
    /// The client's point in the split that chose the pool.
    pub split: Option<u16>,
    /// The name of the limit that refused it.
    pub limit: Option<&'a str>,
    /// The last backend that it was sent to.
    pub backend: Option<PeerAddress>,
    /// The number of backends that it was sent to.
    pub attempts: usize,
    /// The number of requests of its pool that waited for a backend when it came, if it had to wait
    /// or was refused for that.
    pub queue_length: Option<u32>,
    /// Bytes of the request's body, or that the client sent into a tunnel.
    pub bytes_in: Option<u64>,
    /// Bytes of the response's body, or that the client was sent from a tunnel.
    pub bytes_out: Option<u64>,
    /// The time from the head of the request to the end; `None` if the end came in the same turn of
    /// the event loop, which reads the clock once, if no request was read, or for a tunnel that is
    /// recorded only because it failed.
    pub duration: Option<Duration>,
    /// The time that it has waited for backends; `None` if it did not wait.
    pub queued: Option<Duration>,
    /// The version of TLS of the client's connection, `TLS 1.3`; `None` without TLS.
    pub tls: Option<&'static str>,
    /// The host that the request is for, with its port; of 128 bytes at most.
    pub host: Option<&'a str>,
    /// The header User-Agent, of 256 bytes at most.
    pub user_agent: Option<&'a str>,
    /// Why the balancer answered itself, or ended a tunnel; otherwise empty.
    pub reason: &'a str,
    /// The header X-Request-ID, at most 128 bytes; with
    /// [`request_ids`](crate::Settings::request_ids) the request's new id.
    pub request_id: Option<&'a str>,
    /// The header traceparent (W3C Trace Context), of 128 bytes at most.
    pub traceparent: Option<&'a str>,
}
