//! The configuration of connections that we start.

use std::any::Any;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, ConfigBuilder, DigitallySignedStruct, Error,
    RootCertStore, SignatureScheme, StreamOwned, WantsVerifier, version,
};
use throng_io::{ClientTls, TlsFailure};

use crate::chain::ChainLimit;
use crate::config::{
    CertificateFiles, ConfigError, HTTP_1_1, certified_key, preferring_aes128, without_file,
};
use crate::files::read_authorities;
use crate::handshake::{Failed, Handshake, prepare_client};
use crate::timed::TimedSocket;
use crate::watch::{self, Stamps, Watch};

/// The authorities whose certificates a client accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The authorities that the system trusts.
    #[default]
    System,
    /// The authorities in a file, in PEM.
    File(PathBuf),
    /// Accepts any certificate: for tests.
    Anyone,
}

/// The settings of connections that we start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientSettings {
    /// Whose certificates are accepted.
    pub trust: Trust,
    /// The client's own certificate, for servers that ask for one.
    pub certificate: Option<CertificateFiles>,
    /// Whether TLS 1.3 is disabled.
    pub only_tls12: bool,
    /// Whether sessions are resumed. The server's certificate is not verified again when a session
    /// is resumed.
    pub resumes: bool,
    /// Whether ALPN is omitted, for servers that do not speak HTTP.
    pub without_alpn: bool,
}

/// A configuration that connections to several servers share. It can be replaced at any time;
/// handshakes that begin later use the new one.
pub struct ClientConfigs {
    settings: ClientSettings,
    current: RwLock<Current>,
    watch: Watch,
}

/// A configuration in two forms: for connections of a driver, and for blocking ones of rustls.
struct Current {
    driver: Arc<ClientConfig>,
    blocking: Arc<ClientConfig>,
}

impl ClientConfigs {
    /// Reads the files of the settings.
    ///
    /// # Errors
    /// A file cannot be read, has other contents than expected, or does not match the other file.
    pub fn load(settings: ClientSettings) -> Result<Arc<Self>, ConfigError> {
        let watch = Watch::new(settings.stamps());
        let current = RwLock::new(settings.load()?);
        Ok(Arc::new(Self { settings, current, watch }))
    }

    /// Reads the files again.
    ///
    /// # Errors
    /// As for [`ClientConfigs::load`]; the configuration stays as it is.
    pub fn reload(&self) -> Result<(), ConfigError> {
        self.watch.note(self.settings.stamps());
        self.read()
    }

    fn read(&self) -> Result<(), ConfigError> {
        let config = self.settings.load()?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// [Reloads](Self::reload) if a file has changed since the last read. Returns whether new files
    /// are in use. Call it about once a second. The second call that finds a mistake reports it,
    /// because files are replaced one after the other.
    ///
    /// # Errors
    /// As for [`ClientConfigs::load`]; the configuration stays as it is until a file changes again.
    pub fn reload_if_changed(&self) -> Result<bool, ConfigError> {
        self.watch.read_if_changed(self.settings.stamps(), SystemTime::now(), || self.read())
    }
}

impl ClientSettings {
    /// Returns the stamps of the configuration's files.
    fn stamps(&self) -> Stamps {
        let authorities = match &self.trust {
            Trust::File(file) => Some(file),
            Trust::System | Trust::Anyone => None,
        };
        let own = self.certificate.iter().flat_map(|files| [&files.chain, &files.key]);
        watch::stamps(authorities.into_iter().chain(own).map(PathBuf::as_path))
    }

    fn load(&self) -> Result<Current, ConfigError> {
        let provider = Arc::new(preferring_aes128());
        let versions = match self.only_tls12 {
            true => &[&version::TLS12][..],
            false => &[&version::TLS13, &version::TLS12],
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(without_file)?;
        let builder = match &self.trust {
            Trust::Anyone => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
            Trust::System => trusting(builder, system_roots()?, provider)?,
            Trust::File(file) => {
                let mut roots = RootCertStore::empty();
                for certificate in read_authorities(file)? {
                    roots.add(certificate).map_err(|error| {
                        let what = format!("a certificate cannot be used: {error}");
                        ConfigError::new(file, what)
                    })?;
                }
                trusting(builder, roots, provider)?
            }
        };
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some(files) => {
                let certified = Arc::new(SingleCertAndKey::from(certified_key(files)?.key));
                builder.with_client_cert_resolver(certified)
            }
        };
        if !self.without_alpn {
            config.alpn_protocols = vec![HTTP_1_1.to_vec()];
        }
        if !self.resumes {
            config.resumption = Resumption::disabled();
        }
        let blocking = Arc::new(config.clone());
        prepare_client(&mut config);
        Ok(Current { driver: Arc::new(config), blocking })
    }
}

/// Verifies the certificates of servers against these authorities.
fn trusting(
    builder: ConfigBuilder<ClientConfig, WantsVerifier>,
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, ConfigError> {
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| ConfigError::without_file(error.to_string()))?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(ChainLimit(verifier))))
}

/// Returns the authorities that the system trusts.
fn system_roots() -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(ConfigError::without_file(format!(
            "the system has no certificates of authorities{why}; install them (ca-certificates), \
             or name a file with those to trust"
        )));
    }
    Ok(roots)
}

fn server_name(name: &str) -> Result<ServerName<'static>, ConfigError> {
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    ServerName::try_from(name.to_owned()).map_err(|_| {
        ConfigError::without_file(format!(
            "{name:?} is neither a host name nor an IP address; write one such as app.example.com, \
             without scheme and port, and with no empty label between dots"
        ))
    })
}

/// The configuration of connections to one server.
pub struct TlsClient {
    configs: Arc<ClientConfigs>,
    name: ServerName<'static>,
}

impl TlsClient {
    /// Returns the configuration for the server with that host name or address, which must be in
    /// its certificate.
    ///
    /// # Errors
    /// `name` is neither a host name nor an address.
    pub fn new(configs: &Arc<ClientConfigs>, name: &str) -> Result<Arc<Self>, ConfigError> {
        let name = server_name(name)?;
        Ok(Arc::new(Self { configs: Arc::clone(configs), name }))
    }

    /// Checks a name for [`TlsClient::new`].
    ///
    /// # Errors
    /// `name` is neither a host name nor an address.
    pub fn check_name(name: &str) -> Result<(), ConfigError> {
        server_name(name).map(drop)
    }

    /// Returns the configuration for the server at that address, which must be in its certificate.
    #[must_use]
    pub fn of_address(configs: &Arc<ClientConfigs>, address: IpAddr) -> Arc<Self> {
        let name = ServerName::IpAddress(address.to_canonical().into());
        Arc::new(Self { configs: Arc::clone(configs), name })
    }

    /// Returns the configuration in the form that drivers take.
    #[must_use]
    pub fn for_driver(self: &Arc<Self>) -> ClientTls {
        Arc::clone(self) as Arc<dyn Any + Send + Sync>
    }

    /// Begins a handshake.
    ///
    /// # Errors
    /// The configuration is not usable.
    pub(crate) fn handshake(&self) -> Result<Handshake, Failed> {
        let current = self.configs.current.read().unwrap_or_else(PoisonError::into_inner);
        Handshake::connect(Arc::clone(&current.driver), self.name.clone())
    }

    /// Returns the configuration for connections that rustls alone secures.
    #[must_use]
    pub fn blocking_config(&self) -> Arc<ClientConfig> {
        let current = self.configs.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current.blocking)
    }

    /// Secures a connected blocking socket. Its timeouts limit the handshake as a whole, and then
    /// each read and write of the stream as a whole, even if one needs many operations of the
    /// socket.
    ///
    /// # Errors
    /// An error of the socket, or of kind `InvalidData` with [`Failed`] inside if the handshake
    /// failed.
    pub fn handshake_on(&self, socket: TcpStream) -> io::Result<TlsStream> {
        let config = self.blocking_config();
        let failed = |error| io::Error::new(io::ErrorKind::InvalidData, Failed(error));
        let connection = ClientConnection::new(config, self.name.clone()).map_err(failed)?;
        let mut stream = StreamOwned::new(connection, TimedSocket::new(socket)?);
        while stream.conn.is_handshaking() {
            match stream.conn.complete_io(&mut stream.sock) {
                Ok(_) => {}
                Err(error) => {
                    let kind = error.kind();
                    let ours = error.downcast::<Error>();
                    return Err(match ours {
                        Ok(error) => failed(error),
                        Err(error) if kind == io::ErrorKind::UnexpectedEof => {
                            io::Error::new(kind, format!("{} ({error})", TlsFailure::Ended))
                        }
                        Err(error) => error,
                    });
                }
            }
        }
        Ok(TlsStream(stream))
    }
}

#[cfg(feature = "tokio")]
impl TlsClient {
    /// Secures a connected socket of tokio.
    ///
    /// # Errors
    /// As for [`TlsClient::handshake_on`].
    pub async fn handshake_async<S>(
        &self,
        socket: S,
    ) -> io::Result<tokio_rustls::client::TlsStream<S>>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        let connector = tokio_rustls::TlsConnector::from(self.blocking_config());
        connector.connect(self.name.clone(), socket).await
    }
}

/// Returns whether a stream failed because the server has refused the client's certificate, or a
/// client without one. In TLS 1.3 the server reports it after the client's handshake is complete.
#[must_use]
pub fn is_certificate_refused(error: &io::Error) -> bool {
    failure_of(error).is_some_and(TlsFailure::refuses_certificate)
}

/// Returns whether a stream failed because the server requires a certificate of its clients, which
/// this one has not sent: `certificate_required` ([RFC 8446 section
/// 6.2](https://www.rfc-editor.org/rfc/rfc8446#section-6.2)). Other alerts have further causes.
#[must_use]
pub fn is_certificate_required(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|inner| match inner.downcast_ref::<Failed>() {
        Some(Failed(cause)) => Some(cause),
        None => inner.downcast_ref::<Error>(),
    });
    matches!(cause, Some(Error::AlertReceived(AlertDescription::CertificateRequired)))
}

/// Returns why the handshake or the session of a stream failed, if TLS is the cause.
#[must_use]
pub fn failure_of(error: &io::Error) -> Option<TlsFailure> {
    let inner = error.get_ref()?.downcast_ref::<Error>()?;
    Some(Failed(inner.clone()).kind())
}

/// A blocking socket that only rustls secures: for few connections, such as health checks.
pub struct TlsStream(StreamOwned<ClientConnection, TimedSocket>);

impl TlsStream {
    /// Sets the time limit of each read; `None` sets no limit.
    ///
    /// # Errors
    /// An error of the socket, or a limit of 0.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.sock.limit_reads(timeout)
    }

    /// Sets the time limit of each write; `None` sets no limit.
    ///
    /// # Errors
    /// An error of the socket, or a limit of 0.
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.sock.limit_writes(timeout)
    }

    /// Returns the alert that the server has sent before it closed the connection; `error` if there
    /// is none. Before each read, rustls writes its pending records, and fails at that.
    fn alert_before(&mut self, error: io::Error) -> io::Error {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, InvalidData};
        if !matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset) {
            return error;
        }
        let StreamOwned { conn, sock } = &mut self.0;
        while matches!(conn.read_tls(sock), Ok(1..)) {
            if let Err(alert) = conn.process_new_packets() {
                return io::Error::new(InvalidData, alert);
            }
        }
        error
    }
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.sock.begin();
        self.0.read(buffer).map_err(|error| self.alert_before(error))
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.sock.begin();
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.sock.begin();
        self.0.flush()
    }
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsStream").field(&self.0.sock).finish()
    }
}

impl fmt::Debug for ClientConfigs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientConfigs").field(&self.settings).finish()
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsClient").field(&self.name).finish()
    }
}

/// Accepts every certificate. Signatures are still verified: they prove that the server has the
/// key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
