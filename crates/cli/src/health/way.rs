//! The route to a server, from its settings, and the server's answer.

use std::cell::Cell;
use std::fmt;
#[cfg(feature = "tls")]
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use throng_config::{Draft, Listen};
#[cfg(feature = "tls")]
use throng_load::{Target, TlsPlan, TlsStream, TlsTrust, is_certificate_required};
use throng_proto::proxy_protocol;
use throng_proto::url::without_zone;

use crate::config::Program;
use crate::failure::Failure;
#[cfg(feature = "tls")]
use crate::http_client::Stream;
use crate::http_client::{Client, ClientResponse, JsonBody as _, Unanswered, converse, plain};

/// The remedy of a server that requires certificates of its clients.
const REQUIRES_CERTIFICATE: &str = "it asks for a client's certificate: set admin.listen";

/// The route to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Way {
    /// Its addresses: the first that accepts a connection is asked.
    places: Vec<HealthPlace>,
    has_tls: bool,
    /// Connections begin with a PROXY header.
    has_proxy_header: bool,
    /// The reason why a live server may end the connection unanswered.
    refusal: Option<&'static str>,
    /// It has no path for health: its own refusal of a request shows that it answers.
    is_refused: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HealthPlace {
    Address(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for HealthPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl HealthPlace {
    /// Returns the addresses of a value of `listen` by which a process of this machine reaches it.
    /// None for port 0 and for sockets of the service manager.
    fn of(listen: &str) -> Vec<Self> {
        match Listen::parse(listen) {
            Listen::Unix(path) => vec![Self::Unix(path.into())],
            Listen::Address(text) => {
                let found = text.to_socket_addrs().into_iter().flatten();
                found.filter(|address| address.port() != 0).flat_map(Self::reached_by).collect()
            }
            Listen::Descriptor(_) | Listen::Inherited => Vec::new(),
        }
    }

    fn reached_by(address: SocketAddr) -> Vec<Self> {
        let at = |ip| Self::Address(SocketAddr::new(ip, address.port()));
        match address.ip() {
            ip if !ip.to_canonical().is_unspecified() => vec![Self::Address(address)],
            ip if ip.is_ipv4() => vec![at(Ipv4Addr::LOCALHOST.into())],
            // If IPv6 is off, it may listen on IPv4.
            _ => vec![at(Ipv6Addr::LOCALHOST.into()), at(Ipv4Addr::LOCALHOST.into())],
        }
    }

    /// Connects. A Unix socket is used by the same calls as a TCP socket.
    fn connect(&self, timeout: Duration) -> Result<TcpStream, String> {
        let connected = match self {
            Self::Address(address) => TcpStream::connect_timeout(address, timeout),
            #[cfg(unix)]
            Self::Unix(path) => std::os::unix::net::UnixStream::connect(path)
                .map(|stream| std::os::fd::OwnedFd::from(stream).into()),
            #[cfg(not(unix))]
            Self::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        };
        connected.map_err(|error| format!("cannot connect: {}", plain(&error)))
    }
}

impl Way {
    /// Returns the route to an address: `HOST:PORT`, `http://`, `https://` or `unix:PATH`.
    ///
    /// # Errors
    /// The message names the remedy.
    pub(super) fn to(text: &str) -> Result<Self, String> {
        if let Listen::Unix(path) = Listen::parse(text) {
            let places = vec![HealthPlace::Unix(path.into())];
            return Ok(Self { places, ..Self::default() });
        }
        let (address, has_tls) = match text.strip_prefix("https://") {
            Some(address) => (address, true),
            None => (text, false),
        };
        let places = vec![HealthPlace::Address(Client::parse(address)?.address()?)];
        Ok(Self { places, has_tls, ..Self::default() })
    }

    /// Returns the route that settings define; `ready` if any answer is not enough.
    ///
    /// # Errors
    /// The settings are wrong, or define no server that can be asked.
    pub(super) fn by_settings(program: &Program, ready: bool) -> Result<Self, Failure> {
        let draft = program.draft()?;
        let way = match program {
            Program::Serve(_) => Self::of_serve(&draft),
            #[cfg(feature = "balance")]
            Program::Balance(_) => Self::of_balance(&draft),
        };
        draft.finish()?;
        if ready && way.is_refused {
            return Err(Failure::usage(
                "a balancer answers whether it is ready at its admin API: set admin.listen",
            ));
        }
        if way.places.is_empty() {
            return Err(Failure::usage(
                "listen names no address that can be asked: set admin.listen, or ask by address, \
                 for example throng health 127.0.0.1:9001",
            ));
        }
        Ok(way)
    }

    /// Returns the route to the server for operators, if there is one: it has neither TLS nor PROXY
    /// headers, and answers without a token.
    fn of_admin(draft: &Draft) -> Option<Self> {
        let address = draft.get::<Option<SocketAddr>>("admin.listen")?;
        let places = HealthPlace::of(&address.to_string());
        (!places.is_empty()).then(|| Self { places, ..Self::default() })
    }

    fn of_serve(draft: &Draft) -> Self {
        let admin = Self::of_admin(draft);
        let listen = draft.get::<Vec<String>>("listen");
        let has_proxy_header = draft.get("proxy_protocol");
        let is_set = |key| !draft.get::<Vec<String>>(key).is_empty();
        let is_issued = is_set("tls.acme.domains");
        let has_tls = draft.get::<String>("tls.plain") != "serve"
            && (is_issued || !draft.paths("tls.cert").is_empty());
        let needs_certificate = draft.path("tls.client_ca").is_some()
            && draft.get::<String>("tls.client_auth") == "required";
        let refusal = match () {
            () if has_proxy_header => Some(
                "it ends connections without an address in trusted_proxies: add 127.0.0.1, or set \
                 admin.listen",
            ),
            () if has_tls && needs_certificate => Some(REQUIRES_CERTIFICATE),
            () if has_tls && is_issued => {
                Some("it has no certificate of its authority yet: set admin.listen")
            }
            () => None,
        };
        let places = listen.iter().map(|listen| HealthPlace::of(listen)).find(|it| !it.is_empty());
        let places = places.unwrap_or_default();
        admin.unwrap_or(Self { places, has_tls, has_proxy_header, refusal, is_refused: false })
    }

    /// Returns the route to a balancer. Only its admin API has its own paths.
    #[cfg(feature = "balance")]
    fn of_balance(draft: &Draft) -> Self {
        let admin = Self::of_admin(draft);
        let listen = ["listen", "tls.listen"].map(|key| draft.get::<Vec<String>>(key));
        let mut places = listen.iter().flatten().map(|listen| HealthPlace::of(listen));
        let places = places.find(|places| !places.is_empty()).unwrap_or_default();
        let has_proxy_header: bool = draft.get("accept_proxy");
        let refusal = has_proxy_header.then_some("");
        let way = Self { places, has_proxy_header, refusal, is_refused: true, has_tls: false };
        admin.unwrap_or(way)
    }

    /// Asks the server, and returns its answer about its health.
    ///
    /// # Errors
    /// It is not healthy, with the reason.
    pub(super) fn ask(&self, ready: bool, timeout: Duration) -> Result<String, String> {
        let until = Instant::now() + timeout;
        let mut failed = String::new();
        for place in &self.places {
            let scheme = match (place, self.has_tls) {
                (HealthPlace::Unix(_), _) => "",
                (_, true) => "https://",
                (_, false) => "http://",
            };
            let unhealthy = |why: String| format!("{scheme}{place} is not healthy: {why}");
            let left = until.saturating_duration_since(Instant::now());
            let stream = match place.connect(left.max(Duration::from_millis(1))) {
                Ok(stream) => stream,
                Err(why) => {
                    failed = unhealthy(why);
                    continue;
                }
            };
            // Whether the server has required a certificate. That is an answer of a live server,
            // also if no settings say so, but only this alert is: others have further causes.
            let is_required = Cell::new(false);
            let answer = self.exchange(stream, place, (ready, until), &is_required);
            let refusal = self.refusal.or(is_required.get().then_some(REQUIRES_CERTIFICATE));
            return match (answer, refusal) {
                (Ok(_), _) if self.is_refused => Ok("it answers".to_owned()),
                (Ok(answer), _) if answer.is_success() => Ok(answer.reason()),
                (Ok(answer), _) => Err(unhealthy(why(&answer))),
                (Err(error), Some(_)) if error.is_ended && !ready => Ok("it answers".to_owned()),
                (Err(error), Some(hint)) if error.is_ended => {
                    Err(unhealthy(format!("{}; {hint}", error.why)))
                }
                (Err(error), _) => Err(unhealthy(error.why)),
            };
        }
        Err(failed)
    }

    fn exchange(
        &self,
        stream: TcpStream,
        place: &HealthPlace,
        (ready, until): (bool, Instant),
        is_required: &Cell<bool>,
    ) -> Result<ClientResponse, Unanswered> {
        let path = if ready { "/readyz" } else { "/livez" };
        let host = match place {
            HealthPlace::Address(address) => without_zone(*address).to_string(),
            HealthPlace::Unix(_) => "localhost".to_owned(),
        };
        let request = match self.is_refused {
            // RFC 9112 section 3.2: a request without Host is answered with 400.
            true => "GET / HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
            false => format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"),
        };
        let mut start = Vec::new();
        if self.has_proxy_header {
            proxy_protocol::encode_local(&mut start);
        }
        if !self.has_tls {
            start.extend_from_slice(request.as_bytes());
            return converse(stream, &start, until);
        }
        secured(stream, &start, until, is_required)
            .and_then(|stream| converse(stream, request.as_bytes(), until))
    }
}

/// Returns the status and the reason of a refusal, whose body may begin with the status.
fn why(answer: &ClientResponse) -> String {
    let (status, reason) = (answer.status.to_string(), answer.reason());
    if reason.starts_with(&status) { reason } else { format!("{status} {reason}") }
}

/// A stream that notes whether the server requires a certificate of its clients. In TLS 1.3 it says
/// so after the client's handshake is complete.
#[cfg(feature = "tls")]
struct Noting<'a> {
    stream: TlsStream,
    is_required: &'a Cell<bool>,
}

#[cfg(feature = "tls")]
impl Read for Noting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer).inspect_err(|error| {
            if is_certificate_required(error) {
                self.is_required.set(true);
            }
        })
    }
}

#[cfg(feature = "tls")]
impl Write for Noting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(feature = "tls")]
impl Stream for Noting<'_> {
    fn limit(&mut self, time: Duration) -> io::Result<()> {
        self.stream.limit(time)
    }
}

/// Secures a connection, after sending `start`. Any certificate is accepted: the server is on the
/// same machine, and the request has no secret.
#[cfg(feature = "tls")]
fn secured<'a>(
    mut stream: TcpStream,
    start: &[u8],
    until: Instant,
    is_required: &'a Cell<bool>,
) -> Result<Noting<'a>, Unanswered> {
    let usage = |error: throng_load::Error| Unanswered { why: error.to_string(), is_ended: false };
    let target = Target::parse_http("https://127.0.0.1").map_err(usage)?;
    let plan = TlsPlan { trust: TlsTrust::Anyone, ..TlsPlan::default() };
    let client = plan.load(&target).map_err(usage)?;
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let begun = stream
        .set_read_timeout(Some(left))
        .and_then(|()| stream.set_write_timeout(Some(left)))
        .and_then(|()| stream.write_all(start));
    let handshake = begun.and_then(|()| match client {
        Some(client) => client.handshake_on(stream),
        None => Err(io::ErrorKind::Unsupported.into()),
    });
    handshake.map(|stream| Noting { stream, is_required }).map_err(|error| {
        // In TLS 1.2 the server says so during the handshake.
        is_required.set(is_certificate_required(&error));
        Unanswered::of(&error, "its TLS handshake failed")
    })
}

#[cfg(not(feature = "tls"))]
fn secured(_: TcpStream, _: &[u8], _: Instant, _: &Cell<bool>) -> Result<TcpStream, Unanswered> {
    Err(Unanswered { why: crate::NO_TLS.to_owned(), is_ended: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_is_asked_on_loopback() {
        let of = |listen: &str| {
            let places = HealthPlace::of(listen).into_iter().map(|place| place.to_string());
            places.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(of("[::]:80"), "[::1]:80 127.0.0.1:80");
        assert_eq!(of("10.0.0.1:80"), "10.0.0.1:80");
        assert_eq!(of("unix:/run/a.sock"), "unix:/run/a.sock");
        for none in ["127.0.0.1:0", "systemd", "fd:3"] {
            assert_eq!(of(none), "", "{none}");
        }
    }
}
