//! A rustls client in memory, as the far end of the sessions under test.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, SupportedCipherSuite,
    SupportedProtocolVersion,
};
use throng_io::TlsInfo;
use throng_testkit::TempFolder;
use throng_tls::handshake::{Handshake, Progress, Secrets, prepare};
use throng_tls::{Messages, Session, WarmKeys};

/// A certificate authority and a server's certificate for `localhost` and `127.0.0.1`.
struct Identity {
    roots: RootCertStore,
    chain: Vec<rustls::pki_types::CertificateDer<'static>>,
    pem: String,
    key: Vec<u8>,
}

static IDENTITY: LazyLock<Identity> = LazyLock::new(|| {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let chain = vec![made.cert.der().clone()];
    let pem = made.cert.pem();
    Identity { roots, chain, pem, key: made.signing_key.serialize_der() }
});

/// A folder with a file of certificates to trust.
pub(crate) struct TrustFolder(TempFolder);

impl TrustFolder {
    /// Creates the file with this certificate.
    fn with(name: &str, pem: &str) -> Self {
        let folder = temporary(name);
        folder.write("certificate.pem", pem);
        Self(folder)
    }

    /// Creates the file with the certificate of the servers.
    pub(crate) fn of_servers() -> Self {
        Self::with("own", &IDENTITY.pem)
    }

    /// Creates the file with a certificate of the same names that no server uses.
    pub(crate) fn of_others() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        Self::with("other", &made.cert.pem())
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("certificate.pem")
    }
}

/// Every suite for the server's certificate, which has an EC key.
pub(crate) fn suites() -> Vec<SupportedCipherSuite> {
    let is_usable = |suite: &SupportedCipherSuite| match suite {
        SupportedCipherSuite::Tls12(suite) => format!("{suite:?}").contains("ECDSA"),
        SupportedCipherSuite::Tls13(_) => true,
    };
    let suites: Vec<_> = aws_lc_rs::ALL_CIPHER_SUITES.iter().copied().filter(is_usable).collect();
    assert_eq!(suites.len(), 6, "{suites:?}");
    suites
}

fn provider(suite: Option<SupportedCipherSuite>) -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    if let Some(suite) = suite {
        provider.cipher_suites = vec![suite];
    }
    Arc::new(provider)
}

/// A configuration that is prepared for our handshakes.
pub(crate) fn server_config(suite: Option<SupportedCipherSuite>) -> ServerConfig {
    let mut config = raw_server_config(suite);
    prepare(&mut config);
    config
}

/// A configuration as a user would make it: with one suite, or with all.
pub(crate) fn raw_server_config(suite: Option<SupportedCipherSuite>) -> ServerConfig {
    let key = PrivateKeyDer::try_from(IDENTITY.key.clone()).unwrap();
    // A version without a suite would be agreed on nevertheless.
    let versions = match suite {
        None => rustls::ALL_VERSIONS,
        Some(SupportedCipherSuite::Tls12(_)) => &[&rustls::version::TLS12],
        Some(SupportedCipherSuite::Tls13(_)) => &[&rustls::version::TLS13],
    };
    let mut config = ServerConfig::builder_with_provider(provider(suite))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(IDENTITY.chain.clone(), key)
        .unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.ticketer = aws_lc_rs::Ticketer::new().unwrap();
    config
}

/// Returns the authorities that issued the server's certificate.
pub(crate) fn roots() -> RootCertStore {
    IDENTITY.roots.clone()
}

/// The versions of TLS, for clients that offer only one.
pub(crate) const VERSIONS: [&SupportedProtocolVersion; 2] =
    [&rustls::version::TLS13, &rustls::version::TLS12];

/// A client's configuration that trusts the server's certificate.
pub(crate) fn client_config() -> ClientConfig {
    client_config_of(rustls::ALL_VERSIONS)
}

/// A client's configuration that trusts the server's certificate and offers these versions.
pub(crate) fn client_config_of(versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
    ClientConfig::builder_with_provider(provider(None))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots())
        .with_no_client_auth()
}

pub(crate) fn client(config: ClientConfig) -> ClientConnection {
    let name = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(Arc::new(config), name).unwrap()
}

/// Returns the client's pending output.
pub(crate) fn said(client: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    bytes
}

/// Passes bytes to the client; returns the data in them, or the error that ends the session.
pub(crate) fn hear(
    client: &mut ClientConnection,
    mut bytes: &[u8],
) -> Result<Vec<u8>, rustls::Error> {
    let mut data = Vec::new();
    while !bytes.is_empty() {
        client.read_tls(&mut bytes).unwrap();
        client.process_new_packets()?;
        // The end of the stream is not an error here.
        let _ = client.reader().read_to_end(&mut data);
    }
    Ok(data)
}

/// Our session, and the rustls client at its other end.
pub(crate) struct Pair {
    pub(crate) client: ClientConnection,
    pub(crate) session: Session,
    pub(crate) info: TlsInfo,
    /// Input that came together with the end of the handshake.
    pub(crate) early: Vec<u8>,
}

impl Pair {
    pub(crate) fn of(suite: SupportedCipherSuite) -> Self {
        Self::new(client(client_config()), &Arc::new(server_config(Some(suite))), b"")
    }

    /// Does the handshake; the client sends `first` right after it.
    pub(crate) fn new(
        mut client: ClientConnection,
        config: &Arc<ServerConfig>,
        first: &[u8],
    ) -> Self {
        let mut handshake = Handshake::new(Arc::clone(config)).unwrap();
        let mut secrets = Secrets::default();
        client.writer().write_all(first).unwrap();
        let mut out = Vec::new();
        let mut progress = Progress::NeedsInput;
        while progress == Progress::NeedsInput {
            handshake.receive(&said(&mut client)).unwrap();
            progress = handshake.advance(&mut secrets, &mut out).unwrap();
            hear(&mut client, &std::mem::take(&mut out)).unwrap();
        }
        let (session, info, early) = handshake.take_session(&secrets).unwrap();
        Self { client, session, info, early }
    }

    /// Sends data from the client; returns what our side receives.
    pub(crate) fn client_sends(&mut self, data: &[u8]) -> Vec<u8> {
        self.client.writer().write_all(data).unwrap();
        self.deliver()
    }

    /// Delivers all output of the client, and our replies; returns the data.
    pub(crate) fn deliver(&mut self) -> Vec<u8> {
        let mut input = std::mem::take(&mut self.early);
        input.extend(said(&mut self.client));
        let opened =
            self.session.open(&mut input, &mut WarmKeys::default(), &mut Messages::default());
        assert_eq!((opened.end, opened.consumed), (None, input.len()));
        let mut out = Vec::new();
        self.session.seal_reply(&mut out).unwrap();
        assert_eq!(opened.has_reply, !out.is_empty());
        hear(&mut self.client, &out).unwrap();
        input[opened.data].to_vec()
    }

    /// Sends pieces of data from our side; returns what the client receives.
    pub(crate) fn server_sends(&mut self, pieces: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        self.session.seal(pieces.iter().copied(), &mut WarmKeys::default(), &mut out).unwrap();
        hear(&mut self.client, &out).unwrap()
    }
}

/// Returns a new folder for temporary files.
pub(crate) fn temporary(name: &str) -> TempFolder {
    TempFolder::new(&format!("tls-{name}"))
}

/// Returns the first certificate of a PEM file.
pub(crate) fn first_der(pem: &[u8]) -> Vec<u8> {
    use rustls::pki_types::pem::PemObject;
    rustls::pki_types::CertificateDer::from_pem_slice(pem).unwrap().to_vec()
}

/// Accepts any presented certificate.
#[derive(Debug)]
struct AcceptAll;

impl rustls::client::danger::ServerCertVerifier for AcceptAll {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        provider(None).signature_verification_algorithms.supported_schemes()
    }
}

/// A client of these versions without a certificate, which accepts any certificate of a server.
pub(crate) fn without_certificate(versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
    ClientConfig::builder_with_provider(provider(None))
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAll))
        .with_no_client_auth()
}

/// Does a handshake with a server's configuration; the client accepts any certificate.
fn handshake(
    server: &throng_tls::TlsServer,
    name: Option<&str>,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ClientConnection, String> {
    handshake_with(provider(None), server, name, versions)
}

fn handshake_with(
    provider: Arc<CryptoProvider>,
    server: &throng_tls::TlsServer,
    name: Option<&str>,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ClientConnection, String> {
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAll))
        .with_no_client_auth();
    config.enable_sni = name.is_some();
    let name = ServerName::try_from(name.unwrap_or("localhost").to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut handshake = server.handshake().unwrap();
    let (mut secrets, mut out) = (Secrets::default(), Vec::new());
    while client.is_handshaking() {
        handshake.receive(&said(&mut client)).unwrap();
        let outcome = handshake.advance(&mut secrets, &mut out);
        hear(&mut client, &std::mem::take(&mut out)).map_err(|error| error.to_string())?;
        outcome.map_err(|error| error.to_string())?;
    }
    Ok(client)
}

/// Returns the certificate that is presented to a client which asks for `name`.
pub(crate) fn presented(server: &throng_tls::TlsServer, name: Option<&str>) -> Vec<u8> {
    let client = handshake(server, name, rustls::ALL_VERSIONS).unwrap();
    client.peer_certificates().unwrap()[0].to_vec()
}

/// Returns the certificate that is presented to a TLS 1.2 client with only that suite.
pub(crate) fn presented_for(
    server: &throng_tls::TlsServer,
    suite: SupportedCipherSuite,
) -> Result<Vec<u8>, String> {
    let versions = [&rustls::version::TLS12];
    let client = handshake_with(provider(Some(suite)), server, Some("localhost"), &versions)?;
    Ok(client.peer_certificates().unwrap()[0].to_vec())
}

/// Returns whether a client is accepted that has no version after TLS 1.2.
pub(crate) fn accepts_tls12(server: &throng_tls::TlsServer) -> bool {
    handshake(server, None, &[&rustls::version::TLS12]).is_ok()
}

/// Returns the suite that the server agrees to with a client that prefers AES-256.
pub(crate) fn agreed_suite(
    server: &throng_tls::TlsServer,
    version: &'static SupportedProtocolVersion,
) -> rustls::CipherSuite {
    let client = handshake(server, None, &[version]).unwrap();
    client.negotiated_cipher_suite().unwrap().suite()
}

/// A client's configuration that shows a certificate, and accepts any certificate of a server.
pub(crate) fn with_certificate(identity: &rcgen::CertifiedKey<rcgen::KeyPair>) -> ClientConfig {
    with_chain(identity, &[])
}

/// A client that shows a certificate and sends others with it.
pub(crate) fn with_chain(
    identity: &rcgen::CertifiedKey<rcgen::KeyPair>,
    others: &[rustls::pki_types::CertificateDer<'static>],
) -> ClientConfig {
    of_versions(identity, others, rustls::ALL_VERSIONS)
}

/// A client of these versions that shows a certificate.
pub(crate) fn with_certificate_for(
    identity: &rcgen::CertifiedKey<rcgen::KeyPair>,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    of_versions(identity, &[], versions)
}

fn of_versions(
    identity: &rcgen::CertifiedKey<rcgen::KeyPair>,
    others: &[rustls::pki_types::CertificateDer<'static>],
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let chain = [&[identity.cert.der().clone()], others].concat();
    let key = PrivateKeyDer::try_from(identity.signing_key.serialize_der()).unwrap();
    ClientConfig::builder_with_provider(provider(None))
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAll))
        .with_client_auth_cert(chain, key)
        .unwrap()
}

/// Connects a client; returns whether it has resumed a session, if it is accepted.
pub(crate) fn resumes(
    server: &throng_tls::TlsServer,
    config: &ClientConfig,
) -> Result<bool, String> {
    let mut client = client(config.clone());
    let mut handshake = server.handshake().unwrap();
    let mut secrets = Secrets::default();
    let (mut out, mut progress) = (Vec::new(), Progress::NeedsInput);
    while progress == Progress::NeedsInput {
        handshake.receive(&said(&mut client)).unwrap();
        progress = handshake.advance(&mut secrets, &mut out).map_err(|error| error.to_string())?;
        // The tickets come with the last data.
        hear(&mut client, &std::mem::take(&mut out)).map_err(|error| error.to_string())?;
    }
    let (_, info, _) = handshake.take_session(&secrets).unwrap();
    Ok(info.is_resumed)
}
