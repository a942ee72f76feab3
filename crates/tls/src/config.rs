//! The configuration of a server, read from files: certificates, keys, versions.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use ::aws_lc_rs::digest::{self, Digest, SHA256};
use ::aws_lc_rs::error::Unspecified;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{
    CipherSuite, InconsistentKeys, RootCertStore, ServerConfig, SignatureAlgorithm, version,
};
use throng_carry::Secret;
use throng_proto::pem::Wanted;
use x509_parser::certificate::X509Certificate;
use x509_parser::public_key::PublicKey;
use x509_parser::time::ASN1Time;
use x509_parser::x509::X509Version;

use crate::chain::ChainLimit;
use crate::challenges::{ACME_TLS_1, Challenges, is_validation};
use crate::cipher::Version;
pub use crate::error::ConfigError;
pub(crate) use crate::error::without_file;
use crate::files::{self, Chain, exists, read_authorities, read_revoked};
use crate::handshake::prepare;
use crate::own_tickets::OwnTicketer;
use crate::passthrough::{Passthrough, canonical};
use crate::policies::Policies;
use crate::tickets::{BoundTicketer, SharedTicketer};
use crate::unwritten::Unwritten;

/// The application protocol that servers accept (ALPN).
pub(crate) const HTTP_1_1: &[u8] = b"http/1.1";

/// The settings of a TLS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Certificates, each with its key. The first is the default: for clients that ask for a name
    /// without a certificate, or for no name.
    pub certificates: Vec<CertificateFiles>,
    /// A further certificate, which a client of an authority renews. Default: none.
    pub managed: Option<Managed>,
    /// Server names whose connections are passed through without ending their TLS; other servers
    /// have the certificates. Each is a name, `*.` and a domain for subdomains of one more label,
    /// or `*` for all names that match nothing else. The most specific match wins, and the name of
    /// a certificate wins over a wildcard. Default: none.
    pub passthrough: Vec<Box<str>>,
    /// The lowest accepted version. Default TLS 1.2.
    pub min_version: Version,
    /// The side that chooses the cipher suite. Default: the client.
    pub preference: SuitePreference,
    /// The certificates required of clients. Default: clients are not asked for any.
    pub client_auth: Option<ClientAuth>,
    /// A file of keys for session tickets, 80 bytes each, the newest first. Servers with the same
    /// file resume each other's sessions. Default: keys of this process, replaced every six hours.
    pub ticket_keys: Option<PathBuf>,
    /// Other rules for clients that ask for some names. Default: none.
    pub policies: Vec<TlsPolicy>,
    /// Names whose clients have the rules of the whole server although a pattern of a policy
    /// matches them; in the form of [`TlsPolicy::names`].
    pub own_names: Vec<Box<str>>,
}

/// Rules for clients that ask for some server names, in place of the rules of the whole server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPolicy {
    /// The names: exact ones, `*.` and a domain for names with one label more, `**.` and a domain
    /// for names with one or several more, `*` for all other names. They are in lower case. A name
    /// wins over `*.`, that over the longest `**.`, and that over `*`.
    pub names: Vec<Box<str>>,
    /// The lowest accepted version.
    pub min_version: Version,
    /// The certificates required of clients.
    pub client_auth: Option<ClientAuth>,
}

impl TlsPolicy {
    /// Returns the number of these rules, which no others have in this process: the same for other
    /// names. Never 0, the number of the server's own rules.
    #[must_use]
    pub fn number(&self) -> u32 {
        static KNOWN: Mutex<BTreeMap<(bool, Option<ClientAuth>), u32>> =
            Mutex::new(BTreeMap::new());
        let rules = (self.min_version == Version::Tls13, self.client_auth.clone());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let next = known.len() as u32 + 1;
        *known.entry(rules).or_insert(next)
    }
}

/// A certificate that a client of an authority renews (ACME).
#[derive(Clone, Debug)]
pub struct Managed {
    /// A file with the certificate, its chain up to a root, and the private key. While the file is
    /// missing, handshakes are refused for clients that no other certificate matches.
    pub file: PathBuf,
    /// The names of the certificate, issued or still to come. Like the names of any certificate
    /// they win over a wildcard of [`TlsConfig::passthrough`].
    pub domains: Vec<String>,
    /// The answers to the authority's challenges. A client that validates one of these names is
    /// never passed through.
    pub challenges: Arc<Challenges>,
    /// The certificate to serve while `file` cannot be written.
    pub unwritten: Arc<Unwritten>,
}

impl PartialEq for Managed {
    fn eq(&self, other: &Self) -> bool {
        let is_same = self.file == other.file && self.domains == other.domains;
        is_same
            && Arc::ptr_eq(&self.challenges, &other.challenges)
            && Arc::ptr_eq(&self.unwritten, &other.unwritten)
    }
}

impl Eq for Managed {}

impl Managed {
    fn files(&self) -> CertificateFiles {
        CertificateFiles { chain: self.file.clone(), key: self.file.clone() }
    }
}

/// The order by which a server chooses a cipher suite from a client's offer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SuitePreference {
    /// The client's order.
    #[default]
    Client,
    /// AES-128-GCM with SHA-256 before all others. A handshake takes a fifth less time than with
    /// SHA-384, for which processors have no instructions.
    Aes128,
}

/// Authentication of clients by certificates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientAuth {
    /// A file with the accepted authorities, in PEM. If it has changed when it is read again,
    /// earlier sessions are not resumed. While it is unchanged, a session can be resumed until the
    /// first certificate of the client's chain expires.
    pub authorities: PathBuf,
    /// A file with lists of revoked certificates (CRLs), in PEM. Each authority of a client's chain
    /// needs a list, and no certificate is accepted under an expired list. If the file has changed
    /// when it is read again, earlier sessions are not resumed; while it is unchanged, they can be,
    /// even after a list has expired.
    pub revoked: Option<PathBuf>,
    /// Whether a client without a certificate is refused. A client whose certificate is not
    /// accepted is always refused.
    pub is_required: bool,
}

/// A server's certificate as last read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedCertificate {
    /// The certificate's file.
    pub file: PathBuf,
    /// The certificate's first name, or its file if it has none.
    pub name: String,
    /// When it becomes valid, in seconds since 1970.
    pub begins: i64,
    /// When it expires, in seconds since 1970.
    pub expires: i64,
}

impl ServedCertificate {
    fn is_valid_at(&self, time: i64) -> bool {
        (self.begins..=self.expires).contains(&time)
    }
}

/// The files of a certificate, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, followed by its chain up to a root.
    pub chain: PathBuf,
    /// Its private key, not encrypted.
    pub key: PathBuf,
}

impl ConfigError {
    /// Adds a command that makes the missing certificate.
    fn with_recipe(mut self, CertificateFiles { chain, key }: &CertificateFiles) -> Self {
        let (chain, key) = (chain.display(), key.display());
        self.what += &format!(
            ", or make a certificate for tests: openssl req -x509 -newkey ec -pkeyopt \
             ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost -addext \
             subjectAltName=DNS:localhost,IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE \
             -keyout {key} -out {chain}"
        );
        self
    }
}

impl TlsConfig {
    /// Creates the default settings with these certificates.
    #[must_use]
    pub fn new(certificates: Vec<CertificateFiles>) -> Self {
        Self {
            certificates,
            managed: None,
            passthrough: Vec::new(),
            min_version: Version::Tls12,
            preference: SuitePreference::default(),
            client_auth: None,
            ticket_keys: None,
            policies: Vec::new(),
            own_names: Vec::new(),
        }
    }

    /// Reads the files and checks that they match. `earlier`, if it was made for the same
    /// authentication of clients, allows its sessions to be resumed, and encrypts session tickets
    /// if there is no file of keys. `in_use` are the certificates served so far.
    ///
    /// # Errors
    /// A file cannot be read, has other contents than expected, or does not match another file; or
    /// a certificate that would replace a valid one has expired or is not valid yet.
    pub(crate) fn load(
        &self,
        (earlier, earlier_policies): (Option<&Tickets>, &Policies<Policy>),
        in_use: &[ServedCertificate],
    ) -> Result<Loaded, ConfigError> {
        let (resolver, served) =
            Certificates::load(&self.certificates, self.managed.as_ref(), in_use)?;
        if resolver.default.is_empty() && self.managed.is_none() && self.passthrough.is_empty() {
            let what = "a TLS server needs a certificate and its key".to_owned();
            return Err(ConfigError::without_file(what));
        }
        let issued = self.managed.iter().flat_map(|managed| &managed.domains);
        let certified = resolver.of_name.keys().map(Box::as_ref);
        let certified = certified.chain(issued.map(String::as_str));
        let passthrough =
            Passthrough::new(&self.passthrough, certified, resolver.challenges.clone());
        let provider = Arc::new(match self.preference {
            SuitePreference::Client => aws_lc_rs::default_provider(),
            SuitePreference::Aes128 => preferring_aes128(),
        });
        let resolver = Arc::new(resolver);
        let parts = (&provider, &resolver);
        let (server, tickets) =
            self.server(parts, (self.min_version, self.client_auth.as_ref()), (None, earlier))?;
        let mut policies = Policies::default();
        policies.add_own(&self.own_names);
        for policy in &self.policies {
            let number = policy.number();
            let earlier = earlier_policies.iter().find(|earlier| earlier.number == number);
            let earlier = earlier.map(|earlier| &earlier.tickets);
            let rules = (policy.min_version, policy.client_auth.as_ref());
            let (mut config, own) =
                self.server(parts, rules, (Some(policy.min_version), earlier))?;
            if earlier.is_none() {
                // A successor of the process derives the same keys.
                own.take_over(&tickets.carried());
            }
            prepare(&mut config);
            let config = Arc::new(config);
            policies.add(&policy.names, Policy { number, config, tickets: own });
        }
        Ok(Loaded { server, served, tickets, passthrough, policies })
    }

    /// Creates a configuration of rustls with these rules. `scope`: the tickets belong to a policy
    /// with this lowest version.
    fn server(
        &self,
        (provider, resolver): (&Arc<CryptoProvider>, &Arc<Certificates>),
        (min_version, client_auth): (Version, Option<&ClientAuth>),
        (scope, earlier): (Option<Version>, Option<&Tickets>),
    ) -> Result<(ServerConfig, Tickets), ConfigError> {
        let versions = match min_version {
            Version::Tls12 => &[&version::TLS13, &version::TLS12][..],
            Version::Tls13 => &[&version::TLS13],
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
            .with_protocol_versions(versions)
            .map_err(without_file)?;
        let (builder, clients) = match client_auth {
            None => (builder.with_no_client_auth(), None),
            Some(auth) => {
                let clients = Clients::load(auth)?;
                let verifier = clients.verifier(auth, Arc::clone(provider))?;
                let clients = Some(clients);
                (builder.with_client_cert_verifier(verifier), clients)
            }
        };
        let tickets = Tickets::new(self.ticket_keys.as_deref(), (clients, scope), earlier)?;
        let mut config = builder.with_cert_resolver(Arc::clone(resolver) as _);
        config.alpn_protocols = vec![HTTP_1_1.to_vec()];
        if self.managed.is_some() {
            config.alpn_protocols.push(ACME_TLS_1.to_vec());
        }
        config.ignore_client_order = self.preference == SuitePreference::Aes128;
        // Tickets need no server memory, and no lock that all shards share.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = tickets.ticketer();
        // A WebSocket client reconnects once.
        config.send_tls13_tickets = 1;
        Ok((config, tickets))
    }
}

/// Returns the provider with its suites in the order in which browsers offer them, AES-128 first.
pub(crate) fn preferring_aes128() -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites.sort_by_key(|suite| {
        let suite = suite.suite();
        !matches!(
            suite,
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        )
    });
    provider
}

/// A policy in force.
pub(crate) struct Policy {
    pub(crate) number: u32,
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) tickets: Tickets,
}

/// A configuration of rustls, made from files.
pub(crate) struct Loaded {
    pub(crate) server: ServerConfig,
    pub(crate) served: Vec<ServedCertificate>,
    pub(crate) tickets: Tickets,
    pub(crate) passthrough: Passthrough,
    pub(crate) policies: Policies<Policy>,
}

/// The encrypter of session tickets, and how the clients of these sessions are authenticated.
#[derive(Clone)]
pub(crate) struct Tickets {
    ticketer: Arc<dyn ProducesTickets>,
    /// If clients are asked for a certificate.
    clients: Option<Clients>,
    /// The keys, unless they come from a file.
    own: Option<Arc<OwnTicketer>>,
}

impl Tickets {
    /// Returns the tickets of a new configuration. It takes the process's own keys from `earlier`
    /// as long as the same client certificates are required.
    ///
    /// # Errors
    /// The file cannot be read, or its contents are not keys.
    fn new(
        file: Option<&Path>,
        (clients, scope): (Option<Clients>, Option<Version>),
        earlier: Option<&Self>,
    ) -> Result<Self, ConfigError> {
        let digest = clients.as_ref().map(Clients::digest);
        let mut policy = digest.as_ref().map_or(&[][..], |digest| digest.as_ref()).to_vec();
        if let Some(version) = scope {
            let version = if version == Version::Tls13 { b"1.3" } else { b"1.2" };
            policy.extend_from_slice(b"policy of names");
            policy.extend_from_slice(version);
        }
        let policy = policy.as_slice();
        if let Some(file) = file {
            let ticketer = Arc::new(SharedTicketer::load(file, policy)?);
            return Ok(Self { ticketer, clients, own: None });
        }
        match earlier {
            Some(earlier) if earlier.clients == clients && earlier.own.is_some() => {
                Ok(earlier.clone())
            }
            _ => {
                let no_numbers = |Unspecified| {
                    without_file(rustls::Error::General("no random numbers".to_owned()))
                };
                let own = Arc::new(OwnTicketer::new(policy).map_err(no_numbers)?);
                let ticketer = Arc::clone(&own) as Arc<dyn ProducesTickets>;
                Ok(Self { ticketer, clients, own: Some(own) })
            }
        }
    }

    /// Returns the keys that a successor of the process [takes over](Self::take_over): none if they
    /// come from a file.
    pub(crate) fn carried(&self) -> Secret {
        self.own.as_ref().map(|own| own.carried()).unwrap_or_default()
    }

    /// Uses the keys of a predecessor, unless the keys come from a file.
    pub(crate) fn take_over(&self, carried: &[u8]) {
        if let Some(own) = &self.own {
            own.take_over(carried);
        }
    }
}

impl Tickets {
    /// Returns the encrypter of the tickets. If clients show certificates, their tickets end when
    /// these expire.
    fn ticketer(&self) -> Arc<dyn ProducesTickets> {
        let ticketer = Arc::clone(&self.ticketer);
        match self.clients {
            Some(_) => Arc::new(BoundTicketer::new(ticketer)),
            None => ticketer,
        }
    }
}

/// The files of [`ClientAuth`], as they were read.
#[derive(Clone, PartialEq)]
struct Clients {
    is_required: bool,
    authorities: Vec<CertificateDer<'static>>,
    revoked: Vec<CertificateRevocationListDer<'static>>,
}

impl Clients {
    fn load(auth: &ClientAuth) -> Result<Self, ConfigError> {
        Ok(Self {
            is_required: auth.is_required,
            authorities: read_authorities(&auth.authorities)?,
            revoked: auth.revoked.as_deref().map_or_else(|| Ok(Vec::new()), read_revoked)?,
        })
    }

    /// Returns a digest that is different for each policy.
    fn digest(&self) -> Digest {
        let mut context = digest::Context::new(&SHA256);
        // Also covers the form of tickets: form 1 contains the end of the client's certificate.
        context.update(&[u8::from(self.is_required), 1]);
        let authorities = self.authorities.iter().map(AsRef::as_ref);
        let lists = self.revoked.iter().map(AsRef::as_ref);
        for (kind, bytes) in authorities.map(|it: &[u8]| (1, it)).chain(lists.map(|it| (2, it))) {
            context.update(&[kind]);
            context.update(&(bytes.len() as u64).to_be_bytes());
            context.update(bytes);
        }
        context.finish()
    }

    /// Returns the verifier of client certificates.
    fn verifier(
        &self,
        auth: &ClientAuth,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, ConfigError> {
        let file = &auth.authorities;
        let wrong = |error: &dyn fmt::Display| {
            ConfigError::new(file, format!("cannot be used as authorities of clients: {error}"))
        };
        let mut roots = RootCertStore::empty();
        for certificate in &self.authorities {
            roots.add(certificate.clone()).map_err(|error| wrong(&error))?;
        }
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .with_crls(self.revoked.iter().cloned())
            .enforce_revocation_expiration();
        let builder = match self.is_required {
            true => builder,
            false => builder.allow_unauthenticated(),
        };
        let verifier = builder.build().map_err(|error| wrong(&error))?;
        Ok(Arc::new(ChainLimit(verifier)))
    }
}

/// Certificates by the names in them.
#[derive(Debug)]
struct Certificates {
    /// Certificates of a name, EC keys before RSA keys: a signature with RSA takes five times as
    /// long.
    of_name: HashMap<Box<str>, Vec<Arc<CertifiedKey>>>,
    /// For all other names.
    default: Vec<Arc<CertifiedKey>>,
    /// For authorities that validate a name.
    challenges: Option<Arc<Challenges>>,
}

impl Certificates {
    fn load(
        files: &[CertificateFiles],
        managed: Option<&Managed>,
        in_use: &[ServedCertificate],
    ) -> Result<(Self, Vec<ServedCertificate>), ConfigError> {
        let mut served = Vec::new();
        let mut of_name: HashMap<Box<str>, Vec<_>> = HashMap::new();
        let mut default = Vec::new();
        let mut first_names = Vec::new();
        let unwritten = managed.and_then(|managed| managed.unwritten.certificate());
        // An inaccessible file is an error: taken for missing, it would be ordered again.
        let issued = match managed {
            Some(managed) if unwritten.is_none() && exists(&managed.file)? => Some(managed.files()),
            _ => None,
        };
        let mut keys = Vec::new();
        for files in files.iter().chain(&issued) {
            // The command would overwrite a key that exists, even an inaccessible one.
            let is_missing = |file| matches!(exists(file), Ok(false));
            let may_be_made = is_missing(&files.chain) && is_missing(&files.key);
            let certified = certified_key(files).map_err(|error| match may_be_made {
                true => error.with_recipe(files),
                false => error,
            })?;
            keys.push((files.chain.clone(), certified.line, Arc::new(certified.key)));
        }
        let managed_file = managed.map(|managed| managed.file.clone());
        keys.extend(managed_file.zip(unwritten).map(|(file, key)| (file, 1, key)));
        for (number, (file, line, key)) in keys.into_iter().enumerate() {
            let names = names(&file, line, &key)?;
            let name = names.first().map(AsRef::as_ref);
            served.push(served_certificate(&file, line, &key, name, in_use)?);
            // A second certificate with the names of the first has another kind of key.
            if number == 0 || names == first_names {
                default.push(Arc::clone(&key));
            }
            if number == 0 {
                first_names.clone_from(&names);
            }
            for name in names {
                of_name.entry(name).or_default().push(Arc::clone(&key));
            }
        }
        for keys in of_name.values_mut().chain([&mut default]) {
            keys.sort_by_key(|key| key.key.algorithm() == SignatureAlgorithm::RSA);
        }
        let challenges = managed.map(|managed| Arc::clone(&managed.challenges));
        Ok((Self { of_name, default, challenges }, served))
    }

    /// Returns the certificates for a name: exact, then with a wildcard for its first label, then
    /// the default.
    fn find(&self, name: Option<&str>) -> &[Arc<CertifiedKey>] {
        let Some(name) = name else { return &self.default };
        let name = canonical(name);
        let wildcard = || {
            let (_, parent) = name.split_once('.')?;
            self.of_name.get(format!("*.{parent}").as_str())
        };
        self.of_name.get(name.as_str()).or_else(wildcard).unwrap_or(&self.default)
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Some(challenges) = &self.challenges
            && is_validation(&hello)
        {
            return challenges.tls_alpn_01(hello.server_name()?);
        }
        let keys = self.find(hello.server_name());
        let schemes = hello.signature_schemes();
        let usable = keys.iter().find(|key| key.key.choose_scheme(schemes).is_some());
        usable.or(keys.first()).cloned()
    }
}

/// A certificate with its key, and the line at which it begins in its file.
pub(crate) struct Certified {
    pub(crate) key: CertifiedKey,
    line: usize,
}

/// Reads a certificate and its key, and checks that they match.
pub(crate) fn certified_key(files: &CertificateFiles) -> Result<Certified, ConfigError> {
    let CertificateFiles { chain: chain_file, key: key_file } = files;
    let text = files::read(chain_file)?;
    let chain = files::chain(chain_file, &text, Wanted::Chain)?;
    // If both are in one file, it is read once: then they match even while it is being replaced.
    let key = match chain_file == key_file {
        true => files::key(key_file, &text)?,
        false => files::key(key_file, &files::read(key_file)?)?,
    };
    check_first(chain_file, &chain)?;
    let key = aws_lc_rs::sign::any_supported_type(&key)
        .map_err(|error| unusable_key(key_file, &key, &error))?;
    let line = chain.lines[0];
    let certified = CertifiedKey::new(chain.certificates.clone(), key);
    match certified.keys_match() {
        // A key that does not reveal its public half cannot be compared.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
            check_order(chain_file, &chain)?;
            Ok(Certified { key: certified, line })
        }
        Err(rustls::Error::InconsistentKeys(_)) => Err(ConfigError::new(
            key_file,
            format!(
                "this is not the key of the first certificate in {}; use the key that the \
                 certificate was made with, and put that certificate before those of authorities",
                chain_file.display()
            ),
        )),
        Err(error) => Err(unusable(chain_file, line, &error)),
    }
}

/// The private keys that can be used.
const USABLE_KEYS: &str =
    "RSA with at least 2048 bits, EC on the curves P-256, P-384 or P-521, and Ed25519";

/// Algorithms and curves that cannot be used, by their object identifiers in DER.
const OTHER_KEYS: [(&[u8], &str); 8] = [
    (&[6, 5, 0x2b, 0x81, 4, 0, 10], "on the curve secp256k1"),
    (&[6, 5, 0x2b, 0x81, 4, 0, 33], "on the curve P-224"),
    (&[6, 9, 0x2b, 0x24, 3, 3, 2, 8, 1, 1], "on a curve of Brainpool"),
    (&[6, 3, 0x2b, 0x65, 113], "of Ed448"),
    (&[6, 3, 0x2b, 0x65, 110], "of X25519, which cannot sign"),
    (&[6, 3, 0x2b, 0x65, 111], "of X448, which cannot sign"),
    (&[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x38, 4, 1], "of DSA"),
    (&[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 10], "of RSASSA-PSS"),
];

/// Returns the error for a private key that cannot be used, with its kind if it is a known one.
fn unusable_key(file: &Path, key: &PrivateKeyDer<'_>, error: &rustls::Error) -> ConfigError {
    let der = key.secret_der();
    let is_in = |(id, _): &&(&[u8], &str)| der.windows(id.len()).any(|part| part == *id);
    let why = match OTHER_KEYS.iter().find(is_in) {
        Some((_, kind)) => format!("it is {kind}"),
        None => error.to_string(),
    };
    let what = format!(
        "this private key cannot be used: {why}; usable are {USABLE_KEYS}; make another key, and a \
         certificate for it"
    );
    ConfigError::new(file, what)
}

/// Checks that clients accept the first certificate: all of them refuse an RSA key below 2048 bits,
/// and a certificate without extensions, which has no names.
fn check_first(file: &Path, chain: &Chain) -> Result<(), ConfigError> {
    let parsed = parse(file, chain.lines[0], &chain.certificates[0])?;
    let X509Version(version) = parsed.version();
    if parsed.version() != X509Version::V3 {
        let what = format!(
            "line {}: this certificate is of version {}, which has no names; make one of version \
             3: `openssl req -x509` with -addext subjectAltName=DNS:NAME, or `openssl x509 -req` \
             with -extfile",
            chain.lines[0],
            u64::from(version) + 1
        );
        return Err(ConfigError::new(file, what));
    }
    match parsed.public_key().parsed() {
        Ok(PublicKey::RSA(key)) if key.key_size() < 2048 => Err(ConfigError::new(
            file,
            format!(
                "line {}: the key of this certificate is RSA with {} bits, which is too short; \
                 make one with at least 2048 bits, or an EC key, and a certificate for it",
                chain.lines[0],
                key.key_size()
            ),
        )),
        _ => Ok(()),
    }
}

/// Checks that a chain's certificates are in the order of RFC 8446 section 4.4.2: each certificate
/// precedes its issuer's. Leaves two cases to the client: authorities without an issuer in the
/// file, and a second certificate of the same authority that leads to another root.
fn check_order(file: &Path, chain: &Chain) -> Result<(), ConfigError> {
    let all = chain.certificates.iter().zip(&chain.lines);
    let parsed = all.map(|(certificate, line)| parse(file, *line, certificate));
    let parsed: Vec<X509Certificate<'_>> = parsed.collect::<Result<_, _>>()?;
    for (number, [before, after]) in parsed.array_windows().enumerate() {
        let issuer = before.issuer().as_raw();
        let is_issuer = |it: &X509Certificate<'_>| it.subject().as_raw() == issuer;
        let is_second = after.subject().as_raw() == before.subject().as_raw();
        let is_elsewhere = number == 0 || parsed[number + 2..].iter().any(is_issuer);
        if !is_issuer(after) && !is_second && is_elsewhere {
            return Err(ConfigError::new(
                file,
                format!(
                    "line {}: this certificate, {}, did not issue the one before it, whose issuer \
                     is {}; put each certificate before that of its issuer",
                    chain.lines[number + 1],
                    after.subject(),
                    before.issuer()
                ),
            ));
        }
    }
    Ok(())
}

/// Returns the details of a certificate that is served from now on.
///
/// # Errors
/// The certificate has expired or is not valid yet, and would replace a valid one: a certificate
/// `in_use` from the same file or with the same name.
fn served_certificate(
    file: &Path,
    line: usize,
    key: &CertifiedKey,
    name: Option<&str>,
    in_use: &[ServedCertificate],
) -> Result<ServedCertificate, ConfigError> {
    let parsed = parse(file, line, key.end_entity_cert().map_err(without_file)?)?;
    let validity = parsed.validity();
    let served = ServedCertificate {
        file: file.to_owned(),
        name: name.map_or_else(|| file.display().to_string(), str::to_owned),
        begins: validity.not_before.timestamp(),
        expires: validity.not_after.timestamp(),
    };
    let now = ASN1Time::now().timestamp();
    let is_replaced = |it: &&ServedCertificate| it.file == served.file || it.name == served.name;
    if served.is_valid_at(now) || !in_use.iter().filter(is_replaced).any(|it| it.is_valid_at(now)) {
        return Ok(served);
    }
    let (why, until) = match now > served.expires {
        true => (format!("expired on {}", validity.not_after), None),
        false => {
            let begins = Duration::from_secs(u64::try_from(served.begins).unwrap_or_default());
            let why = format!("is not valid before {}", validity.not_before);
            (why, SystemTime::UNIX_EPOCH.checked_add(begins))
        }
    };
    let what =
        format!("line {line}: this certificate {why}; the one in use, which is valid, stays");
    Err(ConfigError { until, ..ConfigError::new(file, what) })
}

/// Parses the certificate that begins at this line of its file.
fn parse<'a>(
    file: &Path,
    line: usize,
    certificate: &'a CertificateDer<'_>,
) -> Result<X509Certificate<'a>, ConfigError> {
    match x509_parser::parse_x509_certificate(certificate) {
        Ok((_, parsed)) => Ok(parsed),
        Err(error) => {
            let what = format!(
                "line {line}: this certificate cannot be used: {error}; copy the file again, or \
                 have the certificate made again"
            );
            Err(ConfigError::new(file, what))
        }
    }
}

fn unusable(file: &Path, line: usize, error: &dyn fmt::Display) -> ConfigError {
    ConfigError::new(file, format!("line {line}: the first certificate cannot be used: {error}"))
}

/// Returns the DNS names of a certificate, in lower case.
fn names(file: &Path, line: usize, key: &CertifiedKey) -> Result<Vec<Box<str>>, ConfigError> {
    let first = key.end_entity_cert().map_err(without_file)?;
    let parsed =
        webpki::EndEntityCert::try_from(first).map_err(|error| unusable(file, line, &error))?;
    Ok(parsed.valid_dns_names().map(|name| name.to_ascii_lowercase().into()).collect())
}
