//! Records of requests and tunnels, for a log.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub use throng_config::AccessDetail;

/// Receives the record of each request and tunnel, called by shards: it must not block.
pub trait AccessLog: Send + Sync + fmt::Debug {
    /// Returns whether a request that begins is of interest: never, only if it fails, or always.
    /// Tunnels are recorded only where it is always.
    fn detail(&self) -> AccessDetail;

    /// Takes the record of a request or tunnel that has ended.
    fn record(&self, access: &Access<'_>);
}

/// A request or a tunnel that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access<'a> {
    /// The client's address, past trusted proxies.
    pub client: IpAddr,
    /// The method; `None` if the request could not be read, or of a connection that was passed
    /// through.
    pub method: Option<&'a str>,
    /// The path without the query, of 512 bytes at most.
    pub path: Option<&'a str>,
    /// The host name that the client of a connection that was passed through has asked for (SNI).
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
    /// The last backend that it was sent to.
    pub backend: Option<SocketAddr>,
    /// The number of backends that it was sent to.
    pub attempts: usize,
    /// Bytes of the request's body, or that the client sent into a tunnel.
    pub bytes_in: Option<u64>,
    /// Bytes of the response's body, or that the client was sent from a tunnel.
    pub bytes_out: Option<u64>,
    /// The time from the head of the request to the end.
    pub duration: Duration,
    /// Why the balancer answered itself, or ended a tunnel; else empty.
    pub reason: &'a str,
    /// The header X-Request-ID, of 128 bytes at most.
    pub request_id: Option<&'a str>,
    /// The header traceparent (W3C Trace Context), of 128 bytes at most.
    pub traceparent: Option<&'a str>,
}
