//! TLS of a server: its settings, and the drivers with and without it.

#[cfg(feature = "acme")]
mod acme;
mod issuer;
mod request;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use throng_acme::{AcmeSettings, Challenge};
use throng_engine::{Cx, ProxyProtocol, SettingError};
#[cfg(feature = "metrics")]
use throng_http::openmetrics::{Type, Writer};
use throng_http::{HttpsPolicy, IntoResponse, Network, Response, strict_transport_security};
use throng_io::{Driver, ListenerId, ServerTls};
use throng_proto::http1;
use throng_tls::{
    CertificateFiles, Challenges, ClientAuth, HandshakeLimits, Managed, Secret, SuitePreference,
    TlsConfig, TlsServer, Version,
};

#[cfg(feature = "acme")]
pub use self::acme::{Acme, AcmeChallenge};
use self::issuer::Issuer;
pub(crate) use self::request::attach;
pub use self::request::{ClientCertificate, RequestTls, TlsConnection};
pub use throng_http::PlainHttp;

use crate::error::{Error, Result};
use crate::events::{Events, ServerEvent, Subject};

/// The certificates of a server, and the TLS versions that it accepts: for
/// [`Server::tls`](crate::Server::tls).
///
/// Files are in PEM, and are read by [`Server::bind`](crate::Server::bind). Clients and server
/// agree on `http/1.1` (ALPN), or on no protocol if the client offers none.
///
/// ```no_run
/// use throng::prelude::*;
/// use throng::tls::Tls;
///
/// # fn main() -> throng::Result<()> {
/// let tls = Tls::from_files("example.org.pem", "example.org.key")
///     .certificate("example.com.pem", "example.com.key");
/// Server::new(App::new()).tls(tls).bind("0.0.0.0:443")?.run()
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Tls {
    config: TlsConfig,
    /// Files of [`ClientAuth::revoked`].
    revoked: Option<PathBuf>,
    handshakes_per_second: u32,
    plain: PlainHttp,
    /// The value of Strict-Transport-Security.
    hsts: Option<Arc<str>>,
    /// Only with the feature `acme`.
    acme: Option<AcmeSettings>,
}

/// A certificate of a running server, which
/// [`Running::certificates`](crate::server::Running::certificates) returns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CertificateStatus {
    /// A name that it is for.
    pub name: String,
    /// The time at which it expires.
    pub not_after: SystemTime,
}

impl CertificateStatus {
    /// Converts a name and a time in seconds since 1970.
    pub(crate) fn new((name, expires): (String, i64)) -> Self {
        let from_1970 = Duration::from_secs(expires.unsigned_abs());
        let not_after = match expires {
            0.. => SystemTime::UNIX_EPOCH + from_1970,
            _ => SystemTime::UNIX_EPOCH - from_1970,
        };
        Self { name, not_after }
    }
}

/// A version of TLS; older ones are never accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsVersion {
    /// RFC 5246, with its AEAD suites and elliptic curves only.
    Tls12,
    /// RFC 8446.
    Tls13,
}

impl Tls {
    /// Takes a certificate and its private key, which must not be encrypted. The file has the
    /// certificate first, then the chain to a root.
    pub fn from_files(chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self::without_certificate().certificate(chain, key)
    }

    /// Takes a certificate that an authority issues and renews, for its domains. Certificates from
    /// files may be [added](Self::certificate); the first of them is then for all other names.
    #[cfg(feature = "acme")]
    pub fn acme(acme: Acme) -> Self {
        Self { acme: Some(acme.settings), ..Self::without_certificate() }
    }

    fn without_certificate() -> Self {
        Self {
            config: TlsConfig::new(Vec::new()),
            revoked: None,
            handshakes_per_second: 0,
            plain: PlainHttp::Refuse,
            hsts: None,
            acme: None,
        }
    }

    /// Adds a certificate. A client gets the certificate with the name that it asks for (SNI): an
    /// exact match, or a wildcard for its first label. All other clients get the first. Of two
    /// certificates with the same name, an EC key is preferred to an RSA key if the client can
    /// verify it.
    pub fn certificate(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.config.certificates.push(CertificateFiles { chain: chain.into(), key: key.into() });
        self
    }

    /// Asks clients for a certificate of the authorities in this file (PEM). A certificate that is
    /// not accepted ends the handshake; so does a missing one, if it `is_required`. A client that
    /// resumes a session is not asked again, and the expiry of its certificate is not checked
    /// again; after a change of the authorities, earlier sessions are not resumed. A request for
    /// another host than the client named in its handshake (SNI) gets 421, unless a trusted proxy
    /// sent it ([RFC 9110 section
    /// 15.5.20](https://www.rfc-editor.org/rfc/rfc9110#section-15.5.20)). Default: not asked for.
    pub fn client_auth(mut self, authorities: impl Into<PathBuf>, is_required: bool) -> Self {
        let authorities = authorities.into();
        self.config.client_auth = Some(ClientAuth { authorities, revoked: None, is_required });
        self
    }

    /// Refuses revoked certificates of clients, by the lists (CRLs) in this file (PEM). It needs
    /// one list of each authority of [`client_auth`](Self::client_auth) and of each intermediate
    /// authority; a list that has expired accepts no certificate. After a change of the file,
    /// earlier sessions are not resumed. Default: no lists.
    pub fn client_crl(mut self, lists: impl Into<PathBuf>) -> Self {
        self.revoked = Some(lists.into());
        self
    }

    /// Sets the lowest version that is accepted. Default [`TlsVersion::Tls12`].
    pub fn min_version(mut self, version: TlsVersion) -> Self {
        self.config.min_version = match version {
            TlsVersion::Tls12 => Version::Tls12,
            TlsVersion::Tls13 => Version::Tls13,
        };
        self
    }

    /// Chooses AES-128-GCM with SHA-256 if a client offers it, instead of the client's first cipher
    /// suite: browsers offer it first anyway, OpenSSL offers AES-256 first. It makes a handshake a
    /// fifth faster. Default: the client's order.
    pub fn prefer_aes128(mut self, prefers: bool) -> Self {
        self.config.preference =
            if prefers { SuitePreference::Aes128 } else { SuitePreference::Client };
        self
    }

    /// Sets how many handshakes may begin in a second, in all event loops together; others wait,
    /// the newest of each address first. Not for
    /// [`IoBackend::Threads`](crate::server::IoBackend::Threads), where each connection has a
    /// thread. Default 0: no limit.
    pub fn max_handshakes_per_second(mut self, handshakes: u32) -> Self {
        self.handshakes_per_second = handshakes;
        self
    }

    /// Encrypts session tickets with the keys in this file, which other servers share: clients then
    /// resume their sessions with any of them. Each key has 80 random bytes (`openssl rand 80`),
    /// one after another. The first encrypts, and all decrypt, so add a new key to all servers as
    /// the second, then move it to the front. Only the owner and the group of the file may have
    /// permissions for it. Servers with different client authorities do not accept each other's
    /// tickets. Default: keys of this process, new ones every six hours.
    pub fn ticket_keys(mut self, file: impl Into<PathBuf>) -> Self {
        self.config.ticket_keys = Some(file.into());
        self
    }

    /// Makes browsers connect with TLS only, for `max_age` from each response on, and also to
    /// subdomains if `includes_subdomains`: Strict-Transport-Security in all responses over TLS
    /// that have none ([RFC 6797](https://www.rfc-editor.org/rfc/rfc6797)). Browsers remember it,
    /// so begin with a short time; a time of zero makes them forget it. Default: not sent.
    pub fn hsts(mut self, max_age: Duration, includes_subdomains: bool) -> Self {
        self.hsts = Some(strict_transport_security(max_age, includes_subdomains));
        self
    }

    /// Sets the answer to clients that speak HTTP without TLS. Default [`PlainHttp::Refuse`].
    pub fn plain(mut self, plain: PlainHttp) -> Self {
        self.plain = plain;
        self
    }
}

/// The TLS setting of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setting(pub(crate) Option<Tls>);

impl Tls {
    /// Returns the configuration, without managed certificates.
    fn config(&self) -> Result<TlsConfig> {
        if let Some(acme) = &self.acme {
            acme.check().map_err(|error| Error::setting("tls", format!("tls: {error}")))?;
        }
        let mut config = self.config.clone();
        match (&mut config.client_auth, &self.revoked) {
            (Some(auth), revoked) => auth.revoked.clone_from(revoked),
            (None, Some(_)) => {
                let remedy = "tls: client_crl needs client_auth, which names the authorities";
                return Err(Error::setting("tls", remedy.to_owned()));
            }
            (None, None) => {}
        }
        let is_required = config.client_auth.as_ref().is_some_and(|auth| auth.is_required);
        if is_required && self.acme.as_ref().is_some_and(|it| it.challenge == Challenge::TlsAlpn01)
        {
            let remedy = "tls: client_auth requires a certificate of every client, and authorities \
                          that validate by tls-alpn-01 have none: take the challenge http-01";
            return Err(Error::setting("tls", remedy.to_owned()));
        }
        Ok(config)
    }
}

impl Setting {
    /// Checks the setting and its files, if there is TLS, without changing any of them.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(tls) = &self.0 else { return Ok(()) };
        Issuer::check(tls.acme.clone()).map_err(error)?;
        let managed = tls.acme.as_ref().map(|acme| Managed {
            file: acme.certificate_file(),
            domains: acme.domains.clone(),
            challenges: Arc::default(),
            unwritten: Arc::default(),
        });
        TlsServer::load(TlsConfig { managed, ..tls.config()? }).map(drop).map_err(error)
    }

    /// Reads the files, if there is TLS.
    pub(crate) fn load(&self, shards: usize) -> Result<Security> {
        let Some(tls) = &self.0 else {
            return Ok(Security::default());
        };
        let config = tls.config()?;
        let issuer = Issuer::open(tls.acme.clone()).map_err(error)?;
        let managed = issuer.managed();
        let challenges = managed.as_ref().map(|managed| Arc::clone(&managed.challenges));
        let is_host_bound = config.client_auth.is_some();
        let (plain, hsts) = (tls.plain, tls.hsts.clone());
        let policy = HttpsPolicy { plain, hsts, is_host_bound };
        let server = TlsServer::load(TlsConfig { managed, ..config }).map_err(error)?;
        let is_http_01 = tls.acme.as_ref().is_some_and(|it| it.challenge == Challenge::Http01);
        server.accept_plain(plain != PlainHttp::Refuse || is_http_01);
        let per_second = tls.handshakes_per_second.div_ceil(shards.max(1) as u32);
        let limits = HandshakeLimits { per_second, ..HandshakeLimits::default() };
        Ok(Security {
            server: Some(server),
            limits,
            policy,
            after_header: false,
            challenges,
            issuer,
        })
    }
}

/// Keys of session tickets that a process has drawn, for a process that replaces it.
///
/// They decrypt the sessions that clients resume, so they are secrets: their memory is wiped when
/// they are dropped.
#[derive(Clone, Debug, Default)]
pub struct TicketKeys(Secret);

impl TicketKeys {
    /// Creates them from the bytes that [`TicketKeys::as_bytes`] has returned in this or another
    /// process. Other bytes are ignored when they are used.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// Returns the keys as bytes. A copy of them is not wiped.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The TLS of a server's listeners.
#[derive(Clone, Debug, Default)]
pub(crate) struct Security {
    server: Option<Arc<TlsServer>>,
    /// Limits of each event loop.
    limits: HandshakeLimits,
    policy: HttpsPolicy,
    /// Whether a PROXY header comes before the handshake.
    after_header: bool,
    /// Certificates that an authority issues, if one does.
    challenges: Option<Arc<Challenges>>,
    issuer: Issuer,
}

impl Security {
    /// Secures connections after their PROXY header, instead of from their first byte on.
    pub(crate) fn after_proxy_header(self) -> Self {
        Self { after_header: true, ..self }
    }

    /// Reports handshakes that fail, and certificates that are issued.
    pub(crate) fn reporting_to(mut self, events: Events) -> Self {
        self.issuer.report_to(events.clone());
        if let Some(server) = &self.server {
            server.on_failure(move |client, why| {
                let subject = Subject { client, ..Subject::default() };
                events.report(ServerEvent::TlsRefused { subject, reason: &why.to_string() });
            });
        }
        self
    }

    /// Returns what follows a PROXY header.
    pub(crate) fn proxy_protocol(&self) -> ProxyProtocol {
        ProxyProtocol { tls: self.server.clone().map(|server| server as ServerTls) }
    }

    /// Returns the keys of session tickets, for a successor.
    pub(crate) fn ticket_keys(&self) -> TicketKeys {
        TicketKeys(self.server.as_ref().map(|server| server.ticket_keys()).unwrap_or_default())
    }

    /// Uses the keys of a predecessor for session tickets.
    pub(crate) fn take_ticket_keys(&self, keys: &TicketKeys) {
        if let Some(server) = &self.server {
            server.take_ticket_keys(keys.as_bytes());
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.server.is_some()
    }

    /// Returns the answer to an authority that validates a domain by a request without TLS.
    pub(crate) fn answer_challenge(&self, request: &http1::Request<'_>) -> Option<Response> {
        let key_authorization = self.challenges.as_ref()?.http_01(request.path())?;
        Some(key_authorization.into_string().into_bytes().into_response())
    }

    /// Starts the client of the authority that issues a certificate, if one does.
    #[cfg(feature = "acme")]
    pub(crate) fn start_issuer(&self) -> Result<Option<throng_acme::AcmeClient>> {
        self.issuer.start(self.server.as_ref())
    }

    /// Returns the answer to a request that is refused because of its connection.
    pub(crate) fn refusal(
        &self,
        cx: &Cx<'_>,
        request: &http1::Request<'_>,
        trusted_proxies: &[Network],
    ) -> Option<Response> {
        self.server.as_ref()?;
        let tls = cx.tls();
        let server_name = tls.and_then(|tls| tls.server_name.as_deref());
        self.policy.refusal(request, tls.is_some(), server_name, || {
            let peer = cx.peer().map(|peer| peer.ip());
            trusted_proxies.iter().any(|network| network.includes(peer))
        })
    }

    /// Returns the value of Strict-Transport-Security for responses on a connection.
    pub(crate) fn hsts(&self, cx: &Cx<'_>) -> Option<&str> {
        let value = self.policy.hsts.as_deref()?;
        cx.tls().map(|_| value)
    }

    /// Writes the metrics of handshakes and certificates.
    #[cfg(feature = "metrics")]
    pub(crate) fn write(&self, writer: &mut Writer) {
        if let Some(server) = &self.server {
            let (handshakes, sessions) = (server.stats(), server.session_stats());
            write(writer, &handshakes, &sessions, server.orders(), &self.certificates());
        }
    }

    /// Writes the same metrics for a server without handshakes and certificates.
    #[cfg(feature = "metrics")]
    pub(crate) fn write_idle(writer: &mut Writer) {
        let (handshakes, sessions, orders) = Default::default();
        write(writer, &handshakes, &sessions, orders, &[]);
    }

    /// Returns the certificates: the name of each, and its expiry in seconds since 1970.
    pub(crate) fn certificates(&self) -> Vec<(String, i64)> {
        let served = self.server.iter().flat_map(|server| server.certificates());
        served.map(|it| (it.name, it.expires)).collect()
    }

    pub(crate) fn reload(&self) -> Result<()> {
        self.server.as_ref().map_or(Ok(()), |server| server.reload().map_err(error))
    }

    pub(crate) fn reload_if_changed(&self) -> Result<bool> {
        self.server.as_ref().map_or(Ok(false), |server| server.reload_if_changed().map_err(error))
    }
}

#[cfg(feature = "metrics")]
fn write(
    writer: &mut Writer,
    stats: &throng_tls::HandshakeStats,
    sessions: &throng_tls::SessionStats,
    orders: throng_tls::OrderStats,
    certificates: &[(String, i64)],
) {
    let help = "TLS handshakes of clients that were completed";
    let mut metric = writer.metric("tls_handshakes", help, Type::Counter);
    for (kind, count) in [("full", stats.full), ("resumed", stats.resumed)] {
        metric.sample(&[("kind", kind)], count);
    }
    let help = "TLS handshakes of clients that failed, by cause";
    let mut metric = writer.metric("tls_handshake_failures", help, Type::Counter);
    for (cause, count) in throng_io::TlsFailure::LABELS.into_iter().zip(stats.failed) {
        metric.sample(&[("cause", cause)], count);
    }
    let help = "TLS sessions of clients that failed after their handshake, by cause";
    let mut metric = writer.metric("tls_session_failures", help, Type::Counter);
    for (cause, count) in throng_io::SessionFailure::LABELS.into_iter().zip(sessions.failed) {
        metric.sample(&[("cause", cause)], count);
    }
    let help = "Certificates ordered from an authority (ACME)";
    let mut metric = writer.metric("tls_certificate_orders", help, Type::Counter);
    for (outcome, count) in [("issued", orders.issued), ("failed", orders.failed)] {
        metric.sample(&[("outcome", outcome)], count);
    }
    let help = "When a certificate expires, in seconds since 1970";
    let mut metric = writer.metric("tls_certificate_expiry_seconds", help, Type::Gauge);
    for (at, (name, expires)) in certificates.iter().enumerate() {
        // An EC and an RSA certificate may share a name.
        if certificates[..at].iter().all(|(earlier, _)| earlier != name) {
            metric.sample(&[("name", name)], u64::try_from(*expires).unwrap_or(0));
        }
    }
}

fn error(error: throng_tls::ConfigError) -> Error {
    let may_pass = error.may_pass;
    SettingError::new("tls", format!("tls: {error}")).passing_if(may_pass).into()
}

/// A driver whose listeners may have TLS.
pub(crate) type Secured<D> = throng_tls::Tls<D>;

pub(crate) fn wrap<D: Driver>(driver: D) -> Secured<D> {
    Secured::new(driver)
}

/// Adds a listener, with TLS if the server has it.
pub(crate) fn listen<D: Driver>(
    driver: &mut Secured<D>,
    security: &Security,
    add: impl FnOnce(&mut D) -> std::io::Result<ListenerId>,
) -> std::io::Result<()> {
    let listener = add(driver.inner())?;
    if let Some(server) = &security.server {
        if !security.after_header {
            driver.secure(listener, Arc::clone(server));
        }
        driver.limit_handshakes(security.limits);
    }
    Ok(())
}
