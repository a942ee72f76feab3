//! TLS in a run: a fixed certificate, and the configurations of all ends.
//!
//! A seed repeats the run, including its trace, except for the bytes of the records, which are
//! random. Their length does not vary: the key is an Ed25519 key, whose signatures have a fixed
//! length. Each run has new configurations, so that it resumes no session of another run.

use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
    version,
};
use throng_tls::{ClientConfigs, ClientSettings, Tls, TlsClient, TlsServer, Trust};

use crate::driver::SimDriver;
use crate::rng::Rng;

/// The name that the certificate is for.
const NAME: &str = "localhost";

/// PKCS#8 (RFC 8410 section 7) before the 32 bytes of a private key of Ed25519.
const KEY_PREFIX: [u8; 16] = [48, 46, 2, 1, 0, 48, 5, 6, 3, 43, 101, 112, 4, 34, 4, 32];

/// Hops of a run that have TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hops {
    /// From the clients to the first server, which may be a balancer.
    pub front: bool,
    /// Whether connections from a balancer to the servers use TLS.
    pub back: bool,
}

impl Hops {
    /// At least one, as the seed decides.
    #[must_use]
    pub fn of(rng: &mut Rng) -> Self {
        match rng.below(3) {
            0 => Self { front: true, back: false },
            1 => Self { front: false, back: true },
            _ => Self { front: true, back: true },
        }
    }

    /// Returns whether any hop uses TLS.
    #[must_use]
    pub fn any(self) -> bool {
        self.front || self.back
    }

    /// Returns the maximum bytes received at once, if the drivers below read this many: a record in
    /// pieces is received whole.
    #[must_use]
    pub fn most_received(self, read: usize) -> usize {
        const RECORD: usize = 16 << 10;
        if self.any() { read.max(RECORD) } else { read }
    }
}

/// Returns whether a wait of the driver would return at once.
#[must_use]
pub fn is_ready(driver: &Tls<SimDriver>) -> bool {
    driver.is_busy() || driver.driver().is_ready()
}

/// The configurations of a run.
#[derive(Clone, Debug)]
pub struct Configurations {
    clients: [Arc<ClientConfig>; 3],
    servers: [Arc<ServerConfig>; 3],
    /// The configuration of the drivers' listeners.
    pub listeners: Arc<TlsServer>,
    /// The configuration of connections that drivers start.
    pub connects: Arc<TlsClient>,
}

impl Configurations {
    /// Creates new configurations without sessions to resume.
    ///
    /// # Panics
    /// Never, because the certificate is valid.
    #[must_use]
    pub fn new() -> Self {
        let settings = ClientSettings { trust: Trust::Anyone, ..ClientSettings::default() };
        let configs = ClientConfigs::load(settings).expect("no file is read");
        Self {
            clients: [Kind::Both, Kind::Short, Kind::Tls12].map(|kind| Arc::new(client(kind))),
            servers: [Kind::Both, Kind::Short, Kind::Tls12].map(|kind| Arc::new(server(kind))),
            listeners: TlsServer::new(server(Kind::Both)),
            connects: TlsClient::new(&configs, NAME).expect("it is a name"),
        }
    }

    /// A client's end of a link.
    ///
    /// # Panics
    /// Never: the configuration can be used.
    #[must_use]
    pub fn client(&self, rng: &mut Rng) -> Connection {
        let config = Arc::clone(&self.clients[rng.below(self.clients.len())]);
        let name = ServerName::try_from(NAME).expect("it is a name");
        ClientConnection::new(config, name).expect("the configuration is usable").into()
    }

    /// A server's end of a link.
    ///
    /// # Panics
    /// Never: the configuration can be used.
    #[must_use]
    pub fn server(&self, rng: &mut Rng) -> Connection {
        let config = Arc::clone(&self.servers[rng.below(self.servers.len())]);
        ServerConnection::new(config).expect("the configuration is usable").into()
    }
}

impl Default for Configurations {
    fn default() -> Self {
        Self::new()
    }
}

/// Handshakes of an end.
#[derive(Clone, Copy)]
enum Kind {
    /// TLS 1.3, or 1.2 if the other end supports no higher version.
    Both,
    /// Both without ML-KEM, whose messages are long.
    Short,
    Tls12,
}

impl Kind {
    fn provider(self) -> Arc<CryptoProvider> {
        let mut provider = aws_lc_rs::default_provider();
        if !matches!(self, Self::Both) {
            provider.kx_groups = vec![aws_lc_rs::kx_group::X25519];
        }
        Arc::new(provider)
    }

    fn versions(self) -> &'static [&'static rustls::SupportedProtocolVersion] {
        const TLS12: &[&rustls::SupportedProtocolVersion] = &[&version::TLS12];
        match self {
            Self::Both | Self::Short => rustls::ALL_VERSIONS,
            Self::Tls12 => TLS12,
        }
    }
}

/// A certificate and its key.
struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

static IDENTITY: LazyLock<Identity> = LazyLock::new(|| {
    let key = PrivatePkcs8KeyDer::from([&KEY_PREFIX[..], &[7; 32]].concat());
    let pair = rcgen::KeyPair::try_from(&key).expect("it is a key");
    let params = rcgen::CertificateParams::new(vec![NAME.to_owned()]).expect("it is a name");
    let certificate = params.self_signed(&pair).expect("it signs").der().clone();
    Identity { certificate, key }
});

fn client(kind: Kind) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(IDENTITY.certificate.clone()).expect("it is a certificate");
    ClientConfig::builder_with_provider(kind.provider())
        .with_protocol_versions(kind.versions())
        .expect("it has suites for them")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

fn server(kind: Kind) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(kind.provider())
        .with_protocol_versions(kind.versions())
        .expect("it has suites for them")
        .with_no_client_auth()
        .with_single_cert(
            vec![IDENTITY.certificate.clone()],
            PrivateKeyDer::Pkcs8(IDENTITY.key.clone_key()),
        )
        .expect("the key is that of the certificate");
    config.ticketer = aws_lc_rs::Ticketer::new().expect("there is randomness");
    config
}
