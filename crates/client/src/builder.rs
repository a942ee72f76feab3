//! The settings of clients.

use std::fmt;
use std::io;
#[cfg(feature = "tls")]
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use throng_proto::url::Url;
use throng_proto::ws::deflate::Policy;
use throng_proto::ws::handshake::{Key, Unsendable, encode_request_with};
use throng_proto::ws::{self, Limits};
#[cfg(feature = "tls")]
use throng_tls::{CertificateFiles, Trust};

use crate::error::ClientError;
use crate::handshake::{Offers, Opening};
use crate::proxy::Proxy;
use crate::random::Entropy;
#[cfg(feature = "tls")]
use crate::tls::ClientTls;

/// The URL and the settings of connections to a server, from
/// [`Client::builder`](crate::Client::builder).
///
/// A builder can connect any number of times.
///
/// ```no_run
/// use std::time::Duration;
/// use throng_client::Client;
///
/// # fn main() -> Result<(), throng_client::ClientError> {
/// let mut client = Client::builder("ws://127.0.0.1:9001/chat/lobby")
///     .header("Authorization", "Bearer 1234")
///     .subprotocol("chat.v2")
///     .max_message_size(1 << 20)
///     .heartbeat(Duration::from_secs(10))
///     .connect()?;
/// # client.send("hello")
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientBuilder {
    pub(crate) url: String,
    headers: Vec<(String, String)>,
    headers_with: Option<HeadersWith>,
    subprotocols: Vec<String>,
    deflate: ws::deflate::Settings,
    max_message_size: usize,
    pub(crate) by_chunks: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) heartbeat: Option<Duration>,
    pub(crate) proxy: Option<String>,
    #[cfg(feature = "tls")]
    pub(crate) tls: ClientTls,
}

/// The headers of one attempt.
type MadeHeaders = io::Result<Vec<(String, String)>>;

/// Makes the headers of one attempt.
#[derive(Clone)]
struct HeadersWith(Arc<dyn Fn() -> MadeHeaders + Send + Sync>);

impl fmt::Debug for HeadersWith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeadersWith(..)")
    }
}

/// Everything that one attempt to connect needs.
pub(crate) struct DialPlan {
    pub(crate) url: Url,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) opening: Opening,
}

impl ClientBuilder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            headers: Vec::new(),
            headers_with: None,
            subprotocols: Vec::new(),
            deflate: ws::deflate::Settings::default(),
            max_message_size: 4 << 20,
            by_chunks: false,
            connect_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(5),
            heartbeat: Some(Duration::from_secs(25)),
            proxy: None,
            #[cfg(feature = "tls")]
            tls: ClientTls::default(),
        }
    }

    /// Adds a header to the upgrade request, such as `Authorization`, `Cookie` or `Origin`.
    /// Connecting fails for headers that the handshake writes itself.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Adds the headers that `make` returns to the upgrade request. The thread or task that
    /// connects calls it for each attempt, so that tokens may expire. See
    /// [`reconnect`](crate::reconnect).
    ///
    /// An error of `make` fails the attempt with [`ClientError::Headers`]. A client that reconnects
    /// calls `make` again, unless the error's kind is
    /// [`PermissionDenied`](std::io::ErrorKind::PermissionDenied).
    pub fn headers_with<F>(mut self, make: F) -> Self
    where
        F: Fn() -> io::Result<Vec<(String, String)>> + Send + Sync + 'static,
    {
        self.headers_with = Some(HeadersWith(Arc::new(make)));
        self
    }

    /// Offers a subprotocol; call this in order of preference. The server's choice is
    /// [`Client::subprotocol`](crate::Client::subprotocol).
    pub fn subprotocol(mut self, name: impl Into<String>) -> Self {
        self.subprotocols.push(name.into());
        self
    }

    /// Offers compression of messages (permessage-deflate, RFC 7692), which the server may decline.
    /// Default: no offer.
    #[cfg(feature = "deflate")]
    pub fn compression(mut self, settings: impl Into<ws::deflate::Settings>) -> Self {
        self.deflate = settings.into();
        self
    }

    /// Sets the maximum length in bytes of a received message, reassembled and inflated, and of
    /// each of its frames. Default 4 MiB.
    ///
    /// A larger message ends the session with 1009. Memory follows the received bytes, never an
    /// announced length.
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.max_message_size = bytes;
        self
    }

    /// Receives messages in chunks as they arrive, with
    /// [`Client::recv_chunk`](crate::Client::recv_chunk), so that no message is buffered as a
    /// whole. Default: messages are reassembled.
    ///
    /// [`ClientBuilder::max_message_size`] still applies; compression is not offered.
    pub fn receive_chunks(mut self) -> Self {
        self.by_chunks = true;
        self
    }

    /// Sets the time for connecting, from the TCP connection to the server's 101: with proxy and
    /// TLS. Looking up a host takes as long as the system's resolver does. Default 10 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the time for which sending waits for a server that does not read. Default 30 s.
    pub fn write_timeout(mut self, timeout: Duration) -> Self {
        self.write_timeout = timeout;
        self
    }

    /// Sets how long closing waits for the server's Close frame, and for the end of the TCP
    /// connection, which the server must close first. Default 5 s.
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// Sets the time of silence after which the client sends a ping; if the server stays silent for
    /// the same time again, receiving fails with [`ClientError::Timeout`]. `None` is off. Default
    /// 25 s, below the 60 s after which common proxies end idle connections.
    ///
    /// The client sends pings only while it is receiving.
    pub fn heartbeat(mut self, interval: impl Into<Option<Duration>>) -> Self {
        self.heartbeat = interval.into();
        self
    }

    /// Connects through a proxy: `http://[user:password@]host:port` (the method CONNECT) or
    /// `socks5://[user:password@]host:port` (RFC 1928, RFC 1929), which looks up the server's host.
    /// Default: none; environment variables are not read.
    pub fn proxy(mut self, url: impl Into<String>) -> Self {
        self.proxy = Some(url.into());
        self
    }

    /// Reads the settings for one attempt.
    pub(crate) fn plan(&self) -> Result<DialPlan, ClientError> {
        let url = Url::parse_ws(&self.url)?;
        for (name, duration) in [
            ("connect_timeout", self.connect_timeout),
            ("write_timeout", self.write_timeout),
            ("close_timeout", self.close_timeout),
            ("heartbeat", self.heartbeat.unwrap_or(Duration::MAX)),
        ] {
            if duration.is_zero() {
                return Err(ClientError::setting(
                    name,
                    format!("{name} is 0 s; choose 1 ms or more"),
                ));
            }
        }
        let deflate = self.deflate.check().map_err(|invalid| {
            ClientError::setting("compression", format!("compression.{invalid}"))
        })?;
        let deflate = deflate.filter(|_| !self.by_chunks);
        let mut entropy = Entropy::new().map_err(ClientError::Random)?;
        let key = Key::new(entropy.take().map_err(ClientError::Random)?);
        let request = self.request(&url, &key, deflate.as_ref())?;
        let offers = Offers { key, subprotocols: self.subprotocols.clone(), deflate };
        let size = self.max_message_size;
        let limits = Limits { max_frame_size: size, max_message_size: size };
        let proxy = self.proxy.as_deref().map(Proxy::parse).transpose()?;
        Ok(DialPlan { url, proxy, opening: Opening::new(request, offers, limits, entropy) })
    }

    /// Begins an upgrade whose bytes the program moves itself. Only host and path of the URL are
    /// used; the program handles timeouts and heartbeats.
    ///
    /// # Errors
    /// [`ClientError::Url`] or [`ClientError::Setting`] for an invalid value;
    /// [`ClientError::Random`] if the system has no random numbers.
    pub fn open(&self) -> Result<Opening, ClientError> {
        self.plan().map(|plan| plan.opening)
    }

    fn request(
        &self,
        url: &Url,
        key: &Key,
        deflate: Option<&Policy>,
    ) -> Result<Vec<u8>, ClientError> {
        let subprotocols: Vec<&str> = self.subprotocols.iter().map(String::as_str).collect();
        let made = match &self.headers_with {
            Some(HeadersWith(make)) => make().map_err(ClientError::Headers)?,
            None => Vec::new(),
        };
        let all = self.headers.iter().chain(&made);
        let headers: Vec<(&str, &str)> =
            all.map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let (host, target) = (url.host_header(), url.resource("/"));
        let offer = deflate.map(Policy::offer);
        let mut request = Vec::with_capacity(512);
        encode_request_with(
            &host,
            target,
            key,
            &subprotocols,
            offer.as_ref(),
            &headers,
            &mut request,
        )
        .map_err(|unsendable| self.unsendable(unsendable, &headers))?;
        Ok(request)
    }

    /// Names the setting that cannot be in a request.
    fn unsendable(&self, unsendable: Unsendable, headers: &[(&str, &str)]) -> ClientError {
        let names = || headers.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let (setting, value) = match unsendable {
            Unsendable::FieldName | Unsendable::FieldValue => ("header", names().join(", ")),
            Unsendable::Subprotocol | Unsendable::RepeatedSubprotocol => {
                ("subprotocol", self.subprotocols.join(", "))
            }
            _ => ("url", self.url.clone()),
        };
        ClientError::setting(setting, format!("{setting} ({value}): {unsendable}"))
    }
}

#[cfg(feature = "tls")]
impl ClientBuilder {
    /// Accepts only certificates of the authorities in this file (PEM). Default: the authorities
    /// that the system trusts.
    pub fn trust_file(mut self, authorities: impl Into<PathBuf>) -> Self {
        self.tls.change(|settings| settings.trust = Trust::File(authorities.into()));
        self
    }

    /// Accepts any certificate, without a check: for tests. An attacker between client and server
    /// can then read and change everything.
    pub fn trust_anyone(mut self) -> Self {
        self.tls.change(|settings| settings.trust = Trust::Anyone);
        self
    }

    /// Sets the name that the server's certificate must have, also sent as SNI. Default: the host
    /// of the URL.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.tls.name = Some(name.into());
        self
    }

    /// Sets the certificate chain and the private key (PEM) for servers that ask for one. Default:
    /// none.
    pub fn client_certificate(
        mut self,
        chain: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        let files = CertificateFiles { chain: chain.into(), key: key.into() };
        self.tls.change(|settings| settings.certificate = Some(files));
        self
    }
}
