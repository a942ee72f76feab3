//! Proxies in front of a server.

use throng_engine::SettingError;
use throng_http::Network;

/// The proxies in front of a server: for [`Server::proxies`](crate::Server::proxies).
///
/// ```
/// # use throng::prelude::*;
/// use throng::server::Proxies;
///
/// let app = App::new().get("/", |request| format!("you are {:?}", request.client()));
/// let server = Server::new(app).proxies(Proxies::new().trusted(["10.0.0.0/8", "fd00::/8"]));
/// # server.check().unwrap();
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Proxies {
    pub(super) trusted: Vec<Network>,
    pub(super) proxy_protocol: bool,
    pub(super) mistake: Option<SettingError>,
}

impl Proxies {
    /// No proxies: each connection comes directly from a client.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds networks of proxies, such as `10.0.0.0/8` or `::1`: the server trusts the client
    /// address that they write into X-Forwarded-For or Forwarded, and
    /// [`Request::client`](crate::Request::client) returns it.
    /// [`Limits::max_connections_per_address`](crate::Limits::max_connections_per_address) does not
    /// apply to connections of a trusted proxy. `unix:` stands for all peers on Unix sockets, which
    /// have no address. A malformed network is an error of [`Server::bind`](crate::Server::bind).
    pub fn trusted<N: AsRef<str>>(mut self, networks: impl IntoIterator<Item = N>) -> Self {
        for network in networks {
            match network.as_ref().parse::<Network>() {
                Ok(network) => self.trusted.push(network),
                Err(error) => {
                    self.mistake.get_or_insert(SettingError::new("trusted_proxies", error));
                }
            }
        }
        self
    }

    /// Sets whether connections begin with a PROXY protocol header, version 1 or 2, which proxies
    /// send with the client's address (HAProxy: `send-proxy-v2`, nginx: `proxy_protocol on`,
    /// `throng balance`: `send_proxy`). The header comes before a TLS handshake. Only
    /// [`trusted`](Self::trusted) proxies may connect then; other peers, and proxies that send
    /// something else or nothing within
    /// [`Limits::handshake_timeout`](crate::Limits::handshake_timeout), are closed and counted.
    ///
    /// The client's address in the header takes the place of the proxy's everywhere: in
    /// [`Request::peer`](crate::Request::peer) and [`Request::client`](crate::Request::client),
    /// logs, events and
    /// [`Limits::max_connections_per_address`](crate::Limits::max_connections_per_address). A
    /// proxy's own connections, such as health checks, keep its address. Default: false.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # use throng::server::Proxies;
    /// let proxies = Proxies::new().trusted(["10.0.0.0/8"]).proxy_protocol(true);
    /// # Server::new(App::new()).proxies(proxies).check().unwrap();
    /// ```
    pub fn proxy_protocol(mut self, on: bool) -> Self {
        self.proxy_protocol = on;
        self
    }
}
